//! Keeping queue offsets true where entries are missing, and opening queues whose end is known.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

/// Longest gap that is filled, in entries; a longer one comes from a damaged record.
pub(super) const GAP_MAX: i64 = 1_000_000;

impl ConsumeQueue {
    /// As [`ConsumeQueue::append`], but a gap before `offset` is filled with blank entries, so
    /// that the entry stands where its record says.
    pub fn append_in_place(
        &self,
        offset: i64,
        entry: ConsumeEntry,
    ) -> Result<Placed, ConsumeQueueError> {
        let max = self.max_offset();
        let fill = max > self.first_stored() && offset > max && offset - max <= GAP_MAX;
        if fill && entry.end() > self.log_end() {
            let mut unsynced = self.lock();
            if !unsynced.closed {
                self.fill_gap(max, offset, &mut unsynced)?;
            }
        }
        self.append(offset, entry)
    }

    pub(super) fn fill_gap(
        &self,
        from: i64,
        to: i64,
        unsynced: &mut Unsynced,
    ) -> Result<(), ConsumeQueueError> {
        let blank = ConsumeEntry::PRE_BLANK.encode();
        for offset in from..to {
            let position = offset as u64 * ENTRY;
            let file = self.file_for_append(position, unsynced)?;
            let place = position % self.file_size;
            self.store_entry(&file, place, &blank)?;
            unsynced.add(position, ENTRY);
            self.max.store(offset + 1, Ordering::Release);
        }
        Ok(())
    }

    /// As [`ConsumeQueue::look_at_ending`]; what stands behind the end goes: a crash left it, and
    /// the log tells what belongs there.
    pub fn open_ending(
        consume_queues: &Path,
        topic: &str,
        queue_id: i32,
        file_size: u64,
        budget: &Arc<MapBudget>,
        known: KnownEnd,
    ) -> Result<Option<Self>, ConsumeQueueError> {
        let found =
            Self::look_at_ending(consume_queues, topic, queue_id, file_size, budget, known)?;
        found.map(Self::cut_ending).transpose()
    }

    /// Removes what [`ConsumeQueue::look_at_ending`] saw behind the end.
    pub(crate) fn cut_ending((queue, goes_on): (Self, bool)) -> Result<Self, ConsumeQueueError> {
        if goes_on {
            queue.cut_to(queue.max_offset())?;
        }
        Ok(queue)
    }

    /// Opens a queue whose end is known, with a look at its first and last entry; nothing is
    /// changed. True if something stands behind the end. No file is mapped if there is nothing.
    /// `None` if the queue does not reach its end: then [`ConsumeQueue::open`] it.
    pub(crate) fn look_at_ending(
        consume_queues: &Path,
        topic: &str,
        queue_id: i32,
        file_size: u64,
        budget: &Arc<MapBudget>,
        known: KnownEnd,
    ) -> Result<Option<(Self, bool)>, ConsumeQueueError> {
        let mut queue = Self::empty(consume_queues, topic, queue_id, file_size, budget);
        let found = layout::list_fixed_files(queue.directory()?, file_size, SIZE_KEY)?;
        // An empty file stands in the way of the one to be made there, also where it is alone.
        if found.empty_last.is_some() {
            return Ok(None);
        }
        let Some(first) = found.files.first() else {
            return Ok((known.max == 0).then_some((queue, false)));
        };
        if known.max <= 0 {
            return Ok(None);
        }
        let last_position = (known.max - 1) as u64 * ENTRY;
        let holds_last =
            |file: &&layout::FixedFile| (file.base..file.base + file_size).contains(&last_position);
        let Some(last) = found.files.iter().find(holds_last) else {
            return Ok(None);
        };
        let place = last_position - last.base;
        let last_file = open_for_look(&last.path)?;
        let Some(last_entry) = look(&last_file, &last.path, place)? else {
            return Ok(None);
        };
        let behind = place + ENTRY;
        let goes_on = found
            .files
            .last()
            .is_some_and(|newest| newest.base > last.base)
            || (behind < file_size && look(&last_file, &last.path, behind)?.is_some());
        if goes_on && let Some(newest) = found.files.last() {
            let from = if newest.base == last.base { place } else { 0 };
            queue.seen_end = last_seen(&newest.path, from, file_size)?;
        }
        let first_entry = look(&open_for_look(&first.path)?, &first.path, 0)?;
        let all_kept = first_entry
            .is_some_and(|entry| !entry.is_pre_blank() && entry.physical_offset >= known.log_min);
        queue.adopt(found.files, known.max, last_entry);
        if last_entry.is_pre_blank() {
            queue.set_end(known.max)?;
        }
        if !all_kept {
            queue.correct_min(known.log_min)?;
        }
        Ok(Some((queue, goes_on)))
    }

    /// Takes over the files of a queue that ends behind `last`.
    fn adopt(&self, files: Vec<layout::FixedFile>, max: i64, last: ConsumeEntry) {
        let base = files.first().map_or(0, |file| file.base);
        let open = |file: layout::FixedFile| {
            MappedFile::existing(file.path, self.file_size, Advice::Random, &self.budget)
        };
        let list = files.into_iter().map(open).collect();
        self.files.store(Arc::new(Files { base, list }));
        let log_end = if last.is_pre_blank() { 0 } else { last.end() };
        self.log_end.store(log_end, Ordering::Release);
        self.min.store((base / ENTRY) as i64, Ordering::Release);
        self.max.store(max, Ordering::Release);
    }
}

/// What is known about a queue before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEnd {
    /// Queue offset after its last entry.
    pub max: i64,
    /// Log offset of the first byte that is kept.
    pub log_min: u64,
}

fn open_for_look(path: &Path) -> Result<File, ConsumeQueueError> {
    File::open(path).map_err(|source| failed(path, source))
}

/// Log offset after the record of the last entry of those that stand one behind the other in a
/// file from `from` on, where there is one: most queues end within a page of it, so that is looked
/// at first, and the rest by a few looks.
fn last_seen(path: &Path, from: u64, file_size: u64) -> Result<u64, ConsumeQueueError> {
    let file = open_for_look(path)?;
    let mut bytes = [0; STEP * ENTRY_SIZE];
    let near = &mut bytes[..((file_size - from) as usize).min(STEP * ENTRY_SIZE)];
    file.read_exact_at(near, from)
        .map_err(|source| failed(path, source))?;
    let mut seen = 0;
    for entry in near.as_chunks().0 {
        match ConsumeEntry::decode(entry) {
            None => return Ok(seen),
            Some(entry) if entry.is_pre_blank() => {}
            Some(entry) => seen = entry.end(),
        }
    }
    let (mut low, mut high) = ((from + near.len() as u64) / ENTRY, file_size / ENTRY);
    while low < high {
        let middle = low + (high - low) / 2;
        match look(&file, path, middle * ENTRY)? {
            Some(entry) => {
                if !entry.is_pre_blank() {
                    seen = seen.max(entry.end());
                }
                low = middle + 1;
            }
            None => high = middle,
        }
    }
    Ok(seen)
}

/// The entry at a place of a file.
fn look(file: &File, path: &Path, place: u64) -> Result<Option<ConsumeEntry>, ConsumeQueueError> {
    let mut bytes = [0; ENTRY_SIZE];
    file.read_exact_at(&mut bytes, place)
        .map_err(|source| failed(path, source))?;
    Ok(ConsumeEntry::decode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 2000;

    fn entry(number: u64) -> ConsumeEntry {
        ConsumeEntry {
            physical_offset: 1000 + number * 100,
            size: 100,
            tags_code: 0,
        }
    }

    fn queue(dir: &Path, offsets: &[i64]) -> ConsumeQueue {
        let queue = ConsumeQueue::empty(dir, "T", 0, SIZE, &MapBudget::new(10));
        for offset in offsets {
            queue
                .append_in_place(*offset, entry(*offset as u64))
                .unwrap();
        }
        queue
    }

    #[test]
    fn entries_behind_a_gap_stand_at_their_own_offsets() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path(), &[0, 1, 2, 105, 106]);
        assert_eq!((queue.min_offset(), queue.max_offset()), (0, 107));
        assert_eq!(queue.entry(105).unwrap(), Some(entry(105)));
        assert_eq!(queue.entry(50).unwrap(), None);
        let mut entries = Vec::new();
        queue.entries(0, 200, &mut entries).unwrap();
        assert_eq!(entries.len(), 100);
        assert_eq!(
            entries.iter().filter(|entry| entry.is_pre_blank()).count(),
            97
        );
    }

    #[test]
    fn a_gap_hides_nothing_when_the_ends_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        for (log_min, min) in [(0, 0), (1100, 1), (1201, 105), (11_501, 106), (20_000, 107)] {
            let dir = dir.path().join(min.to_string());
            let queue = queue(&dir, &[0, 1, 2, 105, 106]);
            queue.correct_min(log_min).unwrap();
            assert_eq!(queue.min_offset(), min, "log from {log_min}");
        }
        for (log_end, max) in [(20_000, 107), (11_600, 106), (11_500, 3), (1100, 1)] {
            let dir = dir.path().join(format!("cut{max}"));
            let queue = queue(&dir, &[0, 1, 2, 105, 106]);
            queue.truncate(log_end).unwrap();
            assert_eq!(queue.max_offset(), max, "log cut at {log_end}");
        }
    }

    #[test]
    fn a_gap_no_log_can_explain_is_not_filled() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path(), &[0, 1]);
        let placed = queue.append_in_place(1 << 40, entry(2)).unwrap();
        assert_eq!(placed, Placed::Displaced { at: 2 });
    }

    #[test]
    fn what_stands_behind_a_known_end_is_seen_near_and_far() {
        for count in [1, 2, 150, 201, 900] {
            let dir = tempfile::tempdir().unwrap();
            let (size, budget) = (20_000, MapBudget::new(10));
            let queue = ConsumeQueue::empty(dir.path(), "T", 0, size, &budget);
            for number in 0..count {
                queue.append(number, entry(number as u64)).unwrap();
            }
            drop(queue);
            let known = KnownEnd { max: 1, log_min: 0 };
            let found = ConsumeQueue::look_at_ending(dir.path(), "T", 0, size, &budget, known);
            let (queue, goes_on) = found.unwrap().unwrap();
            assert_eq!(goes_on, count > 1, "{count}");
            assert_eq!(queue.seen_end(), entry(count as u64 - 1).end(), "{count}");
        }
    }

    #[test]
    fn a_known_end_is_believed_only_if_the_files_agree() {
        let dir = tempfile::tempdir().unwrap();
        let offsets: Vec<i64> = (0..150).collect();
        drop(queue(dir.path(), &offsets));
        let open = |max, log_min| {
            let known = KnownEnd { max, log_min };
            ConsumeQueue::open_ending(dir.path(), "T", 0, SIZE, &MapBudget::new(10), known).unwrap()
        };
        let range = |queue: ConsumeQueue| (queue.min_offset(), queue.max_offset(), queue.log_end());
        assert_eq!(open(150, 0).map(range), Some((0, 150, entry(149).end())));
        assert_eq!(
            open(150, 2001).map(range),
            Some((11, 150, entry(149).end()))
        );
        for wrong in [0, 151, 200, 201, 10_000] {
            assert!(open(wrong, 0).is_none(), "{wrong}");
        }
    }

    #[test]
    fn an_empty_file_that_a_cut_left_of_a_queue_known_to_have_nothing_stands_in_nobodys_way() {
        for base in [0, SIZE] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("T/0").join(layout::file_name(base));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, b"").unwrap();
            let known = KnownEnd { max: 0, log_min: 0 };
            let budget = MapBudget::new(10);
            let found = ConsumeQueue::open_ending(dir.path(), "T", 0, SIZE, &budget, known);
            let queue = match found.unwrap() {
                Some(queue) => queue,
                None => ConsumeQueue::open(dir.path(), "T", 0, SIZE, &budget).unwrap(),
            };
            assert!(!path.exists());
            for offset in 0..150 {
                queue.append(offset, entry(offset as u64)).unwrap();
            }
            assert_eq!((queue.min_offset(), queue.max_offset()), (0, 150));
        }
    }

    #[test]
    fn a_queue_ends_where_it_is_known_to_end_whatever_a_cut_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let offsets: Vec<i64> = (0..650).collect();
        drop(queue(dir.path(), &offsets));
        // Behind the known end the cut took single entries and whole files.
        for (base, from, to) in [(2000, 200, 220), (4000, 0, 2000), (8000, 0, 2000)] {
            let path = dir.path().join(format!("T/0/{base:020}"));
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[from..to].fill(0);
            std::fs::write(&path, bytes).unwrap();
        }
        let open = || {
            let known = KnownEnd {
                max: 105,
                log_min: 0,
            };
            let budget = MapBudget::new(10);
            ConsumeQueue::open_ending(dir.path(), "T", 0, SIZE, &budget, known).unwrap()
        };
        for _ in 0..2 {
            let queue = open().unwrap();
            assert_eq!((queue.min_offset(), queue.max_offset()), (0, 105));
            assert_eq!(queue.log_end(), entry(104).end());
        }
        assert_eq!(
            std::fs::read_dir(dir.path().join("T/0")).unwrap().count(),
            2
        );
    }

    #[test]
    fn an_end_in_blank_entries_is_that_of_the_record_before_them() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path(), &[0, 1, 2, 50]);
        queue.cut_to(40).unwrap();
        assert_eq!((queue.max_offset(), queue.log_end()), (40, entry(2).end()));
    }

    #[test]
    fn holes_behind_the_end_that_a_crash_left_are_not_read() {
        const LARGE: u64 = 400_000;
        let dir = tempfile::tempdir().unwrap();
        for (entries, max) in [(100, 100), (204, 204), (6, 5), (300, 299), (19_000, 18_000)] {
            let dir = dir.path().join(entries.to_string());
            let queue = ConsumeQueue::empty(&dir, "T", 0, LARGE, &MapBudget::new(10));
            for offset in 0..entries {
                queue.append(offset, entry(offset as u64)).unwrap();
            }
            drop(queue);
            let path = dir.join("T/0").join(layout::file_name(0));
            let blocks = || {
                use std::os::unix::fs::MetadataExt;
                std::fs::metadata(&path).unwrap().blocks()
            };
            let before = blocks();
            let (known, budget) = (KnownEnd { max, log_min: 0 }, MapBudget::new(10));
            let queue = ConsumeQueue::open_ending(&dir, "T", 0, LARGE, &budget, known);
            let queue = queue.unwrap().unwrap();
            assert_eq!(queue.max_offset(), max);
            assert_eq!(budget.mapped(), usize::from(max < entries), "{entries}");
            assert_eq!(blocks(), before);
            let bytes = std::fs::read(&path).unwrap();
            assert!(
                bytes[max as usize * ENTRY_SIZE..]
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
    }
}
