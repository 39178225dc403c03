//! The bits of a record's extension unit: for each group whose selector it passes, the group's
//! positions of the Bloom filter are set (docs/format.md, "Extension unit").
//!
//! What must always hold: a record that was stored after a selector's birth has a unit that knows
//! of the selector. So a selector is born when the last record that was looked at without it was
//! stored, at the earliest, and every look notes its record's time before it takes the list of
//! selectors.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering, fence};

use arc_swap::ArcSwap;
use saturnmq_storage::dispatch::BitsOfRecord;
use saturnmq_storage::format::extension_unit::Unit;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::inspect::UnitCheck;

use super::Selector;
use super::bloom::Shape;

/// Steps, of about a nanosecond, of all selectors of a topic together for one record; beyond, its
/// unit gets no bits, and every group looks at the record itself.
const WORK_MAX: usize = 1 << 20;

/// Most memory of all selectors, in bytes; groups beyond look at every record.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// A group's selector for a topic.
struct Marked {
    group: Arc<str>,
    expression: Box<str>,
    selector: Selector,
    positions: Arc<[i32]>,
    /// Records stored later have units that know of it; `i64::MAX` until that is sure.
    born: AtomicI64,
}

impl Marked {
    /// What it takes in memory, roughly, in bytes.
    fn bytes(&self) -> usize {
        // The tree of an expression is larger than its text, by no more than this.
        64 * (4 + self.expression.len())
    }
}

/// The selectors of one topic.
type OfTopic = Arc<[Arc<Marked>]>;

/// What a group has to do with units of a topic.
#[derive(Clone, Debug)]
pub struct Hint {
    positions: Arc<[i32]>,
    bytes: usize,
    born: i64,
}

impl Hint {
    /// Whether the record of a unit may pass the group's selector. Units from before the selector
    /// know nothing of it, nor do those with bits of another number.
    pub fn may_match(&self, unit: &Unit<'_>) -> bool {
        if unit.store_timestamp <= self.born || unit.bits.len() != self.bytes {
            return true;
        }
        self.positions.iter().all(|position| {
            let byte = usize::try_from(position / 8).ok();
            let byte = byte.and_then(|byte| unit.bits.get(byte));
            byte.is_none_or(|byte| byte >> (position % 8) & 1 == 1)
        })
    }
}

/// All selectors by topic, for the dispatcher and for pulls.
pub struct Marks {
    shape: Shape,
    table: ArcSwap<Table>,
    /// Latest store time of the records that were looked at, in milliseconds.
    latest: AtomicI64,
}

#[derive(Clone, Default)]
struct Table {
    topics: HashMap<Arc<str>, OfTopic>,
    /// What all of them take, in bytes.
    bytes: usize,
}

/// A selector that a group has for a topic.
#[derive(Clone, Copy, Debug)]
pub struct Selecting<'a> {
    /// The group.
    pub group: &'a str,
    /// The topic.
    pub topic: &'a str,
    /// The SQL92 expression.
    pub expression: &'a str,
    /// Records stored after this time, in milliseconds, are to have units that know of it.
    pub born: i64,
}

impl Marks {
    /// Without a selector.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            table: ArcSwap::default(),
            latest: AtomicI64::new(i64::MIN),
        }
    }

    /// Takes selectors in place of those that their groups have for their topics, as far as there
    /// is room, and sets the times of their births: those wanted, or later. Says of each whether
    /// units know of it from then on.
    pub fn set(&self, selectors: &mut [Selecting<'_>]) -> Vec<bool> {
        let marked = self.insert(selectors);
        let taken = marked.iter().map(Option::is_some).collect();
        // The dispatcher knows them from here on.
        fence(Ordering::SeqCst);
        let latest = self.latest.load(Ordering::SeqCst);
        for (selector, marked) in selectors.iter_mut().zip(marked) {
            selector.born = selector.born.max(latest);
            if let Some(marked) = marked {
                marked.born.store(selector.born, Ordering::SeqCst);
            }
        }
        taken
    }

    /// As [`Marks::set`] for selectors of a former run, which are as old as they say.
    pub fn load(&self, selectors: &[Selecting<'_>]) -> Vec<bool> {
        let marked = self.insert(selectors);
        for (selector, marked) in selectors.iter().zip(&marked) {
            if let Some(marked) = marked {
                marked.born.store(selector.born, Ordering::SeqCst);
            }
        }
        marked.iter().map(Option::is_some).collect()
    }

    /// One new table for all of them: each is a copy of what was there.
    fn insert(&self, selectors: &[Selecting<'_>]) -> Vec<Option<Arc<Marked>>> {
        let mut table = Table::clone(&self.table.load());
        let insert = |selecting| table.insert(self.shape, selecting);
        let marked = selectors.iter().map(insert).collect();
        self.table.store(Arc::new(table));
        marked
    }

    /// Forgets the selectors for which `is_kept`, given group and topic, is false.
    pub fn retain(&self, is_kept: impl Fn(&str, &str) -> bool) {
        let table = self.table.load();
        let kept = table.topics.iter().map(|(topic, list)| {
            let kept = list.iter().filter(|one| is_kept(&one.group, topic));
            (Arc::clone(topic), kept.map(Arc::clone).collect::<OfTopic>())
        });
        let topics: HashMap<Arc<str>, OfTopic> =
            kept.filter(|(_, list)| !list.is_empty()).collect();
        let bytes = topics.values().flat_map(|list| list.iter());
        let bytes = bytes.map(|one| one.bytes()).sum();
        self.table.store(Arc::new(Table { topics, bytes }));
    }

    /// Whether units know of no selector.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.table
            .load()
            .topics
            .values()
            .all(|list| list.is_empty())
    }

    /// What units tell of a group's expression for a topic; `None` if nothing.
    pub fn hint(&self, group: &str, topic: &str, expression: &str) -> Option<Arc<Hint>> {
        let table = self.table.load();
        let marked = table
            .topics
            .get(topic)?
            .iter()
            .find(|one| &*one.group == group)?;
        (&*marked.expression == expression).then(|| Arc::new(self.hint_of(marked)))
    }

    fn hint_of(&self, marked: &Marked) -> Hint {
        Hint {
            positions: Arc::clone(&marked.positions),
            bytes: self.shape.bytes(),
            born: marked.born.load(Ordering::SeqCst),
        }
    }
}

impl Table {
    /// Puts a selector in the place of the one that its group has for its topic; `None` if it is no
    /// expression, or there is no room.
    fn insert(&mut self, shape: Shape, selecting: &Selecting<'_>) -> Option<Arc<Marked>> {
        let Selecting {
            group,
            topic,
            expression,
            ..
        } = *selecting;
        let mut list: Vec<_> = self
            .topics
            .get(topic)
            .map_or_else(Vec::new, |list| list.to_vec());
        if let Some(old) = list.iter().position(|one| &*one.group == group) {
            self.bytes -= list.remove(old).bytes();
        }
        let marked = Selector::compile(expression).ok().map(|selector| Marked {
            group: group.into(),
            expression: expression.into(),
            selector,
            positions: shape.positions(group, topic).into(),
            born: AtomicI64::new(i64::MAX),
        });
        let room = BYTES_MAX - self.bytes.min(BYTES_MAX);
        let marked = marked.filter(|one| one.bytes() <= room).map(Arc::new);
        if let Some(one) = &marked {
            self.bytes += one.bytes();
            list.push(Arc::clone(one));
        }
        self.topics.insert(Arc::from(topic), list.into());
        marked
    }
}

impl UnitCheck for Marks {
    fn problem(&self, record: &Record<'_>, unit: &Unit<'_>) -> Option<String> {
        let table = self.table.load();
        let mut work = 0;
        let hidden = table.topics.get(record.topic())?.iter().find(|one| {
            let hint = self.hint_of(one);
            !hint.may_match(unit) && one.selector.matches(record.properties(), &mut work)
        })?;
        Some(format!(
            "which says that its record is none for group {}, whose filter {:?} it passes",
            hidden.group, hidden.expression
        ))
    }
}

impl std::fmt::Debug for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Marks")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl BitsOfRecord for Marks {
    fn bits(&self, record: &Record<'_>, out: &mut Vec<u8>) {
        let time = record.store_timestamp();
        self.latest.fetch_max(time, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let table = self.table.load();
        let Some(list) = table
            .topics
            .get(record.topic())
            .filter(|list| !list.is_empty())
        else {
            return;
        };
        out.resize(self.shape.bytes(), 0);
        let mut work = 0;
        for one in list.iter() {
            if one.selector.matches(record.properties(), &mut work) {
                set_bits(out, &one.positions);
            }
            if work > WORK_MAX {
                out.clear();
                return;
            }
        }
    }
}

fn set_bits(bits: &mut [u8], positions: &[i32]) {
    for position in positions {
        let byte = usize::try_from(position / 8).ok();
        if let Some(byte) = byte.and_then(|byte| bits.get_mut(byte)) {
            *byte |= 1 << (position % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saturnmq_storage::format::message::{MessageParts, assign, encode_into, encoded_len};

    fn record(topic: &str, properties: &str, time: i64) -> Vec<u8> {
        let host = ([127, 0, 0, 1], 10911).into();
        let parts = MessageParts {
            topic,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"x",
            properties: &[properties.as_bytes()],
        };
        let mut bytes = vec![0; encoded_len(&parts).unwrap()];
        encode_into(&parts, &mut bytes).unwrap();
        assign(&mut bytes, 0, 0, time);
        bytes
    }

    fn load(marks: &Marks, group: &str, topic: &str, expression: &str) {
        marks.load(&[selecting(group, topic, expression, 5)]);
    }

    /// Gives the time of its birth.
    fn set(marks: &Marks, group: &str, topic: &str, expression: &str, born: i64) -> i64 {
        let mut one = [selecting(group, topic, expression, born)];
        marks.set(&mut one);
        one[0].born
    }

    fn selecting<'a>(
        group: &'a str,
        topic: &'a str,
        expression: &'a str,
        born: i64,
    ) -> Selecting<'a> {
        Selecting {
            group,
            topic,
            expression,
            born,
        }
    }

    fn bits(marks: &Marks, record: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        marks.bits(&Record::decode(record).unwrap(), &mut out);
        out
    }

    fn unit(bits: &[u8], store_timestamp: i64) -> Unit<'_> {
        Unit {
            tags_code: 0,
            store_timestamp,
            bits,
        }
    }

    #[test]
    fn the_bits_of_a_record_are_apaches() {
        let marks = Marks::new(Shape::new(20, 32));
        assert!(bits(&marks, &record("GSql", "price\u{1}11\u{2}", 5)).is_empty());
        load(&marks, "g_sql", "GSql", "price > 10");
        // From the recorded store sql-ext-clean-4.9.7.
        let passes = bits(&marks, &record("GSql", "price\u{1}11\u{2}", 6));
        assert_eq!(passes, [0x20, 0, 0, 0x80, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        let fails = bits(&marks, &record("GSql", "price\u{1}10\u{2}", 6));
        assert_eq!(fails, [0; 14]);
        assert!(bits(&marks, &record("Other", "price\u{1}11\u{2}", 6)).is_empty());
        let hint = marks.hint("g_sql", "GSql", "price > 10").unwrap();
        assert!(hint.may_match(&unit(&passes, 6)) && !hint.may_match(&unit(&fails, 6)));
        assert!(hint.may_match(&unit(&fails, 5)), "it may be from before");
        assert!(hint.may_match(&unit(&fails[1..], 6)), "of another shape");
        assert!(hint.may_match(&unit(&[], 6)), "without bits");
        assert!(marks.hint("g_sql", "GSql", "price > 11").is_none());
        assert!(marks.hint("other", "GSql", "price > 10").is_none());
    }

    #[test]
    fn a_unit_that_hides_its_record_from_a_group_is_told_with_the_group() {
        let marks = Marks::new(Shape::new(20, 32));
        load(&marks, "g_sql", "GSql", "price > 10");
        let bytes = record("GSql", "price\u{1}11\u{2}", 6);
        let passing = Record::decode(&bytes).unwrap();
        let whole = bits(&marks, &bytes);
        assert_eq!(marks.problem(&passing, &unit(&whole, 6)), None);
        let mut told = 0;
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let problem = marks.problem(&passing, &unit(&changed, 6));
            let hides = changed[bit / 8] < whole[bit / 8];
            assert_eq!(problem.is_some(), hides, "bit {bit}");
            told += problem.map_or(0, |text| i32::from(text.contains("g_sql")));
            assert_eq!(marks.problem(&passing, &unit(&changed, 5)), None);
        }
        assert_eq!(told, 3);
        let bytes = record("GSql", "price\u{1}10\u{2}", 6);
        let failing = Record::decode(&bytes).unwrap();
        assert_eq!(marks.problem(&failing, &unit(&[0; 14], 6)), None);
    }

    #[test]
    fn a_selector_is_born_after_every_record_that_was_looked_at_without_it() {
        let marks = Marks::new(Shape::new(20, 32));
        // The clock was ahead.
        bits(&marks, &record("T", "", 1_000));
        assert_eq!(set(&marks, "g", "T", "a = 1", 400), 1_000);
        assert_eq!(set(&marks, "g", "T", "a = 2", 1_500), 1_500);
        let fails = bits(&marks, &record("T", "a\u{1}1\u{2}", 1_500));
        let hint = marks.hint("g", "T", "a = 2").unwrap();
        assert!(hint.may_match(&unit(&fails, 1_500)));
        assert!(!hint.may_match(&unit(&fails, 1_501)));
    }

    #[test]
    fn selectors_that_take_long_leave_a_record_without_bits() {
        let marks = Marks::new(Shape::new(20, 32));
        let text = "x".repeat(30_000);
        let expression = vec!["a CONTAINS 'zy'"; 100].join(" OR ");
        set(&marks, "slow", "T", &expression, 0);
        assert!(bits(&marks, &record("T", &format!("a\u{1}{text}"), 1)).is_empty());
        assert_eq!(bits(&marks, &record("T", "a\u{1}y\u{2}", 1)), [0; 14]);
    }

    #[test]
    fn selectors_beyond_the_room_for_them_are_no_hint() {
        let marks = Marks::new(Shape::new(20, 32));
        let long = format!("a = '{}'", "x".repeat(30_000));
        for group in 0..40 {
            set(&marks, &format!("g{group}"), "T", &long, 0);
        }
        assert!(marks.hint("g0", "T", &long).is_some());
        assert!(marks.hint("g39", "T", &long).is_none());
        marks.retain(|group, _| group != "g0");
        assert!(marks.hint("g0", "T", &long).is_none());
        set(&marks, "g39", "T", &long, 0);
        assert!(marks.hint("g39", "T", &long).is_some());
    }
}
