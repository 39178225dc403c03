//! Pieces of the log that were read from disk a short while ago, shared by all readers.
//!
//! The services thread reads them, and network cores copy records out of them: a consumer that
//! works through a backlog costs one read for each piece, and hands over few of its pulls. What
//! must always hold: a piece shows only bytes that were acknowledged when it was read; they never
//! change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;

use super::StoreReader;
use crate::disk::aligned::{AlignedMemory, FrozenMemory};
use crate::error::ReadError;

/// Bytes between the starts of two pieces, from the start of their file on.
const PIECE_BYTES: u64 = 1 << 20;
/// A record that begins in a piece is whole in it if it is no longer than this, in bytes.
pub(super) const OVERLAP: u64 = 64 << 10;
/// Pieces kept.
const PIECES: usize = 16;
/// Pieces read ahead once a reader went from one to the next.
const AHEAD: u32 = 3;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Piece {
    start: u64,
    len: usize,
    memory: FrozenMemory,
    /// Since it was looked at whether it is to go.
    used: AtomicBool,
}

impl Piece {
    fn bytes(&self, offset: u64, size: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = from.checked_add(size).filter(|end| *end <= self.len)?;
        self.memory.bytes().get(from..end)
    }
}

/// All pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    slots: [ArcSwapOption<Piece>; PIECES],
    /// The slot that is looked at next for room.
    hand: Mutex<usize>,
}

impl Pieces {
    /// A piece that holds these bytes of the log.
    fn find(&self, offset: u64, size: usize) -> Option<Arc<Piece>> {
        self.slots.iter().find_map(|slot| {
            let piece = slot.load();
            let piece = piece.as_ref()?;
            piece.bytes(offset, size)?;
            piece.used.store(true, Ordering::Relaxed);
            Some(Arc::clone(piece))
        })
    }

    /// Takes a piece in place of the one with the same start, or of one that nobody used lately;
    /// gives back that one's memory if nobody holds it.
    fn put(&self, piece: Piece) -> Option<AlignedMemory> {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let has_start = |slot: &ArcSwapOption<Piece>| {
            slot.load()
                .as_ref()
                .is_some_and(|old| old.start == piece.start)
        };
        let index = self.slots.iter().position(has_start).unwrap_or_else(|| {
            // Two rounds: in the second nothing counts as used any more, but for new uses.
            for _ in 0..2 * PIECES {
                *hand = (*hand + 1) % PIECES;
                let old = self.slots[*hand].load();
                if old
                    .as_ref()
                    .is_none_or(|old| !old.used.swap(false, Ordering::Relaxed))
                {
                    break;
                }
            }
            *hand
        });
        let old = self.slots[index].swap(Some(Arc::new(piece)))?;
        Some(Arc::into_inner(old)?.memory.into_memory())
    }

    /// Gives up what nobody used since the last call.
    fn release_unused(&self) {
        let _changes = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in &self.slots {
            let is_used = |piece: &Arc<Piece>| piece.used.swap(false, Ordering::Relaxed);
            if slot.load().as_ref().is_some_and(|piece| !is_used(piece)) {
                slot.store(None);
            }
        }
    }
}

/// What one reader has to do with pieces.
#[derive(Default)]
pub(super) struct PieceUse {
    /// The one it copied from last.
    held: Option<Arc<Piece>>,
    /// Whether the pull at hand was served from one.
    pub(super) used: bool,
    /// Memory for the next one.
    spare: Option<AlignedMemory>,
    /// Log offset of the next piece to be read ahead, and how many are left.
    ahead: (u64, u32),
}

impl StoreReader {
    /// Appends these bytes of the log to `out` if a piece holds them; waits for nothing.
    pub(super) fn copy_piece(&mut self, offset: u64, size: usize, out: &mut Vec<u8>) -> bool {
        let held = &mut self.pieces.held;
        if held
            .as_ref()
            .is_none_or(|piece| piece.bytes(offset, size).is_none())
        {
            *held = self.shared.pieces.find(offset, size);
        }
        let Some(piece) = held.as_ref() else {
            return false;
        };
        let Some(bytes) = piece.bytes(offset, size) else {
            return false;
        };
        if !piece.used.load(Ordering::Relaxed) {
            piece.used.store(true, Ordering::Relaxed);
        }
        out.extend_from_slice(bytes);
        self.pieces.used = true;
        true
    }

    /// Reads the piece in which a record begins, and has the next ones read ahead if it follows one
    /// that was read.
    pub(super) fn read_piece(&mut self, offset: u64) -> Result<(), ReadError> {
        let base = self.window.base_of(offset);
        let start = offset - (offset - base) % PIECE_BYTES;
        let follows = start > base && self.shared.pieces.find(start - 1, 1).is_some();
        self.fill_piece(start)?;
        self.pieces.ahead = (start + PIECE_BYTES, if follows { AHEAD } else { 0 });
        Ok(())
    }

    /// Reads one more piece ahead of the consumers if that is of use; whether there may be more.
    /// Waits for the disk.
    pub fn read_on(&mut self) -> Result<bool, ReadError> {
        let (start, left) = self.pieces.ahead;
        let log_end = self.shared.watermarks.acknowledged().min(self.tail.start());
        if left == 0 || start >= log_end || start == self.window.base_of(start) {
            self.pieces.ahead.1 = 0;
            return Ok(false);
        }
        self.pieces.ahead = (start + PIECE_BYTES, left - 1);
        if self.shared.pieces.find(start, 1).is_none() {
            self.fill_piece(start)?;
        }
        Ok(left > 1)
    }

    fn fill_piece(&mut self, start: u64) -> Result<(), ReadError> {
        let limits = self.window_limits();
        let mut memory = match self.pieces.spare.take() {
            Some(memory) => memory,
            None => self
                .window
                .memory((PIECE_BYTES + OVERLAP) as usize, start)?,
        };
        let Some(len) = self
            .window
            .read_into(start, memory.as_mut_slice(), limits)?
        else {
            self.pieces.spare = Some(memory);
            return Ok(());
        };
        self.pieces.held = None;
        self.pieces.spare = self.shared.pieces.put(Piece {
            start,
            len,
            memory: memory.freeze(),
            used: AtomicBool::new(true),
        });
        Ok(())
    }

    /// Gives up pieces that nobody reads any more.
    pub(super) fn release_pieces(&mut self) {
        self.pieces = PieceUse::default();
        self.shared.pieces.release_unused();
    }
}
