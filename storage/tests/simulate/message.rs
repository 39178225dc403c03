//! Messages that say who they are: whatever a reader finds can be compared with what was sent.

use std::net::SocketAddr;

use crate::append_queue::{AppendPort, Appended, LightQueues, PushError};
use crate::disk::faulty::Seed;
use crate::format::batch::{BatchItem, encode_batch, measure_batch, push_item};
use crate::format::message::{MessageParts, assign, encode_into, encoded_len, sys_flag};
use crate::format::properties::names;
use crate::format::record::Record;
use crate::store::Store;

/// Topics of a run that messages are sent to, and behind them its light queues.
pub const TOPICS: [&str; 5] = ["Harbour", "Tide", "%RETRY%crew", "%LMQ%east", "%LMQ%west"];
/// How many of them are sent to.
pub const SENT_TO: usize = 3;
/// Those of them whose messages may enter light queues.
pub const DISPATCHED: usize = 2;
/// Light queues.
pub const LIGHT: usize = TOPICS.len() - SENT_TO;
/// Queues of each topic.
pub const QUEUES: i32 = 2;
/// Bytes of a record with these properties and an empty body, at most.
pub const AROUND_BODY: u64 = 200;
/// Bytes that light queues add to it, at most.
pub const LIGHT_BYTES: u64 = 100;

/// One record of a push: the push's token and its place in it.
pub type Name = (u64, usize);

/// A queue: topic and queue id.
pub type Place = (usize, i32);

/// One push: a message, or a batch of several.
#[derive(Clone, Debug)]
pub struct Sent {
    pub token: u64,
    pub place: Place,
    pub sys_flag: i32,
    /// Body sizes; more than one makes a batch.
    pub bodies: Vec<usize>,
    /// Light queues that it enters, a bit for each.
    pub light: u8,
}

impl Sent {
    pub fn topic(&self) -> &'static str {
        TOPICS[self.place.0]
    }

    fn is_batch(&self) -> bool {
        self.bodies.len() > 1
    }

    /// Whether its records get entries in their queue.
    pub fn is_queued(&self) -> bool {
        let kind = self.sys_flag & sys_flag::TRANSACTION;
        kind != sys_flag::PREPARED && kind != sys_flag::ROLLBACK
    }

    /// The key that one record has alone.
    pub fn key(name: Name) -> String {
        format!("m{}.{}", name.0, name.1)
    }

    /// A key that it shares with others.
    pub fn shared_key(token: u64) -> String {
        format!("k{}", token % 5)
    }

    /// Who a record says it is.
    pub fn name_of(record: &Record<'_>) -> Option<Name> {
        let key = record.properties().get_str(names::UNIQUE_KEY)?;
        let (token, index) = key.strip_prefix('m')?.split_once('.')?;
        Some((token.parse().ok()?, index.parse().ok()?))
    }

    /// The topics of the light queues that it enters, as places in [`TOPICS`].
    pub fn light_topics(&self) -> impl Iterator<Item = usize> {
        let light = self.light;
        (0..LIGHT)
            .filter(move |bit| light & 1 << bit != 0)
            .map(|bit| SENT_TO + bit)
    }

    fn properties(&self, index: usize) -> Vec<u8> {
        let (key, shared) = (Sent::key((self.token, index)), Sent::shared_key(self.token));
        let mut text = format!("UNIQ_KEY\u{1}{key}\u{2}KEYS\u{1}{shared}\u{2}TAGS\u{1}t");
        if self.light != 0 {
            let names: Vec<&str> = self.light_topics().map(|topic| TOPICS[topic]).collect();
            text += &format!("\u{2}INNER_MULTI_DISPATCH\u{1}{}", names.join(","));
        }
        text.into_bytes()
    }

    /// The body of one of its records.
    pub fn body(&self, index: usize) -> Vec<u8> {
        let size = self.bodies[index];
        let mut seed = Seed(self.token * 1000 + index as u64);
        let mut body = Vec::with_capacity(size + 8);
        while body.len() < size {
            body.extend_from_slice(&seed.draw().to_ne_bytes());
        }
        body.truncate(size);
        body
    }

    fn with_parts<R>(&self, use_parts: impl FnOnce(&MessageParts<'_>) -> R) -> R {
        let host: SocketAddr = ([127, 0, 0, 1], 10911).into();
        let mut body = Vec::new();
        let mut properties = self.properties(0);
        if self.is_batch() {
            for index in 0..self.bodies.len() {
                let item = BatchItem {
                    flag: 7,
                    body: &self.body(index),
                    properties: &self.properties(index),
                };
                push_item(&mut body, &item);
            }
            properties = b"CLUSTER\x01c".to_vec();
        } else {
            body = self.body(0);
        }
        use_parts(&MessageParts {
            topic: self.topic(),
            queue_id: self.place.1,
            flag: 7,
            sys_flag: self.sys_flag,
            born_timestamp: 1_700_000_000_000 + self.token as i64,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: &[&properties],
        })
    }

    pub fn push(&self, port: &mut AppendPort, store: &Store) -> Result<(), PushError> {
        let queue = &store.queue_or_create(self.topic(), self.place.1);
        let mut light = LightQueues::default();
        for topic in self.light_topics() {
            let queue = store.light_queue(TOPICS[topic], usize::MAX);
            light.enter(&queue.expect("room for light queues"));
        }
        self.with_parts(|parts| {
            if self.is_batch() {
                port.push_batch(self.token, queue, parts, &mut Vec::new())
            } else {
                port.push(self.token, queue, parts, &light)
            }
        })
    }

    /// The records as they must stand in the log, and their sizes. Those that enter light queues
    /// have their offsets there behind that, which only the writer knows.
    pub fn records(&self, appended: &Appended) -> (Vec<u8>, Vec<u32>) {
        self.with_parts(|parts| {
            let (mut sizes, mut bytes) = (Vec::new(), Vec::new());
            if self.is_batch() {
                bytes.resize(measure_batch(parts, &mut sizes).expect("legal batch"), 0);
                encode_batch(parts, &mut bytes).expect("legal batch");
            } else {
                bytes.resize(encoded_len(parts).expect("legal message"), 0);
                sizes.push(bytes.len() as u32);
                encode_into(parts, &mut bytes).expect("legal message");
            }
            let (mut at, mut offset) = (0, appended.queue_offset);
            for &size in &sizes {
                let record = &mut bytes[at..at + size as usize];
                let place = appended.physical_offset + at as u64;
                assign(record, offset, place, appended.store_timestamp);
                at += size as usize;
                offset += i64::from(self.is_queued());
            }
            (bytes, sizes)
        })
    }
}
