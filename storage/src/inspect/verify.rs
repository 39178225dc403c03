//! Everything a store claims, checked: records, queue offsets, queue and index entries.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::index_check::IndexCheck;
use super::queue_check::QueueCheck;
use super::{Found, IndexFiles, InspectError, StoreView};
use crate::format::message::{FIXED_SIZE, sys_flag};
use crate::format::record::{Record, RecordError};
use crate::former_run::FormerRun;
use crate::log_window::{LOOK_BYTES, LogWindow, WindowLimits};

/// Findings that are kept in words; all are counted.
const KEPT: usize = 10_000;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The file it is in.
    pub file: PathBuf,
    /// Where: a log offset in a log file, else a position in the file; none for a file as a whole.
    pub offset: Option<u64>,
    /// What, as the rest of a sentence or one of its own.
    pub problem: String,
}

impl Finding {
    pub(super) fn file(path: &Path, problem: String) -> Finding {
        Finding {
            file: path.to_path_buf(),
            offset: None,
            problem,
        }
    }
}

/// What was found to be wrong.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    count: u64,
}

impl Findings {
    pub fn add(&mut self, finding: Finding) {
        self.count += 1;
        if self.kept.len() < KEPT {
            self.kept.push(finding);
        }
    }

    /// Something at a log offset.
    pub fn at_log(&mut self, view: &StoreView, offset: u64, problem: String) {
        self.at_file(&view.log_path(offset), offset, problem);
    }

    /// Something at a position of a file.
    pub fn at_file(&mut self, path: &Path, offset: u64, problem: String) {
        self.add(Finding {
            offset: Some(offset),
            ..Finding::file(path, problem)
        });
    }
}

/// What was looked at.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub entries: u64,
    pub items: u64,
    /// Queues whose end is behind the log.
    pub queues_behind: u64,
    pub notes: Vec<String>,
    /// Queue entries that no file of the log can hold the records of, and log offset behind the
    /// last of those.
    pub beyond: (u64, u64),
    /// Damaged pieces of the log, in order.
    damaged: Vec<Range<u64>>,
}

impl Tally {
    /// Whether a log offset lies in a piece that is reported already.
    pub fn is_damaged(&self, offset: u64) -> bool {
        let at = self.damaged.partition_point(|range| range.end <= offset);
        self.damaged
            .get(at)
            .is_some_and(|range| range.contains(&offset))
    }

    /// Whether anything between two log offsets is reported already.
    pub fn is_damaged_between(&self, from: u64, to: u64) -> bool {
        let at = self.damaged.partition_point(|range| range.end <= from);
        self.damaged.get(at).is_some_and(|range| range.start < to)
    }

    /// Single records of the log.
    pub fn log<'v>(&self, view: &'v StoreView) -> LogLook<'v> {
        LogLook::new(view)
    }
}

/// Reads single records of the log.
pub struct LogLook<'v> {
    view: &'v StoreView,
    window: LogWindow,
}

impl<'v> LogLook<'v> {
    /// Nothing is opened yet.
    pub fn new(view: &'v StoreView) -> Self {
        LogLook {
            view,
            window: LogWindow::new(view.layout.commit_log(), view.shape.log_file),
        }
    }

    /// The record that stands at a log offset and says so; `None` if none does.
    pub fn record(&mut self, offset: u64) -> Result<Option<Record<'_>>, InspectError> {
        let base = offset - offset % self.view.shape.log_file;
        let files = &self.view.log_files;
        // A broker may have made it since.
        if files.binary_search_by_key(&base, |file| file.base).is_err()
            && !self.view.log_path(offset).is_file()
        {
            return Ok(None);
        }
        let limits = WindowLimits {
            end: u64::MAX,
            active_base: if self.view.is_live() { 0 } else { u64::MAX },
        };
        let head = self.window.bytes(offset, FIXED_SIZE, limits, LOOK_BYTES)?;
        let size = head
            .and_then(|head| head.first_chunk().copied())
            .map_or(0, i32::from_be_bytes);
        let size = usize::try_from(size).unwrap_or(0);
        if size < FIXED_SIZE {
            return Ok(None);
        }
        let bytes = self.window.bytes(offset, size, limits, LOOK_BYTES)?;
        let record = bytes.and_then(|bytes| Record::decode(bytes).ok());
        Ok(record.filter(|record| record.check_place(offset).is_ok()))
    }
}

/// What verifying a store came to.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// Log offset of the first byte.
    pub log_begin: u64,
    /// Log offset after the last record.
    pub log_end: u64,
    /// Records.
    pub records: u64,
    /// Queue entries of records in the log.
    pub entries: u64,
    /// Index items; `None` if the index was not looked at.
    pub items: Option<u64>,
    /// How much is wrong.
    pub damage: u64,
    /// What is wrong, the first of it.
    pub findings: Vec<Finding>,
    /// What is worth knowing and no damage, as sentences.
    pub notes: Vec<String>,
}

/// Checks every record, and queues and index against the log, both ways. `progress` is told how
/// many bytes of the log were looked at.
pub fn verify(view: &StoreView, progress: &mut dyn FnMut(u64)) -> Result<Verified, InspectError> {
    let mut findings = Findings::default();
    view.misfits
        .iter()
        .for_each(|misfit| findings.add(misfit.clone()));
    let mut queues = QueueCheck::open(view, &mut findings)?;
    let dispatched_to = match view.last_run.former {
        FormerRun::Bounded(_) if !view.is_live() => queues.dispatched_to(view.log_limit())?,
        _ => 0,
    };
    let mut walk = Walk {
        view,
        queues,
        dispatched_to,
        index: open_index(view, &mut findings)?,
        findings,
        tally: Tally::default(),
        records: 0,
        inner_batches: 0,
        end: view.log_begin(),
        last_timestamp: None,
        zeros_from: None,
        torn: None,
        in_flight: InFlight::default(),
        failed: None,
    };
    view.walk(0, |found| {
        let more = walk.found(found);
        progress(walk.end - view.log_begin());
        match more {
            Ok(()) => true,
            Err(error) => {
                walk.failed = Some(error);
                false
            }
        }
    })?;
    walk.finish()
}

fn open_index<'v>(
    view: &'v StoreView,
    findings: &mut Findings,
) -> Result<Option<IndexCheck<'v>>, InspectError> {
    // They are half made.
    if view.last_run.is_in_doubt() {
        return Ok(None);
    }
    let Some((files, misfits)) = IndexFiles::open(view)? else {
        return Ok(None);
    };
    misfits.into_iter().for_each(|misfit| findings.add(misfit));
    Ok(Some(IndexCheck::new(view, files)))
}

struct Walk<'v> {
    view: &'v StoreView,
    queues: QueueCheck<'v>,
    /// Log offset up to which entries show that the log was on the disk; 0 where they do not.
    dispatched_to: u64,
    index: Option<IndexCheck<'v>>,
    findings: Findings,
    tally: Tally,
    records: u64,
    inner_batches: u64,
    /// Log offset after the last record.
    end: u64,
    /// Store time of the last record, ms.
    last_timestamp: Option<i64>,
    /// Where a file has zeros to its end.
    zeros_from: Option<u64>,
    /// Damage that nothing follows so far: what a crash leaves at the log's end.
    torn: Option<(u64, String)>,
    in_flight: InFlight,
    failed: Option<InspectError>,
}

/// Bad places with records behind them that a power cut explains, as far as was seen: all of it was
/// in flight (docs/durability.md, "Crash recovery").
#[derive(Debug, Default)]
struct InFlight {
    places: Vec<(u64, String)>,
    records: u64,
}

impl Walk<'_> {
    fn found(&mut self, found: Found<'_>) -> Result<(), InspectError> {
        // The writer was here when a running store was looked at; by now it may have gone on to
        // the next file, which belongs to the next look.
        if self.view.is_live() && self.zeros_from.is_some() {
            return Ok(());
        }
        match found {
            Found::Record {
                offset,
                record,
                problem,
            } => self.record(offset, &record, problem),
            Found::Blank { offset, remaining } => {
                self.zeros_end(offset);
                let file = self.view.shape.log_file;
                let rest = file - offset % file;
                if u64::try_from(remaining) != Ok(rest) {
                    let text = format!("the blank record says {remaining} bytes, {rest} are left");
                    self.findings.at_log(self.view, offset, text);
                }
                Ok(())
            }
            Found::Damage {
                offset, error, len, ..
            } => {
                self.zeros_end(offset);
                self.damage(offset, len, &error);
                Ok(())
            }
            Found::Unused { offset, .. } => {
                self.zeros_from.get_or_insert(offset);
                Ok(())
            }
        }
    }

    /// Something at `next` follows what looked like the log's end.
    fn zeros_end(&mut self, next: u64) {
        let zeros = self.zeros_from.take().map(|from| {
            let text = "zeros to the end of the file, and more of the log behind them";
            (from, text.to_owned())
        });
        let places = &mut self.in_flight.places;
        places.extend([self.torn.take(), zeros].into_iter().flatten());
        let Some(first) = places.first().map(|(first, _)| *first) else {
            return;
        };
        let explained = match self.view.last_run.former {
            FormerRun::Bounded(bytes) if !self.was_durable(first) => {
                next < first.saturating_add(bytes)
            }
            _ => false,
        };
        if !explained {
            for (offset, problem) in std::mem::take(&mut self.in_flight).places {
                self.findings.at_log(self.view, offset, problem);
            }
        }
    }

    /// Whether no crash can have torn what stands at a log offset.
    fn was_durable(&self, offset: u64) -> bool {
        self.view.is_durable(offset) || offset < self.dispatched_to
    }

    fn damage(&mut self, offset: u64, len: u64, error: &RecordError) {
        self.tally.damaged.push(offset..offset + len);
        let problem = format!("{len} bytes are no record: {error}");
        self.torn = Some((offset, problem));
    }

    /// The last thing in the log is damaged: only where it was on the disk is it more than what a
    /// crash leaves.
    fn end_of_log(&mut self) {
        if let Some((offset, _)) = self.in_flight.places.first() {
            let records = self.in_flight.records;
            self.tally.notes.push(format!(
                "the log is torn at offset {offset}; {records} records behind it were in flight \
                 when a power cut can have torn it: the next start cuts it there"
            ));
        }
        if let Some((offset, problem)) = self.torn.take() {
            if self.was_durable(offset) {
                self.findings.at_log(self.view, offset, problem);
            } else {
                self.tally.notes.push(format!(
                    "the log is torn at offset {offset} ({problem}): the next start cuts it there"
                ));
            }
        }
        self.begins_late();
        self.shrunk();
    }

    /// Whether the log begins behind where it began: only retention takes its first files, and none
    /// that the resume point does not lie behind.
    fn begins_late(&mut self) {
        let (view, run) = (self.view, &self.view.last_run);
        let begin = view.log_begin();
        let gone = run.log_min().filter(|min| *min < begin);
        let Some(from) = gone.filter(|_| !view.is_live() && !view.log_files.is_empty()) else {
            return;
        };
        let path = view.log_path(from);
        if view.misfits.iter().any(|misfit| misfit.file == path) {
            return;
        }
        if view.clean || begin > run.durable_to() {
            let text = format!("it is missing: the log began at {from}, and begins at {begin} now");
            self.findings.add(Finding::file(&path, text));
        } else {
            self.tally.notes.push(format!(
                "the log began at {from}, and begins at {begin} now: retention took files since, \
                 or they are missing"
            ));
        }
    }

    /// Whether the log ends before where it was on the disk: no crash explains that.
    fn shrunk(&mut self) {
        let (run, end) = (&self.view.last_run, self.end);
        if self.view.is_live() {
            return;
        }
        let durable_to = run.durable_to();
        if end < durable_to && !self.tally.is_damaged(durable_to - 1) {
            let text = format!(
                "the log ends at {end}, and was on the disk up to {durable_to}: what stood between \
                 is lost"
            );
            let path = self.view.log_path(end);
            match path.is_file() {
                true => self.findings.at_file(&path, end, text),
                false => self
                    .findings
                    .add(Finding::file(self.view.layout.commit_log(), text)),
            }
        }
        // Apache's word: store times of what was on the disk.
        let synced = run.checkpoint.log_timestamp;
        let last = self.last_timestamp.unwrap_or(0);
        if durable_to == 0 && last < synced && self.tally.damaged.is_empty() {
            let text = format!(
                "it says that messages stored up to {synced} are on the disk, and the last one in \
                 the log was stored at {last}: the end of the log is lost, or this file is damaged"
            );
            self.findings
                .add(Finding::file(&self.view.layout.checkpoint(), text));
        }
    }

    fn record(
        &mut self,
        offset: u64,
        record: &Record<'_>,
        problem: Option<RecordError>,
    ) -> Result<(), InspectError> {
        self.zeros_end(offset);
        self.records += 1;
        self.in_flight.records += u64::from(!self.in_flight.places.is_empty());
        self.end = offset + u64::from(record.size());
        self.last_timestamp = Some(record.store_timestamp());
        let problem = problem.or_else(|| record.check_text(offset).err());
        if let Some(problem) = &problem {
            // No crash moves a record.
            if matches!(problem, RecordError::Misplaced { .. }) {
                self.findings.at_log(self.view, offset, problem.to_string());
            } else {
                self.torn = Some((offset, problem.to_string()));
            }
            self.tally.damaged.push(offset..self.end);
            // The queues and the index may have it or not.
            return Ok(());
        }
        if record.sys_flag() & sys_flag::INNER_BATCH != 0 {
            self.inner_batches += 1;
            return Ok(());
        }
        self.queues
            .record(record, offset, &mut self.findings, &self.tally)?;
        match &mut self.index {
            Some(index) => index.record(record, offset, &mut self.findings, &mut self.tally),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Verified, InspectError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.end_of_log();
        if self.inner_batches > 0 {
            let count = self.inner_batches;
            let text =
                format!("{count} records hold whole batches, which only BatchCQ queues name");
            self.tally.notes.push(text);
        }
        if self.view.last_run.is_in_doubt() {
            let text = "queues and index were being made again when the last start was \
                        interrupted: the next one makes them, and the index was not looked at";
            self.tally.notes.push(text.to_owned());
        }
        let begin = self.view.log_begin_now();
        let end = self.end.max(begin);
        let (findings, tally) = (&mut self.findings, &mut self.tally);
        self.queues.finish((begin, end), findings, tally)?;
        let items = match self.index {
            Some(index) => {
                index.finish((begin, end), findings, tally)?;
                Some(tally.items)
            }
            None => None,
        };
        self.tally.notes.sort();
        Ok(Verified {
            log_begin: begin,
            log_end: end,
            records: self.records,
            entries: self.tally.entries,
            items,
            damage: self.findings.count,
            findings: self.findings.kept,
            notes: self.tally.notes,
        })
    }
}
