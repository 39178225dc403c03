//! What the writer asks of the store's queues.

use super::QueueOffsets;
use crate::queue_table::RememberedQueues;

impl QueueOffsets for RememberedQueues {
    fn next(&mut self, slot: u32) -> Option<i64> {
        self.get(slot).map(|queue| queue.next_offset())
    }

    fn advance(&mut self, slot: u32, next: i64, count: u32) {
        if let Some(queue) = self.get(slot) {
            queue.set_next_offset(next + i64::from(count));
        }
    }

    fn is_watched(&mut self, slot: u32) -> bool {
        self.get(slot).is_some_and(|queue| queue.is_watched())
    }
}
