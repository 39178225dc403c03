//! The end of a slot: what was acknowledged before belongs to it.

use std::time::Duration;

use saturnmq_storage::queue_table::Queue;

use crate::broker::Broker;

/// How soon the dispatcher is looked at again.
pub(super) const DISPATCH: Duration = Duration::from_millis(1);

/// Slots whose time is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotEnd {
    /// The first slot that is not over, ms.
    pub(super) write_ms: i64,
    /// End of the log that was acknowledged by then.
    log_end: u64,
    /// End of its messages in the timer topic, once they are dispatched.
    queue_end: Option<i64>,
}

impl SlotEnd {
    /// Slots before `write_ms`, a time that has passed; the log was acknowledged up to `log_end`
    /// when that was seen.
    pub(super) fn new(write_ms: i64, log_end: u64) -> Self {
        Self {
            write_ms,
            log_end,
            queue_end: None,
        }
    }

    /// The offset in the timer topic behind all that was acknowledged in time; `None` while the
    /// dispatcher is not that far.
    pub(super) fn queue_end(&mut self, broker: &Broker, queue: &Queue) -> Option<i64> {
        let dispatched = broker.store.watermarks().dispatched() >= self.log_end;
        if dispatched && self.queue_end.is_none() {
            self.queue_end = Some(queue.max_offset());
        }
        self.queue_end
    }
}
