//! Opening what must be a regular file.
//!
//! Opening a FIFO waits for whoever is at its other end, and opening a device can do anything. So
//! whatever else stands in the place of a file is an error that says what it is.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// What stands somewhere, for a sentence: "a FIFO".
pub fn kind(found: FileType) -> &'static str {
    if found.is_file() {
        "a file"
    } else if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a FIFO"
    } else if found.is_socket() {
        "a socket"
    } else if found.is_symlink() {
        "a link that leads nowhere"
    } else {
        "a device"
    }
}

/// Opens the file at `path` for reading.
///
/// # Errors
/// What the system says; [`io::ErrorKind::InvalidInput`] with its kind in words if it is no regular
/// file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens the file at `path` as `options` say, whose flags are replaced.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match std::fs::metadata(path) {
        Ok(found) => check(found.file_type())?,
        // The options may say that it is to be made.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // It can have changed since, and without a wait nothing is held up: a file ignores the flag.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads the whole file at `path`.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check(found: FileType) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let text = format!("it is {}, and must be a file", kind(found));
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_told_and_waited_for_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mode = nix::sys::stat::Mode::S_IRUSR;
        nix::unistd::mkfifo(&at("fifo"), mode).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link")).unwrap();
        for (path, found) in [
            (at("fifo"), "a FIFO"),
            (at("link"), "a FIFO"),
            (at("directory"), "a directory"),
            (at("socket"), "a socket"),
            (Path::new("/dev/zero").into(), "a device"),
        ] {
            for options in [
                OpenOptions::new().read(true),
                OpenOptions::new().write(true).create(true),
            ] {
                let refused = open_with(&path, options).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
                let text = format!("it is {found}, and must be a file");
                assert_eq!(refused.to_string(), text);
            }
        }
        std::os::unix::fs::symlink("none", at("nowhere")).unwrap();
        let missing = read(&at("nowhere")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(at("file"), b"bytes").unwrap();
        assert_eq!(read(&at("file")).unwrap(), b"bytes");
    }
}
