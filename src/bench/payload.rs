//! What a message of the load generator carries, and what arrived of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Bytes of a body that say which message it is; shorter bodies cannot be checked.
pub const STAMP_BYTES: usize = 32;

const MAGIC: u32 = 0x5a7_0b31;

/// Which message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The run that sent it.
    pub run: u64,
    /// The connection that sent it.
    pub producer: u32,
    /// Its number among those, from 0.
    pub sequence: u64,
    /// When it was meant to be sent, in nanoseconds since the run began.
    pub intended_ns: u64,
}

impl Stamp {
    /// Writes it to the front of a body of at least [`STAMP_BYTES`].
    pub fn write(&self, body: &mut [u8]) {
        let head = (u64::from(MAGIC) << 32) | u64::from(self.producer);
        let fields = [head, self.run, self.sequence, self.intended_ns];
        for (to, field) in body.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_be_bytes());
        }
    }

    /// Reads it from the front of a body; `None` when it has none.
    pub fn read(body: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_be_bytes(body.get(at..at + 8)?.try_into().ok()?));
        (u32_at(0)? == MAGIC).then_some(())?;
        Some(Self {
            producer: u32_at(4)?,
            run: u64_at(8)?,
            sequence: u64_at(16)?,
            intended_ns: u64_at(24)?,
        })
    }
}

/// The moments of a run in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// When the run began.
    pub origin: Instant,
}

impl Clock {
    /// Nanoseconds of a moment.
    pub fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long after a moment of the run it is now.
    pub fn since(&self, ns: u64) -> Duration {
        Instant::now().saturating_duration_since(self.origin + Duration::from_nanos(ns))
    }
}

/// Which messages of one producer arrived: all below a bound, and single ones above it.
#[derive(Debug, Default)]
struct Arrived {
    below: u64,
    above: std::collections::BTreeSet<u64>,
}

/// Which messages arrived.
#[derive(Debug, Default)]
pub struct Arrivals(HashMap<u32, Arrived>);

impl Arrivals {
    /// Notes one; false when it had arrived before.
    pub fn note(&mut self, producer: u32, sequence: u64) -> bool {
        let arrived = self.0.entry(producer).or_default();
        if sequence < arrived.below || !arrived.above.insert(sequence) {
            return false;
        }
        while arrived.above.remove(&arrived.below) {
            arrived.below += 1;
        }
        true
    }

    /// How many of the first `sent` messages of a producer have not arrived.
    pub fn missing(&self, producer: u32, sent: u64) -> u64 {
        self.0.get(&producer).map_or(sent, |arrived| {
            let above = arrived.above.range(..sent).count() as u64;
            sent.saturating_sub(arrived.below + above)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written_and_from_nothing_else() {
        let stamp = Stamp {
            run: 7,
            producer: 3,
            sequence: 1 << 40,
            intended_ns: 99,
        };
        let mut body = vec![b'x'; 40];
        assert_eq!(Stamp::read(&body), None);
        stamp.write(&mut body);
        assert_eq!(Stamp::read(&body), Some(stamp));
        assert_eq!(&body[STAMP_BYTES..], b"xxxxxxxx");
        assert_eq!(Stamp::read(&body[..20]), None);
    }

    #[test]
    fn doubled_and_missing_messages_are_told() {
        let mut arrivals = Arrivals::default();
        for sequence in [0, 2, 1, 5] {
            assert!(arrivals.note(1, sequence));
        }
        assert!(!arrivals.note(1, 1) && !arrivals.note(1, 5));
        assert_eq!(arrivals.missing(1, 6), 2);
        assert_eq!(arrivals.missing(1, 3), 0);
        assert_eq!(arrivals.missing(2, 4), 4);
    }
}
