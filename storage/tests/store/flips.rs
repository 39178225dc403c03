//! One bit of every used byte of a small store changed, one after the other: no start and no read
//! dies of it, no wrong body is served, and every message but the one that was hit is. And no look
//! at it dies, or has nothing to say where something is lost.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use saturnmq_storage::config::{PullLimits, StoreConfig};
use saturnmq_storage::error::ReadError;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::inspect::{StoreView, verify};
use saturnmq_storage::layout::Layout;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::{PullRequest, StoreReader};
use saturnmq_storage::store::Store;

use crate::support::{Sender, open, small_config, wait_dispatched};

/// Messages in each of two queues.
const EACH: i64 = 3;
/// A topic that was removed while its message stands in the log.
const REMOVED: &str = "Removed";
/// Stores looked at at a time.
const WORKERS: usize = 8;

fn config(root: &Path) -> StoreConfig {
    let mut config = small_config(root);
    config.commit_log_file_size = 16_384;
    config.consume_queue_file_size = 200;
    config.index_slots = 8;
    config.index_items = 40;
    config.max_message_size = 2048;
    config.write_extensions = true;
    config.extension_file_size = 4096;
    config
}

/// How much is wrong, as `inspect --verify` sees it.
fn damage_seen(config: &StoreConfig, what: &str) -> u64 {
    let shape = IndexShape {
        slots: config.index_slots,
        items: config.index_items,
    };
    let (log, queue) = (config.commit_log_file_size, config.consume_queue_file_size);
    let view = StoreView::open(
        Layout::new(&config.root),
        Some(log),
        Some(queue),
        Some(shape),
    );
    let view = view.unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = verify(&view, &mut |_| {});
    found
        .unwrap_or_else(|error| panic!("{what}: {error}"))
        .damage
}

fn body(queue_id: i32, number: i64) -> Vec<u8> {
    format!("body {number} of queue {queue_id} ")
        .repeat(2)
        .into_bytes()
}

/// A closed store as a list of files, and where its records stand.
struct Original {
    files: BTreeMap<PathBuf, Vec<u8>>,
    records: Vec<(Range<u64>, (i32, i64))>,
}

impl Original {
    fn make() -> Original {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut opened = open(&config(dir.path())).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        let removed = opened.store.queue_or_create(REMOVED, 0);
        let mut end = sender.send(&removed, b"removed", b"").end;
        wait_dispatched(&opened.store, end);
        assert!(
            !opened
                .store
                .remove_topic(REMOVED)
                .expect("remove")
                .is_empty()
        );
        let mut records = Vec::new();
        for number in 0..2 * EACH {
            let (queue_id, number) = ((number % 2) as i32, number / 2);
            let queue = opened.store.queue_or_create("Bits", queue_id);
            let properties = format!("KEYS\u{1}k{queue_id}-{number}\u{2}TAGS\u{1}t");
            let appended = sender.send(&queue, &body(queue_id, number), properties.as_bytes());
            records.push((end..appended.end, (queue_id, number)));
            end = appended.end;
        }
        wait_dispatched(&opened.store, end);
        opened.store.close().expect("close");
        let mut files = BTreeMap::new();
        collect(dir.path(), dir.path(), &mut files);
        Original { files, records }
    }

    /// Writes the store below `root`, whatever is there.
    fn restore(&self, root: &Path) {
        for part in ["consumequeue", "consumequeue_ext", "index", "commitlog"] {
            // Nothing is there the first time.
            let _ = std::fs::remove_dir_all(root.join(part));
        }
        let _ = std::fs::remove_file(root.join("abort"));
        for (name, bytes) in &self.files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            std::fs::write(path, bytes).expect("write");
        }
    }

    /// Changes each used byte of the files that `wanted` names, and looks what becomes of it.
    /// Opening and closing wait more than they work, so many are done at a time.
    fn flip_each(&self, wanted: impl Fn(&str) -> bool, unclean: bool) {
        let mut places = Vec::new();
        for (name, bytes) in &self.files {
            if wanted(name.to_str().expect("text")) {
                let used = bytes.iter().rposition(|byte| *byte != 0);
                places.extend((0..used.map_or(0, |last| last + 1)).map(|at| (name, at)));
            }
        }
        assert!(places.len() > 100, "{} flips", places.len());
        std::thread::scope(|scope| {
            for share in places.chunks(places.len().div_ceil(WORKERS)) {
                scope.spawn(move || {
                    let dir = tempfile::tempdir().expect("temporary directory");
                    for (name, at) in share {
                        self.flip(dir.path(), name, *at, unclean);
                    }
                });
            }
        });
    }

    fn flip(&self, root: &Path, name: &Path, at: usize, unclean: bool) {
        self.restore(root);
        if unclean {
            std::fs::write(root.join("abort"), "").expect("write");
        }
        let mut changed = self.files[name].clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(root.join(name), changed).expect("write");
        let in_log = name.starts_with("commitlog").then_some(at as u64);
        let what = format!("byte {at} of {}", name.display());
        let seen = damage_seen(&config(root), &what);
        let lost = self.check(root, in_log, &what);
        let name = name.to_str().expect("text");
        let told = ["consumequeue/", "consumequeue_ext/", "saturnmq.resume"];
        let must = lost || told.iter().any(|part| name.starts_with(part));
        // The resume point before is read by nobody.
        let must = must && !unclean && !name.ends_with(".tmp");
        assert!(seen > 0 || !must, "{what}: inspect sees nothing");
    }

    /// Reads everything; whether the message that was hit is lost.
    fn check(&self, root: &Path, in_log: Option<u64>, what: &str) -> bool {
        let hit = self
            .records
            .iter()
            .position(|(range, _)| in_log.is_some_and(|at| range.contains(&at)));
        let opened = open(&config(root)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut reader = opened.store.reader().expect("reader");
        let mut lost = false;
        for (index, (range, (queue_id, number))) in self.records.iter().enumerate() {
            let queue = opened.store.queue("Bits", *queue_id);
            let found = queue.and_then(|queue| read_at(&mut reader, &queue, *number, what));
            match found {
                Some(found) => assert_eq!(found, body(*queue_id, *number), "{what}"),
                None => {
                    assert_eq!(hit, Some(index), "{what}: {queue_id}/{number} is lost");
                    lost = true;
                }
            }
            let mut out = Vec::new();
            match reader.record(range.start, &mut out) {
                Ok(true) => {
                    let record = Record::decode(&out).expect("record");
                    assert_eq!(record.body(), body(*queue_id, *number), "{what}");
                }
                Ok(false) | Err(ReadError::Damaged { .. }) => {
                    assert_eq!(
                        hit,
                        Some(index),
                        "{what}: {queue_id}/{number} cannot be viewed"
                    );
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        self.check_keys(&opened.store, &mut reader, what);
        let removed = opened.store.queue(REMOVED, 0);
        let back = removed.is_some_and(|queue| queue.max_offset() > queue.min_offset());
        assert!(!back, "{what}: a removed topic came back");
        lost
    }

    /// What is found by a key has the key and its own body.
    fn check_keys(&self, store: &Store, reader: &mut StoreReader, what: &str) {
        assert!(store.state().is_writable(), "{what}");
        for (_, (queue_id, number)) in &self.records {
            let key = format!("k{queue_id}-{number}");
            let hits = reader
                .query_index("Bits", &key, 10, 0, i64::MAX)
                .expect("query");
            for place in hits.offsets {
                let mut out = Vec::new();
                if !matches!(reader.record(place, &mut out), Ok(true)) {
                    continue;
                }
                let record = Record::decode(&out).expect("record");
                if record
                    .properties()
                    .index_keys()
                    .any(|found| found == key.as_bytes())
                {
                    record.check_body().expect("body");
                }
            }
        }
    }
}

pub fn collect(root: &Path, directory: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).expect("list") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("below").to_path_buf();
            files.insert(name, std::fs::read(path).expect("read"));
        }
    }
}

/// The body of the message at a queue offset, read as a client does that comes again.
pub fn read_at(reader: &mut StoreReader, queue: &Queue, at: i64, what: &str) -> Option<Vec<u8>> {
    let limits = PullLimits::default();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut out = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "{what}: no end at {at}");
        out.clear();
        match reader.pull_cold(
            &PullRequest {
                queue,
                offset: at,
                max_count: 1,
                filter: &TagFilter::All,
                limits: &limits,
            },
            &mut out,
        ) {
            Ok(_) => break,
            Err(ReadError::Mending { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let record = Record::decode(&out).ok()?;
    (record.queue_offset() == at).then(|| record.body().to_vec())
}

#[test]
fn a_changed_bit_in_the_log_costs_the_message_it_is_in() {
    Original::make().flip_each(|name| name.starts_with("commitlog"), false);
}

#[test]
fn a_changed_bit_beside_the_log_costs_no_message() {
    let wanted = |name: &str| !name.starts_with("commitlog") && name != "lock";
    Original::make().flip_each(wanted, false);
}

#[test]
fn a_changed_bit_beside_the_log_costs_no_message_after_a_crash_either() {
    let wanted = |name: &str| name.starts_with("saturnmq") || name.starts_with("consumequeue");
    Original::make().flip_each(wanted, true);
}
