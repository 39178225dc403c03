//! Faults that the simulation seeds on purpose, to show that it would find them
//! (docs/design.md, "Simulated disk"). Nothing but the crate's own tests can switch one on: in
//! every other build [`seeded`] is false at compile time.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Recovery leaves what stands behind the log's end.
    NoZeroing,
    /// Records are dispatched once they are submitted.
    EarlyDispatch,
    /// A write counts as durable once it is submitted.
    EarlyAnswer,
    /// A failed sync is tried again.
    SyncAgain,
    /// A file that the log leaves is not ended by a blank record.
    NoBlank,
    /// The next offsets in the resume point are not looked at.
    OffsetsFromQueues,
    /// A resume point is stored without syncing queues and index.
    UnsyncedResume,
    /// A short write counts as whole.
    ShortIsWhole,
    /// A write counts as soon as it is over, whatever is before it.
    OutOfOrder,
    /// A log file gets its name and the directory is not synced.
    UnsyncedName,
    /// What a killed process left in the caches is believed without a sync.
    NoSyncOfFound,
    /// Entries of records that the log lost stay in the queues.
    KeepEntries,
    /// Index items of records that the log lost stay.
    KeepItems,
    /// An offset in a light queue is given again.
    LightOffsetsAgain,
    /// Recovery makes no entries in light queues.
    NoLightEntries,
    /// A resume point remembers queue offsets of records that are not durable.
    OffsetsAhead,
}

/// Whether this fault is switched on.
#[cfg(not(test))]
#[inline]
pub(crate) const fn seeded(_fault: Fault) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static SEEDED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Whether this fault is switched on for this thread.
#[cfg(test)]
pub(crate) fn seeded(fault: Fault) -> bool {
    SEEDED.get() == Some(fault)
}

/// Switches one fault on, or all off, for this thread.
#[cfg(test)]
pub(crate) fn seed_fault(fault: Option<Fault>) {
    SEEDED.set(fault);
}
