//! Reading a commit log that no broker has open, and saying what is wrong with it.
//!
//! Nothing is written. Behind a damaged place the walk looks for the next complete record in
//! the same file, so that everything readable is found, and goes on with the next file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::message::{BLANK_SIZE, FIXED_SIZE, MAGIC_V1, MAGIC_V2};
use crate::format::record::{Decoded, Record, RecordError, decode};
use crate::format::{i32_at, message};
use crate::layout::{self, FixedFile, LayoutError};

/// Bytes read at once.
const WINDOW: usize = 1 << 20;
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
/// everything found to `show`, in order.
pub fn walk(
    directory: &Path,
    file_size: u64,
    mut show: impl FnMut(Found<'_>),
) -> Result<Summary, InspectError> {
    let files = layout::list_fixed_files(directory, file_size, SIZE_KEY)?.files;
    let mut summary = Summary {
        files: files.len(),
        ..Summary::default()
    };
    summary.begin = files.first().map_or(0, |file| file.base);
    summary.end = summary.begin;
    let mut stopped = false;
    for (index, file) in files.iter().enumerate() {
        let is_last = index + 1 == files.len();
        let mut walk = FileWalk::open(file, file_size)?;
        walk.run(&mut summary, &mut stopped, is_last, &mut show)?;
    }
    Ok(summary)
}

struct FileWalk<'f> {
    file: &'f FixedFile,
    handle: File,
    size: u64,
    window: Vec<u8>,
    /// Position in the file of the window's first byte.
    window_at: u64,
}

impl<'f> FileWalk<'f> {
    fn open(file: &'f FixedFile, size: u64) -> Result<Self, InspectError> {
        let handle = File::open(&file.path).map_err(|source| InspectError::File {
            path: file.path.clone(),
            source,
        })?;
        Ok(Self {
            file,
            handle,
            size,
            window: Vec::new(),
            window_at: 0,
        })
    }

    fn run(
        &mut self,
        summary: &mut Summary,
        stopped: &mut bool,
        is_last: bool,
        show: &mut impl FnMut(Found<'_>),
    ) -> Result<(), InspectError> {
        let (base, path) = (self.file.base, self.file.path.clone());
        let mut at = 0;
        while at < self.size {
            let offset = base + at;
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
                    show(Found::Record {
                        offset,
                        record,
                        problem,
                    });
                    continue;
                }
                Ok(Decoded::Blank { remaining }) => {
                    show(Found::Blank { offset, remaining });
                    if !*stopped && !is_last {
                        summary.end = base + self.size;
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            *stopped = true;
            let len = self.size - at;
            if self.is_zero_from(at)? {
                show(Found::Unused { offset, len });
                return Ok(());
            }
            let next = self.next_record(at + 1)?;
            let len = next.map_or(len, |next| next - at);
            summary.damages += 1;
            show(Found::Damage {
                offset,
                path: path.clone(),
                error,
                len,
            });
            at += len;
        }
        Ok(())
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
            at += bytes.len() as u64;
        }
        Ok(true)
    }

    /// `len` bytes at `at`, or those up to the end of the file.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], InspectError> {
        let len = (len as u64).min(self.size - at) as usize;
        let window_end = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + len as u64 > window_end {
            let wanted = (len.max(WINDOW) as u64).min(self.size - at) as usize;
            self.window.resize(wanted, 0);
            self.window_at = at;
            self.handle
                .read_exact_at(&mut self.window, at)
                .map_err(|source| InspectError::File {
                    path: self.file.path.clone(),
                    source,
                })?;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..from + len])
    }
}

fn check(record: &Record<'_>, offset: u64) -> Result<(), RecordError> {
    record.check_body()?;
    record.check_place(offset)?;
    record.check_record_crc().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::message::{MessageParts, assign, blank_record, encode_into, encoded_len};

    const SIZE: usize = 4096;

    fn record(body: &[u8], offset: u64) -> Vec<u8> {
        let host = "127.0.0.1:10911".parse().unwrap();
        let parts = MessageParts {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: &[],
        };
        let mut bytes = vec![0; encoded_len(&parts).unwrap()];
        encode_into(&parts, &mut bytes).unwrap();
        assign(&mut bytes, 0, offset, 1);
        bytes
    }

    /// Two files: ten records and a blank one; three records.
    fn log() -> (tempfile::TempDir, Vec<u8>, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Vec::new();
        for number in 0..10 {
            let record = record(&[number; 200], first.len() as u64);
            first.extend_from_slice(&record);
        }
        let remaining = (SIZE - first.len()) as u32;
        first.extend_from_slice(&blank_record(remaining));
        first.resize(SIZE, 0);
        let mut second = Vec::new();
        for number in 0..3 {
            let record = record(&[number; 200], (SIZE + second.len()) as u64);
            second.extend_from_slice(&record);
        }
        second.resize(SIZE, 0);
        store(&dir, &first, &second);
        (dir, first, second)
    }

    fn store(dir: &tempfile::TempDir, first: &[u8], second: &[u8]) {
        std::fs::write(dir.path().join(layout::file_name(0)), first).unwrap();
        std::fs::write(dir.path().join(layout::file_name(SIZE as u64)), second).unwrap();
    }

    fn inspect(dir: &tempfile::TempDir) -> (Summary, Vec<String>) {
        let mut seen = Vec::new();
        let summary = walk(dir.path(), SIZE as u64, |found| match found {
            Found::Record { problem: None, .. } => {}
            Found::Record {
                offset,
                problem: Some(problem),
                ..
            } => {
                seen.push(format!("{offset}: {problem}"));
            }
            Found::Blank { offset, remaining } => seen.push(format!("{offset}: blank {remaining}")),
            Found::Damage {
                offset,
                error,
                len,
                path,
            } => {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                seen.push(format!("{offset} in {name}: {len} bytes, {error}"));
            }
            Found::Unused { offset, len } => seen.push(format!("{offset}: unused {len}")),
        });
        (summary.unwrap(), seen)
    }

    #[test]
    fn a_sound_log_is_walked_from_end_to_end() {
        let (dir, ..) = log();
        let (summary, seen) = inspect(&dir);
        let size = 92 + 200;
        assert_eq!(seen, ["2920: blank 1176", "4972: unused 3220"]);
        let end = (SIZE + 3 * size) as u64;
        let expected = Summary {
            files: 2,
            records: 13,
            end,
            ..Summary::default()
        };
        assert_eq!(summary, expected);
    }

    #[test]
    fn damage_is_named_with_offset_and_file_and_what_follows_is_found() {
        let (dir, mut first, second) = log();
        first[292 + 4..292 + 100].fill(0xee);
        store(&dir, &first, &second);
        let (summary, seen) = inspect(&dir);
        let damage = "292 in 00000000000000000000: 292 bytes, \
                      magic number eeeeeeee is no record's";
        assert_eq!(seen[0], damage);
        assert_eq!(
            (summary.end, summary.records, summary.damages),
            (292, 12, 1)
        );
        assert_eq!(summary.records_behind_damage, 11);
    }

    #[test]
    fn a_damaged_body_and_a_misplaced_record_are_named() {
        let (dir, mut first, mut second) = log();
        first[100] ^= 1;
        second[35] ^= 1;
        store(&dir, &first, &second);
        let (summary, seen) = inspect(&dir);
        assert!(
            seen[0].starts_with("0: the body's checksum is "),
            "{seen:?}"
        );
        assert_eq!(
            seen[2],
            "4096: the record's own log offset is 4097, it stands at 4096"
        );
        assert_eq!(
            (summary.end, summary.bad_records, summary.damages),
            (0, 2, 0)
        );
    }

    #[test]
    fn no_damage_of_a_byte_stops_the_walk() {
        let (dir, first, second) = log();
        for at in (0..700).chain(2900..2940) {
            let mut changed = first.clone();
            changed[at] = !changed[at];
            store(&dir, &changed, &second);
            let (summary, _) = inspect(&dir);
            assert!(summary.records >= 11, "{at}: {summary:?}");
        }
    }

    #[test]
    fn an_empty_directory_is_an_empty_log() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(inspect(&dir), (Summary::default(), vec![]));
    }
}
