//! What administrators' tools ask about timers: requests 60 and 61
//! (docs/protocol.md, Request codes).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use saturnmq_storage::format::hash::java_hash;
use saturnmq_storage::format::timer::Check;
use saturnmq_storage::timer::{TimerError, TimerStore};
use serde_json::{Map, json};

use crate::answer::{Answer, Reply, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::services::ServiceContext;

/// How many times as long as a look at the timer log took its numbers are told again.
const KEPT: u32 = 20;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// 60: how far everything is.
    CheckPoint,
    /// 61: how many messages of each topic wait.
    Numbers,
}

/// Handles 60 and 61: the thread that owns the timer files answers.
pub fn ask(broker: &Broker, question: Question) -> Answer {
    if !broker.config.timers.enabled {
        let what = match question {
            Question::CheckPoint => "The checkpoint is null",
            Question::Numbers => "The timer message store is null",
        };
        return Reply::error(SYSTEM_ERROR, what).into();
    }
    Answer::Work(Box::new(move |services, slot| {
        services.timer_questions.push((slot, question));
    }))
}

/// Answers questions.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The last numbers and when they are too old.
    kept: Option<(Instant, Vec<u8>)>,
}

impl Answers {
    /// Answers everybody; `open` are the files, and the time, ms, from which on messages wait.
    pub(super) fn give(
        &mut self,
        services: &mut ServiceContext,
        mut open: Option<(&mut TimerStore, i64)>,
    ) {
        for (slot, question) in std::mem::take(&mut services.timer_questions) {
            let body = match question {
                Question::CheckPoint => {
                    let check = open.as_ref().map(|(store, _)| *store.check());
                    Ok(check.unwrap_or_default().encode().to_vec())
                }
                Question::Numbers => self.numbers(&services.broker, &mut open),
            };
            let reply = match body {
                Ok(body) => Reply::success().body(body),
                Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
            };
            services.reply(slot, reply);
        }
    }

    fn numbers(
        &mut self,
        broker: &Broker,
        open: &mut Option<(&mut TimerStore, i64)>,
    ) -> Result<Vec<u8>, TimerError> {
        let begin = Instant::now();
        if let Some((until, body)) = &self.kept
            && begin < *until
        {
            return Ok(body.clone());
        }
        let (by_topic, version) = match open {
            Some((store, read_ms)) => (store.waiting_by_topic(*read_ms)?, *store.check()),
            None => (HashMap::new(), Check::default()),
        };
        let now = now_ms();
        let mut counts = Map::new();
        broker.topics.each(|topic| {
            if let Some(count) = by_topic.get(&java_hash(&topic.config.name)) {
                let count = json!({"count": count, "timeStamp": now});
                counts.insert(topic.config.name.clone(), count);
            }
        });
        let body = json!({
            "dataVersion": {
                "counter": version.version_counter,
                "stateVersion": version.state_version,
                "timestamp": version.version_ms,
            },
            "timingCount": counts,
        });
        let body = body.to_string().into_bytes();
        let took: Duration = begin.elapsed();
        self.kept = Some((begin + took * KEPT, body.clone()));
        Ok(body)
    }
}
