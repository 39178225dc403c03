//! Which broker holds which topic's queues: both ways, so that no change walks the other topics.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::records::TopicQueues;
use crate::core::off_the_cores;

/// The topics of all brokers.
///
/// Every broker of a topic is one of `topics` and one of `brokers`; nothing in either is empty.
#[derive(Debug, Default)]
pub(super) struct Holders {
    topics: BTreeMap<Arc<str>, BTreeMap<String, TopicQueues>>,
    /// Of each broker its topics.
    brokers: HashMap<String, HashSet<Arc<str>>>,
    /// Topics of each broker, added up.
    routes: usize,
}

impl Holders {
    /// Topics that there are.
    pub(super) fn topics(&self) -> usize {
        self.topics.len()
    }

    /// Topics of each broker, added up.
    pub(super) fn routes(&self) -> usize {
        self.routes
    }

    /// The brokers of a topic, with its queues on each.
    pub(super) fn of_topic(&self, topic: &str) -> Option<&BTreeMap<String, TopicQueues>> {
        self.topics.get(topic)
    }

    /// The topics of a broker.
    pub(super) fn of_broker(&self, broker: &str) -> impl Iterator<Item = &Arc<str>> {
        self.brokers.get(broker).into_iter().flatten()
    }

    /// Whether a topic has queues on a broker.
    pub(super) fn has(&self, broker: &str, topic: &str) -> bool {
        let holders = self.topics.get(topic);
        holders.is_some_and(|holders| holders.contains_key(broker))
    }

    /// Every topic with its brokers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<String, TopicQueues>)> {
        off_the_cores();
        self.topics.iter()
    }

    /// Adds a topic of a broker, or replaces its queues.
    pub(super) fn set(&mut self, broker: &str, topic: &str, queues: TopicQueues) {
        if let Some(held) = self.queues_mut(broker, topic) {
            *held = queues;
            return;
        }
        let known = self.topics.get_key_value(topic);
        let name = known.map_or_else(|| Arc::from(topic), |(name, _)| Arc::clone(name));
        let holders = self.topics.entry(Arc::clone(&name)).or_default();
        holders.insert(broker.to_owned(), queues);
        self.brokers
            .entry(broker.to_owned())
            .or_default()
            .insert(name);
        self.routes += 1;
    }

    /// The queues of a topic on a broker, to change them.
    pub(super) fn queues_mut(&mut self, broker: &str, topic: &str) -> Option<&mut TopicQueues> {
        self.topics.get_mut(topic)?.get_mut(broker)
    }

    /// Removes a topic of a broker.
    pub(super) fn remove(&mut self, broker: &str, topic: &str) {
        if let Some(topics) = self.brokers.get_mut(broker) {
            topics.remove(topic);
            if topics.is_empty() {
                self.brokers.remove(broker);
            }
        }
        self.release(broker, topic);
    }

    /// Removes every topic of a broker.
    pub(super) fn remove_broker(&mut self, broker: &str) {
        for topic in self.brokers.remove(broker).unwrap_or_default() {
            self.release(broker, &topic);
        }
    }

    /// What `topics` says of one broker goes.
    fn release(&mut self, broker: &str, topic: &str) {
        let Some(holders) = self.topics.get_mut(topic) else {
            return;
        };
        if holders.remove(broker).is_some() {
            self.routes -= 1;
        }
        if holders.is_empty() {
            self.topics.remove(topic);
        }
    }
}
