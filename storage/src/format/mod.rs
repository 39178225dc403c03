//! The bytes of Apache RocketMQ's files, as borrowed views and encoders (docs/format.md).
//!
//! Nothing here opens a file. Every reader is checked: damaged or hostile bytes give an error
//! that says what is wrong, never a panic.

pub mod batch;
pub mod checkpoint;
pub mod consume_entry;
pub mod extension_unit;
pub mod hash;
pub mod index_entry;
pub mod light;
pub mod message;
pub mod message_id;
pub mod names;
pub mod properties;
pub mod record;
pub mod timer;

/// Reads a big-endian `i32` at `at`; `None` when it does not lie inside `bytes`.
pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    let end = at.checked_add(4)?;
    bytes.get(at..end)?.try_into().ok().map(i32::from_be_bytes)
}

/// Reads a big-endian `i64` at `at`; `None` when it does not lie inside `bytes`.
pub(crate) fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    let end = at.checked_add(8)?;
    bytes.get(at..end)?.try_into().ok().map(i64::from_be_bytes)
}

/// Reads a big-endian `i16` at `at`; `None` when it does not lie inside `bytes`.
pub(crate) fn i16_at(bytes: &[u8], at: usize) -> Option<i16> {
    let end = at.checked_add(2)?;
    bytes.get(at..end)?.try_into().ok().map(i16::from_be_bytes)
}
