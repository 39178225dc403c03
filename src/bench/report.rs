//! What a run is found to have been: the same fields for every kind of load, as JSON and as text.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::faults::Faults;
use super::monitor::{Observed, Sample};
use super::plan::{Pace, Plan, Run};
use super::recorder::Measured;
use super::{BenchError, shown_us};

/// A thread of the load generator that worked for this share of the time had no time to wait.
const BUSY_THREAD: f64 = 0.9;
/// From this share on the machine counts as full.
const FULL_MACHINE: f64 = 0.95;
/// A rate of which a smaller share came in time was not kept.
const KEPT: f64 = 0.95;
/// What comes within this time after the end was held up, by a stall for example: that is no rate.
const HELD_UP: Duration = Duration::from_millis(500);

/// What broker and load generator used in the counted time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Broker CPU microseconds per message.
    pub broker_cpu_us: Option<f64>,
    /// CPUs that the broker kept busy.
    pub broker_cores: Option<f64>,
    /// Most anonymous memory that the broker was seen to have, in bytes.
    pub broker_anonymous_bytes: Option<u64>,
    /// Most resident file pages that the broker was seen to have, in bytes.
    pub broker_file_bytes: Option<u64>,
    /// Most resident memory of both kinds in the broker's whole life, in bytes.
    pub broker_peak_bytes: Option<u64>,
    /// Bytes that the broker caused to be written per byte of the messages' bodies.
    pub broker_written_per_byte: Option<f64>,
    /// Those of them that were records in the commit log, in whole blocks; only SaturnMQ says.
    pub broker_log_per_byte: Option<f64>,
    /// Those that were zeros for the commit log's next files.
    pub broker_zeros_per_byte: Option<f64>,
    /// The rest: ConsumeQueues, index and all others.
    pub broker_rest_per_byte: Option<f64>,
    /// Times that the broker's threads went to sleep, per message.
    pub broker_switches: Option<f64>,
    /// Times that the broker's threads were made to give up a CPU, per message.
    pub broker_preempted: Option<f64>,
    /// This process's CPU microseconds per message.
    pub client_cpu_us: Option<f64>,
    /// CPUs that this process kept busy.
    pub client_cores: Option<f64>,
    /// Share of the machine's CPU time that anybody used, from 0 to 1.
    pub machine_busy: Option<f64>,
}

/// What was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Kind of load.
    pub load: String,
    /// What was asked for, in words.
    pub options: String,
    /// What latencies are of.
    pub latency_of: String,
    /// Messages that went well, of those that were due in the counted time.
    pub messages: u64,
    /// Messages that did not, of the same.
    pub refused: u64,
    /// Bytes of the bodies, or of the records where whole records were read.
    pub bytes: u64,
    /// Counted seconds.
    pub seconds: f64,
    /// Messages per second that came in the counted time.
    pub per_second: f64,
    /// Bytes of their bodies, or of whole records, per second.
    pub bytes_per_second: f64,
    /// Messages per second that were due, in an open loop.
    pub due_per_second: Option<f64>,
    /// Whether as many came, but for 5 %, in an open loop.
    pub rate_kept: Option<bool>,
    /// Latency percentiles in microseconds: 50, 90, 99, 99.9, 99.99 and the maximum.
    pub latency_us: [u64; 6],
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// What it cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// What was wrong.
    pub faults: Faults,
    /// What of the messages was checked.
    pub checked: String,
    /// Whether anything was wrong, or the rate was not kept.
    pub failed: bool,
    /// What throws doubt on the numbers.
    pub warnings: Vec<String>,
    /// Whether the run was cut short.
    pub interrupted: bool,
    /// More about this kind of load: (name, number).
    pub details: Vec<(String, f64)>,
    /// Latency by percentile: (percentile, microseconds).
    pub curve: Vec<(f64, u64)>,
    /// The intervals.
    pub series: Vec<Sample>,
    /// Where it was measured.
    pub environment: Environment,
}

impl Report {
    /// The report of what was observed and measured.
    pub fn new(load: &str, plan: &Plan, seen: &Observed, total: &Measured) -> Self {
        let cost = seen.cost(total.came, total.came_bytes);
        Self {
            load: load.to_owned(),
            options: format!("{}, {}", plan.pace_text(), plan.shape_text()),
            latency_of: match plan.pace {
                Pace::Open { .. } => "intended send to SEND_OK".to_owned(),
                Pace::Closed { .. } => "send to SEND_OK".to_owned(),
            },
            messages: total.messages,
            refused: total.errors,
            bytes: total.bytes,
            seconds: seen.seconds,
            per_second: total.came as f64 / seen.seconds,
            bytes_per_second: total.came_bytes as f64 / seen.seconds,
            due_per_second: None,
            rate_kept: None,
            latency_us: total.latencies.percentiles(),
            mean_us: total.latencies.histogram().mean(),
            cost,
            faults: Faults::default(),
            checked: "the answers to the sends".to_owned(),
            failed: false,
            warnings: Vec::new(),
            interrupted: seen.interrupted,
            details: Vec::new(),
            curve: total.latencies.curve(),
            series: seen.series.clone(),
            environment: Environment::default(),
        }
    }

    /// Warns when the load generator may have been what limited a run; `busiest` is the largest
    /// share of the time that one of its threads worked.
    pub fn judge_client(&mut self, busiest: f64) {
        if busiest > BUSY_THREAD {
            self.warnings.push(format!(
                "a thread of the load generator worked for {:.0} % of the time: it may be the \
                 limit, not the broker; use more connections",
                busiest * 100.0
            ));
        }
        let cost = &self.cost;
        let (Some(busy), Some(client)) = (cost.machine_busy, cost.client_cores) else {
            return;
        };
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let broker = cost.broker_cores.unwrap_or(0.0);
        // Without the broker's process nobody can tell its work from that of others.
        let others = busy * cpus as f64 - client - broker;
        if broker > 0.0 && others > 0.1 * cpus as f64 {
            self.warnings.push(format!(
                "other processes kept {others:.2} of {cpus} CPUs busy: the numbers are theirs, too"
            ));
        }
        if busy > FULL_MACHINE && client > f64::max(0.25 * broker, 0.1 * cpus as f64) {
            self.warnings.push(format!(
                "the machine was {:.0} % busy, with {client:.2} CPUs for the load generator: a \
                 broker alone on it would do better",
                busy * 100.0
            ));
        }
    }

    /// Adds to the report of an open loop what was due per second, where `share` of each message
    /// sent is meant to come, and whether it was kept: not when less came and the `last` of it long
    /// after the end.
    pub fn judge_pace(&mut self, run: &Run<'_>, share: f64, last: Instant) {
        let Pace::Open { rate } = run.plan.pace else {
            return;
        };
        let due = rate * share;
        self.due_per_second = Some(due);
        let end = run.last_due(rate) + run.lag;
        let late = last.saturating_duration_since(end).as_secs_f64();
        let excused = HELD_UP.as_secs_f64().max(self.seconds * (1.0 - KEPT));
        let kept = self.per_second >= KEPT * due || late <= excused;
        self.rate_kept = Some(kept);
        if !kept {
            self.warnings.push(format!(
                "the rate was not kept: {due:.0}/s were due, {:.0}/s came in the counted time, and \
                 the last {late:.1} s after it",
                self.per_second
            ));
        }
    }

    /// Takes over from the report of an earlier part of the load that it did not keep its rate.
    pub fn add_pace(&mut self, part: &Self) {
        if part.rate_kept == Some(false) {
            self.rate_kept = Some(false);
            self.warnings.extend(part.warnings.iter().cloned());
        }
    }

    /// Fails when something was wrong or the rate was not kept.
    ///
    /// # Errors
    /// [`BenchError::Failed`] says what.
    pub fn verdict(&self) -> Result<(), BenchError> {
        self.faults.verdict()?;
        match self.rate_kept {
            Some(false) => Err(BenchError::Failed("the rate was not kept".to_owned())),
            _ => Ok(()),
        }
    }

    /// Adds the slowest whole interval of an open loop, as a share of the rate that was asked for.
    pub fn slowest_interval(&mut self, plan: &Plan) {
        let Pace::Open { rate } = plan.pace else {
            return;
        };
        let length = plan.watch.interval.as_secs_f64();
        let whole = |sample: &&Sample| sample.at >= 0.0 && sample.at + length <= self.seconds;
        let rates = self.series.iter().filter(whole).map(|s| s.per_second);
        if let Some(slowest) = rates.reduce(f64::min) {
            let name = "slowest interval, of the rate".to_owned();
            self.details.push((name, slowest / rate));
        }
    }

    /// The report on one line.
    ///
    /// # Errors
    /// [`BenchError::System`] when it cannot be written as JSON.
    pub fn json(&self) -> Result<String, BenchError> {
        serde_json::to_string(self).map_err(|error| BenchError::System(error.to_string()))
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, to: &mut String) -> std::fmt::Result {
        let Self {
            load,
            options,
            seconds,
            ..
        } = self;
        writeln!(to, "{load}: {options}, {seconds:.1} s")?;
        if self.interrupted {
            writeln!(to, "cut short; this is the result so far")?;
        }
        let due = self.due_per_second;
        writeln!(
            to,
            "messages   {:>12.0}/s   {:.1} MiB/s   ({}{} in all, {} refused)",
            self.per_second,
            self.bytes_per_second / 1_048_576.0,
            due.map_or_else(String::new, |due| format!("due {due:.0}/s; ")),
            self.messages,
            self.refused
        )?;
        if !self.curve.is_empty() {
            let [p50, p90, p99, p999, p9999, max] = self.latency_us.map(shown_us);
            writeln!(
                to,
                "latency    p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}  p99.99 {p9999}  \
                 max {max}   ({})",
                self.latency_of
            )?;
        }
        self.write_cost(to)?;
        for (name, number) in &self.details {
            writeln!(to, "{name:<28} {number:.2}")?;
        }
        writeln!(to, "checked    {}", self.checked)?;
        for warning in &self.warnings {
            writeln!(to, "warning    {warning}")?;
        }
        for (kind, number) in self.faults.iter() {
            writeln!(to, "fault      {number} x {kind}")?;
        }
        if self.failed {
            writeln!(to, "the run has FAILED")?;
        }
        Ok(())
    }

    fn write_cost(&self, to: &mut String) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let cost = &self.cost;
        if let (Some(cpu), Some(cores)) = (cost.broker_cpu_us, cost.broker_cores) {
            write!(
                to,
                "broker     {cpu:.1} CPU us per message, {cores:.2} CPUs"
            )?;
            if let (Some(sleeps), Some(preempted)) = (cost.broker_switches, cost.broker_preempted) {
                write!(
                    to,
                    ", context switches per message {sleeps:.3} own, {preempted:.3} forced"
                )?;
            }
            writeln!(to)?;
        }
        if let Some(written) = cost.broker_written_per_byte {
            writeln!(to, "written    {written:.2} bytes per byte of body")?;
        }
        if let (Some(log), Some(zeros)) = (cost.broker_log_per_byte, cost.broker_zeros_per_byte) {
            // All bytes are known of a process on this host only.
            let first = match cost.broker_written_per_byte {
                Some(_) => "of these   ",
                None => "written    bytes per byte of body: ",
            };
            write!(
                to,
                "{first}{log:.2} to the commit log, {zeros:.2} zeros for its next files"
            )?;
            if let Some(rest) = cost.broker_rest_per_byte {
                write!(to, ", {rest:.2} to queues, index and others")?;
            }
            writeln!(to)?;
        }
        if let (Some(anonymous), Some(file), Some(peak)) = (
            cost.broker_anonymous_bytes,
            cost.broker_file_bytes,
            cost.broker_peak_bytes,
        ) {
            writeln!(
                to,
                "memory     {:.1} MiB anonymous, {:.1} MiB of mapped files, {:.1} MiB at its peak",
                mib(anonymous),
                mib(file),
                mib(peak)
            )?;
        }
        if let (Some(cpu), Some(cores)) = (cost.client_cpu_us, cost.client_cores) {
            writeln!(
                to,
                "client     {cpu:.1} CPU us per message, {cores:.2} CPUs"
            )?;
        }
        Ok(())
    }
}
