//! Topics that are removed. Their files go aside at once, and from the disk without the table:
//! there may be thousands, and nobody who meets a new queue of a topic must wait for them.
//!
//! What must always hold: a queue of a removed topic's name takes records only once it is durable
//! which records of the log are those of the removed one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Queue, QueueTable};
use crate::consume_queue::ConsumeQueueError;
use crate::format::light;
use crate::medium;

/// The topics that are being removed.
#[derive(Debug, Default)]
pub(super) struct Removing {
    topics: HashMap<Arc<str>, Arc<Removal>>,
}

impl Removing {
    /// The removal that is under way of a topic, or has failed.
    pub fn removal_of(&self, topic: &str) -> Option<Arc<Removal>> {
        self.topics.get(topic).cloned()
    }
}

const UNDER_WAY: u8 = 0;
const OVER: u8 = 1;
/// Nothing is taken under the topic's name before it is removed once more.
const FAILED: u8 = 2;

/// The removal of a topic.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    state: AtomicU8,
    waiting: Mutex<()>,
    ended: Condvar,
}

impl Removal {
    /// Whether queues of the topic's name take nothing yet.
    pub fn is_under_way(&self) -> bool {
        self.state.load(Ordering::Acquire) == UNDER_WAY
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == FAILED
    }

    fn wait(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.ended.wait_while(waiting, |()| self.is_under_way()));
    }

    fn turn(&self, state: u8) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.store(state, Ordering::Release);
        drop(waiting);
        self.ended.notify_all();
    }
}

/// Ends a removal, whatever becomes of it: as a failed one unless it is over.
pub(super) struct UnderWay<'t> {
    table: &'t QueueTable,
    topic: Arc<str>,
    removal: Arc<Removal>,
}

impl UnderWay<'_> {
    fn complete(self) {
        self.table.lock().topics.remove(&self.topic);
        self.removal.turn(OVER);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.removal.is_under_way() {
            let changes = self.table.lock();
            // What was made under the name meanwhile takes nothing either.
            self.table.forget(&self.topic);
            self.removal.turn(FAILED);
            drop(changes);
        }
    }
}

/// A topic whose queues are out of the table; it ends with [`TopicRemoval::finish`].
pub struct TopicRemoval<'t> {
    queues: Arc<Vec<Arc<Queue>>>,
    under_way: UnderWay<'t>,
}

impl TopicRemoval<'_> {
    /// Puts the files aside and returns the queues. `note` makes durable which records are those of
    /// the removed topic; it is called when the queues take no more. After an error nothing is
    /// taken under the topic's name, and the removal may be tried again.
    pub(crate) fn finish(
        self,
        mut note: impl FnMut() -> Result<(), ConsumeQueueError>,
    ) -> Result<Arc<Vec<Arc<Queue>>>, ConsumeQueueError> {
        for queue in self.queues.iter() {
            queue.files.close();
            if let Some(extension) = &queue.extension {
                extension.close();
            }
        }
        let UnderWay { table, topic, .. } = &self.under_way;
        let mut aside = table.put_aside(topic)?;
        if note().is_err() {
            // What is missing may be the room that the files take.
            for directory in aside.drain(..) {
                medium::remove_tree(&directory).map_err(|source| ConsumeQueueError::File {
                    path: directory,
                    source,
                })?;
            }
            note()?;
        }
        self.under_way.complete();
        Ok(self.queues)
    }
}

impl QueueTable {
    /// Removes a topic's queues and returns them; `None`: there is no such topic. As
    /// [`Self::begin_removal`] and [`TopicRemoval::finish`].
    pub fn remove_topic(
        &self,
        topic: &str,
        note: impl FnMut() -> Result<(), ConsumeQueueError>,
    ) -> Result<Option<Arc<Vec<Arc<Queue>>>>, ConsumeQueueError> {
        let removal = self.begin_removal(topic);
        removal.map(|removal| removal.finish(note)).transpose()
    }

    /// Takes a topic's queues out of the table; `None`: there is no such topic. Those that are made
    /// under its name take nothing before the removal is over. Waits for no disk, unless the topic
    /// is being removed already.
    pub fn begin_removal(&self, topic: &str) -> Option<TopicRemoval<'_>> {
        let (queues, under_way) = self.take_out(topic)?;
        Some(TopicRemoval { queues, under_way })
    }

    /// How often queues were removed.
    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Takes a topic's queues out of the table.
    fn take_out(&self, topic: &str) -> Option<(Arc<Vec<Arc<Queue>>>, UnderWay<'_>)> {
        loop {
            let mut changes = self.lock();
            match changes.removal_of(topic) {
                Some(earlier) if earlier.is_under_way() => {
                    drop(changes);
                    earlier.wait();
                    continue;
                }
                Some(_) => {}
                None if self.topics.pin().contains_key(topic) => {}
                None => return None,
            }
            let (topic, queues) = self.forget(topic);
            let removal = Arc::new(Removal::default());
            changes
                .topics
                .insert(Arc::clone(&topic), Arc::clone(&removal));
            let table = self;
            let under_way = UnderWay {
                table,
                topic,
                removal,
            };
            return Some((queues, under_way));
        }
    }

    /// Takes the queues of a name out of the table; the lock is held.
    fn forget(&self, topic: &str) -> (Arc<str>, Arc<Vec<Arc<Queue>>>) {
        let topics = self.topics.pin();
        let Some((topic, queues)) = topics.remove_entry(topic) else {
            return (Arc::from(topic), Arc::default());
        };
        let queues = Arc::new(queues.all());
        let slots = self.slots.pin();
        for queue in queues.iter() {
            queue.removed.store(true, Ordering::SeqCst);
            slots.remove(&queue.slot);
        }
        if light::is_light(topic) {
            self.light.fetch_sub(queues.len(), Ordering::Relaxed);
        }
        self.removals.fetch_add(1, Ordering::SeqCst);
        (Arc::clone(topic), queues)
    }

    /// Moves the files of a topic out of the way, durably; returns where to.
    fn put_aside(&self, topic: &str) -> Result<Vec<PathBuf>, ConsumeQueueError> {
        let mut aside = Vec::new();
        for kept in [self.directory.as_path(), self.extensions.place()] {
            let from = kept.join(topic);
            let failed = |source| ConsumeQueueError::File {
                path: from.clone(),
                source,
            };
            // Names that are no directory's have no files.
            if !from.is_dir() || from.parent() != Some(kept) {
                continue;
            }
            match self.rename_aside(&from) {
                Ok(to) => aside.push(to),
                // They may be on another file system.
                Err(_) => medium::remove_tree(&from).map_err(failed)?,
            }
            medium::sync_directory(kept).map_err(failed)?;
        }
        Ok(aside)
    }

    fn rename_aside(&self, from: &Path) -> io::Result<PathBuf> {
        let place = self.aside();
        medium::make_directories(&place)?;
        loop {
            let number = self.next_aside.fetch_add(1, Ordering::Relaxed);
            let to = place.join(number.to_string());
            match medium::rename(from, &to) {
                // A former run left it.
                Err(error) if to.exists() && from.exists() => drop(error),
                renamed => return renamed.map(|()| to),
            }
        }
    }

    /// The directory that holds removed files until they are gone.
    pub(crate) fn aside(&self) -> PathBuf {
        self.directory.with_file_name(ASIDE)
    }
}

/// The directory of removed files, beside that of the queues.
const ASIDE: &str = "saturnmq.removing";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::consume_entry::ConsumeEntry;
    use crate::mapped_file::MapBudget;

    fn entry(offset: u64) -> ConsumeEntry {
        ConsumeEntry {
            physical_offset: offset * 100,
            size: 100,
            tags_code: 0,
        }
    }

    fn file_of(dir: &Path, topic: &str) -> PathBuf {
        dir.join("consumequeue")
            .join(topic)
            .join("0")
            .join(format!("{:020}", 0))
    }

    fn table(dir: &Path) -> QueueTable {
        QueueTable::new(dir.join("consumequeue"), 2000, MapBudget::new(10))
    }

    #[test]
    fn a_name_takes_nothing_before_its_removal_is_noted_and_nobody_waits_for_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(dir.path());
        let old = table.get_or_create("A", 0);
        old.append(0, entry(0)).unwrap();
        let file = file_of(dir.path(), "A");
        assert!(file.exists());
        let mut made = None;
        let removed = table.remove_topic("A", || {
            assert!(old.is_removed() && !file.exists());
            let new = table.get_or_create("A", 0);
            assert!(new.is_held() && new.slot != old.slot);
            made = Some(new);
            let other = table.get_or_create("B", 0);
            assert!(!other.is_held());
            other.append(0, entry(1)).unwrap();
            Ok(())
        });
        let removed = removed.unwrap().unwrap();
        assert_eq!(removed.len(), 1);
        let new = made.unwrap();
        assert!(!new.is_held() && !new.is_removed());
        new.append(0, entry(2)).unwrap();
        assert_eq!(
            (table.get("A", 0).unwrap().max_offset(), old.max_offset()),
            (1, 0)
        );
        assert!(file.exists());
        // A removed queue counts what comes late as known.
        old.append(1, entry(3)).unwrap();
        assert!(table.aside().join("0").join("0").is_dir());
    }

    #[test]
    fn a_removal_that_cannot_be_noted_gives_the_room_back_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(dir.path());
        table.get_or_create("A", 0).append(0, entry(0)).unwrap();
        let mut asked = 0;
        let failed = table.remove_topic("A", || {
            asked += 1;
            table.get_or_create("A", 1);
            let full = io::Error::from(io::ErrorKind::StorageFull);
            Err(ConsumeQueueError::File {
                path: PathBuf::new(),
                source: full,
            })
        });
        assert!(failed.is_err());
        assert_eq!(asked, 2, "once more without the files");
        assert_eq!(std::fs::read_dir(table.aside()).unwrap().count(), 0);
        let refused = table.get_or_create("A", 0);
        assert!(refused.is_removed() && table.by_slot(refused.slot).is_none());
        assert!(table.get("A", 1).is_none());
        assert!(table.remove_topic("A", || Ok(())).unwrap().is_some());
        let new = table.get_or_create("A", 0);
        assert!(!new.is_removed() && !new.is_held());
        new.append(0, entry(1)).unwrap();
    }
}
