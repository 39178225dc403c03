//! What a run leaves in `abort` for the start after its crash
//! (docs/durability.md, "Crash recovery").
//!
//! To Apache RocketMQ only the file's existence counts. The first line is the process, as Apache 5
//! writes it; the second one, which Apache never writes, bounds what a crash can leave in the log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::config::{FlushMode, StoreConfig};
use crate::error::FileError;
use crate::layout::Layout;
use crate::segments::is_no_space;
use crate::writer::IN_FLIGHT_BYTES;
use crate::{medium, regular};

/// What the second line begins with; a number of bytes follows, when the lock was written, and
/// where the bound holds only as long as the page cache does, what tells page caches apart.
const IN_FLIGHT: &str = "saturnmq in-flight bytes ";
/// `STATX_MNT_ID_UNIQUE`: a number of the mount that is never given again (Linux 6.8).
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);
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
    /// In a crash of another broker, or of the machine where that can take back any part of what
    /// was written since the last sync; so can a sync that failed.
    Unbounded,
}

/// Bytes behind the end of the last whole record that a crash of a run with this configuration can
/// have left something in.
///
/// Everything below the first write that is not complete is on the disk under SYNC_FLUSH, and in
/// the page cache under ASYNC_FLUSH. What was submitted then ends at most [`IN_FLIGHT_BYTES`]
/// further on; that write lies in the record that the recovered log ends before, or in the blank
/// record behind it, which leaves less than another record's length of its file unused.
pub(crate) fn in_flight(config: &StoreConfig) -> u64 {
    2 * config.max_record_size() as u64 + IN_FLIGHT_BYTES
}

/// Makes `abort` durably: before the first write to the log.
pub(crate) fn announce(layout: &Layout, config: &StoreConfig) -> Result<(), FileError> {
    let abort = layout.abort();
    let mut text = format!("{}\n", std::process::id());
    let bytes = in_flight(config);
    match (
        config.flush,
        locked_at(layout),
        page_cache(layout.commit_log()),
    ) {
        (FlushMode::Sync, Some(locked), _) => text += &format!("{IN_FLIGHT}{bytes} {locked}\n"),
        (FlushMode::Async, Some(locked), Some(cache)) => {
            text += &format!("{IN_FLIGHT}{bytes} {locked} {cache}\n");
        }
        (FlushMode::Sync | FlushMode::Async, ..) => {}
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

/// What differs once the page cache of the filesystem of `path` was lost: the boot and the mount.
#[cfg(not(test))]
fn page_cache(path: &Path) -> Option<String> {
    cache_of(path)
}

fn cache_of(path: &Path) -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let wanted = StatxFlags::MNT_ID | UNIQUE_MOUNT;
    let found = statx(CWD, path, AtFlags::empty(), wanted).ok()?;
    Some(format!("{}/{}", boot.trim(), found.stx_mnt_id))
}

/// A sync of the log failed: the page cache may drop what it takes for stored from now on, a start
/// after a kill does, and so a bound that needs the page cache is void.
pub(crate) fn void_bound(abort: &Path) {
    let void = || -> io::Result<()> {
        let mut file = File::options().read(true).write(true).open(abort)?;
        let mut text = String::new();
        io::Read::by_ref(&mut file)
            .take(READ_MAX)
            .read_to_string(&mut text)?;
        let first = text.find('\n').map_or(text.len(), |end| end + 1);
        match bound_in(&text) {
            Some(bound) if bound.cache.is_some() => file.set_len(first as u64),
            _ => Ok(()),
        }
    };
    match void() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let path = abort.display();
            tracing::warn!(%path, %error, "what the failed sync lost will count as damage");
        }
        _ => {}
    }
}

impl FormerRun {
    /// Reads `abort`. A text that cannot be read says nothing, and so gives no bound.
    pub(crate) fn of(layout: &Layout) -> FormerRun {
        let mut text = String::new();
        let read = regular::open(&layout.abort())
            .map(|file| file.take(READ_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => FormerRun::Closed,
            Ok(Ok(_)) => match (bound_in(&text), locked_at(layout)) {
                (Some(bound), Some(now))
                    if bound.locked == now
                        && (bound.cache.is_none()
                            || bound.cache == page_cache(layout.commit_log()).as_deref()) =>
                {
                    FormerRun::Bounded(bound.bytes)
                }
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

/// The second line of `abort`.
struct Bound<'a> {
    bytes: u64,
    /// When the lock was written.
    locked: &'a str,
    /// The page cache without which the bound is void; `None` if it holds without any.
    cache: Option<&'a str>,
}

/// The bound in a text that was written whole.
fn bound_in(text: &str) -> Option<Bound<'_>> {
    let line = text.strip_suffix('\n')?.lines().nth(1)?;
    let mut words = line.strip_prefix(IN_FLIGHT)?.split(' ');
    let bound = Bound {
        bytes: words.next()?.parse().ok()?,
        locked: words.next()?,
        cache: words.next(),
    };
    words.next().is_none().then_some(bound)
}

#[cfg(test)]
thread_local! {
    static CACHES_LOST: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// From now on this thread's page cache is another one, as after a power cut.
#[cfg(test)]
pub(crate) fn lose_page_cache() {
    CACHES_LOST.set(CACHES_LOST.get() + 1);
}

#[cfg(test)]
fn page_cache(_path: &Path) -> Option<String> {
    Some(format!("cache-{}", CACHES_LOST.get()))
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
        let bytes = in_flight(&config);
        assert!(bytes > IN_FLIGHT_BYTES);
        // A start that is interrupted changes nothing.
        drop(StoreLock::take(dir.path()).unwrap());
        assert_eq!(FormerRun::of(&layout), FormerRun::Bounded(bytes));
        lose_page_cache();
        assert_eq!(FormerRun::of(&layout), FormerRun::Bounded(bytes));
        // What was not synced is there as long as the page cache is.
        config.flush = FlushMode::Async;
        announce(&layout, &config).unwrap();
        assert_eq!(FormerRun::of(&layout), FormerRun::Bounded(bytes));
        lose_page_cache();
        assert_eq!(FormerRun::of(&layout), FormerRun::Unbounded);
    }

    #[test]
    fn a_failed_sync_voids_the_bound_that_needs_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let _lock = StoreLock::take(dir.path()).unwrap();
        let mut config = StoreConfig::new(dir.path());
        announce(&layout, &config).unwrap();
        // Each write is a sync here: what one that fails leaves is within the bound.
        void_bound(&layout.abort());
        assert_ne!(FormerRun::of(&layout), FormerRun::Unbounded);
        config.flush = FlushMode::Async;
        announce(&layout, &config).unwrap();
        let text = std::fs::read_to_string(layout.abort()).unwrap();
        assert_ne!(FormerRun::of(&layout), FormerRun::Unbounded);
        void_bound(&layout.abort());
        assert_eq!(FormerRun::of(&layout), FormerRun::Unbounded);
        // What Apache reads of it is still there.
        let left = std::fs::read_to_string(layout.abort()).unwrap();
        assert_eq!(text.lines().next(), left.strip_suffix('\n'));
    }

    #[test]
    fn page_caches_are_told_apart_by_boot_and_mount() {
        let cache = cache_of(Path::new("/")).unwrap();
        assert_eq!(cache_of(Path::new("/")).unwrap(), cache);
        assert_ne!(cache_of(Path::new("/proc")).unwrap(), cache);
        assert!(!cache.contains(' '), "{cache}");
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
