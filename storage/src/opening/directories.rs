//! The directories of a store.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{FileError, OpenError};
use crate::layout::Layout;
use crate::medium;

/// Creates the directories of a store.
pub(crate) fn make_directories(layout: &Layout) -> Result<(), OpenError> {
    let directories = [
        layout.commit_log().to_path_buf(),
        layout.consume_queues(),
        layout.index(),
    ];
    // One sync for the names of all of them: a start waits for each.
    let mut parents = BTreeSet::new();
    for path in &directories {
        parents.extend(make(path)?);
    }
    sync(&parents)
}

/// Creates one directory, durably, and sees that this user can write to it.
pub(crate) fn make_directory(path: &Path) -> Result<(), OpenError> {
    sync(&make(path)?)
}

/// Creates a directory with those above it and sees that this user can write to it; returns the
/// directories whose names changed.
fn make(path: &Path) -> Result<BTreeSet<PathBuf>, OpenError> {
    let missing = path.ancestors().take_while(|path| !path.is_dir()).count();
    let made = medium::make_directories(path).and_then(|()| {
        use nix::unistd::{AccessFlags, access};
        Ok(access(path, AccessFlags::W_OK | AccessFlags::X_OK)?)
    });
    made.map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => OpenError::NotWritable {
            path: path.to_path_buf(),
            source,
        },
        _ => FileError::at("create", path)(source).into(),
    })?;
    let parents = path.ancestors().skip(1).take(missing);
    Ok(parents.map(Path::to_path_buf).collect())
}

fn sync(directories: &BTreeSet<PathBuf>) -> Result<(), OpenError> {
    for path in directories {
        medium::sync_directory(path).map_err(FileError::at("sync", path))?;
    }
    Ok(())
}
