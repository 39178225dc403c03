//! Stores that Apache RocketMQ 4.9.7 and 5.3.3 wrote, whole and damaged, opened and compared with
//! what Apache itself reports after opening them.

use std::collections::{BTreeMap, BTreeSet};

use saturnmq_storage::error::OpenError;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::reader::{StoreReader, TimeBoundary};
use saturnmq_storage::store::Store;
use serde_json::Value;

use crate::support::{Golden, names, open, ranges, read_all, unpack};

/// Stores that must be refused: a file that does not belong, or of the wrong length.
const REFUSED: [&str; 2] = ["foreign-file-4.9.7", "short-file-4.9.7"];

/// What the better of the two brokers reports for a store.
fn expected(golden: &Golden) -> &Value {
    let by_version = &golden.manifest["expected"];
    let new = golden.name.starts_with("longtopic-v2") || by_version["4.9.7"]["loaded"] != true;
    &by_version[if new { "5.3.3" } else { "4.9.7" }]
}

/// Queues with their ranges, corrected where this store does better than Apache.
fn expected_ranges(golden: &Golden) -> BTreeMap<String, (i64, i64)> {
    let number = |range: &Value, index: usize| range[index].as_i64().expect("offset");
    let queues = expected(golden)["queues"].as_object().expect("queues");
    let pairs = queues
        .iter()
        .map(|(name, range)| (name.clone(), (number(range, 0), number(range, 1))));
    let mut ranges: BTreeMap<_, _> = pairs.filter(|(_, range)| range.1 > 0).collect();
    // Apache rebuilds a missing queue only when all are missing, and cuts a cleanly closed log at a
    // damaged body in its last files.
    let better = ["one-queue-missing", "crc-last-file"];
    if better.iter().any(|name| golden.name.starts_with(name)) {
        for record in all_records(golden) {
            let topic = record["topic"].as_str().expect("topic");
            let range = ranges
                .entry(format!("{topic}/{}", record["queueId"]))
                .or_insert((0, 0));
            range.1 = range
                .1
                .max(record["queueOffset"].as_i64().expect("offset") + 1);
        }
    }
    ranges
}

/// The records up to the first damage, and those behind it that a closed store keeps.
fn all_records(golden: &Golden) -> Vec<&Value> {
    let list = |key: &str| golden.manifest[key].as_array().into_iter().flatten();
    let behind = list("behindStop").filter(|_| golden.name.starts_with("crc-last-file"));
    list("records").chain(behind).collect()
}

fn records_by_place(golden: &Golden) -> BTreeMap<u64, &Value> {
    all_records(golden)
        .into_iter()
        .map(|record| (record["physicalOffset"].as_u64().expect("offset"), record))
        .collect()
}

fn check_messages(golden: &Golden, store: &Store) {
    let by_place = records_by_place(golden);
    let mut reader = store.reader().expect("reader");
    let mut seen = BTreeSet::new();
    let mut damaged_reads = 0;
    for queue in store.queues() {
        let (messages, damaged) = read_all(&mut reader, &queue);
        damaged_reads += damaged;
        for message in messages {
            seen.insert(message.physical_offset);
            let Some(record) = by_place.get(&message.physical_offset) else {
                continue;
            };
            assert_eq!(record["topic"], message.topic, "{}", golden.name);
            assert_eq!(
                record["queueOffset"], message.queue_offset,
                "{}",
                golden.name
            );
            assert_eq!(record["storeSize"], message.size, "{}", golden.name);
            assert_eq!(record["bodySize"], message.body.len(), "{}", golden.name);
            assert_eq!(
                record["bodySha256"],
                sha256(&message.body),
                "{}",
                golden.name
            );
        }
    }
    check_survivors(golden, &seen);
    let damaged_store = golden.name.starts_with("crc-");
    assert_eq!(damaged_reads, u32::from(damaged_store), "{}", golden.name);
    let queued = |record: &&&Value| {
        record["sysFlag"]
            .as_i64()
            .is_none_or(|flag| !matches!(flag & 12, 4 | 12))
    };
    let bad_place = golden.name.starts_with("bad-phyoffset");
    let log_end = store.watermarks().appended();
    for record in by_place.values().filter(queued) {
        let place = record["physicalOffset"].as_u64().expect("offset");
        if bad_place && record["at"].as_u64().is_some_and(|at| at != place) {
            continue;
        }
        // The manifest marks what was damaged; it is stepped over.
        assert!(
            place >= log_end || seen.contains(&place) || !record["bad"].is_null(),
            "{}: {place} is lost",
            golden.name
        );
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whatever the damage of a crash variant must leave was served.
fn check_survivors(golden: &Golden, seen: &BTreeSet<u64>) {
    let must = &golden.manifest["how"]["mustSurvive"];
    let Some(before) = must["recordsBefore"].as_u64() else {
        return;
    };
    let from = must["recordsFrom"].as_u64().unwrap_or(0);
    let number = |record: &Value, key: &str| record[key].as_u64().expect("number");
    let records = golden.manifest["records"].as_array().expect("records");
    let whole = |record: &&Value| {
        let at = record["at"]
            .as_u64()
            .unwrap_or(number(record, "physicalOffset"));
        at >= from && at + number(record, "storeSize") <= before
    };
    let kept: Vec<_> = records.iter().filter(whole).collect();
    if let Some(count) = must["count"].as_u64() {
        assert_eq!(kept.len() as u64, count, "{}", golden.name);
    }
    for record in kept {
        let place = number(record, "physicalOffset");
        let is_moved = record["at"].as_u64().is_some_and(|at| at != place);
        let flag = record["sysFlag"].as_i64().unwrap_or(0) & 12;
        assert!(
            seen.contains(&place) || is_moved || matches!(flag, 4 | 12),
            "{}: {place} did not survive",
            golden.name
        );
    }
}

/// Compares the offsets of Apache's time probes; how many.
fn check_times(golden: &Golden, store: &Store) -> usize {
    let mut compared = 0;
    for (version, boundary) in [
        ("4.9.7", TimeBoundary::Nearest),
        ("5.3.3", TimeBoundary::Lower),
    ] {
        let reported = &golden.manifest["expected"][version];
        let Some(times) = reported["time"].as_object() else {
            continue;
        };
        let mut reader = store.reader().expect("reader");
        for (name, probes) in times {
            let (topic, id) = name.rsplit_once('/').expect("name");
            let Some(queue) = store.queue(topic, id.parse().expect("id")) else {
                continue;
            };
            // With several files Apache chooses one by modification time, or reports an outdated
            // range.
            let range = (queue.min_offset(), queue.max_offset());
            let theirs = &reported["queues"][name];
            if queue.max_offset() > 100 || theirs[0] != range.0 || theirs[1] != range.1 {
                continue;
            }
            for probe in probes.as_array().expect("probes") {
                let time = probe[0].as_i64().expect("time");
                let found = reader
                    .offset_by_time(&queue, time, boundary)
                    .expect("search");
                assert_eq!(
                    probe[1], found,
                    "{} {version} {name} at {time}",
                    golden.name
                );
                compared += 1;
            }
        }
    }
    compared
}

/// Looks for everything Apache's key probes found; how much that is.
fn check_keys(golden: &Golden, store: &Store) -> usize {
    let mut compared = 0;
    let mut reader = store.reader().expect("reader");
    for probe in expected(golden)["keys"].as_array().into_iter().flatten() {
        let (topic, key) = (
            probe[0].as_str().expect("topic"),
            probe[1].as_str().expect("key"),
        );
        let found = found_by_key(&mut reader, topic, key);
        for place in probe[2].as_array().expect("places") {
            let place = place.as_u64().expect("place");
            assert!(
                found.contains(&place),
                "{}: {topic} {key} at {place}: {found:?}",
                golden.name
            );
            compared += 1;
        }
    }
    compared
}

/// Places of the records that really have the key.
fn found_by_key(reader: &mut StoreReader, topic: &str, key: &str) -> Vec<u64> {
    let hits = reader
        .query_index(topic, key, 64, 0, i64::MAX)
        .expect("query");
    let mut found = hits.offsets;
    let mut record = Vec::new();
    found.retain(|place| {
        record.clear();
        reader.record(*place, &mut record).unwrap_or(false)
            && Record::decode(&record).is_ok_and(|record| {
                record
                    .properties()
                    .index_keys()
                    .any(|found| found == key.as_bytes())
            })
    });
    found
}

#[test]
fn apaches_stores_open_with_everything_apache_finds_in_them() {
    let (mut stores, mut times, mut keys) = (0, 0, 0);
    for name in names() {
        if REFUSED.contains(&name.as_str()) || name.starts_with("batchcq") {
            continue;
        }
        stores += 1;
        let golden = unpack(&name);
        let opened = open(&golden.config).unwrap_or_else(|error| panic!("{name}: {error}"));
        let store = opened.store;
        let max = match all_records(&golden).last() {
            Some(last) if name.starts_with("crc-last-file") => {
                let number = |key: &str| last[key].as_u64().expect("number");
                number("at") + number("storeSize")
            }
            _ => expected(&golden)["maxPhy"].as_u64().unwrap_or(0),
        };
        assert_eq!(store.watermarks().appended(), max, "{name}: log end");
        assert_eq!(ranges(&store), expected_ranges(&golden), "{name}");
        check_messages(&golden, &store);
        times += check_times(&golden, &store);
        keys += check_keys(&golden, &store);
        store
            .close()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            !golden.config.root.join("abort").exists(),
            "{name}: closed cleanly"
        );
    }
    assert!(
        stores > 50 && times > 2000 && keys > 3000,
        "compared {stores} stores, {times} times, {keys} keys"
    );
}

#[test]
fn batch_queues_of_apache_5_stay_in_the_log_and_are_spoken_of() {
    let golden = unpack("batchcq-clean-5.3.3");
    let opened = open(&golden.config).expect("open");
    assert_eq!(opened.report.log_end, 3150);
    assert!(ranges(&opened.store).is_empty());
    let notes = opened.report.notes.join("\n");
    assert!(notes.contains("5 records of batch queues"), "{notes}");
    opened.store.close().expect("close");
}

#[test]
fn a_damaged_record_is_reported_with_its_place_and_never_served() {
    let golden = unpack("crc-old-file-clean-4.9.7");
    let opened = open(&golden.config).expect("open");
    assert_eq!(opened.report.damaged_records, 1);
    let mut reader = opened.store.reader().expect("reader");
    let mut out = Vec::new();
    let error = reader
        .record(942, &mut out)
        .expect_err("damaged")
        .to_string();
    assert!(
        error.contains("942") && error.contains("00000000000000000000"),
        "{error}"
    );
    assert!(out.is_empty());
    assert_eq!(opened.store.damaged_reads(), 1);
    opened.store.close().expect("close");
}

#[test]
fn damage_in_apaches_closed_log_costs_only_itself_where_the_queues_are_to_be_made_again() {
    let golden = unpack("crc-last-file-clean-4.9.7");
    let opened = open(&golden.config).expect("open");
    let end = opened.report.log_end;
    opened.store.close().expect("close");
    let golden = unpack(&golden.name);
    std::fs::remove_dir_all(golden.config.root.join("consumequeue")).expect("remove");
    let opened = open(&golden.config).expect("open");
    assert_eq!(opened.report.log_end, end);
    assert_eq!(opened.report.damaged_records, 1);
    check_messages(&golden, &opened.store);
    opened.store.close().expect("close");
}

#[test]
fn a_store_opened_twice_is_the_same_store() {
    for name in [
        "rolled-kill9-4.9.7",
        "basic-kill9-5.3.3",
        "no-cq-index-clean-4.9.7",
        "pop-clean-5.3.3",
    ] {
        let golden = unpack(name);
        let store = open(&golden.config).expect("first").store;
        let (before, end) = (ranges(&store), store.watermarks().appended());
        store.close().expect("close");
        let opened = open(&golden.config).expect("second");
        assert_eq!(ranges(&opened.store), before, "{name}");
        assert_eq!(opened.store.watermarks().appended(), end, "{name}");
        assert_eq!(
            opened.report.scanned_bytes, 0,
            "{name}: nothing is scanned after a clean close"
        );
        check_messages(&golden, &opened.store);
        check_keys(&golden, &opened.store);
        opened.store.close().expect("close");
    }
}

#[test]
fn a_log_directory_with_foreign_or_short_files_is_refused_untouched() {
    for name in REFUSED {
        let golden = unpack(name);
        let abort_before = golden.config.root.join("abort").exists();
        let refused = open(&golden.config)
            .err()
            .unwrap_or_else(|| panic!("{name} opened"));
        assert!(matches!(refused, OpenError::Layout(_)), "{name}: {refused}");
        assert!(
            refused.to_string().contains("commitlog"),
            "{name}: {refused}"
        );
        assert_eq!(
            golden.config.root.join("abort").exists(),
            abort_before,
            "{name}"
        );
    }
}

#[test]
fn a_rocksdb_queue_store_is_refused_in_words() {
    let golden = unpack("rolled-clean-4.9.7");
    std::fs::write(
        golden.config.root.join("consumequeue/CURRENT"),
        b"MANIFEST-000001\n",
    )
    .expect("write");
    let refused = open(&golden.config).err().expect("refused");
    assert!(refused.to_string().contains("RocksDB"), "{refused}");
}
