//! The writer's thread: starts it with the disk the probe chose, runs its turns, ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::lent::{self, LentWriter};
use super::preloading::preload;
use super::{LogFile, Now, QueueOffsets, Turn, Writer, WriterParts};
use crate::append_queue::{AppendPort, Doorbell, PortEnd, PortLimits, port};
use crate::commit_log::{Geometry, LatchOnPanic, LogStatus};
use crate::config::{DiskEngine, StoreConfig};
use crate::disk::Disk;
use crate::disk::blocking::BlockingDisk;
use crate::disk::probe::{DiskPlan, Engine, FORCE, probe};
use crate::disk::uring::UringDisk;
use crate::dispatch::DispatchSender;
use crate::error::{CloseError, FileError, OpenError};
use crate::layout::Layout;
use crate::metrics::WriteMetrics;
use crate::preparer::{FirstFile, PreparedFiles, Preparer, Removals, Work, first_file};
use crate::segments::{Segment, Segments, is_no_space};
use crate::tail::{Tail, TailReaders, TailWriter, tail};
use crate::watermarks::Watermarks;

/// Pushes of one port whose results may be outstanding.
const PORT_IN_FLIGHT: usize = 16 * 1024;

/// Pause between turns where the kernel refuses to wait for the disk.
pub(super) const AFTER_FAILED_WAIT: Duration = Duration::from_millis(100);

/// Where a recovered log goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogStart {
    /// Log offset after the last record (or blank record) of the log.
    pub end: u64,
    /// Store time of the last record, in milliseconds; 0 if there is none.
    pub last_store_timestamp: i64,
}

/// What the writer is connected with.
pub(crate) struct Connections<Q> {
    /// The marks, all but `dispatched` at the start's `end`.
    pub marks: Arc<Watermarks>,
    /// The queues' offsets.
    pub queues: Q,
    /// Where acknowledged records go.
    pub dispatcher: DispatchSender,
    /// What the writer measures.
    pub metrics: Arc<WriteMetrics>,
    /// Called with the number of a port that got results.
    pub wake: Wake,
}

/// Called with the number of a port that got results.
pub(super) type Wake = Box<dyn FnMut(usize) + Send>;

/// A running writer.
pub(crate) struct RunningWriter {
    thread: Option<JoinHandle<()>>,
    ended: mpsc::Receiver<()>,
    stop: Arc<AtomicBool>,
    bell: Arc<Doorbell>,
    preparer: Preparer,
    /// Where expired log files are handed over.
    pub removals: Removals,
    /// Whether the log takes messages.
    pub status: Arc<LogStatus>,
    /// Makes readers of the tail.
    pub tail: TailReaders,
    /// How the log is written, for the banner.
    pub plan: DiskPlan,
    /// The writer itself, if it is to be turned elsewhere.
    pub lent: Option<LentWriter>,
}

/// Starts the writer on a recovered log; returns it with its ports.
pub(crate) fn launch<Q: QueueOffsets + Send + 'static>(
    config: &StoreConfig,
    ports: usize,
    start: LogStart,
    connections: Connections<Q>,
) -> Result<(RunningWriter, Vec<AppendPort>), OpenError> {
    let forced = std::env::var(FORCE).ok();
    launch_with(config, ports, start, connections, forced.as_deref())
}

fn port_limits(config: &StoreConfig) -> PortLimits {
    PortLimits {
        ring_bytes: config.append_ring_bytes,
        in_flight: PORT_IN_FLIGHT,
        record_bytes: config.max_record_size(),
    }
}

/// As [`launch`], with the value of [`FORCE`] given.
pub(crate) fn launch_with<Q: QueueOffsets + Send + 'static>(
    config: &StoreConfig,
    ports: usize,
    start: LogStart,
    connections: Connections<Q>,
    forced: Option<&str>,
) -> Result<(RunningWriter, Vec<AppendPort>), OpenError> {
    let dir = config.commit_log_path();
    let mut plan = probe(&dir, config.commit_log_file_size, config.engine, forced)?;
    let may_fall_back = config.engine == DiskEngine::Auto && forced.is_none();
    let laid_out = lay_out(config, ports, start, connections, plan.clone())?;
    let LaidOut {
        mut seed,
        work,
        ports,
        tail,
    } = laid_out;
    seed.may_fall_back = may_fall_back;
    let removals = work.removals();
    let preparer = Preparer::start(work).map_err(cannot_start("preparer"))?;
    let (status, stop) = (Arc::clone(&seed.status), Arc::clone(&seed.stop));
    let bell = Arc::clone(&seed.bell);
    let (thread, ended, started) = spawn(seed).map_err(cannot_start("writer"))?;
    plan.engine = started.engine;
    plan.notes.extend(started.notes);
    let running = RunningWriter {
        thread: Some(thread),
        ended,
        stop,
        bell,
        preparer,
        removals,
        status,
        tail,
        plan,
        lent: started.lent,
    };
    Ok((running, ports))
}

/// A writer and its preparer before their threads run.
pub(crate) struct LaidOut<Q> {
    /// What the writer is made from.
    pub seed: Seed<Q>,
    /// The preparer.
    pub work: Work,
    /// The ends of its ports.
    pub ports: Vec<AppendPort>,
    /// Makes readers of the tail.
    pub tail: TailReaders,
}

/// Opens the log where it goes on and makes everything that the writer is connected with.
pub(crate) fn lay_out<Q>(
    config: &StoreConfig,
    ports: usize,
    start: LogStart,
    connections: Connections<Q>,
    plan: DiskPlan,
) -> Result<LaidOut<Q>, OpenError> {
    let dir = config.commit_log_path();
    let geometry = Geometry::new(config.commit_log_file_size, plan.block);
    let segments = Segments {
        dir: dir.clone(),
        file_size: geometry.file_size,
        direct: plan.direct,
        prepare: config.prepare_files,
    };
    let at = |what| FileError::at(what, &dir);
    segments.remove_leftovers().map_err(at("clean up beside"))?;
    let bell = Arc::new(Doorbell::new().map_err(at("make an eventfd for"))?);
    let (mut tail_writer, readers) = tail_at(config, start.end)?;
    let base = geometry.base(start.end);
    let active = open_active(&segments, base, start.end, &mut tail_writer)
        .map_err(FileError::at("open", &segments.path(base)))?;
    let abort = Layout::new(&config.root).abort();
    let status = Arc::new(LogStatus::announced_in(abort));
    let next = first_wanted(&active, &geometry, start.end);
    status.set_no_space(active.is_none());
    let (work, files) = Work::new(
        segments,
        next,
        Arc::clone(&connections.marks),
        Arc::clone(&status),
        Arc::clone(&bell),
        Arc::clone(&connections.metrics),
    )
    .map_err(cannot_start("preparer"))?;
    let limits = port_limits(config);
    let (ports, ends) = (0..ports).map(|_| port(limits, Arc::clone(&bell))).unzip();
    let seed = Seed {
        geometry,
        flush_interval: config.flush_interval,
        files,
        ends,
        tail: tail_writer,
        status,
        last_store_timestamp: start.last_store_timestamp,
        active,
        bell,
        stop: Arc::new(AtomicBool::new(false)),
        plan,
        may_fall_back: false,
        lends: config.lend_writer,
        cpu: config.writer_cpu,
        connections,
    };
    Ok(LaidOut {
        seed,
        work,
        ports,
        tail: readers,
    })
}

fn cannot_start(name: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Thread { name, source }
}

impl RunningWriter {
    /// Whether the thread has not ended, or was not waited for.
    pub fn is_running(&self) -> bool {
        self.thread.is_some()
    }

    /// Finishes what was pushed, makes it durable and ends the thread, within `timeout`.
    pub fn stop(&mut self, timeout: Duration) -> Result<(), CloseError> {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        let ended = match self.ended.recv_timeout(timeout) {
            Err(mpsc::RecvTimeoutError::Timeout) => Err(CloseError::Thread("writer")),
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                let joined = self
                    .thread
                    .take()
                    .is_none_or(|thread| thread.join().is_ok());
                if joined {
                    Ok(())
                } else {
                    Err(CloseError::Thread("writer"))
                }
            }
        };
        self.preparer.stop();
        ended?;
        match self.status.read_only() {
            Some(why) => Err(CloseError::ReadOnly(why.to_string())),
            None => Ok(()),
        }
    }
}

impl Drop for RunningWriter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

fn tail_at(config: &StoreConfig, end: u64) -> Result<(TailWriter, TailReaders), OpenError> {
    tail(config.tail_cache_bytes, end).map_err(|error| OpenError::Config(error.to_string()))
}

/// The file that the writer of a log which ends at `end` asks for first.
fn first_wanted<F>(active: &Option<LogFile<F>>, geometry: &Geometry, end: u64) -> FirstFile {
    let base = geometry.base(end);
    match active {
        Some(_) => FirstFile {
            base: base + geometry.file_size,
            goes_on_at: None,
        },
        None => FirstFile {
            base,
            goes_on_at: Some(end - base),
        },
    }
}

/// Opens the file the log ends in, or makes the first one of an empty log; loads its last bytes.
/// `None` if there is no room for all of the file: the log can be read meanwhile.
fn open_active(
    segments: &Segments,
    base: u64,
    end: u64,
    tail: &mut TailWriter,
) -> io::Result<Option<LogFile<std::fs::File>>> {
    let opened = match segments.open(base, end - base) {
        Ok(None) if end == base => first_file(segments, base),
        Ok(None) => Err(io::ErrorKind::NotFound.into()),
        Ok(Some(segment)) => Ok(segment),
        Err(error) => Err(error),
    };
    let segment = match opened {
        Ok(segment) => segment,
        Err(error) if is_no_space(&error) => {
            let path = segments.path(base);
            let size = segments.file_size;
            tracing::error!(
                "no room to go on in {} ({size} bytes): {error}",
                path.display()
            );
            if let Some(file) = segments.open_as_it_is(base)? {
                preload(&file, base, end, tail)?;
            }
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    preload(&segment.file, base, end, tail)?;
    let Segment {
        file,
        base,
        zeroed_to,
        ..
    } = segment;
    Ok(Some(LogFile {
        file,
        base,
        zeroed_to,
    }))
}

/// Everything the thread needs to make its writer.
pub(crate) struct Seed<Q> {
    geometry: Geometry,
    flush_interval: Duration,
    files: PreparedFiles,
    ends: Vec<PortEnd>,
    tail: TailWriter,
    status: Arc<LogStatus>,
    last_store_timestamp: i64,
    active: Option<LogFile<std::fs::File>>,
    bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
    plan: DiskPlan,
    may_fall_back: bool,
    lends: bool,
    cpu: Option<usize>,
    connections: Connections<Q>,
}

/// What the thread found when it started.
struct Started {
    engine: Engine,
    notes: Vec<String>,
    lent: Option<LentWriter>,
}

type Spawned = (JoinHandle<()>, mpsc::Receiver<()>, Started);

fn spawn<Q: QueueOffsets + Send + 'static>(seed: Seed<Q>) -> io::Result<Spawned> {
    let (started, on_start) = mpsc::sync_channel(1);
    let (ending, ended) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("writer".into())
        .spawn(move || {
            let guard = LatchOnPanic::new(Arc::clone(&seed.status), "writer");
            seed.run(&started);
            drop(guard);
            // Nobody may be waiting.
            let _ = ending.send(());
        })?;
    let lost = |_| io::Error::other("the writer ended before it began");
    let started = on_start.recv().map_err(lost)??;
    Ok((thread, ended, started))
}

impl<Q: QueueOffsets + Send + 'static> Seed<Q> {
    /// Lends the writer out and goes on with it when it comes back.
    fn lend(
        self,
        disk: UringDisk,
        notes: Vec<String>,
        started: &mpsc::SyncSender<io::Result<Started>>,
    ) {
        let (bell, stop) = (Arc::clone(&self.bell), Arc::clone(&self.stop));
        let status = Arc::clone(&self.status);
        let made = self.into_writer(disk);
        let lending = made
            .and_then(|(writer, wake)| lent::lend(writer.with_clock(wall_ms), wake, bell, stop));
        let (lent, back) = match lending {
            Ok(lending) => lending,
            Err(error) => return report(started, Err(error)),
        };
        let found = Started {
            engine: Engine::Uring,
            notes,
            lent: Some(lent),
        };
        report(started, Ok(found));
        match back.recv() {
            Ok(mut writer) => writer.turn_until_finished(),
            // It panicked in a turn.
            Err(_) => status.latch("the writer stopped on an internal error"),
        }
    }

    fn run(self, started: &mpsc::SyncSender<io::Result<Started>>) {
        let mut notes = Vec::new();
        if let Some(cpu) = self.cpu
            && let Err(error) = pin(cpu)
        {
            notes.push(format!("the writer cannot be pinned to CPU {cpu}: {error}"));
        }
        let shared: Arc<Tail> = Arc::clone(self.tail.shared());
        let bell = Arc::clone(&self.bell);
        if self.lends
            && self.plan.engine == Engine::Uring
            && let Ok(disk) = UringDisk::movable(Arc::clone(&shared), Arc::clone(&bell))
        {
            return self.lend(disk, notes, started);
        }
        if self.plan.engine == Engine::Uring {
            match UringDisk::new(Arc::clone(&shared), Arc::clone(&bell)) {
                Ok((disk, warning)) => {
                    notes.extend(warning);
                    let found = Started {
                        engine: Engine::Uring,
                        notes,
                        lent: None,
                    };
                    return self.run_on(disk, found, started);
                }
                Err(error) if self.may_fall_back => {
                    notes.push(format!(
                        "io_uring cannot be used ({error}); writing with pwritev2"
                    ));
                }
                Err(error) => return report(started, Err(error)),
            }
        }
        match BlockingDisk::new(shared, bell, !self.plan.direct) {
            Ok(disk) => {
                let engine = Engine::Blocking;
                let lent = None;
                let found = Started {
                    engine,
                    notes,
                    lent,
                };
                self.run_on(disk, found, started)
            }
            Err(error) => report(started, Err(error)),
        }
    }

    fn run_on<D: Disk<File = std::fs::File>>(
        self,
        disk: D,
        found: Started,
        started: &mpsc::SyncSender<io::Result<Started>>,
    ) {
        let (bell, stop) = (Arc::clone(&self.bell), Arc::clone(&self.stop));
        match self.into_writer(disk) {
            Ok((writer, mut wake)) => {
                report(started, Ok(found));
                let mut writer = writer.with_clock(wall_ms);
                let started = Instant::now();
                turn_until_finished(&mut writer, (&bell, &stop), started, &mut *wake);
            }
            Err(error) => report(started, Err(error)),
        }
    }
}

impl<Q: QueueOffsets> Seed<Q> {
    /// What its disk writes from.
    #[cfg(test)]
    pub fn shared_tail(&self) -> &Arc<Tail> {
        self.tail.shared()
    }

    /// Whether the log takes messages.
    #[cfg(test)]
    pub fn status(&self) -> &Arc<LogStatus> {
        &self.status
    }

    /// The writer on `disk`, and what wakes a port.
    pub fn into_writer<D: Disk<File = std::fs::File>>(
        self,
        disk: D,
    ) -> io::Result<(Writer<D, PreparedFiles, Q>, Wake)> {
        let Connections {
            marks,
            queues,
            dispatcher,
            metrics,
            wake,
        } = self.connections;
        let parts = WriterParts {
            geometry: self.geometry,
            flush_interval: self.flush_interval,
            disk,
            files: self.files,
            queues,
            unanswered_capacity: self.ends.len() * PORT_IN_FLIGHT,
            ports: self.ends,
            tail: self.tail,
            marks,
            status: self.status,
            dispatcher,
            metrics,
            last_store_timestamp: self.last_store_timestamp,
        };
        Ok((Writer::new(parts, self.active)?, wake))
    }
}

fn report(to: &mpsc::SyncSender<io::Result<Started>>, what: io::Result<Started>) {
    // The launching thread waits for exactly one report.
    let _ = to.send(what);
}

/// The wall clock, in milliseconds since 1970.
fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as i64
}

pub(super) fn turn_until_finished<D: Disk, Q: QueueOffsets>(
    writer: &mut Writer<D, PreparedFiles, Q>,
    (bell, stop): (&Doorbell, &AtomicBool),
    started: Instant,
    wake: &mut dyn FnMut(usize),
) where
    PreparedFiles: super::LogFiles<File = D::File>,
{
    loop {
        let stopping = stop.load(Ordering::SeqCst);
        if stopping {
            writer.stop();
        }
        let turn = writer.turn(Now::read(started), wake);
        let (timeout, announce) = match turn {
            Turn::Busy => continue,
            Turn::Finished => return,
            Turn::WaitForDisk(timeout) => (timeout, false),
            Turn::WaitForWork(timeout) => (timeout, true),
        };
        if announce {
            bell.lie_down();
            if writer.has_entries() || stop.load(Ordering::SeqCst) != stopping {
                bell.get_up();
                continue;
            }
        }
        let waited = writer.disk().wait(timeout);
        if announce {
            bell.get_up();
        }
        if let Err(error) = waited {
            writer.latch(&format!("waiting for the disk failed: {error}"));
            // The next wait fails as soon; who pushes meanwhile is answered with the next turn.
            std::thread::sleep(AFTER_FAILED_WAIT);
        }
    }
}

impl Now {
    /// The time; its monotonic part counts from `started`.
    pub(super) fn read(started: Instant) -> Now {
        Now {
            wall_ms: wall_ms(),
            monotonic: started.elapsed(),
        }
    }
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
