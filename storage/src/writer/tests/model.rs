//! The straightforward model: which messages are sent, and what the log must be byte for byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::append_queue::{AppendPort, Appended, PushError};
use crate::commit_log::Geometry;
use crate::disk::faulty::Seed;
use crate::format::batch::{BatchItem, encode_batch, measure_batch, push_item};
use crate::format::message::{MessageParts, assign, encode_into, encoded_len, sys_flag};
use crate::writer::QueueOffsets;

/// Queues the tests send to.
pub(super) const QUEUES: u32 = 5;

/// One push: a message, or a batch of several.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub token: u64,
    pub slot: u32,
    pub sys_flag: i32,
    pub born_v6: bool,
    /// Body sizes; more than one makes a batch.
    pub bodies: Vec<usize>,
}

impl Sent {
    /// A random push with bodies of up to `largest` bytes.
    pub fn random(seed: &mut Seed, token: u64, largest: usize) -> Sent {
        let size = |seed: &mut Seed| {
            let scale = 1 + seed.below(largest as u64);
            1 + seed.below(scale) as usize
        };
        let batch = seed.chance(1, 6);
        let count = if batch { 1 + seed.below(6) as usize } else { 1 };
        let bodies: Vec<usize> = (0..count).map(|_| size(seed) / count + 1).collect();
        let kinds = [0, sys_flag::PREPARED, sys_flag::COMMIT, sys_flag::ROLLBACK];
        let plain = batch || seed.chance(4, 5);
        let kind = if plain {
            0
        } else {
            kinds[seed.below(4) as usize]
        };
        let born_v6 = seed.chance(1, 4);
        Sent {
            token,
            slot: seed.below(u64::from(QUEUES)) as u32,
            sys_flag: kind | if born_v6 { sys_flag::BORN_HOST_V6 } else { 0 },
            born_v6,
            bodies,
        }
    }

    fn is_batch(&self) -> bool {
        self.bodies.len() > 1
    }

    fn has_offset(&self) -> bool {
        let kind = self.sys_flag & sys_flag::TRANSACTION;
        kind != sys_flag::PREPARED && kind != sys_flag::ROLLBACK
    }

    fn body(&self) -> Vec<u8> {
        let filled = |(index, &size): (usize, &usize)| {
            let mut seed = Seed(self.token * 1000 + index as u64);
            let mut body = Vec::with_capacity(size + 8);
            while body.len() < size {
                body.extend_from_slice(&seed.draw().to_ne_bytes());
            }
            body.truncate(size);
            body
        };
        let mut bodies = self.bodies.iter().enumerate().map(filled);
        if !self.is_batch() {
            return bodies.next().unwrap_or_default();
        }
        let mut out = Vec::new();
        for body in bodies {
            push_item(
                &mut out,
                &BatchItem {
                    flag: 7,
                    body: &body,
                    properties: b"TAGS\x01a\x02",
                },
            );
        }
        out
    }

    fn with_parts<R>(&self, use_parts: impl FnOnce(&MessageParts<'_>) -> R) -> R {
        let v4: SocketAddr = "127.0.0.1:10911".parse().expect("address");
        let v6: SocketAddr = "[::1]:4711".parse().expect("address");
        let body = self.body();
        use_parts(&MessageParts {
            topic: "harbour",
            queue_id: self.slot as i32,
            flag: 7,
            sys_flag: self.sys_flag,
            born_timestamp: 1_700_000_000_000 + self.token as i64,
            born_host: if self.born_v6 { v6 } else { v4 },
            store_host: v4,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: &[b"CLUSTER\x01c\x02"],
        })
    }

    /// Pushes it.
    pub fn push(&self, port: &mut AppendPort) -> Result<(), PushError> {
        self.with_parts(|parts| {
            if self.is_batch() {
                port.push_batch_to_slot(self.token, self.slot, parts, &mut Vec::new())
            } else {
                port.push_to_slots(self.token, self.slot, parts, &[])
            }
        })
    }

    /// The records as they must stand in the log, and their sizes.
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
                offset += i64::from(self.has_offset());
            }
            (bytes, sizes)
        })
    }
}

/// The log as a straightforward program would have written it.
pub(super) struct ModelLog {
    geometry: Geometry,
    pub end: u64,
    pub files: BTreeMap<u64, Vec<u8>>,
    offsets: [i64; QUEUES as usize],
    last_timestamp: i64,
}

impl ModelLog {
    pub fn new(file_size: u64) -> ModelLog {
        ModelLog {
            geometry: Geometry::new(file_size, 1),
            end: 0,
            files: BTreeMap::new(),
            offsets: [0; QUEUES as usize],
            last_timestamp: 0,
        }
    }

    /// The queues' next offsets.
    pub fn next_offsets(&self) -> [i64; QUEUES as usize] {
        self.offsets
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (base, size) = (self.geometry.base(at), self.geometry.file_size as usize);
        let file = self.files.entry(base).or_insert_with(|| vec![0; size]);
        let position = (at - base) as usize;
        file[position..position + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends what was acknowledged next in the log, after checking that it was given the right
    /// place.
    pub fn append(&mut self, sent: &Sent, appended: &Appended) {
        let (bytes, sizes) = sent.records(appended);
        if !self.geometry.fits(self.end, bytes.len() as u64) {
            let blank = self.geometry.blank(self.end);
            self.put(self.end, &blank);
            self.end = self.geometry.file_end(self.end);
        }
        assert_eq!(
            appended.physical_offset, self.end,
            "not the next place in the log"
        );
        assert_eq!(appended.end, self.end + bytes.len() as u64);
        let next = &mut self.offsets[sent.slot as usize];
        if sent.has_offset() {
            assert_eq!(appended.queue_offset, *next, "not the next queue offset");
            *next += sizes.len() as i64;
        } else {
            assert_eq!(appended.queue_offset, 0);
        }
        assert!(
            appended.store_timestamp >= self.last_timestamp,
            "store time went back"
        );
        self.last_timestamp = appended.store_timestamp;
        self.put(self.end, &bytes);
        self.end = appended.end;
    }
}

/// Queue offsets without a queue table.
#[derive(Clone, Debug, Default)]
pub(super) struct TestQueues {
    next: Vec<i64>,
}

impl TestQueues {
    pub fn new() -> TestQueues {
        TestQueues {
            next: vec![0; QUEUES as usize],
        }
    }
}

impl QueueOffsets for TestQueues {
    fn next(&mut self, slot: u32) -> Option<i64> {
        self.next.get(slot as usize).copied()
    }

    fn advance(&mut self, slot: u32, next: i64, count: u32) {
        assert_eq!(self.next[slot as usize], next);
        self.next[slot as usize] = next + i64::from(count);
    }

    fn is_watched(&mut self, slot: u32) -> bool {
        slot.is_multiple_of(2)
    }
}
