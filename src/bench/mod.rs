//! The load generator: drives any RocketMQ-protocol broker and checks what it does.
//!
//! Every message carries who sent it, its number and the moment it was meant to be sent; a run in
//! which one is lost, doubled, out of order, damaged or refused has failed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use saturnmq_net::client::ClientError;
use serde::Serialize;
use thiserror::Error;

pub mod drain;
pub mod end_to_end;
pub mod payload;
pub mod process;
pub mod produce;
pub mod puller;
pub mod route;

use process::Usage;

/// Longest wait for any one answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest latency that is told apart, in microseconds.
const MAX_LATENCY_US: u64 = 600_000_000;
/// Kinds of errors that are counted apart.
const MAX_KINDS: usize = 20;

/// Why no measurement came of it.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A connection failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The name server has no usable route.
    #[error("name server {name_server} has no route for topic {topic} nor for TBW102: {why}")]
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
    /// The broker did not do what it should; the report has been printed.
    #[error("the run has failed: {0}")]
    Failed(String),
}

/// Latencies in microseconds.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    ///
    /// # Errors
    /// [`BenchError::System`] when there is no memory for them.
    pub fn new() -> Result<Self, BenchError> {
        Histogram::new_with_bounds(1, MAX_LATENCY_US, 3)
            .map(Self)
            .map_err(|error| BenchError::System(error.to_string()))
    }

    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(MAX_LATENCY_US);
        self.0.saturating_record(micros.max(1));
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Percentiles 50, 90, 99, 99.9, 99.99 and the maximum.
    pub fn percentiles(&self) -> [u64; 6] {
        [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0].map(|quantile| self.0.value_at_quantile(quantile))
    }

    /// Adds those of another thread.
    ///
    /// # Errors
    /// [`BenchError::System`] when the histograms do not fit each other.
    pub fn add(&mut self, other: &Self) -> Result<(), BenchError> {
        self.0
            .add(&other.0)
            .map_err(|error| BenchError::System(error.to_string()))
    }
}

/// What went wrong, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Faults(BTreeMap<String, u64>);

impl Faults {
    /// Counts one of a kind.
    pub fn count(&mut self, kind: &str) {
        if let Some(number) = self.0.get_mut(kind) {
            *number += 1;
        } else if self.0.len() < MAX_KINDS {
            self.0.insert(kind.to_owned(), 1);
        } else {
            *self.0.entry("others".to_owned()).or_default() += 1;
        }
    }

    /// Counts an answer that is an error, by its code and remark.
    pub fn refused(&mut self, code: i32, remark: Option<&str>) {
        let remark: String = remark.unwrap_or("no remark").chars().take(100).collect();
        self.count(&format!("code {code}: {remark}"));
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        for (kind, number) in &other.0 {
            *self.0.entry(kind.clone()).or_default() += number;
        }
    }

    /// How many there were in all.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Kinds and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(kind, number)| (kind.as_str(), *number))
    }

    /// Fails when there was any.
    ///
    /// # Errors
    /// [`BenchError::Failed`] names them.
    pub fn verdict(&self) -> Result<(), BenchError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = self.iter().map(|(k, n)| format!("{n} x {k}")).collect();
        Err(BenchError::Failed(list.join("; ")))
    }
}

/// What a broker process and this one used in the counted time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Broker CPU microseconds per message.
    pub broker_cpu_us: Option<f64>,
    /// Broker anonymous memory at the end, in bytes.
    pub broker_anonymous_bytes: Option<u64>,
    /// Broker resident file pages at the end, in bytes.
    pub broker_file_bytes: Option<u64>,
    /// This process's CPU microseconds per message.
    pub client_cpu_us: Option<f64>,
}

/// Usage of broker and client at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    broker: Option<Usage>,
    client: Option<Usage>,
}

impl Moment {
    /// Now; `broker_pid` names the broker's process on this host.
    pub fn now(broker_pid: Option<u32>) -> Self {
        Self {
            broker: broker_pid.and_then(process::usage),
            client: process::usage(std::process::id()),
        }
    }

    /// What was used since, for that many messages.
    pub fn cost_until(&self, end: &Self, messages: u64) -> Cost {
        let each = |before: Option<Usage>, after: Option<Usage>| {
            let used = after?.cpu_us.saturating_sub(before?.cpu_us);
            (messages > 0).then(|| used as f64 / messages as f64)
        };
        Cost {
            broker_cpu_us: each(self.broker, end.broker),
            broker_anonymous_bytes: end.broker.map(|usage| usage.anonymous_bytes),
            broker_file_bytes: end.broker.map(|usage| usage.file_bytes),
            client_cpu_us: each(self.client, end.client),
        }
    }
}

/// When sends are due: a fixed number of them per second, from a fixed moment on.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    start: Instant,
    interval: Duration,
    next: u32,
}

impl Schedule {
    /// Sends of one of `producers` connections, which share `per_second` evenly and begin one
    /// after the other.
    pub fn new(start: Instant, per_second: f64, producers: usize, index: usize) -> Self {
        let interval = Duration::from_secs_f64(producers as f64 / per_second);
        Self {
            start: start + interval.mul_f64(index as f64 / producers as f64),
            interval,
            next: 0,
        }
    }

    /// When the next send is due.
    pub fn due(&self) -> Instant {
        self.start + self.interval * self.next
    }

    /// The next send was made.
    pub fn advance(&mut self) {
        // Begins anew before the number of a send overflows.
        if self.next == u32::MAX {
            self.start = self.due();
            self.next = 0;
        }
        self.next += 1;
    }
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_run_with_any_fault_has_failed() {
        let mut faults = Faults::default();
        assert!(faults.verdict().is_ok());
        for number in 0..30 {
            faults.refused(number, Some("busy"));
        }
        assert_eq!(faults.total(), 30);
        let text = faults.verdict().unwrap_err().to_string();
        assert!(
            text.contains("1 x code 0: busy") && text.contains("10 x others"),
            "{text}"
        );
    }
}
