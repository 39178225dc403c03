//! Who is connected: requests 203, 204 and 328 (docs/behaviour.md, Client management).

use saturnmq_net::messages::heartbeat as wire;

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::clients::Member;
use crate::core::{now_ms, steady_ms};
use crate::handler::topic::json_reply;

/// CONSUMER_NOT_ONLINE.
const CONSUMER_NOT_ONLINE: i32 = 206;

fn connection(member: &Member) -> wire::Connection {
    wire::Connection {
        client_addr: member.peer.to_string(),
        client_id: member.client_id.to_string(),
        language: member.language.name().to_owned(),
        version: member.version,
    }
}

/// 203: the members of a consumer group and what they want.
pub fn consumers(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::ConsumerGroup::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let Some(group) = broker.clients.consumer(asked.consumer_group) else {
        let remark = format!("the consumer group[{}] not online", asked.consumer_group);
        return Reply::error(CONSUMER_NOT_ONLINE, remark).into();
    };
    let view = group.view();
    let subscriptions = view.subscriptions.iter();
    json_reply(&wire::ConsumerConnection {
        connection_set: view.members.iter().map(|m| connection(m)).collect(),
        consume_from_where: view.consume_from_where,
        consume_type: view.consume_type,
        message_model: view.message_model,
        subscription_table: subscriptions
            .map(|(topic, subscription)| (topic.to_string(), subscription.data.clone()))
            .collect(),
    })
    .into()
}

/// 204: the members of a producer group.
pub fn producers(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::ProducerGroup::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let Some(group) = broker.clients.producer(asked.producer_group) else {
        let remark = format!("the producer group[{}] not exist", asked.producer_group);
        return Reply::error(SYSTEM_ERROR, remark).into();
    };
    json_reply(&wire::ProducerConnection {
        connection_set: group.members().iter().map(|m| connection(m)).collect(),
    })
    .into()
}

/// 328: every producer.
pub fn all_producers() -> Answer {
    Answer::Later(Box::new(|services| producer_table(&services.broker)))
}

fn producer_table(broker: &Broker) -> Reply {
    let mut table = wire::ProducerTable::default();
    for name in broker.clients.producer_groups() {
        let Some(group) = broker.clients.producer(&name) else {
            continue;
        };
        let info = |member: &std::sync::Arc<Member>| wire::ProducerInfo {
            client_id: member.client_id.to_string(),
            language: member.language.name().to_owned(),
            last_update_timestamp: now_ms() - (steady_ms() - member.last_seen_ms()),
            // As Java prints an address without a name.
            remote_ip: format!("/{}", member.peer),
            version: member.version,
        };
        let members = group.members().iter().map(info).collect();
        table.data.insert(name.to_string(), members);
    }
    json_reply(&table)
}
