//! What is measured while a run goes on: each worker records for itself, without a lock, and hands
//! over what it has once per interval.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::BenchError;

/// Largest latency that is told apart, in microseconds.
const MAX_LATENCY_US: u64 = 600_000_000;

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

    /// Counts one that was seen `times` times.
    pub fn record(&mut self, latency: Duration, times: u64) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(MAX_LATENCY_US);
        self.0.saturating_record_n(micros.max(1), times);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Percentiles 50, 90, 99, 99.9, 99.99 and the maximum.
    pub fn percentiles(&self) -> [u64; 6] {
        [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0].map(|quantile| self.0.value_at_quantile(quantile))
    }

    /// The latency below which a share of all lies, for shares that come closer and closer to all
    /// of them: (percentile, microseconds).
    pub fn curve(&self) -> Vec<(f64, u64)> {
        let mut curve: Vec<(f64, u64)> = self
            .0
            .iter_quantiles(4)
            .map(|step| {
                let percentile = step.quantile_iterated_to() * 100.0;
                let micros = step.value_iterated_to();
                ((percentile * 1e6).round() / 1e6, micros.min(self.0.max()))
            })
            .collect();
        curve.dedup_by(|a, b| a.0 >= 100.0 && b.0 >= 100.0);
        curve
    }

    /// The histogram itself.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
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

/// What of a run's result a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// It was due in the counted time: it and its latency are counted, whenever it came.
    pub due: bool,
    /// It came in the counted time: throughput and costs are of it, whenever it was due.
    pub came: bool,
}

impl Counted {
    /// Of neither.
    pub const NOT: Self = Self {
        due: false,
        came: false,
    };
}

/// Messages, and how long they took.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Messages that went well.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Messages that went well and came in the counted time, whenever they were due.
    pub came: u64,
    /// Bytes of their bodies.
    pub came_bytes: u64,
    /// Those that did not.
    pub errors: u64,
    /// How long they took.
    pub latencies: Latencies,
}

impl Measured {
    /// Nothing yet.
    ///
    /// # Errors
    /// [`BenchError::System`] when there is no memory for it.
    pub fn new() -> Result<Self, BenchError> {
        Ok(Self {
            messages: 0,
            bytes: 0,
            came: 0,
            came_bytes: 0,
            errors: 0,
            latencies: Latencies::new()?,
        })
    }

    /// Adds what another thread measured.
    ///
    /// # Errors
    /// [`BenchError::System`] when the histograms do not fit each other.
    pub fn add(&mut self, other: &Self) -> Result<(), BenchError> {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.came += other.came;
        self.came_bytes += other.came_bytes;
        self.errors += other.errors;
        self.latencies.add(&other.latencies)
    }

    fn is_empty(&self) -> bool {
        self.messages == 0 && self.errors == 0 && self.latencies.count() == 0
    }

    fn clear(&mut self) {
        (self.messages, self.bytes, self.errors) = (0, 0, 0);
        self.latencies.0.reset();
    }
}

/// Intervals of a run, of all workers together.
#[derive(Debug)]
pub struct Series {
    begin: Instant,
    every: Duration,
    /// Intervals to which some worker may still add.
    open: Mutex<BTreeMap<u32, Measured>>,
    /// The interval in which each worker is; nothing before it comes from that worker.
    places: Box<[AtomicU32]>,
    /// Whether anybody will take intervals.
    is_seen: bool,
}

impl Series {
    /// Intervals of `every` from `begin` on, for that many workers.
    pub fn new(begin: Instant, every: Duration, workers: usize) -> Self {
        Self {
            begin,
            every,
            open: Mutex::default(),
            places: (0..workers).map(|_| AtomicU32::new(0)).collect(),
            is_seen: true,
        }
    }

    /// Intervals that nobody looks at: only what is counted in all remains.
    pub fn unseen(begin: Instant, every: Duration, workers: usize) -> Self {
        Self {
            is_seen: false,
            ..Self::new(begin, every, workers)
        }
    }

    /// Length of an interval.
    pub fn every(&self) -> Duration {
        self.every
    }

    /// When an interval begins.
    pub fn start_of(&self, index: u32) -> Instant {
        self.begin + self.every * index
    }

    /// The interval of a moment.
    pub fn index_at(&self, moment: Instant) -> u32 {
        let since = moment.saturating_duration_since(self.begin);
        u32::try_from(since.as_nanos() / self.every.as_nanos().max(1)).unwrap_or(u32::MAX)
    }

    /// The oldest interval, if no worker can add to it any more; what nobody measured anything in
    /// is `None`.
    pub fn take(&self, index: u32) -> Option<Option<Measured>> {
        let place = |place: &AtomicU32| place.load(Ordering::Acquire);
        if self.places.iter().map(place).min() <= Some(index) {
            return None;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        Some(open.remove(&index))
    }

    /// The newest interval that anything was measured in and that was not taken.
    pub fn last(&self) -> Option<u32> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.last_key_value().map(|(index, _)| *index)
    }

    fn hand_over(&self, worker: usize, from: &Measured, index: u32, next: u32) {
        if self.is_seen && !from.is_empty() {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            match open.get_mut(&index) {
                // Histograms of one shape always fit.
                Some(interval) => drop(interval.add(from)),
                None => drop(open.insert(index, from.clone())),
            }
        }
        self.places[worker].store(next, Ordering::Release);
    }
}

/// What one worker measures.
#[derive(Debug)]
pub struct Recorder<'a> {
    series: &'a Series,
    worker: usize,
    index: u32,
    /// When the present interval ends.
    boundary: Instant,
    interval: Measured,
    total: Measured,
}

impl<'a> Recorder<'a> {
    /// The recorder of one of the workers that a series was made for.
    ///
    /// # Errors
    /// [`BenchError::System`] when there is no memory for it.
    pub fn new(series: &'a Series, worker: usize) -> Result<Self, BenchError> {
        Ok(Self {
            series,
            worker,
            index: 0,
            boundary: series.start_of(1),
            interval: Measured::new()?,
            total: Measured::new()?,
        })
    }

    /// Messages that went well at `now`.
    pub fn messages(&mut self, now: Instant, messages: u64, bytes: u64, counted: Counted) {
        self.pass(now);
        self.interval.messages += messages;
        self.interval.bytes += bytes;
        if counted.due {
            self.total.messages += messages;
            self.total.bytes += bytes;
        }
        if counted.came {
            self.total.came += messages;
            self.total.came_bytes += bytes;
        }
    }

    /// How long something took that ended at `now`, `times` times.
    pub fn latency(&mut self, now: Instant, latency: Duration, times: u64, counted: bool) {
        self.pass(now);
        self.interval.latencies.record(latency, times);
        if counted {
            self.total.latencies.record(latency, times);
        }
    }

    /// Messages that did not go well.
    pub fn errors(&mut self, now: Instant, messages: u64, counted: bool) {
        self.pass(now);
        self.interval.errors += messages;
        if counted {
            self.total.errors += messages;
        }
    }

    /// When a worker that waits should call [`Self::pass`].
    pub fn boundary(&self) -> Instant {
        self.boundary
    }

    /// Hands over the interval that ended before `now`, if one did.
    pub fn pass(&mut self, now: Instant) {
        if now >= self.boundary {
            self.leave(self.series.index_at(now));
        }
    }

    #[cold]
    fn leave(&mut self, next: u32) {
        self.series
            .hand_over(self.worker, &self.interval, self.index, next);
        self.interval.clear();
        self.index = next;
        self.boundary = self.series.start_of(next.saturating_add(1));
    }

    /// Hands over the last interval; what was counted.
    pub fn finish(mut self) -> Measured {
        self.close();
        let empty = Measured {
            messages: 0,
            bytes: 0,
            came: 0,
            came_bytes: 0,
            errors: 0,
            latencies: self.interval.latencies.clone(),
        };
        std::mem::replace(&mut self.total, empty)
    }

    fn close(&mut self) {
        self.series
            .hand_over(self.worker, &self.interval, self.index, u32::MAX);
        self.interval.clear();
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_whole_when_every_worker_has_left_it() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        let series = Series::new(begin, second, 2);
        let mut first = Recorder::new(&series, 0).unwrap();
        let mut other = Recorder::new(&series, 1).unwrap();
        let ms = Duration::from_millis;
        first.messages(begin, 1, 100, Counted::NOT);
        first.latency(begin, ms(1), 1, false);
        other.latency(begin, ms(9), 1, true);
        let late = Counted {
            due: true,
            came: false,
        };
        other.messages(begin, 2, 10, late);
        first.pass(begin + second);
        assert!(series.take(0).is_none(), "the other is still in it");
        other.pass(begin + second * 3);
        let interval = series.take(0).unwrap().unwrap();
        assert_eq!((interval.messages, interval.bytes), (3, 110));
        assert_eq!(interval.latencies.percentiles()[5] / 1000, 9);
        drop(first);
        assert!(series.take(1).unwrap().is_none(), "nothing was in it");
        let total = other.finish();
        assert_eq!((total.messages, total.latencies.count()), (2, 1));
        assert_eq!((total.came, total.came_bytes), (0, 0), "it came too late");
        assert!(series.take(7).unwrap().is_none());
    }

    #[test]
    fn the_curve_ends_with_the_maximum() {
        let mut latencies = Latencies::new().unwrap();
        for ms in 1..=1000 {
            latencies.record(Duration::from_micros(ms), 1);
        }
        let curve = latencies.curve();
        assert_eq!(curve.last(), Some(&(100.0, 1000)));
        assert!(curve.windows(2).all(|two| two[0].0 < two[1].0));
    }
}
