//! Bytes of a file, sparse: a block that was never written reads as zeros and is a hole.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes per block of a file.
const BLOCK: u64 = 4096;

/// What a file holds. Copies share their blocks.
#[derive(Clone, Default)]
pub struct Content {
    /// Bytes of the file.
    pub size: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK as usize]>>,
}

/// The pieces of `[offset, offset + len)` by block: number, position in it, length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (number, within) = (at / BLOCK, at % BLOCK);
        let len = (BLOCK - within).min(end - at);
        at += len;
        Some((number, within as usize, len as usize))
    })
}

impl Content {
    /// At most `len` bytes from `offset`; fewer at the end of the file.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = (offset + len).min(self.size);
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset) as usize);
        for (number, within, len) in pieces(offset, end.saturating_sub(offset)) {
            match self.blocks.get(&number) {
                Some(block) => bytes.extend_from_slice(&block[within..within + len]),
                None => bytes.resize(bytes.len() + len, 0),
            }
        }
        bytes
    }

    /// Stores bytes and leaves the size alone.
    pub fn place(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (number, within, len) in pieces(offset, bytes.len() as u64) {
            let (piece, after) = rest.split_at(len);
            let block = self
                .blocks
                .entry(number)
                .or_insert_with(|| Arc::new([0; BLOCK as usize]));
            Arc::make_mut(block)[within..within + len].copy_from_slice(piece);
            rest = after;
        }
    }

    /// Stores bytes; the file grows to hold them.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.place(offset, bytes);
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Sets the size; what was beyond a smaller one is gone.
    pub fn resize(&mut self, size: u64) {
        self.size = size;
        let whole = size.div_ceil(BLOCK);
        self.blocks.retain(|number, _| *number < whole);
        let within = (size % BLOCK) as usize;
        if within > 0
            && let Some(block) = self.blocks.get_mut(&(size / BLOCK))
        {
            Arc::make_mut(block)[within..].fill(0);
        }
    }

    /// Gives up the blocks of a range: it reads as zeros.
    pub fn punch(&mut self, offset: u64, len: u64) {
        for (number, within, len) in pieces(offset, len) {
            if len as u64 == BLOCK {
                self.blocks.remove(&number);
            } else if let Some(block) = self.blocks.get_mut(&number) {
                Arc::make_mut(block)[within..within + len].fill(0);
            }
        }
    }

    /// Bytes that take room on the disk.
    pub fn used(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// The first position from `offset` that is written (`true`) or a hole (`false`); the end of
    /// the file counts as a hole. `None` beyond the end, and where no more data follows.
    pub fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut at = offset;
        while at < self.size {
            if self.blocks.contains_key(&(at / BLOCK)) == data {
                return Some(at);
            }
            at = (at / BLOCK + 1) * BLOCK;
        }
        (!data).then_some(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_the_rest_is_zeros() {
        let mut content = Content::default();
        content.write(4090, b"0123456789");
        assert_eq!(content.size, 4100);
        assert_eq!(content.read(4088, 100), b"\0\x000123456789");
        content.resize(4095);
        content.resize(8192);
        assert_eq!(content.read(4090, 8), b"01234\0\0\0");
    }

    #[test]
    fn holes_are_found() {
        let mut content = Content::default();
        content.resize(1 << 20);
        content.write(8192, &[1; 4096]);
        assert_eq!(content.seek(0, true), Some(8192));
        assert_eq!(content.seek(0, false), Some(0));
        assert_eq!(content.seek(8192, false), Some(12288));
        assert_eq!(content.seek(12288, true), None);
        content.punch(8192, 4096);
        assert_eq!((content.seek(0, true), content.used()), (None, 0));
    }
}
