//! The extension files of one consume queue: for each entry a unit, whose address stands in the
//! entry's tag code field (docs/format.md, "Extension unit").
//!
//! One thread puts units; any thread reads meanwhile without a lock. The files end with the unit of
//! the queue's last entry that has one: what stands behind it was never shown, and goes when the
//! next unit is put. Behind a unit stands a zero or an end mark, so that whoever walks the units
//! from the front never walks into what a former end left.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::{ConsumeQueueError, Files, Unsynced, failed, remove};
use crate::format::extension_unit::{
    END_MARK, END_SIZE, HEAD_SIZE, Unit, address, position, size_of_unit,
};
use crate::layout;
use crate::mapped_file::{MapBudget, MappedFile};
use crate::mapping::{Advice, MappingError};
use crate::medium::{self, sync_directory};

/// The configuration key of the file size.
const SIZE_KEY: &str = "mappedFileSizeConsumeQueueExt";

/// What a unit holds besides its entry's tag code.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct UnitNote {
    /// The record's store time, in milliseconds.
    pub(crate) store_timestamp: i64,
    /// Bits of the selectors that the record passes; empty: not known.
    pub(crate) bits: Vec<u8>,
}

/// The extension files of all queues.
#[derive(Clone, Debug)]
pub(crate) struct Extensions {
    directory: PathBuf,
    file_size: u64,
    writes: bool,
    /// Whether there were any when the store was opened.
    exist: bool,
}

impl Extensions {
    /// Those in `directory`, read and, if `writes`, written.
    pub(crate) fn new(directory: PathBuf, file_size: u64, writes: bool) -> Extensions {
        Extensions {
            exist: directory.is_dir(),
            directory,
            file_size: file_size.max(1),
            writes,
        }
    }

    /// Where the directory of all of them is, or would be.
    pub(crate) fn place(&self) -> &Path {
        &self.directory
    }

    /// The directory of all of them, if there is one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        (self.exist || self.writes).then_some(&*self.directory)
    }

    /// The files of a queue; `None` if it has none and gets none. While a `removal` of files of the
    /// same names is under way it has none, and gets none before that is over.
    pub(crate) fn of(
        &self,
        topic: &str,
        queue_id: i32,
        budget: &Arc<MapBudget>,
        is_new: bool,
    ) -> Option<Box<Extension>> {
        self.directory()?;
        let directory = layout::queue_directory(&self.directory, topic, queue_id).ok()?;
        if !self.writes && (is_new || !directory.is_dir()) {
            return None;
        }
        Extension::open(directory, self, budget, is_new).map(Box::new)
    }
}

/// Where a unit was put, before its entry stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    /// The entry's tag code field.
    pub(crate) address: i64,
    end: u64,
}

/// What became of a look at a unit.
#[derive(Debug)]
pub enum UnitLook<'a> {
    /// Here it is.
    Found(Unit<'a>),
    /// There is none at that address.
    Missing,
    /// Looking would map a file, and was not to.
    NotMapped,
}

/// The extension files of one queue.
#[derive(Debug)]
pub(crate) struct Extension {
    directory: PathBuf,
    file_size: u64,
    writes: bool,
    budget: Arc<MapBudget>,
    files: ArcSwap<Files>,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    /// Position after the last unit that an entry names; `None`: to be found out.
    end: Option<u64>,
    unsynced: Unsynced,
    /// The queue was destroyed: nothing is put any more.
    closed: bool,
    bytes: Vec<u8>,
}

impl Extension {
    /// `None`, and a line in the log, where the files are not what they must be: every message may
    /// match then, and entries get plain tag codes.
    fn open(
        directory: PathBuf,
        settings: &Extensions,
        budget: &Arc<MapBudget>,
        is_new: bool,
    ) -> Option<Extension> {
        let listed = match is_new {
            true => Ok(layout::FixedFiles::default()),
            false => layout::list_fixed_files(&directory, settings.file_size, SIZE_KEY),
        };
        let found = match listed {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "extension files of a consume queue are left alone");
                return None;
            }
        };
        if let Some(path) = found.empty_last
            && let Err(error) = medium::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "an empty file cannot be deleted");
            return None;
        }
        let base = found.files.first().map_or(0, |file| file.base);
        let existing = |file: layout::FixedFile| {
            MappedFile::existing(file.path, settings.file_size, Advice::Random, budget)
        };
        let list = found.files.into_iter().map(existing).collect();
        Some(Extension {
            directory,
            file_size: settings.file_size,
            writes: settings.writes,
            budget: Arc::clone(budget),
            files: ArcSwap::from_pointee(Files { base, list }),
            writer: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // An end that is not known is found out again.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The unit that a tag code field names, read into `bytes`. With `mapped_only` no file is
    /// mapped for that.
    pub(crate) fn unit<'a>(
        &self,
        tags_code: i64,
        mapped_only: bool,
        bytes: &'a mut Vec<u8>,
    ) -> UnitLook<'a> {
        let files = self.files.load();
        let place = position(tags_code).and_then(|at| files.at(at, self.file_size));
        let Some((file, place)) = place else {
            return UnitLook::Missing;
        };
        let read = |at: u64, bytes: &mut [u8]| {
            let fits = at + bytes.len() as u64 <= self.file_size;
            let read = match mapped_only {
                _ if !fits => return Ok(None),
                true => file.read_if_mapped(at, bytes),
                false => file.read_at(at, bytes).map(|()| true),
            };
            read.map(Some)
        };
        bytes.clear();
        bytes.resize(HEAD_SIZE, 0);
        let looked = match read(place, bytes) {
            Ok(Some(true)) => {
                let Some(size) = size_of_unit(bytes) else {
                    return UnitLook::Missing;
                };
                bytes.resize(size, 0);
                read(place + HEAD_SIZE as u64, &mut bytes[HEAD_SIZE..])
            }
            looked => looked,
        };
        match looked {
            Ok(Some(true)) => Unit::decode(bytes).map_or(UnitLook::Missing, UnitLook::Found),
            Ok(Some(false)) => UnitLook::NotMapped,
            Ok(None) | Err(_) => UnitLook::Missing,
        }
    }

    /// Puts the unit of an entry to come behind the last one that an entry names; `last` tells that
    /// one's tag code field. `None` if there can be none: the entry gets its plain tag code. The
    /// place is taken once [`Extension::advance`] was called.
    pub(crate) fn put(
        &self,
        tags_code: i64,
        note: &UnitNote,
        last: impl FnOnce() -> Result<Option<i64>, MappingError>,
    ) -> Result<Option<Put>, ConsumeQueueError> {
        let unit = Unit {
            tags_code,
            store_timestamp: note.store_timestamp,
            bits: &note.bits,
        };
        let Some(size) = unit.size().filter(|_| self.writes) else {
            return Ok(None);
        };
        if (size + END_SIZE) as u64 > self.file_size {
            return Ok(None);
        }
        let mut writer = self.lock();
        if writer.closed {
            return Ok(None);
        }
        let mut at = self.end(&mut writer, last)?;
        let left = self.file_size - at % self.file_size;
        if ((size + END_SIZE) as u64) > left {
            // The rest of the file stays as it is.
            if left >= END_MARK.len() as u64 {
                self.store(&mut writer, at, &END_MARK)?;
            }
            at += left;
        }
        let Some(address) = address(at + size as u64).and_then(|_| address(at)) else {
            return Ok(None);
        };
        let mut bytes = std::mem::take(&mut writer.bytes);
        bytes.clear();
        unit.encode(&mut bytes);
        bytes.extend_from_slice(&[0; 2]);
        let stored = self.store(&mut writer, at, &bytes);
        writer.bytes = bytes;
        stored?;
        let end = at + size as u64;
        Ok(Some(Put { address, end }))
    }

    /// The entry of what was put stands.
    pub(crate) fn advance(&self, put: Put) {
        self.lock().end = Some(put.end);
    }

    /// The queue was cut, or its entries were changed: where the last unit ends is found out anew.
    pub(crate) fn forget_end(&self) {
        self.lock().end = None;
    }

    /// Where the next unit goes.
    fn end(
        &self,
        writer: &mut Writer,
        last: impl FnOnce() -> Result<Option<i64>, MappingError>,
    ) -> Result<u64, ConsumeQueueError> {
        if let Some(end) = writer.end {
            return Ok(end);
        }
        let mut end = 0;
        // Also where there is no file: entries may name units in files that are lost.
        if let Some(last) = last()?
            && let Some(at) = position(last)
        {
            let UnitLook::Found(unit) = self.unit(last, false, &mut writer.bytes) else {
                // Nothing that is named may be overwritten: behind all files it is not.
                let files = self.files.load();
                let behind = files.base + files.list.len() as u64 * self.file_size;
                let behind_at = (at / self.file_size + 1) * self.file_size;
                return Ok(*writer.end.insert(behind.max(behind_at)));
            };
            end = at + unit.size().unwrap_or(HEAD_SIZE) as u64;
        }
        self.drop_behind(end, writer)?;
        Ok(*writer.end.insert(end))
    }

    /// Deletes the files that begin at `end` or behind it.
    fn drop_behind(&self, end: u64, writer: &mut Writer) -> Result<(), ConsumeQueueError> {
        let files = self.files.load_full();
        let keep = end.saturating_sub(files.base).div_ceil(self.file_size);
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let Some(behind) = files.list.get(keep..).filter(|behind| !behind.is_empty()) else {
            return Ok(());
        };
        self.files.store(Arc::new(Files {
            base: files.base,
            list: files.list[..keep].to_vec(),
        }));
        for file in behind.iter().rev() {
            remove(file)?;
        }
        writer.unsynced.names = true;
        Ok(())
    }

    /// Stores bytes at a position, in a new file where that is the next one.
    fn store(&self, writer: &mut Writer, at: u64, bytes: &[u8]) -> Result<(), ConsumeQueueError> {
        let files = self.files.load_full();
        let (file, place) = match files.at(at, self.file_size) {
            Some((file, place)) => (Arc::clone(file), place),
            None => (self.create(writer, at)?, at % self.file_size),
        };
        writer.unsynced.add(at, bytes.len() as u64);
        if !file.write_if_unmapped(place, bytes)? {
            file.reserve(place, bytes.len())?;
            file.write_at(place, bytes)?;
        }
        Ok(())
    }

    /// Makes the file that holds a position behind the files that there are.
    fn create(&self, writer: &mut Writer, at: u64) -> Result<Arc<MappedFile>, ConsumeQueueError> {
        let base = at - at % self.file_size;
        let files = self.files.load_full();
        let follows = files.base + files.list.len() as u64 * self.file_size == base;
        let (first, mut list) = if follows {
            (files.base, files.list.clone())
        } else {
            // Files with a gap between them would not be opened again.
            self.files.store(Arc::default());
            files.list.iter().try_for_each(|file| remove(file))?;
            (base, Vec::new())
        };
        let path = self.directory.join(layout::file_name(base));
        let file = MappedFile::create(path, self.file_size, Advice::Random, &self.budget)?;
        writer.unsynced.names = true;
        list.push(Arc::clone(&file));
        self.files.store(Arc::new(Files { base: first, list }));
        Ok(file)
    }

    /// Deletes the files before the one that holds the unit of the queue's first entry, as far as
    /// its tag code field tells; whether there were any.
    pub(crate) fn delete_before(&self, first: i64) -> Result<bool, ConsumeQueueError> {
        let Some(first) = position(first) else {
            return Ok(false);
        };
        let mut writer = self.lock();
        let files = self.files.load_full();
        let gone = files
            .list
            .iter()
            .enumerate()
            .take_while(|(index, _)| files.base + (*index as u64 + 1) * self.file_size < first);
        let gone = gone.count().min(files.list.len().saturating_sub(1));
        if gone == 0 {
            return Ok(false);
        }
        self.files.store(Arc::new(Files {
            base: files.base + gone as u64 * self.file_size,
            list: files.list[gone..].to_vec(),
        }));
        for file in &files.list[..gone] {
            remove(file)?;
        }
        writer.unsynced.names = true;
        Ok(true)
    }

    /// Whether something is not on disk yet.
    pub(crate) fn is_dirty(&self) -> bool {
        let writer = self.lock();
        writer.unsynced.names || writer.unsynced.from < writer.unsynced.to
    }

    /// Takes over what is not on disk yet.
    pub(crate) fn take_unsynced(&self) -> Unsynced {
        std::mem::take(&mut self.lock().unsynced)
    }

    /// Gives back what could not be synced.
    pub(crate) fn put_back(&self, todo: &Unsynced) {
        let unsynced = &mut self.lock().unsynced;
        unsynced.names |= todo.names;
        unsynced.add(todo.from, todo.to - todo.from);
    }

    /// Waits until every unit put before is on disk. After an error everything counts as not
    /// synced.
    pub(crate) fn flush(&self) -> Result<(), ConsumeQueueError> {
        let todo = self.take_unsynced();
        let flushed = self.flush_range(&todo);
        if flushed.is_err() {
            self.put_back(&todo);
        }
        flushed
    }

    fn flush_range(&self, todo: &Unsynced) -> Result<(), ConsumeQueueError> {
        let files = self.files.load();
        let mut at = todo.from.max(files.base);
        while at < todo.to {
            let Some((file, place)) = files.at(at, self.file_size) else {
                break;
            };
            let len = (todo.to - at).min(self.file_size - place);
            file.sync(place, len)?;
            at += len;
        }
        if !todo.names {
            return Ok(());
        }
        // The directories of the topic, of all extensions and of the store: they may be new.
        for path in self.directory.ancestors().take(4) {
            match sync_directory(path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(path, source));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets go of all files; nothing is put any more.
    pub(crate) fn close(&self) {
        let mut writer = self.lock();
        *writer = Writer {
            closed: true,
            ..Writer::default()
        };
        self.files.store(Arc::default());
    }
}
