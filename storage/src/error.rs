//! Why a store could not be opened, read or closed.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::CheckpointError;
use crate::consume_queue::ConsumeQueueError;
use crate::index_file::IndexError;
use crate::layout::LayoutError;
use crate::mapping::MappingError;
use crate::resume::ResumeError;
use crate::segments::is_no_space;
use crate::tail::TailError;

/// A file operation that failed: what was tried, where, and what the system said.
#[derive(Debug, Error)]
#[error("cannot {what} {}: {source}", path.display())]
pub struct FileError {
    /// What was tried, as a verb: "create", "lock", "read".
    pub what: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: names the operation and the path.
    pub fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_path_buf();
        move |source| FileError { what, path, source }
    }
}

/// Why [`Store::open`](crate::store::Store::open) refused.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process, or this one, has the store open.
    #[error(
        "the store at {} is in use{}; stop the other broker or use another storePathRootDir",
        root.display(),
        holder.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The store's root.
        root: PathBuf,
        /// Process that holds the lock, where the system tells.
        holder: Option<i32>,
    },
    /// The commit log, which lies elsewhere than in this store, is another store's, too.
    #[error(
        "the commit log in {} is in use{}; stop the other broker or use another storePathCommitLog",
        directory.display(),
        holder.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    LogLocked {
        /// The log's directory.
        directory: PathBuf,
        /// Process that holds the lock of the store around it, where the system tells.
        holder: Option<i32>,
    },
    /// A file that does not belong where it stands, has the wrong length or is missing, or queues
    /// kept in RocksDB.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A consume queue cannot be opened or repaired.
    #[error(transparent)]
    Queue(#[from] ConsumeQueueError),
    /// The index cannot be opened or repaired.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The checkpoint cannot be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The first resume point cannot be made.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// The tail cache cannot be made.
    #[error(transparent)]
    Tail(#[from] TailError),
    /// The configuration contradicts itself or the directory.
    #[error("{0}")]
    Config(String),
    /// A directory cannot be written.
    #[error(
        "{} is not writable by this user ({source}); \
         give it to the broker's user or set storePathRootDir",
        path.display()
    )]
    NotWritable {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A thread could not be started.
    #[error("cannot start the {name} thread: {source}")]
    Thread {
        /// Which one.
        name: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The store's own structures are inconsistent beyond repair.
    #[error("cannot recover the store: {0}")]
    Recovery(String),
}

impl OpenError {
    /// Whether there was no room for an entry: that heals.
    pub(crate) fn is_no_space(&self) -> bool {
        match self {
            Self::Queue(ConsumeQueueError::Mapping(error))
            | Self::Index(IndexError::Mapping(error)) => error.is_no_space(),
            Self::Queue(ConsumeQueueError::File { source, .. })
            | Self::Index(IndexError::File { source, .. }) => is_no_space(source),
            _ => false,
        }
    }
}

/// Why a message could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The bytes at this place are no intact record; they are never served.
    #[error("damaged record at log offset {offset} in {}: {problem}", path.display())]
    Damaged {
        /// Log offset of the record.
        offset: u64,
        /// The commit-log file it lies in.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// A queue entry is wrong and is being made again; the same read succeeds a little later.
    #[error(
        "the entry at offset {offset} of queue {queue_id} of topic {topic} is damaged and is being \
         made again from the commit log; try again"
    )]
    Mending {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: i32,
        /// The queue offset.
        offset: i64,
    },
    /// A queue file could not be mapped, or failed while it was read.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The index could not be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a record's entries could not be stored.
#[derive(Debug, Error)]
pub enum DispatchError {
    /// The queue entry.
    #[error(transparent)]
    Queue(#[from] ConsumeQueueError),
    /// The index entries.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The record is no longer in memory, where the writer keeps it until it is dispatched.
    #[error("the record at log offset {offset} cannot be read back")]
    NotInTail {
        /// Log offset of its first byte.
        offset: u64,
    },
}

/// Why a resume point could not be made.
#[derive(Debug, Error)]
pub enum FlushError {
    /// A queue file could not be synced.
    #[error(transparent)]
    Queue(#[from] ConsumeQueueError),
    /// An index file could not be synced.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The resume point could not be written.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A sync failed earlier, and the kernel may have dropped what it was to write.
    #[error("a sync failed earlier ({0}); the next start makes what is missing from the log")]
    Lost(String),
}

impl FlushError {
    /// Whether a repeated sync could report a success that never happened.
    pub(crate) fn is_lost(&self) -> bool {
        let (source, synced) = match self {
            Self::Queue(ConsumeQueueError::Mapping(MappingError::File {
                action, source, ..
            }))
            | Self::Index(IndexError::Mapping(MappingError::File { action, source, .. })) => {
                (source, *action == "sync")
            }
            Self::Queue(ConsumeQueueError::File { source, .. })
            | Self::Index(IndexError::File { source, .. }) => (source, true),
            _ => return false,
        };
        let passing = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR];
        synced
            && source
                .raw_os_error()
                .is_none_or(|error| !passing.contains(&error))
    }
}

/// Why queue or index files of expired records could not be deleted.
#[derive(Debug, Error)]
pub enum RetentionError {
    /// A queue file.
    #[error(transparent)]
    Queue(#[from] ConsumeQueueError),
    /// An index file.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// Why a store was not closed cleanly; it will be recovered when it is opened next.
#[derive(Debug, Error)]
pub enum CloseError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Queues, index or the resume point could not be made durable.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// A thread did not end in time or panicked.
    #[error("the {0} thread did not end")]
    Thread(&'static str),
    /// Something was left to dispatch; `abort` stays, so that the queues are completed at the next
    /// start.
    #[error("{bytes} bytes of the log are not dispatched yet; the next start completes the queues")]
    Lagging {
        /// Log bytes without queue entries.
        bytes: u64,
    },
    /// Writing to the log failed earlier; `abort` stays.
    #[error("the log was read-only: {0}")]
    ReadOnly(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_is_lost_and_a_failed_open_is_not() {
        let error = |action, errno| {
            FlushError::Queue(ConsumeQueueError::Mapping(MappingError::File {
                action,
                path: PathBuf::new(),
                source: io::Error::from_raw_os_error(errno),
            }))
        };
        assert!(error("sync", libc::EIO).is_lost());
        assert!(!error("sync", libc::EINTR).is_lost());
        assert!(!error("open", libc::EIO).is_lost());
    }
}
