//! How records reach the writer: one bounded byte ring per producer, and a ring of results back.
//!
//! A producer encodes its record straight into its ring, behind a small header; the writer copies
//! it to the tail and patches the three fields only it knows. What must always hold: an entry
//! becomes visible whole; results come back in the order of the pushes; the ring of results cannot
//! overflow, because a push that would make more results than it holds is refused as full. Nothing
//! is allocated per message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use crate::format::batch::{BatchError, encode_batch, measure_batch};
use crate::format::message::{EncodeError, Measured, MessageParts, sys_flag};
use crate::queue_table::Queue;

/// Bytes in front of every entry in a ring.
const HEADER: usize = 24;
/// Header flag: the writer assigns a queue offset and advances the queue.
const ASSIGN_OFFSET: u32 = 1;
/// The number of light queues stands above this many bits of the header's flags.
const LIGHT_SHIFT: u32 = 8;
/// Most light queues that one message enters: more names than a property can hold.
const LIGHT_MAX: usize = 8192;
/// Bytes of a number in the list of light queues.
const LIGHT_BYTES: usize = 4;

/// Why a message was not taken.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PushError {
    /// The ring is full: offer the message again after results came back. Or a topic of the
    /// queue's name is being removed, which takes some milliseconds.
    #[error("the append queue is full")]
    Full,
    /// The record could never be stored.
    #[error("the record of {size} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Size of the record or of all records of the batch, in bytes.
        size: usize,
        /// Largest size that is stored, in bytes.
        limit: usize,
    },
    /// The message cannot be a record.
    #[error(transparent)]
    Message(#[from] EncodeError),
    /// The batch cannot be records.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The writer has ended.
    #[error("the store is closed")]
    Closed,
}

/// Why a message that was taken did not reach the log, or may not survive in it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AppendFailure {
    /// A write or a sync of the log failed earlier; nothing is accepted until the broker is
    /// restarted.
    #[error("the log is read-only: {0}")]
    ReadOnly(Arc<str>),
    /// There is no room on the disk for the next log file; accepted again once there is.
    #[error("the next log file cannot be made: the disk is full, or fails as /readyz says")]
    NoSpace,
    /// The queue was deleted in the meantime.
    #[error("the queue does not exist any more")]
    QueueGone,
    /// A light queue of the message was deleted in the meantime.
    #[error("a light queue of the message was deleted just now")]
    LightQueueGone,
    /// With its offsets in light queues the properties, or the record, are too long.
    #[error("the properties have {len} bytes with the offsets in {queues} light queues: too many")]
    LightTooLong {
        /// Bytes of the property string.
        len: usize,
        /// Light queues.
        queues: usize,
    },
    /// The store is being closed.
    #[error("the store is shutting down")]
    ShuttingDown,
}

/// Where a message, or the first message of a batch, now stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Log offset of the first byte.
    pub physical_offset: u64,
    /// Queue offset; 0 for prepared and rollback types, which get none.
    pub queue_offset: i64,
    /// Store time, in milliseconds.
    pub store_timestamp: i64,
    /// Log offset after the last byte.
    pub end: u64,
}

/// What became of one push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendResult {
    /// The token given with the push.
    pub token: u64,
    /// Acknowledged place, or why not.
    pub outcome: Result<Appended, AppendFailure>,
}

/// Wakes a thread that sleeps on a file descriptor, and costs next to nothing while it is awake.
///
/// Whoever rings has published its work before; the sleeper announces itself with
/// [`Doorbell::lie_down`], looks at its work once more, and only then sleeps.
pub struct Doorbell {
    asleep: AtomicBool,
    event: EventFd,
}

impl Doorbell {
    /// A bell nobody sleeps on yet.
    pub fn new() -> io::Result<Doorbell> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Doorbell {
            asleep: AtomicBool::new(false),
            event: EventFd::from_value_and_flags(0, flags)?,
        })
    }

    /// Wakes the sleeper, if there is one.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only when the counter is at its maximum, and then the sleeper wakes anyway.
            let _ = self.event.write(1);
        }
    }

    /// Announces that the caller is about to sleep; look for work again after this.
    pub fn lie_down(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back; call after waking, whatever the reason.
    pub fn get_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Empties the descriptor after it became readable.
    pub fn hush(&self) {
        // Fails only when nobody rang.
        let _ = self.event.read();
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Bounds of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Bytes of entries that wait for the writer; one largest record is added on top.
    pub ring_bytes: usize,
    /// Pushes whose results were not popped yet.
    pub in_flight: usize,
    /// Largest record, or sum of the records of a batch, in bytes.
    pub record_bytes: usize,
}

/// One producer's way to the log. Owned by one thread.
pub struct AppendPort {
    entries: rtrb::Producer<u8>,
    results: rtrb::Consumer<AppendResult>,
    bell: Arc<Doorbell>,
    limits: PortLimits,
    in_flight: usize,
    unsubmitted: bool,
    scratch: Vec<u8>,
}

/// Makes a port and the writer's end of it; `bell` wakes the writer.
pub(crate) fn port(limits: PortLimits, bell: Arc<Doorbell>) -> (AppendPort, PortEnd) {
    let largest = HEADER + LIGHT_BYTES * (1 + LIGHT_MAX) + limits.record_bytes;
    let ring_bytes = limits.ring_bytes + largest;
    let (entry_producer, entry_consumer) = rtrb::RingBuffer::new(ring_bytes);
    let (result_producer, result_consumer) = rtrb::RingBuffer::new(limits.in_flight);
    let port = AppendPort {
        entries: entry_producer,
        results: result_consumer,
        bell,
        limits,
        in_flight: 0,
        unsubmitted: false,
        scratch: Vec::new(),
    };
    let end = PortEnd {
        entries: entry_consumer,
        seen: 0,
        results: result_producer,
    };
    (port, end)
}

/// The light queues that one message enters; reused from message to message.
#[derive(Debug, Default)]
pub struct LightQueues {
    slots: Vec<u32>,
    held: bool,
}

impl LightQueues {
    /// None.
    pub const NONE: &'static LightQueues = &LightQueues {
        slots: Vec::new(),
        held: false,
    };

    /// Forgets those of the last message.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.held = false;
    }

    /// The message enters this queue, behind those before.
    pub fn enter(&mut self, queue: &Queue) {
        self.slots.push(queue.slot);
        self.held |= queue.is_held();
    }
}

impl AppendPort {
    /// Takes one message. `token` comes back with the result. The message enters the queues in
    /// `light` too: their offsets are appended to its properties, in that order (docs/format.md,
    /// Light queues). One without a queue offset of its own enters none.
    ///
    /// # Errors
    /// [`PushError::TooLarge`] also for more light queues than a property can name, and
    /// [`PushError::Full`] while a topic with the name of one of the queues is being removed.
    pub fn push(
        &mut self,
        token: u64,
        queue: &Queue,
        message: &MessageParts<'_>,
        light: &LightQueues,
    ) -> Result<(), PushError> {
        if queue.is_held() || light.held {
            return Err(PushError::Full);
        }
        self.push_to_slots(token, queue.slot, message, &light.slots)
    }

    /// Takes a client's batch (the body of `parts`): all of its messages or none. `sizes` receives
    /// the sizes of the records, which lie one after the other from the result's `physical_offset`
    /// on. One result comes back.
    pub fn push_batch(
        &mut self,
        token: u64,
        queue: &Queue,
        parts: &MessageParts<'_>,
        sizes: &mut Vec<u32>,
    ) -> Result<(), PushError> {
        if queue.is_held() {
            return Err(PushError::Full);
        }
        self.push_batch_to_slot(token, queue.slot, parts, sizes)
    }

    /// As [`AppendPort::push`], for the queues with these slots.
    pub(crate) fn push_to_slots(
        &mut self,
        token: u64,
        slot: u32,
        message: &MessageParts<'_>,
        light: &[u32],
    ) -> Result<(), PushError> {
        let measured = Measured::new(message)?;
        let len = measured.len;
        let assign_offset = sys_flag::is_queued(message.sys_flag);
        // The dispatcher makes no entry for such a record, in no queue.
        let light = if assign_offset { light } else { &[] };
        if light.len() > LIGHT_MAX {
            let size = len + LIGHT_BYTES * light.len();
            let limit = self.limits.record_bytes;
            return Err(PushError::TooLarge { size, limit });
        }
        let entry = Entry {
            len: entry_len(len, self.limits.record_bytes)?,
            records: 1,
            token,
            slot,
            assign_offset,
            light: light.len() as u32,
        };
        self.push_encoded(entry, |place| {
            let (list, record) = place.split_at_mut(entry.list_len());
            if !list.is_empty() {
                let properties = measured.properties_len() as u32;
                let numbers = [properties].into_iter().chain(light.iter().copied());
                for (place, number) in list.chunks_exact_mut(LIGHT_BYTES).zip(numbers) {
                    place.copy_from_slice(&number.to_ne_bytes());
                }
            }
            measured.write(record);
        })
    }

    /// As [`AppendPort::push_batch`], for the queue with this slot.
    pub(crate) fn push_batch_to_slot(
        &mut self,
        token: u64,
        slot: u32,
        parts: &MessageParts<'_>,
        sizes: &mut Vec<u32>,
    ) -> Result<(), PushError> {
        sizes.clear();
        let len = measure_batch(parts, sizes)?;
        let entry = Entry {
            len: entry_len(len, self.limits.record_bytes)?,
            records: sizes.len() as u32,
            token,
            slot,
            assign_offset: sys_flag::is_queued(parts.sys_flag),
            light: 0,
        };
        let mut encoded = Ok(());
        self.push_encoded(entry, |place| encoded = encode_batch(parts, place))?;
        // Measuring has checked everything that encoding checks.
        encoded.expect("a measured batch is encoded");
        Ok(())
    }

    /// Takes an entry of `len` encoded bytes holding `records` records, written by `encode` into
    /// the ring, behind the list of its light queues.
    pub(crate) fn push_encoded(
        &mut self,
        entry: Entry,
        encode: impl FnOnce(&mut [u8]),
    ) -> Result<(), PushError> {
        let len = entry.len as usize;
        if len > self.limits.record_bytes {
            return Err(PushError::TooLarge {
                size: len,
                limit: self.limits.record_bytes,
            });
        }
        if self.entries.is_abandoned() {
            return Err(PushError::Closed);
        }
        if self.in_flight == self.limits.in_flight {
            return Err(PushError::Full);
        }
        let len = entry.list_len() + len;
        let mut chunk = match self.entries.write_chunk(HEADER + len) {
            Ok(chunk) => chunk,
            Err(rtrb::chunks::ChunkError::TooFewSlots(_)) => return Err(PushError::Full),
        };
        let (first, second) = chunk.as_mut_slices();
        if second.is_empty() {
            first[..HEADER].copy_from_slice(&entry.to_bytes());
            encode(&mut first[HEADER..]);
        } else {
            self.scratch.clear();
            self.scratch.resize(HEADER + len, 0);
            self.scratch[..HEADER].copy_from_slice(&entry.to_bytes());
            encode(&mut self.scratch[HEADER..]);
            let (left, right) = self.scratch.split_at(first.len());
            first.copy_from_slice(left);
            second.copy_from_slice(right);
        }
        chunk.commit_all();
        self.in_flight += 1;
        self.unsubmitted = true;
        Ok(())
    }

    /// Wakes the writer if it sleeps and something was pushed since the last call; once per pass.
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.unsubmitted) {
            self.bell.ring();
        }
    }

    /// The next result, in the order of the pushes.
    pub fn pop(&mut self) -> Option<AppendResult> {
        let result = self.results.pop().ok()?;
        self.in_flight -= 1;
        Some(result)
    }

    /// Whether a result can be popped.
    pub fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// Pushes whose results were not popped yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether the writer has ended: no further result will come.
    pub fn is_abandoned(&self) -> bool {
        self.results.is_abandoned()
    }
}

fn entry_len(size: usize, limit: usize) -> Result<u32, PushError> {
    let within = u32::try_from(size).ok().filter(|_| size <= limit);
    within.ok_or(PushError::TooLarge { size, limit })
}

/// What stands in front of an entry's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Encoded bytes that follow.
    pub len: u32,
    /// Records among them.
    pub records: u32,
    /// The producer's name for the push.
    pub token: u64,
    /// The queue's slot.
    pub slot: u32,
    /// Whether a queue offset is assigned and the queue advances.
    pub assign_offset: bool,
    /// Light queues that its one record enters; their list stands between header and record.
    pub light: u32,
}

impl Entry {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.records.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.token.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.slot.to_ne_bytes());
        let assign = if self.assign_offset { ASSIGN_OFFSET } else { 0 };
        let flags = self.light << LIGHT_SHIFT | assign;
        bytes[20..24].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; HEADER]) -> Entry {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut token = [0; 8];
        token.copy_from_slice(&bytes[8..16]);
        Entry {
            len: word(0),
            records: word(4),
            token: u64::from_ne_bytes(token),
            slot: word(16),
            assign_offset: word(20) & ASSIGN_OFFSET != 0,
            light: word(20) >> LIGHT_SHIFT,
        }
    }

    /// Bytes of the list of light queues: the length of the record's properties, and the slots.
    fn list_len(&self) -> usize {
        match self.light {
            0 => 0,
            light => LIGHT_BYTES * (1 + light as usize),
        }
    }
}

/// The writer's end of a port.
pub(crate) struct PortEnd {
    entries: rtrb::Consumer<u8>,
    /// Bytes of entries that were there at the last [`Self::look`], less those taken since.
    seen: usize,
    results: rtrb::Producer<AppendResult>,
}

impl PortEnd {
    /// Whether an entry waits.
    pub fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Sees the entries that are there now: what comes later is not [`Self::peek_seen`]. Whether
    /// there are any.
    pub fn look(&mut self) -> bool {
        self.seen = self.entries.slots();
        self.seen > 0
    }

    /// The header of the entry that is next, if it was there at the last [`Self::look`].
    pub fn peek_seen(&mut self) -> Option<Entry> {
        if self.seen == 0 { None } else { self.peek() }
    }

    /// The header of the entry that is next.
    pub fn peek(&mut self) -> Option<Entry> {
        let chunk = self.entries.read_chunk(HEADER).ok()?;
        let (first, second) = chunk.as_slices();
        let mut bytes = [0; HEADER];
        bytes[..first.len()].copy_from_slice(first);
        bytes[first.len()..].copy_from_slice(second);
        Some(Entry::from_bytes(bytes))
    }

    /// Reads the list of light queues of the entry just peeked at: puts their slots into `slots`,
    /// returns the bytes of the record's properties.
    pub fn light_queues(&mut self, entry: &Entry, slots: &mut Vec<u32>) -> usize {
        slots.clear();
        let chunk = self.entries.read_chunk(HEADER + entry.list_len());
        // An entry is committed whole, so a peeked header has its list behind it.
        let chunk = chunk.expect("a peeked entry is complete");
        let (first, second) = chunk.as_slices();
        let mut bytes = first.iter().chain(second).skip(HEADER).copied();
        let mut number = || {
            let bytes = [bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?];
            Some(u32::from_ne_bytes(bytes))
        };
        let properties = number().unwrap_or(0);
        slots.extend(std::iter::from_fn(number));
        properties as usize
    }

    /// Takes the entry just peeked at: shows its records, in one or two pieces, and frees their
    /// room.
    pub fn take(&mut self, entry: &Entry, look: impl FnOnce(&[u8], &[u8])) {
        let skipped = HEADER + entry.list_len();
        let len = skipped + entry.len as usize;
        self.seen = self.seen.saturating_sub(len);
        let chunk = self.entries.read_chunk(len);
        // An entry is committed whole, so a peeked header has its bytes behind it.
        let chunk = chunk.expect("a peeked entry is complete");
        let (first, second) = chunk.as_slices();
        if first.len() >= skipped {
            look(&first[skipped..], second);
        } else {
            look(&second[skipped - first.len()..], &[]);
        }
        chunk.commit_all();
    }

    /// Hands a result back.
    pub fn answer(&mut self, result: AppendResult) {
        // A port has no more pushes in flight than the ring of results holds.
        let pushed = self.results.push(result);
        assert!(
            pushed.is_ok() || self.results.is_abandoned(),
            "the ring of results overflowed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PortLimits = PortLimits {
        ring_bytes: 1000,
        in_flight: 4,
        record_bytes: 300,
    };

    fn entry(token: u64, len: u32) -> Entry {
        Entry {
            len,
            records: 1,
            token,
            slot: 3,
            assign_offset: token.is_multiple_of(2),
            light: 0,
        }
    }

    fn pair() -> (AppendPort, PortEnd) {
        port(LIMITS, Arc::new(Doorbell::new().expect("eventfd")))
    }

    #[test]
    fn entries_arrive_whole_and_in_order_across_the_wrap() {
        let (mut port, mut end) = pair();
        for token in 0..500u64 {
            let len = (token % 300) as u32;
            let pushed = port.push_encoded(entry(token, len), |bytes| bytes.fill(token as u8));
            assert_eq!(pushed, Ok(()));
            let seen = end.peek().expect("entry");
            assert_eq!(seen, entry(token, len));
            end.take(&seen, |first, second| {
                assert_eq!(first.len() + second.len(), len as usize);
                assert!(first.iter().chain(second).all(|&byte| byte == token as u8));
            });
            end.answer(AppendResult {
                token,
                outcome: Err(AppendFailure::NoSpace),
            });
            assert_eq!(port.pop().map(|result| result.token), Some(token));
        }
        assert!(end.peek().is_none());
    }

    #[test]
    fn a_full_port_refuses_and_drops_nothing() {
        let (mut port, mut end) = pair();
        for token in 0..4 {
            assert_eq!(port.push_encoded(entry(token, 10), |_| ()), Ok(()));
        }
        assert_eq!(
            port.push_encoded(entry(4, 10), |_| ()),
            Err(PushError::Full)
        );
        for token in 0..4 {
            let seen = end.peek().expect("entry");
            assert_eq!(seen.token, token);
            end.take(&seen, |_, _| ());
        }
        assert_eq!(
            port.push_encoded(entry(4, 10), |_| ()),
            Err(PushError::Full)
        );
        end.answer(AppendResult {
            token: 0,
            outcome: Err(AppendFailure::NoSpace),
        });
        assert!(port.has_results());
        assert!(port.pop().is_some());
        assert_eq!(port.push_encoded(entry(4, 10), |_| ()), Ok(()));
    }

    #[test]
    fn a_record_over_the_limit_is_refused_with_both_sizes() {
        let (mut port, _end) = pair();
        let refused = port.push_encoded(entry(0, 301), |_| ());
        let limit = 300;
        assert_eq!(refused, Err(PushError::TooLarge { size: 301, limit }));
    }

    #[test]
    fn pushes_after_the_writer_ended_are_refused() {
        let (mut port, end) = pair();
        drop(end);
        assert_eq!(
            port.push_encoded(entry(0, 1), |_| ()),
            Err(PushError::Closed)
        );
        assert!(port.is_abandoned());
    }

    #[test]
    fn the_bell_is_written_only_while_someone_sleeps() {
        let bell = Doorbell::new().expect("eventfd");
        bell.ring();
        assert!(bell.event.read().is_err());
        bell.lie_down();
        bell.ring();
        bell.ring();
        assert_eq!(bell.event.read(), Ok(1));
        bell.lie_down();
        bell.get_up();
        bell.ring();
        assert!(bell.event.read().is_err());
    }
}
