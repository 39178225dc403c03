//! Damage in the log: it costs the damaged records and nothing else, and a torn tail is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use std::time::{Duration, Instant};

use saturnmq_storage::config::{FlushMode, PullLimits, StoreConfig};
use saturnmq_storage::error::ReadError;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::PullRequest;
use saturnmq_storage::store::Opened;

use crate::support::{
    Sender, body_of, check_filled, check_key, fill, open, read_all, small_config, wait_dispatched,
};

/// Messages of the stores below.
pub const COUNT: u32 = 200;
/// Bytes of each body.
pub const BODY: usize = 30_000;

pub fn body(number: u32) -> Vec<u8> {
    format!("message {number} ")
        .bytes()
        .cycle()
        .take(BODY)
        .collect()
}

/// A store with so much log that a crash cannot have torn the first half of it, left as a crash
/// leaves it; and where each record stands.
pub fn crashed(root: &Path, flush: FlushMode) -> (StoreConfig, Vec<u64>) {
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

pub fn flip(config: &StoreConfig, place: u64) {
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
pub fn served(opened: &Opened) -> Vec<u32> {
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

/// The crash came before anything was dispatched.
pub fn forget_entries(root: &Path) {
    for name in ["consumequeue", "index"] {
        std::fs::remove_dir_all(root.join(name)).expect("remove");
    }
}

/// The crash was one of the machine: what was in the page cache is gone.
pub fn rebooted(root: &Path) {
    let abort = root.join("abort");
    let text = std::fs::read_to_string(&abort).expect("abort");
    assert!(text.contains("saturnmq in-flight bytes"), "{text}");
    std::fs::write(abort, text.replace('/', "-earlier/")).expect("abort");
}

pub fn without(lost: &[u32]) -> Vec<u32> {
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
    forget_entries(dir.path());
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
    rebooted(dir.path());
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

/// Every queue file and index file by its path below the root; index files by their order alone.
fn derived(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![root.join("consumequeue")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("list") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let bytes = std::fs::read(&path).expect("read");
                files.insert(path.to_str().expect("text").to_owned(), bytes);
            }
        }
    }
    let index = std::fs::read_dir(root.join("index")).expect("list");
    let mut index: Vec<_> = index.map(|entry| entry.expect("entry").path()).collect();
    index.sort();
    for (number, path) in index.iter().enumerate() {
        files.insert(
            format!("index {number}"),
            std::fs::read(path).expect("read"),
        );
    }
    files
}

/// A store with 900 small messages in files of 100 entries, closed; and its derived files.
fn closed_with_files(root: &Path) -> (StoreConfig, BTreeMap<String, Vec<u8>>) {
    let config = small_config(root);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..900);
    opened.store.close().expect("close");
    let files = derived(root);
    (config, files)
}

fn check_restored(config: &StoreConfig, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    let opened = open(config).unwrap_or_else(|error| panic!("{what}: {error}"));
    check_filled(&opened.store, "Orders", 900);
    for number in [0, 450, 899] {
        check_key(&opened.store, "Orders", number);
    }
    opened.store.close().expect("close");
    let found = derived(&config.root);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(expected), "{what}");
    for (name, bytes) in expected {
        assert!(found[name] == *bytes, "{what}: {name} differs");
    }
}

#[test]
fn any_lost_or_cut_queue_or_index_file_is_made_again_byte_for_byte() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, expected) = closed_with_files(dir.path());
    let index = std::fs::read_dir(dir.path().join("index")).expect("list");
    let index: Vec<_> = index.map(|entry| entry.expect("entry").path()).collect();
    let queues = [
        "0/00000000000000000000",
        "1/00000000000000002000",
        "2/00000000000000004000",
    ];
    let queues = queues.map(|name| dir.path().join("consumequeue/Orders").join(name));
    for path in queues.iter().chain([&index[0]]) {
        let path = || match path.exists() {
            true => path.clone(),
            // Made again under another name.
            false => {
                let mut names = std::fs::read_dir(dir.path().join("index")).expect("list");
                names.next().expect("file").expect("entry").path()
            }
        };
        let what = path().display().to_string();
        std::fs::remove_file(path()).expect("remove");
        check_restored(&config, &expected, &format!("{what} deleted"));
        for size in [1000, 1010, 5000, 0] {
            let file = OpenOptions::new().write(true).open(path()).expect("open");
            file.set_len(size).expect("cut");
            check_restored(&config, &expected, &format!("{what} of {size} bytes"));
        }
    }
}

#[test]
fn an_index_file_that_says_it_has_nothing_is_made_again_after_an_orderly_stop() {
    for newest in [true, false] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (config, expected) = closed_with_files(dir.path());
        let files = || {
            let list = std::fs::read_dir(dir.path().join("index")).expect("list");
            let mut paths: Vec<_> = list.map(|entry| entry.expect("entry").path()).collect();
            paths.sort();
            paths
        };
        assert!(files().len() > 1);
        // The header alone, its page, and all of it.
        for zeros in [40, 4096, 8440] {
            let paths = files();
            let path = if newest { paths.last() } else { paths.first() };
            let file = OpenOptions::new().write(true).open(path.expect("a file"));
            let file = file.expect("open");
            file.write_all_at(&vec![0; zeros], 0).expect("write");
            let what = format!("newest {newest}, {zeros} bytes of zeros");
            check_restored(&config, &expected, &what);
        }
    }
}

#[test]
fn changed_entries_are_made_right_when_queues_are_made_again() {
    for lost in ["", "saturnmq.resume"] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (mut config, expected) = closed_with_files(dir.path());
        config.rebuild_queues = lost.is_empty();
        // Offset, size and tags of entries all over the files, and a stretch of zeros.
        for (number, name) in expected.keys().enumerate() {
            let Ok(file) = OpenOptions::new().read(true).write(true).open(name) else {
                continue;
            };
            for entry in [3u64, 40, 41, 77] {
                let at = entry * 20 + (number as u64 * 7) % 20;
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).expect("read");
                file.write_all_at(&[byte[0] ^ 0x11], at).expect("write");
            }
            file.write_all_at(&[0; 200], 1200).expect("write");
        }
        std::fs::remove_file(dir.path().join(lost)).ok();
        check_restored(&config, &expected, "changed entries");
    }
}

#[test]
fn next_offsets_outlive_queues_and_index() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (mut config, _) = closed_with_files(dir.path());
    for part in ["commitlog", "consumequeue", "index"] {
        std::fs::remove_dir_all(dir.path().join(part)).expect("remove");
    }
    // A log that is gone is refused unless this is asked for.
    config.rebuild_queues = true;
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Orders", 2);
    assert_eq!(sender.send(&queue, b"next", b"").queue_offset, 225);
    opened.store.close().expect("close");
}

#[test]
fn queue_files_of_one_other_size_are_a_wrong_setting_and_refused_by_name() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (mut config, expected) = closed_with_files(dir.path());
    config.consume_queue_file_size = 4000;
    let refused = open(&config).err().expect("refused").to_string();
    assert!(refused.contains("mappedFileSizeConsumeQueue"), "{refused}");
    config.consume_queue_file_size = 2000;
    check_restored(&config, &expected, "after the refusal");
}

#[test]
fn a_damaged_header_costs_its_record_and_moves_no_other() {
    // Bits of the queue offset, the queue id, and the topic.
    for at in [27u64, 26, 25, 21, 15, 14, 88 + 13 + 2] {
        for number in [0u32, 57, 149] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let config = small_config(dir.path());
            let mut opened = open(&config).expect("open");
            let mut sender = Sender::new(opened.ports.remove(0));
            let queue = opened.store.queue_or_create("T", 0);
            let mut places = Vec::new();
            for message in 0..150u32 {
                let text = format!("message {message:05}");
                let end = sender.send(&queue, text.as_bytes(), b"").end;
                places.push(end - 91 - 1 - 13);
            }
            opened.store.close().expect("close");
            flip(&config, places[number as usize] + at);
            std::fs::remove_dir_all(dir.path().join("consumequeue")).expect("remove");
            let opened = open(&config).expect("open");
            let queue = opened.store.queue("T", 0).expect("queue");
            let mut reader = opened.store.reader().expect("reader");
            let (messages, _) = read_all(&mut reader, &queue);
            for message in &messages {
                let text = format!("message {:05}", message.queue_offset);
                assert_eq!(message.body, text.into_bytes(), "byte {at} of {number}");
            }
            let found: Vec<i64> = messages
                .iter()
                .map(|message| message.queue_offset)
                .collect();
            let others = (0..150).filter(|offset| *offset != i64::from(number));
            assert_eq!(found, others.collect::<Vec<_>>(), "byte {at} of {number}");
            opened.store.close().expect("close");
        }
    }
}

/// Everything a queue holds, read as a client does that comes again after an error; by queue
/// offset, the bodies.
fn read_patiently(opened: &Opened, queue: &Queue) -> BTreeMap<i64, Vec<u8>> {
    read_counting(opened, queue).0
}

/// As [`read_patiently`], and the offsets that were answered with an error, and pulls with an
/// answer.
fn read_counting(opened: &Opened, queue: &Queue) -> (BTreeMap<i64, Vec<u8>>, BTreeSet<i64>, usize) {
    let mut reader = opened.store.reader().expect("reader");
    let limits = PullLimits::default();
    let deadline = Instant::now() + Duration::from_secs(30);
    let (mut found, mut refused, mut answers) = (BTreeMap::new(), BTreeSet::new(), 0);
    let (mut offset, mut out) = (queue.min_offset(), Vec::new());
    while offset < queue.max_offset() {
        assert!(Instant::now() < deadline, "stands at {offset}");
        out.clear();
        let pulled = match reader.pull_cold(
            &PullRequest {
                queue,
                offset,
                max_count: 32,
                filter: &TagFilter::All,
                limits: &limits,
            },
            &mut out,
        ) {
            Ok(pulled) => pulled,
            Err(ReadError::Mending { .. }) => {
                refused.insert(offset);
                std::thread::yield_now();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(pulled.next_begin > offset);
        offset = pulled.next_begin;
        answers += 1;
        let mut rest = &out[..];
        while !rest.is_empty() {
            let record = Record::decode(rest).expect("record");
            record.check_body().expect("body");
            found.insert(record.queue_offset(), record.body().to_vec());
            rest = &rest[record.size() as usize..];
        }
    }
    (found, refused, answers)
}

#[test]
fn a_wrong_entry_met_by_a_reader_is_mended_and_hides_no_message() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, expected) = closed_with_files(dir.path());
    // In the first file of each queue, so that the start sees nothing: every field, a stretch of
    // zeros, the entry of another queue.
    let path = |queue: u32| {
        dir.path()
            .join(format!("consumequeue/Orders/{queue}/{:020}", 0))
    };
    let other = std::fs::read(path(3)).expect("read");
    for queue in 0..3u32 {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path(queue))
            .expect("open");
        for (entry, at) in [(10u64, 7u64), (11, 3), (30, 11), (31, 8), (50, 19), (99, 6)] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, entry * 20 + at)
                .expect("read");
            file.write_all_at(&[byte[0] ^ 0x21], entry * 20 + at)
                .expect("write");
        }
        file.write_all_at(&[0; 300], 1200).expect("write");
        file.write_all_at(&other[1600..1660], 1600).expect("write");
    }
    let opened = open(&config).expect("open");
    assert_eq!(
        opened.report.scanned_bytes, 0,
        "the start sees nothing of it"
    );
    for queue_id in 0..4 {
        let queue = opened.store.queue("Orders", queue_id).expect("queue");
        let found = read_patiently(&opened, &queue);
        let numbers = (0..900).filter(|number| number % 4 == queue_id as u32);
        let bodies = numbers.map(|number| body_of("Orders", number).into_bytes());
        assert_eq!(found, (0..).zip(bodies).collect(), "queue {queue_id}");
    }
    assert!(
        opened.store.mended_entries() >= 60,
        "{}",
        opened.store.mended_entries()
    );
    opened.store.close().expect("close");
    assert!(
        derived(dir.path()) == expected,
        "the files are what they were"
    );
}

#[test]
fn a_record_whose_header_is_damaged_is_stepped_over_and_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = crashed(dir.path(), FlushMode::Sync);
    open(&config).expect("open").store.close().expect("close");
    // The magic number, the queue offset and the queue id of three records of an old file.
    for (number, at) in [(10usize, 4u64), (20, 26), (30, 15)] {
        flip(&config, places[number] + at);
    }
    let opened = open(&config).expect("open");
    let queue = opened.store.queue("Large", 0).expect("queue");
    let found = read_patiently(&opened, &queue);
    let expected: BTreeMap<i64, Vec<u8>> = (0..100)
        .filter(|offset| ![5, 10, 15].contains(offset))
        .map(|offset| (offset, body(offset as u32 * 2)))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(opened.store.damaged_reads(), 3);
    opened.store.close().expect("close");
}

#[test]
fn a_lost_stretch_of_the_log_holds_a_consumer_up_once_and_not_once_a_message() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.commit_log_file_size = 1 << 20;
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let mut end = 0;
    for number in 0..6000u32 {
        let queue = opened.store.queue_or_create("T", (number % 2) as i32);
        end = sender
            .send(&queue, format!("{number:09}").as_bytes(), b"")
            .end;
    }
    assert!(
        end < 1 << 20,
        "one file, so that the start scans none of it"
    );
    opened.store.close().expect("close");
    // Two stretches of zeros; the second begins within a record.
    let size = end / 6000;
    let holes = [(100 * size, 2500 * size), (3000 * size + 7, 3500 * size)];
    let path = config.root.join(format!("commitlog/{:020}", 0));
    let file = OpenOptions::new().write(true).open(path).expect("log");
    for (from, to) in holes {
        file.write_all_at(&vec![0; (to - from) as usize], from)
            .expect("write");
    }
    // A second time as after a restart.
    for _ in 0..2 {
        let opened = open(&config).expect("open");
        for queue_id in 0..2 {
            let queue = opened.store.queue("T", queue_id).expect("queue");
            let (found, refused, answers) = read_counting(&opened, &queue);
            let whole = (0..6000u32).filter(|number| {
                let at = u64::from(*number) * size;
                let hit = |(from, to): &(u64, u64)| at < *to && at + size > *from;
                number % 2 == queue_id as u32 && !holes.iter().any(hit)
            });
            let whole =
                whole.map(|number| (i64::from(number / 2), format!("{number:09}").into_bytes()));
            assert_eq!(found, whole.collect(), "queue {queue_id}");
            assert!(refused.len() <= holes.len(), "errors at {refused:?}");
            assert!(answers < 3000 / 32 + 8, "{answers} answers");
        }
        opened.store.close().expect("close");
    }
}
