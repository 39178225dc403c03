//! Fetches into the cache what the next records will touch.
//!
//! With thousands of queues, each written in turn, nothing of a queue is in the cache any more when
//! its next entry comes, and one place leads to the next. Their addresses are remembered, so that
//! those of many records are fetched at the same time. They are hints: a stale one costs a fetch.

use std::sync::Arc;

use crate::format::consume_entry::ENTRY_SIZE;
use crate::mapping::{CACHE_LINE, prefetch};
use crate::queue_table::Queue;

/// Entries of a queue after which its addresses are looked up again.
const LOOK_AGAIN: u32 = 64;

/// Places that are remembered; queues whose slots are so many apart share one.
const PLACES: usize = 1 << 16;

/// Where one queue's next entry and what leads to it are.
#[derive(Clone, Debug, Default)]
struct Place {
    slot: u32,
    queue: usize,
    /// Zero where there is none.
    way: [usize; 8],
    entry: usize,
    /// Entries until the addresses are looked up.
    left: u32,
}

/// The places of the queues that had an entry last, by slot.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    /// Has fetched what the next entry of a queue will touch.
    pub fn fetch(&self, slot: u32) {
        let place = self.0.get(slot as usize % PLACES);
        let Some(place) = place.filter(|place| place.queue != 0 && place.slot == slot) else {
            return;
        };
        for offset in (0..size_of::<Queue>()).step_by(CACHE_LINE) {
            prefetch(place.queue + offset);
        }
        for address in place.way {
            prefetch(address);
        }
        prefetch(place.entry);
    }

    /// Notes that a queue got an entry.
    pub fn note(&mut self, queue: &Arc<Queue>) {
        let index = queue.slot as usize % PLACES;
        if index >= self.0.len() {
            self.0.resize(index + 1, Place::default());
        }
        let place = &mut self.0[index];
        if place.left > 0 && place.slot == queue.slot {
            place.left -= 1;
            place.entry += ENTRY_SIZE;
            return;
        }
        (place.slot, place.left) = (queue.slot, LOOK_AGAIN);
        place.queue = Arc::as_ptr(queue).addr();
        (place.way, place.entry) = queue.way_to_end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::consume_entry::ConsumeEntry;
    use crate::mapped_file::MapBudget;
    use crate::queue_table::QueueTable;

    fn append(queue: &Queue) {
        let entry = ConsumeEntry {
            physical_offset: queue.log_end(),
            size: 100,
            tags_code: 0,
        };
        queue.append(queue.max_offset(), entry).unwrap();
    }

    #[test]
    fn the_place_of_the_next_entry_is_known_between_two_looks() {
        let dir = tempfile::tempdir().unwrap();
        let table = QueueTable::new(dir.path().join("consumequeue"), 20_000, MapBudget::new(10));
        let queue = table.get_or_create("T", 0);
        let mut places = Places::default();
        for _ in 0..=2 * LOOK_AGAIN {
            append(&queue);
            places.note(&queue);
            assert_eq!(places.0[0].entry, queue.way_to_end().1);
        }
    }

    #[test]
    fn places_of_queues_that_are_gone_and_of_none_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let table = QueueTable::new(dir.path().join("consumequeue"), 2000, MapBudget::new(10));
        let queue = table.get_or_create("T", 0);
        let mut places = Places::default();
        places.note(&queue);
        append(&queue);
        places.note(&queue);
        assert!(table.remove_topic("T", || Ok(())).unwrap().is_some());
        drop((queue, table));
        for slot in [0, 1, u32::MAX] {
            places.fetch(slot);
        }
    }
}
