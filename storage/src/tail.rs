//! The tail cache: the last bytes of the log in memory, in one contiguous aligned ring.
//!
//! The byte of log offset `p` lies at `p mod size`. The ring is also what the disk writes from.
//! What must always hold: bytes in `[start, end)` do not change; the writer moves `start` before it
//! overwrites anything below it, and overwrites nothing that a reader has pinned.
//!
//! A reader pins the lowest offset it is about to copy, looks at `start` again, copies, and unpins.
//! Pin and check are sequentially consistent with the writer's move of `start` and its look at the
//! pins, so either the reader sees the moved start or the writer sees the pin.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::disk::aligned::AlignedMemory;

/// Most readers that can exist at a time.
pub const MAX_READERS: usize = 128;

/// Value of a pin slot whose reader copies nothing now.
const UNPINNED: u64 = u64::MAX;
/// Value of a pin slot that belongs to no reader.
const FREE: u64 = u64::MAX - 1;

/// Why a tail cannot be made or read.
#[derive(Debug, Error)]
pub enum TailError {
    /// The memory could not be mapped.
    #[error("cannot map {bytes} bytes for the tail cache: {source}")]
    Memory {
        /// Size asked for.
        bytes: usize,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The size is no power of two of at least one page.
    #[error("a tail cache of {0} bytes is no power of two of at least 4096")]
    Size(usize),
    /// All reader slots are taken.
    #[error("more than {MAX_READERS} readers of the tail cache")]
    TooManyReaders,
}

/// A reader's pin or an end of the ring, alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// The ring, shared by the writer, its readers and the disk.
pub struct Tail {
    memory: AlignedMemory,
    size: u64,
    start: Line,
    end: Line,
    pins: Box<[Line]>,
}

impl Tail {
    /// Size of the ring, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Lowest log offset held.
    pub fn start(&self) -> u64 {
        self.start.0.load(Ordering::SeqCst)
    }

    /// Log offset after the last byte held.
    pub fn end(&self) -> u64 {
        self.end.0.load(Ordering::Acquire)
    }

    /// The ring's memory, for registration with the disk.
    pub(crate) fn memory(&self) -> &AlignedMemory {
        &self.memory
    }

    /// Runs `use_bytes` on ring bytes that the writer has handed to the disk and does not change
    /// until the write is over. `position` and `len` must lie within the ring.
    pub(crate) fn with_submitted<R>(
        &self,
        position: usize,
        len: usize,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> R {
        assert!(position <= self.memory.len() && len <= self.memory.len() - position);
        // SAFETY: the range lies within the mapping (asserted). Only the writer thread writes to
        // the ring and only to bytes that are not submitted; the disk's bodies call this for
        // submitted ranges alone, on the writer's thread.
        use_bytes(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(position), len) })
    }

    fn position(&self, offset: u64) -> usize {
        (offset & (self.size - 1)) as usize
    }

    /// A range as one or two pieces of `(ring position, length)`.
    fn pieces(&self, offset: u64, len: usize) -> [(usize, usize); 2] {
        let position = self.position(offset);
        let first = len.min(self.memory.len() - position);
        [(position, first), (0, len - first)]
    }
}

/// Makes a tail whose `start` and `end` are `offset`; the writer's half and what readers are made
/// from.
pub fn tail(size: usize, offset: u64) -> Result<(TailWriter, TailReaders), TailError> {
    if !size.is_power_of_two() || size < 4096 {
        return Err(TailError::Size(size));
    }
    let memory = AlignedMemory::new(size).map_err(|source| TailError::Memory {
        bytes: size,
        source,
    })?;
    let shared = Arc::new(Tail {
        memory,
        size: size as u64,
        start: Line(AtomicU64::new(offset)),
        end: Line(AtomicU64::new(offset)),
        pins: (0..MAX_READERS)
            .map(|_| Line(AtomicU64::new(FREE)))
            .collect(),
    });
    let readers = TailReaders(Arc::clone(&shared));
    Ok((
        TailWriter {
            start: offset,
            cleared: offset,
            end: offset,
            shared,
        },
        readers,
    ))
}

/// Makes readers of one tail.
#[derive(Clone)]
pub struct TailReaders(Arc<Tail>);

impl TailReaders {
    /// A reader for one thread.
    pub fn reader(&self) -> Result<TailReader, TailError> {
        for (index, pin) in self.0.pins.iter().enumerate() {
            let taken = pin
                .0
                .compare_exchange(FREE, UNPINNED, Ordering::SeqCst, Ordering::Relaxed);
            if taken.is_ok() {
                return Ok(TailReader {
                    shared: Arc::clone(&self.0),
                    pin: index,
                });
            }
        }
        Err(TailError::TooManyReaders)
    }

    /// Lowest log offset held.
    pub fn start(&self) -> u64 {
        self.0.start()
    }

    /// Log offset after the last byte held.
    pub fn end(&self) -> u64 {
        self.0.end()
    }
}

/// Copies records out of the tail. One per thread.
pub struct TailReader {
    shared: Arc<Tail>,
    pin: usize,
}

impl TailReader {
    /// Bytes the tail holds at most.
    pub fn size(&self) -> u64 {
        self.shared.size()
    }

    /// Appends the bytes `[offset, offset + size)` of the log to `out`; false, and nothing
    /// appended, if they are not all in the tail (any more).
    pub fn copy(&mut self, offset: u64, size: usize, out: &mut Vec<u8>) -> bool {
        self.with(offset, size, |first, second| {
            out.reserve(size);
            out.extend_from_slice(first);
            out.extend_from_slice(second);
        })
        .is_some()
    }

    /// Shows the bytes `[offset, offset + size)` of the log, in one or two pieces, without copying;
    /// `None` if they are not all in the tail. The writer cannot reuse their place meanwhile: be
    /// quick.
    pub fn with<R>(
        &mut self,
        offset: u64,
        size: usize,
        look: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Option<R> {
        let end = offset.checked_add(size as u64)?;
        let shared = &*self.shared;
        if end > shared.end() || offset < shared.start() {
            return None;
        }
        let pin = Unpin(&shared.pins[self.pin].0);
        pin.0.store(offset, Ordering::SeqCst);
        if offset < shared.start.0.load(Ordering::SeqCst) {
            return None;
        }
        let [(first, first_len), (second, second_len)] = shared.pieces(offset, size);
        // SAFETY: both pieces lie within the mapping. Their bytes are below `end` (acquired, so the
        // writer's stores are visible) and at or above `start`, which was read after the pin was
        // set: the writer does not touch them until the pin is gone, which `Unpin` sees to after
        // `look` has returned or panicked.
        let (first, second) = unsafe {
            let base = shared.memory.as_ptr();
            (
                std::slice::from_raw_parts(base.add(first), first_len),
                std::slice::from_raw_parts(base.add(second), second_len),
            )
        };
        Some(look(first, second))
    }

    /// Lowest log offset held.
    pub fn start(&self) -> u64 {
        self.shared.start()
    }

    /// Log offset after the last byte held.
    pub fn end(&self) -> u64 {
        self.shared.end()
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        self.shared.pins[self.pin].0.store(FREE, Ordering::SeqCst);
    }
}

/// Lets go of a pin, also when the copying panics.
struct Unpin<'a>(&'a AtomicU64);

impl Drop for Unpin<'_> {
    fn drop(&mut self) {
        self.0.store(UNPINNED, Ordering::Release);
    }
}

/// The writer's half: the only one that changes the ring.
pub struct TailWriter {
    shared: Arc<Tail>,
    start: u64,
    /// No reader pins anything below this, ever again.
    cleared: u64,
    end: u64,
}

impl TailWriter {
    /// The shared ring.
    pub(crate) fn shared(&self) -> &Arc<Tail> {
        &self.shared
    }

    /// Lowest log offset held.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Log offset after the last byte held.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Fills an empty tail with the log's bytes from `offset` on, so that they are hot after a
    /// start and the partial last block is at hand. Before the first reservation only; keeps what
    /// fits from the back.
    pub fn preload(&mut self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.start, self.end, "a tail is preloaded once, when empty");
        let keep = bytes.len().min(self.shared.memory.len());
        let skipped = bytes.len() - keep;
        self.start = offset + skipped as u64;
        self.cleared = self.start;
        self.end = self.start;
        self.shared.start.0.store(self.start, Ordering::SeqCst);
        self.write(self.start, &bytes[skipped..]);
        self.publish(offset + bytes.len() as u64);
    }

    /// Makes room so that bytes up to log offset `end` can be written without touching a byte at or
    /// above `floor`. False if that is not possible now: `floor` is too low, or a reader has pinned
    /// old bytes.
    pub fn reserve(&mut self, end: u64, floor: u64) -> bool {
        let needed = end.saturating_sub(self.shared.size);
        if needed > floor {
            return false;
        }
        if needed > self.start {
            // Move in larger steps than needed: the move costs a fence and a look at every pin.
            let step = self.shared.size / 64;
            self.start = (needed + step).min(floor).min(self.end).max(needed);
            self.shared.start.0.store(self.start, Ordering::SeqCst);
        }
        if self.cleared < self.start {
            // A pin set from now on sees the moved start, so what is clear below it stays clear.
            self.cleared = self.lowest_pin().min(self.start).max(self.cleared);
        }
        self.cleared >= needed
    }

    /// The lowest offset any reader has pinned.
    fn lowest_pin(&self) -> u64 {
        let pinned = self
            .shared
            .pins
            .iter()
            .map(|pin| pin.0.load(Ordering::SeqCst));
        pinned.min().unwrap_or(UNPINNED)
    }

    /// Copies bytes to log offset `offset`; they must lie in reserved room at or above `end`, or be
    /// a patch of bytes not yet published.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(
            offset >= self.end && offset + bytes.len() as u64 <= self.cleared + self.shared.size,
            "a write to the tail outside its reserved room"
        );
        let [(first, first_len), (second, second_len)] = self.shared.pieces(offset, bytes.len());
        // SAFETY: both pieces lie within the mapping and outside `[start, end)`, so no reader looks
        // at them; pins below `start` were waited for in `reserve`. `bytes` is borrowed memory
        // elsewhere.
        unsafe {
            let base = self.shared.memory.as_ptr();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(first), first_len);
            let rest = bytes.as_ptr().add(first_len);
            std::ptr::copy_nonoverlapping(rest, base.add(second), second_len);
        }
    }

    /// Zeroes reserved bytes at or above `end`.
    pub fn zero(&mut self, offset: u64, len: usize) {
        assert!(
            offset >= self.end && offset + len as u64 <= self.cleared + self.shared.size,
            "zeroing the tail outside its reserved room"
        );
        for (position, len) in self.shared.pieces(offset, len) {
            // SAFETY: as in `write`.
            unsafe { std::ptr::write_bytes(self.shared.memory.as_ptr().add(position), 0, len) };
        }
    }

    /// Shows readers the bytes up to log offset `end`.
    pub fn publish(&mut self, end: u64) {
        assert!(end >= self.end && end <= self.start + self.shared.size);
        self.end = end;
        self.shared.end.0.store(end, Ordering::Release);
    }

    /// Copies published or reserved bytes out, for the writer's own use.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        assert!(offset >= self.start && offset + out.len() as u64 <= self.start + self.shared.size);
        let [(first, first_len), (second, second_len)] = self.shared.pieces(offset, out.len());
        // SAFETY: both pieces lie within the mapping; only this value writes to it, and `out` is
        // other memory.
        unsafe {
            let base = self.shared.memory.as_ptr();
            std::ptr::copy_nonoverlapping(base.add(first), out.as_mut_ptr(), first_len);
            let rest = out.as_mut_ptr().add(first_len);
            std::ptr::copy_nonoverlapping(base.add(second), rest, second_len);
        }
    }

    /// A range as one or two pieces of `(ring position, length)`, for the disk.
    pub fn pieces(&self, offset: u64, len: usize) -> [(usize, usize); 2] {
        self.shared.pieces(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(offset: u64, len: usize) -> Vec<u8> {
        (offset..offset + len as u64)
            .map(|at| (at.wrapping_mul(31) >> 3) as u8)
            .collect()
    }

    #[test]
    fn bytes_are_read_back_across_the_wrap() {
        let (mut writer, readers) = tail(4096, 10_000).expect("tail");
        let mut reader = readers.reader().expect("reader");
        let mut at = 10_000;
        for round in 0..100 {
            let len = 700 + round;
            assert!(writer.reserve(at + len as u64, at));
            writer.write(at, &pattern(at, len));
            writer.publish(at + len as u64);
            let mut out = vec![9];
            assert!(reader.copy(at, len, &mut out));
            assert_eq!(out[1..], pattern(at, len));
            at += len as u64;
        }
        assert!(!reader.copy(10_000, 10, &mut Vec::new()));
        assert!(!reader.copy(at - 5, 6, &mut Vec::new()));
        assert!(!reader.copy(u64::MAX - 3, 10, &mut Vec::new()));
    }

    #[test]
    fn a_pinned_byte_is_never_overwritten() {
        let (mut writer, readers) = tail(4096, 0).expect("tail");
        let mut reader = readers.reader().expect("reader");
        assert!(writer.reserve(4096, 0));
        writer.write(0, &pattern(0, 4096));
        writer.publish(4096);
        let seen = reader.with(0, 100, |first, _| {
            assert!(!writer.reserve(4100, 4096));
            first.to_vec()
        });
        assert_eq!(seen, Some(pattern(0, 100)));
        assert!(writer.reserve(4100, 4096));
        assert!(!reader.copy(0, 100, &mut Vec::new()));
    }

    #[test]
    fn nothing_at_or_above_the_floor_is_given_up() {
        let (mut writer, _readers) = tail(4096, 0).expect("tail");
        assert!(writer.reserve(4096, 0));
        writer.publish(4096);
        assert!(!writer.reserve(5000, 100));
        assert_eq!(writer.start(), 0);
        assert!(writer.reserve(5000, 904));
        assert_eq!(writer.start(), 904);
    }

    #[test]
    fn a_preload_keeps_the_last_bytes() {
        let (mut writer, readers) = tail(4096, 0).expect("tail");
        writer.preload(1000, &pattern(1000, 6000));
        let mut reader = readers.reader().expect("reader");
        assert_eq!((reader.start(), reader.end()), (2904, 7000));
        let mut out = Vec::new();
        assert!(reader.copy(2904, 4096, &mut out));
        assert_eq!(out, pattern(2904, 4096));
    }

    #[test]
    fn readers_beside_a_fast_writer_see_whole_records_only() {
        let (mut writer, readers) = tail(16_384, 0).expect("tail");
        let mut threads = Vec::new();
        for _ in 0..2 {
            let mut reader = readers.reader().expect("reader");
            threads.push(std::thread::spawn(move || {
                let (mut hits, mut out) = (0u32, Vec::new());
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
                while hits < 2000 && std::time::Instant::now() < deadline {
                    let end = reader.end();
                    let offset = end.saturating_sub(u64::from(hits % 16) * 1000);
                    out.clear();
                    let len = 900.min((end - offset) as usize);
                    if len > 0 && reader.copy(offset, len, &mut out) {
                        assert_eq!(out, pattern(offset, len));
                        hits += 1;
                    } else if len == 0 {
                        hits += 1;
                    }
                }
                hits
            }));
        }
        let mut at = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            if writer.reserve(at + 1000, at) {
                writer.write(at, &pattern(at, 1000));
                at += 1000;
                writer.publish(at);
            }
        }
        for thread in threads {
            assert_eq!(thread.join().expect("reader"), 2000);
        }
    }
}
