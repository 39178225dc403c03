//! Makes queue and index entries of records that have none, or wrong ones, while the store is
//! opened.
//!
//! Along the log the offsets of each queue are dense. A record with another offset than the next
//! one is kept back until the queue's next record tells what it is: the begin of a gap, a topic
//! that was deleted and made anew, or damage in the record's header, which has no checksum. So
//! damage costs the record it hit and moves no other.
//!
//! What the properties of a record say of light queues has less weight than that: it may be what
//! they said of the record that this one is a copy of, or a client's word. What must always hold:
//! no record takes a place away from one that a resume point vouches for, or that stands there by
//! the queue's files, unless the queue's topic was removed in between.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::consume_queue::{ConsumeQueueError, UnitNote};
use crate::dispatch::Units;
use crate::error::OpenError;
use crate::format::consume_entry::ConsumeEntry;
use crate::format::light;
use crate::format::message::sys_flag;
use crate::format::names::is_directory_name;
use crate::index_file::Index;
use crate::queue_table::{Queue, QueueTable};
use crate::recovery::Scanned;
use crate::removed_topics::RemovedTopics;

mod placed;

pub(crate) use placed::{EntryPlace, PlacedEntry, Source, for_each_entry};

/// Queue offsets from here on are damage: file names could not hold their positions.
const QUEUE_OFFSET_END: i64 = i64::MAX / 1024;
/// Longest gap in a queue's offsets that is believed.
const GAP_MAX: i64 = 1_000_000;
/// Most records without a place that are told one by one.
const TOLD_MAX: u64 = 100;

/// What a former run knew of its queues: the end of each, by topic and queue id.
pub(crate) type KnownQueues = BTreeMap<String, BTreeMap<i32, KnownQueue>>;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownQueue {
    /// Queue offset of its first readable entry; `None` if that was not noted.
    pub(crate) min: Option<i64>,
    /// Queue offset after its last entry.
    pub(crate) max: i64,
    /// Smallest queue offset a new message may get.
    pub(crate) next: i64,
}

/// How far one queue has come.
#[derive(Debug, Default)]
struct Track {
    /// Queue offset of the first record.
    first: Option<i64>,
    /// Queue offset of the next record, if all is well.
    next: Option<i64>,
    /// Log offset of the last record that was offered.
    offered: Option<u64>,
    /// A record with another offset, until the next one tells what it is.
    pending: Option<(i64, Noted)>,
    /// Queue offset behind what a resume point vouches for.
    began: i64,
    /// Where the last gap began that was believed.
    gap: Option<i64>,
    /// Queue offset after the last entry that its file had as the record has it.
    stood: Option<i64>,
}

impl Track {
    /// Whether this queue offset is the one after the last record's.
    fn goes_on_with(&self, queue_offset: i64) -> bool {
        let pending = self.pending.as_ref().map(|(kept, _)| kept + 1);
        pending.or(self.next).unwrap_or(0) == queue_offset
    }
}

/// What a record is whose offset lies below the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lower {
    /// Of a topic that was removed and made anew.
    Anew,
    /// In its place, and the records that went before it are in none.
    InPlace,
    /// In no place of its own.
    Misfit,
}

/// An entry, and what its unit is to say if it gets one.
#[derive(Clone, Debug)]
struct Noted {
    entry: ConsumeEntry,
    note: Option<UnitNote>,
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
    /// Topics that were removed, with the log offset up to which their records go.
    pub(crate) removed: Option<&'a RemovedTopics>,
    /// Whether every record of the log comes by, so that queues hold nothing but their entries.
    pub(crate) whole: bool,
    /// Whether entries that stood before the walk say which records were in their places.
    pub(crate) files_tell: bool,
    /// `None` when entries get no units.
    pub(crate) units: Option<Units>,
    /// Whether a former walk came to these records: entries of theirs that stand are left alone.
    pub(crate) repeats: bool,
    /// Whether the walk goes on where the disk has no room for an entry.
    pub(crate) may_lack_room: bool,
    /// Where the entry stood that was made of the record at hand, if the record says otherwise.
    pub(crate) stood_at: Option<EntryPlace<'a>>,
    /// Why no entries are made from some record on, once there was no room for one.
    pub(crate) lacks_room: Option<String>,
    /// By slot: the queue offset behind the last record that got no entry for that reason.
    pub(crate) unmade: HashMap<u32, i64>,
    tracks: Vec<Track>,
    /// What the index files cover, and how many of them end before the record at hand.
    covered: (Vec<(u64, u64)>, usize),
    /// Records with keys that no index file covers although later ones are indexed.
    pub(crate) unindexed: u64,
    /// Queue entries made.
    pub(crate) entries: u64,
    /// Queue entries that stood there and were wrong.
    pub(crate) replaced: u64,
    /// Records without a place in a queue.
    pub(crate) misfits: u64,
    /// Records with a whole batch inside, which only queues of another kind can hold.
    pub(crate) inner_batches: u64,
}

impl<'a> Rebuild<'a> {
    pub(crate) fn new(
        table: &'a QueueTable,
        index: Option<&'a Index>,
        known: &'a KnownQueues,
        delay_levels_ms: &'a [u64],
    ) -> Rebuild<'a> {
        Rebuild {
            table,
            index,
            indexed_to: 0,
            delay_levels_ms,
            known_below: 0,
            known,
            removed: None,
            whole: false,
            files_tell: false,
            units: None,
            repeats: false,
            may_lack_room: false,
            stood_at: None,
            lacks_room: None,
            unmade: HashMap::new(),
            tracks: Vec::new(),
            covered: (index.map(Index::ranges).unwrap_or_default(), 0),
            unindexed: 0,
            entries: 0,
            replaced: 0,
            misfits: 0,
            inner_batches: 0,
        }
    }

    /// One record of the log.
    pub(crate) fn record(&mut self, scanned: Scanned<'_>) -> Result<(), OpenError> {
        match self.make_entries(scanned) {
            Err(error) if self.goes_on_after(&error) => self.make_entries(scanned),
            made => made,
        }
    }

    /// Whether the walk goes on without entries from here on.
    fn goes_on_after(&mut self, error: &OpenError) -> bool {
        let lacks_room = self.may_lack_room && error.is_no_space();
        if lacks_room {
            self.may_lack_room = false;
            self.lacks_room = Some(error.to_string());
        }
        lacks_room
    }

    fn make_entries(&mut self, scanned: Scanned<'_>) -> Result<(), OpenError> {
        let Scanned {
            offset,
            record,
            damaged,
        } = scanned;
        if record.sys_flag() & sys_flag::INNER_BATCH != 0 {
            self.inner_batches += 1;
            return Ok(());
        }
        let index = self.index.filter(|_| !damaged && self.lacks_room.is_none());
        if let Some(index) = index {
            if offset >= self.indexed_to {
                index.put(&record)?;
            } else if !self.is_covered(offset) && record.is_indexed() {
                let has_keys = record.properties().index_keys().next().is_some();
                self.unindexed += u64::from(has_keys);
            }
        }
        let mut units = self.units.take();
        let note = units.as_mut().map(|units| units.note(&record).clone());
        self.units = units;
        for_each_entry(&record, offset, self.delay_levels_ms, &mut |placed| {
            self.entry(&placed, note.as_ref())
        })
    }

    fn is_covered(&mut self, offset: u64) -> bool {
        let (ranges, at) = &mut self.covered;
        while ranges.get(*at).is_some_and(|range| range.1 < offset) {
            *at += 1;
        }
        ranges.get(*at).is_some_and(|range| range.0 <= offset)
    }

    fn entry(
        &mut self,
        placed: &PlacedEntry<'_>,
        note: Option<&UnitNote>,
    ) -> Result<(), OpenError> {
        let PlacedEntry {
            topic,
            queue_id,
            queue_offset,
            entry,
            source,
        } = *placed;
        // Neither has a checksum: damage here costs this entry, not the start of the broker.
        if !is_directory_name(topic) || !(0..QUEUE_OFFSET_END).contains(&queue_offset) {
            self.misfit(topic, queue_id, queue_offset, entry);
            return Ok(());
        }
        let removed_at = self.removed.and_then(|removed| removed.get(topic));
        if removed_at.is_some_and(|removed_at| entry.physical_offset < *removed_at) {
            return Ok(());
        }
        let is_known = entry.physical_offset < self.known_below;
        let known = is_known.then(|| self.known.get(topic)?.get(&queue_id).copied());
        if let Some(known) = known
            && known.is_none_or(|known| queue_offset >= known.max)
        {
            // Of a topic that was deleted.
            return Ok(());
        }
        if self.lacks_room.is_some() {
            let queue = match source {
                Source::ComesAgain => self.table.get(topic, queue_id),
                _ => Some(self.table.get_or_create(topic, queue_id)),
            };
            if let Some(queue) = queue {
                self.note_unmade(&queue, queue_offset);
            }
            return Ok(());
        }
        if !self.may_be_its_own(placed)? {
            return Ok(());
        }
        let queue = self.table.get_or_create(topic, queue_id);
        if self.repeats && entry.end() <= queue.log_end() {
            return Ok(());
        }
        let track = self.track(&queue);
        if track.offered.replace(entry.physical_offset) == Some(entry.physical_offset) {
            // A light queue that the record names twice.
            return Ok(());
        }
        let note = note.filter(|_| !light::is_light(topic)).cloned();
        if source == Source::Own && self.is_moved(&queue, queue_offset, entry)? {
            self.misfit(topic, queue_id, queue_offset, entry);
            return Ok(());
        }
        self.offer(&queue, queue_offset, Noted { entry, note })
    }

    /// Whether a record that names this place is of another one, by the entry that was made of it.
    fn is_moved(
        &mut self,
        queue: &Queue,
        queue_offset: i64,
        entry: ConsumeEntry,
    ) -> Result<bool, ConsumeQueueError> {
        if self.stood_at.is_none() {
            return Ok(false);
        }
        // Another queue can have an old entry: Apache leaves them behind where it cut its log.
        if self.whole && self.files_tell && stands_at(queue, queue_offset, entry)? {
            return Ok(false);
        }
        // An entry can be damaged too: one that its queue has no use for says nothing against a
        // record that goes on where it says.
        Ok(self.is_missing_where_it_stood() || !self.track(queue).goes_on_with(queue_offset))
    }

    fn is_missing_where_it_stood(&mut self) -> bool {
        let Some(stood) = self.stood_at else {
            return false;
        };
        match self.table.get(stood.topic, stood.queue_id) {
            Some(queue) => self.track(&queue).goes_on_with(stood.queue_offset),
            None => stood.queue_offset == 0,
        }
    }

    /// No later message gets the offset of one whose entry is missing.
    fn note_unmade(&mut self, queue: &Queue, offset: i64) {
        let next = self.unmade.entry(queue.slot).or_insert(0);
        let end = queue.max_offset().max(*next);
        // Others are damage.
        if (end..=end.saturating_add(GAP_MAX)).contains(&offset) {
            *next = offset + 1;
        }
    }

    /// Whether the place that a record names can be the record's own, and not that of another one
    /// of which it is a copy.
    fn may_be_its_own(&mut self, placed: &PlacedEntry<'_>) -> Result<bool, OpenError> {
        let offset = placed.queue_offset;
        if placed.source == Source::Own || placed.source == Source::Light {
            return Ok(true);
        }
        // What stands behind a resume point is this broker's, which gives those no place.
        if placed.source == Source::ComesAgain && !self.whole {
            return Ok(false);
        }
        let Some(queue) = self.table.get(placed.topic, light::QUEUE_ID) else {
            return Ok(placed.source == Source::Copy);
        };
        if self.whole
            && self.files_tell
            && let Some(stands) = queue.entry(offset).map_err(ConsumeQueueError::from)?
            && stands.physical_offset != placed.entry.physical_offset
        {
            return Ok(false);
        }
        let track = self.track(&queue);
        let kept = track.pending.as_ref().map(|(kept, _)| kept + 1);
        Ok(match (placed.source, track.next) {
            (Source::Copy, next) => next.is_none_or(|next| offset >= next),
            (_, next) => kept.or(next) == Some(offset),
        })
    }

    fn track(&mut self, queue: &Queue) -> &mut Track {
        let slot = queue.slot as usize;
        if slot >= self.tracks.len() {
            self.tracks.resize_with(slot + 1, Track::default);
        }
        let track = &mut self.tracks[slot];
        if !self.whole && track.next.is_none() && queue.max_offset() > 0 {
            track.began = queue.max_offset();
            track.next = Some(track.began);
        }
        track
    }

    /// Decides about the record at hand, and the one kept back before it.
    fn offer(&mut self, queue: &Arc<Queue>, offset: i64, entry: Noted) -> Result<(), OpenError> {
        if self.lower(queue, offset) == Some(Lower::Misfit) {
            self.misfit(&queue.topic, queue.queue_id, offset, entry.entry);
            return Ok(());
        }
        let track = self.track(queue);
        let next = track.next;
        let Some((kept, kept_entry)) = track.pending.take() else {
            if next == Some(offset) {
                return self.commit(queue, offset, entry);
            }
            track.pending = Some((offset, entry));
            return Ok(());
        };
        let goes_up = kept < offset && offset - kept <= GAP_MAX;
        let gap = goes_up && next.is_none_or(|next| kept >= next && kept - next <= GAP_MAX);
        if offset == kept + 1 || gap {
            self.commit(queue, kept, kept_entry)?;
            return self.offer(queue, offset, entry);
        }
        self.misfit(&queue.topic, queue.queue_id, kept, kept_entry.entry);
        let track = self.track(queue);
        match next {
            // The one kept back stood for the offset before, whatever its header says.
            Some(next) if offset == next || offset == next + 1 => self.commit(queue, offset, entry),
            _ => {
                track.pending = Some((offset, entry));
                Ok(())
            }
        }
    }

    /// What a record is that names this offset; `None` if it lies before none that came by.
    fn lower(&mut self, queue: &Queue, offset: i64) -> Option<Lower> {
        let (whole, files_tell) = (self.whole, self.whole && self.files_tell);
        let removed_at = self.removed.and_then(|removed| removed.get(&*queue.topic));
        let track = self.track(queue);
        track.next.filter(|next| offset < *next)?;
        let stood = track.stood.filter(|_| files_tell);
        let in_gap = track.gap.is_some_and(|gap| offset >= gap);
        Some(if in_gap || stood.is_some_and(|stood| offset >= stood) {
            Lower::InPlace
        } else if stood.is_some() {
            Lower::Misfit
        } else if whole {
            match (offset, light::is_light(&queue.topic)) {
                // So begins a topic that is made anew.
                (0, _) => Lower::Anew,
                (_, true) => Lower::Misfit,
                // The offsets from here on were claimed by what stood inside damage.
                (_, false) if track.first < Some(offset) => Lower::InPlace,
                (_, false) => Lower::Anew,
            }
        } else if removed_at.is_some_and(|removed_at| queue.log_end() <= *removed_at) {
            // Whoever removes a topic notes it before one of its name takes anything.
            Lower::Anew
        } else if offset >= track.began && !light::is_light(&queue.topic) {
            Lower::InPlace
        } else {
            Lower::Misfit
        })
    }

    fn commit(&mut self, queue: &Queue, offset: i64, noted: Noted) -> Result<(), OpenError> {
        let before = queue.max_offset();
        let lower = self.lower(queue, offset);
        let whole = self.whole;
        let track = self.track(queue);
        if lower == Some(Lower::InPlace) {
            tracing::warn!(
                topic = %queue.topic,
                queue_id = queue.queue_id,
                queue_offset = offset,
                log_offset = noted.entry.physical_offset,
                "queue offsets from this one on stand twice in the log: the later records are \
                 served"
            );
        }
        if lower == Some(Lower::Anew) || track.first.is_none() {
            track.first = Some(offset);
        }
        let expected = track.next.replace(offset + 1);
        if lower.is_some() {
            let stood = track.stood.filter(|_| lower != Some(Lower::Anew));
            (track.gap, track.stood) = (None, stood.map(|stood| stood.min(offset)));
            queue.cut_to(offset)?;
        } else {
            // Queues that a walk does not see from their first record on begin with 0.
            let begin = expected.or((!whole).then_some(0));
            track.gap = begin.filter(|begin| *begin < offset).or(track.gap);
        }
        // Offsets without a record hold nothing, whatever stands there.
        for blank in expected.unwrap_or(offset)..offset.min(before) {
            queue.put_at(blank, ConsumeEntry::PRE_BLANK, None)?;
        }
        let existed = offset < queue.max_offset();
        if queue.put_at(offset, noted.entry, noted.note.as_ref())? {
            self.entries += 1;
            self.replaced += u64::from(existed);
        } else {
            self.track(queue).stood = Some(offset + 1);
        }
        Ok(())
    }

    fn misfit(&mut self, topic: &str, queue_id: i32, queue_offset: i64, entry: ConsumeEntry) {
        self.misfits += 1;
        if self.misfits <= TOLD_MAX {
            tracing::warn!(
                topic,
                queue_id,
                queue_offset,
                offset = entry.physical_offset,
                "a record says that it belongs where it does not fit; it is not served"
            );
        }
    }

    /// The log has come to its end.
    pub(crate) fn finish(&mut self, log_min: u64) -> Result<(), OpenError> {
        for queue in self.table.all() {
            if self.lacks_room.is_some() {
                if let Some((offset, _)) = self.track(&queue).pending.take() {
                    self.note_unmade(&queue, offset);
                }
                continue;
            }
            let files_tell = self.files_tell;
            let known = self.known.get(&*queue.topic);
            let known = known.and_then(|queues| queues.get(&queue.queue_id).copied());
            let track = self.track(&queue);
            if let Some((offset, entry)) = track.pending.take() {
                let next = track.next.unwrap_or(offset);
                // One record alone shows a gap, but no topic made anew, unless it was known.
                let stood =
                    files_tell && track.stood == Some(offset) && light::is_light(&queue.topic);
                let anew = stood || known.is_some_and(|known| known.max == offset + 1);
                let goes_on = (next..=next.saturating_add(GAP_MAX)).contains(&offset);
                // No record goes on from it: its queue's entry is all the evidence there is.
                let whole = self.whole && files_tell;
                let moved = whole && next != offset && stands_at(&queue, next, entry.entry)?;
                if (goes_on || anew) && !moved {
                    match self.commit(&queue, offset, entry) {
                        Err(error) if self.goes_on_after(&error) => {
                            self.note_unmade(&queue, offset);
                        }
                        made => made?,
                    }
                } else {
                    self.misfit(&queue.topic, queue.queue_id, offset, entry.entry);
                }
            }
            if !self.whole {
                continue;
            }
            let track = self.track(&queue);
            if let (Some(first), Some(next)) = (track.first, track.next) {
                queue.finish_at(first, next, log_min)?;
            } else {
                queue.truncate(log_min)?;
                queue.correct_min(log_min)?;
            }
        }
        Ok(())
    }
}

/// Whether a record that names another place has its entry at this one.
fn stands_at(queue: &Queue, place: i64, entry: ConsumeEntry) -> Result<bool, ConsumeQueueError> {
    let stands = queue.entry(place)?;
    Ok(stands.is_some_and(|stands| stands.physical_offset == entry.physical_offset))
}
