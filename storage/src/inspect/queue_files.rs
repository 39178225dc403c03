//! The files of one consume queue, read only.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::view::list_fitting;
use super::{Finding, InspectError, StoreView};
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::layout::{self, FixedFile};
use crate::regular;

/// Entries read at once.
const STEP: u64 = 1000;
const ENTRY: u64 = ENTRY_SIZE as u64;

/// The files of one queue, by base, and what was read of them last.
#[derive(Debug)]
pub struct QueueFiles {
    directory: PathBuf,
    file_size: u64,
    files: Vec<FixedFile>,
    /// Queue offset of the first entry held.
    held_from: u64,
    held: Vec<Option<ConsumeEntry>>,
}

impl QueueFiles {
    /// The queue's files; none where there is no directory. Files that do not fit are left out and
    /// told.
    pub fn open(
        view: &StoreView,
        topic: &str,
        queue_id: i32,
    ) -> Result<(QueueFiles, Vec<Finding>), InspectError> {
        let queues = view.layout.consume_queues();
        let directory = layout::queue_directory(&queues, topic, queue_id)?;
        let file_size = view.shape.queue_file;
        let (files, misfits) = list_fitting(&directory, file_size)?;
        let queue = QueueFiles {
            directory,
            file_size,
            files,
            held_from: 0,
            held: Vec::new(),
        };
        Ok((queue, misfits))
    }

    /// Whether there is no file.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Queue offset of the first entry in the first file.
    pub fn first(&self) -> u64 {
        self.files.first().map_or(0, |file| file.base / ENTRY)
    }

    /// The file that holds an entry, and the entry's position in it.
    pub fn place(&self, offset: u64) -> (PathBuf, u64) {
        let position = offset.saturating_mul(ENTRY);
        let base = position - position % self.file_size;
        (
            self.directory.join(layout::file_name(base)),
            position % self.file_size,
        )
    }

    /// Reads what is there anew: a broker may have added to it.
    pub fn refresh(&mut self) -> Result<(), InspectError> {
        self.held.clear();
        (self.files, _) = list_fitting(&self.directory, self.file_size)?;
        Ok(())
    }

    /// The entry at a queue offset; `None` where nothing was written.
    pub fn entry(&mut self, offset: u64) -> Result<Option<ConsumeEntry>, InspectError> {
        let held = self.held_from..self.held_from + self.held.len() as u64;
        if !held.contains(&offset) {
            self.fill(offset)?;
        }
        let index = offset.wrapping_sub(self.held_from);
        Ok(self.held.get(index as usize).copied().flatten())
    }

    fn fill(&mut self, offset: u64) -> Result<(), InspectError> {
        self.held.clear();
        self.held_from = offset;
        let position = offset.saturating_mul(ENTRY);
        let holds = |file: &&FixedFile| (file.base..file.base + self.file_size).contains(&position);
        let Some(file) = self.files.iter().find(holds) else {
            return Ok(());
        };
        let place = position - file.base;
        let len = (self.file_size - place).min(STEP * ENTRY);
        let mut bytes = vec![0; len as usize];
        if !read_exact(&file.path, place, &mut bytes)? {
            return Ok(());
        }
        let entries = bytes.as_chunks().0.iter().map(ConsumeEntry::decode);
        self.held.extend(entries);
        Ok(())
    }

    /// The queue offset after the last entry, as a broker finds it: the first place without one,
    /// from the third-last file on.
    pub fn end(&mut self) -> Result<u64, InspectError> {
        let from = self.files.len().saturating_sub(3);
        let Some(mut at) = self.files.get(from).map(|file| file.base / ENTRY) else {
            return Ok(0);
        };
        while self.entry(at)?.is_some() {
            at += 1;
        }
        Ok(at)
    }

    /// The first queue offset below `end` whose record a log that begins at `log_begin` holds;
    /// `end` without one.
    pub fn begin(&mut self, end: u64, log_begin: u64) -> Result<u64, InspectError> {
        let (mut low, mut high) = (self.first(), end);
        while low < high {
            let middle = low + (high - low) / 2;
            // A blank entry says nothing: the next real one decides.
            let mut decides = middle;
            let mut entry = self.entry(decides)?;
            while entry.is_some_and(ConsumeEntry::is_pre_blank) && decides + 1 < high {
                decides += 1;
                entry = self.entry(decides)?;
            }
            let gone =
                |entry: ConsumeEntry| !entry.is_pre_blank() && entry.physical_offset < log_begin;
            if entry.is_some_and(gone) {
                low = decides + 1;
            } else {
                high = middle;
            }
        }
        while low < end && self.entry(low)?.is_some_and(ConsumeEntry::is_pre_blank) {
            low += 1;
        }
        Ok(low)
    }
}

/// Fills `bytes`; false if the file is not there any more.
pub(super) fn read_exact(path: &Path, at: u64, bytes: &mut [u8]) -> Result<bool, InspectError> {
    let file = match regular::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => other.map_err(InspectError::at(path))?,
    };
    file.read_exact_at(bytes, at)
        .map_err(InspectError::at(path))?;
    Ok(true)
}
