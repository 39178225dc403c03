//! The writer's thread on real files, with every body of the disk.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::model::{ModelLog, QUEUES, Sent};
use crate::append_queue::{AppendPort, Appended, PushError};
use crate::config::{DiskEngine, FlushMode, StoreConfig};
use crate::disk::faulty::Seed;
use crate::dispatch::channel;
use crate::layout::file_name;
use crate::mapped_file::MapBudget;
use crate::queue_table::QueueTable;
use crate::queue_table::RememberedQueues;
use crate::watermarks::Watermarks;
use crate::writer::thread::{Connections, LogStart, RunningWriter, launch_with};

const FILE_SIZE: u64 = 256 * 1024;
const TIMEOUT: Duration = Duration::from_secs(60);

fn config(root: &Path, flush: FlushMode) -> StoreConfig {
    std::fs::create_dir_all(root.join("commitlog")).expect("directory");
    let mut config = StoreConfig::new(root);
    config.commit_log_file_size = FILE_SIZE;
    config.max_message_size = 100_000;
    config.tail_cache_bytes = 1 << 20;
    config.append_ring_bytes = 256 * 1024;
    config.flush = flush;
    config.flush_interval = Duration::from_millis(20);
    config
}

/// A writer and its dispatcher.
struct Running {
    writer: RunningWriter,
    ports: Vec<AppendPort>,
    marks: Arc<Watermarks>,
    dispatcher: std::thread::JoinHandle<Vec<u64>>,
    stop: Arc<AtomicBool>,
}

fn start(
    config: &StoreConfig,
    ports: usize,
    from: &LogStart,
    next: &[i64],
    force: &str,
) -> Running {
    let table = Arc::new(QueueTable::new(
        config.root.join("consumequeue"),
        6000,
        MapBudget::new(100),
    ));
    for id in 0..QUEUES {
        let queue = table.get_or_create("harbour", id as i32);
        queue.set_next_offset(next[id as usize]);
        assert_eq!(queue.slot, id);
    }
    let marks = Arc::new(Watermarks::new(config.flush, from.end));
    let (sender, mut receiver) = channel(1024);
    let connections = Connections {
        marks: Arc::clone(&marks),
        queues: RememberedQueues::new(table),
        dispatcher: sender,
        metrics: Arc::default(),
        wake: Box::new(|_| ()),
    };
    let (writer, ports) =
        launch_with(config, ports, *from, connections, Some(force)).expect("launch");
    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, moved) = (Arc::clone(&stop), Arc::clone(&marks));
    let dispatcher = std::thread::spawn(move || {
        let mut seen = Vec::new();
        loop {
            let last = stopping.load(Ordering::SeqCst);
            while let Some(item) = receiver.pop() {
                seen.push(item.physical_offset);
                moved.advance_dispatched(item.physical_offset + u64::from(item.size));
            }
            if last {
                return seen;
            }
            std::thread::yield_now();
        }
    });
    Running {
        writer,
        ports,
        marks,
        dispatcher,
        stop,
    }
}

impl Running {
    /// Ends everything; returns the log offsets that were dispatched.
    fn finish(mut self) -> Vec<u64> {
        self.writer.stop(TIMEOUT).expect("a clean end");
        assert_eq!(self.marks.durable(), self.marks.appended());
        self.stop.store(true, Ordering::SeqCst);
        self.dispatcher.join().expect("dispatcher")
    }
}

/// One producer: pushes random messages until it has `count` answers.
fn produce(
    mut port: AppendPort,
    first_token: u64,
    count: u64,
    largest: usize,
) -> Vec<(Sent, Appended)> {
    let mut seed = Seed(first_token);
    let (mut pushed, mut answered) = (VecDeque::new(), Vec::new());
    let mut next = None;
    let mut token = first_token;
    let deadline = Instant::now() + TIMEOUT;
    while answered.len() < count as usize {
        assert!(Instant::now() < deadline, "no answers within {TIMEOUT:?}");
        for _ in 0..seed.below(20) {
            if token == first_token + count {
                break;
            }
            let sent = next
                .take()
                .unwrap_or_else(|| Sent::random(&mut seed, token, largest));
            match sent.push(&mut port) {
                Ok(()) => {
                    pushed.push_back(sent);
                    token += 1;
                }
                Err(PushError::Full) => {
                    next = Some(sent);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        port.submit();
        while let Some(result) = port.pop() {
            let sent = pushed.pop_front().expect("a result per push");
            assert_eq!(result.token, sent.token);
            answered.push((sent, result.outcome.expect("acknowledged")));
        }
    }
    answered
}

/// Producers on all ports at once; returns everything acknowledged, in log order.
fn produce_all(
    ports: Vec<AppendPort>,
    count: u64,
    largest: usize,
) -> BTreeMap<u64, (Sent, Appended)> {
    let threads: Vec<_> = ports
        .into_iter()
        .enumerate()
        .map(|(index, port)| {
            let first = 1_000_000 * index as u64;
            std::thread::spawn(move || produce(port, first, count, largest))
        })
        .collect();
    let answers = threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("producer"));
    answers
        .map(|(sent, appended)| (appended.physical_offset, (sent, appended)))
        .collect()
}

fn assert_files_are(model: &ModelLog, config: &StoreConfig) {
    for (base, expected) in &model.files {
        let path = config.commit_log_path().join(file_name(*base));
        let bytes = std::fs::read(&path).expect("file");
        assert!(
            bytes == *expected,
            "{} differs from the model",
            path.display()
        );
    }
}

fn files_match_the_model(force: &str, flush: FlushMode) {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let config = config(dir.path(), flush);
    let from = LogStart {
        end: 0,
        last_store_timestamp: 0,
    };
    let mut running = start(&config, 3, &from, &[0; 5], force);
    let ports = std::mem::take(&mut running.ports);
    let answers = produce_all(ports, 700, 12_000);
    let dispatched = running.finish();
    let mut model = ModelLog::new(config.commit_log_file_size);
    let mut records = Vec::new();
    for (sent, appended) in answers.values() {
        model.append(sent, appended);
        let mut at = appended.physical_offset;
        for size in sent.records(appended).1 {
            records.push(at);
            at += u64::from(size);
        }
    }
    assert!(model.files.len() > 15, "only {} files", model.files.len());
    assert_files_are(&model, &config);
    assert_eq!(dispatched, records);
}

#[test]
fn io_uring_writes_what_the_model_writes() {
    files_match_the_model("uring", FlushMode::Sync);
    files_match_the_model("uring", FlushMode::Async);
}

#[test]
fn blocking_direct_writes_are_what_the_model_writes() {
    files_match_the_model("blocking", FlushMode::Sync);
    files_match_the_model("blocking", FlushMode::Async);
}

#[test]
fn buffered_writes_are_what_the_model_writes() {
    files_match_the_model("buffered", FlushMode::Sync);
    files_match_the_model("buffered", FlushMode::Async);
}

#[test]
fn records_of_several_mebibytes_are_stored_whole() {
    for force in ["uring", "blocking", "buffered"] {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let mut config = config(dir.path(), FlushMode::Sync);
        config.commit_log_file_size = 8 << 20;
        config.max_message_size = 4 << 20;
        config.tail_cache_bytes = 16 << 20;
        let from = LogStart {
            end: 0,
            last_store_timestamp: 0,
        };
        let mut running = start(&config, 2, &from, &[0; 5], force);
        let ports = std::mem::take(&mut running.ports);
        let answers = produce_all(ports, 15, 4 << 20);
        running.finish();
        let mut model = ModelLog::new(config.commit_log_file_size);
        for (sent, appended) in answers.values() {
            model.append(sent, appended);
        }
        assert_files_are(&model, &config);
    }
}

#[test]
fn a_log_goes_on_where_it_ended() {
    for force in ["uring", "blocking", "buffered"] {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let config = config(dir.path(), FlushMode::Sync);
        let mut model = ModelLog::new(config.commit_log_file_size);
        for _ in 0..4 {
            let from = LogStart {
                end: model.end,
                last_store_timestamp: 0,
            };
            let mut running = start(&config, 2, &from, &model.next_offsets(), force);
            let hot = running.writer.tail.start();
            assert!(
                hot <= model.end && (hot < model.end || model.end == 0),
                "nothing preloaded"
            );
            let ports = std::mem::take(&mut running.ports);
            for (sent, appended) in produce_all(ports, 40, 9000).values() {
                model.append(sent, appended);
            }
            running.finish();
            assert_files_are(&model, &config);
        }
    }
}

#[test]
fn an_idle_writer_answers_one_message_at_once() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let config = config(dir.path(), FlushMode::Sync);
    let from = LogStart {
        end: 0,
        last_store_timestamp: 0,
    };
    let mut running = start(&config, 1, &from, &[0; 5], "uring");
    let mut port = running.ports.remove(0);
    for token in 0..20 {
        let sent = Sent {
            token,
            slot: 0,
            sys_flag: 0,
            born_v6: false,
            bodies: vec![100],
        };
        sent.push(&mut port).expect("push");
        port.submit();
        let deadline = Instant::now() + TIMEOUT;
        while !port.has_results() {
            assert!(Instant::now() < deadline, "the writer sleeps on");
            std::thread::yield_now();
        }
        assert_eq!(port.pop().map(|result| result.token), Some(token));
    }
    running.finish();
    assert!(sent_after_the_end_is_refused(&mut port));
}

fn sent_after_the_end_is_refused(port: &mut AppendPort) -> bool {
    let sent = Sent {
        token: 99,
        slot: 0,
        sys_flag: 0,
        born_v6: false,
        bodies: vec![10],
    };
    sent.push(port) == Err(PushError::Closed)
}

#[test]
fn the_plan_names_the_body_that_was_forced() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let mut config = config(dir.path(), FlushMode::Sync);
    config.engine = DiskEngine::Blocking;
    let from = LogStart {
        end: 0,
        last_store_timestamp: 0,
    };
    let running = start(&config, 1, &from, &[0; 5], "buffered");
    assert_eq!(running.writer.plan.summary(), "buffered blocking pwritev2");
    running.finish();
}
