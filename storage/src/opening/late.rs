//! Entries that a start finds no room for: a full disk must not keep a store from being opened, for
//! what frees it runs in an open one only.
//!
//! The start goes on without them. Queues serve what they have, no message is taken, retention
//! runs; and the dispatcher makes the entries before it does anything else, from the resume point
//! on, again and again until there is room for all of them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Opening, last_of_point};
use crate::config::StoreConfig;
use crate::dispatch::{LastRecord, Units};
use crate::error::OpenError;
use crate::index_file::Index;
use crate::log_window::{LogWindow, WindowLimits};
use crate::queue_table::QueueTable;
use crate::rebuild::{KnownQueues, Rebuild};
use crate::recovery::{Proof, ScanEnd, ScanRange, scan};
use crate::removed_topics;

/// What a walk along the log left undone.
#[derive(Debug)]
pub(super) struct Unmade {
    /// The first failure, as a sentence.
    pub(super) why: String,
    /// By slot: the queue offset behind the last record that has no entry.
    pub(super) next: HashMap<u32, i64>,
    /// Log offset from which the bytes of a record are looked at whole.
    pub(super) in_flight_from: u64,
}

/// The entries of the log behind a resume point, some of which are missing.
pub(crate) struct Late {
    /// The resume point's last record: no entry up to its end is missing.
    pub(crate) done: LastRecord,
    /// The log's last record.
    pub(crate) last: LastRecord,
    /// Log offset where the log ended.
    pub(crate) end: u64,
    /// Why they are missing.
    pub(crate) why: String,
    table: Arc<QueueTable>,
    index: Option<Arc<Index>>,
    config: StoreConfig,
    commit_log: PathBuf,
    bases: Vec<u64>,
    known: KnownQueues,
    /// The file of removed topics: some may be removed meanwhile.
    removed_topics: PathBuf,
    in_flight_from: u64,
}

impl Late {
    pub(super) fn of(
        opening: &Opening<'_>,
        found: &ScanEnd,
        table: &Arc<QueueTable>,
        index: &Arc<Index>,
    ) -> Option<Arc<Late>> {
        let (unmade, point) = (opening.unmade.as_ref()?, opening.resume.as_ref()?);
        tracing::error!(
            "{}: queues and index stay behind the log until there is room, and no message is taken",
            unmade.why
        );
        Some(Arc::new(Late {
            done: last_of_point(point),
            last: opening.last_of(found),
            end: found.end,
            why: unmade.why.clone(),
            table: Arc::clone(table),
            index: opening.config.message_index.then(|| Arc::clone(index)),
            config: opening.config.clone(),
            commit_log: opening.layout.commit_log().to_path_buf(),
            bases: opening.bases.clone(),
            known: opening.known.clone(),
            removed_topics: opening.layout.removed_topics(),
            in_flight_from: unmade.in_flight_from,
        }))
    }

    /// Makes what is missing. After an error it may be repeated: what it made stays.
    ///
    /// # Errors
    /// There is still no room, or a file failed.
    pub(crate) fn make(&self) -> Result<(), OpenError> {
        let size = self.config.commit_log_file_size;
        let range = ScanRange {
            bases: &self.bases,
            file_size: size,
            from: self.done.end,
            to: self.end,
            limits: WindowLimits::QUIET,
            // The log's end is known; bad bytes before it were stepped over.
            strict_from: u64::MAX,
            durable_to: self.end,
            proof: Proof::NONE,
            in_flight_from: self.in_flight_from,
            check_crc: self.config.check_crc_on_recover,
        };
        let index = self.index.as_deref();
        let removed = removed_topics::load(&self.removed_topics);
        let delays = &self.config.delay_levels_ms;
        let mut rebuild = Rebuild::new(&self.table, index, &self.known, delays);
        let mark = index.and_then(Index::mark);
        let mark = mark.map_or(0, |mark| mark.header.end_offset);
        rebuild.indexed_to = u64::try_from(mark).unwrap_or(0);
        rebuild.known_below = self.done.end;
        rebuild.removed = Some(&removed).filter(|removed| !removed.is_empty());
        rebuild.units = Units::of(&self.config);
        rebuild.repeats = true;
        let mut window = LogWindow::new(&self.commit_log, size);
        scan(&mut window, &range, &mut |scanned| rebuild.record(scanned))?;
        rebuild.finish(self.done.end)
    }

    /// The queues whose readers may wait for these entries.
    pub(crate) fn table(&self) -> &QueueTable {
        &self.table
    }
}
