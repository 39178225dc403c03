//! The `checkpoint` file, from which Apache RocketMQ recovers (docs/format.md, Checkpoint).
//!
//! Its times never run ahead of what is on disk: a smaller value only makes recovery look at
//! more, a greater one loses entries.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::checkpoint::{CHECKPOINT_FIELDS, CHECKPOINT_SIZE, Checkpoint};
use crate::{medium, regular};

/// The checkpoint file cannot be read or written.
#[derive(Debug, Error)]
#[error("cannot open or write the checkpoint {path}: {source}")]
pub struct CheckpointError {
    path: PathBuf,
    source: io::Error,
}

/// The open file.
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    file: File,
    stored: Checkpoint,
}

impl CheckpointFile {
    /// Opens the file; makes it, full of zeros, when it is missing. A shorter file reads as if
    /// zeros followed, and is made as long as it must be.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let open = || -> io::Result<(File, Checkpoint)> {
            let file = medium::name(path, || {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false);
                regular::open_with(path, &mut options)
            })?;
            let stored = read(&file)?;
            if file.metadata()?.len() < CHECKPOINT_SIZE as u64 {
                file.set_len(CHECKPOINT_SIZE as u64)?;
                medium::sync_file(&file)?;
            }
            Ok((file, stored))
        };
        let (file, stored) = open().map_err(|source| CheckpointError {
            path: path.into(),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            file,
            stored,
        })
    }

    /// What the file holds.
    pub fn stored(&self) -> Checkpoint {
        self.stored
    }

    /// Replaces the fields and waits until they are on disk; the rest of the file stays.
    pub fn update(&mut self, checkpoint: Checkpoint) -> Result<(), CheckpointError> {
        if checkpoint == self.stored {
            return Ok(());
        }
        // All fields lie in one sector: a crash leaves the old ones or the new ones.
        self.file
            .write_all_at(&checkpoint.encode(), 0)
            .and_then(|()| medium::sync_data(&self.file))
            .map_err(|source| CheckpointError {
                path: self.path.clone(),
                source,
            })?;
        self.stored = checkpoint;
        Ok(())
    }
}

fn read(file: &File) -> io::Result<Checkpoint> {
    let mut bytes = [0; CHECKPOINT_FIELDS];
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], len as u64)? {
            0 => break,
            read => len += read,
        }
    }
    Ok(Checkpoint::decode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_checkpoint_is_made_full_size_and_zero() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let file = CheckpointFile::open(&path).unwrap();
        assert_eq!(file.stored(), Checkpoint::default());
        assert_eq!(std::fs::read(&path).unwrap(), vec![0; CHECKPOINT_SIZE]);
    }

    #[test]
    fn an_update_is_read_back_and_leaves_the_rest_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        std::fs::write(&path, vec![0xee; CHECKPOINT_SIZE]).unwrap();
        let checkpoint = Checkpoint {
            log_timestamp: 1_700_000_000_456,
            queue_timestamp: 1_700_000_000_456,
            confirm_offset: 1000,
            ..Checkpoint::default()
        };
        let mut file = CheckpointFile::open(&path).unwrap();
        file.update(checkpoint).unwrap();
        assert_eq!(CheckpointFile::open(&path).unwrap().stored(), checkpoint);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..CHECKPOINT_FIELDS], checkpoint.encode());
        assert!(bytes[CHECKPOINT_FIELDS..].iter().all(|byte| *byte == 0xee));
    }

    #[test]
    fn a_short_checkpoint_reads_as_zeros_and_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        std::fs::write(&path, 7i64.to_be_bytes()).unwrap();
        let file = CheckpointFile::open(&path).unwrap();
        assert_eq!(
            file.stored(),
            Checkpoint {
                log_timestamp: 7,
                ..Checkpoint::default()
            }
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().len(),
            CHECKPOINT_SIZE as u64
        );
    }
}
