//! Delivery of delayed messages (docs/behaviour.md, Delayed messages).
//!
//! Each level has a queue of its own in the schedule topic, in order of delivery time. Per level
//! the messages that are due are appended to their real topics, a window of them at a time, in
//! order; the level's offset moves when the writer has acknowledged them, so that after a crash a
//! message is delivered again rather than never.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use saturnmq_storage::append_queue::PushError;
use saturnmq_storage::error::ReadError;
use saturnmq_storage::format::consume_entry::ConsumeEntry;
use saturnmq_storage::format::message::{MessageParts, sys_flag};
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;

use crate::broker::Broker;
use crate::core::now_ms;
use crate::handler::properties::{REAL_QID, REAL_TOPIC};
use crate::names;
use crate::services::ServiceContext;

/// Deliveries of one level that the writer has not answered.
const WINDOW: i64 = 256;
/// Pause after a failed delivery, and before a level without entries is looked at again.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before the first deliveries.
const FIRST: Duration = Duration::from_secs(1);

/// One delay level.
struct Level {
    number: i32,
    delay_ms: i64,
    queue: Option<Arc<Queue>>,
    /// Queue offset that is appended next.
    next: i64,
    /// Queue offset up to which everything is delivered.
    delivered: i64,
    /// Whether a delivery failed and the ones behind it must be made again.
    failed: bool,
    /// Not to be looked at before.
    pause_until: Instant,
}

/// The delivery of all levels.
pub struct Delivery {
    levels: Vec<Level>,
    record: Vec<u8>,
    watcher: Option<usize>,
}

/// What an entry calls for.
enum Due {
    /// Delivered or dropped: go on.
    Next,
    /// In this many milliseconds.
    In(i64),
    /// Try again later.
    Later,
}

impl Delivery {
    /// Starts each level where `delayOffset.json` says, within what its queue has.
    pub fn new(broker: &Broker, now: Instant) -> Self {
        let mut levels = Vec::new();
        for (number, delay) in (1..).zip(&broker.config.delay_levels_ms) {
            let queue = broker.schedule_queue(number);
            let stored = broker.delay_offsets.get(number).unwrap_or(0);
            let next = queue.as_ref().map_or(stored, |queue| within(queue, stored));
            levels.push(Level {
                number,
                delay_ms: i64::try_from(*delay).unwrap_or(i64::MAX),
                queue,
                next,
                delivered: next,
                failed: false,
                pause_until: now + FIRST,
            });
        }
        Self {
            levels,
            record: Vec::new(),
            watcher: Some(broker.cores.len()),
        }
    }

    /// Appends what is due; says when to look again, `None` when only a new message can change
    /// anything.
    pub fn round(&mut self, services: &mut ServiceContext, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for index in 0..self.levels.len() {
            let again = self.level(services, index, now);
            next = match (next, again) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        next
    }

    fn level(
        &mut self,
        services: &mut ServiceContext,
        index: usize,
        now: Instant,
    ) -> Option<Instant> {
        let record = &mut self.record;
        let level = self.levels.get_mut(index)?;
        if now < level.pause_until {
            return Some(level.pause_until);
        }
        if level.queue.is_none() {
            level.queue = services.broker.schedule_queue(level.number);
        }
        let Some(queue) = level.queue.clone() else {
            return Some(now + PAUSE);
        };
        if level.failed {
            // The ones behind the failed delivery are made again once those in flight are settled.
            if level.next != level.delivered {
                return None;
            }
            level.failed = false;
        }
        loop {
            if level.next - level.delivered >= WINDOW {
                return None;
            }
            if level.next == level.delivered {
                level.next = within(&queue, level.next);
                level.delivered = level.next;
            }
            let due = match queue.entry(level.next) {
                Ok(Some(entry)) => deliver(services, level, index, (&queue, &entry), record),
                Ok(None) => {
                    if let Some(watcher) = self.watcher {
                        queue.watch(watcher);
                    }
                    if queue.max_offset() <= level.next {
                        return None;
                    }
                    record.clear();
                    match services.reader.queued_record(&queue, level.next, record) {
                        // It came meanwhile.
                        Ok(true) => continue,
                        // A blank one, or expired.
                        Ok(false) => skip(services, level, "its queue entry is gone"),
                        Err(error) => later(level, &error),
                    }
                }
                Err(error) => {
                    tracing::warn!(level = level.number, %error, "a schedule entry is unreadable");
                    Due::Later
                }
            };
            match due {
                Due::Next => {}
                Due::In(ms) => {
                    return Some(now + Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
                }
                Due::Later => {
                    level.pause_until = now + PAUSE;
                    return Some(level.pause_until);
                }
            }
        }
    }

    /// Books the answer of the writer to a delivery.
    pub fn done(&mut self, broker: &Broker, index: usize, offset: i64, delivered: bool) {
        let Some(level) = self.levels.get_mut(index) else {
            return;
        };
        if delivered && !level.failed {
            level.delivered = offset + 1;
            broker.delay_offsets.set(level.number, level.delivered);
            return;
        }
        if !level.failed {
            level.failed = true;
            level.pause_until = Instant::now() + PAUSE;
        }
        // The last one in flight opens the level again, from the failed delivery on.
        if offset + 1 == level.next {
            level.next = level.delivered;
        }
    }

    /// Stores where each level stands.
    pub fn save(&self, broker: &Broker) {
        for level in &self.levels {
            if level.delivered > 0 {
                broker.delay_offsets.set(level.number, level.delivered);
            }
        }
    }
}

fn within(queue: &Queue, offset: i64) -> i64 {
    let (min, max) = (queue.min_offset(), queue.max_offset());
    offset.clamp(min, max.max(min))
}

/// Delivers the message of an entry if it is due.
fn deliver(
    services: &mut ServiceContext,
    level: &mut Level,
    index: usize,
    (queue, entry): (&Queue, &ConsumeEntry),
    record: &mut Vec<u8>,
) -> Due {
    let now = now_ms();
    // A time farther away than the level's delay comes from a clock that went back: due now.
    let at = entry.tags_code;
    if at > now && at <= now.saturating_add(level.delay_ms) {
        return Due::In(at - now);
    }
    record.clear();
    match services.reader.queued_record(queue, level.next, record) {
        Ok(true) => {}
        Ok(false) => return skip(services, level, "its record is gone"),
        // It will not get better, and those behind it must not wait for that.
        Err(ReadError::Damaged { .. }) => return skip(services, level, "its record is damaged"),
        Err(error) => return later(level, &error),
    }
    let message = match Record::decode(record) {
        Ok(message) => message,
        Err(_) => return skip(services, level, "its record is damaged"),
    };
    let properties = message.properties();
    let topic = properties.get_str(REAL_TOPIC);
    let queue_id = properties.get_str(REAL_QID).map_or(Ok(0), i32::from_str);
    let (Some(topic), Ok(queue_id)) = (topic, queue_id) else {
        return skip(services, level, "it names no real topic");
    };
    if topic == names::HALF_TOPIC || names::check_topic(topic).is_err() || queue_id < 0 {
        return skip(services, level, "its real topic cannot be delivered to");
    }
    append(services, level, index, &message, (topic, queue_id))
}

fn later(level: &Level, error: &ReadError) -> Due {
    tracing::warn!(level = level.number, %error, "a delayed message cannot be read now");
    Due::Later
}

fn append(
    services: &mut ServiceContext,
    level: &mut Level,
    index: usize,
    message: &Record<'_>,
    (topic, queue_id): (&str, i32),
) -> Due {
    let broker = Arc::clone(&services.broker);
    if !broker.store.state().is_writable() {
        return Due::Later;
    }
    let Some(known) = broker.topics.get(topic) else {
        return skip(services, level, "its topic was deleted");
    };
    if known.config.has_batch_queues() {
        return skip(services, level, "its topic has queue.type=BatchCQ");
    }
    if broker.awaited(&known).is_some() {
        return Due::Later;
    }
    let Some(queue) = broker.queue(&known, queue_id) else {
        return Due::Later;
    };
    let properties = message.properties().as_bytes();
    let parts = MessageParts {
        topic,
        queue_id,
        flag: message.flag(),
        sys_flag: message.sys_flag() & !sys_flag::TRANSACTION,
        born_timestamp: message.born_timestamp(),
        born_host: message.born_host(),
        store_host: message.store_host(),
        reconsume_times: message.reconsume_times(),
        prepared_transaction_offset: 0,
        body: message.body(),
        properties: &[properties],
    };
    match services.deliver(&queue, &parts, index, level.next) {
        Ok(()) => {
            level.next += 1;
            Due::Next
        }
        Err(PushError::Full | PushError::Closed) => Due::Later,
        Err(error) => {
            tracing::error!(level = level.number, %error, "a delayed message cannot be stored");
            skip(services, level, "it is illegal")
        }
    }
}

/// Leaves a message out. It counts as delivered once those before it are.
fn skip(services: &ServiceContext, level: &mut Level, why: &str) -> Due {
    tracing::warn!(
        level = level.number,
        offset = level.next,
        "a delayed message is dropped: {why}"
    );
    if level.next == level.delivered {
        level.delivered += 1;
        services
            .broker
            .delay_offsets
            .set(level.number, level.delivered);
        level.next += 1;
        return Due::Next;
    }
    // Deliveries before it are in flight: come back when they are done.
    Due::Later
}
