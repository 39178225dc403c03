//! What the log's filesystem can do, found out once at start.

use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::aligned::{ALIGNMENT, AlignedMemory};
use super::uring;
use crate::config::DiskEngine;
use crate::error::{FileError, OpenError};

/// Environment variable that forces a body: `uring`, `blocking` or `buffered`.
pub const FORCE: &str = "SATURNMQ_DISK";

/// Largest unit of direct writes that is used, in bytes.
pub(crate) const LARGEST_BLOCK: u64 = 64 << 10;

/// Who performs the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring.
    Uring,
    /// Blocking `pwritev2` on the writer's thread.
    Blocking,
}

/// How the log will be written, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Who performs the requests.
    pub engine: Engine,
    /// Whether writes bypass the page cache.
    pub direct: bool,
    /// Unit of writes, in bytes; 1 when they go through the page cache.
    pub block: u64,
    /// Why something less than direct io_uring was chosen, as sentences.
    pub notes: Vec<String>,
}

impl DiskPlan {
    /// One line for the banner: `direct io_uring, blocks of 4096 bytes`.
    pub fn summary(&self) -> String {
        let engine = match self.engine {
            Engine::Uring => "io_uring",
            Engine::Blocking => "blocking pwritev2",
        };
        if self.direct {
            format!("direct {engine}, blocks of {} bytes", self.block)
        } else {
            format!("buffered {engine}")
        }
    }
}

/// Looks at the directory the log stands in and chooses. `forced` is the value of [`FORCE`].
pub fn probe(
    dir: &Path,
    file_size: u64,
    engine: DiskEngine,
    forced: Option<&str>,
) -> Result<DiskPlan, OpenError> {
    let mut notes = Vec::new();
    let wanted = match forced {
        Some("") => engine,
        Some("uring") => DiskEngine::Uring,
        Some("blocking" | "buffered") => DiskEngine::Blocking,
        Some(other) => {
            return Err(OpenError::Config(format!(
                "{FORCE}={other:?} is not one of uring, blocking, buffered"
            )));
        }
        None => engine,
    };
    let engine = match (wanted, uring::available()) {
        (DiskEngine::Blocking, _) => Engine::Blocking,
        (_, Ok(())) => Engine::Uring,
        (DiskEngine::Uring, Err(error)) => {
            return Err(FileError::at("use io_uring for", dir)(error).into());
        }
        (DiskEngine::Auto, Err(error)) => {
            notes.push(format!("io_uring is not available here ({error})"));
            Engine::Blocking
        }
    };
    let direct = if forced == Some("buffered") {
        Err(format!("{FORCE}=buffered"))
    } else {
        direct_block(dir).and_then(|block| {
            if file_size.is_multiple_of(block) {
                Ok(block)
            } else {
                Err(format!(
                    "log files of {file_size} bytes are no multiple of {block}"
                ))
            }
        })
    };
    match direct {
        Ok(block) => Ok(DiskPlan {
            engine,
            direct: true,
            block,
            notes,
        }),
        Err(why) => {
            notes.push(format!("writing through the page cache: {why}"));
            // Buffered io_uring writes are punted to worker threads: nothing is gained by the ring.
            Ok(DiskPlan {
                engine: Engine::Blocking,
                direct: false,
                block: 1,
                notes,
            })
        }
    }
}

/// The unit of direct writes in this directory, proven by one durable write to an unnamed file.
fn direct_block(dir: &Path) -> Result<u64, String> {
    let (file, named) =
        scratch_file(dir, true).map_err(|error| format!("no direct I/O: {error}"))?;
    let result = prove_direct(&file);
    if let Some(path) = named {
        // A leftover is removed at the next start.
        let _ = std::fs::remove_file(path);
    }
    result.map_err(|error| format!("no direct I/O: {error}"))
}

fn prove_direct(file: &File) -> io::Result<u64> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let filesystem = rustix::fs::fstatvfs(file)?;
    let block = u64::from(stat.stx_dio_offset_align)
        .max(filesystem.f_frsize)
        .max(4096)
        .next_power_of_two();
    if block > LARGEST_BLOCK {
        return Err(io::Error::other(format!(
            "blocks of {block} bytes are too large"
        )));
    }
    let size = block as usize;
    let mut memory = AlignedMemory::new(size.max(ALIGNMENT))?;
    let bytes = &memory.as_mut_slice()[..size];
    let written = rustix::io::pwritev2(file, &[IoSlice::new(bytes)], 0, ReadWriteFlags::DSYNC)?;
    if written == size {
        Ok(block)
    } else {
        Err(io::Error::other("a direct write came out short"))
    }
}

/// An unnamed file opened for writing, past the page cache if `direct`, or a named one beside the
/// directory where unnamed files are refused.
pub(crate) fn scratch_file(dir: &Path, direct: bool) -> io::Result<(File, Option<PathBuf>)> {
    let direct = if direct {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    let flags = OFlags::WRONLY | direct | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    match rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        Ok(file) => return Ok((File::from(file), None)),
        // The directory beside may lie on another filesystem, which would be tried in its place.
        Err(error @ (Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::IO)) => {
            return Err(error.into());
        }
        Err(_) => {}
    }
    let path = crate::segments::sibling_dir(dir)?.join("probe");
    let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::TRUNC, mode)?;
    Ok((File::from(file), Some(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_body_is_taken() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let buffered =
            probe(dir.path(), 1 << 20, DiskEngine::Auto, Some("buffered")).expect("probe");
        assert_eq!((buffered.direct, buffered.block), (false, 1));
        assert_eq!(buffered.engine, Engine::Blocking);
        assert!(buffered.notes[0].contains("SATURNMQ_DISK=buffered"));
        let blocking =
            probe(dir.path(), 1 << 20, DiskEngine::Auto, Some("blocking")).expect("probe");
        assert_eq!(blocking.engine, Engine::Blocking);
    }

    #[test]
    fn an_unknown_body_is_refused_by_name() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let error = probe(dir.path(), 1 << 20, DiskEngine::Auto, Some("foo")).unwrap_err();
        let text = "SATURNMQ_DISK=\"foo\" is not one of uring, blocking, buffered";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_file_size_that_is_no_multiple_of_a_block_is_written_buffered() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let plan = probe(dir.path(), 100_001, DiskEngine::Auto, None).expect("probe");
        assert!(!plan.direct);
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}
