//! Starting the threads of a recovered store.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use super::{Opened, Running, Store};
use crate::commit_log::{LatchOnPanic, LogStatus};
use crate::config::StoreConfig;
use crate::dispatch::{
    self, CoreWakes, DispatchReceiver, DispatchState, Dispatcher, MisplacedLog, Places, Units,
    Waker, wake_queues,
};
use crate::error::OpenError;
use crate::flusher::{Flusher, FlusherThread};
use crate::index_file::Index;
use crate::layout::Layout;
use crate::lock::StoreLock;
use crate::metrics::WriteMetrics;
use crate::opening::{Late, Recovered};
use crate::preparer::Removals;
use crate::presence::Presence;
use crate::queue_table::leftovers::Leftovers;
use crate::queue_table::{QueueTable, RememberedQueues};
use crate::reader::mending::Mending;
use crate::reader::{Pieces, ReadShared};
use crate::tail::{TailReader, TailReaders};
use crate::watermarks::Watermarks;
use crate::writer::thread::{Connections, LogStart, launch};

/// What the threads share.
pub(crate) struct Parts {
    config: StoreConfig,
    layout: Layout,
    table: Arc<QueueTable>,
    index: Arc<Index>,
    watermarks: Arc<Watermarks>,
    dispatch: Arc<DispatchState>,
    metrics: Arc<WriteMetrics>,
    log_min: u64,
    /// Where the log goes on.
    log_start: LogStart,
    /// Entries that the dispatcher has to make first.
    late: Option<Arc<Late>>,
}

/// What a store knows of its writer.
pub(crate) struct LogEnd {
    pub(crate) tail: TailReaders,
    pub(crate) status: Arc<LogStatus>,
    pub(crate) removals: Removals,
    /// How the log is written.
    pub(crate) writing: String,
}

/// Starts the threads of a recovered store, the flusher last: it speaks for all that is behind it.
pub(super) fn start(
    config: StoreConfig,
    layout: Layout,
    recovered: Recovered,
    lock: StoreLock,
    ports: usize,
    waker: Arc<dyn Waker>,
) -> Result<Opened, OpenError> {
    let report = recovered.report.clone();
    let behind = recovered.changed && recovered.resumed.is_some();
    let (parts, flusher) = Parts::new(config, layout, recovered)?;
    let (connections, receiver) = parts.connections(Arc::clone(&waker));
    let (mut writer, append_ports) = launch(&parts.config, ports, parts.log_start, connections)?;
    let (core_wakes, wakes) = wake_queues(ports, parts.config.wake_queue_items, waker, &receiver);
    let dispatcher = parts.dispatcher(receiver, core_wakes, writer.tail.reader()?);
    let log_end = LogEnd {
        tail: writer.tail.clone(),
        status: Arc::clone(&writer.status),
        removals: writer.removals.clone(),
        writing: writer.plan.summary(),
    };
    let lent = writer.lent.take();
    let running = Running {
        dispatcher: Some(start_dispatcher(dispatcher, Arc::clone(&writer.status))?),
        flusher: FlusherThread::start(flusher, Arc::clone(&writer.status))?,
        writer,
        _lock: lock,
    };
    if behind {
        running.flusher.request();
    }
    Ok(Opened {
        store: Arc::new(parts.into_store(log_end, Some(running))),
        ports: append_ports,
        wakes,
        report,
        writer: lent,
    })
}

fn start_dispatcher(
    dispatcher: Dispatcher,
    status: Arc<LogStatus>,
) -> Result<JoinHandle<bool>, OpenError> {
    let guard = LatchOnPanic::new(status, "dispatcher");
    std::thread::Builder::new()
        .name("dispatcher".into())
        .spawn(move || {
            let _guard = guard;
            dispatcher.run()
        })
        .map_err(|source| OpenError::Thread {
            name: "dispatcher",
            source,
        })
}

impl Parts {
    /// The parts of a recovered store, and the flusher. It has made the first resume point if
    /// recovery changed anything that the one on disk says; what only stands behind that one costs
    /// the next start another look, so nobody waits until it is synced.
    pub(crate) fn new(
        config: StoreConfig,
        layout: Layout,
        recovered: Recovered,
    ) -> Result<(Parts, Flusher), OpenError> {
        let (last, log_end) = (recovered.last, recovered.log_end);
        let late = recovered.late;
        let done = late.as_ref().map_or(last, |late| late.done);
        let dispatched = late.as_ref().map_or(log_end, |late| late.done.end);
        let made = recovered.resumed.unwrap_or(done);
        let parts = Parts {
            watermarks: Arc::new(Watermarks::behind(config.flush, log_end, dispatched)),
            dispatch: Arc::new(DispatchState::new(done)),
            table: recovered.table,
            index: recovered.index,
            metrics: Arc::default(),
            config,
            layout,
            log_min: recovered.log_min,
            log_start: LogStart {
                end: log_end,
                last_store_timestamp: last.timestamp,
            },
            late,
        };
        if let Some(late) = &parts.late {
            let why = Arc::new(late.why.clone());
            parts.dispatch.fault.store(Some(why));
        }
        let mut flusher = Flusher {
            table: Arc::clone(&parts.table),
            index: Arc::clone(&parts.index),
            watermarks: Arc::clone(&parts.watermarks),
            dispatch: Arc::clone(&parts.dispatch),
            resume_path: parts.layout.resume(),
            checkpoint: recovered.checkpoint,
            floors: recovered.floors,
            opened_at: log_end,
            resume_bytes: parts.config.resume_bytes,
            resume_interval: parts.config.resume_interval,
            made,
            made_at: Instant::now(),
            candidate: None,
            lost: None,
        };
        parts.dispatch.resumed.store(made.end, Ordering::SeqCst);
        parts
            .dispatch
            .log_min
            .store(parts.log_min, Ordering::SeqCst);
        if recovered.changed && recovered.resumed.is_none() {
            flusher.make(done)?;
        }
        Ok((parts, flusher))
    }

    /// Where the log goes on.
    #[cfg(test)]
    pub(crate) fn log_start(&self) -> LogStart {
        self.log_start
    }

    /// What the writer is connected with, and the other end of its queue to the dispatcher.
    pub(crate) fn connections(
        &self,
        waker: Arc<dyn Waker>,
    ) -> (Connections<RememberedQueues>, DispatchReceiver) {
        let (sender, receiver) = dispatch::channel(self.config.dispatch_queue_items);
        let connections = Connections {
            marks: Arc::clone(&self.watermarks),
            queues: RememberedQueues::new(Arc::clone(&self.table)),
            dispatcher: sender,
            metrics: Arc::clone(&self.metrics),
            wake: Box::new(move |port| waker.wake(port)),
        };
        (connections, receiver)
    }

    /// The dispatcher, before its thread runs.
    pub(crate) fn dispatcher(
        &self,
        receiver: DispatchReceiver,
        wakes: CoreWakes,
        tail: TailReader,
    ) -> Dispatcher {
        Dispatcher {
            receiver,
            queues: RememberedQueues::new(Arc::clone(&self.table)),
            places: Places::default(),
            index: self.config.message_index.then(|| Arc::clone(&self.index)),
            watermarks: Arc::clone(&self.watermarks),
            tail: Some(tail),
            delay_levels_ms: self.config.delay_levels_ms.clone(),
            units: Units::of(&self.config),
            wakes,
            state: Arc::clone(&self.dispatch),
            record: Vec::new(),
            indexed: 0,
            misplaced: MisplacedLog::default(),
            held: None,
            failing: self.late.is_some(),
            late: self.late.clone(),
        }
    }

    /// The store; without running threads, whoever holds it takes their steps.
    pub(crate) fn into_store(self, log_end: LogEnd, running: Option<Running>) -> Store {
        let shared = Arc::new(ReadShared {
            directory: self.layout.commit_log().to_path_buf(),
            file_size: self.config.commit_log_file_size,
            queue_file_size: self.config.queue_file_size(),
            watermarks: Arc::clone(&self.watermarks),
            min_log_offset: AtomicU64::new(self.log_min),
            index: Arc::clone(&self.index),
            loaded_end: self.watermarks.acknowledged(),
            damaged_reads: AtomicU64::new(0),
            table: Arc::clone(&self.table),
            delay_levels_ms: self.config.delay_levels_ms.clone(),
            mending: Mending::default(),
            pieces: Pieces::default(),
        });
        let leftovers = Leftovers::new(self.table.aside());
        leftovers.sweep();
        let presence = Presence::of(&[self.layout.root(), self.layout.commit_log()]);
        Store {
            config: self.config,
            presence,
            layout: self.layout,
            table: self.table,
            leftovers,
            index: self.index,
            tail: log_end.tail,
            watermarks: self.watermarks,
            shared,
            status: log_end.status,
            dispatch: self.dispatch,
            disk_full: AtomicBool::new(false),
            manual_rounds: AtomicU32::new(0),
            trimmed_to: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            writing: log_end.writing,
            metrics: self.metrics,
            removals: log_end.removals,
            running: Mutex::new(running),
        }
    }
}
