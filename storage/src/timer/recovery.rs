//! Makes timer log, wheel and `timercheck` fit each other and the timer topic
//! (docs/durability.md, Timer state).
//!
//! The timer log is right up to where `timercheck` says; of what stands behind, items count as
//! long as they name messages of the timer topic. Slots are made as the items say. Items that are
//! damaged are filled out, and all messages that the timer log does not have are entered again.

use super::check_point::write_check;
use super::sweep::{Sweep, walk};
use super::{Found, TimerError, TimerStore, TimerTopic};
use crate::format::timer::{ITEM_SIZE, Item, WHEEL_SLOTS};

/// Walks over the timer log at most: each but the last fills out what is damaged.
const SWEEPS: usize = 8;

/// What opening found.
#[derive(Debug, Default)]
pub struct TimerReport {
    /// Items of the timer log that were looked at.
    pub scanned_items: u64,
    /// Slots of the wheel that were made again from the timer log and no crash explains.
    pub mended_slots: u64,
    /// Items of the timer log that were damaged.
    pub damaged_items: u64,
    /// Whether there was no check point.
    pub unchecked: bool,
    /// Whether the timer log lacks what it should have: the timer topic is read again from its
    /// beginning, and what the log lacks is entered.
    pub lost: bool,
    /// What `timercheck` says of slots that are done with, ms: ahead of the clock where that was
    /// put back.
    pub said_ms: i64,
}

/// Makes everything fit after a start.
pub(super) fn recover(
    store: &mut TimerStore,
    topic: &mut dyn TimerTopic,
    starts_over: bool,
) -> Result<TimerReport, TimerError> {
    let said = u64::try_from(store.check.log_position).unwrap_or(0);
    let (start, end) = (store.log.start(), store.log.end());
    let checked = item_boundary(store, said).clamp(start, end);
    let mut report = TimerReport {
        lost: starts_over || said > end,
        ..TimerReport::default()
    };
    let end = find_end(store, checked, topic)?;
    store.log.cut(end)?;
    let settled = (store.queue_offset(), store.check.read_ms);
    if report.lost {
        read_again(store, settled)?;
    }
    mend(store, topic, checked, settled, &mut report)?;
    Ok(report)
}

impl TimerStore {
    /// Makes the files fit the timer topic while they are used: an item turned out to be damaged.
    /// Messages of slots before `read_ms` are done with, those before `queue_offset` are entered
    /// or delivered.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn mend(
        &mut self,
        topic: &mut dyn TimerTopic,
        read_ms: i64,
        queue_offset: i64,
    ) -> Result<TimerReport, TimerError> {
        self.end_check_point()?;
        self.log.sync()?;
        self.check.read_ms = read_ms;
        let end = self.log.end();
        let mut report = TimerReport::default();
        mend(self, topic, end, (queue_offset, read_ms), &mut report)?;
        Ok(report)
    }
}

/// Makes everything fit; what stands in the timer log counts.
fn mend(
    store: &mut TimerStore,
    topic: &mut dyn TimerTopic,
    checked: u64,
    settled: (i64, i64),
    report: &mut TimerReport,
) -> Result<(), TimerError> {
    if store.log.mend_blanks()? > 0 {
        store.changed = true;
    }
    let mut sweep = Sweep::over(store, topic, checked)?;
    report.scanned_items = sweep.items;
    report.mended_slots = sweep.damaged_slots;
    for _ in 0..SWEEPS {
        if sweep.damaged.is_empty() {
            break;
        }
        report.damaged_items += sweep.damaged.len() as u64;
        report.lost = true;
        // First of all: the next start must not take filled places for what was entered.
        read_again(store, settled)?;
        let filler = Item::filler(sweep.sound.as_ref());
        store.log.fill(&sweep.damaged, &filler)?;
        sweep = Sweep::over(store, topic, checked)?;
    }
    if sweep.front_gone {
        report.lost = true;
        read_again(store, settled)?;
    }
    apply(store, sweep)?;
    let first = store.check.read_ms.div_euclid(store.settings.precision_ms);
    let mut waiting = 0;
    store.wheel.each(first, WHEEL_SLOTS, |slot| {
        waiting += i64::from(slot.count);
        true
    })?;
    store.waiting = waiting;
    if report.mended_slots > 0 || report.damaged_items > 0 || report.lost {
        tracing::warn!(
            slots = report.mended_slots,
            items = report.damaged_items,
            from_topic = report.lost,
            "timer files did not fit each other: what they lack is made again"
        );
    }
    Ok(())
}

/// Notes that the timer topic is to be read from its beginning.
fn read_again(store: &mut TimerStore, settled: (i64, i64)) -> Result<(), TimerError> {
    if store.settled.is_none() {
        store.settled = Some(settled);
    }
    store.check.log_position = store.log.end().cast_signed();
    store.check.queue_offset = 0;
    store.check.master_queue_offset = 0;
    write_check(&store.check_path, &store.check)
}

/// The last place at or before `position` where an item can begin.
fn item_boundary(store: &TimerStore, position: u64) -> u64 {
    let in_file = position % store.log.file_size();
    position - in_file % ITEM_SIZE as u64
}

/// Position behind the last item that counts.
fn find_end(
    store: &mut TimerStore,
    checked: u64,
    topic: &mut dyn TimerTopic,
) -> Result<u64, TimerError> {
    let mut end = checked;
    let bounds = (checked, store.log.end());
    walk(store, bounds, |position, item| {
        let counts = item.is_some_and(|item| {
            item.is_filler() || matches!(topic.find(item.log_offset, item.size), Found::At(_))
        });
        if counts {
            end = position + ITEM_SIZE as u64;
        }
        counts
    })?;
    Ok(end)
}

/// Gives chains and wheel what they should have.
fn apply(store: &mut TimerStore, sweep: Sweep) -> Result<(), TimerError> {
    for (position, previous) in &sweep.relinks {
        store.log.relink(position.cast_signed(), *previous)?;
    }
    for tick in &sweep.wrong {
        if store.wheel.is_full() {
            store.write()?;
        }
        match sweep.slot(*tick) {
            Some(slot) => store.wheel.put(slot),
            None => store.wheel.forget(*tick),
        }
    }
    store.changed |= !sweep.relinks.is_empty() || !sweep.wrong.is_empty();
    store.seen = sweep.seen;
    Ok(())
}
