//! Reading messages: pulls from queues, single records, lookups by time and by key.
//!
//! What must always hold: bytes that are handed out are a whole record that stands at its own log
//! offset; what came from disk has the body checksum it was stored with. A hot read touches no log
//! file, and of a queue only entries that were written a short while ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::PullLimits;
use crate::error::ReadError;
use crate::filter::TagFilter;
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::format::extension_unit::Unit;
use crate::format::record::Record;
use crate::index_file::Index;
use crate::log_window::{LOOK_BYTES, LogWindow, SCAN_BYTES, WindowLimits};
use crate::queue_table::{Queue, QueueTable};
use crate::tail::TailReader;
use crate::watermarks::Watermarks;

mod look;
mod lookup;
mod lost;
pub(crate) mod mending;
mod pieces;

pub use lookup::{InMemory, TimeBoundary};

use look::{Found, check_copied, is_body_damage};
use mending::Mending;
pub(crate) use pieces::Pieces;

/// Entries taken from a queue at a time.
const ENTRY_BATCH: usize = 64;
/// Bytes that hold every fixed field up to the store time, whatever the address family.
const HEAD_BYTES: usize = 88;

/// What became of a pull; Apache's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    /// Messages were found.
    Found,
    /// Entries were looked at and none matched.
    NoMatchedMessage,
    /// The entries' records were deleted meanwhile.
    MessageWasRemoving,
    /// The queue does not exist.
    NoMatchedLogicQueue,
    /// The queue is empty.
    NoMessageInQueue,
    /// No entry is stored at this offset although it lies within the queue.
    OffsetFoundNull,
    /// The offset is the next one to be written: wait.
    OffsetOverflowOne,
    /// The offset lies beyond the queue's end.
    OffsetOverflowBadly,
    /// The offset lies before the queue's start.
    OffsetTooSmall,
}

impl PullStatus {
    /// Apache's name of the status.
    pub fn as_str(self) -> &'static str {
        match self {
            PullStatus::Found => "FOUND",
            PullStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            PullStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            PullStatus::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
            PullStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
            PullStatus::OffsetFoundNull => "OFFSET_FOUND_NULL",
            PullStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            PullStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            PullStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
        }
    }
}

/// The result of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// What became of it.
    pub status: PullStatus,
    /// Queue offset to pull from next.
    pub next_begin: i64,
    /// First readable queue offset.
    pub min: i64,
    /// Queue offset after the last readable message.
    pub max: i64,
    /// Records appended to the output.
    pub count: u32,
    /// Bytes appended to the output.
    pub bytes: usize,
    /// Damaged records stepped over; they were logged with offset and file.
    pub damaged: u32,
    /// Whether the last record looked at lies farther back than fits in memory.
    pub far_behind: bool,
}

/// Whether a pull could be answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullOutcome {
    /// Answered.
    Ready(Pulled),
    /// Needs bytes that are no longer in memory: run [`StoreReader::pull_cold`] on the services
    /// thread.
    Cold,
}

/// What a pull asks for.
#[derive(Clone, Copy)]
pub struct PullRequest<'a> {
    /// The queue.
    pub queue: &'a Queue,
    /// Queue offset of the first message wanted.
    pub offset: i64,
    /// Most messages wanted; at least one is tried.
    pub max_count: i32,
    /// Which ones.
    pub filter: &'a dyn PullFilter,
    /// What ends it otherwise.
    pub limits: &'a PullLimits,
}

/// Where a pull may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Where nothing is waited for.
    Memory,
    /// Everywhere.
    Disk,
}

/// Which messages a pull wants. Tag codes collide, so what passes may still not be wanted.
pub trait PullFilter {
    /// Whether an entry with this tags field may be wanted.
    fn matches_code(&self, tags_code: i64) -> bool;

    /// Whether [`PullFilter::matches_unit`] must be asked about entries with a unit: otherwise each
    /// may be wanted.
    fn needs_unit(&self) -> bool {
        true
    }

    /// Whether an entry with this unit in the extension files may be wanted.
    fn matches_unit(&self, unit: &Unit<'_>) -> bool {
        self.matches_code(unit.tags_code)
    }

    /// Whether [`PullFilter::matches_record`] must be asked too.
    fn needs_record(&self) -> bool {
        false
    }

    /// Whether the record itself is wanted. Adds what that took to `_work`, in steps of about a
    /// nanosecond.
    fn matches_record(&self, _record: &Record<'_>, _work: &mut usize) -> bool {
        true
    }
}

impl PullFilter for TagFilter {
    fn matches_code(&self, tags_code: i64) -> bool {
        self.matches(tags_code)
    }

    fn needs_unit(&self) -> bool {
        *self != TagFilter::All
    }
}

/// What all readers of one store share.
pub(crate) struct ReadShared {
    pub(crate) directory: std::path::PathBuf,
    pub(crate) file_size: u64,
    pub(crate) queue_file_size: u64,
    pub(crate) watermarks: Arc<Watermarks>,
    pub(crate) min_log_offset: AtomicU64,
    pub(crate) index: Arc<Index>,
    /// End of the log when the store was opened: what lies below came from disk, the tail's share
    /// of it too.
    pub(crate) loaded_end: u64,
    pub(crate) damaged_reads: AtomicU64,
    pub(crate) table: Arc<QueueTable>,
    pub(crate) delay_levels_ms: Vec<u64>,
    pub(crate) mending: Mending,
    pub(crate) pieces: Pieces,
}

/// Reads one store for one thread.
pub struct StoreReader {
    shared: Arc<ReadShared>,
    tail: TailReader,
    window: LogWindow,
    pieces: pieces::PieceUse,
    entries: Vec<ConsumeEntry>,
    /// Bytes of the extension unit at hand.
    unit: Vec<u8>,
}

/// How far a pull has come.
struct PullState {
    pulled: Pulled,
    reach: Reach,
    /// Entries at or after the pull's offset that were looked at.
    looked_at: usize,
    /// Steps of the filter so far.
    work: usize,
}

/// What one entry did to a pull.
enum EntryStep {
    Next,
    /// To this queue offset: what lies before it has no record.
    Lost(i64),
    Full,
    Cold,
}

impl StoreReader {
    pub(crate) fn new(shared: Arc<ReadShared>, tail: TailReader) -> StoreReader {
        let window = LogWindow::new(&shared.directory, shared.file_size);
        StoreReader {
            shared,
            tail,
            window,
            pieces: pieces::PieceUse::default(),
            entries: Vec::with_capacity(ENTRY_BATCH),
            unit: Vec::new(),
        }
    }

    /// Reads messages into `out` from memory alone (docs/behaviour.md, "Reading a queue").
    pub fn pull(
        &mut self,
        request: &PullRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Result<PullOutcome, ReadError> {
        self.pull_from(request, Reach::Memory, out)
    }

    /// As [`StoreReader::pull`], also from disk; may wait for it. For the services thread.
    pub fn pull_cold(
        &mut self,
        request: &PullRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Pulled, ReadError> {
        match self.pull_from(request, Reach::Disk, out)? {
            PullOutcome::Ready(pulled) => Ok(pulled),
            PullOutcome::Cold => unreachable!("a cold pull reads from disk"),
        }
    }

    fn pull_from(
        &mut self,
        request: &PullRequest<'_>,
        reach: Reach,
        out: &mut Vec<u8>,
    ) -> Result<PullOutcome, ReadError> {
        let PullRequest { queue, offset, .. } = *request;
        let (min, max) = (queue.min_offset(), queue.max_offset());
        let mut pulled = Pulled {
            status: PullStatus::NoMatchedMessage,
            next_begin: offset,
            min,
            max,
            count: 0,
            bytes: 0,
            damaged: 0,
            far_behind: false,
        };
        if let Some((status, next_begin)) = out_of_range(offset, min, max) {
            pulled.status = status;
            pulled.next_begin = next_begin;
            return Ok(PullOutcome::Ready(pulled));
        }
        let before = out.len();
        self.pieces.used = false;
        let mut state = PullState {
            pulled,
            reach,
            looked_at: 0,
            work: 0,
        };
        match self.scan_entries(request, &mut state, out)? {
            EntryStep::Cold => {
                out.truncate(before);
                Ok(PullOutcome::Cold)
            }
            _ => {
                let mut pulled = state.pulled;
                pulled.bytes = out.len() - before;
                Ok(PullOutcome::Ready(pulled))
            }
        }
    }

    /// Looks at entries until the pull is full, the queue file ends or enough were looked at.
    fn scan_entries(
        &mut self,
        request: &PullRequest<'_>,
        state: &mut PullState,
        out: &mut Vec<u8>,
    ) -> Result<EntryStep, ReadError> {
        let per_file = (self.shared.queue_file_size / ENTRY_SIZE as u64) as i64;
        let file_end = request.offset - request.offset % per_file + per_file;
        let end = state.pulled.max.min(file_end);
        let most =
            (request.limits.max_filter_bytes / ENTRY_SIZE).max(request.max_count.max(1) as usize);
        let in_memory = state.reach == Reach::Memory;
        if in_memory && !request.queue.is_recent(request.offset, self.tail.start()) {
            return Ok(EntryStep::Cold);
        }
        let mut entries = std::mem::take(&mut self.entries);
        let mut at = request.offset;
        let mut outcome = Ok(EntryStep::Next);
        let worked = request.limits.max_filter_work;
        'pull: while at < end && state.looked_at < most && state.work < worked {
            let wanted = ENTRY_BATCH
                .min(most - state.looked_at)
                .min((end - at) as usize);
            entries.clear();
            let looked = match state.reach {
                Reach::Disk => request
                    .queue
                    .entries(at, wanted, &mut entries)
                    .map(|()| true),
                Reach::Memory => request.queue.mapped_entries(at, wanted, &mut entries),
            };
            match looked {
                Ok(true) => {}
                Ok(false) if state.looked_at == 0 => outcome = Ok(EntryStep::Cold),
                // What was found so far is an answer.
                Ok(false) => {}
                Err(error) => outcome = Err(error.into()),
            }
            if entries.is_empty() {
                break;
            }
            for (index, entry) in entries.iter().enumerate() {
                let ahead = read_ahead(*entry, entries.get(index + 1));
                let step = self.look_at(request, state, (at, *entry), ahead, out);
                let next = match step {
                    Ok(EntryStep::Next) => at + 1,
                    Ok(EntryStep::Lost(next)) => next.max(at + 1),
                    other => {
                        outcome = other;
                        break 'pull;
                    }
                };
                state.looked_at += 1;
                state.pulled.next_begin = next;
                let went_on = std::mem::replace(&mut at, next) + 1 == next;
                if !went_on || state.work >= worked {
                    continue 'pull;
                }
            }
        }
        self.entries = entries;
        if state.reach == Reach::Disk && self.pieces.used {
            request.queue.make_ready(at);
        }
        if state.looked_at == 0 && matches!(outcome, Ok(EntryStep::Next)) {
            state.pulled.status = PullStatus::OffsetFoundNull;
            state.pulled.next_begin = file_end;
        }
        outcome
    }

    fn window_limits(&mut self) -> WindowLimits {
        self.release_expired();
        let marks = &self.shared.watermarks;
        WindowLimits {
            end: marks.acknowledged(),
            active_base: self.window.base_of(marks.written()),
        }
    }

    /// Closes log files that retention has removed meanwhile, so that their space is free. Cold
    /// reads do this too; call it after a retention round on a reader that may rest long.
    pub fn release_expired(&mut self) {
        let log_min = self.shared.min_log_offset.load(Ordering::SeqCst);
        self.window.close_below(log_min);
    }

    /// Gives up what was read ahead and is of no use to anybody now.
    pub fn rest(&mut self) {
        self.release_expired();
        self.release_pieces();
    }

    /// Appends the record at log offset `offset` to `out`. False if no record begins there, or it
    /// is not in the log any more or yet. May wait for the disk.
    pub fn record(&mut self, offset: u64, out: &mut Vec<u8>) -> Result<bool, ReadError> {
        let Some(size) = self.size_at(offset)? else {
            return Ok(false);
        };
        if !self.is_acknowledged(offset, size) {
            return Ok(false);
        }
        let before = out.len();
        let found = if self.tail.copy(offset, size, out) {
            check_copied(&out[before..], offset, true)
        } else {
            self.read_cold(offset, size, LOOK_BYTES, out)?
        };
        match found {
            Found::Whole => return Ok(true),
            Found::Missing => {}
            Found::Damaged(problem) if is_body_damage(&problem) => {
                out.truncate(before);
                self.report_damage(offset, &problem);
                let path = self.window.path_of(offset);
                return Err(ReadError::Damaged {
                    offset,
                    path,
                    problem: problem.to_string(),
                });
            }
            // Some place inside a record, or between files.
            Found::Damaged(_) => {}
        }
        out.truncate(before);
        Ok(false)
    }

    /// The size field at a log offset, if what stands there begins like a record of this place.
    fn size_at(&mut self, offset: u64) -> Result<Option<usize>, ReadError> {
        let head = self.head(offset)?;
        Ok(head.and_then(|head| size_in(&head, offset)))
    }

    /// Whether these bytes are beyond what a crash can take back. The tail holds more than that.
    fn is_acknowledged(&self, offset: u64, size: usize) -> bool {
        let end = offset.checked_add(size as u64);
        end.is_some_and(|end| end <= self.shared.watermarks.acknowledged())
    }

    /// The first bytes of what stands at a log offset within the readable log.
    fn head(&mut self, offset: u64) -> Result<Option<[u8; HEAD_BYTES]>, ReadError> {
        if offset < self.shared.min_log_offset.load(Ordering::SeqCst)
            || !self.is_acknowledged(offset, HEAD_BYTES)
        {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        let from_tail = self.tail.with(offset, HEAD_BYTES, |first, second| {
            head[..first.len()].copy_from_slice(first);
            head[first.len()..].copy_from_slice(second);
        });
        if from_tail.is_some() {
            return Ok(Some(head));
        }
        let limits = self.window_limits();
        let bytes = self.window.bytes(offset, HEAD_BYTES, limits, LOOK_BYTES)?;
        Ok(bytes.map(|bytes| {
            head.copy_from_slice(bytes);
            head
        }))
    }
}

/// The size field of a head, if it begins like that of a record at `offset`.
fn size_in(head: &[u8; HEAD_BYTES], offset: u64) -> Option<usize> {
    let long = |at: usize| head[at..at + 8].try_into().map(u64::from_be_bytes).ok();
    let magic = [head[4], head[5], head[6], head[7]];
    let in_place = long(28) == Some(offset);
    let known = matches!(magic, [0xDA, 0xA3, 0x20, 0xA7 | 0xAB]);
    let size = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let size = usize::try_from(size).ok()?;
    (in_place && known && size > HEAD_BYTES).then_some(size)
}

/// Bytes to read from disk at a time for an entry: much where the queue's next record is near, else
/// little.
fn read_ahead(entry: ConsumeEntry, next: Option<&ConsumeEntry>) -> usize {
    let near = (SCAN_BYTES / 8) as u64;
    let dense = next.is_some_and(|next| next.physical_offset.saturating_sub(entry.end()) < near);
    if dense { SCAN_BYTES } else { LOOK_BYTES }
}

/// Status and next offset of a pull outside of the queue's messages.
fn out_of_range(offset: i64, min: i64, max: i64) -> Option<(PullStatus, i64)> {
    if max == 0 {
        Some((PullStatus::NoMessageInQueue, 0))
    } else if offset < min {
        Some((PullStatus::OffsetTooSmall, min))
    } else if offset == max {
        Some((PullStatus::OffsetOverflowOne, offset))
    } else if offset > max {
        Some((PullStatus::OffsetOverflowBadly, max))
    } else {
        None
    }
}
