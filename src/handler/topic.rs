//! Topics as administrators see them: requests 17, 18, 21, 215 and 351
//! (docs/behaviour.md, Topics).

use std::sync::Arc;

use saturnmq_net::fastjson;
use saturnmq_net::messages::topic as wire;
use serde::Serialize;

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR, V5_0_0};
use crate::broker::Broker;
use crate::handler::attributes::{self, Attributes};
use crate::handler::{INVALID_PARAMETER, TOPIC_NOT_EXIST, durably};
use crate::names::{self, NameError};
use crate::persist::{File, LastChanges, Ticket};
use crate::services::ServiceContext;
use crate::state_json::DataVersion;
use crate::state_members::Expected;
use crate::topics::{MOST_QUEUES, TopicConfig, TopicFilterType};

/// Most queues of one topic; each takes a directory and an entry in every answer.
pub const QUEUES_MAX: i32 = MOST_QUEUES as i32;

/// First version whose brokers refuse the message type `MIXED` unless it is enabled.
const V5_1_4: i32 = 441;

/// Code of a refused name: 4.9 has none of its own.
pub fn refused_name(is_v5: bool, remark: String) -> Reply {
    let code = if is_v5 {
        INVALID_PARAMETER
    } else {
        SYSTEM_ERROR
    };
    Reply::error(code, remark)
}

/// A body as JSON; what cannot be written (nothing of ours) is an error to the client.
pub fn json_reply<T: Serialize + ?Sized>(value: &T) -> Reply {
    let mut body = Vec::new();
    match fastjson::write(&mut body, value) {
        Ok(()) => Reply::success().body(body),
        Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
    }
}

/// Whether a tool may make, alter or remove a topic of this name.
pub(super) fn check_name(broker: &Broker, is_v5: bool, name: &str) -> Result<(), Reply> {
    names::check_topic(name).map_err(|error| refused_name(is_v5, error.to_string()))?;
    let config = &broker.config;
    if broker.live.load().validate_system_topic
        && names::is_system_topic(name, &config.cluster, &config.broker_name)
    {
        let remark = format!("The topic[{name}] is conflict with system topic.");
        return Err(refused_name(is_v5, remark));
    }
    Ok(())
}

pub(super) fn check_queues(config: &TopicConfig) -> Result<(), Reply> {
    for (field, count) in [
        ("readQueueNums", config.read_queues),
        ("writeQueueNums", config.write_queues),
    ] {
        Expected::Queues
            .check(field, &count.into())
            .map_err(|wrong| Reply::error(SYSTEM_ERROR, wrong.to_string()))?;
    }
    Ok(())
}

/// The attributes after a change; 4.9 has none and keeps those that 5.x clients set.
pub(super) fn alter(
    broker: &Broker,
    version: i32,
    topic: &str,
    text: Option<&str>,
) -> Result<Attributes, Reply> {
    let known = broker.topics.get(topic);
    let known = known.as_ref().map(|topic| &topic.config.attributes);
    let text = text.filter(|_| version >= V5_0_0).unwrap_or_default();
    let altered = attributes::alter_topic(known, text)
        .map_err(|remark| Reply::error(SYSTEM_ERROR, remark))?;
    let mixed = altered.get("message.type").is_some_and(|t| t == "MIXED");
    let refuses = version >= V5_1_4 && !broker.live.load().enable_mixed_message_type;
    if mixed && refuses {
        return Err(Reply::error(
            INVALID_PARAMETER,
            "MIXED message type is not supported.",
        ));
    }
    Ok(altered)
}

fn done(ticket: Option<Ticket>) -> Answer {
    match ticket {
        Some(ticket) => Answer::After(vec![ticket], Reply::success()),
        None => Reply::success().into(),
    }
}

/// 17: makes or alters a topic.
pub fn create(broker: &Broker, request: &Request<'_>) -> Answer {
    match wanted(broker, request) {
        Ok(config) => match full(broker, std::slice::from_ref(&config)) {
            Some(reply) => reply.into(),
            None => {
                let known = broker.topics.get(&config.name).is_some();
                let ticket = broker.topics.create_or_update(config);
                if known {
                    broker.rules_changed();
                }
                done(ticket)
            }
        },
        Err(reply) => reply.into(),
    }
}

/// The refusal of topics for which there is no room.
pub(super) fn full(broker: &Broker, configs: &[TopicConfig]) -> Option<Reply> {
    let full = broker.topics.check_room(configs).err()?;
    Some(Reply::error(SYSTEM_ERROR, full.to_string()))
}

fn wanted(broker: &Broker, request: &Request<'_>) -> Result<TopicConfig, Reply> {
    let asked = wire::CreateTopic::decode(&request.command.ext)?;
    check_name(broker, request.is_v5(), asked.topic)?;
    let kind = asked.topic_filter_type.unwrap_or("SINGLE_TAG");
    if wire::TopicFilterType::from_name(kind).is_none() {
        let remark = format!("topicFilterType = [{kind}] value invalid");
        return Err(Reply::error(SYSTEM_ERROR, remark));
    }
    let config = TopicConfig {
        name: asked.topic.to_owned(),
        read_queues: asked.read_queue_nums,
        write_queues: asked.write_queue_nums,
        perm: asked.perm,
        filter_type: TopicFilterType::parse(kind),
        sys_flag: asked.topic_sys_flag.unwrap_or(0),
        order: asked.order,
        attributes: alter(
            broker,
            request.command.version,
            asked.topic,
            asked.attributes,
        )?,
    };
    check_queues(&config)?;
    Ok(config)
}

/// A topic's configuration as answers carry it.
pub fn to_wire(config: &TopicConfig) -> wire::TopicConfig {
    wire::TopicConfig {
        attributes: config.attributes.clone(),
        order: config.order,
        perm: config.perm,
        read_queue_nums: config.read_queues,
        topic_filter_type: wire::TopicFilterType::from_name(config.filter_type.as_str())
            .unwrap_or_default(),
        topic_name: config.name.clone(),
        topic_sys_flag: config.sys_flag,
        write_queue_nums: config.write_queues,
    }
}

/// A data version as answers carry it.
pub fn version_to_wire(version: DataVersion) -> wire::DataVersion {
    wire::DataVersion {
        counter: version.counter,
        state_version: version.state_version,
        timestamp: version.timestamp,
    }
}

/// 21: all topics, or the page that is asked for.
pub fn all(_broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::GetAllTopicConfig::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let page = Page::new(asked.topic_seq, asked.max_topic_num);
    Answer::Later(Box::new(move |services| {
        let (version, configs) = services.broker.topics.snapshot();
        let total = configs.len();
        let body = wire::TopicConfigSerializeWrapper {
            data_version: version_to_wire(version),
            mapping_data_version: Some(wire::DataVersion::default()),
            topic_config_table: page
                .of(&configs)
                .iter()
                .map(|config| (config.name.clone(), to_wire(config)))
                .collect(),
            ..Default::default()
        };
        json_reply(&body).field("totalTopicNum", total)
    }))
}

/// A part of a table: from an entry on, at most so many. Without a number: all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    from: usize,
    most: usize,
}

impl Page {
    /// The page of a request.
    pub fn new(from: Option<i32>, most: Option<i32>) -> Self {
        let number = |n: Option<i32>| n.and_then(|n| usize::try_from(n).ok());
        match number(most).filter(|most| *most > 0) {
            Some(most) => Self {
                from: number(from).unwrap_or(0),
                most,
            },
            None => Self {
                from: 0,
                most: usize::MAX,
            },
        }
    }

    /// The page's part of all entries.
    pub fn of<T>(self, all: &[T]) -> &[T] {
        let from = self.from.min(all.len());
        &all[from..all.len().min(from.saturating_add(self.most))]
    }
}

/// 351: one topic.
pub fn get(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::TopicName::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    match broker.topics.get(asked.topic) {
        Some(topic) => json_reply(&to_wire(&topic.config)).into(),
        None => {
            let remark = format!("No topic in this broker. topic: {}", asked.topic);
            Reply::error(TOPIC_NOT_EXIST, remark).into()
        }
    }
}

/// 215: removes a topic with its queues and the progress of its groups; the log keeps its messages
/// until they expire.
pub fn delete(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::TopicName::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let config = &broker.config;
    if broker.live.load().validate_system_topic
        && names::is_system_topic(asked.topic, &config.cluster, &config.broker_name)
    {
        let remark = format!("The topic[{}] is conflict with system topic.", asked.topic);
        return refused_name(request.is_v5(), remark).into();
    }
    if broker.topics.get(asked.topic).is_none() {
        match names::check_topic(asked.topic) {
            Err(error) if !request.is_v5() || error == NameError::TopicBlank => {
                return refused_name(request.is_v5(), error.to_string()).into();
            }
            // Nothing may be removed under a name that is none.
            Err(_) => return Reply::success().into(),
            Ok(()) => {}
        }
    }
    let topic = asked.topic.to_owned();
    Answer::Work(Box::new(move |services, slot| {
        let broker = Arc::clone(&services.broker);
        match remove(services, &topic) {
            Ok(last) => durably::reply(broker, slot, last.into_tickets(), Reply::success()),
            Err(reply) => services.reply(slot, reply),
        }
    }))
}

fn remove(services: &mut ServiceContext, topic: &str) -> Result<LastChanges, Reply> {
    let broker = Arc::clone(&services.broker);
    let mut doomed = vec![topic.to_owned()];
    if broker.live.load().clear_retry_topic {
        for group in broker.offsets.groups_of(topic) {
            let retry = names::retry_topic(&group);
            doomed.push(format!("{retry}_{topic}"));
            doomed.push(format!("{retry}+{topic}"));
        }
    }
    let mut last = LastChanges::default();
    for name in doomed {
        // Progress and queue files go without a configuration as well: a topic that is made again
        // would go on with them.
        let removed = broker.topics.remove(&name);
        // Removed by another request a moment ago: it is that one's change.
        let removed = removed.map(|(_, ticket)| ticket);
        last.add(removed.or_else(|| Some(broker.persist.latest(File::Topics))));
        last.add(Some(broker.offsets.remove_topic(&name)));
        let queues = broker.store.remove_topic(&name).map_err(|error| {
            let remark = format!(
                "{name} is removed as long as this broker runs, and may be back after a kill: \
                 remove it once more. {error}"
            );
            Reply::error(SYSTEM_ERROR, remark)
        })?;
        broker.queues_gone(&queues);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_never_leaves_the_table() {
        let all = [1, 2, 3, 4, 5];
        assert_eq!(Page::new(None, None).of(&all), all);
        assert_eq!(Page::new(Some(3), None).of(&all), all);
        assert_eq!(Page::new(Some(1), Some(2)).of(&all), [2, 3]);
        assert_eq!(Page::new(Some(4), Some(9)).of(&all), [5]);
        assert_eq!(Page::new(Some(9), Some(9)).of(&all), [0; 0]);
        assert_eq!(Page::new(Some(-1), Some(-1)).of(&all), all);
    }

    #[test]
    fn a_topic_is_written_as_the_recorded_brokers_do() {
        let mut out = Vec::new();
        let config = TopicConfig::new("j5_Adm2", 4, 6);
        fastjson::write(&mut out, &to_wire(&config)).expect("json");
        assert_eq!(
            String::from_utf8(out).expect("text"),
            concat!(
                r#"{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"#,
                r#""topicFilterType":"SINGLE_TAG","topicName":"j5_Adm2","#,
                r#""topicSysFlag":0,"writeQueueNums":4}"#
            )
        );
    }
}
