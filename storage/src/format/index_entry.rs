//! Header, slots and items of an index file (docs/format.md, Index file).

use super::{i32_at, i64_at};

/// Bytes of the header.
pub const INDEX_HEADER_SIZE: usize = 40;
/// Bytes of a hash slot.
pub const INDEX_SLOT_SIZE: u64 = 4;
/// Bytes of an item.
pub const INDEX_ITEM_SIZE: usize = 20;

const _: () = assert!(INDEX_HEADER_SIZE == 4 * 8 + 2 * 4);
const _: () = assert!(INDEX_ITEM_SIZE == 4 + 8 + 4 + 4);
const _: () = assert!(IndexShape::APACHE_DEFAULT.file_size() == 420_000_040);

/// How many slots and items a file has; recorded nowhere but in the configuration.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct IndexShape {
    /// `maxHashSlotNum`, at least 1.
    pub slots: u32,
    /// `maxIndexNum`: one more than the keys a file holds, at least 2.
    pub items: u32,
}

impl IndexShape {
    /// Apache's default: 5 million slots, 20 million items.
    pub const APACHE_DEFAULT: Self = Self {
        slots: 5_000_000,
        items: 20_000_000,
    };

    /// Bytes of a file.
    pub const fn file_size(self) -> u64 {
        self.item_position(0) + self.items as u64 * INDEX_ITEM_SIZE as u64
    }

    /// Where slot `slot` stands in the file.
    pub const fn slot_position(self, slot: u32) -> u64 {
        INDEX_HEADER_SIZE as u64 + slot as u64 * INDEX_SLOT_SIZE
    }

    /// Where item `item` stands in the file. Item 0 is never used.
    pub const fn item_position(self, item: u32) -> u64 {
        self.slot_position(self.slots) + item as u64 * INDEX_ITEM_SIZE as u64
    }

    /// The slot of a hash from [`super::hash::index_hash`].
    pub fn slot_of(self, hash: i32) -> u32 {
        hash.unsigned_abs() % self.slots
    }
}

/// The header of an index file.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct IndexHeader {
    /// Store time of the first indexed key, ms.
    pub begin_timestamp: i64,
    /// Store time of the last indexed key, ms.
    pub end_timestamp: i64,
    /// Log offset of the first indexed record.
    pub begin_offset: i64,
    /// Log offset of the last indexed record.
    pub end_offset: i64,
    /// Number of puts that found an empty slot.
    pub slot_count: i32,
    /// Number of the next free item: 1 in an empty file (0 on disk means 1 too).
    pub next_item: i32,
}

impl IndexHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; INDEX_HEADER_SIZE] {
        let mut bytes = [0; INDEX_HEADER_SIZE];
        bytes[0..8].copy_from_slice(&self.begin_timestamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.end_timestamp.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.begin_offset.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.end_offset.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.slot_count.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.next_item.to_be_bytes());
        bytes
    }

    /// Reads a header; an item count of 0 or less means an empty file.
    pub fn decode(bytes: &[u8; INDEX_HEADER_SIZE]) -> Self {
        let long = |at| i64_at(bytes, at).unwrap_or(0);
        let int = |at| i32_at(bytes, at).unwrap_or(0);
        Self {
            begin_timestamp: long(0),
            end_timestamp: long(8),
            begin_offset: long(16),
            end_offset: long(24),
            slot_count: int(32),
            next_item: int(36).max(1),
        }
    }
}

/// One item: a key's hash and where its record is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct IndexItem {
    /// Hash of `topic#key`, not negative.
    pub hash: i32,
    /// Log offset of the record.
    pub physical_offset: i64,
    /// Whole seconds after the file's begin time.
    pub seconds: i32,
    /// The item that the slot named before; 0 for none.
    pub previous: i32,
}

impl IndexItem {
    /// The item's bytes.
    pub fn encode(&self) -> [u8; INDEX_ITEM_SIZE] {
        let mut bytes = [0; INDEX_ITEM_SIZE];
        bytes[0..4].copy_from_slice(&self.hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.physical_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }

    /// Reads an item.
    pub fn decode(bytes: &[u8; INDEX_ITEM_SIZE]) -> Self {
        let int = |at| i32_at(bytes, at).unwrap_or(0);
        Self {
            hash: int(0),
            physical_offset: i64_at(bytes, 4).unwrap_or(0),
            seconds: int(12),
            previous: int(16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_items_stand_where_apache_puts_them() {
        let shape = IndexShape::APACHE_DEFAULT;
        for (hash, slot, slot_at) in [
            (1_797_237_359, 2_237_359, 8_949_476),
            (1_043_804_929, 3_804_929, 15_219_756),
            (1_043_804_930, 3_804_930, 15_219_760),
        ] {
            assert_eq!(shape.slot_of(hash), slot);
            assert_eq!(shape.slot_position(slot), slot_at);
        }
        assert_eq!(shape.item_position(1), 20_000_060);
        assert_eq!(shape.item_position(3), 20_000_100);
    }
}
