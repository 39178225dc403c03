//! Queues by slot for one thread, without a look-up in the shared table per message.

use std::sync::Arc;

use super::{Queue, QueueTable};

impl Queue {
    /// Log offset after the last record of which the queue's files had an entry when they were
    /// opened.
    pub(crate) fn seen_end(&self) -> u64 {
        self.files.seen_end()
    }
}

/// The table's queues by slot, remembered once they were used.
pub(crate) struct RememberedQueues {
    table: Arc<QueueTable>,
    by_slot: Vec<Option<Arc<Queue>>>,
}

impl RememberedQueues {
    /// The queues of `table`, none of them remembered yet.
    pub fn new(table: Arc<QueueTable>) -> RememberedQueues {
        RememberedQueues {
            table,
            by_slot: Vec::new(),
        }
    }

    /// The queue with a slot number, unless it was removed.
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<&Arc<Queue>> {
        let index = slot as usize;
        if self.by_slot.get(index).is_none_or(Option::is_none) {
            let queue = self.table.by_slot(slot)?;
            if index >= self.by_slot.len() {
                self.by_slot.resize(index + 1, None);
            }
            self.by_slot[index] = Some(queue);
        }
        let remembered = &mut self.by_slot[index];
        if remembered.as_ref().is_some_and(|queue| queue.is_removed()) {
            *remembered = None;
        }
        remembered.as_ref()
    }
}
