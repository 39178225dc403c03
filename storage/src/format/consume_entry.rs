//! One entry of a consume queue (docs/format.md, Consume queue entry).

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 20;

/// Where the record of one queue offset is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct ConsumeEntry {
    /// Log offset of the record.
    pub physical_offset: u64,
    /// Bytes of the record.
    pub size: u32,
    /// Tag code, delivery time (schedule topic) or extension address.
    pub tags_code: i64,
}

impl ConsumeEntry {
    /// Fills a young file in front of its first entry; valid to a scanner, not to a reader.
    pub const PRE_BLANK: Self = Self {
        physical_offset: 0,
        size: i32::MAX as u32,
        tags_code: 0,
    };

    /// Stands for bytes that are no entry where there must be one.
    pub const DAMAGED: Self = Self {
        physical_offset: 0,
        size: 0,
        tags_code: 0,
    };

    /// The entry's bytes. Offset and size must fit Java's signed numbers.
    pub fn encode(self) -> [u8; ENTRY_SIZE] {
        assert!(
            self.physical_offset <= i64::MAX as u64,
            "log offset beyond 2^63"
        );
        assert!(self.size <= i32::MAX as u32, "record of more than 2 GiB");
        let mut bytes = [0; ENTRY_SIZE];
        bytes[0..8].copy_from_slice(&self.physical_offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    /// Reads an entry; `None` when offset or size say that nothing was written there.
    pub fn decode(bytes: &[u8; ENTRY_SIZE]) -> Option<Self> {
        let physical_offset = u64::try_from(super::i64_at(bytes, 0)?).ok()?;
        let size = u32::try_from(super::i32_at(bytes, 8)?)
            .ok()
            .filter(|size| *size > 0)?;
        Some(Self {
            physical_offset,
            size,
            tags_code: super::i64_at(bytes, 12)?,
        })
    }

    /// Whether this only fills the front of a file.
    pub fn is_pre_blank(self) -> bool {
        self.physical_offset == 0 && self.size == i32::MAX as u32
    }

    /// Log offset after the record's last byte.
    pub fn end(self) -> u64 {
        self.physical_offset.saturating_add(u64::from(self.size))
    }
}

const _: () = assert!(ENTRY_SIZE == 8 + 4 + 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_offset_size_and_tag_code() {
        let entry = ConsumeEntry {
            physical_offset: 1000,
            size: 215,
            tags_code: 2_598_919,
        };
        let mut bytes = [0; 20];
        bytes[6..8].copy_from_slice(&[0x03, 0xe8]);
        bytes[11] = 0xd7;
        bytes[17..20].copy_from_slice(&[0x27, 0xa8, 0x07]);
        assert_eq!(entry.encode(), bytes);
        assert_eq!(ConsumeEntry::decode(&bytes), Some(entry));
    }

    #[test]
    fn a_pre_blank_entry_has_the_largest_size() {
        let mut bytes = [0; 20];
        bytes[8..12].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(ConsumeEntry::PRE_BLANK.encode(), bytes);
        assert!(ConsumeEntry::decode(&bytes).unwrap().is_pre_blank());
    }

    #[test]
    fn negative_offsets_and_sizes_of_zero_or_less_are_no_entries() {
        assert_eq!(ConsumeEntry::decode(&[0; 20]), None);
        let mut bytes = ConsumeEntry {
            physical_offset: 1,
            size: 1,
            tags_code: 0,
        }
        .encode();
        bytes[0] = 0x80;
        assert_eq!(ConsumeEntry::decode(&bytes), None);
        bytes[0] = 0;
        bytes[8] = 0x80;
        assert_eq!(ConsumeEntry::decode(&bytes), None);
    }
}
