//! The last bytes of a log, brought into the tail before it goes on.
//!
//! The start waits for this, so it is no more than the writer needs and what is read most: memory
//! in huge pages, which the tail's is, can cost the kernel a second where its own is full of other
//! files' pages, and so can a long read from a busy disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::disk::aligned::{ALIGNMENT, AlignedMemory};
use crate::disk::probe::LARGEST_BLOCK;
use crate::tail::TailWriter;

/// Bytes before the block the log ends in that are loaded at most.
const NEWEST_BYTES: u64 = 1 << 20;

/// Fills the tail with the last bytes of the active file, whose first one stands at log offset
/// `base`: a little of what is newest, and at least the block the log ends in at `end`.
pub(super) fn preload(file: &File, base: u64, end: u64, tail: &mut TailWriter) -> io::Result<()> {
    let position = end - base;
    let wanted = position.min(tail.shared().size() / 2).min(NEWEST_BYTES);
    let from = (position - wanted) & !(LARGEST_BLOCK - 1);
    let len = (position - from) as usize;
    if len == 0 {
        return Ok(());
    }
    let mut memory = AlignedMemory::new(len)?;
    let bytes = memory.as_mut_slice();
    let mut read = 0;
    while read < len {
        // Direct reads come in whole blocks; the file is a whole number of them.
        let upto = len.next_multiple_of(ALIGNMENT).min(bytes.len());
        match file.read_at(&mut bytes[read..upto], from + read as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    tail.preload(base + from, &bytes[..len]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tail::tail;

    const BASE: u64 = 5 << 30;

    /// What of a file of `size` bytes a start at its position `end` has in the tail.
    fn loaded(size: u64, end: u64) -> std::ops::Range<u64> {
        let file = tempfile::tempfile().expect("file");
        file.set_len(size).expect("size");
        let (mut writer, readers) = tail(64 << 20, BASE + end).expect("tail");
        preload(&file, BASE, BASE + end, &mut writer).expect("preload");
        readers.start() - BASE..readers.end() - BASE
    }

    #[test]
    fn a_start_loads_the_block_it_goes_on_in_and_little_more() {
        for end in [1, 4096, 70_001, 5 << 20, (48 << 20) + 77] {
            let held = loaded(64 << 20, end);
            assert_eq!(held.end, end);
            let block = end - end % LARGEST_BLOCK;
            assert!(held.start <= block, "{held:?} without its last block");
            let most = NEWEST_BYTES + LARGEST_BLOCK;
            assert!(held.end - held.start <= most, "{held:?} is waited for");
        }
    }

    #[test]
    fn nothing_is_loaded_where_a_file_begins() {
        assert_eq!(loaded(1 << 20, 0), 0..0);
    }
}
