//! Requests to the name server (docs/behaviour.md, "Name server").

use std::collections::BTreeMap;

use saturnmq_net::codes::request as code;
use saturnmq_net::codes::response;
use saturnmq_net::fastjson;
use saturnmq_net::messages::kv::{GetKvList, KvTable};
use saturnmq_net::messages::namesrv::{
    BrokerHeartbeat, BrokerName, DeleteTopicInNamesrv, GetBrokerMemberGroup,
};
use saturnmq_net::messages::register::{
    BrokerIdentity, RegisterBroker, RegisterBrokerBody, body_crc32,
};
use saturnmq_net::messages::route::{
    BrokerData, BrokerMemberGroup, ClusterInfo, GetBrokerMemberGroupResponse, QueueData, TopicList,
    TopicRouteData,
};
use saturnmq_net::messages::topic::{DataVersion, TopicConfigSerializeWrapper};
use serde::Serialize;

use crate::answer::{Answer, Channel, Reply, Request};
use crate::broker::Broker;
use crate::core::steady_ms;
use crate::handler::faq;
use crate::name_server::ORDER_TOPIC_CONFIG;
use crate::name_server::registry::{
    BrokerEntry, DEFAULT_LEASE_MS, LONGEST_LEASE_MS, Registration, TopicQueues, UnitTopics, Version,
};
use crate::persist::File;

/// Configuration keys that no request may change: they name files.
const PATH_KEYS: [&str; 4] = [
    "configBlackList",
    "configStorePath",
    "kvConfigPath",
    "rocketmqHome",
];

/// Answers a name-server request; `None` when the code is not the name server's.
pub fn handle(broker: &Broker, request: &Request<'_>) -> Option<Answer> {
    Some(match request.command.code {
        code::PUT_KV_CONFIG => put_kv(broker, request),
        code::GET_KV_CONFIG => get_kv(broker, request),
        code::DELETE_KV_CONFIG => delete_kv(broker, request),
        code::GET_KVLIST_BY_NAMESPACE => list_kv(broker, request),
        code::REGISTER_BROKER => register(broker, request),
        code::UNREGISTER_BROKER => unregister(request),
        code::QUERY_DATA_VERSION => query_version(broker, request),
        code::BROKER_HEARTBEAT => broker_heartbeat(broker, request),
        code::GET_BROKER_MEMBER_GROUP => member_group(broker, request),
        code::GET_ROUTEINFO_BY_TOPIC => route(broker, request),
        code::GET_BROKER_CLUSTER_INFO => cluster_info(),
        code::WIPE_WRITE_PERM_OF_BROKER => set_writable(request, false),
        code::ADD_WRITE_PERM_OF_BROKER => set_writable(request, true),
        code::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => all_topics(),
        code::GET_TOPICS_BY_CLUSTER => cluster_topics(request),
        code::GET_SYSTEM_TOPIC_LIST_FROM_NS => system_topics(),
        code::GET_UNIT_TOPIC_LIST => unit_topics(UnitTopics::Unit),
        code::GET_HAS_UNIT_SUB_TOPIC_LIST => unit_topics(UnitTopics::UnitSub),
        code::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => unit_topics(UnitTopics::UnitSubNotUnit),
        code::DELETE_TOPIC_IN_NAMESRV => delete_topic(request),
        code::REGISTER_TOPIC_IN_NAMESRV => register_topic(broker, request),
        code::UPDATE_NAMESRV_CONFIG => update_config(request),
        code::GET_NAMESRV_CONFIG => get_config(broker),
        _ => return None,
    })
}

/// Bytes of a registration's body that a network core reads itself: some hundred topics.
const FEW_TOPICS: usize = 32 << 10;
/// Routes that are entered while no core finds one.
const FEW_ROUTES: usize = 256;

fn json(body: &impl Serialize) -> Reply {
    match serde_json::to_vec(body) {
        Ok(bytes) => Reply::success().body(bytes),
        Err(error) => Reply::error(response::SYSTEM_ERROR, error.to_string()),
    }
}

/// What takes the longer the more topics or brokers there are: not for a network core.
fn later(work: impl FnOnce(&Broker) -> Reply + Send + 'static) -> Answer {
    Answer::Later(Box::new(move |services| work(&services.broker)))
}

fn broker_data(name: &str, entry: &BrokerEntry) -> BrokerData {
    BrokerData {
        broker_addrs: entry.addresses.clone(),
        broker_name: name.to_owned(),
        cluster: entry.cluster.clone(),
        enable_acting_master: entry.acting_master,
        zone_name: None,
    }
}

fn route(broker: &Broker, request: &Request<'_>) -> Answer {
    let topic = request.command.ext.get("topic").unwrap_or("null");
    let Some(route) = broker.name_server.registry().route(topic) else {
        let remark = format!(
            "No topic route info in name server for the topic: {topic}{}",
            faq(request)
        );
        return Reply::error(response::TOPIC_NOT_EXIST, remark).into();
    };
    json(&TopicRouteData {
        broker_datas: route
            .brokers
            .iter()
            .map(|(name, entry)| broker_data(name, entry))
            .collect(),
        filter_server_table: BTreeMap::new(),
        // As long as Apache's `orderMessageEnable` is off, which it is unless set.
        order_topic_conf: None,
        queue_datas: route
            .queues
            .iter()
            .map(|(name, queues)| queue_data(name, queues))
            .collect(),
    })
    .into()
}

fn queue_data(broker_name: &str, queues: &TopicQueues) -> QueueData {
    QueueData {
        broker_name: broker_name.to_owned(),
        perm: queues.perm,
        read_queue_nums: queues.read_queues,
        topic_sys_flag: queues.sys_flag,
        write_queue_nums: queues.write_queues,
    }
}

fn cluster_info() -> Answer {
    later(|broker| {
        let registry = broker.name_server.registry();
        json(&ClusterInfo {
            broker_addr_table: registry
                .brokers()
                .map(|(name, entry)| (name.clone(), broker_data(name, entry)))
                .collect(),
            cluster_addr_table: registry
                .clusters()
                .map(|(cluster, members)| (cluster.clone(), members.iter().cloned().collect()))
                .collect(),
        })
    })
}

fn topic_list(topic_list: Vec<String>) -> Reply {
    json(&TopicList {
        broker_addr: None,
        topic_list,
    })
}

fn all_topics() -> Answer {
    later(|broker| {
        let registry = broker.name_server.registry();
        topic_list(registry.topics().map(|name| name.to_string()).collect())
    })
}

fn cluster_topics(request: &Request<'_>) -> Answer {
    let cluster = request.command.ext.get("cluster").unwrap_or_default();
    let cluster = cluster.to_owned();
    later(move |broker| topic_list(broker.name_server.registry().topics_of_cluster(&cluster)))
}

fn system_topics() -> Answer {
    later(|broker| {
        let registry = broker.name_server.registry();
        let mut names: Vec<String> = registry.clusters().map(|(name, _)| name.clone()).collect();
        names.extend(registry.brokers().map(|(name, _)| name.clone()));
        let broker_addr = registry
            .brokers()
            .find_map(|(_, entry)| entry.addresses.values().next().cloned());
        json(&TopicList {
            broker_addr,
            topic_list: names,
        })
    })
}

fn unit_topics(kind: UnitTopics) -> Answer {
    later(move |broker| topic_list(broker.name_server.registry().unit_topics(kind)))
}

fn delete_topic(request: &Request<'_>) -> Answer {
    let header = match DeleteTopicInNamesrv::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let cluster = header.cluster_name.filter(|name| !name.is_empty());
    let (topic, cluster) = (header.topic.to_owned(), cluster.map(str::to_owned));
    later(move |broker| {
        let mut registry = broker.name_server.registry_mut();
        registry.delete_topic(&topic, cluster.as_deref());
        Reply::success()
    })
}

fn register_topic(broker: &Broker, request: &Request<'_>) -> Answer {
    let topic = match request.command.ext.required_str("topic") {
        Ok(topic) => topic,
        Err(error) => return error.into(),
    };
    let (topic, body) = (topic.to_owned(), request.command.body.to_vec());
    // Whatever comes next on the connection finds what a few brokers have.
    let is_small = body.len() <= FEW_TOPICS;
    let work = move |broker: &Broker| enter_topic(broker, &topic, &body);
    match is_small {
        true => work(broker).into(),
        false => later(work),
    }
}

/// Enters a topic on those of the brokers that are known here.
fn enter_topic(broker: &Broker, topic: &str, body: &[u8]) -> Reply {
    let route: TopicRouteData = match fastjson::from_client(body) {
        Ok(route) => route,
        Err(error) => return Reply::error(response::SYSTEM_ERROR, error.to_string()),
    };
    // Of a broker that is named more than once the last counts.
    let by_name = route.queue_datas.into_iter().map(|data| {
        let queues = TopicQueues {
            read_queues: data.read_queue_nums,
            write_queues: data.write_queue_nums,
            perm: data.perm,
            sys_flag: data.topic_sys_flag,
        };
        (data.broker_name, queues)
    });
    let wanted: Vec<_> = by_name.collect::<BTreeMap<_, _>>().into_iter().collect();
    // The cores wait for these tables: a few at a time.
    for few in wanted.chunks(FEW_ROUTES) {
        let mut registry = broker.name_server.registry_mut();
        for (name, queues) in few {
            if registry.broker(name).is_none() {
                continue;
            }
            if let Err(limit) = registry.add_topic(name, topic, queues.clone()) {
                return Reply::error(response::SYSTEM_ERROR, limit.to_string());
            }
        }
    }
    Reply::success()
}

fn set_writable(request: &Request<'_>, writable: bool) -> Answer {
    let header = match BrokerName::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let name = header.broker_name.to_owned();
    later(move |broker| {
        let touched = broker
            .name_server
            .registry_mut()
            .set_writable(&name, writable);
        let field = if writable {
            "addTopicCount"
        } else {
            "wipeTopicCount"
        };
        Reply::success().field(field, touched)
    })
}

fn register(broker: &Broker, request: &Request<'_>) -> Answer {
    let header = match RegisterBroker::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let registration = Registration {
        cluster: header.cluster_name.to_owned(),
        broker: header.broker_name.to_owned(),
        id: header.broker_id,
        address: header.broker_addr.to_owned(),
        ha_address: header.ha_server_addr.to_owned(),
        lease_ms: header
            .heartbeat_timeout_ms
            .filter(|ms| *ms > 0)
            .map_or(DEFAULT_LEASE_MS, |ms| ms.min(LONGEST_LEASE_MS)),
        acting_master: header.enable_acting_master.unwrap_or(false),
        single_topic_first: !request.is_v5(),
        ..Registration::default()
    };
    let sent = SentTables {
        body: request.command.body.to_vec(),
        crc32: header.body_crc32,
        compressed: header.compressed == Some(true),
    };
    let channel = request.channel();
    let work = move |broker: &Broker| match sent.read() {
        Ok(tables) => enter(broker, registration, tables, channel),
        Err(refusal) => refusal,
    };
    // A few topics are entered at once: whatever comes next on the connection finds them.
    let is_small = header.compressed != Some(true) && request.command.body.len() <= FEW_TOPICS;
    match is_small {
        true => work(broker).into(),
        false => later(work),
    }
}

/// The body of a registration as it came.
struct SentTables {
    body: Vec<u8>,
    crc32: Option<i32>,
    compressed: bool,
}

impl SentTables {
    fn read(&self) -> Result<TopicConfigSerializeWrapper, Reply> {
        if self
            .crc32
            .is_some_and(|crc| crc != 0 && crc != body_crc32(&self.body))
        {
            return Err(Reply::error(response::SYSTEM_ERROR, "crc32 not match"));
        }
        match RegisterBrokerBody::decode(&self.body, self.compressed) {
            Ok(tables) => Ok(tables.topic_config_serialize_wrapper),
            Err(error) => Err(Reply::error(response::SYSTEM_ERROR, error.to_string())),
        }
    }
}

/// Enters a broker with its topics; the answer that it gets.
fn enter(
    broker: &Broker,
    mut registration: Registration,
    tables: TopicConfigSerializeWrapper,
    channel: Channel,
) -> Reply {
    registration.version = version(tables.data_version);
    let topics = tables.topic_config_table.into_iter();
    registration.topics = topics
        .map(|(name, config)| {
            let queues = TopicQueues {
                read_queues: config.read_queue_nums,
                write_queues: config.write_queue_nums,
                perm: config.perm,
                sys_flag: config.topic_sys_flag,
            };
            (name, queues)
        })
        .collect();
    let mut registry = broker.name_server.registry_mut();
    match registry.register(registration, Some(channel), steady_ms()) {
        Err(error) => Reply::error(response::SYSTEM_ERROR, error.to_string()),
        Ok(registered) => {
            drop(registry);
            let mut reply = Reply::success().body(order_topics(broker));
            if let Some(address) = registered.ha_address {
                reply = reply.field("haServerAddr", address);
            }
            if let Some(address) = registered.master_address {
                reply = reply.field("masterAddr", address);
            }
            reply
        }
    }
}

/// The ordered topics as a broker expects them in its registration's answer; empty without any.
fn order_topics(broker: &Broker) -> Vec<u8> {
    let kv = broker.name_server.kv();
    let Some(table) = kv.config_table.get(ORDER_TOPIC_CONFIG) else {
        return Vec::new();
    };
    serde_json::to_vec(&KvTable {
        table: table.clone(),
    })
    .unwrap_or_default()
}

fn version(version: DataVersion) -> Version {
    Version {
        state_version: version.state_version,
        timestamp: version.timestamp,
        counter: version.counter,
    }
}

fn unregister(request: &Request<'_>) -> Answer {
    let header = match BrokerIdentity::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let (cluster, name) = (
        header.cluster_name.to_owned(),
        header.broker_name.to_owned(),
    );
    let address = header.broker_addr.to_owned();
    later(move |broker| {
        let mut registry = broker.name_server.registry_mut();
        registry.unregister(&cluster, &name, &address);
        Reply::success()
    })
}

fn query_version(broker: &Broker, request: &Request<'_>) -> Answer {
    let header = match BrokerIdentity::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let asked: DataVersion = match fastjson::from_client(request.command.body) {
        Ok(asked) => asked,
        Err(error) => return Reply::error(response::SYSTEM_ERROR, error.to_string()).into(),
    };
    let mut registry = broker.name_server.registry_mut();
    let held = registry.version_of(header.cluster_name, header.broker_addr);
    let changed = held != Some(version(asked));
    if !changed {
        registry.touch(header.cluster_name, header.broker_addr, steady_ms());
    }
    let mut reply = Reply::success().field("changed", changed);
    if let Some(held) = held {
        let held = DataVersion {
            counter: held.counter,
            state_version: held.state_version,
            timestamp: held.timestamp,
        };
        reply = reply.body(serde_json::to_vec(&held).unwrap_or_default());
    }
    reply.into()
}

fn broker_heartbeat(broker: &Broker, request: &Request<'_>) -> Answer {
    let header = match BrokerHeartbeat::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    broker
        .name_server
        .registry_mut()
        .touch(header.cluster_name, header.broker_addr, steady_ms());
    Reply::success().into()
}

fn member_group(broker: &Broker, request: &Request<'_>) -> Answer {
    let header = match GetBrokerMemberGroup::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let registry = broker.name_server.registry();
    let entry = registry.broker(header.broker_name);
    let entry = entry.filter(|entry| entry.cluster == header.cluster_name);
    let addresses = entry.map_or_else(BTreeMap::new, |entry| entry.addresses.clone());
    json(&GetBrokerMemberGroupResponse {
        broker_member_group: BrokerMemberGroup {
            broker_addrs: addresses,
            broker_name: header.broker_name.to_owned(),
            cluster: header.cluster_name.to_owned(),
        },
    })
    .into()
}

fn put_kv(broker: &Broker, request: &Request<'_>) -> Answer {
    let ext = &request.command.ext;
    let (Some(namespace), Some(key)) = (ext.get("namespace"), ext.get("key")) else {
        return Reply::error(response::SYSTEM_ERROR, "namespace or key is null").into();
    };
    let value = match ext.required_str("value") {
        Ok(value) => value,
        Err(error) => return error.into(),
    };
    // The change is counted under the lock: whoever finds it made waits for it.
    let mut kv = broker.name_server.kv();
    let ticket = match kv.put(namespace, key, value) {
        Ok(true) => broker.persist.changed(File::NameServerKv),
        Ok(false) => broker.persist.latest(File::NameServerKv),
        Err(full) => return Reply::error(response::SYSTEM_ERROR, full.to_string()).into(),
    };
    Answer::After(vec![ticket], Reply::success())
}

fn get_kv(broker: &Broker, request: &Request<'_>) -> Answer {
    let ext = &request.command.ext;
    let (Some(namespace), Some(key)) = (ext.get("namespace"), ext.get("key")) else {
        return Reply::error(response::SYSTEM_ERROR, "namespace or key is null").into();
    };
    let kv = broker.name_server.kv();
    match kv
        .config_table
        .get(namespace)
        .and_then(|table| table.get(key))
    {
        Some(value) => Reply::success().field("value", value).into(),
        None => {
            let remark = format!("No config item, Namespace: {namespace} Key: {key}");
            Reply::error(response::QUERY_NOT_FOUND, remark).into()
        }
    }
}

fn delete_kv(broker: &Broker, request: &Request<'_>) -> Answer {
    let ext = &request.command.ext;
    let (Some(namespace), Some(key)) = (ext.get("namespace"), ext.get("key")) else {
        return Reply::error(response::SYSTEM_ERROR, "namespace or key is null").into();
    };
    let mut kv = broker.name_server.kv();
    let ticket = if kv.delete(namespace, key) {
        broker.persist.changed(File::NameServerKv)
    } else {
        broker.persist.latest(File::NameServerKv)
    };
    Answer::After(vec![ticket], Reply::success())
}

fn list_kv(broker: &Broker, request: &Request<'_>) -> Answer {
    let header = match GetKvList::decode(&request.command.ext) {
        Ok(header) => header,
        Err(error) => return error.into(),
    };
    let kv = broker.name_server.kv();
    match kv.config_table.get(header.namespace) {
        Some(table) => json(&KvTable {
            table: table.clone(),
        })
        .into(),
        None => {
            let remark = format!("No config item, Namespace: {}", header.namespace);
            Reply::error(response::QUERY_NOT_FOUND, remark).into()
        }
    }
}

/// Nothing of the embedded name server's configuration changes while it runs: keys that name
/// files are refused as Apache does, the others are answered as unknown.
fn update_config(request: &Request<'_>) -> Answer {
    let Ok(text) = std::str::from_utf8(request.command.body) else {
        return Reply::error(response::SYSTEM_ERROR, "the body is not UTF-8 text").into();
    };
    let keys: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '!']))
        .map(|line| line.split(['=', ':']).next().unwrap_or_default().trim())
        .collect();
    if keys.iter().any(|key| PATH_KEYS.contains(key)) {
        let remark = if request.is_v5() {
            "Can not update config in black list."
        } else {
            "Can not update config path"
        };
        return Reply::error(response::NO_PERMISSION, remark).into();
    }
    if let Some(key) = keys.first() {
        let remark = format!("key {key} of the embedded name server cannot change while it runs");
        return Reply::error(response::SYSTEM_ERROR, remark).into();
    }
    Reply::success().into()
}

fn get_config(broker: &Broker) -> Answer {
    let port = broker.ports.name_server.unwrap_or_default();
    let text = format!(
        "listenPort={port}\nbindAddress={}\nserverChannelMaxIdleTimeSeconds={}\n",
        broker.config.bind,
        broker.config.idle_timeout.as_secs(),
    );
    Reply::success().body(text.into_bytes()).into()
}
