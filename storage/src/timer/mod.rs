//! Timer messages' state: which messages wait, and for when (docs/format.md, Timer files).
//!
//! A message that waits stands in the commit log, in the timer topic. The timer log holds an item
//! for each, the timer wheel leads from a time to its items, and `timercheck` says how far both
//! are right. All three are functions of the timer topic and of the clock: what is damaged in them
//! is made again from it. One thread owns them.

mod check_point;
mod fitting;
mod log;
mod recovery;
mod sweep;
mod topic;
mod wheel;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::error::FileError;
use crate::format::timer::{
    CHECK_FIELDS, Check, Entry, Item, NO_POSITION, Slot, WHEEL_SLOTS, mark,
};
use crate::layout::{Layout, LayoutError};
use check_point::{Running, read_check};
use log::TimerLog;
pub use recovery::TimerReport;
pub use sweep::Scan;
use sweep::Seen;
pub use topic::{Found, Looked, TimerTopic};
use wheel::Wheel;

/// Why timer state cannot be read or kept.
#[derive(Debug, Error)]
pub enum TimerError {
    /// A file of the timer log does not belong there.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file operation failed; it may be tried again.
    #[error(transparent)]
    File(#[from] FileError),
    /// A sync failed: what is on disk is not known before the next start.
    #[error("cannot sync {}: {source}; timers stand still until a restart", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// How timer state is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TimerSettings {
    /// `timerPrecisionMs`: length of a slot.
    pub precision_ms: i64,
    /// `timerRollWindowSlot`: messages farther away are entered again before.
    pub roll_window_slots: i64,
    /// `mappedFileSizeTimerLog`: bytes of a timer-log file.
    pub log_file_size: u64,
}

impl TimerSettings {
    /// A time rounded down to the precision.
    pub fn round(&self, ms: i64) -> i64 {
        ms.div_euclid(self.precision_ms) * self.precision_ms
    }

    /// Where a message goes that is due at `time_ms` and entered at `entered_ms`: the time of its
    /// slot, and whether it must be entered again then.
    fn place(&self, time_ms: i64, entered_ms: i64) -> (i64, bool) {
        let window = self.roll_window_slots;
        let over = time_ms
            .saturating_sub(entered_ms)
            .saturating_sub(window * self.precision_ms);
        if over < 0 {
            return (time_ms, false);
        }
        // Not so late that little is left for the last turn.
        let slots = match over < window / 3 * self.precision_ms {
            true => window / 2,
            false => window,
        };
        (entered_ms + slots * self.precision_ms, true)
    }
}

/// A message that is to wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Waiting {
    /// When it is due, ms.
    pub time_ms: i64,
    /// Commit log offset of its record.
    pub log_offset: u64,
    /// Size of its record.
    pub size: u32,
    /// Java hash of the topic that it is meant for.
    pub topic_hash: i32,
    /// Whether it says which other one is not to be delivered.
    pub deletes: bool,
}

/// Slots of a week that a missing check point does not give back.
const BLANK_SLOTS: i64 = 60;
/// What is further ahead, ms, is not the time of a clock that was put back.
const YEAR_MS: i64 = 366 * 86_400_000;

/// The open files.
#[derive(Debug)]
pub struct TimerStore {
    settings: TimerSettings,
    log: TimerLog,
    wheel: Wheel,
    check_path: PathBuf,
    check: Check,
    /// Messages that are in the timer log whether `timercheck` says so or not.
    seen: Seen,
    /// While the timer topic is read again: messages before this queue offset whose times are
    /// before this one, ms, are done with.
    settled: Option<(i64, i64)>,
    /// Items that wait.
    waiting: i64,
    /// Whether anything changed since the last check point.
    changed: bool,
    /// A check point that was begun.
    running: Option<Running>,
}

impl TimerStore {
    /// Whether a store has timer state.
    pub fn exists(layout: &Layout) -> bool {
        [
            layout.timer_wheel(),
            layout.timer_check(),
            layout.timer_log(),
        ]
        .iter()
        .any(|path| path.exists())
    }

    /// Opens the files and makes them fit each other and `topic`. Without a check point everything
    /// of the week before `now_ms` may still wait, as with Apache. Slots after `now_ms` are not
    /// done with, whatever it says: they take messages.
    ///
    /// # Errors
    /// A file that does not belong there, or that cannot be read or written.
    pub fn open(
        layout: &Layout,
        settings: TimerSettings,
        now_ms: i64,
        topic: &mut dyn TimerTopic,
    ) -> Result<(Self, TimerReport), TimerError> {
        let check_path = layout.timer_check();
        let check = read_check(&check_path)?;
        let fitted = fitting::fit(&layout.timer_log(), settings.log_file_size, &check)?;
        if fitted.starts_over {
            fitting::start_over(&layout.timer_log(), &check_path, &check)?;
        }
        let mut store = Self {
            settings,
            log: TimerLog::open(layout.timer_log(), fitted.file_size)?,
            wheel: Wheel::open(layout.timer_wheel())?,
            check,
            check_path,
            seen: Seen::default(),
            settled: None,
            waiting: 0,
            changed: false,
            running: None,
        };
        // Slots were over when they were done with: what lies behind the time of the check point
        // itself is damage. Behind `now_ms` alone it means that the clock was put back.
        let (said_ms, noted_ms) = (store.check.read_ms, store.check.version_ms);
        let noted_ms = noted_ms.min(now_ms.saturating_add(YEAR_MS));
        let last_ms = now_ms.max(noted_ms);
        // It is noted again as long as it lies ahead.
        store.check.version_ms = noted_ms;
        let unchecked = said_ms <= 0 || said_ms > last_ms;
        if unchecked && store.log.end() == 0 {
            store.check.read_ms = settings.round(now_ms);
        } else if unchecked {
            let week = (WHEEL_SLOTS / 2 - BLANK_SLOTS) * settings.precision_ms;
            store.check.read_ms = settings.round(now_ms.saturating_sub(week)).max(0);
        }
        let said_ms = store.check.read_ms;
        store.check.read_ms = said_ms.min(settings.round(now_ms));
        let mut report = recovery::recover(&mut store, topic, fitted.starts_over)?;
        report.unchecked = unchecked;
        report.said_ms = said_ms;
        Ok((store, report))
    }

    /// How they are kept.
    pub fn settings(&self) -> &TimerSettings {
        &self.settings
    }

    /// What `timercheck` says.
    pub fn check(&self) -> &Check {
        &self.check
    }

    /// Queue offset in the timer topic from which messages are to be entered.
    pub fn queue_offset(&self) -> i64 {
        let offset = self.check.queue_offset.min(self.check.master_queue_offset);
        offset.max(0)
    }

    /// Items that wait.
    pub fn waiting(&self) -> i64 {
        self.waiting
    }

    /// Whether a message of the timer topic is in the timer log already.
    pub fn is_entered(&self, queue_offset: i64) -> bool {
        self.seen.has(queue_offset)
    }

    /// Whether a message that is not in the timer log, though all before it were entered, was
    /// delivered: it was due before that.
    pub fn is_settled(&self, queue_offset: i64, time_ms: i64) -> bool {
        self.settled
            .is_some_and(|(before, read_ms)| queue_offset < before && time_ms < read_ms)
    }

    /// Enters a message at `entered_ms`, which is rounded; gives its slot's time.
    ///
    /// # Errors
    /// The files cannot be written; it may be tried again.
    pub fn enter(&mut self, message: &Waiting, entered_ms: i64) -> Result<i64, TimerError> {
        if self.wheel.is_full() && !self.is_checking()? {
            self.write()?;
        }
        let (time, rolls) = self.settings.place(message.time_ms, entered_ms);
        let tick = time.div_euclid(self.settings.precision_ms);
        let slot = self.wheel.slot(tick)?;
        let mut marks = mark::ITEM;
        if rolls {
            marks |= mark::ROLL;
        }
        if message.deletes {
            marks |= mark::DELETE;
        }
        let position = self.log.append(&Item {
            previous: slot.map_or(NO_POSITION, |slot| slot.last),
            marks,
            entered_ms,
            delay_ms: i32::try_from(time - entered_ms).unwrap_or(i32::MAX),
            log_offset: message.log_offset.cast_signed(),
            size: message.size.cast_signed(),
            topic_hash: message.topic_hash,
        })?;
        let position = position.cast_signed();
        let slot = linked(slot, tick, position, marks);
        self.wheel.put(slot);
        self.waiting += i64::from(weight(marks));
        self.changed = true;
        Ok(tick * self.settings.precision_ms)
    }

    /// Whether a position lies in a file that was removed.
    pub fn is_trimmed(&self, position: i64) -> bool {
        position < self.log.start().cast_signed()
    }

    /// Calls `look` with every slot whose messages wait, from the one at `from_ms` on.
    ///
    /// # Errors
    /// The wheel cannot be read.
    pub fn each_slot(
        &mut self,
        from_ms: i64,
        mut look: impl FnMut(&Slot),
    ) -> Result<(), TimerError> {
        let from = from_ms.div_euclid(self.settings.precision_ms);
        self.wheel.each(from, WHEEL_SLOTS, |slot| {
            look(slot);
            true
        })
    }

    /// The first slot with items whose time is at least `from_ms` and below `before_ms`.
    ///
    /// # Errors
    /// The wheel cannot be read.
    pub fn next_slot(&mut self, from_ms: i64, before_ms: i64) -> Result<Option<Slot>, TimerError> {
        let precision = self.settings.precision_ms;
        let from = from_ms.div_euclid(precision);
        let ticks = before_ms.div_euclid(precision).saturating_sub(from);
        let mut found = None;
        self.wheel.each(from, ticks, |slot| {
            found = Some(*slot);
            false
        })?;
        Ok(found)
    }

    /// The item at a position of the timer log; `None` if there is none any more.
    ///
    /// # Errors
    /// The timer log cannot be read.
    pub fn item(&mut self, position: i64) -> Result<Option<Item>, TimerError> {
        let Ok(position) = u64::try_from(position) else {
            return Ok(None);
        };
        if position < self.log.start() || position >= self.log.end() {
            return Ok(None);
        }
        Ok(match self.log.entry(position)? {
            Some(Entry::Item(item)) => Some(item),
            _ => None,
        })
    }

    /// Begins to look for the items of a slot whose chain is broken, from its first one on.
    pub fn scan_for(&self, slot: &Slot) -> Scan {
        Scan::of(self, u64::try_from(slot.first).unwrap_or(0))
    }

    /// Begins to look at all items.
    pub fn scan(&self) -> Scan {
        Scan::of(self, 0)
    }

    /// The messages of a slot do not wait any more.
    pub fn done(&mut self, slot: &Slot) {
        // A slot that comes again, since the clock was put back, has those of before as well.
        self.waiting = (self.waiting - i64::from(slot.count)).max(0);
        self.changed = true;
    }

    /// Whether there is anything to note at a check point.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Brings changes of the wheel to its file, behind the items they lead to.
    fn write(&mut self) -> Result<(), TimerError> {
        self.log.sync()?;
        self.wheel.write()
    }

    /// Removes timer-log files whose messages have all left the commit log.
    ///
    /// # Errors
    /// A file cannot be read or removed.
    pub fn trim(&mut self, min_log_offset: u64) -> Result<usize, TimerError> {
        self.log.trim(min_log_offset)
    }
}

/// The slot with one more item.
fn linked(slot: Option<Slot>, tick: i64, position: i64, marks: i32) -> Slot {
    let before = slot.unwrap_or(Slot {
        tick,
        first: position,
        last: position,
        count: 0,
        magic: 0,
    });
    Slot {
        last: position,
        count: before.count.wrapping_add(weight(marks)),
        ..before
    }
}

/// What an item adds to the number of those that wait, as Apache counts.
pub fn weight(marks: i32) -> i32 {
    if marks & mark::DELETE != 0 { -1 } else { 1 }
}

const _: () = assert!(CHECK_FIELDS <= 512 && WHEEL_SLOTS > 0);

#[cfg(test)]
mod tests;
