//! Memory that the disk can read from and write to without copying: page-aligned, zeroed, never
//! moved.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// Alignment every allocation has, in bytes; no supported disk asks for more.
pub const ALIGNMENT: usize = 4096;
/// Size from which memory is asked for in huge pages: registering 64 MiB with a ring takes a third
/// of the time then.
const HUGE_FROM: usize = 2 << 20;

/// A fixed piece of anonymous memory, aligned to [`ALIGNMENT`] and zeroed at first.
#[derive(Debug)]
pub struct AlignedMemory {
    start: NonNull<u8>,
    size: NonZeroUsize,
}

// SAFETY: the memory is owned by the value alone and is not tied to the thread that mapped it.
unsafe impl Send for AlignedMemory {}
// SAFETY: shared access hands out a pointer only; whoever uses the pointer answers for it.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// Maps `size` bytes, rounded up to whole pages.
    pub fn new(size: usize) -> io::Result<AlignedMemory> {
        let rounded = size.max(1).div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
        let size = NonZeroUsize::new(rounded).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // other memory.
        let start = unsafe {
            mmap_anonymous(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }?;
        if size.get() >= HUGE_FROM {
            // SAFETY: the range is the mapping just made; the advice changes no content. Refused
            // where the kernel has no huge pages, which costs nothing but speed.
            let _ = unsafe { madvise(start, size.get(), MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(AlignedMemory {
            start: start.cast(),
            size,
        })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size, in bytes.
    pub fn len(&self) -> usize {
        self.size.get()
    }

    /// Never: at least one page is mapped.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Makes a range present without changing it, while others may read and write it.
    pub(super) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        assert!(
            at <= self.len() && len <= self.len() - at,
            "within the memory"
        );
        // SAFETY: the range lies within the mapping (asserted), and the advice changes no content:
        // to whoever uses the bytes meanwhile it is a page fault that came early.
        unsafe {
            let start = self.start.add(at).cast();
            madvise(start, len, MmapAdvise::MADV_POPULATE_WRITE)?;
        }
        Ok(())
    }

    /// All bytes, through the only reference.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `size` readable and writable bytes, and `&mut self` excludes other
        // access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size.get()) }
    }
}

/// Memory that is not written to any more, so that many may read it.
#[derive(Debug)]
pub struct FrozenMemory(AlignedMemory);

impl AlignedMemory {
    /// From now on it is only read.
    pub fn freeze(self) -> FrozenMemory {
        FrozenMemory(self)
    }
}

impl FrozenMemory {
    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        let AlignedMemory { start, size } = &self.0;
        // SAFETY: the mapping is `size` readable bytes, and nobody writes to them: the value was
        // given away whole, and gives its pointer to nobody.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), size.get()) }
    }

    /// The memory, to be written again.
    pub fn into_memory(self) -> AlignedMemory {
        self.0
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and size and nothing refers to it any
        // more.
        let unmapped = unsafe { munmap(self.start.cast(), self.size.get()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zeroed() {
        let mut memory = AlignedMemory::new(10_000).expect("map");
        assert_eq!(memory.len(), 12_288);
        assert_eq!(memory.as_ptr() as usize % ALIGNMENT, 0);
        assert!(memory.as_mut_slice().iter().all(|&byte| byte == 0));
        memory.as_mut_slice()[9_999] = 7;
        assert_eq!(memory.as_mut_slice()[9_999], 7);
    }
}
