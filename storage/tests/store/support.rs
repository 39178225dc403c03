//! Unpacks recorded stores, opens stores and reads whole queues.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use saturnmq_storage::append_queue::{AppendPort, Appended, LightQueues};
use saturnmq_storage::config::{PullLimits, StoreConfig};
use saturnmq_storage::dispatch::Waker;
use saturnmq_storage::error::OpenError;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::{PullRequest, PullStatus, StoreReader};
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
            .pull_cold(
                &PullRequest {
                    queue,
                    offset,
                    max_count: 32,
                    filter: &TagFilter::All,
                    limits: &limits,
                },
                &mut out,
            )
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

/// Appends messages and waits for their acknowledgement.
pub struct Sender {
    pub port: AppendPort,
    token: u64,
}

impl Sender {
    pub fn new(port: AppendPort) -> Sender {
        Sender { port, token: 0 }
    }

    /// Pushes one message; tries again while the port is full.
    pub fn push(&mut self, queue: &Queue, body: &[u8], properties: &[u8]) {
        self.push_with_flags(queue, body, properties, 0);
    }

    /// As `push`, with system flags.
    pub fn push_with_flags(
        &mut self,
        queue: &Queue,
        body: &[u8],
        properties: &[u8],
        sys_flag: i32,
    ) {
        let host = ([127, 0, 0, 1], 10911).into();
        let parts = MessageParts {
            topic: &queue.topic,
            queue_id: queue.queue_id,
            flag: 0,
            sys_flag,
            born_timestamp: 1_700_000_000_000,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: &[properties],
        };
        self.token += 1;
        let pushed = self.port.push(self.token, queue, &parts, LightQueues::NONE);
        pushed.expect("push");
        self.port.submit();
    }

    /// The next acknowledgement.
    pub fn wait(&mut self) -> Appended {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(result) = self.port.pop() {
                return result.outcome.expect("appended");
            }
            assert!(Instant::now() < deadline, "no answer in 20 s");
            std::thread::yield_now();
        }
    }

    /// Appends one message and waits.
    pub fn send(&mut self, queue: &Queue, body: &[u8], properties: &[u8]) -> Appended {
        self.push(queue, body, properties);
        self.wait()
    }
}

/// Waits until the log is dispatched up to `end`.
pub fn wait_dispatched(store: &Store, end: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.watermarks().dispatched() < end {
        assert!(Instant::now() < deadline, "not dispatched in 20 s");
        std::thread::yield_now();
    }
}

/// Appends messages `from..to` to four queues of `topic`, in turn: body `topic-number` and some
/// padding, key `key-number`, tag `t<number % 3>`.
pub fn fill(store: &Store, sender: &mut Sender, topic: &str, numbers: std::ops::Range<u32>) {
    let mut end = 0;
    let mut pushed = 0;
    for number in numbers {
        let queue = store.queue_or_create(topic, (number % 4) as i32);
        let body = body_of(topic, number);
        let properties = format!(
            "UNIQ_KEY\u{1}u-{number}\u{2}KEYS\u{1}key-{number}\u{2}TAGS\u{1}t{}",
            number % 3
        );
        sender.push(&queue, body.as_bytes(), properties.as_bytes());
        pushed += 1;
        // Bursts of different sizes, so that writes and records meet in many ways.
        if pushed > number % 17 {
            for _ in 0..std::mem::take(&mut pushed) {
                end = sender.wait().end;
            }
        }
    }
    for _ in 0..pushed {
        end = sender.wait().end;
    }
    wait_dispatched(store, end);
}

/// The body that `fill` gives a message.
pub fn body_of(topic: &str, number: u32) -> String {
    let padding = "x".repeat((number as usize * 37) % 900);
    format!("{topic}-{number}-{padding}")
}

/// Checks that the four queues of `topic` hold exactly the messages `0..count` of `fill`, each
/// where its record says.
pub fn check_filled(store: &Store, topic: &str, count: u32) {
    let mut reader = store.reader().expect("reader");
    for queue_id in 0..4.min(count) {
        let queue = store.queue(topic, queue_id as i32).expect("queue");
        let (messages, damaged) = read_all(&mut reader, &queue);
        assert_eq!(damaged, 0);
        let numbers: Vec<u32> = (queue_id..count).step_by(4).collect();
        assert_eq!(messages.len(), numbers.len(), "{topic}/{queue_id}");
        for (place, (message, number)) in messages.iter().zip(numbers).enumerate() {
            assert_eq!(message.body, body_of(topic, number).into_bytes());
            assert_eq!(message.queue_offset, place as i64);
        }
    }
}

/// Checks that message `number` of `fill` is found by its key, exactly where it stands.
pub fn check_key(store: &Store, topic: &str, number: u32) {
    let mut reader = store.reader().expect("reader");
    for key in [format!("key-{number}"), format!("u-{number}")] {
        let hits = reader
            .query_index(topic, &key, 64, 0, i64::MAX)
            .expect("query");
        let mut bytes = Vec::new();
        let found = hits.offsets.iter().filter(|offset| {
            bytes.clear();
            reader.record(**offset, &mut bytes).expect("record")
                && Record::decode(&bytes).expect("decode").body()
                    == body_of(topic, number).as_bytes()
        });
        assert_eq!(found.count(), 1, "{topic} {key}: {:?}", hits.offsets);
    }
}

/// Copies a store's directory, as it is now; what a running store removes meanwhile is left out.
pub fn copy_store(from: &Path, to: &Path) {
    let there = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        result => result.expect("copy"),
    };
    std::fs::create_dir_all(to).expect("directory");
    for entry in std::fs::read_dir(from).expect("directory") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        there(copy_entry(&entry, &target));
    }
}

fn copy_entry(entry: &std::fs::DirEntry, target: &Path) -> std::io::Result<()> {
    if entry.file_type()?.is_dir() {
        // It may be gone since it was listed.
        std::fs::metadata(entry.path())?;
        copy_store(&entry.path(), target);
    } else {
        std::fs::copy(entry.path(), target)?;
    }
    Ok(())
}
