//! Topics and groups that administrators make by the list: requests 18 and 225
//! (docs/behaviour.md, "Consumer groups").
//!
//! A list may hold as many as a frame: the services thread takes it, a few milliseconds at a time,
//! for no other connection of a core should wait for it.

use std::time::Instant;

use saturnmq_net::fastjson;
use saturnmq_net::messages::topic as wire;
use serde_json::Value;

use super::{durably, group, topic};
use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR, V5_0_0};
use crate::broker::Broker;
use crate::core::off_the_cores;
use crate::persist::{LastChanges, Ticket};
use crate::services::{STEP, ServiceContext};
use crate::topics::{TopicConfig, TopicFilterType};

/// 18: makes or alters several topics, all or none.
pub fn create_topics(request: &Request<'_>) -> Answer {
    let kind = Kind {
        read: |body| {
            let list: wire::TopicConfigList = fastjson::from_client(body).map_err(unreadable)?;
            Ok(list.topic_config_list)
        },
        check: topic_config,
        room: |broker, configs| topic::full(broker, configs).map_or(Ok(()), Err),
        make: |broker, config| broker.topics.create_or_update(config),
    };
    take(request, kind)
}

/// 225: makes or alters several groups, all or none.
pub fn create_groups(request: &Request<'_>) -> Answer {
    let kind = Kind {
        read: |body| {
            let mut value: Value = fastjson::from_client(body).map_err(unreadable)?;
            match value.get_mut("groupConfigList").map(Value::take) {
                Some(Value::Array(list)) => Ok(list),
                _ => Ok(Vec::new()),
            }
        },
        check: |broker, version, value: Value| group::wanted(broker, version >= V5_0_0, &value),
        room: group::check_room,
        make: |broker, config| broker.groups.create_or_update(config),
    };
    take(request, kind)
}

/// What there may be a list of: `S` as it is sent, `T` as it is kept.
struct Kind<S, T> {
    read: fn(&[u8]) -> Result<Vec<S>, Reply>,
    /// One of them, sent by a client of that version, if the broker does not refuse it.
    check: fn(&Broker, i32, S) -> Result<T, Reply>,
    /// Whether there is room for all of them.
    room: fn(&Broker, &[T]) -> Result<(), Reply>,
    /// Makes or alters one of them; `None`: nothing differs.
    make: fn(&Broker, T) -> Option<Ticket>,
}

fn take<S: Send + 'static, T: Send + 'static>(request: &Request<'_>, kind: Kind<S, T>) -> Answer {
    let (version, body) = (request.command.version, request.command.body.to_vec());
    Answer::Turns(Box::new(move |services, slot| {
        off_the_cores();
        match (kind.read)(&body) {
            Ok(sent) => {
                let (rest, wanted) = (sent.into_iter(), Vec::new());
                let list = Checking {
                    rest,
                    version,
                    kind,
                    wanted,
                };
                list.go_on(services, slot);
            }
            Err(reply) => services.reply(slot, reply),
        }
    }))
}

/// A list of which nothing is made yet.
struct Checking<S, T> {
    rest: std::vec::IntoIter<S>,
    version: i32,
    kind: Kind<S, T>,
    wanted: Vec<T>,
}

impl<S: Send + 'static, T: Send + 'static> Checking<S, T> {
    fn go_on(mut self, services: &mut ServiceContext, slot: ReplySlot) {
        let began = Instant::now();
        while let Some(sent) = self.rest.next() {
            match (self.kind.check)(&services.broker, self.version, sent) {
                Ok(wanted) => self.wanted.push(wanted),
                Err(reply) => return services.reply(slot, reply),
            }
            if began.elapsed() >= STEP {
                return services.go_on_later(
                    slot,
                    Box::new(move |services, slot| self.go_on(services, slot)),
                );
            }
        }
        if let Err(reply) = (self.kind.room)(&services.broker, &self.wanted) {
            return services.reply(slot, reply);
        }
        let list = Making {
            rest: self.wanted.into_iter(),
            make: self.kind.make,
            last: LastChanges::default(),
        };
        services.go_on_later(
            slot,
            Box::new(move |services, slot| list.go_on(services, slot)),
        );
    }
}

/// A list that is being made.
struct Making<T> {
    rest: std::vec::IntoIter<T>,
    make: fn(&Broker, T) -> Option<Ticket>,
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

fn topic_config(
    broker: &Broker,
    version: i32,
    sent: wire::TopicConfig,
) -> Result<TopicConfig, Reply> {
    topic::check_name(broker, version >= V5_0_0, &sent.topic_name)?;
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
    let attributes = topic::alter(broker, version, &sent.topic_name, Some(&signed.join(",")))?;
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

fn unreadable(error: fastjson::BodyError) -> Reply {
    Reply::error(SYSTEM_ERROR, error.to_string())
}
