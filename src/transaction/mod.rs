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

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use saturnmq_storage::format::record::Record;
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
    /// Half messages before this log offset may have been ended without a trace in memory: by an
    /// earlier run, or when an op message could not be stored; or they have copies that the table
    /// does not know.
    doubtful_before: AtomicU64,
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
    /// Nothing is known until the check has read the queues; `log_end` is where this run begins.
    pub fn new(log_end: u64) -> Self {
        Self {
            table: Mutex::new(Table::new(0, 0)),
            doubtful_before: AtomicU64::new(log_end),
            counters: Counters::default(),
        }
    }

    /// Whether the half message `record` may have been ended without a trace in memory. Log offsets
    /// tell that, not times: clocks are set.
    pub fn is_doubtful(&self, record: &Record<'_>) -> bool {
        let before = self.doubtful_before.load(Ordering::Relaxed);
        u64::try_from(record.physical_offset()).is_ok_and(|offset| offset < before)
    }

    /// An op message could not be stored; the log ends at `log_end`.
    pub fn op_failed(&self, log_end: u64) {
        self.doubtful_before.fetch_max(log_end, Ordering::Relaxed);
    }

    /// A half message that was given up is put back, with no link from what it is a copy of; the
    /// log ends at `log_end`.
    pub fn put_back(&self, log_end: u64) {
        self.doubtful_before.fetch_max(log_end, Ordering::Relaxed);
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
