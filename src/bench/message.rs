//! What the load generator sends: sizes, keys, tags and properties, made without an allocation
//! per message.

use std::ops::RangeInclusive;
use std::str::FromStr;

use saturnmq_net::codes::request;
use saturnmq_storage::format::batch::{BatchItem, push_item};

use super::BenchError;
use super::packing::Method;
use super::payload::{Filling, Stamp};

/// Largest body, in bytes: Apache's own limit.
pub const MAX_BODY: u32 = 4 << 20;

/// Bytes of the value of a `--properties` property.
const PROPERTY_VALUE: &str = "abcdefghijklmnop";

/// Producer group of the load generator.
pub const PRODUCER_GROUP: &str = "saturnmq_bench";

/// Body sizes, each with the weight of its range: `1024`, `100-4000` or `128*9,1024-65536*1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes(Vec<(RangeInclusive<u32>, u32)>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|error| format!("size \"{text}\": {error}"))
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (sizes, weight) = part.split_once('*').unwrap_or((part, "1"));
            let (low, high) = sizes.split_once('-').unwrap_or((sizes, sizes));
            let (low, high, weight) = (number(low)?, number(high)?, number(weight)?);
            if low < 1 || high > MAX_BODY || low > high {
                return Err(format!(
                    "sizes {sizes}: must rise and lie between 1 and {MAX_BODY}"
                ));
            }
            if !(1..=1_000_000).contains(&weight) {
                return Err(format!("weight {weight}: must lie between 1 and 1000000"));
            }
            ranges.push((low..=high, weight));
        }
        if ranges.len() > 64 {
            return Err(format!("{} ranges of sizes: at most 64", ranges.len()));
        }
        Ok(Self(ranges))
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (range, weight)) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            write!(f, "{}", range.start())?;
            if range.start() != range.end() {
                write!(f, "-{}", range.end())?;
            }
            if *weight != 1 {
                write!(f, "*{weight}")?;
            }
        }
        Ok(())
    }
}

impl Sizes {
    /// One size.
    pub fn of(size: u32) -> Self {
        Self(vec![(size..=size, 1)])
    }

    /// The largest.
    pub fn largest(&self) -> u32 {
        let ends = self.0.iter().map(|(range, _)| *range.end());
        ends.max().unwrap_or(1)
    }

    /// The smallest.
    pub fn smallest(&self) -> u32 {
        let starts = self.0.iter().map(|(range, _)| *range.start());
        starts.min().unwrap_or(1)
    }

    fn pick(&self, random: &mut fastrand::Rng) -> usize {
        let total = self.0.iter().map(|(_, weight)| weight).sum();
        let mut left = if self.0.len() == 1 {
            0
        } else {
            random.u32(0..total)
        };
        for (range, weight) in &self.0 {
            if left < *weight {
                return if range.start() == range.end() {
                    *range.start() as usize
                } else {
                    random.u32(range.clone()) as usize
                };
            }
            left -= weight;
        }
        1
    }
}

/// What is special about a load's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Plain,
    /// Each is prepared, then committed or, for that share in percent, rolled back.
    Transaction {
        /// The share.
        rolled_back: u8,
    },
    /// Delivered late.
    Delay {
        /// Delay level of the broker, from 1 on.
        level: u8,
    },
}

impl Kind {
    /// Whether a message is to be rolled back.
    pub fn rolls_back(self, sequence: u64) -> bool {
        match self {
            // Spread evenly: 61 and 100 have no common factor.
            Self::Transaction { rolled_back } => sequence * 61 % 100 < u64::from(rolled_back),
            _ => false,
        }
    }

    /// Which share of the messages is not rolled back.
    pub fn share_that_arrives(self) -> f64 {
        match self {
            Self::Transaction { rolled_back } => 1.0 - f64::from(rolled_back) / 100.0,
            _ => 1.0,
        }
    }
}

/// What messages look like.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Sizes of bodies.
    pub sizes: Sizes,
    /// How many different keys there are; none: no keys.
    pub keys: u64,
    /// How many different tags there are; none: no tags.
    pub tags: u32,
    /// Properties of each message besides.
    pub properties: u16,
    /// Whether each has a unique key, as Apache's clients give one.
    pub unique_key: bool,
    /// Messages of one send.
    pub batch: u16,
    /// How bodies are compressed.
    pub compress: Option<Method>,
    /// What is special about them.
    pub kind: Kind,
}

/// Makes the messages of one producer.
pub struct Composer {
    shape: Shape,
    random: fastrand::Rng,
    /// What unique keys begin with.
    origin: u64,
    filled: Vec<u8>,
    packed: Vec<u8>,
    batch: Vec<u8>,
    properties: String,
}

/// A send that is ready.
pub struct Composed<'a> {
    /// Request code.
    pub code: i32,
    /// The body.
    pub body: &'a [u8],
    /// Properties of the request.
    pub properties: &'a str,
    /// Bytes of the bodies of its messages, as they are sent.
    pub bytes: u64,
}

impl Composer {
    /// The composer of one producer of a run; the same seed makes the same messages.
    pub fn new(shape: &Shape, seed: u64, run: u64, producer: u32) -> Self {
        let largest = shape.sizes.largest() as usize;
        Self {
            shape: shape.clone(),
            random: fastrand::Rng::with_seed(seed ^ (u64::from(producer) << 32)),
            origin: run.rotate_left(20) ^ u64::from(producer),
            filled: Filling::default().up_to(largest)[..largest].to_vec(),
            packed: Vec::new(),
            batch: Vec::new(),
            properties: String::new(),
        }
    }

    /// Makes a send of one message, or of a batch of messages that follow each other.
    ///
    /// # Errors
    /// [`BenchError::System`] when a body cannot be compressed.
    pub fn compose(&mut self, stamp: Stamp) -> Result<Composed<'_>, BenchError> {
        if self.shape.batch == 1 {
            let size = self.one(stamp);
            let mut body = &self.filled[..size];
            if let Some(method) = self.shape.compress {
                let packed = method.pack(body, &mut self.packed);
                packed.map_err(|error| BenchError::System(format!("{method}: {error}")))?;
                body = &self.packed;
            }
            return Ok(Composed {
                code: request::SEND_MESSAGE_V2,
                body,
                properties: &self.properties,
                bytes: body.len() as u64,
            });
        }
        self.batch.clear();
        let mut bytes = 0;
        for number in 0..u64::from(self.shape.batch) {
            let sequence = stamp.sequence + number;
            let size = self.one(Stamp { sequence, ..stamp });
            bytes += size as u64;
            let item = BatchItem {
                flag: 0,
                body: &self.filled[..size],
                properties: self.properties.as_bytes(),
            };
            push_item(&mut self.batch, &item);
        }
        Ok(Composed {
            code: request::SEND_BATCH_MESSAGE,
            body: &self.batch,
            properties: "WAIT\u{1}true\u{2}",
            bytes,
        })
    }

    /// Body and properties of one message; the body's size.
    fn one(&mut self, stamp: Stamp) -> usize {
        let size = self.shape.sizes.pick(&mut self.random);
        stamp.write(&mut self.filled[..size]);
        let to = &mut self.properties;
        to.clear();
        if self.shape.keys > 0 {
            to.push_str("KEYS\u{1}key");
            push_number(to, self.random.u64(0..self.shape.keys), 10);
            to.push('\u{2}');
        }
        if self.shape.unique_key || matches!(self.shape.kind, Kind::Transaction { .. }) {
            to.push_str("UNIQ_KEY\u{1}");
            push_number(to, self.origin, 16);
            push_number(to, stamp.sequence | 1 << 60, 16);
            to.push('\u{2}');
        }
        if self.shape.tags > 0 {
            to.push_str("TAGS\u{1}tag");
            push_number(to, self.random.u32(0..self.shape.tags).into(), 10);
            to.push('\u{2}');
        }
        for number in 0..self.shape.properties {
            to.push_str("property");
            push_number(to, number.into(), 10);
            to.push('\u{1}');
            to.push_str(PROPERTY_VALUE);
            to.push('\u{2}');
        }
        match self.shape.kind {
            Kind::Plain => {}
            Kind::Transaction { .. } => {
                to.push_str("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}");
                to.push_str(PRODUCER_GROUP);
                to.push('\u{2}');
            }
            Kind::Delay { level } => {
                to.push_str("DELAY\u{1}");
                push_number(to, level.into(), 10);
                to.push('\u{2}');
            }
        }
        to.push_str("WAIT\u{1}true\u{2}");
        size
    }
}

fn push_number(to: &mut String, number: u64, base: u64) {
    let mut digits = [0; 20];
    let (mut at, mut left) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b"0123456789ABCDEF"[(left % base) as usize];
        left /= base;
        if left == 0 {
            break;
        }
    }
    for digit in &digits[at..] {
        to.push(char::from(*digit));
    }
}

#[cfg(test)]
mod tests {
    use super::super::payload::Content;
    use super::*;
    use saturnmq_storage::format::batch::BatchItems;

    fn shape() -> Shape {
        Shape {
            sizes: "50-90*3,200".parse().unwrap(),
            keys: 1000,
            tags: 3,
            properties: 2,
            unique_key: true,
            batch: 1,
            compress: None,
            kind: Kind::Plain,
        }
    }

    fn stamp(sequence: u64) -> Stamp {
        Stamp {
            run: 1,
            producer: 2,
            sequence,
            intended_ns: 3,
        }
    }

    #[test]
    fn sizes_are_read_and_wrong_ones_named() {
        for text in ["1024", "100-4000", "128*9,1024-65536"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        for text in ["", "0", "9-8", "5000000", "1*0", "a", "1,,2", "1*9999999"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_seed_makes_the_same_messages_and_all_sizes_come() {
        let mut composers = [(); 2].map(|()| Composer::new(&shape(), 42, 9, 1));
        let (mut small, mut large) = (0, 0);
        for sequence in 0..1000 {
            let [one, other] = composers.each_mut().map(|composer| {
                let made = composer.compose(stamp(sequence)).unwrap();
                (made.body.to_vec(), made.properties.to_owned())
            });
            assert_eq!(one, other);
            match one.0.len() {
                50..=90 => small += 1,
                200 => large += 1,
                size => panic!("{size}"),
            }
            let mut fields: Vec<&str> = one.1.split('\u{2}').collect();
            assert_eq!(fields.pop(), Some(""));
            let names: Vec<_> = fields.iter().map(|f| f.split('\u{1}').next()).collect();
            let expected = ["KEYS", "UNIQ_KEY", "TAGS", "property0", "property1", "WAIT"];
            assert_eq!(names, expected.map(Some));
        }
        assert!(small > 600 && large > 150, "{small} {large}");
    }

    #[test]
    fn a_batch_holds_messages_that_follow_each_other() {
        let shape = Shape {
            batch: 5,
            ..shape()
        };
        let mut composer = Composer::new(&shape, 1, 2, 3);
        let made = composer.compose(stamp(70)).unwrap();
        let mut filling = Filling::default();
        let mut bytes = 0;
        for (number, item) in BatchItems::new(made.body).enumerate() {
            let item = item.unwrap();
            bytes += item.body.len() as u64;
            let expected = Content::Whole(stamp(70 + number as u64));
            assert_eq!(filling.check(item.body), expected);
        }
        assert_eq!(made.bytes, bytes);
    }

    #[test]
    fn numbers_are_written_in_both_bases() {
        for (number, base, text) in [(0, 10, "0"), (1207, 10, "1207"), (0xBEEF, 16, "BEEF")] {
            let mut to = String::new();
            push_number(&mut to, number, base);
            assert_eq!(to, text);
        }
        let rolled = |share| {
            let kind = Kind::Transaction { rolled_back: share };
            (0..1000).filter(|n| kind.rolls_back(*n)).count()
        };
        assert_eq!((rolled(0), rolled(10), rolled(100)), (0, 100, 1000));
    }
}
