//! Makes queues and index durable now and then, and notes how far that is.
//!
//! What must always hold: the resume point names a log offset only after every entry of records
//! below it is on disk, and Apache's checkpoint never runs ahead of the resume point
//! (docs/durability.md, "Crash recovery").

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checkpoint::CheckpointFile;
use crate::commit_log::{LatchOnPanic, LogStatus};
use crate::consume_queue::ConsumeQueueError;
use crate::dispatch::{DispatchState, LastRecord};
use crate::error::{FlushError, OpenError};
use crate::format::checkpoint::Checkpoint;
use crate::index_file::Index;
use crate::queue_table::QueueTable;
use crate::resume::{ResumePoint, ResumeQueue};
use crate::seeded::{Fault, seeded};
use crate::watermarks::Watermarks;

/// Log between two resume points for each queue, at least: a resume point writes a page of every
/// changed queue, and its next store faults.
const BYTES_PER_QUEUE: u64 = 32 << 10;

/// How many times longer than with few queues the time between two resume points can be.
const INTERVAL_GROWS: f64 = 6.0;

/// How often the marks are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Makes resume points.
pub(crate) struct Flusher {
    pub(crate) table: Arc<QueueTable>,
    pub(crate) index: Arc<Index>,
    pub(crate) watermarks: Arc<Watermarks>,
    pub(crate) dispatch: Arc<DispatchState>,
    pub(crate) resume_path: PathBuf,
    pub(crate) checkpoint: CheckpointFile,
    /// By slot: next offsets that were beyond their queue's end when the store was opened.
    pub(crate) floors: HashMap<u32, i64>,
    /// Where the log ended when the store was opened; damage may stand before it.
    pub(crate) opened_at: u64,
    pub(crate) resume_bytes: u64,
    pub(crate) resume_interval: Duration,
    /// The last resume point.
    pub(crate) made: LastRecord,
    pub(crate) made_at: Instant,
    /// Where the dispatcher was at an earlier look; a resume point once the log is durable up to
    /// there.
    pub(crate) candidate: Option<LastRecord>,
    /// The sync that failed and is not tried again.
    pub(crate) lost: Option<String>,
}

impl Flusher {
    /// One look: makes a resume point if enough was dispatched since the last one, or time passed.
    pub(crate) fn look(&mut self) -> Result<(), FlushError> {
        let last = self.dispatch.last();
        let candidate = *self.candidate.get_or_insert(last);
        let durable = self.watermarks.durable();
        if candidate.end > durable {
            return Ok(());
        }
        self.candidate = None;
        let place = if last.end <= durable { last } else { candidate };
        let grown = place.end.saturating_sub(self.made.end);
        let spacing = (self.resume_bytes, self.resume_interval);
        let (enough, interval) = spacing_of(self.table.len() as u64, spacing);
        let due = grown >= enough || self.made_at.elapsed() >= interval;
        if grown > 0 && due {
            self.make(place)
        } else {
            Ok(())
        }
    }

    /// Where a resume point may stand now: behind the last record if that is durable, else where
    /// the dispatcher was at an earlier look, else where the last one stands. Under load the last
    /// record is never durable with ASYNC_FLUSH, and who asks may ask at every look.
    fn newest(&mut self) -> LastRecord {
        let last = self.dispatch.last();
        let durable = self.watermarks.durable();
        if last.end <= durable {
            return last;
        }
        let candidate = *self.candidate.get_or_insert(last);
        if candidate.end <= durable && candidate.end > self.made.end {
            candidate
        } else {
            self.made
        }
    }

    /// Makes queues and index durable, unless that failed before: then there is no resume point
    /// any more until the store is opened anew.
    fn sync(&mut self) -> Result<(), FlushError> {
        if let Some(why) = &self.lost {
            return Err(FlushError::Lost(why.clone()));
        }
        if seeded(Fault::UnsyncedResume) {
            return Ok(());
        }
        let synced = self.table.flush().map_err(FlushError::from);
        let synced = synced.and_then(|()| Ok(self.index.flush()?));
        if let Err(error) = &synced
            && error.is_lost()
        {
            self.lost = Some(error.to_string());
        }
        synced
    }

    /// Makes queues and index durable and stores `place` as the resume point.
    pub(crate) fn make(&mut self, place: LastRecord) -> Result<(), FlushError> {
        assert!(
            place.end <= self.watermarks.durable(),
            "a resume point beyond the durable log"
        );
        assert!(
            place.end >= self.made.end,
            "a resume point before the last one"
        );
        // Taken before the flush: what is put meanwhile need not be on disk.
        let index_files = self.index.file_count();
        let mark = self.index.mark();
        let index_timestamp = self.index.full_end_timestamp();
        let queues = self.table.all();
        // The next offsets go no further, for a power cut may take back what is behind.
        let kept_to = match seeded(Fault::OffsetsAhead) {
            true => u64::MAX,
            false => self.watermarks.durable(),
        };
        let ends = queues.iter().map(|queue| {
            let max = queue.max_offset();
            let floor = self.floors.get(&queue.slot).copied().unwrap_or(0);
            Ok(ResumeQueue {
                topic: queue.topic.to_string(),
                queue_id: queue.queue_id,
                min_offset: Some(queue.min_offset()),
                // Entries behind the place may name records that a power cut takes back.
                max_offset: queue.end_below(max, place.end)?,
                // What was assigned but not stored may be assigned again after a crash, and so
                // may, under ASYNC_FLUSH, what a power cut takes back: the queue has no gap then.
                next_offset: floor.max(queue.end_below(max, kept_to)?),
            })
        });
        let queues = ends.collect::<Result<Vec<_>, ConsumeQueueError>>()?;
        self.sync()?;
        let point = ResumePoint {
            in_doubt: false,
            log_offset: place.end,
            last_record: place.start,
            last_timestamp: place.timestamp,
            log_min: Some(self.dispatch.log_min.load(Ordering::SeqCst)),
            known_to: place.end.max(self.opened_at),
            queue_file_size: self.table.file_size(),
            index_files: u32::try_from(index_files).unwrap_or(u32::MAX),
            index: mark,
            queues,
        };
        point.store(&self.resume_path)?;
        self.dispatch.resumed.store(place.end, Ordering::SeqCst);
        let stored = self.checkpoint.stored();
        self.checkpoint.update(Checkpoint {
            log_timestamp: place.timestamp,
            queue_timestamp: place.timestamp,
            index_timestamp,
            ..stored
        })?;
        // A candidate from before may lie behind this point; one that is ahead is still to come.
        self.candidate = self.candidate.filter(|candidate| candidate.end > place.end);
        self.made = place;
        self.made_at = Instant::now();
        Ok(())
    }
}

/// Log and time between two resume points of a store with so many queues. Both grow alike: a start
/// reads no more than it may, and points stand no closer than that.
fn spacing_of(queues: u64, (bytes, interval): (u64, Duration)) -> (u64, Duration) {
    let of_queues = queues * BYTES_PER_QUEUE;
    let times = of_queues as f64 / bytes.max(1) as f64;
    let interval = interval.mul_f64(times.clamp(1.0, INTERVAL_GROWS));
    (bytes.max(of_queues), interval)
}

/// The flusher's thread.
pub(crate) struct FlusherThread {
    shared: Arc<FlusherShared>,
    thread: Option<JoinHandle<Flusher>>,
}

#[derive(Default)]
struct FlusherShared {
    stop: Mutex<bool>,
    changed: Condvar,
    /// A resume point is wanted as soon as possible.
    wanted: AtomicBool,
}

impl FlusherThread {
    /// Starts the thread.
    pub(crate) fn start(
        flusher: Flusher,
        status: Arc<LogStatus>,
    ) -> Result<FlusherThread, OpenError> {
        let guard = LatchOnPanic::new(status, "flusher");
        let shared = Arc::new(FlusherShared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("flusher".into())
            .spawn(move || {
                let _guard = guard;
                run(flusher, &for_thread)
            })
            .map_err(|source| OpenError::Thread {
                name: "flusher",
                source,
            })?;
        Ok(FlusherThread {
            shared,
            thread: Some(thread),
        })
    }

    /// Asks for a resume point soon: the list of queues changed, or log files are to go.
    pub(crate) fn request(&self) {
        self.shared.wanted.store(true, Ordering::SeqCst);
        self.shared.changed.notify_one();
    }

    /// Ends the thread and gives back what it worked with; `None` if it panicked or ended before.
    pub(crate) fn stop(&mut self) -> Option<Flusher> {
        *self
            .shared
            .stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_one();
        self.thread.take()?.join().ok()
    }
}

fn run(mut flusher: Flusher, shared: &FlusherShared) -> Flusher {
    let mut failing = false;
    loop {
        let stop = shared.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if *stop {
            return flusher;
        }
        // A poisoned lock gives its value back all the same: it is a flag.
        drop(shared.changed.wait_timeout(stop, LOOK));
        let wanted = shared.wanted.swap(false, Ordering::SeqCst);
        let looked = if wanted {
            let newest = flusher.newest();
            flusher.make(newest)
        } else {
            flusher.look()
        };
        match looked {
            Ok(()) => failing = false,
            Err(error) => {
                // Whoever asked for it still needs it.
                if wanted {
                    shared.wanted.store(true, Ordering::SeqCst);
                }
                if !failing {
                    tracing::error!(%error, "queues or index cannot be made durable; trying again");
                }
                failing = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FlushMode, StoreConfig};
    use crate::layout::Layout;
    use crate::store::start::Parts;

    fn parts(config: StoreConfig) -> (Parts, Flusher) {
        let layout = Layout::new(&config.root);
        crate::opening::make_directories(&layout).expect("directories");
        let recovered = crate::opening::recover(&config, &layout).expect("recovery");
        Parts::new(config, layout, recovered).expect("parts")
    }

    #[test]
    fn a_resume_point_is_due_after_so_much_log_or_so_much_time() {
        let (hour, mebibytes) = (Duration::from_secs(3600), 1 << 20);
        for (bytes, interval, is_due) in [
            (100, hour, true),
            (101, hour, false),
            (256 * mebibytes, Duration::ZERO, true),
        ] {
            let dir = tempfile::tempdir().expect("directory");
            let mut config = StoreConfig::new(dir.path());
            let documented = (config.resume_interval, config.resume_bytes);
            assert_eq!(documented, (Duration::from_secs(5), 256 * mebibytes));
            (config.resume_bytes, config.resume_interval) = (bytes, interval);
            let (_parts, mut flusher) = parts(config);
            // Nothing was dispatched.
            flusher.look().expect("look");
            assert_eq!(flusher.made.end, 0);
            flusher.watermarks.advance_appended(100);
            flusher.watermarks.advance_written(100);
            flusher.watermarks.advance_durable(100);
            flusher.dispatch.set_last(LastRecord {
                start: 50,
                end: 100,
                timestamp: 1,
            });
            flusher.look().expect("look");
            let made = flusher.dispatch.resumed.load(Ordering::SeqCst);
            assert_eq!(made == 100, is_due, "{bytes} bytes, {interval:?}");
        }
    }

    #[test]
    fn with_very_many_queues_resume_points_stand_further_apart_in_log_and_in_time() {
        let few = (256 << 20, Duration::from_secs(5));
        for (queues, bytes_mib, seconds) in [
            (0, 256, 5),
            (8192, 256, 5),
            (16_384, 512, 10),
            (49_152, 1536, 30),
            (1_000_000, 31_250, 30),
        ] {
            let expected = (bytes_mib << 20, Duration::from_secs(seconds));
            assert_eq!(spacing_of(queues, few), expected, "{queues} queues");
        }
    }

    #[test]
    fn resume_points_never_go_back() {
        let dir = tempfile::tempdir().expect("directory");
        let mut config = StoreConfig::new(dir.path());
        config.flush = FlushMode::Async;
        let (_parts, mut flusher) = parts(config);
        let dispatch = Arc::clone(&flusher.dispatch);
        let watermarks = Arc::clone(&flusher.watermarks);
        let dispatched = |end: u64| {
            dispatch.set_last(LastRecord {
                start: end - 50,
                end,
                timestamp: end as i64,
            });
        };
        watermarks.advance_appended(300);
        watermarks.advance_written(300);
        // Dispatched and not durable: the point to come.
        dispatched(100);
        flusher.look().expect("look");
        assert!(flusher.candidate.is_some());
        // One is asked for meanwhile, and stands further on.
        watermarks.advance_durable(200);
        dispatched(200);
        let newest = flusher.newest();
        flusher.make(newest).expect("resume point");
        dispatched(300);
        flusher.look().expect("look");
        assert_eq!(dispatch.resumed.load(Ordering::SeqCst), 200);
    }

    #[test]
    fn resume_points_that_are_asked_for_at_every_look_go_on_under_load() {
        let dir = tempfile::tempdir().expect("directory");
        let mut config = StoreConfig::new(dir.path());
        config.flush = FlushMode::Async;
        let (_parts, mut flusher) = parts(config);
        let mut durable = 0;
        for dispatched in (100..=2000).step_by(100) {
            flusher.watermarks.advance_appended(dispatched);
            flusher.watermarks.advance_written(dispatched);
            // The log is synced now and then, and never up to the last record.
            if dispatched % 500 == 0 {
                durable = dispatched - 100;
                flusher.watermarks.advance_durable(durable);
            }
            flusher.dispatch.set_last(LastRecord {
                start: dispatched - 100,
                end: dispatched,
                timestamp: 1,
            });
            let newest = flusher.newest();
            flusher.make(newest).expect("resume point");
        }
        let made = flusher.dispatch.resumed.load(Ordering::SeqCst);
        assert!(made + 1000 >= durable, "{made} of {durable} durable bytes");
    }
}
