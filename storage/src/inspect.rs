//! Reading a store as it lies on the disk, and saying what is wrong with it.
//!
//! Nothing is written, mapped or locked. Behind a damaged place the walk over the log looks for the
//! next complete record in the same file, so that everything readable is found, and goes on with
//! the next file. The log of a running broker is read past the page cache, and a place that it may
//! just be writing is looked at again before it counts as damaged.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::error::FileError;
use crate::format::message::{BLANK_SIZE, FIXED_SIZE, MAGIC_V1, MAGIC_V2};
use crate::format::record::{Decoded, Record, RecordError, decode};
use crate::format::{i32_at, message};
use crate::layout::{self, FixedFile, LayoutError};
use crate::log_window::{LogWindow, WindowLimits};

mod extension_files;
mod index_check;
mod index_files;
mod last_run;
mod queue_check;
mod queue_files;
mod verify;
mod view;

pub use crate::format::light::is_of;
pub use index_files::{IndexFileView, IndexFiles};
pub use queue_files::QueueFiles;
pub use verify::{Finding, LogLook, Verified, verify};
pub use view::{Shape, StoreView, UnitCheck, ViewError};

/// Bytes read at once.
const WINDOW: usize = 1 << 20;
/// Looks at a place that a running broker may be writing, and the time between them.
const LOOKS: usize = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
const SIZE_KEY: &str = "mappedFileSizeCommitLog";

/// Why a log cannot be looked at.
#[derive(Debug, Error)]
pub enum InspectError {
    /// The directory is not what it must be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A log file cannot be read.
    #[error(transparent)]
    Log(#[from] FileError),
}

impl InspectError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> InspectError {
        let path = path.to_path_buf();
        move |source| InspectError::File { path, source }
    }
}

/// What stands somewhere in the log.
#[derive(Debug)]
pub enum Found<'a> {
    /// A message.
    Record {
        /// Log offset where it stands.
        offset: u64,
        /// The message.
        record: Record<'a>,
        /// What is wrong with it although its lengths are right.
        problem: Option<RecordError>,
    },
    /// The blank record that ends a file.
    Blank {
        /// Log offset where it stands.
        offset: u64,
        /// Bytes it says are left in the file.
        remaining: i32,
    },
    /// Bytes that are no record.
    Damage {
        /// Log offset of the first one.
        offset: u64,
        /// The file.
        path: PathBuf,
        /// Why they are no record.
        error: RecordError,
        /// Bytes up to the next record or the end of the file.
        len: u64,
    },
    /// Only zeros up to the end of the file.
    Unused {
        /// Log offset of the first one.
        offset: u64,
        /// How many.
        len: u64,
    },
}

/// What a walk came by.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Summary {
    /// Files.
    pub files: usize,
    /// Log offset of the first byte.
    pub begin: u64,
    /// Log offset after the last complete record that can be reached without crossing damage;
    /// the next file's begin when a blank record and a file follow.
    pub end: u64,
    /// Complete records in all.
    pub records: u64,
    /// Complete records behind the first damaged place: a broker that recovers loses them.
    pub records_behind_damage: u64,
    /// Records with a wrong checksum or place.
    pub bad_records: u64,
    /// Damaged places.
    pub damages: u64,
}

/// Walks over the commit log in `directory`, whose files have `file_size` bytes, and shows
/// everything found to `show`, in order. No broker has it open.
pub fn walk(
    directory: &Path,
    file_size: u64,
    mut show: impl FnMut(Found<'_>),
) -> Result<Summary, InspectError> {
    let files = layout::list_fixed_files(directory, file_size, SIZE_KEY)?.files;
    walk_files(directory, &files, file_size, false, |found| {
        show(found);
        true
    })
}

/// As [`walk`], over these files, until `show` says false; `live` for the log of a running broker.
pub(crate) fn walk_files(
    directory: &Path,
    files: &[FixedFile],
    file_size: u64,
    live: bool,
    mut show: impl FnMut(Found<'_>) -> bool,
) -> Result<Summary, InspectError> {
    let mut summary = Summary {
        files: files.len(),
        ..Summary::default()
    };
    summary.begin = files.first().map_or(0, |file| file.base);
    summary.end = summary.begin;
    let mut stopped = false;
    for (index, file) in files.iter().enumerate() {
        let behind = files.len() - 1 - index;
        let mut walk = FileWalk {
            file,
            size: file_size,
            window: LogWindow::new(directory, file_size),
            limits: WindowLimits {
                end: u64::MAX,
                active_base: if live { 0 } else { u64::MAX },
            },
            // The active file and the one before it; a successor may be there already.
            may_change: live && behind <= 2,
        };
        if !walk.run(&mut summary, &mut stopped, behind == 0, &mut show)? {
            break;
        }
    }
    Ok(summary)
}

struct FileWalk<'f> {
    file: &'f FixedFile,
    size: u64,
    window: LogWindow,
    limits: WindowLimits,
    /// Whether a running broker may be writing to it.
    may_change: bool,
}

impl FileWalk<'_> {
    fn run(
        &mut self,
        summary: &mut Summary,
        stopped: &mut bool,
        is_last: bool,
        show: &mut impl FnMut(Found<'_>) -> bool,
    ) -> Result<bool, InspectError> {
        let (base, path) = (self.file.base, self.file.path.clone());
        let mut at = 0;
        while at < self.size {
            let offset = base + at;
            if self.ends_here(at)? {
                let (offset, len) = (base + at, self.size - at);
                return Ok(self.is_gone() || show(Found::Unused { offset, len }));
            }
            let error = match decode(self.record_bytes(at)?) {
                Ok(Decoded::Record(record)) => {
                    let problem = check(&record, offset).err();
                    summary.records += 1;
                    summary.bad_records += u64::from(problem.is_some());
                    // A broker's recovery stops at a wrong checksum.
                    *stopped |= matches!(problem, Some(RecordError::BodyCrc { .. }));
                    summary.records_behind_damage += u64::from(*stopped);
                    at += u64::from(record.size());
                    if !*stopped {
                        summary.end = base + at;
                    }
                    let found = Found::Record {
                        offset,
                        record,
                        problem,
                    };
                    if !show(found) {
                        return Ok(false);
                    }
                    continue;
                }
                Ok(Decoded::Blank { remaining }) => {
                    if !*stopped && !is_last {
                        summary.end = base + self.size;
                    }
                    return Ok(show(Found::Blank { offset, remaining }));
                }
                Err(error) => error,
            };
            if self.is_gone() {
                return Ok(true);
            }
            *stopped = true;
            let len = self.size - at;
            if self.is_zero_from(at)? {
                return Ok(show(Found::Unused { offset, len }));
            }
            let next = self.next_record(at + 1)?;
            let len = next.map_or(len, |next| next - at);
            summary.damages += 1;
            let found = Found::Damage {
                offset,
                path: path.clone(),
                error,
                len,
            };
            if !show(found) {
                return Ok(false);
            }
            at += len;
        }
        Ok(true)
    }

    /// Whether retention of a running broker took the file.
    fn is_gone(&self) -> bool {
        self.limits.active_base == 0 && !self.file.path.exists()
    }

    /// Whether the log of a running broker ends at `at`, or before whatever it is just writing
    /// there. A place that is no record is looked at for a second: a write completes sooner.
    fn ends_here(&mut self, at: u64) -> Result<bool, InspectError> {
        if !self.may_change {
            return Ok(false);
        }
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(BETWEEN_LOOKS);
                self.window.forget();
            }
            let bytes = self.record_bytes(at)?;
            match decode(bytes) {
                Ok(Decoded::Blank { .. }) => return Ok(false),
                Ok(Decoded::Record(record)) if record.check_body().is_ok() => return Ok(false),
                _ => {}
            }
            if self.is_zero_from(at)? {
                return Ok(true);
            }
        }
        Ok(self.next_record(at + 1)?.is_none())
    }

    /// The bytes of the record at `at`, as far as they are in the file: at least those that
    /// tell whether there is one.
    fn record_bytes(&mut self, at: u64) -> Result<&[u8], InspectError> {
        let head = self.bytes(at, FIXED_SIZE)?;
        let is_record = matches!(i32_at(head, 4), Some(MAGIC_V1 | MAGIC_V2));
        let size = i32_at(head, 0)
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(0);
        if !is_record || size as u64 > self.size - at {
            let len = if is_record { FIXED_SIZE } else { BLANK_SIZE };
            return self.bytes(at, len);
        }
        self.bytes(at, size)
    }

    /// The next place from `at` on where a complete record stands.
    fn next_record(&mut self, mut at: u64) -> Result<Option<u64>, InspectError> {
        while at + FIXED_SIZE as u64 <= self.size {
            let window = self.bytes(at, WINDOW)?;
            let magic = |place: &[u8]| {
                matches!(
                    i32_at(place, 4),
                    Some(message::MAGIC_V1 | message::MAGIC_V2)
                )
            };
            let found = window.windows(8).position(magic);
            let seen = window.len() as u64;
            match found {
                Some(skip) => {
                    at += skip as u64;
                    if decode(self.record_bytes(at)?).is_ok() {
                        return Ok(Some(at));
                    }
                    at += 1;
                }
                None => at += seen.saturating_sub(7).max(1),
            }
        }
        Ok(None)
    }

    fn is_zero_from(&mut self, mut at: u64) -> Result<bool, InspectError> {
        while at < self.size {
            let bytes = self.bytes(at, WINDOW)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            if bytes.is_empty() {
                break;
            }
            at += bytes.len() as u64;
        }
        Ok(true)
    }

    /// `len` bytes at `at`, or those up to the end of the file; nothing once the file is gone.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], InspectError> {
        let len = (len as u64).min(self.size - at) as usize;
        let ahead = WINDOW.min((self.size - at) as usize);
        let offset = self.file.base + at;
        let bytes = self.window.bytes(offset, len, self.limits, ahead)?;
        Ok(bytes.unwrap_or_default())
    }
}

fn check(record: &Record<'_>, offset: u64) -> Result<(), RecordError> {
    record.check_body()?;
    record.check_place(offset)?;
    record.check_record_crc().map(|_| ())
}

#[cfg(test)]
mod tests;
