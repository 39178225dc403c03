//! Queue and index entries that no resume point vouches for: those of a former process that only
//! the page cache holds.
//!
//! The first resume point of this process syncs what this process stored and would vouch for
//! theirs too.

use std::io;
use std::path::Path;

use crate::error::FileError;
use crate::layout::Layout;
use crate::medium;

/// Makes them durable. The filesystem's owner may be busy with much else: where there are no
/// entries, nothing is waited for.
pub(super) fn sync(layout: &Layout) -> Result<(), FileError> {
    for directory in [layout.consume_queues(), layout.index()] {
        if holds_files(&directory).map_err(FileError::at("read", &directory))? {
            medium::sync_filesystem(&directory).map_err(FileError::at("sync", &directory))?;
        }
    }
    Ok(())
}

fn holds_files(directory: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || holds_files(&entry.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// As [`sync`]; and what a failed sync left in memory alone is not seen. Before anything is mapped.
pub(super) fn settle(layout: &Layout) -> Result<(), FileError> {
    sync(layout)?;
    for directory in [layout.consume_queues(), layout.index()] {
        forget_below(&directory).map_err(FileError::at("read", &directory))?;
    }
    Ok(())
}

fn forget_below(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget_below(&entry.path())?;
        } else {
            medium::forget_cached(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::config::StoreConfig;
    use crate::medium::{Request, Witness, listen};
    use crate::store::Store;

    /// Syncs of single files and directories, and of the whole filesystem.
    #[derive(Default)]
    struct Syncs(usize, usize);

    impl Witness for Syncs {
        fn before(&mut self, request: Request<'_>) -> io::Result<()> {
            match request {
                Request::SyncFile(_) | Request::SyncDirectory(_) => self.0 += 1,
                Request::SyncAll => self.1 += 1,
                _ => {}
            }
            Ok(())
        }

        fn after(&mut self, _request: Request<'_>) {}
    }

    fn syncs_of_a_start(config: &StoreConfig) -> (usize, usize) {
        let syncs = Rc::new(RefCell::new(Syncs::default()));
        listen(Some(syncs.clone()));
        let opened = Store::recover(config).map(|_| ());
        listen(None);
        opened.unwrap();
        let seen = syncs.borrow();
        (seen.0, seen.1)
    }

    #[test]
    fn a_start_on_an_empty_store_does_not_wait_for_what_others_write() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(dir.path().join("store"));
        let (files, filesystems) = syncs_of_a_start(&config);
        assert_eq!(filesystems, 0);
        assert!(files <= 10, "{files} syncs, one after the other");
    }

    #[test]
    fn entries_that_no_resume_point_vouches_for_are_synced() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(dir.path());
        let queue = dir.path().join("consumequeue/Orders/0");
        std::fs::create_dir_all(&queue).unwrap();
        let file = std::fs::File::create(queue.join(format!("{:020}", 0))).unwrap();
        file.set_len(config.queue_file_size()).unwrap();
        assert_eq!(syncs_of_a_start(&config).1, 1);
    }
}
