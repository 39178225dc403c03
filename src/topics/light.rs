//! Topics that exist because of their names: each light queue is one, with one queue, and stands in
//! no state file (docs/behaviour.md, Light queues).

use std::sync::Arc;

use super::{PERM_READ, PERM_WRITE, Topic, TopicConfig};
use crate::light::{LightConfig, PREFIX, is_name};
use crate::traffic::Traffic;

/// The light topics that were asked for.
pub(super) struct LightTopics {
    known: papaya::HashMap<String, Arc<Topic>>,
    /// More than these are not remembered.
    most: usize,
    /// Stands for all of them in statistics and metrics.
    pub(super) all: Arc<Topic>,
}

impl LightTopics {
    /// `None` when they are not enabled.
    pub(super) fn new(config: LightConfig) -> Option<Self> {
        config.enabled.then(|| Self {
            known: papaya::HashMap::new(),
            most: config.most,
            all: Arc::new(topic(PREFIX, Arc::default())),
        })
    }

    /// The topic of a light queue.
    pub(super) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        let known = self.known.pin();
        if let Some(topic) = known.get(name) {
            return Some(Arc::clone(topic));
        }
        if !is_name(name) {
            return None;
        }
        let made = Arc::new(topic(name, Arc::clone(&self.all.traffic)));
        if known.len() > self.most {
            return Some(made);
        }
        Some(Arc::clone(
            known.get_or_insert_with(name.to_owned(), || made),
        ))
    }

    /// Forgets what is known of a light queue that is being removed.
    pub(super) fn forget(&self, name: &str) {
        self.known.pin().remove(name);
    }
}

fn topic(name: &str, traffic: Arc<Traffic>) -> Topic {
    let config = TopicConfig::new(name, 1, PERM_READ | PERM_WRITE);
    Topic {
        traffic,
        ..Topic::new(config, 0, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clients_cannot_fill_the_memory() {
        let config = LightConfig {
            enabled: true,
            dispatch: true,
            most: 3,
        };
        let topics = LightTopics::new(config).expect("enabled");
        for number in 0..100 {
            let topic = topics.get(&format!("%LMQ%{number}")).expect("light");
            topic.traffic.put(1, 10);
            assert_eq!((topic.config.read_queues, topic.config.perm), (1, 6));
        }
        assert_eq!(topics.known.len(), 4);
        assert_eq!(topics.all.traffic.put_messages(), 100);
        assert!(topics.get("Orders").is_none() && topics.get("%LMQ%a/b").is_none());
    }
}
