//! How fast is the way from a message to SEND_OK without a socket, with so many in flight?

use std::sync::Arc;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use saturnmq_storage::append_queue::LightQueues;
use saturnmq_storage::config::StoreConfig;
use saturnmq_storage::dispatch::Waker;
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::store::Store;

const BODY: usize = 1024;
/// Messages of one measured piece.
const MESSAGES: usize = 2048;

struct Asleep;

impl Waker for Asleep {
    fn wake(&self, _core: usize) {}
}

fn main() {
    divan::main();
}

#[divan::bench(args = [1, 16, 256, 1024], sample_count = 20, sample_size = 1)]
fn append(bencher: Bencher<'_, '_>, in_flight: usize) {
    let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
    let config = StoreConfig::new(dir.path());
    let mut opened = Store::open(config, 1, Arc::new(Asleep)).expect("a store");
    let queue = opened.store.queue_or_create("orders", 3);
    let port = &mut opened.ports[0];
    let host = ([127, 0, 0, 1], 10911).into();
    let body = [b'x'; BODY];
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
        properties: &[b"WAIT\x01true\x02"],
    };
    bencher
        .counter(ItemsCount::new(MESSAGES))
        .counter(BytesCount::new(MESSAGES * BODY))
        .bench_local(|| {
            let (mut sent, mut done) = (0, 0);
            while done < MESSAGES {
                while sent < MESSAGES
                    && sent - done < in_flight
                    && port
                        .push(sent as u64, &queue, &parts, LightQueues::NONE)
                        .is_ok()
                {
                    sent += 1;
                }
                port.submit();
                while let Some(result) = port.pop() {
                    result.outcome.expect("SEND_OK");
                    done += 1;
                }
                std::thread::yield_now();
            }
        });
    opened.store.close().expect("an orderly end");
}
