//! Delivery of delayed messages (docs/behaviour.md, Delayed messages).
//!
//! Each level has a queue of its own in the schedule topic, in order of delivery time. Per level
//! the messages that are due are appended to their real topics, a window of them at a time, in
//! order; the level's offset moves when the writer has acknowledged them, so that after a crash a
//! message is delivered again rather than never.

mod seen;
mod window;

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use saturnmq_storage::append_queue::{AppendFailure, PushError};
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
use crate::topics::{AutoCreate, PERM_READ, PERM_WRITE, Topic, TopicConfig};
use seen::Seen;
use window::Window;

/// Pause after a failed delivery, and before a level without entries is looked at again.
const PAUSE: Duration = Duration::from_millis(100);
/// Why messages of a topic that is gone are not delivered.
const TOPIC_DELETED: &str = "their topic was deleted";
/// Pause before the first deliveries.
const FIRST: Duration = Duration::from_secs(1);
/// How long one level works before others get their turn on the thread.
const STEP: Duration = Duration::from_millis(5);

/// One delay level.
struct Level {
    number: i32,
    delay_ms: i64,
    queue: Option<Arc<Queue>>,
    window: Window,
    seen: Seen,
    dropped: Dropped,
    /// Not to be looked at before.
    pause_until: Instant,
}

/// Messages left out that the operator was not told of.
#[derive(Default)]
struct Dropped {
    count: u64,
    /// Queue offset of the first, and why.
    first: i64,
    why: &'static str,
}

impl Dropped {
    fn add(&mut self, offset: i64, why: &'static str) {
        if self.count == 0 {
            (self.first, self.why) = (offset, why);
        }
        self.count += 1;
    }

    fn tell(&mut self, level: i32) {
        if self.count > 0 {
            let Self { count, first, why } = std::mem::take(self);
            tracing::warn!(
                level,
                offset = first,
                count,
                "delayed messages are dropped: {why}"
            );
        }
    }
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
                window: Window::new(next),
                seen: Seen::new(Duration::from_millis(*delay)),
                dropped: Dropped::default(),
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
        let (record, watcher) = (&mut self.record, self.watcher);
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
        let before = level.window.delivered();
        let again = level.step(services, index, (&queue, watcher), record);
        level.dropped.tell(level.number);
        level.note_progress(&services.broker, before);
        again
    }

    /// Books the answer of the writer to a delivery.
    pub fn done(
        &mut self,
        broker: &Broker,
        index: usize,
        offset: i64,
        outcome: Result<(), AppendFailure>,
    ) {
        let Some(level) = self.levels.get_mut(index) else {
            return;
        };
        let before = level.window.delivered();
        match outcome {
            Ok(()) => level.window.answered(offset, true),
            Err(AppendFailure::QueueGone) => {
                level.dropped.add(offset, TOPIC_DELETED);
                level.window.answered(offset, true);
            }
            Err(failure) => {
                tracing::warn!(level = level.number, offset, %failure, "a delivery failed");
                level.pause_until = Instant::now() + PAUSE;
                level.window.answered(offset, false);
            }
        }
        level.note_progress(broker, before);
    }

    /// Stores where each level stands.
    pub fn save(&self, broker: &Broker) {
        for level in &self.levels {
            level.note_progress(broker, 0);
        }
    }
}

impl Level {
    /// Appends what is due, for [`STEP`] at most; says when to look again.
    fn step(
        &mut self,
        services: &mut ServiceContext,
        index: usize,
        (queue, watcher): (&Arc<Queue>, Option<usize>),
        record: &mut Vec<u8>,
    ) -> Option<Instant> {
        let begun = Instant::now();
        self.seen.look(begun, queue.max_offset());
        if !self.window.takes_up() {
            return None;
        }
        loop {
            if begun.elapsed() >= STEP {
                return Some(begun);
            }
            if self.window.is_full() {
                return None;
            }
            if self.window.is_idle() && self.window.next() == self.window.delivered() {
                let at = within(queue, self.window.next());
                self.window.start_at(at);
            }
            let next = self.window.next();
            let due = match queue.entry(next) {
                Ok(Some(entry)) => deliver(services, self, index, (queue, &entry), record),
                Ok(None) => {
                    if let Some(watcher) = watcher {
                        queue.watch(watcher);
                    }
                    if queue.max_offset() <= next {
                        return None;
                    }
                    record.clear();
                    match services.reader.queued_record(queue, next, record) {
                        // It came meanwhile.
                        Ok(true) => continue,
                        // A blank one, or expired.
                        Ok(false) => skip(self, "their queue entry is gone"),
                        Err(error) => later(self, &error),
                    }
                }
                Err(error) => {
                    tracing::warn!(level = self.number, %error, "a schedule entry is unreadable");
                    Due::Later
                }
            };
            match due {
                Due::Next => {}
                Due::In(ms) => {
                    let wait = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
                    // New entries are looked at meanwhile: their times may not be believed.
                    return Some(begun + wait.min(self.seen.spacing().max(PAUSE)));
                }
                Due::Later => {
                    self.pause_until = begun + PAUSE;
                    return Some(self.pause_until);
                }
            }
        }
    }

    /// In how many milliseconds an entry is due that says `at`, in milliseconds since the epoch;
    /// `None` when it is due.
    fn wait_ms(&self, at: i64) -> Option<i64> {
        let left = at.saturating_sub(now_ms());
        if left <= self.delay_ms {
            return (left > 0).then_some(left);
        }
        // The clock was ahead when it was stored, or the level's delay was longer.
        let Some(since) = self.seen.since(self.window.next()) else {
            let spacing = self.seen.spacing().as_millis();
            return Some(i64::try_from(spacing).unwrap_or(i64::MAX));
        };
        let waited = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
        let left = self.delay_ms.saturating_sub(waited);
        (left > 0).then_some(left)
    }

    /// Has the offset stored if it moved from `before`.
    fn note_progress(&self, broker: &Broker, before: i64) {
        let delivered = self.window.delivered();
        if delivered != before {
            broker.delay_offsets.set(self.number, delivered);
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
    let at = match queue.tags_code(entry) {
        Some(at) => at,
        // Its unit is lost.
        None => match services.reader.store_time(queue, level.window.next()) {
            Ok(stored) => stored.map_or(0, |stored| stored.saturating_add(level.delay_ms)),
            Err(error) => return later(level, &error),
        },
    };
    if let Some(wait) = level.wait_ms(at) {
        return Due::In(wait);
    }
    record.clear();
    let next = level.window.next();
    match services.reader.queued_record(queue, next, record) {
        Ok(true) => {}
        Ok(false) => return skip(level, "their records are gone"),
        // It will not get better, and those behind it must not wait for that.
        Err(ReadError::Damaged { .. }) => return skip(level, "their records are damaged"),
        Err(error) => return later(level, &error),
    }
    let message = match Record::decode(record) {
        Ok(message) => message,
        Err(_) => return skip(level, "their records are damaged"),
    };
    let properties = message.properties();
    let topic = properties.get_str(REAL_TOPIC);
    let queue_id = properties.get_str(REAL_QID).map_or(Ok(0), i32::from_str);
    let (Some(topic), Ok(queue_id)) = (topic, queue_id) else {
        return skip(level, "they name no real topic");
    };
    if topic == names::HALF_TOPIC || names::check_topic(topic).is_err() || queue_id < 0 {
        return skip(level, "their real topic cannot be delivered to");
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
    let Some(known) = real_topic(&broker, topic, queue_id) else {
        return skip(
            level,
            "their topic is missing and there is room for no more",
        );
    };
    if known.config.has_batch_queues() {
        return skip(level, "their topic has queue.type=BatchCQ");
    }
    if broker.awaited(&known, queue_id).is_some() {
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
    match services.deliver(&queue, &parts, index, level.window.next()) {
        Ok(()) => {
            level.window.sent();
            Due::Next
        }
        Err(PushError::Full | PushError::Closed) => Due::Later,
        Err(error) => {
            tracing::error!(level = level.number, %error, "a delayed message cannot be stored");
            skip(level, "they are illegal")
        }
    }
}

/// Queues of a topic that a producer of Apache's asks for.
const QUEUES: i32 = 4;

/// The topic of a message that is due. One that is missing is made as a send would make it, and
/// where that may not be with the queue of the message: Apache stores the message whether there is
/// a topic or not. `None` when there are too many.
pub(crate) fn real_topic(broker: &Broker, name: &str, queue_id: i32) -> Option<Arc<Topic>> {
    if let Some(topic) = broker.topics.get(name) {
        return Some(topic);
    }
    tracing::warn!(
        topic = name,
        "a message is due in a topic that is missing: it is made"
    );
    if queue_id < QUEUES && !name.starts_with(names::RETRY_PREFIX) {
        let enabled = broker.live.load().auto_create_topic;
        let template = names::AUTO_CREATE_TOPIC;
        match broker
            .topics
            .auto_create(name, template, QUEUES, 0, enabled)
        {
            AutoCreate::Existing(topic) | AutoCreate::Created(topic, _)
                if queue_id < topic.config.read_queues =>
            {
                return Some(topic);
            }
            AutoCreate::Existing(_) | AutoCreate::Created(..) | AutoCreate::Refused(_) => {}
        }
    }
    let config = TopicConfig::new(name, queue_id.checked_add(1)?, PERM_READ | PERM_WRITE);
    if let Err(full) = broker.topics.check_room(std::slice::from_ref(&config)) {
        tracing::error!(topic = name, %full, "a topic cannot be made");
        return None;
    }
    Some(broker.topics.create_if_absent(config).0)
}

/// Leaves a message out: it counts as delivered.
fn skip(level: &mut Level, why: &'static str) -> Due {
    level.dropped.add(level.window.next(), why);
    level.window.dropped();
    Due::Next
}
