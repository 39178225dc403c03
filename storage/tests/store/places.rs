//! Stores whose directories are configured into each other.

use saturnmq_storage::error::OpenError;

use crate::support::{Sender, open, ranges, small_config, wait_dispatched};

#[test]
fn a_log_is_one_stores_at_a_time_however_it_is_named() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let first = small_config(&dir.path().join("first"));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(first.root.join("commitlog"), &link).expect("link");
    let logs = [first.root.join("commitlog"), link];
    for log in logs {
        let mut second = small_config(&dir.path().join("second"));
        second.commit_log_dir = Some(log);
        // Whichever comes first has it.
        for (holder, other) in [(&first, &second), (&second, &first)] {
            let mut opened = open(holder).expect("open");
            let mut sender = Sender::new(opened.ports.remove(0));
            let queue = opened.store.queue_or_create("T", 0);
            let end = sender.send(&queue, b"kept", b"").end;
            wait_dispatched(&opened.store, end);
            let next = ranges(&opened.store)["T/0"];
            let refused = open(other).map(drop);
            let Err(OpenError::LogLocked { directory, .. }) = &refused else {
                panic!("{refused:?}");
            };
            assert!(directory.ends_with("commitlog") || directory.ends_with("link"));
            let text = refused.map_err(|error| error.to_string());
            assert!(text.is_err_and(|text| text.contains("storePathCommitLog")));
            assert_eq!(ranges(&opened.store)["T/0"], next);
            opened.store.close().expect("close");
            drop((opened.store, sender));
            std::fs::remove_dir_all(dir.path().join("second")).ok();
        }
    }
}

#[test]
fn a_log_among_other_files_of_its_store_is_refused_before_anything_is_made() {
    for place in [
        "",
        "timerlog",
        "config",
        "index",
        "consumequeue",
        "index/log",
    ] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = small_config(&dir.path().join("store"));
        config.commit_log_dir = Some(config.root.join(place));
        let refused = open(&config).map(drop).expect_err(place).to_string();
        assert!(refused.contains("storePathCommitLog="), "{refused}");
        assert!(refused.contains("storePathRootDir="), "{refused}");
        assert!(!config.root.exists(), "{place}");
    }
}
