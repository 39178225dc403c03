//! A unit of a consume queue's extension files (docs/format.md, "Extension unit").

use super::{i16_at, i64_at};

/// Bytes of a unit before its bits.
pub const HEAD_SIZE: usize = 20;
/// Most bytes of a unit: its size field has 16 bits.
pub const UNIT_MAX: usize = i16::MAX as usize;
/// Bytes that stay free behind the last unit of a file.
pub const END_SIZE: usize = 4;
/// Stands where a file goes on no more.
pub const END_MARK: [u8; 2] = (-1_i16).to_be_bytes();

/// What an extension file has for one entry of its queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unit<'a> {
    /// What the entry's tag code field would hold.
    pub tags_code: i64,
    /// The record's store time, in milliseconds.
    pub store_timestamp: i64,
    /// Bits of the selectors that the record passes; empty: not known.
    pub bits: &'a [u8],
}

impl Unit<'_> {
    /// Bytes of the unit; `None` when there are more bits than a unit takes.
    pub fn size(&self) -> Option<usize> {
        let size = HEAD_SIZE + self.bits.len();
        (size <= UNIT_MAX).then_some(size)
    }

    /// Appends the unit's bytes to `out`; nothing when [`Unit::size`] is `None`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Some(size) = self.size() else { return };
        out.extend_from_slice(&(size as i16).to_be_bytes());
        out.extend_from_slice(&self.tags_code.to_be_bytes());
        out.extend_from_slice(&self.store_timestamp.to_be_bytes());
        out.extend_from_slice(&(self.bits.len() as i16).to_be_bytes());
        out.extend_from_slice(self.bits);
    }

    /// Reads a unit at the start of `bytes`; `None` when there is none, or not all of it.
    pub fn decode(bytes: &[u8]) -> Option<Unit<'_>> {
        let size = size_of_unit(bytes)?;
        Some(Unit {
            tags_code: i64_at(bytes, 2)?,
            store_timestamp: i64_at(bytes, 10)?,
            bits: bytes.get(HEAD_SIZE..size)?,
        })
    }
}

/// Bytes of the unit that begins with `head`, if its two length fields agree.
pub fn size_of_unit(head: &[u8]) -> Option<usize> {
    let size = usize::try_from(i16_at(head, 0)?).ok()?;
    let bits = usize::try_from(i16_at(head, 18)?).ok()?;
    (size == HEAD_SIZE + bits).then_some(size)
}

/// The tag code field of an entry whose unit begins at this position of its queue's extension
/// files; `None` for one that no field can hold.
pub fn address(position: u64) -> Option<i64> {
    let position = i64::try_from(position).ok()?;
    Some(i64::MIN + position).filter(|address| is_address(*address))
}

/// Whether a tag code field holds the address of a unit: it is below every hash and every time.
pub fn is_address(tags_code: i64) -> bool {
    tags_code < i64::from(i32::MIN)
}

/// The position that a tag code field names; `None` for a tag code.
pub fn position(tags_code: i64) -> Option<u64> {
    is_address(tags_code).then(|| tags_code.wrapping_sub(i64::MIN).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_written_as_apaches() {
        // From the recorded store sql-ext-clean-4.9.7, queue 0.
        let bare = "00140000000000000a5d000001a229e058840000";
        let full = "00220000000000000a5d000001a229e063bd000e2000008000000000000400000000";
        for (expected, time, bits) in [
            (bare, 1_795_998_898_308_u64, &[][..]),
            (
                full,
                0,
                &[0x20, 0, 0, 0x80, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0][..],
            ),
        ] {
            let bytes: Vec<u8> = (0..expected.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&expected[at..at + 2], 16).unwrap())
                .collect();
            let unit = Unit::decode(&bytes).unwrap();
            assert_eq!((unit.tags_code, unit.bits), (2653, bits));
            assert!(time == 0 || unit.store_timestamp == time as i64);
            let mut again = Vec::new();
            unit.encode(&mut again);
            assert_eq!(again, bytes);
            for cut in 0..bytes.len() {
                assert_eq!(Unit::decode(&bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_unit_are_not_read_as_one() {
        for size in [-1_i16, 0, 1, 19, 21, i16::MAX] {
            let mut bytes = vec![0; UNIT_MAX];
            bytes[..2].copy_from_slice(&size.to_be_bytes());
            let whole = size == i16::MAX;
            bytes[18..20].copy_from_slice(&(if whole { size - 20 } else { 0 }).to_be_bytes());
            assert_eq!(Unit::decode(&bytes).is_some(), whole, "{size}");
        }
    }

    #[test]
    fn an_address_is_below_every_tag_code() {
        for at in [0, 20, 1 << 40] {
            assert_eq!(position(address(at).unwrap()), Some(at));
        }
        assert_eq!(address(0), Some(i64::MIN));
        assert_eq!(position(i64::from(i32::MIN)), None);
        let last = u64::MAX / 2 - (1 << 31);
        assert_eq!(address(last), Some(i64::from(i32::MIN) - 1));
        assert_eq!((address(last + 1), address(u64::MAX)), (None, None));
    }
}
