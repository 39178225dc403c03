//! Damage in the log: it costs the damaged records and nothing else, and a torn tail is cut.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use saturnmq_storage::config::{FlushMode, StoreConfig};
use saturnmq_storage::store::Opened;

use crate::support::{Sender, open, read_all, small_config, wait_dispatched};

/// Messages of the stores below.
const COUNT: u32 = 200;
/// Bytes of each body.
const BODY: usize = 30_000;

fn body(number: u32) -> Vec<u8> {
    format!("message {number} ")
        .bytes()
        .cycle()
        .take(BODY)
        .collect()
}

/// A store with so much log that a crash cannot have torn the first half of it, left as a crash
/// leaves it; and where each record stands.
fn crashed(root: &Path, flush: FlushMode) -> (StoreConfig, Vec<u64>) {
    let mut config = small_config(root);
    config.flush = flush;
    config.resume_interval = std::time::Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let mut places = Vec::new();
    let mut end = 0;
    for number in 0..COUNT {
        let queue = opened.store.queue_or_create("Large", (number % 2) as i32);
        let appended = sender.send(&queue, &body(number), b"");
        places.push(appended.end - 91 - 5 - BODY as u64);
        end = appended.end;
    }
    wait_dispatched(&opened.store, end);
    (config, places)
}

fn flip(config: &StoreConfig, place: u64) {
    let base = place - place % config.commit_log_file_size;
    let path = config.root.join(format!("commitlog/{base:020}"));
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("log file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, place - base).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], place - base)
        .expect("write");
}

/// The numbers of the messages that are served, in order; each at its own queue offset.
fn served(opened: &Opened) -> Vec<u32> {
    let mut reader = opened.store.reader().expect("reader");
    let mut numbers = Vec::new();
    for queue_id in 0..2 {
        let queue = opened.store.queue("Large", queue_id).expect("queue");
        for message in read_all(&mut reader, &queue).0 {
            let number = message.queue_offset as u32 * 2 + queue_id as u32;
            assert_eq!(message.body, body(number));
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    numbers
}

fn without(lost: &[u32]) -> Vec<u32> {
    (0..COUNT).filter(|number| !lost.contains(number)).collect()
}

#[test]
fn damage_that_no_crash_explains_costs_only_the_damaged_records() {
    // A body; a magic number; a size; the topic's length.
    for (at, lost) in [(500, 50u32), (5, 51), (1, 52), (88 + BODY as u64, 53)] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (config, places) = crashed(dir.path(), FlushMode::Sync);
        flip(&config, places[lost as usize] + at);
        let mut opened = open(&config).expect("open");
        assert_eq!(opened.report.damaged_records, 1, "byte {at}");
        let end = places[199] + 91 + 5 + BODY as u64;
        assert_eq!(opened.report.log_end, end, "byte {at}");
        assert_eq!(served(&opened), without(&[lost]), "byte {at}");
        // Offsets go on behind the last message.
        let mut sender = Sender::new(opened.ports.remove(0));
        let queue = opened.store.queue_or_create("Large", 0);
        assert_eq!(sender.send(&queue, b"next", b"").queue_offset, 100);
        opened.store.close().expect("close");
    }
}

#[test]
fn a_bad_record_that_a_crash_can_have_torn_ends_the_log() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = crashed(dir.path(), FlushMode::Sync);
    flip(&config, places[195] + 500);
    let opened = open(&config).expect("open");
    assert_eq!(opened.report.log_end, places[195]);
    assert_eq!(opened.report.damaged_records, 0);
    assert_eq!(served(&opened), (0..195).collect::<Vec<_>>());
    opened.store.close().expect("close");
}

#[test]
fn without_syncs_any_bad_record_may_be_torn_and_ends_the_log() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = crashed(dir.path(), FlushMode::Async);
    flip(&config, places[50] + 500);
    let opened = open(&config).expect("open");
    assert_eq!(opened.report.log_end, places[50]);
    assert_eq!(served(&opened), (0..50).collect::<Vec<_>>());
    opened.store.close().expect("close");
}

#[test]
fn a_start_after_a_kill_looks_at_what_was_in_flight_and_not_at_the_rest_of_the_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.commit_log_file_size = 64 << 20;
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("T", 0);
    let end = sender.send(&queue, b"body", b"").end;
    wait_dispatched(&opened.store, end);
    drop(opened);
    let opened = open(&config).expect("open");
    assert!(!opened.report.clean);
    let wiped = opened.report.wiped_bytes;
    assert!((1 << 20..2 << 20).contains(&wiped), "{wiped} bytes");
    drop(opened);
    // Another broker's crash can have left anything.
    std::fs::write(dir.path().join("abort"), b"4711").expect("write");
    let opened = open(&config).expect("open");
    assert_eq!(opened.report.wiped_bytes, (64 << 20) - end);
    opened.store.close().expect("close");
}
