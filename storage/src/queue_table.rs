//! All queues of the store, shared by every thread.
//!
//! Network cores look queues up and read their entries without a lock; the dispatcher alone
//! appends entries, the writer alone assigns offsets. A queue stays valid for whoever holds it
//! after its topic was removed: it is empty then.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::consume_queue::{
    ConsumeQueue, ConsumeQueueError, Extension, Extensions, KnownEnd, Placed, QueueFile,
};
use crate::format::consume_entry::{ConsumeEntry, ENTRY_SIZE};
use crate::format::light;
use crate::layout;
use crate::mapped_file::MapBudget;
use crate::mapping::MappingError;
use crate::medium;
use crate::side_by_side;

mod extended;
pub(crate) mod leftovers;
mod of_topic;
mod remembered;
pub mod removal;

use of_topic::QueuesOfTopic;
pub(crate) use remembered::RememberedQueues;
use removal::{Removal, Removing};

/// Changed queues that are synced one by one.
const SYNC_EACH_MAX: usize = 32;

/// Directory of the extension files, beside that of the queues.
const EXTENSIONS: &str = "consumequeue_ext";
/// Size of their files unless it is configured.
const EXTENSION_FILE_SIZE: u64 = 48 << 20;

/// Cores that can watch a queue: one bit each.
pub const WATCHERS_MAX: usize = 64;

/// A value that shares no cache line with its neighbours; two lines, for they are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct OwnLines<T>(T);

/// One queue of a topic.
#[derive(Debug)]
pub struct Queue {
    /// Number of the queue in this process; never given twice.
    pub slot: u32,
    /// The topic.
    pub topic: Arc<str>,
    /// The queue's id in its topic.
    pub queue_id: i32,
    /// On cache lines of its own: the writer stores it while dispatcher and cores look at the rest.
    next_offset: OwnLines<AtomicI64>,
    watchers: AtomicU64,
    removed: AtomicBool,
    /// A removal of the topic's name that began before the queue was made.
    after: Option<Arc<Removal>>,
    files: ConsumeQueue,
    extension: Option<Box<Extension>>,
}

impl Queue {
    /// The queue offset after the last entry that can be read.
    pub fn max_offset(&self) -> i64 {
        self.files.max_offset()
    }

    /// The smallest queue offset that can be read.
    pub fn min_offset(&self) -> i64 {
        self.files.min_offset()
    }

    /// See [`ConsumeQueue::begin_without_entries`].
    pub(crate) fn begin_without_entries(&self, offset: i64) -> Result<bool, ConsumeQueueError> {
        self.files.begin_without_entries(offset)
    }

    /// The queue offset that the next message gets.
    pub fn next_offset(&self) -> i64 {
        self.next_offset.0.load(Ordering::Acquire)
    }

    /// Sets the next offset: the writer's thread, and recovery before there is one.
    pub fn set_next_offset(&self, offset: i64) {
        self.next_offset.0.store(offset, Ordering::Release);
    }

    /// Asks for a wake-up of `core` at the next entry. The caller looks at
    /// [`Self::max_offset`] once more afterwards: an entry that came before is not announced.
    pub fn watch(&self, core: usize) {
        assert!(core < WATCHERS_MAX, "core number {core} has no bit");
        self.watchers.fetch_or(1 << core, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Whether some core asked for a wake-up at the next entry.
    pub fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) != 0
    }

    /// Takes the cores to wake, one bit each: the dispatcher, after it published entries.
    pub fn take_watchers(&self) -> u64 {
        // A load first keeps the cache line shared while nobody waits; the fence orders it
        // behind the published offset, as `watch` orders its bit before looking at the offset.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.watchers.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        self.watchers.swap(0, Ordering::SeqCst)
    }

    /// Whether the queue's topic was removed.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Whether the queue takes nothing yet: a topic of its name is being removed.
    pub fn is_held(&self) -> bool {
        self.after
            .as_ref()
            .is_some_and(|removal| removal.is_under_way())
    }

    /// The entry at `offset`; `None` outside of min and max.
    pub fn entry(&self, offset: i64) -> Result<Option<ConsumeEntry>, MappingError> {
        self.files.entry(offset)
    }

    /// Appends the entries from `from` on to `out`: at most `max`, none beyond the end of the
    /// consume-queue file that holds `from`.
    pub fn entries(
        &self,
        from: i64,
        max: usize,
        out: &mut Vec<ConsumeEntry>,
    ) -> Result<(), MappingError> {
        self.files.entries(from, max, out)
    }

    /// As [`Self::entries`], but false, and nothing read, where that would map a file.
    pub fn mapped_entries(
        &self,
        from: i64,
        max: usize,
        out: &mut Vec<ConsumeEntry>,
    ) -> Result<bool, MappingError> {
        self.files.mapped_entries(from, max, out)
    }

    /// Says that the next entry is for a record at `log_offset`: the dispatcher, before it appends.
    pub fn note_recent(&self, log_offset: u64, tail_start: u64, tail_size: u64) {
        self.files.note_recent(log_offset, tail_start, tail_size);
    }

    /// Whether looking at the entries from `offset` on waits for no disk while the tail begins at
    /// `tail_start`.
    pub fn is_recent(&self, offset: i64, tail_start: u64) -> bool {
        self.files.is_recent(offset, tail_start)
    }

    /// Has the next entries from `offset` on in memory; waits for the disk.
    pub(crate) fn make_ready(&self, offset: i64) {
        self.files.make_ready(offset);
    }

    /// Queue offset of the first entry in the file after the one that holds `offset`.
    pub fn next_file_offset(&self, offset: i64) -> i64 {
        self.files.next_file_offset(offset)
    }

    /// Log offset after the record of the last entry; 0 without entries.
    pub fn log_end(&self) -> u64 {
        self.files.log_end()
    }

    /// The queue's files with their times, in order.
    pub fn queue_files(&self) -> Result<Vec<QueueFile>, ConsumeQueueError> {
        self.files.queue_files()
    }

    /// Appends and publishes the entry of the record whose queue offset is `offset`: the
    /// dispatcher's thread. An entry of a removed queue counts as a duplicate.
    pub fn append(&self, offset: i64, entry: ConsumeEntry) -> Result<Placed, ConsumeQueueError> {
        self.files.append(offset, entry)
    }

    /// Queue offset of the first entry that the files have room for.
    pub(crate) fn first_stored(&self) -> i64 {
        self.files.first_stored()
    }

    /// Removes every entry from `end` on: recovery.
    pub(crate) fn cut_to(&self, end: i64) -> Result<(), ConsumeQueueError> {
        self.forget_extension_end();
        self.files.cut_to(end)
    }

    /// Ends the making again of a queue from `first` to before `end`: recovery.
    pub(crate) fn finish_at(
        &self,
        first: i64,
        end: i64,
        log_min: u64,
    ) -> Result<(), ConsumeQueueError> {
        self.forget_extension_end();
        self.files.finish_at(first, end, log_min)?;
        self.trim_extension()
    }

    /// The offset after the last entry below `max` whose record begins before `log_offset`.
    pub fn end_below(&self, max: i64, log_offset: u64) -> Result<i64, ConsumeQueueError> {
        self.files.end_below(max, log_offset)
    }

    /// Removes every entry whose record begins at `log_offset` or behind it: recovery.
    pub fn truncate(&self, log_offset: u64) -> Result<(), ConsumeQueueError> {
        self.forget_extension_end();
        self.files.truncate(log_offset)
    }

    /// Sets the smallest readable offset for a log that begins at `log_min`.
    pub fn correct_min(&self, log_min: u64) -> Result<(), ConsumeQueueError> {
        self.files.correct_min(log_min)?;
        self.trim_extension()
    }

    /// Deletes files that only name records before `log_min`; returns how many.
    pub fn delete_before(&self, log_min: u64) -> Result<usize, ConsumeQueueError> {
        self.files.delete_before(log_min)
    }
}

/// All queues of the store.
#[derive(Debug)]
pub struct QueueTable {
    directory: PathBuf,
    file_size: u64,
    extensions: Extensions,
    budget: Arc<MapBudget>,
    topics: papaya::HashMap<Arc<str>, Arc<QueuesOfTopic>>,
    slots: papaya::HashMap<u32, Arc<Queue>>,
    next_slot: AtomicU32,
    /// Queues of light topics.
    light: AtomicUsize,
    /// How often queues were removed.
    removals: AtomicU64,
    /// Held while queues are made or removed.
    changes: Mutex<Removing>,
    /// Number of the next directory of removed files.
    next_aside: AtomicU64,
}

impl QueueTable {
    /// A table without queues over the directory `consumequeue`. `file_size` is the configured
    /// size of queue files; as Apache RocketMQ does, it is rounded up to whole entries.
    pub fn new(directory: impl Into<PathBuf>, file_size: u64, budget: Arc<MapBudget>) -> Self {
        let directory = directory.into();
        let beside = directory.with_file_name(EXTENSIONS);
        Self {
            extensions: Extensions::new(beside, EXTENSION_FILE_SIZE, false),
            directory,
            file_size: file_size.max(1).next_multiple_of(ENTRY_SIZE as u64),
            budget,
            topics: papaya::HashMap::new(),
            slots: papaya::HashMap::new(),
            next_slot: AtomicU32::new(0),
            light: AtomicUsize::new(0),
            removals: AtomicU64::new(0),
            changes: Mutex::default(),
            next_aside: AtomicU64::new(0),
        }
    }

    /// Opens all queues on disk and finds their ends. Next offsets are the max offsets.
    pub fn open(
        directory: impl Into<PathBuf>,
        file_size: u64,
        budget: Arc<MapBudget>,
    ) -> Result<Self, ConsumeQueueError> {
        let directory = directory.into();
        let queues = layout::list_queues(&directory)?;
        Self::new(directory, file_size, budget).opened(&queues, 0, &|_, _| None)
    }

    /// With these extension files, in place of those that stand beside the queues.
    pub(crate) fn with_extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Opens these queues of a log that begins at `log_min`; ends that `known` gives by topic and
    /// queue id are not searched where the files agree with them.
    pub(crate) fn opened(
        self,
        queues: &[(String, i32)],
        log_min: u64,
        known: &(dyn Fn(&str, i32) -> Option<KnownEnd> + Sync),
    ) -> Result<Self, ConsumeQueueError> {
        let table = self;
        let (place, size, budget) = (&table.directory, table.file_size, &table.budget);
        let looked_at = side_by_side::map(queues, |(topic, queue_id)| {
            let Some(known) = known(topic, *queue_id) else {
                return Ok(None);
            };
            ConsumeQueue::look_at_ending(place, topic, *queue_id, size, budget, known)
        });
        for ((topic, queue_id), found) in queues.iter().zip(looked_at) {
            let files = match found? {
                Some(found) => ConsumeQueue::cut_ending(found)?,
                None => ConsumeQueue::open(place, topic, *queue_id, size, budget)
                    .and_then(|files| files.correct_min(log_min).map(|()| files))?,
            };
            let changes = table.lock();
            let queue = table.insert(&changes, topic, *queue_id, files);
            queue.set_next_offset(queue.max_offset());
        }
        Ok(table)
    }

    /// Waits until every entry appended before is on disk: queue by queue, or, where many have
    /// changed, with one sync of their filesystem instead of several for each.
    pub fn flush(&self) -> Result<(), ConsumeQueueError> {
        let mut dirty = self.all();
        dirty.retain(|queue| queue.is_dirty());
        if dirty.len() <= SYNC_EACH_MAX {
            return dirty.iter().try_for_each(|queue| queue.flush());
        }
        // They are few files of many queues, and may be on another file system.
        let extensions = dirty.iter().filter_map(|queue| queue.extension.as_ref());
        extensions.clone().try_for_each(|one| one.flush())?;
        let taken: Vec<_> = dirty
            .iter()
            .map(|queue| queue.files.take_unsynced())
            .collect();
        medium::sync_filesystem(&self.directory).map_err(|source| {
            for (queue, unsynced) in dirty.iter().zip(taken) {
                queue.files.put_back(unsynced);
            }
            let path = self.directory.clone();
            ConsumeQueueError::File { path, source }
        })
    }

    /// Size of a queue file, in bytes.
    pub(crate) fn file_size(&self) -> u64 {
        self.file_size
    }

    /// The directory of all queues.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The queue, if it exists.
    pub fn get(&self, topic: &str, queue_id: i32) -> Option<Arc<Queue>> {
        let topics = self.topics.pin();
        topics.get(topic)?.get(queue_id)
    }

    /// The queue; made when it does not exist. Nothing appears on disk before its first entry.
    pub fn get_or_create(&self, topic: &str, queue_id: i32) -> Arc<Queue> {
        if let Some(queue) = self.get(topic, queue_id) {
            return queue;
        }
        let changes = self.lock();
        if let Some(queue) = self.get(topic, queue_id) {
            return queue;
        }
        let files = ConsumeQueue::empty(
            &self.directory,
            topic,
            queue_id,
            self.file_size,
            &self.budget,
        );
        self.insert(&changes, topic, queue_id, files)
    }

    /// The light queue of that name; made when it does not exist, unless there are more than `most`
    /// already: `None` then. Asked by several threads at a time it may make a few more.
    pub fn light_queue(&self, name: &str, most: usize) -> Option<Arc<Queue>> {
        let known = self.get(name, light::QUEUE_ID);
        let room = || self.light_queues() <= most;
        known.or_else(|| room().then(|| self.get_or_create(name, light::QUEUE_ID)))
    }

    /// How many light queues there are.
    pub fn light_queues(&self) -> usize {
        self.light.load(Ordering::Relaxed)
    }

    /// The queue with a slot number, unless it was removed.
    pub fn by_slot(&self, slot: u32) -> Option<Arc<Queue>> {
        self.slots.pin().get(&slot).map(Arc::clone)
    }

    /// How many queues there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// All queues of a topic, by queue id.
    pub fn queues_of(&self, topic: &str) -> Arc<Vec<Arc<Queue>>> {
        let topics = self.topics.pin();
        let queues = topics.get(topic).map(|queues| queues.all());
        Arc::new(queues.unwrap_or_default())
    }

    /// All queues, in the order in which this process came to know them: whatever is done to all
    /// of them is repeatable.
    pub fn all(&self) -> Vec<Arc<Queue>> {
        let mut all: Vec<_> = self.slots.pin().values().map(Arc::clone).collect();
        all.sort_unstable_by_key(|queue| queue.slot);
        all
    }

    /// Log offset after the last record that any queue knows; `None` without entries.
    pub fn log_end(&self) -> Option<u64> {
        self.slots
            .pin()
            .values()
            .map(|queue| queue.log_end())
            .max()
            .filter(|end| *end > 0)
    }

    fn lock(&self) -> MutexGuard<'_, Removing> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(
        &self,
        changes: &MutexGuard<'_, Removing>,
        topic: &str,
        queue_id: i32,
        files: ConsumeQueue,
    ) -> Arc<Queue> {
        let removal = changes.removal_of(topic);
        let extension = self
            .extensions
            .of(topic, queue_id, &self.budget, removal.is_some());
        let failed = removal.as_ref().is_some_and(|removal| removal.has_failed());
        let topics = self.topics.pin();
        let (topic, queues) = match topics.get_key_value(topic) {
            Some((topic, queues)) => (Arc::clone(topic), Arc::clone(queues)),
            None => (Arc::from(topic), Arc::default()),
        };
        let queue = Arc::new(Queue {
            slot: self.next_slot.fetch_add(1, Ordering::Relaxed),
            topic: Arc::clone(&topic),
            queue_id,
            next_offset: OwnLines(AtomicI64::new(0)),
            watchers: AtomicU64::new(0),
            removed: AtomicBool::new(failed),
            after: removal,
            files,
            extension,
        });
        if failed {
            return queue;
        }
        if light::is_light(&queue.topic) {
            self.light.fetch_add(1, Ordering::Relaxed);
        }
        self.slots.pin().insert(queue.slot, Arc::clone(&queue));
        let is_first = queues.is_empty();
        queues.insert(&queue);
        if is_first {
            topics.insert(topic, queues);
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 2_000;

    fn entry(number: u64) -> ConsumeEntry {
        ConsumeEntry {
            physical_offset: number * 100,
            size: 100,
            tags_code: 0,
        }
    }

    fn open(directory: &Path) -> QueueTable {
        QueueTable::open(directory, SIZE, MapBudget::new(10)).unwrap()
    }

    #[test]
    fn queues_are_found_by_name_and_by_slot_and_come_back_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let table = open(dir.path());
        for (topic, queue_id, count) in [("A", 1, 3), ("A", 0, 1), ("B", 0, 2)] {
            let queue = table.get_or_create(topic, queue_id);
            assert_eq!(table.get_or_create(topic, queue_id).slot, queue.slot);
            assert_eq!(table.by_slot(queue.slot).unwrap().queue_id, queue_id);
            for offset in 0..count {
                queue.append(offset, entry(offset as u64)).unwrap();
            }
        }
        table.get_or_create("C", 0);
        assert_eq!(table.len(), 4);
        let ids: Vec<_> = table
            .queues_of("A")
            .iter()
            .map(|queue| queue.queue_id)
            .collect();
        assert_eq!(ids, [0, 1]);
        assert!(table.get("A", 2).is_none() && table.get("D", 0).is_none());
        assert_eq!(table.log_end(), Some(300));

        drop(table);
        let table = open(dir.path());
        assert_eq!(table.len(), 3, "a queue without an entry has no file");
        let queue = table.get("A", 1).unwrap();
        assert_eq!((queue.max_offset(), queue.next_offset()), (3, 3));
        assert_eq!(table.log_end(), Some(300));
    }

    #[test]
    fn a_removed_topic_is_gone_and_its_name_can_be_used_again() {
        let root = tempfile::tempdir().unwrap();
        // What is removed is moved to a directory beside it.
        let dir = root.path().join("consumequeue");
        std::fs::create_dir(&dir).unwrap();
        let table = open(&dir);
        let old = table.get_or_create("A", 0);
        old.append(0, entry(0)).unwrap();
        table.get_or_create("B", 0).append(0, entry(1)).unwrap();
        assert!(table.remove_topic("A", || Ok(())).unwrap().is_some());
        assert!(table.remove_topic("A", || Ok(())).unwrap().is_none());
        assert!(table.get("A", 0).is_none() && table.by_slot(old.slot).is_none());
        assert!(old.is_removed() && !dir.join("A").exists());
        assert_eq!(old.append(1, entry(2)).unwrap(), Placed::Duplicate);
        assert!(!dir.join("A").exists());
        let new = table.get_or_create("A", 0);
        assert_ne!(new.slot, old.slot);
        assert_eq!(new.append(0, entry(3)).unwrap(), Placed::Appended);
        assert_eq!(table.get("B", 0).unwrap().max_offset(), 1);
    }

    #[test]
    fn watchers_are_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path()).get_or_create("A", 0);
        queue.watch(3);
        queue.watch(63);
        queue.watch(3);
        assert_eq!(queue.take_watchers(), 1 << 3 | 1 << 63);
        assert_eq!(queue.take_watchers(), 0);
    }

    #[test]
    fn one_queue_is_made_however_many_threads_ask_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let table = open(dir.path());
        let slots: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| table.get_or_create("A", 7).slot))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(slots.iter().all(|slot| *slot == slots[0]), "{slots:?}");
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn one_flush_covers_few_changed_queues_and_many() {
        let dir = tempfile::tempdir().unwrap();
        let table = QueueTable::new(dir.path().join("consumequeue"), 2000, MapBudget::new(100));
        for queue_id in [0, 1, 40] {
            for queue_id in 0..=queue_id {
                let queue = table.get_or_create("T", queue_id);
                let entry = ConsumeEntry {
                    physical_offset: queue.log_end(),
                    size: 100,
                    tags_code: 0,
                };
                queue.append(queue.max_offset(), entry).unwrap();
                assert!(queue.is_dirty());
            }
            table.flush().unwrap();
            assert!(table.all().iter().all(|queue| !queue.is_dirty()));
        }
    }
}
