//! The dispatcher: turns written records into queue and index entries, then wakes whoever waits for them.
//!
//! What must always hold: an entry is in its queue's mapping before the queue's `max_offset` shows it, and
//! `max_offset` is published before watchers are taken, so a core that sets its watch bit and then looks at
//! `max_offset` again cannot sleep through a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::Thread;

/// Wakes network cores; implemented by the broker.
pub trait Waker: Send + Sync {
    /// Makes the core look at its wake queue. Cheap when the core is awake; callable from any thread.
    fn wake(&self, core: usize);
}

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
}

/// Slot of a record that gets no queue entry (prepared and rollback types).
pub const NO_QUEUE: u32 = u32::MAX;

/// State both ends of the writer–dispatcher queue look at.
#[derive(Debug, Default)]
struct Bell {
    asleep: AtomicBool,
    closed: AtomicBool,
    thread: std::sync::OnceLock<Thread>,
}

/// The writer's end: bounded, never blocks.
pub struct DispatchSender {
    items: rtrb::Producer<DispatchItem>,
    bell: Arc<Bell>,
}

impl DispatchSender {
    /// Queues a record; gives it back when the queue is full, for a later try.
    pub fn push(&mut self, item: DispatchItem) -> Result<(), DispatchItem> {
        self.items
            .push(item)
            .map_err(|rtrb::PushError::Full(item)| item)
    }

    /// Records that can be pushed now.
    pub fn free(&self) -> usize {
        self.items.slots()
    }

    /// Wakes the dispatcher if it sleeps; once per batch of pushes.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.bell.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.bell.thread.get()
        {
            thread.unpark();
        }
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

/// The bounded queue between the writer and the dispatcher.
pub fn channel(capacity: usize) -> (DispatchSender, DispatchReceiver) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    let bell = Arc::new(Bell::default());
    (
        DispatchSender {
            items: producer,
            bell: Arc::clone(&bell),
        },
        DispatchReceiver {
            items: consumer,
            bell,
        },
    )
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
}

impl WakeQueue {
    /// The next queue that grew. It is not reported again until it is watched again.
    pub fn pop(&mut self) -> Option<u32> {
        self.slots.pop().ok()
    }

    /// Whether slots were dropped since the last call; if so, everything parked must be looked at again.
    pub fn take_overflow(&mut self) -> bool {
        self.state.overflow.swap(false, Ordering::SeqCst)
    }

    /// Whether nothing waits to be popped and nothing overflowed.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && !self.state.overflow.load(Ordering::SeqCst)
    }

    /// Asks to be woken once the log is dispatched up to `log_offset`; replaces the earlier wish, so give
    /// the lowest offset waited for. Look at the dispatched watermark again afterwards.
    pub fn wait_dispatched(&self, log_offset: u64) {
        self.state.waiting_until.store(log_offset, Ordering::SeqCst);
    }
}
