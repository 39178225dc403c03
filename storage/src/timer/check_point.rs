//! A check point: the timer log, then the wheel, then `timercheck` go to the disk, on a thread of
//! their own, since a sync may take long and the thread that owns the files has other work.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::wheel::{Changes, write_slots};
use super::{TimerError, sync, write_check};
use crate::error::FileError;
use crate::format::timer::Check;

/// What a check point puts on disk.
#[derive(Debug)]
pub(super) struct CheckPoint {
    /// Files of the timer log that are not synced, by their bases.
    pub(super) log: Vec<(u64, PathBuf, File)>,
    /// The wheel.
    pub(super) wheel: (PathBuf, File),
    /// Slots that are not in its file.
    pub(super) slots: Arc<Changes>,
    /// What `timercheck` says then.
    pub(super) check: Check,
    /// Where it stands.
    pub(super) check_path: PathBuf,
}

impl CheckPoint {
    /// Does it on this thread.
    pub(super) fn store(&self) -> Result<(), TimerError> {
        for (_, path, file) in &self.log {
            sync(path, file)?;
        }
        let (path, file) = &self.wheel;
        write_slots(file, &self.slots).map_err(FileError::at("write", path))?;
        sync(path, file)?;
        write_check(&self.check_path, &self.check)
    }

    /// Does it on a thread of its own; on this one where there can be none.
    pub(super) fn start(self) -> Running {
        let shared = Arc::new(self);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("timer-sync".into());
        let (thread, outcome) = match thread.spawn(move || for_thread.store()) {
            Ok(thread) => (Some(thread), None),
            Err(error) => {
                tracing::warn!(%error, "no thread for a check point of timers");
                (None, Some(shared.store()))
            }
        };
        Running {
            what: shared,
            thread,
            outcome,
        }
    }
}

/// One that is being stored.
#[derive(Debug)]
pub(super) struct Running {
    /// What it stores.
    pub(super) what: Arc<CheckPoint>,
    thread: Option<JoinHandle<Result<(), TimerError>>>,
    outcome: Option<Result<(), TimerError>>,
}

impl Running {
    /// Whether it has come to an end.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end. A panic counts as a sync that failed.
    pub(super) fn end(&mut self) -> Result<(), TimerError> {
        let joined = self.thread.take().map(|thread| {
            thread.join().unwrap_or_else(|_| {
                let source = std::io::Error::other("the thread that stores it panicked");
                let path = self.what.check_path.clone();
                Err(TimerError::Lost { path, source })
            })
        });
        joined.or(self.outcome.take()).unwrap_or(Ok(()))
    }
}

impl Drop for Running {
    /// Nothing may write to the files once their owner is gone.
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the last check point of timers was not stored");
        }
    }
}
