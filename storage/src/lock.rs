//! Exclusive use of a store directory.
//!
//! Apache's broker takes a POSIX record lock on byte 0 of `lock` (docs/format.md, "Directory"), so
//! this one does too, before it touches anything else. Such locks do not conflict within one
//! process and vanish when any descriptor of the file is closed, so a process-wide list of open
//! stores stands beside them. They protect a file that anybody can delete, so the directory itself
//! is locked too.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{FileError, OpenError};
use crate::{medium, regular};

/// How long a directory that somebody has locked is tried again: a process that is just being
/// started holds what its parent had open until it runs its own program.
const PATIENCE: Duration = Duration::from_millis(300);
/// Pause between two tries.
const LOCK_AGAIN: Duration = Duration::from_millis(2);

/// Device and inode of the lock files this process holds.
static HELD: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

/// A store directory in use by this process until the value is dropped.
#[derive(Debug)]
pub struct StoreLock {
    /// Held open: closing it releases the record lock.
    _file: File,
    /// Held open: closing it releases the directory's lock.
    _directory: File,
    /// Likewise that of the log's directory, which another store may name as its own.
    log: Option<File>,
    identity: (u64, u64),
}

impl StoreLock {
    /// Fails if anyone holds the lock of the store at `root`; creates and changes nothing.
    pub fn look(root: &Path) -> Result<(), OpenError> {
        let path = root.join("lock");
        let mut guard = held();
        let held = guard.get_or_insert_with(HashSet::new);
        let Ok(present) = std::fs::metadata(&path) else {
            return Ok(());
        };
        if held.contains(&(present.dev(), present.ino())) {
            return Err(locked(root, Some(std::process::id() as i32)));
        }
        let file = regular::open(&path).map_err(FileError::at("open", &path))?;
        let mut wanted = exclusive();
        fcntl(&file, FcntlArg::F_GETLK(&mut wanted))
            .map_err(|errno| FileError::at("look at", &path)(errno.into()))?;
        if wanted.l_type == libc::F_UNLCK as i16 {
            return Ok(());
        }
        Err(locked(root, Some(wanted.l_pid).filter(|pid| *pid > 0)))
    }

    /// Takes the lock of the store at `root`, which must exist; fails at once if anyone holds it.
    pub fn take(root: &Path) -> Result<StoreLock, OpenError> {
        let path = root.join("lock");
        // The list is held throughout: opening and closing the file in two threads would drop a
        // lock.
        let mut guard = held();
        let held = guard.get_or_insert_with(HashSet::new);
        if let Ok(present) = std::fs::metadata(&path)
            && held.contains(&(present.dev(), present.ino()))
        {
            return Err(locked(root, Some(std::process::id() as i32)));
        }
        let directory = lock_directory(root, PATIENCE, || locked(root, holder_of(&path)))?;
        let mut file = open_lock_file(&path)?;
        let details = file.metadata().map_err(FileError::at("look at", &path))?;
        let identity = (details.dev(), details.ino());
        record_lock(&file, root, &path)?;
        write_text(&mut file).map_err(FileError::at("write", &path))?;
        held.insert(identity);
        Ok(StoreLock {
            _file: file,
            _directory: directory,
            log: None,
            identity,
        })
    }

    /// Fails if a broker has the store open that the log's directory `log` lies in, unless that is
    /// the store at `root`; Apache's brokers lock nothing else. Creates and changes nothing.
    pub fn look_around(log: &Path, root: &Path) -> Result<(), OpenError> {
        let Ok(log) = log.canonicalize() else {
            return Ok(());
        };
        let root = root.canonicalize().ok();
        for around in log.ancestors().take(2) {
            if Some(around) == root.as_deref() {
                continue;
            }
            // Whatever else stands there is no store.
            if let Ok(Some(pid)) = holder(around) {
                return Err(log_locked(&log, Some(pid)));
            }
        }
        Ok(())
    }

    /// Takes the log's directory as well, which must exist; fails at once if a store has it.
    pub fn take_log(&mut self, log: &Path) -> Result<(), OpenError> {
        self.log = Some(lock_directory(log, PATIENCE, || log_locked(log, None))?);
        Ok(())
    }
}

/// Writes what Apache writes, unless it is there: the file's time then tells when another broker
/// last took the lock, for Apache writes it each time.
fn write_text(file: &mut File) -> std::io::Result<()> {
    const TEXT: &[u8] = b"lock";
    let mut found = Vec::new();
    file.by_ref().take(8).read_to_end(&mut found)?;
    if found == TEXT {
        return Ok(());
    }
    file.write_all_at(TEXT, 0)?;
    medium::sync_file(file)
}

/// The process that has the store at `root` open, without taking or disturbing its lock.
pub fn holder(root: &Path) -> std::io::Result<Option<i32>> {
    let path = root.join("lock");
    let guard = held();
    let details = match std::fs::metadata(&path) {
        Ok(details) => details,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Opening and closing the file in this process would drop its own lock.
    let ours = guard
        .as_ref()
        .is_some_and(|held| held.contains(&(details.dev(), details.ino())));
    if ours {
        return Ok(Some(std::process::id() as i32));
    }
    let file = regular::open(&path)?;
    let mut wanted = exclusive();
    fcntl(&file, FcntlArg::F_GETLK(&mut wanted))?;
    let free = wanted.l_type == libc::F_UNLCK as i16;
    Ok((!free).then_some(wanted.l_pid))
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        if let Some(held) = held().as_mut() {
            held.remove(&self.identity);
        }
    }
}

fn held() -> MutexGuard<'static, Option<HashSet<(u64, u64)>>> {
    // A set of numbers is whole whatever the thread that held it did.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locked(root: &Path, holder: Option<i32>) -> OpenError {
    OpenError::Locked {
        root: root.to_path_buf(),
        holder,
    }
}

fn log_locked(log: &Path, holder: Option<i32>) -> OpenError {
    OpenError::LogLocked {
        directory: log.to_path_buf(),
        holder: holder.filter(|pid| *pid > 0),
    }
}

fn open_lock_file(path: &Path) -> Result<File, OpenError> {
    let opened = medium::name(path, || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        regular::open_with(path, &mut options)
    });
    opened.map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            let root = path.parent().unwrap_or(path).to_path_buf();
            OpenError::NotWritable { path: root, source }
        }
        _ => FileError {
            what: "open",
            path: path.to_path_buf(),
            source,
        }
        .into(),
    })
}

/// A directory of the store, locked against other processes of ours whatever becomes of the file
/// `lock`; `taken` says that it is, and is for longer than `patience`. Filesystems that lock no
/// directories do without.
fn lock_directory(
    root: &Path,
    patience: Duration,
    taken: impl FnOnce() -> OpenError,
) -> Result<File, OpenError> {
    let directory = File::open(root).map_err(FileError::at("open", root))?;
    let begin = Instant::now();
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if begin.elapsed() < patience => {
                std::thread::sleep(LOCK_AGAIN);
            }
            Err(Errno::WOULDBLOCK) => return Err(taken()),
            Err(error) => {
                tracing::info!(
                    directory = %root.display(), %error,
                    "a directory of the store cannot be locked; nothing but the file `lock` \
                     protects it"
                );
                break;
            }
        }
    }
    Ok(directory)
}

/// The process that has this lock file locked, where the system tells.
fn holder_of(path: &Path) -> Option<i32> {
    let file = regular::open(path).ok()?;
    let mut wanted = exclusive();
    fcntl(&file, FcntlArg::F_GETLK(&mut wanted)).ok()?;
    let taken = wanted.l_type != libc::F_UNLCK as i16;
    Some(wanted.l_pid).filter(|pid| taken && *pid > 0)
}

/// What Apache locks: byte 0.
fn exclusive() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

/// The record lock on byte 0, or the process that holds it.
fn record_lock(file: &File, root: &Path, path: &Path) -> Result<(), OpenError> {
    let mut wanted = exclusive();
    match fcntl(file, FcntlArg::F_SETLK(&wanted)) {
        Ok(_) => Ok(()),
        Err(nix::errno::Errno::EACCES | nix::errno::Errno::EAGAIN) => {
            let asked = fcntl(file, FcntlArg::F_GETLK(&mut wanted));
            let holder = asked.ok().map(|_| wanted.l_pid).filter(|pid| *pid > 0);
            Err(locked(root, holder))
        }
        Err(errno) => Err(FileError::at("lock", path)(errno.into()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_open_once_within_a_process() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = StoreLock::take(dir.path()).expect("free");
        let second = StoreLock::take(dir.path());
        assert!(
            matches!(
                &second,
                Err(OpenError::Locked {
                    holder: Some(_),
                    ..
                })
            ),
            "{second:?}"
        );
        drop(first);
        StoreLock::take(dir.path()).expect("free again");
        assert_eq!(
            std::fs::read(dir.path().join("lock")).expect("lock file"),
            b"lock"
        );
    }

    #[test]
    fn whoever_lets_go_of_a_directory_a_moment_later_does_not_refuse_a_start() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir = &dir;
        let inherited = File::open(dir.path()).expect("the directory");
        rustix::fs::flock(&inherited, FlockOperation::NonBlockingLockExclusive).expect("free");
        let taken = || OpenError::Recovery("taken".to_owned());
        let refused = lock_directory(dir.path(), Duration::ZERO, taken);
        assert!(refused.is_err(), "nobody let go of it");
        std::thread::scope(|scope| {
            // Far more than letting go takes on a machine that stands still for a while.
            let patience = Duration::from_secs(600);
            let taken = || unreachable!("it is let go of");
            let start = scope.spawn(move || lock_directory(dir.path(), patience, taken));
            // So that it finds the lock taken at first; it may be longer without harm.
            std::thread::sleep(3 * LOCK_AGAIN);
            drop(inherited);
            start.join().expect("no panic").expect("free again");
        });
    }

    #[test]
    fn a_store_is_open_once_although_its_lock_file_is_deleted_or_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let first = StoreLock::take(dir.path()).expect("free");
        std::fs::remove_file(&path).expect("remove");
        for _ in 0..2 {
            let second = StoreLock::take(dir.path());
            assert!(
                matches!(second, Err(OpenError::Locked { .. })),
                "{second:?}"
            );
            std::fs::write(&path, b"lock").expect("replace");
        }
        drop(first);
        StoreLock::take(dir.path()).expect("free again");
    }

    #[test]
    fn another_process_cannot_lock_byte_zero_meanwhile() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let _lock = StoreLock::take(dir.path()).expect("free");
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+b')\n\
                      try:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1,0)\n\
                      except OSError: sys.exit(7)\nsys.exit(0)";
        let lock = dir.path().join("lock");
        let child = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(lock)
            .status();
        if let Ok(status) = child {
            assert_eq!(status.code(), Some(7));
        }
    }
}
