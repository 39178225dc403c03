//! Consumer offsets: what each group has consumed, committed and read by every core without a
//! lock, kept in `consumerOffset.json`; and the delay levels' progress in `delayOffset.json`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::persist::{File, LoadError, Persist, Ticket};
use crate::state_json::{DataVersion, Generation, JsonWriter};

/// Most queues kept for one group and topic: queue ids come from clients.
const QUEUES_MAX: usize = 65_536;
/// Most pending server-side resets.
const RESETS_MAX: usize = 100_000;

/// One group's offsets in one topic.
struct QueueOffsets {
    /// Position in the file.
    rank: u64,
    queues: papaya::HashMap<i32, AtomicI64>,
}

type TopicTable = papaya::HashMap<String, Arc<QueueOffsets>>;

/// The offset table.
pub struct ConsumerOffsets {
    groups: papaya::HashMap<String, Arc<TopicTable>>,
    persist: Arc<Persist>,
    generation: Generation,
    version: Mutex<DataVersion>,
    next_rank: AtomicU64,
    dirty: AtomicBool,
    has_resets: AtomicBool,
    resets: Mutex<HashMap<(String, String, i32), i64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConsumerOffsets {
    /// Loads `consumerOffset.json`.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(persist: Arc<Persist>) -> Result<Self, LoadError> {
        let loaded = persist
            .load(File::ConsumerOffsets, parse)?
            .unwrap_or_default();
        let offsets = Self {
            groups: papaya::HashMap::new(),
            persist,
            generation: loaded.generation,
            version: Mutex::new(loaded.version),
            next_rank: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            has_resets: AtomicBool::new(false),
            resets: Mutex::default(),
        };
        for (topic, group, queues) in loaded.table {
            let table = offsets.topic_entry(&group, &topic);
            for (queue, offset) in queues {
                table.queues.pin().insert(queue, AtomicI64::new(offset));
            }
        }
        Ok(offsets)
    }

    fn topic_entry(&self, group: &str, topic: &str) -> Arc<QueueOffsets> {
        let groups = self.groups.pin();
        let table =
            groups.get_or_insert_with(group.to_string(), || Arc::new(papaya::HashMap::new()));
        let fresh = || {
            let rank = self.next_rank.fetch_add(1, Ordering::Relaxed);
            Arc::new(QueueOffsets {
                rank,
                queues: papaya::HashMap::new(),
            })
        };
        Arc::clone(table.pin().get_or_insert_with(topic.to_string(), fresh))
    }

    fn with<T>(&self, group: &str, topic: &str, f: impl FnOnce(&QueueOffsets) -> T) -> Option<T> {
        let groups = self.groups.pin();
        let topics = groups.get(group)?.pin();
        topics.get(topic).map(|queues| f(queues))
    }

    /// The next offset to consume, if the group ever committed one.
    pub fn query(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.with(group, topic, |table| {
            table
                .queues
                .pin()
                .get(&queue_id)
                .map(|offset| offset.load(Ordering::Acquire))
        })?
    }

    /// Stores the next offset to consume; smaller ones are accepted, as Apache does. Allocates only
    /// for a queue's first commit. `false`: too many queues, nothing stored.
    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        let known = self.with(group, topic, |table| {
            let queues = table.queues.pin();
            queues
                .get(&queue_id)
                .map(|cell| cell.store(offset, Ordering::Release))
                .is_some()
        });
        let stored = known == Some(true) || self.first_commit(group, topic, queue_id, offset);
        if stored && !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
        stored
    }

    fn first_commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        let table = self.topic_entry(group, topic);
        if table.queues.len() >= QUEUES_MAX {
            return false;
        }
        let queues = table.queues.pin();
        let cell = queues.get_or_insert_with(queue_id, || AtomicI64::new(offset));
        cell.store(offset, Ordering::Release);
        true
    }

    /// A group's offsets in a topic, by queue.
    pub fn table(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        self.with(group, topic, snapshot).unwrap_or_default()
    }

    /// The topics in which a group has offsets.
    pub fn topics_of(&self, group: &str) -> BTreeSet<String> {
        let groups = self.groups.pin();
        groups
            .get(group)
            .map(|t| t.pin().keys().cloned().collect())
            .unwrap_or_default()
    }

    /// The groups that have offsets in a topic.
    pub fn groups_of(&self, topic: &str) -> BTreeSet<String> {
        let groups = self.groups.pin();
        let has = groups
            .iter()
            .filter(|(_, topics)| topics.pin().contains_key(topic));
        has.map(|(group, _)| group.clone()).collect()
    }

    /// Copies offsets of one group to another, for one topic.
    pub fn copy_group(&self, from: &str, to: &str, topic: &str) {
        for (queue, offset) in self.table(from, topic) {
            self.commit(to, topic, queue, offset);
        }
    }

    /// Removes everything stored for a topic.
    pub fn remove_topic(&self, topic: &str) -> Ticket {
        for topics in self.groups.pin().values() {
            topics.pin().remove(topic);
        }
        lock(&self.resets).retain(|(_, t, _), _| t != topic);
        self.persist.changed(File::ConsumerOffsets)
    }

    /// Removes everything stored for a group.
    pub fn remove_group(&self, group: &str) -> Ticket {
        self.groups.pin().remove(group);
        lock(&self.resets).retain(|(g, _, _), _| g != group);
        self.persist.changed(File::ConsumerOffsets)
    }

    /// Removes what a group has stored for one topic.
    pub fn remove(&self, group: &str, topic: &str) -> Ticket {
        if let Some(topics) = self.groups.pin().get(group) {
            topics.pin().remove(topic);
        }
        self.persist.changed(File::ConsumerOffsets)
    }

    /// Server-side reset: the next pull of this queue starts at `offset`, and commits are ignored
    /// until then. `false`: too many are pending.
    pub fn assign_reset(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        let mut resets = lock(&self.resets);
        if resets.len() >= RESETS_MAX {
            return false;
        }
        resets.insert((group.to_string(), topic.to_string(), queue_id), offset);
        self.has_resets.store(true, Ordering::Release);
        drop(resets);
        self.commit(group, topic, queue_id, offset)
    }

    /// Whether a reset of this queue waits for the next pull.
    pub fn has_reset(&self, group: &str, topic: &str, queue_id: i32) -> bool {
        self.has_resets.load(Ordering::Acquire)
            && lock(&self.resets).contains_key(&(group.to_string(), topic.to_string(), queue_id))
    }

    /// Takes the pending reset of this queue.
    pub fn take_reset(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        if !self.has_resets.load(Ordering::Acquire) {
            return None;
        }
        let mut resets = lock(&self.resets);
        let taken = resets.remove(&(group.to_string(), topic.to_string(), queue_id));
        self.has_resets.store(!resets.is_empty(), Ordering::Release);
        taken
    }

    /// Asks for a write if anything was committed since the last call; on a schedule and at stop.
    pub fn save_if_changed(&self) -> Option<Ticket> {
        self.dirty
            .swap(false, Ordering::AcqRel)
            .then(|| self.persist.changed(File::ConsumerOffsets))
    }

    /// The version that answers carry.
    pub fn data_version(&self) -> DataVersion {
        *lock(&self.version)
    }

    /// Every entry in file order: topic, group, offset by queue.
    pub fn snapshot(&self) -> Vec<(String, String, BTreeMap<i32, i64>)> {
        let mut all = Vec::new();
        for (group, topics) in &self.groups.pin() {
            for (topic, table) in &topics.pin() {
                all.push((table.rank, topic.clone(), group.clone(), snapshot(table)));
            }
        }
        all.sort_by_key(|entry| entry.0);
        all.into_iter()
            .map(|(_, topic, group, queues)| (topic, group, queues))
            .collect()
    }

    /// The text of `consumerOffset.json`.
    pub fn text(&self) -> String {
        let entries = self.snapshot();
        let mut out = JsonWriter::new();
        if self.generation == Generation::V5 {
            self.data_version().write(&mut out, Generation::V5);
            out.object("groupTopicMap");
            let mut topics: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (topic, group, _) in &entries {
                topics.entry(group).or_default().push(topic);
            }
            for (group, topics) in topics {
                out.strings(group, topics);
            }
            out.end();
        }
        out.object("offsetTable");
        for (topic, group, queues) in &entries {
            out.numbers(
                &format!("{topic}@{group}"),
                queues.iter().map(|(q, o)| (*q, *o)),
            );
        }
        out.finish()
    }
}

fn snapshot(table: &QueueOffsets) -> BTreeMap<i32, i64> {
    let queues = table.queues.pin();
    queues
        .iter()
        .map(|(queue, offset)| (*queue, offset.load(Ordering::Acquire)))
        .collect()
}

/// Topic, group, offset by queue.
type LoadedQueues = (String, String, Vec<(i32, i64)>);

#[derive(Default)]
struct Loaded {
    version: DataVersion,
    generation: Generation,
    table: Vec<LoadedQueues>,
}

fn parse(bytes: &[u8]) -> Result<Loaded, String> {
    let root: Value = saturnmq_net::fastjson::from_file(bytes).map_err(|e| e.to_string())?;
    let table = root
        .get("offsetTable")
        .and_then(Value::as_object)
        .ok_or("it has no offsetTable")?;
    let mut loaded = Loaded {
        version: DataVersion::read(root.get("dataVersion")),
        generation: Generation::of(root.get("dataVersion")),
        table: Vec::new(),
    };
    for (key, queues) in table {
        let Some((topic, group)) = key.split_once('@') else {
            tracing::warn!("consumerOffset.json: the key {key:?} is no topic@group, left out");
            continue;
        };
        loaded
            .table
            .push((topic.to_string(), group.to_string(), numbers(queues)));
    }
    Ok(loaded)
}

fn numbers(value: &Value) -> Vec<(i32, i64)> {
    let entry = |(key, value): (&String, &Value)| Some((key.parse().ok()?, value.as_i64()?));
    value
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(entry)
        .collect()
}

/// Next offset per delay level, kept in `delayOffset.json`.
pub struct DelayOffsets {
    levels: papaya::HashMap<i32, AtomicI64>,
    persist: Arc<Persist>,
    generation: Generation,
    version: DataVersion,
    dirty: AtomicBool,
}

impl DelayOffsets {
    /// Loads `delayOffset.json`.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(persist: Arc<Persist>) -> Result<Self, LoadError> {
        let (generation, version, table) = persist
            .load(File::DelayOffsets, parse_delay)?
            .unwrap_or_default();
        let levels = papaya::HashMap::new();
        for (level, offset) in table {
            levels.pin().insert(level, AtomicI64::new(offset));
        }
        Ok(Self {
            levels,
            persist,
            generation,
            version,
            dirty: AtomicBool::new(false),
        })
    }

    /// The next offset of a level's queue, if it ever delivered.
    pub fn get(&self, level: i32) -> Option<i64> {
        self.levels
            .pin()
            .get(&level)
            .map(|offset| offset.load(Ordering::Acquire))
    }

    /// Stores the next offset of a level's queue.
    pub fn set(&self, level: i32, offset: i64) {
        let levels = self.levels.pin();
        let cell = levels.get_or_insert_with(level, || AtomicI64::new(offset));
        cell.store(offset, Ordering::Release);
        self.dirty.store(true, Ordering::Release);
    }

    /// Asks for a write if anything changed since the last call; on a schedule and at stop.
    pub fn save_if_changed(&self) -> Option<Ticket> {
        self.dirty
            .swap(false, Ordering::AcqRel)
            .then(|| self.persist.changed(File::DelayOffsets))
    }

    /// The text of `delayOffset.json`.
    pub fn text(&self) -> String {
        let levels: BTreeMap<i32, i64> = {
            let levels = self.levels.pin();
            levels
                .iter()
                .map(|(level, o)| (*level, o.load(Ordering::Acquire)))
                .collect()
        };
        let mut out = JsonWriter::new();
        if self.generation == Generation::V5 {
            self.version.write(&mut out, Generation::V5);
        }
        out.numbers("offsetTable", levels);
        out.finish()
    }
}

type DelayFile = (Generation, DataVersion, Vec<(i32, i64)>);

fn parse_delay(bytes: &[u8]) -> Result<DelayFile, String> {
    let root: Value = saturnmq_net::fastjson::from_file(bytes).map_err(|e| e.to_string())?;
    let table = root.get("offsetTable").ok_or("it has no offsetTable")?;
    let version = root.get("dataVersion");
    Ok((
        Generation::of(version),
        DataVersion::read(version),
        numbers(table),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &tempfile::TempDir, file: File, text: &[u8]) -> Arc<Persist> {
        let persist = Arc::new(Persist::new(dir.path()));
        crate::persist::replace_file(&persist.path(file), text).expect("state file");
        persist
    }

    fn empty(dir: &tempfile::TempDir) -> ConsumerOffsets {
        ConsumerOffsets::load(Arc::new(Persist::new(dir.path()))).expect("load")
    }

    #[test]
    fn apaches_offset_files_are_written_back_byte_for_byte() {
        let files: [&[u8]; 3] = [
            include_bytes!("../tests/golden/state/4.9.7/consumerOffset.json"),
            include_bytes!("../tests/golden/state/4.9.7/consumerOffset-retry.json"),
            include_bytes!("../tests/golden/state/5.3.3/consumerOffset.json"),
        ];
        for text in files {
            let dir = tempfile::tempdir().expect("temporary directory");
            let persist = write(&dir, File::ConsumerOffsets, text);
            let offsets = ConsumerOffsets::load(persist).expect("load");
            assert_eq!(offsets.text(), String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn apaches_delay_files_are_written_back_byte_for_byte() {
        let files: [&[u8]; 3] = [
            include_bytes!("../tests/golden/state/4.9.7/delayOffset.json"),
            include_bytes!("../tests/golden/state/5.3.3/delayOffset.json"),
            include_bytes!("../tests/golden/state/5.3.3/delayOffset-delay.json"),
        ];
        for text in files {
            let dir = tempfile::tempdir().expect("temporary directory");
            let offsets = DelayOffsets::load(write(&dir, File::DelayOffsets, text)).expect("load");
            assert_eq!(offsets.text(), String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_commit_is_read_back_and_asks_for_one_write() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        assert_eq!(offsets.query("g", "T", 0), None);
        assert!(offsets.save_if_changed().is_none());
        assert!(offsets.commit("g", "T", 0, 7) && offsets.commit("g", "T", 0, 5));
        assert_eq!(offsets.query("g", "T", 0), Some(5));
        assert!(offsets.save_if_changed().is_some());
        assert!(offsets.save_if_changed().is_none());
        assert_eq!(
            offsets.topics_of("g").into_iter().collect::<Vec<_>>(),
            ["T"]
        );
        assert_eq!(
            offsets.groups_of("T").into_iter().collect::<Vec<_>>(),
            ["g"]
        );
        offsets.remove_topic("T");
        assert_eq!(offsets.query("g", "T", 0), None);
    }

    #[test]
    fn queue_ids_of_clients_cannot_fill_the_memory() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        let stored = (0..70_000)
            .filter(|queue| offsets.commit("g", "T", *queue, 1))
            .count();
        assert_eq!(stored, QUEUES_MAX);
        assert!(offsets.commit("g", "T", 0, 2), "known queues go on");
    }

    #[test]
    fn a_reset_is_taken_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        assert!(offsets.assign_reset("g", "T", 1, 42));
        assert!(offsets.has_reset("g", "T", 1) && !offsets.has_reset("g", "T", 0));
        assert_eq!(offsets.take_reset("g", "T", 1), Some(42));
        assert_eq!(offsets.take_reset("g", "T", 1), None);
        assert_eq!(offsets.query("g", "T", 1), Some(42));
    }

    #[test]
    fn commits_from_many_threads_are_all_kept() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let offsets = &offsets;
                scope.spawn(move || {
                    for queue in 0..500 {
                        offsets.commit("g", "T", thread * 500 + queue, i64::from(queue));
                    }
                });
            }
        });
        assert_eq!(offsets.table("g", "T").len(), 2000);
    }
}
