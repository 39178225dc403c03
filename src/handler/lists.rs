//! Topics and groups that administrators make by the list: requests 18 and 225
//! (docs/behaviour.md, "Consumer groups").
//!
//! A list may hold as many as a frame: the services thread takes it, a few milliseconds at a time,
//! for no other connection of a core should wait for it.

use std::time::{Duration, Instant};

use saturnmq_net::fastjson;
use saturnmq_net::messages::topic as wire;
use serde_json::Value;

use super::{durably, group, topic};
use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::off_the_cores;
use crate::groups::GroupConfig;
use crate::persist::{LastChanges, Ticket};
use crate::services::ServiceContext;
use crate::topics::{TopicConfig, TopicFilterType};

/// How long a list keeps the services thread before other jobs get their turn.
const STEP: Duration = Duration::from_millis(5);

/// 18: makes or alters several topics, all or none.
pub fn create_topics(request: &Request<'_>) -> Answer {
    make(request, wanted_topics, |broker, config: TopicConfig| {
        broker.topics.create_or_update(config)
    })
}

/// 225: makes or alters several groups, all or none.
pub fn create_groups(request: &Request<'_>) -> Answer {
    make(request, wanted_groups, |broker, config: GroupConfig| {
        broker.groups.create_or_update(config)
    })
}

/// What the body of a list asks for, of which the broker refuses nothing.
type Wanted<T> = fn(&Broker, bool, &[u8]) -> Result<Vec<T>, Reply>;

/// Makes or alters one of them; `None`: nothing differs.
type Make<T> = fn(&Broker, T) -> Option<Ticket>;

fn make<T: Send + 'static>(request: &Request<'_>, wanted: Wanted<T>, make: Make<T>) -> Answer {
    let (is_v5, body) = (request.is_v5(), request.command.body.to_vec());
    Answer::Work(Box::new(move |services, slot| {
        off_the_cores();
        match wanted(&services.broker, is_v5, &body) {
            Ok(configs) => {
                let (rest, last) = (configs.into_iter(), LastChanges::default());
                Making { rest, make, last }.go_on(services, slot);
            }
            Err(reply) => services.reply(slot, reply),
        }
    }))
}

/// A list that is being made.
struct Making<T> {
    rest: std::vec::IntoIter<T>,
    make: Make<T>,
    /// What the answer waits for: also changes of others that it finds made.
    last: LastChanges,
}

impl<T: Send + 'static> Making<T> {
    fn go_on(mut self, services: &mut ServiceContext, slot: ReplySlot) {
        let began = Instant::now();
        while let Some(config) = self.rest.next() {
            self.last.add((self.make)(&services.broker, config));
            if began.elapsed() >= STEP {
                return services.go_on_later(
                    slot,
                    Box::new(move |services, slot| self.go_on(services, slot)),
                );
            }
        }
        let broker = std::sync::Arc::clone(&services.broker);
        broker.rules_changed();
        durably::reply(broker, slot, self.last.into_tickets(), Reply::success());
    }
}

fn wanted_topics(broker: &Broker, is_v5: bool, body: &[u8]) -> Result<Vec<TopicConfig>, Reply> {
    let list: wire::TopicConfigList = fastjson::from_client(body).map_err(unreadable)?;
    let sent = list.topic_config_list.into_iter();
    let wanted = sent.map(|sent| topic_config(broker, is_v5, sent));
    let configs = wanted.collect::<Result<Vec<_>, _>>()?;
    match topic::full(broker, &configs) {
        Some(reply) => Err(reply),
        None => Ok(configs),
    }
}

fn topic_config(
    broker: &Broker,
    is_v5: bool,
    sent: wire::TopicConfig,
) -> Result<TopicConfig, Reply> {
    topic::check_name(broker, is_v5, &sent.topic_name)?;
    // In a list the values stand without a sign: they are set as they are.
    let signed: Vec<String> = sent
        .attributes
        .iter()
        .map(|(key, value)| {
            if key.starts_with(['+', '-']) {
                format!("{key}={value}")
            } else {
                format!("+{key}={value}")
            }
        })
        .collect();
    let attributes = topic::alter(broker, is_v5, &sent.topic_name, Some(&signed.join(",")))?;
    let config = TopicConfig {
        name: sent.topic_name,
        read_queues: sent.read_queue_nums,
        write_queues: sent.write_queue_nums,
        perm: sent.perm,
        filter_type: TopicFilterType::parse(sent.topic_filter_type.name()),
        sys_flag: sent.topic_sys_flag,
        order: sent.order,
        attributes,
    };
    topic::check_queues(&config)?;
    Ok(config)
}

fn wanted_groups(broker: &Broker, is_v5: bool, body: &[u8]) -> Result<Vec<GroupConfig>, Reply> {
    let value: Value = fastjson::from_client(body).map_err(unreadable)?;
    let list = value.get("groupConfigList").and_then(Value::as_array);
    let list = list.map_or(&[] as &[Value], Vec::as_slice);
    let wanted = list.iter().map(|value| group::wanted(broker, is_v5, value));
    let configs = wanted.collect::<Result<Vec<_>, _>>()?;
    group::check_room(broker, &configs)?;
    Ok(configs)
}

fn unreadable(error: fastjson::BodyError) -> Reply {
    Reply::error(SYSTEM_ERROR, error.to_string())
}
