//! From the moment a message was meant to be sent to the moment a consumer that waits for it has
//! it: producers send, consumers of one or more groups hold long polls on every queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use saturnmq_net::codes::request;
use saturnmq_storage::format::record::Record;

use super::faults::Faults;
use super::message::Kind;
use super::monitor::Monitor;
use super::payload::{Arrivals, Content};
use super::plan::{Plan, Run};
use super::produce::{self, Tallies, are_done};
use super::puller::{GROUP, Puller, Queue, ends_of};
use super::read_back::{self, SETTLED};
use super::recorder::{Measured, Recorder};
use super::report::Report;
use super::route::{self, Route};
use super::{BenchError, counted, process};

/// How long a broker may hold a pull.
const HOLD: Duration = Duration::from_secs(5);
/// What a clock in whole milliseconds may take from a delay.
const EARLY: Duration = Duration::from_millis(2);

/// Who reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readers {
    /// Consumer groups; each gets every message.
    pub groups: usize,
    /// Connections of a group; queues are dealt to them in turn.
    pub consumers: usize,
    /// Most messages of one pull.
    pub pull: i32,
    /// How late the broker is told to deliver.
    pub delay: Duration,
}

/// What consumers share.
struct Shared<'a> {
    run: &'a Run<'a>,
    readers: &'a Readers,
    /// Messages received, by consumer.
    received: Box<[AtomicU64]>,
    stop: AtomicBool,
}

/// Ends the consumers, however the run ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What one consumer saw.
struct Tally {
    total: Measured,
    arrivals: Arrivals,
    /// Sum of the marks of where they were.
    places: u64,
    faults: Faults,
    busy: f64,
    /// When a message last came.
    last: Instant,
    /// Whether it could not look any more before the end.
    failed: bool,
}

/// What a consumer group got.
#[derive(Default, Clone)]
struct Group {
    arrivals: Arrivals,
    places: u64,
    failed: bool,
}

/// Runs the plan.
///
/// # Errors
/// [`BenchError`] when there is no route or a connection cannot be made.
pub fn run(load: &str, plan: &Plan, readers: &Readers) -> Result<Report, BenchError> {
    let mut routes = plan.routes()?;
    route::create(&mut routes, plan.timeout)?;
    let address = route::one_broker(&routes)?;
    let ends = ends(plan, &routes)?;
    let all = readers.groups * readers.consumers;
    let mut run = Run::soon(plan, all, plan.connections);
    run.lag = readers.delay;
    let shared = Shared {
        run: &run,
        readers,
        received: (0..all).map(|_| AtomicU64::new(0)).collect(),
        stop: AtomicBool::new(false),
    };
    let mut monitor = Monitor::new(&run)?;
    thread::scope(|scope| {
        let shared = &shared;
        let stop = StopOnDrop(&shared.stop);
        let consumers: Vec<_> = (0..all)
            .map(|number| {
                let share = number % readers.consumers;
                let mine = ends.iter().skip(share).step_by(readers.consumers);
                let queues = mine.cloned().collect();
                scope.spawn(move || consume(address, queues, shared, number))
            })
            .collect();
        let producers = produce::start(scope, shared.run, &routes, &shared.run.beside);
        monitor.watch(|| are_done(&producers))?;
        monitor.await_rest(|| are_done(&producers))?;
        let sent = Tallies::join(producers, shared.run);
        if let Ok(sent) = &sent {
            await_last(&mut monitor, shared, sent.expected, || are_done(&consumers))?;
        }
        drop(stop);
        let mut faults = Faults::default();
        let sent_ok = sent.as_ref().ok();
        let (total, busiest, last) = join(consumers, shared, sent_ok, &mut faults)?;
        let sent = sent?;
        let seen = monitor.finish(last)?;
        let mut report = Report::new(load, plan, &seen, &total);
        describe(&mut report, plan, readers, &sent);
        report.faults = sent.faults;
        report.faults.add(&faults);
        report.judge_client(busiest.max(sent.busiest));
        let share = readers.groups as f64 * plan.shape.kind.share_that_arrives();
        report.judge_pace(&run, share, last);
        Ok(report)
    })
}

/// What the report says beside the numbers that all loads have.
fn describe(report: &mut Report, plan: &Plan, readers: &Readers, sent: &Tallies) {
    report.latency_of = match plan.shape.kind {
        Kind::Plain => "intended send to receipt".to_owned(),
        Kind::Transaction { .. } => "intended send to receipt after the commit".to_owned(),
        Kind::Delay { .. } => format!("lateness after {:?} of delay", readers.delay),
    };
    report.options.push_str(&format!(
        ", {} of {}",
        counted(readers.groups as u64, "group"),
        counted(readers.consumers as u64, "consumer")
    ));
    let [p50, _, p99, ..] = sent.total.latencies.percentiles();
    let per_second = sent.total.came as f64 / report.seconds;
    report.details = vec![
        ("sends per second".to_owned(), per_second),
        ("send p50 us".to_owned(), p50 as f64),
        ("send p99 us".to_owned(), p99 as f64),
    ];
    report.refused = sent.total.errors;
    report.checked = format!(
        "{} acknowledged messages: that each group gets each of them, whole and once",
        sent.expected
    );
}

/// Every queue of the topics, from its end on.
fn ends(plan: &Plan, routes: &[Route]) -> Result<Vec<Queue>, BenchError> {
    let mut client = plan.connect(route::one_broker(routes)?)?;
    let queues = route::queues(routes);
    let ends = ends_of(&mut client, request::GET_MAX_OFFSET, &queues, plan.timeout)?;
    let from = |((topic, id), next)| Queue::new(topic, id, next, i64::MAX);
    Ok(queues.into_iter().zip(ends).map(from).collect())
}

/// Waits until as many messages arrived as were accepted, or nobody waits for them any more, and
/// then for what should not come.
fn await_last(
    monitor: &mut Monitor<'_>,
    shared: &Shared<'_>,
    expected: u64,
    nobody: impl Fn() -> bool,
) -> Result<(), BenchError> {
    let limit = Instant::now() + shared.run.plan.timeout + shared.readers.delay;
    let wanted = expected * shared.readers.groups as u64;
    let is_over = || {
        let received = shared.received.iter().map(|n| n.load(Ordering::Acquire));
        received.sum::<u64>() >= wanted || Instant::now() >= limit || nobody()
    };
    monitor.watch(is_over)?;
    monitor.await_rest(is_over)?;
    monitor.close();
    let settled = Instant::now() + SETTLED;
    monitor.await_rest(|| Instant::now() >= settled || nobody())
}

/// What all consumers measured, the largest share of the time that one of them worked, and when
/// the last message came; what each group lacks or has twice is a fault.
fn join(
    consumers: Vec<ScopedJoinHandle<'_, Result<Tally, BenchError>>>,
    shared: &Shared<'_>,
    sent: Option<&Tallies>,
    faults: &mut Faults,
) -> Result<(Measured, f64, Instant), BenchError> {
    let readers = shared.readers;
    let (mut total, mut busiest) = (Measured::new()?, 0.0_f64);
    let mut last = shared.run.counted_from;
    let mut groups = vec![Group::default(); readers.groups];
    for (number, consumer) in consumers.into_iter().enumerate() {
        let tally = consumer
            .join()
            .map_err(|_| BenchError::System("a consumer thread panicked".to_owned()))??;
        total.add(&tally.total)?;
        faults.add(&tally.faults);
        let group = &mut groups[number / readers.consumers];
        group.arrivals.add(&tally.arrivals, faults);
        group.places = group.places.wrapping_add(tally.places);
        group.failed |= tally.failed;
        busiest = busiest.max(tally.busy);
        last = last.max(tally.last);
    }
    let plain = shared.run.plan.shape.kind == Kind::Plain;
    if let Some(sent) = sent {
        for group in &groups {
            judge(group, sent, plain, faults);
        }
    }
    Ok((total, busiest, last))
}

/// What a group lacks of what was acknowledged, and whether it got the `plain` messages where
/// their SEND_OK said.
fn judge(group: &Group, sent: &Tallies, plain: bool, faults: &mut Faults) {
    let missing = |(producer, accepted)| group.arrivals.missing(producer, accepted);
    let missing: u64 = sent.accepted.iter().enumerate().map(missing).sum();
    let kind = match group.failed {
        false => "message acknowledged and never received",
        true => "message acknowledged and not looked for: a consumer failed",
    };
    faults.count_many(kind, missing);
    // Only of messages that were all acknowledged is known where they should be.
    let is_all = missing == 0 && group.arrivals.count() == sent.expected;
    if plain && is_all && group.places != sent.places {
        faults.count("messages received at other queue offsets than SEND_OK named");
    }
}

fn consume(
    address: &str,
    queues: Vec<Queue>,
    shared: &Shared<'_>,
    number: usize,
) -> Result<Tally, BenchError> {
    let run = shared.run;
    let recorder = Recorder::new(&run.series, number);
    let connected = run.plan.connect(address);
    run.ready.wait();
    if connected.is_err() {
        run.cut();
    }
    let group = match number / shared.readers.consumers {
        0 => GROUP.to_owned(),
        group => format!("{GROUP}_{group}"),
    };
    let mut puller = Puller::new(connected?, &group, queues, shared.readers.pull, HOLD);
    let mut reader = Reader {
        shared,
        recorder: recorder?,
        arrivals: Arrivals::default(),
        places: 0,
        received: 0,
        last: run.begin,
    };
    let mut failed = false;
    let cpu = process::own_thread_us();
    let begun = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        if let Err(error) = reader.step(&mut puller) {
            puller.faults.count(&error.to_string());
            run.cut();
            failed = true;
            break;
        }
        shared.received[number].store(reader.received, Ordering::Release);
    }
    let used = process::own_thread_us().unwrap_or(0) - cpu.unwrap_or(0);
    Ok(Tally {
        total: reader.recorder.finish(),
        arrivals: reader.arrivals,
        places: reader.places,
        faults: puller.faults,
        failed,
        last: reader.last,
        busy: used as f64 / 1e6 / begun.elapsed().as_secs_f64().max(1e-9),
    })
}

/// What a consumer notes of the messages that come.
struct Reader<'a> {
    shared: &'a Shared<'a>,
    recorder: Recorder<'a>,
    arrivals: Arrivals,
    places: u64,
    received: u64,
    last: Instant,
}

impl Reader<'_> {
    fn step(&mut self, puller: &mut Puller) -> Result<(), BenchError> {
        puller.ask()?;
        let now = Instant::now();
        self.recorder.pass(now);
        // Looks up now and then whether the run is over; the broker may hold a pull for longer.
        let deadline = (now + Duration::from_millis(100)).min(self.recorder.boundary());
        let asked = puller.answer(deadline, |record, content, faults| {
            self.note(record, content, faults);
        })?;
        let limit = HOLD + self.shared.run.plan.timeout;
        if asked.is_none()
            && puller
                .waits_since()
                .is_some_and(|since| since.elapsed() > limit)
        {
            return Err(BenchError::System(format!(
                "no answer to a pull within {limit:?}"
            )));
        }
        Ok(())
    }

    fn note(&mut self, record: &Record<'_>, content: Content, faults: &mut Faults) {
        let run = self.shared.run;
        let Content::Whole(stamp) = content else {
            return;
        };
        if stamp.run != run.id {
            return;
        }
        if run.plan.shape.kind.rolls_back(stamp.sequence) {
            faults.count("message received that was rolled back");
            return;
        }
        if !self.arrivals.note(stamp.producer, stamp.sequence) {
            faults.count("message received twice");
            return;
        }
        let (queue, offset) = (record.queue_id(), record.queue_offset());
        let mark = read_back::mark(stamp.producer, stamp.sequence, queue, offset);
        self.places = self.places.wrapping_add(mark);
        self.received += 1;
        let now = Instant::now();
        self.last = now;
        let intended = run.clock.at(stamp.intended_ns);
        let due = intended + self.shared.readers.delay;
        if now + EARLY < due {
            faults.count("message delivered before its time");
        }
        let counted = run.counted(intended, now, run.lag);
        let latency = now.saturating_duration_since(due);
        let bytes = record.body().len() as u64;
        self.recorder.messages(now, 1, bytes, counted);
        self.recorder.latency(now, latency, 1, counted.due);
    }
}
