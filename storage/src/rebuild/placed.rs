//! The places in queues that a record names.

use crate::dispatch::entry_tags_code;
use crate::format::consume_entry::ConsumeEntry;
use crate::format::light;
use crate::format::properties::names;
use crate::format::record::Record;
use crate::seeded::{Fault, seeded};

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPlace<'a> {
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
}

/// A queue entry and where it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedEntry<'a> {
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) entry: ConsumeEntry,
    pub(crate) source: Source,
}

impl PlacedEntry<'_> {
    pub(crate) fn place(&self) -> EntryPlace<'_> {
        EntryPlace {
            topic: self.topic,
            queue_id: self.queue_id,
            queue_offset: self.queue_offset,
        }
    }
}

/// Where an entry's place is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The record's own queue.
    Own,
    /// The properties of a message that enters light queues.
    Light,
    /// Those of a copy, which enters them at places of its own, but may have kept the first one's.
    Copy,
    /// Those of a message that comes again: brokers of 4.9 give it places too, elsewhere they are
    /// the first one's.
    ComesAgain,
}

impl Source {
    /// That of a record's places in light queues.
    pub(crate) fn in_light_queues(record: &Record<'_>) -> Source {
        let is_copy = || record.properties().get_str(names::ORIGIN_MESSAGE_ID);
        match light::enters_light_queues(record.topic()) {
            false => Source::ComesAgain,
            true if is_copy().is_some() => Source::Copy,
            true => Source::Light,
        }
    }

    /// Whether the offset may be that of another record, of which this one is a copy.
    pub(crate) fn is_copied(self) -> bool {
        matches!(self, Source::Copy | Source::ComesAgain)
    }
}

/// Every queue entry of the record at `offset`: its own, and those in the light queues it was
/// dispatched to. Only light ones: the properties are the producer's, and no producer may put
/// entries into another topic.
pub(crate) fn for_each_entry<E>(
    record: &Record<'_>,
    offset: u64,
    delay_levels_ms: &[u64],
    visit: &mut dyn FnMut(PlacedEntry<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if !record.is_queued() {
        return Ok(());
    }
    let entry = ConsumeEntry {
        physical_offset: offset,
        size: record.size(),
        tags_code: entry_tags_code(record, delay_levels_ms),
    };
    visit(PlacedEntry {
        topic: record.topic(),
        queue_id: record.queue_id(),
        queue_offset: record.queue_offset(),
        entry,
        source: Source::Own,
    })?;
    if seeded(Fault::NoLightEntries) {
        return Ok(());
    }
    let properties = record.properties();
    let source = Source::in_light_queues(record);
    for (topic, queue_offset) in light::places(properties) {
        visit(PlacedEntry {
            topic,
            queue_id: light::QUEUE_ID,
            queue_offset,
            entry,
            source,
        })?;
    }
    Ok(())
}
