//! Cleaning on request: 306, 316 and 329 (docs/operations.md, Retention).

use std::collections::BTreeSet;
use std::time::SystemTime;

use crate::answer::{Answer, Reply, SYSTEM_ERROR};
use crate::names;

/// 306: removes queue files whose messages are gone. Retention rounds do that by themselves; this
/// is one more round.
pub fn clean_queues() -> Answer {
    round(false)
}

/// 329: removes expired log files, whatever the hour.
pub fn delete_log() -> Answer {
    round(true)
}

fn round(manual: bool) -> Answer {
    Answer::Later(Box::new(move |services| {
        let store = &services.broker.store;
        match store.retention_round(SystemTime::now(), manual) {
            Ok(report) => {
                tracing::info!(?report, "a retention round on request");
                Reply::success()
            }
            Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    }))
}

/// 316: removes the queues of topics that are not configured any more.
pub fn clean_topics() -> Answer {
    Answer::Later(Box::new(|services| {
        let broker = &services.broker;
        let queues = broker.store.queues();
        let topics: BTreeSet<_> = queues.iter().map(|queue| &queue.topic).collect();
        for topic in topics {
            let (cluster, name) = (&broker.config.cluster, &broker.config.broker_name);
            if broker.topics.get(topic).is_some() || names::is_system_topic(topic, cluster, name) {
                continue;
            }
            tracing::info!("removing the queues of {topic}, which is not configured");
            if let Err(error) = broker.store.remove_topic(topic) {
                return Reply::error(SYSTEM_ERROR, error.to_string());
            }
        }
        Reply::success()
    }))
}
