//! How many messages per second are acknowledged as durable, by how many producers wait at a time?
//!
//! `cargo bench -p saturnmq-storage --bench append [directory]`: one producer thread keeps 1, 8, 64
//! and 512 messages of 1,115 bytes in flight, sleeping while there is no answer, against a store in
//! the directory (a fresh one below the working directory by default).

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use saturnmq_storage::append_queue::{AppendPort, LightQueues, PushError};
use saturnmq_storage::config::StoreConfig;
use saturnmq_storage::dispatch::Waker;
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::store::Store;

const SECONDS: u64 = 4;
/// With topic, properties and fixed fields: a record of 1,115 bytes.
const BODY: usize = 1000;

/// Wakes the one producer.
#[derive(Default)]
struct WakeProducer(OnceLock<Thread>);

impl Waker for WakeProducer {
    fn wake(&self, _core: usize) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// Keeps `waiting` messages in flight for a while; returns messages per second and latencies in µs.
fn measure(port: &mut AppendPort, queue: &Queue, waiting: u64) -> (f64, [f64; 3]) {
    let host = "127.0.0.1:10911".parse().expect("address");
    let body = vec![b'x'; BODY];
    let message = MessageParts {
        topic: "bench",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: &[b"TAGS\x01abcd\x02CLUSTER\x01c"],
    };
    let started = Instant::now();
    let mut latencies = Vec::with_capacity(10_000_000);
    let mut sent_at = vec![Instant::now(); waiting as usize];
    let (mut sent, mut answered) = (0, 0);
    while started.elapsed() < Duration::from_secs(SECONDS) || answered < sent {
        let running = started.elapsed() < Duration::from_secs(SECONDS);
        while running && sent - answered < waiting {
            sent_at[(sent % waiting) as usize] = Instant::now();
            match port.push(sent, queue, &message, LightQueues::NONE) {
                Ok(()) => sent += 1,
                Err(PushError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        port.submit();
        while !port.has_results() {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        while let Some(result) = port.pop() {
            result.outcome.expect("acknowledged");
            let since = sent_at[(result.token % waiting) as usize].elapsed();
            latencies.push(since.as_nanos() as u32);
            answered += 1;
        }
    }
    let rate = answered as f64 / started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| {
        let index = ((latencies.len() - 1) as f64 * part) as usize;
        f64::from(latencies[index]) / 1000.0
    };
    (rate, [at(0.5), at(0.99), at(0.999)])
}

fn main() {
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let root = PathBuf::from(given.unwrap_or_else(|| "saturnmq-data/bench-append".into()));
    let waker = Arc::new(WakeProducer::default());
    // Set once, before anybody wakes.
    let _ = waker.0.set(std::thread::current());
    let config = StoreConfig::new(&root);
    let mut opened = Store::open(config, 1, waker).expect("open the store");
    for note in &opened.report.notes {
        println!("{note}");
    }
    let queue = opened.store.queue_or_create("bench", 0);
    let mut port = opened.ports.remove(0);
    println!("waiting  messages/s  p50 µs  p99 µs  p99.9 µs");
    for waiting in [1, 8, 64, 512] {
        let (rate, [p50, p99, p999]) = measure(&mut port, &queue, waiting);
        println!("{waiting:>7} {rate:>11.0} {p50:>7.0} {p99:>7.0} {p999:>9.0}");
    }
    drop(port);
    opened.store.close().expect("close the store");
    std::fs::remove_dir_all(&root).expect("remove the store");
}
