//! The files of one consume queue (docs/format.md, Consume queue entry).
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
use crate::mapped_file::{MapBudget, MappedFile};
use crate::mapping::{Advice, MappingError};
use crate::medium::{self, sync_directory};

mod repair;

pub use repair::KnownEnd;

mod ends;
mod extension;
mod recent;
mod rewrite;
mod way;

pub use extension::UnitLook;
pub(crate) use extension::{Extension, Extensions, UnitNote};
use recent::Recent;

/// Bytes of an entry, as the unit of positions.
const ENTRY: u64 = ENTRY_SIZE as u64;
/// Entries that are copied out of a mapping at once.
const STEP: usize = 200;
/// The configuration key of the file size.
pub(crate) const SIZE_KEY: &str = "mappedFileSizeConsumeQueue";

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
    recent: Recent,
    writer: Mutex<Unsynced>,
    /// See [`Self::seen_end`].
    seen_end: u64,
}

#[derive(Debug, Default)]
struct Files {
    /// Position of the first file in the queue.
    base: u64,
    list: Vec<Arc<MappedFile>>,
}

/// What is not on disk yet.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
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
            recent: Recent::default(),
            writer: Mutex::default(),
            seen_end: 0,
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
        let mut queue = Self::empty(consume_queues, topic, queue_id, file_size, budget);
        let found = layout::list_fixed_files(queue.directory()?, file_size, SIZE_KEY)?;
        if let Some(path) = found.empty_last {
            medium::remove_file(&path)
                .map_err(|source| ConsumeQueueError::File { path, source })?;
        }
        let base = found.files.first().map_or(0, |file| file.base);
        let open = |file: layout::FixedFile| {
            MappedFile::existing(file.path, file_size, Advice::Random, budget)
        };
        let list = found.files.into_iter().map(open).collect();
        queue.files.store(Arc::new(Files { base, list }));
        queue.find_end()?;
        queue.seen_end = queue.log_end();
        Ok(queue)
    }

    /// The smallest queue offset that may be read.
    pub fn min_offset(&self) -> i64 {
        self.min.load(Ordering::Acquire)
    }

    /// Queue offset of the first entry that the files have room for.
    pub(crate) fn first_stored(&self) -> i64 {
        self.files.load().first()
    }

    /// The queue offset after the last entry.
    pub fn max_offset(&self) -> i64 {
        self.max.load(Ordering::Acquire)
    }

    /// Log offset after the record of the last entry; 0 in a queue without entries.
    pub fn log_end(&self) -> u64 {
        self.log_end.load(Ordering::Acquire)
    }

    /// Log offset after the last record of which the files had an entry when they were opened,
    /// before what stood behind the queue's end was removed.
    pub(crate) fn seen_end(&self) -> u64 {
        self.seen_end.max(self.log_end())
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
    /// file that holds `from`. Blank and damaged ones are among them.
    pub fn entries(
        &self,
        from: i64,
        max: usize,
        out: &mut Vec<ConsumeEntry>,
    ) -> Result<(), MappingError> {
        self.entries_by(from, max, out, |file, position, bytes| {
            file.read_at(position, bytes).map(|()| true)
        })
        .map(|_| ())
    }

    /// As [`Self::entries`], but false, and nothing read, where that would map a file.
    pub fn mapped_entries(
        &self,
        from: i64,
        max: usize,
        out: &mut Vec<ConsumeEntry>,
    ) -> Result<bool, MappingError> {
        self.entries_by(from, max, out, MappedFile::read_if_mapped)
    }

    fn entries_by(
        &self,
        from: i64,
        max: usize,
        out: &mut Vec<ConsumeEntry>,
        read: impl Fn(&Arc<MappedFile>, u64, &mut [u8]) -> Result<bool, MappingError>,
    ) -> Result<bool, MappingError> {
        let end = self.max_offset().min(self.next_file_offset(from));
        if from < self.min_offset() || from >= end {
            return Ok(true);
        }
        let files = self.files.load();
        let Some((file, mut position)) = files.at(from as u64 * ENTRY, self.file_size) else {
            return Ok(true);
        };
        let mut wanted = max.min((end - from) as usize);
        let mut bytes = [0; STEP * ENTRY_SIZE];
        while wanted > 0 {
            let step = wanted.min(STEP);
            let bytes = &mut bytes[..step * ENTRY_SIZE];
            if !read(file, position, bytes)? {
                return Ok(false);
            }
            for entry in bytes.as_chunks().0 {
                out.push(ConsumeEntry::decode(entry).unwrap_or(ConsumeEntry::DAMAGED));
            }
            position += bytes.len() as u64;
            wanted -= step;
        }
        Ok(true)
    }

    /// Stores an entry and sees to it that no entry stands behind it: what was there before would
    /// be taken for part of the queue at the next start.
    fn store_entry(
        &self,
        file: &Arc<MappedFile>,
        place: u64,
        entry: &[u8; ENTRY_SIZE],
    ) -> Result<(), ConsumeQueueError> {
        let behind = (place + 2 * ENTRY).min(self.file_size);
        let mut both = [0; 2 * ENTRY_SIZE];
        both[..ENTRY_SIZE].copy_from_slice(entry);
        if file.write_if_unmapped(place, &both[..(behind - place) as usize])? {
            return Ok(());
        }
        file.reserve(place, (behind - place) as usize)?;
        clear_entry(file, place + ENTRY)?;
        file.write_at(place, entry)?;
        Ok(())
    }

    /// Appends the entry of the record whose queue offset is `offset`. After an error nothing
    /// has changed for readers, and the same call may be repeated.
    pub fn append(&self, offset: i64, entry: ConsumeEntry) -> Result<Placed, ConsumeQueueError> {
        let mut unsynced = self.lock();
        if unsynced.closed || entry.end() <= self.log_end() {
            return Ok(Placed::Duplicate);
        }
        let expected = self.position_of(offset)?;
        if self.is_bare() && (offset > self.max_offset() || self.files.load().list.is_empty()) {
            // Offsets were given out before.
            self.drop_files(&mut unsynced)?;
            self.begin_at(expected, &mut unsynced)?;
        }
        let max = self.max_offset();
        let position = max as u64 * ENTRY;
        if offset != 0 && expected < position {
            return Ok(Placed::Duplicate);
        }
        let file = self.file_for_append(position, &mut unsynced)?;
        let place = position % self.file_size;
        self.store_entry(&file, place, &entry.encode())?;
        unsynced.add(position, ENTRY);
        self.log_end.store(entry.end(), Ordering::Release);
        self.max.store(max + 1, Ordering::Release);
        Ok(if offset == max {
            Placed::Appended
        } else {
            Placed::Displaced { at: max }
        })
    }

    /// Whether something is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        let unsynced = self.lock();
        unsynced.names || unsynced.from < unsynced.to
    }

    /// Waits until every entry appended before is on disk. After an error everything counts
    /// as not synced.
    pub fn flush(&self) -> Result<(), ConsumeQueueError> {
        let todo = self.take_unsynced();
        let flushed = self.flush_range(&todo);
        if flushed.is_err() {
            self.put_back(todo);
        }
        flushed
    }

    /// Takes over what is not on disk yet, for a caller that syncs it with many other queues.
    pub(crate) fn take_unsynced(&self) -> Unsynced {
        let mut unsynced = self.lock();
        let closed = unsynced.closed;
        std::mem::replace(
            &mut *unsynced,
            Unsynced {
                closed,
                ..Unsynced::default()
            },
        )
    }

    /// Gives back what could not be synced.
    pub(crate) fn put_back(&self, todo: Unsynced) {
        let mut unsynced = self.lock();
        unsynced.names |= todo.names;
        unsynced.add(todo.from, todo.to - todo.from);
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

    /// Lets go of all files. The queue is empty afterwards and stays so: later entries count as
    /// duplicates.
    pub fn close(&self) {
        let mut unsynced = self.lock();
        *unsynced = Unsynced {
            closed: true,
            ..Unsynced::default()
        };
        self.min.store(0, Ordering::Release);
        self.max.store(0, Ordering::Release);
        self.log_end.store(0, Ordering::Release);
        self.files.store(Arc::default());
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
    pub(crate) fn raw_entry(&self, offset: i64) -> Result<Option<ConsumeEntry>, MappingError> {
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

    /// Makes the first file of a queue without entries, so that it begins and ends at `offset`;
    /// false if it has entries.
    pub(crate) fn begin_without_entries(&self, offset: i64) -> Result<bool, ConsumeQueueError> {
        let mut unsynced = self.lock();
        let bare = !unsynced.closed && self.is_bare();
        if bare {
            let position = self.position_of(offset)?;
            self.drop_files(&mut unsynced)?;
            self.begin_at(position, &mut unsynced)?;
        }
        Ok(bare)
    }

    /// Whether there is no file, or a crash left one without an entry.
    fn is_bare(&self) -> bool {
        let files = self.files.load();
        files.list.is_empty() || self.max_offset() == files.first()
    }

    /// Position of the entry at `offset`, if a file name can hold it.
    fn position_of(&self, offset: i64) -> Result<u64, ConsumeQueueError> {
        u64::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_mul(ENTRY))
            .filter(|position| *position <= i64::MAX as u64 - self.file_size)
            .ok_or(ConsumeQueueError::Offset { offset })
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
