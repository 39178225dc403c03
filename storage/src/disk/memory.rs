//! A disk in memory, with what a reader sees now (live) and what a power cut leaves (durable).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Completion, Disk, FileSlot, MAX_FILES, Request, Source};
use crate::tail::Tail;

/// The files of a disk in memory, by log offset of their first byte; shared with whoever looks at
/// them.
#[derive(Clone, Default)]
pub struct Images(Arc<Mutex<Contents>>);

/// What [`Images`] guards.
#[derive(Default)]
pub(super) struct Contents {
    pub live: BTreeMap<u64, Vec<u8>>,
    pub durable: BTreeMap<u64, Vec<u8>>,
    /// Completed writes that no sync covers yet, in order of completion.
    pub unsynced: Vec<(u64, usize, Vec<u8>)>,
}

impl Images {
    pub(super) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a zeroed file that survives a power cut.
    pub fn create(&self, base: u64, size: usize) {
        let mut contents = self.lock();
        contents.live.insert(base, vec![0; size]);
        contents.durable.insert(base, vec![0; size]);
    }

    /// A file as a reader sees it now.
    pub fn live(&self, base: u64) -> Option<Vec<u8>> {
        self.lock().live.get(&base).cloned()
    }

    /// A file as a power cut leaves it.
    pub fn durable(&self, base: u64) -> Option<Vec<u8>> {
        self.lock().durable.get(&base).cloned()
    }

    /// Log offsets of the files.
    pub fn bases(&self) -> Vec<u64> {
        self.lock().live.keys().copied().collect()
    }
}

impl Contents {
    /// A write that completed.
    pub fn write(
        &mut self,
        base: u64,
        offset: usize,
        bytes: Vec<u8>,
        durable: bool,
    ) -> io::Result<()> {
        store(&mut self.live, base, offset, &bytes)?;
        if durable {
            store(&mut self.durable, base, offset, &bytes)?;
            self.supersede(base, offset, &bytes);
        } else {
            self.unsynced.push((base, offset, bytes));
        }
        Ok(())
    }

    /// What is still to reach the medium from earlier writes does not undo a later durable one.
    fn supersede(&mut self, base: u64, offset: usize, bytes: &[u8]) {
        for (of, at, older) in &mut self.unsynced {
            let (from, to) = (
                offset.max(*at),
                (offset + bytes.len()).min(*at + older.len()),
            );
            if *of == base && from < to {
                older[from - *at..to - *at].copy_from_slice(&bytes[from - offset..to - offset]);
            }
        }
    }

    /// A sync that completed.
    pub fn sync(&mut self, base: u64) -> io::Result<()> {
        let durable = &mut self.durable;
        let mut stored = Ok(());
        self.unsynced.retain(|(of, offset, bytes)| {
            if *of == base {
                let result = store(durable, base, *offset, bytes);
                stored = std::mem::replace(&mut stored, Ok(())).and(result);
            }
            *of != base
        });
        stored
    }
}

/// Copies bytes into a file; files never grow.
pub(super) fn store(
    files: &mut BTreeMap<u64, Vec<u8>>,
    base: u64,
    offset: usize,
    bytes: &[u8],
) -> io::Result<()> {
    let file = files.get_mut(&base).ok_or(io::ErrorKind::NotFound)?;
    let place = file.get_mut(offset..offset + bytes.len());
    place
        .ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(bytes);
    Ok(())
}

/// Files attached to a disk in memory, by slot.
#[derive(Default)]
pub(super) struct Attached([Option<u64>; MAX_FILES]);

impl Attached {
    pub fn attach(&mut self, base: u64) -> io::Result<FileSlot> {
        let free = self.0.iter().position(Option::is_none);
        let index = free.ok_or_else(|| io::Error::other("too many log files in use"))?;
        self.0[index] = Some(base);
        Ok(FileSlot(index as u32))
    }

    pub fn detach(&mut self, file: FileSlot) {
        self.0[file.0 as usize] = None;
    }

    pub fn base(&self, file: FileSlot) -> io::Result<u64> {
        let base = self.0.get(file.0 as usize).copied().flatten();
        base.ok_or_else(|| io::Error::other("the log file is not attached"))
    }
}

/// The bytes of a write, copied.
pub(super) fn bytes_of(tail: &Tail, len: usize, source: Source) -> Vec<u8> {
    match source {
        Source::Tail(position) => tail.with_submitted(position, len, <[u8]>::to_vec),
        Source::Zeros => vec![0; len],
    }
}

/// Does every request at once.
pub struct MemoryDisk {
    tail: Arc<Tail>,
    images: Images,
    attached: Attached,
    done: Vec<Completion>,
}

impl MemoryDisk {
    /// A disk writing from `tail` into `images`.
    pub fn new(tail: Arc<Tail>, images: Images) -> MemoryDisk {
        MemoryDisk {
            tail,
            images,
            attached: Attached::default(),
            done: Vec::new(),
        }
    }

    fn perform(&mut self, request: Request) -> io::Result<usize> {
        match request {
            Request::Write {
                file,
                offset,
                len,
                source,
                durable,
            } => {
                let base = self.attached.base(file)?;
                let bytes = bytes_of(&self.tail, len, source);
                self.images
                    .lock()
                    .write(base, offset as usize, bytes, durable)?;
                Ok(len)
            }
            Request::Sync { file } => {
                let base = self.attached.base(file)?;
                self.images.lock().sync(base).map(|()| 0)
            }
        }
    }
}

impl Disk for MemoryDisk {
    /// Log offset of the file's first byte.
    type File = u64;

    fn attach(&mut self, file: u64) -> io::Result<FileSlot> {
        self.attached.attach(file)
    }

    fn detach(&mut self, file: FileSlot) {
        self.attached.detach(file);
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

    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}
