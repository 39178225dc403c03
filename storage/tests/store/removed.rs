//! A store, and a topic, that is taken away from under a running broker.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::SystemTime;

use saturnmq_storage::append_queue::{LightQueues, PushError};
use saturnmq_storage::format::batch::{BatchItem, push_item};
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::store::StoreState;

use crate::support::{Sender, open, ranges, small_config, wait_dispatched};

/// What is done to a store that lies in the directory `store` of `dir`, and a part of the reason.
type Case = (&'static str, fn(&Path), &'static str);

const CASES: [Case; 6] = [
    (
        "store removed",
        |dir| std::fs::remove_dir_all(dir.join("store")).expect("remove"),
        "No such file",
    ),
    (
        "store renamed",
        |dir| std::fs::rename(dir.join("store"), dir.join("aside")).expect("rename"),
        "No such file",
    ),
    (
        "store replaced",
        |dir| {
            std::fs::rename(dir.join("store"), dir.join("aside")).expect("rename");
            std::fs::create_dir_all(dir.join("store/commitlog")).expect("directory");
        },
        "another directory",
    ),
    (
        "log removed",
        |dir| std::fs::remove_dir_all(dir.join("store/commitlog")).expect("remove"),
        "commitlog was removed",
    ),
    (
        "log file removed",
        |dir| std::fs::remove_file(dir.join("store/commitlog/00000000000000000000")).expect("rm"),
        "00000000000000000000 was removed or cut",
    ),
    (
        "log file cut",
        |dir| {
            let path = dir.join("store/commitlog/00000000000000000000");
            let file = OpenOptions::new().write(true).open(path).expect("open");
            file.set_len(0).expect("cut");
        },
        "has 0 bytes",
    ),
];

#[test]
fn a_store_taken_away_is_noticed_and_its_state_names_the_reason() {
    for (what, take_away, reason) in CASES {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut opened = open(&small_config(&dir.path().join("store"))).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        let queue = opened.store.queue_or_create("T", 0);
        let round = || opened.store.retention_round(SystemTime::now(), false);
        round().expect("a round over an empty log");
        assert_eq!(opened.store.state(), StoreState::Writable, "{what}");
        let end = sender.send(&queue, b"body", b"").end;
        wait_dispatched(&opened.store, end);
        round().expect("round");
        assert_eq!(opened.store.state(), StoreState::Writable, "{what}");
        take_away(dir.path());
        // Whatever else the round comes to: there may be nothing left to work on.
        let _ = round();
        match opened.store.state() {
            StoreState::ReadOnly(why) => assert!(why.contains(reason), "{what}: {why}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn a_topic_of_a_name_that_is_being_removed_takes_nothing_that_a_rebuild_would_lose() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let (store, mut sender) = (opened.store, Sender::new(opened.ports.remove(0)));
    for number in 0..20 {
        let queue = store.queue_or_create("Again", 0);
        sender.send(&queue, format!("old {number}").as_bytes(), b"");
    }
    let removal = store.begin_removal("Again").expect("there");
    let queue = store.queue_or_create("Again", 0);
    let host = ([127, 0, 0, 1], 10911).into();
    let mut body = Vec::new();
    let item = BatchItem {
        flag: 0,
        body: b"new",
        properties: b"",
    };
    push_item(&mut body, &item);
    let parts = MessageParts {
        topic: "Again",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: &[],
    };
    let port = &mut sender.port;
    let single = port.push(1, &queue, &parts, LightQueues::NONE);
    let batch = port.push_batch(2, &queue, &parts, &mut Vec::new());
    assert_eq!(
        (single, batch),
        (Err(PushError::Full), Err(PushError::Full))
    );
    store.finish_removal("Again", removal).expect("noted");
    let mut end = 0;
    for number in 0..3 {
        let sent = sender.send(&queue, format!("new {number}").as_bytes(), b"");
        assert_eq!(sent.queue_offset, number);
        end = sent.end;
    }
    wait_dispatched(&store, end);
    drop((store, sender));
    std::fs::remove_dir_all(dir.path().join("consumequeue")).expect("remove");
    std::fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
    let opened = open(&config).expect("open");
    assert_eq!(ranges(&opened.store)["Again/0"], (0, 3));
    opened.store.close().expect("close");
}
