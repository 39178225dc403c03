//! Consumer groups: name to configuration, read by every core without a lock, kept in
//! `subscriptionGroup.json`.

mod forbidden;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use self::forbidden::{Forbidden, ForbiddenTable};
use crate::config::LiveConfig;
use crate::core::off_the_cores;
use crate::light::{LightConfig, is_light};
use crate::names::{self, NameError};
use crate::persist::{File, LoadError, Persist, Ticket};
use crate::state_json::{DataVersion, Generation, JsonWriter};
use crate::state_members::{Expected, sound_members};

/// With so many groups none is made automatically any more: their names come from clients.
const AUTOMATIC_MAX: usize = 100_000;
/// Most groups that administrators may come to.
const GROUPS_MAX: usize = 300_000;
/// Longest configuration of one group, in bytes of JSON: members without meaning here are kept.
const CONFIG_BYTES_MAX: usize = 64 << 10;

/// The table does not take a group.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GroupRefused {
    /// There are too many.
    #[error("there would be {0} groups and may be {GROUPS_MAX}: delete groups that nobody uses")]
    Full(usize),
    /// Its configuration is too long.
    #[error("the group's configuration takes {0} bytes and may take {CONFIG_BYTES_MAX}")]
    Long(usize),
}

/// What is configured for a consumer group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupConfig {
    /// Name.
    pub name: String,
    /// Whether the group may consume at all.
    pub consume_enable: bool,
    /// Whether it may start at the smallest offset.
    pub consume_from_min_enable: bool,
    /// Whether it may consume in broadcast mode.
    pub consume_broadcast_enable: bool,
    /// 5.x: ordered consumption wanted.
    pub consume_orderly: bool,
    /// Queues of its retry topic.
    pub retry_queue_nums: i32,
    /// Retries before a message is a dead letter.
    pub retry_max_times: i32,
    /// Broker it is sent to, 0 the master.
    pub broker_id: i64,
    /// Broker suggested while it consumes slowly.
    pub slow_broker_id: i64,
    /// Whether members are told when others come and go.
    pub notify_changes: bool,
    /// 5.x system flag.
    pub sys_flag: i32,
    /// 5.x: minutes a message may be processed.
    pub consume_timeout_minute: i32,
    /// 5.x attributes.
    pub attributes: BTreeMap<String, String>,
    /// 5.x retry policy, kept as brought.
    pub retry_policy: Value,
    /// 5.x members without meaning here (`subscriptionDataSet`), kept as brought.
    pub extra: Map<String, Value>,
}

/// Members of a group in the state file that are judged before they are used.
const MEMBERS: [(&str, Expected); 11] = [
    ("brokerId", Expected::Long),
    ("consumeBroadcastEnable", Expected::Flag),
    ("consumeEnable", Expected::Flag),
    ("consumeFromMinEnable", Expected::Flag),
    ("consumeMessageOrderly", Expected::Flag),
    ("consumeTimeoutMinute", Expected::Int),
    ("groupSysFlag", Expected::Int),
    ("notifyConsumerIdsChangedEnable", Expected::Flag),
    ("retryMaxTimes", Expected::Int),
    ("retryQueueNums", Expected::Queues),
    ("whichBrokerWhenConsumeSlowly", Expected::Long),
];

/// Members of a group that this module reads; the others are kept as they are.
const KNOWN: [&str; 14] = [
    "attributes",
    "brokerId",
    "consumeBroadcastEnable",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "groupName",
    "groupRetryPolicy",
    "groupSysFlag",
    "notifyConsumerIdsChangedEnable",
    "retryMaxTimes",
    "retryQueueNums",
    "whichBrokerWhenConsumeSlowly",
];

impl GroupConfig {
    /// A group with Apache's defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            consume_orderly: false,
            retry_queue_nums: 1,
            retry_max_times: 16,
            broker_id: 0,
            slow_broker_id: 1,
            notify_changes: true,
            sys_flag: 0,
            consume_timeout_minute: 15,
            attributes: BTreeMap::new(),
            retry_policy: json!({"type": "CUSTOMIZED"}),
            extra: Map::new(),
        }
    }

    /// Reads a group from the state file or from the body of request 200. Absent members keep
    /// their defaults; a member of another type counts as absent.
    pub fn read(name: &str, value: &Value) -> Self {
        let mut group = Self::new(name);
        let number =
            |key: &str, default: i64| value.get(key).and_then(Value::as_i64).unwrap_or(default);
        let small = |key: &str, default: i32| {
            value
                .get(key)
                .and_then(Value::as_i64)
                .and_then(|n| n.try_into().ok())
                .unwrap_or(default)
        };
        let flag =
            |key: &str, default: bool| value.get(key).and_then(Value::as_bool).unwrap_or(default);
        group.consume_enable = flag("consumeEnable", true);
        group.consume_from_min_enable = flag("consumeFromMinEnable", true);
        group.consume_broadcast_enable = flag("consumeBroadcastEnable", true);
        group.consume_orderly = flag("consumeMessageOrderly", false);
        group.retry_queue_nums = small("retryQueueNums", 1);
        group.retry_max_times = small("retryMaxTimes", 16);
        group.broker_id = number("brokerId", 0);
        group.slow_broker_id = number("whichBrokerWhenConsumeSlowly", 1);
        group.notify_changes = flag("notifyConsumerIdsChangedEnable", true);
        group.sys_flag = small("groupSysFlag", 0);
        group.consume_timeout_minute = small("consumeTimeoutMinute", 15);
        if let Some(attributes) = value.get("attributes").and_then(Value::as_object) {
            let text = |(k, v): (&String, &Value)| Some((k.clone(), v.as_str()?.to_string()));
            group.attributes = attributes.iter().filter_map(text).collect();
        }
        if let Some(policy) = value.get("groupRetryPolicy").filter(|p| p.is_object()) {
            group.retry_policy = policy.clone();
        }
        if let Some(members) = value.as_object() {
            let unknown = members.iter().filter(|(k, _)| !KNOWN.contains(&k.as_str()));
            group.extra = unknown.map(|(k, v)| (k.clone(), v.clone())).collect();
        }
        group
    }

    /// The members in Apache's order, in the shape of `generation`.
    fn members(&self, generation: Generation) -> Vec<(&str, Value)> {
        let v5 = generation == Generation::V5;
        let mut all = vec![
            ("brokerId", json!(self.broker_id)),
            (
                "consumeBroadcastEnable",
                json!(self.consume_broadcast_enable),
            ),
            ("consumeEnable", json!(self.consume_enable)),
            ("consumeFromMinEnable", json!(self.consume_from_min_enable)),
            ("groupName", json!(self.name)),
            ("notifyConsumerIdsChangedEnable", json!(self.notify_changes)),
            ("retryMaxTimes", json!(self.retry_max_times)),
            ("retryQueueNums", json!(self.retry_queue_nums)),
            ("whichBrokerWhenConsumeSlowly", json!(self.slow_broker_id)),
        ];
        if v5 || !self.attributes.is_empty() {
            all.push(("attributes", json!(self.attributes)));
        }
        if v5 {
            all.push(("consumeMessageOrderly", json!(self.consume_orderly)));
            all.push(("consumeTimeoutMinute", json!(self.consume_timeout_minute)));
            all.push(("groupRetryPolicy", self.retry_policy.clone()));
            all.push(("groupSysFlag", json!(self.sys_flag)));
        }
        all.extend(self.extra.iter().map(|(k, v)| (k.as_str(), v.clone())));
        all.sort_by_key(|(key, _)| *key);
        all
    }

    /// The group as a JSON object with 5.x's members, for answers.
    pub fn to_json(&self) -> Value {
        let members = self.members(Generation::V5);
        Value::Object(
            members
                .into_iter()
                .map(|(k, v)| (k.to_string(), v))
                .collect(),
        )
    }

    fn write(&self, out: &mut JsonWriter, generation: Generation) {
        out.object(&self.name);
        for (key, value) in self.members(generation) {
            out.value(key, &value);
        }
        out.end();
    }
}

/// A group as requests use it. Never changes: an update puts another one in its place.
#[derive(Debug)]
pub struct Group {
    /// What is configured.
    pub config: GroupConfig,
    ticket: Option<Ticket>,
    rank: u64,
}

impl Group {
    /// The change that made or last altered this group, unless it was read from disk.
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Whether both are of one group, before and after updates; not if it was removed and made
    /// anew.
    pub fn is(&self, other: &Group) -> bool {
        self.rank == other.rank
    }
}

/// What a look-up came to.
#[derive(Debug)]
pub enum FoundGroup {
    /// It exists.
    Found(Arc<Group>),
    /// It was made; answers that depend on it wait for the ticket.
    Created(Arc<Group>, Ticket),
    /// It does not exist and is not made automatically (code 26).
    Missing,
    /// Its name is not legal.
    Illegal(NameError),
}

/// The group table.
pub struct Groups {
    table: papaya::HashMap<String, Arc<Group>>,
    persist: Arc<Persist>,
    /// The version of the tables' content, held while they change.
    version: Mutex<DataVersion>,
    generation: Generation,
    next_rank: AtomicU64,
    forbidden: Forbidden,
    /// Groups that exist by their names, if they do.
    light: Option<papaya::HashMap<String, Arc<Group>>>,
}

impl Groups {
    /// Loads `subscriptionGroup.json` and adds the system groups that it lacks.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(persist: Arc<Persist>) -> Result<Self, LoadError> {
        let loaded = persist.load(File::Groups, parse)?.unwrap_or_default();
        let groups = Self {
            table: papaya::HashMap::new(),
            persist,
            version: Mutex::new(loaded.version),
            generation: loaded.generation,
            next_rank: AtomicU64::new(0),
            forbidden: Forbidden::new(&loaded.forbidden),
            light: None,
        };
        for config in loaded.groups {
            groups.insert(config, None);
        }
        let missing: Vec<_> = names::BOOT_GROUPS
            .into_iter()
            .filter(|name| groups.get(name).is_none())
            .collect();
        if !missing.is_empty() {
            for name in missing {
                groups.insert(GroupConfig::new(name), None);
            }
            groups.persist.changed(File::Groups);
        }
        Ok(groups)
    }

    fn lock(&self) -> MutexGuard<'_, DataVersion> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, config: GroupConfig, ticket: Option<Ticket>) -> Arc<Group> {
        let table = self.table.pin();
        let rank = table.get(config.name.as_str()).map_or_else(
            || self.next_rank.fetch_add(1, Ordering::Relaxed),
            |group| group.rank,
        );
        let name = config.name.clone();
        let group = Arc::new(Group {
            config,
            ticket,
            rank,
        });
        table.insert(name, Arc::clone(&group));
        group
    }

    /// Groups whose names begin as those of light queues exist, if light queues are enabled
    /// (docs/behaviour.md, Light queues).
    pub fn with_light(mut self, config: LightConfig) -> Self {
        self.light = config.enabled.then(papaya::HashMap::new);
        self
    }

    /// A group that exists by its name; too many are not remembered.
    fn light(&self, name: &str) -> Option<Arc<Group>> {
        let known = self.light.as_ref().filter(|_| is_light(name))?.pin();
        if let Some(group) = known.get(name) {
            return Some(Arc::clone(group));
        }
        names::check_group(name).ok()?;
        let made = Arc::new(Group {
            config: GroupConfig::new(name),
            ticket: None,
            rank: 0,
        });
        if known.len() >= AUTOMATIC_MAX {
            return Some(made);
        }
        Some(Arc::clone(
            known.get_or_insert_with(name.to_owned(), || made),
        ))
    }

    /// A group by name.
    pub fn get(&self, name: &str) -> Option<Arc<Group>> {
        if let Some(group) = self.light(name) {
            return Some(group);
        }
        self.table.pin().get(name).map(Arc::clone)
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// A group by name, made when it is missing and may be made
    /// (docs/behaviour.md, Consumer groups).
    pub fn find_or_create(&self, name: &str, live: &LiveConfig) -> FoundGroup {
        if let Some(group) = self.get(name) {
            return FoundGroup::Found(group);
        }
        if let Err(error) = names::check_group(name) {
            return FoundGroup::Illegal(error);
        }
        let system = names::is_system_group(name) && live.enable_create_sys_group;
        if (!live.auto_create_subscription_group && !system) || self.len() >= AUTOMATIC_MAX {
            return FoundGroup::Missing;
        }
        let mut version = self.lock();
        if let Some(group) = self.get(name) {
            return FoundGroup::Found(group);
        }
        version.next();
        let (group, ticket) = self.publish(GroupConfig::new(name));
        FoundGroup::Created(group, ticket)
    }

    fn publish(&self, config: GroupConfig) -> (Arc<Group>, Ticket) {
        let ticket = self.persist.changed(File::Groups);
        (self.insert(config, Some(ticket)), ticket)
    }

    /// Whether these groups, new ones or altered ones, fit the table. Requests on several cores may
    /// each get the last room: the table then has a few more.
    ///
    /// # Errors
    /// [`GroupRefused::Full`], naming the limit.
    pub fn check_room(&self, configs: &[GroupConfig]) -> Result<(), GroupRefused> {
        let is_new = |config: &&GroupConfig| self.get(&config.name).is_none();
        let added = configs.iter().filter(is_new).count();
        let wanted = self.len() + added;
        if added > 0 && wanted > GROUPS_MAX {
            return Err(GroupRefused::Full(wanted));
        }
        Ok(())
    }

    /// Whether a group's configuration is not too long.
    ///
    /// # Errors
    /// [`GroupRefused::Long`], naming the limit.
    pub fn check_bytes(config: &GroupConfig) -> Result<(), GroupRefused> {
        let bytes = config.to_json().to_string().len();
        match bytes > CONFIG_BYTES_MAX {
            true => Err(GroupRefused::Long(bytes)),
            false => Ok(()),
        }
    }

    /// Makes or alters a group. `None`: nothing differed and nothing is to be waited for.
    pub fn create_or_update(&self, config: GroupConfig) -> Option<Ticket> {
        // As Apache: they are as they are.
        if self.light(&config.name).is_some() {
            return None;
        }
        let mut version = self.lock();
        if let Some(old) = self.get(&config.name)
            && old.config == config
        {
            return old.ticket.filter(|t| !self.persist.is_durable(*t));
        }
        version.next();
        Some(self.publish(config).1)
    }

    /// Removes a group's configuration and what is forbidden to it.
    pub fn remove(&self, name: &str) -> Option<(Arc<Group>, Ticket)> {
        let mut version = self.lock();
        let group = self.table.pin().remove(name).map(Arc::clone)?;
        self.forbidden.remove_group(name);
        version.next();
        let ticket = self.persist.changed(File::Groups);
        Some((group, ticket))
    }

    /// Bits of what `group` may not do with `topic`.
    pub fn forbidden(&self, group: &str, topic: &str) -> i32 {
        self.forbidden.get(group, topic)
    }

    /// Everything that is forbidden: bits by topic by group.
    pub fn forbidden_table(&self) -> ForbiddenTable {
        self.forbidden.table()
    }

    /// Sets the bits; 0 removes the entry. `None`: unchanged, or the table is full.
    pub fn set_forbidden(&self, group: &str, topic: &str, bits: i32) -> Option<Ticket> {
        let mut version = self.lock();
        if !self.forbidden.set(group, topic, bits) {
            return None;
        }
        version.next();
        Some(self.persist.changed(File::Groups))
    }

    /// The version of the table.
    pub fn data_version(&self) -> DataVersion {
        *self.lock()
    }

    /// The table in file order, with the version it belongs to.
    pub fn snapshot(&self) -> (DataVersion, Vec<Arc<Group>>) {
        let version = self.lock();
        (*version, self.sorted())
    }

    fn sorted(&self) -> Vec<Arc<Group>> {
        off_the_cores();
        let mut groups: Vec<_> = self.table.pin().values().map(Arc::clone).collect();
        groups.sort_by_key(|g| g.rank);
        groups
    }

    /// The text of `subscriptionGroup.json`.
    pub fn text(&self) -> String {
        // The text of many groups takes a while: cores that make groups do not wait for it.
        let (version, forbidden, groups) = {
            let version = self.lock();
            (*version, self.forbidden.table(), self.sorted())
        };
        let mut out = JsonWriter::new();
        version.write(&mut out, self.generation);
        if self.generation == Generation::V5 || !forbidden.is_empty() {
            out.object("forbiddenTable");
            for (group, topics) in &forbidden {
                out.object(group);
                for (topic, bits) in topics {
                    out.number(topic, (*bits).into());
                }
                out.end();
            }
            out.end();
        }
        out.object("subscriptionGroupTable");
        for group in groups {
            group.config.write(&mut out, self.generation);
        }
        out.finish()
    }
}

#[derive(Default)]
struct Loaded {
    version: DataVersion,
    forbidden: ForbiddenTable,
    generation: Generation,
    groups: Vec<GroupConfig>,
}

fn parse(bytes: &[u8]) -> Result<Loaded, String> {
    let root: Value = saturnmq_net::fastjson::from_file(bytes).map_err(|e| e.to_string())?;
    let table = root
        .get("subscriptionGroupTable")
        .and_then(Value::as_object)
        .ok_or("it has no subscriptionGroupTable")?;
    let mut forbidden = ForbiddenTable::new();
    let brought = root.get("forbiddenTable").and_then(Value::as_object);
    for (group, topics) in brought.into_iter().flatten() {
        let bits = |(topic, bits): (&String, &Value)| {
            Some((topic.clone(), i32::try_from(bits.as_i64()?).ok()?))
        };
        let topics = topics
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(bits)
            .collect();
        forbidden.insert(group.clone(), topics);
    }
    Ok(Loaded {
        version: DataVersion::read(root.get("dataVersion")),
        forbidden,
        generation: Generation::of(root.get("dataVersion")),
        groups: table
            .iter()
            .map(|(name, value)| {
                let (sound, wrong) = sound_members(name, value, &MEMBERS);
                for wrong in wrong {
                    tracing::warn!("subscriptionGroup.json: group {wrong}");
                }
                GroupConfig::read(name, &sound)
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Options};

    const V4: &[u8] = include_bytes!("../tests/golden/state/4.9.7/subscriptionGroup.json");
    const V5: &[u8] = include_bytes!("../tests/golden/state/5.3.3/subscriptionGroup.json");

    fn groups(dir: &tempfile::TempDir, text: Option<&[u8]>) -> Groups {
        let persist = Arc::new(Persist::new(dir.path()));
        if let Some(text) = text {
            let path = persist.path(File::Groups);
            crate::persist::replace_file(&path, text).expect("state file");
        }
        Groups::load(persist).expect("load")
    }

    fn live(set: &[&str]) -> LiveConfig {
        let set = set.iter().map(ToString::to_string).collect();
        Config::resolve(&Options {
            set,
            ..Options::default()
        })
        .expect("configuration")
        .live
    }

    #[test]
    fn apaches_files_are_written_back_byte_for_byte() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(groups(&dir, Some(V5)).text(), String::from_utf8_lossy(V5));
        // 4.9 lacks one boot group: it is appended, in 4.9's shape.
        let text = groups(&dir, Some(V4)).text();
        let old = String::from_utf8_lossy(V4);
        assert!(text.starts_with(&old[..old.len() - "\n\t}\n}".len()]));
        assert!(!text.contains("attributes") && !text.contains("forbiddenTable"));
    }

    #[test]
    fn members_of_newer_brokers_are_kept() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let text = br#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},
            "subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3,"somethingNew":{"a":1},
            "subscriptionDataSet":[{"topic":"T"}],"attributes":{"k":"v"}}},
            "forbiddenTable":{"g":{"T":4}}}"#;
        let groups = groups(&dir, Some(text));
        assert_eq!(groups.get("g").expect("group").config.retry_max_times, 3);
        assert_eq!(groups.forbidden("g", "T"), 4);
        let text = groups.text();
        for part in [
            "\"somethingNew\":{",
            "\"subscriptionDataSet\":[{\"topic\":\"T\"}]",
            "\"k\":\"v\"",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_group_is_made_when_it_may_be() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let groups = groups(&dir, None);
        let open = live(&[]);
        let closed = live(&["autoCreateSubscriptionGroup=false"]);
        assert!(matches!(
            groups.find_or_create("g", &closed),
            FoundGroup::Missing
        ));
        let FoundGroup::Created(group, ticket) = groups.find_or_create("g", &open) else {
            panic!("not created")
        };
        assert_eq!(
            (group.config.retry_max_times, group.ticket()),
            (16, Some(ticket))
        );
        assert!(matches!(
            groups.find_or_create("g", &closed),
            FoundGroup::Found(_)
        ));
        assert!(matches!(
            groups.find_or_create("CID_RMQ_SYS_X", &closed),
            FoundGroup::Created(..)
        ));
        assert!(matches!(
            groups.find_or_create("a/b", &open),
            FoundGroup::Illegal(_)
        ));
    }

    #[test]
    fn clearing_one_topic_keeps_what_is_forbidden_in_others() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let groups = groups(&dir, None);
        assert!(groups.set_forbidden("g", "T", 4).is_some());
        assert!(groups.set_forbidden("g", "U", 4).is_some());
        assert!(groups.set_forbidden("g", "T", 0).is_some());
        assert_eq!(
            (groups.forbidden("g", "T"), groups.forbidden("g", "U")),
            (0, 4)
        );
        assert!(groups.set_forbidden("g", "T", 0).is_none());
    }

    #[test]
    fn groups_of_administrators_cannot_fill_the_memory() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let groups = groups(&dir, None);
        let many: Vec<_> = (0..GROUPS_MAX)
            .map(|n| GroupConfig::new(format!("g{n}")))
            .collect();
        let full = groups.check_room(&many).expect_err("too many at once");
        assert!(full.to_string().contains("may be 300000"), "{full}");
        assert_eq!(groups.check_room(&many[..10]), Ok(()));
        let mut long = GroupConfig::new("long");
        long.extra.insert("x".into(), json!("y".repeat(70_000)));
        let long = Groups::check_bytes(&long).expect_err("too long");
        assert!(long.to_string().contains("may take 65536"), "{long}");
    }

    #[test]
    fn names_of_clients_cannot_fill_the_table() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (groups, live) = (groups(&dir, None), live(&[]));
        for number in groups.len()..AUTOMATIC_MAX {
            groups.insert(GroupConfig::new(format!("g{number}")), None);
        }
        let found = groups.find_or_create("one-more", &live);
        assert!(matches!(found, FoundGroup::Missing));
        let found = groups.find_or_create("g99999", &live);
        assert!(matches!(found, FoundGroup::Found(_)));
        assert!(
            groups
                .create_or_update(GroupConfig::new("one-more"))
                .is_some()
        );
    }
}
