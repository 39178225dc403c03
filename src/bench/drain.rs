//! Draining a backlog: what topics hold, read as fast as the broker gives it.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use saturnmq_net::codes::request;

use super::faults::Faults;
use super::monitor::Monitor;
use super::payload::{Arrivals, Content, Stamp};
use super::plan::{Plan, Run};
use super::produce::are_done;
use super::puller::{GROUP, Puller, Queue, ends_of};
use super::recorder::{Counted, Measured, Recorder, Series};
use super::report::Report;
use super::route::{self, Route};
use super::{BenchError, counted, process};

/// Longest wait for an answer before it is looked whether the run is over.
const LOOK: Duration = Duration::from_millis(100);

/// What one reader saw.
pub struct Tally {
    /// What was read.
    pub total: Measured,
    /// Which messages of the load generator those are.
    seen: Seen,
    /// What was wrong.
    pub faults: Faults,
    /// When it was done.
    pub last: Instant,
    /// Share of the time that its thread worked, from 0 to 1.
    pub busy: f64,
}

/// Messages of any runs.
#[derive(Default)]
pub struct Seen {
    runs: HashMap<u64, Arrivals>,
    /// The run that the last message was of, and what was seen of it.
    present: (u64, Arrivals),
}

impl Seen {
    /// Notes one; false when it was there.
    fn note(&mut self, stamp: &Stamp) -> bool {
        if stamp.run != self.present.0 {
            let next = self.runs.remove(&stamp.run).unwrap_or_default();
            let (run, seen) = std::mem::replace(&mut self.present, (stamp.run, next));
            self.runs.insert(run, seen);
        }
        self.present.1.note(stamp.producer, stamp.sequence)
    }

    /// Adds what a reader saw; what others saw as well is there twice.
    pub fn add(&mut self, reader: &Tally, faults: &mut Faults) {
        let Seen { runs, present } = &reader.seen;
        for (run, seen) in runs.iter().chain([(&present.0, &present.1)]) {
            self.runs.entry(*run).or_default().add(seen, faults);
        }
    }
}

/// All queues of the topics from their first to their present last message, dealt to readers in
/// turn.
///
/// # Errors
/// [`BenchError`] when the broker does not say where they begin and end.
pub fn backlog(
    plan: &Plan,
    routes: &[Route],
    readers: usize,
) -> Result<Vec<Vec<Queue>>, BenchError> {
    let mut client = plan.connect(route::one_broker(routes)?)?;
    let queues = route::queues(routes);
    let firsts = ends_of(&mut client, request::GET_MIN_OFFSET, &queues, plan.timeout)?;
    let ends = ends_of(&mut client, request::GET_MAX_OFFSET, &queues, plan.timeout)?;
    let mut shares = vec![Vec::new(); readers];
    for (turn, (topic, id)) in queues.into_iter().enumerate() {
        let queue = Queue::new(topic, id, firsts[turn].max(0), ends[turn]);
        shares[turn % readers].push(queue);
    }
    Ok(shares)
}

/// Drains the topics, up to `pull` messages at a time.
///
/// # Errors
/// [`BenchError`] when there is no route or a connection cannot be made.
pub fn run(plan: &Plan, pull: i32) -> Result<Report, BenchError> {
    let routes = plan.routes()?;
    let shares = backlog(plan, &routes, plan.connections)?;
    let address = route::one_broker(&routes)?;
    let left = |queue: &Queue| (queue.end - queue.next).max(0).unsigned_abs();
    // How many there are tells how long it will take.
    let plan = &Plan {
        count: Some(shares.iter().flatten().map(left).sum()),
        ..plan.clone()
    };
    let run = Run::soon(plan, plan.connections, 0);
    let mut monitor = Monitor::new(&run)?;
    thread::scope(|scope| {
        let run = &run;
        let readers: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(worker, queues)| {
                scope.spawn(move || read(run, address, queues, pull, &run.series, worker))
            })
            .collect();
        monitor.watch(|| are_done(&readers))?;
        monitor.await_rest(|| are_done(&readers))?;
        let mut total = Measured::new()?;
        let (mut faults, mut last, mut busiest) = (Faults::default(), run.begin, 0.0_f64);
        let mut seen = Seen::default();
        for reader in readers {
            let tally = reader
                .join()
                .map_err(|_| BenchError::System("a reader thread panicked".to_owned()))??;
            total.add(&tally.total)?;
            faults.add(&tally.faults);
            seen.add(&tally, &mut faults);
            last = last.max(tally.last);
            busiest = busiest.max(tally.busy);
        }
        let observed = monitor.finish(last)?;
        let mut report = Report::new("drain", plan, &observed, &total);
        let connections = counted(plan.connections as u64, "connection");
        let pull = counted(pull.unsigned_abs().into(), "message");
        report.options = format!("{connections}, {pull} a pull");
        "pull to its answer".clone_into(&mut report.latency_of);
        report.faults = faults;
        let wanted = plan.count.unwrap_or(0);
        if !report.interrupted {
            let unread = wanted.saturating_sub(total.messages);
            let kind = "message in the topics and not read";
            report.faults.count_many(kind, unread);
        }
        report.checked = format!(
            "{} of {wanted} messages: whole, once, and each queue's offsets without a gap",
            total.messages
        );
        report.judge_client(busiest);
        Ok(report)
    })
}

/// Reads queues until all wanted messages were read or the run is over. A connection that fails
/// meanwhile ends the run, as a fault.
///
/// # Errors
/// [`BenchError`] when the connection cannot be made.
pub fn read(
    run: &Run<'_>,
    address: &str,
    queues: Vec<Queue>,
    pull: i32,
    series: &Series,
    worker: usize,
) -> Result<Tally, BenchError> {
    let recorder = Recorder::new(series, worker);
    let connected = run.plan.connect(address);
    run.ready.wait();
    if connected.is_err() {
        run.cut();
    }
    let mut puller = Puller::new(connected?, GROUP, queues, pull, Duration::ZERO);
    let mut recorder = recorder?;
    // A run that only reads has no warm-up.
    thread::sleep(run.counted_from.saturating_duration_since(Instant::now()));
    let cpu = process::own_thread_us();
    let begun = Instant::now();
    let mut seen = Seen::default();
    if let Err(error) = read_all(run, &mut puller, &mut recorder, &mut seen) {
        puller.faults.count(&error.to_string());
        run.cut();
    }
    let used = process::own_thread_us().unwrap_or(0) - cpu.unwrap_or(0);
    Ok(Tally {
        total: recorder.finish(),
        seen,
        faults: puller.faults,
        last: Instant::now(),
        busy: used as f64 / 1e6 / begun.elapsed().as_secs_f64().max(1e-9),
    })
}

fn read_all(
    run: &Run<'_>,
    puller: &mut Puller,
    recorder: &mut Recorder<'_>,
    seen: &mut Seen,
) -> Result<(), BenchError> {
    let timeout = run.plan.timeout;
    let mut heard = Instant::now();
    while !puller.is_done() && Instant::now() < run.end() {
        puller.ask()?;
        let (mut messages, mut bytes) = (0, 0);
        // The end of the run may come nearer meanwhile.
        let deadline = recorder.boundary().min(heard + timeout);
        let deadline = deadline.min(Instant::now() + LOOK);
        let asked = puller.answer(deadline, |record, content, faults| {
            if matches!(content, Content::Whole(stamp) if !seen.note(&stamp)) {
                faults.count("message received twice");
            }
            messages += 1;
            bytes += u64::from(record.size());
        })?;
        let now = Instant::now();
        if messages > 0 {
            heard = now;
        } else if now >= heard + timeout {
            let text = format!("no message came within {timeout:?}, and more are there");
            return Err(BenchError::System(text));
        }
        let Some(asked) = asked else {
            recorder.pass(now);
            continue;
        };
        let counted = Counted {
            due: true,
            came: run.counts(now),
        };
        recorder.messages(now, messages, bytes, counted);
        recorder.latency(now, now.saturating_duration_since(asked), 1, true);
    }
    Ok(())
}
