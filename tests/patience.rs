//! What a test may say about time: a machine that is busy or stands still for some seconds makes
//! nothing fail, a broker that is late does so each time.

use std::time::Duration;

/// How often something is tried that a stall of the machine can spoil.
const TRIES: u32 = 5;

/// The premise of a test did not hold: the machine was too slow for it.
#[derive(Debug)]
pub(crate) struct TooSlow;

/// Whether what takes `once` is over within `limit` at least once in some tries.
pub(crate) fn soon(what: &str, limit: Duration, mut once: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        took.push(once());
        if took.last().is_some_and(|time| *time < limit) {
            return;
        }
    }
    panic!("{what} took {took:?}, and never less than {limit:?}");
}

/// Runs a test that has to do something before a given time; from its start when the machine was
/// too slow for that, and with twice the times, which it multiplies by the number it is given.
pub(crate) fn in_time<T>(mut test: impl FnMut(u32) -> Result<T, TooSlow>) -> T {
    for tried in 0..TRIES {
        if let Ok(done) = test(1 << tried) {
            return done;
        }
    }
    panic!("too slow {TRIES} times to test anything");
}
