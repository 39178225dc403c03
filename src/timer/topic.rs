//! The timer topic as the timer files are checked against it.

use std::sync::Arc;

use saturnmq_storage::error::ReadError;
use saturnmq_storage::format::consume_entry::ConsumeEntry;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::StoreReader;
use saturnmq_storage::timer::{Found, Looked, TimerTopic};

use super::message::Timed;
use super::slot::waiting;
use crate::names;

/// Entries of the topic's queue that are read at a time.
const ENTRIES: usize = 4096;

/// The messages of the timer topic.
pub(super) struct Messages<'a> {
    reader: &'a mut StoreReader,
    queue: Option<Arc<Queue>>,
    min_log_offset: u64,
    /// A piece of the queue, and the offset of its first entry.
    entries: Vec<ConsumeEntry>,
    first: i64,
    record: Vec<u8>,
}

impl<'a> Messages<'a> {
    /// Those in a queue. The log begins at `min_log_offset`.
    pub(super) fn new(
        reader: &'a mut StoreReader,
        queue: Option<Arc<Queue>>,
        min_log_offset: u64,
    ) -> Self {
        Self {
            reader,
            queue,
            min_log_offset,
            entries: Vec::new(),
            first: 0,
            record: Vec::new(),
        }
    }

    /// The queue offset of an entry, if the queue has it where it should be.
    fn in_queue(&mut self, log_offset: u64, size: i32) -> Option<i64> {
        self.in_piece(log_offset, size).or_else(|| {
            self.load(log_offset)?;
            self.in_piece(log_offset, size)
        })
    }

    fn in_piece(&self, log_offset: u64, size: i32) -> Option<i64> {
        let entries = &self.entries;
        let index = entries.partition_point(|entry| entry.physical_offset < log_offset);
        let entry = entries.get(index)?;
        let same = entry.physical_offset == log_offset && entry.size == size.cast_unsigned();
        same.then_some(self.first + i64::try_from(index).ok()?)
    }

    /// Reads the piece of the queue that begins with an entry.
    fn load(&mut self, log_offset: u64) -> Option<()> {
        let queue = self.queue.as_ref()?;
        let (mut low, mut high) = (queue.min_offset(), queue.max_offset());
        while low < high {
            let middle = low + (high - low) / 2;
            match queue.entry(middle).ok()?? {
                entry if entry.physical_offset < log_offset => low = middle + 1,
                _ => high = middle,
            }
        }
        self.entries.clear();
        self.first = low;
        queue.entries(low, ENTRIES, &mut self.entries).ok()
    }

    /// Reads a record; what it waits for and its queue offset.
    fn read(&mut self, log_offset: i64) -> (Looked, i64) {
        let Ok(offset) = u64::try_from(log_offset) else {
            return (Looked::Nothing, 0);
        };
        if offset < self.min_log_offset {
            return (Looked::Expired, 0);
        }
        self.record.clear();
        match self.reader.record(offset, &mut self.record) {
            Ok(true) => {}
            Ok(false) | Err(ReadError::Damaged { .. }) => return (Looked::Nothing, 0),
            Err(error) => {
                tracing::warn!(%error, "a timer message cannot be read now");
                return (Looked::Unreadable, 0);
            }
        }
        let Ok(record) = Record::decode(&self.record) else {
            return (Looked::Nothing, 0);
        };
        if record.topic() != names::TIMER_TOPIC || record.physical_offset() != log_offset {
            return (Looked::Nothing, 0);
        }
        match Timed::of(&record) {
            Ok(message) => (Looked::Message(waiting(&message)), record.queue_offset()),
            Err(_) => (Looked::Nothing, 0),
        }
    }
}

impl TimerTopic for Messages<'_> {
    fn find(&mut self, log_offset: i64, size: i32) -> Found {
        let Ok(offset) = u64::try_from(log_offset) else {
            return Found::Nothing;
        };
        if offset < self.min_log_offset {
            return Found::Expired;
        }
        if let Some(queue_offset) = self.in_queue(offset, size) {
            return Found::At(queue_offset);
        }
        // The entry may be damaged.
        match self.read(log_offset) {
            (Looked::Message(message), at) if message.size == size.cast_unsigned() => {
                // Nothing vouches for what a record says of its place in the queue.
                let queue = self.queue.as_ref();
                let known = queue.is_some_and(|q| (q.min_offset()..q.max_offset()).contains(&at));
                if known {
                    Found::At(at)
                } else {
                    Found::Unreadable
                }
            }
            (Looked::Message(_) | Looked::Nothing, _) => Found::Nothing,
            (Looked::Expired, _) => Found::Expired,
            (Looked::Unreadable, _) => Found::Unreadable,
        }
    }

    fn look(&mut self, log_offset: i64) -> Looked {
        self.read(log_offset).0
    }
}
