//! How long the services thread has been at the turn it is at: who waits for it should know.

use std::sync::atomic::{AtomicI64, Ordering};

use super::ServicesHandle;
use crate::core::steady_ms;

/// When its turn began.
#[derive(Debug, Default)]
pub struct Turn {
    /// By [`steady_ms`], 0 while the thread waits for work.
    since_ms: AtomicI64,
}

impl Turn {
    /// A turn begins.
    pub fn begins(&self, now_ms: i64) {
        self.since_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The thread waits for work.
    pub fn waits(&self) {
        self.since_ms.store(0, Ordering::Relaxed);
    }

    /// How long it has been at this turn, ms; 0 while it waits.
    pub fn length_ms(&self, now_ms: i64) -> i64 {
        match self.since_ms.load(Ordering::Relaxed) {
            0 => 0,
            since => now_ms.saturating_sub(since).max(0),
        }
    }
}

impl ServicesHandle {
    /// How long the thread has been at the turn it is at, ms; 0 while it waits for work.
    pub fn turn_ms(&self) -> i64 {
        self.turn.length_ms(steady_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_services_thread_that_stands_still_is_told_from_one_that_waits() {
        let turn = Turn::default();
        assert_eq!(turn.length_ms(1_000_000), 0, "it has not begun");
        turn.begins(5000);
        assert_eq!(turn.length_ms(25_000), 20_000);
        turn.begins(25_000);
        assert_eq!(turn.length_ms(25_001), 1);
        turn.waits();
        assert_eq!(turn.length_ms(1_000_000), 0);
    }
}
