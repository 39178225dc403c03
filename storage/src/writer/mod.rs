//! The writer: takes entries from all ports, gives them their places in the log, writes and
//! acknowledges.
//!
//! A batch is what arrived while the write before it was in flight. What must always hold: at most
//! one write in flight per block; a buffer does not change from submission to completion; a batch
//! never spans two files; pushes are answered in log order, when all bytes below their end are
//! written (and durable, under synchronous flush); after one failed or short write, or one failed
//! sync, nothing is acknowledged again.
//!
//! The machine knows no thread and no clock: [`Writer::turn`] is one step, and a memory or faulty
//! disk drives the same code as io_uring does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::append::Unanswered;
use crate::append_queue::{AppendFailure, PortEnd};
use crate::commit_log::{Geometry, LogStatus};
use crate::config::FlushMode;
use crate::disk::probe::LARGEST_BLOCK;
use crate::disk::{Completion, Disk, FileSlot, MAX_FILES, MAX_REQUESTS};
use crate::dispatch::DispatchSender;
use crate::metrics::WriteMetrics;
use crate::seeded::{Fault, seeded};
use crate::tail::TailWriter;
use crate::watermarks::Watermarks;

pub(crate) mod lent;
mod light;
mod offsets;
mod preloading;
mod staging;
mod submission;
#[cfg(test)]
mod tests;
pub(crate) mod thread;

use light::LightOffsets;

/// Bytes at which a batch is closed.
pub(crate) const BATCH_BYTES: u64 = 256 * 1024;
/// Batches in flight under backlog.
const BATCHES_IN_FLIGHT: usize = 4;
/// Most bytes, in whole blocks, between the first byte that is not written yet and the end of what
/// was handed to the disk, the unused rest of a file that was left aside. What lies behind that was
/// never written to: recovery depends on it (docs/durability.md, "Crash recovery").
pub(crate) const IN_FLIGHT_BYTES: u64 = BATCHES_IN_FLIGHT as u64 * BATCH_BYTES + 2 * LARGEST_BLOCK;
/// Bytes zeroed ahead of the tail in a file that is not zeroed whole.
pub(crate) const ZERO_AHEAD: u64 = 64 << 20;
/// How long to wait before looking again for room that nobody announces: in the dispatcher's queue,
/// below a reader's pin, or on the disk.
const RETRY: Duration = Duration::from_millis(1);

/// Where log files come from.
pub(crate) trait LogFiles {
    /// What the disk writes to.
    type File;

    /// Says that the file at `base` will be needed soon, or, if `urgent`, that the log waits for
    /// it.
    fn want(&mut self, base: u64, urgent: bool);

    /// The file at `base`, created, sized and named durably.
    fn take(&mut self, base: u64) -> NextFile<Self::File>;
}

/// Answer to [`LogFiles::take`].
pub(crate) enum NextFile<F> {
    /// Here it is.
    Ready(LogFile<F>),
    /// Not ready; the writer asks again.
    NotYet,
    /// There is no room for it now.
    NoSpace,
}

/// A log file to be written.
pub(crate) struct LogFile<F> {
    /// What the disk writes to.
    pub file: F,
    /// Log offset of its first byte.
    pub base: u64,
    /// Position up to which its blocks were written once, in bytes.
    pub zeroed_to: u64,
}

/// The queues' offsets.
pub(crate) trait QueueOffsets {
    /// The next offset of the queue, if there is still such a queue.
    fn next(&mut self, slot: u32) -> Option<i64>;

    /// Takes the next `count` offsets of a queue that was just asked for.
    fn advance(&mut self, slot: u32, next: i64, count: u32);

    /// Whether somebody waits for the next entry of the queue.
    fn is_watched(&mut self, slot: u32) -> bool;
}

/// The time, as the writer needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Wall clock, in milliseconds since 1970.
    pub wall_ms: i64,
    /// Time since some fixed moment.
    pub monotonic: Duration,
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Turn again at once.
    Busy,
    /// Sleep until the disk has something, at most for the given time.
    WaitForDisk(Option<Duration>),
    /// As above, and new entries are welcome: announce the sleep and look at the ports again.
    WaitForWork(Option<Duration>),
    /// Closed: everything is answered and durable.
    Finished,
}

/// What a writer is made from.
pub(crate) struct WriterParts<D: Disk, F, Q> {
    pub geometry: Geometry,
    pub flush_interval: Duration,
    pub disk: D,
    pub files: F,
    pub queues: Q,
    pub ports: Vec<PortEnd>,
    pub unanswered_capacity: usize,
    pub tail: TailWriter,
    pub marks: Arc<Watermarks>,
    pub status: Arc<LogStatus>,
    pub dispatcher: DispatchSender,
    pub metrics: Arc<WriteMetrics>,
    /// Store time of the last record in the log, in milliseconds.
    pub last_store_timestamp: i64,
}

/// A file that is attached to the disk.
#[derive(Debug)]
struct Attached {
    slot: FileSlot,
    base: u64,
    /// Log offsets up to which blocks were written once, and up to which zeros are in flight.
    zeroed_to: u64,
    zeroing_to: u64,
    /// Zeros are being put down until [`ZERO_AHEAD`] of them are there.
    filling: bool,
}

/// The zeroing in flight.
#[derive(Debug)]
struct Zeroing {
    ticket: u64,
    base: u64,
    len: usize,
}

/// How far taking entries came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staged {
    /// All ports are empty.
    Dry,
    /// Entries are left; what is staged is submitted first.
    More,
    /// Entries are left, and something else must happen first: a file, or room in the tail.
    Blocked,
}

/// Whether the log went on in the next file.
enum Rolled {
    Yes,
    No,
    Blocked,
}

/// One write in flight.
#[derive(Debug)]
struct InFlight {
    ticket: u64,
    /// Bytes asked for.
    len: usize,
    /// Log offset up to which the log is written when this and all before are over.
    end: u64,
    done: bool,
    /// When it was handed to the disk.
    since: Duration,
}

/// The sync in flight.
#[derive(Debug)]
struct Syncing {
    ticket: u64,
    upto: u64,
    /// When it was handed to the disk.
    since: Duration,
}

/// See the module's description.
pub(crate) struct Writer<D: Disk, F, Q> {
    geometry: Geometry,
    flush_interval: Duration,
    disk: D,
    files: F,
    queues: Q,
    ports: Vec<PortEnd>,
    next_port: usize,
    unanswered: Unanswered,
    light: LightOffsets,
    tail: TailWriter,
    marks: Arc<Watermarks>,
    status: Arc<LogStatus>,
    dispatcher: DispatchSender,
    metrics: Arc<WriteMetrics>,
    last_store_timestamp: i64,
    /// The wall clock, in milliseconds; without one the time of the turn counts.
    clock: Option<fn() -> i64>,
    /// Attached files, oldest first; the last one is active.
    attached: VecDeque<Attached>,
    /// The file the log goes on in, once everything before it is submitted.
    rolling_to: Option<LogFile<D::File>>,
    /// Log offset up to which bytes were handed to the disk.
    submitted: u64,
    in_flight: VecDeque<InFlight>,
    zeroing: Option<Zeroing>,
    syncing: Option<Syncing>,
    last_sync: Duration,
    next_ticket: u64,
    done: Vec<Completion>,
    stopping: bool,
}

impl<D, F, Q> Writer<D, F, Q>
where
    D: Disk,
    F: LogFiles<File = D::File>,
    Q: QueueOffsets,
{
    /// A writer going on where the tail ends. `active` is the file that holds this offset, unless
    /// the log goes on with a file still to be made.
    pub fn new(
        parts: WriterParts<D, F, Q>,
        active: Option<LogFile<D::File>>,
    ) -> std::io::Result<Writer<D, F, Q>> {
        let end = parts.tail.end();
        let marks = &parts.marks;
        assert!(end == marks.appended() && end == marks.durable() && end >= marks.dispatched());
        let partial = parts.geometry.block_down(end);
        assert!(
            parts.tail.start() <= partial || partial == end,
            "the last block is not preloaded"
        );
        let mut writer = Writer {
            geometry: parts.geometry,
            flush_interval: parts.flush_interval,
            disk: parts.disk,
            files: parts.files,
            queues: parts.queues,
            next_port: 0,
            unanswered: Unanswered::new(parts.ports.len(), parts.unanswered_capacity),
            ports: parts.ports,
            light: LightOffsets::default(),
            submitted: end,
            tail: parts.tail,
            marks: parts.marks,
            status: parts.status,
            dispatcher: parts.dispatcher,
            metrics: parts.metrics,
            last_store_timestamp: parts.last_store_timestamp,
            clock: None,
            attached: VecDeque::with_capacity(MAX_FILES),
            rolling_to: None,
            in_flight: VecDeque::with_capacity(MAX_REQUESTS),
            zeroing: None,
            syncing: None,
            last_sync: Duration::ZERO,
            next_ticket: 0,
            done: Vec::with_capacity(MAX_REQUESTS),
            stopping: false,
        };
        if let Some(active) = active {
            assert_eq!(
                active.base,
                writer.geometry.base(end),
                "another file than the log ends in"
            );
            writer.attach(active)?;
        }
        Ok(writer)
    }

    /// Reads the wall clock itself, when it has seen what there is to store.
    pub fn with_clock(mut self, clock: fn() -> i64) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The disk, for sleeping on it.
    pub fn disk(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Whether an entry waits in some port.
    pub fn has_entries(&self) -> bool {
        self.ports.iter().any(PortEnd::has_entries)
    }

    /// Waits until nothing is in flight, without taking anything on.
    pub fn settle(&mut self, now: Now) -> std::io::Result<()> {
        while !self.in_flight.is_empty() || self.zeroing.is_some() || self.syncing.is_some() {
            self.disk.wait(Some(Duration::from_millis(100)))?;
            self.reap(now);
        }
        Ok(())
    }

    /// From now on: finish what was pushed, make it durable and end.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// One step; calls `wake` with the number of every port that got results.
    pub fn turn(&mut self, now: Now, wake: &mut dyn FnMut(usize)) -> Turn {
        self.reap(now);
        let staged = self.stage_and_submit(now);
        self.zero_ahead();
        self.sync_if_due(now);
        self.release_files();
        // With nothing to answer, waiting starts the writes: one system call for both.
        if self.unanswered.is_due(self.marks.acknowledged())
            && let Err(error) = self.disk.start()
        {
            self.latch(&format!("starting a write failed: {error}"));
        }
        // The disk works meanwhile.
        let answered = self.answer(wake);
        self.next_step(now, staged, answered)
    }

    fn next_step(&mut self, now: Now, staged: Staged, answered: bool) -> Turn {
        let requests = self.in_flight.len() + usize::from(self.zeroing.is_some());
        let requests = requests + usize::from(self.syncing.is_some());
        if self.stopping && staged == Staged::Dry && answered && requests == 0 {
            let durable = self.marks.durable() == self.marks.written();
            if self.unanswered.is_empty() && (durable || self.latched().is_some()) {
                return Turn::Finished;
            }
        }
        let until_sync = self.until_sync(now);
        match staged {
            _ if !answered => Turn::WaitForDisk(Some(RETRY)),
            Staged::Blocked => Turn::WaitForDisk(Some(RETRY)),
            Staged::More if requests == 0 => Turn::Busy,
            Staged::More => Turn::WaitForDisk(until_sync),
            _ if !self.in_flight.is_empty() => Turn::WaitForDisk(until_sync),
            _ if self.stopping && requests == 0 => Turn::Busy,
            _ => Turn::WaitForWork(until_sync),
        }
    }

    fn latched(&self) -> Option<AppendFailure> {
        let why = self.status.read_only()?;
        Some(AppendFailure::ReadOnly(Arc::clone(why)))
    }

    fn latch(&mut self, why: &str) {
        if self.status.read_only().is_none() {
            tracing::error!("the commit log is read-only from now on: {why}");
        }
        self.status.latch(why);
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn answer(&mut self, wake: &mut dyn FnMut(usize)) -> bool {
        #[cfg(test)]
        if seeded(Fault::EarlyDispatch) {
            self.unanswered
                .dispatch_early(&self.tail, &mut self.dispatcher);
        }
        let latched = self.latched();
        let answered = self.unanswered.answer(
            self.marks.acknowledged(),
            latched.as_ref(),
            &self.tail,
            (&mut self.dispatcher, &mut |slot| {
                self.queues.is_watched(slot)
            }),
            &mut self.ports,
        );
        // Producers first: waking the dispatcher must not delay what they wait for.
        self.unanswered.wake_answered(wake);
        self.dispatcher.ring();
        answered
    }

    // ---- completions ----

    fn reap(&mut self, now: Now) {
        let mut done = std::mem::take(&mut self.done);
        if let Err(error) = self.disk.poll(&mut done) {
            self.latch(&format!("waiting for the disk failed: {error}"));
        }
        for completion in done.drain(..) {
            self.complete(completion, now);
        }
        self.done = done;
        if self.status.read_only().is_some() {
            self.in_flight.retain(|write| !write.done);
            return;
        }
        if seeded(Fault::OutOfOrder) {
            // The last one that is over takes those before it along.
            let last = self.in_flight.iter().rposition(|write| write.done);
            for write in self.in_flight.iter_mut().take(last.unwrap_or(0)) {
                write.done = true;
            }
        }
        while self.in_flight.front().is_some_and(|write| write.done) {
            if seeded(Fault::EarlyAnswer) {
                self.in_flight.pop_front();
            } else if let Some(write) = self.in_flight.pop_front() {
                self.written_to(write.end);
            }
        }
    }

    /// Every write up to log offset `end` is over.
    fn written_to(&mut self, end: u64) {
        self.marks.advance_written(end);
        if self.marks.flush_mode() == FlushMode::Sync {
            self.marks.advance_durable(end);
        }
    }

    fn complete(&mut self, completion: Completion, now: Now) {
        let Completion { ticket, result } = completion;
        if self
            .syncing
            .as_ref()
            .is_some_and(|sync| sync.ticket == ticket)
        {
            let sync = self.syncing.take();
            if let Some(sync) = &sync {
                let took = now.monotonic.saturating_sub(sync.since);
                self.metrics.sync_micros.add_micros(took);
            }
            let upto = sync.map_or(0, |sync| sync.upto);
            match result {
                Ok(_) if self.status.read_only().is_none() => self.marks.advance_durable(upto),
                Ok(_) => {}
                Err(_) if seeded(Fault::SyncAgain) => {}
                Err(error) => {
                    self.status.sync_failed();
                    self.latch(&format!("a sync of the commit log failed: {error}"));
                }
            }
            return;
        }
        let write = self
            .in_flight
            .iter_mut()
            .find(|write| write.ticket == ticket);
        let expected = if let Some(write) = write {
            write.done = true;
            let took = now.monotonic.saturating_sub(write.since);
            self.metrics.write_micros.add_micros(took);
            write.len
        } else {
            self.zeroed(ticket)
        };
        match result {
            Ok(written) if written == expected || seeded(Fault::ShortIsWhole) => {}
            Ok(written) => self.latch(&format!(
                "a write of {expected} bytes to the commit log ended after {written}"
            )),
            Err(error) => self.latch(&format!("a write to the commit log failed: {error}")),
        }
    }
}
