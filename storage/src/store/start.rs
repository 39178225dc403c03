//! Starting the threads of a recovered store.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use super::{Opened, Running, Store};
use crate::commit_log::{LatchOnPanic, LogStatus};
use crate::config::StoreConfig;
use crate::dispatch::{
    self, CoreWakes, DispatchReceiver, DispatchState, Dispatcher, Waker, wake_queues,
};
use crate::error::OpenError;
use crate::flusher::{Flusher, FlusherThread};
use crate::index_file::Index;
use crate::layout::Layout;
use crate::lock::StoreLock;
use crate::metrics::WriteMetrics;
use crate::opening::Recovered;
use crate::queue_table::QueueTable;
use crate::reader::ReadShared;
use crate::tail::TailReader;
use crate::watermarks::Watermarks;
use crate::writer::offsets::TableOffsets;
use crate::writer::thread::{Connections, LogStart, launch};

/// What the threads share.
struct Parts {
    config: StoreConfig,
    layout: Layout,
    table: Arc<QueueTable>,
    index: Arc<Index>,
    watermarks: Arc<Watermarks>,
    dispatch: Arc<DispatchState>,
    metrics: Arc<WriteMetrics>,
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
    let (last, log_end, log_min) = (recovered.last, recovered.log_end, recovered.log_min);
    let (report, changed, checkpoint) = (recovered.report, recovered.changed, recovered.checkpoint);
    let parts = Parts {
        watermarks: Arc::new(Watermarks::new(config.flush, log_end)),
        dispatch: Arc::new(DispatchState::new(last)),
        table: recovered.table,
        index: recovered.index,
        metrics: Arc::default(),
        config,
        layout,
    };
    let mut flusher = Flusher {
        table: Arc::clone(&parts.table),
        index: Arc::clone(&parts.index),
        watermarks: Arc::clone(&parts.watermarks),
        dispatch: Arc::clone(&parts.dispatch),
        resume_path: parts.layout.resume(),
        checkpoint,
        floors: recovered.floors,
        resume_bytes: parts.config.resume_bytes,
        resume_interval: parts.config.resume_interval,
        made: last,
        made_at: Instant::now(),
        candidate: None,
        lost: None,
    };
    if changed {
        flusher.make(last)?;
    }
    let (sender, receiver) = dispatch::channel(parts.config.dispatch_queue_items);
    let for_writer = Arc::clone(&waker);
    let connections = Connections {
        marks: Arc::clone(&parts.watermarks),
        queues: TableOffsets::new(Arc::clone(&parts.table)),
        dispatcher: sender,
        metrics: Arc::clone(&parts.metrics),
        wake: Box::new(move |port| for_writer.wake(port)),
    };
    let log_start = LogStart {
        end: log_end,
        last_store_timestamp: last.timestamp,
    };
    let (writer, append_ports) = launch(&parts.config, ports, log_start, connections)?;
    let (core_wakes, wakes) = wake_queues(ports, parts.config.wake_queue_items, waker);
    let (tail, status) = (writer.tail.reader()?, Arc::clone(&writer.status));
    let dispatcher = parts.start_dispatcher(receiver, core_wakes, tail, status)?;
    let running = Running {
        dispatcher: Some(dispatcher),
        flusher: FlusherThread::start(flusher)?,
        writer,
        _lock: lock,
    };
    let store = Arc::new(parts.into_store(log_min, running));
    Ok(Opened {
        store,
        ports: append_ports,
        wakes,
        report,
    })
}

impl Parts {
    fn start_dispatcher(
        &self,
        receiver: DispatchReceiver,
        wakes: CoreWakes,
        tail: TailReader,
        status: Arc<LogStatus>,
    ) -> Result<JoinHandle<bool>, OpenError> {
        let dispatcher = Dispatcher {
            receiver,
            table: Arc::clone(&self.table),
            index: self.config.message_index.then(|| Arc::clone(&self.index)),
            watermarks: Arc::clone(&self.watermarks),
            tail,
            delay_levels_ms: self.config.delay_levels_ms.clone(),
            wakes,
            state: Arc::clone(&self.dispatch),
            record: Vec::new(),
            indexed: 0,
            said_misplaced: None,
        };
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

    fn into_store(self, log_min: u64, running: Running) -> Store {
        let shared = Arc::new(ReadShared {
            directory: self.layout.commit_log().to_path_buf(),
            file_size: self.config.commit_log_file_size,
            queue_file_size: self.config.queue_file_size(),
            watermarks: Arc::clone(&self.watermarks),
            min_log_offset: AtomicU64::new(log_min),
            index: Arc::clone(&self.index),
            loaded_end: self.watermarks.acknowledged(),
            damaged_reads: AtomicU64::new(0),
        });
        Store {
            config: self.config,
            layout: self.layout,
            table: self.table,
            index: self.index,
            tail: running.writer.tail.clone(),
            watermarks: self.watermarks,
            shared,
            status: Arc::clone(&running.writer.status),
            dispatch: self.dispatch,
            disk_full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            writing: running.writer.plan.summary(),
            metrics: self.metrics,
            running: Mutex::new(Some(running)),
        }
    }
}
