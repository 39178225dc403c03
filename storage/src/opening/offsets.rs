//! The queue offsets that queues go on with after a start.

use std::collections::HashMap;

use super::Opening;
use crate::error::OpenError;
use crate::queue_table::{Queue, QueueTable};
use crate::seeded::{Fault, seeded};

impl Opening<'_> {
    /// Sets the next offsets so that none is given twice, even if queues were lost. Returns those
    /// that lie beyond their queue's end, by slot.
    pub(super) fn set_offsets(&self, table: &QueueTable) -> Result<HashMap<u32, i64>, OpenError> {
        let mut floors = HashMap::new();
        let unmade = |slot: u32| {
            self.unmade
                .as_ref()
                .and_then(|unmade| unmade.next.get(&slot))
        };
        for queue in table.all() {
            queue.set_next_offset(queue.max_offset());
        }
        for (topic, queues) in &self.known {
            for (queue_id, known) in queues {
                let queue = table.get_or_create(topic, *queue_id);
                if known.next <= queue.next_offset() || seeded(Fault::OffsetsFromQueues) {
                    continue;
                }
                queue.set_next_offset(known.next);
                if self.foreign || unmade(queue.slot).is_some() || !begin_lost(&queue, known.next)?
                {
                    floors.insert(queue.slot, known.next);
                }
            }
        }
        for (slot, next) in self.unmade.iter().flat_map(|unmade| &unmade.next) {
            if let Some(queue) = table.by_slot(*slot).filter(|q| q.next_offset() < *next) {
                queue.set_next_offset(*next);
                floors.insert(*slot, *next);
            }
        }
        Ok(floors)
    }
}

/// Makes the file of a queue that has no entries, although messages were in it that the log no
/// longer holds: without it consumers would be told that the queue ends before offsets that they
/// committed. False if it has entries, or there is no room for a file; it begins with its next
/// message then.
fn begin_lost(queue: &Queue, next: i64) -> Result<bool, OpenError> {
    match queue.begin_without_entries(next).map_err(OpenError::from) {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "a lost queue begins with its next message");
            Ok(false)
        }
        begun => begun,
    }
}
