//! Offsets of consumers and of queues: requests 14, 15 and 29 to 32
//! (docs/behaviour.md, Consumer offsets).

use std::sync::Arc;

use saturnmq_net::driver::Outbox;
use saturnmq_net::header::fields::FieldError;
use saturnmq_net::messages::offset::{
    EarliestTime, MaxOffset, MinOffset, QueryConsumerOffset, SearchOffset, UpdateConsumerOffset,
};
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::TimeBoundary;

use crate::answer::{Answer, Reply, Request, SYSTEM_BUSY, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::Core;
use crate::handler::{
    INVALID_PARAMETER, QUERY_NOT_FOUND, SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, pull,
};
use crate::names;

/// The queue, if the store has it.
fn known_queue(broker: &Broker, topic: &str, queue_id: i32) -> Option<Arc<Queue>> {
    broker.store.queue(topic, queue_id)
}

/// 14: the next offset that a group consumes.
pub fn query(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match QueryConsumerOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let stored = broker
        .offsets
        .query(asked.consumer_group, asked.topic, asked.queue_id);
    if let Some(offset) = stored.filter(|offset| *offset >= 0) {
        return Reply::success().field("offset", offset).into();
    }
    if asked.set_zero_if_not_found == Some(false) {
        let remark = "Not found, do not set to zero, maybe this group boot first";
        return Reply::error(QUERY_NOT_FOUND, remark).into();
    }
    let v5 = request.is_v5();
    match known_queue(broker, asked.topic, asked.queue_id) {
        None => from_zero(!v5).into(),
        Some(queue) if queue.min_offset() > 0 => from_zero(false).into(),
        // The first entry may lie in a file that is not in memory.
        Some(queue) => Answer::Later(Box::new(move |services| {
            from_zero(starts_at_zero(&services.broker, v5, &queue))
        })),
    }
}

fn from_zero(it_does: bool) -> Reply {
    if it_does {
        return Reply::success().field("offset", 0);
    }
    let remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first";
    Reply::error(QUERY_NOT_FOUND, remark)
}

/// Whether a group without an offset starts at 0 of a queue that begins there: while the first
/// message is young, so that the first subscriber misses nothing.
fn starts_at_zero(broker: &Broker, v5: bool, queue: &Queue) -> bool {
    match queue.entry(0) {
        Ok(Some(entry)) => {
            let distance = pull::in_memory(&broker.live.load());
            let end = broker.store.watermarks().acknowledged();
            end.saturating_sub(entry.physical_offset) <= distance
        }
        Ok(None) => !v5 || queue.max_offset() > 0,
        Err(_) => false,
    }
}

/// 15: a group's progress.
pub fn update(broker: &Broker, request: &Request<'_>) -> Answer {
    let commit = match UpdateConsumerOffset::decode(&request.command.ext) {
        Ok(commit) => commit,
        Err(error) => return wrong_commit(broker, request, error),
    };
    let (group, topic) = (commit.consumer_group, commit.topic);
    let known_topic = broker.topics.get(topic).is_some();
    if request.is_v5() {
        if broker.groups.get(group).is_none() {
            let remark = format!("Group {group} not exist!");
            return Reply::error(SUBSCRIPTION_GROUP_NOT_EXIST, remark).into();
        }
        if !known_topic {
            let remark = format!("Topic {topic} not exist!");
            return Reply::error(TOPIC_NOT_EXIST, remark).into();
        }
    }
    let resets = broker.live.load().server_side_reset;
    if resets && broker.offsets.has_reset(group, topic, commit.queue_id) {
        return Reply::success()
            .remark("Offset has been previously reset")
            .into();
    }
    // 4.9 clients get no error for what does not exist, but it is not stored either: names that
    // cannot be keys, and topics that nobody made.
    if known_topic
        && names::check_configured_group(group).is_ok()
        && !broker
            .offsets
            .commit(group, topic, commit.queue_id, commit.commit_offset)
    {
        let remark = "the offset table is full: remove groups or topics that nobody uses";
        return Reply::error(SYSTEM_BUSY, remark).into();
    }
    Reply::success().into()
}

fn wrong_commit(broker: &Broker, request: &Request<'_>, error: FieldError) -> Answer {
    if !request.is_v5() {
        return error.into();
    }
    let group = request.command.ext.get("consumerGroup").unwrap_or_default();
    if broker.groups.get(group).is_none() {
        let remark = format!("Group {group} not exist!");
        return Reply::error(SUBSCRIPTION_GROUP_NOT_EXIST, remark).into();
    }
    Reply::error(INVALID_PARAMETER, error.to_string()).into()
}

/// 29: the offset that stands for a time.
pub fn by_time(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match SearchOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let Some(queue) = known_queue(broker, asked.topic, asked.queue_id) else {
        return Reply::success().field("offset", 0).into();
    };
    let boundary = match asked.boundary_type {
        Some(_) if asked.is_upper() => TimeBoundary::Upper,
        None if !request.is_v5() => TimeBoundary::Nearest,
        _ => TimeBoundary::Lower,
    };
    let time = asked.timestamp;
    Answer::Later(Box::new(move |services| {
        match services.reader.offset_by_time(&queue, time, boundary) {
            Ok(offset) => Reply::success().field("offset", offset),
            Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    }))
}

/// 30: the end of a queue; never beyond what a pull can read.
pub fn max(core: &mut Core, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let asked = match MaxOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    match known_queue(&core.broker, asked.topic, asked.queue_id) {
        Some(queue) => {
            pull::queue_end(core, request.conn, request.command.reply_to(), queue, io);
            Answer::Nothing
        }
        None => Reply::success().field("offset", 0).into(),
    }
}

/// 31: the start of a queue.
pub fn min(broker: &Broker, request: &Request<'_>) -> Answer {
    match MinOffset::decode(&request.command.ext) {
        Ok(asked) => {
            let queue = known_queue(broker, asked.topic, asked.queue_id);
            let offset = queue.map_or(0, |queue| queue.min_offset());
            Reply::success().field("offset", offset).into()
        }
        Err(error) => error.into(),
    }
}

/// 32: the store time of a queue's first message.
pub fn earliest(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match EarliestTime::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let Some(queue) = known_queue(broker, asked.topic, asked.queue_id) else {
        return Reply::success().field("timestamp", -1).into();
    };
    Answer::Later(Box::new(move |services| {
        match services.reader.earliest_store_time(&queue) {
            Ok(time) => Reply::success().field("timestamp", time.unwrap_or(-1)),
            Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    }))
}
