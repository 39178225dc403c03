//! `config/consumerFilter.json`: which group filters which topic with which expression
//! (docs/format.md, "Consumer filters").
//!
//! Messages are filtered by the subscriptions of connected clients; this table lives on for tools
//! and for an Apache broker that goes on with the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;

use super::SQL92;
use super::bloom::Shape;
use crate::persist::{File, LoadError, Persist};
use crate::state_json::JsonWriter;

/// Most filters that are kept; of more the later ones are not written down.
pub const MAX_FILTERS: usize = 100_000;
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
}

impl Filter {
    fn is_dead(&self) -> bool {
        self.dead_time >= self.born_time
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TopicFilters {
    group_filter_data: BTreeMap<String, Filter>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FilterFile {
    filter_data_by_topic: BTreeMap<String, TopicFilters>,
}

type Table = BTreeMap<Arc<str>, BTreeMap<Arc<str>, Filter>>;

/// The filters of all groups, by group and topic.
pub struct RegisteredFilters {
    table: Mutex<Table>,
    persist: Arc<Persist>,
    shape: Shape,
    kept_ms: i64,
}

/// What the configuration says of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterSettings {
    /// `maxErrorRateOfBloomFilter`: wrong hits of the Bloom filter, in percent.
    pub error_percent: u32,
    /// `expectConsumerNumUseFilter`: groups that the Bloom filter is made for.
    pub expected_groups: u32,
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
        let mut table = Table::new();
        for (topic, filters) in file.filter_data_by_topic {
            for (group, mut filter) in filters.group_filter_data {
                if !filter.is_dead() {
                    filter.dead_time = (now_ms - DEAD_BEFORE_START_MS).max(filter.born_time);
                }
                let of_group = table.entry(group.into()).or_default();
                of_group.insert(Arc::from(topic.as_str()), filter);
            }
        }
        Ok(Self {
            table: Mutex::new(table),
            persist,
            shape: Shape::new(settings.error_percent, settings.expected_groups),
            kept_ms: settings.kept_ms,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change leaves the table whole: a panic elsewhere does not matter.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A heartbeat named these subscriptions, all of the group's.
    pub fn register(&self, group: &str, subscriptions: &[Registration<'_>], now_ms: i64) {
        let mut table = self.table();
        let any = subscriptions.iter().any(|s| s.kind == SQL92);
        if !any && !table.contains_key(group) {
            return;
        }
        let room = MAX_FILTERS.saturating_sub(table.values().map(BTreeMap::len).sum());
        let filters = table.entry(Arc::from(group)).or_default();
        let before = filters.clone();
        for (topic, filter) in filters.iter_mut() {
            let named = subscriptions.iter().any(|s| s.topic == &**topic);
            if !named && !filter.is_dead() {
                filter.dead_time = now_ms;
            }
        }
        for subscription in subscriptions.iter().filter(|s| s.kind == SQL92) {
            if let Some(known) = filters.get_mut(subscription.topic) {
                renew(known, subscription, now_ms);
            } else if filters.len() < before.len() + room {
                let filter = fresh(subscription, now_ms);
                filters.insert(Arc::from(subscription.topic), filter);
            }
        }
        if *filters != before {
            self.persist.changed(File::ConsumerFilters);
        }
    }

    /// The group lost its last consumer.
    pub fn unregister(&self, group: &str, now_ms: i64) {
        let mut table = self.table();
        let Some(filters) = table.get_mut(group) else {
            return;
        };
        for filter in filters.values_mut().filter(|filter| !filter.is_dead()) {
            filter.dead_time = now_ms;
        }
        self.persist.changed(File::ConsumerFilters);
    }

    /// The text of the file, without filters that nobody used for long; `None` while there never
    /// was one.
    pub fn text(&self, now_ms: i64) -> Option<String> {
        let mut table = self.table();
        if table.is_empty() && !self.persist.path(File::ConsumerFilters).exists() {
            return None;
        }
        for filters in table.values_mut() {
            filters
                .retain(|_, filter| !filter.is_dead() || now_ms - filter.dead_time < self.kept_ms);
        }
        table.retain(|_, filters| !filters.is_empty());
        let mut by_topic: BTreeMap<&str, Vec<(&str, &Filter)>> = BTreeMap::new();
        for (group, filters) in table.iter() {
            for (topic, filter) in filters {
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
    }
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

fn parse(bytes: &[u8]) -> Result<FilterFile, String> {
    saturnmq_net::fastjson::from_file(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT_MS: i64 = 86_400_000;

    fn open(root: &std::path::Path, now_ms: i64) -> RegisteredFilters {
        let settings = FilterSettings {
            error_percent: 20,
            expected_groups: 32,
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
        filters.table()["G"]["T"].clone()
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
        assert!(filters.table().is_empty());
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
        assert!(!filters.table().contains_key("plain"));
    }
}
