//! Cleaning on request: 306, 316 and 329 (docs/operations.md, Retention).

use std::collections::BTreeSet;

use saturnmq_storage::error::RetentionError;
use saturnmq_storage::store::RetentionReport;

use crate::answer::{Answer, Reply, SYSTEM_ERROR};
use crate::light::is_light;
use crate::names;

/// 306: removes queue files whose messages are gone. Retention rounds do that by themselves; queues
/// are kept, for their offsets are not given out twice.
pub fn clean_queues() -> Answer {
    Answer::Later(Box::new(move |services| {
        finish(services.broker.store.trim_entries(true))
    }))
}

/// 329: removes expired log files, whatever the hour: now, and in the next 19 rounds, for a round
/// takes at most `deleteFileBatchMax`.
pub fn delete_log() -> Answer {
    Answer::Later(Box::new(move |services| finish(services.retention(true))))
}

fn finish(round: Result<RetentionReport, RetentionError>) -> Reply {
    match round {
        Ok(report) => {
            tracing::info!(?report, "cleaning on request");
            Reply::success()
        }
        Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
    }
}

/// 316: removes the queues of topics that are not configured any more.
pub fn clean_topics() -> Answer {
    Answer::Later(Box::new(|services| {
        let broker = &services.broker;
        let queues = broker.store.queues();
        let topics: BTreeSet<_> = queues.iter().map(|queue| &queue.topic).collect();
        for topic in topics {
            let (cluster, name) = (&broker.config.cluster, &broker.config.broker_name);
            let system = names::is_system_topic(topic, cluster, name);
            if system || is_light(topic) {
                continue;
            }
            // Taken before anybody can make the topic: what it takes then goes to other queues.
            let taken = broker
                .topics
                .while_absent(topic, || broker.store.begin_removal(topic));
            let Some(removal) = taken.flatten() else {
                continue;
            };
            tracing::info!("removing the queues of {topic}, which is not configured");
            match broker.store.finish_removal(topic, removal) {
                Ok(queues) => broker.queues_gone(&queues),
                Err(error) => return Reply::error(SYSTEM_ERROR, error.to_string()),
            }
        }
        Reply::success()
    }))
}
