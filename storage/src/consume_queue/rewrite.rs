//! Making entries again from the log: what stands there is compared, and replaced where it differs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::repair::GAP_MAX;
use super::{ConsumeQueue, ConsumeQueueError, ENTRY, Files, STEP, Unsynced, remove};
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};

impl ConsumeQueue {
    /// Sees to it that `entry` stands at `offset`, whatever stood there; whether that changed
    /// anything. Blank entries fill a gap before it, and a queue that cannot reach it begins
    /// anew there. While a store is opened.
    pub(crate) fn put_at(
        &self,
        offset: i64,
        entry: ConsumeEntry,
    ) -> Result<bool, ConsumeQueueError> {
        let mut unsynced = self.lock();
        let position = u64::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_mul(ENTRY))
            .filter(|position| *position <= i64::MAX as u64 - self.file_size)
            .ok_or(ConsumeQueueError::Offset { offset })?;
        if unsynced.closed {
            return Ok(false);
        }
        let files = self.files.load_full();
        let reachable = offset >= files.first() && offset - self.max_offset() <= GAP_MAX;
        // A crash can leave a file without an entry: blank ones before the first are no beginning.
        let bare = self.max_offset() == files.first() && offset > files.first();
        if files.list.is_empty() || bare || !reachable {
            self.drop_files(&mut unsynced)?;
            self.begin_at(position, &mut unsynced)?;
        }
        if offset < self.max_offset() {
            return self.replace_locked(offset, entry, &mut unsynced);
        }
        self.fill_gap(self.max_offset(), offset, &mut unsynced)?;
        let file = self.file_for_append(position, &mut unsynced)?;
        self.store_entry(&file, position % self.file_size, &entry.encode())?;
        unsynced.add(position, ENTRY);
        self.log_end.store(entry.end(), Ordering::Release);
        self.max.store(offset + 1, Ordering::Release);
        Ok(true)
    }

    /// Puts `entry` in place of what stands at `offset`, between the queue's ends; whether that
    /// changed anything. While others append and read.
    pub(crate) fn replace(
        &self,
        offset: i64,
        entry: ConsumeEntry,
    ) -> Result<bool, ConsumeQueueError> {
        let mut unsynced = self.lock();
        if unsynced.closed || !(self.min_offset()..self.max_offset()).contains(&offset) {
            return Ok(false);
        }
        self.replace_locked(offset, entry, &mut unsynced)
    }

    fn replace_locked(
        &self,
        offset: i64,
        entry: ConsumeEntry,
        unsynced: &mut Unsynced,
    ) -> Result<bool, ConsumeQueueError> {
        let position = offset as u64 * ENTRY;
        let files = self.files.load();
        let Some((file, place)) = files.at(position, self.file_size) else {
            return Ok(false);
        };
        let (wanted, mut found) = (entry.encode(), [0; ENTRY_SIZE]);
        file.read_at(place, &mut found)?;
        if found == wanted {
            return Ok(false);
        }
        file.reserve(place, ENTRY_SIZE)?;
        file.write_at(place, &wanted)?;
        unsynced.add(position, ENTRY);
        Ok(true)
    }

    /// Removes every entry from `end` on; nothing if the queue ends before.
    pub(crate) fn cut_to(&self, end: i64) -> Result<(), ConsumeQueueError> {
        let mut unsynced = self.lock();
        let max = self.max_offset();
        let end = end.min(max);
        self.drop_behind(end as u64 * ENTRY, true)?;
        unsynced.names = true;
        self.clean_behind(end, max, &mut unsynced)?;
        self.set_end(end)
    }

    /// Ends the making again of a queue whose records in the log, which begins at `log_min`, have
    /// the offsets from `first` to before `end`: nothing else can be read.
    pub(crate) fn finish_at(
        &self,
        first: i64,
        end: i64,
        log_min: u64,
    ) -> Result<(), ConsumeQueueError> {
        self.cut_to(end)?;
        self.blank_front(first.min(end), log_min)?;
        self.min.store(first.min(end), Ordering::Release);
        Ok(())
    }

    /// Sees to it that nothing before `first` looks like an entry of the log or like damage: what
    /// is no expired entry becomes a blank one.
    fn blank_front(&self, first: i64, log_min: u64) -> Result<(), ConsumeQueueError> {
        let mut unsynced = self.lock();
        let files = self.files.load_full();
        let mut at = files.first().max(0) as u64 * ENTRY;
        let mut bytes = [0; STEP * ENTRY_SIZE];
        while at < first as u64 * ENTRY {
            let Some((file, place)) = files.at(at, self.file_size) else {
                break;
            };
            let len = (first as u64 * ENTRY - at).min(self.file_size - place);
            let part = &mut bytes[..len.min((STEP * ENTRY_SIZE) as u64) as usize];
            file.read_at(place, part)?;
            for (index, entry) in part.as_chunks().0.iter().enumerate() {
                let expired =
                    |entry: ConsumeEntry| entry.is_pre_blank() || entry.physical_offset < log_min;
                if !ConsumeEntry::decode(entry).is_some_and(expired) {
                    let offset = (at / ENTRY) as i64 + index as i64;
                    self.replace_locked(offset, ConsumeEntry::PRE_BLANK, &mut unsynced)?;
                }
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    pub(super) fn drop_files(&self, unsynced: &mut Unsynced) -> Result<(), ConsumeQueueError> {
        let files = self.files.swap(Arc::new(Files::default()));
        for file in &files.list {
            remove(file)?;
        }
        *unsynced = Unsynced {
            names: true,
            ..Unsynced::default()
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consume_queue::KnownEnd;
    use crate::mapped_file::MapBudget;
    use std::path::Path;

    fn entry(number: i64) -> ConsumeEntry {
        ConsumeEntry {
            physical_offset: 1000 + number as u64 * 100,
            size: 100,
            tags_code: number,
        }
    }

    fn queue(dir: &Path, offsets: std::ops::Range<i64>) -> ConsumeQueue {
        let queue = ConsumeQueue::empty(dir, "T", 0, 2000, &MapBudget::new(10));
        for offset in offsets {
            queue.append(offset, entry(offset)).unwrap();
        }
        queue
    }

    #[test]
    fn an_entry_that_differs_is_replaced_and_one_that_does_not_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path(), 0..250);
        assert!(queue.replace(120, entry(7)).unwrap());
        for offset in 0..250 {
            let changed = queue.put_at(offset, entry(offset)).unwrap();
            assert_eq!(changed, offset == 120);
        }
        assert!(!queue.replace(250, entry(250)).unwrap());
        queue.finish_at(0, 250, 0).unwrap();
        assert_eq!(queue.entry(120).unwrap(), Some(entry(120)));
        assert_eq!(
            (queue.max_offset(), queue.log_end()),
            (250, entry(249).end())
        );
    }

    #[test]
    fn a_queue_whose_first_files_are_lost_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path(), 150..260);
        for offset in 20..260 {
            queue.put_at(offset, entry(offset)).unwrap();
        }
        queue.finish_at(20, 260, 0).unwrap();
        assert_eq!((queue.min_offset(), queue.max_offset()), (20, 260));
        for offset in 20..260 {
            assert_eq!(queue.entry(offset).unwrap(), Some(entry(offset)));
        }
    }

    #[test]
    fn entries_that_no_record_has_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path(), 0..250);
        queue.finish_at(30, 90, entry(30).physical_offset).unwrap();
        assert_eq!((queue.min_offset(), queue.max_offset()), (30, 90));
        assert_eq!(queue.log_end(), entry(89).end());
        let again = ConsumeQueue::open(dir.path(), "T", 0, 2000, &MapBudget::new(10)).unwrap();
        assert_eq!(again.max_offset(), 90);
    }

    #[test]
    fn blank_entries_that_a_cut_took_from_the_front_are_made_again() {
        let dir = tempfile::tempdir().unwrap();
        drop(queue(dir.path(), 30..90));
        let path = dir.path().join("T/0/00000000000000000000");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[..512].fill(0);
        std::fs::write(&path, bytes).unwrap();
        let (size, budget) = (2000, MapBudget::new(10));
        let queue = ConsumeQueue::open(dir.path(), "T", 0, size, &budget).unwrap();
        for offset in 30..90 {
            queue.put_at(offset, entry(offset)).unwrap();
        }
        queue.finish_at(30, 90, 500).unwrap();
        assert!(queue.is_dirty());
        drop(queue);
        let known = KnownEnd {
            max: 90,
            log_min: 500,
        };
        let queue = ConsumeQueue::open_ending(dir.path(), "T", 0, size, &budget, known).unwrap();
        let queue = queue.unwrap();
        assert_eq!((queue.min_offset(), queue.max_offset()), (30, 90));
        assert_eq!(queue.entry(30).unwrap(), Some(entry(30)));
    }
}
