//! Apache RocketMQ's message store, byte for byte, written through io_uring.
//!
//! This crate knows bytes on disk; it knows no socket and no request code.

pub mod append_queue;
pub mod checkpoint;
pub mod config;
pub mod consume_queue;
pub mod disk;
pub mod dispatch;
pub mod error;
pub mod filter;
pub mod format;
pub mod index_file;
pub mod inspect;
pub mod layout;
pub mod lock;
pub mod log_window;
pub mod mapped_file;
pub mod mapping;
pub mod metrics;
pub mod queue_table;
pub mod reader;
pub mod recovery;
pub mod regular;
mod removed_topics;
pub mod resume;
pub mod retention;
pub mod segments;
pub mod store;
pub mod tail;
pub mod timer;
pub mod trial;
pub mod watermarks;

mod apart;
mod append;
mod commit_log;
mod flusher;
mod foreign;
mod former_run;
mod medium;
mod opening;
mod preparer;
mod presence;
mod rebuild;
mod removal;
mod seeded;
mod side_by_side;
mod writer;

#[cfg(test)]
#[path = "../tests/simulate/mod.rs"]
mod simulate;
