//! `config/consumerFilter.json`: which group filters which topic with which expression
//! (docs/format.md, "Consumer filters").
//!
//! Messages are filtered by the subscriptions of connected clients; this table lives on for tools
//! and for an Apache broker that goes on with the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;

use super::SQL92;
use super::bloom::Shape;
use super::marks::{Hint, Marks, Selecting};
use crate::persist::{File, LoadError, Persist};
use crate::state_json::JsonWriter;

/// Most filters that are kept; of more the later ones are not written down.
const MAX_FILTERS: usize = 100_000;
/// Most bytes of them; the same holds.
const MAX_BYTES: usize = 64 << 20;
/// What a filter counts for besides its texts, in bytes.
const FILTER_BYTES: usize = 400;
/// Filters of a stopped broker count as unused since this long before its next start.
const DEAD_BEFORE_START_MS: i64 = 30_000;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    born_time: i64,
    client_version: i64,
    dead_time: i64,
    expression: String,
    expression_type: String,
    /// Units do not know of it, for lack of room. It is not written down: a start that has room
    /// would believe that they did since its birth.
    #[serde(skip)]
    unmarked: bool,
}

impl Filter {
    fn is_dead(&self) -> bool {
        self.dead_time >= self.born_time
    }
}

/// A filter in the file.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredFilter {
    #[serde(flatten)]
    filter: Filter,
    bloom_filter_data: Option<BloomFilterData>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BloomFilterData {
    bit_num: i64,
    bit_pos: Vec<i64>,
}

impl BloomFilterData {
    fn is_of(&self, shape: Shape) -> bool {
        let hashes = usize::try_from(shape.hashes).ok();
        self.bit_num == i64::from(shape.bits) && Some(self.bit_pos.len()) == hashes
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TopicFilters {
    group_filter_data: BTreeMap<String, StoredFilter>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FilterFile {
    filter_data_by_topic: BTreeMap<String, TopicFilters>,
}

/// The filters of one group, by topic.
type Filters = BTreeMap<Arc<str>, Filter>;

/// The filters of all groups; a reader keeps what it reads.
#[derive(Default)]
struct Table {
    groups: BTreeMap<Arc<str>, Arc<Filters>>,
    filters: usize,
    bytes: usize,
}

impl Table {
    /// Puts the filters of a group in the place of what it has, if there is room. `false`: there
    /// is none, and nothing changes.
    fn replace(&mut self, group: &str, filters: Filters) -> bool {
        let old = self.groups.get(group);
        let (old_count, old_bytes) = old.map_or((0, 0), |old| (old.len(), bytes_of(group, old)));
        let (count, bytes) = (filters.len(), bytes_of(group, &filters));
        let all = self.filters - old_count + count;
        let all_bytes = self.bytes - old_bytes + bytes;
        let grows = count > old_count || bytes > old_bytes;
        if grows && (all > MAX_FILTERS || all_bytes > MAX_BYTES) {
            return false;
        }
        (self.filters, self.bytes) = (all, all_bytes);
        if filters.is_empty() {
            self.groups.remove(group);
        } else if let Some(held) = self.groups.get_mut(group) {
            *held = Arc::new(filters);
        } else {
            self.groups.insert(Arc::from(group), Arc::new(filters));
        }
        true
    }

    /// Lets the dispatcher know of all, as of a former run.
    fn load_marks(&mut self, marks: &Marks) {
        let selectors = self.groups.iter();
        let selectors = selectors.flat_map(|(group, filters)| selecting(group, filters));
        let mut marked = marks.load(&selectors.collect::<Vec<_>>()).into_iter();
        for filters in self.groups.values_mut() {
            for filter in Arc::make_mut(filters).values_mut() {
                filter.unmarked = !marked.next().unwrap_or(false);
            }
        }
    }

    /// Forgets the filters for which `is_kept` is false.
    fn retain(&mut self, is_kept: impl Fn(&Filter) -> bool) {
        let changed: Vec<(Arc<str>, Filters)> = self
            .groups
            .iter()
            .filter(|(_, filters)| !filters.values().all(&is_kept))
            .map(|(group, filters)| {
                let mut kept = Filters::clone(filters);
                kept.retain(|_, filter| is_kept(filter));
                (Arc::clone(group), kept)
            })
            .collect();
        for (group, kept) in changed {
            self.replace(&group, kept);
        }
    }
}

/// What the filters of a group take, roughly, in memory and in the file.
fn bytes_of(group: &str, filters: &Filters) -> usize {
    let one = |(topic, filter): (&Arc<str>, &Filter)| {
        FILTER_BYTES
            + 2 * (group.len() + topic.len())
            + filter.expression.len()
            + filter.expression_type.len()
    };
    filters.iter().map(one).sum()
}

fn selecting<'a>(group: &'a str, filters: &'a Filters) -> impl Iterator<Item = Selecting<'a>> {
    filters.iter().map(move |(topic, filter)| Selecting {
        group,
        topic,
        expression: &filter.expression,
        born: filter.born_time,
    })
}

/// The filters of all groups, by group and topic.
pub struct RegisteredFilters {
    table: Mutex<Table>,
    persist: Arc<Persist>,
    shape: Shape,
    /// `None` if units of queue entries get no bits.
    marks: Option<Arc<Marks>>,
    kept_ms: i64,
}

/// What the configuration says of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterSettings {
    /// `maxErrorRateOfBloomFilter`: wrong hits of the Bloom filter, in percent.
    pub error_percent: u32,
    /// `expectConsumerNumUseFilter`: groups that the Bloom filter is made for.
    pub expected_groups: u32,
    /// `enableCalcFilterBitMap` with `enableConsumeQueueExt`: whether units of queue entries get
    /// bits.
    pub marks: bool,
    /// `filterDataCleanTimeSpan`: how long a filter that nobody uses is kept, in milliseconds.
    pub kept_ms: i64,
}

/// One subscription of a group as it is written down.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The expression's type.
    pub kind: &'a str,
    /// The expression.
    pub expression: &'a str,
    /// The client's `subVersion`.
    pub version: i64,
}

impl RegisteredFilters {
    /// Loads `config/consumerFilter.json`.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(
        persist: Arc<Persist>,
        settings: &FilterSettings,
        now_ms: i64,
    ) -> Result<Self, LoadError> {
        let file = persist
            .load(File::ConsumerFilters, parse)?
            .unwrap_or_default();
        let shape = Shape::new(settings.error_percent, settings.expected_groups);
        let mut groups: BTreeMap<Arc<str>, Filters> = BTreeMap::new();
        for (topic, filters) in known(file, shape) {
            for (group, StoredFilter { mut filter, .. }) in filters.group_filter_data {
                if !filter.is_dead() {
                    filter.dead_time = (now_ms - DEAD_BEFORE_START_MS).max(filter.born_time);
                }
                let of_group = groups.entry(group.into()).or_default();
                of_group.insert(Arc::from(topic.as_str()), filter);
            }
        }
        let marks = settings.marks.then(|| Arc::new(Marks::new(shape)));
        let mut table = Table::default();
        for (group, filters) in groups {
            if !table.replace(&group, filters) {
                tracing::warn!(%group, "consumerFilter.json: more filters than are kept, left out");
            }
        }
        if let Some(marks) = &marks {
            table.load_marks(marks);
        }
        Ok(Self {
            table: Mutex::new(table),
            persist,
            shape,
            marks,
            kept_ms: settings.kept_ms,
        })
    }

    /// The filters in `config/consumerFilter.json` below `root`, to look at units with; `None` if
    /// there is no such file, or none that can be read.
    pub fn look(root: &Path, settings: &FilterSettings) -> Option<Marks> {
        let persist = Persist::new(root);
        let file = persist.load(File::ConsumerFilters, parse).ok().flatten()?;
        let shape = Shape::new(settings.error_percent, settings.expected_groups);
        let marks = Marks::new(shape);
        let filters = known(file, shape);
        let selectors = filters.iter().flat_map(|(topic, filters)| {
            let of_topic = filters.group_filter_data.iter();
            of_topic.map(move |(group, StoredFilter { filter, .. })| Selecting {
                group,
                topic,
                expression: &filter.expression,
                born: filter.born_time,
            })
        });
        marks.load(&selectors.collect::<Vec<_>>());
        Some(marks)
    }

    /// What finds the bits of units; `None` if they get none.
    pub fn marks(&self) -> Option<&Arc<Marks>> {
        self.marks.as_ref()
    }

    /// What units tell of a group's expression for a topic; `None` if nothing.
    pub fn hint(&self, group: &str, topic: &str, expression: &str) -> Option<Arc<Hint>> {
        self.marks.as_ref()?.hint(group, topic, expression)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change leaves the table whole: a panic elsewhere does not matter.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A heartbeat named these subscriptions, all of the group's.
    pub fn register(&self, group: &str, subscriptions: &[Registration<'_>], now_ms: i64) {
        let mut table = self.table();
        let known = table.groups.get(group).map(Arc::clone).unwrap_or_default();
        // Most heartbeats: nothing is copied for them.
        if changes_nothing(&known, subscriptions) {
            return;
        }
        let mut filters = Filters::clone(&known);
        for (topic, filter) in &mut filters {
            let named = subscriptions.iter().any(|s| s.topic == &**topic);
            if !named && !filter.is_dead() {
                filter.dead_time = now_ms;
            }
        }
        for subscription in subscriptions.iter().filter(|s| s.kind == SQL92) {
            if let Some(known) = filters.get_mut(subscription.topic) {
                renew(known, subscription, now_ms);
            } else {
                filters.insert(Arc::from(subscription.topic), fresh(subscription, now_ms));
            }
        }
        if filters == *known {
            return;
        }
        let mut entered = table.replace(group, filters.clone());
        let mut forgot = false;
        if !entered {
            // Those that nobody uses make room.
            let before = table.filters;
            table.retain(|filter| !filter.is_dead());
            forgot = table.filters < before;
            entered = table.replace(group, filters);
        }
        if entered || forgot {
            self.persist.changed(File::ConsumerFilters);
        }
        if forgot {
            self.unmark(&table);
        }
        if !entered {
            tracing::debug!(group, "filters not written down: there are too many");
            return;
        }
        // Only what the table holds, so that it is forgotten with it.
        self.mark(group, &known, &mut table);
    }

    /// Lets the dispatcher know of selectors of the group that are new.
    fn mark(&self, group: &str, known: &Filters, table: &mut Table) {
        let (Some(marks), Some(filters)) = (&self.marks, table.groups.get_mut(group)) else {
            return;
        };
        let filters = Arc::make_mut(filters);
        let is_new = |topic: &str, filter: &Filter| {
            let before = known.get(topic);
            before.is_none_or(|before| before.expression != filter.expression)
        };
        let mut new: Vec<_> = selecting(group, filters)
            .filter(|new| {
                filters
                    .get(new.topic)
                    .is_some_and(|filter| is_new(new.topic, filter))
            })
            .collect();
        let marked = marks.set(&mut new);
        let told: Vec<_> = new
            .iter()
            .zip(marked)
            .map(|(new, marked)| (Arc::<str>::from(new.topic), new.born, marked))
            .collect();
        for (topic, born, marked) in told {
            if let Some(filter) = filters.get_mut(&topic) {
                (filter.born_time, filter.unmarked) = (born, !marked);
            }
        }
    }

    /// The dispatcher looks no more at selectors of filters that were forgotten.
    fn unmark(&self, table: &Table) {
        if let Some(marks) = &self.marks {
            marks.retain(|group, topic| {
                let filters = table.groups.get(group);
                filters.is_some_and(|filters| filters.contains_key(topic))
            });
        }
    }

    /// The group lost its last consumer.
    pub fn unregister(&self, group: &str, now_ms: i64) {
        let mut table = self.table();
        let Some(filters) = table.groups.get_mut(group) else {
            return;
        };
        if filters.values().all(Filter::is_dead) {
            return;
        }
        let filters = Arc::make_mut(filters).values_mut();
        for filter in filters.filter(|filter| !filter.is_dead()) {
            filter.dead_time = now_ms;
        }
        self.persist.changed(File::ConsumerFilters);
    }

    /// The text of the file, without filters that nobody used for long; `None` while there never
    /// was one.
    pub fn text(&self, now_ms: i64) -> Option<String> {
        let groups = {
            let mut table = self.table();
            let before = table.filters;
            table.retain(|filter| !filter.is_dead() || now_ms - filter.dead_time < self.kept_ms);
            if table.filters < before {
                self.unmark(&table);
            }
            table.groups.clone()
        };
        if groups.is_empty() && !self.persist.path(File::ConsumerFilters).exists() {
            return None;
        }
        let mut by_topic: BTreeMap<&str, Vec<(&str, &Filter)>> = BTreeMap::new();
        for (group, filters) in &groups {
            for (topic, filter) in filters.iter().filter(|(_, filter)| !filter.unmarked) {
                by_topic.entry(topic).or_default().push((group, filter));
            }
        }
        Some(self.write(&by_topic))
    }

    fn write(&self, by_topic: &BTreeMap<&str, Vec<(&str, &Filter)>>) -> String {
        let mut out = JsonWriter::new();
        out.object("filterDataByTopic");
        for (topic, filters) in by_topic {
            out.object(topic);
            out.object("groupFilterData");
            for (group, filter) in filters {
                out.object(group);
                out.object("bloomFilterData");
                out.number("bitNum", i64::from(self.shape.bits));
                out.number_list("bitPos", &self.shape.positions(group, topic));
                out.end();
                out.number("bornTime", filter.born_time);
                out.number("clientVersion", filter.client_version);
                out.string("consumerGroup", group);
                out.boolean("dead", filter.is_dead());
                out.number("deadTime", filter.dead_time);
                out.string("expression", &filter.expression);
                out.string("expressionType", &filter.expression_type);
                out.string("topic", topic);
                out.end();
            }
            out.end();
            out.string("topic", topic);
            out.end();
        }
        out.finish()
    }
}

fn fresh(subscription: &Registration<'_>, now_ms: i64) -> Filter {
    Filter {
        born_time: now_ms,
        client_version: subscription.version,
        dead_time: 0,
        expression: subscription.expression.to_owned(),
        expression_type: subscription.kind.to_owned(),
        unmarked: false,
    }
}

/// Whether a heartbeat says nothing new.
fn changes_nothing(known: &Filters, subscriptions: &[Registration<'_>]) -> bool {
    let is_named = |topic: &str| subscriptions.iter().any(|s| s.topic == topic);
    let mut selected = subscriptions.iter().filter(|s| s.kind == SQL92);
    let is_known = |s: &Registration<'_>| {
        known.get(s.topic).is_some_and(|filter| {
            let same = s.version == filter.client_version && !filter.is_dead();
            same || s.version < filter.client_version
        })
    };
    selected.all(is_known)
        && known
            .iter()
            .all(|(topic, filter)| filter.is_dead() || is_named(topic))
}

/// An older version changes nothing; the same one only says that the group is back.
fn renew(known: &mut Filter, subscription: &Registration<'_>, now_ms: i64) {
    if subscription.version < known.client_version {
        return;
    }
    let newer = subscription.version > known.client_version;
    if newer && known.expression != subscription.expression {
        *known = fresh(subscription, now_ms);
        return;
    }
    known.client_version = subscription.version;
    if known.is_dead() {
        known.dead_time = 0;
    }
}

/// The filters of a file. If the Bloom filter had another shape when they were written, Apache's
/// broker and this one begin anew: bits that were set since stand for something else.
fn known(file: FilterFile, shape: Shape) -> BTreeMap<String, TopicFilters> {
    let topics = file.filter_data_by_topic;
    let mut filters = topics.values().flat_map(|of| of.group_filter_data.values());
    let is_known = |filter: &StoredFilter| {
        let data = filter.bloom_filter_data.as_ref();
        data.is_some_and(|data| data.is_of(shape))
    };
    if filters.all(is_known) {
        return topics;
    }
    tracing::info!("consumerFilter.json: the Bloom filter has another shape now; begun anew");
    BTreeMap::new()
}

fn parse(bytes: &[u8]) -> Result<FilterFile, String> {
    saturnmq_net::fastjson::from_file(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT_MS: i64 = 86_400_000;

    fn open(root: &std::path::Path, now_ms: i64) -> RegisteredFilters {
        open_with(root, now_ms, false)
    }

    fn open_with(root: &std::path::Path, now_ms: i64, marks: bool) -> RegisteredFilters {
        let settings = FilterSettings {
            error_percent: 20,
            expected_groups: 32,
            marks,
            kept_ms: KEPT_MS,
        };
        RegisteredFilters::load(Arc::new(Persist::new(root)), &settings, now_ms).unwrap()
    }

    fn sql(expression: &'static str, version: i64) -> Registration<'static> {
        Registration {
            topic: "T",
            kind: SQL92,
            expression,
            version,
        }
    }

    fn reopen(filters: &RegisteredFilters, root: &std::path::Path, now: i64) -> RegisteredFilters {
        let path = filters.persist.path(File::ConsumerFilters);
        crate::persist::replace_file(&path, filters.text(now).unwrap().as_bytes()).unwrap();
        open(root, now)
    }

    fn only(filters: &RegisteredFilters) -> Filter {
        filters.table().groups["G"]["T"].clone()
    }

    #[test]
    fn a_filter_outlives_its_group_by_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open(dir.path(), 1_000);
        assert!(filters.text(1_000).is_none());
        filters.register("G", &[sql("a = 1", 7)], 100_000);
        let filters = reopen(&filters, dir.path(), 200_000);
        assert_eq!(only(&filters).dead_time, 170_000);
        filters.register("G", &[sql("a = 1", 7)], 200_000);
        assert!(!only(&filters).is_dead());
        assert_eq!(only(&filters).born_time, 100_000);
        filters.unregister("G", 300_000);
        assert_eq!(only(&filters).dead_time, 300_000);
        let filters = reopen(&filters, dir.path(), 300_000 + KEPT_MS - 1);
        assert_eq!(only(&filters).dead_time, 300_000);
        let filters = reopen(&filters, dir.path(), 300_000 + KEPT_MS);
        assert!(filters.table().groups.is_empty());
    }

    #[test]
    fn only_a_newer_version_changes_the_expression() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open(dir.path(), 0);
        filters.register("G", &[sql("a = 1", 7)], 10);
        filters.register("G", &[sql("a = 2", 7)], 20);
        filters.register("G", &[sql("a = 3", 6)], 30);
        assert_eq!(only(&filters).expression, "a = 1");
        filters.register("G", &[sql("a = 2", 8)], 40);
        assert_eq!(
            (only(&filters).expression.as_str(), only(&filters).born_time),
            ("a = 2", 40)
        );
    }

    #[test]
    fn a_topic_no_longer_subscribed_to_is_unused() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open(dir.path(), 0);
        filters.register("G", &[sql("a = 1", 7)], 10);
        filters.register("G", &[], 20);
        assert_eq!(only(&filters).dead_time, 20);
        filters.register("plain", &[], 20);
        assert!(!filters.table().groups.contains_key("plain"));
    }

    #[test]
    fn selectors_of_clients_cannot_fill_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open(dir.path(), 0);
        let long = "a".repeat(4 << 20);
        let register = |group: usize, now| {
            let one = Registration {
                topic: "T",
                kind: SQL92,
                expression: &long,
                version: 1,
            };
            filters.register(&format!("g{group}"), &[one], now);
        };
        (0..100).for_each(|group| register(group, 1));
        let kept = filters.table().groups.len();
        assert_eq!(kept, 15, "of 4 MiB each, within 64 MiB");
        assert!(filters.table().bytes <= MAX_BYTES);
        filters.unregister("g0", 2);
        register(99, 3);
        let table = filters.table();
        assert!(!table.groups.contains_key("g0") && table.groups.contains_key("g99"));
        drop(table);
        for group in 0..100 {
            filters.unregister(&format!("g{group}"), 4);
        }
        filters.text(4 + KEPT_MS);
        let table = filters.table();
        assert_eq!((table.filters, table.bytes), (0, 0));
    }

    /// Registers one expression for one topic.
    fn register(filters: &RegisteredFilters, group: &str, topic: &str, expression: &str, now: i64) {
        let one = Registration {
            topic,
            kind: SQL92,
            expression,
            version: 1,
        };
        filters.register(group, &[one], now);
    }

    /// What a start finds that comes after a stop.
    fn started(filters: &RegisteredFilters, root: &std::path::Path, now: i64) -> RegisteredFilters {
        let path = filters.persist.path(File::ConsumerFilters);
        crate::persist::replace_file(&path, filters.text(now).unwrap().as_bytes()).unwrap();
        open_with(root, now, true)
    }

    #[test]
    fn a_selector_that_units_do_not_know_is_not_believed_at_a_start_that_has_room() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open_with(dir.path(), 0, true);
        register(&filters, "b", "T", "b = 1", 10);
        // They take all the room that is left, to the byte.
        let mut room = super::super::marks::BYTES_MAX / 64 - (4 + "b = 1".len());
        let mut others = Vec::new();
        while room > 0 {
            let part = if room > 60_000 {
                30_000
            } else {
                room.div_ceil(room / 30_001 + 1)
            };
            let text = "x".repeat(part - 4 - "a = ''".len());
            others.push((format!("T{}", others.len()), format!("a = '{text}'")));
            room -= part;
        }
        let of_z: Vec<_> = others
            .iter()
            .map(|(topic, expression)| Registration {
                topic,
                kind: SQL92,
                expression,
                version: 1,
            })
            .collect();
        let all_of_z = |filters: &RegisteredFilters| {
            let mut all = of_z.iter();
            all.all(|one| filters.hint("z", one.topic, one.expression).is_some())
        };
        filters.register("z", &of_z, 20);
        assert!(all_of_z(&filters));
        register(&filters, "a", "T", "a = 1", 30);
        assert!(
            filters.hint("a", "T", "a = 1").is_none(),
            "there is no room"
        );
        let filters = started(&filters, dir.path(), 200);
        // Units of what was stored meanwhile know nothing of it.
        assert!(filters.hint("a", "T", "a = 1").is_none());
        register(&filters, "a", "T", "a = 1", 210);
        assert!(all_of_z(&filters));
        assert!(
            filters.hint("a", "T", "a = 1").is_none(),
            "there is no room"
        );
        filters.register("z", &[], 220);
        filters.text(220 + KEPT_MS);
        register(&filters, "c", "T", "c = 1", 230);
        assert!(filters.hint("c", "T", "c = 1").is_some());
    }

    #[test]
    fn a_group_that_finds_room_because_others_are_forgotten_is_known_to_units() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open_with(dir.path(), 0, true);
        for group in 0..16 {
            let room = MAX_BYTES - filters.table().bytes;
            let own = FILTER_BYTES + 2 * (3 + 1) + SQL92.len();
            let length = (room - own).min(4 << 20);
            let long = format!("a = '{}'", "x".repeat(length - "a = ''".len()));
            register(&filters, &format!("g{group:02}"), "T", &long, 1);
        }
        assert_eq!(filters.table().bytes, MAX_BYTES);
        register(&filters, "new", "T", "a = 1", 2);
        assert!(filters.hint("new", "T", "a = 1").is_none(), "it is refused");
        assert!(filters.marks().unwrap().is_empty(), "and leaves nothing");
        filters.unregister("g00", 3);
        register(&filters, "new", "T", "a = 1", 4);
        assert!(filters.table().groups.contains_key("new"));
        assert!(filters.hint("new", "T", "a = 1").is_some());
    }

    #[test]
    fn marks_of_a_filter_that_made_room_for_another_go_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let filters = open_with(dir.path(), 0, true);
        register(&filters, "old", "T", "a = 1", 1);
        for group in 0..17 {
            let room = MAX_BYTES - filters.table().bytes;
            let own = FILTER_BYTES + 2 * (3 + 1) + SQL92.len();
            let Some(length) = room.checked_sub(own).map(|room| room.min(4 << 20)) else {
                break;
            };
            let long = format!("a = '{}'", "x".repeat(length - "a = ''".len()));
            register(&filters, &format!("g{group:02}"), "T", &long, 1);
        }
        assert_eq!(filters.table().bytes, MAX_BYTES);
        assert!(filters.hint("old", "T", "a = 1").is_some());
        filters.unregister("old", 2);
        register(&filters, "new", "T", "b = 2", 3);
        assert!(filters.hint("new", "T", "b = 2").is_some());
        assert!(!filters.table().groups.contains_key("old"));
        assert!(filters.hint("old", "T", "a = 1").is_none());
    }
}
