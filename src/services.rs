//! The services thread: the one thread that may read old log pages and wait for the disk.
//!
//! It runs requests that need such reads (queries, searches by time, cold pulls, send-backs), the
//! delivery of delayed messages, retention rounds, and the sweep of dead registrations. It appends
//! through a port of its own. It sleeps until there is a job, a result, a delivery that is due, or
//! the next round.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Select, Sender, TrySendError, bounded};
use saturnmq_storage::append_queue::{AppendFailure, AppendPort, Appended, LightQueues, PushError};
use saturnmq_storage::error::RetentionError;
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::{PullOutcome, PullStatus, StoreReader};
use saturnmq_storage::store::RetentionReport;

use crate::answer::{CoreMessage, LaterJob, Reply, ReplySlot, SYSTEM_ERROR, WorkJob};
use crate::broker::Broker;
use crate::core::{encode_reply, steady_ms};
use crate::delay::Delivery;
use crate::handler::pull::{self, Pull, Size};
use crate::held::Held;
use crate::timer::question::Question;
use crate::timer::service::{TimerService, TimerStep};
use crate::transaction::Close;
use crate::transaction::check::{Checker, Step};

mod early;
mod later;
mod turn;

use early::Early;
pub(crate) use later::STEP;
use turn::Turn;

/// Jobs that may wait for the services thread; more are refused as overload.
const JOBS: usize = 8192;
/// Period of the sweep of dead registrations and locks.
const SWEEP: Duration = Duration::from_secs(10);
/// Longest sleep; everything that matters wakes the thread earlier.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How soon a round of retention that awaits a resume point comes again.
const RETENTION_AGAIN: Duration = Duration::from_millis(200);
/// How often at most, before it waits for its interval.
const RETENTION_AGAIN_MAX: u32 = 25;
/// Pause before looking again whether the dispatcher has caught up.
const CATCH_UP: Duration = Duration::from_millis(1);
/// Index hits that are compared with a message: more than one where clients use a key again.
const LOOK_AT: usize = 1024;

/// Wakes the services thread.
#[derive(Clone, Debug)]
pub struct Bell(Sender<()>);

impl Bell {
    /// Makes the thread look at everything once more.
    pub fn ring(&self) {
        // Full: it was rung already.
        let _ = self.0.try_send(());
    }
}

/// What a job does.
pub enum Work {
    /// Ends in one reply.
    Later(LaterJob),
    /// Replies itself, possibly after an append.
    Open(WorkJob),
    /// The same, and may go on later.
    Turns(WorkJob),
    /// A pull that needs old log pages.
    Pull(Box<Pull>),
}

/// A request for the services thread.
pub struct Job {
    /// Where the response goes.
    pub slot: ReplySlot,
    /// Log offset up to which the dispatcher must have come: what was acknowledged before the
    /// request is visible to it.
    pub readable_from: u64,
    /// An answer without that would be wrong: when the dispatcher does not come so far in time the
    /// request is refused as overload.
    pub needs_newest: bool,
    /// Counts what it keeps of the request.
    pub held: Option<Held>,
    /// What to do.
    pub work: Work,
}

impl Job {
    /// A job that waits for no dispatcher.
    pub fn of_any_time(slot: ReplySlot, work: Work) -> Self {
        Self {
            slot,
            readable_from: 0,
            needs_newest: false,
            held: None,
            work,
        }
    }
}

/// How the rest of the broker reaches the services thread.
pub struct ServicesHandle {
    jobs: Sender<Job>,
    bell: Bell,
    stopping: Arc<AtomicBool>,
    turn: Turn,
}

/// The thread's ends of a [`ServicesHandle`].
pub struct ServicesInbox {
    jobs: Receiver<Job>,
    rung: Receiver<()>,
    stopping: Arc<AtomicBool>,
}

impl ServicesHandle {
    /// A handle, and what [`Services::new`] takes.
    pub fn new() -> (Self, ServicesInbox) {
        let (jobs, waiting) = bounded(JOBS);
        let (bell, rung) = bounded(1);
        let stopping = Arc::new(AtomicBool::new(false));
        let handle = Self {
            jobs,
            bell: Bell(bell),
            stopping: Arc::clone(&stopping),
            turn: Turn::default(),
        };
        (
            handle,
            ServicesInbox {
                jobs: waiting,
                rung,
                stopping,
            },
        )
    }

    /// Queues a job; given back when too many wait.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        self.jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }

    /// What wakes the thread; [`crate::answer::CoreDirectory::attach_services`] takes it.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// Ends the thread after the job at hand; its deliveries in flight are waited for.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

/// Called with what became of an append.
pub type AppendThen = Box<dyn FnOnce(&mut ServiceContext, Result<Appended, AppendFailure>) + Send>;

/// An append of the services thread that the writer has not answered.
enum Appending {
    Job(AppendThen),
    Delivery { level: usize, offset: i64 },
    Check(Step),
    Timed(TimerStep),
}

/// What jobs work with.
pub struct ServiceContext {
    /// The broker.
    pub broker: Arc<Broker>,
    /// Reads that may wait for the disk.
    pub reader: StoreReader,
    port: AppendPort,
    /// Light queues of the record at hand.
    light: LightQueues,
    appending: VecDeque<Appending>,
    /// Half messages that are done with once an op message says so.
    closing: VecDeque<Close>,
    /// Jobs that go on after the others.
    going_on: VecDeque<Job>,
    /// Counts what is kept of the request at hand.
    held: Option<Held>,
    /// Who asks about messages for a time, and what; [`TimerService`] answers.
    pub(crate) timer_questions: Vec<(ReplySlot, Question)>,
    next_retention: Instant,
    /// Rounds of retention still to come soon, for a resume point is awaited.
    retention_again: u32,
}

impl ServiceContext {
    /// A round of retention; `manual` deletes expired files whatever the hour.
    ///
    /// # Errors
    /// As [`Store::retention_round`](saturnmq_storage::store::Store::retention_round).
    pub fn retention(&mut self, manual: bool) -> Result<RetentionReport, RetentionError> {
        let (store, rules) = (&self.broker.store, &self.broker.live.load().retention);
        let round = store.retention_round_by(rules, SystemTime::now(), manual);
        // An open file keeps its space, and a disk that stays full would cost more files.
        self.reader.release_expired();
        let waits = matches!(&round, Ok(report) if report.awaits_resume);
        self.retention_again = match self.retention_again {
            _ if !waits => 0,
            0 => RETENTION_AGAIN_MAX,
            _ if manual => RETENTION_AGAIN_MAX,
            left => left - 1,
        };
        let pause = match self.retention_again {
            0 => self.broker.config.retention_interval,
            _ => RETENTION_AGAIN.min(self.broker.config.retention_interval),
        };
        self.next_retention = Instant::now() + pause;
        round
    }

    /// What became of a message: whether the index leads from this key to a record of `topic`,
    /// stored from `from_ms` on, that `counts`. Without an index nothing is known.
    pub(crate) fn became(
        &mut self,
        topic: &str,
        key: &str,
        from_ms: i64,
        mut counts: impl FnMut(&Record<'_>) -> bool,
    ) -> bool {
        let hits = self
            .reader
            .query_index(topic, key, LOOK_AT, from_ms, i64::MAX);
        let hits = match hits {
            Ok(hits) => hits,
            Err(error) => {
                tracing::warn!(%error, topic, "the index cannot say what became of a message");
                return false;
            }
        };
        let mut bytes = Vec::new();
        hits.offsets.iter().any(|offset| {
            bytes.clear();
            matches!(self.reader.record(*offset, &mut bytes), Ok(true))
                && Record::decode(&bytes)
                    .is_ok_and(|other| other.topic() == topic && counts(&other))
        })
    }

    /// Hands a record to the writer, with the light queues that it enters.
    fn push(&mut self, queue: &Queue, parts: &MessageParts<'_>) -> Result<(), PushError> {
        self.broker.enter_light_queues(parts, &mut self.light);
        self.port.push(0, queue, parts, &self.light)
    }

    /// Appends a record; `then` runs when the writer has answered.
    ///
    /// # Errors
    /// The append queue is full or closed, or the record is illegal; `then` is dropped.
    pub fn append(
        &mut self,
        queue: &Queue,
        parts: &MessageParts<'_>,
        then: AppendThen,
    ) -> Result<(), PushError> {
        self.push(queue, parts)?;
        self.appending.push_back(Appending::Job(then));
        Ok(())
    }

    /// Appends a delayed message that is due, for [`Delivery`].
    pub(crate) fn deliver(
        &mut self,
        queue: &Queue,
        parts: &MessageParts<'_>,
        level: usize,
        offset: i64,
    ) -> Result<(), PushError> {
        self.push(queue, parts)?;
        self.appending
            .push_back(Appending::Delivery { level, offset });
        Ok(())
    }

    /// Appends a message whose time has come, for [`TimerService`].
    pub(crate) fn append_timed(
        &mut self,
        queue: &Queue,
        parts: &MessageParts<'_>,
        step: TimerStep,
    ) -> Result<(), PushError> {
        self.push(queue, parts)?;
        self.appending.push_back(Appending::Timed(step));
        Ok(())
    }

    /// Appends a record of the transaction check; the step is given back when that fails.
    pub(crate) fn append_step(
        &mut self,
        queue: &Queue,
        parts: &MessageParts<'_>,
        step: Step,
    ) -> Result<(), (PushError, Step)> {
        if let Err(error) = self.push(queue, parts) {
            return Err((error, step));
        }
        self.appending.push_back(Appending::Check(step));
        Ok(())
    }

    /// Has an op message say that a half message is done with.
    pub fn close(&mut self, close: Close) {
        self.closing.push_back(close);
    }

    /// Gives back what [`ServiceContext::next_close`] gave.
    pub(crate) fn close_first(&mut self, close: Close) {
        self.closing.push_front(close);
    }

    /// The next half message to close.
    pub(crate) fn next_close(&mut self) -> Option<Close> {
        self.closing.pop_front()
    }

    /// Sends a reply to a connection.
    pub fn reply(&self, slot: ReplySlot, reply: Reply) {
        let (conn, to) = (slot.channel.conn, slot.to);
        self.post(slot, CoreMessage::Reply { conn, to, reply });
    }

    fn post(&self, slot: ReplySlot, message: CoreMessage) {
        // Given back only when the core has ended: nobody is left to answer.
        let _ = self.broker.cores.post(slot.channel.core, message);
    }

    fn pull(&mut self, slot: ReplySlot, pull: Box<Pull>) {
        let mut frame = Vec::new();
        let mut found = Size::default();
        if self.broker.cores.has_room(slot.channel.core) {
            found = self.read_cold(slot, &pull, &mut frame);
        } else {
            pull::encode_again(&mut frame, &pull);
        }
        self.post(
            slot,
            CoreMessage::Pulled {
                conn: slot.channel.conn,
                frame,
                found,
                pull,
            },
        );
    }

    fn read_cold(&mut self, slot: ReplySlot, pull: &Pull, frame: &mut Vec<u8>) -> Size {
        let limits = pull::pull_limits(&self.broker.live.load());
        let began = Instant::now();
        match pull::found_cold(frame, pull, &mut self.reader, &limits) {
            Ok(PullOutcome::Ready(pulled)) if pulled.status == PullStatus::Found => {
                let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                pull.counted.read_slowly(pull.queue.queue_id, ms);
                return Size::of(&pulled);
            }
            Ok(PullOutcome::Ready(pulled)) => {
                pull::encode_nothing(frame, pull, &pulled);
                pull::tell_of_move(self, pull, &pulled);
            }
            Ok(PullOutcome::Cold) => {
                let reply = Reply::error(SYSTEM_ERROR, "the log cannot be read right now");
                encode_reply(frame, slot.to, &reply);
            }
            Err(error) => {
                let reply = Reply::error(SYSTEM_ERROR, error.to_string());
                encode_reply(frame, slot.to, &reply);
            }
        }
        Size::default()
    }
}

/// The services thread's state.
pub struct Services {
    context: ServiceContext,
    inbox: ServicesInbox,
    delivery: Delivery,
    checker: Checker,
    timers: TimerService,
    /// Jobs for which the dispatcher is not far enough yet.
    early: Early<Job>,
    /// Jobs in turns that were not begun.
    waiting: VecDeque<Job>,
    next_sweep: Instant,
}

impl Services {
    /// The thread's state; [`Services::run`] is the thread.
    pub fn new(
        broker: Arc<Broker>,
        inbox: ServicesInbox,
        port: AppendPort,
        reader: StoreReader,
        timers: TimerService,
    ) -> Self {
        let now = Instant::now();
        broker.cores.attach_services(broker.services.bell());
        broker.store.check_disk();
        let delivery = Delivery::new(&broker, now);
        let checker = Checker::new(&broker, now);
        let next_retention = now + broker.config.retention_interval;
        let context = ServiceContext {
            broker,
            reader,
            port,
            light: LightQueues::default(),
            appending: VecDeque::new(),
            closing: VecDeque::new(),
            going_on: VecDeque::new(),
            held: None,
            timer_questions: Vec::new(),
            next_retention,
            retention_again: 0,
        };
        Self {
            context,
            inbox,
            delivery,
            checker,
            timers,
            early: Early::default(),
            waiting: VecDeque::new(),
            next_sweep: now + SWEEP,
        }
    }

    /// Runs until [`ServicesHandle::stop`].
    pub fn run(mut self) {
        while !self.inbox.stopping.load(Ordering::SeqCst) {
            self.context.broker.services.turn.begins(steady_ms());
            self.results();
            let more = self.jobs();
            let now = Instant::now();
            let delivery = self.delivery.round(&mut self.context, now);
            let check = self.checker.round(&mut self.context, now);
            let timers = self.timers.round(&mut self.context, now);
            let due = delivery.into_iter().chain(check).chain(timers).min();
            self.rounds(now);
            self.context.port.submit();
            let more = self.read_on() || more;
            if !more {
                self.sleep(due.unwrap_or(now + LONGEST_SLEEP));
            }
        }
        self.finish();
    }

    /// Reads ahead of consumers that work through a backlog, a piece at a time; true if there may
    /// be more to read.
    fn read_on(&mut self) -> bool {
        self.context.reader.read_on().unwrap_or_else(|error| {
            // Whoever needs these bytes is told.
            tracing::debug!(%error, "reading ahead failed");
            false
        })
    }

    /// Waits for the appends in flight, so that what they delivered is not delivered again.
    fn finish(&mut self) {
        self.context.port.submit();
        let until = Instant::now() + Duration::from_secs(5);
        while !self.context.appending.is_empty() && Instant::now() < until {
            self.results();
            if self.context.port.is_abandoned() && !self.context.port.has_results() {
                break;
            }
            // The writer rings for every result.
            let _ = self.inbox.rung.recv_timeout(Duration::from_millis(10));
        }
        self.delivery.save(&self.context.broker);
        self.checker.save(&self.context.broker);
        self.timers.save();
    }

    fn results(&mut self) {
        while let Some(result) = self.context.port.pop() {
            match self.context.appending.pop_front() {
                Some(Appending::Job(then)) => then(&mut self.context, result.outcome),
                Some(Appending::Delivery { level, offset }) => {
                    let outcome = result.outcome.map(drop);
                    self.delivery
                        .done(&self.context.broker, level, offset, outcome);
                }
                Some(Appending::Check(step)) => {
                    self.checker.done(&mut self.context, step, result.outcome);
                }
                Some(Appending::Timed(step)) => {
                    self.timers.done(&mut self.context, step, result.outcome);
                }
                None => return,
            }
        }
    }

    fn rounds(&mut self, now: Instant) {
        let broker = &self.context.broker;
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            sweep(broker);
            self.context.reader.rest();
        }
        if now >= self.context.next_retention
            && let Err(error) = self.context.retention(false)
        {
            tracing::warn!(%error, "a retention round failed");
        }
    }

    fn sleep(&self, due: Instant) {
        let now = Instant::now();
        let mut until = due
            .min(self.next_sweep)
            .min(self.context.next_retention)
            .min(now + LONGEST_SLEEP);
        if !self.early.is_empty() {
            until = until.min(now + CATCH_UP);
        }
        let pause = until.saturating_duration_since(now);
        if pause.is_zero() {
            return;
        }
        // A job is only looked at here; it stays in its queue.
        let mut select = Select::new();
        self.context.broker.services.turn.waits();
        select.recv(&self.inbox.rung);
        if !self.early.is_full() {
            select.recv(&self.inbox.jobs);
        }
        if select.ready_timeout(pause).is_ok() {
            let _ = self.inbox.rung.try_recv();
        }
    }
}

/// Closes connections whose registration ran out and forgets expired locks.
fn sweep(broker: &Broker) {
    let now = steady_ms();
    let after = i64::try_from(broker.live.load().channel_expired_ms).unwrap_or(i64::MAX);
    for channel in broker.clients.expired(now, after) {
        tracing::info!(
            ?channel,
            "a client sent no heartbeat for too long: closing its connection"
        );
        let message = CoreMessage::Close { conn: channel.conn };
        // A full inbox: the next sweep tries again.
        let _ = broker.cores.post(channel.core, message);
    }
    broker.locks.sweep(now);
}
