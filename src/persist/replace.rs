//! Replacing a state file whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Replaces a file so that a crash leaves the old or the new content whole, and keeps the old one
/// as `.bak`. Returns once the new content and its name are durable.
///
/// # Errors
/// Whatever the system refused; the old file is untouched then.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, content, true)
}

/// As [`replace_file`]; the backup that there is stays where the old content is not to be kept.
pub(super) fn replace(path: &Path, content: &[u8], keeps_old: bool) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    make_directory(directory)?;
    let temporary = with_suffix(path, ".tmp");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    if keeps_old {
        keep_backup(path)?;
    }
    std::fs::rename(&temporary, path)?;
    std::fs::File::open(directory)?.sync_all()
}

/// Removes a FIFO, a socket or a device: it is only a name, and opening it may wait for ever.
pub(super) fn remove_what_is_no_file(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Makes a directory and those it lies in, durably.
fn make_directory(directory: &Path) -> io::Result<()> {
    let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let made: Vec<_> = directory.ancestors().take_while(missing).collect();
    std::fs::create_dir_all(directory)?;
    for path in made {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Gives the present file the additional name `.bak`: no copy, and no moment without the file.
fn keep_backup(path: &Path) -> io::Result<()> {
    let backup = with_suffix(path, ".bak");
    let staged = with_suffix(path, ".bak.tmp");
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() == 0) {
        // What stands there holds nothing; the backup is the last that did.
        return Ok(());
    }
    match std::fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match std::fs::hard_link(path, &staged) {
        Ok(()) => std::fs::rename(&staged, &backup),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // File systems without hard links.
        Err(_) => std::fs::copy(path, &backup).map(drop),
    }
}
