//! Makes queue and index entries of records that have none, while the store is opened.

use std::collections::HashMap;

use crate::consume_queue::Placed;
use crate::dispatch::entry_tags_code;
use crate::error::OpenError;
use crate::format::consume_entry::ConsumeEntry;
use crate::format::message::sys_flag;
use crate::format::names::is_directory_name;
use crate::format::properties::names;
use crate::format::record::Record;
use crate::index_file::Index;
use crate::queue_table::QueueTable;
use crate::recovery::Scanned;

/// Prefix of the queues that multi-dispatched messages enter besides their own; they have queue id
/// 0.
const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";
/// Queue offsets from here on are damage: file names could not hold their positions.
const QUEUE_OFFSET_END: i64 = i64::MAX / 1024;

/// What a former run knew of its queues: the end of each, by topic and queue id.
pub(crate) type KnownQueues = HashMap<String, HashMap<i32, KnownQueue>>;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownQueue {
    /// Queue offset after its last entry.
    pub(crate) max: i64,
    /// Smallest queue offset a new message may get.
    pub(crate) next: i64,
}

/// Puts scanned records where they belong.
pub(crate) struct Rebuild<'a> {
    pub(crate) table: &'a QueueTable,
    /// `None` when nothing is to be indexed.
    pub(crate) index: Option<&'a Index>,
    /// Records below this log offset are indexed already.
    pub(crate) indexed_to: u64,
    pub(crate) delay_levels_ms: &'a [u64],
    /// Records below this log offset bring back no queue that is not in `known`: its topic was
    /// deleted.
    pub(crate) known_below: u64,
    pub(crate) known: &'a KnownQueues,
    /// Queue entries made.
    pub(crate) entries: u64,
    /// Records with a whole batch inside, which only queues of another kind can hold.
    pub(crate) inner_batches: u64,
}

impl Rebuild<'_> {
    /// One record of the log.
    pub(crate) fn record(&mut self, scanned: Scanned<'_>) -> Result<(), OpenError> {
        let Scanned {
            offset,
            record,
            damaged,
        } = scanned;
        if record.sys_flag() & sys_flag::INNER_BATCH != 0 {
            self.inner_batches += 1;
            return Ok(());
        }
        if let Some(index) = self.index.filter(|_| offset >= self.indexed_to && !damaged) {
            index.put(&record)?;
        }
        if record.is_queued() {
            let tags_code = entry_tags_code(&record, self.delay_levels_ms);
            let entry = ConsumeEntry {
                physical_offset: offset,
                size: record.size(),
                tags_code,
            };
            self.entry(
                record.topic(),
                record.queue_id(),
                record.queue_offset(),
                entry,
            )?;
            self.light_queues(&record, entry)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        entry: ConsumeEntry,
    ) -> Result<(), OpenError> {
        // Neither has a checksum: damage here costs this entry, not the start of the broker.
        if !is_directory_name(topic) || !(0..QUEUE_OFFSET_END).contains(&queue_offset) {
            tracing::warn!(topic, queue_id, queue_offset, "no place for such an entry");
            return Ok(());
        }
        let known = || {
            self.known
                .get(topic)
                .is_some_and(|queues| queues.contains_key(&queue_id))
        };
        let queue = match self.table.get(topic, queue_id) {
            Some(queue) => queue,
            None if entry.physical_offset < self.known_below && !known() => return Ok(()),
            None => self.table.get_or_create(topic, queue_id),
        };
        match queue.append_in_place(queue_offset, entry)? {
            Placed::Duplicate => {}
            Placed::Appended => self.entries += 1,
            Placed::Displaced { at } => {
                tracing::warn!(topic, queue_id, queue_offset, at, "entry stands elsewhere");
                self.entries += 1;
            }
        }
        Ok(())
    }

    /// The light queues a message was dispatched to, with its offsets there. Only those: the
    /// properties are the producer's, and no producer may put entries into another topic.
    fn light_queues(&mut self, record: &Record<'_>, entry: ConsumeEntry) -> Result<(), OpenError> {
        let properties = record.properties();
        let Some(queues) = properties.get_str(names::INNER_MULTI_DISPATCH) else {
            return Ok(());
        };
        let Some(offsets) = properties.get_str(names::INNER_MULTI_QUEUE_OFFSET) else {
            return Ok(());
        };
        for (queue, offset) in queues.split(',').zip(offsets.split(',')) {
            if let Ok(offset) = offset.parse()
                && queue.starts_with(LIGHT_QUEUE_PREFIX)
            {
                self.entry(queue, 0, offset, entry)?;
            }
        }
        Ok(())
    }
}
