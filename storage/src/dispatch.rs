//! The dispatcher: turns written records into queue and index entries, then wakes whoever waits for
//! them.
//!
//! What must always hold: an entry is in its queue's mapping before the queue's `max_offset` shows
//! it, and `max_offset` is published before watchers are taken, so a core that sets its watch bit
//! and then looks at `max_offset` again cannot sleep through a message.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::consume_queue::Placed;
use crate::error::DispatchError;
use crate::format::consume_entry::ConsumeEntry;
use crate::format::properties::names;
use crate::format::record::Record;
use crate::index_file::Index;
use crate::opening::Late;
use crate::queue_table::{Queue, RememberedQueues};
use crate::tail::TailReader;
use crate::watermarks::Watermarks;

mod ahead;
mod channel;
mod light;
mod units;

pub(crate) use ahead::Places;
use channel::{Bell, Pause};
pub use channel::{DispatchItem, DispatchReceiver, DispatchSender, NO_QUEUE, channel};
pub(crate) use units::Units;
pub use units::{BitsOfRecord, UnitBits};

/// Topic whose entries hold the time of delivery instead of a tag code.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

/// Records between two looks at who waits.
const BATCH: usize = 64;

/// Pause before an entry that could not be stored is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The same for those of the start, which takes a walk along the log.
const LATE_PAUSE: Duration = Duration::from_secs(1);

/// Shortest time between two lines about misplaced entries.
const SAY_PAUSE: Duration = Duration::from_secs(10);

/// Wakes network cores; implemented by the broker.
pub trait Waker: Send + Sync {
    /// Makes the core look at its wake queue. Cheap when the core is awake; callable from any
    /// thread.
    fn wake(&self, core: usize);
}

/// What one core shares with the dispatcher.
#[derive(Debug)]
struct CoreState {
    /// Some slots did not fit the wake queue: everything parked must be looked at again.
    overflow: AtomicBool,
    /// Lowest log offset whose dispatch the core waits for; `u64::MAX` when none.
    waiting_until: AtomicU64,
}

/// One core's end of its wake queue: slots of queues that grew while the core watched them.
pub struct WakeQueue {
    slots: rtrb::Consumer<u32>,
    state: Arc<CoreState>,
    bell: Arc<Bell>,
}

impl WakeQueue {
    /// The next queue that grew. It is not reported again until it is watched again.
    pub fn pop(&mut self) -> Option<u32> {
        self.slots.pop().ok()
    }

    /// Whether slots were dropped since the last call; if so, everything parked must be looked at
    /// again.
    pub fn take_overflow(&mut self) -> bool {
        self.state.overflow.swap(false, Ordering::SeqCst)
    }

    /// Whether nothing waits to be popped and nothing overflowed.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && !self.state.overflow.load(Ordering::SeqCst)
    }

    /// Asks to be woken once the log is dispatched up to `log_offset`; replaces the earlier wish,
    /// so give the lowest offset waited for. Look at the dispatched watermark again afterwards.
    pub fn wait_dispatched(&self, log_offset: u64) {
        self.state.waiting_until.store(log_offset, Ordering::SeqCst);
        // What is waited for may be what the dispatcher lets gather.
        self.bell.ring(true);
    }
}

/// The dispatcher's ends of all wake queues.
pub(crate) struct CoreWakes {
    slots: Vec<rtrb::Producer<u32>>,
    states: Vec<Arc<CoreState>>,
    waker: Arc<dyn Waker>,
    /// Bit per core that has something new.
    touched: u64,
}

/// Wake queues for `cores` cores, at most 64, and the ends of them for the dispatcher that takes
/// from `receiver`.
pub(crate) fn wake_queues(
    cores: usize,
    capacity: usize,
    waker: Arc<dyn Waker>,
    receiver: &DispatchReceiver,
) -> (CoreWakes, Vec<WakeQueue>) {
    assert!(cores <= 64, "a queue keeps one bit per watching core");
    let mut wakes = CoreWakes {
        slots: Vec::new(),
        states: Vec::new(),
        waker,
        touched: 0,
    };
    let mut queues = Vec::new();
    for _ in 0..cores {
        let (producer, consumer) = rtrb::RingBuffer::new(capacity);
        let state = Arc::new(CoreState {
            overflow: AtomicBool::new(false),
            waiting_until: AtomicU64::new(u64::MAX),
        });
        wakes.slots.push(producer);
        wakes.states.push(Arc::clone(&state));
        queues.push(WakeQueue {
            slots: consumer,
            state,
            bell: receiver.bell(),
        });
    }
    (wakes, queues)
}

impl CoreWakes {
    /// Reports a queue that grew to the cores of `watchers`, a bit each.
    fn report(&mut self, slot: u32, mut watchers: u64) {
        while watchers != 0 {
            let core = watchers.trailing_zeros() as usize;
            watchers &= watchers - 1;
            let Some(queue) = self.slots.get_mut(core) else {
                continue;
            };
            if queue.push(slot).is_err() {
                self.states[core].overflow.store(true, Ordering::SeqCst);
            }
            self.touched |= 1 << core;
        }
    }

    /// Wakes the cores with news, and those that waited for the log to be dispatched up to
    /// `dispatched`.
    fn wake(&mut self, dispatched: u64) {
        for (core, state) in self.states.iter().enumerate() {
            let until = state.waiting_until.load(Ordering::SeqCst);
            // Only this wish is taken back; one that the core put in its place meanwhile stands.
            let reached = until <= dispatched
                && state
                    .waiting_until
                    .compare_exchange(until, u64::MAX, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok();
            if reached || self.touched & (1 << core) != 0 {
                self.waker.wake(core);
            }
        }
        self.touched = 0;
    }
}

/// What the dispatcher tells the rest of the store.
#[derive(Debug)]
pub(crate) struct DispatchState {
    /// Why entries cannot be stored now; appends are refused meanwhile.
    pub(crate) fault: ArcSwapOption<String>,
    /// Records whose entry does not stand at their queue offset.
    pub(crate) misplaced: AtomicU64,
    /// The last record below the dispatched watermark.
    last: Mutex<LastRecord>,
    /// Log offset of the last resume point.
    pub(crate) resumed: AtomicU64,
    /// Log offset of the first byte that is kept.
    pub(crate) log_min: AtomicU64,
}

/// A record, as a place up to which the log is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastRecord {
    /// Log offset of its first byte.
    pub(crate) start: u64,
    /// Log offset after its last byte; equal to `start` where there is no record.
    pub(crate) end: u64,
    /// Its store time, in milliseconds.
    pub(crate) timestamp: i64,
}

impl DispatchState {
    /// The state of a log that is dispatched up to the end of `last`.
    pub(crate) fn new(last: LastRecord) -> DispatchState {
        DispatchState {
            fault: ArcSwapOption::empty(),
            misplaced: AtomicU64::new(0),
            last: Mutex::new(last),
            resumed: AtomicU64::new(last.end),
            log_min: AtomicU64::new(0),
        }
    }

    #[cfg(test)]
    pub(crate) fn set_last(&self, last: LastRecord) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    /// The last dispatched record; the dispatched watermark is at its end or beyond.
    pub(crate) fn last(&self) -> LastRecord {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns records into entries; owned by the dispatcher thread.
pub(crate) struct Dispatcher {
    pub(crate) receiver: DispatchReceiver,
    pub(crate) queues: RememberedQueues,
    /// Where the queues' next entries are.
    pub(crate) places: Places,
    /// `None` when `messageIndexEnable=false`.
    pub(crate) index: Option<Arc<Index>>,
    pub(crate) watermarks: Arc<Watermarks>,
    /// `None` only while a record is looked at.
    pub(crate) tail: Option<TailReader>,
    pub(crate) delay_levels_ms: Vec<u64>,
    /// `None` when queue entries get no units.
    pub(crate) units: Option<Units>,
    pub(crate) wakes: CoreWakes,
    pub(crate) state: Arc<DispatchState>,
    /// Bytes of a record that lies in two pieces.
    pub(crate) record: Vec<u8>,
    /// Log offset up to which records were indexed, so that a retry does not index one twice.
    pub(crate) indexed: u64,
    /// Reports of misplaced entries.
    pub(crate) misplaced: MisplacedLog,
    /// The record whose entries could not be stored; the next one to be tried.
    pub(crate) held: Option<DispatchItem>,
    /// Whether the last record tried was that one.
    pub(crate) failing: bool,
    /// Entries that the start had no room for: they come first.
    pub(crate) late: Option<Arc<Late>>,
}

/// What one step of the dispatcher came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Records were dispatched, and more may be there.
    Dispatched,
    /// Nothing was there.
    Idle,
    /// An entry cannot be stored now; try again later.
    Failing,
}

impl Dispatcher {
    /// Runs until the writer has gone; whether everything it handed over is dispatched.
    pub(crate) fn run(mut self) -> bool {
        self.receiver.begin();
        if !self.make_late_entries() {
            return false;
        }
        let mut pause = Pause::default();
        loop {
            let closed = self.receiver.is_closed();
            match self.step() {
                Step::Dispatched => pause = Pause::Doze,
                Step::Idle if closed => return true,
                Step::Idle => {
                    self.receiver.rest(pause);
                    pause = Pause::Sleep;
                }
                Step::Failing if closed => return false,
                Step::Failing => std::thread::park_timeout(RETRY_PAUSE),
            }
        }
    }

    /// Makes what the start had no room for; false if the store is closed before there is room.
    pub(crate) fn make_late_entries(&mut self) -> bool {
        while let Some(late) = self.late.clone() {
            if let Err(error) = late.make() {
                self.failed(&error);
                if self.receiver.is_closed() {
                    return false;
                }
                std::thread::park_timeout(LATE_PAUSE);
                continue;
            }
            self.late = None;
            for queue in late.table().all() {
                let watchers = queue.take_watchers();
                self.wakes.report(queue.slot, watchers);
            }
            self.publish(late.last);
            self.watermarks.advance_dispatched(late.end);
            self.wakes.wake(late.end);
            self.works_again();
        }
        true
    }

    /// Dispatches what is there, at most one batch, up to the first record that fails.
    pub(crate) fn step(&mut self) -> Step {
        let (mut last, mut step) = (None, Step::Idle);
        let places = &self.places;
        self.receiver.peek(BATCH, |item| places.fetch(item.slot));
        for _ in 0..BATCH {
            let Some(item) = self.held.take().or_else(|| self.receiver.pop()) else {
                break;
            };
            match self.try_dispatch(&item) {
                Ok(timestamp) => {
                    self.works_again();
                    let timestamp = timestamp.unwrap_or_else(|| self.state.last().timestamp);
                    let (start, size) = (item.physical_offset, u64::from(item.size));
                    let end = start + size;
                    last = Some(LastRecord {
                        start,
                        end,
                        timestamp,
                    });
                    step = Step::Dispatched;
                }
                Err(error) => {
                    self.held = Some(item);
                    self.failed(&error);
                    step = Step::Failing;
                    break;
                }
            }
        }
        if let Some(last) = last {
            self.publish(last);
        }
        step
    }

    /// Shows that everything up to the end of `last` is dispatched.
    fn publish(&mut self, last: LastRecord) {
        let end = last.end;
        self.watermarks.advance_dispatched(end);
        *self
            .state
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = last;
        // The mark is published before the wishes are read: a core that sets one looks at the mark
        // afterwards.
        fence(Ordering::SeqCst);
        self.wakes.wake(end);
    }

    fn failed(&mut self, error: &dyn std::error::Error) {
        if !self.failing {
            tracing::error!(%error, "entries cannot be stored; trying again");
        }
        self.failing = true;
        self.state.fault.store(Some(Arc::new(error.to_string())));
    }

    fn works_again(&mut self) {
        if self.failing {
            self.failing = false;
            tracing::info!("queue and index entries can be stored again");
            self.state.fault.store(None);
        }
    }

    /// Looks at the record where it lies in the tail, for the writer keeps there what is not
    /// dispatched; only one that lies in two pieces is copied.
    fn try_dispatch(&mut self, item: &DispatchItem) -> Result<Option<i64>, DispatchError> {
        let (offset, size) = (item.physical_offset, item.size as usize);
        // Lent to the look at the record, which needs the rest of the dispatcher.
        let Some(mut tail) = self.tail.take() else {
            return Err(DispatchError::NotInTail { offset });
        };
        let bounds = (tail.start(), tail.size());
        let stored = tail.with(offset, size, |first, second| {
            if second.is_empty() {
                return self.store(item, first, bounds);
            }
            let mut bytes = std::mem::take(&mut self.record);
            bytes.clear();
            bytes.extend_from_slice(first);
            bytes.extend_from_slice(second);
            let stored = self.store(item, &bytes, bounds);
            self.record = bytes;
            stored
        });
        self.tail = Some(tail);
        stored.unwrap_or(Err(DispatchError::NotInTail { offset }))
    }

    /// Stores the entries of a record with these bytes; `tail`: where the tail starts, its size.
    fn store(
        &mut self,
        item: &DispatchItem,
        bytes: &[u8],
        tail: (u64, u64),
    ) -> Result<Option<i64>, DispatchError> {
        match Record::decode(bytes) {
            Ok(record) => self.store_entries(item, &record, tail),
            Err(problem) => {
                tracing::error!(offset = item.physical_offset, %problem, "not a record");
                Ok(None)
            }
        }
    }

    fn store_entries(
        &mut self,
        item: &DispatchItem,
        record: &Record<'_>,
        tail: (u64, u64),
    ) -> Result<Option<i64>, DispatchError> {
        if let Some(index) = self
            .index
            .as_ref()
            .filter(|_| item.physical_offset >= self.indexed)
        {
            index.put(record)?;
            self.indexed = item.physical_offset + 1;
        }
        if item.light {
            self.store_light_entries(item, record, tail)?;
        }
        if item.slot != NO_QUEUE
            && let Some(queue) = self.queues.get(item.slot)
        {
            if item.light && queue.log_end() > item.physical_offset {
                // It stands there already: see `store_light_entries`.
                return Ok(Some(record.store_timestamp()));
            }
            let entry = entry_of(item, record, &self.delay_levels_ms);
            queue.note_recent(item.physical_offset, tail.0, tail.1);
            let note = self.units.as_mut().map(|units| units.note(record));
            let placed = queue.append_in_place(item.queue_offset, entry, note)?;
            if placed != Placed::Appended {
                self.misplaced.found(&self.state, item, queue, placed);
            }
            self.places.note(queue);
            // The entry is shown; only now is asked who waits for it.
            let watchers = queue.take_watchers();
            if watchers != 0 {
                self.wakes.report(queue.slot, watchers);
            }
        }
        Ok(Some(record.store_timestamp()))
    }
}

/// Says that records have no entries of their own at their queue offsets: consumers miss them, or
/// find them at other ones. Only a fault in this program does that.
#[derive(Debug, Default)]
pub(crate) struct MisplacedLog {
    /// When one was last reported.
    said: Option<Instant>,
}

impl MisplacedLog {
    fn found(&mut self, state: &DispatchState, item: &DispatchItem, queue: &Queue, placed: Placed) {
        if queue.is_removed() {
            return;
        }
        state.misplaced.fetch_add(1, Ordering::Relaxed);
        if self.said.is_none_or(|said| said.elapsed() >= SAY_PAUSE) {
            self.said = Some(Instant::now());
            tracing::error!(
                topic = %queue.topic,
                queue_id = queue.queue_id,
                queue_offset = item.queue_offset,
                offset = item.physical_offset,
                ?placed,
                total = state.misplaced.load(Ordering::Relaxed),
                "a record's queue entry does not stand at the record's queue offset"
            );
        }
    }
}

/// The queue entry of a record.
fn entry_of(item: &DispatchItem, record: &Record<'_>, delay_levels_ms: &[u64]) -> ConsumeEntry {
    ConsumeEntry {
        physical_offset: item.physical_offset,
        size: item.size,
        tags_code: entry_tags_code(record, delay_levels_ms),
    }
}

/// The tags field of a record's queue entry (docs/format.md, "Tag code"): the hash of its tags, or
/// for a record of the schedule topic the time of delivery.
pub(crate) fn entry_tags_code(record: &Record<'_>, delay_levels_ms: &[u64]) -> i64 {
    if record.topic() == SCHEDULE_TOPIC
        && let Some(level) = record.properties().get_i64(names::DELAY)
        && level > 0
    {
        let level = usize::try_from(level)
            .unwrap_or(usize::MAX)
            .min(delay_levels_ms.len());
        let delay = level
            .checked_sub(1)
            .and_then(|index| delay_levels_ms.get(index));
        let delay = delay.copied().unwrap_or(1000);
        return record.store_timestamp().saturating_add_unsigned(delay);
    }
    record.tags_code()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FlushMode;
    use crate::mapped_file::MapBudget;
    use crate::queue_table::QueueTable;
    use crate::tail::tail;

    struct Nobody;

    impl Waker for Nobody {
        fn wake(&self, _core: usize) {}
    }

    #[test]
    fn a_record_that_cannot_be_read_back_is_a_fault_and_not_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, receiver) = channel(8);
        let (_writer, readers) = tail(4096, 0).unwrap();
        let mut sender = sender;
        let item = DispatchItem {
            physical_offset: 0,
            size: 100,
            slot: NO_QUEUE,
            queue_offset: 0,
            light: false,
        };
        sender.push(item, false).unwrap();
        drop(sender);
        let state = Arc::new(DispatchState::new(LastRecord::default()));
        let table = Arc::new(QueueTable::new(
            dir.path().join("consumequeue"),
            2000,
            MapBudget::new(1),
        ));
        let wakes = wake_queues(1, 8, Arc::new(Nobody), &receiver).0;
        let dispatcher = Dispatcher {
            receiver,
            queues: RememberedQueues::new(table),
            places: Places::default(),
            index: None,
            watermarks: Arc::new(Watermarks::new(FlushMode::Sync, 0)),
            tail: Some(readers.reader().unwrap()),
            delay_levels_ms: vec![1],
            units: None,
            wakes,
            state: Arc::clone(&state),
            record: Vec::new(),
            indexed: 0,
            misplaced: MisplacedLog::default(),
            failing: false,
            held: None,
            late: None,
        };
        assert!(!dispatcher.run(), "not everything is dispatched");
        let fault = state.fault.load_full().unwrap();
        assert!(fault.contains("log offset 0"), "{fault}");
    }
}
