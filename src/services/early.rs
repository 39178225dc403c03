//! Jobs for which the dispatcher is not far enough yet, in the order in which they came.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Jobs that may wait; no more are taken from their queue meanwhile, so that it fills and more are
/// refused.
const MOST: usize = 1024;
/// Longest wait of a job for the dispatcher.
const LONGEST: Duration = Duration::from_secs(1);

/// A job that need not wait any longer.
#[derive(Debug, PartialEq, Eq)]
pub enum Due<T> {
    /// The dispatcher has come as far as it must.
    Readable(T),
    /// It has not, in all that time: what was acknowledged before is not seen.
    Late(T),
}

struct Waiting<T> {
    readable_from: u64,
    since: Instant,
    job: T,
}

/// Jobs that wait for the dispatcher.
pub struct Early<T> {
    waiting: VecDeque<Waiting<T>>,
}

impl<T> Default for Early<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
        }
    }
}

impl<T> Early<T> {
    /// Lets a job wait until the dispatcher has come to log offset `readable_from`.
    pub fn push(&mut self, readable_from: u64, now: Instant, job: T) {
        self.waiting.push_back(Waiting {
            readable_from,
            since: now,
            job,
        });
    }

    /// The first job, if it need not wait any longer. Those behind it came later and wait for no
    /// less.
    pub fn next(&mut self, dispatched: u64, now: Instant) -> Option<Due<T>> {
        let first = self.waiting.front()?;
        let is_readable = first.readable_from <= dispatched;
        if !is_readable && now.saturating_duration_since(first.since) < LONGEST {
            return None;
        }
        let job = self.waiting.pop_front()?.job;
        Some(if is_readable {
            Due::Readable(job)
        } else {
            Due::Late(job)
        })
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether no more may wait.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_for_the_dispatcher_and_is_late_when_it_does_not_come() {
        let now = Instant::now();
        let mut early = Early::default();
        for (readable_from, job) in [(10, 'a'), (20, 'b'), (20, 'c')] {
            early.push(readable_from, now, job);
        }
        assert_eq!(early.next(9, now), None);
        assert_eq!(early.next(10, now), Some(Due::Readable('a')));
        assert_eq!(early.next(19, now + LONGEST / 2), None);
        assert_eq!(early.next(19, now + LONGEST), Some(Due::Late('b')));
        assert_eq!(early.next(20, now + LONGEST), Some(Due::Readable('c')));
        assert!(early.is_empty());
    }

    #[test]
    fn no_more_than_so_many_wait() {
        let now = Instant::now();
        let mut early = Early::default();
        for job in 0..MOST {
            assert!(!early.is_full());
            early.push(1, now, job);
        }
        assert!(early.is_full());
        assert_eq!(early.next(1, now), Some(Due::Readable(0)));
        assert!(!early.is_full());
    }
}
