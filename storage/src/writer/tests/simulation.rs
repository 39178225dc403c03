//! The writer on disks in memory: one seed replays one run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::model::{ModelLog, Sent, TestQueues};
use crate::append_queue::{
    AppendFailure, AppendPort, Appended, Doorbell, PortLimits, PushError, port,
};
use crate::commit_log::{Geometry, LogStatus};
use crate::config::FlushMode;
use crate::disk::Disk;
use crate::disk::faulty::{Faults, FaultyDisk, Seed};
use crate::disk::memory::{Images, MemoryDisk};
use crate::dispatch::{DispatchReceiver, channel};
use crate::tail::{Tail, tail};
use crate::watermarks::Watermarks;
use crate::writer::{LogFile, LogFiles, NextFile, Now, Turn, Writer, WriterParts};

const FILE_SIZE: u64 = 128 * 1024;
const LARGEST: usize = 40_000;
const PORTS: usize = 3;

/// Files in memory that are late, or for which there is no room, by seed.
struct MemoryFiles {
    images: Images,
    seed: Seed,
    misses: u64,
    no_space: u64,
}

impl LogFiles for MemoryFiles {
    type File = u64;

    fn want(&mut self, _base: u64, _urgent: bool) {}

    fn take(&mut self, base: u64) -> NextFile<u64> {
        if self.seed.chance(self.no_space, 100) {
            return NextFile::NoSpace;
        }
        if self.seed.chance(self.misses, 100) {
            return NextFile::NotYet;
        }
        self.images.create(base, FILE_SIZE as usize);
        let zeroed_to = if self.seed.chance(1, 2) {
            FILE_SIZE
        } else {
            8192
        };
        NextFile::Ready(LogFile {
            file: base,
            base,
            zeroed_to,
        })
    }
}

/// A writer, its producers and its dispatcher, all driven from one thread.
struct Simulation<D: Disk<File = u64>> {
    writer: Writer<D, MemoryFiles, TestQueues>,
    ports: Vec<AppendPort>,
    receiver: DispatchReceiver,
    marks: Arc<Watermarks>,
    status: Arc<LogStatus>,
    images: Images,
    seed: Seed,
    clock: i64,
    next_token: u64,
    /// Pushes not answered yet, per port.
    pushed: Vec<VecDeque<Sent>>,
    /// Acknowledged pushes by log offset.
    acknowledged: BTreeMap<u64, (Sent, Appended)>,
    refused: usize,
    failed: usize,
    dispatched: Vec<u64>,
}

/// What a run is made from.
#[derive(Clone, Copy)]
struct Settings {
    flush: FlushMode,
    seed: u64,
    misses: u64,
    no_space: u64,
    dispatch_queue: usize,
}

impl Settings {
    fn new(flush: FlushMode, seed: u64) -> Settings {
        Settings {
            flush,
            seed,
            misses: 10,
            no_space: 0,
            dispatch_queue: 64,
        }
    }
}

impl<D: Disk<File = u64>> Simulation<D> {
    fn new(settings: Settings, make: impl FnOnce(Arc<Tail>, Images) -> D) -> Simulation<D> {
        let images = Images::default();
        let (tail_writer, _readers) = tail(256 * 1024, 0).expect("tail");
        let limits = PortLimits {
            ring_bytes: 100_000,
            in_flight: 50,
            record_bytes: 70_000,
        };
        let bell = Arc::new(Doorbell::new().expect("eventfd"));
        let (ports, ends): (Vec<_>, Vec<_>) =
            (0..PORTS).map(|_| port(limits, Arc::clone(&bell))).unzip();
        let (dispatcher, receiver) = channel(settings.dispatch_queue);
        let marks = Arc::new(Watermarks::new(settings.flush, 0));
        let status = Arc::new(LogStatus::default());
        let parts = WriterParts {
            geometry: Geometry::new(FILE_SIZE, 4096),
            flush_interval: Duration::from_millis(5),
            disk: make(Arc::clone(tail_writer.shared()), images.clone()),
            files: MemoryFiles {
                images: images.clone(),
                seed: Seed(settings.seed ^ 77),
                misses: settings.misses,
                no_space: settings.no_space,
            },
            queues: TestQueues::new(),
            ports: ends,
            unanswered_capacity: PORTS * limits.in_flight,
            tail: tail_writer,
            marks: Arc::clone(&marks),
            status: Arc::clone(&status),
            dispatcher,
            metrics: Arc::default(),
            last_store_timestamp: 0,
        };
        Simulation {
            writer: Writer::new(parts, None).expect("writer"),
            ports,
            receiver,
            marks,
            status,
            images,
            seed: Seed(settings.seed),
            clock: 1_700_000_000_000,
            next_token: 0,
            pushed: vec![VecDeque::new(); PORTS],
            acknowledged: BTreeMap::new(),
            refused: 0,
            failed: 0,
            dispatched: Vec::new(),
        }
    }

    fn push_some(&mut self) {
        let port = self.seed.below(PORTS as u64) as usize;
        for _ in 0..self.seed.below(8) {
            let sent = Sent::random(&mut self.seed, self.next_token, LARGEST);
            match sent.push(&mut self.ports[port]) {
                Ok(()) => {
                    self.next_token += 1;
                    self.pushed[port].push_back(sent);
                }
                Err(PushError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.ports[port].submit();
    }

    fn turn(&mut self) -> Turn {
        self.clock += self.seed.below(5) as i64 - 1;
        let now = Now {
            wall_ms: self.clock,
            monotonic: Duration::from_millis((self.clock - 1_600_000_000_000) as u64),
        };
        self.writer.turn(now, &mut |_| ())
    }

    fn collect(&mut self) {
        for index in 0..PORTS {
            while let Some(result) = self.ports[index].pop() {
                let sent = self.pushed[index].pop_front().expect("a result per push");
                assert_eq!(
                    result.token, sent.token,
                    "results in the order of the pushes"
                );
                match result.outcome {
                    Ok(appended) => {
                        assert!(
                            self.status.read_only().is_none()
                                || appended.end <= self.marks.acknowledged()
                        );
                        assert!(appended.end <= self.marks.acknowledged());
                        self.acknowledged
                            .insert(appended.physical_offset, (sent, appended));
                    }
                    Err(AppendFailure::NoSpace) => self.refused += 1,
                    Err(AppendFailure::ReadOnly(_)) => self.failed += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }

    fn dispatch_some(&mut self, most: u64) {
        for _ in 0..self.seed.below(most + 1) {
            let Some(item) = self.receiver.pop() else {
                break;
            };
            self.dispatched.push(item.physical_offset);
            self.marks
                .advance_dispatched(item.physical_offset + u64::from(item.size));
        }
    }

    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            if self.seed.chance(2, 3) {
                self.push_some();
            }
            self.turn();
            self.collect();
            self.dispatch_some(20);
        }
    }

    fn finish(&mut self) {
        self.writer.stop();
        for _ in 0..100_000 {
            if self.turn() == Turn::Finished {
                self.collect();
                self.dispatch_some(u64::MAX - 1);
                assert!(
                    self.pushed.iter().all(VecDeque::is_empty),
                    "everybody was answered"
                );
                return;
            }
            self.collect();
            self.dispatch_some(20);
        }
        panic!("the writer does not finish");
    }

    /// The log of everything acknowledged, and that every record was dispatched once and in order.
    fn model(&mut self) -> ModelLog {
        let mut model = ModelLog::new(FILE_SIZE);
        let mut records = Vec::new();
        for (sent, appended) in self.acknowledged.values() {
            model.append(sent, appended);
            let mut at = appended.physical_offset;
            for size in sent.records(appended).1 {
                records.push(at);
                at += u64::from(size);
            }
        }
        self.dispatch_some(u64::MAX - 1);
        while let Some(item) = self.receiver.pop() {
            self.dispatched.push(item.physical_offset);
        }
        assert_eq!(self.dispatched, records, "dispatched once, in log order");
        model
    }
}

fn memory(settings: Settings) -> Simulation<MemoryDisk> {
    Simulation::new(settings, MemoryDisk::new)
}

fn faulty(settings: Settings, faults: Faults) -> Simulation<FaultyDisk> {
    Simulation::new(settings, |tail, images| {
        FaultyDisk::new(tail, images, faults, settings.seed)
    })
}

/// Asserts that every acknowledged record stands in the images.
fn assert_kept<D: Disk<File = u64>>(simulation: &Simulation<D>, images: &Images, upto: u64) {
    let mut files = BTreeMap::new();
    for base in images.bases() {
        files.insert(base, images.durable(base).expect("file"));
    }
    for (sent, appended) in simulation.acknowledged.values() {
        if appended.end > upto {
            continue;
        }
        let (bytes, _) = sent.records(appended);
        let base = appended.physical_offset - appended.physical_offset % FILE_SIZE;
        let position = (appended.physical_offset - base) as usize;
        let kept = &files[&base][position..position + bytes.len()];
        assert!(
            kept == bytes,
            "an acknowledged record at {} is lost",
            appended.physical_offset
        );
    }
}

#[test]
fn the_log_is_byte_for_byte_what_a_straightforward_program_writes() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        for seed in 0..6 {
            let mut simulation = memory(Settings::new(flush, seed));
            simulation.run(250);
            simulation.finish();
            let model = simulation.model();
            assert!(model.files.len() > 10, "many files are rolled");
            for (base, expected) in &model.files {
                let durable = simulation.images.durable(*base).expect("file");
                assert!(
                    durable == *expected,
                    "the file at {base} differs (seed {seed})"
                );
            }
            assert_eq!(simulation.marks.durable(), simulation.marks.appended());
        }
    }
}

#[test]
fn reordered_completions_change_nothing_in_the_log() {
    for seed in 100..112 {
        let flush = if seed % 2 == 0 {
            FlushMode::Sync
        } else {
            FlushMode::Async
        };
        let mut simulation = faulty(Settings::new(flush, seed), Faults::default());
        simulation.run(250);
        simulation.finish();
        let model = simulation.model();
        for (base, expected) in &model.files {
            let live = simulation.images.live(*base).expect("file");
            assert!(
                live == *expected,
                "the file at {base} differs (seed {seed})"
            );
        }
    }
}

#[test]
fn every_acknowledged_record_survives_a_power_cut() {
    for seed in 0..30 {
        let mut simulation = faulty(Settings::new(FlushMode::Sync, seed), Faults::default());
        simulation.run(20 + seed as usize * 4);
        let _ = simulation.model();
        let acknowledged = simulation.marks.acknowledged();
        let images = crash(&mut simulation);
        assert_kept(&simulation, &images, acknowledged);
    }
}

#[test]
fn under_asynchronous_flush_what_was_synced_survives_a_power_cut() {
    for seed in 0..40 {
        let mut simulation = faulty(Settings::new(FlushMode::Async, seed), Faults::default());
        simulation.run(20 + seed as usize * 4);
        let durable = simulation.marks.durable();
        let images = crash(&mut simulation);
        assert_kept(&simulation, &images, durable);
    }
}

#[test]
fn after_one_failure_nothing_is_acknowledged_again() {
    let kinds = [
        Faults {
            failed_writes: 60,
            ..Faults::default()
        },
        Faults {
            short_writes: 60,
            ..Faults::default()
        },
        Faults {
            failed_syncs: 300,
            ..Faults::default()
        },
    ];
    for seed in 0..30 {
        let faults = kinds[seed as usize % 3];
        let flush = if faults.failed_syncs > 0 {
            FlushMode::Async
        } else {
            FlushMode::Sync
        };
        let mut simulation = faulty(Settings::new(flush, seed), faults);
        simulation.run(400);
        assert!(
            simulation.status.read_only().is_some(),
            "a failure was met (seed {seed})"
        );
        simulation.dispatch_some(u64::MAX - 1);
        simulation.turn();
        simulation.collect();
        let (acknowledged, marks) = (
            simulation.acknowledged.len(),
            simulation.marks.acknowledged(),
        );
        let durable = simulation.marks.durable();
        simulation.run(100);
        assert_eq!(simulation.acknowledged.len(), acknowledged);
        assert_eq!(simulation.marks.acknowledged(), marks);
        assert_eq!(simulation.marks.durable(), durable);
        assert!(simulation.failed > 0);
        simulation.finish();
        let images = crash(&mut simulation);
        assert_kept(&simulation, &images, durable);
    }
}

#[test]
fn a_full_disk_refuses_and_heals() {
    let mut simulation = memory(Settings {
        no_space: 60,
        ..Settings::new(FlushMode::Sync, 5)
    });
    simulation.run(800);
    simulation.finish();
    assert!(simulation.refused > 0 && simulation.failed == 0);
    assert!(simulation.status.read_only().is_none());
    let model = simulation.model();
    assert!(model.files.len() > 5);
}

#[test]
fn a_full_dispatcher_queue_stalls_and_drops_nothing() {
    let settings = Settings {
        dispatch_queue: 2,
        ..Settings::new(FlushMode::Sync, 9)
    };
    let mut simulation = memory(settings);
    for _ in 0..300 {
        simulation.push_some();
        simulation.turn();
        simulation.collect();
    }
    let stalled = simulation.acknowledged.len();
    assert!(
        stalled <= 3,
        "acknowledged {stalled} pushes without a dispatcher"
    );
    simulation.run(600);
    simulation.finish();
    let model = simulation.model();
    assert!(model.end > 10 * FILE_SIZE);
}

#[test]
fn the_same_seed_replays_the_same_run() {
    let run = || {
        let mut simulation = faulty(Settings::new(FlushMode::Sync, 4711), Faults::default());
        simulation.run(300);
        let images = crash(&mut simulation);
        let files: Vec<_> = images
            .bases()
            .iter()
            .map(|&base| images.durable(base))
            .collect();
        (simulation.next_token, simulation.acknowledged.len(), files)
    };
    assert!(run() == run());
}

/// Cuts the power: the writer keeps a disk that does nothing any more.
fn crash(simulation: &mut Simulation<FaultyDisk>) -> Images {
    let (spare, _) = tail(4096, 0).expect("tail");
    let idle = FaultyDisk::new(
        Arc::clone(spare.shared()),
        Images::default(),
        Faults::default(),
        0,
    );
    std::mem::replace(simulation.writer.disk(), idle).crash()
}
