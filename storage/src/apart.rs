//! The directory of the commit log can be configured apart from the root. The other directories of
//! a store are the root's, and files of two of them in one place would be taken for each other's.

use std::path::{Component, Path, PathBuf};

use crate::layout::Layout;

/// Names below the root in which the store keeps other files than those of the log.
const TAKEN: [&str; 6] = [
    "consumequeue",
    "consumequeue_ext",
    "index",
    "config",
    "timerlog",
    "saturnmq.removing",
];

/// Refuses a directory of the log that is the root, or one of the root's own directories, or lies
/// in one of these; links are followed. Reads names only.
///
/// # Errors
/// The text names both keys.
pub(crate) fn check(layout: &Layout) -> Result<(), String> {
    let (root, log) = (resolved(layout.root()), resolved(layout.commit_log()));
    let taken = TAKEN.map(|name| root.join(name));
    let within = taken
        .iter()
        .find(|directory| log.starts_with(resolved(directory)));
    if within.is_none() && log != root {
        return Ok(());
    }
    Err(format!(
        "storePathCommitLog={} is, or lies in, {}, where the store of storePathRootDir={} keeps \
         other files: give the commit log a directory of its own",
        layout.commit_log().display(),
        within.unwrap_or(&root).display(),
        layout.root().display()
    ))
}

/// The path without links, as far as it exists; `..` behind that goes up one name.
fn resolved(path: &Path) -> PathBuf {
    // Fails for an empty path only, and without a working directory.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            component => resolved.push(component),
        }
        if let Ok(real) = resolved.canonicalize() {
            resolved = real;
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_log_among_other_files_of_the_store_is_refused_whatever_it_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        fs::create_dir_all(root.join("index")).unwrap();
        symlink(root.join("index"), dir.path().join("link")).unwrap();
        symlink(&root, dir.path().join("same")).unwrap();
        let refused = |log: &str| {
            let layout = Layout::new(&root).with_commit_log(dir.path().join(log));
            let refused = check(&layout).err();
            for key in ["storePathCommitLog=", "storePathRootDir="] {
                assert!(refused.as_ref().is_none_or(|text| text.contains(key)));
            }
            refused.is_some()
        };
        for log in [
            "store",
            "same",
            "store/index",
            "store/./config/",
            "store/timerlog/log",
            "store/none/../consumequeue",
            "same/consumequeue_ext",
            "link",
            "link/below",
            "link/../config",
        ] {
            assert!(refused(log), "{log}");
        }
        for log in [
            "store/commitlog",
            "store/logs/index",
            "store/index2",
            "other",
            "store/index/../commitlog",
            "same/log",
        ] {
            assert!(!refused(log), "{log}");
        }
    }
}
