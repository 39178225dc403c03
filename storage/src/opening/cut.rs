//! The end of the log on disk: nothing but zeros behind it, and what stands before it durable.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Opening, make_directory};
use crate::error::{FileError, OpenError};
use crate::format::record::RecordError;
use crate::former_run::{self, FormerRun};
use crate::layout::file_name;
use crate::log_window::{LogWindow, WindowLimits};
use crate::medium::{self, sync_directory};
use crate::recovery::{ScanEnd, count_records, is_used, is_zero};
use crate::seeded::{Fault, seeded};

/// Bytes behind the end of a log without a bound in which whole messages are counted.
const COUNTED_BYTES: u64 = 32 << 20;
/// Read at a time when looking for what is not zero, in bytes.
const WIPE_BYTES: usize = 4 << 20;

impl Opening<'_> {
    /// Removes files beyond the log's end and zeroes what a crash can have left behind it in its
    /// file: a later record could bring it back to life. What no crash left is put aside.
    pub(super) fn cut_log(&mut self, found: &ScanEnd) -> Result<(), OpenError> {
        let end = found.end;
        let written_to = match self.former {
            FormerRun::Bounded(bytes) => end.saturating_add(bytes),
            FormerRun::Closed | FormerRun::Unbounded => end,
        };
        self.clear_files_behind(end, written_to)?;
        let believed = self.former.is_closed() && self.resume.is_some();
        let zeros_behind = believed && found.reason == Some(RecordError::Magic { found: 0 });
        let size = self.config.commit_log_file_size;
        let holds_end = self.bases.last().is_some_and(|base| end < base + size);
        if holds_end && !zeros_behind && !seeded(Fault::NoZeroing) {
            self.window.forget();
            let file_end = end - end % size + size;
            let to = match self.former {
                // What stands further on was looked for, and is no record that belongs there.
                FormerRun::Bounded(_)
                    if written_to >= file_end
                        || !is_used(&mut self.window, &[end - end % size], written_to)? =>
                {
                    written_to.min(file_end)
                }
                _ => file_end,
            };
            let records = self.count_cut(end, to)?;
            self.tell_cut(end, records);
            self.window.forget();
            self.report.wiped_bytes = to - end;
            let wiped = wipe(&mut self.window, end, to)?;
            // Without a reason it is the blank before a file that was not made.
            if records == 0 && found.reason.is_some() && !wiped.is_empty() {
                tracing::warn!(
                    end,
                    from = wiped.start,
                    to = wiped.end,
                    "bytes that are no whole message stood behind the log's end and were zeroed"
                );
            }
        }
        self.window.forget();
        if !believed {
            self.sync_log()?;
        }
        if holds_end {
            uncache(&self.window.path_of(end));
        }
        Ok(())
    }

    /// Whole messages behind the log's end that are about to be zeroed.
    fn count_cut(&mut self, end: u64, to: u64) -> Result<u64, FileError> {
        let near = match self.former {
            // What a crash leaves there are zeros, all that is looked at otherwise.
            FormerRun::Unbounded => to.min(end.saturating_add(COUNTED_BYTES)),
            FormerRun::Bounded(_) | FormerRun::Closed => to,
        };
        count_records(&mut self.window, end, near)
    }

    fn tell_cut(&self, end: u64, records: u64) {
        match self.former {
            _ if records == 0 => {}
            FormerRun::Closed => tracing::warn!(
                end,
                records,
                "whole messages stand behind the end of a log that was closed in order, and \
                 nothing says that they belong to it: they are zeroed"
            ),
            FormerRun::Bounded(_) | FormerRun::Unbounded => tracing::warn!(
                end,
                records,
                "whole messages stand behind a bad place that a power cut can have left: the log \
                 is cut there, and they are zeroed. If the power did not fail, the disk did"
            ),
        }
    }

    /// Takes the files that begin behind the log's end out of its directory. Up to `written_to` a
    /// crash can have left anything in them.
    fn clear_files_behind(&mut self, end: u64, written_to: u64) -> Result<(), OpenError> {
        let behind: Vec<u64> = self
            .bases
            .iter()
            .copied()
            .filter(|base| *base > end)
            .collect();
        if behind.is_empty() {
            return Ok(());
        }
        let mut aside = None;
        // The last one first: a start that ends in between leaves no gap.
        for base in behind.iter().rev() {
            let path = self.window.path_of(*base);
            if !is_used(&mut self.window, &[*base], written_to)? {
                remove(&path)?;
                continue;
            }
            let directory = match aside.take() {
                Some(directory) => directory,
                None => make_aside(self.layout.commit_log(), end, &behind)?,
            };
            put_aside(&path, &directory)?;
            aside = Some(directory);
        }
        let directory = self.layout.commit_log();
        sync_directory(directory).map_err(FileError::at("sync", directory))?;
        self.bases.retain(|base| *base <= end);
        self.window.forget();
        if let Some(aside) = aside {
            let root = aside.parent().unwrap_or(&aside);
            tracing::warn!(
                end,
                aside = %aside.display(),
                "log files behind the log's end are not empty and were put aside: nothing says \
                 that the log goes on in them. `saturnmq inspect {}` shows their messages. If they \
                 belong to the log, stop the broker before anybody sends, put them back into {} \
                 with what is missing before them, and start once with --rebuild-queues; otherwise \
                 delete {}",
                root.display(),
                directory.display(),
                root.display()
            );
        }
        Ok(())
    }

    /// Has the scan read what is on the disk. After a failed write the page cache may hold pages
    /// that it takes for stored and that are not: a record found in them would be gone once they
    /// are evicted.
    pub(super) fn drop_cached_log(&mut self) -> Result<(), OpenError> {
        self.sync_log()?;
        let from = self.resume.as_ref().map_or(0, |point| point.log_offset);
        for base in &self.bases {
            if base + self.config.commit_log_file_size > from {
                uncache(&self.window.path_of(*base));
            }
        }
        self.window.forget();
        Ok(())
    }

    /// Makes durable what was found behind the resume point. A process that was killed leaves
    /// bytes that only the page cache or the drive's cache holds; records that are acknowledged
    /// from now on stand behind them, and a hole in front of those would take them along.
    pub(super) fn sync_log(&self) -> Result<(), OpenError> {
        if seeded(Fault::NoSyncOfFound) {
            return Ok(());
        }
        let from = self.resume.as_ref().map_or(0, |point| point.log_offset);
        for base in &self.bases {
            if base + self.config.commit_log_file_size > from {
                let path = self.window.path_of(*base);
                let synced = File::open(&path).and_then(|file| medium::sync_file(&file));
                if synced.is_err() {
                    former_run::void_bound(&self.layout.abort());
                }
                synced.map_err(FileError::at("sync", &path))?;
            }
        }
        let directory = self.layout.commit_log();
        sync_directory(directory).map_err(FileError::at("sync", directory))?;
        Ok(())
    }
}

pub(super) fn remove(path: &Path) -> Result<(), OpenError> {
    tracing::warn!(path = %path.display(), "removing a file beyond the log's end");
    Ok(medium::remove_file(path).map_err(FileError::at("remove", path))?)
}

/// The directory for the files at `bases` of a log that ends at `end`: beside that log's, for they
/// can only be renamed within a filesystem, and below one of its own, which can be looked at like a
/// store. A start that was killed meanwhile left it with some of them.
fn make_aside(log: &Path, end: u64, bases: &[u64]) -> Result<PathBuf, OpenError> {
    let mut number = 1;
    loop {
        let name = match number {
            1 => format!("saturnmq-aside-{end}"),
            _ => format!("saturnmq-aside-{end}-{number}"),
        };
        let aside = log.with_file_name(name).join("commitlog");
        if !bases
            .iter()
            .any(|base| aside.join(file_name(*base)).exists())
        {
            make_directory(&aside)?;
            return Ok(aside);
        }
        number += 1;
    }
}

/// Moves a log file to `directory`, durably there before it is gone from the log's.
fn put_aside(path: &Path, directory: &Path) -> Result<(), OpenError> {
    let target = directory.join(path.file_name().unwrap_or_default());
    let moved = medium::rename(path, &target).and_then(|()| sync_directory(directory));
    Ok(moved.map_err(FileError::at(
        "move aside the log file, which is not empty and lies behind the log's end,",
        path,
    ))?)
}

/// Zeroes whatever is not zero in `[from, to)`, which lies in one file, durably; from where to
/// where that was.
fn wipe(window: &mut LogWindow, from: u64, to: u64) -> Result<Range<u64>, OpenError> {
    let path = window.path_of(from);
    let base = window.base_of(from);
    let mut file: Option<File> = None;
    let mut wiped = 0..0;
    let mut at = from;
    while at < to {
        let size = (WIPE_BYTES as u64 - at % WIPE_BYTES as u64).min(to - at) as usize;
        let limits = WindowLimits {
            end: u64::MAX,
            // Past the page cache: the file is written that way from now on.
            active_base: base,
        };
        let dirty = window
            .bytes(at, size, limits, WIPE_BYTES)?
            .map_or(0..0, dirty_part);
        if !dirty.is_empty() {
            let opened = match file.take() {
                Some(file) => file,
                None => OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .map_err(FileError::at("open", &path))?,
            };
            let zeros = vec![0; dirty.len()];
            medium::write_at(&opened, &zeros, at - base + dirty.start as u64)
                .map_err(FileError::at("zero the end of", &path))?;
            let first = at + dirty.start as u64;
            wiped.start = if wiped.is_empty() { first } else { wiped.start };
            wiped.end = at + dirty.end as u64;
            file = Some(opened);
        }
        at += size as u64;
    }
    if let Some(file) = file {
        medium::sync_file(&file).map_err(FileError::at("sync", &path))?;
    }
    Ok(wiped)
}

/// Drops what the page cache holds of a file that was synced before: direct writes over cached
/// pages are slow.
fn uncache(path: &Path) {
    // Where it fails, the first write over each page pays for it.
    let _ = medium::forget_cached(path);
}

/// From the first to the last byte that is not zero.
fn dirty_part(bytes: &[u8]) -> std::ops::Range<usize> {
    if is_zero(bytes) {
        return 0..0;
    }
    let first = bytes.iter().position(|byte| *byte != 0);
    let last = bytes.iter().rposition(|byte| *byte != 0);
    match (first, last) {
        (Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    }
}
