//! The disk through blocking `pwritev2` from the writer's thread, for hosts that refuse io_uring
//! and for filesystems without direct I/O (the files it is given decide which).

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use rustix::io::ReadWriteFlags;

use super::aligned::AlignedMemory;
use super::{Completion, Disk, FileSlot, MAX_FILES, MAX_REQUESTS, Request, Source, ZERO_MEMORY};
use crate::append_queue::Doorbell;
use crate::tail::Tail;

/// `RWF_DONTCACHE`: written back and dropped from the page cache at once (Linux 6.14).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// See the module's description.
pub struct BlockingDisk {
    tail: Arc<Tail>,
    zeros: AlignedMemory,
    bell: Arc<Doorbell>,
    files: [Option<File>; MAX_FILES],
    done: Vec<Completion>,
    dont_cache: bool,
}

impl BlockingDisk {
    /// A disk writing from `tail`. `buffered` says that the files go through the page cache.
    pub fn new(tail: Arc<Tail>, bell: Arc<Doorbell>, buffered: bool) -> io::Result<BlockingDisk> {
        Ok(BlockingDisk {
            tail,
            zeros: AlignedMemory::new(ZERO_MEMORY)?,
            bell,
            files: [const { None }; MAX_FILES],
            done: Vec::with_capacity(MAX_REQUESTS),
            dont_cache: buffered,
        })
    }

    fn perform(&mut self, request: Request) -> io::Result<usize> {
        match request {
            Request::Sync { file } => self.file(file)?.sync_data().map(|()| 0),
            Request::Write {
                file,
                offset,
                len,
                source,
                durable,
            } => {
                let durably = if durable {
                    ReadWriteFlags::DSYNC
                } else {
                    ReadWriteFlags::empty()
                };
                let extra = if self.dont_cache && !durable {
                    DONTCACHE
                } else {
                    ReadWriteFlags::empty()
                };
                let written = self.write(file, offset, len, source, durably | extra);
                match written {
                    Err(error) if !extra.is_empty() && is_unsupported(&error) => {
                        self.dont_cache = false;
                        self.write(file, offset, len, source, durably)
                    }
                    other => other,
                }
            }
        }
    }

    fn file(&self, slot: FileSlot) -> io::Result<&File> {
        let file = self.files.get(slot.0 as usize).and_then(Option::as_ref);
        file.ok_or_else(|| io::Error::other("the log file is not attached"))
    }

    fn write(
        &mut self,
        file: FileSlot,
        offset: u64,
        len: usize,
        source: Source,
        flags: ReadWriteFlags,
    ) -> io::Result<usize> {
        match source {
            Source::Zeros => {
                let zeros = &self.zeros.as_mut_slice()[..len];
                // Not `self.file`: the zeros are borrowed mutably from beside it.
                let file = self.files.get(file.0 as usize).and_then(Option::as_ref);
                let file = file.ok_or_else(|| io::Error::other("the log file is not attached"))?;
                write_at(file, offset, zeros, flags)
            }
            Source::Tail(position) => {
                let file = self.file(file)?;
                self.tail
                    .with_submitted(position, len, |bytes| write_at(file, offset, bytes, flags))
            }
        }
    }
}

fn write_at(file: &File, offset: u64, bytes: &[u8], flags: ReadWriteFlags) -> io::Result<usize> {
    loop {
        match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], offset, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

impl Disk for BlockingDisk {
    type File = File;

    fn attach(&mut self, file: File) -> io::Result<FileSlot> {
        let free = self.files.iter().position(Option::is_none);
        let index = free.ok_or_else(|| io::Error::other("too many log files in use"))?;
        self.files[index] = Some(file);
        Ok(FileSlot(index as u32))
    }

    fn detach(&mut self, file: FileSlot) {
        self.files[file.0 as usize] = None;
    }

    fn submit(&mut self, ticket: u64, request: Request) {
        let result = self.perform(request);
        self.done.push(Completion { ticket, result });
    }

    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        done.append(&mut self.done);
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.done.is_empty() {
            return Ok(());
        }
        let timeout = match timeout {
            None => PollTimeout::NONE,
            // A wait under a millisecond still waits.
            Some(time) => {
                PollTimeout::try_from(time.as_millis().max(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut polled = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut polled, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Ok(_) => {
                self.bell.hush();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
