//! The disk behind the commit log: one narrow trait, several bodies.
//!
//! `uring` is what production uses, `blocking` where io_uring is refused or the filesystem knows no
//! direct I/O; `memory` and `faulty` drive the same writer in tests. What must always hold: a body
//! takes the bytes from the tail itself, reports every request exactly once, and reports it done
//! only when it is; in which order they are done is its own business.

use std::io;
use std::time::Duration;

pub mod aligned;
pub mod blocking;
pub mod faulty;
pub mod memory;
mod presence;
pub mod probe;
pub mod uring;

/// Most requests that are ever in flight together; bodies size their queues by it.
pub const MAX_REQUESTS: usize = 32;

/// Bytes the log is zeroed by in one request.
pub const ZERO_BYTES: usize = 256 * 1024;
/// Memory that zeros are written from: a huge page, which costs a write one segment instead of one
/// for each small page.
pub const ZERO_MEMORY: usize = 2 << 20;

/// Files attached at a time: the active one and those whose last writes are still under way.
pub const MAX_FILES: usize = 16;

/// A file attached to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSlot(pub u32);

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From this position of the tail ring on; the writer leaves them alone until the write is
    /// over.
    Tail(usize),
    /// Zeros; at most [`ZERO_BYTES`].
    Zeros,
}

/// One thing to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Write bytes to a file.
    Write {
        /// The file.
        file: FileSlot,
        /// Position in the file, in bytes.
        offset: u64,
        /// Bytes to write.
        len: usize,
        /// The bytes.
        source: Source,
        /// Whether they must survive a power cut once the write completes.
        durable: bool,
    },
    /// Make all completed writes to a file survive a power cut.
    Sync {
        /// The file.
        file: FileSlot,
    },
}

/// A request that is over.
#[derive(Debug)]
pub struct Completion {
    /// The ticket the request was submitted with.
    pub ticket: u64,
    /// Bytes written (0 for a sync), or the error. A short write is reported as such.
    pub result: io::Result<usize>,
}

/// A disk as the writer sees it. Used from the writer's thread only.
pub trait Disk {
    /// What is written to.
    type File;

    /// Makes a file known; the writer has at most [`MAX_FILES`] of them attached.
    fn attach(&mut self, file: Self::File) -> io::Result<FileSlot>;

    /// Closes a file without requests in flight.
    fn detach(&mut self, file: FileSlot);

    /// Queues a request; it may start at once or with the next [`Disk::poll`] or [`Disk::wait`].
    fn submit(&mut self, ticket: u64, request: Request);

    /// Starts what is queued now, instead of with the next [`Disk::poll`] or [`Disk::wait`].
    fn start(&mut self) -> io::Result<()>;

    /// Starts what is queued and collects what is over, without waiting.
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Starts what is queued and sleeps until something is over, the writer's bell rings or the
    /// time is up.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}
