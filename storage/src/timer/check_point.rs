//! A check point: the timer log, then the wheel, then `timercheck` go to the disk, on a thread of
//! their own, since a sync may take long and the thread that owns the files has other work.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::sweep::Seen;
use super::wheel::{Changes, write_slots};
use super::{TimerError, TimerStore};
use crate::error::FileError;
use crate::format::timer::{CHECK_SIZE, Check};
use crate::{medium, regular};

impl TimerStore {
    /// Puts everything on disk and notes how far it is right: messages of slots before `read_ms`
    /// are done with, those of the timer topic before `queue_offset` are entered or delivered.
    /// Without one, that stays as the last check point has it, and so does the position of the
    /// timer log from which on items are known to be entered though the topic is read again.
    ///
    /// # Errors
    /// [`TimerError::Lost`] ends the use of these files; others may pass.
    pub fn check_point(
        &mut self,
        read_ms: i64,
        queue_offset: Option<i64>,
        now_ms: i64,
    ) -> Result<(), TimerError> {
        self.end_check_point()?;
        let what = self.take_off(read_ms, queue_offset, now_ms)?;
        let stored = what.store();
        self.landed(&what, stored)
    }

    /// Begins [`TimerStore::check_point`] on a thread of its own, unless one is under way.
    ///
    /// # Errors
    /// The files cannot be written; it may be tried again.
    pub fn begin_check_point(
        &mut self,
        read_ms: i64,
        queue_offset: Option<i64>,
        now_ms: i64,
    ) -> Result<(), TimerError> {
        if self.running.is_none() {
            let what = self.take_off(read_ms, queue_offset, now_ms)?;
            self.running = Some(what.start());
        }
        Ok(())
    }

    /// Whether a check point that was begun is under way.
    ///
    /// # Errors
    /// Of one that has ended, as those of [`TimerStore::check_point`].
    pub fn is_checking(&mut self) -> Result<bool, TimerError> {
        if self
            .running
            .as_ref()
            .is_some_and(|running| !running.is_over())
        {
            return Ok(true);
        }
        self.end_check_point().map(|()| false)
    }

    pub(super) fn end_check_point(&mut self) -> Result<(), TimerError> {
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        let stored = running.end();
        self.landed(&running.what, stored)
    }

    fn take_off(
        &mut self,
        read_ms: i64,
        queue_offset: Option<i64>,
        now_ms: i64,
    ) -> Result<CheckPoint, TimerError> {
        let log = self.log.take_dirty()?;
        let mut check = Check {
            read_ms,
            version_ms: now_ms,
            version_counter: self.check.version_counter.wrapping_add(1),
            ..self.check
        };
        if let Some(queue_offset) = queue_offset {
            check.log_position = self.log.end().cast_signed();
            check.queue_offset = queue_offset;
            check.master_queue_offset = queue_offset;
            self.seen = Seen::default();
            self.settled = None;
        }
        let (path, file, slots) = self.wheel.take_off().inspect_err(|_| {
            log.iter().for_each(|(base, ..)| self.log.note_dirty(*base));
        })?;
        self.changed = false;
        Ok(CheckPoint {
            log,
            wheel: (path, file),
            slots,
            check,
            check_path: self.check_path.clone(),
        })
    }

    fn landed(
        &mut self,
        what: &CheckPoint,
        stored: Result<(), TimerError>,
    ) -> Result<(), TimerError> {
        self.wheel.landed(stored.is_ok());
        if stored.is_ok() {
            self.check = what.check;
        } else {
            self.changed = true;
            for (base, ..) in &what.log {
                self.log.note_dirty(*base);
            }
        }
        stored
    }
}

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

/// What `timercheck` says; zeros where there is none.
pub(super) fn read_check(path: &Path) -> Result<Check, TimerError> {
    match regular::read(path) {
        Ok(bytes) => Ok(Check::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Check::default()),
        Err(source) => Err(FileError::at("read", path)(source).into()),
    }
}

/// All fields lie in one sector: a crash leaves the old ones or the new ones.
pub(super) fn write_check(path: &Path, check: &Check) -> Result<(), TimerError> {
    let is_new = !path.exists();
    let open = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        regular::open_with(path, &mut options)
    };
    let file: File = medium::name(path, open).map_err(FileError::at("open", path))?;
    let write = || {
        file.write_all_at(&check.encode(), 0)?;
        if file.metadata()?.len() < CHECK_SIZE as u64 {
            file.set_len(CHECK_SIZE as u64)?;
        }
        Ok(())
    };
    write().map_err(FileError::at("write", path))?;
    sync(path, &file)?;
    match path.parent() {
        Some(parent) if is_new => medium::sync_directory(parent).map_err(lost(parent)),
        _ => Ok(()),
    }
}

/// Waits until a file is on disk.
pub(super) fn sync(path: &Path, file: &File) -> Result<(), TimerError> {
    medium::sync_data(file).map_err(lost(path))
}

/// The kernel may have dropped what was written.
fn lost(path: &Path) -> impl FnOnce(io::Error) -> TimerError {
    let path = path.into();
    |source| TimerError::Lost { path, source }
}
