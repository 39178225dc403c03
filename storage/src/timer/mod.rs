//! Timer messages' state: which messages wait, and for when (docs/format.md, Timer files).
//!
//! A message that waits stands in the commit log, in the timer topic. The timer log holds an item
//! for each, the timer wheel leads from a time to its items, and `timercheck` says how far both
//! are right. All three are functions of the commit log from `timercheck` on. One thread owns
//! them.

mod check_point;
mod log;
mod recovery;
mod wheel;

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::FileError;
use crate::format::timer::{
    CHECK_FIELDS, CHECK_SIZE, Check, Entry, Item, NO_POSITION, Slot, WHEEL_SIZE, WHEEL_SLOTS, mark,
};
use crate::layout::{Layout, LayoutError};
use crate::medium;
use check_point::{CheckPoint, Running};
use log::TimerLog;
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
    /// The wheel file is none.
    #[error("{} has {found} bytes instead of {WHEEL_SIZE}", path.display())]
    WheelSize {
        /// The file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
    },
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

/// What opening found.
#[derive(Debug, Default)]
pub struct TimerReport {
    /// Items of the timer log that were looked at.
    pub scanned_items: u64,
    /// Whether the wheel was made again from the timer log.
    pub rebuilt: bool,
    /// Whether there was no check point.
    pub unchecked: bool,
    /// Whether the timer log lacks what `timercheck` says it has: everything that waits is to be
    /// entered again from the timer topic.
    pub lost: bool,
    /// What `timercheck` says of slots that are done with, ms: ahead of the clock where that was
    /// put back.
    pub said_ms: i64,
}

/// The open files.
#[derive(Debug)]
pub struct TimerStore {
    settings: TimerSettings,
    log: TimerLog,
    wheel: Wheel,
    check_path: PathBuf,
    check: Check,
    /// Commit log offsets of messages that are in the timer log though `timercheck` does not say
    /// so.
    ahead: HashSet<i64>,
    /// Whether the timer topic must be read from its beginning.
    lost: bool,
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

    /// Opens the files and makes them fit each other. `is_message` says whether a message stands
    /// in the commit log where an item behind the last check point says. Without a check point
    /// everything of the week before `now_ms` may still wait, as with Apache. Slots after `now_ms`
    /// are not done with, whatever it says: they take messages.
    ///
    /// # Errors
    /// A file that does not belong there, or that cannot be read or written.
    pub fn open(
        layout: &Layout,
        settings: TimerSettings,
        now_ms: i64,
        is_message: impl FnMut(&Item) -> bool,
    ) -> Result<(Self, TimerReport), TimerError> {
        let check_path = layout.timer_check();
        let mut store = Self {
            settings,
            log: TimerLog::open(layout.timer_log(), settings.log_file_size)?,
            wheel: Wheel::open(layout.timer_wheel())?,
            check: read_check(&check_path)?,
            check_path,
            ahead: HashSet::new(),
            lost: false,
            waiting: 0,
            changed: false,
            running: None,
        };
        // Slots were over when they were done with: what lies behind the time of the check point
        // itself is damage. Behind `now_ms` alone it means that the clock was put back.
        let (said_ms, noted_ms) = (store.check.read_ms, store.check.version_ms);
        let unchecked = said_ms <= 0 || said_ms > now_ms.max(noted_ms);
        if unchecked && store.log.end() == 0 {
            store.check.read_ms = settings.round(now_ms);
        } else if unchecked {
            let week = (WHEEL_SLOTS / 2 - BLANK_SLOTS) * settings.precision_ms;
            store.check.read_ms = settings.round(now_ms.saturating_sub(week)).max(0);
        }
        let said_ms = store.check.read_ms;
        store.check.read_ms = said_ms.min(settings.round(now_ms));
        let mut report = recovery::recover(&mut store, is_message)?;
        report.unchecked = unchecked;
        if report.lost {
            // Before anything is entered again: the next start must not take the end of the log
            // for what it was.
            store.check.log_position = store.log.start().cast_signed();
            store.check.queue_offset = 0;
            store.check.master_queue_offset = 0;
            write_check(&store.check_path, &store.check)?;
        }
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
        if self.lost {
            return 0;
        }
        self.check
            .queue_offset
            .min(self.check.master_queue_offset)
            .max(0)
    }

    /// Items that wait.
    pub fn waiting(&self) -> i64 {
        self.waiting
    }

    /// Whether a message is in the timer log already though `timercheck` does not say so; asked
    /// once for each.
    pub fn is_entered(&mut self, log_offset: u64) -> bool {
        !self.ahead.is_empty() && self.ahead.remove(&log_offset.cast_signed())
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

    /// All items of a slot, where its chain is broken: positions in the order in which they were
    /// entered. Reads the timer log from the slot's first item on.
    ///
    /// # Errors
    /// The timer log cannot be read.
    pub fn items_by_scan(&mut self, slot: &Slot) -> Result<Vec<i64>, TimerError> {
        let precision = self.settings.precision_ms;
        let from = u64::try_from(slot.first).unwrap_or(0);
        let mut found = Vec::new();
        let from = from.max(self.log.start());
        recovery::scan(self, from, recovery::NoItem::Damage, |position, item| {
            if item.time_ms().div_euclid(precision) == slot.tick {
                found.push(position.cast_signed());
            }
            true
        })?;
        Ok(found)
    }

    /// How many messages wait from `read_ms` on, by the Java hash of the topic that they are meant
    /// for, less those that delete others. Reads the whole timer log.
    ///
    /// # Errors
    /// The timer log cannot be read.
    pub fn waiting_by_topic(&mut self, read_ms: i64) -> Result<HashMap<i32, i64>, TimerError> {
        let precision = self.settings.precision_ms;
        let first = read_ms.div_euclid(precision);
        let mut counts = HashMap::new();
        let from = self.log.start();
        recovery::scan(self, from, recovery::NoItem::Damage, |_, item| {
            if item.time_ms().div_euclid(precision) >= first {
                *counts.entry(item.topic_hash).or_default() += i64::from(weight(item.marks));
            }
            true
        })?;
        Ok(counts)
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

    /// Puts everything on disk and notes how far it is right: messages of slots before `read_ms`
    /// are done with, those of the timer topic before `queue_offset` are entered or delivered.
    /// Without one, that stays as the last check point has it, and so does the position of the
    /// timer log from which on items are known to be entered though the topic is read again.
    ///
    /// # Errors
    /// [`TimerError::Lost`] ends the use of these files; others may pass.
    pub fn check_point(
        &mut self,
        read_ms: i64,
        queue_offset: Option<i64>,
        now_ms: i64,
    ) -> Result<(), TimerError> {
        self.end_check_point()?;
        let what = self.take_off(read_ms, queue_offset, now_ms)?;
        let stored = what.store();
        self.landed(&what, stored)
    }

    /// Begins [`TimerStore::check_point`] on a thread of its own, unless one is under way.
    ///
    /// # Errors
    /// The files cannot be written; it may be tried again.
    pub fn begin_check_point(
        &mut self,
        read_ms: i64,
        queue_offset: Option<i64>,
        now_ms: i64,
    ) -> Result<(), TimerError> {
        if self.running.is_none() {
            let what = self.take_off(read_ms, queue_offset, now_ms)?;
            self.running = Some(what.start());
        }
        Ok(())
    }

    /// Whether a check point that was begun is under way.
    ///
    /// # Errors
    /// Of one that has ended, as those of [`TimerStore::check_point`].
    pub fn is_checking(&mut self) -> Result<bool, TimerError> {
        if self
            .running
            .as_ref()
            .is_some_and(|running| !running.is_over())
        {
            return Ok(true);
        }
        self.end_check_point().map(|()| false)
    }

    fn end_check_point(&mut self) -> Result<(), TimerError> {
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        let stored = running.end();
        self.landed(&running.what, stored)
    }

    fn take_off(
        &mut self,
        read_ms: i64,
        queue_offset: Option<i64>,
        now_ms: i64,
    ) -> Result<CheckPoint, TimerError> {
        let log = self.log.take_dirty()?;
        let mut check = Check {
            read_ms,
            version_ms: now_ms,
            version_counter: self.check.version_counter.wrapping_add(1),
            ..self.check
        };
        if let Some(queue_offset) = queue_offset {
            check.log_position = self.log.end().cast_signed();
            check.queue_offset = queue_offset;
            check.master_queue_offset = queue_offset;
            self.ahead = HashSet::new();
        }
        let (path, file, slots) = self.wheel.take_off().inspect_err(|_| {
            log.iter().for_each(|(base, ..)| self.log.note_dirty(*base));
        })?;
        self.changed = false;
        Ok(CheckPoint {
            log,
            wheel: (path, file),
            slots,
            check,
            check_path: self.check_path.clone(),
        })
    }

    fn landed(
        &mut self,
        what: &CheckPoint,
        stored: Result<(), TimerError>,
    ) -> Result<(), TimerError> {
        self.wheel.landed(stored.is_ok());
        if stored.is_ok() {
            self.check = what.check;
        } else {
            self.changed = true;
            for (base, ..) in &what.log {
                self.log.note_dirty(*base);
            }
        }
        stored
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
fn weight(marks: i32) -> i32 {
    if marks & mark::DELETE != 0 { -1 } else { 1 }
}

fn read_check(path: &Path) -> Result<Check, TimerError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Check::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Check::default()),
        Err(source) => Err(FileError::at("read", path)(source).into()),
    }
}

/// All fields lie in one sector: a crash leaves the old ones or the new ones.
fn write_check(path: &Path, check: &Check) -> Result<(), TimerError> {
    let is_new = !path.exists();
    let open = || {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
    };
    let file: File = medium::name(path, open).map_err(FileError::at("open", path))?;
    let write = || {
        file.write_all_at(&check.encode(), 0)?;
        if file.metadata()?.len() < CHECK_SIZE as u64 {
            file.set_len(CHECK_SIZE as u64)?;
        }
        Ok(())
    };
    write().map_err(FileError::at("write", path))?;
    sync(path, &file)?;
    match path.parent() {
        Some(parent) if is_new => medium::sync_directory(parent).map_err(lost(parent)),
        _ => Ok(()),
    }
}

/// Waits until a file is on disk.
fn sync(path: &Path, file: &File) -> Result<(), TimerError> {
    medium::sync_data(file).map_err(lost(path))
}

/// The kernel may have dropped what was written.
fn lost(path: &Path) -> impl FnOnce(io::Error) -> TimerError {
    let path = path.into();
    |source| TimerError::Lost { path, source }
}

const _: () = assert!(CHECK_FIELDS <= 512 && WHEEL_SLOTS > 0);

#[cfg(test)]
mod tests;
