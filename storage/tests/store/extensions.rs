//! Extension files of consume queues: made as Apache makes them, followed by readers, in step with
//! their queues across crashes, retention and removed topics.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use saturnmq_storage::config::{PullLimits, StoreConfig};
use saturnmq_storage::consume_queue::UnitLook;
use saturnmq_storage::dispatch::{BitsOfRecord, UnitBits};
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::consume_entry::ENTRY_SIZE;
use saturnmq_storage::format::extension_unit::{Unit, is_address, position, size_of_unit};
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::PullRequest;
use saturnmq_storage::store::Store;

use crate::support::{
    Sender, check_filled, copy_store, fill, open, read_all, small_config, unpack, wait_dispatched,
};

/// Extension files of these stores, in bytes.
const FILE: u64 = 4096;

/// Bits by log offset.
struct Recorded(HashMap<i64, Vec<u8>>);

impl BitsOfRecord for Recorded {
    fn bits(&self, record: &Record<'_>, out: &mut Vec<u8>) {
        let bits = self.0.get(&record.physical_offset());
        out.extend_from_slice(bits.map_or(&[], Vec::as_slice));
    }
}

/// As many bits as the place of the record says, so that units differ in size.
struct ByPlace;

impl BitsOfRecord for ByPlace {
    fn bits(&self, record: &Record<'_>, out: &mut Vec<u8>) {
        out.resize(record.queue_offset() as usize % 40, 0xa5);
    }
}

fn extended(root: &Path) -> StoreConfig {
    let mut config = small_config(root);
    config.write_extensions = true;
    config.extension_file_size = FILE;
    config.unit_bits = Some(UnitBits(Arc::new(ByPlace)));
    config
}

/// Every file below a directory with its bytes.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.expect("entry").path();
        let name = path
            .file_name()
            .expect("name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            let below = files(&path).into_iter();
            found.extend(below.map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            found.insert(name, std::fs::read(&path).expect("read"));
        }
    }
    found
}

/// The positions of all units of a queue, found as Apache finds the end: from one to the next.
fn walk(root: &Path, topic: &str, queue_id: i32) -> Vec<u64> {
    let directory = root.join(format!("consumequeue_ext/{topic}/{queue_id}"));
    let mut found = Vec::new();
    for (name, bytes) in files(&directory) {
        assert_eq!(bytes.len() as u64, FILE);
        let base: u64 = name.parse().expect("20 digits");
        let mut at = 0;
        while let Some(size) = bytes.get(at..).and_then(size_of_unit) {
            found.push(base + at as u64);
            at += size;
        }
        let head = i16::from_be_bytes([bytes[at], bytes[at + 1]]);
        assert!(head <= 0, "{topic}/{queue_id}: {head} at {base}+{at}");
    }
    found
}

/// Each entry from `from` on has the unit of its record, one behind the other.
fn check_units(store: &Store, root: &Path, topic: &str, from: i64) {
    let mut reader = store.reader().expect("reader");
    let (mut bytes, mut record) = (Vec::new(), Vec::new());
    for queue in store.queues_of(topic).iter() {
        let walked = walk(root, topic, queue.queue_id);
        let mut next = walked.iter();
        for offset in queue.min_offset().max(from)..queue.max_offset() {
            let entry = queue.entry(offset).expect("entry").expect("there");
            let at = position(entry.tags_code).expect("an address");
            assert!(next.any(|walked| *walked == at), "{topic} {offset}: {at}");
            record.clear();
            assert!(
                reader
                    .record(entry.physical_offset, &mut record)
                    .expect("read")
            );
            let record = Record::decode(&record).expect("record");
            let UnitLook::Found(unit) = queue.unit(entry.tags_code, false, &mut bytes) else {
                panic!("{topic} {offset} has no unit at {at}");
            };
            let mut bits = Vec::new();
            ByPlace.bits(&record, &mut bits);
            let expected = Unit {
                tags_code: record.tags_code(),
                store_timestamp: record.store_timestamp(),
                bits: &bits,
            };
            assert_eq!(unit, expected, "{topic} {offset}");
        }
        assert_eq!(next.count(), 0, "units behind those of the last entry");
    }
}

fn bodies_with(store: &Store, queue: &Queue, tag: &str, cold: bool) -> Vec<String> {
    let mut reader = store.reader().expect("reader");
    let (filter, limits) = (
        TagFilter::parse(Some(tag)).expect("tag"),
        PullLimits::default(),
    );
    let mut bodies = Vec::new();
    let mut offset = queue.min_offset();
    while offset < queue.max_offset() {
        let request = PullRequest {
            queue,
            offset,
            max_count: 32,
            filter: &filter,
            limits: &limits,
        };
        let mut out = Vec::new();
        if !cold {
            reader.pull(&request, &mut out).expect("pull");
            out.clear();
        }
        let pulled = reader.pull_cold(&request, &mut out).expect("pull");
        let mut rest = &out[..];
        while !rest.is_empty() {
            let record = Record::decode(rest).expect("record");
            bodies.push(String::from_utf8_lossy(record.body()).into_owned());
            rest = &rest[record.size() as usize..];
        }
        offset = pulled.next_begin;
    }
    bodies
}

/// The bits of Apache's units, by the log offset of their records.
fn recorded_bits(store: &Store, topic: &str) -> HashMap<i64, Vec<u8>> {
    let mut bytes = Vec::new();
    let mut bits = HashMap::new();
    for queue in store.queues_of(topic).iter() {
        for offset in 0..queue.max_offset() {
            let entry = queue.entry(offset).expect("entry").expect("there");
            assert!(is_address(entry.tags_code));
            let UnitLook::Found(unit) = queue.unit(entry.tags_code, false, &mut bytes) else {
                panic!("a unit of Apache's is not read");
            };
            bits.insert(entry.physical_offset as i64, unit.bits.to_vec());
        }
    }
    bits
}

#[test]
fn apaches_extension_files_are_made_again_byte_for_byte() {
    let golden = unpack("sql-ext-clean-4.9.7");
    let mut config = golden.config.clone();
    config.extension_file_size = 65_536;
    let root = config.root.clone();
    let before = ["consumequeue", "consumequeue_ext"].map(|name| files(&root.join(name)));
    assert_eq!(before[1].len(), 4);
    // Only read: nothing changes.
    let opened = open(&config).expect("open");
    let bits = recorded_bits(&opened.store, "GSql");
    assert!(bits.values().any(|bits| bits.iter().any(|byte| *byte != 0)));
    opened.store.close().expect("close");
    let after = ["consumequeue", "consumequeue_ext"].map(|name| files(&root.join(name)));
    assert!(after == before, "reading changed files");
    for name in ["consumequeue", "consumequeue_ext"] {
        std::fs::remove_dir_all(root.join(name)).expect("remove");
    }
    config.write_extensions = true;
    config.unit_bits = Some(UnitBits(Arc::new(Recorded(bits))));
    open(&config).expect("open").store.close().expect("close");
    let after = ["consumequeue", "consumequeue_ext"].map(|name| files(&root.join(name)));
    assert!(after == before, "other files than Apache's");
}

#[test]
fn units_go_on_behind_apaches() {
    let golden = unpack("sql-ext-clean-4.9.7");
    let mut config = golden.config.clone();
    config.write_extensions = true;
    config.extension_file_size = 65_536;
    config.unit_bits = Some(UnitBits(Arc::new(ByPlace)));
    let path = "consumequeue_ext/GSql/0/00000000000000000000";
    let before = std::fs::read(config.root.join(path)).expect("read");
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue("GSql", 0).expect("queue");
    let end = sender.send(&queue, b"more", b"TAGS\x01more").end;
    wait_dispatched(&opened.store, end);
    let entry = queue.entry(10).expect("entry").expect("there");
    // Five units of 20 bytes and five of 34.
    assert_eq!(position(entry.tags_code), Some(270));
    assert_eq!(bodies_with(&opened.store, &queue, "more", true), ["more"]);
    opened.store.close().expect("close");
    let after = std::fs::read(config.root.join(path)).expect("read");
    assert_eq!(after[..270], before[..270]);
    assert_eq!(
        Unit::decode(&after[270..]).expect("a unit").bits,
        [0xa5; 10]
    );
}

#[test]
fn tag_filters_follow_entries_to_their_units() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = extended(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Tagged", 0..300);
    check_units(&opened.store, dir.path(), "Tagged", 0);
    let expect = |store: &Store| {
        for cold in [false, true] {
            let queue = store.queue("Tagged", 1).expect("queue");
            let found = bodies_with(store, &queue, "t2", cold);
            let numbers: Vec<u32> = (0..300).filter(|n| n % 4 == 1 && n % 3 == 2).collect();
            let names: Vec<_> = numbers.iter().map(|n| format!("Tagged-{n}-")).collect();
            assert_eq!(found.len(), names.len());
            assert!(
                found
                    .iter()
                    .zip(&names)
                    .all(|(body, name)| body.starts_with(name))
            );
            assert_eq!(bodies_with(store, &queue, "t7", cold), Vec::<String>::new());
        }
    };
    expect(&opened.store);
    opened.store.close().expect("close");
    // Also once they are no longer written.
    let mut config = config.clone();
    config.write_extensions = false;
    let opened = open(&config).expect("open");
    expect(&opened.store);
}

#[test]
fn units_are_in_step_with_their_queues_after_a_crash() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = extended(&dir.path().join("running"));
    config.resume_interval = Duration::from_millis(30);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let mut from = 0;
    for (round, to) in [130, 300, 470, 900].into_iter().enumerate() {
        fill(&opened.store, &mut sender, "Orders", from..to);
        let copy = dir.path().join(format!("crash{round}"));
        copy_store(&config.root, &copy);
        let config = StoreConfig {
            root: copy.clone(),
            ..config.clone()
        };
        let again = open(&config).expect("open");
        check_filled(&again.store, "Orders", to);
        check_units(&again.store, &copy, "Orders", 0);
        from = to;
    }
    drop(opened);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 900..1000);
    check_filled(&opened.store, "Orders", 1000);
    check_units(&opened.store, &config.root, "Orders", 0);
}

/// Makes zeros of what the files of a directory hold from `end` on.
fn keep_until(directory: &Path, end: u64) {
    for (name, mut bytes) in files(directory) {
        let base: u64 = name.parse().expect("20 digits");
        let keep = end.saturating_sub(base).min(bytes.len() as u64) as usize;
        bytes[keep..].fill(0);
        std::fs::write(directory.join(name), bytes).expect("write");
    }
}

#[test]
fn units_behind_a_log_that_was_cut_are_put_anew() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path().join("store");
    let mut config = extended(&root);
    config.resume_interval = Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..300);
    opened.store.close().expect("close");
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 300..700);
    let cut = opened.store.queue("Orders", 0).expect("queue");
    let at = cut
        .entry(100)
        .expect("entry")
        .expect("there")
        .physical_offset;
    drop(opened);
    // Nothing of the log and the queues from there on reached the disk; units did.
    keep_until(&root.join("commitlog"), at);
    for queue_id in 0..4 {
        let queue = root.join(format!("consumequeue/Orders/{queue_id}"));
        keep_until(&queue, 100 * ENTRY_SIZE as u64);
    }
    let mut opened = open(&config).expect("open");
    assert_eq!(
        opened.store.queue("Orders", 0).expect("queue").max_offset(),
        100
    );
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 400..470);
    check_filled(&opened.store, "Orders", 470);
    check_units(&opened.store, &root, "Orders", 0);
}

#[test]
fn a_store_that_gets_units_later_keeps_its_old_entries() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let plain = small_config(dir.path());
    let mut opened = open(&plain).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..100);
    opened.store.close().expect("close");
    let mut opened = open(&extended(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 100..300);
    check_filled(&opened.store, "Orders", 300);
    check_units(&opened.store, dir.path(), "Orders", 25);
    let first = opened.store.queue("Orders", 0).expect("queue").entry(24);
    assert!(!is_address(first.expect("entry").expect("there").tags_code));
    opened.store.close().expect("close");
}

#[test]
fn damaged_units_hide_no_message() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = extended(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..300);
    opened.store.close().expect("close");
    let directory = dir.path().join("consumequeue_ext/Orders");
    // Zeros, a file of another length, and none at all.
    for name in files(&directory.join("0")).keys() {
        std::fs::write(directory.join("0").join(name), vec![0; FILE as usize]).expect("write");
    }
    std::fs::write(directory.join("1/00000000000000000000"), [7; 100]).expect("write");
    std::fs::remove_dir_all(directory.join("2")).expect("remove");
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 300..600);
    check_filled(&opened.store, "Orders", 600);
    for queue_id in 0..3 {
        let queue = opened.store.queue("Orders", queue_id).expect("queue");
        let found = bodies_with(&opened.store, &queue, "t1", true);
        let wanted = (0..600u32).filter(|n| *n % 4 == queue_id as u32 && n % 3 == 1);
        for number in wanted {
            let name = format!("Orders-{number}-");
            assert!(found.iter().any(|body| body.starts_with(&name)), "{name}");
        }
    }
    opened.store.close().expect("close");
    open(&config).expect("open").store.close().expect("close");
}

#[test]
fn expired_units_go_with_their_entries() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = extended(dir.path());
    config.retention.clean_file_forcibly = false;
    config.resume_interval = Duration::from_millis(10);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..2500);
    let store = &opened.store;
    let later = SystemTime::now() + Duration::from_secs(73 * 3600);
    let sealed = store.watermarks().appended() / config.commit_log_file_size;
    let limit = std::time::Instant::now() + Duration::from_secs(30);
    while store.min_log_offset() < sealed * config.commit_log_file_size {
        store.retention_round(later, true).expect("round");
        assert!(std::time::Instant::now() < limit, "no resume point");
        std::thread::yield_now();
    }
    store.trim_entries(true).expect("trim");
    for queue in store.queues() {
        let first = queue
            .entry(queue.min_offset())
            .expect("entry")
            .expect("there");
        let first = position(first.tags_code).expect("an address");
        let directory = format!("consumequeue_ext/Orders/{}", queue.queue_id);
        let kept = files(&dir.path().join(directory));
        let oldest: u64 = kept.keys().next().expect("a file").parse().expect("digits");
        assert!(oldest > 0 && oldest <= first && oldest + FILE >= first);
        let (messages, _) = read_all(&mut store.reader().expect("reader"), &queue);
        assert_eq!(
            messages.len() as i64,
            queue.max_offset() - queue.min_offset()
        );
    }
    opened.store.close().expect("close");
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 2500..2600);
    check_units(&opened.store, dir.path(), "Orders", 620);
}

#[test]
fn a_removed_topic_leaves_no_units() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = extended(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Gone", 0..100);
    fill(&opened.store, &mut sender, "Kept", 0..100);
    assert!(
        !opened
            .store
            .remove_topic("Gone")
            .expect("remove")
            .is_empty()
    );
    assert!(!dir.path().join("consumequeue_ext/Gone").exists());
    fill(&opened.store, &mut sender, "Gone", 0..50);
    check_filled(&opened.store, "Gone", 50);
    check_units(&opened.store, dir.path(), "Gone", 0);
    check_units(&opened.store, dir.path(), "Kept", 0);
}
