//! Looking for records behind bad bytes, and for anything at all behind the log's end.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::{ScanRange, is_zero, record_bytes};
use crate::error::FileError;
use crate::format::record::Record;
use crate::log_window::{LOOK_BYTES, LogWindow, SCAN_BYTES, WindowLimits};
use crate::side_by_side;

/// Smallest piece looked at when searching for the next record behind damage.
const SEARCH_BYTES: usize = 64 << 10;
/// Bytes of each file that a glance looks at whole.
const GLANCE_WHOLE: u64 = 32 << 20;
/// Behind them it looks at the beginning of every piece of so many bytes.
const GLANCE_STEP: u64 = 1 << 20;
/// Pieces that one of several threads looks at in turn.
const SAMPLES_EACH: usize = 4;
/// How often a long search says how far it is.
const TELL: Duration = Duration::from_secs(2);

/// Whether bad bytes at `at` are the log's end: a write can have been torn there, no record in
/// `torn` was acknowledged, and none behind it proves that everything before it was stored.
pub(super) fn ends_log(
    window: &mut LogWindow,
    range: &ScanRange<'_>,
    at: u64,
    torn: Range<u64>,
) -> Result<bool, FileError> {
    if at < range.strict_from || is_left(window, range, at)? {
        return Ok(false);
    }
    let proof = &range.proof;
    let known = torn.start..torn.end.min(proof.known_to);
    let acknowledged = |record: &Record<'_>, _| (proof.acknowledged)(record);
    if is_proved(window, range, at, known, &acknowledged)? {
        return Ok(false);
    }
    let end = at.saturating_add(proof.to);
    let glance = proof.glance && torn.end >= proof.known_to && torn.end < end;
    if glance && !is_used(window, range.bases, torn.end)? {
        return Ok(true);
    }
    Ok(!is_proved(window, range, at, torn.end..end, proof.accepts)?)
}

/// Whether of what was on the disk from `at` on anything but zeros is there.
fn is_left(window: &mut LogWindow, range: &ScanRange<'_>, mut at: u64) -> Result<bool, FileError> {
    while at < range.durable_to {
        let base = at - at % range.file_size;
        if range.bases.binary_search(&base).is_err() {
            break;
        }
        let end = range.durable_to.min(base + range.file_size);
        if holds_anything_in(window, at..end)? {
            return Ok(true);
        }
        at = end;
    }
    Ok(false)
}

/// Whether an intact record of `places` proves that what is bad at `at` was whole.
fn is_proved(
    window: &mut LogWindow,
    range: &ScanRange<'_>,
    at: u64,
    places: Range<u64>,
    accepts: &dyn Fn(&Record<'_>, bool) -> bool,
) -> Result<bool, FileError> {
    let Range { start, end } = places;
    let mut place = start;
    let mut said = Instant::now();
    while place < end {
        let base = place - place % range.file_size;
        if range.bases.binary_search(&base).is_err() {
            break;
        }
        if said.elapsed() >= TELL {
            said = Instant::now();
            tracing::info!(at, "looking for records behind bad bytes: at {place}");
        }
        let file_end = base + range.file_size;
        let later = at < base;
        let Some(found) = next_record(window, range.limits, place, file_end.min(end))? else {
            place = file_end;
            continue;
        };
        let bytes = record_bytes(window, range.limits, found, file_end)?;
        match Record::decode(bytes) {
            Ok(record) if record.check_body().is_ok() && accepts(&record, later) => {
                return Ok(true);
            }
            Ok(record) => place = found + u64::from(record.size()),
            Err(_) => place = found + 1,
        }
    }
    Ok(false)
}

/// Whether anything but zeros stands in a part of one file.
pub(super) fn holds_anything_in(
    window: &mut LogWindow,
    part: Range<u64>,
) -> Result<bool, FileError> {
    let mut at = part.start;
    while at < part.end {
        let piece = (SCAN_BYTES as u64).min(part.end - at);
        if holds_anything(window, at, piece)? {
            return Ok(true);
        }
        at += piece;
    }
    Ok(false)
}

/// The next position from `from` on, below `end`, where a record stands that says it belongs
/// there.
pub(super) fn next_record(
    window: &mut LogWindow,
    limits: WindowLimits,
    from: u64,
    end: u64,
) -> Result<Option<u64>, FileError> {
    let mut at = from;
    let file_end = window.base_of(from) + window.file_size();
    // A head may go on behind `end`.
    let end = end.saturating_add(35).min(file_end);
    while at + 8 < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        let size = left.min(SEARCH_BYTES);
        let Some(bytes) = window.bytes(at, size, limits, SCAN_BYTES)? else {
            return Ok(None);
        };
        if is_zero(bytes) {
            if size < SEARCH_BYTES {
                return Ok(None);
            }
            // The last 35 bytes can begin a record whose head ends in the next piece.
            at += (size - 35) as u64;
            at = at.max(window.skip_hole(at + 35)?.saturating_sub(35));
            continue;
        }
        let hits = bytes.windows(36).enumerate();
        let candidate =
            hits.map(|(index, head)| (at + index as u64, head))
                .find(|(place, head)| {
                    head[4] == 0xDA
                        && head[5] == 0xA3
                        && head[6] == 0x20
                        && matches!(head[7], 0xA7 | 0xAB)
                        && head[28..36] == place.to_be_bytes()
                });
        match candidate.map(|(place, _)| place) {
            Some(place) if decodes(window, limits, place, file_end)? => return Ok(Some(place)),
            Some(place) => at = place + 1,
            None if size < SEARCH_BYTES => return Ok(None),
            None => at += (size - 35) as u64,
        }
    }
    Ok(None)
}

fn decodes(
    window: &mut LogWindow,
    limits: WindowLimits,
    at: u64,
    file_end: u64,
) -> Result<bool, FileError> {
    Ok(Record::decode(record_bytes(window, limits, at, file_end)?).is_ok())
}

/// Whether anything but zeros stands in the log from `from` on, in the files `bases`, as far as a
/// glance shows: 32 MiB of each file are looked at whole, of the rest 4 KiB in each MiB. Holes cost
/// nothing. What could hide from it is less than a MiB of log, or bodies of zeros, behind a longer
/// stretch of zeros.
pub(crate) fn is_used(window: &mut LogWindow, bases: &[u64], from: u64) -> Result<bool, FileError> {
    let size = window.file_size();
    for base in bases.iter().filter(|base| **base + size > from) {
        let file_end = base + size;
        let mut at = window.skip_hole(from.max(*base))?;
        let whole_to = file_end.min(at + GLANCE_WHOLE);
        while at < whole_to {
            let piece = (SCAN_BYTES as u64).min(file_end - at);
            if holds_anything(window, at, piece)? {
                return Ok(true);
            }
            at = match at + piece < file_end {
                true => window.skip_hole(at + piece)?,
                false => file_end,
            };
        }
        if samples_hold_anything(window, at, file_end)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn holds_anything(window: &mut LogWindow, at: u64, len: u64) -> Result<bool, FileError> {
    let bytes = window.bytes(at, len as usize, WindowLimits::QUIET, LOOK_BYTES)?;
    Ok(bytes.is_some_and(|bytes| !is_zero(bytes)))
}

/// Whether anything but zeros begins a piece of `[from, file_end)`. Each look waits for the disk,
/// so there are several at a time.
fn samples_hold_anything(window: &LogWindow, from: u64, file_end: u64) -> Result<bool, FileError> {
    let samples: Vec<u64> = (from..file_end).step_by(GLANCE_STEP as usize).collect();
    let parts: Vec<&[u64]> = samples.chunks(SAMPLES_EACH).collect();
    let looked = side_by_side::map(&parts, |part| {
        let mut window = window.another();
        for sample in *part {
            // Data that begins within the piece is where the piece begins.
            let at = window.skip_hole(*sample)?;
            let len = (LOOK_BYTES as u64).min(file_end - at.min(file_end));
            if at - sample < GLANCE_STEP && len > 0 && holds_anything(&mut window, at, len)? {
                return Ok(true);
            }
        }
        Ok(false)
    });
    for found in looked {
        if found? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whole records at their own log offsets in `[from, to)`, which lies in one file.
pub(crate) fn count_records(window: &mut LogWindow, from: u64, to: u64) -> Result<u64, FileError> {
    let limits = WindowLimits::QUIET;
    let file_end = window.base_of(from) + window.file_size();
    let (mut at, mut count) = (from, 0);
    while at < to {
        let Some(found) = next_record(window, limits, at, to)? else {
            break;
        };
        let bytes = record_bytes(window, limits, found, file_end)?;
        let whole = Record::decode(bytes)
            .ok()
            .filter(|record| record.check_body().is_ok())
            .map(|record| u64::from(record.size()));
        count += u64::from(whole.is_some());
        at = found + whole.unwrap_or(1);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const FILE: u64 = 64 << 20;

    /// Two log files without a block.
    fn empty_log() -> (tempfile::TempDir, LogWindow) {
        let dir = tempfile::tempdir().unwrap();
        for base in [0, FILE] {
            let file = File::create(dir.path().join(format!("{base:020}"))).unwrap();
            file.set_len(FILE).unwrap();
        }
        let window = LogWindow::new(dir.path(), FILE);
        (dir, window)
    }

    fn write(dir: &tempfile::TempDir, at: u64, bytes: &[u8]) {
        let path = dir.path().join(format!("{:020}", at - at % FILE));
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, at % FILE).unwrap();
    }

    #[test]
    fn a_glance_sees_what_is_no_zero_in_whatever_was_written() {
        let bases = [0, FILE];
        // Blocks of their own among holes; the last byte; the first of the next file.
        for at in [
            5,
            20 << 20,
            (40 << 20) + 5,
            (50 << 20) + 700_000,
            FILE - 1,
            FILE,
        ] {
            let (dir, mut window) = empty_log();
            assert!(!is_used(&mut window, &bases, 0).unwrap());
            write(&dir, at, b"x");
            window.forget();
            assert!(is_used(&mut window, &bases, 0).unwrap(), "{at}");
            assert!(is_used(&mut window, &bases, at).unwrap(), "{at}");
            assert!(!is_used(&mut window, &bases, at + 1).unwrap(), "{at}");
        }
    }

    #[test]
    fn a_glance_over_written_zeros_sees_every_mebibyte() {
        let (dir, mut window) = empty_log();
        write(&dir, 0, &vec![0; FILE as usize]);
        assert!(!is_used(&mut window, &[0], 0).unwrap());
        // Longer than the step: no place escapes.
        for at in [3 << 20, (33 << 20) + 77, FILE - (1 << 20)] {
            write(&dir, at, &vec![7; 1 << 20]);
            window.forget();
            assert!(is_used(&mut window, &[0], 0).unwrap(), "{at}");
            write(&dir, at, &vec![0; 1 << 20]);
            window.forget();
            assert!(!is_used(&mut window, &[0], 0).unwrap(), "{at}");
        }
    }

    #[test]
    fn a_search_finds_a_record_behind_holes_and_zeros_wherever_it_begins() {
        use crate::format::message::{MessageParts, assign, encode_into, encoded_len};
        let host = ([127, 0, 0, 1], 10911).into();
        let parts = MessageParts {
            topic: "Orders",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            properties: &[],
        };
        let mut record = vec![0; encoded_len(&parts).unwrap()];
        encode_into(&parts, &mut record).unwrap();
        // Heads across the pieces that are looked at, and across the end of a hole.
        for near in [SEARCH_BYTES as u64, 8 << 20, 40 << 20] {
            for before in 0..40 {
                let (dir, mut window) = empty_log();
                let at = near - before;
                assign(&mut record, 0, at, 1000);
                write(&dir, at, &record);
                let found = next_record(&mut window, WindowLimits::QUIET, 1, FILE);
                assert_eq!(found.unwrap(), Some(at));
                assert_eq!(count_records(&mut window, 1, FILE).unwrap(), 1);
                assert_eq!(count_records(&mut window, 1, at).unwrap(), 0);
            }
        }
    }
}
