//! What administrators' tools ask about timers: requests 60 and 61
//! (docs/protocol.md, Request codes).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use saturnmq_storage::format::hash::java_hash;
use saturnmq_storage::format::timer::{Check, Item};
use saturnmq_storage::timer::{Scan, TimerError, TimerStore, weight};
use serde_json::{Map, json};

use crate::answer::{Answer, Reply, ReplySlot, SYSTEM_ERROR};
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
    /// Who waits for new ones.
    waiting: Vec<ReplySlot>,
    census: Option<Census>,
}

/// Messages that wait, counted by the Java hash of the topic that they are meant for, less those
/// that delete others.
#[derive(Debug)]
struct Census {
    scan: Scan,
    /// The first slot whose messages wait.
    first: i64,
    precision_ms: i64,
    counts: HashMap<i32, i64>,
    /// How long its steps took.
    took: Duration,
}

impl Census {
    fn new(store: &TimerStore, read_ms: i64) -> Self {
        let precision_ms = store.settings().precision_ms;
        Self {
            scan: store.scan(),
            first: read_ms.div_euclid(precision_ms),
            precision_ms,
            counts: HashMap::new(),
            took: Duration::ZERO,
        }
    }

    /// Counts on for a while; false once all is counted.
    fn step(&mut self, store: &mut TimerStore) -> Result<bool, TimerError> {
        let begin = Instant::now();
        let (first, precision_ms, counts) = (self.first, self.precision_ms, &mut self.counts);
        let more = self.scan.step(store, |_, item: &Item| {
            if !item.is_filler() && item.time_ms().div_euclid(precision_ms) >= first {
                *counts.entry(item.topic_hash).or_default() += i64::from(weight(item.marks));
            }
        });
        self.took += begin.elapsed();
        more
    }
}

impl Answers {
    /// Answers who can be answered; `open` are the files, and the time, ms, from which on messages
    /// wait. True if there is more to do at once: others of this thread come first.
    pub(super) fn give(
        &mut self,
        services: &mut ServiceContext,
        mut open: Option<(&mut TimerStore, i64)>,
    ) -> bool {
        for (slot, question) in std::mem::take(&mut services.timer_questions) {
            match question {
                Question::CheckPoint => {
                    let check = open.as_ref().map(|(store, _)| *store.check());
                    let body = check.unwrap_or_default().encode().to_vec();
                    services.reply(slot, Reply::success().body(body));
                }
                Question::Numbers => self.waiting.push(slot),
            }
        }
        if self.waiting.is_empty() {
            return false;
        }
        let Some(body) = self.numbers(&services.broker, &mut open).transpose() else {
            return true;
        };
        let reply = match body {
            Ok(body) => Reply::success().body(body),
            Err(error) => {
                self.census = None;
                Reply::error(SYSTEM_ERROR, error.to_string())
            }
        };
        for slot in std::mem::take(&mut self.waiting) {
            services.reply(slot, reply.clone());
        }
        false
    }

    /// The body of an answer; `None` while messages are being counted.
    fn numbers(
        &mut self,
        broker: &Broker,
        open: &mut Option<(&mut TimerStore, i64)>,
    ) -> Result<Option<Vec<u8>>, TimerError> {
        let now = Instant::now();
        if let Some((until, body)) = &self.kept
            && now < *until
        {
            return Ok(Some(body.clone()));
        }
        let Some((store, read_ms)) = open else {
            return Ok(Some(body(broker, &HashMap::new(), &Check::default())));
        };
        let census = self
            .census
            .get_or_insert_with(|| Census::new(store, *read_ms));
        if census.step(store)? {
            return Ok(None);
        }
        let body = body(broker, &census.counts, store.check());
        let took = census.took + now.elapsed();
        self.census = None;
        self.kept = Some((now + took * KEPT, body.clone()));
        Ok(Some(body))
    }
}

fn body(broker: &Broker, by_topic: &HashMap<i32, i64>, version: &Check) -> Vec<u8> {
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
    body.to_string().into_bytes()
}
