//! Queue and index files that cannot be used: removed, for the log holds all that they say.

use std::path::{Path, PathBuf};

use super::Opening;
use crate::consume_queue::SIZE_KEY;
use crate::error::{FileError, OpenError};
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::layout::{self, LayoutError, list_fixed_files, list_queues, parse_file_name};
use crate::medium;
use crate::rebuild::KnownQueue;

impl Opening<'_> {
    /// Removes queues in which a file is missing or has a wrong size. They are made again from the
    /// log, and their next offsets stay known. Refused where no file has the configured size, for
    /// then the configuration may be what is wrong.
    pub(super) fn drop_spoiled_queues(&mut self) -> Result<(), OpenError> {
        let root = self.layout.consume_queues();
        let size = self.config.queue_file_size();
        let mut spoiled = Vec::new();
        let mut size_is_right = self.resume.as_ref().map(|point| point.queue_file_size)
            == Some(size)
            || self.config.rebuild_queues;
        for (topic, queue_id) in list_queues(&root)? {
            let directory = layout::queue_directory(&root, &topic, queue_id)?;
            match list_fixed_files(&directory, size, SIZE_KEY) {
                Ok(found) => size_is_right |= !found.files.is_empty(),
                Err(error @ (LayoutError::Size { .. } | LayoutError::Missing { .. })) => {
                    size_is_right |= matches!(error, LayoutError::Missing { .. });
                    spoiled.push((topic, queue_id, directory, error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        for (topic, queue_id, directory, error) in spoiled {
            if !size_is_right {
                return Err(error.into());
            }
            tracing::warn!(%error, topic, queue_id, "queue files are made again from the log");
            self.report
                .notes
                .push(format!("{error}; the queue is made again from the log"));
            let next = remove_queue_files(&directory)?;
            let queues = self.known.entry(topic).or_default();
            let known = queues.entry(queue_id).or_insert(KnownQueue {
                min: None,
                max: 0,
                next: 0,
            });
            known.next = known.next.max(next);
        }
        Ok(())
    }
}

/// Removes the files of a queue; returns the offset behind the last entry they held.
fn remove_queue_files(directory: &Path) -> Result<i64, OpenError> {
    let mut next = 0;
    let entries = std::fs::read_dir(directory).map_err(FileError::at("read", directory))?;
    for entry in entries {
        let path = entry.map_err(FileError::at("read", directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(base) = name.and_then(parse_file_name) else {
            continue;
        };
        let bytes = std::fs::read(&path).map_err(FileError::at("read", &path))?;
        let (entries, _) = bytes.as_chunks::<ENTRY_SIZE>();
        let valid = |entry: &&[u8; ENTRY_SIZE]| ConsumeEntry::decode(entry).is_some();
        let count = entries.iter().take_while(valid).count() as u64;
        if count > 0 {
            let end = base / ENTRY_SIZE as u64 + count;
            next = next.max(i64::try_from(end).unwrap_or(0));
        }
        medium::remove_file(&path).map_err(FileError::at("remove", &path))?;
    }
    medium::sync_directory(directory).map_err(FileError::at("sync", directory))?;
    Ok(next)
}

/// Removes all index files: those whose names are numbers.
pub(super) fn remove_index_files(directory: &Path) -> Result<(), OpenError> {
    let entries = std::fs::read_dir(directory).map_err(FileError::at("read", directory))?;
    for entry in entries {
        let path: PathBuf = entry.map_err(FileError::at("read", directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_number = name
            .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()));
        if is_number && path.is_file() {
            medium::remove_file(&path).map_err(FileError::at("remove", &path))?;
        }
    }
    medium::sync_directory(directory).map_err(FileError::at("sync", directory))?;
    Ok(())
}
