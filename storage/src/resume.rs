//! Our own resume point: how far queues and index are on disk (docs/durability.md, Resume point).
//!
//! Recovery after a crash takes queues and index back to the resume point's log offset and
//! dispatches the log again from there. The file also keeps each queue's next offset, which
//! expired records would otherwise take with them. It is replaced whole: after a crash either
//! the old or the new one is there, and a damaged one counts as none. The old one stays beside it
//! and is written over next time, so that a full disk does not stop retention, which needs resume
//! points to free space. Apache RocketMQ does not look at it; a store that Apache has written to
//! since is recognised by the log offset.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::index_entry::{INDEX_HEADER_SIZE, IndexHeader};
use crate::index_file::IndexMark;
use crate::{medium, regular};

const MAGIC: &[u8; 8] = b"SaturnRP";
const VERSION: u32 = 5;
/// As [`VERSION`], but queues and index are in doubt.
const DOUBT_VERSION: u32 = 6;
/// The version before, and the same in doubt, without the log's ends; it is still read.
const ENDLESS_VERSION: u32 = 3;
const ENDLESS_DOUBT_VERSION: u32 = 4;
/// The first version, without sizes, counts and min offsets too; it is still read.
const OLD_VERSION: u32 = 2;
/// The largest file that is read: some ten million queues.
const SIZE_MAX: u64 = 1 << 30;

/// How far the store was on disk.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ResumePoint {
    /// Queues and index were being made again from the log when this was stored: they are made
    /// again once more, whatever stands in them.
    pub in_doubt: bool,
    /// Every record that ends at or before this log offset has its queue and index entries on
    /// disk.
    pub log_offset: u64,
    /// Log offset of the last of these records; the resume point's own where there is none.
    pub last_record: u64,
    /// Store time of the last of these records, ms. A checkpoint with later times was written
    /// by another broker, and the log may have changed since.
    pub last_timestamp: i64,
    /// Log offset of the first byte that was kept; `None` if that was not noted.
    pub log_min: Option<u64>,
    /// Log offset up to which the log was on the disk: `log_offset`, or behind it where damage
    /// stands between.
    pub known_to: u64,
    /// Size of queue files, in bytes; 0 if that was not noted.
    pub queue_file_size: u64,
    /// How many index files there were; 0 if that was not noted.
    pub index_files: u32,
    /// Where the index stood.
    pub index: Option<IndexMark>,
    /// All queues.
    pub queues: Vec<ResumeQueue>,
}

/// A queue at the resume point.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResumeQueue {
    /// Topic.
    pub topic: String,
    /// Queue id.
    pub queue_id: i32,
    /// The first offset that could be read; `None` if that was not noted.
    pub min_offset: Option<i64>,
    /// Where the queue ended: after the last record that ends at the log offset, or somewhat
    /// later.
    pub max_offset: i64,
    /// No record stored in a later run gets a smaller queue offset, even if the queue's files
    /// are lost.
    pub next_offset: i64,
}

/// Why there is no resume point.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what was written.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl ResumePoint {
    /// Reads the resume point; `None` when there is no file.
    pub fn load(path: &Path) -> Result<Option<Self>, ResumeError> {
        let failed = |source| ResumeError::File {
            path: path.into(),
            source,
        };
        let damaged = |why| ResumeError::Damaged {
            path: path.into(),
            why,
        };
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
            Ok(metadata) if metadata.len() > SIZE_MAX => return Err(damaged("it is too large")),
            Ok(_) => {}
        }
        let bytes = regular::read(path).map_err(failed)?;
        Self::decode(&bytes).map(Some).map_err(damaged)
    }

    /// Replaces the file at `path` and waits until that is on disk.
    pub fn store(&self, path: &Path) -> Result<(), ResumeError> {
        let temporary = path.with_extension("resume.tmp");
        let parent = path.parent().unwrap_or(Path::new("."));
        let write = || {
            write_beside(&temporary, parent, &self.encode())?;
            // No such pair yet, or no such call on this filesystem: the old one is given up.
            medium::exchange(&temporary, path).or_else(|_| medium::rename(&temporary, path))?;
            medium::sync_directory(parent)
        };
        write().map_err(|source| {
            // What is in doubt is not written over. Where it cannot be removed, the next try fails
            // as well.
            let _ = medium::remove_file(&temporary);
            ResumeError::File {
                path: path.into(),
                source,
            }
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.queues.len() * 48);
        out.extend_from_slice(MAGIC);
        let version = if self.in_doubt {
            DOUBT_VERSION
        } else {
            VERSION
        };
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&self.log_offset.to_be_bytes());
        out.extend_from_slice(&self.last_record.to_be_bytes());
        out.extend_from_slice(&self.last_timestamp.to_be_bytes());
        out.extend_from_slice(&self.log_min.unwrap_or(u64::MAX).to_be_bytes());
        out.extend_from_slice(&self.known_to.to_be_bytes());
        out.extend_from_slice(&self.queue_file_size.to_be_bytes());
        out.extend_from_slice(&self.index_files.to_be_bytes());
        match &self.index {
            Some(mark) => {
                put_text(&mut out, &mark.name);
                out.extend_from_slice(&mark.header.encode());
            }
            None => put_text(&mut out, ""),
        }
        out.extend_from_slice(&(self.queues.len() as u32).to_be_bytes());
        for queue in &self.queues {
            put_text(&mut out, &queue.topic);
            out.extend_from_slice(&queue.queue_id.to_be_bytes());
            out.extend_from_slice(&queue.min_offset.unwrap_or(-1).to_be_bytes());
            out.extend_from_slice(&queue.max_offset.to_be_bytes());
            out.extend_from_slice(&queue.next_offset.to_be_bytes());
        }
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (content, crc) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
        if crc32fast::hash(content) != u32::from_be_bytes(*crc) {
            return Err("its checksum is wrong");
        }
        let mut rest = Rest(content);
        let is_ours = rest.array::<8>()? == *MAGIC;
        let version = u32::from_be_bytes(rest.array()?);
        if !is_ours || !matches!(version, OLD_VERSION | ENDLESS_VERSION..=DOUBT_VERSION) {
            return Err("it is of another version");
        }
        let is_old = version == OLD_VERSION;
        let has_ends = version > ENDLESS_DOUBT_VERSION;
        let log_offset = u64::from_be_bytes(rest.array()?);
        let last_record = u64::from_be_bytes(rest.array()?);
        let last_timestamp = i64::from_be_bytes(rest.array()?);
        let (log_min, known_to) = match has_ends {
            true => {
                let log_min = u64::from_be_bytes(rest.array()?);
                let known_to = u64::from_be_bytes(rest.array()?);
                (Some(log_min).filter(|min| *min < u64::MAX), known_to)
            }
            false => (None, log_offset),
        };
        let queue_file_size = match is_old {
            true => 0,
            false => u64::from_be_bytes(rest.array()?),
        };
        let index_files = match is_old {
            true => 0,
            false => u32::from_be_bytes(rest.array()?),
        };
        let name = rest.text()?;
        let index = if name.is_empty() {
            None
        } else {
            let header = IndexHeader::decode(&rest.array::<INDEX_HEADER_SIZE>()?);
            Some(IndexMark { name, header })
        };
        let count = u32::from_be_bytes(rest.array()?);
        let mut queues = Vec::new();
        for _ in 0..count {
            queues.push(ResumeQueue {
                topic: rest.text()?,
                queue_id: i32::from_be_bytes(rest.array()?),
                min_offset: match is_old {
                    true => None,
                    false => Some(i64::from_be_bytes(rest.array()?)).filter(|min| *min >= 0),
                },
                max_offset: i64::from_be_bytes(rest.array()?),
                next_offset: i64::from_be_bytes(rest.array()?),
            });
        }
        if !rest.0.is_empty() {
            return Err("there is more in it than it says");
        }
        Ok(Self {
            in_doubt: matches!(version, DOUBT_VERSION | ENDLESS_DOUBT_VERSION),
            log_offset,
            last_record,
            last_timestamp,
            log_min,
            known_to,
            queue_file_size,
            index_files,
            index,
            queues,
        })
    }
}

/// Makes `bytes` what the file at `temporary` holds, durably: in the place of what it holds
/// already, if there is one.
fn write_beside(temporary: &Path, parent: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = match regular::open_with(temporary, File::options().write(true)) {
        Ok(file) => {
            // As long as names are not durable, it may be the resume point of after a crash.
            medium::sync_directory(parent)?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            medium::name(temporary, || File::create(temporary))?
        }
        Err(error) => return Err(error),
    };
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    medium::sync_file(&file)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Topics and file names are at most 255 bytes; more could not be read back.
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (array, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*array)
    }

    fn text(&mut self) -> Result<String, &'static str> {
        let len = usize::from(u16::from_be_bytes(self.array()?));
        let (text, rest) = self.0.split_at_checked(len).ok_or("it ends too early")?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| "a name in it is not UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> ResumePoint {
        let header = IndexHeader {
            begin_offset: 5,
            next_item: 9,
            ..IndexHeader::default()
        };
        let queue = |topic: &str, queue_id, next_offset| ResumeQueue {
            topic: topic.to_owned(),
            queue_id,
            min_offset: (queue_id > 0).then_some(3),
            max_offset: next_offset - 1,
            next_offset,
        };
        ResumePoint {
            in_doubt: false,
            log_offset: 123_456,
            last_record: 123_400,
            last_timestamp: 1_700_000_000_456,
            log_min: Some(100),
            known_to: 123_789,
            queue_file_size: 6_000_000,
            index_files: 2,
            index: Some(IndexMark {
                name: "20231114221320456".to_owned(),
                header,
            }),
            queues: vec![queue("%RETRY%g", 0, 7), queue("T", 3, i64::MAX)],
        }
    }

    #[test]
    fn what_was_stored_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.resume");
        assert_eq!(ResumePoint::load(&path).unwrap(), None);
        let in_doubt = ResumePoint {
            in_doubt: true,
            ..point()
        };
        for point in [
            ResumePoint::default(),
            point(),
            in_doubt,
            ResumePoint::default(),
        ] {
            point.store(&path).unwrap();
            assert_eq!(ResumePoint::load(&path).unwrap(), Some(point));
        }
        let names = fs::read_dir(dir.path()).unwrap();
        assert_eq!(names.count(), 2, "itself and the one before");
    }

    /// The bytes of `point`, without queues, as that version wrote them: all but those at `gone`;
    /// then `queues`.
    fn as_before(
        point: &ResumePoint,
        version: u32,
        gone: std::ops::Range<usize>,
        queues: &[u8],
    ) -> Vec<u8> {
        let mut bytes = point.encode();
        bytes[8..12].copy_from_slice(&version.to_be_bytes());
        bytes.drain(gone);
        bytes.truncate(bytes.len() - 8);
        bytes.extend_from_slice(queues);
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    #[test]
    fn files_of_the_versions_before_are_read() {
        let mut old = ResumePoint {
            log_min: None,
            known_to: 123_456,
            queues: Vec::new(),
            ..point()
        };
        let none = 0u32.to_be_bytes();
        for in_doubt in [false, true] {
            old.in_doubt = in_doubt;
            let version = ENDLESS_VERSION + u32::from(in_doubt);
            let bytes = as_before(&old, version, 36..52, &none);
            assert_eq!(ResumePoint::decode(&bytes), Ok(old.clone()));
        }
        old = ResumePoint {
            in_doubt: false,
            queue_file_size: 0,
            index_files: 0,
            ..old
        };
        let mut queues = 1u32.to_be_bytes().to_vec();
        put_text(&mut queues, "T");
        queues.extend_from_slice(&3i32.to_be_bytes());
        queues.extend_from_slice(&6i64.to_be_bytes());
        queues.extend_from_slice(&7i64.to_be_bytes());
        let bytes = as_before(&old, OLD_VERSION, 36..64, &queues);
        let queue = ResumeQueue {
            topic: "T".to_owned(),
            queue_id: 3,
            min_offset: None,
            max_offset: 6,
            next_offset: 7,
        };
        let queues = vec![queue];
        assert_eq!(
            ResumePoint::decode(&bytes),
            Ok(ResumePoint { queues, ..old })
        );
    }

    #[test]
    fn a_file_cut_or_changed_anywhere_counts_as_damaged() {
        let bytes = point().encode();
        for cut in 0..bytes.len() {
            assert!(ResumePoint::decode(&bytes[..cut]).is_err(), "{cut}");
            let mut changed = bytes.clone();
            changed[cut] ^= 0x40;
            assert_eq!(
                ResumePoint::decode(&changed),
                Err("its checksum is wrong"),
                "{cut}"
            );
        }
        // Damage that the checksum agrees with is read with checks all the same.
        for at in 0..bytes.len() - 4 {
            let mut changed = bytes[..bytes.len() - 4].to_vec();
            changed[at] = 0xff;
            let crc = crc32fast::hash(&changed);
            changed.extend_from_slice(&crc.to_be_bytes());
            let _ = ResumePoint::decode(&changed);
        }
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.resume");
        fs::write(&path, b"nonsense").unwrap();
        let text = ResumePoint::load(&path).unwrap_err().to_string();
        assert_eq!(
            text,
            format!("{} is damaged: its checksum is wrong", path.display())
        );
    }
}
