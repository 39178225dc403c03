//! The production engine of one process's life, its steps taken one by one instead of by threads.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::medium::{Simulated, State};
use crate::append_queue::AppendPort;
use crate::commit_log::LogStatus;
use crate::config::StoreConfig;
use crate::disk::faulty::{Faults, FaultyDisk};
use crate::disk::probe::{DiskPlan, Engine as DiskEngine};
use crate::dispatch::{Dispatcher, Step, WakeQueue, Waker, wake_queues};
use crate::error::OpenError;
use crate::flusher::Flusher;
use crate::lock::StoreLock;
use crate::preparer::{PreparedFiles, Work};
use crate::queue_table::RememberedQueues;
use crate::reader::StoreReader;
use crate::store::start::{LogEnd, Parts};
use crate::store::{OpenReport, Store};
use crate::writer::thread::lay_out;
use crate::writer::{Now, Turn, Writer};

/// Producers.
pub const PORTS: usize = 2;

struct Nobody;

impl Waker for Nobody {
    fn wake(&self, _core: usize) {}
}

/// An open store without threads.
pub struct Engine {
    pub store: Arc<Store>,
    pub writer: Option<Writer<FaultyDisk<Simulated>, PreparedFiles, RememberedQueues>>,
    pub work: Work,
    pub dispatcher: Dispatcher,
    pub flusher: Flusher,
    pub ports: Vec<AppendPort>,
    pub reader: StoreReader,
    pub status: Arc<LogStatus>,
    pub report: OpenReport,
    _wakes: Vec<WakeQueue>,
    _lock: StoreLock,
}

/// How the log's files are opened and its disk misbehaves.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    pub block: u64,
    pub direct: bool,
    pub faults: Faults,
    pub seed: u64,
}

impl Engine {
    /// Recovers the store and puts it together as [`Store::open`] does, without a thread.
    pub fn open(
        config: &StoreConfig,
        state: &Rc<RefCell<State>>,
        disk: Disk,
    ) -> Result<Engine, OpenError> {
        let (layout, lock, recovered) = Store::recover(config)?;
        let report = recovered.report.clone();
        let (parts, flusher) = Parts::new(config.clone(), layout, recovered)?;
        let (connections, receiver) = parts.connections(Arc::new(Nobody));
        let plan = DiskPlan {
            engine: DiskEngine::Blocking,
            direct: disk.direct,
            block: disk.block,
            notes: Vec::new(),
        };
        let laid_out = lay_out(config, PORTS, parts.log_start(), connections, plan)?;
        let (core_wakes, wakes) =
            wake_queues(PORTS, config.wake_queue_items, Arc::new(Nobody), &receiver);
        let dispatcher = parts.dispatcher(receiver, core_wakes, laid_out.tail.reader()?);
        let status = Arc::clone(laid_out.seed.status());
        let log_end = LogEnd {
            tail: laid_out.tail,
            status: Arc::clone(&status),
            removals: laid_out.work.removals(),
            writing: String::new(),
        };
        let store = Arc::new(parts.into_store(log_end, None));
        let tail = Arc::clone(laid_out.seed.shared_tail());
        let medium = Simulated(Rc::clone(state));
        let disk = FaultyDisk::new(tail, medium, disk.faults, disk.seed);
        let (writer, _) = laid_out
            .seed
            .into_writer(disk)
            .map_err(|source| OpenError::Thread {
                name: "writer",
                source,
            })?;
        Ok(Engine {
            reader: store.reader()?,
            store,
            writer: Some(writer),
            work: laid_out.work,
            dispatcher,
            flusher,
            ports: laid_out.ports,
            status,
            report,
            _wakes: wakes,
            _lock: lock,
        })
    }

    /// One turn of the writer.
    pub fn turn(&mut self, clock: i64) -> Turn {
        let now = Now {
            wall_ms: clock,
            monotonic: Duration::from_millis((clock - 1_600_000_000_000) as u64),
        };
        match &mut self.writer {
            Some(writer) => writer.turn(now, &mut |_| ()),
            None => Turn::Finished,
        }
    }

    /// The writer goes, and the dispatcher takes what it handed over; whether it took all.
    pub fn end_writer(&mut self) -> bool {
        self.writer = None;
        loop {
            match self.dispatcher.step() {
                Step::Dispatched => {}
                Step::Idle => return true,
                Step::Failing => return false,
            }
        }
    }
}
