//! What the writer measures: how long writes and syncs take, and how large batches are.
//!
//! One thread adds, any thread reads. Adding takes no lock and allocates nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of classes; the last one has no upper bound.
pub const CLASSES: usize = 32;

/// Counts of values by size. Class `i` holds values below 2^i that no class before it holds.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; CLASSES],
    sum: AtomicU64,
    max: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Values by class; class `i` holds those in `2^(i-1)..2^i`.
    pub counts: [u64; CLASSES],
    /// Sum of all values.
    pub sum: u64,
    /// The largest one.
    pub max: u64,
}

impl Histogram {
    /// Counts a value.
    pub fn add(&self, value: u64) {
        let class = (u64::BITS - value.leading_zeros()) as usize;
        self.counts[class.min(CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Counts a time in microseconds.
    pub fn add_micros(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// The counts as of now.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: std::array::from_fn(|class| self.counts[class].load(Ordering::Relaxed)),
            sum: self.sum.load(Ordering::Relaxed),
            max: self.max.load(Ordering::Relaxed),
        }
    }
}

impl HistogramSnapshot {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Values below `2^class`.
    pub fn bound(class: usize) -> u64 {
        1 << class
    }

    /// Number of values in classes that lie below `bound` as a whole.
    pub fn count_below(&self, bound: u64) -> u64 {
        if bound == u64::MAX {
            return self.count();
        }
        let classes = self.counts[..CLASSES - 1].iter().enumerate();
        classes
            .take_while(|(class, _)| Self::bound(*class) <= bound)
            .map(|(_, count)| count)
            .sum()
    }

    /// An upper bound of the value below which the part `part` (0 to 1) of all values lies.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = (self.count() as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::bound(class).min(self.max);
            }
        }
        self.max
    }
}

/// What the writer measures.
#[derive(Debug, Default)]
pub struct WriteMetrics {
    /// Microseconds from handing a batch to the disk until it was written; durable with it under
    /// synchronous flush.
    pub write_micros: Histogram,
    /// Microseconds of syncs of their own, under asynchronous flush.
    pub sync_micros: Histogram,
    /// Bytes of batches.
    pub batch_bytes: Histogram,
    /// Records taken from producers.
    pub records: AtomicU64,
    /// Bytes written to the log for records: whole blocks, of which the first may be there already.
    pub log_bytes: AtomicU64,
    /// Bytes of zeros that files of the log were given ahead of the records.
    pub zero_bytes: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_the_class_that_holds_them() {
        let histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, 1000, u64::MAX] {
            histogram.add(value);
        }
        let counted = histogram.snapshot();
        assert_eq!(counted.counts[..4], [1, 1, 2, 1]);
        assert_eq!((counted.counts[10], counted.counts[CLASSES - 1]), (1, 1));
        assert_eq!((counted.count(), counted.max), (7, u64::MAX));
        assert_eq!(counted.count_below(4), 4);
        assert_eq!(counted.count_below(1024), 6);
        assert_eq!(counted.count_below(u64::MAX), 7);
    }

    #[test]
    fn a_quantile_is_an_upper_bound() {
        let histogram = Histogram::default();
        for _ in 0..99 {
            histogram.add(100);
        }
        histogram.add(5000);
        let counted = histogram.snapshot();
        assert_eq!(counted.quantile(0.5), 128);
        assert_eq!(counted.quantile(0.99), 128);
        assert_eq!(counted.quantile(0.999), 5000);
        assert_eq!(HistogramSnapshot::default().quantile(0.99), 0);
    }
}
