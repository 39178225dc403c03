//! Memory-mapped files: the only module that maps (docs/durability.md, Mapped files).
//!
//! Two things can go wrong with a store or load in a mapping, and both must be errors instead
//! of a dead process. A store into a hole of a sparse file may find no space: a page is made
//! present (`MADV_POPULATE_WRITE`, or a write of the same bytes) before its first store. Any
//! access may find the disk failing: a SIGBUS handler puts a zero page in the place of the
//! faulting one and marks the mapping, and every read and write looks at the mark *after* it
//! touched memory. Copies are volatile, as other threads may be writing elsewhere in the file.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

use crate::medium;

mod faults;

/// How a mapping is going to be read.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Advice {
    /// The kernel's own guess.
    Normal,
    /// Scattered look-ups: no read-ahead.
    Random,
    /// From front to back: much read-ahead.
    Sequential,
    /// Soon: read it in now.
    WillNeed,
}

/// Why a mapped file cannot be used.
#[derive(Debug, Error)]
pub enum MappingError {
    /// The file cannot be opened, created or mapped.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Of which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file has another size than it must have.
    #[error("{path} has {found} bytes instead of {expected}")]
    WrongSize {
        /// Which file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
        /// Bytes it must have.
        expected: u64,
    },
    /// There is no space for a page, or it cannot be read.
    #[error("no page for {path} at {position}: {source}")]
    NoPage {
        /// Which file.
        path: PathBuf,
        /// Position of the page.
        position: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The disk failed under an access: what was read or written is worthless.
    #[error("the disk failed under an access to {path}")]
    Poisoned {
        /// Which file.
        path: PathBuf,
    },
    /// An access beyond the end.
    #[error("{path} has {size} bytes, not {len} at {position}")]
    Outside {
        /// Which file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// How many bytes.
        len: usize,
        /// Bytes of the file.
        size: u64,
    },
}

impl MappingError {
    /// Whether the disk is full: that heals, all else does not.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::File { source, .. } | Self::NoPage { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
            }
            _ => false,
        }
    }
}

/// A whole file in memory.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    path: PathBuf,
    guard: faults::Guard,
    /// One bit a page: whether it was made present for stores.
    present: Box<[AtomicU64]>,
}

// SAFETY: the memory belongs to this value until it is dropped, and is only touched by volatile
// copies; stores of one range by several threads at once are excluded by the callers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Set once the kernel turned out not to know `MADV_POPULATE_WRITE`.
static POPULATE_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Bytes that are fetched into the cache together.
pub const CACHE_LINE: usize = 64;

/// Has the line at an address fetched into the cache, if it is one of ours; any other does nothing.
#[inline]
pub fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Mapping {
    /// Addresses of what a store at `position` touches: the word of its page, and the bytes.
    pub(crate) fn way_to(&self, position: u64) -> (usize, usize) {
        let at = usize::try_from(position).unwrap_or(0).min(self.len - 1);
        let word = &raw const self.present[at / faults::page_size() / 64];
        (word.addr(), self.base.as_ptr().addr() + at)
    }

    /// Maps the file at `path`, which must have exactly `size` bytes.
    pub fn open(path: &Path, size: u64) -> Result<Self, MappingError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| failed("open", path, source))?;
        Self::of_file(&file, path, size)
    }

    fn of_file(file: &File, path: &Path, size: u64) -> Result<Self, MappingError> {
        let found = file
            .metadata()
            .map_err(|source| failed("examine", path, source))?
            .len();
        let len = usize::try_from(size).unwrap_or(0);
        if found != size || len == 0 {
            return Err(MappingError::WrongSize {
                path: path.into(),
                found,
                expected: size,
            });
        }
        faults::install().map_err(|source| failed("guard", path, source))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the descriptor is open.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(failed("map", path, io::Error::last_os_error()));
        }
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(failed("map", path, io::Error::other("mapped at address 0")));
        };
        let pages = len.div_ceil(faults::page_size());
        let guard = faults::Guard::new(base.as_ptr() as usize, len);
        let present = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            base,
            len,
            path: path.into(),
            guard,
            present,
        })
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.len as u64
    }

    /// The mapped file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the disk failed under an access since the file was mapped.
    pub fn poisoned(&self) -> bool {
        self.guard.poisoned()
    }

    /// Copies the bytes at `position` into `out`.
    pub fn read_at(&self, position: u64, out: &mut [u8]) -> Result<(), MappingError> {
        let at = self.place(position, out.len())?;
        // SAFETY: `place` checked that the range lies in the mapping, which lives as long as
        // `self`; the slice is ours alone.
        unsafe { copy_out(self.base.as_ptr().add(at), out) };
        self.check_poison()
    }

    /// Stores `bytes` at `position`. One range is never stored by two threads at once.
    pub fn write_at(&self, position: u64, bytes: &[u8]) -> Result<(), MappingError> {
        let at = self.place(position, bytes.len())?;
        self.make_present(at, bytes.len())?;
        // SAFETY: `place` checked that the range lies in the mapping, which lives as long as
        // `self`, and `make_present` that it may be stored to.
        unsafe { copy_in(self.base.as_ptr().add(at), bytes) };
        self.check_poison()
    }

    /// Makes a range fit for stores without changing it: finds out now whether there is space.
    pub fn reserve(&self, position: u64, len: usize) -> Result<(), MappingError> {
        let at = self.place(position, len)?;
        self.make_present(at, len)
    }

    /// Waits until the bytes of a range, and with them the file's size, are on disk.
    pub fn sync(&self, position: u64, len: u64) -> Result<(), MappingError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let at = self.place(position, len)?;
        let from = at - at % faults::page_size();
        let bytes = at + len - from;
        let sync = || {
            // SAFETY: the range lies in the mapping and starts at a page.
            let result =
                unsafe { libc::msync(self.base.as_ptr().add(from).cast(), bytes, libc::MS_SYNC) };
            if result == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        };
        medium::sync_mapped(&self.path, from as u64, bytes as u64, sync)
            .map_err(|source| failed("sync", &self.path, source))?;
        self.check_poison()
    }

    /// Tells the kernel how the mapping is going to be read; it may ignore that.
    pub fn advise(&self, advice: Advice) {
        let advice = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::WillNeed => libc::MADV_WILLNEED,
        };
        // SAFETY: the range is the whole mapping; these kinds of advice change no byte.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) };
    }

    fn place(&self, position: u64, len: usize) -> Result<usize, MappingError> {
        let at = usize::try_from(position).unwrap_or(usize::MAX);
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(at),
            _ => Err(MappingError::Outside {
                path: self.path.clone(),
                position,
                len,
                size: self.size(),
            }),
        }
    }

    fn check_poison(&self) -> Result<(), MappingError> {
        if self.poisoned() {
            return Err(MappingError::Poisoned {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// Makes the pages of a range fit for stores, so that a full disk is an error here.
    fn make_present(&self, at: usize, len: usize) -> Result<(), MappingError> {
        if len == 0 {
            return Ok(());
        }
        let page_size = faults::page_size();
        for page in at / page_size..=(at + len - 1) / page_size {
            let (word, bit) = (&self.present[page / 64], 1u64 << (page % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                let at = page * page_size;
                medium::populate(&self.path, || self.populate(at)).map_err(|source| {
                    MappingError::NoPage {
                        path: self.path.clone(),
                        position: at as u64,
                        source,
                    }
                })?;
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn populate(&self, at: usize) -> io::Result<()> {
        let len = faults::page_size().min(self.len - at);
        if !POPULATE_UNKNOWN.load(Ordering::Relaxed) {
            // SAFETY: the page lies in the mapping; populating changes no byte.
            let result = unsafe {
                libc::madvise(
                    self.base.as_ptr().add(at).cast(),
                    len,
                    libc::MADV_POPULATE_WRITE,
                )
            };
            if result == 0 {
                return Ok(());
            }
            if io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
                POPULATE_UNKNOWN.store(true, Ordering::Relaxed);
            }
        }
        self.rewrite_page(at, len)
    }

    /// Writes a page's own bytes to the file: gives it its space, or says why there is none.
    fn rewrite_page(&self, at: usize, len: usize) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at as u64)?;
        file.write_all_at(&bytes, at as u64)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The range must leave the handler's table before another mapping can get the address.
        self.guard.release();
        // SAFETY: this is exactly the range that was mapped, and nobody can refer to it after.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> MappingError {
    MappingError::File {
        action,
        path: path.into(),
        source,
    }
}

const WORD: usize = size_of::<u64>();

/// Copies from a mapping: words where the mapping is aligned, bytes around them.
///
/// # Safety
/// `from` must be readable for `to.len()` bytes.
unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    let mut done = 0;
    while done < to.len() {
        // SAFETY: `done` is within the range that the caller vouches for.
        let source = unsafe { from.add(done) };
        if source.addr().is_multiple_of(WORD) && to.len() - done >= WORD {
            // SAFETY: aligned, and a whole word is left of the range.
            let word = unsafe { source.cast::<u64>().read_volatile() };
            to[done..done + WORD].copy_from_slice(&word.to_ne_bytes());
            done += WORD;
        } else {
            // SAFETY: within the range.
            to[done] = unsafe { source.read_volatile() };
            done += 1;
        }
    }
}

/// Copies into a mapping: words where the mapping is aligned, bytes around them.
///
/// # Safety
/// `to` must be writable for `from.len()` bytes.
unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    let mut done = 0;
    while done < from.len() {
        // SAFETY: `done` is within the range that the caller vouches for.
        let target = unsafe { to.add(done) };
        if target.addr().is_multiple_of(WORD)
            && let Some(word) = from[done..].first_chunk::<WORD>()
        {
            // SAFETY: aligned, and a whole word is left of the range.
            unsafe {
                target
                    .cast::<u64>()
                    .write_volatile(u64::from_ne_bytes(*word))
            };
            done += WORD;
        } else {
            // SAFETY: within the range.
            unsafe { target.write_volatile(from[done]) };
            done += 1;
        }
    }
}

#[cfg(test)]
mod tests;
