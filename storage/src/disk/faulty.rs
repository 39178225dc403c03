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

/// A request under way.
struct Pending {
    ticket: u64,
    request: Request,
    /// The bytes as they were at submission: they must still be the same at completion.
    bytes: Vec<u8>,
}

/// See the module's description.
pub struct FaultyDisk {
    tail: Arc<Tail>,
    images: Images,
    attached: Attached,
    pending: Vec<Pending>,
    seed: Seed,
    faults: Faults,
}

impl FaultyDisk {
    /// A disk writing from `tail` into `images`, misbehaving as `faults` and `seed` say.
    pub fn new(tail: Arc<Tail>, images: Images, faults: Faults, seed: u64) -> FaultyDisk {
        let (attached, pending) = (Attached::default(), Vec::new());
        FaultyDisk {
            tail,
            images,
            attached,
            pending,
            seed: Seed(seed),
            faults,
        }
    }

    /// A power cut now: returns what the medium holds. Of writes under way, and of completed ones
    /// that no sync covers, any sectors may have reached it.
    pub fn crash(mut self) -> Images {
        let mut contents = self.images.lock();
        let contents = &mut *contents;
        for (base, offset, bytes) in std::mem::take(&mut contents.unsynced) {
            tear(&mut self.seed, &mut contents.durable, base, offset, &bytes);
        }
        for pending in &self.pending {
            if let Request::Write { file, offset, .. } = pending.request
                && let Ok(base) = self.attached.base(file)
            {
                let durable = &mut contents.durable;
                tear(
                    &mut self.seed,
                    durable,
                    base,
                    offset as usize,
                    &pending.bytes,
                );
            }
        }
        self.images.clone()
    }

    fn finish(&mut self, pending: &Pending) -> io::Result<usize> {
        match pending.request {
            Request::Sync { file } => {
                if self.seed.chance(self.faults.failed_syncs, 1000) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                let base = self.attached.base(file)?;
                self.images.lock().sync(base).map(|()| 0)
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
                let base = self.attached.base(file)?;
                let failed = self.seed.chance(self.faults.failed_writes, 1000);
                let short = self.seed.chance(self.faults.short_writes, 1000);
                let mut contents = self.images.lock();
                if failed || short {
                    let durable = &mut contents.durable;
                    tear(
                        &mut self.seed,
                        durable,
                        base,
                        offset as usize,
                        &pending.bytes,
                    );
                    return if failed {
                        Err(io::Error::from_raw_os_error(libc::EIO))
                    } else {
                        Ok(len / 2)
                    };
                }
                contents.write(base, offset as usize, pending.bytes.clone(), durable)?;
                Ok(len)
            }
        }
    }
}

/// Lets some sectors of a write through.
fn tear(
    seed: &mut Seed,
    files: &mut std::collections::BTreeMap<u64, Vec<u8>>,
    base: u64,
    offset: usize,
    bytes: &[u8],
) {
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        if seed.chance(1, 2) {
            // A file that does not exist loses nothing.
            let _ = store(files, base, offset + index * SECTOR, sector);
        }
    }
}

impl Disk for FaultyDisk {
    /// Log offset of the file's first byte.
    type File = u64;

    fn attach(&mut self, file: u64) -> io::Result<FileSlot> {
        self.attached.attach(file)
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
