//! Where a queue begins and ends: after a restart, when the log was cut, when it expired.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ConsumeQueue, ConsumeQueueError, ENTRY, Files, STEP, Unsynced, remove};
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::mapped_file::MappedFile;
use crate::mapping::MappingError;

/// Unit in which holes are looked for, in bytes.
const PAGE: u64 = 4096;

/// Bytes behind the end that are made zero when a queue is opened or cut.
const CLEAN_BEHIND: u64 = 64 * 1024;

impl ConsumeQueue {
    /// Removes every entry whose record begins at `log_offset` or behind it.
    pub fn truncate(&self, log_offset: u64) -> Result<(), ConsumeQueueError> {
        let mut unsynced = self.lock();
        let max = self.max_offset();
        let first = self.files.load().first();
        let below =
            |entry: ConsumeEntry| !entry.is_pre_blank() && entry.physical_offset < log_offset;
        let end = self.boundary(first, max, below)?;
        if end == max {
            return Ok(());
        }
        // The first file of a queue whose front expired tells where its offsets go on.
        self.drop_behind(end as u64 * ENTRY, end == first && first > 0)?;
        unsynced.names = true;
        self.clean_behind(end, max, &mut unsynced)?;
        self.set_end(end)?;
        let files_left = !self.files.load().list.is_empty();
        self.min.store(
            if files_left {
                self.min_offset().min(end)
            } else {
                0
            },
            Ordering::Release,
        );
        Ok(())
    }

    /// The offset after the last entry below `max` whose record begins before `log_offset`. Near
    /// the end it looks at few entries, and retention takes none of those away meanwhile.
    pub fn end_below(&self, max: i64, log_offset: u64) -> Result<i64, ConsumeQueueError> {
        if self.log_end() <= log_offset {
            return Ok(max);
        }
        let min = self.min_offset().min(max);
        let below =
            |entry: ConsumeEntry| !entry.is_pre_blank() && entry.physical_offset < log_offset;
        let (mut from, mut step) = (max, 64);
        while from > min {
            from = (from - step).max(min);
            step *= 4;
            if self.raw_entry(from)?.is_some_and(below) {
                break;
            }
        }
        self.partition(from, max, below)
    }

    /// Sets the smallest readable offset: the first entry whose record the log, which begins
    /// at `log_min`, still holds; max when there is none.
    pub fn correct_min(&self, log_min: u64) -> Result<(), ConsumeQueueError> {
        // Looked for without the lock: entries below max stay as they are, and the dispatcher,
        // which appends behind it, must not wait until cold pages are read.
        let gone = |entry: ConsumeEntry| !entry.is_pre_blank() && entry.physical_offset < log_min;
        let max = self.max_offset();
        let mut min = self.boundary(self.files.load().first(), max, gone)?;
        while min < max && self.raw_entry(min)?.is_some_and(ConsumeEntry::is_pre_blank) {
            min += 1;
        }
        let writer = self.lock();
        if !writer.closed {
            self.min.store(min, Ordering::Release);
        }
        Ok(())
    }

    /// Deletes files at the front whose last record the log, which begins at `log_min`, no
    /// longer holds; never the last file. Returns how many. [`Self::correct_min`] comes after.
    pub fn delete_before(&self, log_min: u64) -> Result<usize, ConsumeQueueError> {
        let mut deleted = 0;
        loop {
            let files = self.files.load_full();
            let [first, _, ..] = files.list.as_slice() else {
                break;
            };
            let next = files.first() + self.entries_per_file();
            // Looked at, and removed, without the lock, for which the dispatcher would wait.
            if self.keeps_any(files.first()..next, log_min) || !self.leave_first(first, next) {
                break;
            }
            remove(first)?;
            self.lock().names = true;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Takes `first` out of the list, which begins at offset `next` then; `false` if it is not the
    /// first file any more.
    fn leave_first(&self, first: &Arc<MappedFile>, next: i64) -> bool {
        let _writer = self.lock();
        let files = self.files.load_full();
        let [now_first, _, ..] = files.list.as_slice() else {
            return false;
        };
        if !Arc::ptr_eq(now_first, first) {
            return false;
        }
        self.min.fetch_max(next, Ordering::AcqRel);
        let rest = Files {
            base: files.base + self.file_size,
            list: files.list[1..].to_vec(),
        };
        self.files.store(Arc::new(rest));
        true
    }

    /// Whether one of the last two entries of a range names a record that the log still holds:
    /// two, for one may be damaged. Blank entries say nothing.
    fn keeps_any(&self, offsets: std::ops::Range<i64>, log_min: u64) -> bool {
        let is_blank = |entry: &Result<Option<ConsumeEntry>, MappingError>| match entry {
            Ok(Some(entry)) => entry.is_pre_blank(),
            Ok(None) | Err(_) => false,
        };
        let entries = offsets.rev().map(|offset| self.raw_entry(offset));
        let mut last = entries.filter(|entry| !is_blank(entry)).take(2);
        last.any(|entry| match entry {
            Ok(Some(entry)) => entry.physical_offset >= log_min,
            Ok(None) | Err(_) => true,
        })
    }

    /// As [`Self::partition`], but an entry here and there may be damaged: if the neighbours of
    /// what the search found tell another story, all entries are looked at, and the place that
    /// leaves the fewest on the wrong side is it.
    fn boundary(
        &self,
        from: i64,
        to: i64,
        holds: impl Fn(ConsumeEntry) -> bool,
    ) -> Result<i64, ConsumeQueueError> {
        let found = self.partition(from, to, &holds)?;
        let tells = |offset: i64, expected: bool| -> Result<bool, ConsumeQueueError> {
            if !(from..to).contains(&offset) {
                return Ok(true);
            }
            let entry = self.raw_entry(offset)?;
            let silent = entry.is_some_and(ConsumeEntry::is_pre_blank);
            Ok(silent || entry.is_some_and(&holds) == expected)
        };
        let below = tells(found - 1, true)? && tells(found - 2, true)?;
        if below && tells(found, false)? && tells(found + 1, false)? {
            return Ok(found);
        }
        let (mut best, mut best_score, mut score) = (from, 0i64, 0i64);
        for offset in from..to {
            let entry = self.raw_entry(offset)?;
            if entry.is_some_and(ConsumeEntry::is_pre_blank) {
                continue;
            }
            score += if entry.is_some_and(&holds) { 1 } else { -1 };
            if score > best_score {
                (best, best_score) = (offset + 1, score);
            }
        }
        Ok(best)
    }

    /// The first offset of [from, to) for whose entry `holds` is false; `to` when there is none.
    /// Log offsets grow along a queue.
    fn partition(
        &self,
        from: i64,
        to: i64,
        holds: impl Fn(ConsumeEntry) -> bool,
    ) -> Result<i64, ConsumeQueueError> {
        let (mut low, mut high) = (from.min(to), to);
        while low < high {
            let middle = low + (high - low) / 2;
            // A blank entry says nothing: the next real one decides.
            let mut decides = middle;
            let mut entry = self.raw_entry(decides)?;
            while entry.is_some_and(ConsumeEntry::is_pre_blank) && decides + 1 < high {
                decides += 1;
                entry = self.raw_entry(decides)?;
            }
            if entry.is_some_and(&holds) {
                low = decides + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Finds the end: the first entry that is none, looking from the last files on.
    pub(super) fn find_end(&self) -> Result<(), ConsumeQueueError> {
        let files = self.files.load_full();
        if files.list.is_empty() {
            return Ok(());
        }
        let mut start = files.list.len().saturating_sub(3);
        // A crash can leave files without an entry in front of others.
        while start > 0 && valid_prefix(&files.list[start], ENTRY)? == 0 {
            start -= 1;
        }
        let mut end = files.base + start as u64 * self.file_size;
        for file in &files.list[start..] {
            let valid = valid_prefix(file, self.file_size)?;
            end += valid;
            if valid < self.file_size {
                break;
            }
        }
        self.drop_behind(end, true)?;
        let end = (end / ENTRY) as i64;
        let mut unsynced = self.lock();
        self.clean_behind(end, end, &mut unsynced)?;
        self.set_end(end)?;
        self.min.store(files.first(), Ordering::Release);
        Ok(())
    }

    /// Deletes the files that begin behind `end`, and the one that begins there unless it is
    /// to be kept: its name tells where the queue goes on.
    pub(super) fn drop_behind(&self, end: u64, keep_next: bool) -> Result<(), ConsumeQueueError> {
        let files = self.files.load_full();
        let used = end.saturating_sub(files.base);
        let keep = used.div_ceil(self.file_size)
            + u64::from(keep_next && used.is_multiple_of(self.file_size));
        let keep = usize::try_from(keep)
            .unwrap_or(usize::MAX)
            .min(files.list.len());
        if keep == files.list.len() {
            return Ok(());
        }
        let list = files.list[..keep].to_vec();
        self.files.store(Arc::new(Files {
            base: files.base,
            list,
        }));
        for file in files.list[keep..].iter().rev() {
            remove(file)?;
        }
        Ok(())
    }

    /// Makes zero what stands between the end and the former end, and a piece behind that.
    pub(super) fn clean_behind(
        &self,
        end: i64,
        former: i64,
        unsynced: &mut Unsynced,
    ) -> Result<(), ConsumeQueueError> {
        let files = self.files.load();
        let position = end as u64 * ENTRY;
        let Some((file, place)) = files.at(position, self.file_size) else {
            return Ok(());
        };
        let to = (place + (former - end) as u64 * ENTRY + CLEAN_BEHIND).min(self.file_size);
        let mut bytes = [0; STEP * ENTRY_SIZE];
        let (mut at, page_end) = (place, (place + 1).next_multiple_of(PAGE));
        while at < to {
            let stop = if at < page_end { page_end.min(to) } else { to };
            let len = (stop - at).min(bytes.len() as u64);
            let part = &mut bytes[..len as usize];
            file.read_at(at, part)?;
            if part.iter().any(|byte| *byte != 0) {
                part.fill(0);
                file.write_at(at, part)?;
                unsynced.add(position + (at - place), len);
            }
            at += len;
            if at == page_end && at < to {
                // Each page of a hole would cost a fault.
                at = file.next_data(at);
            }
        }
        Ok(())
    }

    pub(super) fn set_end(&self, end: i64) -> Result<(), ConsumeQueueError> {
        let first = self.files.load().first();
        let mut log_end = 0;
        for offset in (first..end).rev() {
            match self.raw_entry(offset)? {
                // Blank entries name no record: the one before them tells.
                Some(entry) if entry.is_pre_blank() => {}
                entry => {
                    log_end = entry.map_or(0, ConsumeEntry::end);
                    break;
                }
            }
        }
        self.log_end.store(log_end, Ordering::Release);
        let end = if self.files.load().list.is_empty() {
            0
        } else {
            end
        };
        self.max.store(end, Ordering::Release);
        Ok(())
    }
}

/// Bytes of valid entries at the front of a file.
fn valid_prefix(file: &Arc<MappedFile>, file_size: u64) -> Result<u64, MappingError> {
    let mut bytes = [0; STEP * ENTRY_SIZE];
    let mut at = 0;
    while at < file_size {
        let len = (file_size - at).min(bytes.len() as u64) as usize;
        file.read_at(at, &mut bytes[..len])?;
        for entry in bytes[..len].as_chunks().0 {
            if ConsumeEntry::decode(entry).is_none() {
                return Ok(at);
            }
            at += ENTRY;
        }
    }
    Ok(at)
}
