//! Positions of queues and groups: codes 202, 208, 303, 317, 321
//! (docs/protocol.md, "Request codes").
//!
//! Their maps have queues as keys, which are written as bare objects: these bodies write
//! themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::headers;
use super::heartbeat::SubscriptionData;
use super::lock::MessageQueue;
use crate::fastjson::{self, BodyError};

headers! {
    /// Asks where a group stands (208).
    GetConsumeStats<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: Option<&'a str> = "topic",
        /// Separated by semicolons.
        topic_list: Option<&'a str> = "topicList",
    }

    /// Asks where all groups stand (317).
    GetBrokerConsumeStats {
        is_order: bool = "isOrder",
    }
}

/// A map by queue, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueMap<V>(pub Vec<(MessageQueue, V)>);

impl<V> Default for QueueMap<V> {
    fn default() -> Self {
        QueueMap(Vec::new())
    }
}

impl<V: Serialize> QueueMap<V> {
    /// Appends the map with bare objects as keys.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        fastjson::write_object_map(out, self.0.iter().map(|(queue, value)| (queue, value)))
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for QueueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = QueueMap<V>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map by queue")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    entries.push((fastjson::from_str(&key).map_err(A::Error::custom)?, value));
                }
                Ok(QueueMap(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Where a queue begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicOffset {
    /// When the last message was stored, in ms since 1970; 0: there is none.
    pub last_update_timestamp: i64,
    /// Next offset to be written.
    pub max_offset: i64,
    /// Lowest offset.
    pub min_offset: i64,
}

/// Body of the answer to 202.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicStatsTable {
    /// Positions by queue.
    pub offset_table: QueueMap<TopicOffset>,
    /// Messages stored per second.
    pub topic_put_tps: f64,
}

impl TopicStatsTable {
    /// Appends the body.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(b"{\"offsetTable\":");
        self.offset_table.write(out)?;
        out.extend_from_slice(b",\"topicPutTps\":");
        fastjson::write(out, &self.topic_put_tps)?;
        out.push(b'}');
        Ok(())
    }
}

/// Where a group stands in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OffsetWrapper {
    /// Next offset to be written.
    pub broker_offset: i64,
    /// The group's offset.
    pub consumer_offset: i64,
    /// When the last message consumed was stored, in ms since 1970.
    pub last_timestamp: i64,
    /// How far the group has pulled.
    pub pull_offset: i64,
}

/// Body of the answer to 208.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeStats {
    /// Messages consumed per second.
    pub consume_tps: f64,
    /// Positions by queue.
    pub offset_table: QueueMap<OffsetWrapper>,
}

impl ConsumeStats {
    /// Appends the body.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(b"{\"consumeTps\":");
        fastjson::write(out, &self.consume_tps)?;
        out.extend_from_slice(b",\"offsetTable\":");
        self.offset_table.write(out)?;
        out.push(b'}');
        Ok(())
    }
}

/// Body of the answer to 317.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeStatsList {
    /// `ip:port` of the broker.
    pub broker_addr: String,
    /// One element per group: its positions, one entry per topic.
    pub consume_stats_list: Vec<BTreeMap<String, Vec<ConsumeStats>>>,
    /// Messages not consumed yet.
    pub total_diff: i64,
    /// Messages pulled and not consumed yet.
    pub total_inflight_diff: i64,
}

impl ConsumeStatsList {
    /// Appends the body.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(b"{\"brokerAddr\":");
        fastjson::write(out, &self.broker_addr)?;
        out.extend_from_slice(b",\"consumeStatsList\":");
        write_list(out, &self.consume_stats_list, write_groups)?;
        out.extend_from_slice(b",\"totalDiff\":");
        fastjson::write(out, &self.total_diff)?;
        out.extend_from_slice(b",\"totalInflightDiff\":");
        fastjson::write(out, &self.total_inflight_diff)?;
        out.push(b'}');
        Ok(())
    }
}

fn write_groups(
    out: &mut Vec<u8>,
    groups: &BTreeMap<String, Vec<ConsumeStats>>,
) -> Result<(), BodyError> {
    out.push(b'{');
    for (index, (group, topics)) in groups.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        fastjson::write(out, group)?;
        out.push(b':');
        write_list(out, topics, |out, stats| stats.write(out))?;
    }
    out.push(b'}');
    Ok(())
}

fn write_list<T>(
    out: &mut Vec<u8>,
    elements: &[T],
    write: impl Fn(&mut Vec<u8>, &T) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    out.push(b'[');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, element)?;
    }
    out.push(b']');
    Ok(())
}

/// How far behind a group is in a queue, by time (303). All in ms since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueTimeSpan {
    /// When the last message consumed was stored.
    pub consume_time_stamp: i64,
    /// The same as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consume_time_stamp_str: Option<String>,
    /// How long it lies behind, in ms.
    pub delay_time: i64,
    /// When the last message was stored.
    pub max_time_stamp: i64,
    /// The same as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time_stamp_str: Option<String>,
    /// The queue.
    pub message_queue: MessageQueue,
    /// When the first message was stored.
    pub min_time_stamp: i64,
    /// The same as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_time_stamp_str: Option<String>,
}

/// Body of the answer to 303.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeTimeSpans {
    /// One entry per queue.
    pub consume_time_span_set: Vec<QueueTimeSpan>,
}

/// An entry of a consume queue (321).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeQueueData {
    /// Bits of filters that match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bit_map: Option<String>,
    /// The subscription matches.
    pub eval: bool,
    /// Further data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extend_data_json: Option<String>,
    /// Why `eval` is what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msg: Option<String>,
    /// Place in the log.
    pub physic_offset: i64,
    /// Size in the log, in bytes.
    pub physic_size: i32,
    /// Hash of the tag.
    pub tags_code: i64,
}

/// Body of the answer to 321.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueryConsumeQueueResponse {
    /// The group's compiled filter, described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_data: Option<String>,
    /// Next offset to be written.
    pub max_queue_index: i64,
    /// Lowest offset.
    pub min_queue_index: i64,
    /// The entries.
    pub queue_data: Vec<ConsumeQueueData>,
    /// The group's subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data: Option<SubscriptionData>,
}
