//! Transactions (docs/behaviour.md, Transactions).
//!
//! A transactional message is first stored as a half message in a topic of the broker's own. Its
//! producer ends it: the message is copied to its real topic, or not, and an op message says that
//! the half message is done with. The services thread asks about half messages that nobody ended.
//!
//! [`Table`] holds what is known of half messages, for the cores that end them and the
//! services thread that checks them; its lock is taken twice per transaction, never for an
//! ordinary message.

mod ask;
pub mod check;
pub mod half;
pub mod settled;
pub mod table;
mod trail;
mod window;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use table::Table;

use crate::answer::ReplySlot;

/// A half message that is done with once the op message about it is stored.
#[derive(Debug)]
pub struct Close {
    /// Its offset in the half queue.
    pub half: i64,
    /// How its client ended it; `None` if the check closes it.
    pub ended: Option<Ended>,
}

/// What is left to do once a transaction is ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Delivered, or else dropped.
    pub commit: bool,
    /// Who waits for the answer.
    pub slot: ReplySlot,
}

/// The broker's transactions.
#[derive(Debug)]
pub struct Transactions {
    table: Mutex<Table>,
    /// When an op message could last not be stored, in milliseconds since the epoch; 0 for never.
    pub failed_ms: AtomicI64,
    /// Counted since the start.
    pub counters: Counters,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Transactions committed.
    pub committed: AtomicU64,
    /// Transactions rolled back.
    pub rolled_back: AtomicU64,
    /// Questions to producers.
    pub checks: AtomicU64,
    /// Half messages given up.
    pub given_up: AtomicU64,
}

impl Transactions {
    /// Nothing is known until the check has read the queues.
    pub fn new() -> Self {
        Self {
            table: Mutex::new(Table::new(0, 0)),
            failed_ms: AtomicI64::new(0),
            counters: Counters::default(),
        }
    }

    /// The table, locked.
    pub fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is one call: a panic elsewhere leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books the op message of a transaction that was ended.
    pub fn ended(&self, open: i64, op: i64, commit: bool) {
        self.table().ended(open, op);
        let counter = match commit {
            true => &self.counters.committed,
            false => &self.counters.rolled_back,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for Transactions {
    fn default() -> Self {
        Self::new()
    }
}
