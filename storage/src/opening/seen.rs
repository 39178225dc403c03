//! What the queues' files say behind the resume point, before it is cut off and made again.
//!
//! A record is dispatched once it is acknowledged or may be. So after a crash that leaves a bound
//! (docs/durability.md, "Crash recovery") an entry tells two things that no resume point knows: all
//! that stands before its record was on the disk, and its queue offset may have been told to a
//! client and is not given again, whatever became of the record. The second is so after an orderly
//! stop as well, if its resume point is lost.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Opening;
use crate::consume_queue::SIZE_KEY;
use crate::error::{FileError, OpenError};
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::former_run::FormerRun;
use crate::layout::{self, LayoutError, list_fixed_files};
use crate::rebuild::{EntryPlace, for_each_entry};
use crate::recovery::Scanned;
use crate::side_by_side;

/// Bytes of a queue file that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Most entries of one queue that are remembered by their place, the last ones.
const PLACES_MAX: usize = 128 << 10;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Queue offset behind the last entry, by topic and queue id.
    pub(super) next: BTreeMap<(String, i32), i64>,
    /// The entries of records.
    places: Places,
    /// Log offset behind the last of these records; 0 where entries prove nothing.
    pub(super) to: u64,
    /// Entries of records that no file of the log can hold.
    pub(super) beyond: u64,
    /// Log offset behind the last of those.
    pub(super) beyond_to: u64,
}

/// An entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Log offset of its record.
    log_offset: u64,
    queue_offset: i64,
    size: u32,
    /// Its queue's place in the list of queues.
    queue: u32,
}

/// Entries by the log offset of their record, which can have some in several queues.
#[derive(Debug, Default)]
struct Places {
    /// Ascending. After a crash under load there are millions, and a walk along the log asks for
    /// each: a hash map took a fifth of such a start.
    sorted: Vec<Place>,
    /// Behind the place that was asked for last: mostly the next one.
    next: AtomicUsize,
}

impl Places {
    fn of(mut places: Vec<Place>) -> Self {
        places.sort_unstable_by_key(|place| (place.log_offset, Reverse(place.queue)));
        Self {
            sorted: places,
            next: AtomicUsize::new(0),
        }
    }

    fn get(&self, log_offset: u64) -> Option<&Place> {
        self.all(log_offset).first()
    }

    /// All entries of one record.
    fn all(&self, log_offset: u64) -> &[Place] {
        let is = |at: usize| {
            let place = self.sorted.get(at);
            place.is_some_and(|place| place.log_offset == log_offset)
        };
        let next = self.next.load(Ordering::Relaxed);
        // A caller can ask for the record at hand again and again.
        let from = match is(next) && (next == 0 || !is(next - 1)) {
            true => next,
            false => self
                .sorted
                .partition_point(|place| place.log_offset < log_offset),
        };
        let count = (from..).take_while(|at| is(*at)).count();
        self.next.store(from + count, Ordering::Relaxed);
        &self.sorted[from..from + count]
    }
}

/// What one queue has behind its known end.
#[derive(Default)]
struct Behind {
    next: i64,
    /// With their queue offsets.
    entries: Vec<(i64, ConsumeEntry)>,
    /// The last of all name records that no file of the log can hold: so many.
    beyond: u64,
    /// Log offset behind the last of those.
    beyond_to: u64,
}

impl Seen {
    /// Whether a record of this size at this place has an entry.
    pub(super) fn has(&self, place: u64, size: u32) -> bool {
        self.to > 0
            && self
                .places
                .get(place)
                .is_some_and(|found| found.size == size)
    }

    /// Size of the record at a log offset, in bytes, by its entry.
    pub(super) fn size_of(&self, place: u64) -> Option<u32> {
        self.places.get(place).map(|found| found.size)
    }

    /// Where the entry that was made of a record stands, if the record says that it belongs
    /// elsewhere. One where the record says is not always among those that are remembered.
    pub(super) fn contradicts<'a>(
        &self,
        scanned: &Scanned<'_>,
        queues: &'a [(String, i32)],
    ) -> Option<EntryPlace<'a>> {
        let (record, offset) = (&scanned.record, scanned.offset);
        let places = self.places.all(offset);
        let place = |place: &Place| {
            let (topic, queue_id) = &queues[place.queue as usize];
            EntryPlace {
                topic,
                queue_id: *queue_id,
                queue_offset: place.queue_offset,
            }
        };
        let own = EntryPlace {
            topic: record.topic(),
            queue_id: record.queue_id(),
            queue_offset: record.queue_offset(),
        };
        let is_of_it = |place: &&Place| place.size == record.size();
        let all = || places.iter().filter(is_of_it).map(place);
        if record.is_queued() && all().any(|place| place == own) {
            return None;
        }
        let first = all().next()?;
        let elsewhere =
            all().find(|place| (place.topic, place.queue_id) == (own.topic, own.queue_id));
        let mut is_in_light_queue = false;
        let _ = for_each_entry(record, offset, &[], &mut |placed| {
            is_in_light_queue |= all().any(|place| place == placed.place());
            Ok::<_, ()>(())
        });
        elsewhere.or((!is_in_light_queue).then_some(first))
    }

    /// How many entries name records behind `log_end`.
    pub(super) fn behind(&self, log_end: u64) -> u64 {
        let sorted = &self.places.sorted;
        let behind = sorted.partition_point(|place| place.log_offset < log_end);
        (sorted.len() - behind) as u64 + self.beyond
    }
}

impl Opening<'_> {
    /// Reads it; nothing where a crash leaves no bound, or entries that were being made again.
    pub(super) fn look_behind(&mut self) -> Result<(), OpenError> {
        let says_something = match self.former {
            FormerRun::Bounded(_) => true,
            FormerRun::Closed => self.resume.is_none(),
            // They prove nothing then; what is missing is told by them.
            FormerRun::Unbounded => self.resume.is_some(),
        };
        if !says_something || self.in_doubt() || self.began_again {
            return Ok(());
        }
        let found = side_by_side::map(&self.queues, |(topic, queue_id)| {
            self.behind(topic, *queue_id)
        });
        let mut seen = Seen::default();
        let mut all = Vec::new();
        let proves = self.former != FormerRun::Unbounded;
        for (number, (queue, behind)) in self.queues.iter().zip(found).enumerate() {
            let behind = behind?;
            if proves && (!behind.entries.is_empty() || behind.beyond > 0) {
                seen.next.insert(queue.clone(), behind.next);
                let last = behind.entries.last();
                seen.to = seen.to.max(last.map_or(0, |(_, entry)| entry.end()));
            }
            seen.beyond += behind.beyond;
            seen.beyond_to = seen.beyond_to.max(behind.beyond_to);
            all.extend(behind.entries.iter().map(|(queue_offset, entry)| Place {
                log_offset: entry.physical_offset,
                queue_offset: *queue_offset,
                size: entry.size,
                // A directory takes a name's bytes in memory each: there are not so many.
                queue: u32::try_from(number).expect("fewer directories than 2^32"),
            }));
        }
        seen.places = Places::of(all);
        if proves && self.former != FormerRun::Closed {
            self.known_to = self.known_to.max(seen.to);
            self.durable_to = self.durable_to.max(seen.to);
        }
        self.seen = seen;
        self.refuse_lost_files()
    }

    /// The entries of a queue behind its known end, or all of its last two files, as far as they go
    /// on one behind the other and the log can hold their records.
    fn behind(&self, topic: &str, queue_id: i32) -> Result<Behind, OpenError> {
        let size = self.config.queue_file_size();
        let directory = layout::queue_directory(&self.layout.consume_queues(), topic, queue_id)?;
        // Files that are not as they should be are made again, and say nothing.
        let found = match list_fixed_files(&directory, size, SIZE_KEY) {
            Ok(found) => found,
            // What is no file refuses the start: before anything is changed.
            Err(error @ (LayoutError::Kind { .. } | LayoutError::Foreign { .. })) => {
                return Err(error.into());
            }
            Err(_) => return Ok(Behind::default()),
        };
        let known = self
            .known
            .get(topic)
            .and_then(|queues| queues.get(&queue_id));
        let from = match known {
            Some(known) => u64::try_from(known.max).unwrap_or(0) * ENTRY_SIZE as u64,
            None => {
                let before_last = found.files.len().saturating_sub(2);
                found.files.get(before_last).map_or(0, |file| file.base)
            }
        };
        let mut behind = Behind::default();
        for file in found.files.iter().filter(|file| file.base + size > from) {
            let place = from.saturating_sub(file.base);
            if behind.entries.is_empty() {
                behind.next = ((file.base + place) / ENTRY_SIZE as u64) as i64;
            }
            if !self.read_on(&file.path, place, &mut behind)? {
                break;
            }
        }
        Ok(behind)
    }

    /// Adds what stands in a file from `place` on; whether it goes on up to its end.
    fn read_on(&self, path: &Path, mut place: u64, behind: &mut Behind) -> Result<bool, OpenError> {
        let size = self.config.queue_file_size();
        let file = File::open(path).map_err(FileError::at("open", path))?;
        let mut bytes = vec![0; READ_BYTES - READ_BYTES % ENTRY_SIZE];
        // Most queues have nothing there.
        let mut wanted = 4096 - 4096 % ENTRY_SIZE;
        while place < size {
            let part = &mut bytes[..wanted.min((size - place) as usize)];
            file.read_exact_at(part, place)
                .map_err(FileError::at("read", path))?;
            for entry in part.as_chunks::<ENTRY_SIZE>().0 {
                let Some(entry) = ConsumeEntry::decode(entry) else {
                    return Ok(false);
                };
                let before = behind.entries.last().map_or(0, |(_, before)| before.end());
                if !entry.is_pre_blank() {
                    let is_beyond = entry.end() > self.log_limit();
                    // Files can be missing that the log went on in; what lies further is no entry.
                    let reach = behind.beyond_to.max(self.log_limit());
                    let counts = !self.former.is_closed()
                        && entry.end().saturating_sub(reach) <= self.config.commit_log_file_size;
                    if entry.physical_offset < before || (is_beyond && !counts) {
                        return Ok(false);
                    }
                    if is_beyond {
                        behind.beyond += 1;
                        behind.beyond_to = entry.end();
                    } else {
                        if behind.entries.len() == PLACES_MAX {
                            behind.entries.drain(..PLACES_MAX / 2);
                        }
                        behind.entries.push((behind.next, entry));
                        // One among others is damaged.
                        (behind.beyond, behind.beyond_to) = (0, 0);
                    }
                }
                behind.next += 1;
            }
            place += part.len() as u64;
            wanted = READ_BYTES - READ_BYTES % ENTRY_SIZE;
        }
        Ok(true)
    }

    /// Log offset of the first record that queues' files name; `None` if they name none.
    pub(super) fn first_named(&self) -> Result<Option<u64>, OpenError> {
        let size = self.config.queue_file_size();
        let firsts = side_by_side::map(&self.queues, |(topic, queue_id)| {
            let root = self.layout.consume_queues();
            let directory = layout::queue_directory(&root, topic, *queue_id)?;
            let Ok(found) = list_fixed_files(&directory, size, SIZE_KEY) else {
                return Ok(None);
            };
            let Some(first) = found.files.first() else {
                return Ok(None);
            };
            let mut bytes = [0; ENTRY_SIZE];
            let read = File::open(&first.path).and_then(|file| file.read_exact_at(&mut bytes, 0));
            read.map_err(FileError::at("read", &first.path))?;
            let entry = ConsumeEntry::decode(&bytes).filter(|entry| !entry.is_pre_blank());
            Ok::<_, OpenError>(entry.map(|entry| entry.physical_offset))
        });
        let mut named: Option<u64> = None;
        for first in firsts {
            named = [named, first?].into_iter().flatten().min();
        }
        Ok(named)
    }
}
