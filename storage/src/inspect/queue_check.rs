//! Queue entries against records, both ways.
//! Records come in the order of the log, so the records of a queue come in the order of its
//! entries. An entry that no record came by for is looked up in the log at the end.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::extension_files::ExtensionFiles;
use super::verify::{Findings, Tally};
use super::{Finding, InspectError, QueueFiles, StoreView};
use crate::format::consume_entry::ConsumeEntry;
use crate::format::extension_unit::position;
use crate::format::light::{self, is_of};
use crate::format::names::is_directory_name;
use crate::format::record::Record;
use crate::former_run::FormerRun;
use crate::layout::list_queues;
use crate::rebuild::Source;

/// Topic whose entries hold a time in place of a tag code.
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Runs without entries that are told apart in one queue.
const RUNS: usize = 1000;

/// Everything known about one queue.
struct Checked {
    files: QueueFiles,
    extension: ExtensionFiles,
    /// Queue offset and log offset of the record seen last.
    last: Option<(u64, u64)>,
    /// Entries that a record came by for.
    matched: u64,
    /// Runs of records without an entry.
    runs: Vec<Run>,
}

/// Records of a queue that follow each other and have no entry.
#[derive(Clone, Copy)]
struct Run {
    /// Queue offset and log offset of the first.
    at: u64,
    offset: u64,
    /// Queue offset after the last.
    to: u64,
    count: u64,
    /// Whether a record with an entry follows.
    ended: bool,
}

impl Run {
    fn problem(&self, name: &str) -> String {
        let what = match (self.ended, self.to - self.at) {
            (false, _) => " and what follows it have".into(),
            (true, 1) => " has".into(),
            (true, _) => format!(" and what follows it up to queue offset {} have", self.to),
        };
        format!("{name}@{}{what} no queue entry", self.at)
    }
}

/// Records of a queue that has no file.
#[derive(Clone, Copy)]
struct Fileless {
    count: u64,
    /// Log offset of the first.
    first: u64,
    /// Whether the topic was not made again after one of them.
    current: bool,
}

impl Checked {
    /// Queue offsets are given in turn; those of damaged records are missing for a reason told.
    fn gap_before(
        &self,
        view: &StoreView,
        (at, offset): (u64, u64),
        tally: &Tally,
    ) -> Option<String> {
        let (last, from) = self.last?;
        // Or retention took the file with the record seen last, and those behind it, meanwhile.
        if at <= last + 1
            || tally.is_damaged_between(from, offset)
            || (view.is_live() && from < view.log_begin_now())
        {
            return None;
        }
        let missing = at - last - 1;
        Some(format!(
            "queue offset {last}: {missing} are missing between"
        ))
    }

    /// The entry that a record at a log offset should have.
    fn entry(
        &mut self,
        at: u64,
        offset: u64,
        live: bool,
    ) -> Result<Option<ConsumeEntry>, InspectError> {
        let entry = self.files.entry(at)?;
        // The broker may have added to the queue, or deleted the topic and made it again.
        if live && entry.is_none_or(|entry| entry.physical_offset < offset) {
            self.files.refresh()?;
            return self.files.entry(at);
        }
        Ok(entry)
    }

    /// A record has no entry. Returns how many records before it belong to a deleted queue.
    fn without_entry(&mut self, at: u64, offset: u64) -> u64 {
        let superseded = self.begins_anew(at);
        let full = self.runs.len() == RUNS;
        match self.runs.last_mut() {
            Some(run) if full || (!run.ended && run.to == at) => {
                run.to = at + 1;
                run.count += 1;
            }
            _ => self.runs.push(Run {
                at,
                offset,
                to: at + 1,
                count: 1,
                ended: false,
            }),
        }
        self.last = Some((at, offset));
        superseded
    }

    /// A record has its entry.
    fn with_entry(&mut self, at: u64, offset: u64) -> u64 {
        let superseded = self.begins_anew(at);
        if let Some(run) = self.runs.last_mut() {
            run.ended = true;
        }
        self.matched += 1;
        self.last = Some((at, offset));
        superseded
    }

    /// Where offsets begin again the topic was made anew. Returns how much went with the old one.
    fn begins_anew(&mut self, at: u64) -> u64 {
        let mut gone = 0;
        while let Some(run) = self.runs.last()
            && at <= run.at
        {
            gone += run.count;
            self.runs.pop();
        }
        gone
    }
}

/// All queues.
pub(super) struct QueueCheck<'v> {
    view: &'v StoreView,
    queues: HashMap<String, HashMap<i32, Checked>>,
    /// Records whose queue has no file, by topic and queue id.
    without_queue: BTreeMap<(String, i32), Fileless>,
    /// Topics with a record that has an entry.
    alive: HashSet<String>,
    superseded: u64,
}

impl<'v> QueueCheck<'v> {
    pub fn open(view: &'v StoreView, findings: &mut Findings) -> Result<Self, InspectError> {
        let mut check = QueueCheck {
            view,
            queues: HashMap::new(),
            without_queue: BTreeMap::new(),
            alive: HashSet::new(),
            superseded: 0,
        };
        for (topic, queue_id) in list_queues(&view.layout.consume_queues())? {
            check.add(&topic, queue_id, findings)?;
        }
        Ok(check)
    }

    fn add(
        &mut self,
        topic: &str,
        queue_id: i32,
        findings: &mut Findings,
    ) -> Result<(), InspectError> {
        if !is_directory_name(topic) {
            return Ok(());
        }
        let (files, misfits) = QueueFiles::open(self.view, topic, queue_id)?;
        misfits
            .into_iter()
            .for_each(|finding| findings.add(finding));
        let checked = Checked {
            files,
            extension: ExtensionFiles::new(self.view, topic, queue_id)?,
            last: None,
            matched: 0,
            runs: Vec::new(),
        };
        let queues = self.queues.entry(topic.to_owned()).or_default();
        queues.insert(queue_id, checked);
        Ok(())
    }

    /// Log offset behind the last dispatched record below `limit`: all before it was on the disk.
    pub fn dispatched_to(&mut self, limit: u64) -> Result<u64, InspectError> {
        let mut to = 0;
        for queue in self.queues.values_mut().flat_map(HashMap::values_mut) {
            let Some(last) = queue.files.end()?.checked_sub(1) else {
                continue;
            };
            let entry = queue.files.entry(last)?;
            let entry = entry.filter(|entry| !entry.is_pre_blank() && entry.end() <= limit);
            to = to.max(entry.map_or(0, |entry| entry.end()));
        }
        Ok(to)
    }

    /// One whole record that stands where it says.
    pub fn record(
        &mut self,
        record: &Record<'_>,
        offset: u64,
        findings: &mut Findings,
        tally: &Tally,
    ) -> Result<(), InspectError> {
        if !record.is_queued() {
            return Ok(());
        }
        let place = (record.topic(), record.queue_id(), record.queue_offset());
        self.placed(place, (record, offset), findings, tally)?;
        let source = Source::in_light_queues(record);
        for (queue, at) in light::places(record.properties()) {
            // A queue may be named twice.
            if self.was_seen(queue, offset) {
                continue;
            }
            let named = self.named(queue, at, offset)?;
            let left_out = match source {
                // A client made it up; the record that is in the place comes by itself.
                Source::Own | Source::Light => named.is_some_and(|named| named < offset),
                Source::Copy => named.is_some_and(|named| named != offset),
                Source::ComesAgain => named != Some(offset),
            };
            if left_out {
                continue;
            }
            let place = (queue, light::QUEUE_ID, at);
            self.placed(place, (record, offset), findings, tally)?;
        }
        Ok(())
    }

    /// Whether the record at `offset` was the last one of a light queue that came by.
    fn was_seen(&self, topic: &str, offset: u64) -> bool {
        let queues = self.queues.get(topic);
        let queue = queues.and_then(|ids| ids.get(&light::QUEUE_ID));
        queue
            .and_then(|queue| queue.last)
            .is_some_and(|(_, last)| last == offset)
    }

    /// Log offset of the record that the entry at `at` of a light queue names, for the record at
    /// `offset`; `None` without entry.
    fn named(&mut self, topic: &str, at: i64, offset: u64) -> Result<Option<u64>, InspectError> {
        let live = self.view.is_live();
        let queues = self.queues.get_mut(topic);
        let queue = queues.and_then(|ids| ids.get_mut(&light::QUEUE_ID));
        let (Some(queue), Ok(at)) = (queue, u64::try_from(at)) else {
            return Ok(None);
        };
        let entry = queue.entry(at, offset, live)?;
        let entry = entry.filter(|entry| !entry.is_pre_blank());
        Ok(entry.map(|entry| entry.physical_offset))
    }

    fn placed(
        &mut self,
        (topic, queue_id, at): (&str, i32, i64),
        (record, offset): (&Record<'_>, u64),
        findings: &mut Findings,
        tally: &Tally,
    ) -> Result<(), InspectError> {
        let Ok(at) = u64::try_from(at) else {
            let text = format!("queue offset {at} of {topic}/{queue_id} is below zero");
            findings.at_log(self.view, offset, text);
            return Ok(());
        };
        let live = self.view.is_live();
        let queue = self
            .queues
            .get_mut(topic)
            .and_then(|ids| ids.get_mut(&queue_id));
        let Some(queue) = queue.filter(|queue| !queue.files.is_empty()) else {
            if !live || !is_directory_name(topic) {
                self.without_queue((topic, queue_id, at), offset);
                return Ok(());
            }
            // A young queue of a running broker.
            self.add(topic, queue_id, findings)?;
            return Ok(());
        };
        let entry = queue.entry(at, offset, live)?;
        let name = || format!("{topic}/{queue_id}@{at}");
        match entry {
            Some(entry) if entry.is_pre_blank() => {
                if at >= queue.files.first() {
                    let (file, position) = queue.files.place(at);
                    let text = format!("entry {} is blank; its record is at {offset}", name());
                    findings.at_file(&file, position, text);
                }
            }
            Some(entry) if entry.physical_offset == offset => {
                if let Some(wrong) = differs(self.view, &entry, record, &mut queue.extension) {
                    let (file, position) = queue.files.place(at);
                    findings.at_file(&file, position, format!("entry {} {wrong}", name()));
                }
                if let Some(gap) = queue.gap_before(self.view, (at, offset), tally) {
                    findings.at_log(self.view, offset, format!("{} follows {gap}", name()));
                }
                if queue.matched == 0 {
                    self.alive.insert(topic.to_owned());
                }
                self.superseded += queue.with_entry(at, offset);
            }
            // A topic that was deleted and made again begins anew.
            Some(entry) if entry.physical_offset > offset => self.superseded += 1,
            Some(entry) => {
                let text = format!(
                    "queue offset {} was given before, to the record at {}",
                    name(),
                    entry.physical_offset
                );
                findings.at_log(self.view, offset, text);
            }
            None => {
                let place = (topic, queue_id, at);
                let deleted = self.view.last_run.had_deleted(place, offset);
                self.superseded += match deleted {
                    true => 1,
                    false => queue.without_entry(at, offset),
                };
            }
        }
        Ok(())
    }

    fn without_queue(&mut self, (topic, queue_id, at): (&str, i32, u64), offset: u64) {
        let run = &self.view.last_run;
        let was_there = run.queue(topic, queue_id).is_some();
        let deleted = was_there && run.had_deleted((topic, queue_id, at), offset);
        if deleted || run.was_removed(topic, offset) {
            self.superseded += 1;
            return;
        }
        // Without a word of the last run, what is older than all entries may have gone too.
        let current = match run.vouches_for(offset) {
            true => was_there,
            false => self.alive.contains(topic),
        };
        let place = (topic.to_owned(), queue_id);
        let fileless = self.without_queue.entry(place).or_insert(Fileless {
            count: 0,
            first: offset,
            current: false,
        });
        fileless.count += 1;
        fileless.current |= current;
    }

    /// Whatever entries no record came by for, and records without an entry.
    pub fn finish(
        mut self,
        log: (u64, u64),
        findings: &mut Findings,
        tally: &mut Tally,
    ) -> Result<(), InspectError> {
        let view = self.view;
        for (topic, ids) in &mut self.queues {
            for (queue_id, queue) in ids {
                let place = (topic.as_str(), *queue_id);
                finish_queue(view, place, queue, log, findings, tally)?;
            }
        }
        self.tell_missing_queues(findings, tally);
        tell_lost_files(view, findings, tally);
        if tally.queues_behind > 0 {
            tally.notes.push(format!(
                "{} queues have no entries yet for their newest records: {} makes them",
                tally.queues_behind,
                if view.is_live() {
                    "the broker"
                } else {
                    "the next start"
                }
            ));
        }
        if self.superseded > 0 {
            tally.notes.push(format!(
                "{} records belong to queues of deleted topics, or to expired queue files",
                self.superseded
            ));
        }
        Ok(())
    }
}

impl QueueCheck<'_> {
    /// A topic without any queue was deleted, unless nothing has a queue.
    fn tell_missing_queues(&mut self, findings: &mut Findings, tally: &mut Tally) {
        for ((topic, queue_id), fileless) in std::mem::take(&mut self.without_queue) {
            let Fileless {
                count,
                first,
                current,
            } = fileless;
            let run = &self.view.last_run;
            let exists = match run.vouches_for(first) {
                true => current,
                false => self.queues.contains_key(&topic) || self.queues.is_empty(),
            };
            let text = format!("{count} records of {topic}/{queue_id} have no queue on disk");
            let may_be_old = !current && self.alive.contains(&topic);
            let note = if !exists {
                "the topic was deleted"
            } else if may_be_old {
                "they are older than all that have one, so the topic was deleted and made again, \
                 or the queue is lost"
            } else if self.view.is_settled_at(first) {
                findings.at_log(self.view, first, text);
                continue;
            } else {
                "the next start makes it"
            };
            tally.notes.push(format!("{text}: {note}"));
        }
    }
}

/// What of an entry is not its record's.
fn differs(
    view: &StoreView,
    entry: &ConsumeEntry,
    record: &Record<'_>,
    extension: &mut ExtensionFiles,
) -> Option<String> {
    if entry.size != record.size() {
        return Some(format!(
            "says {} bytes, its record has {}",
            entry.size,
            record.size()
        ));
    }
    let code = record.tags_code();
    let has_code = record.topic() != SCHEDULE_TOPIC;
    let Some(at) = position(entry.tags_code) else {
        return (has_code && entry.tags_code != code)
            .then(|| format!("has tag code {}, its record's is {code}", entry.tags_code));
    };
    let Some(unit) = extension.unit(at) else {
        return Some(format!("names the extension unit at {at}, which is none"));
    };
    if has_code && unit.tags_code != code {
        let found = unit.tags_code;
        return Some(format!(
            "names the extension unit at {at} with tag code {found}, its record's is {code}"
        ));
    }
    let (found, time) = (unit.store_timestamp, record.store_timestamp());
    if found != time {
        return Some(format!(
            "names the extension unit at {at} with store time {found}, its record's is {time}"
        ));
    }
    let problem = view.units.as_ref()?.problem(record, &unit)?;
    Some(format!("names the extension unit at {at}, {problem}"))
}

/// Log files that queue entries name and that are missing refuse a start (docs/durability.md).
fn tell_lost_files(view: &StoreView, findings: &mut Findings, tally: &mut Tally) {
    let ((entries, to), end) = (tally.beyond, view.log_limit());
    let proves = matches!(view.last_run.former, FormerRun::Bounded(_)) && !view.is_live();
    if proves && entries > 1 {
        let text = format!(
            "its files end at {end}, and {entries} queue entries name records up to {to}, which \
             were on the disk: files are missing, and a start is refused"
        );
        findings.add(Finding::file(view.layout.commit_log(), text));
    } else if entries > 0 {
        tally.notes.push(format!(
            "{entries} queue entries name records behind the log's end: the next start cuts them"
        ));
    }
}

fn finish_queue(
    view: &StoreView,
    (topic, queue_id): (&str, i32),
    queue: &mut Checked,
    (log_begin, log_end): (u64, u64),
    findings: &mut Findings,
    tally: &mut Tally,
) -> Result<(), InspectError> {
    let end = queue.files.end()?;
    let name = format!("{topic}/{queue_id}");
    let (told, young): (Vec<Run>, Vec<Run>) = std::mem::take(&mut queue.runs)
        .into_iter()
        .partition(|run| view.is_settled_at(run.offset));
    for run in told {
        findings.at_log(view, run.offset, run.problem(&name));
    }
    tally.queues_behind += u64::from(!young.is_empty());
    let begin = queue.files.begin(end, log_begin)?;
    let mut without_record = Vec::new();
    let mut there = 0;
    for at in begin..end {
        let Some(entry) = queue.files.entry(at)? else {
            break;
        };
        // Written since the log was read.
        if entry.is_pre_blank() || (view.is_live() && entry.end() > log_end) {
            continue;
        }
        there += 1;
        if entry.end() > log_end || entry.physical_offset < log_begin {
            without_record.push((at, entry));
        }
    }
    tally.entries += there;
    if there == queue.matched && without_record.is_empty() {
        return Ok(());
    }
    look_up(
        view,
        (topic, queue_id),
        queue,
        begin..end,
        (log_begin, log_end),
        findings,
        tally,
    )
}

/// Looks every entry's record up in the log.
fn look_up(
    view: &StoreView,
    (topic, queue_id): (&str, i32),
    queue: &mut Checked,
    entries: std::ops::Range<u64>,
    (log_begin, log_end): (u64, u64),
    findings: &mut Findings,
    tally: &mut Tally,
) -> Result<(), InspectError> {
    let mut log = tally.log(view);
    let mut behind_log = 0_u64;
    for at in entries {
        let Some(entry) = queue.files.entry(at)? else {
            break;
        };
        let offset = entry.physical_offset;
        let young = view.is_live() && entry.end() > log_end;
        if entry.is_pre_blank() || young || tally.is_damaged(offset) {
            continue;
        }
        if !view.is_settled() && offset >= log_end {
            let reach = tally.beyond.1.max(view.log_limit());
            let is_beyond = entry.end() > view.log_limit()
                && entry.end().saturating_sub(reach) <= view.shape.log_file;
            match is_beyond {
                true => tally.beyond = (tally.beyond.0 + 1, tally.beyond.1.max(entry.end())),
                false => behind_log += 1,
            }
            continue;
        }
        let why = match log.record(offset)? {
            _ if offset < log_begin => Some("is before the log's first record".to_owned()),
            None => Some("is no record".to_owned()),
            Some(record) if is_of(&record, topic, queue_id, at) => None,
            Some(record) => Some(format!(
                "is {}/{}@{}",
                record.topic(),
                record.queue_id(),
                record.queue_offset()
            )),
        };
        if let Some(why) = why {
            let (file, position) = queue.files.place(at);
            let text =
                format!("entry {topic}/{queue_id}@{at} names log offset {offset}, which {why}");
            findings.at_file(&file, position, text);
        }
    }
    if behind_log > 0 {
        tally.notes.push(format!(
            "{behind_log} entries of {topic}/{queue_id} name records behind the log's end: the \
             next start cuts them"
        ));
    }
    Ok(())
}
