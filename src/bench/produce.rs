//! Closed-loop producers: each connection keeps a fixed number of sends in flight.
//!
//! A closed loop slows down with the broker, so its latencies are those of this load, not of
//! clients that send at their own pace; the report says so.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use saturnmq_net::client::{Client, ClientError};
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::route::TopicRouteData;
use saturnmq_net::messages::send::SendRequest;
use serde::Serialize;
use thiserror::Error;

use super::process;

/// Longest wait for any one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest latency that is told apart, in microseconds.
const MAX_LATENCY_US: u64 = 60_000_000;
/// Topic whose route stands in for a topic that does not exist yet.
const TEMPLATE: &str = "TBW102";

/// What to send, and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name server, `host:port`.
    pub name_server: String,
    /// Topics; each connection sends to all of them in turn, beginning at its own place.
    pub topics: Vec<String>,
    /// Connections, each on its own thread.
    pub connections: usize,
    /// Sends in flight per connection.
    pub in_flight: usize,
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
    /// Broker CPU microseconds per message.
    pub broker_cpu_us: Option<f64>,
    /// Broker anonymous memory at the end, in bytes.
    pub broker_anonymous_bytes: Option<u64>,
    /// Broker resident file pages at the end, in bytes.
    pub broker_file_bytes: Option<u64>,
}

/// Why no measurement came of it.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A connection failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The name server has no usable route.
    #[error("name server {name_server} has no route for topic {topic} nor for {TEMPLATE}: {why}")]
    NoRoute {
        /// The name server.
        name_server: String,
        /// The topic.
        topic: String,
        /// What it answered.
        why: String,
    },
    /// The system refused something.
    #[error("{0}")]
    System(String),
}

struct Route {
    address: String,
    queues: i32,
}

struct Tally {
    latencies: Histogram<u64>,
    refused: u64,
}

/// Runs the plan.
///
/// # Errors
/// [`BenchError`] when there is no route, a connection fails or an answer does not come.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let routes = find_routes(plan)?;
    let barrier = Barrier::new(plan.connections + 1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.connections)
            .map(|index| {
                let (routes, barrier) = (routes.as_slice(), &barrier);
                scope.spawn(move || produce(plan, routes, index, barrier))
            })
            .collect();
        barrier.wait();
        thread::sleep(plan.warm_up);
        let before = plan.broker_pid.and_then(process::usage);
        let started = Instant::now();
        thread::sleep(plan.duration);
        let after = plan.broker_pid.and_then(process::usage);
        let seconds = started.elapsed().as_secs_f64();
        let mut latencies = histogram()?;
        let mut refused = 0;
        for worker in workers {
            let tally = worker
                .join()
                .map_err(|_| BenchError::System("a producer thread panicked".to_owned()))??;
            latencies
                .add(&tally.latencies)
                .map_err(|error| BenchError::System(error.to_string()))?;
            refused += tally.refused;
        }
        let messages = latencies.len();
        let cpu = before
            .zip(after)
            .map(|(b, a)| (a.cpu_us - b.cpu_us) as f64 / messages as f64);
        Ok(Report {
            messages,
            refused,
            seconds,
            per_second: messages as f64 / seconds,
            latency_us: [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0]
                .map(|quantile| latencies.value_at_quantile(quantile)),
            broker_cpu_us: cpu,
            broker_anonymous_bytes: after.map(|usage| usage.anonymous_bytes),
            broker_file_bytes: after.map(|usage| usage.file_bytes),
        })
    })
}

fn histogram() -> Result<Histogram<u64>, BenchError> {
    Histogram::new_with_bounds(1, MAX_LATENCY_US, 3)
        .map_err(|error| BenchError::System(error.to_string()))
}

/// The route of every topic, all asked on one connection.
fn find_routes(plan: &Plan) -> Result<Vec<Route>, BenchError> {
    let mut client = Client::connect(plan.name_server.as_str(), ANSWER_TIMEOUT)?;
    plan.topics
        .iter()
        .map(|topic| find_route(&mut client, plan, topic))
        .collect()
}

fn find_route(client: &mut Client, plan: &Plan, topic: &str) -> Result<Route, BenchError> {
    let mut why = String::new();
    for name in [topic, TEMPLATE] {
        let answer = client.invoke(
            request::GET_ROUTEINFO_BY_TOPIC,
            |fields| {
                fields.field_str("topic", name);
            },
            &[],
            ANSWER_TIMEOUT,
        )?;
        if answer.code != response::SUCCESS {
            why = answer.remark.unwrap_or_default();
            continue;
        }
        let route: TopicRouteData = match saturnmq_net::fastjson::from_slice(&answer.body) {
            Ok(route) => route,
            Err(error) => {
                why = error.to_string();
                continue;
            }
        };
        let queues = route
            .queue_datas
            .first()
            .map_or(1, |queues| queues.write_queue_nums);
        let master = route
            .broker_datas
            .first()
            .and_then(|broker| broker.broker_addrs.get(&0));
        if let Some(address) = master {
            let queues = if name == TEMPLATE {
                queues.min(4)
            } else {
                queues
            };
            return Ok(Route {
                address: address.clone(),
                queues: queues.max(1),
            });
        }
        "no broker with id 0".clone_into(&mut why);
    }
    Err(BenchError::NoRoute {
        name_server: plan.name_server.clone(),
        topic: topic.to_owned(),
        why,
    })
}

/// One connection's sends.
struct Producer<'a> {
    client: Client,
    topics: &'a [String],
    routes: &'a [Route],
    /// Topic of the next send.
    turn: usize,
    /// Queue of the next send, before it is fitted to the topic's queues.
    next_queue: i32,
    body: Vec<u8>,
    /// Send times by opaque modulo their number, which is above the number in flight.
    sent: Vec<Instant>,
}

impl Producer<'_> {
    fn queue_one(&mut self) -> Result<(), BenchError> {
        self.turn = (self.turn + 1) % self.topics.len();
        if self.turn == 0 || self.topics.len() == 1 {
            self.next_queue = (self.next_queue + 1) & 0xffff;
        }
        let (topic, queues) = (&self.topics[self.turn], self.routes[self.turn].queues);
        let send = SendRequest {
            producer_group: "saturnmq_bench",
            topic,
            default_topic: TEMPLATE,
            default_topic_queue_nums: 4,
            queue_id: self.next_queue % queues,
            sys_flag: 0,
            born_timestamp: now_ms(),
            flag: 0,
            properties: "WAIT\u{1}true\u{2}",
            reconsume_times: 0,
            unit_mode: false,
            max_reconsume_times: None,
            batch: false,
            broker_name: None,
        };
        let code = request::SEND_MESSAGE_V2;
        let opaque = self.client.queue(
            code,
            false,
            |fields| send.encode_fields(code, fields),
            &self.body,
        )?;
        let slot = opaque as u32 as usize % self.sent.len();
        self.sent[slot] = Instant::now();
        Ok(())
    }

    /// Waits for one answer: whether it was SEND_OK, and how long it took.
    fn answer(&mut self, deadline: Instant) -> Result<Option<(bool, Duration)>, BenchError> {
        let Some(command) = self.client.receive(deadline)? else {
            return Ok(None);
        };
        let (opaque, ok) = (command.opaque, command.code == response::SUCCESS);
        let slot = opaque as u32 as usize % self.sent.len();
        Ok(Some((ok, self.sent[slot].elapsed())))
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn produce(
    plan: &Plan,
    routes: &[Route],
    index: usize,
    barrier: &Barrier,
) -> Result<Tally, BenchError> {
    let start = index % plan.topics.len();
    let connected = Client::connect(routes[start].address.as_str(), ANSWER_TIMEOUT);
    barrier.wait();
    let mut producer = Producer {
        client: connected?,
        topics: &plan.topics,
        routes,
        turn: start,
        next_queue: i32::try_from(index).unwrap_or(0),
        body: vec![b'x'; plan.size],
        sent: vec![Instant::now(); (plan.in_flight * 2).next_power_of_two()],
    };
    let counted_from = Instant::now() + plan.warm_up;
    let until = counted_from + plan.duration;
    let mut tally = Tally {
        latencies: histogram()?,
        refused: 0,
    };
    for _ in 0..plan.in_flight {
        producer.queue_one()?;
    }
    producer.client.flush()?;
    let mut outstanding = plan.in_flight;
    while outstanding > 0 {
        let Some(first) = producer.answer(Instant::now() + ANSWER_TIMEOUT)? else {
            return Err(BenchError::System(format!(
                "no answer within {ANSWER_TIMEOUT:?}"
            )));
        };
        let now = Instant::now();
        let counted = now >= counted_from && now < until;
        // Answers that came together are followed by sends that go together, as from a client
        // whose threads were all woken by one read.
        let mut next = Some(first);
        while let Some((ok, latency)) = next {
            outstanding -= 1;
            if counted {
                tally.count(ok, latency);
            }
            if now < until {
                producer.queue_one()?;
                outstanding += 1;
            }
            next = producer.answer(now)?;
        }
        producer.client.flush()?;
    }
    Ok(tally)
}

impl Tally {
    fn count(&mut self, ok: bool, latency: Duration) {
        if ok {
            let micros = u64::try_from(latency.as_micros()).unwrap_or(MAX_LATENCY_US);
            self.latencies.saturating_record(micros.max(1));
        } else {
            self.refused += 1;
        }
    }
}
