//! Watches a run while it goes on: progress, the interval log, what the broker's process uses, and
//! Ctrl-C, which ends the run with the result so far.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::plan::{Run, Watch};
use super::process::{self, Machine, Memory, Usage};
use super::recorder::Measured;
use super::report::Cost;
use super::written::Written;
use super::{BenchError, counted, interrupt, shown_us, tell};

/// Longest wait before it is looked whether the workers are done.
const LOOK: Duration = Duration::from_millis(20);
/// Time between two words about work after the run.
const SHOWN: Duration = Duration::from_secs(1);

/// Usage of broker, client and machine at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Moment {
    broker: Option<Usage>,
    client: Option<Usage>,
    machine: Option<Machine>,
    written: Option<Written>,
}

impl Moment {
    fn now(watch: &Watch) -> Self {
        Self {
            broker: watch.pid.and_then(process::usage),
            client: process::usage(std::process::id()),
            machine: process::machine(),
            written: watch.says_written.as_deref().and_then(Written::ask),
        }
    }
}

/// One interval of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it began, in seconds since counting began; negative while warming up.
    pub at: f64,
    /// Messages per second that went well.
    pub per_second: f64,
    /// Messages that did not.
    pub errors: u64,
    /// Latencies that ended in it, in microseconds: p50, p99, p99.9 and the maximum.
    pub latency_us: [u64; 4],
}

/// What was seen of a run as a whole.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Its intervals.
    pub series: Vec<Sample>,
    /// Counted seconds.
    pub seconds: f64,
    /// Whether it was cut short.
    pub interrupted: bool,
    before: Moment,
    after: Moment,
    peak: Memory,
}

impl Observed {
    /// What it cost, for the messages that came while that was used and the bytes of their bodies.
    pub fn cost(&self, messages: u64, bytes: u64) -> Cost {
        let each = |used: Option<u64>, of: u64| {
            used.filter(|_| of > 0).map(|used| used as f64 / of as f64)
        };
        let used = |get: fn(&Usage) -> u64, before: Option<Usage>, after: Option<Usage>| {
            Some(get(&after?).saturating_sub(get(&before?)))
        };
        let cpu = |usage: &Usage| usage.cpu_us;
        let (before, after) = (self.before.broker, self.after.broker);
        let broker = used(cpu, before, after);
        let client = used(cpu, self.before.client, self.after.client);
        let written = before
            .zip(after)
            .and_then(|(before, after)| Some(after.written?.saturating_sub(before.written?)));
        let said = (self.before.written.zip(self.after.written))
            .map(|(before, after)| after.since(before));
        let rest = written
            .zip(said)
            .map(|(all, said)| all.saturating_sub(said.log + said.zeros));
        let cores = |used: Option<u64>| used.map(|us| us as f64 / 1e6 / self.seconds.max(1e-9));
        Cost {
            broker_cpu_us: each(broker, messages),
            broker_cores: cores(broker),
            broker_anonymous_bytes: after.map(|_| self.peak.anonymous),
            broker_file_bytes: after.map(|_| self.peak.file),
            broker_peak_bytes: after.map(|_| self.peak.peak),
            broker_written_per_byte: each(written, bytes),
            broker_log_per_byte: each(said.map(|said| said.log), bytes),
            broker_zeros_per_byte: each(said.map(|said| said.zeros), bytes),
            broker_rest_per_byte: each(rest, bytes),
            broker_switches: each(used(|usage| usage.switches[0], before, after), messages),
            broker_preempted: each(used(|usage| usage.switches[1], before, after), messages),
            client_cpu_us: each(client, messages),
            client_cores: cores(client),
            machine_busy: self.machine_busy(),
        }
    }

    fn machine_busy(&self) -> Option<f64> {
        let (before, after) = (self.before.machine?, self.after.machine?);
        let all = after.all.saturating_sub(before.all);
        (all > 0).then(|| after.busy.saturating_sub(before.busy) as f64 / all as f64)
    }
}

/// Watches one run.
pub struct Monitor<'a> {
    run: &'a Run<'a>,
    log: Option<Log>,
    progress: Option<Progress>,
    /// First interval that was not taken.
    next: u32,
    series: Vec<Sample>,
    interrupted: bool,
    before: Option<Moment>,
    after: Option<Moment>,
    /// Whether the run lasted until its end.
    is_whole: bool,
    peak: Memory,
}

impl<'a> Monitor<'a> {
    /// Begins; once the warm-up is over Ctrl-C ends the run, not the process.
    ///
    /// # Errors
    /// [`BenchError::System`] when the interval log cannot be made.
    pub fn new(run: &'a Run<'a>) -> Result<Self, BenchError> {
        let watch = &run.plan.watch;
        Ok(Self {
            run,
            log: watch
                .hlog
                .as_deref()
                .map(|path| Log::new(path, run))
                .transpose()?,
            progress: watch.progress.then(Progress::new),
            next: 0,
            series: Vec::new(),
            interrupted: false,
            before: None,
            after: None,
            is_whole: false,
            peak: Memory::default(),
        })
    }

    /// Watches until the workers are done or the run's end has come; at once if it came before.
    ///
    /// # Errors
    /// [`BenchError::System`] when the interval log cannot be written.
    pub fn watch(&mut self, done: impl Fn() -> bool) -> Result<(), BenchError> {
        let watch = &self.run.plan.watch;
        while self.after.is_none() {
            let now = Instant::now();
            let end = self.run.end() + self.run.lag;
            if self.before.is_none() && now >= self.run.counted_from {
                self.before = Some(Moment::now(watch));
                interrupt::begin_measuring();
            }
            if now >= end {
                self.after = Some(Moment::now(watch));
                self.is_whole = true;
            }
            if self.is_whole || done() {
                break;
            }
            self.take(self.run.series.index_at(now), false)?;
            let next = match self.before {
                None => self.run.counted_from,
                Some(_) => end,
            };
            self.wait(next.saturating_duration_since(now).min(LOOK));
        }
        interrupt::begin_measuring();
        Ok(())
    }

    /// What is used from now on is not counted: all that was to be measured is done.
    pub fn close(&mut self) {
        let watch = &self.run.plan.watch;
        self.after.get_or_insert_with(|| Moment::now(watch));
    }

    /// Goes on watching until all are done, after the end of the counted time.
    ///
    /// # Errors
    /// [`BenchError::System`] when the interval log cannot be written.
    pub fn await_rest(&mut self, done: impl Fn() -> bool) -> Result<(), BenchError> {
        while !done() {
            self.take(self.run.series.index_at(Instant::now()), false)?;
            self.wait(LOOK);
        }
        Ok(())
    }

    /// Whether Ctrl-C came.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// All workers are done: what was seen. The counted time ends with the run, or with the `last`
    /// that came when that was before.
    ///
    /// # Errors
    /// [`BenchError::System`] when the interval log cannot be written.
    pub fn finish(&mut self, last: Instant) -> Result<Observed, BenchError> {
        let now = Moment::now(&self.run.plan.watch);
        let end = match self.is_whole {
            true => self.run.end(),
            false => last
                .checked_sub(self.run.lag)
                .unwrap_or(last)
                .min(self.run.end()),
        };
        let after = self.after.unwrap_or(now);
        if let Some(last) = self.run.series.last() {
            self.take(last.saturating_add(1), true)?;
        }
        if let Some(progress) = self.progress.take() {
            progress.clear();
        }
        if let Some(log) = &mut self.log {
            log.file.flush().map_err(log_failed)?;
        }
        for broker in [after.broker, now.broker].into_iter().flatten() {
            self.peak.peak = self.peak.peak.max(broker.memory.peak);
        }
        let counted = end.saturating_duration_since(self.run.counted_from);
        Ok(Observed {
            series: std::mem::take(&mut self.series),
            seconds: counted.as_secs_f64().max(1e-9),
            interrupted: self.interrupted,
            before: self.before.unwrap_or(now),
            after,
            peak: self.peak,
        })
    }

    /// Waits for work after the run, of which `so_far` of `all` is done; false when Ctrl-C came
    /// first.
    pub fn attend(
        &mut self,
        done: impl Fn() -> bool,
        what: &str,
        so_far: impl Fn() -> u64,
        all: u64,
    ) -> bool {
        let progress = self.run.plan.watch.progress.then(Progress::new);
        let mut shown = Instant::now();
        let mut goes_on = true;
        while goes_on && !done() {
            std::thread::sleep(LOOK);
            goes_on = !interrupt::take();
            if let Some(progress) = progress.as_ref().filter(|_| shown.elapsed() >= SHOWN) {
                progress.tell(format!("{what}: {} of {all}", so_far()));
                shown = Instant::now();
            }
        }
        if let Some(progress) = progress {
            progress.clear();
        }
        goes_on
    }

    /// Waits for that time; Ctrl-C ends the run.
    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
        if interrupt::take() {
            self.run.cut();
            if std::mem::replace(&mut self.interrupted, true) {
                interrupt::give_up();
            }
        }
    }

    /// Takes all whole intervals before `until`; all of them when nobody works any more.
    fn take(&mut self, until: u32, is_over: bool) -> Result<(), BenchError> {
        while self.next < until {
            let Some(interval) = self.run.series.take(self.next) else {
                return Ok(());
            };
            let index = self.next;
            self.next += 1;
            if let Some(memory) = self.run.plan.watch.pid.and_then(process::memory) {
                self.peak.anonymous = self.peak.anonymous.max(memory.anonymous);
                self.peak.file = self.peak.file.max(memory.file);
            }
            let noted = self.note(index, interval.as_ref(), is_over);
            // What cannot be noted is not measured on.
            noted.inspect_err(|_| self.run.cut())?;
        }
        Ok(())
    }

    fn note(
        &mut self,
        index: u32,
        interval: Option<&Measured>,
        is_over: bool,
    ) -> Result<(), BenchError> {
        let every = self.run.series.every();
        let start = self.run.series.start_of(index);
        if let (Some(log), Some(interval)) = (&mut self.log, interval) {
            log.write(interval, self.run, start, every)?;
        }
        let end = self.run.end();
        if is_over && start >= end {
            // The last answers came after the end: a rate of theirs would say nothing.
            return Ok(());
        }
        // The last interval may be shorter than the others.
        let length = if is_over {
            every.min(end - start)
        } else {
            every
        };
        let counted_from = self.run.counted_from;
        let at = start.saturating_duration_since(counted_from).as_secs_f64()
            - counted_from.saturating_duration_since(start).as_secs_f64();
        let [p50, _, p99, p999, _, max] =
            interval.map_or([0; 6], |interval| interval.latencies.percentiles());
        let sample = Sample {
            at: (at * 1000.0).round() / 1000.0,
            per_second: interval.map_or(0, |i| i.messages) as f64 / length.as_secs_f64(),
            errors: interval.map_or(0, |i| i.errors),
            latency_us: [p50, p99, p999, max],
        };
        self.series.push(sample);
        if let Some(progress) = &mut self.progress {
            progress.show(self.run, &sample);
        }
        Ok(())
    }
}

/// One line that is written over on a terminal, plain lines elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
    errors: u64,
    /// Counted messages so far.
    messages: f64,
}

impl Progress {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            errors: 0,
            messages: 0.0,
        }
    }

    fn show(&mut self, run: &Run<'_>, sample: &Sample) {
        self.errors += sample.errors;
        let [p50, p99, ..] = sample.latency_us;
        let phase = if sample.at < 0.0 { "warm-up " } else { "" };
        if sample.at >= 0.0 {
            self.messages += sample.per_second * run.series.every().as_secs_f64();
        }
        let end = run.end().saturating_duration_since(Instant::now());
        let left = run.plan.count.map_or(end.as_secs_f64(), |count| {
            (count as f64 - self.messages).max(0.0) / sample.per_second.max(1e-9)
        });
        let left = if left < 1e6 {
            format!("  {left:.0} s left")
        } else {
            String::new()
        };
        let line = format!(
            "{phase}{:.1} s  {:.0}/s  p50 {}  p99 {}  {}{left}",
            sample.at,
            sample.per_second,
            shown_us(p50),
            shown_us(p99),
            counted(self.errors, "error"),
        );
        self.tell(line);
    }

    fn tell(&self, line: String) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(line);
                bar.tick();
            }
            None => tell(&line),
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The interval log: a histogram per line, in the form that HdrHistogram's tools read.
struct Log {
    file: BufWriter<File>,
    serializer: V2DeflateSerializer,
}

fn log_failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::System(format!("the interval log: {error}"))
}

impl Log {
    fn new(path: &Path, run: &Run<'_>) -> Result<Self, BenchError> {
        let file = File::create(path)
            .map_err(|error| BenchError::System(format!("{}: {error}", path.display())))?;
        let mut log = Self {
            file: BufWriter::new(file),
            serializer: V2DeflateSerializer::new(),
        };
        let begin = SystemTime::now() + run.begin.saturating_duration_since(Instant::now());
        IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment("saturnmq bench; latencies in microseconds")
            .with_start_time(begin)
            .with_base_time(begin)
            .begin_log_with(&mut log.file, &mut log.serializer)
            .map_err(log_failed)?;
        Ok(log)
    }

    fn write(
        &mut self,
        interval: &Measured,
        run: &Run<'_>,
        start: Instant,
        length: Duration,
    ) -> Result<(), BenchError> {
        let since = start.saturating_duration_since(run.begin);
        // A writer without headers goes on where the last one ended.
        IntervalLogWriterBuilder::new()
            .begin_log_with(&mut self.file, &mut self.serializer)
            .map_err(log_failed)?
            .write_histogram(interval.latencies.histogram(), since, length, None)
            .map_err(log_failed)?;
        // Whoever reads along sees it now, and a full disk ends the run now.
        self.file.flush().map_err(log_failed)
    }
}
