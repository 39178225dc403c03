//! Files of the timer log that have another size than is configured, or do not follow each other
//! (docs/durability.md, Timer state).

use std::fs::OpenOptions;
use std::path::Path;

use super::TimerError;
use super::check_point::write_check;
use crate::error::FileError;
use crate::format::timer::{BLANK_SIZE, Check, ITEM_SIZE};
use crate::layout::{LayoutError, entries, list_fixed_files, parse_file_name};
use crate::medium;

/// What [`fit`] came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Fitted {
    /// Bytes of a file.
    pub(super) file_size: u64,
    /// The files cannot be used: everything is made again from the timer topic.
    pub(super) starts_over: bool,
}

/// Makes the files of a directory ones of `size` bytes, or finds the size that they have.
pub(super) fn fit(directory: &Path, size: u64, check: &Check) -> Result<Fitted, TimerError> {
    let fits = |file_size| Fitted {
        file_size,
        starts_over: false,
    };
    let error = match list_fixed_files(directory, size, "mappedFileSizeTimerLog") {
        Ok(_) => return Ok(fits(size)),
        Err(
            error @ (LayoutError::Size { .. }
            | LayoutError::Base { .. }
            | LayoutError::Missing { .. }),
        ) => error,
        Err(error) => return Err(error.into()),
    };
    let mut files = Vec::new();
    for path in entries(directory)? {
        let name = path.file_name().and_then(|name| name.to_str());
        let base = name.and_then(parse_file_name);
        let metadata = std::fs::metadata(&path).map_err(FileError::at("examine", &path))?;
        if let Some(base) = base.filter(|_| metadata.is_file()) {
            files.push((base, metadata.len(), path));
        }
    }
    files.sort();
    let own = own_size(&files, check);
    if let Some(own) = own.filter(|own| list_fixed_files(directory, *own, "").is_ok()) {
        tracing::warn!(%error, file_size = own,
            "mappedFileSizeTimerLog is not the size of the timer log's files: theirs is used");
        return Ok(fits(own));
    }
    let follow = |(a, b): (&File, &File)| a.0.checked_add(size) == Some(b.0);
    let in_place = files.iter().all(|(base, ..)| base.is_multiple_of(size))
        && files.iter().zip(files.iter().skip(1)).all(follow);
    if !in_place {
        tracing::warn!(%error,
            "the timer log cannot be used: it is made again from the timer topic");
        return Ok(Fitted {
            file_size: size,
            starts_over: true,
        });
    }
    tracing::warn!(%error, "files of the timer log get their size back: \
         what they lack is made again from the timer topic");
    for (_, _, path) in files.iter().filter(|(_, len, _)| *len != size) {
        let resize = || OpenOptions::new().write(true).open(path)?.set_len(size);
        resize().map_err(FileError::at("resize", path))?;
    }
    Ok(fits(size))
}

type File = (u64, u64, std::path::PathBuf);

/// The size that all files have, if it can be the one they were made with.
fn own_size(files: &[File], check: &Check) -> Option<u64> {
    let (first, len, _) = files.first()?;
    let same = files.iter().all(|(_, other, _)| other == len);
    // One that was cut alone does not reach what `timercheck` says it has.
    let said = u64::try_from(check.log_position).unwrap_or(0);
    let whole = files.len() > 1 || first.checked_add(*len)? >= said;
    (same && whole && *len >= (ITEM_SIZE + BLANK_SIZE) as u64).then_some(*len)
}

/// Removes the timer log, once it is noted that everything is to be entered again.
pub(super) fn start_over(
    directory: &Path,
    check_path: &Path,
    check: &Check,
) -> Result<(), TimerError> {
    let check = Check {
        log_position: 0,
        queue_offset: 0,
        master_queue_offset: 0,
        ..*check
    };
    write_check(check_path, &check)?;
    for path in entries(directory)? {
        let name = path.file_name().and_then(|name| name.to_str());
        if name.and_then(parse_file_name).is_some() && path.is_file() {
            medium::remove_file(&path).map_err(FileError::at("remove", &path))?;
        }
    }
    Ok(medium::sync_directory(directory).map_err(FileError::at("sync", directory))?)
}
