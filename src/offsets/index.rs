//! Which offsets there are, by group, topic and queue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Names looked at while the index is locked: network cores wait for it.
pub(super) const SLICE: usize = 1024;

/// The queues of one group in one topic that have an offset.
pub(super) struct Entry {
    /// Position in the file.
    pub(super) rank: u64,
    pub(super) queues: BTreeSet<i32>,
}

/// Which offsets there are; locked for first commits, removals and listings.
#[derive(Default)]
pub(super) struct Index {
    next_rank: u64,
    pub(super) groups: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Entry>>,
}

/// A walk over the index, a slice at a time; what is added or removed meanwhile it may see or not.
#[derive(Default)]
pub(super) struct Walk<'a> {
    /// Only this group.
    pub(super) group: Option<&'a str>,
    /// Only this topic.
    pub(super) topic: Option<&'a str>,
    /// Where the next slice begins.
    pub(super) at: Option<Position>,
    pub(super) over: bool,
}

/// A place in the index: behind a queue of an entry, or before all of them.
pub(super) struct Position {
    group: Arc<str>,
    topic: Arc<str>,
    behind: Option<i32>,
}

/// The queues of one entry that a slice holds.
pub(super) struct Part {
    pub(super) group: Arc<str>,
    pub(super) topic: Arc<str>,
    pub(super) rank: u64,
    pub(super) queues: Vec<i32>,
}

impl Position {
    fn before(group: &Arc<str>) -> Position {
        Position {
            group: Arc::clone(group),
            topic: Arc::from(""),
            behind: None,
        }
    }
}

impl Index {
    /// The walk's next [`SLICE`] queues and entries at most.
    pub(super) fn slice(&self, walk: &mut Walk<'_>) -> Vec<Part> {
        let (mut parts, mut left) = (Vec::new(), SLICE);
        let from = walk.at.take();
        let first = from.as_ref().map(|from| &*from.group).or(walk.group);
        let first = first.map_or(Bound::Unbounded, Bound::Included);
        for (group, topics) in self.groups.range::<str, _>((first, Bound::Unbounded)) {
            if walk.group.is_some_and(|wanted| wanted != &**group) {
                break;
            }
            let from = from.as_ref().filter(|from| from.group == *group);
            let first = from.map(|from| &*from.topic).max(walk.topic);
            let first = first.map_or(Bound::Unbounded, Bound::Included);
            for (topic, entry) in topics.range::<str, _>((first, Bound::Unbounded)) {
                if walk.topic.is_some_and(|wanted| wanted != &**topic) {
                    break;
                }
                let behind = from.filter(|from| from.topic == *topic);
                let behind = behind.and_then(|from| from.behind);
                let queues = behind.map_or(Bound::Unbounded, Bound::Excluded);
                let queues = entry.queues.range((queues, Bound::Unbounded));
                let queues: Vec<i32> = queues.take(left).copied().collect();
                left -= queues.len().max(1);
                walk.at = Some(Position {
                    group: Arc::clone(group),
                    topic: Arc::clone(topic),
                    behind: queues.last().copied().or(behind),
                });
                parts.push(Part {
                    group: Arc::clone(group),
                    topic: Arc::clone(topic),
                    rank: entry.rank,
                    queues,
                });
                if left == 0 {
                    return parts;
                }
            }
            // A group without the topic is looked at, too.
            left -= 1;
            if left == 0 {
                let last = walk.at.take().filter(|at| at.group == *group);
                walk.at = last.or_else(|| Some(Position::before(group)));
                return parts;
            }
        }
        walk.over = true;
        parts
    }

    /// Removes the queues of a part, with its entry and its group if nothing is left of them.
    pub(super) fn remove(&mut self, part: &Part) {
        let Some(topics) = self.groups.get_mut(&part.group) else {
            return;
        };
        if let Some(entry) = topics.get_mut(&part.topic) {
            for queue in &part.queues {
                entry.queues.remove(queue);
            }
            if entry.queues.is_empty() {
                topics.remove(&part.topic);
            }
        }
        if topics.is_empty() {
            self.groups.remove(&part.group);
        }
    }

    /// The entry, made when it is missing, with its names.
    pub(super) fn entry(&mut self, group: &str, topic: &str) -> (Arc<str>, Arc<str>, &mut Entry) {
        let group = shared_name(&self.groups, group);
        let topics = self.groups.entry(Arc::clone(&group)).or_default();
        let topic = shared_name(topics, topic);
        let next_rank = &mut self.next_rank;
        let entry = topics.entry(Arc::clone(&topic)).or_insert_with(|| {
            *next_rank += 1;
            Entry {
                rank: *next_rank,
                queues: BTreeSet::new(),
            }
        });
        (group, topic, entry)
    }
}

fn shared_name<T>(table: &BTreeMap<Arc<str>, T>, name: &str) -> Arc<str> {
    table
        .get_key_value(name)
        .map_or_else(|| Arc::from(name), |(known, _)| Arc::clone(known))
}
