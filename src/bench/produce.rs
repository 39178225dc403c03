//! Producers, in an open or a closed loop.
//!
//! In an open loop each send has a moment at which it is due, whatever the broker does; its
//! latency counts from that moment, so a stall counts for every message that it delays. A closed
//! loop keeps a fixed number of sends in flight: it slows down with the broker, and its latencies
//! are those of this load, not of clients that send at their own pace. The report says which.

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use saturnmq_net::command::Command;
use saturnmq_net::messages::message_id;
use saturnmq_net::messages::send::SendRequest;

use super::faults::Faults;
use super::flights::{Flights, Sent};
use super::message::{Composer, Kind, PRODUCER_GROUP};
use super::monitor::Monitor;
use super::packing::Method;
use super::payload::{Numbers, Stamp};
use super::plan::{Pace, Plan, Run, Schedule};
use super::recorder::{Measured, Recorder, Series};
use super::report::Report;
use super::route::{Route, TEMPLATE};
use super::{BenchError, now_ms, process, read_back};

/// Most sends in flight on a connection of an open loop; more are due then than are sent.
const MAX_IN_FLIGHT: usize = 4096;

/// Bit of the system flag: the message is prepared.
const PREPARED: i32 = 0x4;
/// `commitOrRollback` of a commit and of a rollback.
const COMMIT: i32 = 0x8;
const ROLLBACK: i32 = 0xC;

/// What one producer saw.
pub struct Tally {
    /// What was counted.
    pub total: Measured,
    /// Messages answered SEND_OK that a consumer must get, counted or not.
    pub accepted: Numbers,
    /// How many those are.
    pub expected: u64,
    /// Sum of the marks of where those are.
    pub places: u64,
    /// What was wrong.
    pub faults: Faults,
    /// When it had its last answer.
    pub last: Instant,
    /// Share of the time that its thread worked, from 0 to 1.
    pub busy: f64,
}

/// What all producers of a run saw.
pub struct Tallies {
    /// What was counted.
    pub total: Measured,
    /// By producer: the messages that a consumer must get.
    pub accepted: Vec<Numbers>,
    /// How many those are.
    pub expected: u64,
    /// Sum of the marks of where those are.
    pub places: u64,
    /// What was wrong.
    pub faults: Faults,
    /// When the last of them had its last answer.
    pub last: Instant,
    /// Largest share of the time that one of the threads worked.
    pub busiest: f64,
}

impl Tallies {
    /// Waits for all producers.
    ///
    /// # Errors
    /// [`BenchError`] when one could not begin.
    pub fn join(workers: Vec<Worker<'_>>, run: &Run<'_>) -> Result<Self, BenchError> {
        let mut all = Self {
            total: Measured::new()?,
            accepted: Vec::new(),
            expected: 0,
            places: 0,
            faults: Faults::default(),
            last: run.counted_from,
            busiest: 0.0,
        };
        for worker in workers {
            let tally = worker
                .join()
                .map_err(|_| BenchError::System("a producer thread panicked".to_owned()))??;
            all.total.add(&tally.total)?;
            all.faults.add(&tally.faults);
            all.accepted.push(tally.accepted);
            all.expected += tally.expected;
            all.places = all.places.wrapping_add(tally.places);
            all.last = all.last.max(tally.last);
            all.busiest = all.busiest.max(tally.busy);
        }
        Ok(all)
    }
}

/// A producer's thread.
pub type Worker<'scope> = ScopedJoinHandle<'scope, Result<Tally, BenchError>>;

/// Starts the producers of a run, which are the first workers of `series`.
pub fn start<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    run: &'scope Run<'scope>,
    routes: &'scope [Route],
    series: &'scope Series,
) -> Vec<Worker<'scope>> {
    (0..run.plan.connections)
        .map(|index| {
            scope.spawn(move || {
                let producer = Producer::connect(run, routes, index, series);
                if producer.is_err() {
                    run.cut();
                }
                producer?.run()
            })
        })
        .collect()
}

/// Whether all threads have ended.
pub fn are_done<T>(workers: &[ScopedJoinHandle<'_, T>]) -> bool {
    workers.iter().all(ScopedJoinHandle::is_finished)
}

/// Runs the plan.
///
/// # Errors
/// [`BenchError`] when there is no route or a connection cannot be made.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let routes = plan.routes()?;
    let before = read_back::Start::now(plan, &routes)?;
    let run = Run::soon(plan, plan.connections, 0);
    let mut monitor = Monitor::new(&run)?;
    thread::scope(|scope| {
        let workers = start(scope, &run, &routes, &run.series);
        monitor.watch(|| are_done(&workers))?;
        monitor.await_rest(|| are_done(&workers))?;
        let all = Tallies::join(workers, &run)?;
        let seen = monitor.finish(all.last)?;
        let mut report = Report::new("produce", plan, &seen, &all.total);
        report.faults = all.faults.clone();
        report.judge_client(all.busiest);
        report.judge_pace(&run, 1.0, all.last);
        report.slowest_interval(plan);
        if let Some(before) = before {
            before.check(run.id, &all, &mut monitor, &mut report)?;
        }
        Ok(report)
    })
}

/// By topic and queue: the offset behind the last message that was acknowledged.
///
/// A flat table, whose pages appear where they are written: producers of many topics go through it
/// in order, and each would miss the cache in a map of its own.
struct Ends {
    /// Places of a topic.
    stride: usize,
    ends: Vec<i64>,
}

impl Ends {
    fn new(routes: &[Route]) -> Self {
        let queues = routes.iter().map(|route| route.queues).max().unwrap_or(0);
        let stride = usize::try_from(queues).unwrap_or(0);
        Self {
            stride,
            ends: vec![0; routes.len() * stride],
        }
    }

    fn place(&self, topic: usize, queue: i32) -> usize {
        topic * self.stride + usize::try_from(queue).unwrap_or(0)
    }

    fn of(&self, topic: usize, queue: i32) -> i64 {
        self.ends[self.place(topic, queue)]
    }

    fn raise(&mut self, topic: usize, queue: i32, end: i64) {
        let place = self.place(topic, queue);
        self.ends[place] = self.ends[place].max(end);
    }
}

/// One connection's sends.
pub struct Producer<'a> {
    run: &'a Run<'a>,
    client: Client,
    routes: &'a [Route],
    index: usize,
    /// Topic of the next send.
    turn: usize,
    /// Queue of the next send, before it is fitted to the topic's queues.
    next_queue: i32,
    composer: Composer,
    sequence: u64,
    outstanding: usize,
    /// Counted messages that are left to send.
    left: Option<u64>,
    flights: Flights,
    recorder: Recorder<'a>,
    accepted: Numbers,
    expected: u64,
    places: u64,
    ends: Ends,
    faults: Faults,
    last: Instant,
    /// When an answer last came, or none was missing.
    heard: Instant,
}

impl<'a> Producer<'a> {
    /// Connects producer `index`, which is that worker of the series, and waits for the others.
    ///
    /// # Errors
    /// [`BenchError`] when the broker cannot be reached.
    pub fn connect(
        run: &'a Run<'a>,
        routes: &'a [Route],
        index: usize,
        series: &'a Series,
    ) -> Result<Self, BenchError> {
        let recorder = Recorder::new(series, index);
        // Each in a part of the topics of its own.
        let turn = index * routes.len() / run.plan.connections.max(1) % routes.len();
        let connected = run.plan.connect(&routes[turn].address);
        run.ready.wait();
        let in_flight = match run.plan.pace {
            Pace::Closed { in_flight } => in_flight,
            Pace::Open { .. } => MAX_IN_FLIGHT,
        };
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        Ok(Self {
            run,
            client: connected?,
            routes,
            index,
            turn,
            next_queue: i32::try_from(index).unwrap_or(0),
            composer: Composer::new(&run.plan.shape, run.plan.seed, run.id, number),
            sequence: 0,
            outstanding: 0,
            left: run.share(index),
            flights: Flights::new(in_flight),
            recorder: recorder?,
            accepted: Numbers::default(),
            expected: 0,
            places: 0,
            ends: Ends::new(routes),
            faults: Faults::default(),
            last: run.begin,
            heard: run.begin,
        })
    }

    /// Sends until the end of the counted time and waits for the last answers. A connection that
    /// fails meanwhile ends the run, as a fault, and so does a broker that leaves answers out for
    /// longer than the plan's time-out; what was not sent or not answered then counts as an error.
    ///
    /// # Errors
    /// None yet; the threads of all loads end alike.
    pub fn run(mut self) -> Result<Tally, BenchError> {
        let cpu = process::own_thread_us();
        let begun = Instant::now();
        let ended = match self.run.plan.pace {
            Pace::Closed { in_flight } => self.closed(in_flight),
            Pace::Open { rate } => self.open(rate),
        };
        if let Err(error) = ended {
            self.faults.count(&error.to_string());
            self.run.cut();
            self.unanswered();
        }
        let used = process::own_thread_us().unwrap_or(0) - cpu.unwrap_or(0);
        Ok(Tally {
            total: self.recorder.finish(),
            accepted: self.accepted,
            expected: self.expected,
            places: self.places,
            faults: self.faults,
            last: self.last,
            busy: used as f64 / 1e6 / begun.elapsed().as_secs_f64().max(1e-9),
        })
    }

    fn is_over(&self, next: Instant) -> bool {
        next >= self.run.end() || self.left == Some(0)
    }

    /// Counts the sends on their way as errors: they are given up.
    fn unanswered(&mut self) {
        let (now, each) = (Instant::now(), u64::from(self.run.plan.shape.batch));
        for sent in self.flights.drain() {
            let counted = self.run.counts(sent.since);
            self.recorder.errors(now, each, counted);
            self.faults.count_many("message without an answer", each);
        }
        self.outstanding = 0;
    }

    /// Counts what was due before the end and will not be sent.
    fn unsent(&mut self, schedule: &Schedule) {
        let batch = u64::from(self.run.plan.shape.batch);
        let (from, end) = (self.run.counted_from, self.run.end());
        let due = schedule.due_between(from, end) * batch;
        let due = due.min(self.left.unwrap_or(u64::MAX));
        self.recorder.errors(Instant::now(), due, true);
        self.faults.count_many("message due and not sent", due);
    }

    /// When an answer must have come, and, after the end of the run, all of them.
    fn limit(&self) -> Instant {
        (self.heard + self.run.plan.timeout).min(self.run.limit())
    }

    /// Ends a run whose broker leaves answers out.
    fn check_limit(&self, now: Instant) -> Result<(), BenchError> {
        let timeout = self.run.plan.timeout;
        if now >= self.heard + timeout {
            return Err(BenchError::System(format!("no answer within {timeout:?}")));
        }
        if now >= self.run.limit() {
            let text = format!("answers or sends were missing {timeout:?} after the end");
            return Err(BenchError::System(text));
        }
        Ok(())
    }

    fn closed(&mut self, in_flight: usize) -> Result<(), BenchError> {
        thread::sleep(self.run.begin.saturating_duration_since(Instant::now()));
        for _ in 0..in_flight {
            if !self.is_over(Instant::now()) {
                self.queue_one(Instant::now())?;
            }
        }
        self.client.flush()?;
        self.heard = Instant::now();
        while self.outstanding > 0 {
            let deadline = self.recorder.boundary().min(self.limit());
            let came = self.answer(deadline)?;
            let now = Instant::now();
            if self.outstanding > 0 {
                self.check_limit(now)?;
            }
            if !came {
                self.recorder.pass(now);
                continue;
            }
            // Answers that came together are followed by sends that go together, as from a client
            // whose threads were all woken by one read.
            loop {
                if !self.is_over(now) {
                    self.queue_one(Instant::now())?;
                }
                if !self.answer(now)? {
                    break;
                }
            }
            self.client.flush()?;
        }
        Ok(())
    }

    fn open(&mut self, rate: f64) -> Result<(), BenchError> {
        let plan = self.run.plan;
        let sends = rate / f64::from(plan.shape.batch);
        let mut schedule = Schedule::new(self.run.begin, sends, plan.connections, self.index);
        let ended = self.follow(&mut schedule);
        if ended.is_err() {
            self.run.cut();
            self.unsent(&schedule);
        }
        ended
    }

    fn follow(&mut self, schedule: &mut Schedule) -> Result<(), BenchError> {
        self.heard = Instant::now();
        loop {
            let now = Instant::now();
            self.recorder.pass(now);
            while schedule.due() <= now
                && !self.is_over(schedule.due())
                && self.outstanding < MAX_IN_FLIGHT
            {
                self.queue_one(schedule.due())?;
                schedule.advance();
            }
            self.client.flush()?;
            let over = self.is_over(schedule.due());
            if over && self.outstanding == 0 {
                return Ok(());
            }
            if self.outstanding == 0 {
                self.heard = now;
            }
            let full = self.outstanding >= MAX_IN_FLIGHT;
            let wait = if over || full {
                self.limit()
            } else {
                schedule.due().min(self.limit())
            };
            let mut came = self.answer(wait.min(self.recorder.boundary()))?;
            while came {
                came = self.answer(now)?;
            }
            if self.outstanding > 0 {
                self.check_limit(Instant::now())?;
            }
        }
    }

    /// Queues a send whose latency counts from `since`.
    fn queue_one(&mut self, since: Instant) -> Result<(), BenchError> {
        self.turn = (self.turn + 1) % self.routes.len();
        if self.turn == 0 || self.routes.len() == 1 {
            self.next_queue = (self.next_queue + 1) & 0xffff;
        }
        let route = &self.routes[self.turn];
        let shape = &self.run.plan.shape;
        let made = self.composer.compose(Stamp {
            run: self.run.id,
            producer: u32::try_from(self.index).unwrap_or(u32::MAX),
            sequence: self.sequence,
            intended_ns: self.run.clock.ns(since),
        })?;
        let queue = self.next_queue % route.queues;
        let packed = shape.compress.map_or(0, Method::sys_flag);
        let is_prepared = matches!(shape.kind, Kind::Transaction { .. });
        let send = SendRequest {
            producer_group: PRODUCER_GROUP,
            topic: &route.topic,
            default_topic: TEMPLATE,
            default_topic_queue_nums: route.queues,
            queue_id: queue,
            sys_flag: packed | if is_prepared { PREPARED } else { 0 },
            born_timestamp: now_ms(),
            properties: made.properties,
            batch: shape.batch > 1,
            ..SendRequest::default()
        };
        let opaque = self.client.queue(
            made.code,
            false,
            |fields| send.encode_fields(made.code, fields),
            made.body,
        )?;
        let sent = Sent {
            since,
            sequence: self.sequence,
            bytes: made.bytes,
            topic: self.turn,
            queue,
            after: self.ends.of(self.turn, queue),
        };
        if !self.flights.insert(opaque, sent) {
            return Err(BenchError::System(
                "more sends in flight than meant".to_owned(),
            ));
        }
        self.sequence += u64::from(shape.batch);
        self.outstanding += 1;
        if let Some(left) = self
            .left
            .as_mut()
            .filter(|_| since >= self.run.counted_from)
        {
            *left = left.saturating_sub(shape.batch.into());
        }
        Ok(())
    }

    /// Waits for one answer and counts it; false at the deadline.
    fn answer(&mut self, deadline: Instant) -> Result<bool, BenchError> {
        let Some(command) = self.client.receive(deadline)? else {
            return Ok(false);
        };
        if !command.is_response() {
            // The broker asks about transactions that are under way.
            return Ok(true);
        }
        let Some(sent) = self.flights.take(command.opaque) else {
            self.faults.count("an answer that nobody asked for");
            return Ok(true);
        };
        self.outstanding -= 1;
        let shape = &self.run.plan.shape;
        let messages = u64::from(shape.batch);
        let now = Instant::now();
        (self.last, self.heard) = (now, now);
        let counted = self.run.counted(sent.since, now, Duration::ZERO);
        if command.code != response::SUCCESS {
            self.recorder.errors(now, messages, counted.due);
            self.faults.refused(command.code, command.remark);
            return Ok(true);
        }
        let latency = now.saturating_duration_since(sent.since);
        self.recorder.messages(now, messages, sent.bytes, counted);
        self.recorder.latency(now, latency, messages, counted.due);
        let rolled_back = shape.kind.rolls_back(sent.sequence);
        if !rolled_back {
            self.expected += messages;
            for sequence in sent.sequence..sent.sequence + messages {
                self.accepted.insert(sequence);
            }
        }
        match shape.kind {
            Kind::Plain => {
                let number = |name| command.ext.get(name).and_then(|text| text.parse().ok());
                let (queue, offset) = (number("queueId"), number("queueOffset"));
                self.placed(&sent, queue, offset);
            }
            Kind::Transaction { .. } => {
                let end = Ending::of(&command);
                match end {
                    Some(end) => self.end_transaction(&end, rolled_back)?,
                    None => self.faults.count("SEND_OK without queueOffset or msgId"),
                }
            }
            // Its queue is not the one that it waits in.
            Kind::Delay { .. } => {}
        }
        Ok(true)
    }

    /// Notes where SEND_OK says that messages are; it must be behind those that had been
    /// acknowledged before these were sent.
    fn placed(&mut self, sent: &Sent, queue: Option<i64>, offset: Option<i64>) {
        let Some(offset) = offset else {
            self.faults.count("SEND_OK without queueOffset");
            return;
        };
        if queue != Some(sent.queue.into()) {
            self.faults.count("SEND_OK of another queue than asked for");
        }
        if offset < sent.after {
            self.faults
                .count("SEND_OK names a queue offset before one acknowledged earlier");
        }
        let producer = u32::try_from(self.index).unwrap_or(u32::MAX);
        let batch = i64::from(self.run.plan.shape.batch);
        for number in 0..batch {
            let sequence = sent.sequence + number.cast_unsigned();
            let mark = read_back::mark(producer, sequence, sent.queue, offset + number);
            self.places = self.places.wrapping_add(mark);
        }
        self.ends.raise(sent.topic, sent.queue, offset + batch);
    }

    fn end_transaction(&mut self, end: &Ending, roll_back: bool) -> Result<(), BenchError> {
        let code = request::END_TRANSACTION;
        let fields = |fields: &mut saturnmq_net::encode::Encoder<'_>| {
            fields
                .field_str("producerGroup", PRODUCER_GROUP)
                .field_i64("tranStateTableOffset", end.queue_offset)
                .field_i64("commitLogOffset", end.log_offset)
                .field_i32(
                    "commitOrRollback",
                    if roll_back { ROLLBACK } else { COMMIT },
                )
                .field_bool("fromTransactionCheck", false)
                .field_str("msgId", &end.id);
        };
        self.client.queue(code, true, fields, &[])?;
        Ok(())
    }
}

/// Which prepared message is to be ended.
struct Ending {
    queue_offset: i64,
    log_offset: i64,
    id: String,
}

impl Ending {
    fn of(command: &Command<'_>) -> Option<Self> {
        let id = command.ext.get("msgId")?;
        let (_, offset) = message_id::parse(id)?;
        Some(Self {
            queue_offset: command.ext.get("queueOffset")?.parse().ok()?,
            log_offset: i64::try_from(offset).ok()?,
            id: id.to_owned(),
        })
    }
}
