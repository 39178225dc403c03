//! Makes timer log, wheel and `timercheck` fit each other after a start
//! (docs/durability.md, Timer state).
//!
//! The timer log is right up to where `timercheck` says; of what stands behind, items count as
//! long as they name messages of the commit log. Slots get the items that they lack. A slot that
//! leads behind the end, or a wheel that does not know the last item, is made again from the
//! whole timer log.

use super::{TimerError, TimerReport, TimerStore, linked};
use crate::format::timer::{Entry, ITEM_SIZE, Item, NO_POSITION, WHEEL_SLOTS};

/// Bytes of the timer log that a scan reads at a time: whole items.
const PIECE: usize = ITEM_SIZE * 4096;
/// Items before the last check point that are believed to be entered, beside those behind it:
/// Apache notes the position of the flush before the one of the queue offset.
const BEFORE: u64 = 64;

/// Makes everything fit.
pub(super) fn recover(
    store: &mut TimerStore,
    mut is_message: impl FnMut(&Item) -> bool,
) -> Result<TimerReport, TimerError> {
    let mut report = TimerReport::default();
    let read_ms = store.check.read_ms;
    let start = store.log.start();
    let said = u64::try_from(store.check.log_position).unwrap_or(0);
    let checked = item_boundary(store, said);
    let reaches = checked >= start && checked <= store.log.end();
    let mut from = checked;
    if !reaches || !fits(store, checked)? {
        report.rebuilt = true;
        from = start;
    }
    let end = find_end(store, from, checked, &mut is_message, &mut report)?;
    store.log.cut(end)?;
    report.lost = end < checked;
    if !report.rebuilt && leads_beyond(store, read_ms, end)? {
        report.rebuilt = true;
    }
    if report.rebuilt {
        store.wheel.clear()?;
        from = start;
    }
    apply(store, from, read_ms, &mut report)?;
    note_ahead(
        store,
        if report.lost {
            start
        } else {
            from.max(checked)
        },
    )?;
    store.lost = report.lost;
    let first = read_ms.div_euclid(store.settings.precision_ms);
    let mut waiting = 0;
    store.wheel.each(first, WHEEL_SLOTS, |slot| {
        waiting += i64::from(slot.count);
        true
    })?;
    store.waiting = waiting;
    Ok(report)
}

/// The last place at or before `position` where an item can begin.
fn item_boundary(store: &TimerStore, position: u64) -> u64 {
    let in_file = position % store.log.file_size();
    position - in_file % ITEM_SIZE as u64
}

/// Position behind the last item that counts.
fn find_end(
    store: &mut TimerStore,
    from: u64,
    checked: u64,
    is_message: &mut impl FnMut(&Item) -> bool,
    report: &mut TimerReport,
) -> Result<u64, TimerError> {
    let mut end = from;
    let scanned = scan(store, from, NoItem::Ends, |position, item| {
        report.scanned_items += 1;
        let counts = position < checked || is_message(item);
        if counts {
            end = position + ITEM_SIZE as u64;
        }
        counts
    });
    scanned.map(|()| end)
}

/// What bytes that are no item mean.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NoItem {
    /// The log ends there.
    Ends,
    /// Damage to one item.
    Damage,
}

/// Calls `look` with every item from `from` on, in order, until it says stop or there is none.
pub(super) fn scan(
    store: &mut TimerStore,
    from: u64,
    no_item: NoItem,
    mut look: impl FnMut(u64, &Item) -> bool,
) -> Result<(), TimerError> {
    store.log.write()?;
    let file_size = store.log.file_size();
    let mut piece = Vec::new();
    let mut position = from;
    while position < store.log.end() {
        store.log.piece(position, &mut piece, PIECE)?;
        let mut next_file = false;
        for bytes in piece.chunks(ITEM_SIZE) {
            if position >= store.log.end() {
                return Ok(());
            }
            match Entry::decode(bytes) {
                Some(Entry::Item(item)) => {
                    if !look(position, &item) {
                        return Ok(());
                    }
                    position += ITEM_SIZE as u64;
                }
                Some(Entry::Blank) => {
                    next_file = true;
                    break;
                }
                None if no_item == NoItem::Damage => position += ITEM_SIZE as u64,
                None => return Ok(()),
            }
        }
        if piece.is_empty() {
            return Ok(());
        }
        if next_file {
            position = (position / file_size + 1) * file_size;
        }
    }
    Ok(())
}

/// Whether the wheel knows the last item before `position`.
fn fits(store: &mut TimerStore, position: u64) -> Result<bool, TimerError> {
    let Some(last) = last_before(store, position)? else {
        return Ok(true);
    };
    let Some(Entry::Item(item)) = store.log.entry(last)? else {
        return Ok(false);
    };
    let tick = item.time_ms().div_euclid(store.settings.precision_ms);
    let slot = store.wheel.slot(tick)?;
    Ok(slot.is_some_and(|slot| slot.last >= last.cast_signed()))
}

/// Position of the last item before `position`, which is a place where an item can begin.
fn last_before(store: &mut TimerStore, position: u64) -> Result<Option<u64>, TimerError> {
    let size = ITEM_SIZE as u64;
    let in_file = position % store.log.file_size();
    let last = match in_file {
        0 => position
            .checked_sub(store.log.file_size())
            .map(|base| base + crate::format::timer::last_item_position(store.log.file_size())),
        _ => position.checked_sub(size),
    };
    Ok(last.filter(|last| *last >= store.log.start()))
}

/// Whether a slot whose messages wait leads to where no item is.
fn leads_beyond(store: &mut TimerStore, read_ms: i64, end: u64) -> Result<bool, TimerError> {
    let first = read_ms.div_euclid(store.settings.precision_ms);
    let mut beyond = false;
    store.wheel.each(first, WHEEL_SLOTS, |slot| {
        beyond |= slot.last >= end.cast_signed();
        !beyond
    })?;
    Ok(beyond)
}

/// Gives the slots the items that they lack.
fn apply(
    store: &mut TimerStore,
    from: u64,
    read_ms: i64,
    report: &mut TimerReport,
) -> Result<(), TimerError> {
    let precision = store.settings.precision_ms;
    let first = read_ms.div_euclid(precision);
    let mut missing: Vec<(i64, i64, Item)> = Vec::new();
    let mut at = from;
    loop {
        missing.clear();
        let mut more = false;
        scan(store, at, NoItem::Ends, |position, item| {
            report.scanned_items += 1;
            let tick = item.time_ms().div_euclid(precision);
            if tick >= first && tick < first + WHEEL_SLOTS {
                missing.push((tick, position.cast_signed(), *item));
            }
            more = missing.len() >= PIECE;
            at = position + ITEM_SIZE as u64;
            !more
        })?;
        for (tick, position, item) in &missing {
            let slot = store.wheel.slot(*tick)?;
            if slot.is_none_or(|slot| slot.last < *position) {
                let previous = slot.map_or(NO_POSITION, |slot| slot.last);
                // The precision was another one, or an item before it does not count any more.
                if item.previous != previous {
                    store.log.relink(*position, previous)?;
                }
                store.wheel.put(linked(slot, *tick, *position, item.marks));
                store.changed = true;
            }
            if store.wheel.is_full() {
                store.write()?;
            }
        }
        if !more {
            return Ok(());
        }
    }
}

/// Remembers which messages are entered though `timercheck` does not say so.
fn note_ahead(store: &mut TimerStore, checked: u64) -> Result<(), TimerError> {
    let in_file = checked % store.log.file_size();
    let before = in_file.min(BEFORE * ITEM_SIZE as u64);
    let mut ahead = std::collections::HashSet::new();
    scan(store, checked - before, NoItem::Damage, |_, item| {
        ahead.insert(item.log_offset);
        true
    })?;
    store.ahead = ahead;
    Ok(())
}
