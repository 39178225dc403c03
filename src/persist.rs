//! JSON state files: coalesced, atomic, and durable before anything that depends on them is
//! answered.
//!
//! A change is made in memory, then [`Persist::changed`] gives a [`Ticket`]. One task on the
//! control thread writes each changed file, one write of a file at a time, whatever number of
//! changes that covers: temporary file, fsync, rename, fsync of the directory
//! (docs/durability.md). A failed write fails the tickets it covered; the file stays marked and is
//! written again with the next change or the next retry.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use saturnmq_storage::regular;
use thiserror::Error;
use tokio::sync::Notify;

mod last;
mod replace;

pub use last::LastChanges;
pub use replace::replace_file;
use replace::{remove_what_is_no_file, replace, with_suffix};

/// Time of writing that may be spent in a row before the executor rests: the first changes after a
/// quiet time are written at once.
const BURST: Duration = Duration::from_millis(50);
/// Longest rest between two writes.
const REST_MAX: Duration = Duration::from_millis(50);

/// Keeps half of the time free of writes, so that what changes meanwhile is one write.
#[derive(Debug)]
struct Rests {
    /// Time spent writing, less the time since then.
    spent: Duration,
    since: Instant,
}

impl Rests {
    fn new(now: Instant) -> Self {
        Self {
            spent: Duration::ZERO,
            since: now,
        }
    }

    /// How long to rest after a write that began at `begun` and ended `now`.
    fn after(&mut self, begun: Instant, now: Instant) -> Duration {
        let free = begun.saturating_duration_since(self.since);
        let took = now.saturating_duration_since(begun);
        self.since = now;
        self.spent = self.spent.saturating_sub(free) + took.min(REST_MAX);
        self.spent.saturating_sub(BURST)
    }
}

/// A state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum File {
    /// `config/topics.json`.
    Topics,
    /// `config/subscriptionGroup.json`.
    Groups,
    /// `config/consumerOffset.json`; with light queues `config/lmqConsumerOffset.json`.
    ConsumerOffsets,
    /// `config/delayOffset.json`.
    DelayOffsets,
    /// `config/consumerFilter.json`.
    ConsumerFilters,
    /// `namesrv/kvConfig.json`: the embedded name server's own file.
    NameServerKv,
}

impl File {
    /// Every state file.
    pub const ALL: [File; 6] = [
        File::Topics,
        File::Groups,
        File::ConsumerOffsets,
        File::DelayOffsets,
        File::ConsumerFilters,
        File::NameServerKv,
    ];

    /// Where the file stands below the store's root.
    pub fn relative_path(self) -> &'static str {
        match self {
            File::Topics => "config/topics.json",
            File::Groups => "config/subscriptionGroup.json",
            File::ConsumerOffsets => "config/consumerOffset.json",
            File::DelayOffsets => "config/delayOffset.json",
            File::ConsumerFilters => "config/consumerFilter.json",
            File::NameServerKv => "namesrv/kvConfig.json",
        }
    }

    /// Where it stands below the store's root when light queues are enabled.
    pub fn light_path(self) -> &'static str {
        match self {
            File::ConsumerOffsets => "config/lmqConsumerOffset.json",
            file => file.relative_path(),
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Stands for one change of a state file; see [`Persist::is_durable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    file: File,
    version: u64,
}

impl Ticket {
    /// The file whose change this is.
    pub fn file(self) -> File {
        self.file
    }
}

/// A state file could not be written.
#[derive(Debug, Clone, Error)]
#[error("cannot write {}: {problem}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub problem: Arc<str>,
}

/// A state file and its backup could not be read.
#[derive(Debug, Error)]
pub enum LoadError {
    /// Neither the file nor its backup holds what it should.
    #[error(
        "{} is damaged ({problem}) and {backup}; put a good copy in its place, or remove what is \
         there to start without what it held",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
        /// What is wrong with its backup.
        backup: &'static str,
    },
    /// The system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Gives the present text of a state file.
pub trait StateSource: Send + Sync + 'static {
    /// The text to write; `None` when there is nothing to keep in that file.
    fn text(&self, file: File) -> Option<String>;
}

type Continuation = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

struct Waiting {
    version: u64,
    run: Continuation,
}

#[derive(Default)]
struct FileState {
    changed: AtomicU64,
    durable: AtomicU64,
    /// Highest version a failed write covered.
    failed: AtomicU64,
    writes: AtomicU64,
    /// One write of a file at a time, also at a stop that did not wait for the last one.
    writing: Mutex<()>,
    waiting: Mutex<Vec<Waiting>>,
    last_error: Mutex<Option<WriteError>>,
    /// The file was damaged or empty and its backup was read: until the next write that is the only
    /// good copy.
    spoiled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state files of one store.
pub struct Persist {
    root: PathBuf,
    /// Whether light queues are enabled.
    light: bool,
    files: [FileState; File::ALL.len()],
    work: Notify,
    stopping: AtomicBool,
}

impl Persist {
    /// The state files below `root`; nothing is created until the first write.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            light: false,
            files: Default::default(),
            work: Notify::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// With the state files of a broker on which light queues are enabled or not.
    pub fn with_light(self, light: bool) -> Self {
        Self { light, ..self }
    }

    /// Full path of a state file.
    pub fn path(&self, file: File) -> PathBuf {
        self.path_if(self.light, file)
    }

    fn path_if(&self, light: bool, file: File) -> PathBuf {
        let path = match light {
            true => file.light_path(),
            false => file.relative_path(),
        };
        self.root.join(path)
    }

    /// Whether light queues are enabled.
    pub fn is_light(&self) -> bool {
        self.light
    }

    fn state(&self, file: File) -> &FileState {
        &self.files[file.index()]
    }

    /// Tells that `file`'s state changed in memory (before this call) and asks for its write.
    pub fn changed(&self, file: File) -> Ticket {
        let version = self.state(file).changed.fetch_add(1, Ordering::AcqRel) + 1;
        self.work.notify_one();
        Ticket { file, version }
    }

    /// The last change of `file`, for a request that finds nothing left to change.
    pub fn latest(&self, file: File) -> Ticket {
        let version = self.state(file).changed.load(Ordering::Acquire);
        Ticket { file, version }
    }

    /// Whether the change is on disk.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.state(ticket.file).durable.load(Ordering::Acquire) >= ticket.version
    }

    /// Number of times `file` was written.
    pub fn writes(&self, file: File) -> u64 {
        self.state(file).writes.load(Ordering::Relaxed)
    }

    /// The files whose last write failed, for `/healthz` and the console.
    pub fn failures(&self) -> Vec<WriteError> {
        self.files
            .iter()
            .filter_map(|state| lock(&state.last_error).clone())
            .collect()
    }

    /// Runs `then` once the change is on disk, or with the error once writing it failed. Called on
    /// this thread when that is known already, else on the control thread: it must not block.
    pub fn when_durable(
        &self,
        ticket: Ticket,
        then: impl FnOnce(Result<(), WriteError>) + Send + 'static,
    ) {
        let state = self.state(ticket.file);
        let mut waiting = lock(&state.waiting);
        // The executor publishes the outcome before it takes this lock, so nothing is missed.
        if state.durable.load(Ordering::Acquire) >= ticket.version {
            drop(waiting);
            then(Ok(()));
        } else if state.failed.load(Ordering::Acquire) >= ticket.version {
            drop(waiting);
            let error = lock(&state.last_error)
                .clone()
                .unwrap_or_else(|| WriteError {
                    path: self.path(ticket.file),
                    problem: "the last write failed".into(),
                });
            then(Err(error));
        } else {
            waiting.push(Waiting {
                version: ticket.version,
                run: Box::new(then),
            });
        }
    }

    /// Loads a state file through `parse`: the file itself, else its `.bak`, else `None`.
    ///
    /// # Errors
    /// [`LoadError`] when a file is there but neither it nor its backup can be used.
    pub fn load<T>(
        &self,
        file: File,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, LoadError> {
        let (value, is_backup) = load_from(self.path(file), parse)?;
        self.state(file).spoiled.store(is_backup, Ordering::Release);
        Ok(value)
    }

    /// As [`Persist::load`], of the file that stands in its place when light queues are disabled,
    /// if they are enabled, and the other way round.
    ///
    /// # Errors
    /// As [`Persist::load`].
    pub fn load_other<T>(
        &self,
        file: File,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, LoadError> {
        let path = self.path_if(!self.light, file);
        if path == self.path(file) {
            return Ok(None);
        }
        Ok(load_from(path, parse)?.0)
    }

    /// Writes changed files until [`Persist::stop`]; runs on the control thread's runtime.
    pub async fn run(self: Arc<Self>, source: Arc<dyn StateSource>) {
        let mut rests = Rests::new(Instant::now());
        while !self.stopping.load(Ordering::Acquire) {
            self.work.notified().await;
            for file in File::ALL {
                if !self.is_due(file) {
                    continue;
                }
                let begun = Instant::now();
                let this = Arc::clone(&self);
                let from = Arc::clone(&source);
                let written =
                    tokio::task::spawn_blocking(move || this.write(file, from.as_ref())).await;
                if written.is_err() {
                    let version = self.state(file).changed.load(Ordering::Acquire);
                    let problem = io::Error::other("an internal error");
                    let _reported = self.settle(file, version, Err(problem));
                }
                let rest = rests.after(begun, Instant::now());
                if !rest.is_zero() {
                    tokio::time::sleep(rest).await;
                }
            }
        }
    }

    fn is_due(&self, file: File) -> bool {
        let state = self.state(file);
        let changed = state.changed.load(Ordering::Acquire);
        changed
            > state
                .durable
                .load(Ordering::Acquire)
                .max(state.failed.load(Ordering::Acquire))
    }

    /// Marks files whose write failed as due again; called on a schedule.
    pub fn retry_failed(&self) {
        for file in File::ALL {
            let state = self.state(file);
            if state.failed.load(Ordering::Acquire) > state.durable.load(Ordering::Acquire) {
                self.changed(file);
            }
        }
    }

    /// Ends [`Persist::run`]; [`Persist::flush`] then writes what is left.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.work.notify_one();
    }

    /// Writes every changed file now, on this thread.
    ///
    /// # Errors
    /// The first file that could not be written; the others are tried all the same.
    pub fn flush(&self, source: &dyn StateSource) -> Result<(), WriteError> {
        let mut first = Ok(());
        for file in File::ALL {
            let state = self.state(file);
            if state.changed.load(Ordering::Acquire) > state.durable.load(Ordering::Acquire) {
                let written = self.write(file, source);
                if first.is_ok() {
                    first = written;
                }
            }
        }
        first
    }

    /// A store that was taken away is not begun anew with its state files alone.
    fn replace(&self, file: File, content: &[u8]) -> io::Result<()> {
        if !self.root.is_dir() {
            let gone = format!("the store's directory {} is gone", self.root.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, gone));
        }
        let spoiled = &self.state(file).spoiled;
        let keeps = !spoiled.load(Ordering::Acquire);
        replace(&self.path(file), content, keeps)?;
        spoiled.store(false, Ordering::Release);
        Ok(())
    }

    fn write(&self, file: File, source: &dyn StateSource) -> Result<(), WriteError> {
        let state = self.state(file);
        let _alone = lock(&state.writing);
        // Read before the text is taken: the text covers at least this many changes.
        let version = state.changed.load(Ordering::Acquire);
        let outcome = match source.text(file) {
            Some(text) => self.replace(file, text.as_bytes()),
            None => Ok(()),
        };
        state.writes.fetch_add(1, Ordering::Relaxed);
        self.settle(file, version, outcome)
    }

    /// Answers whoever waits for a write that covered the changes up to `version`.
    fn settle(&self, file: File, version: u64, outcome: io::Result<()>) -> Result<(), WriteError> {
        let state = self.state(file);
        let path = self.path(file);
        let outcome = outcome.map_err(|error| {
            tracing::error!(
                "cannot write {}: {error}; it is tried again",
                path.display()
            );
            WriteError {
                path,
                problem: error.to_string().into(),
            }
        });
        *lock(&state.last_error) = outcome.clone().err();
        let mark = if outcome.is_ok() {
            &state.durable
        } else {
            &state.failed
        };
        mark.fetch_max(version, Ordering::AcqRel);
        for waiting in take_settled(&state.waiting, version) {
            (waiting.run)(outcome.clone());
        }
        outcome
    }
}

fn take_settled(waiting: &Mutex<Vec<Waiting>>, version: u64) -> Vec<Waiting> {
    let mut all = lock(waiting);
    let (settled, rest) = all.drain(..).partition(|w| w.version <= version);
    *all = rest;
    settled
}

enum Read<T> {
    Good(T),
    Absent,
    Damaged(String),
}

/// Loads a state file: the file itself, else its `.bak`, else `None`.
/// What a state file holds, and whether that is from its backup.
fn load_from<T>(
    path: PathBuf,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<(Option<T>, bool), LoadError> {
    // What a start finds in the place of the next write must not hold it up.
    let temporary = with_suffix(&path, ".tmp");
    remove_what_is_no_file(&temporary).map_err(|source| LoadError::Io {
        path: temporary,
        source,
    })?;
    let problem = match read_state(&path, &parse)? {
        Read::Good(value) => return Ok((Some(value), false)),
        Read::Absent => None,
        Read::Damaged(problem) => Some(problem),
    };
    let backup = with_suffix(&path, ".bak");
    match (read_state(&backup, &parse)?, problem) {
        (Read::Good(value), problem) => {
            let why = problem.as_deref().unwrap_or("missing or empty");
            tracing::warn!("{}: {why}; its .bak is used instead", path.display());
            Ok((Some(value), true))
        }
        (Read::Absent, None) => Ok((None, false)),
        (Read::Absent, Some(problem)) => Err(LoadError::Damaged {
            path,
            problem,
            backup: "there is no .bak",
        }),
        (Read::Damaged(_), Some(problem)) => Err(LoadError::Damaged {
            path,
            problem,
            backup: "so is its .bak",
        }),
        // The file is missing or empty: only a write that was cut short leaves that.
        (Read::Damaged(problem), None) => Err(LoadError::Damaged {
            path: backup,
            problem,
            backup: "the file itself is missing or empty",
        }),
    }
}

fn read_state<T>(
    path: &Path,
    parse: &impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Read<T>, LoadError> {
    match regular::read(path) {
        Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => Ok(Read::Absent),
        Ok(bytes) => Ok(parse(&bytes).map_or_else(Read::Damaged, Read::Good)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Read::Absent),
        // A directory, or something else that is no file.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Ok(Read::Damaged(error.to_string()))
        }
        Err(source) => Err(LoadError::Io {
            path: path.to_path_buf(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests;
