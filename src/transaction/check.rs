//! The check of half messages that nobody ended, on the services thread (docs/behaviour.md, The
//! check).
//!
//! Every `transactionCheckInterval` it walks the half queue from the first half message that is
//! not done with. One that is old enough is copied to the end of the queue with a higher count,
//! and its producer is asked about the copy; one that was asked about too often is given up. An op
//! message closes the one that was replaced, so that a crash cannot make two of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use saturnmq_storage::append_queue::{AppendFailure, Appended, PushError};
use saturnmq_storage::error::ReadError;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;

use super::Close;
use super::ask::ask;
use super::half::{Digits, Half, named_halves, op_message, with_property};
use super::settled::is_settled;
use super::table::{Found, Table};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::handler::{properties, transaction};
use crate::names;
use crate::services::ServiceContext;
use crate::topics::{PERM_READ, PERM_WRITE, TopicConfig};

/// Appends of the check that the writer has not answered.
const WINDOW: usize = 256;
/// Records looked at before others get their turn on the thread.
const PER_STEP: usize = 256;
/// Longest walk, as Apache's.
const LONGEST: Duration = Duration::from_secs(60);
/// Period in which the progress is noted.
const PROGRESS: Duration = Duration::from_secs(1);
/// With so many half messages behind an immune one, immune ones are copied to the queue's end.
const CROWDED: i64 = 1 << 20;

/// An append of the check.
#[derive(Debug)]
pub enum Step {
    /// A copy of a half message, whose producer is asked about it then.
    Copy {
        /// Its offset in the half queue.
        half: i64,
        /// Whether the producer is asked.
        asks: bool,
    },
    /// A half message that is given up.
    GiveUp {
        /// Its offset in the half queue.
        half: i64,
    },
    /// An op message.
    Op(Close),
}

#[derive(Debug)]
enum Phase {
    /// Reads the op queue from here to there; whether those messages were noted before.
    Reading { next: i64, end: i64, noted: bool },
    /// Until the next round.
    Resting,
    /// Looks at half messages from `next` on.
    Walking {
        next: i64,
        /// Where the queue ended when the walk began: copies made by it are left for the next.
        end: i64,
        until: Instant,
    },
}

/// What comes after a half message was looked at.
enum Walk {
    Next,
    End,
    /// The append queue is full.
    Wait,
}

/// The check.
pub struct Checker {
    half: Arc<Queue>,
    op: Arc<Queue>,
    phase: Phase,
    /// When the last round ended.
    rested_from: Instant,
    next_progress: Instant,
    in_flight: usize,
    record: Vec<u8>,
}

impl Checker {
    /// Starts where `consumerOffset.json` says, within what the queues have. Call it before
    /// anything is appended.
    pub fn new(broker: &Broker, now: Instant) -> Self {
        let half = broker.store.queue_or_create(names::HALF_TOPIC, 0);
        let op = broker.store.queue_or_create(names::OP_HALF_TOPIC, 0);
        let stored = |topic: &str, queue: &Queue| {
            let (min, end) = (queue.min_offset().max(0), queue.next_offset());
            let offset = broker.offsets.query(names::TRANSACTION_GROUP, topic, 0);
            offset.map_or(min, |offset| offset.clamp(min, end.max(min)))
        };
        let next = stored(names::OP_HALF_TOPIC, &op);
        let table = Table::new(stored(names::HALF_TOPIC, &half), next);
        *broker.transactions.table() = table;
        Self {
            phase: Phase::Reading {
                next,
                end: op.next_offset(),
                noted: false,
            },
            half,
            op,
            rested_from: now,
            next_progress: now + PROGRESS,
            in_flight: 0,
            record: Vec::new(),
        }
    }

    /// Does what is due; says when to look again, `None` when the writer's answers come first.
    pub fn round(&mut self, services: &mut ServiceContext, now: Instant) -> Option<Instant> {
        self.close_those_waiting(services);
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS;
            self.save(&services.broker);
        }
        let interval = services.broker.live.load().transaction_check_interval;
        match self.phase {
            Phase::Reading { .. } => self.read(services, now),
            Phase::Resting if now < self.rested_from + interval => {
                Some((self.rested_from + interval).min(self.next_progress))
            }
            Phase::Resting => {
                self.phase = Phase::Walking {
                    next: 0,
                    end: self.half.max_offset(),
                    until: now + LONGEST,
                };
                Some(now)
            }
            Phase::Walking { .. } => self.walk(services, now),
        }
    }

    /// Reads op messages of earlier runs, or those that were missed.
    fn read(&mut self, services: &mut ServiceContext, now: Instant) -> Option<Instant> {
        let Phase::Reading { next, end, noted } = &mut self.phase else {
            return Some(now);
        };
        for _ in 0..PER_STEP {
            if *next >= *end {
                self.phase = Phase::Resting;
                return Some(now);
            }
            let op = *next;
            let entry = match self.op.entry(op) {
                Ok(Some(entry)) => entry,
                // Not dispatched yet.
                Ok(None) if self.op.max_offset() <= op => {
                    return Some(now + Duration::from_millis(10));
                }
                Ok(None) => {
                    services
                        .broker
                        .transactions
                        .table()
                        .read(op, [].into_iter(), *noted);
                    *next += 1;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "an entry of the op queue is unreadable");
                    return Some(now + PROGRESS);
                }
            };
            self.record.clear();
            let read = services
                .reader
                .record(entry.physical_offset, &mut self.record);
            let record = match read {
                Ok(true) => Record::decode(&self.record).ok(),
                Ok(false) | Err(ReadError::Damaged { .. }) => None,
                Err(error) => {
                    tracing::warn!(%error, "the op queue cannot be read now");
                    return Some(now + PROGRESS);
                }
            };
            let halves = record.iter().flat_map(named_halves);
            services
                .broker
                .transactions
                .table()
                .read(op, halves, *noted);
            *next += 1;
        }
        Some(now)
    }

    fn walk(&mut self, services: &mut ServiceContext, now: Instant) -> Option<Instant> {
        for _ in 0..PER_STEP {
            let Phase::Walking { next, end, until } = self.phase else {
                return Some(now);
            };
            if now >= until {
                return self.rest(services, now);
            }
            if self.in_flight >= WINDOW {
                return None;
            }
            let open = services.broker.transactions.table().next_open(next, end);
            let Some(half) = open else {
                return self.rest(services, now);
            };
            match self.look(services, half) {
                Walk::Next => {
                    self.phase = Phase::Walking {
                        next: half + 1,
                        end,
                        until,
                    }
                }
                Walk::End => return self.rest(services, now),
                Walk::Wait => return Some(now + Duration::from_millis(1)),
            }
        }
        Some(now)
    }

    /// Ends a round.
    fn rest(&mut self, services: &ServiceContext, now: Instant) -> Option<Instant> {
        self.rested_from = now;
        self.phase = Phase::Resting;
        let broker = &services.broker;
        self.save(broker);
        if broker.transactions.table().take_missed() {
            let progress = broker
                .offsets
                .query(names::TRANSACTION_GROUP, names::OP_HALF_TOPIC, 0);
            self.phase = Phase::Reading {
                next: progress.unwrap_or(0).max(self.op.min_offset()),
                end: self.op.max_offset(),
                noted: true,
            };
        }
        Some(now)
    }

    /// Looks at one half message that nothing says is done with.
    fn look(&mut self, services: &mut ServiceContext, half: i64) -> Walk {
        let broker = Arc::clone(&services.broker);
        let found = broker.transactions.table().look(half);
        match found {
            Found::Busy => return Walk::Next,
            Found::Stale => return self.close(services, half),
            Found::Open => {}
        }
        let entry = match self.half.entry(half) {
            Ok(Some(entry)) => entry,
            Ok(None) if half < self.half.max_offset() => return skip(&broker, half, "is gone"),
            Ok(None) => return Walk::End,
            Err(error) => {
                // Those behind it are looked at all the same.
                tracing::warn!(half, %error, "an entry of the half queue is unreadable");
                return Walk::Next;
            }
        };
        let mut bytes = std::mem::take(&mut self.record);
        bytes.clear();
        let walk = match services.reader.record(entry.physical_offset, &mut bytes) {
            Ok(true) => match Record::decode(&bytes).ok().and_then(|r| Half::of(&r)) {
                Some(message) => self.judge(services, half, &message),
                None => skip(&broker, half, "is no half message"),
            },
            Ok(false) => skip(&broker, half, "is gone"),
            Err(ReadError::Damaged { .. }) => skip(&broker, half, "is damaged"),
            Err(error) => {
                tracing::warn!(half, %error, "a half message cannot be read now");
                Walk::Next
            }
        };
        self.record = bytes;
        walk
    }

    fn judge(&mut self, services: &mut ServiceContext, half: i64, message: &Half<'_>) -> Walk {
        let broker = Arc::clone(&services.broker);
        let record = &message.record;
        let live = broker.live.load();
        let age = now_ms().saturating_sub(record.born_timestamp());
        let reserved = live.retention.file_reserved.as_millis();
        let too_old = age > i64::try_from(reserved).unwrap_or(i64::MAX);
        let over = too_old || message.checks() >= live.transaction_check_max;
        let timeout = live.transaction_timeout_ms;
        let own = message.immunity_ms(timeout);
        let immune = !over && age >= 0 && age <= own.unwrap_or(timeout);
        if immune && own.is_none() {
            return Walk::End;
        }
        if let Some(first) = record
            .properties()
            .get_i64(properties::PREPARED_QUEUE_OFFSET)
            .filter(|first| *first < half)
        {
            // A copy made while its original was immune.
            let mut table = broker.transactions.table();
            if table.is_done(first) {
                drop(table);
                return self.close(services, half);
            }
            table.stands_for(half, first);
        }
        if immune {
            return match self.half.max_offset() - half > CROWDED {
                true => self.copy(services, half, message, false),
                false => Walk::Next,
            };
        }
        if broker.transactions.is_doubtful(record) && is_settled(services, message) {
            return self.close(services, half);
        }
        match over {
            true => self.give_up(services, half, message),
            false => self.copy(services, half, message, true),
        }
    }

    /// Copies a half message to the end of its queue.
    fn copy(
        &mut self,
        services: &mut ServiceContext,
        half: i64,
        message: &Half<'_>,
        asks: bool,
    ) -> Walk {
        let old = message.record.properties();
        let properties = if asks {
            let checks = message.checks().saturating_add(1).to_string();
            with_property(old, properties::CHECK_TIMES, &checks)
        } else {
            let first = old.get_i64(properties::PREPARED_QUEUE_OFFSET);
            let first = first.unwrap_or(half).to_string();
            with_property(old, properties::PREPARED_QUEUE_OFFSET, &first)
        };
        let properties = [properties.as_slice()];
        let parts = message.moved(names::HALF_TOPIC, &properties);
        let queue = Arc::clone(&self.half);
        self.append(services, &queue, &parts, half, Step::Copy { half, asks })
    }

    fn give_up(&mut self, services: &mut ServiceContext, half: i64, message: &Half<'_>) -> Walk {
        let broker = Arc::clone(&services.broker);
        let name = names::TRANS_CHECK_MAX_TIME_TOPIC;
        let topic = broker.topics.get(name).unwrap_or_else(|| {
            let config = TopicConfig::new(name, 1, PERM_READ | PERM_WRITE);
            broker.topics.create_if_absent(config).0
        });
        if broker.awaited(&topic, 0).is_some() {
            return Walk::Wait;
        }
        let Some(queue) = broker.queue(&topic, 0) else {
            return Walk::End;
        };
        let properties = [message.record.properties().as_bytes()];
        let parts = message.moved(name, &properties);
        self.append(services, &queue, &parts, half, Step::GiveUp { half })
    }

    fn append(
        &mut self,
        services: &mut ServiceContext,
        queue: &Queue,
        parts: &saturnmq_storage::format::message::MessageParts<'_>,
        half: i64,
        step: Step,
    ) -> Walk {
        if !services.broker.store.state().is_writable() {
            return Walk::End;
        }
        match services.append_step(queue, parts, step) {
            Ok(()) => {
                services.broker.transactions.table().moving(half);
                self.in_flight += 1;
                Walk::Next
            }
            Err((PushError::Full, _)) => Walk::Wait,
            Err((error, _)) => {
                tracing::warn!(half, %error, "a half message cannot be copied");
                Walk::End
            }
        }
    }

    /// Has an op message say that a half message is done with.
    fn close(&mut self, services: &mut ServiceContext, half: i64) -> Walk {
        services.broker.transactions.table().moving(half);
        services.close(Close { half, ended: None });
        self.close_those_waiting(services);
        Walk::Next
    }

    /// Appends the op messages that wait, as far as the append queue takes them.
    fn close_those_waiting(&mut self, services: &mut ServiceContext) {
        while let Some(close) = services.next_close() {
            let body = Digits::of(close.half);
            let host = services.broker.store_host;
            let parts = op_message(body.as_bytes(), host, now_ms());
            match services.append_step(&self.op, &parts, Step::Op(close)) {
                Ok(()) => self.in_flight += 1,
                Err((PushError::Full, Step::Op(close))) => {
                    services.close_first(close);
                    return;
                }
                Err((error, step)) => {
                    tracing::warn!(%error, "an op message cannot be stored");
                    // As if the writer had refused it.
                    self.in_flight += 1;
                    self.done(services, step, Err(AppendFailure::ShuttingDown));
                }
            }
        }
    }

    /// Books the writer's answer to an append of the check.
    pub fn done(
        &mut self,
        services: &mut ServiceContext,
        step: Step,
        outcome: Result<Appended, AppendFailure>,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let broker = Arc::clone(&services.broker);
        let transactions = &broker.transactions;
        match (step, outcome) {
            (Step::Copy { half, asks }, Ok(appended)) => {
                let open = transactions.table().copied(half, appended.queue_offset);
                if open && asks && ask(services, &appended) {
                    transactions.counters.checks.fetch_add(1, Ordering::Relaxed);
                }
                services.close(Close { half, ended: None });
            }
            (Step::GiveUp { half }, Ok(_)) => {
                transactions
                    .counters
                    .given_up
                    .fetch_add(1, Ordering::Relaxed);
                services.close(Close { half, ended: None });
            }
            (Step::Copy { half, .. } | Step::GiveUp { half }, Err(failure)) => {
                tracing::warn!(half, %failure, "a half message could not be copied");
                transactions.table().stays(half);
            }
            (Step::Op(Close { half, ended }), outcome) => match (ended, outcome) {
                (Some(ended), outcome) => {
                    let reply = transaction::booked(&broker, half, ended.commit, outcome);
                    services.reply(ended.slot, reply);
                }
                (None, Ok(appended)) => transactions.table().closed(half, appended.queue_offset),
                (None, Err(failure)) => {
                    tracing::warn!(half, %failure, "an op message could not be stored");
                    // What it was about is stored: the next look asks the index before it copies.
                    transactions.op_failed(broker.store.watermarks().appended());
                    transactions.table().stays(half);
                }
            },
        }
    }

    /// Notes the progress in both queues where it is kept.
    pub fn save(&self, broker: &Broker) {
        if matches!(self.phase, Phase::Reading { .. }) {
            return;
        }
        let (min, max) = (self.half.min_offset(), self.half.max_offset());
        let (half, op) = broker.transactions.table().progress(min, max);
        for (topic, offset) in [(names::HALF_TOPIC, half), (names::OP_HALF_TOPIC, op)] {
            let stored = broker.offsets.query(names::TRANSACTION_GROUP, topic, 0);
            if stored.unwrap_or(0) != offset {
                broker
                    .offsets
                    .commit(names::TRANSACTION_GROUP, topic, 0, offset);
            }
        }
    }
}

/// Leaves out a half message that can never be ended.
fn skip(broker: &Broker, half: i64, why: &str) -> Walk {
    tracing::warn!(half, "a half message is left out: it {why}");
    broker.transactions.table().skip(half);
    Walk::Next
}
