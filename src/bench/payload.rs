//! What a message of the load generator carries, and what arrived of it.

use std::time::{Duration, Instant};

use super::faults::Faults;

/// Bytes of a body that say which message it is; shorter bodies cannot be checked.
pub const STAMP_BYTES: usize = 40;

const MAGIC: u32 = 0x5a70_0b40;

/// Producers of a run whose arrivals are told apart.
const MAX_PRODUCERS: usize = 4096;

/// Sequence numbers of a producer that are told apart.
const MAX_SEQUENCE: u64 = 1 << 36;

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

/// What a body turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// As it was sent.
    Whole(Stamp),
    /// Not as it was sent.
    Damaged,
    /// Not of the load generator, or too short to say.
    Foreign,
}

impl Stamp {
    /// Writes it to the front of a body, which is then checkable; does nothing to a shorter body
    /// than [`STAMP_BYTES`].
    pub fn write(&self, body: &mut [u8]) {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let Some(to) = body.first_chunk_mut::<STAMP_BYTES>() else {
            return;
        };
        to[..4].copy_from_slice(&MAGIC.to_be_bytes());
        to[4..8].copy_from_slice(&self.producer.to_be_bytes());
        to[8..16].copy_from_slice(&self.run.to_be_bytes());
        to[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        to[24..32].copy_from_slice(&self.intended_ns.to_be_bytes());
        to[32..36].copy_from_slice(&length.to_be_bytes());
        let sum = checksum(&to[..36]);
        to[36..].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A sum that differs when any one byte does.
fn checksum(bytes: &[u8]) -> u32 {
    let mix = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, mix)
}

/// What stands behind the stamp: always the same letters, so that a receiver knows them.
#[derive(Debug, Default)]
pub struct Filling {
    letters: Vec<u8>,
}

impl Filling {
    /// At least that many letters.
    pub fn up_to(&mut self, length: usize) -> &[u8] {
        const LETTERS: &[u8; 64] =
            b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        if self.letters.len() < length {
            // Begun anew so that a prefix never depends on how it grew.
            let mut random = fastrand::Rng::with_seed(20_120_513);
            self.letters = std::iter::repeat_with(|| LETTERS[random.usize(..64)])
                .take(length.next_power_of_two().max(1024))
                .collect();
        }
        &self.letters
    }

    /// What a body is.
    pub fn check(&mut self, body: &[u8]) -> Content {
        let Some(head) = body.first_chunk::<STAMP_BYTES>() else {
            return Content::Foreign;
        };
        let (u32s, u64s) = (
            |at: usize| u32::from_be_bytes(std::array::from_fn(|i| head[at + i])),
            |at: usize| u64::from_be_bytes(std::array::from_fn(|i| head[at + i])),
        );
        if u32s(0) != MAGIC {
            return Content::Foreign;
        }
        let rest = &body[STAMP_BYTES..];
        if u32s(36) != checksum(&head[..36])
            || u32s(32) as usize != body.len()
            || rest != &self.up_to(body.len())[STAMP_BYTES..body.len()]
        {
            return Content::Damaged;
        }
        Content::Whole(Stamp {
            producer: u32s(4),
            run: u64s(8),
            sequence: u64s(16),
            intended_ns: u64s(24),
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

    /// The moment.
    pub fn at(&self, ns: u64) -> Instant {
        let moment = self.origin.checked_add(Duration::from_nanos(ns));
        // Only a forged stamp lies beyond all time.
        moment.unwrap_or(self.origin)
    }
}

/// Numbers, one bit each.
#[derive(Debug, Default, Clone)]
pub struct Numbers(Vec<u64>);

impl Numbers {
    /// Adds one; false when it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Whether it is there.
    pub fn contains(&self, number: u64) -> bool {
        let word = self.0.get((number / 64) as usize);
        word.is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    /// How many of these are not among those.
    fn without(&self, those: &Self) -> u64 {
        let other = those.0.iter().chain(std::iter::repeat(&0));
        let missing = |(mine, theirs): (&u64, &u64)| u64::from((mine & !theirs).count_ones());
        self.0.iter().zip(other).map(missing).sum()
    }

    /// Adds those; how many were there already.
    fn unite(&mut self, those: &Self) -> u64 {
        if self.0.len() < those.0.len() {
            self.0.resize(those.0.len(), 0);
        }
        let mut twice = 0;
        for (mine, theirs) in self.0.iter_mut().zip(&those.0) {
            twice += u64::from((*mine & theirs).count_ones());
            *mine |= theirs;
        }
        twice
    }
}

/// Which messages of each producer arrived at one consumer, or were accepted.
#[derive(Debug, Default, Clone)]
pub struct Arrivals(Vec<Numbers>);

impl Arrivals {
    /// Notes one; false when it had arrived before or cannot be of this run.
    pub fn note(&mut self, producer: u32, sequence: u64) -> bool {
        let producer = producer as usize;
        if producer >= MAX_PRODUCERS || sequence >= MAX_SEQUENCE {
            return false;
        }
        if producer >= self.0.len() {
            self.0.resize_with(producer + 1, Numbers::default);
        }
        self.0[producer].insert(sequence)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        let words = self.0.iter().flat_map(|numbers| &numbers.0);
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Adds what another consumer got; counts what both did.
    pub fn add(&mut self, other: &Self, faults: &mut Faults) {
        if self.0.len() < other.0.len() {
            self.0.resize_with(other.0.len(), Numbers::default);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            faults.count_many("message received twice", mine.unite(theirs));
        }
    }

    /// How many of a producer's accepted messages have not arrived.
    pub fn missing(&self, producer: usize, accepted: &Numbers) -> u64 {
        accepted.without(self.0.get(producer).unwrap_or(&Numbers::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        run: 7,
        producer: 3,
        sequence: 1 << 30,
        intended_ns: 99,
    };

    #[test]
    fn a_body_is_whole_only_as_it_was_sent() {
        let mut filling = Filling::default();
        let mut body = filling.up_to(300)[..200].to_vec();
        assert_eq!(filling.check(&body), Content::Foreign);
        STAMP.write(&mut body);
        assert_eq!(filling.check(&body), Content::Whole(STAMP));
        for at in 4..body.len() {
            body[at] ^= 1;
            assert_eq!(filling.check(&body), Content::Damaged, "byte {at}");
            body[at] ^= 1;
        }
        assert_eq!(filling.check(&body[..199]), Content::Damaged);
        assert_eq!(filling.check(&body[..20]), Content::Foreign);
        let mut short = [1; 20];
        STAMP.write(&mut short);
        assert_eq!(short, [1; 20]);
        assert_eq!(
            Filling::default().up_to(50)[..50],
            filling.up_to(5000)[..50]
        );
    }

    #[test]
    fn doubled_and_missing_messages_are_told() {
        let (mut one, mut other) = (Arrivals::default(), Arrivals::default());
        for sequence in [0, 2, 1, 500] {
            assert!(one.note(1, sequence));
        }
        assert!(!one.note(1, 1) && !one.note(1, 500) && !one.note(u32::MAX, 0));
        other.note(1, 3);
        other.note(1, 2);
        let mut faults = Faults::default();
        one.add(&other, &mut faults);
        assert_eq!(faults.total(), 1, "both have number 2");
        let mut accepted = Numbers::default();
        for sequence in 0..6 {
            accepted.insert(sequence);
        }
        assert_eq!(one.missing(1, &accepted), 2);
        assert_eq!(one.missing(9, &accepted), 6);
    }
}
