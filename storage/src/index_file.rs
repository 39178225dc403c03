//! The key index: hash files from which queries by key learn where records are
//! (docs/format.md, Index file).
//!
//! One thread puts, others query meanwhile. An item is complete before its slot names it, and a
//! chain only ever leads to smaller item numbers: a damaged file can give wrong offsets, which
//! readers verify against the record anyway, but never an endless walk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use thiserror::Error;
use tracing::warn;

use crate::format::hash::index_hash;
use crate::format::index_entry::{
    INDEX_HEADER_SIZE, INDEX_ITEM_SIZE, INDEX_SLOT_SIZE, IndexHeader, IndexItem, IndexShape,
};
use crate::format::record::Record;
use crate::mapped_file::{MapBudget, MappedFile};
use crate::mapping::{Advice, MappingError};
use crate::medium::{self, sync_directory};

mod name;
mod query;
mod slots;
mod sound;

pub use query::{IndexHits, KeyQuery};

/// Why the index cannot be opened or changed.
#[derive(Debug, Error)]
pub enum IndexError {
    /// A file cannot be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A file or directory cannot be read, deleted or synced.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file was written with other numbers of slots and items than are configured.
    #[error(
        "{path} has {found} bytes instead of {expected}: \
         maxHashSlotNum and maxIndexNum must be what they were when it was written"
    )]
    Shape {
        /// Which file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
        /// Bytes it must have.
        expected: u64,
    },
}

/// Where the index stood at some moment: what is on disk of it at a resume point.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IndexMark {
    /// Name of the newest file.
    pub name: String,
    /// Its header.
    pub header: IndexHeader,
}

/// All files of the index.
#[derive(Debug)]
pub struct Index {
    directory: PathBuf,
    shape: IndexShape,
    budget: Arc<MapBudget>,
    /// By name, oldest first.
    files: ArcSwap<Vec<Arc<IndexFile>>>,
    /// Held by whoever changes the list of files; true when names are not on disk yet.
    names: Mutex<bool>,
}

#[derive(Debug)]
struct IndexFile {
    name: String,
    shape: IndexShape,
    file: Arc<MappedFile>,
    state: Mutex<FileState>,
}

#[derive(Copy, Clone, Debug)]
struct FileState {
    header: IndexHeader,
    dirty: bool,
}

impl Index {
    /// Opens the index files in `directory`; a missing one is an empty index. Files whose name
    /// is no number are left alone.
    pub fn open(
        directory: impl Into<PathBuf>,
        shape: IndexShape,
        budget: Arc<MapBudget>,
    ) -> Result<Self, IndexError> {
        assert!(
            shape.slots > 0 && shape.items > 1,
            "an index needs slots and items"
        );
        let directory = directory.into();
        let mut files = Vec::new();
        for (name, path) in list(&directory)? {
            let found = path
                .metadata()
                .map_err(|source| failed(&path, source))?
                .len();
            if found == 0 {
                // Created but not sized yet when the machine died.
                medium::remove_file(&path).map_err(|source| failed(&path, source))?;
                continue;
            }
            let expected = shape.file_size();
            if found != expected {
                return Err(IndexError::Shape {
                    path,
                    found,
                    expected,
                });
            }
            let file = MappedFile::existing(path, expected, Advice::Random, &budget);
            files.push(Arc::new(IndexFile::load(name, shape, file)?));
        }
        Ok(Self {
            directory,
            shape,
            budget,
            files: ArcSwap::from_pointee(files),
            names: Mutex::new(false),
        })
    }

    /// Indexes the keys of a record. A record that starts before the last one indexed is
    /// skipped, as in Apache RocketMQ; repeating the last one only repeats its items.
    pub fn put(&self, record: &Record<'_>) -> Result<(), IndexError> {
        let mut file = self.file_for_put()?;
        if record.physical_offset() < file.header().end_offset || !record.is_indexed() {
            return Ok(());
        }
        for key in record.properties().index_keys() {
            let hash = index_hash(record.topic(), key);
            while !file.put(hash, record.physical_offset(), record.store_timestamp())? {
                file = self.file_for_put()?;
            }
        }
        Ok(())
    }

    /// Waits until everything put before is on disk.
    pub fn flush(&self) -> Result<(), IndexError> {
        for file in self.files.load().iter() {
            file.flush()?;
        }
        let mut names = self.lock();
        if *names {
            for path in self.directory.ancestors().take(2) {
                sync_directory(path).map_err(|source| failed(path, source))?;
            }
            *names = false;
        }
        Ok(())
    }

    /// Where the index stands; `None` without a file.
    pub fn mark(&self) -> Option<IndexMark> {
        let files = self.files.load();
        files.last().map(|file| IndexMark {
            name: file.name.clone(),
            header: file.header(),
        })
    }

    /// Store time of the last indexed key, ms; 0 without one.
    pub fn end_timestamp(&self) -> i64 {
        self.files
            .load()
            .last()
            .map_or(0, |file| file.header().end_timestamp)
    }

    /// End time of the last full file: what Apache's checkpoint holds once it is flushed.
    pub fn full_end_timestamp(&self) -> i64 {
        let files = self.files.load();
        let full = files
            .iter()
            .rev()
            .map(|file| file.header())
            .find(|header| self.is_full(header));
        full.map_or(0, |header| header.end_timestamp)
    }

    /// How many files there are.
    pub fn file_count(&self) -> usize {
        self.files.load().len()
    }

    /// Deletes files at the front that only name records before `log_min`, never the last one.
    pub fn delete_before(&self, log_min: u64) -> Result<usize, IndexError> {
        let count = {
            let files = self.files.load();
            let expired = |file: &&Arc<IndexFile>| before(file.header().end_offset, log_min);
            files
                .iter()
                .take_while(expired)
                .count()
                .min(files.len().saturating_sub(1))
        };
        self.remove_files(|index, _| index < count)?;
        Ok(count)
    }

    /// Apache's rule after a crash: files with keys newer than the checkpoint's index time may
    /// be damaged and go. Returns the log offset from which records must be indexed again.
    pub fn drop_newer_than(&self, index_timestamp: i64) -> Result<Option<u64>, IndexError> {
        let mut from: Option<u64> = None;
        self.remove_files(|_, header| {
            let newer = header.end_timestamp > index_timestamp;
            if newer {
                let begin = u64::try_from(header.begin_offset).unwrap_or(0);
                from = Some(from.map_or(begin, |from| from.min(begin)));
            }
            newer
        })?;
        Ok(from)
    }

    /// Our rule after a crash: takes the index back to `mark`, which was on disk at a resume
    /// point. Returns false when the marked file is not there or never had so many items; then
    /// everything is deleted, and all records must be indexed again.
    pub fn rewind(&self, mark: Option<&IndexMark>) -> Result<bool, IndexError> {
        let files = self.files.load_full();
        let marked = mark.and_then(|mark| {
            let file = files.iter().find(|file| file.name == mark.name)?;
            let fits = mark.header.next_item as u32 <= self.shape.items;
            (fits && file.header().next_item >= mark.header.next_item).then_some((mark, file))
        });
        let Some((mark, file)) = marked else {
            self.remove_files(|_, _| true)?;
            return Ok(mark.is_none());
        };
        let keep = files
            .iter()
            .take_while(|file| file.name <= mark.name)
            .count();
        self.remove_files(|index, _| index >= keep)?;
        if file.header() != mark.header {
            file.rewind(mark.header)?;
        }
        Ok(true)
    }

    /// Removes every item whose record begins at `log_offset` or behind it: the log was cut.
    pub fn truncate(&self, log_offset: u64) -> Result<(), IndexError> {
        // Also one without items: it begins with the end of the file before, and what comes now
        // lies before that.
        self.remove_files(|_, header| {
            let holds = header.next_item > 1 || header.begin_offset > 0;
            holds && !before(header.begin_offset, log_offset)
        })?;
        for file in self.files.load().iter() {
            file.truncate(log_offset)?;
        }
        Ok(())
    }

    fn is_full(&self, header: &IndexHeader) -> bool {
        header.next_item as u32 >= self.shape.items
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest file, or a new one when it is full.
    fn file_for_put(&self) -> Result<Arc<IndexFile>, IndexError> {
        // Only this thread appends to the list: the newest file stays the newest.
        if let Some(last) = self.files.load().last()
            && !self.is_full(&last.header())
        {
            return Ok(Arc::clone(last));
        }
        let mut names = self.lock();
        // Files can be removed from the list until here.
        let files = self.files.load_full();
        let last = files.last();
        let name = name::next(last.map(|last| last.name.as_str()));
        let path = self.directory.join(&name);
        let size = self.shape.file_size();
        let file = MappedFile::create(path, size, Advice::Random, &self.budget)?;
        let previous = last.map(|last| last.header()).unwrap_or_default();
        let begun = IndexFile::begin(name, self.shape, Arc::clone(&file), &previous);
        if begun.is_err() {
            // Each try would leave one.
            file.remove()
                .map_err(|source| failed(file.path(), source))?;
        }
        let file = Arc::new(begun?);
        let mut list = files.as_ref().clone();
        list.push(Arc::clone(&file));
        self.files.store(Arc::new(list));
        *names = true;
        Ok(file)
    }

    fn remove_files(
        &self,
        mut remove: impl FnMut(usize, &IndexHeader) -> bool,
    ) -> Result<(), IndexError> {
        let mut names = self.lock();
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for (index, file) in self.files.load().iter().enumerate() {
            let list = if remove(index, &file.header()) {
                &mut gone
            } else {
                &mut kept
            };
            list.push(Arc::clone(file));
        }
        if gone.is_empty() {
            return Ok(());
        }
        self.files.store(Arc::new(kept));
        *names = true;
        for file in gone {
            file.file
                .remove()
                .map_err(|source| failed(file.file.path(), source))?;
        }
        Ok(())
    }
}

impl IndexFile {
    fn load(name: String, shape: IndexShape, file: Arc<MappedFile>) -> Result<Self, IndexError> {
        let mut bytes = [0; INDEX_HEADER_SIZE];
        file.read_at(0, &mut bytes)?;
        let mut header = IndexHeader::decode(&bytes);
        if header.next_item as u32 > shape.items {
            warn!(file = %file.path().display(), items = header.next_item, "index file damaged");
            header.next_item = shape.items as i32;
        }
        let state = Mutex::new(FileState {
            header,
            dirty: false,
        });
        Ok(Self {
            name,
            shape,
            file,
            state,
        })
    }

    /// A new file begins with the end of the one before.
    fn begin(
        name: String,
        shape: IndexShape,
        file: Arc<MappedFile>,
        previous: &IndexHeader,
    ) -> Result<Self, IndexError> {
        let mut header = IndexHeader {
            next_item: 0,
            ..IndexHeader::default()
        };
        if previous.end_offset > 0 {
            (header.begin_offset, header.end_offset) = (previous.end_offset, previous.end_offset);
        }
        if previous.end_timestamp > 0 {
            header.begin_timestamp = previous.end_timestamp;
            header.end_timestamp = previous.end_timestamp;
        }
        // The item count reaches the disk with the first item, as Apache writes it.
        file.write_at(0, &header.encode())?;
        header.next_item = 1;
        let state = Mutex::new(FileState {
            header,
            dirty: true,
        });
        Ok(Self {
            name,
            shape,
            file,
            state,
        })
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn header(&self) -> IndexHeader {
        self.lock().header
    }

    /// Adds an item; false when the file is full.
    fn put(&self, hash: i32, physical_offset: i64, timestamp: i64) -> Result<bool, IndexError> {
        let mut state = self.lock();
        let mut header = state.header;
        if header.next_item as u32 >= self.shape.items {
            return Ok(false);
        }
        let slot = self.shape.slot_of(hash);
        self.file
            .reserve(self.shape.slot_position(slot), INDEX_SLOT_SIZE as usize)?;
        // Of a put that failed half-way the slot may name the item that is about to be written.
        let previous = self
            .slot(slot)?
            .filter(|item| *item < header.next_item)
            .unwrap_or(0);
        let seconds = if header.begin_timestamp <= 0 {
            0
        } else {
            timestamp.saturating_sub(header.begin_timestamp) / 1000
        };
        let seconds = seconds.clamp(0, i64::from(i32::MAX)) as i32;
        let item = IndexItem {
            hash,
            physical_offset,
            seconds,
            previous,
        };
        state.dirty = true;
        let place = self.shape.item_position(header.next_item as u32);
        self.file.write_at(place, &item.encode())?;
        self.file.write_at(
            self.shape.slot_position(slot),
            &header.next_item.to_be_bytes(),
        )?;
        if header.next_item <= 1 {
            header.begin_offset = physical_offset;
            header.begin_timestamp = timestamp;
        }
        header.slot_count += i32::from(previous == 0);
        header.next_item += 1;
        header.end_offset = physical_offset;
        header.end_timestamp = timestamp;
        self.file.write_at(0, &header.encode())?;
        state.header = header;
        Ok(true)
    }

    fn flush(&self) -> Result<(), IndexError> {
        let state = {
            let mut state = self.lock();
            let before = *state;
            state.dirty = false;
            before
        };
        if !state.dirty {
            return Ok(());
        }
        let used = self.shape.item_position(state.header.next_item as u32);
        let synced = self.file.sync(0, used.min(self.shape.file_size()));
        if synced.is_err() {
            self.lock().dirty = true;
        }
        Ok(synced?)
    }

    /// The item that a slot names.
    fn slot(&self, slot: u32) -> Result<Option<i32>, IndexError> {
        let mut bytes = [0; 4];
        self.file
            .read_at(self.shape.slot_position(slot), &mut bytes)?;
        Ok(Some(i32::from_be_bytes(bytes)).filter(|item| *item > 0))
    }

    fn item(&self, number: i32) -> Result<Option<IndexItem>, IndexError> {
        let Ok(number) = u32::try_from(number) else {
            return Ok(None);
        };
        if number >= self.shape.items {
            return Ok(None);
        }
        let mut bytes = [0; INDEX_ITEM_SIZE];
        self.file
            .read_at(self.shape.item_position(number), &mut bytes)?;
        Ok(Some(IndexItem::decode(&bytes)))
    }
}

/// Whether a log offset from a file lies before `log_offset`; negative ones do.
fn before(offset: i64, log_offset: u64) -> bool {
    u64::try_from(offset).is_ok_and(|offset| offset < log_offset) || offset < 0
}

fn list(directory: &Path) -> Result<Vec<(String, PathBuf)>, IndexError> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| failed(directory, source))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| failed(directory, source))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && path.is_file() {
            files.push((name.to_owned(), path));
        } else {
            warn!(path = %path.display(), "not an index file");
        }
    }
    files.sort();
    Ok(files)
}

fn failed(path: &Path, source: io::Error) -> IndexError {
    IndexError::File {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests;
