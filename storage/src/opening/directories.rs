//! The directories of a store.

use std::io::{self, ErrorKind};
use std::path::Path;

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
    for path in directories {
        make_directory(&path)?;
    }
    Ok(())
}

/// Creates one directory, durably, and sees that this user can write to it.
pub(crate) fn make_directory(path: &Path) -> Result<(), OpenError> {
    let made = make_durably(path).and_then(|()| {
        use nix::unistd::{AccessFlags, access};
        Ok(access(path, AccessFlags::W_OK | AccessFlags::X_OK)?)
    });
    made.map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => OpenError::NotWritable {
            path: path.to_path_buf(),
            source,
        },
        _ => FileError::at("create", path)(source).into(),
    })
}

/// Creates a directory with those above it; the names of all that were missing are synced.
fn make_durably(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|path| !path.is_dir()).count();
    medium::make_directories(path)?;
    let parents = path.ancestors().skip(1).take(missing);
    parents.into_iter().try_for_each(medium::sync_directory)
}
