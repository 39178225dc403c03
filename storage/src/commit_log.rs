//! Where in the log a record goes: file boundaries, blocks, and the blank record that ends a file.
//!
//! What must always hold: a record and eight more bytes fit in its file, or the record starts the
//! next file behind a blank record (docs/format.md, End-of-file record).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;

use crate::format::message;
use crate::former_run;

/// As [`message::BLANK_SIZE`], in the type of log offsets.
pub const BLANK_SIZE: u64 = message::BLANK_SIZE as u64;

/// Sizes every position is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a log file, in bytes.
    pub file_size: u64,
    /// Unit of writes, in bytes: a power of two that divides the file size, or 1.
    pub block: u64,
}

impl Geometry {
    /// Checks what all positions rely on.
    pub fn new(file_size: u64, block: u64) -> Geometry {
        assert!(block.is_power_of_two() && file_size.is_multiple_of(block));
        assert!(file_size > BLANK_SIZE);
        Geometry { file_size, block }
    }

    /// Log offset of the first byte of the file that holds `offset`.
    pub fn base(&self, offset: u64) -> u64 {
        offset - offset % self.file_size
    }

    /// Log offset after the last byte of that file.
    pub fn file_end(&self, offset: u64) -> u64 {
        self.base(offset) + self.file_size
    }

    /// `offset` rounded down to a block.
    pub fn block_down(&self, offset: u64) -> u64 {
        offset & !(self.block - 1)
    }

    /// `offset` rounded up to a block.
    pub fn block_up(&self, offset: u64) -> u64 {
        self.block_down(offset + self.block - 1)
    }

    /// Whether a record of `len` bytes may start at `offset` without crossing into the next file.
    pub fn fits(&self, offset: u64, len: u64) -> bool {
        message::fits(len as usize, self.file_end(offset) - offset)
    }

    /// Whether a record of `len` bytes fits in any file.
    pub fn can_hold(&self, len: u64) -> bool {
        message::fits(len as usize, self.file_size)
    }

    /// The blank record that ends the file from `offset` on.
    pub fn blank(&self, offset: u64) -> [u8; message::BLANK_SIZE] {
        // A file is at most i32::MAX bytes long.
        message::blank_record((self.file_end(offset) - offset) as u32)
    }
}

/// Whether the log takes messages, for whoever wants to know before sending one.
#[derive(Debug, Default)]
pub struct LogStatus {
    latched: OnceLock<Arc<str>>,
    no_space: AtomicBool,
    /// Why the next file cannot be made, if it is not for lack of space.
    unmakable: ArcSwapOption<String>,
    /// Which says what a crash can leave in the log; `None` if nothing does.
    abort: Option<PathBuf>,
}

impl LogStatus {
    /// Of a log whose `abort` stands there.
    pub(crate) fn announced_in(abort: PathBuf) -> LogStatus {
        LogStatus {
            abort: Some(abort),
            ..LogStatus::default()
        }
    }

    /// Why the log is read-only for good, if it is.
    pub fn read_only(&self) -> Option<&Arc<str>> {
        self.latched.get()
    }

    /// Whether sends are refused until there is room for the next file.
    pub fn no_space(&self) -> bool {
        self.no_space.load(Ordering::Acquire)
    }

    /// Why the next file cannot be made while [`LogStatus::no_space`], if the disk has space.
    pub fn unmakable(&self) -> Option<Arc<String>> {
        self.unmakable.load_full()
    }

    pub(crate) fn set_unmakable(&self, why: Option<String>) {
        self.unmakable.store(why.map(Arc::new));
    }

    /// Makes the log read-only for good; the first reason stays.
    pub(crate) fn latch(&self, why: &str) {
        self.latched.get_or_init(|| Arc::from(why));
    }

    /// A sync of the log failed: notes it for the start after a kill.
    pub(crate) fn sync_failed(&self) {
        if let Some(abort) = &self.abort {
            former_run::void_bound(abort);
        }
    }

    pub(crate) fn set_no_space(&self, no_space: bool) {
        self.no_space.store(no_space, Ordering::Release);
    }
}

/// Makes the log read-only when a thread that it cannot do without panics, so that everybody hears
/// of it.
pub(crate) struct LatchOnPanic {
    status: Arc<LogStatus>,
    thread: &'static str,
}

impl LatchOnPanic {
    /// Held by the thread as long as it runs.
    pub fn new(status: Arc<LogStatus>, thread: &'static str) -> LatchOnPanic {
        LatchOnPanic { status, thread }
    }
}

impl Drop for LatchOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = self.thread;
            self.status
                .latch(&format!("the {thread} stopped on an internal error"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_leaves_room_for_the_smallest_blank() {
        let log = Geometry::new(1 << 30, 4096);
        let offset = 1_073_741_000;
        assert!(log.fits(offset, 816));
        assert!(!log.fits(offset, 817));
        assert_eq!(
            log.blank(offset),
            [0, 0, 0x03, 0x38, 0xcb, 0xd4, 0x31, 0x94]
        );
        assert_eq!(
            log.blank(offset + 816),
            [0, 0, 0, 8, 0xcb, 0xd4, 0x31, 0x94]
        );
    }

    #[test]
    fn positions_are_rounded_within_their_file() {
        let log = Geometry::new(16_384, 4096);
        assert_eq!((log.base(20_000), log.file_end(20_000)), (16_384, 32_768));
        assert_eq!(
            (log.block_down(20_000), log.block_up(20_000)),
            (16_384, 20_480)
        );
        assert_eq!(log.block_up(20_480), 20_480);
        let fine = Geometry::new(10_001, 1);
        assert_eq!((fine.block_down(77), fine.block_up(77)), (77, 77));
    }

    #[test]
    fn the_first_reason_to_be_read_only_stays() {
        let status = LogStatus::default();
        status.latch("one");
        status.latch("two");
        assert_eq!(status.read_only().map(AsRef::as_ref), Some("one"));
    }
}
