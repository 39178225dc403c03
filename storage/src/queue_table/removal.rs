//! Topics that are removed. Their files go without the table's lock: there may be thousands, and a
//! network core that meets a new queue of another topic must not wait for them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Queue, QueueTable};
use crate::consume_queue::ConsumeQueueError;
use crate::format::light;
use crate::medium;

/// The topics whose files are being removed.
#[derive(Debug, Default)]
pub(super) struct Removing {
    topics: HashMap<Arc<str>, Arc<Removal>>,
}

impl Removing {
    /// The removal that is under way of a topic.
    pub fn removal_of(&self, topic: &str) -> Option<Arc<Removal>> {
        self.topics.get(topic).cloned()
    }
}

/// The removal of a topic's files; a new queue of that name makes none before it is over.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl Removal {
    /// Waits until the files are gone, or were left with an error.
    pub fn wait(&self) {
        let over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_while(over, |over| !*over);
        drop(waited);
    }

    fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.notify_all();
    }
}

/// Ends a removal, whatever becomes of it.
struct Underway<'t> {
    table: &'t QueueTable,
    topic: Arc<str>,
    removal: Arc<Removal>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.table.lock().topics.remove(&self.topic);
        self.removal.end();
    }
}

impl QueueTable {
    /// Removes a topic's queues with their files; the topic's empty directory goes too.
    /// Returns whether there was one. After an error the queues are gone from the table, and
    /// the next start finds what is left of their files.
    pub fn remove_topic(&self, topic: &str) -> Result<bool, ConsumeQueueError> {
        let Some((queues, _underway)) = self.take_out(topic) else {
            return Ok(false);
        };
        for queue in queues.iter() {
            queue.files.destroy()?;
            if let Some(extension) = &queue.extension {
                extension.destroy()?;
            }
        }
        // Apache leaves the empty directory; it means nothing to it.
        let _ = medium::remove_directory(&self.directory.join(topic));
        Ok(true)
    }

    /// How often queues were removed.
    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Takes a topic's queues out of the table.
    fn take_out(&self, topic: &str) -> Option<(Arc<Vec<Arc<Queue>>>, Underway<'_>)> {
        loop {
            let mut changes = self.lock();
            if let Some(earlier) = changes.removal_of(topic) {
                drop(changes);
                earlier.wait();
                continue;
            }
            let topics = self.topics.pin();
            let topic = Arc::clone(topics.get_key_value(topic)?.0);
            let queues = topics.remove(&topic)?.load_full();
            let slots = self.slots.pin();
            for queue in queues.iter() {
                queue.removed.store(true, Ordering::Release);
                slots.remove(&queue.slot);
            }
            if light::is_light(&topic) {
                self.light.fetch_sub(queues.len(), Ordering::Relaxed);
            }
            self.removals.fetch_add(1, Ordering::Release);
            let removal = Arc::new(Removal::default());
            let known = changes
                .topics
                .insert(Arc::clone(&topic), Arc::clone(&removal));
            debug_assert!(known.is_none(), "one removal of a topic at a time");
            let table = self;
            let underway = Underway {
                table,
                topic,
                removal,
            };
            return Some((queues, underway));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

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

    #[test]
    fn nobody_waits_for_the_files_of_a_removed_topic_but_a_new_queue_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let table = QueueTable::new(dir.path(), 2000, MapBudget::new(10));
        let old = table.get_or_create("A", 0);
        old.append(0, entry(0)).unwrap();
        let file = dir.path().join("A").join("0").join(format!("{:020}", 0));
        assert!(file.exists());
        let (queues, underway) = table.take_out("A").unwrap();
        table.get_or_create("B", 0).append(0, entry(1)).unwrap();
        let new = table.get_or_create("A", 0);
        assert_ne!(new.slot, old.slot);
        std::thread::scope(|scope| {
            let (appended, wait) = mpsc::channel();
            scope.spawn(move || appended.send(new.append(0, entry(2))).unwrap());
            assert!(wait.try_recv().is_err());
            queues[0].files.destroy().unwrap();
            assert!(!file.exists() && wait.try_recv().is_err());
            drop(underway);
            wait.recv().unwrap().unwrap();
        });
        assert!(file.exists());
        assert_eq!(table.get("A", 0).unwrap().max_offset(), 1);
        assert!(table.remove_topic("A").unwrap() && !file.exists());
    }
}
