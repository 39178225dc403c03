//! Topics: name to configuration, read by every core without a lock, kept in `topics.json`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use saturnmq_storage::queue_table::Queue;
use serde_json::Value;

use crate::core::off_the_cores;
use crate::light::{LightConfig, is_light};
use crate::names;
use crate::persist::{File, LoadError, Persist, Ticket};
use crate::state_json::{DataVersion, Generation, JsonWriter};
use crate::traffic::Traffic;

pub mod known;
mod light;
mod loading;
mod pending;
mod presence;
mod room;
mod system;
mod text;

pub use system::SystemTopics;

use light::LightTopics;
use loading::parse;
use pending::Pending;
pub use room::{MOST_QUEUES, TopicsFull};
use text::Kept;

/// Bit of a topic's system flags: consumers in unit mode subscribe to it.
pub const UNIT_SUBSCRIPTION: i32 = 1 << 1;
/// Permission bit: readable.
pub const PERM_READ: i32 = 4;
/// Permission bit: writable.
pub const PERM_WRITE: i32 = 2;
/// Permission bit: a template for automatic creation.
pub const PERM_INHERIT: i32 = 1;

/// Queues of a topic that are reached without a look-up; more than that go through the store's
/// table, so that a huge queue count costs no memory.
const CACHED_QUEUES: i32 = 4096;

/// With so many topics none is made automatically any more: their names come from clients.
const AUTOMATIC_MAX: usize = 100_000;
/// How a topic's messages are tagged; kept, without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopicFilterType {
    /// One tag.
    #[default]
    SingleTag,
    /// Several tags.
    MultiTag,
}

impl TopicFilterType {
    /// Apache's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleTag => "SINGLE_TAG",
            Self::MultiTag => "MULTI_TAG",
        }
    }

    /// Reads Apache's name; anything else is a single tag, as Apache's reader has it.
    pub fn parse(text: &str) -> Self {
        if text == "MULTI_TAG" {
            Self::MultiTag
        } else {
            Self::SingleTag
        }
    }
}

/// What is configured for a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    /// Name.
    pub name: String,
    /// Queues that consumers see.
    pub read_queues: i32,
    /// Queues that producers see.
    pub write_queues: i32,
    /// Bits of [`PERM_READ`], [`PERM_WRITE`], [`PERM_INHERIT`].
    pub perm: i32,
    /// Kind of tags.
    pub filter_type: TopicFilterType,
    /// Bit 0 unit, bit 1 unit subscription.
    pub sys_flag: i32,
    /// Global order wanted.
    pub order: bool,
    /// 5.x attributes, such as `message.type`.
    pub attributes: BTreeMap<String, String>,
}

impl TopicConfig {
    /// A topic with `queues` read and write queues, otherwise Apache's defaults.
    pub fn new(name: impl Into<String>, queues: i32, perm: i32) -> Self {
        Self {
            name: name.into(),
            read_queues: queues,
            write_queues: queues,
            perm,
            filter_type: TopicFilterType::SingleTag,
            sys_flag: 0,
            order: false,
            attributes: BTreeMap::new(),
        }
    }

    /// Whether an entry of its queues stands for a whole batch, as 5.x brokers write them for
    /// `queue.type=BatchCQ`. This broker does not, and 5.x does not open a store in which such a
    /// topic has other queues.
    pub fn has_batch_queues(&self) -> bool {
        let kind = self.attributes.get("queue.type");
        kind.is_some_and(|kind| kind == "BatchCQ")
    }

    /// What counts of its queues; none above what administrators may ask for can be reached.
    fn queues(&self) -> usize {
        let queues = self.read_queues.max(self.write_queues);
        usize::try_from(queues).map_or(0, |queues| queues.min(MOST_QUEUES))
    }

    fn read(name: &str, value: &Value) -> Self {
        let number = |key: &str, default: i32| {
            value
                .get(key)
                .and_then(Value::as_i64)
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or(default)
        };
        let attributes = value.get("attributes").and_then(Value::as_object);
        Self {
            name: name.to_string(),
            read_queues: number("readQueueNums", 16),
            write_queues: number("writeQueueNums", 16),
            perm: number("perm", PERM_READ | PERM_WRITE),
            filter_type: TopicFilterType::parse(
                value
                    .get("topicFilterType")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            ),
            sys_flag: number("topicSysFlag", 0),
            order: value.get("order").and_then(Value::as_bool).unwrap_or(false),
            attributes: attributes
                .into_iter()
                .flatten()
                .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_string())))
                .collect(),
        }
    }

    fn write(&self, out: &mut JsonWriter, generation: Generation) {
        out.object(&self.name);
        if generation == Generation::V5 || !self.attributes.is_empty() {
            out.object("attributes");
            for (key, value) in &self.attributes {
                out.string(key, value);
            }
            out.end();
        }
        out.boolean("order", self.order);
        out.number("perm", self.perm.into());
        out.number("readQueueNums", self.read_queues.into());
        out.string("topicFilterType", self.filter_type.as_str());
        out.string("topicName", &self.name);
        out.number("topicSysFlag", self.sys_flag.into());
        out.number("writeQueueNums", self.write_queues.into());
        out.end();
    }
}

/// A topic as requests use it. Never changes: an update puts another one in its place.
pub struct Topic {
    /// What is configured.
    pub config: TopicConfig,
    /// What went through; goes on over updates.
    pub traffic: Arc<Traffic>,
    queues: Arc<[OnceLock<Arc<Queue>>]>,
    pending: Pending,
    /// Position in the file.
    rank: u64,
    /// It was altered or removed: the table has another one of its name, or none.
    replaced: AtomicBool,
}

impl Topic {
    fn new(config: TopicConfig, rank: u64, made: Option<Ticket>) -> Self {
        let cached = config
            .read_queues
            .max(config.write_queues)
            .clamp(0, CACHED_QUEUES);
        let queues = (0..cached).map(|_| OnceLock::new()).collect();
        Self {
            config,
            traffic: Arc::default(),
            queues,
            pending: Pending::made(made),
            rank,
            replaced: AtomicBool::new(false),
        }
    }

    /// The queue's store object, opened through `open` at its first use.
    pub fn queue(
        &self,
        queue_id: i32,
        open: impl FnOnce(&str, i32) -> Option<Arc<Queue>>,
    ) -> Option<Arc<Queue>> {
        let Some(cell) = usize::try_from(queue_id)
            .ok()
            .and_then(|id| self.queues.get(id))
        else {
            return open(&self.config.name, queue_id);
        };
        match cell.get() {
            Some(queue) if !queue.is_removed() => return Some(Arc::clone(queue)),
            // Kept while the topic was removed and made again at the same time.
            Some(_) => return open(&self.config.name, queue_id),
            None => {}
        }
        let queue = open(&self.config.name, queue_id)?;
        // Another core may have been faster; the store gives both the same queue.
        let _ = cell.set(Arc::clone(&queue));
        Some(queue)
    }

    /// Whether producers may send.
    pub fn is_writable(&self) -> bool {
        self.config.perm & PERM_WRITE != 0
    }

    /// Whether consumers may pull.
    pub fn is_readable(&self) -> bool {
        self.config.perm & PERM_READ != 0
    }
}

/// What an attempt at automatic creation came to.
pub enum AutoCreate {
    /// The topic was there already.
    Existing(Arc<Topic>),
    /// It was made; requests that depend on it wait for the ticket.
    Created(Arc<Topic>, Ticket),
    /// The template is missing or does not allow it.
    Refused(String),
}

/// Told of every topic that is made, altered or removed, in the order of the changes: it is called
/// while the table is locked, and must not change or list topics itself.
pub type TopicListener = Box<dyn Fn(TopicChange<'_>) + Send + Sync>;

/// A change of the topic table.
pub enum TopicChange<'a> {
    /// Made or altered.
    Updated(&'a TopicConfig),
    /// Removed.
    Removed(&'a str),
}

/// The topic table.
pub struct Topics {
    table: papaya::HashMap<String, Arc<Topic>>,
    persist: Arc<Persist>,
    /// Held while the table changes; guards the version of its content.
    version: Mutex<DataVersion>,
    kept: Kept,
    generation: Generation,
    next_rank: AtomicU64,
    /// Queues of all topics together.
    queues: AtomicUsize,
    listener: OnceLock<TopicListener>,
    /// Topics that exist by their names, if they do.
    light: Option<LightTopics>,
}

impl Topics {
    /// Loads `topics.json` and adds the system topics that it lacks.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(persist: Arc<Persist>, system: &SystemTopics) -> Result<Self, LoadError> {
        let loaded = persist.load(File::Topics, parse)?.unwrap_or_default();
        let topics = Self {
            table: papaya::HashMap::new(),
            persist,
            version: Mutex::new(loaded.version),
            kept: Kept::default(),
            generation: loaded.generation,
            next_rank: AtomicU64::new(0),
            queues: AtomicUsize::new(0),
            listener: OnceLock::new(),
            light: None,
        };
        for config in loaded.topics {
            topics.insert(config, None);
        }
        topics.add_system(system);
        Ok(topics)
    }

    /// Light queues are topics, if they are enabled (docs/behaviour.md, Light queues).
    pub fn with_light(mut self, config: LightConfig) -> Self {
        self.light = LightTopics::new(config);
        self
    }

    /// The topics that exist by their names, if this is the name of one.
    fn light(&self, name: &str) -> Option<&LightTopics> {
        self.light.as_ref().filter(|_| is_light(name))
    }

    fn add_system(&self, system: &SystemTopics) {
        let missing: Vec<_> = system
            .configs()
            .into_iter()
            .filter(|c| self.get(&c.name).is_none())
            .collect();
        if missing.is_empty() {
            return;
        }
        let mut version = self.lock();
        version.next();
        for config in missing {
            self.insert(config, None);
        }
        self.persist.changed(File::Topics);
    }

    /// Sets who is told of changes; once, before requests are served.
    pub fn set_listener(&self, listener: TopicListener) {
        let _ = self.listener.set(listener);
    }

    /// Called with the table locked: told later, a removal could overtake the making.
    fn tell(&self, change: TopicChange<'_>) {
        if let Some(listener) = self.listener.get() {
            listener(change);
        }
    }

    fn lock(&self) -> MutexGuard<'_, DataVersion> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A topic by name.
    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        if let Some(light) = self.light(name) {
            return light.get(name);
        }
        self.table.pin().get(name).map(Arc::clone)
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Puts a topic into the table; the caller holds the lock or is the only one.
    fn insert(&self, config: TopicConfig, ticket: Option<Ticket>) -> Arc<Topic> {
        let table = self.table.pin();
        let old = table.get(config.name.as_str());
        let rank = old.map_or_else(
            || self.next_rank.fetch_add(1, Ordering::Relaxed),
            |topic| topic.rank,
        );
        let name = config.name.clone();
        let mut topic = Topic::new(config, rank, ticket);
        if let Some(old) = old {
            let is_durable = |ticket| self.persist.is_durable(ticket);
            topic.pending = old.pending.altered(ticket, &old.config, is_durable);
            topic.traffic = Arc::clone(&old.traffic);
            for (cell, known) in topic.queues.iter().zip(old.queues.iter()) {
                if let Some(queue) = known.get() {
                    let _ = cell.set(Arc::clone(queue));
                }
            }
        }
        let before = old.map_or(0, |old| old.config.queues());
        let topic = Arc::new(topic);
        table.insert(name, Arc::clone(&topic));
        match old {
            Some(old) => {
                old.replaced.store(true, Ordering::Release);
                self.kept.altered();
            }
            None => self.kept.made(&topic),
        }
        self.queues
            .fetch_add(topic.config.queues(), Ordering::Relaxed);
        self.queues.fetch_sub(before, Ordering::Relaxed);
        topic
    }

    /// Makes or alters a topic. `None`: nothing differed and nothing is to be waited for.
    pub fn create_or_update(&self, config: TopicConfig) -> Option<Ticket> {
        // As Apache: they are as they are.
        if self.light(&config.name).is_some() {
            return None;
        }
        let mut version = self.lock();
        if let Some(old) = self.get(&config.name)
            && old.config == config
        {
            // Made by somebody else a moment ago: that change is this one's as well.
            return old.ticket().filter(|t| !self.persist.is_durable(*t));
        }
        version.next();
        let (topic, ticket) = self.publish(config);
        self.tell(TopicChange::Updated(&topic.config));
        Some(ticket)
    }

    /// Makes a topic unless it exists.
    pub fn create_if_absent(&self, config: TopicConfig) -> (Arc<Topic>, Option<Ticket>) {
        let mut version = self.lock();
        if let Some(topic) = self.get(&config.name) {
            return (topic, None);
        }
        version.next();
        let (topic, ticket) = self.publish(config);
        self.tell(TopicChange::Updated(&topic.config));
        (topic, Some(ticket))
    }

    /// Inserts, then asks for the write. The topic carries the ticket, which must exist before the
    /// topic is visible; the write that a ticket asks for takes its text under the same lock.
    fn publish(&self, config: TopicConfig) -> (Arc<Topic>, Ticket) {
        let ticket = self.persist.changed(File::Topics);
        (self.insert(config, Some(ticket)), ticket)
    }

    /// Makes topic `name` from the template topic that a send names
    /// (docs/behaviour.md, Topic auto-creation).
    pub fn auto_create(
        &self,
        name: &str,
        template: &str,
        wanted_queues: i32,
        sys_flag: i32,
        auto_create_enabled: bool,
    ) -> AutoCreate {
        if let Some(topic) = self.get(name) {
            return AutoCreate::Existing(topic);
        }
        let Some(from) = self.get(template) else {
            return AutoCreate::Refused(format!("the template topic {template} does not exist"));
        };
        if self.len() >= AUTOMATIC_MAX {
            return AutoCreate::Refused(format!("there are {AUTOMATIC_MAX} topics already"));
        }
        let closed = template == names::AUTO_CREATE_TOPIC && !auto_create_enabled;
        if closed || from.config.perm & PERM_INHERIT == 0 {
            return AutoCreate::Refused(format!("the template topic {template} may not be copied"));
        }
        let queues = wanted_queues.min(from.config.write_queues).max(0);
        let mut config = TopicConfig::new(name, queues, from.config.perm & !PERM_INHERIT);
        config.filter_type = from.config.filter_type;
        config.sys_flag = sys_flag;
        if let Err(full) = self.check_room(std::slice::from_ref(&config)) {
            return AutoCreate::Refused(full.to_string());
        }
        match self.create_if_absent(config) {
            (topic, Some(ticket)) => AutoCreate::Created(topic, ticket),
            (topic, None) => AutoCreate::Existing(topic),
        }
    }

    /// Removes a topic's configuration; its queues are the caller's business.
    pub fn remove(&self, name: &str) -> Option<(Arc<Topic>, Ticket)> {
        if let Some(light) = self.light(name) {
            light.forget(name);
        }
        let mut version = self.lock();
        let topic = self.table.pin().remove(name).map(Arc::clone)?;
        topic.replaced.store(true, Ordering::Release);
        self.kept.altered();
        self.queues
            .fetch_sub(topic.config.queues(), Ordering::Relaxed);
        version.next();
        let ticket = self.persist.changed(File::Topics);
        self.tell(TopicChange::Removed(name));
        Some((topic, ticket))
    }

    /// Counts a change that is not in the table itself, so that name servers take it as new.
    pub fn touch(&self) -> Ticket {
        self.lock().next();
        self.persist.changed(File::Topics)
    }

    /// Calls `look` with every topic, in no order; with one that stands for all light queues, if
    /// they are enabled.
    pub fn each(&self, mut look: impl FnMut(&Arc<Topic>)) {
        if let Some(light) = &self.light {
            look(&light.all);
        }
        off_the_cores();
        for topic in self.table.pin().values() {
            look(topic);
        }
    }

    /// The version of the table.
    pub fn data_version(&self) -> DataVersion {
        *self.lock()
    }

    /// The table in file order, with the version it belongs to.
    pub fn snapshot(&self) -> (DataVersion, Vec<TopicConfig>) {
        off_the_cores();
        let (version, topics) = {
            let version = self.lock();
            (*version, self.in_file_order())
        };
        let configs = topics.into_iter().map(|t| t.config.clone());
        (version, configs.collect())
    }

    /// The caller holds the lock.
    fn in_file_order(&self) -> Vec<Arc<Topic>> {
        let mut topics: Vec<_> = self.table.pin().values().map(Arc::clone).collect();
        topics.sort_by_key(|t| t.rank);
        topics
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const V4: &[u8] = include_bytes!("../tests/golden/state/4.9.7/topics.json");

    #[test]
    fn the_state_file_takes_no_queue_count_that_a_request_could_not_set() {
        let text = br#"{"topicConfigTable":{
            "Low":{"readQueueNums":-4,"writeQueueNums":8,"perm":6},
            "High":{"readQueueNums":8,"writeQueueNums":99999999999,"perm":"x"},
            "Odd":7,
            "Good":{"readQueueNums":0,"writeQueueNums":65536,"perm":2}}}"#;
        let loaded = parse(text).expect("whole");
        let mut found: Vec<_> = loaded
            .topics
            .iter()
            .map(|t| (t.name.as_str(), t.read_queues, t.write_queues, t.perm))
            .collect();
        found.sort_unstable();
        let expected = [
            ("Good", 0, 65_536, 2),
            ("High", 8, 8, 6),
            ("Low", 8, 8, 6),
            ("Odd", 16, 16, 6),
        ];
        assert_eq!(found, expected);
    }
    const V5: &[u8] = include_bytes!("../tests/golden/state/5.3.3/topics.json");

    /// What the recorded brokers ran with.
    pub(crate) fn system() -> SystemTopics {
        SystemTopics {
            cluster: "DefaultCluster".into(),
            broker: "broker-a".into(),
            auto_create: true,
            default_queues: 8,
            cluster_topic: true,
            broker_topic: true,
            trace_topic: None,
            delay_levels: 18,
            revive_queues: 8,
            timer: false,
        }
    }

    fn topics(dir: &tempfile::TempDir, text: &[u8]) -> Topics {
        let persist = Arc::new(Persist::new(dir.path()));
        let path = persist.path(File::Topics);
        crate::persist::replace_file(&path, text).expect("state file");
        Topics::load(persist, &system()).expect("load")
    }

    fn empty(dir: &tempfile::TempDir) -> Topics {
        Topics::load(Arc::new(Persist::new(dir.path())), &system()).expect("load")
    }

    #[test]
    fn the_listener_hears_of_changes_in_their_order() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        let heard = Arc::new(Mutex::new(None));
        let told = Arc::clone(&heard);
        topics.set_listener(Box::new(move |change| {
            let queues = match change {
                TopicChange::Updated(config) => Some(config.read_queues),
                TopicChange::Removed(_) => None,
            };
            *told.lock().expect("heard") = queues;
        }));
        for _ in 0..100 {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let topics = &topics;
                    scope.spawn(move || {
                        for queues in 1..10 {
                            let config = TopicConfig::new("T", thread * 10 + queues, PERM_READ);
                            topics.create_or_update(config);
                            topics.remove("T");
                        }
                        if thread % 2 == 0 {
                            topics.create_if_absent(TopicConfig::new("T", thread, PERM_READ));
                        }
                    });
                }
            });
            let held = topics.get("T").map(|topic| topic.config.read_queues);
            assert_eq!(*heard.lock().expect("heard"), held);
        }
    }

    #[test]
    fn apaches_files_are_written_back_byte_for_byte() {
        for text in [V4, V5] {
            let loaded = parse(text).expect("parse");
            let dir = tempfile::tempdir().expect("temporary directory");
            let topics = topics(&dir, text);
            let count = loaded.topics.len();
            let (version, all) = topics.snapshot();
            assert_eq!(&all[..count], &loaded.topics[..]);
            if all.len() == count {
                assert_eq!(version, loaded.version);
                assert_eq!(topics.text(), String::from_utf8_lossy(text));
            } else {
                // 4.9 lacks system topics of 5.x: they are appended, in 4.9's shape.
                let text = String::from_utf8_lossy(text);
                let table = text.find("topicConfigTable").expect("table");
                let kept = &text[table..text.len() - "\n\t}\n}".len()];
                assert!(topics.text().contains(kept));
                assert!(!topics.text().contains("attributes"));
            }
        }
    }

    #[test]
    fn the_system_topics_exist_from_the_first_start() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        let get = |name: &str| topics.get(name).expect("system topic").config.clone();
        assert_eq!((get("TBW102").perm, get("TBW102").write_queues), (7, 8));
        assert_eq!(get("SCHEDULE_TOPIC_XXXX").read_queues, 18);
        assert_eq!(
            (
                get("DefaultCluster").perm,
                get("DefaultCluster").read_queues
            ),
            (7, 16)
        );
        assert_eq!(get("broker-a").perm, 7);
        assert_eq!(get("BenchmarkTest").read_queues, 1024);
        assert_eq!(get("rmq_sys_SYNC_BROKER_MEMBER_broker-a").perm, 1);
        assert!(topics.get("RMQ_SYS_TRACE_TOPIC").is_none());
    }

    #[test]
    fn a_topic_is_made_from_its_template() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        let made = topics.auto_create("T", "TBW102", 4, 0, true);
        let AutoCreate::Created(topic, ticket) = made else {
            panic!("not created")
        };
        assert_eq!((topic.config.read_queues, topic.config.perm), (4, 6));
        assert_eq!(topic.ticket(), Some(ticket));
        assert!(matches!(
            topics.auto_create("T", "TBW102", 4, 0, true),
            AutoCreate::Existing(_)
        ));
        let refused = |template, enabled| {
            matches!(
                topics.auto_create("U", template, 4, 0, enabled),
                AutoCreate::Refused(_)
            )
        };
        assert!(refused("TBW102", false));
        assert!(refused("T", true), "a topic without INHERIT is no template");
        assert!(refused("nothing", true));
        let made = topics.auto_create("U", "DefaultCluster", 100, 0, false);
        let AutoCreate::Created(topic, _) = made else {
            panic!("not created")
        };
        assert_eq!(topic.config.write_queues, 16);
    }

    #[test]
    fn an_update_that_changes_nothing_waits_for_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        let before = topics.data_version().counter;
        let config = TopicConfig::new("T", 2, 6);
        assert!(topics.create_or_update(config.clone()).is_some());
        assert_eq!(topics.data_version().counter, before + 1);
        assert_eq!(
            topics.create_or_update(config),
            topics.get("T").and_then(|t| t.ticket()),
            "the first creation is not durable yet"
        );
        assert_eq!(topics.data_version().counter, before + 1);
        assert!(topics.remove("T").is_some());
        assert!(topics.get("T").is_none() && topics.remove("T").is_none());
    }

    #[test]
    fn a_huge_queue_count_costs_no_memory() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        topics.create_or_update(TopicConfig::new("Huge", i32::MAX, 6));
        topics.create_or_update(TopicConfig::new("Negative", -5, 6));
        assert_eq!(
            topics.get("Huge").expect("topic").queues.len(),
            CACHED_QUEUES as usize
        );
        assert_eq!(topics.get("Negative").expect("topic").queues.len(), 0);
    }

    #[test]
    fn the_listener_hears_of_every_change() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        topics.set_listener(Box::new(move |change| {
            let line = match change {
                TopicChange::Updated(config) => format!("+{}", config.name),
                TopicChange::Removed(name) => format!("-{name}"),
            };
            log.lock().expect("log").push(line);
        }));
        topics.create_or_update(TopicConfig::new("T", 2, 6));
        topics.create_if_absent(TopicConfig::new("T", 4, 6));
        topics.remove("T");
        assert_eq!(*heard.lock().expect("log"), ["+T", "-T"]);
    }

    #[test]
    fn a_table_larger_than_a_frame_is_read_again() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut text = String::from(r#"{"dataVersion":{},"topicConfigTable":{"#);
        for number in 0..18_000 {
            let padding = "x".repeat(1000);
            text.push_str(&format!(
                r#""topic-{number}":{{"perm":6,"unknown":"{padding}"}},"#
            ));
        }
        text.push_str("}}");
        assert!(text.len() > 16 << 20);
        let topics = topics(&dir, text.as_bytes());
        assert!(topics.get("topic-17999").is_some());
    }

    #[test]
    fn a_topic_that_kept_a_removed_queue_opens_it_anew() {
        use saturnmq_storage::mapped_file::MapBudget;
        use saturnmq_storage::queue_table::QueueTable;

        let dir = tempfile::tempdir().expect("temporary directory");
        let queues = tempfile::tempdir().expect("temporary directory");
        let topics = empty(&dir);
        topics.create_if_absent(TopicConfig::new("T", 1, 6));
        let topic = topics.get("T").expect("topic");
        let table = QueueTable::new(queues.path(), 2000, MapBudget::new(10));
        let open = |name: &str, id: i32| Some(table.get_or_create(name, id));
        let first = topic.queue(0, open).expect("queue");
        table.remove_topic("T", || Ok(())).expect("removed");
        let second = topic.queue(0, open).expect("queue");
        assert!(first.is_removed() && !second.is_removed());
    }
}
