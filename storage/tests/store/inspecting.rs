//! Looking at the store of a running broker, and at one that it left.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use saturnmq_storage::config::StoreConfig;
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::inspect::{StoreView, Verified, verify};
use saturnmq_storage::layout::Layout;

use crate::support::{Sender, fill, open, small_config};

fn view(config: &StoreConfig) -> StoreView {
    let index = IndexShape {
        slots: config.index_slots,
        items: config.index_items,
    };
    StoreView::open(Layout::new(&config.root), None, None, Some(index)).expect("a store")
}

fn look(config: &StoreConfig) -> Verified {
    verify(&view(config), &mut |_| {}).expect("verify")
}

/// Inodes, sizes and times of everything below a directory.
fn state(directory: &Path) -> Vec<(u64, u64, i64, i64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        let details = path.symlink_metadata().expect("metadata");
        found.push((
            details.ino(),
            details.len(),
            details.mtime(),
            details.mtime_nsec(),
        ));
        if details.is_dir() {
            found.extend(state(&path));
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn a_running_store_is_sound_at_every_look_and_grows_between_them() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Before", 0..100);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let store = &opened.store;
        let done = &done;
        scope.spawn(move || {
            fill(store, &mut sender, "Live", 0..6000);
            done.store(true, Ordering::SeqCst);
        });
        let (mut looks, mut records) = (0, 0);
        while !done.load(Ordering::SeqCst) || looks < 2 {
            let found = look(&config);
            assert_eq!(found.damage, 0, "{found:#?}");
            assert!(found.records >= records);
            (looks, records) = (looks + 1, found.records);
        }
    });
    let live = view(&config);
    assert_eq!(live.held_by, Some(std::process::id() as i32));
    // The look took nothing: the lock is still held, and the store closes cleanly.
    assert!(open(&config).is_err());
    opened.store.close().expect("close");
    let before = state(dir.path());
    let found = look(&config);
    assert_eq!((found.damage, found.records), (0, 6100), "{found:#?}");
    assert_eq!(found.entries, 6100);
    assert_eq!(state(dir.path()), before, "a look changes nothing");
}
