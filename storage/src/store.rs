//! The store as the broker sees it.
//!
//! Opening takes the lock before it touches anything; closing makes everything durable and only
//! then removes `abort`. A store that is dropped without being closed is left as a crash of the
//! process would leave it, except that what was appended is finished.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use chrono::Timelike;

use crate::apart;
use crate::append_queue::AppendPort;
use crate::commit_log::LogStatus;
use crate::config::{RetentionConfig, StoreConfig};
use crate::dispatch::{DispatchState, WakeQueue, Waker};
use crate::error::{CloseError, FileError, OpenError, RetentionError};
use crate::flusher::{Flusher, FlusherThread};
use crate::foreign;
use crate::former_run;
use crate::index_file::Index;
use crate::layout::{Layout, check_kinds};
use crate::lock::StoreLock;
use crate::medium::{self, sync_directory};
use crate::metrics::WriteMetrics;
use crate::opening::{Recovered, make_directories, make_directory, recover};
use crate::preparer::Removals;
use crate::presence::{self, Presence};
use crate::queue_table::leftovers::Leftovers;
use crate::queue_table::{Queue, QueueTable};
use crate::reader::{ReadShared, StoreReader};
use crate::retention::{DiskUse, LogFileAge, MANUAL_ROUNDS, RoundInput, plan};
use crate::tail::{TailError, TailReaders};
use crate::watermarks::Watermarks;
pub use crate::writer::lent::LentWriter;
use crate::writer::thread::RunningWriter;

mod removing;
pub(crate) mod start;

/// How long closing waits for what was appended to be written.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether messages are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// Yes.
    Writable,
    /// Not until there is room on the disk.
    DiskFull,
    /// Not until the next log file can be made; why it cannot, other than for lack of room.
    NoNextFile(String),
    /// Not until queue entries can be stored again.
    DispatchFault(String),
    /// Not before a restart: a write or a sync of the log failed.
    ReadOnly(String),
    /// The store is closed or being closed.
    Closed,
}

impl StoreState {
    /// Whether messages are taken.
    pub fn is_writable(&self) -> bool {
        *self == StoreState::Writable
    }
}

/// What opening a store found and did, for the start banner and `check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Log offset of the first byte that is kept.
    pub log_start: u64,
    /// Log offset after the last record.
    pub log_end: u64,
    /// Log bytes that were looked at record by record.
    pub scanned_bytes: u64,
    /// Bytes behind the log's end that were looked at for what a crash may have left.
    pub wiped_bytes: u64,
    /// Queue entries that were missing and were made again.
    pub rebuilt_entries: u64,
    /// Queue entries that were wrong, among these.
    pub replaced_entries: u64,
    /// Damaged places that were stepped over.
    pub damaged_records: u64,
    /// Queues.
    pub queues: usize,
    /// Notes for the operator, as sentences.
    pub notes: Vec<String>,
}

/// An open store and the ends of its queues.
pub struct Opened {
    /// The store.
    pub store: Arc<Store>,
    /// As many append ports as were asked for, one per producing thread.
    pub ports: Vec<AppendPort>,
    /// One wake queue per port, for the thread that holds the port.
    pub wakes: Vec<WakeQueue>,
    /// What opening found.
    pub report: OpenReport,
    /// The writer, if it was asked for: it is to be turned by the thread of a port.
    pub writer: Option<LentWriter>,
}

/// What a retention round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Log files deleted.
    pub deleted_log_files: usize,
    /// Queue files deleted.
    pub deleted_queue_files: usize,
    /// Index files deleted.
    pub deleted_index_files: usize,
    /// Whether appends are refused for lack of disk space.
    pub disk_full: bool,
    /// Log files that the last resume point stands before may have to go as well: one was asked
    /// for, and another round once it is there finds out.
    pub awaits_resume: bool,
}

/// The threads of an open store.
pub(crate) struct Running {
    writer: RunningWriter,
    dispatcher: Option<JoinHandle<bool>>,
    flusher: FlusherThread,
    /// Released last.
    _lock: StoreLock,
}

/// An open message store.
pub struct Store {
    config: StoreConfig,
    layout: Layout,
    presence: Presence,
    table: Arc<QueueTable>,
    leftovers: Leftovers,
    index: Arc<Index>,
    tail: TailReaders,
    watermarks: Arc<Watermarks>,
    shared: Arc<ReadShared>,
    status: Arc<LogStatus>,
    dispatch: Arc<DispatchState>,
    disk_full: AtomicBool,
    /// Rounds for which a request to delete expired files stays in force.
    manual_rounds: AtomicU32,
    /// Start of the log when queues and index were trimmed last.
    trimmed_to: AtomicU64,
    closed: AtomicBool,
    writing: String,
    metrics: Arc<WriteMetrics>,
    removals: Removals,
    /// `None` once the store is closed.
    running: Mutex<Option<Running>>,
}

impl Store {
    /// Opens the store at `config.root`, creating and recovering what is needed. `ports` threads
    /// will append and be woken; `waker` wakes them by number.
    pub fn open(
        config: StoreConfig,
        ports: usize,
        waker: Arc<dyn Waker>,
    ) -> Result<Opened, OpenError> {
        let (layout, lock, recovered) = Self::recover(&config)?;
        start::start(config, layout, recovered, lock, ports, waker)
    }

    /// Everything that opening does before the first thread runs.
    pub(crate) fn recover(
        config: &StoreConfig,
    ) -> Result<(Layout, StoreLock, Recovered), OpenError> {
        config.check().map_err(OpenError::Config)?;
        let mut layout = Layout::new(&config.root);
        if let Some(path) = &config.commit_log_dir {
            layout = layout.with_commit_log(path);
        }
        apart::check(&layout).map_err(OpenError::Config)?;
        check_kinds(&layout)?;
        StoreLock::look(layout.root())?;
        StoreLock::look_around(layout.commit_log(), layout.root())?;
        foreign::examine(&layout, config.commit_log_file_size)?;
        make_directory(layout.root())?;
        let mut lock = StoreLock::take(layout.root())?;
        make_directories(&layout)?;
        lock.take_log(layout.commit_log())?;
        let started = Instant::now();
        let recovered = recover(config, &layout)?;
        let report = &recovered.report;
        tracing::info!(
            log_start = report.log_start,
            log_end = report.log_end,
            scanned_bytes = report.scanned_bytes,
            wiped_bytes = report.wiped_bytes,
            queues = report.queues,
            clean = report.clean,
            "store recovered in {:?}",
            started.elapsed()
        );
        former_run::announce(&layout, config)?;
        Ok((layout, lock, recovered))
    }

    /// The queue, if it exists.
    pub fn queue(&self, topic: &str, queue_id: i32) -> Option<Arc<Queue>> {
        self.table.get(topic, queue_id)
    }

    /// The queue; made in memory when it does not exist.
    pub fn queue_or_create(&self, topic: &str, queue_id: i32) -> Arc<Queue> {
        self.table.get_or_create(topic, queue_id)
    }

    /// The light queue of that name; made in memory when it does not exist, unless there are more
    /// than `most` already.
    pub fn light_queue(&self, name: &str, most: usize) -> Option<Arc<Queue>> {
        self.table.light_queue(name, most)
    }

    /// How many light queues there are.
    pub fn light_queues(&self) -> usize {
        self.table.light_queues()
    }

    /// The queue a wake-up names, unless its topic was removed.
    pub fn queue_by_slot(&self, slot: u32) -> Option<Arc<Queue>> {
        self.table.by_slot(slot)
    }

    /// All queues, in the order in which this process came to know them.
    pub fn queues(&self) -> Vec<Arc<Queue>> {
        self.table.all()
    }

    /// All queues of a topic, by queue id.
    pub fn queues_of(&self, topic: &str) -> Arc<Vec<Arc<Queue>>> {
        self.table.queues_of(topic)
    }

    /// How far the log has come.
    pub fn watermarks(&self) -> &Arc<Watermarks> {
        &self.watermarks
    }

    /// A reader for one thread.
    pub fn reader(&self) -> Result<StoreReader, TailError> {
        Ok(StoreReader::new(
            Arc::clone(&self.shared),
            self.tail.reader()?,
        ))
    }

    /// Log offset of the first byte that is kept.
    pub fn min_log_offset(&self) -> u64 {
        self.shared.min_log_offset.load(Ordering::SeqCst)
    }

    /// What the store was opened with.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// How the log is written, for the start banner.
    pub fn writing(&self) -> &str {
        &self.writing
    }

    /// What the writer measures.
    pub fn write_metrics(&self) -> &WriteMetrics {
        &self.metrics
    }

    /// Whether messages are taken, and if not, why.
    pub fn state(&self) -> StoreState {
        if self.closed.load(Ordering::SeqCst) {
            return StoreState::Closed;
        }
        if let Some(why) = self.status.read_only() {
            return StoreState::ReadOnly(why.to_string());
        }
        if self.status.no_space()
            && let Some(why) = self.status.unmakable()
        {
            return StoreState::NoNextFile(why.as_ref().clone());
        }
        if self.status.no_space() || self.disk_full.load(Ordering::SeqCst) {
            return StoreState::DiskFull;
        }
        match self.dispatch.fault.load_full() {
            Some(why) => StoreState::DispatchFault(why.as_ref().clone()),
            None => StoreState::Writable,
        }
    }

    /// Damaged records that readers met and did not serve.
    pub fn damaged_reads(&self) -> u64 {
        self.shared.damaged_reads.load(Ordering::Relaxed)
    }

    /// Queue entries that were wrong when they were read and were made again from the log.
    pub fn mended_entries(&self) -> u64 {
        self.shared.mending.mended()
    }

    /// Records whose queue entry does not stand at their queue offset; each was logged. Above 0
    /// only through a fault in this program.
    pub fn misplaced_entries(&self) -> u64 {
        self.dispatch.misplaced.load(Ordering::Relaxed)
    }

    /// Sets or clears the disk-full state, without deleting anything.
    pub fn check_disk(&self) {
        let plan = plan(
            &self.config.retention,
            &self.round_input(&[], SystemTime::now()),
        );
        self.note_disk_full(plan.disk_full);
    }

    /// [`retention_round_by`](Self::retention_round_by) what the store was opened with.
    pub fn retention_round(
        &self,
        now: SystemTime,
        manual: bool,
    ) -> Result<RetentionReport, RetentionError> {
        self.retention_round_by(&self.config.retention, now, manual)
    }

    /// One round of retention: deletes what is expired or must go by `rules`, and sets or clears
    /// the disk-full state. `manual` deletes expired files whatever the hour, in this round and the
    /// next 19. Waits for the disk, not for a resume point: not for a network core. Space follows
    /// later (docs/operations.md, "Retention").
    pub fn retention_round_by(
        &self,
        rules: &RetentionConfig,
        now: SystemTime,
        manual: bool,
    ) -> Result<RetentionReport, RetentionError> {
        if manual {
            self.manual_rounds.store(MANUAL_ROUNDS, Ordering::SeqCst);
        }
        let awaits_resume = self.ask_for_resume_point();
        // A round that has to come again does not count.
        let used = u32::from(!awaits_resume);
        let left = self
            .manual_rounds
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                (left > 0).then(|| left - used)
            });
        self.look_after_files();
        let files = self.log_files();
        let input = RoundInput {
            manual: left.is_ok(),
            ..self.round_input(&files, now)
        };
        let plan = plan(rules, &input);
        self.note_disk_full(plan.disk_full);
        if plan.forced > 0 {
            let disk = input.disk.map_or(100, DiskUse::percent);
            tracing::warn!(
                "the disk is {disk} % full: {} log files go before their time, with whatever \
                 nobody consumed yet",
                plan.forced
            );
        }
        if plan.delete > 0 {
            self.delete_log_files(&files[..plan.delete], files[plan.delete].base);
        }
        let mut report = self.trim_entries(false)?;
        report.deleted_log_files = plan.delete;
        report.awaits_resume = awaits_resume;
        Ok(report)
    }

    /// Takes no more messages once the log is not where the next start looks for it.
    fn look_after_files(&self) {
        if self.status.read_only().is_some() {
            return;
        }
        let size = self.config.commit_log_file_size;
        let last = self.watermarks.written().saturating_sub(1);
        let base = last - last % size;
        let lost_file = || {
            let damage = presence::damaged_log_file(self.layout.commit_log(), size, base);
            // Retention may have taken it; an empty log may have none.
            damage.filter(|_| last > 0 && base >= self.min_log_offset())
        };
        if let Some(why) = self.presence.missing().or_else(lost_file) {
            tracing::error!("{why}; no messages are taken until a restart");
            self.status.latch(&why);
        }
    }

    /// Deletes queue and index files of records that are gone, and corrects the queues' minima: if
    /// the log's start has moved since that was done last, or if `always`. Waits for the disk.
    pub fn trim_entries(&self, always: bool) -> Result<RetentionReport, RetentionError> {
        let mut report = RetentionReport {
            disk_full: self.disk_full.load(Ordering::SeqCst),
            ..RetentionReport::default()
        };
        let log_min = self.min_log_offset();
        if always || log_min > self.trimmed_to.load(Ordering::SeqCst) {
            self.delete_entries(log_min, &mut report)?;
            self.trimmed_to.store(log_min, Ordering::SeqCst);
        }
        // What is gone on purpose is not to be missed at the next start.
        if let Some(running) = self.running().as_ref()
            && report.deleted_queue_files + report.deleted_index_files > 0
        {
            running.flusher.request();
        }
        Ok(report)
    }

    /// Asks for a resume point if there are dispatched log files behind the last one, where they
    /// hold retention up; whether there are. It is made in the background.
    fn ask_for_resume_point(&self) -> bool {
        let size = self.config.commit_log_file_size;
        let whole = self.watermarks.dispatched() / size * size;
        if self.dispatch.resumed.load(Ordering::SeqCst) >= whole {
            return false;
        }
        let running = self.running();
        if let Some(running) = running.as_ref() {
            running.flusher.request();
        }
        running.is_some()
    }

    fn round_input<'a>(&self, files: &'a [LogFileAge], now: SystemTime) -> RoundInput<'a> {
        let disk = DiskUse::of(self.layout.commit_log(), &self.layout.consume_queues());
        let local: chrono::DateTime<chrono::Local> = now.into();
        // A resume point that named a record which is gone would be worth nothing, and with it the
        // next offsets of queues whose records are all gone.
        let resumed = self.dispatch.resumed.load(Ordering::SeqCst);
        RoundInput {
            files,
            file_size: self.config.commit_log_file_size,
            dispatched: self.watermarks.dispatched().min(resumed),
            disk: disk.ok(),
            freeing: self.removals.freeing(),
            now,
            hour: local.hour() as u8,
            manual: false,
        }
    }

    fn note_disk_full(&self, full: Option<bool>) {
        let Some(full) = full else { return };
        if self.disk_full.swap(full, Ordering::SeqCst) != full {
            tracing::warn!(full, "disk-full state changed");
        }
    }

    /// The log files from the oldest to the active one.
    fn log_files(&self) -> Vec<LogFileAge> {
        let size = self.config.commit_log_file_size;
        let active = self.watermarks.appended() / size * size;
        let bases = (self.min_log_offset()..=active).step_by(size as usize);
        let modified = |base: u64| {
            let path = self
                .layout
                .commit_log()
                .join(crate::layout::file_name(base));
            std::fs::metadata(path).and_then(|details| details.modified())
        };
        // A file that cannot be looked at counts as new, and so stops the round before it.
        bases
            .map(|base| LogFileAge {
                base,
                modified: modified(base).unwrap_or(SystemTime::now()),
            })
            .collect()
    }

    /// Readers see the new start of the log before any file goes.
    fn delete_log_files(&self, files: &[LogFileAge], log_min: u64) {
        self.shared.min_log_offset.store(log_min, Ordering::SeqCst);
        self.dispatch.log_min.store(log_min, Ordering::SeqCst);
        for file in files {
            let path = self
                .layout
                .commit_log()
                .join(crate::layout::file_name(file.base));
            tracing::info!(path = %path.display(), "deleting a log file");
            self.removals.remove(path, self.config.commit_log_file_size);
        }
        // What is gone on purpose is not to be missed at the next start.
        if let Some(running) = self.running().as_ref() {
            running.flusher.request();
        }
    }

    /// Queue and index files of records that are gone.
    fn delete_entries(
        &self,
        log_min: u64,
        report: &mut RetentionReport,
    ) -> Result<(), RetentionError> {
        // What fails for one queue must not keep the others' minima where they were.
        let mut failed = None;
        for queue in self.table.all() {
            let trimmed = queue.delete_before(log_min);
            report.deleted_queue_files += *trimmed.as_ref().unwrap_or(&0);
            if let Err(error) = trimmed.and_then(|_| queue.correct_min(log_min)) {
                failed.get_or_insert(error);
            }
        }
        report.deleted_index_files = self.index.delete_before(log_min)?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Finishes what was appended, makes everything durable and releases the directory. Later calls
    /// do nothing.
    pub fn close(&self) -> Result<(), CloseError> {
        self.closed.store(true, Ordering::SeqCst);
        self.shared.mending.stop();
        let Some(mut running) = self.running().take() else {
            return Ok(());
        };
        let written = running.writer.stop(STOP_TIMEOUT);
        let flusher = running.flusher.stop();
        if running.writer.is_running() {
            leave(running);
            return written;
        }
        let dispatched = join_dispatcher(&mut running.dispatcher);
        written?;
        let all = dispatched?;
        let mut flusher = flusher.ok_or(CloseError::Thread("flusher"))?;
        self.finish(&mut flusher, all)
    }

    /// The end of an orderly stop, after everything was appended; `all` says that everything was
    /// dispatched too.
    pub(crate) fn finish(&self, flusher: &mut Flusher, all: bool) -> Result<(), CloseError> {
        flusher.make(self.dispatch.last())?;
        if !all {
            let bytes = self.watermarks.appended() - self.watermarks.dispatched();
            return Err(CloseError::Lagging { bytes });
        }
        let abort = self.layout.abort();
        medium::remove_file(&abort).map_err(FileError::at("remove", &abort))?;
        let root = self.layout.root();
        sync_directory(root).map_err(FileError::at("sync", root))?;
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.mending.stop();
        let Some(mut running) = self.running().take() else {
            return;
        };
        // Errors are found again when the store is opened next: `abort` is still there.
        let _ = running.writer.stop(STOP_TIMEOUT);
        let _ = running.flusher.stop();
        if running.writer.is_running() {
            leave(running);
        } else {
            let _ = join_dispatcher(&mut running.dispatcher);
        }
    }
}

/// Leaves a writer that does not end to the end of the process: the dispatcher waits for it, so
/// nobody waits for the dispatcher, and the directory stays locked.
fn leave(running: Running) {
    std::mem::forget(running);
}

/// Whether the dispatcher had done everything. The marks do not tell: the end of a log file counts
/// as appended even if the message it was ended for found its queue gone.
fn join_dispatcher(thread: &mut Option<JoinHandle<bool>>) -> Result<bool, CloseError> {
    match thread.take().map(JoinHandle::join) {
        Some(Ok(all)) => Ok(all),
        Some(Err(_)) => Err(CloseError::Thread("dispatcher")),
        None => Ok(true),
    }
}
