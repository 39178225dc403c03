//! What the filesystem of a directory is and can do, tried out on unnamed files: for `saturnmq
//! check` (docs/operations.md, Checking a host).

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;

use crate::config::DiskEngine;
use crate::disk::aligned::{ALIGNMENT, AlignedMemory};
use crate::disk::probe::{self, DiskPlan, FORCE};
use crate::error::OpenError;
use crate::medium;
use crate::segments::WRITE_ZEROES;

/// Bytes of the file that latencies are measured on.
const FILE: u64 = 16 << 20;

/// The filesystem that holds a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Its type, as the kernel calls it.
    pub kind: String,
    /// The device or whatever else it is mounted from.
    pub source: String,
    /// Whether names survive a crash by a journal; `None` where that is not known.
    pub journal: Option<bool>,
}

/// Looks up the filesystem of an existing directory.
pub fn filesystem(directory: &Path) -> io::Result<Filesystem> {
    let device = directory.metadata()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let number = format!("{major}:{minor}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let found = mounts.lines().rev().find_map(|line| mount(line, &number));
    let (kind, source) = found
        .ok_or_else(|| io::Error::other(format!("device {number} is not in the mount table")))?;
    let journal = match kind.as_str() {
        "xfs" => Some(true),
        "ext4" | "ext3" => ext4_journal(&number),
        "tmpfs" | "ramfs" | "ext2" => Some(false),
        _ => None,
    };
    Ok(Filesystem {
        kind,
        source,
        journal,
    })
}

/// Type and source of a line of the mount table, if it is of this device.
fn mount(line: &str, number: &str) -> Option<(String, String)> {
    let (before, after) = line.split_once(" - ")?;
    if before.split(' ').nth(2)? != number {
        return None;
    }
    let mut words = after.split(' ');
    Some((words.next()?.to_owned(), words.next()?.to_owned()))
}

/// A mounted ext4 tells its way of journaling data only if it has a journal.
fn ext4_journal(number: &str) -> Option<bool> {
    let link = std::fs::read_link(format!("/sys/dev/block/{number}")).ok()?;
    let name = link.file_name()?.to_str()?;
    let options = std::fs::read_to_string(format!("/proc/fs/ext4/{name}/options")).ok()?;
    Some(options.lines().any(|option| option.starts_with("data=")))
}

/// How the log would be written in a directory: what a broker's start finds out.
pub fn plan(directory: &Path, file_size: u64) -> Result<DiskPlan, OpenError> {
    let forced = std::env::var(FORCE).ok();
    let plan = probe::probe(directory, file_size, DiskEngine::Auto, forced.as_deref());
    tidy(directory);
    plan
}

/// Whether space can be taken before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// `fallocate` takes blocks ahead.
    pub allocates: bool,
    /// Zeros need not be sent to the device (Linux 6.17).
    pub writes_zeroes: bool,
}

/// Tries that out.
pub fn space(directory: &Path) -> io::Result<Space> {
    let scratch = Scratch::open(directory)?;
    let tried = |flags| rustix::fs::fallocate(&scratch.file, flags, 0, 1 << 20).is_ok();
    Ok(Space {
        allocates: tried(FallocateFlags::empty()),
        writes_zeroes: tried(WRITE_ZEROES),
    })
}

/// Durable writes of one block, one after the other, for about `time`: how long each took.
pub fn sync_latencies(
    directory: &Path,
    plan: &DiskPlan,
    time: Duration,
) -> io::Result<Vec<Duration>> {
    let scratch = Scratch::open(directory)?;
    let block = (plan.block as usize).max(ALIGNMENT);
    let mut memory = AlignedMemory::new(1 << 20)?;
    let zeros = memory.as_mut_slice();
    for at in (0..FILE).step_by(zeros.len()) {
        write(&scratch.file, zeros, at, ReadWriteFlags::empty())?;
    }
    medium::sync_file(&scratch.file)?;
    let mut took = Vec::new();
    let begun = Instant::now();
    let mut at = 0;
    while begun.elapsed() < time {
        let started = Instant::now();
        write(&scratch.file, &zeros[..block], at, ReadWriteFlags::DSYNC)?;
        took.push(started.elapsed());
        at = (at + block as u64) % FILE;
    }
    Ok(took)
}

fn write(file: &File, bytes: &[u8], at: u64, flags: ReadWriteFlags) -> io::Result<()> {
    let written = rustix::io::pwritev2(file, &[IoSlice::new(bytes)], at, flags)?;
    if written == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::other("a write came out short"))
    }
}

/// A file that is gone when this is.
struct Scratch {
    file: File,
    directory: PathBuf,
    named: Option<PathBuf>,
}

impl Scratch {
    fn open(directory: &Path) -> io::Result<Scratch> {
        let opened = probe::scratch_file(directory, true);
        let (file, named) = opened.or_else(|_| probe::scratch_file(directory, false))?;
        Ok(Scratch {
            file,
            directory: directory.to_path_buf(),
            named,
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = &self.named {
            // What is left is removed at the next start of a broker.
            let _ = medium::remove_file(path);
            tidy(&self.directory);
        }
    }
}

/// Removes the directory that is made where unnamed files are refused, unless a broker uses it.
fn tidy(directory: &Path) {
    let _ = medium::remove_directory(&crate::segments::sibling_path(directory));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read_by_device() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let expected = Some(("ext3".to_owned(), "/dev/root".to_owned()));
        assert_eq!(mount(line, "98:0"), expected);
        assert_eq!(mount(line, "98:1"), None);
        assert_eq!(mount("", "98:0"), None);
    }

    #[test]
    fn a_trial_leaves_nothing_behind() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let log = dir.path().join("commitlog");
        std::fs::create_dir(&log).expect("directory");
        let found = filesystem(&log).expect("a filesystem");
        assert!(!found.kind.is_empty());
        let plan = plan(&log, 1 << 20).expect("a plan");
        space(&log).expect("space");
        let took = sync_latencies(&log, &plan, Duration::from_millis(50)).expect("latencies");
        assert!(!took.is_empty());
        assert_eq!(std::fs::read_dir(&log).expect("list").count(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1);
    }
}
