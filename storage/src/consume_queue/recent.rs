//! Which entries of a queue can be looked at without waiting for the disk: young ones, whose
//! records may still be in the tail and which this process wrote a short while ago; and those that
//! were made ready for a reader that works through a backlog.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{ConsumeQueue, ENTRY};

/// Entries made ready at a time: 16 pages.
const READY: i64 = 3200;
/// Entries of which one is looked at to have their page in memory.
const PER_PAGE: usize = 4096 / ENTRY as usize;
/// How long a page that was just looked at counts as being in memory.
const STAYS: Duration = Duration::from_millis(500);

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Marks that a tail's length is divided into.
const MARKS: u64 = 32;

/// See the module's description. The dispatcher notes, any thread asks.
#[derive(Debug)]
pub(super) struct Recent {
    /// Queue offset of the first young entry.
    from: AtomicI64,
    /// Log offset from which the next mark is due.
    next_mark: AtomicU64,
    /// Queue offsets from which and to before which entries were made ready, and until when that
    /// counts, in milliseconds since `BEGUN`. Torn, they cost a page fault.
    ready: [AtomicI64; 3],
    /// Queue offset and log offset of some entries, oldest first.
    marks: Mutex<VecDeque<(i64, u64)>>,
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            from: AtomicI64::new(i64::MAX),
            next_mark: AtomicU64::new(0),
            ready: Default::default(),
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
        let young = offset >= self.recent.from.load(Ordering::Acquire);
        (young && self.log_end() > tail_start) || self.is_ready(offset)
    }

    fn is_ready(&self, offset: i64) -> bool {
        let [from, to, until] = &self.recent.ready;
        (from.load(Ordering::Acquire)..to.load(Ordering::Acquire)).contains(&offset)
            && BEGUN.elapsed().as_millis() < until.load(Ordering::Acquire) as u128
    }

    /// Has the next entries from `offset` on in memory; waits for the disk.
    pub fn make_ready(&self, offset: i64) {
        let end = self.max_offset().min(self.next_file_offset(offset));
        let to = offset.saturating_add(READY).min(end);
        if offset < self.min_offset() || offset >= to {
            return;
        }
        for at in (offset..to).step_by(PER_PAGE).chain([to - 1]) {
            // Whoever reads them is told what is wrong.
            if self.raw_entry(at).is_err() {
                return;
            }
        }
        let until = BEGUN.elapsed().saturating_add(STAYS).as_millis();
        let [from, end, time] = &self.recent.ready;
        from.store(offset, Ordering::Release);
        end.store(to, Ordering::Release);
        time.store(i64::try_from(until).unwrap_or(0), Ordering::Release);
    }
}
