//! What a run leaves in `abort` for the start after its crash
//! (docs/durability.md, "Crash recovery").
//!
//! To Apache RocketMQ only the file's existence counts. The first line is the process, as Apache 5
//! writes it; the second one, which Apache never writes, bounds what a crash can leave in the log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;

use crate::config::{FlushMode, StoreConfig};
use crate::error::FileError;
use crate::layout::Layout;
use crate::medium;
use crate::segments::is_no_space;
use crate::writer::IN_FLIGHT_BYTES;

/// What the second line begins with; a number of bytes follows, and when the lock was written.
const IN_FLIGHT: &str = "saturnmq in-flight bytes ";
/// More of the file is not read.
const READ_MAX: u64 = 4096;

/// How the last run ended, and what it can have left behind the log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormerRun {
    /// Orderly.
    Closed,
    /// In a crash of this broker: so many bytes behind the end of the last whole record, and any
    /// further, nothing was ever written.
    Bounded(u64),
    /// In a crash of another broker, or of this one where a power cut can take back any part of
    /// what was written since the last sync.
    Unbounded,
}

/// Bytes behind the end of the last whole record that a crash of a run with this configuration can
/// have left something in; `None` without a bound.
///
/// Under SYNC_FLUSH everything below the first write that is not complete is on the disk. What was
/// submitted then ends at most [`IN_FLIGHT_BYTES`] further on; that write lies in the record that
/// the recovered log ends before, or in the blank record behind it, which leaves less than another
/// record's length of its file unused.
pub(crate) fn in_flight(config: &StoreConfig) -> Option<u64> {
    let bounded = config.flush == FlushMode::Sync;
    bounded.then(|| 2 * config.max_record_size() as u64 + IN_FLIGHT_BYTES)
}

/// Makes `abort` durably: before the first write to the log.
pub(crate) fn announce(layout: &Layout, config: &StoreConfig) -> Result<(), FileError> {
    let abort = layout.abort();
    let mut text = format!("{}\n", std::process::id());
    if let (Some(bytes), Some(locked)) = (in_flight(config), locked_at(layout)) {
        text += &format!("{IN_FLIGHT}{bytes} {locked}\n");
    }
    let write = || {
        let mut file = medium::name(&abort, || File::create(&abort))?;
        match file.write_all(text.as_bytes()) {
            // Without a text nothing bounds what a crash leaves: all of it is looked at.
            Err(error) if is_no_space(&error) => {
                tracing::warn!(%error, "a start after a crash of this run will take longer");
                file.set_len(0)?;
            }
            written => written?,
        }
        medium::sync_file(&file)
    };
    write().map_err(FileError::at("create", &abort))?;
    medium::sync_directory(layout.root()).map_err(FileError::at("sync", layout.root()))
}

/// When the lock file was last written: Apache writes it at every start and may leave our `abort`
/// as it is, this broker writes it once.
fn locked_at(layout: &Layout) -> Option<String> {
    let details = std::fs::metadata(layout.lock()).ok()?;
    Some(format!("{}.{:09}", details.mtime(), details.mtime_nsec()))
}

impl FormerRun {
    /// Reads `abort`. A text that cannot be read says nothing, and so gives no bound.
    pub(crate) fn of(layout: &Layout) -> FormerRun {
        let mut text = String::new();
        let read =
            File::open(layout.abort()).map(|file| file.take(READ_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => FormerRun::Closed,
            Ok(Ok(_)) => match (bound_in(&text), locked_at(layout)) {
                (Some((bytes, then)), Some(now)) if then == now => FormerRun::Bounded(bytes),
                _ => FormerRun::Unbounded,
            },
            Ok(Err(_)) | Err(_) => FormerRun::Unbounded,
        }
    }

    /// Whether the last run ended orderly.
    pub(crate) fn is_closed(self) -> bool {
        self == FormerRun::Closed
    }
}

/// The bound and the lock's time, from a text that was written whole.
fn bound_in(text: &str) -> Option<(u64, &str)> {
    let line = text.strip_suffix('\n')?.lines().nth(1)?;
    let (bytes, locked) = line.strip_prefix(IN_FLIGHT)?.split_once(' ')?;
    Some((bytes.parse().ok()?, locked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::StoreLock;

    #[test]
    fn the_next_start_knows_what_a_crash_can_have_left() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        drop(StoreLock::take(dir.path()).unwrap());
        assert_eq!(FormerRun::of(&layout), FormerRun::Closed);
        let mut config = StoreConfig::new(dir.path());
        announce(&layout, &config).unwrap();
        let bytes = in_flight(&config).unwrap();
        assert!(bytes > IN_FLIGHT_BYTES);
        // A start that is interrupted changes nothing.
        drop(StoreLock::take(dir.path()).unwrap());
        assert_eq!(FormerRun::of(&layout), FormerRun::Bounded(bytes));
        config.flush = FlushMode::Async;
        announce(&layout, &config).unwrap();
        assert_eq!(FormerRun::of(&layout), FormerRun::Unbounded);
    }

    #[test]
    fn a_text_of_another_broker_or_cut_short_bounds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let _lock = StoreLock::take(dir.path()).unwrap();
        announce(&layout, &StoreConfig::new(dir.path())).unwrap();
        let whole = std::fs::read(layout.abort()).unwrap();
        for len in 0..whole.len() {
            std::fs::write(layout.abort(), &whole[..len]).unwrap();
            assert_eq!(FormerRun::of(&layout), FormerRun::Unbounded, "{len}");
        }
    }

    #[test]
    fn a_broker_that_took_the_lock_since_voids_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        drop(StoreLock::take(dir.path()).unwrap());
        announce(&layout, &StoreConfig::new(dir.path())).unwrap();
        assert_ne!(FormerRun::of(&layout), FormerRun::Unbounded);
        // Apache 4.9 leaves an `abort` that is there as it is.
        let lock = File::options().write(true).open(layout.lock()).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        lock.set_modified(later).unwrap();
        assert_eq!(FormerRun::of(&layout), FormerRun::Unbounded);
    }
}
