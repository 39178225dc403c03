//! Counters of what goes through a topic; the statistics and metrics are made from them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Running totals of one topic.
#[derive(Debug, Default)]
pub struct Traffic {
    put_messages: AtomicU64,
    put_bytes: AtomicU64,
    got_messages: AtomicU64,
    got_bytes: AtomicU64,
}

impl Traffic {
    /// Counts acknowledged messages and the bytes of their records.
    pub fn put(&self, messages: u64, bytes: u64) {
        self.put_messages.fetch_add(messages, Ordering::Relaxed);
        self.put_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts messages handed to consumers and the bytes of their records.
    pub fn get(&self, messages: u64, bytes: u64) {
        self.got_messages.fetch_add(messages, Ordering::Relaxed);
        self.got_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Messages stored so far.
    pub fn put_messages(&self) -> u64 {
        self.put_messages.load(Ordering::Relaxed)
    }

    /// Record bytes stored so far.
    pub fn put_bytes(&self) -> u64 {
        self.put_bytes.load(Ordering::Relaxed)
    }

    /// Messages handed to consumers so far.
    pub fn got_messages(&self) -> u64 {
        self.got_messages.load(Ordering::Relaxed)
    }

    /// Record bytes handed to consumers so far.
    pub fn got_bytes(&self) -> u64 {
        self.got_bytes.load(Ordering::Relaxed)
    }
}
