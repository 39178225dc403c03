//! The delivery of one slot: its items are collected from the newest to the oldest, the messages
//! that delete others are read first, then the others go to their topics in the order in which
//! they came.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use saturnmq_storage::error::ReadError;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::format::timer::{Item, NO_POSITION, Slot, mark};
use saturnmq_storage::timer::{Scan, TimerError, TimerStore, Waiting};

use super::count;
use super::message::{DeletedKeys, Sent, Timed, drop_message};
use super::service::TimerStep;
use crate::names;
use crate::services::ServiceContext;

/// Messages that the writer has not acknowledged.
const WINDOW: usize = 256;
/// Items looked at in one go.
const PER_STEP: usize = 256;
/// Longest step: others of the services thread wait for it.
const STEP: Duration = Duration::from_millis(5);
/// Pause after a delivery that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to do at once.
    More,
    /// Nothing before the writer answers.
    Waits,
    /// Nothing before this time.
    Until(Instant),
    /// An item turned out to be damaged: the slot is to come again once the files are mended.
    Broken,
    /// Everything is done.
    Done,
}

#[derive(Debug)]
enum Phase {
    /// The next item to look at stands here.
    Collect(i64),
    /// The chain is broken: all items are looked at, from the oldest to the newest.
    Scan(Scan),
    Deletes,
    Send,
}

/// A slot whose time is over.
#[derive(Debug)]
pub(super) struct Delivery {
    slot: Slot,
    phase: Phase,
    /// Positions of messages, from the newest to the oldest; the last one is next.
    left: Vec<i64>,
    /// Positions of messages that delete others.
    deletes: Vec<i64>,
    deleted: DeletedKeys,
    /// Those that the writer has, in order.
    flying: VecDeque<i64>,
    pause_until: Option<Instant>,
    /// Whether an earlier run may have delivered some.
    doubtful: bool,
    /// Whether the files were mended for this slot already.
    mended: bool,
    broken: bool,
}

/// What a delivery works with.
pub(super) struct Tools<'a> {
    /// The timer files.
    pub(super) store: &'a mut TimerStore,
    /// For the bytes of records.
    pub(super) record: &'a mut Vec<u8>,
    /// For the bytes of properties.
    pub(super) properties: &'a mut Vec<u8>,
    /// When messages that turn out not to be due are entered.
    pub(super) write_ms: i64,
}

impl Delivery {
    /// Begins with a slot; `mended` says that this was tried before and the files were mended.
    pub(super) fn new(slot: Slot, doubtful: bool, mended: bool) -> Self {
        Self {
            slot,
            phase: Phase::Collect(slot.last),
            left: Vec::new(),
            deletes: Vec::new(),
            deleted: DeletedKeys::new(),
            flying: VecDeque::new(),
            pause_until: None,
            doubtful,
            mended,
            broken: false,
        }
    }

    /// The slot.
    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Goes on for a while.
    pub(super) fn step(
        &mut self,
        services: &mut ServiceContext,
        tools: &mut Tools<'_>,
        now: Instant,
    ) -> Result<Progress, TimerError> {
        if let Some(until) = self.pause_until.filter(|until| now < *until) {
            return Ok(Progress::Until(until));
        }
        self.pause_until = None;
        if self.broken {
            return Ok(match self.flying.is_empty() {
                true => Progress::Broken,
                false => Progress::Waits,
            });
        }
        match self.phase {
            Phase::Collect(at) => {
                self.collect(tools, at, now)?;
                Ok(Progress::More)
            }
            Phase::Scan(_) => {
                self.scan(tools)?;
                Ok(Progress::More)
            }
            Phase::Deletes => self.read_deletes(services, tools, now),
            Phase::Send => self.send(services, tools, now),
        }
    }

    fn collect(
        &mut self,
        tools: &mut Tools<'_>,
        mut at: i64,
        now: Instant,
    ) -> Result<(), TimerError> {
        let precision = tools.store.settings().precision_ms;
        for _ in within_a_step(PER_STEP * 16, now) {
            if at == NO_POSITION || tools.store.is_trimmed(at) {
                self.phase = Phase::Deletes;
                return Ok(());
            }
            let item = tools.store.item(at)?;
            let item = item.filter(|item| {
                item.time_ms().div_euclid(precision) == self.slot.tick && item.previous < at
            });
            let Some(item) = item else {
                tracing::error!(
                    at,
                    tick = self.slot.tick,
                    "the chain of a timer slot is broken"
                );
                self.broken = !self.mended;
                if self.mended {
                    self.left.clear();
                    self.deletes.clear();
                    self.phase = Phase::Scan(tools.store.scan_for(&self.slot));
                }
                return Ok(());
            };
            note(at, &item, &mut self.left, &mut self.deletes);
            at = item.previous;
        }
        self.phase = Phase::Collect(at);
        Ok(())
    }

    fn scan(&mut self, tools: &mut Tools<'_>) -> Result<(), TimerError> {
        let Phase::Scan(scan) = &mut self.phase else {
            return Ok(());
        };
        let precision = tools.store.settings().precision_ms;
        let tick = self.slot.tick;
        let (left, deletes) = (&mut self.left, &mut self.deletes);
        let more = scan.step(tools.store, |at, item| {
            if item.time_ms().div_euclid(precision) == tick {
                note(at.cast_signed(), item, left, deletes);
            }
        })?;
        if !more {
            self.left.reverse();
            self.phase = Phase::Deletes;
        }
        Ok(())
    }

    fn read_deletes(
        &mut self,
        services: &mut ServiceContext,
        tools: &mut Tools<'_>,
        now: Instant,
    ) -> Result<Progress, TimerError> {
        for _ in within_a_step(PER_STEP, now) {
            let Some(at) = self.deletes.pop() else {
                self.phase = Phase::Send;
                return Ok(Progress::More);
            };
            let Some(item) = tools.store.item(at)? else {
                self.broken = !self.mended;
                return Ok(Progress::More);
            };
            match read(services, &item, tools.record) {
                Read::Whole(message) => match message.deleted_key() {
                    Some(key) => self.deleted.insert(key),
                    // The item has the mark of another kind.
                    None => self.left.push(at),
                },
                Read::Wrong(_) if !self.mended => {
                    self.broken = true;
                    return Ok(Progress::More);
                }
                Read::Wrong(why) | Read::Never(why) => drop_message(services, item.log_offset, why),
                Read::Later => {
                    self.deletes.push(at);
                    return Ok(self.pause(now));
                }
            }
        }
        Ok(Progress::More)
    }

    fn pause(&mut self, now: Instant) -> Progress {
        let until = now + PAUSE;
        self.pause_until = Some(until);
        Progress::Until(until)
    }

    fn send(
        &mut self,
        services: &mut ServiceContext,
        tools: &mut Tools<'_>,
        now: Instant,
    ) -> Result<Progress, TimerError> {
        for _ in within_a_step(PER_STEP, now) {
            if self.flying.len() >= WINDOW {
                return Ok(Progress::Waits);
            }
            let Some(at) = self.left.last().copied() else {
                return Ok(match self.flying.is_empty() {
                    true => Progress::Done,
                    false => Progress::Waits,
                });
            };
            let sent = self.one(services, tools, at)?;
            if self.broken {
                return Ok(Progress::More);
            }
            match sent {
                Some(Sent::Later) => return Ok(self.pause(now)),
                Some(Sent::Yes) => self.flying.push_back(at),
                Some(Sent::Never(_)) | None => {}
            }
            self.left.pop();
        }
        Ok(Progress::More)
    }

    /// Sends the message of an item; `None` when there is nothing to send.
    fn one(
        &mut self,
        services: &mut ServiceContext,
        tools: &mut Tools<'_>,
        at: i64,
    ) -> Result<Option<Sent>, TimerError> {
        let Some(item) = tools.store.item(at)? else {
            self.broken = !self.mended;
            return Ok(None);
        };
        let message = match read(services, &item, tools.record) {
            Read::Whole(message) => message,
            Read::Wrong(_) if !self.mended => {
                self.broken = true;
                return Ok(None);
            }
            Read::Wrong(why) | Read::Never(why) => {
                drop_message(services, item.log_offset, why);
                return Ok(None);
            }
            Read::Later => return Ok(Some(Sent::Later)),
        };
        let broker = Arc::clone(&services.broker);
        let counters = &broker.timers.counters;
        let rolls = item.marks & mark::ROLL != 0;
        let precision = tools.store.settings().precision_ms;
        if !rolls && message.time_ms.div_euclid(precision) > self.slot.tick {
            // Not due: the precision was another one, or the record is not the one that was meant.
            let waiting = waiting(&message);
            let time = tools.store.enter(&waiting, tools.write_ms)?;
            broker.timers.note(time.div_euclid(precision), 1);
            return Ok(None);
        }
        if !rolls && (message.deletes() || self.deleted.contains(&message)) {
            count(&counters.deleted);
            return Ok(None);
        }
        if self.doubtful && message.was_sent(services, rolls) {
            return Ok(None);
        }
        if self.doubtful && !rolls && message.was_recalled(services) {
            count(&counters.deleted);
            return Ok(None);
        }
        let step = |topic| TimerStep::Slot { at, topic, rolls };
        let sent = message.send(services, rolls, item.entered_ms, step, tools.properties);
        if let Sent::Never(why) = sent {
            drop_message(services, item.log_offset, why);
        }
        Ok(Some(sent))
    }

    /// The writer has answered for the message of an item.
    pub(super) fn answered(&mut self, at: i64, delivered: bool, now: Instant) {
        self.flying.retain(|other| *other != at);
        if !delivered {
            self.left.push(at);
            self.pause_until = Some(now + PAUSE);
        }
    }
}

/// Adds an item to those of its kind.
fn note(at: i64, item: &Item, left: &mut Vec<i64>, deletes: &mut Vec<i64>) {
    let is_delete = item.marks & (mark::DELETE | mark::ROLL) == mark::DELETE;
    match is_delete {
        true => deletes.push(at),
        false => left.push(at),
    }
}

/// Counts until the time of a step, which began at `now`, is over; once at least.
pub(super) fn within_a_step(count: usize, now: Instant) -> impl Iterator<Item = usize> {
    /// How many of them are done between two looks at the clock.
    const LOOK: usize = 8;
    (0..count).take_while(move |n| *n == 0 || !n.is_multiple_of(LOOK) || now.elapsed() < STEP)
}

/// A message that is to be entered.
pub(super) fn waiting(message: &Timed<'_>) -> Waiting {
    let hash = saturnmq_storage::format::hash::JavaHash::default();
    Waiting {
        time_ms: message.time_ms,
        log_offset: message.record.physical_offset().cast_unsigned(),
        size: message.record.size(),
        topic_hash: hash.text(message.topic).finish(),
        deletes: message.deletes(),
    }
}

/// What reading the message of an item gave.
enum Read<'r> {
    Whole(Timed<'r>),
    /// Nothing that the item can mean.
    Wrong(&'static str),
    Never(&'static str),
    Later,
}

fn read<'r>(services: &mut ServiceContext, item: &Item, bytes: &'r mut Vec<u8>) -> Read<'r> {
    bytes.clear();
    let Ok(offset) = u64::try_from(item.log_offset) else {
        return Read::Wrong("its place is none");
    };
    match services.reader.record(offset, bytes) {
        Ok(true) => {}
        Ok(false) if offset < services.broker.store.min_log_offset() => {
            return Read::Never("its record is gone");
        }
        Ok(false) => return Read::Wrong("its record is gone"),
        Err(ReadError::Damaged { .. }) => return Read::Wrong("its record is damaged"),
        Err(error) => {
            tracing::warn!(%error, "a timer message cannot be read now");
            return Read::Later;
        }
    }
    let Ok(record) = Record::decode(bytes) else {
        return Read::Wrong("its record is damaged");
    };
    if record.size() != item.size.cast_unsigned() || record.topic() != names::TIMER_TOPIC {
        return Read::Wrong("its record is another one");
    }
    match Timed::of(&record) {
        Ok(message) => Read::Whole(message),
        Err(why) => Read::Never(why),
    }
}
