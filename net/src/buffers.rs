//! Receive buffers that a core's ring fills: registered with the kernel once, reused for ever.
//!
//! Always true: a buffer belongs either to the kernel (its entry is in the ring) or to us, never
//! to both; with incremental use the kernel fills it piece by piece until it gives it up.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue};

const PAGE: usize = 4096;
/// `IOU_PBUF_RING_INC` of `linux/io_uring.h`.
const INCREMENTAL: u16 = 2;

/// Page-aligned zeroed memory, freed on drop.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(size: usize) -> io::Result<Pages> {
        let layout = Layout::from_size_align(size.max(1), PAGE)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // SAFETY: the size of the layout is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Ok(Pages { start, layout }),
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A ring of receive buffers; outlives every request that may fill them.
pub(crate) struct ReceiveBuffers {
    entries: Pages,
    bytes: Pages,
    count: u16,
    size: u32,
    /// Bytes of each buffer that the kernel has filled so far.
    filled: Vec<u32>,
    tail: u16,
}

impl ReceiveBuffers {
    /// Makes `count` (a power of two) buffers of `size` bytes and registers them as `group`.
    pub fn register(
        ring: &IoUring,
        group: u16,
        count: u16,
        size: u32,
        incremental: bool,
    ) -> io::Result<ReceiveBuffers> {
        assert!(count.is_power_of_two());
        let mut buffers = ReceiveBuffers {
            entries: Pages::new(usize::from(count) * size_of::<BufRingEntry>())?,
            bytes: Pages::new(usize::from(count) * size as usize)?,
            count,
            size,
            filled: vec![0; usize::from(count)],
            tail: 0,
        };
        let flags = if incremental { INCREMENTAL } else { 0 };
        let address = buffers.entries.start.as_ptr() as u64;
        // SAFETY: the entries are page-aligned, `count` of them; the ring's owner keeps them until
        // the ring is closed and its requests have ended (see `RingTransport`'s drop).
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, count, group, flags)?;
        }
        for id in 0..count {
            buffers.give(id);
        }
        Ok(buffers)
    }

    /// The bytes that a completion put into buffer `id`.
    ///
    /// # Panics
    /// The kernel reported bytes outside of the buffer.
    pub fn take(&mut self, id: u16, count: usize) -> &[u8] {
        let filled = self.filled[usize::from(id)];
        let end = filled as usize + count;
        assert!(end <= self.size as usize, "more bytes than the buffer has");
        self.filled[usize::from(id)] = end as u32;
        let offset = usize::from(id) * self.size as usize + filled as usize;
        // SAFETY: the range lies inside of buffer `id` (asserted). The kernel has written it and
        // will not again before the buffer is given back, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.bytes.start.as_ptr().add(offset), count) }
    }

    /// Gives buffer `id` back to the kernel if the completion with `flags` used it up.
    pub fn recycle(&mut self, id: u16, flags: u32) {
        if !cqueue::buffer_more(flags) {
            self.give(id);
        }
    }

    fn give(&mut self, id: u16) {
        self.filled[usize::from(id)] = 0;
        let slot = usize::from(self.tail & (self.count - 1));
        let base = self.entries.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: `slot` < `count`, and the entry at the tail belongs to us until the tail moves.
        // The first entry's reserved field is the tail itself: only the other fields are set.
        unsafe {
            let entry = &mut *base.add(slot);
            let offset = usize::from(id) * self.size as usize;
            entry.set_addr(self.bytes.start.as_ptr().add(offset) as u64);
            entry.set_len(self.size);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is an aligned u16 in the entries' memory, shared with the kernel, which
        // only reads it.
        unsafe {
            let tail = BufRingEntry::tail(base).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
