//! Moving a group's progress: request 222 (docs/behaviour.md, Offset resets).

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

mod by_clients;

use saturnmq_net::messages::lock::MessageQueue;
use saturnmq_net::messages::offset::{ResetOffset, ResetOffsetBody};
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::TimeBoundary;

use by_clients::by_clients;

use crate::answer::{Answer, CoreMessage, Reply, ReplySlot, Request, SYSTEM_BUSY, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::groups::Group;
use crate::handler::stats::written;
use crate::handler::{SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, durably};
use crate::services::{STEP, ServiceContext};
use crate::topics::Topic;

/// What is to be moved where.
struct Wanted {
    group: Arc<Group>,
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
        return no_topic(asked.topic).into();
    };
    let Some(group) = broker.groups.get(asked.group) else {
        return no_group(asked.group).into();
    };
    let wanted = Wanted {
        group,
        topic,
        timestamp: asked.timestamp,
        queue_id: asked.queue_id.filter(|id| *id >= 0),
        offset: asked.offset.filter(|offset| *offset != -1),
    };
    Answer::Turns(Box::new(move |services, slot| match wanted.queues() {
        Ok(queues) => {
            let targets = Vec::new();
            let moving = Moving {
                wanted,
                queues,
                targets,
                moved: 0,
            };
            moving.go_on(services, slot);
        }
        Err(reply) => services.reply(slot, reply),
    }))
}

fn no_topic(name: &str) -> Reply {
    Reply::error(TOPIC_NOT_EXIST, format!("Topic {name} does not exist"))
}

fn no_group(name: &str) -> Reply {
    Reply::error(
        SUBSCRIPTION_GROUP_NOT_EXIST,
        format!("Group {name} does not exist"),
    )
}

impl Wanted {
    /// Whether there still are the topic and the group that were asked for: others are served
    /// between two turns.
    fn check(&self, broker: &Broker) -> Result<(), Reply> {
        let name = &self.topic.config.name;
        let topic = broker.topics.get(name);
        if !topic.is_some_and(|topic| topic.is(&self.topic)) {
            return Err(no_topic(name));
        }
        let name = &self.group.config.name;
        let group = broker.groups.get(name);
        match group.is_some_and(|group| group.is(&self.group)) {
            true => Ok(()),
            false => Err(no_group(name)),
        }
    }

    fn queues(&self) -> Result<Range<i32>, Reply> {
        let queues = self.topic.config.read_queues;
        match self.queue_id {
            Some(queue_id) if queue_id >= queues => {
                let remark = format!("queueId {queue_id} is not one of {queues}");
                Err(Reply::error(SYSTEM_ERROR, remark))
            }
            Some(queue_id) => Ok(queue_id..queue_id + 1),
            None => Ok(0..queues),
        }
    }
}

/// A group that is being moved; a topic may have tens of thousands of queues.
struct Moving {
    wanted: Wanted,
    /// Queues whose targets are not known yet: nothing moves before all are.
    queues: Range<i32>,
    targets: Vec<(i32, i64)>,
    /// How many of `targets` are set.
    moved: usize,
}

impl Moving {
    fn go_on(mut self, services: &mut ServiceContext, slot: ReplySlot) {
        let began = Instant::now();
        if let Err(reply) = self.wanted.check(&services.broker) {
            return services.reply(slot, reply);
        }
        loop {
            match self.step(services) {
                Ok(true) if began.elapsed() >= STEP => {
                    return services.go_on_later(
                        slot,
                        Box::new(move |services, slot| self.go_on(services, slot)),
                    );
                }
                Ok(true) => {}
                Ok(false) => break,
                Err(reply) => return services.reply(slot, reply),
            }
        }
        let body = self.body(&services.broker);
        // Also for a tool that calls itself C++, as mqadmin does for such groups: it reads no list.
        let reply = written(|out| body.write(out));
        let broker = Arc::clone(&services.broker);
        // Acknowledged resets outlive a crash.
        let ticket = broker.offsets.save();
        durably::reply(broker, slot, vec![ticket], reply);
    }

    /// Finds the target of a queue, or moves the group there; `false` when all is done.
    fn step(&mut self, services: &mut ServiceContext) -> Result<bool, Reply> {
        if let Some(queue_id) = self.queues.next() {
            let target = target(services, &self.wanted, queue_id)?;
            self.targets.push((queue_id, target));
            return Ok(true);
        }
        let Some((queue_id, offset)) = self.targets.get(self.moved).copied() else {
            return Ok(false);
        };
        let (topic, offsets) = (&self.wanted.topic.config.name, &services.broker.offsets);
        let group = &self.wanted.group.config.name;
        if !offsets.assign_reset(group, topic, queue_id, offset) {
            return Err(Reply::error(
                SYSTEM_BUSY,
                "the offset table is full: remove groups or topics that nobody uses",
            ));
        }
        wake_consumers(&services.broker, topic, queue_id);
        self.moved += 1;
        Ok(true)
    }

    fn body(&self, broker: &Broker) -> ResetOffsetBody {
        let mut body = ResetOffsetBody::default();
        let of_queue = |&(queue_id, offset): &(i32, i64)| {
            let queue = MessageQueue {
                broker_name: broker.config.broker_name.clone(),
                queue_id,
                topic: self.wanted.topic.config.name.clone(),
            };
            (queue, offset)
        };
        body.offset_table.0 = self.targets.iter().map(of_queue).collect();
        body
    }
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

fn target(services: &mut ServiceContext, wanted: &Wanted, queue_id: i32) -> Result<i64, Reply> {
    let queue = services
        .broker
        .store
        .queue(&wanted.topic.config.name, queue_id);
    // Without a queue nothing was sent to it.
    let ends = |queue: &Arc<Queue>| (queue.min_offset(), queue.max_offset());
    let (min, max) = queue.as_ref().map_or((0, 0), ends);
    if let (Some(_), Some(offset)) = (wanted.queue_id, wanted.offset) {
        if !(min..=max + 1).contains(&offset) {
            let remark = format!("Target offset {offset} not in consume queue range [{min}-{max}]");
            return Err(Reply::error(SYSTEM_ERROR, remark));
        }
        return Ok(offset);
    }
    match queue {
        Some(queue) if wanted.timestamp >= 0 => services
            .reader
            .offset_by_time(&queue, wanted.timestamp, TimeBoundary::Lower)
            .map_err(|error| Reply::error(SYSTEM_ERROR, error.to_string())),
        _ => Ok(max),
    }
}
