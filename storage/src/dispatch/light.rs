//! The entries of a record in light queues (docs/format.md, Light queues).

use super::{Dispatcher, entry_of};
use crate::consume_queue::Placed;
use crate::dispatch::DispatchItem;
use crate::error::DispatchError;
use crate::format::light;
use crate::format::record::Record;

impl Dispatcher {
    /// Adds the record's entry to each light queue that it has an offset in, unless it stands there
    /// already: the queue was named twice, or a try before came so far. `tail`: where the tail
    /// starts, and its size.
    pub(super) fn store_light_entries(
        &mut self,
        item: &DispatchItem,
        record: &Record<'_>,
        tail: (u64, u64),
    ) -> Result<(), DispatchError> {
        let entry = entry_of(item, record, &self.delay_levels_ms);
        for (name, offset) in light::places(record.properties()) {
            let Some(queue) = self.queues.light(name) else {
                continue;
            };
            // Of a queue that was removed after the record got its offset, and is there anew.
            let anew = offset >= queue.next_offset();
            if anew || queue.log_end() > item.physical_offset {
                continue;
            }
            queue.note_recent(item.physical_offset, tail.0, tail.1);
            let placed = queue.append_in_place(offset, entry, None)?;
            if placed != Placed::Appended {
                let item = DispatchItem {
                    queue_offset: offset,
                    ..*item
                };
                self.misplaced.found(&self.state, &item, &queue, placed);
            }
            let watchers = queue.take_watchers();
            if watchers != 0 {
                self.wakes.report(queue.slot, watchers);
            }
        }
        Ok(())
    }
}
