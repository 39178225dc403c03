//! Crashes and lost files: whatever the log holds is readable afterwards, no offset is given twice,
//! and nothing torn comes back.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use saturnmq_storage::config::{FlushMode, StoreConfig};
use saturnmq_storage::format::message::blank_record;
use saturnmq_storage::store::Opened;

use crate::support::{
    Sender, check_filled, check_key, copy_store, fill, open, ranges, read_all, small_config,
    wait_dispatched,
};

/// A store with 900 messages, left as a crash leaves it.
fn crashed(root: &Path) -> StoreConfig {
    let mut config = small_config(root);
    // Resume points come only on demand, so that there is something to recover.
    config.resume_interval = std::time::Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..900);
    drop(opened);
    assert!(root.join("abort").exists());
    config
}

/// A store with 900 messages, closed cleanly.
fn closed(root: &Path) -> StoreConfig {
    let config = small_config(root);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..900);
    opened.store.close().expect("close");
    config
}

/// Everything is there, more can be appended, and a clean restart believes it.
fn check_whole(config: &StoreConfig, what: &str) {
    let mut opened = open(config).unwrap_or_else(|error| panic!("{what}: {error}"));
    check_filled(&opened.store, "Orders", 900);
    for number in [0, 1, 450, 898, 899] {
        check_key(&opened.store, "Orders", number);
    }
    go_on(&mut opened, 900);
    opened.store.close().expect("close");
    let again = open(config).expect("open again");
    assert_eq!(again.report.scanned_bytes, 0, "{what}");
    check_filled(&again.store, "Orders", 1000);
    again.store.close().expect("close");
}

fn go_on(opened: &mut Opened, from: u32) {
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", from..1000);
    check_filled(&opened.store, "Orders", 1000);
    check_key(&opened.store, "Orders", 999);
}

/// The same, asking to go on with what is left of the log.
fn rebuilding(config: &StoreConfig) -> StoreConfig {
    let mut config = config.clone();
    config.rebuild_queues = true;
    config
}

#[test]
fn nothing_acknowledged_is_missing_after_a_crash() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = crashed(dir.path());
    check_whole(&config, "crash");
}

#[test]
fn a_copy_taken_while_the_store_runs_recovers() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(&dir.path().join("live"));
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..900);
    let copy = dir.path().join("copy");
    copy_store(&config.root, &copy);
    opened.store.close().expect("close");
    let mut config = config;
    config.root = copy;
    check_whole(&config, "copy");
}

#[test]
fn lost_queue_and_index_files_are_made_again() {
    for make in [closed, crashed] {
        for lost in [
            "consumequeue",
            "index",
            "consumequeue/Orders/2",
            "consumequeue/Orders/0/00000000000000004000",
            "checkpoint",
            "saturnmq.resume",
            "config",
        ] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let config = make(dir.path());
            let path = dir.path().join(lost);
            if path.is_dir() {
                std::fs::remove_dir_all(&path).expect("remove");
            } else if path.exists() {
                std::fs::remove_file(&path).expect("remove");
            }
            check_whole(&config, lost);
        }
    }
}

#[test]
fn damaged_queue_entries_are_made_again() {
    for make in [closed, crashed] {
        for (file, from, len) in [
            ("consumequeue/Orders/0/00000000000000004000", 20, 2000 - 20),
            ("consumequeue/Orders/3/00000000000000004000", 480, 20),
        ] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let config = make(dir.path());
            let file = OpenOptions::new()
                .write(true)
                .open(dir.path().join(file))
                .expect("open");
            file.write_all_at(&vec![0; len], from).expect("write");
            drop(file);
            let opened = open(&config).expect("open");
            check_filled(&opened.store, "Orders", 900);
            opened.store.close().expect("close");
        }
    }
}

#[test]
fn bogus_entries_behind_a_queues_end_do_not_come_to_life() {
    for make in [closed, crashed] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = make(dir.path());
        let file = dir
            .path()
            .join("consumequeue/Orders/0/00000000000000004000");
        let file = OpenOptions::new().write(true).open(file).expect("open");
        let mut bogus = Vec::new();
        for place in [9_000_000u64, 100, 9_100_000] {
            bogus.extend(place.to_be_bytes());
            bogus.extend(300u32.to_be_bytes());
            bogus.extend(1u64.to_be_bytes());
        }
        file.write_all_at(&bogus, 25 * 20).expect("write");
        drop(file);
        check_whole(&config, "bogus entries");
    }
}

#[test]
fn a_torn_tail_is_cut_and_its_offsets_are_given_to_the_next_messages() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = crashed(dir.path());
    // The last record of the log: message 899 in queue 3, whose entry is on disk already.
    let opened = open(&config).expect("open");
    let last = opened
        .store
        .queue("Orders", 3)
        .expect("queue")
        .entry(224)
        .expect("entry")
        .expect("there");
    drop(opened);
    // Whoever crashed had made no resume point behind it, and had not dispatched it.
    std::fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
    let queue = dir
        .path()
        .join("consumequeue/Orders/3/00000000000000004000");
    let queue = OpenOptions::new().write(true).open(queue).expect("open");
    queue.write_all_at(&[0; 20], 24 * 20).expect("write");
    let base = last.physical_offset / config.commit_log_file_size * config.commit_log_file_size;
    let path = dir.path().join(format!("commitlog/{base:020}"));
    let file = OpenOptions::new().write(true).open(path).expect("open");
    let from = last.physical_offset - base + u64::from(last.size) / 2;
    file.write_all_at(&vec![0; last.size as usize - last.size as usize / 2], from)
        .expect("tear");
    drop(file);
    let mut opened = open(&config).expect("open");
    assert_eq!(opened.report.log_end, last.physical_offset);
    check_filled(&opened.store, "Orders", 899);
    go_on(&mut opened, 899);
    opened.store.close().expect("close");
}

#[test]
fn what_stands_behind_the_end_is_zeroed_before_anything_is_appended() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = crashed(dir.path());
    let opened = open(&config).expect("open");
    let end = opened.report.log_end;
    drop(opened);
    let base = end / config.commit_log_file_size * config.commit_log_file_size;
    let path = dir.path().join(format!("commitlog/{base:020}"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("open");
    file.write_all_at(&[0xAB; 3000], end - base + 8)
        .expect("write");
    file.write_all_at(&[0xCD; 100], config.commit_log_file_size - 200)
        .expect("write");
    let mut opened = open(&config).expect("open");
    assert_eq!(opened.report.log_end, end);
    let mut rest = vec![1; (config.commit_log_file_size - (end - base)) as usize];
    file.read_exact_at(&mut rest, end - base).expect("read");
    assert!(rest.iter().all(|byte| *byte == 0));
    go_on(&mut opened, 900);
    opened.store.close().expect("close");
}

#[test]
fn offsets_go_on_although_the_log_and_the_queues_are_lost() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = closed(dir.path());
    let before = {
        let opened = open(&config).expect("open");
        let before = ranges(&opened.store);
        opened.store.close().expect("close");
        before
    };
    std::fs::remove_dir_all(dir.path().join("commitlog")).expect("remove");
    std::fs::remove_dir_all(dir.path().join("consumequeue")).expect("remove");
    // Closed and opened without a message, killed and opened: the offsets are still remembered.
    open(&rebuilding(&config))
        .expect("open")
        .store
        .close()
        .expect("close");
    drop(open(&config).expect("open"));
    let mut opened = open(&config).expect("open");
    let queue = opened.store.queue_or_create("Orders", 1);
    assert_eq!(before["Orders/1"].1, 225);
    // A consumer that committed its last message is not told that the queue ends before it.
    assert_eq!(
        (queue.min_offset(), queue.max_offset(), queue.next_offset()),
        (225, 225, 225)
    );
    let mut sender = Sender::new(opened.ports.remove(0));
    let appended = sender.send(&queue, b"first of a new log", b"");
    assert_eq!(appended.queue_offset, before["Orders/1"].1);
    crate::support::wait_dispatched(&opened.store, appended.end);
    assert_eq!((queue.min_offset(), queue.max_offset()), (225, 226));
    opened.store.close().expect("close");
    let again = open(&config).expect("open");
    let queue = again.store.queue("Orders", 1).expect("queue");
    assert_eq!(
        (queue.min_offset(), queue.max_offset(), queue.next_offset()),
        (225, 226, 226)
    );
    again.store.close().expect("close");
}

#[test]
fn a_crash_right_after_recovery_loses_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = crashed(dir.path());
    for _ in 0..4 {
        drop(open(&config).expect("open"));
    }
    check_whole(&config, "crash after crash");
}

#[test]
fn what_a_producer_writes_in_properties_cannot_spoil_a_start_or_another_topic() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = std::time::Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let orders = opened.store.queue_or_create("Orders", 0);
    let other = opened.store.queue_or_create("Other", 0);
    sender.send(&orders, b"first", b"");
    for (queues, offsets) in [
        ("a/b,..,%LMQ%/../x", "0,0,0"),
        ("Orders,%LMQ%own", "500,9223372036854775807"),
    ] {
        let properties =
            format!("INNER_MULTI_DISPATCH\u{1}{queues}\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}{offsets}");
        sender.send(&other, b"evil", properties.as_bytes());
    }
    let last = sender.send(&orders, b"second", b"");
    crate::support::wait_dispatched(&opened.store, last.end);
    drop(opened);
    let again = open(&config).expect("a start after a crash");
    let range = ranges(&again.store);
    assert_eq!((range["Orders/0"], range["Other/0"]), ((0, 2), (0, 2)));
    again.store.close().expect("close");
}

#[test]
fn given_offsets_stay_given_however_often_the_store_is_opened() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = closed(dir.path());
    for part in ["commitlog", "consumequeue"] {
        std::fs::remove_dir_all(dir.path().join(part)).expect("remove");
    }
    for _ in 0..3 {
        open(&rebuilding(&config))
            .expect("open")
            .store
            .close()
            .expect("close");
    }
    let again = open(&config).expect("open");
    assert_eq!(again.report.scanned_bytes, 0);
    let queue = again.store.queue_or_create("Orders", 1);
    assert_eq!((queue.max_offset(), queue.next_offset()), (225, 225));
    again.store.close().expect("close");
}

#[test]
fn a_log_that_ends_with_a_file_is_believed_at_the_next_start() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = closed(dir.path());
    let end = {
        let opened = open(&config).expect("open");
        let end = opened.report.log_end;
        opened.store.close().expect("close");
        end
    };
    // A crash between the end of a file and the first record of the next one.
    let size = config.commit_log_file_size;
    let base = end - end % size;
    let path = |base: u64| dir.path().join(format!("commitlog/{base:020}"));
    let file = OpenOptions::new()
        .write(true)
        .open(path(base))
        .expect("open");
    let blank = blank_record((base + size - end) as u32);
    file.write_all_at(&blank, end - base).expect("write");
    std::fs::write(path(base + size), vec![0; size as usize]).expect("write");
    std::fs::write(dir.path().join("abort"), b"").expect("write");
    for _ in 0..3 {
        let opened = open(&config).expect("open");
        assert_eq!(opened.report.log_end, base + size);
        assert!(opened.report.scanned_bytes < size);
        assert!(opened.report.notes.is_empty(), "{:?}", opened.report.notes);
        opened.store.close().expect("close");
    }
}

#[test]
fn entries_of_records_that_a_power_cut_took_back_cost_no_scan_of_the_whole_log() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(&dir.path().join("live"));
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..100);
    let durable = opened.store.watermarks().durable();
    opened.store.close().expect("close");
    config.flush = FlushMode::Async;
    config.flush_interval = std::time::Duration::from_secs(3600);
    config.resume_interval = std::time::Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 100..120);
    fill(&opened.store, &mut sender, "Gone", 0..4);
    assert_eq!(opened.store.watermarks().durable(), durable);
    // Removing a topic makes a resume point at the durable place.
    let resume = config.root.join("saturnmq.resume");
    let before = std::fs::read(&resume).expect("resume point");
    opened.store.remove_topic("Gone").expect("remove");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while std::fs::read(&resume).expect("resume point") == before {
        assert!(std::time::Instant::now() < deadline, "no resume point");
        std::thread::yield_now();
    }
    let copy = dir.path().join("copy");
    copy_store(&config.root, &copy);
    opened.store.close().expect("close");
    let log = OpenOptions::new()
        .write(true)
        .open(copy.join("commitlog/00000000000000000000"))
        .expect("open");
    let rest = config.commit_log_file_size - durable;
    log.write_all_at(&vec![0; rest as usize], durable)
        .expect("the power cut");
    config.root = copy;
    let opened = open(&config).expect("open the copy");
    assert_eq!(opened.report.log_end, durable);
    assert_eq!(opened.report.scanned_bytes, 0, "{:?}", opened.report.notes);
    let max: i64 = ranges(&opened.store).values().map(|(_, max)| max).sum();
    assert_eq!(max, 100);
    opened.store.close().expect("close");
}

#[test]
fn damage_in_the_newest_file_is_never_served() {
    for make in [closed, crashed] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = make(dir.path());
        let opened = open(&config).expect("open");
        let queue = opened.store.queue("Orders", 3).expect("queue");
        let last = queue.max_offset() - 1;
        let entry = queue.entry(last).expect("entry").expect("present");
        opened.store.close().expect("close");
        let base =
            entry.physical_offset / config.commit_log_file_size * config.commit_log_file_size;
        let path = dir.path().join(format!("commitlog/{base:020}"));
        let file = OpenOptions::new().write(true).open(path).expect("newest");
        // Within the body: it begins after 88 bytes.
        file.write_all_at(b"\xff", entry.physical_offset - base + 90)
            .expect("damage");

        let opened = open(&config).expect("open again");
        let queue = opened.store.queue("Orders", 3).expect("queue");
        let (messages, _) = read_all(&mut opened.store.reader().expect("reader"), &queue);
        assert_eq!(messages.len() as i64, last, "all but the damaged one");
        assert_eq!(opened.store.damaged_reads(), 1);
        opened.store.close().expect("close");
    }
}

/// What a client may send is there after a crash, as it was before.
fn survives(topic: &str, properties: &[u8], sys_flag: i32) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = std::time::Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create(topic, 0);
    let other = opened.store.queue_or_create("Orders", 0);
    sender.push_with_flags(&queue, b"first", properties, sys_flag);
    sender.wait();
    for _ in 0..20 {
        sender.send(&other, b"after", b"UNIQ_KEY\x01b");
    }
    wait_dispatched(&opened.store, opened.store.watermarks().appended());
    let before = ranges(&opened.store);
    drop(opened);
    let opened = open(&config).expect("open");
    assert_eq!(ranges(&opened.store), before);
}

#[test]
fn a_topic_that_is_a_host_name_survives_a_crash() {
    survives("host.example.com", b"UNIQ_KEY\x01a", 0);
}

#[test]
fn properties_that_look_like_a_checksum_survive_a_crash() {
    survives("Reply", b"A\x01b\x02__CRC32#\x010000000000\x02", 0);
}

#[test]
fn properties_that_end_in_zero_bytes_survive_a_crash() {
    // Somewhere among these a sector begins behind the last byte that is not zero.
    for length in (0..=510).step_by(30) {
        let mut properties = b"A\x01".to_vec();
        properties.resize(2 + length, 0);
        survives("Zeros", &properties, 0);
    }
}

#[test]
fn a_flag_of_whole_batches_survives_a_crash() {
    survives("Reply", b"A\x01b", 0x80);
}
