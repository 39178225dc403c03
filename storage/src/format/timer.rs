//! The bytes of timer messages' state: items of the timer log, slots of the timer wheel and
//! `timercheck` (docs/format.md, Timer files).

use super::{i32_at, i64_at};

/// Bytes of an item of the timer log.
pub const ITEM_SIZE: usize = 52;
/// Where the position of the item before stands in an item.
pub const PREVIOUS_AT: u64 = 4;
/// Bytes that a blank item writes; it stands for the rest of its file.
pub const BLANK_SIZE: usize = 16;
/// Bytes of a slot.
pub const SLOT_SIZE: usize = 32;
/// Slots of the wheel: two weeks of seconds.
pub const WHEEL_SLOTS: i64 = 2 * 7 * 24 * 3600;
/// Bytes of the wheel file.
pub const WHEEL_SIZE: u64 = WHEEL_SLOTS as u64 * SLOT_SIZE as u64;
/// Bytes of `timercheck`.
pub const CHECK_SIZE: usize = 4096;
/// Bytes of `timercheck` that carry fields; the rest is zero.
pub const CHECK_FIELDS: usize = 56;
/// No position: the end of a slot's chain.
pub const NO_POSITION: i64 = -1;

/// Marks of an item: every item has the first.
pub mod mark {
    /// An item.
    pub const ITEM: i32 = 1;
    /// Its message goes into the timer topic once more when the time has come.
    pub const ROLL: i32 = 2;
    /// Its message says which other one is not to be delivered.
    pub const DELETE: i32 = 4;
    /// All bits that an item may have.
    pub const ALL: i32 = 0xf;
    /// A blank item.
    pub const BLANK: i32 = 0xcbd4_3194_u32.cast_signed();
}

/// One message in the timer log.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Item {
    /// Log position of the item before it in the same slot, or [`NO_POSITION`].
    pub previous: i64,
    /// Bits of [`mark`].
    pub marks: i32,
    /// When it was entered, ms, rounded down to the precision.
    pub entered_ms: i64,
    /// Time of its slot minus `entered_ms`.
    pub delay_ms: i32,
    /// Commit log offset of the message.
    pub log_offset: i64,
    /// Size of the message's record.
    pub size: i32,
    /// Java hash of the topic that the message is meant for.
    pub topic_hash: i32,
}

impl Item {
    /// Time of its slot, ms.
    pub fn time_ms(&self) -> i64 {
        self.entered_ms.wrapping_add(i64::from(self.delay_ms))
    }

    /// What stands for an item that was damaged: its time is past, and it names the message of a
    /// sound one, as Apache looks for the messages of items.
    pub fn filler(sound: Option<&Self>) -> Self {
        Self {
            previous: NO_POSITION,
            marks: mark::ITEM,
            entered_ms: 0,
            delay_ms: 0,
            log_offset: sound.map_or(0, |item| item.log_offset),
            size: sound.map_or(0, |item| item.size),
            topic_hash: sound.map_or(0, |item| item.topic_hash),
        }
    }

    /// Whether it only fills a place.
    pub fn is_filler(&self) -> bool {
        self.previous == NO_POSITION && self.entered_ms == 0 && self.delay_ms == 0
    }

    /// The item's bytes.
    pub fn encode(&self) -> [u8; ITEM_SIZE] {
        let mut out = [0; ITEM_SIZE];
        out[0..4].copy_from_slice(&(ITEM_SIZE as i32).to_be_bytes());
        out[PREVIOUS_AT as usize..12].copy_from_slice(&self.previous.to_be_bytes());
        out[12..16].copy_from_slice(&self.marks.to_be_bytes());
        out[16..24].copy_from_slice(&self.entered_ms.to_be_bytes());
        out[24..28].copy_from_slice(&self.delay_ms.to_be_bytes());
        out[28..36].copy_from_slice(&self.log_offset.to_be_bytes());
        out[36..40].copy_from_slice(&self.size.to_be_bytes());
        out[40..44].copy_from_slice(&self.topic_hash.to_be_bytes());
        out
    }
}

/// What stands at a position of the timer log.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Entry {
    /// A message.
    Item(Item),
    /// Nothing more in this file.
    Blank,
}

impl Entry {
    /// Reads an entry; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let marks = i32_at(bytes, 12)?;
        if marks == mark::BLANK {
            return Some(Self::Blank);
        }
        let sound = i32_at(bytes, 0)? == ITEM_SIZE as i32 && marks & !mark::ALL == 0;
        if !sound || marks == 0 {
            return None;
        }
        Some(Self::Item(Item {
            previous: i64_at(bytes, 4)?,
            marks,
            entered_ms: i64_at(bytes, 16)?,
            delay_ms: i32_at(bytes, 24)?,
            log_offset: i64_at(bytes, 28)?,
            size: i32_at(bytes, 36)?,
            topic_hash: i32_at(bytes, 40)?,
        }))
    }
}

/// The blank item that ends a file `rest` bytes before its end.
pub fn encode_blank(rest: i32) -> [u8; BLANK_SIZE] {
    let mut out = [0; BLANK_SIZE];
    out[0..4].copy_from_slice(&rest.to_be_bytes());
    out[12..16].copy_from_slice(&mark::BLANK.to_be_bytes());
    out
}

/// Position of the last item that a timer-log file of `file_size` bytes can hold.
pub fn last_item_position(file_size: u64) -> u64 {
    let room = file_size.saturating_sub(BLANK_SIZE as u64);
    (room / ITEM_SIZE as u64).saturating_sub(1) * ITEM_SIZE as u64
}

/// One slot of the wheel: the messages of one time.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Slot {
    /// Its time divided by the precision; another one's messages are past.
    pub tick: i64,
    /// Log position of its first item.
    pub first: i64,
    /// Log position of its last item.
    pub last: i64,
    /// Items, less those that delete others.
    pub count: i32,
    /// Unused.
    pub magic: i32,
}

impl Slot {
    /// The slot's bytes.
    pub fn encode(&self) -> [u8; SLOT_SIZE] {
        let mut out = [0; SLOT_SIZE];
        out[0..8].copy_from_slice(&self.tick.to_be_bytes());
        out[8..16].copy_from_slice(&self.first.to_be_bytes());
        out[16..24].copy_from_slice(&self.last.to_be_bytes());
        out[24..28].copy_from_slice(&self.count.to_be_bytes());
        out[28..32].copy_from_slice(&self.magic.to_be_bytes());
        out
    }

    /// Reads a slot; what a short input does not hold is 0.
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            tick: i64_at(bytes, 0).unwrap_or(0),
            first: i64_at(bytes, 8).unwrap_or(0),
            last: i64_at(bytes, 16).unwrap_or(0),
            count: i32_at(bytes, 24).unwrap_or(0),
            magic: i32_at(bytes, 28).unwrap_or(0),
        }
    }
}

/// Index of the slot of a tick (a time divided by the precision).
pub fn slot_index(tick: i64) -> u64 {
    tick.rem_euclid(WHEEL_SLOTS).cast_unsigned()
}

/// The fields of `timercheck`.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Check {
    /// Messages of slots before this time, ms, are done with.
    pub read_ms: i64,
    /// The timer log is on disk up to here.
    pub log_position: i64,
    /// Messages of the timer topic before this queue offset are in the timer log, or delivered.
    pub queue_offset: i64,
    /// The same of a master; here always the same.
    pub master_queue_offset: i64,
    /// Data version: state version.
    pub state_version: i64,
    /// Data version: time, ms.
    pub version_ms: i64,
    /// Data version: counter.
    pub version_counter: i64,
}

impl Check {
    /// The file's first bytes.
    pub fn encode(&self) -> [u8; CHECK_FIELDS] {
        let fields = [
            self.read_ms,
            self.log_position,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.version_ms,
            self.version_counter,
        ];
        let mut bytes = [0; CHECK_FIELDS];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    /// Reads the fields; what a short file does not hold is 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let field = |at| i64_at(bytes, at).unwrap_or(0);
        Self {
            read_ms: field(0),
            log_position: field(8),
            queue_offset: field(16),
            master_queue_offset: field(24),
            state_version: field(32),
            version_ms: field(40),
            version_counter: field(48),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn an_item_has_apaches_bytes() {
        let item = Item {
            previous: NO_POSITION,
            marks: mark::ITEM,
            entered_ms: 1_700_000_000_000,
            delay_ms: 60_000,
            log_offset: 1000,
            size: 215,
            topic_hash: 0x8e98_7641_u32.cast_signed(),
        };
        let bytes = item.encode();
        assert_eq!(
            hex(&bytes),
            "00000034ffffffffffffffff000000010000018bcfe568000000ea60\
             00000000000003e8000000d78e9876410000000000000000"
        );
        assert_eq!(Entry::decode(&bytes), Some(Entry::Item(item)));
        assert_eq!(item.time_ms(), 1_700_000_060_000);
    }

    #[test]
    fn the_end_of_a_file_is_apaches() {
        let size = 104_857_600;
        assert_eq!(last_item_position(size), 104_857_532);
        let blank = encode_blank(16);
        assert_eq!(hex(&blank), "000000100000000000000000cbd43194");
        assert_eq!(Entry::decode(&blank), Some(Entry::Blank));
    }

    #[test]
    fn a_slot_stands_where_apache_looks_for_it() {
        let slot = Slot {
            tick: 1_700_000_060,
            first: 52,
            last: 104,
            count: 2,
            magic: 0,
        };
        assert_eq!(slot_index(slot.tick), 512_060);
        assert!(hex(&slot.encode()).starts_with("000000006553f13c"));
        assert_eq!(Slot::decode(&slot.encode()), slot);
        assert_eq!(WHEEL_SIZE, 38_707_200);
    }

    #[test]
    fn what_is_no_entry_is_told() {
        assert_eq!(Entry::decode(&[0; ITEM_SIZE]), None);
        assert_eq!(Entry::decode(&[]), None);
        let mut bytes = [0xff; ITEM_SIZE];
        assert_eq!(Entry::decode(&bytes), None);
        bytes[0..4].copy_from_slice(&52i32.to_be_bytes());
        assert_eq!(Entry::decode(&bytes), None);
    }

    #[test]
    fn a_check_is_read_back_and_a_short_one_is_zero() {
        let check = Check {
            read_ms: 1,
            log_position: 2,
            queue_offset: 3,
            master_queue_offset: 4,
            state_version: 5,
            version_ms: 6,
            version_counter: 7,
        };
        assert_eq!(Check::decode(&check.encode()), check);
        assert_eq!(Check::decode(&[]), Check::default());
    }
}
