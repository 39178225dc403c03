//! What does the dispatcher do per record: its ConsumeQueue entry and its index items?

use std::path::Path;

use divan::Bencher;
use divan::counter::ItemsCount;
use saturnmq_storage::consume_queue::ConsumeQueue;
use saturnmq_storage::format::consume_entry::ConsumeEntry;
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::format::message::{MessageParts, assign, encode_into, encoded_len};
use saturnmq_storage::format::record::Record;
use saturnmq_storage::index_file::Index;
use saturnmq_storage::mapped_file::MapBudget;

/// Apache's own sizes.
const QUEUE_FILE: u64 = 6_000_000;
const SHAPE: IndexShape = IndexShape {
    slots: 5_000_000,
    items: 20_000_000,
};

fn main() {
    divan::main();
}

fn record(keys: &[u8]) -> Vec<u8> {
    let host = ([127, 0, 0, 1], 10911).into();
    let parts = MessageParts {
        topic: "orders",
        queue_id: 3,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &[b'x'; 1024],
        properties: &[keys],
    };
    let mut bytes = vec![0; encoded_len(&parts).expect("a size")];
    encode_into(&parts, &mut bytes).expect("room");
    bytes
}

/// Records one after the other, as in a log.
struct Log {
    bytes: Vec<u8>,
    next: i64,
}

impl Log {
    fn new(keys: &[u8]) -> Self {
        Self {
            bytes: record(keys),
            next: 0,
        }
    }

    fn next(&mut self) -> Record<'_> {
        let at = self.next as u64 * self.bytes.len() as u64;
        assign(&mut self.bytes, self.next, at, 1_700_000_000_000);
        self.next += 1;
        Record::decode(&self.bytes).expect("a record")
    }
}

fn queue(dir: &Path) -> ConsumeQueue {
    ConsumeQueue::empty(dir, "orders", 3, QUEUE_FILE, &MapBudget::new(100))
}

#[divan::bench]
fn consume_queue_entry(bencher: Bencher<'_, '_>) {
    let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
    let queue = queue(dir.path());
    let mut log = Log::new(b"");
    bencher.counter(ItemsCount::new(1_u64)).bench_local(|| {
        let record = log.next();
        let entry = ConsumeEntry {
            physical_offset: record.physical_offset() as u64,
            size: record.size(),
            tags_code: record.tags_code(),
        };
        queue
            .append(record.queue_offset(), entry)
            .expect("an entry")
    });
}

/// A unique key, and so many keys besides.
#[divan::bench(args = [0, 1, 3])]
fn index_items(bencher: Bencher<'_, '_>, keys: usize) {
    let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
    let index = Index::open(dir.path(), SHAPE, MapBudget::new(100)).expect("an index");
    let keys = ["a", "b", "c"][..keys].join(" ");
    let unique = "UNIQ_KEY\u{1}7F00000177C94E0E2F2A9575FF750000";
    let properties = format!("{unique}\u{2}KEYS\u{1}{keys}\u{2}");
    let mut log = Log::new(properties.as_bytes());
    bencher
        .counter(ItemsCount::new(1_u64))
        .bench_local(|| index.put(&log.next()).expect("an item"));
}
