//! How many topics and queues there may be: both come from clients.

use std::sync::atomic::Ordering;

use super::{TopicConfig, Topics};

/// Most topics that clients and administrators may come to, retry and dead letter topics included.
const TOPICS_MAX: usize = 300_000;
/// Most queues of all topics together.
const QUEUES_MAX: usize = 4_000_000;

/// Most queues of one topic.
pub const MOST_QUEUES: usize = 65_536;

/// The table takes no more.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("there would be {wanted} {what} and may be {limit}: delete topics that nobody uses")]
pub struct TopicsFull {
    what: &'static str,
    wanted: usize,
    limit: usize,
}

impl Topics {
    /// Whether these topics, new ones or altered ones, fit the table. Requests on several cores may
    /// each get the last room: the table then has a few more.
    ///
    /// # Errors
    /// [`TopicsFull`], naming the limit.
    pub fn check_room(&self, configs: &[TopicConfig]) -> Result<(), TopicsFull> {
        let (mut topics, mut queues) = (self.len(), self.queues.load(Ordering::Relaxed));
        for config in configs {
            let known = self.get(&config.name);
            topics += usize::from(known.is_none());
            let before = known.map_or(0, |known| known.config.queues());
            queues = (queues + config.queues()).saturating_sub(before);
        }
        let check = |what, wanted, held, limit| match wanted > limit && wanted > held {
            true => Err(TopicsFull {
                what,
                wanted,
                limit,
            }),
            false => Ok(()),
        };
        check("topics", topics, self.len(), TOPICS_MAX)?;
        let held = self.queues.load(Ordering::Relaxed);
        check("queues", queues, held, QUEUES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::persist::Persist;
    use crate::topics::SystemTopics;

    fn empty(dir: &tempfile::TempDir) -> Topics {
        let system = SystemTopics {
            cluster: "C".into(),
            broker: "b".into(),
            auto_create: true,
            default_queues: 8,
            cluster_topic: true,
            broker_topic: true,
            trace_topic: None,
            delay_levels: 18,
            revive_queues: 8,
            timer: false,
        };
        Topics::load(Arc::new(Persist::new(dir.path())), &system).expect("load")
    }

    #[test]
    fn queues_of_clients_cannot_fill_the_memory() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        let large = |n: usize| TopicConfig::new(format!("T{n}"), MOST_QUEUES as i32, 6);
        let before = topics.queues.load(Ordering::Relaxed);
        let mut fit = 0;
        while topics.check_room(&[large(fit)]).is_ok() {
            topics.create_or_update(large(fit));
            fit += 1;
        }
        assert_eq!(fit, QUEUES_MAX / MOST_QUEUES);
        let full = topics.check_room(&[large(99)]).expect_err("full");
        assert!(full.to_string().contains("may be 4000000"), "{full}");
        assert_eq!(topics.check_room(&[large(0)]), Ok(()), "it is there");
        let fewer = TopicConfig::new("T0", 1, 6);
        assert_eq!(topics.check_room(std::slice::from_ref(&fewer)), Ok(()));
        topics.create_or_update(fewer);
        assert_eq!(topics.check_room(&[TopicConfig::new("U", 8, 6)]), Ok(()));
        for n in 0..fit {
            topics.remove(&format!("T{n}"));
        }
        assert_eq!(topics.queues.load(Ordering::Relaxed), before);
        let many: Vec<_> = (0..TOPICS_MAX)
            .map(|n| TopicConfig::new(format!("U{n}"), 1, 6))
            .collect();
        let full = topics.check_room(&many).expect_err("too many at once");
        assert!(full.to_string().contains("topics and may be"), "{full}");
    }
}
