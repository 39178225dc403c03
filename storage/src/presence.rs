//! Whether the store is still where it was opened: a broker goes on writing to files that were
//! removed or renamed, and what it acknowledges then is gone with it.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::layout::file_name;

/// Directories of an open store. They are held open, so that no other one gets their numbers.
#[derive(Debug)]
pub(crate) struct Presence {
    directories: Vec<(PathBuf, File)>,
}

impl Presence {
    /// Watches the directories that stand at these paths now; those that cannot be opened are not
    /// watched.
    pub(crate) fn of(paths: &[&Path]) -> Presence {
        let open = |path: &&Path| Some((path.to_path_buf(), File::open(path).ok()?));
        Presence {
            directories: paths.iter().filter_map(open).collect(),
        }
    }

    /// What is not where it was: a sentence without an end, for the operator.
    pub(crate) fn missing(&self) -> Option<String> {
        self.directories.iter().find_map(|(path, held)| {
            let why = match (std::fs::metadata(path), held.metadata()) {
                (Ok(found), Ok(held)) if !is_same(&found, &held) => {
                    "another directory stands in its place".to_owned()
                }
                (Err(error), _) if is_absence(&error) => error.to_string(),
                _ => return None,
            };
            Some(format!(
                "the directory {} was removed or renamed while the broker ran ({why}); stop the \
                 broker and put the directory back",
                path.display()
            ))
        })
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Any other error may pass.
fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What is wrong with the log file of `size` bytes that begins at log offset `base`.
pub(crate) fn damaged_log_file(directory: &Path, size: u64, base: u64) -> Option<String> {
    let path = directory.join(file_name(base));
    let why = match std::fs::metadata(&path) {
        Ok(found) if found.len() != size => {
            format!("it has {} bytes instead of {size}", found.len())
        }
        Err(error) if is_absence(&error) => error.to_string(),
        _ => return None,
    };
    Some(format!(
        "the log file {} was removed or cut while the broker ran ({why}); stop the broker and put \
         the file back",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_gone_or_replaced_is_named_and_one_that_is_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::create_dir(&log).unwrap();
        let presence = Presence::of(&[dir.path(), &log]);
        assert_eq!(presence.missing(), None);
        std::fs::rename(&log, dir.path().join("aside")).unwrap();
        let missing = presence.missing().unwrap();
        assert!(missing.contains(&log.display().to_string()), "{missing}");
        assert!(missing.contains("No such file"), "{missing}");
        std::fs::create_dir(&log).unwrap();
        let missing = presence.missing().unwrap();
        assert!(missing.contains("another directory"), "{missing}");
        std::fs::remove_dir(&log).unwrap();
        std::fs::rename(dir.path().join("aside"), &log).unwrap();
        assert_eq!(presence.missing(), None);
    }

    #[test]
    fn a_log_file_must_be_there_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file_name(100)), [0; 100]).unwrap();
        assert_eq!(damaged_log_file(dir.path(), 100, 100), None);
        assert!(damaged_log_file(dir.path(), 100, 200).is_some());
        std::fs::write(dir.path().join(file_name(100)), [0; 99]).unwrap();
        let cut = damaged_log_file(dir.path(), 100, 100).unwrap();
        assert!(cut.contains("99 bytes instead of 100"), "{cut}");
    }
}
