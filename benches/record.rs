//! What does it cost to make a commit-log record of a message?

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use saturnmq_storage::format::message::{MessageParts, encode_into, encoded_len};

fn main() {
    divan::main();
}

#[divan::bench(args = [16, 128, 1024, 16_384])]
fn encode(bencher: Bencher<'_, '_>, size: usize) {
    let host = ([127, 0, 0, 1], 10911).into();
    let body = vec![b'x'; size];
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
        body: &body,
        properties: &[b"UNIQ_KEY\x017F00000177C94E0E2F2A9575FF750000\x02WAIT\x01true\x02"],
    };
    let mut place = vec![0; encoded_len(&parts).expect("a size")];
    bencher
        .counter(ItemsCount::new(1_u64))
        .counter(BytesCount::new(place.len()))
        .bench_local(|| encode_into(black_box(&parts), &mut place).expect("room"));
}
