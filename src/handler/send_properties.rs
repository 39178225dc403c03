//! What a message's properties ask of the broker, and the property string that is stored
//! (docs/behaviour.md, Sending).

use std::sync::Arc;

use saturnmq_net::messages::send::SendRequest;
use saturnmq_storage::format::batch::BatchItems;
use saturnmq_storage::format::message::{PROPERTIES_MAX, sys_flag};
use saturnmq_storage::format::properties::Properties;
use saturnmq_storage::format::properties::names::INNER_MULTI_QUEUE_OFFSET;
use saturnmq_storage::queue_table::Queue;

use crate::answer::{Answer, Reply, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::config::LiveConfig;
use crate::handler::MESSAGE_ILLEGAL;
use crate::handler::properties::{self, PropertyScan};
use crate::handler::send_checks;
use crate::names;
use crate::timer;
use crate::timer::handle::Handle;
use crate::timer::message::ADDED_PROPERTIES;
use crate::topics::Topic;
use crate::transaction::half::Digits;

const TIMER: &str = "transaction messages and batches cannot be messages for a time (properties \
                     TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS)";

/// Why a message with these bits is not taken.
pub const UNQUEUED: &str = "\
    sysFlag has the bits of a prepared (4) or rolled back (12) transaction, and the message is no \
    transaction message (property TRAN_MSG): nobody would get it";

const OFFSETS: &str = "messages of a batch cannot have the property INNER_MULTI_QUEUE_OFFSET: only \
                       the broker says where a message stands";

/// Whether a message of a batch says where it stands in light queues.
fn says_offsets(body: &[u8]) -> bool {
    let name = INNER_MULTI_QUEUE_OFFSET;
    // Nearly every batch is done with here.
    memchr::memmem::find(body, name.as_bytes()).is_some()
        && BatchItems::new(body)
            .flatten()
            .any(|item| Properties::new(item.properties).get(name).is_some())
}

/// What a single message asks for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Its delay level, 0 for none.
    pub level: i32,
    /// Whether it is the half message of a transaction.
    pub half: bool,
    /// The time for which it waits, ms, rounded down.
    pub time: Option<i64>,
}

/// What a single message asks for.
///
/// # Errors
/// The refusal of what cannot be stored as it is meant.
pub fn asked(
    broker: &Broker,
    scan: &PropertyScan,
    send: &SendRequest<'_>,
    random: u64,
) -> Result<Asked, Answer> {
    let delay = delay_level(scan, send.properties)?;
    let illegal = |remark| Err(send_checks::refused(broker, MESSAGE_ILLEGAL, remark));
    // A delayed retry of what once was a half message is none.
    let was_half = is_half(scan, send);
    let half = was_half && !(send.reconsume_times > 0 && delay > 0);
    if !was_half && !sys_flag::is_queued(send.sys_flag) {
        return illegal(UNQUEUED);
    }
    if half && delay > 0 {
        return illegal(
            "a transaction message (property TRAN_MSG) cannot be delayed (property DELAY)",
        );
    }
    if half && has_timer(scan, send) {
        return illegal(TIMER);
    }
    let time = match delay {
        ..=0 => timer::asked::asked(broker, scan, send.properties, random)?,
        _ => None,
    };
    Ok(Asked {
        level: delay,
        half,
        time,
    })
}

/// Why a batch cannot be stored.
pub fn not_in_a_batch(
    scan: &PropertyScan,
    send: &SendRequest<'_>,
    body: &[u8],
) -> Option<&'static str> {
    if scan.has_inner()
        && scan
            .get(send.properties, INNER_MULTI_QUEUE_OFFSET)
            .is_some()
        || says_offsets(body)
    {
        return Some(OFFSETS);
    }
    if is_half(scan, send) {
        return Some("transaction messages (property TRAN_MSG) cannot be sent in a batch");
    }
    has_timer(scan, send).then_some(TIMER)
}

fn is_half(scan: &PropertyScan, send: &SendRequest<'_>) -> bool {
    scan.get(send.properties, properties::TRAN_MSG)
        .is_some_and(|v| v.eq_ignore_ascii_case("true"))
}

fn has_timer(scan: &PropertyScan, send: &SendRequest<'_>) -> bool {
    properties::TIMERS
        .iter()
        .any(|name| scan.get(send.properties, name).is_some())
}

/// The delay level that properties ask for, 0 for none.
///
/// # Errors
/// The refusal of what is no number.
pub fn delay_level(scan: &PropertyScan, text: &str) -> Result<i32, Reply> {
    let Some(level) = scan.get(text, properties::DELAY) else {
        return Ok(0);
    };
    level.parse().map_err(|_| {
        let remark = format!("the property DELAY holds \"{level}\", which is not a number");
        Reply::error(SYSTEM_ERROR, remark)
    })
}

/// The topic whose traffic a message is: of a half message, and of one that waits for a time, not
/// its own one yet.
pub fn counted(broker: &Broker, stored_in: &str, topic: &Arc<Topic>) -> Arc<Topic> {
    let other = match stored_in {
        names::HALF_TOPIC | names::TIMER_TOPIC => broker.topics.get(stored_in),
        _ => None,
    };
    other.unwrap_or_else(|| Arc::clone(topic))
}

/// Takes out what [`append_traced`] sets.
pub fn remove_traced(text: &str, scan: &mut PropertyScan) {
    scan.remove(text, properties::MSG_REGION);
    scan.remove(text, properties::TRACE_ON);
}

/// Where a message came in, and whether it is traced: consumers of 5.x write no trace of a message
/// that does not say so.
pub fn append_traced(live: &LiveConfig, out: &mut Vec<u8>) {
    properties::append(out, properties::MSG_REGION, &live.region_id);
    let on = if live.trace_on { "true" } else { "false" };
    properties::append(out, properties::TRACE_ON, on);
}

/// What decides over the stored properties of a single message.
pub struct Stored<'a> {
    /// Delay level, at most the table's last; 0 for none.
    pub level: i32,
    /// Delay level that was asked for.
    pub wanted_level: i32,
    /// A half message.
    pub half: bool,
    /// The time for which a message waits, ms, rounded down.
    pub time: Option<i64>,
    /// The topic that a redirected message is meant for.
    pub topic: &'a str,
    /// The queue that a redirected message is meant for.
    pub queue_id: i32,
    /// A dead letter: its delay is over.
    pub dead: bool,
    /// A message of a 5.x client.
    pub v5: bool,
}

impl Stored<'_> {
    /// The system flag: a half message is an ordinary one in its topic, and so is a retry of what
    /// once was one, which clients before 4.6.1 send as a prepared message.
    pub fn sys_flag(&self, asked: i32) -> i32 {
        match self.half {
            true => asked & !sys_flag::TRANSACTION,
            false => sys_flag::queued(asked),
        }
    }

    /// Longest property string, in bytes: what is delivered later gets some more properties.
    pub fn properties_max(&self) -> usize {
        match self.time {
            Some(_) => PROPERTIES_MAX - ADDED_PROPERTIES,
            None => PROPERTIES_MAX,
        }
    }

    /// Where the message is stored: topic, queue id and queue; `topic` is the one it is sent to.
    pub fn place<'t>(
        &self,
        broker: &Broker,
        topic: &'t Topic,
    ) -> Option<(&'t str, i32, Arc<Queue>)> {
        let level = self.level;
        Some(if level > 0 {
            let queue = broker.schedule_queue(level)?;
            (names::SCHEDULE_TOPIC, level - 1, queue)
        } else if self.half {
            (names::HALF_TOPIC, 0, broker.half_queue()?)
        } else if self.time.is_some() {
            (names::TIMER_TOPIC, 0, broker.timer_queue()?)
        } else {
            let queue = broker.queue(topic, self.queue_id)?;
            (topic.config.name.as_str(), self.queue_id, queue)
        })
    }

    /// The handle by which a message for a time is recalled.
    pub fn recall_handle(
        &self,
        broker: &Broker,
        text: &str,
        scan: &PropertyScan,
    ) -> Option<Box<str>> {
        let time = self.time?;
        if self.topic.starts_with(names::RETRY_PREFIX) {
            return None;
        }
        let key = scan.get(text, properties::UNIQ_KEY)?;
        let handle = Handle::encode(self.topic, &broker.config.broker_name, time + 1, key);
        Some(handle.into())
    }

    /// Builds the property string from the client's `text`, which `scan` has read, as Apache 4.9
    /// stores it; for a 5.x client with what its consumers need for traces.
    pub fn write(
        &self,
        text: &str,
        scan: &mut PropertyScan,
        (cluster, live): (&str, &LiveConfig),
        out: &mut Vec<u8>,
    ) {
        out.clear();
        let redirected = self.level > 0 || self.half || self.time.is_some();
        scan.remove(text, properties::CLUSTER);
        if scan.has_inner() {
            // Only the broker says where a message stands.
            scan.remove(text, INNER_MULTI_QUEUE_OFFSET);
        }
        if redirected {
            scan.remove(text, properties::REAL_TOPIC);
            scan.remove(text, properties::REAL_QID);
        } else {
            scan.remove(text, properties::WAIT);
        }
        if self.level > 0 && self.level != self.wanted_level || self.dead {
            scan.remove(text, properties::DELAY);
        }
        if self.level > 0 {
            for name in properties::TIMERS {
                scan.remove(text, name);
            }
        }
        let id = scan
            .get(text, properties::UNIQ_KEY)
            .filter(|_| self.half && self.v5);
        if id.is_some() {
            scan.remove(text, properties::TRANSACTION_ID);
        }
        if self.v5 {
            remove_traced(text, scan);
        }
        scan.write(text, out);
        properties::append(out, properties::CLUSTER, cluster);
        if self.v5 {
            append_traced(live, out);
        }
        if self.dead && self.v5 {
            properties::append(out, properties::DELAY, "-1");
        }
        if self.level > 0 && self.level != self.wanted_level {
            properties::append_number(out, properties::DELAY, self.level);
        }
        if let Some(id) = id {
            properties::append(out, properties::TRANSACTION_ID, id);
        }
        if let Some(time) = self.time {
            let digits = Digits::of(time);
            let digits = std::str::from_utf8(digits.as_bytes()).unwrap_or("0");
            properties::append(out, properties::TIMER_OUT_MS, digits);
        }
        if redirected {
            properties::append(out, properties::REAL_TOPIC, self.topic);
            properties::append_number(out, properties::REAL_QID, self.queue_id);
        }
    }
}
