//! Producers, in an open or a closed loop.
//!
//! In an open loop each send has a moment at which it is due, whatever the broker does; its
//! latency counts from that moment, so a stall counts for every message that it delays. A closed
//! loop keeps a fixed number of sends in flight: it slows down with the broker, and its latencies
//! are those of this load, not of clients that send at their own pace. The report says which.

use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::send::SendRequest;
use serde::Serialize;

use super::payload::{Clock, STAMP_BYTES, Stamp};
use super::route::{self, Route, TEMPLATE};
use super::{ANSWER_TIMEOUT, BenchError, Cost, Faults, Latencies, Moment, Schedule, now_ms};

/// Most sends in flight on a connection of an open loop; more are due then than are sent.
const MAX_IN_FLIGHT: usize = 4096;

/// How sends follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// A fixed number in flight per connection.
    Closed {
        /// That number.
        in_flight: usize,
    },
    /// A fixed number per second, of all connections together.
    Open {
        /// That number.
        rate: f64,
    },
}

/// What to send, and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name server, `host:port`.
    pub name_server: String,
    /// Topics; each connection sends to all of them in turn, beginning at its own place.
    pub topics: Vec<String>,
    /// Connections, each on its own thread.
    pub connections: usize,
    /// Open or closed loop.
    pub pace: Pace,
    /// Body bytes of a message.
    pub size: usize,
    /// Time that is not counted, first.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
    /// Broker process on this host whose CPU time and memory are reported.
    pub broker_pid: Option<u32>,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Messages answered SEND_OK in the counted time.
    pub messages: u64,
    /// Sends answered otherwise in the counted time.
    pub refused: u64,
    /// Counted seconds.
    pub seconds: f64,
    /// Messages per second.
    pub per_second: f64,
    /// Latency percentiles in microseconds: 50, 90, 99, 99.9, 99.99 and the maximum.
    pub latency_us: [u64; 6],
    /// What it cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// What was wrong.
    pub faults: Faults,
}

/// What all producers of a run have in common.
#[derive(Debug, Clone)]
pub struct Run {
    /// Tells its messages from those of other runs.
    pub id: u64,
    /// Moments of the run.
    pub clock: Clock,
    /// When sends are counted.
    pub counted: Range<Instant>,
    /// Open or closed loop.
    pub pace: Pace,
    /// When the first send is due.
    pub begin: Instant,
    /// Number of producers.
    pub producers: usize,
    /// Body bytes of a message.
    pub size: usize,
}

/// What one producer saw.
pub struct Tally {
    latencies: Latencies,
    refused: u64,
    /// Sends answered SEND_OK, counted or not.
    pub accepted: u64,
    /// What was wrong.
    pub faults: Faults,
}

/// Runs the plan.
///
/// # Errors
/// [`BenchError`] when there is no route, a connection fails or an answer does not come.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let routes = route::find(&plan.name_server, &plan.topics)?;
    let barrier = Barrier::new(plan.connections);
    let origin = Instant::now();
    let begin = origin + Duration::from_millis(200);
    let counted_from = begin + plan.warm_up;
    let run = Run {
        id: now_ms().unsigned_abs(),
        clock: Clock { origin },
        counted: counted_from..counted_from + plan.duration,
        pace: plan.pace,
        begin,
        producers: plan.connections,
        size: plan.size,
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.connections)
            .map(|index| {
                let (run, routes, barrier) = (&run, routes.as_slice(), &barrier);
                scope.spawn(move || Producer::connect(run, routes, index, barrier)?.run())
            })
            .collect();
        thread::sleep(counted_from.saturating_duration_since(Instant::now()));
        let (before, started) = (Moment::now(plan.broker_pid), Instant::now());
        thread::sleep(run.counted.end.saturating_duration_since(Instant::now()));
        let after = Moment::now(plan.broker_pid);
        let seconds = started.elapsed().as_secs_f64();
        let mut latencies = Latencies::new()?;
        let (mut refused, mut faults) = (0, Faults::default());
        for worker in workers {
            let tally = worker
                .join()
                .map_err(|_| BenchError::System("a producer thread panicked".to_owned()))??;
            latencies.add(&tally.latencies)?;
            refused += tally.refused;
            faults.add(&tally.faults);
        }
        let messages = latencies.count();
        Ok(Report {
            messages,
            refused,
            seconds,
            per_second: messages as f64 / seconds,
            latency_us: latencies.percentiles(),
            cost: before.cost_until(&after, messages),
            faults,
        })
    })
}

/// One connection's sends.
pub struct Producer<'a> {
    run: &'a Run,
    client: Client,
    routes: &'a [Route],
    index: usize,
    /// Topic of the next send.
    turn: usize,
    /// Queue of the next send, before it is fitted to the topic's queues.
    next_queue: i32,
    body: Vec<u8>,
    sequence: u64,
    outstanding: usize,
    /// Moments from which latencies count, by opaque modulo their number, which is above the
    /// number in flight.
    since: Vec<Instant>,
    tally: Tally,
}

impl<'a> Producer<'a> {
    /// Connects producer `index` and waits for the others.
    ///
    /// # Errors
    /// [`BenchError`] when the broker cannot be reached.
    pub fn connect(
        run: &'a Run,
        routes: &'a [Route],
        index: usize,
        barrier: &Barrier,
    ) -> Result<Self, BenchError> {
        let turn = index % routes.len();
        let connected = Client::connect(routes[turn].address.as_str(), ANSWER_TIMEOUT);
        barrier.wait();
        let in_flight = match run.pace {
            Pace::Closed { in_flight } => in_flight,
            Pace::Open { .. } => MAX_IN_FLIGHT,
        };
        Ok(Self {
            run,
            client: connected?,
            routes,
            index,
            turn,
            next_queue: i32::try_from(index).unwrap_or(0),
            body: vec![b'x'; run.size],
            sequence: 0,
            outstanding: 0,
            since: vec![Instant::now(); (in_flight * 2).next_power_of_two()],
            tally: Tally {
                latencies: Latencies::new()?,
                refused: 0,
                accepted: 0,
                faults: Faults::default(),
            },
        })
    }

    /// Sends until the end of the counted time and waits for the last answers.
    ///
    /// # Errors
    /// [`BenchError`] when the connection fails or an answer does not come.
    pub fn run(mut self) -> Result<Tally, BenchError> {
        match self.run.pace {
            Pace::Closed { in_flight } => self.closed(in_flight)?,
            Pace::Open { rate } => self.open(rate)?,
        }
        Ok(self.tally)
    }

    fn closed(&mut self, in_flight: usize) -> Result<(), BenchError> {
        let until = self.run.counted.end;
        for _ in 0..in_flight {
            self.queue_one(Instant::now())?;
        }
        self.client.flush()?;
        while self.outstanding > 0 {
            if !self.answer(Instant::now() + ANSWER_TIMEOUT)? {
                return Err(silent());
            }
            let now = Instant::now();
            // Answers that came together are followed by sends that go together, as from a client
            // whose threads were all woken by one read.
            loop {
                if now < until {
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
        let mut schedule = Schedule::new(self.run.begin, rate, self.run.producers, self.index);
        let until = self.run.counted.end;
        let mut heard = Instant::now();
        loop {
            let now = Instant::now();
            while schedule.due() <= now
                && schedule.due() < until
                && self.outstanding < MAX_IN_FLIGHT
            {
                self.queue_one(schedule.due())?;
                schedule.advance();
            }
            self.client.flush()?;
            let over = schedule.due() >= until;
            if over && self.outstanding == 0 {
                return Ok(());
            }
            let full = self.outstanding >= MAX_IN_FLIGHT;
            let wait = if over || full {
                now + ANSWER_TIMEOUT
            } else {
                schedule.due()
            };
            let mut came = self.answer(wait)?;
            if came {
                heard = Instant::now();
            } else if self.outstanding > 0 && heard.elapsed() > ANSWER_TIMEOUT {
                return Err(silent());
            } else if self.outstanding == 0 {
                heard = Instant::now();
            }
            while came {
                came = self.answer(now)?;
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
        if self.body.len() >= STAMP_BYTES {
            let stamp = Stamp {
                run: self.run.id,
                producer: u32::try_from(self.index).unwrap_or(u32::MAX),
                sequence: self.sequence,
                intended_ns: self.run.clock.ns(since),
            };
            stamp.write(&mut self.body);
        }
        let send = SendRequest {
            producer_group: "saturnmq_bench",
            topic: &route.topic,
            default_topic: TEMPLATE,
            default_topic_queue_nums: 4,
            queue_id: self.next_queue % route.queues,
            born_timestamp: now_ms(),
            properties: "WAIT\u{1}true\u{2}",
            ..SendRequest::default()
        };
        let code = request::SEND_MESSAGE_V2;
        let opaque = self.client.queue(
            code,
            false,
            |fields| send.encode_fields(code, fields),
            &self.body,
        )?;
        let slot = opaque as u32 as usize % self.since.len();
        self.since[slot] = since;
        self.sequence += 1;
        self.outstanding += 1;
        Ok(())
    }

    /// Waits for one answer and counts it; false at the deadline.
    fn answer(&mut self, deadline: Instant) -> Result<bool, BenchError> {
        let Some(command) = self.client.receive(deadline)? else {
            return Ok(false);
        };
        self.outstanding -= 1;
        let since = self.since[command.opaque as u32 as usize % self.since.len()];
        let now = Instant::now();
        // An open loop counts what was due in the counted time, a closed one what was answered.
        let moment = match self.run.pace {
            Pace::Closed { .. } => now,
            Pace::Open { .. } => since,
        };
        let counted = self.run.counted.contains(&moment);
        if command.code == response::SUCCESS {
            self.tally.accepted += 1;
            if counted {
                self.tally
                    .latencies
                    .record(now.saturating_duration_since(since));
            }
        } else {
            self.tally.refused += u64::from(counted);
            self.tally.faults.refused(command.code, command.remark);
        }
        Ok(true)
    }
}

fn silent() -> BenchError {
    BenchError::System(format!("no answer within {ANSWER_TIMEOUT:?}"))
}
