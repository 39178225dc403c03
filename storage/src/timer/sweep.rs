//! A walk over the whole timer log: what the wheel should be, which messages are entered, and what
//! is damaged (docs/durability.md, Timer state).
//!
//! An item has no checksum, but most of what it says stands elsewhere too: the queue of the timer
//! topic knows place and size of its message, the items of its slot are chained, and the wheel
//! knows where the chain begins and ends. Where these differ the message itself says what is right.

use std::collections::BTreeSet;

use super::{Found, Looked, TimerError, TimerStore, TimerTopic, linked};
use crate::format::timer::{
    Entry, ITEM_SIZE, Item, NO_POSITION, SLOT_SIZE, Slot, WHEEL_SIZE, WHEEL_SLOTS,
    last_item_position, mark, slot_index,
};

/// Bytes of the timer log that a walk reads at a time: whole items.
const PIECE: usize = ITEM_SIZE * 4096;

/// Queue offsets of messages that wait lie at most so far apart: two bits are kept for each.
const FARTHEST: u64 = 1 << 32;

/// Calls `look` with what stands in every place of an item from `from` up to `to`, in order, until
/// it says stop: `None` where no item is. Says where to go on, `None` if a file is missing there.
pub(super) fn walk(
    store: &mut TimerStore,
    (from, to): (u64, u64),
    mut look: impl FnMut(u64, Option<&Item>) -> bool,
) -> Result<Option<u64>, TimerError> {
    store.log.write()?;
    let file_size = store.log.file_size();
    let last = last_item_position(file_size);
    let mut piece = Vec::new();
    let mut position = from;
    while position < to {
        if position % file_size > last {
            position = (position / file_size + 1) * file_size;
            continue;
        }
        store.log.piece(position, &mut piece, PIECE)?;
        if piece.is_empty() {
            return Ok(None);
        }
        for bytes in piece.chunks(ITEM_SIZE) {
            if position >= to || position % file_size > last {
                break;
            }
            let item = match Entry::decode(bytes) {
                Some(Entry::Item(item)) => Some(item),
                Some(Entry::Blank) | None => None,
            };
            if !look(position, item.as_ref()) {
                return Ok(Some(position));
            }
            position += ITEM_SIZE as u64;
        }
    }
    Ok(Some(position))
}

/// A walk over the timer log, as long as it is when that begins, which may take as many steps as it
/// likes: the files may change in between.
#[derive(Debug)]
pub struct Scan {
    position: u64,
    end: u64,
}

impl Scan {
    /// From a position on, up to where the timer log ends now.
    pub(super) fn of(store: &TimerStore, from: u64) -> Self {
        Self {
            position: from,
            end: store.log.end(),
        }
    }

    /// Calls `look` with the next few thousand items, in order; false once there are no more.
    ///
    /// # Errors
    /// The timer log cannot be read.
    pub fn step(
        &mut self,
        store: &mut TimerStore,
        mut look: impl FnMut(u64, &Item),
    ) -> Result<bool, TimerError> {
        let from = self.position.max(store.log.start());
        let end = self.end.min(store.log.end());
        let to = end.min(from + PIECE as u64);
        let reached = walk(store, (from, to), |position, item| {
            if let Some(item) = item {
                look(position, item);
            }
            true
        })?;
        self.position = reached.unwrap_or(end);
        Ok(self.position < end)
    }
}

/// Messages of the timer topic that the timer log has, by queue offset.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Queue offset of the first bit.
    base: i64,
    entered: Vec<u64>,
    waiting: Vec<u64>,
}

impl Seen {
    /// Whether a message is among them.
    pub(super) fn has(&self, queue_offset: i64) -> bool {
        self.place(queue_offset)
            .and_then(|(word, bit)| Some(self.entered.get(word)? & bit != 0))
            .unwrap_or(false)
    }

    fn place(&self, queue_offset: i64) -> Option<(usize, u64)> {
        let bit = usize::try_from(queue_offset.checked_sub(self.base)?).ok()?;
        Some((bit / 64, 1 << (bit % 64)))
    }

    /// Adds one; false if it cannot be: there is another item for the same message. One whose time
    /// is past may have been entered again, for another time.
    fn add(&mut self, queue_offset: i64, waits: bool) -> bool {
        if self.entered.is_empty() {
            self.base = queue_offset;
        }
        if queue_offset.abs_diff(self.base) > FARTHEST {
            return true;
        }
        if queue_offset < self.base {
            self.begin_at(queue_offset);
        }
        let Some((word, bit)) = self.place(queue_offset) else {
            return true;
        };
        if word >= self.entered.len() {
            self.entered.resize(word + 1, 0);
            self.waiting.resize(word + 1, 0);
        }
        let entered = self.entered[word] & bit != 0;
        let waiting = self.waiting[word] & bit != 0;
        self.entered[word] |= bit;
        if waits {
            self.waiting[word] |= bit;
        }
        !entered || waits && !waiting
    }

    fn begin_at(&mut self, queue_offset: i64) {
        let words = (self.base - queue_offset).cast_unsigned().div_ceil(64);
        let more = std::iter::repeat_n(0, words as usize);
        self.entered.splice(0..0, more.clone());
        self.waiting.splice(0..0, more);
        self.base -= (words * 64).cast_signed();
    }
}

/// What the wheel should be.
struct Image {
    /// As in the file; most of it is never touched.
    bytes: Vec<u8>,
    /// Ticks of its slots.
    ticks: Vec<i64>,
    /// Slots that the wheel has so, by index.
    same: Vec<bool>,
}

impl Image {
    fn new() -> Self {
        Self {
            bytes: vec![0; WHEEL_SIZE as usize],
            ticks: Vec::new(),
            same: vec![false; WHEEL_SLOTS as usize],
        }
    }

    fn slot(&self, tick: i64) -> Option<Slot> {
        let at = slot_index(tick) as usize * SLOT_SIZE;
        let slot = Slot::decode(&self.bytes[at..at + SLOT_SIZE]);
        (slot.tick == tick && tick != 0).then_some(slot)
    }

    fn put(&mut self, slot: &Slot) {
        if slot.first == slot.last {
            self.ticks.push(slot.tick);
        }
        let at = slot_index(slot.tick) as usize * SLOT_SIZE;
        self.bytes[at..at + SLOT_SIZE].copy_from_slice(&slot.encode());
    }
}

/// What a walk found.
pub(super) struct Sweep {
    /// The first tick that is not done with.
    first: i64,
    precision_ms: i64,
    /// Position from which on the wheel need not know the items.
    checked: u64,
    image: Image,
    pub(super) seen: Seen,
    /// Items looked at.
    pub(super) items: u64,
    /// Places without a sound item, in order.
    pub(super) damaged: Vec<u64>,
    /// Items that may be wrong though they are ones.
    suspects: BTreeSet<u64>,
    /// Items that name another one before them than they should, and which.
    pub(super) relinks: Vec<(u64, i64)>,
    /// Ticks of slots that the wheel does not have as it should.
    pub(super) wrong: Vec<i64>,
    /// How many of them no crash explains.
    pub(super) damaged_slots: u64,
    /// Whether items that wait left with the first files.
    pub(super) front_gone: bool,
    /// A sound item.
    pub(super) sound: Option<Item>,
}

impl Sweep {
    /// Walks over the whole timer log.
    pub(super) fn over(
        store: &mut TimerStore,
        topic: &mut dyn TimerTopic,
        checked: u64,
    ) -> Result<Self, TimerError> {
        let precision_ms = store.settings.precision_ms;
        let mut sweep = Self {
            first: store.check.read_ms.div_euclid(precision_ms),
            precision_ms,
            checked,
            image: Image::new(),
            seen: Seen::default(),
            items: 0,
            damaged: Vec::new(),
            suspects: BTreeSet::new(),
            relinks: Vec::new(),
            wrong: Vec::new(),
            damaged_slots: 0,
            front_gone: false,
            sound: None,
        };
        let bounds = (store.log.start(), store.log.end());
        walk(store, bounds, |position, item| {
            sweep.see(position, item, topic, bounds.0);
            true
        })?;
        sweep.compare(store)?;
        sweep.verify(store, topic)?;
        Ok(sweep)
    }

    fn see(
        &mut self,
        position: u64,
        item: Option<&Item>,
        topic: &mut dyn TimerTopic,
        log_start: u64,
    ) {
        let Some(item) = item else {
            self.damaged.push(position);
            return;
        };
        self.items += 1;
        if item.is_filler() {
            return;
        }
        let tick = item.time_ms().div_euclid(self.precision_ms);
        let waits = tick >= self.first;
        let sound = match topic.find(item.log_offset, item.size) {
            Found::At(queue_offset) => self.seen.add(queue_offset, waits),
            Found::Nothing => false,
            Found::Expired | Found::Unreadable => true,
        };
        if !sound {
            self.damaged.push(position);
            return;
        }
        self.sound = Some(*item);
        if tick >= self.first + WHEEL_SLOTS {
            self.suspects.insert(position);
        } else if waits {
            self.link(position, item, tick, log_start);
        }
    }

    /// Puts an item into its slot.
    fn link(&mut self, position: u64, item: &Item, tick: i64, log_start: u64) {
        let slot = self.image.slot(tick);
        let previous = slot.map_or(NO_POSITION, |slot| slot.last);
        if item.previous != previous {
            let gone = slot.is_none() && (0..log_start.cast_signed()).contains(&item.previous);
            self.front_gone |= gone;
            if position < self.checked && !gone {
                self.suspects.insert(position);
                self.suspect(item.previous);
            }
            self.relinks.push((position, previous));
        }
        let slot = linked(slot, tick, position.cast_signed(), item.marks);
        self.image.put(&slot);
    }

    fn suspect(&mut self, position: i64) {
        if let Ok(position) = u64::try_from(position) {
            self.suspects.insert(position);
        }
    }

    /// Compares the wheel with what it should be.
    fn compare(&mut self, store: &mut TimerStore) -> Result<(), TimerError> {
        let start = store.log.start().cast_signed();
        let checked = self.checked.cast_signed();
        let mut counts = Vec::new();
        store.wheel.each(self.first, WHEEL_SLOTS, |slot| {
            let image = self.image.slot(slot.tick);
            if image == Some(*slot) {
                self.image.same[slot_index(slot.tick) as usize] = true;
                return true;
            }
            let later = slot.last >= checked || image.is_some_and(|image| image.last >= checked);
            let gone = (0..start).contains(&slot.first);
            self.front_gone |= gone;
            if !later && !gone {
                self.damaged_slots += 1;
                let ends = image.map(|image| [image.first, image.last]);
                for end in ends.into_iter().flatten().chain([slot.first, slot.last]) {
                    self.suspect(end);
                }
                if let Some(image) = image.filter(|image| image.count != slot.count) {
                    counts.push(image);
                }
            }
            if image.is_none() {
                self.wrong.push(slot.tick);
            }
            true
        })?;
        for slot in counts {
            self.suspect_chain(store, &slot)?;
        }
        for tick in &self.image.ticks {
            let slot = self.image.slot(*tick);
            let Some(slot) = slot.filter(|_| !self.image.same[slot_index(*tick) as usize]) else {
                continue;
            };
            self.wrong.push(*tick);
            let known = store.wheel.slot(*tick)?.is_some();
            self.damaged_slots += u64::from(!known && slot.first < checked);
        }
        Ok(())
    }

    /// A slot whose number of items is another one: some may or may not delete others.
    fn suspect_chain(&mut self, store: &mut TimerStore, slot: &Slot) -> Result<(), TimerError> {
        let mut at = slot.last;
        while let Some(item) = store.item(at)? {
            self.suspect(at);
            if item.previous >= at {
                break;
            }
            at = item.previous;
        }
        Ok(())
    }

    /// Asks the messages of suspects.
    fn verify(
        &mut self,
        store: &mut TimerStore,
        topic: &mut dyn TimerTopic,
    ) -> Result<(), TimerError> {
        for position in std::mem::take(&mut self.suspects) {
            let Some(item) = store.item(position.cast_signed())? else {
                continue;
            };
            let sound = item.is_filler()
                || match topic.look(item.log_offset) {
                    Looked::Message(message) => says(&item, &message),
                    Looked::Nothing => false,
                    Looked::Expired | Looked::Unreadable => true,
                };
            if !sound {
                self.damaged.push(position);
            }
        }
        self.damaged.sort_unstable();
        self.damaged.dedup();
        Ok(())
    }

    /// The slot that the wheel should have for a tick.
    pub(super) fn slot(&self, tick: i64) -> Option<Slot> {
        self.image.slot(tick)
    }
}

/// Whether an item says the same as its message.
fn says(item: &Item, message: &super::Waiting) -> bool {
    let rolls = item.marks & mark::ROLL != 0;
    let in_time = match rolls {
        true => item.time_ms() <= message.time_ms,
        false => item.time_ms() == message.time_ms,
    };
    in_time
        && item.size.cast_unsigned() == message.size
        && (item.marks & mark::DELETE != 0) == message.deletes
}
