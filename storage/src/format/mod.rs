//! Byte layouts of the store files.

pub mod batch;
pub mod checkpoint;
pub mod consume_entry;
pub mod index_entry;
pub mod message;
pub mod properties;
