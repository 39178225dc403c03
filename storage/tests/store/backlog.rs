//! Consumers that work through a backlog: what one of them has read from disk serves the others.

use std::os::unix::fs::FileExt;

use saturnmq_storage::config::PullLimits;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::reader::{PullOutcome, PullRequest, PullStatus, StoreReader};
use saturnmq_storage::store::Opened;

use crate::support::{Sender, open, small_config, wait_dispatched};

const QUEUES: i32 = 4;
const EACH: i64 = 350;
const BODY: usize = 4000;

/// What a drain came to.
#[derive(Debug, Default)]
struct Drained {
    messages: i64,
    pulls: u32,
    /// Pulls that had to be handed over to the thread that may wait for the disk.
    cold: u32,
}

/// Reads all queues in turn, as a network core and the services thread do together.
fn drain(opened: &Opened) -> Drained {
    let mut core = opened.store.reader().expect("reader");
    let mut services = opened.store.reader().expect("reader");
    let limits = PullLimits::default();
    let (mut drained, mut out) = (Drained::default(), Vec::new());
    let mut next = [0; QUEUES as usize];
    while next.iter().any(|at| *at < EACH) {
        for (id, at) in next.iter_mut().enumerate().filter(|(_, at)| **at < EACH) {
            let queue = opened.store.queue("Backlog", id as i32).expect("queue");
            let request = PullRequest {
                queue: &queue,
                offset: *at,
                max_count: 32,
                filter: &TagFilter::All,
                limits: &limits,
            };
            out.clear();
            let pulled = match core.pull(&request, &mut out).expect("pull") {
                PullOutcome::Ready(pulled) => pulled,
                PullOutcome::Cold => {
                    drained.cold += 1;
                    cold(&mut services, &request, &mut out)
                }
            };
            assert_eq!(pulled.status, PullStatus::Found);
            let first = Record::decode(&out).expect("record");
            assert!((*at..pulled.next_begin).contains(&first.queue_offset()));
            drained.pulls += 1;
            drained.messages += i64::from(pulled.count);
            *at = pulled.next_begin;
        }
    }
    drained
}

fn cold(
    services: &mut StoreReader,
    request: &PullRequest<'_>,
    out: &mut Vec<u8>,
) -> saturnmq_storage::reader::Pulled {
    let pulled = services.pull_cold(request, out).expect("pull");
    while services.read_on().expect("read") {}
    pulled
}

#[test]
fn a_backlog_is_read_in_large_pieces_and_most_pulls_are_answered_from_them() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.commit_log_file_size = 4 << 20;
    config.consume_queue_file_size = 20_000;
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let mut places = Vec::new();
    for number in 0..EACH * i64::from(QUEUES) {
        let id = (number % i64::from(QUEUES)) as i32;
        let queue = opened.store.queue_or_create("Backlog", id);
        places.push(sender.send(&queue, &[b'b'; BODY], b"").end);
    }
    wait_dispatched(&opened.store, *places.last().expect("a message"));
    let all = drain(&opened);
    assert_eq!(all.messages, EACH * i64::from(QUEUES));
    assert!(all.cold * 2 < all.pulls, "{all:?}");
    opened.store.close().expect("close");
    drop(opened);

    // A body that changed on the disk is not served from there either.
    let path = dir.path().join("commitlog/00000000000000000000");
    let file = std::fs::File::options()
        .write(true)
        .open(path)
        .expect("open");
    file.write_all_at(b"x", places[200] - 1000).expect("damage");
    file.sync_all().expect("sync");
    let opened = open(&config).expect("open again");
    let rest = drain(&opened);
    assert_eq!(rest.messages, all.messages - 1, "{rest:?}");
    assert!(opened.store.damaged_reads() >= 1);
    opened.store.close().expect("close");
}
