//! What one queue entry does to a pull, and what bytes must be to be a record that is served.

use std::sync::atomic::Ordering;

use super::mending::{Hope, ask, belongs};
use super::pieces::OVERLAP;
use super::{EntryStep, PullRequest, PullState, PullStatus, Pulled, Reach, StoreReader};
use crate::consume_queue::UnitLook;
use crate::dispatch::{SCHEDULE_TOPIC, entry_tags_code};
use crate::error::ReadError;
use crate::format::consume_entry::ConsumeEntry;
use crate::format::extension_unit::is_address;
use crate::format::record::{Record, RecordError, SIZE_HEAD, can_have_size};
use crate::log_window::{LOOK_BYTES, SCAN_BYTES};
use crate::queue_table::Queue;

impl StoreReader {
    /// Whether the filter may want an entry, as far as its tag code or its unit tells; `None` if
    /// looking at the unit would wait for the disk. Without its unit every entry may match.
    fn may_match(
        &mut self,
        request: &PullRequest<'_>,
        reach: Reach,
        entry: ConsumeEntry,
    ) -> Option<bool> {
        let filter = request.filter;
        if !is_address(entry.tags_code) {
            return Some(filter.matches_code(entry.tags_code));
        }
        if !filter.needs_unit() {
            return Some(true);
        }
        let in_memory = reach == Reach::Memory;
        let looked = request
            .queue
            .unit(entry.tags_code, in_memory, &mut self.unit);
        match looked {
            UnitLook::Found(unit) => Some(filter.matches_unit(&unit)),
            UnitLook::Missing => Some(true),
            UnitLook::NotMapped => None,
        }
    }

    /// One entry: out of room, filtered out, gone, or appended.
    pub(super) fn look_at(
        &mut self,
        request: &PullRequest<'_>,
        state: &mut PullState,
        (at, entry): (i64, ConsumeEntry),
        ahead: usize,
        out: &mut Vec<u8>,
    ) -> Result<EntryStep, ReadError> {
        let reach = state.reach;
        let pulled = &mut state.pulled;
        let log_end = self.shared.watermarks.acknowledged();
        let behind = log_end.saturating_sub(entry.physical_offset);
        let in_memory = behind <= request.limits.memory_distance;
        if pulled.count > 0 && is_full(request, pulled, entry.size as usize, in_memory) {
            return Ok(EntryStep::Full);
        }
        pulled.far_behind = !in_memory;
        if entry == ConsumeEntry::DAMAGED {
            return self.wrong_entry(request, reach, pulled, at);
        }
        match self.may_match(request, reach, entry) {
            Some(true) => {}
            Some(false) => return Ok(EntryStep::Next),
            None if pulled.count > 0 => return Ok(EntryStep::Full),
            None => return Ok(EntryStep::Cold),
        }
        if entry.is_pre_blank() || self.is_removed(request.queue, at, entry)? {
            note_removed(pulled);
            return Ok(EntryStep::Next);
        }
        let before = out.len();
        let (offset, size) = (entry.physical_offset, entry.size as usize);
        let found = if self.tail.copy(offset, size, out) {
            check_copied(&out[before..], offset, offset < self.shared.loaded_end)
        } else if self.copy_piece(offset, size, out) {
            check_copied(&out[before..], offset, true)
        } else if reach == Reach::Disk {
            self.read_cold(offset, size, ahead, out)?
        } else if pulled.count > 0 {
            return Ok(EntryStep::Full);
        } else {
            return Ok(EntryStep::Cold);
        };
        let problem = match found {
            Found::Whole => None,
            Found::Damaged(problem) => Some(problem),
            Found::Missing => Some(RecordError::TooShort { available: 0 }),
        };
        if let Some(problem) = problem {
            out.truncate(before);
            return self.unreadable(request, state, (at, entry), &problem);
        }
        let Ok(record) = Record::decode(&out[before..]) else {
            out.truncate(before);
            return self.wrong_entry(request, reach, pulled, at);
        };
        let from_disk = reach == Reach::Disk || self.pieces.used;
        if !is_entry_of(&record, entry, request, at, from_disk) {
            out.truncate(before);
            return self.wrong_entry(request, reach, pulled, at);
        }
        if !is_wanted(request, &record, &mut state.work) {
            out.truncate(before);
            return Ok(EntryStep::Next);
        }
        pulled.count += 1;
        pulled.bytes += size;
        pulled.status = PullStatus::Found;
        Ok(EntryStep::Next)
    }

    /// The record of the entry at `at` cannot be read: it expired meanwhile, its body is damaged,
    /// or the entry is wrong.
    fn unreadable(
        &self,
        request: &PullRequest<'_>,
        state: &mut PullState,
        (at, entry): (i64, ConsumeEntry),
        problem: &RecordError,
    ) -> Result<EntryStep, ReadError> {
        let PullState { pulled, reach, .. } = state;
        // Retention may have come in between, and shortens what it removed.
        if self.is_removed(request.queue, at, entry)? {
            note_removed(pulled);
            return Ok(EntryStep::Next);
        }
        if !is_body_damage(problem) {
            return self.wrong_entry(request, *reach, pulled, at);
        }
        pulled.damaged += 1;
        note_removed(pulled);
        self.report_damage(entry.physical_offset, problem);
        Ok(EntryStep::Next)
    }

    /// Whether the record of the entry at `at` was deleted with its log file. An entry that says so
    /// alone, among others whose records are there, is wrong.
    fn is_removed(&self, queue: &Queue, at: i64, entry: ConsumeEntry) -> Result<bool, ReadError> {
        let log_min = self.shared.min_log_offset.load(Ordering::SeqCst);
        if entry.physical_offset >= log_min {
            return Ok(false);
        }
        if at < queue.min_offset() {
            return Ok(true);
        }
        for neighbour in [at - 1, at + 1] {
            let entry = queue.entry(neighbour)?;
            if entry.is_some_and(|entry| entry.physical_offset < log_min) {
                return Ok(true);
            }
        }
        Ok(queue.min_offset() > at)
    }

    /// The entry at `at` is wrong: the pull ends before it until it is mended, or steps over it if
    /// the log has no record for it.
    fn wrong_entry(
        &self,
        request: &PullRequest<'_>,
        reach: Reach,
        pulled: &mut Pulled,
        at: i64,
    ) -> Result<EntryStep, ReadError> {
        if pulled.count > 0 {
            return Ok(EntryStep::Full);
        }
        if reach == Reach::Memory {
            return Ok(EntryStep::Cold);
        }
        let end = self.tell_wrong(request.queue, at)?;
        let lost = at.abs_diff(end);
        self.shared.damaged_reads.fetch_add(lost, Ordering::Relaxed);
        let lost = u32::try_from(lost).unwrap_or(u32::MAX);
        pulled.damaged = pulled.damaged.saturating_add(lost);
        note_removed(pulled);
        Ok(EntryStep::Lost(end))
    }

    /// Has a wrong entry made again: an error, unless the log is known to have no record for it.
    /// Then the next queue offset that may have one.
    fn tell_wrong(&self, queue: &Queue, at: i64) -> Result<i64, ReadError> {
        match ask(&self.shared, queue, at) {
            Hope::Mending => Err(ReadError::Mending {
                topic: queue.topic.to_string(),
                queue_id: queue.queue_id,
                offset: at,
            }),
            Hope::Lost { end } => Ok(end),
        }
    }

    /// Appends the record at a queue offset to `out`. False if there is none and will be none: it
    /// expired, or the log has lost it. May wait for the disk.
    pub fn queued_record(
        &mut self,
        queue: &Queue,
        at: i64,
        out: &mut Vec<u8>,
    ) -> Result<bool, ReadError> {
        let before = out.len();
        let mut entries = Vec::with_capacity(1);
        queue.entries(at, 1, &mut entries)?;
        let Some(entry) = entries.first().filter(|entry| !entry.is_pre_blank()) else {
            return Ok(false);
        };
        let place = entry.physical_offset;
        if *entry != ConsumeEntry::DAMAGED && self.is_removed(queue, at, *entry)? {
            return Ok(false);
        }
        let sound = *entry != ConsumeEntry::DAMAGED
            && self.record(place, out)?
            && Record::decode(&out[before..])
                .is_ok_and(|record| belongs(&record, place, queue, at));
        if !sound {
            out.truncate(before);
            let removed = *entry != ConsumeEntry::DAMAGED && self.is_removed(queue, at, *entry)?;
            if !removed {
                self.tell_wrong(queue, at)?;
                self.shared.damaged_reads.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(sound)
    }

    /// Appends the record's bytes from its file, checked.
    pub(super) fn read_cold(
        &mut self,
        offset: u64,
        size: usize,
        ahead: usize,
        out: &mut Vec<u8>,
    ) -> Result<Found, ReadError> {
        if ahead >= SCAN_BYTES && size as u64 <= OVERLAP {
            let before = out.len();
            self.read_piece(offset)?;
            if self.copy_piece(offset, size, out) {
                return Ok(check_copied(&out[before..], offset, true));
            }
        }
        let limits = self.window_limits();
        if size > SCAN_BYTES {
            // Much memory is asked for only where the record itself says so.
            let Some(head) = self.window.bytes(offset, SIZE_HEAD, limits, LOOK_BYTES)? else {
                return Ok(Found::Missing);
            };
            let recorded = head.first_chunk().copied().map_or(0, i32::from_be_bytes);
            if usize::try_from(recorded) != Ok(size) || !can_have_size(head, size) {
                return Ok(Found::Damaged(RecordError::Size {
                    size: recorded,
                    available: size,
                }));
            }
        }
        let Some(bytes) = self.window.bytes(offset, size, limits, ahead)? else {
            return Ok(Found::Missing);
        };
        let found = check_copied(bytes, offset, true);
        if matches!(found, Found::Whole) {
            out.extend_from_slice(bytes);
        }
        Ok(found)
    }

    pub(super) fn report_damage(&self, offset: u64, problem: &RecordError) {
        self.shared.damaged_reads.fetch_add(1, Ordering::Relaxed);
        let file = self.window.path_of(offset);
        tracing::error!(offset, file = %file.display(), %problem, "damaged record is not served");
    }
}

/// Whether the filter wants the record; counts what it does to find out.
fn is_wanted(request: &PullRequest<'_>, record: &Record<'_>, work: &mut usize) -> bool {
    !request.filter.needs_record() || request.filter.matches_record(record, work)
}

/// Whether an entry says of a record what the record says of itself. The tags are compared where
/// the disk was read anyway.
fn is_entry_of(
    record: &Record<'_>,
    entry: ConsumeEntry,
    request: &PullRequest<'_>,
    at: i64,
    from_disk: bool,
) -> bool {
    if !belongs(record, entry.physical_offset, request.queue, at) {
        return false;
    }
    // The delays may have changed since, and addresses of extension units are no hashes.
    let is_hash = !is_address(entry.tags_code) && record.topic() != SCHEDULE_TOPIC;
    !from_disk || !is_hash || entry.tags_code == entry_tags_code(record, &[])
}

/// What a record's bytes turned out to be.
pub(super) enum Found {
    Whole,
    Missing,
    Damaged(RecordError),
}

/// Whether a pull with messages in it has no room for another of `size` bytes.
fn is_full(request: &PullRequest<'_>, pulled: &Pulled, size: usize, in_memory: bool) -> bool {
    let limits = request.limits;
    let (bytes, count) = if in_memory {
        (limits.max_bytes_in_memory, limits.max_count_in_memory)
    } else {
        (limits.max_bytes_on_disk, limits.max_count_on_disk)
    };
    let total = pulled.bytes.saturating_add(size);
    i64::from(pulled.count) + 1 > i64::from(request.max_count)
        || total > limits.max_bytes
        || total > bytes
        || pulled.count >= count
}

/// An entry without a readable record shows only while nothing was found.
fn note_removed(pulled: &mut Pulled) {
    if pulled.count == 0 {
        pulled.status = PullStatus::MessageWasRemoving;
    }
}

/// Whether bytes are the whole record of this place; `with_body` compares the body's checksum too.
pub(super) fn check_copied(bytes: &[u8], offset: u64, with_body: bool) -> Found {
    let checked = Record::decode(bytes).and_then(|record| {
        record.check_place(offset)?;
        if record.size() as usize != bytes.len() {
            let (sum, size) = (record.size() as usize, bytes.len());
            return Err(RecordError::Sum { sum, size });
        }
        if with_body {
            record.check_body()?;
            record.check_record_crc()?;
        }
        Ok(())
    });
    checked.map_or_else(Found::Damaged, |()| Found::Whole)
}

pub(super) fn is_body_damage(problem: &RecordError) -> bool {
    matches!(
        problem,
        RecordError::BodyCrc { .. } | RecordError::RecordCrc { .. }
    )
}
