//! How many cold pulls of one connection run at a time (docs/behaviour.md, Reading a queue).
//!
//! The services thread answers whatever it is given, sent or not: without a limit a connection
//! that never reads could have thousands of results in memory. What is above the limit waits here
//! and starts as results come back.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Cold pulls of one connection that run at a time.
pub const PER_CONNECTION: usize = 64;

struct Lane<T> {
    running: usize,
    waiting: VecDeque<T>,
}

/// The cold pulls of one core's connections: `C` names a connection, `T` is what waits.
pub struct Cold<C, T> {
    lanes: HashMap<C, Lane<T>>,
}

impl<C, T> Default for Cold<C, T> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
        }
    }
}

impl<C: Copy + Eq + Hash, T> Cold<C, T> {
    /// Gives `value` back if it may run now, and counts it as running; else it waits.
    pub fn admit(&mut self, connection: C, value: T) -> Option<T> {
        let lane = self.lanes.entry(connection).or_insert_with(|| Lane {
            running: 0,
            waiting: VecDeque::new(),
        });
        if lane.running < PER_CONNECTION {
            lane.running += 1;
            return Some(value);
        }
        lane.waiting.push_back(value);
        None
    }

    /// One that ran is over.
    pub fn finished(&mut self, connection: C) {
        if let Some(lane) = self.lanes.get_mut(&connection) {
            lane.running = lane.running.saturating_sub(1);
            if lane.running == 0 && lane.waiting.is_empty() {
                self.lanes.remove(&connection);
            }
        }
    }

    /// The oldest that waits, counted as running, if there is room for it.
    pub fn next(&mut self, connection: C) -> Option<T> {
        let lane = self.lanes.get_mut(&connection)?;
        if lane.running >= PER_CONNECTION {
            return None;
        }
        let value = lane.waiting.pop_front()?;
        lane.running += 1;
        Some(value)
    }

    /// Forgets what a closed connection waits for.
    pub fn closed(&mut self, connection: C) {
        self.lanes.remove(&connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_no_more_cold_pulls_running_than_its_limit() {
        let mut cold = Cold::default();
        let admitted = (0..4096).filter(|n| cold.admit('a', *n).is_some()).count();
        assert_eq!(admitted, PER_CONNECTION);
        assert_eq!(cold.next('a'), None, "nothing came back yet");
        assert_eq!(cold.admit('b', 1), Some(1), "others have room of their own");
    }

    #[test]
    fn cold_pulls_above_the_limit_run_in_order_as_others_finish() {
        let mut cold = Cold::default();
        let first = PER_CONNECTION;
        for n in 0..first + 2 {
            cold.admit('a', n);
        }
        cold.finished('a');
        assert_eq!(cold.next('a'), Some(first));
        assert_eq!(cold.next('a'), None);
        for _ in 0..PER_CONNECTION {
            cold.finished('a');
        }
        assert_eq!(cold.next('a'), Some(first + 1));
        cold.finished('a');
        assert!(cold.lanes.is_empty(), "an idle connection costs nothing");
    }

    #[test]
    fn results_for_a_closed_connection_are_no_ones() {
        let mut cold = Cold::default();
        cold.admit('a', 1);
        cold.closed('a');
        cold.finished('a');
        assert_eq!(cold.next('a'), None);
    }
}
