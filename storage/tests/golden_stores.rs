//! Stores written by Apache RocketMQ brokers, read, written again and compared with what their
//! manifests say (tests/golden/stores/INDEX.md).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use saturnmq_storage::checkpoint::CheckpointFile;
use saturnmq_storage::format::consume_entry::ConsumeEntry;
use saturnmq_storage::format::index_entry::{IndexHeader, IndexShape};
use saturnmq_storage::format::message::{self, MessageParts};
use saturnmq_storage::format::properties::{Properties, names};
use saturnmq_storage::format::record::{Record, RecordError};
use saturnmq_storage::index_file::Index;
use saturnmq_storage::inspect::{self, Found};
use saturnmq_storage::layout::{Layout, list_fixed_files, list_queues, queue_directory};
use saturnmq_storage::mapped_file::MapBudget;
use saturnmq_storage::queue_table::QueueTable;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A record's log offset, its bytes and what is wrong with them.
type Placed = (u64, Vec<u8>, Option<RecordError>);

struct Golden {
    name: String,
    manifest: Value,
    dir: tempfile::TempDir,
}

fn golden_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/stores")
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(golden_directory())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".tar.zst").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 50, "the recorded stores are missing");
    names
}

fn decompressed(path: &Path) -> impl std::io::Read {
    zstd::Decoder::new(File::open(path).unwrap()).unwrap()
}

impl Golden {
    fn open(name: &str) -> Self {
        let at = |suffix: &str| golden_directory().join(format!("{name}{suffix}"));
        let manifest = serde_json::from_reader(decompressed(&at(".json.zst"))).unwrap();
        let dir = tempfile::tempdir().unwrap();
        tar::Archive::new(decompressed(&at(".tar.zst")))
            .unpack(dir.path())
            .unwrap();
        Self {
            name: name.to_owned(),
            manifest,
            dir,
        }
    }

    fn layout(&self) -> Layout {
        Layout::new(self.dir.path().join("store"))
    }

    fn conf(&self, key: &str, default: u64) -> u64 {
        self.manifest["conf"][key]
            .as_str()
            .map_or(default, |text| text.parse().unwrap())
    }

    fn log_file_size(&self) -> u64 {
        self.conf("mappedFileSizeCommitLog", 1 << 30)
    }

    fn queue_file_size(&self) -> u64 {
        self.conf("mappedFileSizeConsumeQueue", 6_000_000)
    }

    fn shape(&self) -> IndexShape {
        let slots = self.conf("maxHashSlotNum", 5_000_000) as u32;
        IndexShape {
            slots,
            items: self.conf("maxIndexNum", 20_000_000) as u32,
        }
    }

    fn table(&self) -> QueueTable {
        let directory = self.layout().consume_queues();
        QueueTable::open(directory, self.queue_file_size(), MapBudget::new(50)).unwrap()
    }

    /// Every complete record with its log offset, in order, and the summary of the walk.
    fn records(&self) -> (Vec<Placed>, inspect::Summary) {
        let mut records = Vec::new();
        let directory = self.layout().commit_log().to_owned();
        let summary = inspect::walk(&directory, self.log_file_size(), |found| {
            if let Found::Record {
                offset,
                record,
                problem,
            } = found
            {
                records.push((offset, record.as_bytes().to_vec(), problem));
            }
        });
        (records, summary.unwrap())
    }

    /// Whether Apache's broker opens the store, so that ours should.
    fn is_refused(&self) -> bool {
        ["foreign-file", "short-file"]
            .iter()
            .any(|prefix| self.name.starts_with(prefix))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn host(address: SocketAddr) -> String {
    address.to_string()
}

/// The record as the manifests describe records.
fn described(at: u64, record: &Record<'_>) -> Value {
    let text = |value: Option<&[u8]>| {
        value.map_or(Value::Null, |value| {
            String::from_utf8_lossy(value).into_owned().into()
        })
    };
    let properties = record.properties();
    let all: BTreeMap<String, String> = properties
        .iter()
        .map(|(name, value)| {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            (text(name), text(value))
        })
        .collect();
    serde_json::json!({
        "topic": record.topic(),
        "queueId": record.queue_id(),
        "queueOffset": record.queue_offset(),
        "physicalOffset": record.physical_offset(),
        "storeSize": record.size(),
        "magic": if record.version() == 1 { "V1" } else { "V2" },
        "bodyCRC": record.body_crc(),
        "bodySize": record.body().len(),
        "bodySha256": sha256(record.body()),
        "recordSha256": sha256(record.as_bytes()),
        "flag": record.flag(),
        "sysFlag": record.sys_flag(),
        "bornTimestamp": record.born_timestamp(),
        "storeTimestamp": record.store_timestamp(),
        "bornHost": host(record.born_host()),
        "storeHost": host(record.store_host()),
        "reconsumeTimes": record.reconsume_times(),
        "preparedTransactionOffset": record.prepared_transaction_offset(),
        "tags": text(properties.get(names::TAGS)),
        "keys": text(properties.get(names::KEYS)),
        "uniqKey": text(properties.get(names::UNIQUE_KEY)),
        "offsetMsgId": record.message_id().as_str(),
        "propsEnd02": properties.as_bytes().last() == Some(&2),
        "properties": all,
        "at": at,
    })
}

#[test]
fn every_record_reads_as_its_manifest_says() {
    for name in names() {
        let golden = Golden::open(&name);
        if golden.is_refused() {
            continue;
        }
        let (records, summary) = golden.records();
        let list = |key: &str| golden.manifest[key].as_array().unwrap().clone();
        let mut expected = list("records");
        let before_stop = expected.len() as u64;
        expected.extend(list("behindStop"));
        assert_eq!(records.len(), expected.len(), "{name}");
        assert_eq!(
            summary.records - summary.records_behind_damage,
            before_stop,
            "{name}"
        );
        for ((at, bytes, problem), mut expected) in records.iter().zip(expected) {
            let record = Record::decode(bytes).unwrap();
            let bad = expected.as_object_mut().unwrap().remove("bad");
            assert_eq!(described(*at, &record), expected, "{name} at {at}");
            let bad_body = matches!(problem, Some(RecordError::BodyCrc { .. }));
            assert_eq!(bad_body, bad.is_some(), "{name} at {at}");
            let place = golden.manifest["name"]
                .as_str()
                .unwrap()
                .starts_with("bad-phyoffset");
            let misplaced = matches!(problem, Some(RecordError::Misplaced { .. }));
            assert!(!misplaced || place, "{name} at {at}");
        }
        let end = golden.manifest["log"]["end"].as_u64().unwrap_or(0);
        assert_eq!(summary.end, end, "{name}");
    }
}

#[test]
fn no_sound_record_looks_torn() {
    for name in names() {
        let golden = Golden::open(&name);
        if golden.is_refused() {
            continue;
        }
        for (at, bytes, _) in golden.records().0 {
            let record = Record::decode(&bytes).unwrap();
            assert_eq!(record.check_text(at), Ok(()), "{name} at {at}");
        }
    }
}

#[test]
fn every_record_encoded_again_is_the_same() {
    for name in names() {
        let golden = Golden::open(&name);
        if golden.is_refused() {
            continue;
        }
        for (at, bytes, problem) in golden.records().0 {
            let record = Record::decode(&bytes).unwrap();
            // What a message brings is not taken for a record's own checksum, and whole batches are
            // not stored: such records are read only.
            let whole_batch = record.sys_flag() & message::sys_flag::INNER_BATCH != 0;
            if record.check_record_crc() == Ok(true) || whole_batch {
                continue;
            }
            let properties = [record.properties().as_bytes()];
            let parts = MessageParts {
                topic: record.topic(),
                queue_id: record.queue_id(),
                flag: record.flag(),
                sys_flag: record.sys_flag(),
                born_timestamp: record.born_timestamp(),
                born_host: record.born_host(),
                store_host: record.store_host(),
                reconsume_times: record.reconsume_times(),
                prepared_transaction_offset: record.prepared_transaction_offset(),
                body: record.body(),
                properties: &properties,
            };
            let mut again = vec![0xee; message::encoded_len(&parts).unwrap()];
            message::encode_into(&parts, &mut again).unwrap();
            let physical_offset = record.physical_offset() as u64;
            let (offset, time) = (record.queue_offset(), record.store_timestamp());
            message::assign(&mut again, offset, physical_offset, time);
            if matches!(problem, Some(RecordError::BodyCrc { .. })) {
                again[8..12].copy_from_slice(&bytes[8..12]);
            }
            assert!(
                again == bytes,
                "{name} at {at}: {} is not {}",
                hex(&again),
                hex(&bytes)
            );
        }
    }
}

#[test]
fn foreign_and_short_files_are_refused_by_name() {
    for (name, text) in [
        ("foreign-file-4.9.7", "README"),
        ("short-file-4.9.7", "100000"),
    ] {
        let golden = Golden::open(name);
        let directory = golden.layout().commit_log().to_owned();
        let error = list_fixed_files(&directory, golden.log_file_size(), "").unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let golden = Golden::open("empty-last-file-4.9.7");
    let listed = list_fixed_files(golden.layout().commit_log(), golden.log_file_size(), "");
    assert!(listed.unwrap().empty_last.is_some());
}

#[test]
fn checkpoints_and_index_headers_read_as_the_manifests_say() {
    for name in names() {
        let golden = Golden::open(&name);
        let expected = &golden.manifest["checkpoint"];
        if !expected.is_null() {
            let stored = CheckpointFile::open(&golden.layout().checkpoint())
                .unwrap()
                .stored();
            let found = serde_json::json!({
                "size": 4096,
                "physicMsgTimestamp": stored.log_timestamp,
                "logicsMsgTimestamp": stored.queue_timestamp,
                "indexMsgTimestamp": stored.index_timestamp,
                "masterFlushedOffset": stored.master_flushed_offset,
                "confirmPhyOffset": stored.confirm_offset,
            });
            assert_eq!(found, *expected, "{name}");
        }
        let index = golden.manifest["index"].as_array().unwrap();
        for expected in index {
            let file = expected["file"].as_str().unwrap();
            let bytes = fs::read(golden.layout().index().join(file)).unwrap();
            let header = IndexHeader::decode(bytes.first_chunk().unwrap());
            let found = [
                header.begin_timestamp,
                header.end_timestamp,
                header.begin_offset,
                header.end_offset,
                i64::from(header.slot_count),
            ];
            let fields = [
                "beginTimestamp",
                "endTimestamp",
                "beginPhyOffset",
                "endPhyOffset",
                "hashSlotCount",
            ];
            assert_eq!(
                found,
                fields.map(|field| expected[field].as_i64().unwrap()),
                "{name}"
            );
            let count = expected["indexCount"].as_i64().unwrap().max(1);
            assert_eq!(i64::from(header.next_item), count, "{name}");
        }
    }
}

#[test]
fn queues_open_with_the_entries_that_are_on_disk() {
    for name in names() {
        let golden = Golden::open(&name);
        let table = golden.table();
        let on_disk = golden.manifest["queuesOnDisk"].as_object().unwrap();
        assert_eq!(table.len(), on_disk.len(), "{name}");
        for (queue_name, expected) in on_disk {
            let (topic, queue_id) = queue_name.rsplit_once('/').unwrap();
            let queue = table.get(topic, queue_id.parse().unwrap()).unwrap();
            let base = expected["files"][0]["base"].as_i64().unwrap_or(0) / 20;
            let entries = expected["entries"].as_i64().unwrap();
            assert_eq!(queue.max_offset(), base + entries, "{name} {queue_name}");
            let mut read = Vec::new();
            while base + (read.len() as i64) < queue.max_offset() {
                let before = read.len();
                queue
                    .entries(base + before as i64, 1000, &mut read)
                    .unwrap();
                assert_ne!(read.len(), before, "{name} {queue_name}");
            }
            for (field, entry) in [("first", read.first()), ("last", read.last())] {
                let Some(entry) = entry else { continue };
                let (offset, size) = (entry.physical_offset, entry.size);
                let expected = &expected[field];
                let found = serde_json::json!([expected[0], offset, size, entry.tags_code]);
                assert_eq!(found, *expected, "{name} {queue_name}");
            }
        }
    }
}

/// Delays of the store's delay levels, ms.
fn delays(golden: &Golden) -> Vec<i64> {
    let levels = golden.manifest["conf"]["messageDelayLevel"]
        .as_str()
        .unwrap_or("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h");
    let delay = |level: &str| {
        let (number, unit) = level.split_at(level.len() - 1);
        let unit = match unit {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => 86_400_000,
        };
        number.parse::<i64>().unwrap() * unit
    };
    levels.split(' ').map(delay).collect()
}

fn tags_code(record: &Record<'_>, delays: &[i64]) -> i64 {
    let level = record.properties().get_i64(names::DELAY).unwrap_or(0);
    if record.topic() != "SCHEDULE_TOPIC_XXXX" || level <= 0 {
        return record.tags_code();
    }
    record.store_timestamp() + delays[(level as usize).min(delays.len()) - 1]
}

/// The further queues a record belongs to, with its offsets there.
fn light_queues(record: &Record<'_>) -> Vec<(String, i32, i64)> {
    let properties: Properties<'_> = record.properties();
    let list = |name| properties.get_str(name).unwrap_or_default().split(',');
    let (queues, offsets) = (
        list(names::INNER_MULTI_DISPATCH),
        list(names::INNER_MULTI_QUEUE_OFFSET),
    );
    let queue_id = |name: &str| {
        if name.starts_with("%LMQ%") {
            0
        } else {
            record.queue_id()
        }
    };
    queues
        .zip(offsets)
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, offset)| (name.to_owned(), queue_id(name), offset.parse().unwrap()))
        .collect()
}

/// Clean stores whose queues hold exactly what the log says.
fn rebuildable() -> Vec<String> {
    // Damaged on purpose, or with entries of other kinds (batch queues, SQL extension).
    let others = [
        "batchcq",
        "cq-lag",
        "crc-",
        "empty-last",
        "first-file-gone",
        "lost-tail",
        "no-cq",
        "one-queue",
        "sql-ext",
    ];
    let clean = |name: &String| name.contains("-clean-");
    let mut names = names();
    names.retain(|name| clean(name) && !others.iter().any(|other| name.starts_with(other)));
    assert!(names.len() >= 15, "{names:?}");
    names
}

fn rebuild(golden: &Golden, table: &QueueTable, index: &Index) {
    let delays = delays(golden);
    for (at, bytes, problem) in golden.records().0 {
        assert_eq!(problem, None);
        let record = Record::decode(&bytes).unwrap();
        let entry = ConsumeEntry {
            physical_offset: at,
            size: record.size(),
            tags_code: tags_code(&record, &delays),
        };
        if record.is_queued() {
            let queue = table.get_or_create(record.topic(), record.queue_id());
            queue.append(record.queue_offset(), entry).unwrap();
            for (name, queue_id, offset) in light_queues(&record) {
                table
                    .get_or_create(&name, queue_id)
                    .append(offset, entry)
                    .unwrap();
            }
        }
        index.put(&record).unwrap();
    }
    for queue in table.all() {
        queue.flush().unwrap();
    }
    index.flush().unwrap();
}

#[test]
fn queues_rebuilt_from_the_log_are_the_recorded_bytes() {
    for name in rebuildable() {
        let golden = Golden::open(&name);
        let fresh = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(5);
        let queues = fresh.path().join("consumequeue");
        let table = QueueTable::new(&queues, golden.queue_file_size(), budget.clone());
        let index = Index::open(fresh.path().join("index"), golden.shape(), budget).unwrap();
        rebuild(&golden, &table, &index);

        let recorded = golden.layout().consume_queues();
        let size = golden.queue_file_size();
        for (topic, queue_id) in list_queues(&recorded).unwrap() {
            let files = |root: &Path| {
                let directory = queue_directory(root, &topic, queue_id).unwrap();
                let listed = list_fixed_files(&directory, size, "").unwrap().files;
                let read = |file: &saturnmq_storage::layout::FixedFile| {
                    (file.base, fs::read(&file.path).unwrap())
                };
                listed.iter().map(read).collect::<Vec<_>>()
            };
            assert_eq!(
                files(&queues),
                files(&recorded),
                "{name} {topic}/{queue_id}"
            );
        }
        assert_eq!(
            list_queues(&queues).unwrap(),
            list_queues(&recorded).unwrap(),
            "{name}"
        );

        let files = |root: &Path| {
            let mut paths: Vec<_> = fs::read_dir(root)
                .map(|list| list.map(|entry| entry.unwrap().path()).collect())
                .unwrap_or_default();
            paths.sort();
            paths
                .iter()
                .map(|path| fs::read(path).unwrap())
                .collect::<Vec<_>>()
        };
        let recorded = files(&golden.layout().index());
        assert!(
            files(&fresh.path().join("index")) == recorded,
            "{name}: index"
        );
    }
}

#[test]
fn the_index_finds_what_apache_finds() {
    for name in names() {
        let golden = Golden::open(&name);
        let writer = golden.manifest["writer"].as_str().unwrap();
        let expected = &golden.manifest["expected"][writer]["keys"];
        let clean = golden.manifest["abort"] == Value::Bool(false);
        // Without its index, or cut with its log, a store finds these only once recovered.
        let recovers = ["no-cq", "lost-tail", "crc-last"]
            .iter()
            .any(|kind| name.starts_with(kind));
        let (Some(expected), true, false) = (expected.as_array(), clean, recovers) else {
            continue;
        };
        let directory = golden.layout().index();
        let index = Index::open(directory, golden.shape(), MapBudget::new(5)).unwrap();
        for probe in expected {
            let (topic, key) = (probe[0].as_str().unwrap(), probe[1].as_str().unwrap());
            let hits = index.query(topic, key.as_bytes(), 64, 0, i64::MAX).unwrap();
            let mut offsets = hits.offsets;
            offsets.sort_unstable();
            let found = serde_json::json!([topic, key, offsets]);
            assert_eq!(found, *probe, "{name}");
        }
    }
}

#[test]
fn readable_ranges_are_those_apache_reports() {
    for name in names() {
        let golden = Golden::open(&name);
        let expected = &golden.manifest["expected"]["5.3.3"];
        // Damaged or lagging stores have these ranges only once recovered; what 4.9 cannot
        // read of batch queues is no matter here.
        let sound = name.contains("-clean-")
            && ![
                "cq-lag",
                "crc-",
                "lost-tail",
                "no-cq",
                "one-queue",
                "batchcq",
            ]
            .iter()
            .any(|kind| name.starts_with(kind));
        let (Some(expected), true) = (expected["queues"].as_object(), sound) else {
            continue;
        };
        let table = golden.table();
        let log = list_fixed_files(golden.layout().commit_log(), golden.log_file_size(), "");
        let log_min = log.unwrap().files.first().map_or(0, |file| file.base);
        for (queue_name, range) in expected {
            let (topic, queue_id) = queue_name.rsplit_once('/').unwrap();
            let Some(queue) = table.get(topic, queue_id.parse().unwrap()) else {
                assert_eq!(range[1], 0, "{name} {queue_name}");
                continue;
            };
            queue.correct_min(log_min).unwrap();
            let found = serde_json::json!([queue.min_offset(), queue.max_offset()]);
            assert_eq!(found, *range, "{name} {queue_name}");
        }
    }
}
