//! Queues with extension files: entries are put with their units, and looked at through them.

use super::Queue;
use crate::consume_queue::{ConsumeQueueError, Placed, UnitLook, UnitNote};
use crate::format::consume_entry::ConsumeEntry;
use crate::format::extension_unit::is_address;
use crate::mapping::MappingError;

impl Queue {
    /// As [`Queue::append`], but blank entries fill a gap before `offset`, and with a `note` the
    /// entry gets a unit in the extension files.
    pub(crate) fn append_in_place(
        &self,
        offset: i64,
        entry: ConsumeEntry,
        note: Option<&UnitNote>,
    ) -> Result<Placed, ConsumeQueueError> {
        let (Some(extension), Some(note)) = (&self.extension, note) else {
            return self.files.append_in_place(offset, entry);
        };
        if entry.end() <= self.log_end() {
            return Ok(Placed::Duplicate);
        }
        let last = || self.last_address();
        let Some(put) = extension.put(entry.tags_code, note, last)? else {
            return self.files.append_in_place(offset, entry);
        };
        let tags_code = put.address;
        let placed = self
            .files
            .append_in_place(offset, ConsumeEntry { tags_code, ..entry })?;
        if placed != Placed::Duplicate {
            extension.advance(put);
        }
        Ok(placed)
    }

    /// Sees to it that `entry` stands at `offset`, whatever stood there, itself or through a unit;
    /// whether that changed anything: recovery. At the queue's end it gets a unit if there is a
    /// `note`.
    pub(crate) fn put_at(
        &self,
        offset: i64,
        entry: ConsumeEntry,
        note: Option<&UnitNote>,
    ) -> Result<bool, ConsumeQueueError> {
        let Some(extension) = &self.extension else {
            return self.files.put_at(offset, entry);
        };
        if offset < self.max_offset() {
            if self.stands(offset, entry, note)? {
                return Ok(false);
            }
            extension.forget_end();
            return self.files.put_at(offset, entry);
        }
        let put = match note {
            Some(note) => extension.put(entry.tags_code, note, || self.last_address())?,
            None => None,
        };
        let tags_code = put.map_or(entry.tags_code, |put| put.address);
        let changed = self
            .files
            .put_at(offset, ConsumeEntry { tags_code, ..entry })?;
        if let Some(put) = put {
            extension.advance(put);
        }
        Ok(changed)
    }

    /// Puts `entry` in place of what stands at `offset`; whether that changed anything.
    pub(crate) fn replace(
        &self,
        offset: i64,
        entry: ConsumeEntry,
    ) -> Result<bool, ConsumeQueueError> {
        if self.extension.is_some() && self.stands(offset, entry, None)? {
            return Ok(false);
        }
        let changed = self.files.replace(offset, entry)?;
        if let Some(extension) = self.extension.as_ref().filter(|_| changed) {
            extension.forget_end();
        }
        Ok(changed)
    }

    /// Whether the entry at `offset` is this one, with its tag code in a unit.
    fn stands(
        &self,
        offset: i64,
        entry: ConsumeEntry,
        note: Option<&UnitNote>,
    ) -> Result<bool, MappingError> {
        let Some(found) = self.files.raw_entry(offset)? else {
            return Ok(false);
        };
        let same = found.physical_offset == entry.physical_offset && found.size == entry.size;
        if !same || !is_address(found.tags_code) {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        Ok(match self.unit(found.tags_code, false, &mut bytes) {
            UnitLook::Found(unit) => {
                unit.tags_code == entry.tags_code
                    && note.is_none_or(|note| note.store_timestamp == unit.store_timestamp)
            }
            UnitLook::Missing | UnitLook::NotMapped => false,
        })
    }

    /// The unit that an entry's tag code field names, read into `bytes`; with `mapped_only` only if
    /// that maps no file. Otherwise it may wait for the disk.
    pub fn unit<'a>(
        &self,
        tags_code: i64,
        mapped_only: bool,
        bytes: &'a mut Vec<u8>,
    ) -> UnitLook<'a> {
        match &self.extension {
            Some(extension) => extension.unit(tags_code, mapped_only, bytes),
            None => UnitLook::Missing,
        }
    }

    /// What an entry's tag code field means: its unit's, where it holds an address; `None` if there
    /// is no such unit. May wait for the disk.
    pub fn tags_code(&self, entry: &ConsumeEntry) -> Option<i64> {
        if !is_address(entry.tags_code) {
            return Some(entry.tags_code);
        }
        match self.unit(entry.tags_code, false, &mut Vec::new()) {
            UnitLook::Found(unit) => Some(unit.tags_code),
            UnitLook::Missing | UnitLook::NotMapped => None,
        }
    }

    /// Waits until every entry appended before is on disk.
    pub fn flush(&self) -> Result<(), ConsumeQueueError> {
        // What entries name is on the disk before they are.
        match &self.extension {
            Some(extension) => extension.flush().and_then(|()| self.files.flush()),
            None => self.files.flush(),
        }
    }

    /// Whether something is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        self.files.is_dirty() || self.extension.as_ref().is_some_and(|one| one.is_dirty())
    }

    /// The address in the last entry that has one.
    fn last_address(&self) -> Result<Option<i64>, MappingError> {
        for offset in (self.first_stored()..self.max_offset()).rev() {
            let entry = self.files.raw_entry(offset)?;
            if let Some(entry) = entry.filter(|entry| is_address(entry.tags_code)) {
                return Ok(Some(entry.tags_code));
            }
        }
        Ok(None)
    }

    /// The queue's end moved, other than by a new entry.
    pub(super) fn forget_extension_end(&self) {
        if let Some(extension) = &self.extension {
            extension.forget_end();
        }
    }

    /// Deletes extension files in front of the queue's first entry.
    pub(super) fn trim_extension(&self) -> Result<(), ConsumeQueueError> {
        let Some(extension) = &self.extension else {
            return Ok(());
        };
        if let Some(first) = self.files.raw_entry(self.min_offset())? {
            extension.delete_before(first.tags_code)?;
        }
        Ok(())
    }
}
