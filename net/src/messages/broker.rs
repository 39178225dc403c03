//! Settings and statistics of a broker: codes 26 and 315 (docs/protocol.md, "Request codes").

use serde::{Deserialize, Serialize};

use super::headers;

headers! {
    /// The answer to 26; the body is text in the form of Java's properties files.
    GetBrokerConfigResponse<'a> {
        /// A data version as JSON text.
        version: &'a str = "version",
    }

    /// Asks for a statistics item (315).
    ViewBrokerStats<'a> {
        stats_name: &'a str = "statsName",
        stats_key: &'a str = "statsKey",
    }
}

/// Of a replica that copies from its master, in the answer to 907.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HaClientRuntimeInfo {
    /// Of the last read, in ms since 1970.
    pub last_read_timestamp: i64,
    /// Of the last write, in ms since 1970.
    pub last_write_timestamp: i64,
    /// How far the master has flushed, in bytes.
    pub master_flush_offset: i64,
    /// How far it has copied, in bytes.
    pub max_offset: i64,
    /// Bytes per second.
    pub transferred_byte_in_second: i64,
}

/// Body of the answer to 907.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HaRuntimeInfo {
    /// What a replica does; zeros for a master.
    pub ha_client_runtime_info: HaClientRuntimeInfo,
    /// The replicas; there are none.
    pub ha_connection_info: Vec<serde_json::Value>,
    /// How many replicas keep up.
    pub in_sync_slave_nums: i32,
    /// Whether this is the master.
    pub master: bool,
    /// The end of the log, in bytes.
    pub master_commit_log_max_offset: u64,
}

/// A statistics item over one span of time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerStatsItem {
    /// Mean value of one event.
    pub avgpt: f64,
    /// Sum of the values.
    pub sum: i64,
    /// Sum per second.
    pub tps: f64,
}

/// Body of the answer to 315.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerStatsData {
    /// Over the last day.
    pub stats_day: BrokerStatsItem,
    /// Over the last hour.
    pub stats_hour: BrokerStatsItem,
    /// Over the last minute.
    pub stats_minute: BrokerStatsItem,
}
