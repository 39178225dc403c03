//! How far the timers are, on disk.

use std::time::{Duration, Instant};

use saturnmq_storage::timer::TimerError;

use super::{Open, TRIM};
use crate::broker::Broker;
use crate::core::now_ms;

/// How often a check point under way is looked at.
const CHECKING: Duration = Duration::from_millis(20);
/// Longest time without a check point while only the clock goes on.
const IDLE_CHECK: Duration = Duration::from_secs(60);

impl Open {
    /// Begins a check point if one is due; says when to look again.
    pub(super) fn check_point(&mut self, now: Instant) -> Result<Option<Instant>, TimerError> {
        if self.store.is_checking()? {
            return Ok(Some(now + CHECKING));
        }
        if self.is_due(now) && self.direct.is_empty() {
            let progress = self.progress();
            self.store
                .begin_check_point(self.read_ms, progress, self.noted_ms())?;
            self.next_check = now + self.check_interval;
            self.idle_check = now + IDLE_CHECK;
        }
        // The writer's answers wake this thread where they are waited for.
        let waits = self.direct.is_empty() && self.is_changed();
        Ok(waits.then_some(self.next_check))
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_changed() && now >= self.next_check || now >= self.idle_check
    }

    fn is_changed(&self) -> bool {
        let progress = self.progress();
        let moved = progress.is_some_and(|at| at != self.store.check().queue_offset);
        self.store.is_changed() || moved
    }

    /// Whether everything is on disk.
    pub(super) fn is_noted(&self) -> bool {
        !self.is_changed()
    }

    /// How far the timer topic is entered; `None` as long as this run has not come to where the
    /// one before it was: what the timer log has already is known by its old check point only.
    fn progress(&self) -> Option<i64> {
        let progress = self.direct.progress(self.next);
        (progress >= self.doubtful_until).then_some(progress)
    }

    /// Notes how far everything is and waits for that.
    pub(super) fn note(&mut self) -> Result<(), TimerError> {
        let progress = self.progress();
        self.store
            .check_point(self.read_ms, progress, self.noted_ms())
    }

    /// The time of a check point: where the clock was put back, that up to which slots may have
    /// been delivered, for the next start is to look for what they had.
    fn noted_ms(&self) -> i64 {
        now_ms().max(self.doubtful_ms)
    }

    pub(super) fn trim(&mut self, broker: &Broker, now: Instant) -> Result<(), TimerError> {
        if now >= self.next_trim {
            self.next_trim = now + TRIM;
            let removed = self.store.trim(broker.store.min_log_offset())?;
            if removed > 0 {
                tracing::info!(removed, "timer-log files were removed");
            }
        }
        Ok(())
    }
}
