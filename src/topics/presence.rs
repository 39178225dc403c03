//! What is done about a name while it has a topic, or has none.

use super::{Topic, TopicConfig, Topics};

impl Topic {
    /// Whether both are of one topic, updates aside; not if it was removed and made anew.
    pub fn is(&self, other: &Topic) -> bool {
        self.rank == other.rank
    }
}

impl Topics {
    /// Runs `work` if there is no topic of that name, and none is made meanwhile: whoever would
    /// make one waits for it.
    pub fn while_absent<T>(&self, name: &str, work: impl FnOnce() -> T) -> Option<T> {
        let _version = self.lock();
        self.get(name).is_none().then(work)
    }

    /// Runs `work` with the topic of that name, if there is one; it is neither altered nor removed
    /// meanwhile, and whoever is told of changes is told before or afterwards.
    pub fn while_present<T>(&self, name: &str, work: impl FnOnce(&TopicConfig) -> T) -> Option<T> {
        let _version = self.lock();
        self.get(name).map(|topic| work(&topic.config))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::system;
    use super::super::{TopicConfig, Topics};
    use crate::persist::Persist;

    #[test]
    fn no_topic_is_made_while_somebody_relies_on_its_absence() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = Topics::load(Arc::new(Persist::new(dir.path())), &system()).expect("load");
        let (made, is_made) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let topics = &topics;
            let relied = topics.while_absent("T", || {
                scope.spawn(move || {
                    topics.create_if_absent(TopicConfig::new("T", 4, 6));
                    made.send(()).expect("the test");
                });
                let early = is_made.recv_timeout(std::time::Duration::from_millis(20));
                early.is_err() && topics.get("T").is_none()
            });
            assert_eq!(relied, Some(true));
            is_made.recv().expect("the topic");
        });
        assert!(topics.while_absent("T", || ()).is_none());
    }
}
