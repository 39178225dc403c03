//! The timers' part of the services thread: enters messages, delivers slots, notes how far it is.

mod check_point;
mod opening;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use saturnmq_storage::append_queue::{AppendFailure, Appended};
use saturnmq_storage::error::ReadError;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::format::timer::WHEEL_SLOTS;
use saturnmq_storage::layout::Layout;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::StoreReader;
use saturnmq_storage::timer::{TimerError, TimerStore};

use super::Standstill;
use super::count;
use super::direct::Direct;
use super::ending::{DISPATCH, SlotEnd};
use super::message::{Sent, Timed, drop_message};
use super::question::Answers;
use super::slot::{Delivery, Progress, Tools, waiting};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::services::ServiceContext;
use crate::topics::Topic;

/// Messages entered in one go.
const PER_STEP: usize = 256;
/// Pause after something that may pass failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Period of the removal of timer-log files that are not needed.
const TRIM: Duration = Duration::from_secs(30);
/// `TIMER_ENQUEUE_MS` of a message that was due before it could be entered.
const NEVER_ENTERED: i64 = i64::MAX;

/// An append of the timers that the writer has not answered.
pub enum TimerStep {
    /// The message of an item.
    Slot {
        /// Position of the item.
        at: i64,
        /// Where it goes.
        topic: Arc<Topic>,
        /// Into the timer topic once more.
        rolls: bool,
    },
    /// A message that was not entered.
    Direct {
        /// Its offset in the timer topic.
        offset: i64,
        /// Where it goes.
        topic: Arc<Topic>,
    },
}

/// The state of the services thread's timers.
pub struct TimerService {
    enabled: bool,
    /// A sync failed: the files are not used any more.
    lost: bool,
    /// Something failed: what `timercheck` had come to then.
    failed_at: Option<i64>,
    queue: Option<Arc<Queue>>,
    open: Option<Open>,
    pause_until: Instant,
    watcher: usize,
    answers: Answers,
}

/// The open files and what goes on.
struct Open {
    store: TimerStore,
    /// Queue offset of the message that is entered next.
    next: i64,
    /// Slots before this time take no more messages, ms.
    write_ms: i64,
    /// Slots before this time are done with, ms; at most `write_ms`.
    read_ms: i64,
    /// Messages of slots up to this time, ms, may have been delivered by an earlier run.
    doubtful_ms: i64,
    /// Messages before this queue offset may have been too.
    doubtful_until: i64,
    ending: Option<SlotEnd>,
    direct: Direct,
    slot: Option<Delivery>,
    /// Nothing is entered until the files are mended.
    mends: bool,
    /// The slot for which they were last.
    mended_tick: Option<i64>,
    next_check: Instant,
    check_interval: Duration,
    idle_check: Instant,
    next_trim: Instant,
    record: Vec<u8>,
    properties: Vec<u8>,
}

impl TimerService {
    /// Opens the files if there are any. `clean` says whether the store was closed orderly.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub fn new(broker: &Broker, reader: &mut StoreReader, clean: bool) -> Result<Self, TimerError> {
        let now = Instant::now();
        let enabled = broker.config.timers.enabled;
        let mut service = Self {
            enabled,
            lost: false,
            failed_at: None,
            queue: broker.timer_queue(),
            open: None,
            pause_until: now,
            watcher: broker.cores.len(),
            answers: Answers::default(),
        };
        let layout = Layout::new(broker.config.root());
        if enabled && TimerStore::exists(&layout) {
            service.open = Some(Open::new(broker, reader, clean)?);
        }
        Ok(service)
    }

    /// Does what is due; says when to look again, `None` when only a new message can change
    /// anything.
    pub fn round(&mut self, services: &mut ServiceContext, now: Instant) -> Option<Instant> {
        let open = self.open.as_mut();
        let files = open.map(|open| (&mut open.store, open.read_ms));
        let answers = self.answers.give(services, files).then_some(now);
        if !self.enabled || self.lost {
            return answers;
        }
        if now < self.pause_until {
            return answers.or(Some(self.pause_until));
        }
        let next = match self.turn(services, now) {
            Ok(next) => {
                self.see_mended(&services.broker);
                next
            }
            Err(error) => {
                self.stand_still(&services.broker, &error);
                self.pause_until = now + PAUSE * 10;
                Some(self.pause_until)
            }
        };
        answers.or(next)
    }

    /// Lets everybody know that something failed.
    fn stand_still(&mut self, broker: &Broker, error: &TimerError) {
        self.lost = matches!(error, TimerError::Lost { .. });
        tracing::error!(%error, "timers cannot go on");
        let standstill = Standstill {
            why: error.to_string(),
            lasting: self.lost,
        };
        broker.timers.standstill.store(Some(Arc::new(standstill)));
        self.failed_at = Some(self.version());
    }

    /// What failed counts as mended once a check point has come about since, or none is needed.
    fn see_mended(&mut self, broker: &Broker) {
        let Some(failed_at) = self.failed_at else {
            return;
        };
        let noted = self.version() != failed_at;
        if noted || self.open.as_ref().is_none_or(Open::is_noted) {
            self.failed_at = None;
            broker.timers.standstill.store(None);
            tracing::info!("timers go on");
        }
    }

    /// Which check point is the last one; -1 without files.
    fn version(&self) -> i64 {
        let open = self.open.as_ref();
        open.map_or(-1, |open| open.store.check().version_counter)
    }

    fn turn(
        &mut self,
        services: &mut ServiceContext,
        now: Instant,
    ) -> Result<Option<Instant>, TimerError> {
        if self.queue.is_none() {
            self.queue = services.broker.timer_queue();
        }
        let Some(queue) = self.queue.clone() else {
            return Ok(Some(now + PAUSE));
        };
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                queue.watch(self.watcher);
                if queue.max_offset() <= queue.min_offset() {
                    return Ok(None);
                }
                let broker = Arc::clone(&services.broker);
                self.open
                    .insert(Open::new(&broker, &mut services.reader, true)?)
            }
        };
        let live = services.broker.live.load();
        let stops = (live.timers.stop_enqueue, live.timers.stop_dequeue);
        drop(live);
        let acknowledged = services.broker.store.watermarks().acknowledged();
        open.see_clock(acknowledged, stops.0, now_ms());
        let mut next = open.slot_end(now);
        if !stops.0 && !open.mends && !open.is_far_behind() {
            let entered = open.enter(services, &queue, self.watcher, now)?;
            let entered = open.end_slots(&services.broker, &queue, entered, now);
            next = soonest(next, entered, now);
        }
        if !stops.1 {
            next = soonest(next, open.deliver(services, now)?, now);
        }
        let checked = open.check_point(now)?;
        open.trim(&services.broker, now)?;
        open.publish(&services.broker);
        Ok(next.into_iter().chain(checked).min())
    }

    /// Books the writer's answer to an append of the timers.
    pub fn done(
        &mut self,
        services: &mut ServiceContext,
        step: TimerStep,
        outcome: Result<Appended, AppendFailure>,
    ) {
        let Some(open) = &mut self.open else {
            return;
        };
        let broker = &services.broker;
        let (topic, rolls) = match &step {
            TimerStep::Slot { topic, rolls, .. } => (topic, *rolls),
            TimerStep::Direct { topic, .. } => (topic, false),
        };
        let counters = &broker.timers.counters;
        // In a topic that was deleted meanwhile it is tried again: the topic is made anew.
        let settled = match outcome {
            Ok(appended) => {
                let bytes = appended.end - appended.physical_offset;
                topic.traffic.put(1, bytes);
                broker.stats.thread(broker.cores.len()).put(1, bytes);
                count(if rolls {
                    &counters.rolled
                } else {
                    &counters.delivered
                });
                true
            }
            Err(failure) => {
                tracing::warn!(%failure, "a timer message could not be delivered");
                false
            }
        };
        match step {
            TimerStep::Slot { at, .. } => {
                if let Some(slot) = &mut open.slot {
                    slot.answered(at, settled, Instant::now());
                }
            }
            TimerStep::Direct { offset, .. } => {
                if !settled {
                    self.pause_until = Instant::now() + PAUSE;
                }
                open.direct.answered(offset, settled);
            }
        }
    }

    /// Notes how far everything is, before an orderly stop.
    pub fn save(&mut self) {
        let Some(open) = self.open.as_mut().filter(|_| !self.lost) else {
            return;
        };
        if let Err(error) = open.note() {
            tracing::error!(%error, "the state of timers was not stored");
        }
    }
}

/// What comes first: a time, or what a step came to.
fn soonest(next: Option<Instant>, progress: Progress, now: Instant) -> Option<Instant> {
    let other = match progress {
        Progress::More | Progress::Broken => Some(now),
        Progress::Until(until) => Some(until),
        Progress::Waits | Progress::Done => None,
    };
    next.into_iter().chain(other).min()
}

impl Open {
    /// Notes that slots are over. They take messages until all that was acknowledged before is
    /// entered: one that deletes another must have its say. `stopped`: nothing is entered.
    fn see_clock(&mut self, acknowledged: u64, stopped: bool, now_ms: i64) {
        let settings = self.store.settings();
        let write_ms = settings.round(now_ms);
        if write_ms + settings.precision_ms < self.write_ms && self.slot.is_none() {
            self.put_back(write_ms);
        }
        if write_ms <= self.write_ms {
            return;
        }
        if stopped {
            self.ending = None;
            self.write_ms = write_ms;
        } else if self.ending.is_none() {
            self.ending = Some(SlotEnd::new(write_ms, acknowledged));
        }
    }

    /// The clock was put back to `write_ms`.
    fn put_back(&mut self, write_ms: i64) {
        tracing::warn!(
            by_ms = self.write_ms - write_ms,
            "the clock was put back: timer messages wait for it again"
        );
        // Slots that were delivered are found to be so by the index.
        self.doubtful_ms = self.doubtful_ms.max(self.write_ms);
        (self.read_ms, self.write_ms) = (write_ms, write_ms);
        self.ending = None;
    }

    /// When the slot that takes messages now is over; `None` while one is being ended.
    fn slot_end(&self, now: Instant) -> Option<Instant> {
        let end = self.write_ms + self.store.settings().precision_ms;
        let left = end.saturating_sub(now_ms()).max(0);
        let until = now + Duration::from_millis(left.cast_unsigned());
        self.ending.is_none().then_some(until)
    }

    /// Ends slots that are over if nothing is left to enter into them, or if that cannot be read
    /// now: others must not wait for it. `entered` is what entering came to.
    fn end_slots(
        &mut self,
        broker: &Broker,
        queue: &Queue,
        entered: Progress,
        now: Instant,
    ) -> Progress {
        let Some(ending) = &mut self.ending else {
            return entered;
        };
        let stuck = matches!(entered, Progress::Until(_));
        match ending.queue_end(broker, queue) {
            _ if stuck => {}
            Some(end) if end > self.next => return entered,
            Some(_) => {}
            None if entered == Progress::Done => return Progress::Until(now + DISPATCH),
            None => return entered,
        }
        self.write_ms = ending.write_ms;
        self.ending = None;
        match entered {
            Progress::Done => Progress::More,
            other => other,
        }
    }

    /// Whether a new message could come to stand in the slot of an old one that still waits.
    fn is_far_behind(&self) -> bool {
        let settings = self.store.settings();
        let slots = WHEEL_SLOTS - settings.roll_window_slots - 1;
        self.write_ms - self.read_ms > slots * settings.precision_ms
    }

    /// Enters what came into the timer topic.
    fn enter(
        &mut self,
        services: &mut ServiceContext,
        queue: &Queue,
        watcher: usize,
        now: Instant,
    ) -> Result<Progress, TimerError> {
        for _ in 0..PER_STEP {
            let (offset, again) = match self.direct.failed() {
                Some(offset) => (offset, true),
                None => (self.next, false),
            };
            // What is entered behind a direct one would be entered again after a crash if a check
            // point came in between.
            let awaited = self.is_due(now) && !self.direct.is_empty();
            if !again && (awaited || !self.direct.has_room()) {
                return Ok(Progress::Waits);
            }
            if offset >= queue.max_offset() {
                queue.watch(watcher);
                if offset >= queue.max_offset() {
                    return Ok(Progress::Done);
                }
            }
            let first = queue.min_offset();
            if offset < first {
                self.gone(services, offset, again, first);
                continue;
            }
            if !again && self.store.is_entered(offset) {
                self.next = offset + 1;
                continue;
            }
            if !self.enter_one(services, queue, offset)? {
                return Ok(Progress::Until(now + PAUSE));
            }
            if !again {
                self.next = offset + 1;
            }
        }
        Ok(Progress::More)
    }

    /// Messages that expired before they were entered.
    fn gone(&mut self, services: &ServiceContext, offset: i64, again: bool, next: i64) {
        tracing::warn!(offset, "a message of the timer topic is gone");
        count(&services.broker.timers.counters.dropped);
        match again {
            true => self.direct.answered(offset, true),
            false => self.next = next,
        }
    }

    /// Enters one message; false if that must be tried again.
    fn enter_one(
        &mut self,
        services: &mut ServiceContext,
        queue: &Queue,
        offset: i64,
    ) -> Result<bool, TimerError> {
        let mut bytes = std::mem::take(&mut self.record);
        bytes.clear();
        let read = services.reader.queued_record(queue, offset, &mut bytes);
        let record = Record::decode(&bytes).map_err(|_| "its record is damaged");
        let message = match read {
            Ok(true) => record.and_then(|record| Timed::of(&record)),
            Ok(false) => Err("its record is gone"),
            Err(ReadError::Damaged { .. }) => Err("its record is damaged"),
            Err(error) => {
                tracing::warn!(%error, "the timer topic cannot be read now");
                self.record = bytes;
                return Ok(false);
            }
        };
        let entered = match &message {
            Ok(message) => self.place(services, offset, message),
            Err(why) => {
                let log_offset = record.map_or(-1, |record| record.physical_offset());
                drop_message(services, log_offset, why);
                self.direct.answered(offset, true);
                Ok(true)
            }
        };
        self.record = bytes;
        entered
    }

    /// Where a message goes: into the wheel, or at once to its topic.
    fn place(
        &mut self,
        services: &mut ServiceContext,
        offset: i64,
        message: &Timed<'_>,
    ) -> Result<bool, TimerError> {
        let precision = self.store.settings().precision_ms;
        let broker = Arc::clone(&services.broker);
        let timers = &broker.timers;
        let doubtful = offset < self.doubtful_until;
        let settled = doubtful && self.store.is_settled(offset, message.time_ms);
        if settled || doubtful && message.was_rolled(services) {
            self.direct.answered(offset, true);
            return Ok(true);
        }
        if message.time_ms.div_euclid(precision) * precision >= self.write_ms {
            let time = self.store.enter(&waiting(message), self.write_ms)?;
            let change = if message.deletes() { -1 } else { 1 };
            timers.note(time.div_euclid(precision), change);
            count(&timers.counters.entered);
            return Ok(true);
        }
        if message.deletes()
            || doubtful && message.was_sent(services, false)
            || message.had_to_wait() && message.was_recalled(services)
        {
            self.direct.answered(offset, true);
            return Ok(true);
        }
        let step = |topic| TimerStep::Direct { offset, topic };
        match message.send(services, false, NEVER_ENTERED, step, &mut self.properties) {
            Sent::Yes => self.direct.sent(offset),
            Sent::Later => return Ok(false),
            Sent::Never(why) => {
                drop_message(services, message.record.physical_offset(), why);
                self.direct.answered(offset, true);
            }
        }
        count(&timers.counters.entered);
        Ok(true)
    }

    /// Delivers slots whose time is over.
    fn deliver(
        &mut self,
        services: &mut ServiceContext,
        now: Instant,
    ) -> Result<Progress, TimerError> {
        let precision = self.store.settings().precision_ms;
        let Some(delivery) = &mut self.slot else {
            if self.read_ms >= self.write_ms {
                return Ok(Progress::Done);
            }
            return Ok(match self.store.next_slot(self.read_ms, self.write_ms)? {
                Some(slot) => {
                    self.read_ms = slot.tick * precision;
                    let doubtful = self.read_ms <= self.doubtful_ms;
                    let mended = self.mended_tick == Some(slot.tick);
                    self.slot = Some(Delivery::new(slot, doubtful, mended));
                    Progress::More
                }
                None => {
                    self.read_ms = self.write_ms;
                    // What was too far behind to enter messages may do so now.
                    Progress::More
                }
            });
        };
        let mut tools = Tools {
            store: &mut self.store,
            record: &mut self.record,
            properties: &mut self.properties,
            write_ms: self.write_ms,
        };
        let progress = delivery.step(services, &mut tools, now)?;
        if progress == Progress::Broken {
            return self.mend(services, now);
        }
        if progress != Progress::Done {
            return Ok(progress);
        }
        let slot = *delivery.slot();
        self.store.done(&slot);
        services.broker.timers.set(&slot, 0);
        self.read_ms = (slot.tick + 1) * precision;
        self.slot = None;
        Ok(Progress::More)
    }

    fn publish(&self, broker: &Broker) {
        let timers = &broker.timers;
        timers
            .waiting
            .store(self.store.waiting(), Ordering::Relaxed);
        timers.read_ms.store(self.read_ms, Ordering::Relaxed);
        timers.queue_offset.store(self.next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
