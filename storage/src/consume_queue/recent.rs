//! Which entries of a queue are young: their records may still be in the tail, and this process
//! wrote them a short while ago, so that looking at them waits for nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::ConsumeQueue;

/// Marks that a tail's length is divided into.
const MARKS: u64 = 32;

/// See the module's description. The dispatcher notes, any thread asks.
#[derive(Debug)]
pub(super) struct Recent {
    /// Queue offset of the first young entry.
    from: AtomicI64,
    /// Log offset from which the next mark is due.
    next_mark: AtomicU64,
    /// Queue offset and log offset of some entries, oldest first.
    marks: Mutex<VecDeque<(i64, u64)>>,
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            from: AtomicI64::new(i64::MAX),
            next_mark: AtomicU64::new(0),
            marks: Mutex::default(),
        }
    }
}

impl ConsumeQueue {
    /// Says that the next entry is about to be appended for a record at `log_offset`, while the
    /// tail of `tail_size` bytes begins at `tail_start`: the dispatcher, before it appends.
    pub fn note_recent(&self, log_offset: u64, tail_start: u64, tail_size: u64) {
        // One entry in many gets a mark.
        if log_offset < self.recent.next_mark.load(Ordering::Relaxed) {
            return;
        }
        let spacing = (tail_size / MARKS).max(1);
        self.recent
            .next_mark
            .store(log_offset.saturating_add(spacing), Ordering::Relaxed);
        let mut marks = self
            .recent
            .marks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.log_end() <= tail_start {
            marks.clear();
        }
        marks.push_back((self.max_offset(), log_offset));
        // What lies before the second mark has left the tail when its record has.
        while marks.len() > 1 && marks.get(1).is_some_and(|second| second.1 <= tail_start) {
            marks.pop_front();
        }
        let first = marks.front().map_or(i64::MAX, |first| first.0);
        self.recent.from.store(first, Ordering::Release);
    }

    /// Whether the entry at `offset` and those behind it are young while the tail begins at
    /// `tail_start`: looking at them waits for no disk.
    pub fn is_recent(&self, offset: i64, tail_start: u64) -> bool {
        offset >= self.recent.from.load(Ordering::Acquire) && self.log_end() > tail_start
    }
}
