//! Where the log ends, and what stands in it up to there (docs/durability.md, "Crash recovery").
//!
//! A scan walks the records of a log nobody writes to. Two zones: below `strict_from` a damaged
//! record is stepped over, since later records were acknowledged and a cut would lose them. From
//! `strict_from` on, bytes that are no intact record are what a torn write looks like and end the
//! log, unless a record behind them proves that they were stored whole once: then they are damage,
//! and what follows them is kept.

use crate::error::{FileError, OpenError};
use crate::format::record::{Decoded, Record, RecordError, SIZE_HEAD, can_have_size, decode};
use crate::log_window::{LogWindow, SCAN_BYTES, WindowLimits};

mod search;

pub(crate) use search::{count_records, is_used};
use search::{ends_log, holds_anything_in, next_record};

/// What shows that bad bytes are damage and no torn write.
#[derive(Clone, Copy)]
pub struct Proof<'a> {
    /// Bytes from the bad place to the first that are looked at: what a crash can have torn.
    pub from: u64,
    /// Bytes from the bad place to where looking ends; nothing is looked at if this is 0.
    pub to: u64,
    /// Whether a glance ([`is_used`]) tells first if there is anything to look at: where all that a
    /// crash leaves there is zeros.
    pub glance: bool,
    /// Log offset up to which something on the disk knows of records: below it a glance is not
    /// enough.
    pub known_to: u64,
    /// Whether an intact record at its own log offset could only be there if everything before it
    /// had been stored whole; with whether it stands in a later file than the bad place.
    pub accepts: &'a dyn Fn(&Record<'_>, bool) -> bool,
    /// The same of a record among what a crash can have torn: it was acknowledged.
    pub acknowledged: &'a dyn Fn(&Record<'_>) -> bool,
    /// Size of the record at a log offset, in bytes, as its queue has it.
    pub size_of: &'a dyn Fn(u64) -> Option<u32>,
}

impl Proof<'_> {
    /// Nothing is proof: the first bad bytes end the log.
    pub const NONE: Proof<'static> = Proof {
        from: 0,
        to: 0,
        glance: false,
        known_to: 0,
        accepts: &|_, _| false,
        acknowledged: &|_| false,
        size_of: &|_| None,
    };
}

/// The part of a log a scan walks.
#[derive(Clone, Copy)]
pub struct ScanRange<'a> {
    /// Bases of all log files, ascending and without gaps.
    pub bases: &'a [u64],
    /// Size of a log file, in bytes.
    pub file_size: u64,
    /// A record boundary to start from.
    pub from: u64,
    /// Log offset at which to stop.
    pub to: u64,
    /// Which bytes may be read, and how.
    pub limits: WindowLimits,
    /// Log offset from which damage ends the log, unless a record behind it proves otherwise.
    pub strict_from: u64,
    /// Log offset up to which everything was on the disk once: bad bytes before it are damage, and
    /// unless there are only zeros the log does not end there.
    pub durable_to: u64,
    /// Where proof is looked for.
    pub proof: Proof<'a>,
    /// Log offset from which topic and properties are looked at too: the writes a crash can have
    /// torn.
    pub in_flight_from: u64,
    /// Whether body checksums are compared.
    pub check_crc: bool,
}

/// A record a scan came by.
#[derive(Clone, Copy, Debug)]
pub struct Scanned<'a> {
    /// Log offset of its first byte.
    pub offset: u64,
    /// The record; its lengths fit.
    pub record: Record<'a>,
    /// Whether its body is not what was stored.
    pub damaged: bool,
}

/// Damage a scan stepped over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Log offset of the damaged record.
    pub offset: u64,
    /// Where the scan went on.
    pub resumed: u64,
    /// What does not fit.
    pub problem: RecordError,
}

/// What a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    /// Log offset after the last record.
    pub end: u64,
    /// Why the log ends there; `None` when the files end.
    pub reason: Option<RecordError>,
    /// Records walked.
    pub records: u64,
    /// Log offset and store time, in milliseconds, of the last record walked.
    pub last: Option<(u64, i64)>,
    /// Log offset after that record: blanks and damage may stand between it and the end.
    pub last_end: u64,
    /// Damage stepped over, the first [`DAMAGE_KEPT`] places.
    pub damage: Vec<Damage>,
    /// Damaged places in all.
    pub damage_count: u64,
    /// Where the last stretch of damage was left: if it goes on there, in the next file, no write
    /// was torn there.
    damaged_to: u64,
}

/// Most places of damage a scan reports one by one.
pub const DAMAGE_KEPT: usize = 100;

/// What follows at one position of the log.
enum Step {
    Next(u64),
    End(Option<RecordError>),
}

/// Walks the records of `range` in order and shows each to `visit`.
pub fn scan(
    window: &mut LogWindow,
    range: &ScanRange<'_>,
    visit: &mut dyn FnMut(Scanned<'_>) -> Result<(), OpenError>,
) -> Result<ScanEnd, OpenError> {
    let mut found = ScanEnd {
        end: range.from,
        reason: None,
        records: 0,
        last: None,
        last_end: range.from,
        damage: Vec::new(),
        damage_count: 0,
        damaged_to: u64::MAX,
    };
    let Some(last_base) = range.bases.last() else {
        return Ok(found);
    };
    let log_limit = range.to.min(last_base + range.file_size);
    while found.end < log_limit {
        let at = found.end;
        match step(window, range, at, &mut found, visit)? {
            Step::Next(next) => {
                assert!(next > at, "a scan moves forward");
                found.end = next;
            }
            Step::End(reason) => {
                found.reason = reason;
                break;
            }
        }
    }
    Ok(found)
}

/// Looks at one position: a record, a blank, or the end.
fn step(
    window: &mut LogWindow,
    range: &ScanRange<'_>,
    at: u64,
    found: &mut ScanEnd,
    visit: &mut dyn FnMut(Scanned<'_>) -> Result<(), OpenError>,
) -> Result<Step, OpenError> {
    let file_end = at - at % range.file_size + range.file_size;
    let bytes = record_bytes(window, range.limits, at, file_end)?;
    let problem = match decode(bytes) {
        Ok(Decoded::Blank { .. }) => return Ok(after_blank(range, at, file_end)),
        Ok(Decoded::Record(record)) => {
            let checked = check(&record, range, at);
            let in_place = record.check_place(at).is_ok();
            match checked {
                Ok(()) if in_place => {
                    found.records += 1;
                    found.last = Some((at, record.store_timestamp()));
                    found.last_end = at + u64::from(record.size());
                    visit(Scanned {
                        offset: at,
                        record,
                        damaged: false,
                    })?;
                    return Ok(Step::Next(at + u64::from(record.size())));
                }
                // Apache keeps such a record in the log without an entry; so it stays, unread.
                Ok(()) => {
                    let problem = record.check_place(at).err();
                    let next = at + u64::from(record.size());
                    note(found, at, next, problem.unwrap_or(RecordError::Blank));
                    return Ok(Step::Next(next));
                }
                Err(problem) if in_place => {
                    let next = at + u64::from(record.size());
                    let far = next.max(at.saturating_add(range.proof.from));
                    if ends_log(window, range, at, next..far)? {
                        return Ok(Step::End(Some(problem)));
                    }
                    let bytes = record_bytes(window, range.limits, at, file_end)?;
                    // Read again, for the search moved the window on.
                    if let Ok(record) = Record::decode(bytes) {
                        visit(Scanned {
                            offset: at,
                            record,
                            damaged: true,
                        })?;
                    }
                    note(found, at, next, problem);
                    return Ok(Step::Next(next));
                }
                Err(problem) => problem,
            }
        }
        Err(problem) => problem,
    };
    step_over(window, range, at, problem, found)
}

/// Bytes at `at` are no record: the next one behind them, or the end.
fn step_over(
    window: &mut LogWindow,
    range: &ScanRange<'_>,
    at: u64,
    problem: RecordError,
    found: &mut ScanEnd,
) -> Result<Step, OpenError> {
    let file_end = at - at % range.file_size + range.file_size;
    // The rest of a stretch of damage was not torn.
    let torn = if found.damaged_to == at {
        0
    } else {
        range.proof.from
    };
    if ends_log(window, range, at, at + 1..at.saturating_add(torn.max(1)))? {
        return Ok(Step::End(Some(problem)));
    }
    let from = after_known(window, range, at, file_end)?.unwrap_or(at + 1);
    let next = match next_record(window, range.limits, from, file_end)? {
        Some(next) => next,
        // Of the last records there is something left: the log goes on behind them.
        None if (at + 1..file_end).contains(&range.durable_to)
            && holds_anything_in(window, at..range.durable_to)? =>
        {
            range.durable_to
        }
        None => file_end,
    };
    found.damaged_to = next;
    note(found, at, next, problem.clone());
    let more = range.bases.contains(&(next - next % range.file_size));
    Ok(if more {
        Step::Next(next)
    } else {
        Step::End(Some(problem))
    })
}

/// Where the record at `at`, which cannot be read, ends by its queue entry, if something begins
/// there: what stands inside its body is no record of the log.
fn after_known(
    window: &mut LogWindow,
    range: &ScanRange<'_>,
    at: u64,
    file_end: u64,
) -> Result<Option<u64>, FileError> {
    let size_of = range.proof.size_of;
    let end = size_of(at).map_or(at, |size| at + u64::from(size));
    if end <= at || end >= file_end {
        return Ok(None);
    }
    // Otherwise the entry is damaged too.
    let begins = end == range.durable_to
        || size_of(end).is_some()
        || match decode(record_bytes(window, range.limits, end, file_end)?) {
            Ok(Decoded::Record(record)) => record.check_place(end).is_ok(),
            Ok(Decoded::Blank { .. }) => true,
            Err(_) => false,
        };
    Ok(begins.then_some(end))
}

/// After a blank record the log goes on in the next file, or ends before the blank without one.
fn after_blank(range: &ScanRange<'_>, at: u64, file_end: u64) -> Step {
    if range.bases.binary_search(&file_end).is_ok() {
        Step::Next(file_end)
    } else {
        assert!(at < file_end);
        Step::End(None)
    }
}

fn note(found: &mut ScanEnd, offset: u64, resumed: u64, problem: RecordError) {
    found.damage_count += 1;
    if found.damage.len() < DAMAGE_KEPT {
        found.damage.push(Damage {
            offset,
            resumed,
            problem,
        });
    }
}

/// Checks what a record's zone asks for.
fn check(record: &Record<'_>, range: &ScanRange<'_>, at: u64) -> Result<(), RecordError> {
    if range.check_crc {
        record.check_body()?;
    }
    if at >= range.in_flight_from {
        record.check_text(at)?;
        record.check_record_crc()?;
    }
    Ok(())
}

/// The bytes of the record at `at` if its size field can be true, else the few that show it is not.
pub(crate) fn record_bytes(
    window: &mut LogWindow,
    limits: WindowLimits,
    at: u64,
    file_end: u64,
) -> Result<&[u8], FileError> {
    let left = usize::try_from(file_end - at).unwrap_or(usize::MAX);
    let head_len = left.min(SIZE_HEAD);
    let head = window.bytes(at, head_len, limits, SCAN_BYTES)?;
    let Some(head @ &[a, b, c, d, ..]) = head else {
        return Ok(&[]);
    };
    let size = usize::try_from(i32::from_be_bytes([a, b, c, d])).unwrap_or(0);
    let possible = size <= SCAN_BYTES || can_have_size(head, size);
    let wanted = if (8..=left).contains(&size) && possible {
        size
    } else {
        left.min(8)
    };
    let bytes = window.bytes(at, wanted, limits, SCAN_BYTES)?;
    Ok(bytes.unwrap_or(&[]))
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    let zero = |chunk: &[u8; 64]| chunk.iter().fold(0, |all, byte| all | byte) == 0;
    chunks.iter().all(zero) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::message::{MessageParts, assign, blank_record, encode_into, encoded_len};

    const FILE: u64 = 16_384;

    /// Records of one queue laid out as the writer would, and where they stand.
    fn log(bodies: &[usize]) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for (index, size) in bodies.iter().enumerate() {
            let body = vec![b'a' + (index % 26) as u8; *size];
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
                body: &body,
                properties: &[b"TAGS\x01a"],
            };
            let len = encoded_len(&parts).unwrap();
            let left = FILE - bytes.len() as u64 % FILE;
            if len as u64 + 8 > left {
                bytes.extend(blank_record(left as u32));
                bytes.resize(bytes.len() + left as usize - 8, 0);
            }
            let at = bytes.len();
            bytes.resize(at + len, 0);
            encode_into(&parts, &mut bytes[at..]).unwrap();
            assign(
                &mut bytes[at..],
                index as i64,
                at as u64,
                1000 + index as i64,
            );
            places.push(at as u64);
        }
        (bytes, places)
    }

    fn write(dir: &Path, bytes: &[u8]) -> Vec<u64> {
        let chunks = bytes.chunks(FILE as usize).enumerate();
        let names = chunks.map(|(index, piece)| {
            let mut whole = piece.to_vec();
            whole.resize(FILE as usize, 0);
            let base = index as u64 * FILE;
            std::fs::write(dir.join(format!("{base:020}")), whole).unwrap();
            base
        });
        names.collect()
    }

    /// Scans what `bytes` make on disk: where it ends, and the offsets seen with whether they are
    /// damaged.
    fn scan_bytes(bytes: &[u8], strict_from: u64) -> (ScanEnd, Vec<(u64, bool)>) {
        let dir = tempfile::tempdir().unwrap();
        let bases = write(dir.path(), bytes);
        let range = ScanRange {
            bases: &bases,
            file_size: FILE,
            from: 0,
            to: u64::MAX,
            limits: WindowLimits::QUIET,
            strict_from,
            durable_to: 0,
            proof: Proof::NONE,
            in_flight_from: strict_from,
            check_crc: true,
        };
        let mut seen = Vec::new();
        let mut window = LogWindow::new(dir.path(), FILE);
        let end = scan(&mut window, &range, &mut |scanned| {
            seen.push((scanned.offset, scanned.damaged));
            Ok(())
        });
        (end.unwrap(), seen)
    }

    fn intact(places: &[u64]) -> Vec<(u64, bool)> {
        places.iter().map(|place| (*place, false)).collect()
    }

    #[test]
    fn a_log_is_walked_to_its_end_across_files() {
        let (bytes, places) = log(&[1000; 40]);
        let (end, seen) = scan_bytes(&bytes, 0);
        assert_eq!(seen, intact(&places));
        assert_eq!((end.end, end.records), (bytes.len() as u64, 40));
        assert_eq!((end.last, end.damage_count), (Some((places[39], 1039)), 0));
        assert_eq!(end.reason, Some(RecordError::Magic { found: 0 }));
    }

    #[test]
    fn an_empty_log_ends_where_it_begins() {
        assert_eq!(scan_bytes(&[], 0).0.end, 0);
        assert_eq!(scan_bytes(&[0; 16_384], 0).0.end, 0);
    }

    #[test]
    fn a_blank_without_a_next_file_is_overwritten_and_with_one_it_is_passed() {
        let (mut bytes, places) = log(&[1000; 14]);
        let end = bytes.len();
        let blank = blank_record((FILE as usize - end) as u32);
        bytes.extend(blank);
        assert_eq!(scan_bytes(&bytes, 0).0.end, end as u64);
        bytes.resize(FILE as usize, 0);
        bytes.resize(FILE as usize * 2, 0);
        let (found, seen) = scan_bytes(&bytes, 0);
        assert_eq!((found.end, seen), (FILE, intact(&places)));
    }

    #[test]
    fn torn_bytes_end_the_log_where_writes_can_be_torn() {
        let (bytes, places) = log(&[1000; 12]);
        // Any one sector of the last three records lost: the log ends before the record it belongs
        // to.
        for sector in (places[9] / 512 + 1)..(bytes.len() as u64 / 512) {
            let mut torn = bytes.clone();
            let from = sector as usize * 512;
            torn[from..from + 512].fill(0);
            let first = places.partition_point(|place| *place < from as u64 + 512) - 1;
            let hit = places.partition_point(|place| *place <= from as u64) - 1;
            let (found, seen) = scan_bytes(&torn, 0);
            assert!(
                found.end == places[hit] || found.end == places[first],
                "sector {sector}"
            );
            assert_eq!(seen, intact(&places[..seen.len()]));
        }
    }

    #[test]
    fn damage_in_older_files_costs_only_the_damaged_records() {
        let (mut bytes, places) = log(&[1000; 60]);
        bytes[places[3] as usize + 200] ^= 1;
        bytes[places[20] as usize + 6] ^= 1;
        let (found, seen) = scan_bytes(&bytes, FILE * 3);
        assert_eq!(found.end, bytes.len() as u64);
        let mut expected = intact(&places);
        expected[3].1 = true;
        expected.remove(20);
        assert_eq!(seen, expected);
        let places_of_damage: Vec<u64> = found.damage.iter().map(|damage| damage.offset).collect();
        assert_eq!(places_of_damage, [places[3], places[20]]);
        assert_eq!(scan_bytes(&bytes, 0).0.end, places[3]);
    }

    #[test]
    fn absurd_sizes_behind_a_valid_magic_end_the_log() {
        for size in [i32::MAX, -1, 0, 7, 90, 20_000] {
            let (mut bytes, places) = log(&[500; 5]);
            let at = places[4] as usize;
            bytes[at..at + 4].copy_from_slice(&size.to_be_bytes());
            assert_eq!(scan_bytes(&bytes, 0).0.end, places[4], "size {size}");
        }
    }

    #[test]
    fn a_size_field_asks_for_memory_only_if_the_body_is_that_long() {
        let (mut bytes, _) = log(&[500; 2]);
        bytes.resize(4 << 20, 0);
        let dir = tempfile::tempdir().unwrap();
        for (body, whole) in [(500u32, 8), ((3 << 20) - 100, 3 << 20)] {
            bytes[..4].copy_from_slice(&(3u32 << 20).to_be_bytes());
            bytes[84..88].copy_from_slice(&body.to_be_bytes());
            std::fs::write(dir.path().join(format!("{:020}", 0)), &bytes).unwrap();
            let mut window = LogWindow::new(dir.path(), 4 << 20);
            let found = record_bytes(&mut window, WindowLimits::QUIET, 0, 4 << 20).unwrap();
            assert_eq!(found.len(), whole);
        }
    }

    #[test]
    fn a_record_that_names_another_place_stays_in_the_log_unread() {
        let (mut bytes, places) = log(&[500; 5]);
        bytes[places[4] as usize + 33] ^= 1;
        let (found, seen) = scan_bytes(&bytes, 0);
        assert_eq!((found.end, found.damage_count), (bytes.len() as u64, 1));
        assert_eq!(seen, intact(&places[..4]));
    }
}
