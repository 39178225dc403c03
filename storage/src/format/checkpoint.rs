//! The bytes of `checkpoint` (docs/format.md, Checkpoint).

use super::i64_at;

/// Bytes of the file.
pub const CHECKPOINT_SIZE: usize = 4096;
/// Bytes that carry fields; the rest is zero or left alone.
pub const CHECKPOINT_FIELDS: usize = 40;

const _: () = assert!(CHECKPOINT_FIELDS == 5 * 8 && CHECKPOINT_FIELDS <= CHECKPOINT_SIZE);

/// The checkpoint's fields. The times are store times of messages in ms, not times of flushes.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Checkpoint {
    /// Store time of the newest message that a flush of the log covered.
    pub log_timestamp: i64,
    /// Store time of the newest message whose consume queue entry was flushed.
    pub queue_timestamp: i64,
    /// End time of the last index file that is on disk whole.
    pub index_timestamp: i64,
    /// Replication: what the master had flushed (5.0 and later).
    pub master_flushed_offset: i64,
    /// Log offset that is confirmed (5.1 and later).
    pub confirm_offset: i64,
}

impl Checkpoint {
    /// The file's first bytes.
    pub fn encode(&self) -> [u8; CHECKPOINT_FIELDS] {
        let fields = [
            self.log_timestamp,
            self.queue_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        ];
        let mut bytes = [0; CHECKPOINT_FIELDS];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    /// Reads the fields; what a short file does not hold is 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let field = |at| i64_at(bytes, at).unwrap_or(0);
        Self {
            log_timestamp: field(0),
            queue_timestamp: field(8),
            index_timestamp: field(16),
            master_flushed_offset: field(24),
            confirm_offset: field(32),
        }
    }

    /// Recovery after a crash starts at the last file whose first message is not newer.
    pub fn min_timestamp(&self) -> i64 {
        self.log_timestamp
            .min(self.queue_timestamp)
            .saturating_sub(3000)
            .max(0)
    }

    /// As [`Self::min_timestamp`], for recovering index files too.
    pub fn min_timestamp_with_index(&self) -> i64 {
        self.min_timestamp().min(self.index_timestamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_apaches_order_and_the_minimum_has_three_seconds_of_grace() {
        let mut checkpoint = Checkpoint {
            log_timestamp: 1_700_000_000_456,
            queue_timestamp: 1_700_000_000_456,
            ..Checkpoint::default()
        };
        let time = [0, 0, 0x01, 0x8b, 0xcf, 0xe5, 0x69, 0xc8];
        let mut bytes = [0; 40];
        bytes[0..8].copy_from_slice(&time);
        bytes[8..16].copy_from_slice(&time);
        assert_eq!(checkpoint.encode(), bytes);
        assert_eq!(checkpoint.min_timestamp(), 1_699_999_997_456);
        assert_eq!(checkpoint.min_timestamp_with_index(), 0);

        checkpoint.confirm_offset = 1000;
        bytes[38..40].copy_from_slice(&[0x03, 0xe8]);
        assert_eq!(checkpoint.encode(), bytes);
        assert_eq!(Checkpoint::decode(&bytes), checkpoint);
    }

    #[test]
    fn a_missing_or_short_checkpoint_means_start_at_the_beginning() {
        assert_eq!(Checkpoint::decode(&[]).min_timestamp(), 0);
        assert_eq!(Checkpoint::decode(&[0xff; 24]).min_timestamp(), 0);
    }
}
