//! What groups may not do with topics (request 353): asked by every pull, so read without a lock.

use std::collections::BTreeMap;

use papaya::Equivalent;

/// Most topics with forbidden bits, over all groups: the table comes from clients.
const ENTRIES_MAX: usize = 100_000;

/// Bits by topic by group, in the order of the state file.
pub type ForbiddenTable = BTreeMap<String, BTreeMap<String, i32>>;

/// Bits of what is forbidden, by group and topic; bit 2 is reading. Whoever changes it holds the
/// lock of the group table.
#[derive(Debug, Default)]
pub(super) struct Forbidden {
    bits: papaya::HashMap<(String, String), i32>,
}

/// Group and topic, borrowed.
#[derive(Hash)]
struct Pair<'a>(&'a str, &'a str);

impl Equivalent<(String, String)> for Pair<'_> {
    fn equivalent(&self, key: &(String, String)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

impl Forbidden {
    pub fn new(table: &ForbiddenTable) -> Self {
        let bits = papaya::HashMap::new();
        for (group, topics) in table {
            for (topic, of) in topics {
                bits.pin().insert((group.clone(), topic.clone()), *of);
            }
        }
        Self { bits }
    }

    /// The bits for a group and a topic; 0 when nothing is forbidden.
    pub fn get(&self, group: &str, topic: &str) -> i32 {
        if self.bits.is_empty() {
            return 0;
        }
        let found = self.bits.pin().get(&Pair(group, topic)).copied();
        found.unwrap_or(0)
    }

    /// Sets the bits; 0 removes the entry. False: unchanged, or the table is full.
    pub fn set(&self, group: &str, topic: &str, bits: i32) -> bool {
        let old = self.get(group, topic);
        if old == bits || (old == 0 && self.bits.len() >= ENTRIES_MAX) {
            return false;
        }
        let table = self.bits.pin();
        if bits == 0 {
            table.remove(&Pair(group, topic));
        } else {
            table.insert((group.to_owned(), topic.to_owned()), bits);
        }
        true
    }

    /// Takes away what is forbidden to a group.
    pub fn remove_group(&self, group: &str) {
        if !self.bits.is_empty() {
            self.bits.pin().retain(|(of, _), _| of != group);
        }
    }

    /// All of it.
    pub fn table(&self) -> ForbiddenTable {
        let mut table = ForbiddenTable::new();
        for ((group, topic), bits) in &self.bits.pin() {
            let topics = table.entry(group.clone()).or_default();
            topics.insert(topic.clone(), *bits);
        }
        table
    }
}
