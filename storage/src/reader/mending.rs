//! Queue entries that turned out to be wrong when they were read are made again from the log, in
//! the background (docs/durability.md, "Damage").
//!
//! An entry is wrong when no record stands where it points, or one of another place in the queues.
//! What it should be is between the records of its neighbours. Until it is mended nobody is told
//! that there is nothing: readers get an error and come again. What the log has no record for is
//! found in the same walk, for the whole stretch: readers step over it at once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::ReadShared;
use super::lost::OffsetRanges;
use crate::error::{FileError, OpenError};
use crate::format::record::Record;
use crate::log_window::{LogWindow, WindowLimits};
use crate::queue_table::Queue;
use crate::rebuild::for_each_entry;
use crate::recovery::{Proof, ScanRange, record_bytes, scan};

/// Entries that wait at most; more are asked for again when they are read again.
const WANTED_MAX: usize = 1024;
/// Ranges of offsets without a record that are remembered, in all queues; what goes beyond is found
/// again when it is read again.
const LOST_MAX: usize = 100_000;
/// Ranges that one walk finds at most; the next one goes on behind them.
const LOST_IN_WALK: usize = 10_000;

/// What there is to expect of a wrong entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hope {
    /// It is being made again.
    Mending,
    /// The log has no record for it, nor for any other up to this queue offset.
    Lost {
        /// The next offset that may have a record.
        end: i64,
    },
}

/// Wrong entries, and the thread that mends them while there are any.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    state: Mutex<State>,
    stop: AtomicBool,
    mended: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Queues by slot, and queue offsets.
    wanted: VecDeque<(u32, i64)>,
    /// What the log has no record for, by slot.
    lost: HashMap<u32, OffsetRanges>,
    running: bool,
    thread: Option<JoinHandle<()>>,
}

impl Mending {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Lists of numbers: whole whatever became of who held them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries that were mended.
    pub(crate) fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    /// The offset behind the lost ones that `offset` is known to be among.
    pub(crate) fn lost_end(&self, slot: u32, offset: i64) -> Option<i64> {
        self.lock().lost_at(slot, offset)
    }

    /// Ends the thread: before the store lets go of its files.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.lock().thread.take();
        if let Some(thread) = thread {
            // It holds nothing that a panic could leave undone.
            let _ = thread.join();
        }
    }
}

impl State {
    fn lost_at(&self, slot: u32, offset: i64) -> Option<i64> {
        let (_, end) = self.lost.get(&slot)?.containing(offset)?;
        Some(end)
    }

    fn remember(&mut self, slot: u32, lost: &OffsetRanges) {
        let held: usize = self.lost.values().map(OffsetRanges::len).sum();
        if held + lost.len() > LOST_MAX {
            self.lost.clear();
        }
        let known = self.lost.entry(slot).or_default();
        for (first, end) in lost.iter() {
            known.insert(first, end);
        }
    }
}

/// Says that the entry at `offset` of a queue is wrong.
pub(crate) fn ask(shared: &Arc<ReadShared>, queue: &Queue, offset: i64) -> Hope {
    let mending = &shared.mending;
    let mut state = mending.lock();
    let wrong = (queue.slot, offset);
    if let Some(end) = state.lost_at(queue.slot, offset) {
        return Hope::Lost { end };
    }
    if mending.stop.load(Ordering::SeqCst) || state.wanted.contains(&wrong) {
        return Hope::Mending;
    }
    if state.wanted.len() < WANTED_MAX {
        tracing::debug!(topic = %queue.topic, queue_id = queue.queue_id, offset,
            "a queue entry is wrong; it is made again from the log");
        state.wanted.push_back(wrong);
    }
    if !state.running {
        let for_thread = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("mending".into());
        match thread.spawn(move || run(&for_thread)) {
            Ok(thread) => {
                state.running = true;
                state.thread = Some(thread);
            }
            Err(error) => tracing::error!(%error, "cannot start the mending thread"),
        }
    }
    Hope::Mending
}

/// Lets another thread go on when one ends by a panic, without the entry that it was at.
struct GoesOn<'a>(&'a Mending);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.lock();
            state.running = false;
            state.wanted.pop_front();
        }
    }
}

fn run(shared: &ReadShared) {
    let _goes_on = GoesOn(&shared.mending);
    let mut window = LogWindow::new(&shared.directory, shared.file_size);
    loop {
        let next = {
            let mut state = shared.mending.lock();
            // A walk for another entry may have found what became of this one.
            while let Some((slot, offset)) = state.wanted.front().copied()
                && state.lost_at(slot, offset).is_some()
            {
                state.wanted.pop_front();
            }
            let next = state.wanted.front().copied();
            state.running = next.is_some() && !shared.mending.stop.load(Ordering::SeqCst);
            if !state.running {
                return;
            }
            next
        };
        let Some((slot, offset)) = next else { return };
        let queue = shared.table.by_slot(slot);
        let lost = queue.map(|queue| mend(shared, &mut window, &queue, offset));
        let mut state = shared.mending.lock();
        state.wanted.pop_front();
        if let Some(lost) = lost {
            state.remember(slot, &lost);
        }
    }
}

/// A walk over the log between two records of a queue.
struct Walk<'a> {
    queue: &'a Queue,
    /// Queue offsets between the two.
    first: i64,
    end: i64,
    /// The log between the two.
    from: u64,
    to: u64,
    limits: WindowLimits,
}

/// Mends the entry at `offset` and its wrong neighbours; what of them the log has no record for.
fn mend(shared: &ReadShared, window: &mut LogWindow, queue: &Queue, offset: i64) -> OffsetRanges {
    window.forget();
    let log_min = shared.min_log_offset.load(Ordering::SeqCst);
    // Before the log's end: the records of all these entries lie below it.
    let (min, max) = (queue.min_offset(), queue.max_offset());
    let limits = WindowLimits {
        end: shared.watermarks.acknowledged(),
        active_base: window.base_of(shared.watermarks.written()),
    };
    let mut sound = |at: i64| sound_place(window, limits, queue, at);
    let below = steps(offset, -1, min, max).find_map(|at| Some((at, sound(at)?.1)));
    let above = steps(offset, 1, min, max).find_map(|at| Some((at, sound(at)?.0)));
    let (first, from) = below.map_or((min, log_min), |(at, end)| (at + 1, end.max(log_min)));
    let (end, to) = above.unwrap_or((max, limits.end));
    let walk = Walk {
        queue,
        first,
        end,
        from,
        to,
        limits,
    };
    let before = shared.mending.mended.load(Ordering::Relaxed);
    let walked = walk.run(shared, window);
    let mended = shared.mending.mended.load(Ordering::Relaxed) - before;
    let queue_id = queue.queue_id;
    match walked {
        Ok(lost) => {
            if mended > 0 {
                tracing::warn!(topic = %queue.topic, queue_id, offset, mended,
                    "queue entries were made again from the log");
            }
            walk.tell_lost(window, &lost);
            lost
        }
        // Asked for again when it is read again.
        Err(error) => {
            tracing::error!(topic = %queue.topic, queue_id, offset, %error,
                "a queue entry cannot be made again now");
            OffsetRanges::default()
        }
    }
}

impl Walk<'_> {
    /// Makes the entries of the records it comes by; the offsets without a record.
    fn run(&self, shared: &ReadShared, window: &mut LogWindow) -> Result<OffsetRanges, OpenError> {
        let (queue, first, end) = (self.queue, self.first, self.end);
        let bases: Vec<u64> = (window.base_of(self.from)..self.to)
            .step_by(shared.file_size as usize)
            .collect();
        let range = ScanRange {
            bases: &bases,
            file_size: shared.file_size,
            from: self.from,
            to: self.to,
            strict_from: u64::MAX,
            durable_to: 0,
            proof: Proof::NONE,
            in_flight_from: u64::MAX,
            check_crc: false,
            limits: self.limits,
        };
        let mut lost = OffsetRanges::of(first, end);
        let mut full = false;
        let delays = &shared.delay_levels_ms;
        let walked = scan(window, &range, &mut |scanned| {
            if shared.mending.stop.load(Ordering::SeqCst) {
                return Err(OpenError::Recovery("the store is being closed".into()));
            }
            for_each_entry(&scanned.record, scanned.offset, delays, &mut |placed| {
                let here = placed.queue_id == queue.queue_id && placed.topic == &*queue.topic;
                let wanted = match placed.source.is_copied() {
                    true => lost.containing(placed.queue_offset).is_some(),
                    false => (first..end).contains(&placed.queue_offset),
                };
                if !here || !wanted {
                    return Ok(());
                }
                let changed = queue.replace(placed.queue_offset, placed.entry)?;
                let changed = u64::from(changed);
                shared.mending.mended.fetch_add(changed, Ordering::Relaxed);
                lost.remove(placed.queue_offset);
                if lost.len() > LOST_IN_WALK {
                    full = true;
                    lost.cut(placed.queue_offset);
                    return Err(OpenError::Recovery("too many gaps for one walk".into()));
                }
                Ok(())
            })
        });
        match walked {
            Err(error) if !full => Err(error),
            _ => Ok(lost),
        }
    }

    /// One line for all that the walk did not find.
    fn tell_lost(&self, window: &LogWindow, lost: &OffsetRanges) {
        let (Some((first, _)), Some((_, end))) = (lost.iter().next(), lost.iter().last()) else {
            return;
        };
        tracing::warn!(
            topic = %self.queue.topic,
            queue_id = self.queue.queue_id,
            first_offset = first,
            last_offset = end - 1,
            messages = lost.offsets(),
            log_from = self.from,
            log_to = self.to,
            file = %window.path_of(self.from).display(),
            "messages are lost: the log is damaged and has no record for them; consumers go on \
             behind them"
        );
    }
}

/// Offsets at growing distances from `offset`, in one direction, within the queue.
fn steps(offset: i64, direction: i64, min: i64, max: i64) -> impl Iterator<Item = i64> {
    let distances = std::iter::successors(Some(1i64), |distance| distance.checked_mul(2));
    distances
        .map(move |distance| offset.saturating_add(direction.saturating_mul(distance)))
        .take_while(move |at| (min..max).contains(at))
}

/// Where the record of a queue offset begins and ends, if its entry is right.
fn sound_place(
    window: &mut LogWindow,
    limits: WindowLimits,
    queue: &Queue,
    offset: i64,
) -> Option<(u64, u64)> {
    let entry = queue.entry(offset).ok().flatten()?;
    let place = entry.physical_offset;
    if entry.end() > limits.end {
        return None;
    }
    let file_end = window.base_of(place).checked_add(window.file_size())?;
    let bytes: Result<&[u8], FileError> = record_bytes(window, limits, place, file_end);
    let record = Record::decode(bytes.ok()?).ok()?;
    let sound = record.check_place(place).is_ok()
        && record.size() == entry.size
        && belongs(&record, place, queue, offset);
    sound.then_some((place, entry.end()))
}

/// Whether the record at log offset `place` belongs to this offset of this queue.
pub(crate) fn belongs(record: &Record<'_>, place: u64, queue: &Queue, offset: i64) -> bool {
    let own = record.queue_offset() == offset
        && record.queue_id() == queue.queue_id
        && record.topic() == &*queue.topic;
    own || in_light_queue(record, place, queue, offset)
}

#[cold]
fn in_light_queue(record: &Record<'_>, place: u64, queue: &Queue, offset: i64) -> bool {
    let mut found = false;
    let walked: Result<(), ()> = for_each_entry(record, place, &[], &mut |placed| {
        found |= placed.queue_offset == offset
            && placed.queue_id == queue.queue_id
            && placed.topic == &*queue.topic;
        Ok(())
    });
    walked.is_ok() && found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_costs_one_entry_and_the_next_question_starts_another_thread() {
        let mending = Mending::default();
        {
            let mut state = mending.lock();
            state.running = true;
            state.wanted.extend([(0, 1), (0, 2)]);
        }
        let ended = std::thread::scope(|scope| {
            let run = || {
                let _goes_on = GoesOn(&mending);
                std::panic::panic_any("on purpose");
            };
            scope.spawn(run).join()
        });
        assert!(ended.is_err());
        let state = mending.lock();
        assert!(!state.running, "nobody would start another");
        assert_eq!(state.wanted, [(0, 2)]);
    }
}
