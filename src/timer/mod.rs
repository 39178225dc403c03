//! Messages for a time (docs/behaviour.md, Messages for a time).
//!
//! Such a message is first stored in the timer topic. The services thread enters it into the timer
//! files (`saturnmq_storage::timer`) and, when the slot of its time is over, appends it to its
//! real topic. A slot counts as done when the writer has acknowledged all of its messages, so that
//! after a crash a message is looked at again rather than forgotten.

pub mod asked;
mod direct;
mod ending;
pub mod handle;
pub(crate) mod message;
pub mod question;
pub mod service;
mod slot;
mod topic;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use saturnmq_storage::format::timer::{Slot, WHEEL_SLOTS, slot_index};

/// What the rest of the broker sees of timers.
#[derive(Debug, Default)]
pub struct Timers {
    /// Counted since the start.
    pub counters: Counters,
    /// Messages that wait, less those that delete others.
    pub waiting: AtomicI64,
    /// Messages of slots before this time, ms, are done with; 0 before the first message.
    pub read_ms: AtomicI64,
    /// Queue offset of the next message to enter.
    pub queue_offset: AtomicI64,
    /// Messages that wait in each slot of the wheel; made with the first message.
    slots: OnceLock<Box<[AtomicI32]>>,
    /// Why they do not go on, if they do not.
    pub standstill: ArcSwapOption<Standstill>,
}

/// Why timers do not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standstill {
    /// What failed.
    pub why: String,
    /// Whether only a restart helps: nothing is accepted for a time until then.
    pub lasting: bool,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages taken from the timer topic.
    pub entered: AtomicU64,
    /// Messages appended to their real topics.
    pub delivered: AtomicU64,
    /// Messages that went into the timer topic once more.
    pub rolled: AtomicU64,
    /// Messages that others deleted.
    pub deleted: AtomicU64,
    /// Messages that cannot be delivered.
    pub dropped: AtomicU64,
}

impl Timers {
    /// Why a message for a time cannot be accepted: it would not come before a restart.
    pub fn refusal(&self) -> Option<String> {
        let standstill = self.standstill.load();
        let lasting = standstill.as_ref().filter(|found| found.lasting)?;
        Some(lasting.why.clone())
    }

    /// Messages that wait in the slot of a tick.
    pub fn in_slot(&self, tick: i64) -> i64 {
        let count = self.slots.get().and_then(|slots| place(slots, tick));
        count.map_or(0, |count| i64::from(count.load(Ordering::Relaxed)))
    }

    /// How long the oldest slot that is not done with is over, ms.
    pub fn behind_ms(&self, now_ms: i64) -> i64 {
        match self.read_ms.load(Ordering::Relaxed) {
            0 => 0,
            read => now_ms.saturating_sub(read).max(0),
        }
    }

    /// Messages of the timer topic that are not entered yet, given the end of its queue.
    pub fn not_entered(&self, end: i64) -> i64 {
        match self.read_ms.load(Ordering::Relaxed) {
            0 => 0,
            _ => end
                .saturating_sub(self.queue_offset.load(Ordering::Relaxed))
                .max(0),
        }
    }

    fn note(&self, tick: i64, change: i32) {
        let slots = self.slots.get_or_init(|| {
            let count = usize::try_from(WHEEL_SLOTS).unwrap_or(0);
            (0..count).map(|_| AtomicI32::new(0)).collect()
        });
        if let Some(count) = place(slots, tick) {
            count.fetch_add(change, Ordering::Relaxed);
        }
    }

    fn set(&self, slot: &Slot, count: i32) {
        self.note(slot.tick, 0);
        if let Some(place) = self.slots.get().and_then(|slots| place(slots, slot.tick)) {
            place.store(count, Ordering::Relaxed);
        }
    }
}

fn place(slots: &[AtomicI32], tick: i64) -> Option<&AtomicI32> {
    slots.get(usize::try_from(slot_index(tick)).ok()?)
}

/// Adds one to a counter.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn nothing_is_accepted_for_a_time_while_only_a_restart_helps() {
        let timers = Timers::default();
        assert_eq!(timers.refusal(), None);
        let stands = |lasting| {
            let why = "a sync failed".to_owned();
            timers
                .standstill
                .store(Some(Arc::new(Standstill { why, lasting })));
            timers.refusal()
        };
        assert_eq!(stands(false), None, "it is stored and comes later");
        assert_eq!(stands(true).as_deref(), Some("a sync failed"));
    }
}
