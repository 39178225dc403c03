//! What all loads have in common: what is asked for, and the run that comes of it.

use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use saturnmq_net::frame::Codec;

use super::message::Shape;
use super::payload::Clock;
use super::recorder::{Counted, Series};
use super::route::{self, Route};
use super::{BenchError, counted, now_ms};

/// How sends follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// A fixed number in flight per connection.
    Closed {
        /// That number.
        in_flight: usize,
    },
    /// A fixed number of messages per second, of all connections together.
    Open {
        /// That number.
        rate: f64,
    },
}

/// Where the broker is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By this name server, `host:port`.
    NameServer(String),
    /// At this address, `host:port`.
    Broker(String),
}

/// What is told while a run goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// Broker process on this host whose use of it is reported.
    pub pid: Option<u32>,
    /// Broker, `host:port`, that says how much it wrote of what kind.
    pub says_written: Option<String>,
    /// Length of an interval.
    pub interval: Duration,
    /// Whether progress is shown on the standard error stream.
    pub progress: bool,
    /// Where the histogram of each interval goes.
    pub hlog: Option<PathBuf>,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where the broker is.
    pub target: Target,
    /// Topics; each producer sends to all of them in turn, beginning at its own place.
    pub topics: Vec<String>,
    /// Queues of a topic that are used; all by default.
    pub queues: Option<i32>,
    /// Connections that send or read, each on its own thread.
    pub connections: usize,
    /// Form of the headers.
    pub codec: Codec,
    /// What messages look like.
    pub shape: Shape,
    /// Open or closed loop.
    pub pace: Pace,
    /// Time that is not counted, first.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
    /// Messages that are counted, after which the run ends.
    pub count: Option<u64>,
    /// Longest wait for any one answer, and for all that are missing after the end.
    pub timeout: Duration,
    /// What sizes, keys and tags are drawn from.
    pub seed: u64,
    /// How long the messages may be read back after the run; zero: not at all.
    pub read_back: Duration,
    /// What is told meanwhile.
    pub watch: Watch,
}

impl Plan {
    /// Where the topics are.
    ///
    /// # Errors
    /// [`BenchError`] when nobody says.
    pub fn routes(&self) -> Result<Vec<Route>, BenchError> {
        let mut routes = route::find(&self.target, &self.topics, self.timeout)?;
        if let Some(queues) = self.queues {
            for route in &mut routes {
                if route.is_new {
                    route.queues = queues;
                } else {
                    route.queues = route.queues.min(queues);
                }
            }
        }
        Ok(routes)
    }

    /// A connection in the form of this plan.
    ///
    /// # Errors
    /// [`BenchError`] when it cannot be made.
    pub fn connect(&self, address: &str) -> Result<Client, BenchError> {
        let mut client = Client::connect(address, self.timeout)?;
        client.set_codec(self.codec);
        Ok(client)
    }

    /// How it is said in the report.
    pub fn pace_text(&self) -> String {
        let connections = counted(self.connections as u64, "connection");
        match self.pace {
            Pace::Open { rate } => format!("open loop: {rate}/s over {connections}"),
            Pace::Closed { in_flight } => {
                format!("closed loop: {connections} x {in_flight}")
            }
        }
    }

    /// What messages look like, as the report says it.
    pub fn shape_text(&self) -> String {
        let shape = &self.shape;
        let mut text = format!("{} bytes", shape.sizes);
        let parts = [
            (shape.batch > 1, format!("batches of {}", shape.batch)),
            (
                shape.compress.is_some(),
                shape
                    .compress
                    .map_or_else(String::new, |m| format!("{m} compressed")),
            ),
            (shape.keys > 0, counted(shape.keys, "key")),
            (shape.unique_key, "unique keys".to_owned()),
            (shape.tags > 0, counted(shape.tags.into(), "tag")),
            (
                shape.properties > 0,
                format!("{} properties", shape.properties),
            ),
            (
                self.topics.len() > 1,
                format!("{} topics", self.topics.len()),
            ),
            (self.codec == Codec::Binary, "ROCKETMQ headers".to_owned()),
        ];
        for (_, part) in parts.iter().filter(|(wanted, _)| *wanted) {
            text.push_str(", ");
            text.push_str(part);
        }
        text
    }
}

/// A run under way.
#[derive(Debug)]
pub struct Run<'a> {
    /// What it is of.
    pub plan: &'a Plan,
    /// Tells its messages from those of other runs.
    pub id: u64,
    /// Its moments.
    pub clock: Clock,
    /// When the first send is due.
    pub begin: Instant,
    /// When counting begins.
    pub counted_from: Instant,
    /// How long after it was sent a message is meant to come; what comes is counted so much later.
    pub lag: Duration,
    /// When it ends, in nanoseconds of the clock. Comes nearer when the run is cut short.
    end_ns: AtomicU64,
    /// What the load is about.
    pub series: Series,
    /// What is measured beside it.
    pub beside: Series,
    /// Where workers wait for each other.
    pub ready: Barrier,
}

impl<'a> Run<'a> {
    /// A run which begins shortly. So many workers measure what it is about, and so many others
    /// what is beside it.
    pub fn soon(plan: &'a Plan, workers: usize, beside: usize) -> Self {
        let clock = Clock {
            origin: Instant::now(),
        };
        // Connections are made meanwhile.
        let head_start = Duration::from_millis(200 + plan.connections as u64);
        let begin = clock.origin + head_start;
        let counted_from = begin + plan.warm_up;
        Self {
            plan,
            id: id(),
            clock,
            begin,
            counted_from,
            lag: Duration::ZERO,
            end_ns: AtomicU64::new(clock.ns(counted_from + plan.duration)),
            series: Series::new(begin, plan.watch.interval, workers),
            beside: Series::unseen(begin, plan.watch.interval, beside),
            ready: Barrier::new(workers + beside),
        }
    }

    /// When sending ends.
    pub fn end(&self) -> Instant {
        self.clock.at(self.end_ns.load(Ordering::Relaxed))
    }

    /// Ends it now, unless it has ended before.
    pub fn cut(&self) {
        let now = self.clock.ns(Instant::now());
        self.end_ns.fetch_min(now, Ordering::Relaxed);
    }

    /// When waiting for the last answers ends.
    pub fn limit(&self) -> Instant {
        self.end() + self.plan.timeout
    }

    /// Whether what began then is counted.
    pub fn counts(&self, moment: Instant) -> bool {
        moment >= self.counted_from && moment < self.end()
    }

    /// Where a message counts that was due then and came at `now`, of those that are meant to come
    /// `lag` after they were sent.
    pub fn counted(&self, due: Instant, now: Instant, lag: Duration) -> Counted {
        Counted {
            due: self.counts(due),
            came: now >= self.counted_from + lag && now < self.end() + lag,
        }
    }

    /// When the last message of the counted time was due to be sent, in an open loop of that rate.
    pub fn last_due(&self, rate: f64) -> Instant {
        let all = |count: u64| Duration::try_from_secs_f64(count as f64 / rate);
        let by_count = self.plan.count.and_then(|count| all(count).ok());
        by_count.map_or(self.end(), |all| self.end().min(self.counted_from + all))
    }

    /// How many counted messages one of the producers sends, if the plan says how many in all.
    pub fn share(&self, producer: usize) -> Option<u64> {
        let batch = u64::from(self.plan.shape.batch);
        let (sends, producers) = (
            self.plan.count?.div_ceil(batch),
            self.plan.connections as u64,
        );
        let rest = u64::from((producer as u64) < sends % producers);
        Some((sends / producers + rest) * batch)
    }
}

/// A number that no other run has: the millisecond at which it began, and this process, since two
/// may begin in one.
fn id() -> u64 {
    (now_ms().unsigned_abs() << 22) | u64::from(std::process::id() & 0x3f_ffff)
}

/// When sends are due: a fixed number of them per second, from a fixed moment on.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    start: Instant,
    /// Sends of all connections.
    per_second: f64,
    producers: f64,
    index: f64,
    /// Sends made on this connection.
    made: f64,
}

impl Schedule {
    /// Sends of one of `producers` connections, which share `per_second` evenly and begin one
    /// after the other.
    pub fn new(start: Instant, per_second: f64, producers: usize, index: usize) -> Self {
        Self {
            start,
            per_second,
            producers: producers as f64,
            index: index as f64,
            made: 0.0,
        }
    }

    /// When the next send is due. Each moment is reckoned from the start: a rounded interval,
    /// added up, would let one send more or less fall into a run.
    pub fn due(&self) -> Instant {
        let number = self.made * self.producers + self.index;
        self.start + Duration::from_secs_f64(number / self.per_second)
    }

    /// How many of those that were not made are due from `from` on and before `end`.
    pub fn due_between(&self, from: Instant, end: Instant) -> u64 {
        let before = |moment: Instant| {
            let since = moment.saturating_duration_since(self.start).as_secs_f64();
            let all = (since * self.per_second - self.index) / self.producers;
            (all.ceil() - self.made).max(0.0) as u64
        };
        before(end).saturating_sub(before(from))
    }

    /// The next send was made.
    pub fn advance(&mut self) {
        self.made += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_due_and_not_sent_is_told() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 1000.0, 1, 0);
        schedule.advance();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(schedule.due_between(at(0), at(10)), 9, "1 to 9 ms");
        assert_eq!(schedule.due_between(at(5), at(10)), 5);
        assert_eq!(schedule.due_between(at(10), at(5)), 0);
        assert_eq!(schedule.due_between(at(0), at(1)), 0);
    }

    #[test]
    fn as_many_sends_fall_into_a_second_as_its_rate_says() {
        let start = Instant::now();
        for (rate, producers) in [(300, 16), (1000, 3), (77, 5), (123_457, 7)] {
            let mut sends = 0;
            for index in 0..producers {
                let mut schedule = Schedule::new(start, f64::from(rate), producers, index);
                while schedule.due() < start + Duration::from_secs(1) {
                    schedule.advance();
                    sends += 1;
                }
            }
            assert_eq!(sends, rate, "{producers} connections");
        }
    }

    #[test]
    fn producers_share_a_rate_and_take_turns() {
        let start = Instant::now();
        let at = |index| {
            let mut schedule = Schedule::new(start, 1000.0, 4, index);
            let first = schedule.due();
            schedule.advance();
            (first - start, schedule.due() - first)
        };
        for index in 0..4_u64 {
            let (first, interval) = at(index as usize);
            assert_eq!(interval, Duration::from_millis(4));
            assert_eq!(first, Duration::from_millis(index));
        }
    }
}
