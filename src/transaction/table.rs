//! What is known of half messages at the moment, by their offset in the half queue.
//!
//! Memory is bounded whatever the number of open transactions: a half message that nobody talks
//! about costs one bit.

use std::collections::{HashMap, HashSet, VecDeque};

use super::trail::Trail;
use super::window::{Recent, Window};

/// Most copies whose originals are remembered.
const COPIES: usize = 65_536;

/// Whether a transaction may be ended now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Yes; this is the half message that is open: the one named, or the newest copy of it.
    Go(i64),
    /// It was ended already, or somebody is about to.
    Ended,
}

/// What the check finds at an offset of the half queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// To be looked at.
    Open,
    /// Somebody is at it; not now.
    Busy,
    /// A copy whose original was ended: done with, but nothing says so yet.
    Stale,
}

/// Half messages and their state.
#[derive(Debug)]
pub struct Table {
    window: Window,
    trail: Trail,
    /// Ended in this process.
    recent: Recent,
    /// Being ended: the record or the op message is on its way.
    ending: HashSet<i64>,
    /// Being replaced by a copy or given up.
    moving: HashSet<i64>,
    /// From a half message to the copy that stands for it, the oldest of them in `order` first.
    copies: HashMap<i64, i64>,
    order: VecDeque<i64>,
    /// Of the half messages up to here copies may be forgotten.
    forgotten: i64,
    /// From a copy to its original that was ended while the copy was made.
    stale: HashMap<i64, i64>,
    /// Something beyond the window was ended: the op queue must be read again.
    missed: bool,
}

impl Table {
    /// Half messages before `half` are done with, op messages before `op` not needed.
    pub fn new(half: i64, op: i64) -> Self {
        Self {
            window: Window::new(half),
            trail: Trail::new(op),
            recent: Recent::new(),
            ending: HashSet::new(),
            moving: HashSet::new(),
            copies: HashMap::new(),
            order: VecDeque::new(),
            forgotten: -1,
            stale: HashMap::new(),
            missed: false,
        }
    }

    /// Somebody wants to end a transaction.
    pub fn begin(&mut self, half: i64) -> Begin {
        let mut open = half;
        // A copy stands behind its original in the queue, so this ends.
        while let Some(copy) = self.copies.get(&open).filter(|copy| **copy > open) {
            open = *copy;
        }
        if self.recent.contains(open) || self.recent.contains(half) || !self.ending.insert(open) {
            return Begin::Ended;
        }
        Begin::Go(open)
    }

    /// Whether a half message may have a copy that is not known here any more.
    pub fn has_forgotten(&self, half: i64) -> bool {
        half <= self.forgotten && !self.copies.contains_key(&half)
    }

    /// It could not be ended.
    pub fn failed(&mut self, open: i64) {
        self.ending.remove(&open);
    }

    /// The op message for a half message that was ended is stored, at offset `op` of its queue.
    pub fn ended(&mut self, open: i64, op: i64) {
        self.ending.remove(&open);
        self.recent.insert(open);
        self.closed(open, op);
    }

    /// The op message for a half message that was replaced or given up is stored.
    pub fn closed(&mut self, half: i64, op: i64) {
        self.moving.remove(&half);
        self.stale.remove(&half);
        self.trail.note(op, half);
        self.missed |= !self.window.set(half);
    }

    /// A half message that is gone: nothing can be done about it.
    pub fn skip(&mut self, half: i64) {
        self.missed |= !self.window.set(half);
    }

    /// An op message was read that names these half messages; `noted` if it was before.
    pub fn read(&mut self, op: i64, halves: impl Iterator<Item = i64>, noted: bool) {
        let mut highest = -1;
        for half in halves {
            highest = highest.max(half);
            self.missed |= !self.window.set(half);
        }
        if !noted {
            self.trail.note(op, highest);
        }
    }

    /// The next half message that the check must look at, from `from` on and before `end`.
    pub fn next_open(&self, from: i64, end: i64) -> Option<i64> {
        self.window.next_open(from, end.min(self.window.end()))
    }

    /// What stands at an offset that [`Table::next_open`] gave.
    pub fn look(&mut self, half: i64) -> Found {
        if self.ending.contains(&half) || self.moving.contains(&half) {
            return Found::Busy;
        }
        match self.stale.get(&half).copied() {
            Some(original) if self.ending.contains(&original) => Found::Busy,
            Some(original) if self.recent.contains(original) => Found::Stale,
            Some(_) => {
                self.stale.remove(&half);
                Found::Open
            }
            None => Found::Open,
        }
    }

    /// Whether a half message was ended, as far as is known.
    pub fn is_done(&self, half: i64) -> bool {
        self.recent.contains(half) || half >= self.window.start() && self.window.is_done(half)
    }

    /// The check replaces a half message, gives it up or closes it.
    pub fn moving(&mut self, half: i64) {
        self.moving.insert(half);
    }

    /// That failed: the half message stays as it is.
    pub fn stays(&mut self, half: i64) {
        self.moving.remove(&half);
    }

    /// A copy of a half message is stored. False if the original was ended meanwhile: then nobody
    /// must be asked about the copy.
    pub fn copied(&mut self, half: i64, copy: i64) -> bool {
        if self.ending.contains(&half) || self.recent.contains(half) {
            if self.stale.len() < COPIES {
                self.stale.insert(copy, half);
            } else {
                self.forgotten = self.forgotten.max(copy);
            }
            return false;
        }
        self.stands_for(copy, half);
        true
    }

    /// Remembers that `copy` stands for `half`.
    pub fn stands_for(&mut self, copy: i64, half: i64) {
        if self.copies.insert(half, copy).is_none() {
            self.order.push_back(half);
        }
        while self.order.len() > COPIES {
            if let Some(oldest) = self.order.pop_front() {
                self.copies.remove(&oldest);
                self.forgotten = self.forgotten.max(oldest);
            }
        }
    }

    /// Progress in both queues, as it may be stored; the half queue has `min` to `max`.
    pub fn progress(&mut self, min: i64, max: i64) -> (i64, i64) {
        self.window.forget_before(min);
        let half = self.window.advance(max.max(min));
        (half, self.trail.advance(half))
    }

    /// Whether the op queue must be read again, from its stored progress on; asked once.
    pub fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(0, 0)
    }

    #[test]
    fn a_transaction_is_ended_once() {
        let mut table = table();
        assert_eq!(table.begin(3), Begin::Go(3));
        assert_eq!(table.begin(3), Begin::Ended, "somebody is about to");
        table.failed(3);
        assert_eq!(table.begin(3), Begin::Go(3), "that came to nothing");
        table.ended(3, 0);
        assert_eq!(table.begin(3), Begin::Ended);
        assert_eq!(table.next_open(3, 5), Some(4));
    }

    #[test]
    fn progress_does_not_pass_what_is_only_being_ended() {
        let mut table = table();
        assert_eq!(table.begin(0), Begin::Go(0));
        assert_eq!(table.begin(1), Begin::Go(1));
        table.ended(1, 0);
        assert_eq!(table.progress(0, 2), (0, 0));
        assert_eq!(table.look(0), Found::Busy);
        table.ended(0, 1);
        assert_eq!(table.progress(0, 2), (2, 2));
    }

    #[test]
    fn ending_the_original_ends_its_newest_copy() {
        let mut table = table();
        for (half, copy, op) in [(0, 1, 0), (1, 2, 1)] {
            table.moving(half);
            assert_eq!(table.look(half), Found::Busy);
            assert!(table.copied(half, copy));
            table.closed(half, op);
        }
        assert_eq!(table.progress(0, 3), (2, 2));
        assert_eq!(table.begin(0), Begin::Go(2));
        assert_eq!(table.begin(1), Begin::Ended);
        table.ended(2, 2);
        for half in 0..3 {
            assert_eq!(table.begin(half), Begin::Ended, "{half}");
        }
        assert_eq!(table.progress(0, 3), (3, 3));
    }

    #[test]
    fn a_copy_of_what_was_ended_meanwhile_is_closed_unasked() {
        let mut table = table();
        table.moving(0);
        assert_eq!(table.begin(0), Begin::Go(0));
        assert!(!table.copied(0, 1));
        assert_eq!(table.look(1), Found::Busy);
        table.ended(0, 0);
        table.closed(0, 1);
        assert_eq!(table.look(1), Found::Stale);
        table.closed(1, 2);
        assert_eq!(table.progress(0, 2), (2, 3));
    }

    #[test]
    fn a_copy_counts_when_its_original_was_not_ended_after_all() {
        let mut table = table();
        table.moving(0);
        table.begin(0);
        assert!(!table.copied(0, 1));
        table.failed(0);
        table.closed(0, 0);
        assert_eq!(table.look(1), Found::Open);
        assert_eq!(table.begin(1), Begin::Go(1));
    }

    #[test]
    fn the_memory_of_copies_is_bounded() {
        let mut table = table();
        for half in 0..3 * COPIES as i64 {
            assert!(table.copied(half, half + 1_000_000));
        }
        assert_eq!(table.copies.len(), COPIES);
        assert_eq!(table.order.len(), COPIES);
        let last_forgotten = 2 * COPIES as i64 - 1;
        for half in [0, last_forgotten] {
            assert!(table.has_forgotten(half), "{half}: the index must be asked");
        }
        assert!(!table.has_forgotten(last_forgotten + 1));
        table.stands_for(1_000_000, 0);
        assert!(!table.has_forgotten(0), "the index was asked");
        assert_eq!(table.begin(0), Begin::Go(1_000_000));
    }

    #[test]
    fn op_messages_of_earlier_runs_count_also_when_they_name_several() {
        let mut table = Table::new(5, 100);
        table.read(100, [5, 6, 9].into_iter(), false);
        table.read(101, [3].into_iter(), false);
        assert_eq!(table.progress(0, 10), (7, 100));
        assert_eq!(table.next_open(7, 10), Some(7));
        table.read(102, [7, 8].into_iter(), false);
        assert_eq!(table.progress(0, 10), (10, 103));
    }
}
