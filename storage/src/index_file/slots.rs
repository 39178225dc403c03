//! Taking an index file back to an earlier state.
//!
//! Items are only ever appended, each with the number of its predecessor in the chain, so the
//! slots of any earlier state follow from the items: each slot names the last item of its hash.

use super::{IndexError, IndexFile, before};
use crate::format::index_entry::{INDEX_ITEM_SIZE, IndexHeader, IndexItem};

/// Items and slots are read in pieces of this many bytes, a multiple of both their sizes.
const PIECE: usize = 20 * 1024;

/// What takes room at once on a filesystem, at least, in bytes.
const PAGE: usize = 4096;
static ZEROS: [u8; PAGE] = [0; PAGE];

impl IndexFile {
    /// Removes the items whose record begins at `log_offset` or behind it.
    pub(super) fn truncate(&self, log_offset: u64) -> Result<(), IndexError> {
        let mut header = self.header();
        if header.next_item <= 1 || before(header.end_offset, log_offset) {
            return Ok(());
        }
        let (mut low, mut high) = (1, header.next_item);
        while low < high {
            let middle = low + (high - low) / 2;
            let item = self.item(middle)?;
            if item.is_some_and(|item| before(item.physical_offset, log_offset)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        header.next_item = low;
        if let Some(last) = self.item(low - 1)?.filter(|_| low > 1) {
            // Item times are whole seconds: the latest that the last item can mean.
            let seconds = i64::from(last.seconds.max(0)) * 1000 + 999;
            let latest = header.begin_timestamp.saturating_add(seconds);
            header.end_timestamp = header.end_timestamp.min(latest);
            header.end_offset = last.physical_offset;
        } else {
            header = IndexHeader {
                next_item: 1,
                ..IndexHeader::default()
            };
        }
        self.rewind(header)
    }

    /// Makes the file what it was when it had this header.
    pub(super) fn rewind(&self, mut header: IndexHeader) -> Result<(), IndexError> {
        let mut state = self.lock();
        state.dirty = true;
        self.clear_slots()?;
        header.slot_count = 0;
        let mut bytes = vec![0; PIECE];
        let mut number = 1;
        while number < header.next_item {
            let items = (header.next_item - number).min((PIECE / INDEX_ITEM_SIZE) as i32);
            let piece = &mut bytes[..items as usize * INDEX_ITEM_SIZE];
            self.file
                .read_at(self.shape.item_position(number as u32), piece)?;
            for item in piece.as_chunks().0 {
                let item = IndexItem::decode(item);
                let slot = self.shape.slot_position(self.shape.slot_of(item.hash));
                self.file.write_at(slot, &number.to_be_bytes())?;
                header.slot_count += i32::from(item.previous == 0);
                number += 1;
            }
        }
        self.file.write_at(0, &header.encode())?;
        state.header = header;
        Ok(())
    }

    fn clear_slots(&self) -> Result<(), IndexError> {
        let mut bytes = vec![0; PIECE];
        let mut place = self.shape.slot_position(0);
        let end = self.shape.item_position(0);
        while place < end {
            let len = (end - place).min(PIECE as u64) as usize;
            let piece = &mut bytes[..len];
            self.file.read_at(place, piece)?;
            // Page by page: the one beside may be a hole, and the disk full.
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let page = PAGE - place as usize % PAGE;
                let (page, behind) = rest.split_at(page.min(rest.len()));
                if page.iter().any(|byte| *byte != 0) {
                    self.file.write_at(place, &ZEROS[..page.len()])?;
                }
                place += page.len() as u64;
                rest = behind;
            }
        }
        Ok(())
    }
}
