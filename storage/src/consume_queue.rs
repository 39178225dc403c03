//! The files of one consume queue (docs/format.md, Consume queue).
//!
//! One thread appends; any thread reads meanwhile without a lock. An entry is in the mapping
//! before [`ConsumeQueue::max_offset`] covers it, so a reader that saw the offset sees the entry.
//! Always holds: min ≤ max, and no valid entry stands right behind the last one, so that what a
//! former end left there can never come back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use thiserror::Error;

use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::layout::{self, LayoutError};
use crate::mapped_file::{MapBudget, MappedFile, sync_directory};
use crate::mapping::{Advice, MappingError};

mod repair;

pub use repair::KnownEnd;

/// Bytes of an entry, as the unit of positions.
const ENTRY: u64 = ENTRY_SIZE as u64;
/// Entries that are copied out of a mapping at once.
const STEP: usize = 200;
/// Bytes behind the end that are made zero when a queue is opened or cut.
const CLEAN_BEHIND: u64 = 64 * 1024;
/// The configuration key of the file size.
const SIZE_KEY: &str = "mappedFileSizeConsumeQueue";

/// Why a queue cannot be opened or changed.
#[derive(Debug, Error)]
pub enum ConsumeQueueError {
    /// The directory is not what it must be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file cannot be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A file or directory cannot be deleted or synced.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A queue offset below zero or beyond what file names can hold.
    #[error("queue offset {offset} is impossible")]
    Offset {
        /// The offset.
        offset: i64,
    },
}

/// What became of an entry.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Placed {
    /// It stands at its queue offset.
    Appended,
    /// It was there already.
    Duplicate,
    /// The queue's end was at another offset, and that is where it stands, as in Apache
    /// RocketMQ: the record's own queue offset is not the one it is read at.
    Displaced {
        /// Where it stands.
        at: i64,
    },
}

/// One file of a queue, for searches by time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueueFile {
    /// Queue offset of its first entry.
    pub first: i64,
    /// Queue offset after its last entry in use.
    pub end: i64,
    /// When it was last written, by the file system's clock.
    pub modified: SystemTime,
}

/// The files of one queue.
#[derive(Debug)]
pub struct ConsumeQueue {
    /// `Err` holds the topic that cannot be a directory.
    directory: Result<PathBuf, String>,
    file_size: u64,
    budget: Arc<MapBudget>,
    files: ArcSwap<Files>,
    min: AtomicI64,
    max: AtomicI64,
    /// Log offset after the record of the last entry.
    log_end: AtomicU64,
    writer: Mutex<Unsynced>,
}

#[derive(Debug, Default)]
struct Files {
    /// Position of the first file in the queue.
    base: u64,
    list: Vec<Arc<MappedFile>>,
}

/// What is not on disk yet.
#[derive(Debug, Default)]
struct Unsynced {
    from: u64,
    to: u64,
    names: bool,
    /// The queue was destroyed: nothing is appended any more.
    closed: bool,
}

impl ConsumeQueue {
    /// A queue without a file; its directory appears with its first entry.
    pub fn empty(
        consume_queues: &Path,
        topic: &str,
        queue_id: i32,
        file_size: u64,
        budget: &Arc<MapBudget>,
    ) -> Self {
        assert!(
            file_size > 0 && file_size.is_multiple_of(ENTRY),
            "not a queue's file size"
        );
        let directory = layout::queue_directory(consume_queues, topic, queue_id);
        Self {
            directory: directory.map_err(|_| topic.to_owned()),
            file_size,
            budget: Arc::clone(budget),
            files: ArcSwap::default(),
            min: AtomicI64::new(0),
            max: AtomicI64::new(0),
            log_end: AtomicU64::new(0),
            writer: Mutex::default(),
        }
    }

    /// Opens the queue's files and finds its end. An empty last file is deleted, and so is
    /// every file behind the end.
    pub fn open(
        consume_queues: &Path,
        topic: &str,
        queue_id: i32,
        file_size: u64,
        budget: &Arc<MapBudget>,
    ) -> Result<Self, ConsumeQueueError> {
        let queue = Self::empty(consume_queues, topic, queue_id, file_size, budget);
        let found = layout::list_fixed_files(queue.directory()?, file_size, SIZE_KEY)?;
        if let Some(path) = found.empty_last {
            std::fs::remove_file(&path)
                .map_err(|source| ConsumeQueueError::File { path, source })?;
        }
        let base = found.files.first().map_or(0, |file| file.base);
        let open = |file: layout::FixedFile| {
            MappedFile::existing(file.path, file_size, Advice::Random, budget)
        };
        let list = found.files.into_iter().map(open).collect();
        queue.files.store(Arc::new(Files { base, list }));
        queue.find_end()?;
        Ok(queue)
    }

    /// The smallest queue offset that may be read.
    pub fn min_offset(&self) -> i64 {
        self.min.load(Ordering::Acquire)
    }

    /// The queue offset after the last entry.
    pub fn max_offset(&self) -> i64 {
        self.max.load(Ordering::Acquire)
    }

    /// Log offset after the record of the last entry; 0 in a queue without entries.
    pub fn log_end(&self) -> u64 {
        self.log_end.load(Ordering::Acquire)
    }

    /// Entries of a file.
    pub fn entries_per_file(&self) -> i64 {
        (self.file_size / ENTRY) as i64
    }

    /// Queue offset of the first entry in the file after the one that holds `offset`.
    pub fn next_file_offset(&self, offset: i64) -> i64 {
        let entries = self.entries_per_file();
        offset - offset.rem_euclid(entries) + entries
    }

    /// The entry at `offset`; `None` outside of min and max.
    pub fn entry(&self, offset: i64) -> Result<Option<ConsumeEntry>, MappingError> {
        if offset < self.min_offset() || offset >= self.max_offset() {
            return Ok(None);
        }
        self.raw_entry(offset)
            .map(|entry| entry.filter(|entry| !entry.is_pre_blank()))
    }

    /// Appends the entries from `from` on to `out`: at most `max`, none beyond the end of the
    /// file that holds `from`, and none behind one that cannot be read. Blank ones, which fill
    /// gaps, are among them.
    pub fn entries(
        &self,
        from: i64,
        max: usize,
        out: &mut Vec<ConsumeEntry>,
    ) -> Result<(), MappingError> {
        let end = self.max_offset().min(self.next_file_offset(from));
        if from < self.min_offset() || from >= end {
            return Ok(());
        }
        let files = self.files.load();
        let Some((file, mut position)) = files.at(from as u64 * ENTRY, self.file_size) else {
            return Ok(());
        };
        let mut wanted = max.min((end - from) as usize);
        let mut bytes = [0; STEP * ENTRY_SIZE];
        while wanted > 0 {
            let step = wanted.min(STEP);
            let bytes = &mut bytes[..step * ENTRY_SIZE];
            file.read_at(position, bytes)?;
            for entry in bytes.as_chunks().0 {
                match ConsumeEntry::decode(entry) {
                    Some(entry) => out.push(entry),
                    None => return Ok(()),
                }
            }
            position += bytes.len() as u64;
            wanted -= step;
        }
        Ok(())
    }

    /// Appends the entry of the record whose queue offset is `offset`. After an error nothing
    /// has changed for readers, and the same call may be repeated.
    pub fn append(&self, offset: i64, entry: ConsumeEntry) -> Result<Placed, ConsumeQueueError> {
        let mut unsynced = self.lock();
        if unsynced.closed || entry.end() <= self.log_end() {
            return Ok(Placed::Duplicate);
        }
        let expected = u64::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_mul(ENTRY))
            .filter(|position| *position <= i64::MAX as u64 - self.file_size)
            .ok_or(ConsumeQueueError::Offset { offset })?;
        if self.files.load().list.is_empty() {
            self.begin_at(expected, &mut unsynced)?;
        }
        let max = self.max_offset();
        let position = max as u64 * ENTRY;
        if offset != 0 && expected < position {
            return Ok(Placed::Duplicate);
        }
        let file = self.file_for_append(position, &mut unsynced)?;
        let place = position % self.file_size;
        clear_entry(&file, place + ENTRY)?;
        file.write_at(place, &entry.encode())?;
        unsynced.add(position, ENTRY);
        self.log_end.store(entry.end(), Ordering::Release);
        self.max.store(max + 1, Ordering::Release);
        Ok(if offset == max {
            Placed::Appended
        } else {
            Placed::Displaced { at: max }
        })
    }

    /// Removes every entry whose record begins at `log_offset` or behind it.
    pub fn truncate(&self, log_offset: u64) -> Result<(), ConsumeQueueError> {
        let mut unsynced = self.lock();
        let max = self.max_offset();
        let first = self.files.load().first();
        let below =
            |entry: ConsumeEntry| !entry.is_pre_blank() && entry.physical_offset < log_offset;
        let end = self.partition(first, max, below)?;
        if end == max {
            return Ok(());
        }
        self.drop_behind(end as u64 * ENTRY, false)?;
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

    /// Sets the smallest readable offset: the first entry whose record the log, which begins
    /// at `log_min`, still holds; max when there is none.
    pub fn correct_min(&self, log_min: u64) -> Result<(), ConsumeQueueError> {
        let _writer = self.lock();
        let gone = |entry: ConsumeEntry| !entry.is_pre_blank() && entry.physical_offset < log_min;
        let max = self.max_offset();
        let mut min = self.partition(self.files.load().first(), max, gone)?;
        while min < max && self.raw_entry(min)?.is_some_and(ConsumeEntry::is_pre_blank) {
            min += 1;
        }
        self.min.store(min, Ordering::Release);
        Ok(())
    }

    /// Deletes files at the front whose last record the log, which begins at `log_min`, no
    /// longer holds; never the last file. Returns how many. [`Self::correct_min`] comes after.
    pub fn delete_before(&self, log_min: u64) -> Result<usize, ConsumeQueueError> {
        let mut unsynced = self.lock();
        let mut deleted = 0;
        loop {
            let files = self.files.load_full();
            let [first, _, ..] = files.list.as_slice() else {
                break;
            };
            let next = files.first() + self.entries_per_file();
            if self
                .raw_entry(next - 1)?
                .is_none_or(|last| last.physical_offset >= log_min)
            {
                break;
            }
            self.min.fetch_max(next, Ordering::AcqRel);
            let rest = Files {
                base: files.base + self.file_size,
                list: files.list[1..].to_vec(),
            };
            self.files.store(Arc::new(rest));
            remove(first)?;
            unsynced.names = true;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Whether something is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        let unsynced = self.lock();
        unsynced.names || unsynced.from < unsynced.to
    }

    /// Waits until every entry appended before is on disk. After an error everything counts
    /// as not synced.
    pub fn flush(&self) -> Result<(), ConsumeQueueError> {
        let todo = {
            let mut unsynced = self.lock();
            let closed = unsynced.closed;
            std::mem::replace(
                &mut *unsynced,
                Unsynced {
                    closed,
                    ..Unsynced::default()
                },
            )
        };
        let flushed = self.flush_range(&todo);
        if flushed.is_err() {
            let mut unsynced = self.lock();
            unsynced.names |= todo.names;
            unsynced.add(todo.from, todo.to - todo.from);
        }
        flushed
    }

    /// The queue's files with their times, in order.
    pub fn queue_files(&self) -> Result<Vec<QueueFile>, ConsumeQueueError> {
        let (files, max) = (self.files.load(), self.max_offset());
        let mut first = files.first();
        let mut list = Vec::with_capacity(files.list.len());
        for file in &files.list {
            let modified = file
                .modified()
                .map_err(|source| failed(file.path(), source))?;
            let end = (first + self.entries_per_file()).min(max).max(first);
            list.push(QueueFile {
                first,
                end,
                modified,
            });
            first += self.entries_per_file();
        }
        Ok(list)
    }

    /// Deletes all files and the directory. The queue is empty afterwards and stays so: later
    /// entries count as duplicates.
    pub fn destroy(&self) -> Result<(), ConsumeQueueError> {
        let mut unsynced = self.lock();
        *unsynced = Unsynced {
            closed: true,
            ..Unsynced::default()
        };
        self.min.store(0, Ordering::Release);
        self.max.store(0, Ordering::Release);
        self.log_end.store(0, Ordering::Release);
        for file in &self.files.swap(Arc::default()).list {
            remove(file)?;
        }
        let directory = self.directory()?;
        match std::fs::remove_dir(directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(failed(directory, source))
            }
            _ => Ok(()),
        }
    }

    fn directory(&self) -> Result<&Path, LayoutError> {
        match &self.directory {
            Ok(path) => Ok(path),
            Err(topic) => Err(LayoutError::Topic {
                topic: topic.clone(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Unsynced> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry at `offset` whatever min and max say; `None` where there is none.
    fn raw_entry(&self, offset: i64) -> Result<Option<ConsumeEntry>, MappingError> {
        let files = self.files.load();
        let position = u64::try_from(offset)
            .unwrap_or(u64::MAX)
            .saturating_mul(ENTRY);
        let Some((file, place)) = files.at(position, self.file_size) else {
            return Ok(None);
        };
        let mut bytes = [0; ENTRY_SIZE];
        file.read_at(place, &mut bytes)?;
        Ok(ConsumeEntry::decode(&bytes))
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

    /// Makes the first file of an empty queue whose first entry is to stand at `position`.
    fn begin_at(&self, position: u64, unsynced: &mut Unsynced) -> Result<(), ConsumeQueueError> {
        let base = position - position % self.file_size;
        let file = self.create(base, unsynced)?;
        let blank = ConsumeEntry::PRE_BLANK.encode();
        for place in (0..position - base).step_by(ENTRY_SIZE) {
            if let Err(error) = file.write_at(place, &blank) {
                remove(&file)?;
                return Err(error.into());
            }
        }
        unsynced.add(base, position - base);
        let offset = (position / ENTRY) as i64;
        // Readers compare with min first, so max moves last.
        self.min.store(offset, Ordering::Release);
        self.files.store(Arc::new(Files {
            base,
            list: vec![file],
        }));
        self.max.store(offset, Ordering::Release);
        Ok(())
    }

    fn file_for_append(
        &self,
        position: u64,
        unsynced: &mut Unsynced,
    ) -> Result<Arc<MappedFile>, ConsumeQueueError> {
        let files = self.files.load();
        if let Some((file, _)) = files.at(position, self.file_size) {
            return Ok(Arc::clone(file));
        }
        let file = self.create(position, unsynced)?;
        let mut list = files.list.clone();
        list.push(Arc::clone(&file));
        self.files.store(Arc::new(Files {
            base: files.base,
            list,
        }));
        Ok(file)
    }

    fn create(
        &self,
        base: u64,
        unsynced: &mut Unsynced,
    ) -> Result<Arc<MappedFile>, ConsumeQueueError> {
        let path = self.directory()?.join(layout::file_name(base));
        let file = MappedFile::create(path, self.file_size, Advice::Random, &self.budget)?;
        unsynced.names = true;
        Ok(file)
    }

    /// Finds the end: the first entry that is none, looking from the last files on.
    fn find_end(&self) -> Result<(), ConsumeQueueError> {
        let files = self.files.load_full();
        if files.list.is_empty() {
            return Ok(());
        }
        let start = files.list.len().saturating_sub(3);
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
    fn drop_behind(&self, end: u64, keep_next: bool) -> Result<(), ConsumeQueueError> {
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
    fn clean_behind(
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
        let mut at = place;
        while at < to {
            let len = (to - at).min(bytes.len() as u64);
            let part = &mut bytes[..len as usize];
            file.read_at(at, part)?;
            if part.iter().any(|byte| *byte != 0) {
                part.fill(0);
                file.write_at(at, part)?;
                unsynced.add(position + (at - place), len);
            }
            at += len;
        }
        Ok(())
    }

    fn set_end(&self, end: i64) -> Result<(), ConsumeQueueError> {
        let last = if end > self.files.load().first() {
            self.raw_entry(end - 1)?
        } else {
            None
        };
        let log_end = last
            .filter(|last| !last.is_pre_blank())
            .map_or(0, ConsumeEntry::end);
        self.log_end.store(log_end, Ordering::Release);
        let end = if self.files.load().list.is_empty() {
            0
        } else {
            end
        };
        self.max.store(end, Ordering::Release);
        Ok(())
    }

    fn flush_range(&self, todo: &Unsynced) -> Result<(), ConsumeQueueError> {
        let files = self.files.load();
        let mut position = todo.from.max(files.base);
        while position < todo.to {
            let Some((file, place)) = files.at(position, self.file_size) else {
                break;
            };
            let len = (todo.to - position).min(self.file_size - place);
            file.sync(place, len)?;
            position += len;
        }
        if todo.names {
            let directory = self.directory()?;
            // The topic's directory and the one of all queues may be new as well.
            for path in directory.ancestors().take(3) {
                match sync_directory(path) {
                    Err(source) if source.kind() != io::ErrorKind::NotFound => {
                        return Err(failed(path, source));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Files {
    /// The file that holds a position of the queue, and the place in it.
    fn at(&self, position: u64, file_size: u64) -> Option<(&Arc<MappedFile>, u64)> {
        let from_base = position.checked_sub(self.base)?;
        let index = usize::try_from(from_base / file_size).ok()?;
        Some((self.list.get(index)?, from_base % file_size))
    }

    fn first(&self) -> i64 {
        (self.base / ENTRY) as i64
    }
}

impl Unsynced {
    fn add(&mut self, position: u64, len: u64) {
        if len == 0 {
            return;
        }
        let empty = self.from >= self.to;
        self.from = if empty {
            position
        } else {
            self.from.min(position)
        };
        self.to = if empty {
            position + len
        } else {
            self.to.max(position + len)
        };
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

/// Makes sure that no valid entry stands at `place`, unless that is the file's end.
fn clear_entry(file: &Arc<MappedFile>, place: u64) -> Result<(), MappingError> {
    if place >= file.size() {
        return Ok(());
    }
    let mut bytes = [0; ENTRY_SIZE];
    file.read_at(place, &mut bytes)?;
    if ConsumeEntry::decode(&bytes).is_some() {
        file.write_at(place, &[0; ENTRY_SIZE])?;
    }
    Ok(())
}

fn remove(file: &MappedFile) -> Result<(), ConsumeQueueError> {
    file.remove().map_err(|source| failed(file.path(), source))
}

fn failed(path: &Path, source: io::Error) -> ConsumeQueueError {
    ConsumeQueueError::File {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests;
