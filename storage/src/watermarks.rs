//! How far the log has come, in one place.
//!
//! What must always hold, and is asserted on every move: no mark goes back, and `appended >=
//! written >= durable`, `written >= dispatched`, and under synchronous flush `durable >=
//! dispatched`. Every mark is the log offset after the last byte it speaks of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::FlushMode;
use crate::seeded::{Fault, seeded};

/// Between looks at a writer that is giving records places, which takes some microseconds.
const STAGING_LOOK: Duration = Duration::from_micros(50);

/// A mark alone on its cache lines: each is moved and read by other threads than the one beside it.
#[repr(align(128))]
#[derive(Debug)]
struct Mark(AtomicU64);

/// The marks of one log, shared by all threads. The writer moves all but `dispatched`, which is the
/// dispatcher's.
#[derive(Debug)]
pub struct Watermarks {
    flush: FlushMode,
    appended: Mark,
    written: Mark,
    durable: Mark,
    dispatched: Mark,
    /// Odd while the writer gives records places.
    staging: Mark,
}

impl Watermarks {
    /// All marks at `start`, the end of a recovered log that is durable and dispatched up to there.
    pub fn new(flush: FlushMode, start: u64) -> Watermarks {
        Watermarks {
            flush,
            appended: Mark(AtomicU64::new(start)),
            written: Mark(AtomicU64::new(start)),
            durable: Mark(AtomicU64::new(start)),
            dispatched: Mark(AtomicU64::new(start)),
            staging: Mark(AtomicU64::new(0)),
        }
    }

    /// The same, but the entries behind `dispatched` are still to be made.
    pub(crate) fn behind(flush: FlushMode, start: u64, dispatched: u64) -> Watermarks {
        assert!(dispatched <= start, "entries beyond the log");
        Watermarks {
            dispatched: Mark(AtomicU64::new(dispatched)),
            ..Watermarks::new(flush, start)
        }
    }

    /// The flush mode the marks are kept for.
    pub fn flush_mode(&self) -> FlushMode {
        self.flush
    }

    /// Log offset up to which records have a place in the log.
    pub fn appended(&self) -> u64 {
        self.appended.0.load(Ordering::Acquire)
    }

    /// Log offset up to which every write has completed.
    pub fn written(&self) -> u64 {
        self.written.0.load(Ordering::Acquire)
    }

    /// Log offset up to which the log survives a power cut.
    pub fn durable(&self) -> u64 {
        self.durable.0.load(Ordering::Acquire)
    }

    /// Log offset up to which sends are, or may be, acknowledged: durable under synchronous flush,
    /// written under asynchronous.
    pub fn acknowledged(&self) -> u64 {
        match self.flush {
            FlushMode::Sync => self.durable(),
            FlushMode::Async => self.written(),
        }
    }

    /// Log offset up to which records are in their queues and readable.
    pub fn dispatched(&self) -> u64 {
        self.dispatched.0.load(Ordering::Acquire)
    }

    /// The writer begins to give records places, or has done so for now; the writer only.
    pub(crate) fn stages(&self) {
        self.staging.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until whatever the writer is doing right now is done: records that get places later
    /// see what the caller changed before.
    pub(crate) fn wait_for_staging(&self) {
        let seen = self.staging.0.load(Ordering::SeqCst);
        while seen % 2 == 1 && self.staging.0.load(Ordering::SeqCst) == seen {
            std::thread::sleep(STAGING_LOOK);
        }
    }

    /// Moves `appended`; the writer only.
    pub fn advance_appended(&self, to: u64) {
        advance("appended", &self.appended, to, u64::MAX);
    }

    /// Moves `written`; the writer only.
    pub fn advance_written(&self, to: u64) {
        advance("written", &self.written, to, self.appended());
    }

    /// Moves `durable`; the writer only.
    pub fn advance_durable(&self, to: u64) {
        advance("durable", &self.durable, to, self.written());
    }

    /// Moves `dispatched`; the dispatcher only.
    pub fn advance_dispatched(&self, to: u64) {
        let limit = if seeded(Fault::EarlyDispatch) {
            u64::MAX
        } else {
            self.acknowledged()
        };
        advance("dispatched", &self.dispatched, to, limit);
    }
}

/// Moves one mark forward, never past `limit`.
fn advance(name: &str, mark: &Mark, to: u64, limit: u64) {
    let from = mark.0.load(Ordering::Relaxed);
    assert!(
        to >= from,
        "watermark {name} would go back from {from} to {to}"
    );
    assert!(
        to <= limit,
        "watermark {name} would pass the mark before it: {to} > {limit}"
    );
    mark.0.store(to, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_move_in_order() {
        let marks = Watermarks::new(FlushMode::Sync, 100);
        marks.advance_appended(300);
        marks.advance_written(200);
        marks.advance_durable(200);
        marks.advance_dispatched(150);
        assert_eq!(marks.acknowledged(), 200);
        assert_eq!(marks.dispatched(), 150);
    }

    #[test]
    fn asynchronous_flush_acknowledges_what_is_written() {
        let marks = Watermarks::new(FlushMode::Async, 0);
        marks.advance_appended(10);
        marks.advance_written(10);
        assert_eq!((marks.acknowledged(), marks.durable()), (10, 0));
        marks.advance_dispatched(10);
    }

    #[test]
    #[should_panic(expected = "watermark durable would pass")]
    fn durable_never_passes_written() {
        let marks = Watermarks::new(FlushMode::Sync, 0);
        marks.advance_appended(10);
        marks.advance_durable(10);
    }

    #[test]
    #[should_panic(expected = "watermark dispatched would pass")]
    fn nothing_is_dispatched_before_it_is_durable() {
        let marks = Watermarks::new(FlushMode::Sync, 0);
        marks.advance_appended(10);
        marks.advance_written(10);
        marks.advance_dispatched(10);
    }

    #[test]
    #[should_panic(expected = "watermark appended would go back")]
    fn no_mark_goes_back() {
        let marks = Watermarks::new(FlushMode::Sync, 5);
        marks.advance_appended(4);
    }
}
