//! What must be true: the oracle knows what was sent, what clients were told, and what readers saw.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::engine::Engine;
use super::message::{LIGHT, Name, Place, QUEUES, SENT_TO, Sent, TOPICS};
use crate::append_queue::Appended;
use crate::config::{FlushMode, PullLimits};
use crate::disk::faulty::Seed;
use crate::filter::TagFilter;
use crate::format::light;
use crate::format::record::{Decoded, Record, decode};
use crate::layout::file_name;
use crate::reader::{PullRequest, TimeBoundary};

/// A promise that was broken.
pub type Broken = String;

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub name: Name,
    pub end: u64,
    pub queue_offset: i64,
    pub store_timestamp: i64,
    /// Its offset in each light queue, if it enters it.
    pub light: [Option<i64>; LIGHT],
}

/// How the process that wrote the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In order.
    Closed,
    /// Killed; the kernel went on.
    Killed,
    /// With the machine.
    PowerCut,
}

/// What recovery must bring back.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub end: End,
    /// Log offset up to which nothing may be missing.
    pub at_least: u64,
    /// The same after a power cut before recovery is over.
    pub durable: u64,
}

#[derive(Default)]
pub struct Oracle {
    pub sent: BTreeMap<u64, Sent>,
    /// Records that a client was told of, or that a reader saw, by log offset.
    pub known: BTreeMap<u64, Known>,
    /// Whom each queue offset was given to, as far as anybody was told.
    pub told: BTreeMap<Place, BTreeMap<i64, Name>>,
    /// Offsets that consumers stored.
    pub stored: BTreeMap<Place, i64>,
    /// Log offset below which retention took everything; a power cut may bring some of it back.
    pub expired_to: u64,
}

macro_rules! require {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}
pub(super) use require;

/// All queues of a run that are sent to.
pub fn places() -> impl Iterator<Item = Place> {
    (0..SENT_TO).flat_map(|topic| (0..QUEUES).map(move |queue| (topic, queue)))
}

/// Its light queues.
pub fn light_places() -> impl Iterator<Item = Place> {
    (SENT_TO..TOPICS.len()).map(|topic| (topic, light::QUEUE_ID))
}

/// Each queue that a record has a place in, with its offset there.
fn entered(sent: &Sent, known: &Known) -> Vec<(Place, i64)> {
    let own = sent.is_queued().then_some((sent.place, known.queue_offset));
    let light = light_places().zip(known.light);
    own.into_iter()
        .chain(light.filter_map(|(place, offset)| Some((place, offset?))))
        .collect()
}

impl Oracle {
    /// Somebody learns of a record.
    pub fn tell(&mut self, offset: u64, known: Known) -> Result<(), Broken> {
        if let Some(before) = self.known.insert(offset, known) {
            require!(
                before == known,
                "at log offset {offset} stood {before:?} and now stands {known:?}"
            );
        }
        for (place, offset) in entered(&self.sent[&known.name.0], &known) {
            let queue = self.told.entry(place).or_default();
            if let Some(before) = queue.insert(offset, known.name) {
                require!(
                    before == known.name,
                    "queue offset {offset} of {place:?} was given to {before:?} and to {:?}",
                    known.name
                );
            }
        }
        Ok(())
    }

    /// A push was acknowledged: its records' bytes, for a look at the disk. Of one that enters light
    /// queues these are those that are `written` there, which must be what was sent.
    pub fn acknowledged(
        &mut self,
        token: u64,
        appended: &Appended,
        written: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, Broken> {
        if let Some(bytes) = written {
            let record = Record::decode(&bytes)
                .map_err(|problem| format!("push {token} is not where it was said: {problem}"))?;
            let known = self.seen(&record)?;
            let same = known.name == (token, 0)
                && known.end == appended.end
                && known.queue_offset == appended.queue_offset
                && known.store_timestamp == appended.store_timestamp;
            require!(
                same,
                "push {token} was answered {appended:?} and is {known:?}"
            );
            return Ok(bytes);
        }
        let sent = self.sent[&token].clone();
        let (bytes, sizes) = sent.records(appended);
        let mut at = appended.physical_offset;
        for (index, size) in sizes.iter().enumerate() {
            let end = at + u64::from(*size);
            let step = if sent.is_queued() { index as i64 } else { 0 };
            self.tell(
                at,
                Known {
                    name: (token, index),
                    end,
                    queue_offset: appended.queue_offset + step,
                    store_timestamp: appended.store_timestamp,
                    light: [None; LIGHT],
                },
            )?;
            at = end;
        }
        require!(at == appended.end, "push {token} ends elsewhere than said");
        Ok(bytes)
    }

    /// What a reader was given: it must be a record that was sent, whole, where it says.
    pub fn seen(&mut self, record: &Record<'_>) -> Result<Known, Broken> {
        let known = self.check_record(record)?;
        self.tell(record.physical_offset() as u64, known)?;
        Ok(known)
    }

    fn check_record(&self, record: &Record<'_>) -> Result<Known, Broken> {
        let offset = record.physical_offset() as u64;
        let name = Sent::name_of(record).ok_or(format!("a nameless record at {offset}"))?;
        let sent = self.sent.get(&name.0);
        let sent = sent.ok_or(format!("nobody sent {name:?}, read at {offset}"))?;
        let whole = name.1 < sent.bodies.len()
            && record.topic() == sent.topic()
            && record.queue_id() == sent.place.1
            && record.body() == sent.body(name.1)
            && record.check_body().is_ok();
        require!(
            whole,
            "the record at {offset} is not what was sent as {name:?}"
        );
        Ok(Known {
            name,
            end: offset + u64::from(record.size()),
            queue_offset: record.queue_offset(),
            store_timestamp: record.store_timestamp(),
            light: light_offsets(sent, record)?,
        })
    }

    /// Forgets what a power cut may take back under asynchronous flush.
    pub fn forget_from(&mut self, log_end: u64) {
        self.known.split_off(&log_end);
        self.told.clear();
        for known in self.known.values() {
            for (place, offset) in entered(&self.sent[&known.name.0], known) {
                let queue = self.told.entry(place).or_default();
                queue.insert(offset, known.name);
            }
        }
        for (place, stored) in &mut self.stored {
            let queue = self.told.get(place);
            let next = queue.and_then(|queue| queue.last_key_value());
            *stored = (*stored).min(next.map_or(0, |(last, _)| last + 1));
        }
    }

    /// The whole store after recovery, read as anybody can.
    pub fn check_recovered(
        &mut self,
        engine: &mut Engine,
        expected: Expected,
        seed: &mut Seed,
    ) -> Result<(), Broken> {
        let log_end = engine.report.log_end;
        require!(
            log_end >= expected.at_least,
            "the log ends at {log_end}, and {} was promised ({:?})",
            expected.at_least,
            expected.end
        );
        if engine.store.config().flush == FlushMode::Async {
            self.forget_from(log_end);
        }
        require!(
            engine.report.damaged_records == 0,
            "{} damaged records",
            engine.report.damaged_records
        );
        let found = self.check_log(engine)?;
        self.check_queues(engine, &found)?;
        self.check_lookups(engine, &found, seed)?;
        Ok(())
    }

    /// Every record of the log is one that was sent, and none that anybody knows of is missing.
    fn check_log(&mut self, engine: &mut Engine) -> Result<BTreeMap<u64, Known>, Broken> {
        let log_min = engine.store.min_log_offset();
        let log_end = engine.report.log_end;
        let bytes = read_log(engine, log_min)?;
        let mut found = BTreeMap::new();
        let mut at = log_min;
        while at < log_end {
            let file_size = engine.store.config().commit_log_file_size;
            let file_end = at - at % file_size + file_size;
            let rest = &bytes[(at - log_min) as usize..(file_end - log_min) as usize];
            match decode(rest) {
                Ok(Decoded::Blank { .. }) => at = file_end,
                Ok(Decoded::Record(record)) => {
                    require!(
                        record.physical_offset() as u64 == at,
                        "a record at {at} that says {}",
                        record.physical_offset()
                    );
                    let known = self.check_record(&record)?;
                    found.insert(at, known);
                    at = known.end;
                }
                Err(problem) => return Err(format!("no record at {at}: {problem}")),
            }
        }
        let behind = &bytes[((at - log_min) as usize).min(bytes.len())..];
        require!(
            behind.iter().all(|byte| *byte == 0),
            "something stands behind the log's end {log_end}"
        );
        for (offset, known) in self.known.range(log_min..) {
            require!(
                found.get(offset) == Some(known),
                "{known:?} at {offset} is lost; found {:?}",
                found.get(offset)
            );
        }
        for (offset, known) in &found {
            self.tell(*offset, *known)?;
        }
        Ok(found)
    }

    fn check_queues(
        &mut self,
        engine: &mut Engine,
        found: &BTreeMap<u64, Known>,
    ) -> Result<(), Broken> {
        for place in places().chain(light_places()) {
            let in_log: Vec<(u64, i64)> = found
                .iter()
                .filter_map(|(at, known)| Some((*at, self.offset_in(place, known)?)))
                .collect();
            self.check_queue(engine, place, &in_log)?;
        }
        Ok(())
    }

    /// The offset of a record in a queue, if it has an entry there.
    fn offset_in(&self, place: Place, known: &Known) -> Option<i64> {
        let all = entered(&self.sent[&known.name.0], known);
        let found = all.into_iter().find(|(found, _)| *found == place);
        found.map(|(_, offset)| offset)
    }

    fn check_queue(
        &mut self,
        engine: &mut Engine,
        place: Place,
        in_log: &[(u64, i64)],
    ) -> Result<(), Broken> {
        let told = self.told.get(&place).cloned().unwrap_or_default();
        let next = told.len() as i64;
        // Under asynchronous flush a power cut may leave offsets unused.
        let strict = engine.store.config().flush == FlushMode::Sync;
        let last = told.last_key_value().map_or(0, |(last, _)| last + 1);
        let dense = next == last || !strict;
        require!(
            dense,
            "queue offsets of {place:?} have gaps: {:?}",
            told.keys()
        );
        let Some(queue) = engine.store.queue(TOPICS[place.0], place.1) else {
            require!(next == 0, "queue {place:?} is gone");
            return Ok(());
        };
        require!(
            queue.next_offset() == next || (!strict && queue.next_offset() >= last),
            "the next offset of {place:?} is {}, not {next}",
            queue.next_offset()
        );
        let (min, max) = (queue.min_offset(), queue.max_offset());
        require!(
            !in_log.is_empty() || max == queue.next_offset(),
            "{place:?} without records ends at {max}, before {}",
            queue.next_offset()
        );
        let kept = in_log.iter().find(|(at, _)| *at >= self.expired_to);
        if let (Some((_, first)), Some((_, last))) = (kept, in_log.last()) {
            require!(
                min <= *first && max == last + 1,
                "{place:?} goes from {min} to {max}, its records from {first} to {last}"
            );
        }
        let readable = in_log.iter().filter(|(_, offset)| *offset >= min);
        let wanted: Vec<u64> = readable.map(|(offset, _)| *offset).collect();
        require!(
            min >= max || !wanted.is_empty(),
            "{place:?} shows {min} to {max} without a record"
        );
        let stored = self.stored.get(&place).copied().unwrap_or(0);
        require!(
            stored <= queue.max_offset().max(queue.next_offset()),
            "a consumer stored {stored} of {place:?}, which ends at {}",
            queue.max_offset()
        );
        let read = self.read_queue(engine, place, queue.min_offset())?;
        require!(
            read == wanted,
            "{place:?} gives records at {read:?}, the log has {wanted:?}"
        );
        Ok(())
    }

    /// Pulls a queue from `from` to its end; log offsets of what came.
    fn read_queue(
        &mut self,
        engine: &mut Engine,
        place: Place,
        from: i64,
    ) -> Result<Vec<u64>, Broken> {
        let mut read = Vec::new();
        let strict = engine.store.config().flush == FlushMode::Sync;
        let (mut at, mut expected) = (from, from);
        loop {
            let (next, records) = self.pull(engine, place, at)?;
            for (offset, known) in records {
                let in_queue = self.offset_in(place, &known);
                let in_queue = in_queue.ok_or(format!("{place:?} gives {known:?} of elsewhere"))?;
                let due = in_queue == expected || (!strict && in_queue > expected);
                require!(
                    due,
                    "{place:?} gives offset {in_queue} where {expected} is due"
                );
                expected = in_queue + 1;
                read.push(offset);
            }
            if next <= at {
                return Ok(read);
            }
            at = next;
        }
    }

    /// One pull: where to go on, and what came.
    pub fn pull(
        &mut self,
        engine: &mut Engine,
        place: Place,
        from: i64,
    ) -> Result<(i64, Vec<(u64, Known)>), Broken> {
        let Some(queue) = engine.store.queue(TOPICS[place.0], place.1) else {
            return Ok((from, Vec::new()));
        };
        let limits = PullLimits::default();
        let mut out = Vec::new();
        let pulled = engine
            .reader
            .pull_cold(
                &PullRequest {
                    queue: &queue,
                    offset: from,
                    max_count: 32,
                    filter: &TagFilter::All,
                    limits: &limits,
                },
                &mut out,
            )
            .map_err(|error| format!("a pull of {place:?} from {from}: {error}"))?;
        require!(pulled.damaged == 0, "damaged records in {place:?}");
        let (mut rest, mut records) = (&out[..], Vec::new());
        while !rest.is_empty() {
            let record = Record::decode(rest).map_err(|error| format!("pulled: {error}"))?;
            let known = self.seen(&record)?;
            records.push((record.physical_offset() as u64, known));
            rest = &rest[record.size() as usize..];
        }
        Ok((pulled.next_begin, records))
    }

    /// Lookups by key, by time and by log offset find each record.
    fn check_lookups(
        &mut self,
        engine: &mut Engine,
        found: &BTreeMap<u64, Known>,
        seed: &mut Seed,
    ) -> Result<(), Broken> {
        let all: Vec<(u64, Known)> = found.iter().map(|(at, known)| (*at, *known)).collect();
        for index in 0..all.len() {
            // All of the last ones, some of the others.
            if index + 12 < all.len() && !seed.chance(12, all.len() as u64) {
                continue;
            }
            let (offset, known) = all[index];
            if offset < self.expired_to {
                continue;
            }
            self.look_up(engine, offset, known)?;
        }
        Ok(())
    }

    /// One record by its key, by its time and by its log offset.
    pub fn look_up(
        &mut self,
        engine: &mut Engine,
        offset: u64,
        known: Known,
    ) -> Result<(), Broken> {
        let sent = self.sent[&known.name.0].clone();
        let time = known.store_timestamp;
        let mut bytes = Vec::new();
        let read = engine.reader.record(offset, &mut bytes);
        require!(
            matches!(read, Ok(true)),
            "the record at {offset} is not read: {read:?}"
        );
        let record = Record::decode(&bytes).map_err(|error| error.to_string())?;
        require!(self.seen(&record)? == known, "another record at {offset}");
        if !record.is_indexed() {
            return Ok(());
        }
        let near = (time - 1000, time + 1000);
        for (key, most) in [
            (Sent::key(known.name), 64),
            (Sent::shared_key(known.name.0), 100_000),
        ] {
            let hits = engine
                .reader
                .query_index(sent.topic(), &key, most, near.0, near.1)
                .map_err(|error| error.to_string())?;
            require!(
                hits.offsets.contains(&offset),
                "key {key} of {} does not lead to {offset} but to {:?}",
                sent.topic(),
                hits.offsets
            );
        }
        if sent.is_queued() {
            self.check_time(engine, &sent, known)?;
        }
        Ok(())
    }

    fn check_time(&self, engine: &mut Engine, sent: &Sent, known: Known) -> Result<(), Broken> {
        let queue = engine.store.queue(sent.topic(), sent.place.1);
        let queue = queue.ok_or("a queue is gone")?;
        if known.queue_offset >= queue.max_offset() {
            return Ok(());
        }
        let time = known.store_timestamp;
        let offset = engine
            .reader
            .offset_by_time(&queue, time, TimeBoundary::Lower)
            .map_err(|error| error.to_string())?;
        require!(
            offset <= known.queue_offset,
            "time {time} of {:?} leads to {offset}, behind {}",
            sent.place,
            known.queue_offset
        );
        Ok(())
    }

    /// Everything that is known, one line each, for a report.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (place, told) in &self.told {
            let last = told.last_key_value();
            // A String takes everything.
            let _ = writeln!(text, "  {place:?}: {} told, last {last:?}", told.len());
        }
        text
    }
}

/// A record's offset in each light queue: it has one in those that it was sent to, and no other.
fn light_offsets(sent: &Sent, record: &Record<'_>) -> Result<[Option<i64>; LIGHT], Broken> {
    let mut offsets = [None; LIGHT];
    for (name, offset) in light::places(record.properties()) {
        let place = (0..LIGHT).find(|bit| TOPICS[SENT_TO + bit] == name);
        let place = place.ok_or(format!("{:?} enters {name}", sent.token))?;
        offsets[place] = Some(offset);
    }
    let bits = offsets.iter().enumerate();
    let bits = bits.map(|(bit, offset)| u8::from(offset.is_some()) << bit);
    let entered: u8 = bits.sum();
    require!(
        entered == sent.light,
        "{} enters {entered:b}, sent to {:b}",
        sent.token,
        sent.light
    );
    Ok(offsets)
}

/// The log's bytes from `log_min` to the end of its last file.
fn read_log(engine: &Engine, log_min: u64) -> Result<Vec<u8>, Broken> {
    let config = engine.store.config();
    let mut bytes = Vec::new();
    let mut base = log_min;
    loop {
        let path = config.commit_log_path().join(file_name(base));
        match std::fs::read(&path) {
            Ok(part) => bytes.extend(part),
            Err(_) if base > log_min || engine.report.log_end == log_min => return Ok(bytes),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
        base += config.commit_log_file_size;
    }
}
