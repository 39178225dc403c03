//! Moving a group's progress: request 222 (docs/behaviour.md, Offset resets).

use std::sync::Arc;

mod by_clients;

use saturnmq_net::command::Language;
use saturnmq_net::messages::lock::MessageQueue;
use saturnmq_net::messages::offset::{ResetOffset, ResetOffsetBody};
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::TimeBoundary;

use by_clients::by_clients;

use crate::answer::{Answer, CoreMessage, Reply, Request, SYSTEM_BUSY, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::handler::stats::written;
use crate::handler::{SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, durably};
use crate::services::ServiceContext;
use crate::topics::Topic;

/// What is to be moved where.
struct Wanted {
    group: String,
    topic: Arc<Topic>,
    timestamp: i64,
    /// One queue, or all.
    queue_id: Option<i32>,
    /// An offset of that queue, instead of a time.
    offset: Option<i64>,
}

/// 222: moves a group in one or all queues of a topic. The next pull of a queue is told of its new
/// offset, and commits are ignored until then.
pub fn reset(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match ResetOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    if !broker.live.load().server_side_reset {
        return by_clients(broker, request, &asked);
    }
    let Some(topic) = broker.topics.get(asked.topic) else {
        let remark = format!("Topic {} does not exist", asked.topic);
        return Reply::error(TOPIC_NOT_EXIST, remark).into();
    };
    if broker.groups.get(asked.group).is_none() {
        let remark = format!("Group {} does not exist", asked.group);
        return Reply::error(SUBSCRIPTION_GROUP_NOT_EXIST, remark).into();
    }
    let wanted = Wanted {
        group: asked.group.to_owned(),
        topic,
        timestamp: asked.timestamp,
        queue_id: asked.queue_id.filter(|id| *id >= 0),
        offset: asked.offset.filter(|offset| *offset != -1),
    };
    let cpp = request.command.language == Language::Cpp;
    Answer::Work(Box::new(move |services, slot| {
        match apply(services, &wanted) {
            Ok(body) => {
                let reply = written(|out| {
                    if cpp {
                        body.write_for_cpp(out)
                    } else {
                        body.write(out)
                    }
                });
                let broker = Arc::clone(&services.broker);
                // Acknowledged resets outlive a crash.
                let ticket = broker.offsets.save();
                durably::reply(broker, slot, vec![ticket], reply);
            }
            Err(reply) => services.reply(slot, reply),
        }
    }))
}

fn apply(services: &mut ServiceContext, wanted: &Wanted) -> Result<ResetOffsetBody, Reply> {
    let config = &wanted.topic.config;
    let queues = match wanted.queue_id {
        Some(queue_id) if queue_id >= config.read_queues => {
            let remark = format!("queueId {queue_id} is not one of {}", config.read_queues);
            return Err(Reply::error(SYSTEM_ERROR, remark));
        }
        Some(queue_id) => queue_id..queue_id + 1,
        None => 0..config.read_queues,
    };
    let mut body = ResetOffsetBody::default();
    // Nothing moves unless every target is known.
    for queue_id in queues {
        let queue = services
            .broker
            .store
            .queue_or_create(&config.name, queue_id);
        let message_queue = MessageQueue {
            broker_name: services.broker.config.broker_name.clone(),
            queue_id,
            topic: config.name.clone(),
        };
        body.offset_table
            .0
            .push((message_queue, target(services, wanted, &queue)?));
    }
    let offsets = &services.broker.offsets;
    for (queue, offset) in &body.offset_table.0 {
        if !offsets.assign_reset(&wanted.group, &queue.topic, queue.queue_id, *offset) {
            return Err(Reply::error(
                SYSTEM_BUSY,
                "the offset table is full: remove groups or topics that nobody uses",
            ));
        }
    }
    for (queue, _) in &body.offset_table.0 {
        wake_consumers(&services.broker, &queue.topic, queue.queue_id);
    }
    Ok(body)
}

/// Has pulls that wait at the queue's end ask again, else the reset would wait as long as they do.
fn wake_consumers(broker: &Broker, topic: &str, queue_id: i32) {
    let Some(queue) = broker.store.queue(topic, queue_id) else {
        return;
    };
    for core in 0..broker.cores.len() {
        // A full inbox: the reset is taken when the waiting pull's time is over.
        let _ = broker
            .cores
            .post(core, CoreMessage::Moved { queue: queue.slot });
    }
}

fn target(services: &mut ServiceContext, wanted: &Wanted, queue: &Queue) -> Result<i64, Reply> {
    let (min, max) = (queue.min_offset(), queue.max_offset());
    if let (Some(_), Some(offset)) = (wanted.queue_id, wanted.offset) {
        if !(min..=max + 1).contains(&offset) {
            let remark = format!("Target offset {offset} not in consume queue range [{min}-{max}]");
            return Err(Reply::error(SYSTEM_ERROR, remark));
        }
        return Ok(offset);
    }
    if wanted.timestamp < 0 {
        return Ok(max);
    }
    services
        .reader
        .offset_by_time(queue, wanted.timestamp, TimeBoundary::Lower)
        .map_err(|error| Reply::error(SYSTEM_ERROR, error.to_string()))
}
