//! How fast the next log file is zeroed.

use std::time::{Duration, Instant};

/// Least pace of zeroing, in bytes per second.
const PACE: u64 = 200_000_000;
/// How often the append rate is measured.
const MEASURE: Duration = Duration::from_millis(100);

/// How fast to zero: not so fast that it disturbs, not so slow that the log arrives first.
pub(super) struct Pace {
    measured_at: Instant,
    appended: u64,
    rate: u64,
}

impl Pace {
    pub fn new() -> Pace {
        Pace {
            measured_at: Instant::now(),
            appended: 0,
            rate: PACE,
        }
    }

    /// Rest after zeroing `zeroed` bytes in `took`, with the log at `appended`.
    pub fn rest(&mut self, zeroed: u64, took: Duration, appended: u64) -> Duration {
        let since = self.measured_at.elapsed();
        if since >= MEASURE {
            let bytes = appended.saturating_sub(self.appended) as f64;
            let per_second = bytes * 1.5 / since.as_secs_f64();
            self.rate = if self.appended == 0 {
                PACE
            } else {
                PACE.max(per_second as u64)
            };
            self.measured_at = Instant::now();
            self.appended = appended;
        }
        let due = Duration::from_secs_f64(zeroed as f64 / self.rate as f64);
        due.saturating_sub(took)
    }
}
