//! Counters of what goes through a topic; the statistics and metrics are made from them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

/// Most pairs of topic and group that are counted: every one costs about 1.5 KiB with its samples.
/// Pulls of others count for their topic only.
const PAIRS_MAX: usize = 200_000;

/// Queues of one topic whose slow reads are counted, for one group.
const SLOW_QUEUES_MAX: usize = 64;

/// Pairs of topic and group that are counted, in the whole process.
static PAIRS: AtomicUsize = AtomicUsize::new(0);

/// Running totals of one topic.
#[derive(Debug, Default)]
pub struct Traffic {
    put_messages: AtomicU64,
    put_bytes: AtomicU64,
    got_messages: AtomicU64,
    got_bytes: AtomicU64,
    /// Copied when a group pulls for the first time. A concurrent map costs some 18 KiB, too much
    /// for each topic.
    groups: ArcSwap<BTreeMap<Arc<str>, Arc<GroupTraffic>>>,
}

/// Running totals of one group in one topic.
#[derive(Debug, Default)]
pub struct GroupTraffic {
    messages: AtomicU64,
    bytes: AtomicU64,
    pulls: AtomicU64,
    sent_back: AtomicU64,
    /// By queue; only the services thread adds to it.
    slow_reads: Mutex<BTreeMap<i32, SlowReads>>,
    /// Whether it is one of [`PAIRS`].
    is_kept: bool,
}

/// Reads of one queue that took a millisecond or longer.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlowReads {
    /// How long all of them took, in milliseconds.
    pub ms: u64,
    /// How many.
    pub reads: u64,
}

impl Drop for GroupTraffic {
    fn drop(&mut self) {
        if self.is_kept {
            PAIRS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl GroupTraffic {
    /// Counters that are kept, while fewer than `limit` are.
    fn kept(limit: usize) -> Option<Self> {
        let one_more = |count: usize| (count < limit).then_some(count + 1);
        PAIRS
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        let mut counters = Self::default();
        counters.is_kept = true;
        Some(counters)
    }

    /// Messages handed to the group so far.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Record bytes handed to the group so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts a message that the group sent back to come again, or to be dead.
    pub fn send_back(&self) {
        self.sent_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages that the group sent back so far.
    pub fn sent_back(&self) -> u64 {
        self.sent_back.load(Ordering::Relaxed)
    }

    /// Counts a read that took `ms` milliseconds; those that took less than one add nothing.
    pub fn read_slowly(&self, queue_id: i32, ms: u64) {
        let mut all = self
            .slow_reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let room = all.len() < SLOW_QUEUES_MAX || all.contains_key(&queue_id);
        if ms > 0 && room {
            let slow = all.entry(queue_id).or_default();
            slow.ms += ms;
            slow.reads += 1;
        }
    }

    /// The slow reads of each queue that had any.
    pub fn slow_reads(&self) -> Vec<(i32, SlowReads)> {
        let all = self
            .slow_reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(queue, slow)| (*queue, *slow)).collect()
    }

    /// Pulls with messages so far.
    pub fn pulls(&self) -> u64 {
        self.pulls.load(Ordering::Relaxed)
    }
}

impl Traffic {
    /// Counts acknowledged messages and the bytes of their records.
    pub fn put(&self, messages: u64, bytes: u64) {
        self.put_messages.fetch_add(messages, Ordering::Relaxed);
        self.put_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts messages handed to consumers of a group and the bytes of their records.
    pub fn get(&self, group: &GroupTraffic, messages: u64, bytes: u64) {
        self.got_messages.fetch_add(messages, Ordering::Relaxed);
        self.got_bytes.fetch_add(bytes, Ordering::Relaxed);
        group.messages.fetch_add(messages, Ordering::Relaxed);
        group.bytes.fetch_add(bytes, Ordering::Relaxed);
        group.pulls.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters of a group; made at its first pull. The caller checked that the group exists.
    /// With too many groups in too many topics the counters are nobody's.
    pub fn group(&self, name: &str) -> Arc<GroupTraffic> {
        self.group_within(name, PAIRS_MAX)
    }

    fn group_within(&self, name: &str, limit: usize) -> Arc<GroupTraffic> {
        if let Some(known) = self.known_group(name) {
            return known;
        }
        let Some(fresh) = GroupTraffic::kept(limit) else {
            return Arc::default();
        };
        let (name, fresh) = (Arc::<str>::from(name), Arc::new(fresh));
        self.groups.rcu(|groups| {
            let mut groups = BTreeMap::clone(groups);
            groups
                .entry(Arc::clone(&name))
                .or_insert_with(|| Arc::clone(&fresh));
            groups
        });
        // Another core's may have come first.
        self.known_group(&name).unwrap_or(fresh)
    }

    /// The counters of a group, if it ever pulled.
    pub fn known_group(&self, name: &str) -> Option<Arc<GroupTraffic>> {
        self.groups.load().get(name).map(Arc::clone)
    }

    /// Every group that ever pulled.
    pub fn groups(&self) -> Vec<(Arc<str>, Arc<GroupTraffic>)> {
        let groups = self.groups.load();
        let each = groups.iter();
        each.map(|(name, traffic)| (Arc::clone(name), Arc::clone(traffic)))
            .collect()
    }

    /// Forgets a group's counters.
    pub fn forget(&self, group: &str) {
        if self.known_group(group).is_some() {
            self.groups.rcu(|groups| {
                let mut groups = BTreeMap::clone(groups);
                groups.remove(group);
                groups
            });
        }
    }

    /// Messages stored so far.
    pub fn put_messages(&self) -> u64 {
        self.put_messages.load(Ordering::Relaxed)
    }

    /// Record bytes stored so far.
    pub fn put_bytes(&self) -> u64 {
        self.put_bytes.load(Ordering::Relaxed)
    }

    /// Messages handed to consumers so far.
    pub fn got_messages(&self) -> u64 {
        self.got_messages.load(Ordering::Relaxed)
    }

    /// Record bytes handed to consumers so far.
    pub fn got_bytes(&self) -> u64 {
        self.got_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_in_many_topics_cannot_fill_the_memory() {
        let traffic = Traffic::default();
        assert_eq!(traffic.group_within("none", 0).messages(), 0);
        assert!(traffic.known_group("none").is_none());
        traffic.get(&traffic.group_within("none", 0), 1, 10);
        assert_eq!(traffic.got_messages(), 1, "it counts for the topic");
        let kept = traffic.group("kept");
        assert!(kept.is_kept && traffic.known_group("kept").is_some());
    }

    #[test]
    fn what_a_group_gets_counts_for_its_topic_too() {
        let traffic = Traffic::default();
        let (one, other) = (traffic.group("one"), traffic.group("other"));
        traffic.get(&one, 3, 300);
        traffic.get(&one, 1, 100);
        traffic.get(&other, 2, 200);
        assert_eq!((traffic.got_messages(), traffic.got_bytes()), (6, 600));
        let known = traffic.known_group("one").expect("it pulled");
        assert_eq!(
            (known.messages(), known.bytes(), known.pulls()),
            (4, 400, 2)
        );
        assert_eq!(traffic.groups().len(), 2);
        assert!(traffic.known_group("nobody").is_none());
    }
}
