//! What does it cost to look a key up in the index?

use divan::Bencher;
use divan::counter::ItemsCount;
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::format::message::{MessageParts, assign, encode_into, encoded_len};
use saturnmq_storage::format::record::Record;
use saturnmq_storage::index_file::Index;
use saturnmq_storage::mapped_file::MapBudget;

const SHAPE: IndexShape = IndexShape {
    slots: 5_000_000,
    items: 20_000_000,
};
const TIME: i64 = 1_700_000_000_000;

fn main() {
    divan::main();
}

/// An index of that many messages with keys of their own.
fn fill(index: &Index, messages: i64) {
    let host = ([127, 0, 0, 1], 10911).into();
    for number in 0..messages {
        let properties = format!("KEYS\u{1}order-{number}\u{2}");
        let parts = MessageParts {
            topic: "orders",
            queue_id: 3,
            flag: 0,
            sys_flag: 0,
            born_timestamp: TIME,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"",
            properties: &[properties.as_bytes()],
        };
        let mut bytes = vec![0; encoded_len(&parts).expect("a size")];
        encode_into(&parts, &mut bytes).expect("room");
        assign(&mut bytes, number, number as u64 * 1200, TIME);
        let record = Record::decode(&bytes).expect("a record");
        index.put(&record).expect("an item");
    }
}

#[divan::bench(args = [1_000, 300_000])]
fn query(bencher: Bencher<'_, '_>, messages: i64) {
    let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
    let index = Index::open(dir.path(), SHAPE, MapBudget::new(100)).expect("an index");
    fill(&index, messages);
    let mut number = 0;
    bencher.counter(ItemsCount::new(1_u64)).bench_local(|| {
        number = (number + 7919) % messages;
        let key = format!("order-{number}");
        let found = index
            .query("orders", key.as_bytes(), 32, 0, i64::MAX)
            .expect("a look");
        assert!(!found.offsets.is_empty());
    });
}
