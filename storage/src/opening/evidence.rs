//! What shows that bad bytes are damage and no torn write (docs/durability.md, "Crash recovery").

use super::Opening;
use crate::format::record::Record;
use crate::former_run::FormerRun;
use crate::queue_table::{Queue, QueueTable};
use crate::recovery::Proof;

impl Opening<'_> {
    /// Where behind bad bytes a record is looked for that proves them to be damage.
    pub(super) fn proof<'a>(
        &self,
        table: &QueueTable,
        accepts: &'a dyn Fn(&Record<'_>, bool) -> bool,
    ) -> Proof<'a> {
        let proof = Proof {
            accepts,
            ..Proof::NONE
        };
        match (self.former, &self.resume) {
            // Files that were put aside are put back so.
            (FormerRun::Closed, Some(_)) if self.config.rebuild_queues => Proof {
                to: u64::MAX,
                ..proof
            },
            // Nothing stands behind the log's end, and nobody knows what a power cut left.
            (FormerRun::Closed | FormerRun::Unbounded, Some(_)) => proof,
            (FormerRun::Closed | FormerRun::Unbounded, None) => Proof {
                to: u64::MAX,
                ..proof
            },
            // Behind what was in flight there are zeros, or the log went on.
            (FormerRun::Bounded(bytes), _) => Proof {
                from: bytes,
                to: u64::MAX,
                glance: true,
                known_to: self.seen_to(table),
                ..proof
            },
        }
    }

    /// Log offset up to which queues, index or the resume point knew of records.
    fn seen_to(&self, table: &QueueTable) -> u64 {
        let queues = table.all();
        let queued = queues.iter().map(|queue| queue.seen_end()).max();
        self.known_to
            .max(self.indexed_to)
            .max(self.seen.to)
            .max(queued.unwrap_or(0))
    }

    /// Whether a record, perhaps in a later file, shows that everything before it was on the disk.
    /// `after` is the store time of the last whole record before the bad place, in milliseconds.
    pub(super) fn proves(
        &self,
        table: &QueueTable,
        record: &Record<'_>,
        later: bool,
        after: i64,
    ) -> bool {
        if self.former == FormerRun::Unbounded {
            return record.store_timestamp() < self.synced_before;
        }
        if !record.is_queued() {
            return self.former != FormerRun::Closed;
        }
        let Some(queue) = table.get(record.topic(), record.queue_id()) else {
            return true;
        };
        let has_entry = || self.has_entry(table, record);
        let goes_on = record.queue_offset() >= queue.max_offset();
        let put_back = self.config.rebuild_queues && self.resume.is_some();
        match self.former {
            FormerRun::Closed if put_back => goes_on || has_entry(),
            // Nothing was in flight.
            FormerRun::Closed => {
                has_entry()
                    || (goes_on
                        && (later
                            || queue.max_offset() == 0
                            || (self.lagged(&queue) && record.store_timestamp() >= after)))
            }
            FormerRun::Bounded(_) | FormerRun::Unbounded => goes_on || has_entry(),
        }
    }

    /// Whether a queue's files did not end with the last record that was met: then it says nothing
    /// that it has no entry for the next one. Apache leaves old records behind the end of a log
    /// that it cut, in the same file: older ones than those before the end, and such that a queue
    /// which is there has no entries of.
    fn lagged(&self, queue: &Queue) -> bool {
        let known = self.known.get(&*queue.topic);
        let known = known.and_then(|queues| queues.get(&queue.queue_id));
        known.is_none_or(|known| known.next != queue.max_offset())
    }

    /// Whether a record shows that by itself: it was dispatched, which happens only once everything
    /// before it is acknowledged or may be.
    pub(super) fn was_acknowledged(&self, table: &QueueTable, record: &Record<'_>) -> bool {
        let is_bounded = matches!(self.former, FormerRun::Bounded(_));
        is_bounded
            && record.is_queued()
            && (self.seen.has(place_of(record), record.size()) || self.has_entry(table, record))
    }

    /// Whether the record's queue has its entry.
    fn has_entry(&self, table: &QueueTable, record: &Record<'_>) -> bool {
        let Some(queue) = table.get(record.topic(), record.queue_id()) else {
            return false;
        };
        match queue.entry(record.queue_offset()) {
            Ok(Some(entry)) => {
                entry.physical_offset == place_of(record) && entry.size == record.size()
            }
            Ok(None) | Err(_) => false,
        }
    }
}

/// The log offset that a record names.
fn place_of(record: &Record<'_>) -> u64 {
    u64::try_from(record.physical_offset()).unwrap_or(u64::MAX)
}
