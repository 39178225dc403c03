//! From the moment a message was meant to be sent to the moment a consumer that waits for it has
//! it: producers send at a fixed rate, consumers hold long polls on every queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use serde::Serialize;

use super::payload::{Arrivals, Clock, Stamp};
use super::produce::{Pace, Producer, Run, Tally};
use super::puller::{Puller, Queue, end_of};
use super::{ANSWER_TIMEOUT, BenchError, Cost, Faults, Latencies, Moment, route};

/// How long a broker may hold a pull.
const HOLD: Duration = Duration::from_secs(5);
/// How long the last messages may take to arrive.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What to send and read.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name server, `host:port`.
    pub name_server: String,
    /// The topic; it must exist.
    pub topic: String,
    /// Producing connections.
    pub producers: usize,
    /// Consuming connections; queues are dealt to them in turn.
    pub consumers: usize,
    /// Messages per second, of all producers together.
    pub rate: f64,
    /// Body bytes of a message.
    pub size: usize,
    /// Time that is not counted, first.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
    /// Broker process on this host whose CPU time and memory are reported.
    pub broker_pid: Option<u32>,
}

impl Plan {
    /// The run of this plan, which begins shortly.
    fn begin(&self) -> Run {
        let clock = Clock {
            origin: Instant::now(),
        };
        let begin = clock.origin + Duration::from_millis(200);
        let counted_from = begin + self.warm_up;
        Run {
            id: super::now_ms().unsigned_abs(),
            clock,
            counted: counted_from..counted_from + self.duration,
            pace: Pace::Open { rate: self.rate },
            begin,
            producers: self.producers,
            size: self.size,
        }
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Messages that arrived and were meant to be sent in the counted time.
    pub messages: u64,
    /// Counted seconds.
    pub seconds: f64,
    /// Messages per second.
    pub per_second: f64,
    /// Percentiles in microseconds from the intended send to the receipt: 50, 90, 99, 99.9, 99.99
    /// and the maximum.
    pub latency_us: [u64; 6],
    /// What it cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// What was wrong.
    pub faults: Faults,
}

/// What consumers share.
struct Received<'a> {
    run: &'a Run,
    counted: std::ops::Range<u64>,
    arrivals: Mutex<Arrivals>,
    received: AtomicU64,
    stop: AtomicBool,
}

/// Runs the plan.
///
/// # Errors
/// [`BenchError`] when there is no route, a connection fails or an answer does not come.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let routes = route::find(&plan.name_server, std::slice::from_ref(&plan.topic))?;
    let address = routes[0].address.as_str();
    let mut shares: Vec<Vec<Queue>> = vec![Vec::new(); plan.consumers];
    let mut client = Client::connect(address, ANSWER_TIMEOUT)?;
    for id in 0..routes[0].queues {
        let next = end_of(&mut client, &plan.topic, id)?;
        shares[id as usize % plan.consumers].push(Queue::new(&plan.topic, id, next, i64::MAX));
    }
    let run = plan.begin();
    let clock = run.clock;
    let shared = Received {
        run: &run,
        counted: clock.ns(run.counted.start)..clock.ns(run.counted.end),
        arrivals: Mutex::default(),
        received: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let barrier = Barrier::new(plan.producers + plan.consumers);
    thread::scope(|scope| {
        let (shared, barrier, routes) = (&shared, &barrier, routes.as_slice());
        let consumers: Vec<_> = shares
            .into_iter()
            .map(|queues| scope.spawn(move || consume(address, queues, shared, barrier)))
            .collect();
        let producers: Vec<_> = (0..plan.producers)
            .map(|index| {
                scope.spawn(move || Producer::connect(shared.run, routes, index, barrier)?.run())
            })
            .collect();
        thread::sleep(run.counted.start.saturating_duration_since(Instant::now()));
        let before = Moment::now(plan.broker_pid);
        thread::sleep(run.counted.end.saturating_duration_since(Instant::now()));
        let after = Moment::now(plan.broker_pid);
        let mut outcome = Outcome::new()?;
        let sent = outcome.producers(producers);
        await_last(shared, sent.iter().sum());
        shared.stop.store(true, Ordering::Release);
        outcome.consumers(consumers);
        outcome.compare(&sent, shared);
        if let Some(error) = outcome.failed {
            return Err(error);
        }
        let latencies = outcome.latencies;
        let seconds = plan.duration.as_secs_f64();
        Ok(Report {
            messages: latencies.count(),
            seconds,
            per_second: latencies.count() as f64 / seconds,
            latency_us: latencies.percentiles(),
            cost: before.cost_until(&after, latencies.count()),
            faults: outcome.faults,
        })
    })
}

type Joined<'scope, T> = Vec<thread::ScopedJoinHandle<'scope, Result<T, BenchError>>>;

/// What all threads saw.
struct Outcome {
    latencies: Latencies,
    faults: Faults,
    failed: Option<BenchError>,
}

impl Outcome {
    fn new() -> Result<Self, BenchError> {
        Ok(Self {
            latencies: Latencies::new()?,
            faults: Faults::default(),
            failed: None,
        })
    }

    /// Sends accepted from each producer.
    fn producers(&mut self, threads: Joined<'_, Tally>) -> Vec<u64> {
        let mut accepted = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(Ok(tally)) => {
                    self.faults.add(&tally.faults);
                    accepted.push(tally.accepted);
                }
                Ok(Err(error)) => self.failed = Some(error),
                Err(_) => self.failed = Some(panicked("producer")),
            }
        }
        accepted
    }

    fn consumers(&mut self, threads: Joined<'_, (Latencies, Faults)>) {
        for thread in threads {
            match thread.join() {
                Ok(Ok((latencies, faults))) => {
                    self.faults.add(&faults);
                    self.failed = self.latencies.add(&latencies).err().or(self.failed.take());
                }
                Ok(Err(error)) => self.failed = Some(error),
                Err(_) => self.failed = Some(panicked("consumer")),
            }
        }
    }

    fn compare(&mut self, sent: &[u64], shared: &Received<'_>) {
        let arrivals = shared
            .arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (producer, count) in (0..).zip(sent) {
            for _ in 0..arrivals.missing(producer, *count) {
                self.faults.count("message acknowledged and never received");
            }
        }
    }
}

fn panicked(who: &str) -> BenchError {
    BenchError::System(format!("a {who} thread panicked"))
}

/// Waits until as many messages arrived as were accepted.
fn await_last(shared: &Received<'_>, accepted: u64) {
    let limit = Instant::now() + LAST_WAIT;
    while shared.received.load(Ordering::Acquire) < accepted && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
    }
}

fn consume(
    address: &str,
    queues: Vec<Queue>,
    shared: &Received<'_>,
    barrier: &Barrier,
) -> Result<(Latencies, Faults), BenchError> {
    let connected = Client::connect(address, ANSWER_TIMEOUT);
    let mut latencies = Latencies::new()?;
    barrier.wait();
    let mut puller = Puller::new(connected?, queues, 32, HOLD);
    while !shared.stop.load(Ordering::Acquire) {
        puller.ask()?;
        // Looks up now and then whether the run is over.
        puller.answer(
            Instant::now() + Duration::from_millis(100),
            |record, faults| {
                let Some(stamp) = Stamp::read(record.body()).filter(|s| s.run == shared.run.id)
                else {
                    return;
                };
                if shared.counted.contains(&stamp.intended_ns) {
                    latencies.record(shared.run.clock.since(stamp.intended_ns));
                }
                let is_new = shared
                    .arrivals
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .note(stamp.producer, stamp.sequence);
                if is_new {
                    shared.received.fetch_add(1, Ordering::AcqRel);
                } else {
                    faults.count("message received twice");
                }
            },
        )?;
    }
    Ok((latencies, puller.faults))
}
