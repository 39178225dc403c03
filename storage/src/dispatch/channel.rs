//! From the writer to the dispatcher: a bounded queue, and a bell that is rung as rarely as nobody
//! notices.
//!
//! After work the dispatcher dozes: it looks again after [`DOZE`] by itself, and meanwhile is woken
//! only for records that somebody waits for, so that records gather instead of costing a wake-up
//! each. Only when nothing came does it sleep until it is rung for.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

/// How long records gather that nobody waits for.
const DOZE: Duration = Duration::from_millis(1);

/// Longest sleep; a lost wake-up would cost this much.
const IDLE_PAUSE: Duration = Duration::from_millis(500);

/// Slot of a record that gets no queue entry (prepared and rollback types).
pub const NO_QUEUE: u32 = u32::MAX;

/// One record for the dispatcher: durable under synchronous flush, written under asynchronous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchItem {
    /// Log offset of the record's first byte.
    pub physical_offset: u64,
    /// TOTALSIZE, in bytes.
    pub size: u32,
    /// The queue's slot in the queue table, or [`NO_QUEUE`] for a record that gets no queue entry.
    pub slot: u32,
    /// QUEUEOFFSET.
    pub queue_offset: i64,
    /// Whether the record enters light queues too.
    pub light: bool,
}

const AWAKE: u8 = 0;
const DOZING: u8 = 1;
const ASLEEP: u8 = 2;

/// How the dispatcher rests when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pause {
    /// There was work just now: until something is worth waking up for, but not long.
    Doze,
    /// Until anything comes.
    #[default]
    Sleep,
}

/// Wakes the dispatcher.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: AtomicU8,
    closed: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    /// Wakes the dispatcher if it sleeps, out of a doze only if it is `urgent`.
    pub(super) fn ring(&self, urgent: bool) {
        fence(Ordering::SeqCst);
        // A load first: while the dispatcher is awake its cache line is left alone.
        let state = self.state.load(Ordering::Relaxed);
        let is_due = state == ASLEEP || (urgent && state == DOZING);
        if is_due
            && self.state.swap(AWAKE, Ordering::SeqCst) != AWAKE
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// The writer's end: bounded, never blocks.
pub struct DispatchSender {
    items: rtrb::Producer<DispatchItem>,
    bell: Arc<Bell>,
    /// Since the bell was rung last: whether a record was pushed, and one that somebody waits for.
    pushed: bool,
    urgent: bool,
}

impl DispatchSender {
    /// Queues a record; gives it back when the queue is full, for a later try. Once the dispatcher
    /// has gone nothing is full: the next start makes the entries from the log. `urgent` says that
    /// somebody waits for the record.
    pub fn push(&mut self, item: DispatchItem, urgent: bool) -> Result<(), DispatchItem> {
        match self.items.push(item) {
            Err(rtrb::PushError::Full(item)) if !self.items.is_abandoned() => Err(item),
            _ => {
                self.pushed = true;
                self.urgent |= urgent;
                Ok(())
            }
        }
    }

    /// Records that can be pushed now.
    pub fn free(&self) -> usize {
        self.items.slots()
    }

    /// Wakes the dispatcher if something was pushed, and it rests and should not; once per batch.
    pub fn ring(&mut self) {
        if !std::mem::take(&mut self.pushed) {
            return;
        }
        let is_half_full = self.free() < self.items.buffer().capacity() / 2;
        let urgent = std::mem::take(&mut self.urgent);
        self.bell.ring(urgent || is_half_full);
    }
}

impl Drop for DispatchSender {
    fn drop(&mut self) {
        self.bell.closed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.bell.thread.get() {
            thread.unpark();
        }
    }
}

/// The dispatcher's end.
pub struct DispatchReceiver {
    items: rtrb::Consumer<DispatchItem>,
    bell: Arc<Bell>,
}

impl DispatchReceiver {
    /// The next record, if one waits.
    pub fn pop(&mut self) -> Option<DispatchItem> {
        self.items.pop().ok()
    }

    /// Shows the records that wait, at most so many, the next one first; they stay where they are.
    pub(super) fn peek(&mut self, most: usize, each: impl FnMut(&DispatchItem)) {
        let number = self.items.slots().min(most);
        if let Ok(waiting) = self.items.read_chunk(number) {
            let (first, rest) = waiting.as_slices();
            first.iter().chain(rest).for_each(each);
        }
    }

    /// Whether the writer has gone.
    pub(super) fn is_closed(&self) -> bool {
        self.bell.closed.load(Ordering::SeqCst)
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Says that the calling thread is the one to wake.
    pub(super) fn begin(&self) {
        // Set once: one dispatcher takes the receiver.
        let _ = self.bell.thread.set(std::thread::current());
    }

    /// Rests until the bell rings or it is time to look, unless something came meanwhile.
    pub(super) fn rest(&self, pause: Pause) {
        let (state, longest) = match pause {
            Pause::Doze => (DOZING, DOZE),
            Pause::Sleep => (ASLEEP, IDLE_PAUSE),
        };
        self.bell.state.store(state, Ordering::SeqCst);
        // Pairs with the fence in `Bell::ring`: one of the two sees what the other did.
        fence(Ordering::SeqCst);
        if self.items.is_empty() && !self.is_closed() {
            std::thread::park_timeout(longest);
        }
        self.bell.state.store(AWAKE, Ordering::SeqCst);
    }
}

/// The bounded queue between the writer and the dispatcher.
pub fn channel(capacity: usize) -> (DispatchSender, DispatchReceiver) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    let bell = Arc::new(Bell::default());
    (
        DispatchSender {
            items: producer,
            bell: Arc::clone(&bell),
            pushed: false,
            urgent: false,
        },
        DispatchReceiver {
            items: consumer,
            bell,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: DispatchItem = DispatchItem {
        physical_offset: 0,
        size: 100,
        slot: 0,
        queue_offset: 0,
        light: false,
    };

    fn state(sender: &DispatchSender) -> u8 {
        sender.bell.state.load(Ordering::SeqCst)
    }

    #[test]
    fn records_that_were_looked_at_still_wait() {
        let (mut sender, mut receiver) = channel(4);
        let item = |slot| DispatchItem { slot, ..ITEM };
        for turn in 0..3 {
            for slot in 0..3 {
                assert_eq!(sender.push(item(3 * turn + slot), false), Ok(()));
            }
            let mut seen = Vec::new();
            receiver.peek(2, |item| seen.push(item.slot));
            assert_eq!(seen, [3 * turn, 3 * turn + 1]);
            receiver.peek(9, |item| seen.push(item.slot));
            assert_eq!(seen.len(), 5, "all that wait");
            for slot in 0..3 {
                assert_eq!(receiver.pop(), Some(item(3 * turn + slot)));
            }
        }
        receiver.peek(2, |_| panic!("nothing waits"));
    }

    #[test]
    fn a_doze_ends_for_what_somebody_waits_for_and_a_sleep_for_anything() {
        let (mut sender, _receiver) = channel(100);
        for (pause, urgent, woken) in [
            (DOZING, false, false),
            (DOZING, true, true),
            (ASLEEP, false, true),
            (ASLEEP, true, true),
        ] {
            sender.bell.state.store(pause, Ordering::SeqCst);
            assert_eq!(sender.push(ITEM, urgent), Ok(()));
            sender.ring();
            assert_eq!(state(&sender) == AWAKE, woken, "{pause} {urgent}");
        }
    }

    #[test]
    fn nobody_is_woken_for_no_record() {
        let (mut sender, _receiver) = channel(100);
        for pause in [DOZING, ASLEEP] {
            assert_eq!(sender.push(ITEM, true), Ok(()));
            sender.ring();
            sender.bell.state.store(pause, Ordering::SeqCst);
            sender.ring();
            assert_eq!(state(&sender), pause);
        }
    }

    #[test]
    fn a_doze_ends_before_the_queue_is_full() {
        let (mut sender, _receiver) = channel(8);
        sender.bell.state.store(DOZING, Ordering::SeqCst);
        for pushed in 1..=5 {
            assert_eq!(sender.push(ITEM, false), Ok(()));
            sender.ring();
            assert_eq!(state(&sender) == AWAKE, pushed == 5);
        }
    }

    #[test]
    fn a_core_that_waits_for_the_dispatcher_ends_its_doze() {
        struct Nobody;
        impl crate::dispatch::Waker for Nobody {
            fn wake(&self, _core: usize) {}
        }
        let (sender, receiver) = channel(8);
        let (_wakes, queues) = crate::dispatch::wake_queues(1, 8, Arc::new(Nobody), &receiver);
        sender.bell.state.store(DOZING, Ordering::SeqCst);
        queues[0].wait_dispatched(100);
        assert_eq!(state(&sender), AWAKE);
    }

    #[test]
    fn what_came_before_a_rest_is_not_slept_through() {
        let (mut sender, mut receiver) = channel(8);
        receiver.begin();
        for pause in [Pause::Doze, Pause::Sleep] {
            assert_eq!(sender.push(ITEM, false), Ok(()));
            receiver.rest(pause);
            assert_eq!(receiver.pop(), Some(ITEM));
            assert_eq!(state(&sender), AWAKE);
        }
    }
}
