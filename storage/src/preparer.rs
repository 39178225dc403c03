//! The preparer: keeps a finished log file ready, so that the writer never waits for one, and
//! removes expired ones off the writer's thread.
//!
//! The spare has no name until the log is about to need it. If a burst outruns the preparation, the
//! writer gets the file as far as it is zeroed and zeroes on by itself: slower, but no stall.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::append_queue::Doorbell;
use crate::commit_log::{LatchOnPanic, LogStatus};
use crate::disk::ZERO_MEMORY;
use crate::disk::aligned::AlignedMemory;
use crate::medium;
use crate::metrics::WriteMetrics;
use crate::removal::{self, Removal};
use crate::segments::{Segment, Segments, is_no_space};
use crate::watermarks::Watermarks;
use crate::writer::{LogFile, LogFiles, NextFile};

mod pace;
#[cfg(test)]
mod tests;

use pace::Pace;

/// How long to wait before trying again when a file could not be made.
const RETRY: Duration = Duration::from_secs(1);
/// Politeness of the preparer's thread.
const NICE: i32 = 10;

/// What the writer and the preparer share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Its `no_space` is changed under the lock only, so that a refusal never outlives its reason.
    status: Arc<LogStatus>,
}

#[derive(Default)]
struct State {
    /// The file the writer asked for.
    wanted: Option<u64>,
    /// The writer waits for it.
    urgent: bool,
    /// The file asked for, named.
    ready: Option<Segment>,
    /// Why there is none: no room on the disk.
    no_space: bool,
    removals: VecDeque<PathBuf>,
    /// Bytes of removed files, and of those to be removed, that are not free yet.
    freeing: u64,
    stopping: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The preparer's thread and how to talk to it.
pub(crate) struct Preparer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Where expired log files are handed over to be removed.
#[derive(Clone)]
pub(crate) struct Removals(Arc<Shared>);

impl Removals {
    /// Has an expired file of `size` bytes removed, in the background.
    pub fn remove(&self, path: PathBuf, size: u64) {
        let mut state = self.0.lock();
        state.removals.push_back(path);
        state.freeing += size;
        drop(state);
        self.0.changed.notify_one();
    }

    /// Bytes that files handed over still take.
    pub fn freeing(&self) -> u64 {
        self.0.lock().freeing
    }
}

/// The writer's way to its next file.
pub(crate) struct PreparedFiles {
    shared: Arc<Shared>,
    /// What was asked for last, so that asking again costs nothing.
    asked: Option<(u64, bool)>,
}

/// Bytes of the first file that are zeroed before it serves; the writer zeroes on from there.
const ZERO_FIRST: u64 = 1 << 20;

/// Makes the first file of an empty log, zeroed far enough to serve: before anything waits for it.
pub(crate) fn first_file(segments: &Segments, base: u64) -> io::Result<Segment> {
    let mut segment = segments.create(base)?;
    let mut zeros = AlignedMemory::new(ZERO_MEMORY)?;
    while segment.zeroed_to < segments.file_size.min(ZERO_FIRST) {
        segments.zero_piece(&mut segment, &mut zeros)?;
    }
    segments.publish(&segment, base)?;
    Ok(segment)
}

/// The first file a writer will ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstFile {
    /// Log offset of its first byte.
    pub base: u64,
    /// Position the log ends at in a file that could not be opened, or at 0 not be made, for want
    /// of room.
    pub goes_on_at: Option<u64>,
}

impl Preparer {
    /// Starts the thread.
    pub fn start(work: Work) -> io::Result<Preparer> {
        let shared = Arc::clone(&work.shared);
        let thread = std::thread::Builder::new()
            .name("preparer".into())
            .spawn(move || work.run())?;
        Ok(Preparer {
            shared,
            thread: Some(thread),
        })
    }

    /// Ends the thread; removals asked for before are done.
    pub fn stop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl LogFiles for PreparedFiles {
    type File = File;

    fn want(&mut self, base: u64, urgent: bool) {
        if self.asked == Some((base, urgent)) || self.asked == Some((base, true)) {
            return;
        }
        self.asked = Some((base, urgent));
        let mut state = self.shared.lock();
        state.wanted = Some(base);
        state.urgent = urgent;
        self.shared.changed.notify_one();
    }

    fn take(&mut self, base: u64) -> NextFile<File> {
        self.want(base, false);
        let mut state = self.shared.lock();
        match state.ready.take_if(|segment| segment.base == base) {
            Some(segment) => {
                let Segment {
                    file,
                    base,
                    zeroed_to,
                    ..
                } = segment;
                NextFile::Ready(LogFile {
                    file,
                    base,
                    zeroed_to,
                })
            }
            None if state.no_space => {
                self.shared.status.set_no_space(true);
                NextFile::NoSpace
            }
            None => NextFile::NotYet,
        }
    }
}

/// The thread's own things.
pub(crate) struct Work {
    segments: Segments,
    shared: Arc<Shared>,
    marks: Arc<Watermarks>,
    bell: Arc<Doorbell>,
    metrics: Arc<WriteMetrics>,
    zeros: AlignedMemory,
    next_base: u64,
    /// See [`FirstFile::goes_on_at`]; none once that file was handed over.
    goes_on_at: Option<u64>,
    spare: Option<Segment>,
    /// When to try again after a failure.
    retry_at: Option<Instant>,
    pace: Pace,
    /// A removed file whose space is being given back.
    dying: Option<Removal>,
    /// When to give back its next piece.
    next_piece: Instant,
}

/// What the next turn of the preparer is about.
enum Task {
    Remove(PathBuf),
    /// The file asked for, and whether the log waits for it.
    Prepare(Option<u64>, bool),
    End,
}

impl Work {
    /// The preparer of a log and the writer's way to its files; `next` is the file the writer will
    /// ask for first, `bell` wakes it.
    pub fn new(
        segments: Segments,
        next: FirstFile,
        marks: Arc<Watermarks>,
        status: Arc<LogStatus>,
        bell: Arc<Doorbell>,
        metrics: Arc<WriteMetrics>,
    ) -> io::Result<(Work, PreparedFiles)> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            status,
        });
        let work = Work {
            segments,
            shared: Arc::clone(&shared),
            marks,
            bell,
            metrics,
            zeros: AlignedMemory::new(ZERO_MEMORY)?,
            next_base: next.base,
            goes_on_at: next.goes_on_at,
            spare: None,
            retry_at: None,
            pace: Pace::new(),
            dying: None,
            next_piece: Instant::now(),
        };
        let asked = None;
        Ok((work, PreparedFiles { shared, asked }))
    }

    /// Where expired files are handed over.
    pub fn removals(&self) -> Removals {
        Removals(Arc::clone(&self.shared))
    }

    fn run(mut self) {
        let _guard = LatchOnPanic::new(Arc::clone(&self.shared.status), "preparer");
        be_polite(NICE);
        loop {
            match self.next_task() {
                Task::End => return,
                Task::Remove(path) => self.remove(&path),
                Task::Prepare(wanted, urgent) => {
                    let pause = self.try_step(wanted, urgent);
                    self.free_piece();
                    self.pause(self.with_removals(pause), wanted, urgent);
                }
            }
        }
    }

    /// One turn without resting, for whoever drives the preparer without its thread; with `retry`
    /// after a failure the time to wait is over.
    #[cfg(test)]
    pub fn turn(&mut self, retry: bool) {
        if retry {
            self.retry_at = None;
        }
        match self.next_task() {
            Task::End => {}
            Task::Remove(path) => self.remove(&path),
            // The time to wait is not this machine's.
            Task::Prepare(..) if self.retry_at.is_some() => {}
            Task::Prepare(wanted, urgent) => {
                self.try_step(wanted, urgent);
                self.next_piece = Instant::now();
                self.free_piece();
            }
        }
    }

    fn next_task(&self) -> Task {
        let mut state = self.shared.lock();
        // The log never waits for removals, unless they must make room for it.
        let needed = state.wanted.is_some_and(|base| base >= self.next_base);
        let busy = needed && self.retry_at.is_none() && !state.stopping;
        // One at a time, for the same reason; at the end their names are what counts.
        let removal = if busy || (self.dying.is_some() && !state.stopping) {
            None
        } else {
            state.removals.pop_front()
        };
        match removal {
            Some(path) => Task::Remove(path),
            None if state.stopping => Task::End,
            None => Task::Prepare(state.wanted, state.urgent),
        }
    }

    /// The pause, shortened while a removed file has space to give back.
    fn with_removals(&self, pause: Option<Duration>) -> Option<Duration> {
        if self.dying.is_none() {
            return pause;
        }
        let rest = self.next_piece.saturating_duration_since(Instant::now());
        Some(pause.map_or(rest, |pause| pause.min(rest)))
    }

    /// Takes a file its name; its space follows piece by piece.
    fn remove(&mut self, path: &Path) {
        self.dying = Removal::begin(path);
        let left = self.dying.as_ref().map_or(0, Removal::left);
        self.freed(self.segments.file_size.saturating_sub(left));
    }

    /// Gives back a piece of the space of a removed file, unless the log waits for a file that
    /// there is room for.
    fn free_piece(&mut self) {
        let needed = self.shared.lock().wanted;
        let busy = needed.is_some_and(|base| base >= self.next_base) && self.retry_at.is_none();
        let now = Instant::now();
        let due = !busy && now >= self.next_piece;
        let Some(dying) = self.dying.as_mut().filter(|_| due) else {
            return;
        };
        let before = dying.left();
        let done = dying.free_piece();
        let freed = before - dying.left();
        if done {
            self.dying = None;
        }
        // Without room for the next file nobody writes, and nobody is disturbed.
        self.next_piece = if self.retry_at.is_some() {
            now
        } else {
            Instant::now() + removal::REST
        };
        self.freed(freed);
    }

    fn freed(&self, bytes: u64) {
        let mut state = self.shared.lock();
        state.freeing = state.freeing.saturating_sub(bytes);
    }

    fn try_step(&mut self, wanted: Option<u64>, urgent: bool) -> Option<Duration> {
        match self.step(wanted, urgent) {
            Ok(pause) => pause,
            Err(error) => self.failed(&error),
        }
    }

    /// Does the next piece of work; says how long to rest, `None` for until something changes.
    fn step(&mut self, wanted: Option<u64>, urgent: bool) -> io::Result<Option<Duration>> {
        if let Some(retry_at) = self.retry_at {
            let rest = retry_at.saturating_duration_since(Instant::now());
            if !rest.is_zero() {
                return Ok(Some(rest));
            }
            self.retry_at = None;
        }
        let wanted = wanted.filter(|&base| base >= self.next_base);
        if let Some(base) = wanted
            && base != self.next_base
        {
            self.next_base = base;
            self.goes_on_at = None;
            self.spare = None;
        }
        let segment = match &mut self.spare {
            Some(segment) => segment,
            None => {
                let created = self.make()?;
                let mut state = self.shared.lock();
                state.no_space = false;
                self.shared.status.set_no_space(false);
                drop(state);
                self.spare.insert(created)
            }
        };
        let finished = segment.zeroed_to == self.segments.file_size;
        if wanted.is_some() && (finished || urgent) {
            self.hand_over()?;
            return Ok(Some(Duration::ZERO));
        }
        if finished {
            return Ok(None);
        }
        let started = Instant::now();
        let from = segment.zeroed_to;
        self.segments.zero_piece(segment, &mut self.zeros)?;
        if segment.zeroed_to == self.segments.file_size {
            medium::sync_file(&segment.file)?;
        }
        let zeroed = segment.zeroed_to - from;
        let in_all = &self.metrics.zero_bytes;
        in_all.fetch_add(zeroed, Ordering::Relaxed);
        let position = self.marks.appended() % self.segments.file_size;
        if wanted.is_some() || position > self.segments.file_size / 2 {
            be_polite(0);
            return Ok(Some(Duration::ZERO));
        }
        Ok(Some(self.pace.rest(
            zeroed,
            started.elapsed(),
            self.marks.appended(),
        )))
    }

    /// The next file: a new one, or the one the log ends in if there was no room to open it.
    fn make(&mut self) -> io::Result<Segment> {
        let Some(from) = self.goes_on_at else {
            return self.segments.create(self.next_base);
        };
        match self.segments.open(self.next_base, from)? {
            Some(opened) => Ok(opened),
            // An empty log, or one that ends with the file before: there was no room to make it.
            None if from == 0 => self.segments.create(self.next_base),
            None => Err(io::Error::other("the file that the log ends in is gone")),
        }
    }

    /// Names the spare and gives it to the writer.
    fn hand_over(&mut self) -> io::Result<()> {
        let Some(segment) = self.spare.take() else {
            return Ok(());
        };
        if let Err(error) = self.segments.publish(&segment, self.marks.appended()) {
            self.spare = Some(segment);
            return Err(error);
        }
        self.goes_on_at = None;
        self.next_base = segment.base + self.segments.file_size;
        let mut state = self.shared.lock();
        state.ready = Some(segment);
        state.wanted = None;
        state.urgent = false;
        drop(state);
        self.bell.ring();
        be_polite(NICE);
        Ok(())
    }

    fn failed(&mut self, error: &io::Error) -> Option<Duration> {
        let next = self.segments.path(self.next_base);
        let no_space = is_no_space(error);
        if !no_space && self.spare.as_ref().is_some_and(|spare| spare.named) {
            // It holds acknowledged records, and what a failed write or sync left of it is unknown.
            let why = format!("cannot write {}: {error}", next.display());
            tracing::error!("the log is read-only: {why}");
            self.shared.status.latch(&why);
        }
        let mut state = self.shared.lock();
        if !(no_space && state.no_space) {
            tracing::error!("cannot prepare the log file {}: {error}", next.display());
        }
        // Whatever the reason, sends are refused while there is no next file, and taken again once
        // there is.
        state.no_space = true;
        let why = format!("cannot prepare the log file {}: {error}", next.display());
        self.shared.status.set_unmakable((!no_space).then_some(why));
        drop(state);
        self.spare = None;
        self.retry_at = Some(Instant::now() + RETRY);
        self.bell.ring();
        Some(RETRY)
    }

    fn pause(&self, pause: Option<Duration>, wanted: Option<u64>, urgent: bool) {
        let state = self.shared.lock();
        let unchanged = |state: &mut State| {
            !state.stopping
                && (state.removals.is_empty() || self.dying.is_some())
                && (state.wanted, state.urgent) == (wanted, urgent)
        };
        // Waiting gives the lock back also if it is poisoned: the state is plain values.
        match pause {
            Some(pause) if pause.is_zero() => {}
            Some(pause) => {
                drop(
                    self.shared
                        .changed
                        .wait_timeout_while(state, pause, unchanged),
                );
            }
            None => drop(self.shared.changed.wait_while(state, unchanged)),
        }
    }
}

/// Sets the priority of this thread; going back up needs a privilege, and without it the thread
/// stays low.
fn be_polite(nice: i32) {
    let thread = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(thread), nice);
}
