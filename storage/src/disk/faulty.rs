//! A disk in memory that misbehaves by seed: it reorders, tears, loses, shortens and fails
//! requests. The same seed replays the same run.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::memory::{Attached, Images, bytes_of, store};
use super::{Completion, Disk, FileSlot, Request};
use crate::tail::Tail;

/// Smallest piece of a write that reaches the medium whole, in bytes.
const SECTOR: usize = 512;

/// A small generator of pseudo-random numbers (SplitMix64): repeatable and good enough for tests.
#[derive(Clone, Debug)]
pub struct Seed(pub u64);

impl Seed {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit.max(1)
    }

    /// True `part` times in `whole`.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }
}

/// How often a disk misbehaves, per thousand requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Writes that fail.
    pub failed_writes: u64,
    /// Writes that are reported shorter than asked.
    pub short_writes: u64,
    /// Syncs that fail.
    pub failed_syncs: u64,
}

/// Where a disk that misbehaves keeps its bytes: what a reader sees (live) and what a power cut
/// leaves (durable).
pub trait Medium {
    /// What is written to.
    type File;

    /// Makes a file known; returns the number it has from now on.
    fn open(&mut self, file: Self::File) -> io::Result<u64>;

    /// A write that completed.
    fn write(&mut self, file: u64, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()>;

    /// A part of a write that failed, or that was under way when the machine stopped, reached the
    /// medium.
    fn land(&mut self, file: u64, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// A sync that completed.
    fn sync(&mut self, file: u64) -> io::Result<()>;

    /// A sync failed: what it was to make durable may count as stored all the same.
    fn lose(&mut self, file: u64) -> io::Result<()>;
}

/// A request under way.
struct Pending {
    ticket: u64,
    request: Request,
    /// The bytes as they were at submission: they must still be the same at completion.
    bytes: Vec<u8>,
}

/// See the module's description.
pub struct FaultyDisk<M = Images> {
    tail: Arc<Tail>,
    medium: M,
    attached: Attached,
    pending: Vec<Pending>,
    seed: Seed,
    faults: Faults,
}

impl FaultyDisk<Images> {
    /// A power cut now: returns what the medium holds. Of writes under way, and of completed ones
    /// that no sync covers, any sectors may have reached it.
    pub fn crash(mut self) -> Images {
        let unsynced = std::mem::take(&mut self.medium.lock().unsynced);
        for (base, offset, bytes) in unsynced {
            self.tear(base, offset as u64, &bytes);
        }
        self.stop();
        self.medium.clone()
    }
}

impl<M: Medium> FaultyDisk<M> {
    /// A disk writing from `tail` onto `medium`, misbehaving as `faults` and `seed` say.
    pub fn new(tail: Arc<Tail>, medium: M, faults: Faults, seed: u64) -> FaultyDisk<M> {
        let (attached, pending) = (Attached::default(), Vec::new());
        FaultyDisk {
            tail,
            medium,
            attached,
            pending,
            seed: Seed(seed),
            faults,
        }
    }

    /// Changes how it misbehaves.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// The machine, or the process, stops: of writes under way any sectors reach the medium.
    pub fn stop(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            if let Request::Write { file, offset, .. } = pending.request
                && let Ok(number) = self.attached.base(file)
            {
                self.tear(number, offset, &pending.bytes);
            }
        }
    }

    /// Lets some sectors of a write through: all, none, a first part, or any.
    fn tear(&mut self, file: u64, offset: u64, bytes: &[u8]) {
        let sectors = bytes.len().div_ceil(SECTOR) as u64;
        let kind = self.seed.below(8);
        let first = self.seed.below(sectors + 1);
        for (index, sector) in bytes.chunks(SECTOR).enumerate() {
            let lands = match kind {
                0 => false,
                1 => true,
                2 => (index as u64) < first,
                _ => self.seed.chance(1, 2),
            };
            if lands {
                // A file that does not exist loses nothing.
                let _ = self
                    .medium
                    .land(file, offset + (index * SECTOR) as u64, sector);
            }
        }
    }

    fn finish(&mut self, pending: &Pending) -> io::Result<usize> {
        match pending.request {
            Request::Sync { file } => {
                let number = self.attached.base(file)?;
                if self.seed.chance(self.faults.failed_syncs, 1000) {
                    self.medium.lose(number)?;
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                self.medium.sync(number).map(|()| 0)
            }
            Request::Write {
                file,
                offset,
                len,
                source,
                durable,
            } => {
                let unchanged = bytes_of(&self.tail, len, source) == pending.bytes;
                assert!(unchanged, "bytes changed between submission and completion");
                let number = self.attached.base(file)?;
                let failed = self.seed.chance(self.faults.failed_writes, 1000);
                let short = self.seed.chance(self.faults.short_writes, 1000);
                if failed {
                    self.tear(number, offset, &pending.bytes);
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                if short {
                    let sectors = self.seed.below((len / SECTOR) as u64) as usize;
                    self.tear(number, offset, &pending.bytes);
                    return Ok(sectors * SECTOR);
                }
                self.medium.write(number, offset, &pending.bytes, durable)?;
                Ok(len)
            }
        }
    }
}

impl Medium for Images {
    /// Log offset of the file's first byte.
    type File = u64;

    fn open(&mut self, file: u64) -> io::Result<u64> {
        Ok(file)
    }

    fn write(&mut self, file: u64, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        self.lock()
            .write(file, offset as usize, bytes.to_vec(), durable)
    }

    fn land(&mut self, file: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        store(&mut self.lock().durable, file, offset as usize, bytes)
    }

    fn sync(&mut self, file: u64) -> io::Result<()> {
        self.lock().sync(file)
    }

    fn lose(&mut self, _file: u64) -> io::Result<()> {
        Ok(())
    }
}

impl<M: Medium> Disk for FaultyDisk<M> {
    type File = M::File;

    fn attach(&mut self, file: M::File) -> io::Result<FileSlot> {
        let number = self.medium.open(file)?;
        self.attached.attach(number)
    }

    fn detach(&mut self, file: FileSlot) {
        self.attached.detach(file);
    }

    fn submit(&mut self, ticket: u64, request: Request) {
        if let Request::Write {
            file, offset, len, ..
        } = request
        {
            let (start, end) = (offset, offset + len as u64);
            let overlapping = self.pending.iter().any(|other| match other.request {
                Request::Write {
                    file: of,
                    offset,
                    len,
                    ..
                } => of == file && offset < end && start < offset + len as u64,
                Request::Sync { .. } => false,
            });
            assert!(!overlapping, "two writes to one block in flight");
        }
        let bytes = match request {
            Request::Write { len, source, .. } => bytes_of(&self.tail, len, source),
            Request::Sync { .. } => Vec::new(),
        };
        self.pending.push(Pending {
            ticket,
            request,
            bytes,
        });
    }

    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let finishing = self.seed.below(self.pending.len() as u64 + 1);
        for _ in 0..finishing {
            let index = self.seed.below(self.pending.len() as u64) as usize;
            let pending = self.pending.swap_remove(index);
            let result = self.finish(&pending);
            done.push(Completion {
                ticket: pending.ticket,
                result,
            });
        }
        Ok(())
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}
