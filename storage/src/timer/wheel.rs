//! The timer wheel: where the chain of each slot begins and ends (docs/format.md, Timer files).
//!
//! Changes are kept in memory until the timer log is on disk, so that no slot on disk leads to an
//! item that is not.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::TimerError;
use crate::error::FileError;
use crate::format::timer::{SLOT_SIZE, Slot, WHEEL_SIZE, WHEEL_SLOTS, slot_index};
use crate::mapped_file::create_sparse;
use crate::{medium, regular};

/// Slots that one look at the file reads.
const BLOCK: u64 = 4096;
/// Changed slots that are kept in memory, at most.
const CHANGED: usize = 1 << 16;

/// Slots that are not in the file, by their places in it.
pub(super) type Changes = BTreeMap<u64, Slot>;

/// The file, and what is not in it yet.
#[derive(Debug)]
pub(super) struct Wheel {
    path: PathBuf,
    file: File,
    changed: Changes,
    /// Those that a check point is writing; `changed` is newer.
    flying: Arc<Changes>,
    block: Vec<u8>,
}

impl Wheel {
    /// Opens the file; makes it when it is missing, or none.
    pub(super) fn open(path: PathBuf) -> Result<Self, TimerError> {
        if !path.exists() {
            create_sparse(&path, WHEEL_SIZE).map_err(FileError::at("create", &path))?;
            let parent = path.parent().unwrap_or(&path);
            medium::sync_directory(parent).map_err(FileError::at("sync", parent))?;
        }
        let open = regular::open_with(&path, OpenOptions::new().read(true).write(true));
        let file = open.map_err(FileError::at("open", &path))?;
        let found = file
            .metadata()
            .map_err(FileError::at("examine", &path))?
            .len();
        if found != WHEEL_SIZE {
            if found != 0 {
                tracing::warn!(path = %path.display(), found, expected = WHEEL_SIZE,
                    "the timer wheel is none: it is made again from the timer log");
            }
            let empty = || {
                file.set_len(0)?;
                file.set_len(WHEEL_SIZE)
            };
            empty().map_err(FileError::at("resize", &path))?;
        }
        Ok(Self {
            path,
            file,
            changed: Changes::new(),
            flying: Arc::default(),
            block: Vec::new(),
        })
    }

    /// The slot of a tick; `None` when nothing was ever entered for it.
    pub(super) fn slot(&self, tick: i64) -> Result<Option<Slot>, TimerError> {
        let index = slot_index(tick);
        let slot = match self.unwritten(index) {
            Some(slot) => slot,
            None => {
                let mut bytes = [0; SLOT_SIZE];
                let at = index * SLOT_SIZE as u64;
                let read = self.file.read_exact_at(&mut bytes, at);
                read.map_err(FileError::at("read", &self.path))?;
                Slot::decode(&bytes)
            }
        };
        Ok((slot.tick == tick).then_some(slot))
    }

    fn unwritten(&self, index: u64) -> Option<Slot> {
        let changed = self.changed.get(&index);
        changed.or_else(|| self.flying.get(&index)).copied()
    }

    /// Replaces a slot.
    pub(super) fn put(&mut self, slot: Slot) {
        self.changed.insert(slot_index(slot.tick), slot);
    }

    /// Whether changes must be written before there can be more.
    pub(super) fn is_full(&self) -> bool {
        self.changed.len() >= CHANGED
    }

    /// Calls `look` with every slot of the ticks from `from` on that has items, for at most
    /// `ticks` of them, in order, until it says stop.
    pub(super) fn each(
        &mut self,
        from: i64,
        ticks: i64,
        mut look: impl FnMut(&Slot) -> bool,
    ) -> Result<(), TimerError> {
        let mut tick = from;
        let end = from.saturating_add(ticks.min(WHEEL_SLOTS));
        while tick < end {
            let index = slot_index(tick);
            let whole = WHEEL_SLOTS.cast_unsigned();
            let count = BLOCK.min(whole - index).min((end - tick).cast_unsigned());
            let used = self.used_from(index).min(whole);
            if used >= index + count {
                tick += (used - index).cast_signed();
                continue;
            }
            self.block.resize((count * SLOT_SIZE as u64) as usize, 0);
            let at = index * SLOT_SIZE as u64;
            let read = self.file.read_exact_at(&mut self.block, at);
            read.map_err(FileError::at("read", &self.path))?;
            for (index, bytes) in (index..).zip(self.block.chunks_exact(SLOT_SIZE)) {
                let slot = match self.unwritten(index) {
                    Some(slot) => slot,
                    None => Slot::decode(bytes),
                };
                if slot.tick == tick && !look(&slot) {
                    return Ok(());
                }
                tick += 1;
            }
        }
        Ok(())
    }

    /// The first slot from `index` on that may not be empty: most of the file are holes.
    fn used_from(&self, index: u64) -> u64 {
        let at = index * SLOT_SIZE as u64;
        let in_file = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => data / SLOT_SIZE as u64,
            Err(Errno::NXIO) => u64::MAX,
            // A filesystem that does not tell.
            Err(_) => index,
        };
        let first = |changes: &Changes| changes.range(index..).next().map(|(at, _)| *at);
        let unwritten = first(&self.changed).into_iter().chain(first(&self.flying));
        unwritten.fold(in_file, u64::min)
    }

    /// The slot of a tick has no items.
    pub(super) fn forget(&mut self, tick: i64) {
        self.changed.insert(slot_index(tick), Slot::default());
    }

    #[cfg(test)]
    pub(super) fn clear(&mut self) -> Result<(), TimerError> {
        self.changed.clear();
        let clear = || {
            self.file.set_len(0)?;
            self.file.set_len(WHEEL_SIZE)
        };
        Ok(clear().map_err(FileError::at("resize", &self.path))?)
    }

    /// Writes the changes; the timer log must be on disk, and no check point is being stored. What
    /// was not written stays.
    pub(super) fn write(&mut self) -> Result<(), TimerError> {
        if !self.changed.is_empty() {
            let written = write_slots(&self.file, &self.changed);
            written.map_err(FileError::at("write", &self.path))?;
            self.changed.clear();
        }
        Ok(())
    }

    /// The changes, for a check point that writes and syncs them: [`Wheel::landed`] ends it.
    pub(super) fn take_off(&mut self) -> Result<(PathBuf, File, Arc<Changes>), TimerError> {
        let file = self.file.try_clone();
        let file = file.map_err(FileError::at("open", &self.path))?;
        self.flying = Arc::new(std::mem::take(&mut self.changed));
        Ok((self.path.clone(), file, Arc::clone(&self.flying)))
    }

    /// What took off is on disk, or it is not and stays.
    pub(super) fn landed(&mut self, stored: bool) {
        let flown = std::mem::take(&mut self.flying);
        if !stored {
            for (index, slot) in flown.iter() {
                self.changed.entry(*index).or_insert(*slot);
            }
        }
    }
}

/// Writes slots, those side by side at once.
pub(super) fn write_slots(file: &File, slots: &Changes) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut first = 0;
    for (index, slot) in slots {
        let written = (bytes.len() / SLOT_SIZE) as u64;
        if !bytes.is_empty() && *index != first + written {
            file.write_all_at(&bytes, first * SLOT_SIZE as u64)?;
            bytes.clear();
        }
        if bytes.is_empty() {
            first = *index;
        }
        bytes.extend_from_slice(&slot.encode());
    }
    file.write_all_at(&bytes, first * SLOT_SIZE as u64)
}
