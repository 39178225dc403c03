//! Removing expired log files without disturbing the log.
//!
//! A file loses its name at once and its space piece by piece: the filesystem frees blocks, and the
//! device discards them, while it commits, and a whole large file at once holds up the log's
//! writes.
//! What must always hold: a file that still has a name, this one or another, is never shortened.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::medium::{self, sync_directory};

/// How much is given back at once, in bytes: while the device discards that much, the log's writes
/// wait.
const PIECE: u64 = 4 << 20;

/// Rest between two pieces.
pub(crate) const REST: Duration = Duration::from_millis(5);

/// A file without a name any more, whose space is being given back.
pub(crate) struct Removal {
    file: File,
    /// Bytes it still has.
    left: u64,
}

impl Removal {
    /// Takes a file its name, durably. `None` if nothing is left to do: it was gone, could not be
    /// removed (which is logged), or lives on under another name.
    pub fn begin(path: &Path) -> Option<Removal> {
        // Opened first: afterwards there is no way to it.
        let file = File::options().write(true).open(path);
        let removed =
            medium::remove_file(path).and_then(|()| path.parent().map_or(Ok(()), sync_directory));
        match removed {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                let path = path.display();
                tracing::warn!("cannot remove the expired log file {path}: {error}");
                return None;
            }
        }
        let file = file.ok()?;
        let metadata = file.metadata().ok()?;
        // Somebody may keep a copy as a hard link.
        (metadata.nlink() == 0).then(|| Removal {
            left: metadata.len(),
            file,
        })
    }

    /// Bytes that are not given back yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Gives back the next piece; true once there is none left.
    pub fn free_piece(&mut self) -> bool {
        self.left = self.left.saturating_sub(PIECE);
        let cut = self.file.set_len(self.left);
        // Where that fails, the rest is freed with the descriptor.
        if cut.and_then(|()| medium::sync_file(&self.file)).is_err() {
            self.left = 0;
        }
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_given_back_piece_by_piece() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let path = dir.path().join("old");
        File::create(&path)
            .and_then(|file| file.set_len(2 * PIECE + 5))
            .expect("file");
        let reader = File::open(&path).expect("open");
        let mut removal = Removal::begin(&path).expect("something to free");
        assert!(!path.exists());
        let size = || reader.metadata().expect("size").len();
        let mut sizes = vec![size()];
        while !removal.free_piece() {
            sizes.push(size());
        }
        assert_eq!(sizes, [2 * PIECE + 5, PIECE + 5, 5]);
        assert_eq!((size(), removal.left()), (0, 0));
    }

    #[test]
    fn a_file_with_another_name_keeps_its_bytes() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let (path, copy) = (dir.path().join("log"), dir.path().join("backup"));
        std::fs::write(&path, b"records").expect("write");
        std::fs::hard_link(&path, &copy).expect("link");
        assert!(Removal::begin(&path).is_none());
        assert!(!path.exists());
        assert_eq!(std::fs::read(&copy).expect("read"), b"records");
        assert!(Removal::begin(&path).is_none(), "gone already");
    }

    #[test]
    fn what_cannot_be_removed_is_left_as_it_is() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let path = dir.path().join("directory");
        std::fs::create_dir(&path).expect("directory");
        assert!(Removal::begin(&path).is_none());
        assert!(path.exists());
    }
}
