//! Since when entries of a level's queue are there, by a clock that nobody sets.
//!
//! The store time of a record never falls along the log. After a clock that was ahead is put right,
//! records are stored for a while with a time that has not come yet, and no due time can be
//! computed from it. Such a message waits its delay from the moment its entry was first seen.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Looks kept for the length of a delay: a message is late by one part in so many of it.
const PER_DELAY: u32 = 64;
/// Looks kept at most. A level that is behind by more than its delay needs no older ones.
const KEPT: usize = 2 * PER_DELAY as usize;

/// How far a level's queue went at some moments.
#[derive(Debug)]
pub(super) struct Seen {
    spacing: Duration,
    looks: VecDeque<(Instant, i64)>,
}

impl Seen {
    /// For a level whose messages wait `delay`.
    pub fn new(delay: Duration) -> Self {
        Self {
            spacing: (delay / PER_DELAY).max(Duration::from_millis(1)),
            looks: VecDeque::new(),
        }
    }

    /// The time between two looks that are kept.
    pub fn spacing(&self) -> Duration {
        self.spacing
    }

    /// The queue has entries up to `end` now.
    pub fn look(&mut self, now: Instant, end: i64) {
        let due = self
            .looks
            .back()
            .is_none_or(|(at, known)| end > *known && now >= *at + self.spacing);
        if due {
            if self.looks.len() == KEPT {
                self.looks.pop_front();
            }
            self.looks.push_back((now, end));
        }
    }

    /// When the entry at `offset` was there for certain; `None` if no look saw it.
    pub fn since(&self, offset: i64) -> Option<Instant> {
        let first = self.looks.partition_point(|(_, end)| *end <= offset);
        self.looks.get(first).map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_there_since_the_first_look_that_saw_it() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut seen = Seen::new(Duration::from_millis(6400));
        assert_eq!(seen.since(0), None);
        seen.look(at(0), 3);
        seen.look(at(50), 5);
        assert_eq!(seen.since(2), Some(at(0)));
        assert_eq!(
            seen.since(3),
            None,
            "the second look came too soon to be kept"
        );
        seen.look(at(100), 5);
        seen.look(at(300), 5);
        seen.look(at(900), 9);
        assert_eq!(seen.since(4), Some(at(100)));
        assert_eq!(seen.since(5), Some(at(900)));
    }

    #[test]
    fn looks_are_kept_for_a_delay_and_no_more() {
        let begun = Instant::now();
        let mut seen = Seen::new(Duration::from_secs(64));
        for second in 0..1000_u32 {
            seen.look(
                begun + Duration::from_secs(second.into()),
                i64::from(second) + 1,
            );
        }
        assert_eq!(seen.looks.len(), KEPT);
        let kept = begun + Duration::from_secs(1000 - KEPT as u64);
        assert_eq!(seen.since(0), Some(kept), "never earlier than it was there");
    }
}
