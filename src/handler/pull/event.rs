//! The message in `OFFSET_MOVED_EVENT` about a pull that was sent to another offset, as brokers of
//! 4.9 store it and monitors of 4.9 read it (docs/behaviour.md, Reading a queue).

use saturnmq_net::driver::ConnectionId;
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::reader::Pulled;
use serde_json::json;

use super::Pull;
use super::answers::code_of;
use crate::answer::{Channel, ReplySlot};
use crate::core::{Core, now_ms};
use crate::handler::PULL_OFFSET_MOVED;
use crate::names;
use crate::services::{AppendThen, Job, ServiceContext, Work};

/// Jobs that wait for the services thread above which there are no further events.
const BUSY: usize = 64;

/// Whether the answer has an event: clients of 5.x have brokers that store none.
fn has_event(pull: &Pull, pulled: &Pulled) -> bool {
    pull.sys_flags.is_none() && code_of(pulled.status, pull.offset) == PULL_OFFSET_MOVED
}

/// As [`tell`], from a network core. Under load events are left out: they are news, not messages.
pub(super) fn submit(core: &Core, conn: ConnectionId, pull: &Pull, pulled: &Pulled) {
    if !has_event(pull, pulled) || core.broker.services.waiting() >= BUSY {
        return;
    }
    let (about, new) = (pull.clone(), pulled.next_begin);
    let channel = Channel {
        core: core.index,
        conn,
    };
    let slot = ReplySlot {
        channel,
        to: pull.to,
    };
    // The pull is answered already.
    let work = Work::Open(Box::new(move |services, _| store(services, &about, new)));
    let job = Job::of_any_time(slot, work);
    if core.broker.services.submit(job).is_err() {
        tracing::debug!("no event of a moved offset: the services thread is busy");
    }
}

/// Stores the event of a pull that was answered with what `pulled` says, if it has one.
pub fn tell(services: &mut ServiceContext, pull: &Pull, pulled: &Pulled) {
    if has_event(pull, pulled) {
        store(services, pull, pulled.next_begin);
    }
}

fn store(services: &mut ServiceContext, pull: &Pull, new: i64) {
    let broker = &services.broker;
    let topic = broker.topics.get(names::OFFSET_MOVED_EVENT);
    let Some(queue) = topic.and_then(|topic| broker.queue(&topic, 0)) else {
        return;
    };
    let group = &pull.group.config.name;
    let body = json!({
        "consumerGroup": group,
        "messageQueue": {
            "brokerName": broker.config.broker_name,
            "queueId": pull.queue.queue_id,
            "topic": pull.topic.config.name,
        },
        "offsetNew": new,
        "offsetRequest": pull.offset,
    });
    let body = body.to_string();
    let properties = format!("KEYS\u{1}{group}\u{2}DELAY\u{1}0\u{2}TAGS\u{1}{group}");
    let parts = MessageParts {
        topic: names::OFFSET_MOVED_EVENT,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: now_ms(),
        born_host: broker.store_host,
        store_host: broker.store_host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: body.as_bytes(),
        properties: &[properties.as_bytes()],
    };
    let then: AppendThen = Box::new(|_, outcome| {
        if let Err(failure) = outcome {
            tracing::debug!(%failure, "the event of a moved offset is not stored");
        }
    });
    if let Err(error) = services.append(&queue, &parts, then) {
        tracing::debug!(%error, "the event of a moved offset is not stored");
    }
}
