//! Consumer offsets: what each group has consumed, committed and read by every core without a
//! lock, kept in `consumerOffset.json`, or with light queues in `lmqConsumerOffset.json`; and the
//! delay levels' progress in `delayOffset.json`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use papaya::Equivalent;
use serde_json::Value;

use crate::core::off_the_cores;
use crate::light;
use crate::persist::{File, LoadError, Persist, Ticket};
use crate::state_json::{DataVersion, Generation, JsonWriter};

use index::{Index, Part, Walk};

mod index;

/// Most queues kept for one group and topic: queue ids come from clients.
const QUEUES_MAX: usize = 65_536;
/// Most offsets that clients may add up to: groups, topics and queue ids are what they say.
const OFFSETS_MAX: usize = 2_000_000;
/// Most pending server-side resets.
const RESETS_MAX: usize = 100_000;

/// Server-side resets that no pull has taken yet: by group, topic and queue, the offset and the
/// reset's number.
#[derive(Default)]
struct Resets {
    pending: HashMap<(String, String, i32), (i64, u64)>,
    next: u64,
}

impl Resets {
    /// Groups that are gone never take theirs: with too many the older half is forgotten, whose
    /// offsets are committed all the same.
    fn insert(&mut self, queue: (String, String, i32), offset: i64) {
        if self.pending.len() >= RESETS_MAX {
            let kept_from = self.next - RESETS_MAX as u64 / 2;
            self.pending.retain(|_, (_, number)| *number >= kept_from);
        }
        self.pending.insert(queue, (offset, self.next));
        self.next += 1;
    }
}

/// Names one offset. Both forms hash alike: the fields have the same order and content.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    group: Arc<str>,
    topic: Arc<str>,
    queue: i32,
}

#[derive(Hash)]
struct Wanted<'a> {
    group: &'a str,
    topic: &'a str,
    queue: i32,
}

impl Equivalent<Place> for Wanted<'_> {
    fn equivalent(&self, place: &Place) -> bool {
        self.queue == place.queue && *self.topic == *place.topic && *self.group == *place.group
    }
}

/// The offset table.
///
/// All offsets stand in one lock-free map: each such map costs some 18 KiB, too much for one per
/// group and topic.
pub struct ConsumerOffsets {
    cells: papaya::HashMap<Place, AtomicI64>,
    index: Mutex<Index>,
    /// With so many offsets none is added; a file that has more is kept.
    limit: usize,
    persist: Arc<Persist>,
    /// Whether light queues are enabled: groups named as they are have one offset in a topic,
    /// whatever the queue (docs/format.md, State files).
    light: bool,
    generation: Generation,
    version: Mutex<DataVersion>,
    dirty: AtomicBool,
    has_resets: AtomicBool,
    resets: Mutex<Resets>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConsumerOffsets {
    /// Loads `consumerOffset.json`, or with light queues `lmqConsumerOffset.json`; where it is
    /// missing the other one, so that no group begins anew when light queues are enabled.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(persist: Arc<Persist>) -> Result<Self, LoadError> {
        let own = persist.load(File::ConsumerOffsets, parse)?;
        let from_other = own.is_none();
        let loaded = match own {
            Some(loaded) => loaded,
            None => persist
                .load_other(File::ConsumerOffsets, parse)?
                .unwrap_or_default(),
        };
        let from_other = from_other && !loaded.table.is_empty();
        let offsets = Self {
            cells: papaya::HashMap::new(),
            index: Mutex::default(),
            limit: OFFSETS_MAX,
            light: persist.is_light(),
            persist,
            generation: loaded.generation,
            version: Mutex::new(loaded.version),
            dirty: AtomicBool::new(from_other),
            has_resets: AtomicBool::new(false),
            resets: Mutex::default(),
        };
        for (topic, group, queues) in loaded.table {
            lock(&offsets.index).entry(&group, &topic);
            for (queue, offset) in queues {
                let queue = offsets.queue_of(&group, queue);
                offsets.first_commit(&group, &topic, queue, offset);
            }
        }
        Ok(offsets)
    }

    /// The queue whose offset a group's offset of a queue is.
    fn queue_of(&self, group: &str, queue_id: i32) -> i32 {
        match self.light && light::is_light(group) {
            true => 0,
            false => queue_id,
        }
    }

    /// The next offset to consume, if the group ever committed one.
    pub fn query(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        let wanted = Wanted {
            group,
            topic,
            queue: self.queue_of(group, queue_id),
        };
        let cells = self.cells.pin();
        cells
            .get(&wanted)
            .map(|offset| offset.load(Ordering::Acquire))
    }

    /// Stores the next offset to consume; smaller ones are accepted, as Apache does. Allocates only
    /// for a queue's first commit. `false`: too many queues or offsets, nothing stored.
    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        let queue_id = self.queue_of(group, queue_id);
        let wanted = Wanted {
            group,
            topic,
            queue: queue_id,
        };
        let known = self
            .cells
            .pin()
            .get(&wanted)
            .map(|cell| cell.store(offset, Ordering::Release))
            .is_some();
        let stored = known
            || self.cells.len() < self.limit && self.first_commit(group, topic, queue_id, offset);
        if stored {
            mark(&self.dirty);
        }
        stored
    }

    /// Takes offsets that lie behind the end of their queue back to it; returns how many. `end` is
    /// the next offset of a queue, `None` where nobody knows one. For the start after a crash: the
    /// messages that were consumed are gone, and those that get their offsets must be consumed.
    pub fn hold_within(&self, end: impl Fn(&str, i32) -> Option<i64>) -> usize {
        let mut held = 0;
        for (topic, group, queues) in self.snapshot() {
            for (queue, offset) in queues {
                if let Some(end) = end(&topic, queue).filter(|end| *end < offset) {
                    self.commit(&group, &topic, queue, end);
                    held += 1;
                }
            }
        }
        held
    }

    fn first_commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        let mut index = lock(&self.index);
        let (group, topic, entry) = index.entry(group, topic);
        if entry.queues.len() >= QUEUES_MAX && !entry.queues.contains(&queue_id) {
            return false;
        }
        entry.queues.insert(queue_id);
        let place = Place {
            group,
            topic,
            queue: queue_id,
        };
        let cells = self.cells.pin();
        let cell = cells.get_or_insert_with(place, || AtomicI64::new(offset));
        cell.store(offset, Ordering::Release);
        true
    }

    /// The next slice of a walk; `None` when it is over.
    fn slice(&self, walk: &mut Walk<'_>) -> Option<Vec<Part>> {
        (!walk.over).then(|| lock(&self.index).slice(walk))
    }

    /// The offsets of a part, read while nothing is locked.
    fn offsets_of(&self, part: &Part) -> impl Iterator<Item = (i32, i64)> {
        let cells = self.cells.pin();
        let offset = move |queue: &i32| {
            let wanted = Wanted {
                group: &part.group,
                topic: &part.topic,
                queue: *queue,
            };
            Some((*queue, cells.get(&wanted)?.load(Ordering::Acquire)))
        };
        part.queues.iter().filter_map(offset)
    }

    /// A group's offsets in a topic, by queue.
    pub fn table(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        let mut walk = Walk {
            group: Some(group),
            topic: Some(topic),
            ..Walk::default()
        };
        let mut table = BTreeMap::new();
        while let Some(parts) = self.slice(&mut walk) {
            for part in &parts {
                table.extend(self.offsets_of(part));
            }
        }
        table
    }

    /// The topics in which a group has offsets.
    pub fn topics_of(&self, group: &str) -> BTreeSet<String> {
        off_the_cores();
        let mut walk = Walk {
            group: Some(group),
            ..Walk::default()
        };
        let mut topics = BTreeSet::new();
        while let Some(parts) = self.slice(&mut walk) {
            topics.extend(parts.iter().map(|part| part.topic.to_string()));
        }
        topics
    }

    /// The groups that have offsets in a topic.
    pub fn groups_of(&self, topic: &str) -> BTreeSet<String> {
        off_the_cores();
        let mut walk = Walk {
            topic: Some(topic),
            ..Walk::default()
        };
        let mut groups = BTreeSet::new();
        while let Some(parts) = self.slice(&mut walk) {
            groups.extend(parts.iter().map(|part| part.group.to_string()));
        }
        groups
    }

    /// Copies offsets of one group to another, for one topic. `false`: there is no room for all.
    pub fn copy_group(&self, from: &str, to: &str, topic: &str) -> bool {
        let table = self.table(from, topic);
        let mut copied = table.into_iter();
        copied.all(|(queue, offset)| self.commit(to, topic, queue, offset))
    }

    /// Removes everything stored for a topic.
    pub fn remove_topic(&self, topic: &str) -> Ticket {
        self.remove_all(Walk {
            topic: Some(topic),
            ..Walk::default()
        });
        lock(&self.resets).pending.retain(|(_, t, _), _| t != topic);
        self.persist.changed(File::ConsumerOffsets)
    }

    /// Removes everything stored for a group.
    pub fn remove_group(&self, group: &str) -> Ticket {
        self.remove_all(Walk {
            group: Some(group),
            ..Walk::default()
        });
        lock(&self.resets).pending.retain(|(g, _, _), _| g != group);
        self.persist.changed(File::ConsumerOffsets)
    }

    /// Removes what a group has stored for one topic.
    pub fn remove(&self, group: &str, topic: &str) -> Ticket {
        self.remove_all(Walk {
            group: Some(group),
            topic: Some(topic),
            ..Walk::default()
        });
        self.persist.changed(File::ConsumerOffsets)
    }

    /// Removes what a walk comes by. What is committed meanwhile may stay.
    fn remove_all(&self, mut walk: Walk<'_>) {
        while !walk.over {
            let mut index = lock(&self.index);
            let parts = index.slice(&mut walk);
            let cells = self.cells.pin();
            for part in &parts {
                for queue in &part.queues {
                    cells.remove(&Wanted {
                        group: &part.group,
                        topic: &part.topic,
                        queue: *queue,
                    });
                }
                index.remove(part);
            }
        }
    }

    /// Server-side reset: the next pull of this queue starts at `offset`, and commits are ignored
    /// until then. `false`: the offset table is full, and nothing is reset.
    pub fn assign_reset(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        // First: a commit of a member that comes in between is ignored.
        lock(&self.resets).insert((group.to_string(), topic.to_string(), queue_id), offset);
        self.has_resets.store(true, Ordering::Release);
        let committed = self.commit(group, topic, queue_id, offset);
        if !committed {
            self.take_reset(group, topic, queue_id);
        }
        committed
    }

    /// Whether a reset of this queue waits for the next pull.
    pub fn has_reset(&self, group: &str, topic: &str, queue_id: i32) -> bool {
        self.has_resets.load(Ordering::Acquire)
            && lock(&self.resets).pending.contains_key(&(
                group.to_string(),
                topic.to_string(),
                queue_id,
            ))
    }

    /// Takes the pending reset of this queue.
    pub fn take_reset(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        if !self.has_resets.load(Ordering::Acquire) {
            return None;
        }
        let pending = &mut lock(&self.resets).pending;
        let taken = pending.remove(&(group.to_string(), topic.to_string(), queue_id));
        self.has_resets
            .store(!pending.is_empty(), Ordering::Release);
        taken.map(|(offset, _)| offset)
    }

    /// Asks for a write if anything was committed since the last call; on a schedule and at stop.
    pub fn save_if_changed(&self) -> Option<Ticket> {
        take(&self.dirty).then(|| self.persist.changed(File::ConsumerOffsets))
    }

    /// Asks for a write of everything committed before, also of what a write on its way covers: for
    /// who answers once it is durable.
    pub fn save(&self) -> Ticket {
        take(&self.dirty);
        self.persist.changed(File::ConsumerOffsets)
    }

    /// The version that answers carry.
    pub fn data_version(&self) -> DataVersion {
        *lock(&self.version)
    }

    /// Every entry in file order: topic, group, offset by queue.
    pub fn snapshot(&self) -> Vec<(String, String, BTreeMap<i32, i64>)> {
        off_the_cores();
        let mut all: Vec<(Part, BTreeMap<i32, i64>)> = Vec::new();
        let mut walk = Walk::default();
        while let Some(parts) = self.slice(&mut walk) {
            for part in parts {
                match all.last_mut() {
                    Some((last, queues))
                        if last.group == part.group && last.topic == part.topic =>
                    {
                        queues.extend(self.offsets_of(&part));
                    }
                    _ => {
                        let queues = self.offsets_of(&part).collect();
                        all.push((part, queues));
                    }
                }
            }
        }
        all.sort_by_key(|(part, _)| part.rank);
        all.into_iter()
            .map(|(part, queues)| (part.topic.to_string(), part.group.to_string(), queues))
            .collect()
    }

    /// The text of `consumerOffset.json`, or `lmqConsumerOffset.json`.
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
        let is_light = |group: &str| self.light && light::is_light(group);
        if self.light {
            out.object("lmqOffsetTable");
            for (topic, group, queues) in &entries {
                if let Some(offset) = queues.get(&0).filter(|_| is_light(group)) {
                    out.number(&format!("{topic}@{group}"), *offset);
                }
            }
            out.end();
        }
        out.object("offsetTable");
        for (topic, group, queues) in entries.iter().filter(|entry| !is_light(&entry.1)) {
            out.numbers(
                &format!("{topic}@{group}"),
                queues.iter().map(|(q, o)| (*q, *o)),
            );
        }
        out.finish()
    }
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
        add(&mut loaded, key, key.split_once('@'), numbers(queues));
    }
    let light = root.get("lmqOffsetTable").and_then(Value::as_object);
    for (key, offset) in light.into_iter().flatten() {
        // Names of light queues may have an @, those of groups begin as they do.
        let group = key.rfind("@%LMQ%");
        let names = group.map(|at| (&key[..at], &key[at + 1..]));
        let offset = offset.as_i64().map(|offset| (0, offset));
        add(&mut loaded, key, names, offset.into_iter().collect());
    }
    Ok(loaded)
}

fn add(loaded: &mut Loaded, key: &str, names: Option<(&str, &str)>, queues: Vec<(i32, i64)>) {
    match names {
        Some((topic, group)) => {
            let entry = (topic.to_string(), group.to_string(), queues);
            loaded.table.push(entry);
        }
        None => tracing::warn!("consumer offsets: the key {key:?} is no topic@group, left out"),
    }
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

/// Marks what was stored before as not written yet; one load while it is marked already.
fn mark(dirty: &AtomicBool) {
    // Without the fence the load may come before the offset's store is seen: a snapshot between
    // the two lacks the offset, and nothing asks for another.
    fence(Ordering::SeqCst);
    if !dirty.load(Ordering::Relaxed) {
        dirty.store(true, Ordering::Release);
    }
}

/// Whether anything was marked; what is marked until now is in a snapshot taken afterwards.
fn take(dirty: &AtomicBool) -> bool {
    let marked = dirty.swap(false, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    marked
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
        mark(&self.dirty);
    }

    /// Asks for a write if anything changed since the last call; on a schedule and at stop.
    pub fn save_if_changed(&self) -> Option<Ticket> {
        take(&self.dirty).then(|| self.persist.changed(File::DelayOffsets))
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
    use super::index::SLICE;
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
    fn a_table_larger_than_a_frame_is_read_back() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut text = String::from("{\"offsetTable\":{");
        let padding = "p".repeat(100);
        for group in 0..80_000 {
            text += &format!("\"T@{padding}{padding}{group}\":{{0:{group}}},");
        }
        text += "}}";
        assert!(text.len() > saturnmq_net::frame::MAX_FRAME);
        let persist = write(&dir, File::ConsumerOffsets, text.as_bytes());
        let offsets = ConsumerOffsets::load(persist).expect("load");
        let last = format!("{padding}{padding}79999");
        assert_eq!(offsets.query(&last, "T", 0), Some(79_999));
        assert!(offsets.text().len() > saturnmq_net::frame::MAX_FRAME);
    }

    #[test]
    fn who_commits_first_waits_for_a_slice_of_the_index_and_not_for_a_group() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        let all = [
            ("g", "T", 3000),
            ("g", "U", 1),
            ("h", "T", 1024),
            ("i", "U", 5),
        ];
        let commit = || {
            for (group, topic, queues) in all {
                for queue in 0..queues {
                    assert!(offsets.commit(group, topic, queue, i64::from(queue) + 7));
                }
            }
        };
        commit();
        for number in 0..5000 {
            assert!(offsets.commit(&format!("many{number:04}"), "V", 0, 1));
        }
        let (mut walk, mut slices) = (Walk::default(), 0);
        while let Some(parts) = offsets.slice(&mut walk) {
            slices += 1;
            assert!(parts.len() <= SLICE, "{} entries", parts.len());
            let queues: usize = parts.iter().map(|part| part.queues.len()).sum();
            assert!(queues <= SLICE, "{queues} queues");
        }
        assert!(slices > 9, "{slices}");
        let seen: Vec<_> = offsets.snapshot().into_iter().take(all.len()).collect();
        for ((group, topic, queues), entry) in all.iter().zip(&seen) {
            let expected: BTreeMap<i32, i64> =
                (0..*queues).map(|q| (q, i64::from(q) + 7)).collect();
            assert_eq!((&entry.0[..], &entry.1[..]), (*topic, *group));
            assert_eq!(entry.2, expected);
            assert_eq!(offsets.table(group, topic), expected);
        }
        assert_eq!(offsets.snapshot().len(), 5000 + all.len());
        assert_eq!(offsets.groups_of("V").len(), 5000);
        offsets.remove_topic("T");
        assert_eq!(offsets.groups_of("U").len(), 2);
        assert_eq!(offsets.snapshot().len(), 5002);
        offsets.remove_topic("V");
        offsets.remove_group("g");
        let left = |offsets: &ConsumerOffsets| (offsets.cells.len(), offsets.snapshot().len());
        assert_eq!(left(&offsets), (5, 1));
        commit();
        assert_eq!(offsets.snapshot().len(), 4);
    }

    #[test]
    fn what_is_removed_is_neither_found_nor_listed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        let fill = || {
            for (group, topic) in [("g", "T"), ("g", "U"), ("h", "T")] {
                assert!(offsets.commit(group, topic, 0, 1) && offsets.commit(group, topic, 3, 2));
            }
        };
        let left = || {
            let all = offsets.snapshot().into_iter();
            all.map(|(topic, group, queues)| {
                assert!(
                    queues
                        .iter()
                        .all(|(q, o)| offsets.query(&group, &topic, *q) == Some(*o))
                );
                format!("{topic}@{group}")
            })
            .collect::<Vec<_>>()
        };
        fill();
        offsets.remove("g", "T");
        assert_eq!(left(), ["U@g", "T@h"]);
        assert_eq!(offsets.query("g", "T", 3), None);
        fill();
        offsets.remove_group("g");
        assert_eq!(left(), ["T@h"]);
        assert_eq!(offsets.query("g", "U", 0), None);
        fill();
        offsets.remove_topic("T");
        assert_eq!(left(), ["U@g"]);
        assert_eq!(offsets.query("h", "T", 0), None);
    }

    #[test]
    fn groups_of_clients_cannot_fill_the_memory() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut offsets = empty(&dir);
        offsets.limit = 2;
        assert!(offsets.commit("g", "T", 0, 1) && offsets.commit("g", "Removed", 0, 1));
        assert!(!offsets.commit("h", "T", 0, 1) && !offsets.commit("g", "U", 0, 1));
        assert!(offsets.topics_of("h").is_empty(), "nothing is kept of it");
        assert!(offsets.commit("g", "T", 0, 2), "known queues go on");
        offsets.remove_topic("Removed");
        assert!(offsets.commit("h", "T", 0, 1), "there is room again");
        offsets.remove_group("h");
        assert!(offsets.commit("i", "T", 0, 1), "there is room again");
    }

    #[test]
    fn names_of_groups_without_offsets_are_not_kept() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let offsets = empty(&dir);
        for number in 0..100 {
            let group = format!("g{number}");
            assert!(offsets.commit(&group, "T", 0, 1));
            offsets.remove(&group, "T");
        }
        assert!(lock(&offsets.index).groups.is_empty());
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
    fn a_reset_that_is_refused_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut offsets = empty(&dir);
        offsets.limit = 0;
        assert!(!offsets.assign_reset("g", "T", 1, 42));
        assert!(!offsets.has_reset("g", "T", 1), "commits would be ignored");
    }

    #[test]
    fn resets_of_groups_that_are_gone_keep_nobody_from_resetting() {
        let mut resets = Resets::default();
        let queue = |number: usize| ("gone".to_owned(), "T".to_owned(), number as i32);
        for number in 0..2 * RESETS_MAX {
            resets.insert(queue(number), number as i64);
            assert!(resets.pending.len() <= RESETS_MAX);
        }
        let last = 2 * RESETS_MAX - 1;
        let (offset, _) = resets.pending[&queue(last)];
        assert_eq!(offset, last as i64);
        assert!(!resets.pending.contains_key(&queue(0)));
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
