//! A store that is taken away from under a running broker.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::SystemTime;

use saturnmq_storage::store::StoreState;

use crate::support::{Sender, open, small_config, wait_dispatched};

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
