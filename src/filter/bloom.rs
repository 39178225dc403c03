//! The bits that stand for a group's filter in consumer queue extension files, as
//! `config/consumerFilter.json` carries them (docs/format.md, "Consumer filters").

use std::io::Cursor;

/// A Bloom filter's shape: how many bits, how many of them one name sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of bits, a multiple of 8.
    pub bits: i32,
    /// Bits that one name sets.
    pub hashes: i32,
}

impl Shape {
    /// For `expected` names with at most `error_percent` of wrong hits.
    pub fn new(error_percent: u32, expected: u32) -> Self {
        let rate = f64::from(error_percent.clamp(1, 99)) / 100.0;
        let hashes = (rate.ln() / 0.5_f64.ln()).ceil();
        let log2 = |x: f64| x.ln() / 2.0_f64.ln();
        let bits =
            (f64::from(expected.max(1)) * log2(1.0 / rate) * log2(std::f64::consts::E)).ceil();
        Self {
            // Both are small positive numbers.
            bits: (8.0 * (bits / 8.0).ceil()) as i32,
            hashes: hashes as i32,
        }
    }

    /// Bytes that hold the bits.
    pub fn bytes(self) -> usize {
        usize::try_from(self.bits).unwrap_or(0).div_ceil(8)
    }

    /// The bits that a group sets for a topic, in order of their computation.
    pub fn positions(self, group: &str, topic: &str) -> Vec<i32> {
        let name = format!("{group}#{topic}");
        // Reading from memory cannot fail.
        let hash = murmur3::murmur3_x64_128(&mut Cursor::new(name), 0).unwrap_or_default();
        let (first, second) = (hash as i32, (hash >> 32) as i32);
        (1..=self.hashes)
            .map(|round| {
                let combined = first.wrapping_add(round.wrapping_mul(second));
                let positive = if combined < 0 { !combined } else { combined };
                positive % self.bits
            })
            .collect()
    }
}
