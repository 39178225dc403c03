//! The commit log's files: names, creation, and opening the one the log goes on in.
//!
//! What must always hold: a file has its full size and its extents durably before it gets its name,
//! and no file under the log's directory ever holds bytes of another position.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom};

use crate::disk::ZERO_BYTES;
use crate::disk::aligned::AlignedMemory;
use crate::layout::file_name;
use crate::medium::{self, sync_directory};
use crate::seeded::{Fault, seeded};

/// `FALLOC_FL_WRITE_ZEROES`: zeroes without transferring the zeros, where the device can (Linux
/// 6.17).
pub(crate) const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// Permissions of a log file.
const MODE: Mode = Mode::from_raw_mode(0o644);

/// How log files are made.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    /// Directory of the log.
    pub dir: PathBuf,
    /// Size of a file, in bytes.
    pub file_size: u64,
    /// Whether files are written past the page cache.
    pub direct: bool,
    /// Whether files are allocated and zeroed; if not they are sparse.
    pub prepare: bool,
}

/// A file of full size that may have no name yet.
pub(crate) struct Segment {
    /// The file, opened for writing.
    pub file: File,
    /// Log offset of its first byte.
    pub base: u64,
    /// Position up to which its blocks were written once, in bytes.
    pub zeroed_to: u64,
    /// Where it stands until it gets its name; `None` if it has no name at all.
    placed_at: Option<PathBuf>,
    /// Whether it has its name, and perhaps a part of the log.
    pub named: bool,
}

/// The directory beside the log's for files that cannot be unnamed; made if missing.
pub(crate) fn sibling_dir(dir: &Path) -> io::Result<PathBuf> {
    let path = sibling_path(dir);
    medium::make_directories(&path)?;
    Ok(path)
}

/// Its path.
pub(crate) fn sibling_path(dir: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".saturnmq-preparing-");
    name.push(dir.file_name().unwrap_or_default());
    dir.with_file_name(name)
}

impl Segments {
    /// Path of the file with this base.
    pub fn path(&self, base: u64) -> PathBuf {
        self.dir.join(file_name(base))
    }

    /// Removes what an interrupted preparation left beside the log.
    pub fn remove_leftovers(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(sibling_path(&self.dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn flags(&self) -> OFlags {
        let direct = if self.direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        OFlags::RDWR | OFlags::CLOEXEC | direct
    }

    /// An empty file beside the log's directory, where unnamed files are refused.
    fn open_beside(&self, base: u64) -> io::Result<(File, Option<PathBuf>)> {
        let path = sibling_dir(&self.dir)?.join(file_name(base));
        let flags = self.flags() | OFlags::CREATE | OFlags::TRUNC;
        let file = medium::name(&path, || Ok(rustix::fs::open(&path, flags, MODE)?))?;
        Ok((File::from(file), Some(path)))
    }

    /// A file of full size, allocated but not zeroed, without a name in the log's directory.
    pub fn create(&self, base: u64) -> io::Result<Segment> {
        let unnamed = rustix::fs::open(&self.dir, self.flags() | OFlags::TMPFILE, MODE);
        let (file, placed_at) = match unnamed {
            Ok(file) => (File::from(file), None),
            Err(rustix::io::Errno::NOSPC) => return Err(rustix::io::Errno::NOSPC.into()),
            Err(_) => self.open_beside(base)?,
        };
        let mut segment = Segment {
            file,
            base,
            zeroed_to: 0,
            placed_at,
            named: false,
        };
        if self.prepare {
            allocate(&segment.file, self.file_size)?;
        } else {
            segment.file.set_len(self.file_size)?;
        }
        if !self.direct || !self.prepare {
            // Through the page cache nothing is gained by zeroing.
            segment.zeroed_to = self.file_size;
        } else if rustix::fs::fallocate(&segment.file, WRITE_ZEROES, 0, self.file_size).is_ok() {
            segment.zeroed_to = self.file_size;
        }
        Ok(segment)
    }

    /// Zeroes one more piece of a file.
    pub fn zero_piece(&self, segment: &mut Segment, zeros: &mut AlignedMemory) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let rest = self.file_size - segment.zeroed_to;
        let len = rest.min(ZERO_BYTES as u64) as usize;
        segment
            .file
            .write_all_at(&zeros.as_mut_slice()[..len], segment.zeroed_to)?;
        segment.zeroed_to += len as u64;
        Ok(())
    }

    /// Makes a file durable and gives it its name, durably. Replaces a file of that name if the
    /// log, which ends at `log_end`, has nothing in it: a successor that was named before a crash.
    /// A file that the log ends in is never replaced: that is an error.
    pub fn publish(&self, segment: &Segment, log_end: u64) -> io::Result<()> {
        medium::sync_file(&segment.file)?;
        if segment.named {
            return Ok(());
        }
        let path = self.path(segment.base);
        if log_end > segment.base {
            return Err(io::Error::other(format!(
                "the log goes on to {log_end} in {}, which must not be replaced",
                path.display()
            )));
        }
        match medium::remove_file(&path) {
            Ok(()) => tracing::info!("replacing the unused log file {}", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if let Some(placed_at) = &segment.placed_at {
            medium::rename(placed_at, &path)?;
        } else {
            let descriptor = format!("/proc/self/fd/{}", segment.file.as_raw_fd());
            let follow = AtFlags::SYMLINK_FOLLOW;
            medium::name(&path, || {
                Ok(rustix::fs::linkat(CWD, descriptor, CWD, &path, follow)?)
            })?;
        }
        if seeded(Fault::UnsyncedName) {
            return Ok(());
        }
        sync_directory(&self.dir)
    }

    /// Opens the file with this base to go on at position `from`; `None` if there is none.
    /// Allocates what of it is sparse, and finds out how far its blocks were written before.
    pub fn open(&self, base: u64, from: u64) -> io::Result<Option<Segment>> {
        let Some(file) = self.open_as_it_is(base)? else {
            return Ok(None);
        };
        let mut zeroed_to = self.file_size;
        if self.prepare {
            allocate(&file, self.file_size)?;
            if self.direct {
                // Allocated blocks that were never written count as a hole.
                zeroed_to = rustix::fs::seek(&file, SeekFrom::Hole(from)).unwrap_or(zeroed_to);
            }
        }
        Ok(Some(Segment {
            file,
            base,
            zeroed_to,
            placed_at: None,
            named: true,
        }))
    }

    /// The file with this base, with whatever holes it has: for reading; `None` if there is none.
    pub fn open_as_it_is(&self, base: u64) -> io::Result<Option<File>> {
        let opened = rustix::fs::open(self.path(base), self.flags(), Mode::empty());
        let file = match opened {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let size = file.metadata()?.len();
        if size != self.file_size {
            return Err(io::Error::other(format!(
                "it has {size} bytes instead of {}",
                self.file_size
            )));
        }
        Ok(Some(file))
    }
}

/// Gives a file its size and its blocks; only the size on filesystems that cannot allocate ahead.
fn allocate(file: &File, size: u64) -> io::Result<()> {
    medium::allocate(
        || match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(size),
            other => Ok(other?),
        },
    )
}

/// Whether an error means that there is no room on the disk.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(dir: &Path) -> Segments {
        Segments {
            dir: dir.to_path_buf(),
            file_size: 1 << 20,
            direct: true,
            prepare: true,
        }
    }

    #[test]
    fn a_file_has_its_size_before_its_name() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let log = dir.path().join("commitlog");
        std::fs::create_dir(&log).expect("directory");
        let segments = segments(&log);
        let mut segment = segments.create(1 << 20).expect("create");
        assert_eq!(std::fs::read_dir(&log).expect("list").count(), 0);
        assert_eq!(segment.file.metadata().expect("size").len(), 1 << 20);
        let mut zeros = AlignedMemory::new(ZERO_BYTES).expect("memory");
        while segment.zeroed_to < 1 << 20 {
            segments.zero_piece(&mut segment, &mut zeros).expect("zero");
        }
        segments.publish(&segment, segment.base).expect("publish");
        let bytes = std::fs::read(log.join("00000000000001048576")).expect("read");
        assert!(bytes.len() == 1 << 20 && bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_successor_left_by_a_crash_is_replaced() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let segments = segments(dir.path());
        std::fs::write(segments.path(0), b"torn").expect("write");
        let segment = segments.create(0).expect("create");
        segments.publish(&segment, segment.base).expect("publish");
        assert_eq!(
            std::fs::metadata(segments.path(0)).expect("stat").len(),
            1 << 20
        );
    }

    #[test]
    fn where_unnamed_files_are_refused_a_file_waits_beside_the_log() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let log = dir.path().join("commitlog");
        std::fs::create_dir(&log).expect("directory");
        let segments = segments(&log);
        let (file, placed_at) = segments.open_beside(0).expect("create");
        file.set_len(segments.file_size).expect("size");
        assert_eq!(std::fs::read_dir(&log).expect("list").count(), 0);
        let segment = Segment {
            file,
            base: 0,
            zeroed_to: 0,
            placed_at,
            named: false,
        };
        segments.publish(&segment, segment.base).expect("publish");
        assert_eq!(
            std::fs::metadata(segments.path(0)).expect("stat").len(),
            1 << 20
        );
        segments.remove_leftovers().expect("clean up");
        let names: Vec<_> = std::fs::read_dir(dir.path()).expect("list").collect();
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn an_opened_file_tells_how_far_it_was_written() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let segments = segments(dir.path());
        assert!(segments.open(0, 0).expect("open").is_none());
        let mut segment = segments.create(0).expect("create");
        let mut zeros = AlignedMemory::new(ZERO_BYTES).expect("memory");
        if segment.zeroed_to == 0 {
            segments.zero_piece(&mut segment, &mut zeros).expect("zero");
        }
        segments.publish(&segment, segment.base).expect("publish");
        let opened = segments.open(0, 5000).expect("open").expect("exists");
        assert!(opened.zeroed_to >= ZERO_BYTES as u64);
        std::fs::write(segments.path(1 << 20), b"short").expect("write");
        assert!(segments.open(1 << 20, 0).is_err());
    }
}
