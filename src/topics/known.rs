//! The topics that one core used, found without the shared table, and what leads to their queues.
//!
//! With thousands of topics, each written in turn, nothing of a topic is in the cache any more when
//! its next message comes, and one place leads to the next: the table, the topic, its name, its
//! queue. The addresses are remembered here, so that those of the next frame are fetched while the
//! one at hand is served. They are hints: a stale one costs a fetch. A topic that was altered or
//! removed is never found here.

use std::hash::{BuildHasher, Hasher};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use foldhash::fast::RandomState;
use saturnmq_storage::mapping::{CACHE_LINE, prefetch};
use saturnmq_storage::queue_table::Queue;

use super::{Topic, Topics};

/// Places at first, and at most: 2 MiB.
const PLACES: (usize, usize) = (64, 1 << 15);
/// Queues of a topic whose addresses are remembered.
const QUEUES: usize = 4;
/// Topics from which on fetching ahead is worth its time: the lines of fewer stay in the cache.
const MANY: usize = 512;
/// Bytes before a shared value at which its counts of references stand.
pub const COUNTS_BEFORE: usize = 16;

/// One topic. Topics whose names have the same hash below the number of places share two of them,
/// one beside the other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    hash: u64,
    topic: Weak<Topic>,
    name: usize,
    cells: usize,
    queues: [usize; QUEUES],
}

/// See the module's description.
#[derive(Debug)]
pub struct KnownTopics {
    places: Vec<Place>,
    hasher: RandomState,
    used: usize,
}

impl Default for KnownTopics {
    fn default() -> Self {
        let mut places = Vec::new();
        places.resize_with(PLACES.0, Place::default);
        Self {
            places,
            hasher: RandomState::default(),
            used: 0,
        }
    }
}

impl KnownTopics {
    /// What a topic's name is known by.
    pub fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name);
        hasher.finish()
    }

    /// The place of the topic with this hash; none where it is not known.
    fn index(&self, hash: u64) -> Option<usize> {
        self.pair(hash).into_iter().find(|at| {
            let place = &self.places[*at];
            place.hash == hash && place.name != 0
        })
    }

    fn pair(&self, hash: u64) -> [usize; 2] {
        // Their number is a power of two.
        let first = hash as usize & (self.places.len() - 1);
        [first, first ^ 1]
    }

    /// Where a topic is put that is not known: a free place, else that of another topic.
    fn free(&self, hash: u64) -> usize {
        let pair = self.pair(hash);
        let free = |at: &usize| self.places[*at].topic.strong_count() == 0;
        pair.into_iter().find(free).unwrap_or(pair[0])
    }

    /// A topic by name, as [`Topics::get`] finds it.
    pub fn get(&mut self, topics: &Topics, name: &str) -> Option<Arc<Topic>> {
        let hash = self.hash(name.as_bytes());
        if let Some(index) = self.index(hash)
            && let Some(topic) = self.places[index].topic.upgrade()
            && topic.config.name == name
            && !topic.replaced.load(Ordering::Acquire)
        {
            return Some(topic);
        }
        let topic = topics.get(name)?;
        // Those that exist by their names are forgotten without a word.
        if topics.light(name).is_none() {
            self.note(hash, &topic);
        }
        Some(topic)
    }

    #[cold]
    fn note(&mut self, hash: u64, topic: &Arc<Topic>) {
        if self.used * 2 > self.places.len() && self.places.len() < PLACES.1 {
            self.grow();
        }
        let index = self.index(hash).unwrap_or_else(|| self.free(hash));
        let place = &mut self.places[index];
        self.used += usize::from(place.name == 0);
        *place = Place {
            hash,
            topic: Arc::downgrade(topic),
            name: topic.config.name.as_ptr().addr(),
            cells: topic.queues.as_ptr().addr(),
            queues: [0; QUEUES],
        };
    }

    fn grow(&mut self) {
        let mut places = Vec::new();
        places.resize_with(self.places.len() * 2, Place::default);
        self.used = 0;
        for place in std::mem::replace(&mut self.places, places) {
            if place.topic.strong_count() > 0 {
                let index = self.free(place.hash);
                self.used += usize::from(self.places[index].name == 0);
                self.places[index] = place;
            }
        }
    }

    /// Notes where a queue of a topic is that was found here.
    pub fn note_queue(&mut self, topic: &Arc<Topic>, queue_id: i32, queue: &Arc<Queue>) {
        if !self.are_many() {
            return;
        }
        let Some(index) = self.index(self.hash(topic.config.name.as_bytes())) else {
            return;
        };
        let place = &mut self.places[index];
        let id = usize::try_from(queue_id).unwrap_or(QUEUES);
        let known = place.topic.as_ptr() == Arc::as_ptr(topic);
        let new = Arc::as_ptr(queue).addr();
        // Nearly always it is known: a store would have the line written back.
        if let Some(address) = place.queues.get_mut(id).filter(|at| known && **at != new) {
            *address = new;
        }
    }

    /// Whether there are so many topics that their lines do not stay in the cache.
    pub fn are_many(&self) -> bool {
        self.used >= MANY
    }

    /// Has fetched where what is known of a topic stands, by the hash of its name.
    pub fn fetch_place(&self, hash: u64) {
        // Both of the pair: lines are fetched in pairs.
        let [first, _] = self.pair(hash);
        prefetch(self.places.as_ptr().addr() + first * size_of::<Place>());
    }

    /// Has fetched what a send to a queue of a topic will touch, by the hash of its name.
    pub fn fetch(&self, hash: u64, queue_id: usize) {
        let Some(index) = self.index(hash) else {
            return;
        };
        let place = &self.places[index];
        let topic = place.topic.as_ptr().addr();
        prefetch(topic - COUNTS_BEFORE);
        for offset in (0..size_of::<Topic>()).step_by(CACHE_LINE) {
            prefetch(topic + offset);
        }
        prefetch(place.name);
        if let Some(&queue) = place.queues.get(queue_id) {
            prefetch(place.cells + queue_id * size_of::<OnceLock<Arc<Queue>>>());
            if queue != 0 {
                Queue::fetch(queue);
            }
        }
    }
}

impl Topic {
    /// Has fetched where a topic leads to its counters.
    pub fn fetch_way_to_traffic(topic: &Arc<Topic>) {
        let address = Arc::as_ptr(topic).addr();
        prefetch(address - COUNTS_BEFORE);
        prefetch(address + offset_of!(Topic, traffic));
    }

    /// Has fetched a topic's counters.
    pub fn fetch_traffic(&self) {
        prefetch(Arc::as_ptr(&self.traffic).addr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::Persist;
    use crate::topics::{SystemTopics, TopicConfig};

    fn topics(dir: &std::path::Path) -> Topics {
        let system = SystemTopics {
            cluster: "C".into(),
            broker: "B".into(),
            auto_create: true,
            default_queues: 8,
            cluster_topic: true,
            broker_topic: true,
            trace_topic: None,
            delay_levels: 18,
            revive_queues: 8,
            timer: false,
        };
        Topics::load(Arc::new(Persist::new(dir)), &system).expect("topics")
    }

    #[test]
    fn a_topic_is_known_as_it_is_now_and_not_as_it_was() {
        let dir = tempfile::tempdir().expect("directory");
        let topics = topics(dir.path());
        let mut known = KnownTopics::default();
        assert!(known.get(&topics, "T").is_none());
        topics.create_or_update(TopicConfig::new("T", 4, 6));
        let first = topics.get("T").expect("a topic");
        let count = Arc::strong_count(&first);
        for _ in 0..2 {
            assert!(Arc::ptr_eq(&first, &known.get(&topics, "T").expect("T")));
        }
        // A topic that is kept when it is removed keeps its queues mapped.
        assert_eq!(Arc::strong_count(&first), count);
        topics.create_or_update(TopicConfig::new("T", 8, 4));
        let altered = known.get(&topics, "T").expect("a topic");
        assert_eq!((altered.config.write_queues, altered.config.perm), (8, 4));
        topics.remove("T").expect("it was there");
        assert!(known.get(&topics, "T").is_none());
        topics.create_or_update(TopicConfig::new("T", 2, 6));
        let again = known.get(&topics, "T").expect("a topic");
        assert_eq!(again.config.write_queues, 2);
    }

    #[test]
    fn thousands_of_topics_are_found_and_those_that_share_a_place_too() {
        let dir = tempfile::tempdir().expect("directory");
        let topics = topics(dir.path());
        let mut known = KnownTopics::default();
        let names: Vec<String> = (0..3000).map(|number| format!("topic-{number}")).collect();
        for name in &names {
            topics.create_or_update(TopicConfig::new(name, 4, 6));
        }
        for _ in 0..2 {
            for name in &names {
                let topic = known.get(&topics, name).expect("a topic");
                assert_eq!(topic.config.name, *name);
                for queue_id in [3, 1 << 40] {
                    known.fetch_place(known.hash(name.as_bytes()));
                    known.fetch(known.hash(name.as_bytes()), queue_id);
                }
            }
        }
        assert!(known.are_many());
        assert!(known.places.len() >= 4096);
    }
}
