//! The offsets that a record gets in light queues (docs/format.md, Light queues): like its own
//! queue offset, only the writer knows them. So it appends their property.

use super::{LogFiles, QueueOffsets, Writer};
use crate::append::Addition;
use crate::append_queue::{AppendFailure, Entry};
use crate::disk::Disk;
use crate::format::light::{Lengths, begin_offsets, lengthened, push_offset};
use crate::seeded::{Fault, seeded};

/// What one record gets; reused from record to record.
#[derive(Debug, Default)]
pub(super) struct LightOffsets {
    slots: Vec<u32>,
    next: Vec<i64>,
    text: Vec<u8>,
    lengths: Option<Lengths>,
}

impl LightOffsets {
    /// Bytes that the record gets longer.
    pub fn added(&self) -> u64 {
        self.lengths.map_or(0, |_| self.text.len() as u64)
    }

    /// What is appended to the record.
    pub fn addition(&self) -> Option<Addition<'_>> {
        let lengths = self.lengths?;
        let text = &self.text;
        Some(Addition { text, lengths })
    }
}

impl<D, F, Q> Writer<D, F, Q>
where
    D: Disk,
    F: LogFiles<File = D::File>,
    Q: QueueOffsets,
{
    /// Finds the offsets of the record of `entry` in light queues; takes none.
    pub(super) fn look_up_light(
        &mut self,
        port: usize,
        entry: &Entry,
    ) -> Result<(), AppendFailure> {
        let light = &mut self.light;
        light.lengths = None;
        if entry.light == 0 {
            return Ok(());
        }
        let properties = self.ports[port].light_queues(entry, &mut light.slots);
        light.next.clear();
        begin_offsets(&mut light.text);
        for slot in &light.slots {
            let next = self.queues.next(*slot);
            let next = next.ok_or(AppendFailure::LightQueueGone)?;
            push_offset(&mut light.text, next);
            light.next.push(next);
        }
        let added = light.text.len();
        let len = entry.len as usize + added;
        light.lengths = lengthened(entry.len as usize, properties, added)
            .filter(|_| self.geometry.can_hold(len as u64));
        match light.lengths {
            Some(_) => Ok(()),
            None => Err(AppendFailure::LightTooLong {
                len: properties + added,
                queues: light.slots.len(),
            }),
        }
    }

    /// Takes the offsets that [`Self::look_up_light`] found. One queue named twice gives one.
    pub(super) fn take_light(&mut self, entry: &Entry) {
        if entry.light > 0 && !seeded(Fault::LightOffsetsAgain) {
            for (slot, next) in self.light.slots.iter().zip(&self.light.next) {
                self.queues.advance(*slot, *next, 1);
            }
        }
    }
}
