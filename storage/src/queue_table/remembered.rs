//! Queues by slot for one thread, without a look-up in the shared table per message.

use std::mem::offset_of;
use std::sync::Arc;

use super::{Queue, QueueTable};
use crate::format::light;
use crate::mapping::prefetch;

impl Queue {
    /// Addresses of what leads to the place of the next entry, and that of the place.
    pub(crate) fn way_to_end(&self) -> ([usize; 8], usize) {
        self.files.way_to_end()
    }

    /// Has fetched what an append touches of the queue whose [`Arc::as_ptr`] this is. It may be
    /// gone: then that costs the fetch.
    pub fn fetch(address: usize) {
        let counts = align_of::<Queue>().max(2 * size_of::<usize>());
        prefetch(address.wrapping_sub(counts));
        prefetch(address + offset_of!(Queue, slot));
        prefetch(address + offset_of!(Queue, removed));
        prefetch(address + offset_of!(Queue, next_offset));
    }

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
    /// Removals of topics that this knows of.
    removals: u64,
}

impl RememberedQueues {
    /// The queues of `table`, none of them remembered yet.
    pub fn new(table: Arc<QueueTable>) -> RememberedQueues {
        RememberedQueues {
            table,
            by_slot: Vec::new(),
            removals: 0,
        }
    }

    /// The queue with a slot number, unless it was removed.
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<&Arc<Queue>> {
        let index = slot as usize;
        let removals = self.table.removals();
        if self.removals != removals {
            self.removals = removals;
            self.forget_removed();
        }
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

    /// The light queue of that name, if there is one.
    pub fn light(&self, name: &str) -> Option<Arc<Queue>> {
        self.table.get(name, light::QUEUE_ID)
    }

    /// Nobody asks for a removed queue again, and its mappings go with the last who knows it.
    #[cold]
    fn forget_removed(&mut self) {
        for remembered in &mut self.by_slot {
            if remembered.as_ref().is_some_and(|queue| queue.is_removed()) {
                *remembered = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::MapBudget;

    #[test]
    fn a_queue_that_was_removed_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let table = QueueTable::new(dir.path().join("consumequeue"), 6000, MapBudget::new(10));
        let table = Arc::new(table);
        let mut remembered = RememberedQueues::new(Arc::clone(&table));
        let removed = table.get_or_create("A", 0);
        let kept = table.get_or_create("B", 0);
        for queue in [&removed, &kept] {
            assert!(remembered.get(queue.slot).is_some());
        }
        assert!(table.remove_topic("A", || Ok(())).unwrap().is_some());
        assert!(remembered.get(kept.slot).is_some());
        assert!(remembered.by_slot[removed.slot as usize].is_none());
    }
}
