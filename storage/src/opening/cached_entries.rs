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

/// Makes them durable.
pub(super) fn sync(layout: &Layout) -> Result<(), FileError> {
    for directory in [layout.consume_queues(), layout.index()] {
        medium::sync_filesystem(&directory).map_err(FileError::at("sync", &directory))?;
    }
    Ok(())
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
