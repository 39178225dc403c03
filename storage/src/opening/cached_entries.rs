//! Queue and index entries that no resume point vouches for: those of a former process that only
//! the page cache holds.

use std::io;
use std::path::Path;

use crate::error::FileError;
use crate::layout::Layout;
use crate::medium;

/// Has the opening look at entries that are on the disk. What a killed process stored may be in
/// memory alone, and after a failed sync it stays there: the first resume point of this process,
/// which syncs only what this process stores, would vouch for it.
pub(super) fn settle(layout: &Layout) -> Result<(), FileError> {
    for directory in [layout.consume_queues(), layout.index()] {
        medium::sync_filesystem(&directory).map_err(FileError::at("sync", &directory))?;
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
