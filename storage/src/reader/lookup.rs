//! Finding messages by time and by key, and single records in memory.

use std::sync::atomic::Ordering;

use super::look::{Found, check_copied};
use super::{HEAD_BYTES, StoreReader, size_in};
use crate::error::ReadError;
use crate::format::consume_entry::ENTRY_SIZE;
use crate::format::message::store_timestamp_position;
use crate::index_file::{IndexHits, KeyQuery};
use crate::queue_table::Queue;

/// Which offset a time stands for when no message, or several, have exactly that store time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBoundary {
    /// The first message stored at or after it; the queue's end if there is none.
    Lower,
    /// The last message stored at or before it; the queue's start if there is none.
    Upper,
    /// As Apache 4.9 does: the nearer one, the earlier of two equally near ones.
    Nearest,
}

/// Whether a record could be read without the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMemory {
    /// It was.
    Found,
    /// No record begins there.
    Missing,
    /// That is no longer in memory: ask [`StoreReader::record`] on the services thread.
    Cold,
}

impl StoreReader {
    /// As [`StoreReader::record`], from memory alone: for a network core.
    pub fn record_in_memory(&mut self, offset: u64, out: &mut Vec<u8>) -> InMemory {
        let log_min = self.shared.min_log_offset.load(Ordering::SeqCst);
        if offset < log_min || !self.is_acknowledged(offset, HEAD_BYTES) {
            return InMemory::Missing;
        }
        // The tail moves on all the time: what it has just let go of is cold, here and below.
        let mut head = [0; HEAD_BYTES];
        let copied = self.tail.with(offset, HEAD_BYTES, |first, second| {
            head[..first.len()].copy_from_slice(first);
            head[first.len()..].copy_from_slice(second);
        });
        if copied.is_none() {
            return InMemory::Cold;
        }
        let size = size_in(&head, offset).filter(|size| self.is_acknowledged(offset, *size));
        let Some(size) = size else {
            return InMemory::Missing;
        };
        let before = out.len();
        let whole = self.tail.copy(offset, size, out)
            && matches!(check_copied(&out[before..], offset, true), Found::Whole);
        if whole {
            return InMemory::Found;
        }
        out.truncate(before);
        InMemory::Cold
    }

    /// Store time, in milliseconds, of the message at a queue offset; `None` if it cannot be read.
    /// May wait for the disk.
    pub fn store_time(&mut self, queue: &Queue, offset: i64) -> Result<Option<i64>, ReadError> {
        let Some(entry) = queue.entry(offset)?.filter(|entry| !entry.is_pre_blank()) else {
            return Ok(None);
        };
        let Some(head) = self.head(entry.physical_offset)? else {
            return Ok(None);
        };
        let at = store_timestamp_position(&head);
        let time = head[at..at + 8].try_into().map(i64::from_be_bytes).ok();
        let recorded = head[28..36].try_into().map(u64::from_be_bytes).ok();
        Ok(time.filter(|time| *time >= 0 && recorded == Some(entry.physical_offset)))
    }

    /// Store time of the queue's first readable message, in milliseconds. May wait for the disk.
    pub fn earliest_store_time(&mut self, queue: &Queue) -> Result<Option<i64>, ReadError> {
        let (min, max) = (queue.min_offset(), queue.max_offset());
        Ok(self.readable_from(queue, min, max)?.map(|(_, time)| time))
    }

    /// The queue offset that stands for a time (docs/behaviour.md, "Reading a queue"). May wait for
    /// the disk.
    pub fn offset_by_time(
        &mut self,
        queue: &Queue,
        time_ms: i64,
        boundary: TimeBoundary,
    ) -> Result<i64, ReadError> {
        let (min, max) = (queue.min_offset(), queue.max_offset());
        if max <= min {
            return Ok(min.max(0));
        }
        match boundary {
            TimeBoundary::Lower => self.first_at_or_after(queue, time_ms, min, max),
            TimeBoundary::Upper => {
                let after = self.first_at_or_after(queue, time_ms.saturating_add(1), min, max)?;
                Ok((after - 1).max(min))
            }
            TimeBoundary::Nearest => self.nearest(queue, time_ms, min, max),
        }
    }

    /// First offset of `[low, high)` whose store time is at or after `time_ms`; `high` if there is
    /// none.
    fn first_at_or_after(
        &mut self,
        queue: &Queue,
        time_ms: i64,
        mut low: i64,
        mut high: i64,
    ) -> Result<i64, ReadError> {
        while low < high {
            let middle = low + (high - low) / 2;
            match self.readable_from(queue, middle, high)? {
                Some((found, time)) if time < time_ms => low = found + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The first readable message of `[from, end)` and its store time.
    fn readable_from(
        &mut self,
        queue: &Queue,
        from: i64,
        end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let mut offset = from;
        while offset < end {
            if let Some(time) = self.store_time(queue, offset)? {
                return Ok(Some((offset, time)));
            }
            let lost = self.shared.mending.lost_end(queue.slot, offset);
            offset = lost.unwrap_or(offset).max(offset + 1);
        }
        Ok(None)
    }

    /// Apache 4.9's search: within the first queue file that reaches the time, the middle that hits
    /// exactly, else the nearer neighbour.
    fn nearest(
        &mut self,
        queue: &Queue,
        time_ms: i64,
        min: i64,
        max: i64,
    ) -> Result<i64, ReadError> {
        let per_file = (self.shared.queue_file_size / ENTRY_SIZE as u64) as i64;
        let reached = self
            .first_at_or_after(queue, time_ms, min, max)?
            .min(max - 1);
        let file_start = reached - reached % per_file;
        let (mut low, mut high) = (file_start.max(min), (file_start + per_file).min(max) - 1);
        let (mut left, mut right) = (None, None);
        while low <= high {
            let middle = (low + high) / 2;
            match self.store_time(queue, middle)? {
                None => return Ok(min),
                Some(time) if time == time_ms => return Ok(middle),
                Some(time) if time > time_ms => {
                    high = middle - 1;
                    right = Some((middle, time));
                }
                Some(time) => {
                    low = middle + 1;
                    left = Some((middle, time));
                }
            }
        }
        Ok(match (left, right) {
            (None, None) => min,
            (Some((offset, _)), None) | (None, Some((offset, _))) => offset,
            (Some((before, early)), Some((after, late))) => {
                let nearer_after = time_ms.abs_diff(early) > time_ms.abs_diff(late);
                if nearer_after { after } else { before }
            }
        })
    }

    /// Log offsets, ascending, of at most `max` messages of `topic` that may have `key` and were
    /// stored within `[begin_ms, end_ms]`. Hash collisions are among them: compare the key after
    /// reading the record.
    pub fn query_index(
        &mut self,
        topic: &str,
        key: &str,
        max: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<IndexHits, ReadError> {
        let mut query = KeyQuery::new(topic, key.as_bytes(), max, begin_ms, end_ms);
        let hits = self.query_on(&mut query, usize::MAX)?;
        Ok(hits.unwrap_or_default())
    }

    /// Goes on with such a query over at most `items` items of the index; what it found once it
    /// has ended.
    ///
    /// # Errors
    /// An index file cannot be read.
    pub fn query_on(
        &mut self,
        query: &mut KeyQuery,
        items: usize,
    ) -> Result<Option<IndexHits>, ReadError> {
        let floor = self.shared.min_log_offset.load(Ordering::SeqCst);
        let Some(mut hits) = self.shared.index.go_on(query, items)? else {
            return Ok(None);
        };
        hits.offsets.retain(|offset| *offset >= floor);
        hits.offsets.sort_unstable();
        hits.offsets.dedup();
        Ok(Some(hits))
    }
}
