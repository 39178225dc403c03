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
