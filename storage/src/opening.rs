//! Opening a store: what is on disk, where the log ends, and queues and index in step with it.
//!
//! Two ways. With a resume point that the log confirms, everything below it is believed and only
//! what comes after is scanned. Otherwise (a store Apache wrote, a lost or damaged file) all
//! records are scanned, and whatever entry is missing is made. What must always hold at the end:
//! queues and index have an entry for every readable record and none beyond the log's end, and
//! behind that end the log's file holds zeros only.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::checkpoint::CheckpointFile;
use crate::config::StoreConfig;
use crate::consume_queue::{ConsumeQueueError, Extensions, KnownEnd};
use crate::dispatch::{LastRecord, Units};
use crate::error::OpenError;
use crate::format::index_entry::IndexShape;
use crate::format::record::Record;
use crate::former_run::FormerRun;
use crate::index_file::{Index, IndexError};
use crate::layout::{Layout, LayoutError, list_fixed_files};
use crate::log_window::{LogWindow, WindowLimits};
use crate::mapped_file::MapBudget;
use crate::queue_table::QueueTable;
use crate::rebuild::{KnownQueues, Rebuild};
use crate::recovery::{Proof, ScanEnd, ScanRange, scan};
use crate::removed_topics::{self, RemovedTopics};
use crate::resume::ResumePoint;
use crate::seeded::{Fault, seeded};
use crate::segments::is_no_space;
use crate::store::OpenReport;

pub(crate) use directories::{make_directories, make_directory};
pub(crate) use late::Late;
use late::Unmade;
use progress::Progress;
use seen::Seen;

mod cached_entries;
mod cut;
mod directories;
mod doubt;
mod evidence;
mod late;
mod misnamed;
mod offsets;
mod point;
mod progress;
mod seen;
mod shrunk;
mod spoiled;
#[cfg(test)]
mod tests;

/// Log files at the end of a foreign store in which the first damage ends the log, as in Apache.
const STRICT_FILES: usize = 3;

/// An open store's parts before any thread runs.
pub(crate) struct Recovered {
    pub(crate) table: Arc<QueueTable>,
    pub(crate) index: Arc<Index>,
    pub(crate) checkpoint: CheckpointFile,
    /// By slot: next offsets beyond their queue's end.
    pub(crate) floors: HashMap<u32, i64>,
    pub(crate) log_min: u64,
    pub(crate) log_end: u64,
    /// The last record, for the first resume point.
    pub(crate) last: LastRecord,
    /// Whether something changed since the last resume point.
    pub(crate) changed: bool,
    /// The resume point on disk, where all that changed stands behind it: then a new one need not
    /// be waited for.
    pub(crate) resumed: Option<LastRecord>,
    /// Entries that there was no room for.
    pub(crate) late: Option<Arc<Late>>,
    pub(crate) report: OpenReport,
}

/// One walk along the log.
struct Pass {
    from: u64,
    strict_from: u64,
    known_below: u64,
    /// Whether it begins with the first record.
    whole: bool,
    /// Whether entries that the disk has no room for may be left to the running store.
    may_lack_room: bool,
}

/// What is known before anything is opened.
struct Opening<'a> {
    config: &'a StoreConfig,
    layout: &'a Layout,
    /// Bases of the log files.
    bases: Vec<u64>,
    /// The queues that have a directory.
    queues: Vec<(String, i32)>,
    former: FormerRun,
    /// Store time, in milliseconds, below which Apache had synced every record; 0 if unknown.
    synced_before: i64,
    /// A resume point that the log confirms.
    resume: Option<ResumePoint>,
    known: KnownQueues,
    removed: RemovedTopics,
    /// Log offset up to which a former run had synced the log; 0 if unknown.
    known_to: u64,
    /// The same, unless another broker can have cut the log since: bad bytes below are damage.
    durable_to: u64,
    /// Another broker wrote to the store since the resume point was stored.
    foreign: bool,
    /// Queues and index were being made again from the beginning of the log.
    began_again: bool,
    /// Entries may be those of a start that was interrupted while it made them again.
    was_in_doubt: bool,
    /// The resume point on disk, if it is not one of another broker.
    noted: Option<ResumePoint>,
    /// What queues' files say behind the resume point.
    seen: Seen,
    /// Log offset of the last record that the index named when it was opened.
    indexed_to: u64,
    window: LogWindow,
    /// Whether entries below the resume point were made again.
    whole: bool,
    /// Entries that the walk had no room for.
    unmade: Option<Unmade>,
    /// Records that the last walk missed in the index.
    unindexed: u64,
    /// One for queues and index together.
    budget: Arc<MapBudget>,
    report: OpenReport,
}

/// Brings the store on disk into a state that can be served.
pub(crate) fn recover(config: &StoreConfig, layout: &Layout) -> Result<Recovered, OpenError> {
    let size = config.commit_log_file_size;
    let found = list_fixed_files(layout.commit_log(), size, "mappedFileSizeCommitLog")?;
    let queues = crate::layout::list_queues(&layout.consume_queues())?;
    let bases: Vec<u64> = found.files.iter().map(|file| file.base).collect();
    let mut window = LogWindow::new(layout.commit_log(), size);
    misnamed::check_names(&mut window, &bases)?;
    let former = FormerRun::of(layout);
    let checkpoint = CheckpointFile::open(&layout.checkpoint())?;
    let mut opening = Opening {
        config,
        layout,
        bases,
        queues,
        former,
        synced_before: checkpoint.stored().log_timestamp,
        resume: None,
        known: KnownQueues::new(),
        removed: removed_topics::load(&layout.removed_topics()),
        known_to: 0,
        durable_to: 0,
        foreign: false,
        began_again: false,
        was_in_doubt: false,
        noted: None,
        seen: Seen::default(),
        indexed_to: 0,
        window,
        whole: false,
        unmade: None,
        unindexed: 0,
        budget: MapBudget::new(config.max_mappings.min(host_mappings() / 4 * 3)),
        report: OpenReport {
            clean: former.is_closed(),
            ..OpenReport::default()
        },
    };
    opening.load_resume_point(&checkpoint)?;
    opening.look_behind()?;
    opening.note_offsets(&checkpoint)?;
    if let Some(path) = found.empty_last {
        cut::remove(&path)?;
    }
    opening.run(checkpoint)
}

impl Opening<'_> {
    fn log_min(&self) -> u64 {
        self.bases.first().copied().unwrap_or(0)
    }

    /// Log offset after the last byte that any file can hold.
    fn log_limit(&self) -> u64 {
        self.bases
            .last()
            .map_or(0, |base| base + self.config.commit_log_file_size)
    }

    fn run(mut self, checkpoint: CheckpointFile) -> Result<Recovered, OpenError> {
        if self.resume.is_none() || self.in_doubt() {
            cached_entries::settle(self.layout)?;
        }
        let table = self.open_queues()?;
        let (index, index_complete) = self.open_index(&checkpoint)?;
        if !self.former.is_closed() {
            tracing::info!("the last stop was not orderly; the log is read to its end");
            self.drop_cached_log()?;
        }
        let found = self.scan_log(&table, &index, index_complete)?;
        let log_end = found.end;
        shrunk::tell(&table, &self.known, self.known_to, log_end)?;
        self.tell_gone(log_end);
        self.note_shrunk(&found)?;
        // A resume point that names more than there is would bring it back.
        let cut = self.cut_entries(&table, &index, log_end)?;
        self.cut_log(&found)?;
        let floors = self.set_offsets(&table)?;
        let late = Late::of(&self, &found, &table, &index);
        let resumed = self.resume.as_ref().map(last_of_point);
        let last = self.last_of(&found);
        // What stands behind the last record is known to no resume point yet.
        let goes_on = log_end > last.end.max(self.known_to);
        let believed = self
            .resume
            .as_ref()
            .is_some_and(|point| point.log_offset == last.end && !point.in_doubt);
        let mut report = self.report;
        report.log_start = self.bases.first().copied().unwrap_or(0);
        report.log_end = log_end;
        report.damaged_records = found.damage_count;
        report.queues = table.len();
        report_damage(&found, &self.window);
        let removed = self.layout.removed_topics();
        match removed_topics::forget(&removed, &self.removed, report.log_start) {
            // A later start does it.
            Err(error) if is_no_space(&error.source) => {}
            forgotten => forgotten?,
        }
        Ok(Recovered {
            table,
            index,
            checkpoint,
            floors,
            log_min: report.log_start,
            log_end,
            last,
            resumed: resumed.filter(|_| !self.whole && !cut && (!goes_on || late.is_some())),
            changed: !believed || cut || goes_on || report.rebuilt_entries > 0,
            late,
            report,
        })
    }

    /// The last record that is known.
    fn last_of(&self, found: &ScanEnd) -> LastRecord {
        if let Some((start, timestamp)) = found.last {
            let end = found.last_end;
            return LastRecord {
                start,
                end,
                timestamp,
            };
        }
        self.resume.as_ref().map_or_else(
            || LastRecord {
                start: self.log_min(),
                end: self.log_min(),
                timestamp: 0,
            },
            last_of_point,
        )
    }

    /// Opens the queues; after a crash only as far as the resume point vouches for them.
    fn open_queues(&mut self) -> Result<Arc<QueueTable>, OpenError> {
        match self.open_queues_once() {
            Err(OpenError::Queue(ConsumeQueueError::Layout(
                LayoutError::Size { .. } | LayoutError::Missing { .. },
            ))) => {
                self.drop_spoiled_queues()?;
                self.open_queues_once()
            }
            other => other,
        }
    }

    fn open_queues_once(&self) -> Result<Arc<QueueTable>, OpenError> {
        let (log_min, known) = (self.log_min(), &self.known);
        let believe_ends = self.resume.is_some() && !self.in_doubt();
        let known = |topic: &str, queue_id| {
            let max = known.get(topic)?.get(&queue_id)?.max;
            believe_ends.then_some(KnownEnd { max, log_min })
        };
        let directory = self.layout.consume_queues();
        let (size, budget) = (self.config.queue_file_size(), Arc::clone(&self.budget));
        let table = QueueTable::new(directory, size, budget)
            .with_extensions(extensions(self.config, self.layout))
            .opened(&self.queues, log_min, &known)?;
        let believed_to = match &self.resume {
            Some(point) => point.log_offset,
            // Entries beyond what the files can hold would hide the ones to be made.
            _ => self.log_limit(),
        };
        for queue in table.all() {
            if queue.log_end() > believed_to && !seeded(Fault::KeepEntries) {
                queue.truncate(believed_to)?;
            }
        }
        Ok(Arc::new(table))
    }

    /// Opens the index as far as it can be believed, and says whether that is everything the resume
    /// point vouches for.
    fn open_index(&mut self, checkpoint: &CheckpointFile) -> Result<(Arc<Index>, bool), OpenError> {
        let shape = IndexShape {
            slots: self.config.index_slots,
            items: self.config.index_items,
        };
        let budget = || Arc::clone(&self.budget);
        let index = match Index::open(self.layout.index(), shape, budget()) {
            Err(error @ IndexError::Shape { .. }) => {
                tracing::warn!(%error, "the index is made again from the log");
                spoiled::remove_index_files(&self.layout.index())?;
                let index = Index::open(self.layout.index(), shape, budget())?;
                return Ok((Arc::new(index), !self.config.message_index));
            }
            opened => opened?,
        };
        let indexed = index.mark().map_or(0, |mark| mark.header.end_offset);
        self.indexed_to = u64::try_from(indexed).unwrap_or(0);
        let vouched = self.resume.as_ref().and_then(|point| point.index.as_ref());
        let complete = match &self.resume {
            // Nothing was put since.
            Some(_) if self.former.is_closed() => {
                vouched.is_none_or(|vouched| index.mark().as_ref() == Some(vouched))
            }
            Some(_) if seeded(Fault::KeepItems) => true,
            Some(_) => index.rewind(vouched)?,
            None if self.former.is_closed() => true,
            None => {
                index.drop_newer_than(checkpoint.stored().index_timestamp)?;
                true
            }
        };
        let files = self.resume.as_ref().map_or(0, |point| point.index_files);
        let complete = complete
            && !self.in_doubt()
            && !self.began_again
            && index.file_count() >= files as usize
            && !self.config.rebuild_queues
            && index.is_sound();
        Ok((Arc::new(index), complete || !self.config.message_index))
    }

    /// Finds the log's end and makes the entries that are missing.
    fn scan_log(
        &mut self,
        table: &QueueTable,
        index: &Index,
        index_complete: bool,
    ) -> Result<ScanEnd, OpenError> {
        let resume_at = self.resume.as_ref().map(|point| point.log_offset);
        let from = resume_at.unwrap_or_else(|| self.log_min());
        let strict = self.bases.len().saturating_sub(STRICT_FILES);
        let strict_from = resume_at
            .or_else(|| self.bases.get(strict).copied())
            .unwrap_or(0);
        let mut pass = Pass {
            from,
            strict_from,
            known_below: if self.known.is_empty() { 0 } else { from },
            whole: resume_at.is_none(),
            may_lack_room: false,
        };
        let wanted = self.config.message_index.then_some(index);
        if pass.whole {
            if !index_complete {
                index.rewind(None)?;
            }
            let found = self.scan_once(table, wanted, &pass)?;
            if self.unindexed == 0 {
                return Ok(found);
            }
            let note = "the index does not name every record; it is made again from the log";
            self.report.notes.push(note.into());
            index.rewind(None)?;
            return self.scan_once(table, wanted, &pass);
        }
        // Before the pass too: it begins lost queues with its own records.
        let lagging = !index_complete || self.config.rebuild_queues || self.lags(table);
        if lagging {
            self.doubt()?;
        }
        pass.may_lack_room = !lagging;
        let found = self.scan_once(table, wanted.filter(|_| index_complete), &pass)?;
        pass.may_lack_room = false;
        if self.unmade.is_some() || !lagging && !self.lags(table) {
            return Ok(found);
        }
        self.doubt()?;
        let note = "queues and index are made again from the log";
        self.report.notes.push(note.into());
        let index_again = (!index_complete).then_some(index);
        if index_again.is_some() {
            index.rewind(None)?;
        }
        cached_entries::sync(self.layout)?;
        pass.from = self.log_min();
        pass.whole = true;
        self.whole = true;
        let again = self.scan_once(table, index_again, &pass)?;
        if again.end != found.end {
            let (first, second) = (found.end, again.end);
            return Err(OpenError::Recovery(format!(
                "the log ends at {first} seen from the resume point, and at {second} seen from its \
                 start"
            )));
        }
        Ok(again)
    }

    fn scan_once(
        &mut self,
        table: &QueueTable,
        index: Option<&Index>,
        pass: &Pass,
    ) -> Result<ScanEnd, OpenError> {
        let (from, strict_from) = (pass.from, pass.strict_from);
        let clean = self.former.is_closed();
        let last_stored = Cell::new(i64::MIN);
        let accepts =
            |record: &Record<'_>, later| self.proves(table, record, later, last_stored.get());
        let acknowledged = |record: &Record<'_>| self.was_acknowledged(table, record);
        let size_of = |place| self.seen.size_of(place);
        let range = ScanRange {
            bases: &self.bases,
            file_size: self.config.commit_log_file_size,
            from,
            to: u64::MAX,
            limits: WindowLimits::QUIET,
            strict_from,
            durable_to: self.durable_to,
            proof: Proof {
                acknowledged: &acknowledged,
                size_of: &size_of,
                ..self.proof(table, &accepts)
            },
            in_flight_from: match clean {
                true => u64::MAX,
                false => strict_from.max(self.durable_to),
            },
            check_crc: self.config.check_crc_on_recover,
        };
        let delays = &self.config.delay_levels_ms;
        let mut rebuild = Rebuild::new(table, index, &self.known, delays);
        rebuild.indexed_to = indexed_to(index, clean);
        rebuild.known_below = pass.known_below;
        rebuild.removed = Some(&self.removed).filter(|removed| !removed.is_empty());
        rebuild.whole = pass.whole;
        rebuild.files_tell = !self.was_in_doubt;
        rebuild.units = Units::of(self.config);
        rebuild.may_lack_room = pass.may_lack_room;
        let mut progress = Progress::new(from, self.log_limit());
        let size = self.config.commit_log_file_size;
        let mut window = LogWindow::walking(self.layout.commit_log(), size);
        let tells = !self.whole;
        let queues = &self.queues;
        let found = scan(&mut window, &range, &mut |scanned| {
            progress.at(scanned.offset);
            if !scanned.damaged {
                last_stored.set(scanned.record.store_timestamp());
            }
            rebuild.stood_at = self.seen.contradicts(&scanned, queues);
            if let Some(stood) = rebuild.stood_at.filter(|_| tells) {
                self.tell_moved(&scanned, &stood);
            }
            rebuild.record(scanned)
        })?;
        rebuild.finish(self.log_min())?;
        let unmade = std::mem::take(&mut rebuild.unmade);
        self.unmade = rebuild.lacks_room.take().map(|why| Unmade {
            why,
            next: unmade,
            in_flight_from: range.in_flight_from,
        });
        progress.done(found.end);
        self.report.scanned_bytes += found.end - from;
        self.unindexed = rebuild.unindexed;
        note_made(&mut self.report, &rebuild);
        Ok(found)
    }

    /// Removes entries of records that are not in the log; whether there were any.
    fn cut_entries(
        &self,
        table: &QueueTable,
        index: &Index,
        log_end: u64,
    ) -> Result<bool, OpenError> {
        let mut cut = false;
        for queue in table.all() {
            if queue.log_end() > log_end && !seeded(Fault::KeepEntries) {
                queue.truncate(log_end)?;
                cut = true;
            }
        }
        let indexed = index.mark().map_or(-1, |mark| mark.header.end_offset);
        let indexed = u64::try_from(indexed).is_ok_and(|indexed| indexed >= log_end);
        if indexed && !seeded(Fault::KeepItems) {
            index.truncate(log_end)?;
            cut = true;
        }
        Ok(cut)
    }
}

fn last_of_point(point: &ResumePoint) -> LastRecord {
    LastRecord {
        start: point.last_record,
        end: point.log_offset,
        timestamp: point.last_timestamp,
    }
}

fn extensions(config: &StoreConfig, layout: &Layout) -> Extensions {
    let (size, writes) = (config.extension_file_size, config.write_extensions);
    Extensions::new(layout.extensions(), size, writes)
}

/// Mappings the host allows a process; a quarter of them is left to buffers, stacks and libraries.
fn host_mappings() -> usize {
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(usize::MAX)
}

/// Log offset up to which records are indexed.
fn indexed_to(index: Option<&Index>, clean: bool) -> u64 {
    let mark = index
        .and_then(Index::mark)
        .map_or(0, |mark| mark.header.end_offset.max(0));
    // Of a cleanly closed store the last indexed record is indexed whole; after a crash perhaps
    // not.
    mark as u64 + u64::from(clean && mark > 0)
}

/// What a walk made.
fn note_made(report: &mut OpenReport, rebuild: &Rebuild<'_>) {
    let batches = rebuild.inner_batches;
    let note = format!("{batches} records of batch queues (BatchCQ) stay in the log unread");
    report.notes.extend((batches > 0).then_some(note));
    report.rebuilt_entries += rebuild.entries;
    report.replaced_entries += rebuild.replaced;
}

fn report_damage(found: &ScanEnd, window: &LogWindow) {
    for damage in &found.damage {
        tracing::warn!(
            path = %window.path_of(damage.offset).display(),
            offset = damage.offset,
            resumed = damage.resumed,
            problem = %damage.problem,
            "damaged place in the log"
        );
    }
}
