//! The timer log: one item for each message that waits, in the order in which they came
//! (docs/format.md, Timer files).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::TimerError;
use super::check_point::sync;
use crate::error::FileError;
use crate::format::timer::{
    BLANK_SIZE, Entry, ITEM_SIZE, Item, PREVIOUS_AT, encode_blank, last_item_position,
};
use crate::layout::{file_name, list_fixed_files};
use crate::mapped_file::create_sparse;
use crate::medium;

/// Appended bytes that are kept in memory before they are written.
const BUFFER: usize = 64 << 10;
/// Bytes that a look at an item reads: the items before it in its slot are often close.
const WINDOW: u64 = 64 << 10;

/// The files, and what is not in them yet.
#[derive(Debug)]
pub(super) struct TimerLog {
    directory: PathBuf,
    file_size: u64,
    files: BTreeMap<u64, File>,
    /// Position of the next item.
    end: u64,
    /// Appended and not written: the bytes before `end`, all in its file.
    buffer: Vec<u8>,
    /// Written and not synced: bases of the files.
    dirty: Vec<u64>,
    window: Vec<u8>,
    window_start: u64,
}

impl TimerLog {
    /// Opens what is there. It ends with its last file until [`super::recovery`] cuts it.
    pub(super) fn open(directory: PathBuf, file_size: u64) -> Result<Self, TimerError> {
        let found = list_fixed_files(&directory, file_size, "mappedFileSizeTimerLog")?;
        if let Some(empty) = &found.empty_last {
            medium::remove_file(empty).map_err(FileError::at("remove", empty))?;
        }
        let mut files = BTreeMap::new();
        for file in found.files {
            files.insert(file.base, open(&file.path)?);
        }
        Ok(Self {
            directory,
            file_size,
            end: files
                .last_key_value()
                .map_or(0, |(base, _)| base + file_size),
            files,
            buffer: Vec::with_capacity(BUFFER),
            dirty: Vec::new(),
            window: Vec::new(),
            window_start: 0,
        })
    }

    /// Position of the first byte that is kept.
    pub(super) fn start(&self) -> u64 {
        self.files.keys().next().copied().unwrap_or(self.end)
    }

    /// Position of the next item.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of a file.
    pub(super) fn file_size(&self) -> u64 {
        self.file_size
    }

    /// The entry at a position; `None` if there is none.
    pub(super) fn entry(&mut self, position: u64) -> Result<Option<Entry>, TimerError> {
        let written = self.end - self.buffer.len() as u64;
        if position >= written && position < self.end {
            let at = usize::try_from(position - written).unwrap_or(usize::MAX);
            return Ok(self.buffer.get(at..).and_then(Entry::decode));
        }
        let in_file = position % self.file_size;
        if in_file + BLANK_SIZE as u64 > self.file_size {
            return Ok(None);
        }
        let len = (self.file_size - in_file).min(ITEM_SIZE as u64);
        let inside = position >= self.window_start
            && position + len <= self.window_start + self.window.len() as u64;
        if !inside && !self.fill_window(position, in_file, len)? {
            return Ok(None);
        }
        let at = usize::try_from(position - self.window_start).unwrap_or(usize::MAX);
        Ok(self.window.get(at..).and_then(Entry::decode))
    }

    /// Reads `len` bytes at a position and what stands before them.
    fn fill_window(&mut self, position: u64, in_file: u64, len: u64) -> Result<bool, TimerError> {
        let base = position - in_file;
        let Some(file) = self.files.get(&base) else {
            return Ok(false);
        };
        let before = in_file.min(WINDOW - len);
        self.window.resize((before + len) as usize, 0);
        self.window_start = position - before;
        let read = file.read_exact_at(&mut self.window, in_file - before);
        if read.is_err() {
            self.window.clear();
        }
        read.map_err(FileError::at("read", &self.path(base)))?;
        Ok(true)
    }

    /// Reads a piece of a file from a position on, for a scan; at most `out.len()` bytes.
    pub(super) fn piece(
        &self,
        position: u64,
        out: &mut Vec<u8>,
        len: usize,
    ) -> Result<(), TimerError> {
        let in_file = position % self.file_size;
        let base = position - in_file;
        let len = (self.file_size - in_file).min(len as u64);
        out.resize(len as usize, 0);
        let Some(file) = self.files.get(&base) else {
            out.clear();
            return Ok(());
        };
        let read = file.read_exact_at(out, in_file);
        Ok(read.map_err(FileError::at("read", &self.path(base)))?)
    }

    /// The log ends at `end`: what stands behind is removed, so that it never counts again.
    pub(super) fn cut(&mut self, end: u64) -> Result<(), TimerError> {
        self.end = end;
        self.buffer.clear();
        self.window.clear();
        // The last one first: a crash in between leaves no gap.
        let behind: Vec<u64> = self.files.range(end..).map(|(base, _)| *base).collect();
        for base in behind.into_iter().rev() {
            self.remove(base)?;
            medium::sync_directory(&self.directory)
                .map_err(FileError::at("sync", &self.directory))?;
        }
        if let Some((base, file)) = self.files.range(..end).next_back()
            && end < base + self.file_size
        {
            let path = self.path(*base);
            let cut = || {
                file.set_len(end - base)?;
                file.set_len(self.file_size)?;
                medium::sync_file(file)
            };
            cut().map_err(FileError::at("cut", &path))?;
        }
        Ok(())
    }

    /// Appends an item; its position.
    pub(super) fn append(&mut self, item: &Item) -> Result<u64, TimerError> {
        if self.end % self.file_size > last_item_position(self.file_size) {
            self.end_file()?;
        }
        let base = self.end - self.end % self.file_size;
        if !self.files.contains_key(&base) {
            self.begin_file(base)?;
        }
        if self.buffer.len() + ITEM_SIZE > BUFFER {
            self.write()?;
        }
        let position = self.end;
        self.buffer.extend_from_slice(&item.encode());
        self.end += ITEM_SIZE as u64;
        Ok(position)
    }

    /// Gives the item at a position, which is written, another one before it in its slot.
    pub(super) fn relink(&mut self, position: i64, previous: i64) -> Result<(), TimerError> {
        let position = position.cast_unsigned();
        let in_file = position % self.file_size;
        let base = position - in_file;
        if let Some(file) = self.files.get(&base) {
            let written = file.write_all_at(&previous.to_be_bytes(), in_file + PREVIOUS_AT);
            written.map_err(FileError::at("write", &self.path(base)))?;
            self.note_dirty(base);
            self.window.clear();
        }
        Ok(())
    }

    /// Puts `filler` into places whose items are damaged, and waits until that is on disk.
    pub(super) fn fill(&mut self, places: &[u64], filler: &Item) -> Result<(), TimerError> {
        self.window.clear();
        let filler = filler.encode();
        let mut places = places.iter().copied().peekable();
        while let Some(first) = places.next() {
            let mut bytes = filler.to_vec();
            while bytes.len() < BUFFER && places.next_if_eq(&(first + bytes.len() as u64)).is_some()
            {
                bytes.extend_from_slice(&filler);
            }
            let in_file = first % self.file_size;
            let base = first - in_file;
            if let Some(file) = self.files.get(&base) {
                let written = file.write_all_at(&bytes, in_file);
                written.map_err(FileError::at("write", &self.path(base)))?;
                self.note_dirty(base);
            }
        }
        self.sync()
    }

    /// Writes the blank items that end whole files anew where they are none; how many.
    pub(super) fn mend_blanks(&mut self) -> Result<usize, TimerError> {
        let in_file = last_item_position(self.file_size) + ITEM_SIZE as u64;
        let rest = i32::try_from(self.file_size - in_file).unwrap_or(i32::MAX);
        let blank = encode_blank(rest);
        let mut mended = Vec::new();
        for (base, file) in self.files.range(..self.end) {
            let mut found = [0; BLANK_SIZE];
            if base + self.file_size > self.end {
                continue;
            }
            let mut write = || {
                file.read_exact_at(&mut found, in_file)?;
                if found != blank {
                    file.write_all_at(&blank, in_file)?;
                    mended.push(*base);
                }
                Ok(())
            };
            write().map_err(FileError::at("mend", &self.path(*base)))?;
        }
        for base in &mended {
            self.note_dirty(*base);
        }
        Ok(mended.len())
    }

    fn end_file(&mut self) -> Result<(), TimerError> {
        self.write()?;
        let in_file = self.end % self.file_size;
        let base = self.end - in_file;
        let rest = self.file_size - in_file;
        if let Some(file) = self.files.get(&base) {
            let blank = encode_blank(i32::try_from(rest).unwrap_or(i32::MAX));
            let written = file.write_all_at(&blank, in_file);
            written.map_err(FileError::at("write", &self.path(base)))?;
            self.note_dirty(base);
        }
        self.end += rest;
        Ok(())
    }

    fn begin_file(&mut self, base: u64) -> Result<(), TimerError> {
        let path = self.path(base);
        // An attempt that failed half-way may have left one, without items.
        match medium::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(FileError::at("remove", &path)(error).into());
            }
            _ => {}
        }
        create_sparse(&path, self.file_size).map_err(FileError::at("create", &path))?;
        medium::sync_directory(&self.directory).map_err(FileError::at("sync", &self.directory))?;
        self.files.insert(base, open(&path)?);
        Ok(())
    }

    /// Writes what is in memory. Nothing changes when that fails: it may be tried again.
    pub(super) fn write(&mut self) -> Result<(), TimerError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let from = self.end - self.buffer.len() as u64;
        let base = from - from % self.file_size;
        let path = self.path(base);
        let file = self.files.get(&base).ok_or_else(|| {
            let missing = std::io::ErrorKind::NotFound.into();
            FileError::at("write", &path)(missing)
        })?;
        let written = file.write_all_at(&self.buffer, from - base);
        written.map_err(FileError::at("write", &path))?;
        self.buffer.clear();
        self.note_dirty(base);
        Ok(())
    }

    /// A file is to be synced.
    pub(super) fn note_dirty(&mut self, base: u64) {
        if self.dirty.last() != Some(&base) {
            self.dirty.push(base);
        }
    }

    /// Waits until everything appended is on disk.
    ///
    /// # Errors
    /// [`TimerError::Lost`] when a sync failed: the kernel may have dropped what was written.
    pub(super) fn sync(&mut self) -> Result<(), TimerError> {
        self.write()?;
        while let Some(base) = self.dirty.last() {
            if let Some(file) = self.files.get(base) {
                sync(&self.path(*base), file)?;
            }
            self.dirty.pop();
        }
        Ok(())
    }

    /// Writes everything and hands out the files that are to be synced.
    pub(super) fn take_dirty(&mut self) -> Result<Vec<(u64, PathBuf, File)>, TimerError> {
        self.write()?;
        let mut files = Vec::new();
        for base in &self.dirty {
            if let Some(file) = self.files.get(base) {
                let path = self.path(*base);
                let file = file.try_clone().map_err(FileError::at("open", &path))?;
                files.push((*base, path, file));
            }
        }
        self.dirty.clear();
        Ok(files)
    }

    /// Removes files whose messages have all left the commit log; the last file stays.
    pub(super) fn trim(&mut self, min_log_offset: u64) -> Result<usize, TimerError> {
        let mut removed = 0;
        while self.files.len() > 1 {
            let Some(base) = self.files.keys().next().copied() else {
                break;
            };
            let last = base + last_item_position(self.file_size);
            let gone = match self.entry(last)? {
                Some(Entry::Item(item)) => item.log_offset < min_log_offset.cast_signed(),
                // No file that another one follows ends otherwise.
                _ => false,
            };
            if !gone {
                break;
            }
            self.remove(base)?;
            removed += 1;
        }
        Ok(removed)
    }

    fn remove(&mut self, base: u64) -> Result<(), TimerError> {
        let path = self.path(base);
        medium::remove_file(&path).map_err(FileError::at("remove", &path))?;
        self.files.remove(&base);
        self.dirty.retain(|other| *other != base);
        self.window.clear();
        Ok(())
    }

    fn path(&self, base: u64) -> PathBuf {
        self.directory.join(file_name(base))
    }
}

fn open(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(FileError::at("open", path))
}
