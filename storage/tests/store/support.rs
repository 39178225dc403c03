//! Unpacks recorded stores, opens stores and reads whole queues.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use saturnmq_storage::config::{PullLimits, StoreConfig};
use saturnmq_storage::dispatch::Waker;
use saturnmq_storage::error::OpenError;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::{PullStatus, StoreReader};
use saturnmq_storage::store::{Opened, Store};
use serde_json::Value;
use tempfile::TempDir;

/// Wakes nobody: these tests poll.
pub struct Asleep;

impl Waker for Asleep {
    fn wake(&self, _core: usize) {}
}

/// A recorded store, unpacked into a directory of its own.
pub struct Golden {
    pub name: String,
    pub manifest: Value,
    pub config: StoreConfig,
    _dir: TempDir,
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/stores")
}

/// Names of all recorded stores.
pub fn names() -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(recorded()).expect("recorded stores") {
        let name = entry
            .expect("entry")
            .file_name()
            .into_string()
            .expect("name");
        if let Some(name) = name.strip_suffix(".tar.zst") {
            names.push(name.to_owned());
        }
    }
    names.sort();
    assert!(
        !names.is_empty(),
        "no recorded stores in {}",
        recorded().display()
    );
    names
}

/// Unpacks a recorded store.
pub fn unpack(name: &str) -> Golden {
    let dir = tempfile::tempdir().expect("temporary directory");
    let packed = File::open(recorded().join(format!("{name}.tar.zst"))).expect("store");
    let mut archive = tar::Archive::new(zstd::Decoder::new(packed).expect("zstd"));
    archive.set_preserve_mtime(true);
    archive.unpack(dir.path()).expect("unpack");
    let packed = File::open(recorded().join(format!("{name}.json.zst"))).expect("manifest");
    let text = zstd::decode_all(packed).expect("zstd");
    let manifest: Value = serde_json::from_slice(&text).expect("manifest");
    let config = config_of(&manifest, &dir.path().join("store"));
    Golden {
        name: name.to_owned(),
        manifest,
        config,
        _dir: dir,
    }
}

/// Settings of a small store without preparation of whole files.
pub fn small_config(root: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(root);
    config.commit_log_file_size = 262_144;
    config.consume_queue_file_size = 2000;
    config.index_slots = 100;
    config.index_items = 400;
    config.max_message_size = 65_536;
    config.tail_cache_bytes = 1 << 20;
    config.append_ring_bytes = 1 << 20;
    config.prepare_files = false;
    config
}

fn config_of(manifest: &Value, root: &Path) -> StoreConfig {
    let number = |key: &str| {
        manifest["conf"][key]
            .as_str()
            .and_then(|text| text.parse().ok())
    };
    let mut config = small_config(root);
    let set = |field: &mut u64, key| *field = number(key).unwrap_or(*field);
    set(&mut config.commit_log_file_size, "mappedFileSizeCommitLog");
    set(
        &mut config.consume_queue_file_size,
        "mappedFileSizeConsumeQueue",
    );
    if let (Some(slots), Some(items)) = (number("maxHashSlotNum"), number("maxIndexNum")) {
        config.index_slots = slots as u32;
        config.index_items = items as u32;
    }
    config
}

/// Opens a store with two ports.
pub fn open(config: &StoreConfig) -> Result<Opened, OpenError> {
    Store::open(config.clone(), 2, Arc::new(Asleep))
}

/// One message read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub queue_offset: i64,
    pub physical_offset: u64,
    pub size: u32,
    pub topic: String,
    pub body: Vec<u8>,
}

/// Everything a queue holds, and how many damaged records were stepped over.
pub fn read_all(reader: &mut StoreReader, queue: &Queue) -> (Vec<Read>, u32) {
    let limits = PullLimits::default();
    let (mut messages, mut damaged) = (Vec::new(), 0);
    let mut offset = queue.min_offset();
    let mut out = Vec::new();
    while offset < queue.max_offset() {
        out.clear();
        let pulled = reader
            .pull_cold(queue, offset, 32, &TagFilter::All, &limits, &mut out)
            .expect("pull");
        assert!(pulled.next_begin > offset, "a pull moves on: {pulled:?}");
        let mut rest = &out[..];
        let mut count = 0;
        while !rest.is_empty() {
            let record = Record::decode(rest).expect("record");
            record.check_body().expect("body");
            messages.push(Read {
                queue_offset: record.queue_offset(),
                physical_offset: record.physical_offset() as u64,
                size: record.size(),
                topic: record.topic().to_owned(),
                body: record.body().to_vec(),
            });
            rest = &rest[record.size() as usize..];
            count += 1;
        }
        assert_eq!(count, pulled.count);
        assert_eq!(count > 0, pulled.status == PullStatus::Found);
        damaged += pulled.damaged;
        offset = pulled.next_begin;
    }
    (messages, damaged)
}

/// First and next offset of every queue that ever held a message, by `topic/queue id`.
pub fn ranges(store: &Store) -> BTreeMap<String, (i64, i64)> {
    let mut ranges = BTreeMap::new();
    for queue in store.queues() {
        if queue.max_offset() > 0 {
            let name = format!("{}/{}", queue.topic, queue.queue_id);
            ranges.insert(name, (queue.min_offset(), queue.max_offset()));
        }
    }
    ranges
}
