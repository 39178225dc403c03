//! A message of the timer topic, and the record that it becomes when it is due
//! (docs/format.md, Timer messages).

use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use saturnmq_storage::append_queue::PushError;
use saturnmq_storage::format::message::{MessageParts, sys_flag};
use saturnmq_storage::format::record::Record;

use super::service::TimerStep;
use crate::core::now_ms;
use crate::delay::real_topic;
use crate::handler::properties::{
    self, NAME_END, PAIR_END, REAL_QID, REAL_TOPIC, TIMER_DELETES, TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS, TIMER_OUT_MS, TIMER_ROLL_TIMES,
};
use crate::names;
use crate::services::ServiceContext;
use crate::topics::Topic;

/// The index knows whole seconds only.
const COARSE_MS: i64 = 1000;

/// A message of the timer topic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed<'r> {
    /// Its record.
    pub(super) record: Record<'r>,
    /// The topic it is meant for.
    pub(super) topic: &'r str,
    /// The queue it is meant for.
    queue_id: i32,
    /// When it is due, ms, rounded down by the sender's broker.
    pub(super) time_ms: i64,
}

/// What became of an attempt to append a message.
#[derive(Debug)]
pub(super) enum Sent {
    /// The writer has it.
    Yes,
    /// It cannot be delivered, now or ever.
    Never(&'static str),
    /// Not now.
    Later,
}

impl<'r> Timed<'r> {
    /// The message in a record.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn of(record: &Record<'r>) -> Result<Self, &'static str> {
        if record.topic() != names::TIMER_TOPIC {
            return Err("its record is of another topic");
        }
        let properties = record.properties();
        let queue_id = properties.get_str(REAL_QID).map_or(Ok(0), i32::from_str);
        let (Some(topic), Ok(queue_id)) = (properties.get_str(REAL_TOPIC), queue_id) else {
            return Err("it names no real topic");
        };
        let closed = topic == names::HALF_TOPIC || topic == names::TIMER_TOPIC;
        if closed || names::check_topic(topic).is_err() || queue_id < 0 {
            return Err("its real topic cannot be delivered to");
        }
        let time_ms = properties
            .get_i64(TIMER_OUT_MS)
            .ok_or("it names no time of delivery")?;
        Ok(Self {
            record: *record,
            topic,
            queue_id,
            time_ms,
        })
    }

    /// Whether it says which other one is not to be delivered.
    pub(super) fn deletes(&self) -> bool {
        self.record.properties().get(TIMER_DELETES).is_some()
    }

    /// What it says is not to be delivered.
    pub(super) fn deleted_key(&self) -> Option<&'r str> {
        self.record.properties().get_str(TIMER_DELETES)
    }

    /// The message's own key, as another one names it to delete it.
    pub(super) fn key(&self) -> Option<&'r str> {
        self.record.properties().get_str(properties::UNIQ_KEY)
    }

    /// Whether an earlier run entered it into the timer topic once more.
    pub(super) fn was_rolled(&self, services: &mut ServiceContext) -> bool {
        self.was_sent(services, true)
    }

    /// Whether an earlier run delivered it, or rolled it: the index has a later record of it.
    pub(super) fn was_sent(&self, services: &mut ServiceContext, rolls: bool) -> bool {
        let topic = if rolls {
            names::TIMER_TOPIC
        } else {
            self.topic
        };
        let Some(key) = self.key() else {
            return false;
        };
        let begin = self.record.store_timestamp().saturating_sub(COARSE_MS);
        services.became(topic, key, begin, |other| {
            other.physical_offset() > self.record.physical_offset()
                && self.is_source_of(other, rolls)
        })
    }

    /// Whether its time had not come when it was stored.
    pub(super) fn had_to_wait(&self) -> bool {
        self.record.store_timestamp() < self.time_ms
    }

    /// Whether a request to recall it was acknowledged.
    pub(super) fn was_recalled(&self, services: &mut ServiceContext) -> bool {
        let Some(key) = self.key() else {
            return false;
        };
        let deletes = [self.topic, "+", key].concat();
        // It may stand before a message that was rolled since.
        services.became(names::TIMER_TOPIC, key, 0, |other| {
            other.properties().get_str(TIMER_DELETES) == Some(deletes.as_str())
        })
    }

    /// Whether another record is what became of this one.
    fn is_source_of(&self, other: &Record<'_>, rolls: bool) -> bool {
        let (own, theirs) = (self.record.properties(), other.properties());
        let rolled = own.get_i64(TIMER_ROLL_TIMES).unwrap_or(0) + i64::from(rolls);
        theirs.get(properties::UNIQ_KEY) == own.get(properties::UNIQ_KEY)
            && other.born_timestamp() == self.record.born_timestamp()
            && other.born_host() == self.record.born_host()
            && theirs.get(TIMER_OUT_MS) == own.get(TIMER_OUT_MS)
            && theirs.get(TIMER_DELETES) == own.get(TIMER_DELETES)
            && theirs.get_i64(TIMER_ROLL_TIMES).unwrap_or(0) == rolled
    }

    /// Appends the message to its real topic, or to the timer topic once more.
    pub(super) fn send(
        &self,
        services: &mut ServiceContext,
        rolls: bool,
        entered_ms: i64,
        step: impl FnOnce(Arc<Topic>) -> TimerStep,
        buffer: &mut Vec<u8>,
    ) -> Sent {
        let broker = Arc::clone(&services.broker);
        if !broker.store.state().is_writable() {
            return Sent::Later;
        }
        let (name, queue_id) = match rolls {
            true => (names::TIMER_TOPIC, 0),
            false => (self.topic, self.queue_id),
        };
        let Some(topic) = real_topic(&broker, name, queue_id) else {
            return Sent::Never("its topic is missing and there is room for no more");
        };
        if topic.config.has_batch_queues() {
            return Sent::Never("its topic has queue.type=BatchCQ");
        }
        if broker.awaited(&topic, queue_id).is_some() {
            return Sent::Later;
        }
        let Some(queue) = broker.queue(&topic, queue_id) else {
            return Sent::Later;
        };
        self.write_properties(rolls, entered_ms, now_ms(), buffer);
        let parts = MessageParts {
            topic: name,
            queue_id,
            flag: self.record.flag(),
            sys_flag: self.record.sys_flag() & !sys_flag::TRANSACTION,
            born_timestamp: self.record.born_timestamp(),
            born_host: self.record.born_host(),
            store_host: self.record.store_host(),
            reconsume_times: self.record.reconsume_times(),
            prepared_transaction_offset: 0,
            body: self.record.body(),
            properties: &[buffer.as_slice()],
        };
        match services.append_timed(&queue, &parts, step(topic)) {
            Ok(()) => Sent::Yes,
            Err(PushError::Full | PushError::Closed) => Sent::Later,
            Err(error) => {
                tracing::error!(%error, "a timer message cannot be stored");
                Sent::Never("it is illegal")
            }
        }
    }

    fn write_properties(&self, rolls: bool, entered_ms: i64, now_ms: i64, out: &mut Vec<u8>) {
        let own = self.record.properties();
        let rolled = own.get_i64(TIMER_ROLL_TIMES).unwrap_or(0);
        let set = [
            (TIMER_ENQUEUE_MS, entered_ms),
            (TIMER_DEQUEUE_MS, now_ms),
            (TIMER_ROLL_TIMES, rolled.saturating_add(1)),
        ];
        let set = if rolls { &set[..] } else { &set[..2] };
        out.clear();
        for (name, value) in own.iter() {
            if set.iter().all(|(other, _)| other.as_bytes() != name) {
                pair(out, name, value);
            }
        }
        for (name, value) in set {
            pair(out, name.as_bytes(), value.to_string().as_bytes());
        }
    }
}

fn pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if !out.is_empty() {
        out.push(PAIR_END);
    }
    out.extend_from_slice(name);
    out.push(NAME_END);
    out.extend_from_slice(value);
}

/// Bytes that [`Timed::send`] may add to a message's properties: they must fit when it is stored.
pub(crate) const ADDED_PROPERTIES: usize =
    // Each with its two separators: two times of up to 19 digits and a counter.
    TIMER_ENQUEUE_MS.len() + TIMER_DEQUEUE_MS.len() + 2 * 21 + TIMER_ROLL_TIMES.len() + 21;

/// Keys of messages that are not to be delivered, 16 bytes each.
#[derive(Debug)]
pub(super) struct DeletedKeys {
    hashers: [RandomState; 2],
    keys: std::collections::HashSet<[u64; 2]>,
}

impl DeletedKeys {
    /// None.
    pub(super) fn new() -> Self {
        Self {
            hashers: [RandomState::new(), RandomState::new()],
            keys: std::collections::HashSet::new(),
        }
    }

    /// Adds what a message names.
    pub(super) fn insert(&mut self, key: &str) {
        let key = self.hash(key.as_bytes());
        self.keys.insert(key);
    }

    /// Whether a message is among them.
    pub(super) fn contains(&self, message: &Timed<'_>) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let Some(key) = message.key() else {
            return false;
        };
        let name = [message.topic.as_bytes(), b"+", key.as_bytes()].concat();
        self.keys.contains(&self.hash(&name))
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        [0, 1].map(|n| self.hashers[n].hash_one(key))
    }
}

/// Logs and counts a message that cannot be delivered.
pub(super) fn drop_message(services: &ServiceContext, log_offset: i64, why: &str) {
    tracing::warn!(log_offset, "a timer message is dropped: {why}");
    let counters = &services.broker.timers.counters;
    counters.dropped.fetch_add(1, Ordering::Relaxed);
}
