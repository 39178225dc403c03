//! Queue offsets out of the queue table, without a look-up per message.

use std::sync::Arc;

use super::QueueOffsets;
use crate::queue_table::{Queue, QueueTable};

/// The table's queues by slot, remembered once they were used.
pub(crate) struct TableOffsets {
    table: Arc<QueueTable>,
    by_slot: Vec<Option<Arc<Queue>>>,
}

impl TableOffsets {
    /// The offsets of `table`'s queues.
    pub fn new(table: Arc<QueueTable>) -> TableOffsets {
        TableOffsets {
            table,
            by_slot: Vec::new(),
        }
    }

    fn queue(&mut self, slot: u32) -> Option<&Arc<Queue>> {
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

impl QueueOffsets for TableOffsets {
    fn next(&mut self, slot: u32) -> Option<i64> {
        self.queue(slot).map(|queue| queue.next_offset())
    }

    fn advance(&mut self, slot: u32, next: i64, count: u32) {
        if let Some(queue) = self.queue(slot) {
            queue.set_next_offset(next + i64::from(count));
        }
    }
}
