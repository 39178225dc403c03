//! Registration of clients: codes 34, 35, 38, 46, 40 and what tools ask about clients
//! (docs/protocol.md, "Request codes").

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{StrDeserializer, U32Deserializer};
use serde::de::{self, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::headers;

headers! {
    /// A client leaves (35). C++ clients send empty text for the group they do not mean.
    UnregisterClient<'a> {
        client_id: Option<&'a str> = "clientID",
        producer_group: Option<&'a str> = "producerGroup",
        consumer_group: Option<&'a str> = "consumerGroup",
    }

    /// Names a consumer group: 38, 203, and 40 to clients.
    ConsumerGroup<'a> {
        consumer_group: &'a str = "consumerGroup",
    }

    /// Names a producer group: 204.
    ProducerGroup<'a> {
        producer_group: &'a str = "producerGroup",
    }

    /// The answer to a heartbeat.
    HeartbeatResponse {
        supports_v2: Option<bool> = "IS_SUPPORT_HEART_BEAT_V2",
        subscription_changed: Option<bool> = "IS_SUB_CHANGE",
    }

    /// Asks a client for its inner state (307).
    ConsumerRunningInfo<'a> {
        consumer_group: &'a str = "consumerGroup",
        client_id: &'a str = "clientId",
        jstack_enable: bool = "jstackEnable",
    }

    /// Makes a client consume one message (309).
    ConsumeMessageDirectly<'a> {
        consumer_group: &'a str = "consumerGroup",
        client_id: Option<&'a str> = "clientId",
        /// Offset message id.
        msg_id: Option<&'a str> = "msgId",
        broker_name: Option<&'a str> = "brokerName",
        topic: Option<&'a str> = "topic",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        group_sys_flag: Option<i32> = "groupSysFlag",
    }
}

/// How a consumer gets its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConsumeType {
    /// It pulls when it likes.
    ConsumeActively,
    /// It is called for each message.
    #[default]
    ConsumePassively,
    /// It pops.
    ConsumePop,
}

/// Who of a group gets a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MessageModel {
    /// Every member.
    Broadcasting,
    /// One member.
    #[default]
    Clustering,
}

/// Where a new group starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(clippy::enum_variant_names)] // the names of the wire
pub enum ConsumeFromWhere {
    /// At the end.
    #[default]
    ConsumeFromLastOffset,
    /// Obsolete: at the end.
    ConsumeFromLastOffsetAndFromMinWhenBootFirst,
    /// Obsolete: at the end.
    ConsumeFromMinOffset,
    /// Obsolete: at the end.
    ConsumeFromMaxOffset,
    /// At the beginning.
    ConsumeFromFirstOffset,
    /// At a time.
    ConsumeFromTimestamp,
}

/// What a group wants of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionData {
    /// Obsolete.
    pub class_filter_mode: bool,
    /// Java's `String.hashCode` of each tag; Go clients hash UTF-8 bytes instead.
    pub code_set: Vec<i32>,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// `*`, tags with `||` between them, or an SQL92 expression.
    pub sub_string: String,
    /// Grows with every change: ms (Java) or ns (Go) since 1970.
    pub sub_version: i64,
    /// The tags.
    pub tags_set: Vec<String>,
    /// The topic.
    pub topic: String,
}

impl Default for SubscriptionData {
    fn default() -> Self {
        SubscriptionData {
            class_filter_mode: false,
            code_set: Vec::new(),
            expression_type: "TAG".to_owned(),
            sub_string: String::new(),
            sub_version: 0,
            tags_set: Vec::new(),
            topic: String::new(),
        }
    }
}

/// Reads one of the names or ordinals of `T`. A name that nobody knows gives the default: Go
/// clients before 2.0.0 call their consume type `PUSH`, and Apache's brokers take such a value for
/// none.
struct Known<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Known<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name or an ordinal")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
        let name: StrDeserializer<'_, E> = name.into_deserializer();
        Ok(T::deserialize(name).unwrap_or_default())
    }

    fn visit_i64<E: de::Error>(self, ordinal: i64) -> Result<T, E> {
        let ordinal = u32::try_from(ordinal).map_err(E::custom)?;
        let ordinal: U32Deserializer<E> = ordinal.into_deserializer();
        T::deserialize(ordinal)
    }

    fn visit_unit<E: de::Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

fn known<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer.deserialize_any(Known(PhantomData))
}

/// A group of consumers that a client is a member of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerData {
    /// Where the group starts when it is new.
    #[serde(deserialize_with = "known")]
    pub consume_from_where: ConsumeFromWhere,
    /// How the client gets messages.
    #[serde(deserialize_with = "known")]
    pub consume_type: ConsumeType,
    /// Name of the group.
    pub group_name: String,
    /// Who gets a message.
    #[serde(deserialize_with = "known")]
    pub message_model: MessageModel,
    /// What the group wants.
    pub subscription_data_set: Vec<SubscriptionData>,
    /// Unit mode.
    pub unit_mode: bool,
}

/// A group of producers that a client is a member of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerData {
    /// Name of the group.
    pub group_name: String,
}

/// Body of a heartbeat (34).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeartbeatData {
    /// Id of the client.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Its consumer groups.
    pub consumer_data_set: Vec<ConsumerData>,
    /// Not 0: the short form of heartbeats is offered.
    pub heartbeat_fingerprint: i32,
    /// Its producer groups.
    pub producer_data_set: Vec<ProducerData>,
    /// Subscriptions are as before and left out.
    pub without_sub: bool,
}

/// Body of 46.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckClientConfig {
    /// Id of the client.
    pub client_id: String,
    /// Its group.
    pub group: String,
    /// Its namespace.
    pub namespace: String,
    /// What it wants to subscribe to.
    pub subscription_data: SubscriptionData,
}

/// Body of the answer to 38.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerIdList {
    /// Client ids of the members.
    pub consumer_id_list: Vec<String>,
}

/// A client's connection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connection {
    /// `ip:port`.
    pub client_addr: String,
    /// Id of the client.
    pub client_id: String,
    /// Its language, by the name of the wire.
    pub language: String,
    /// Its version.
    pub version: i32,
}

/// Body of the answer to 203.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerConnection {
    /// The members.
    pub connection_set: Vec<Connection>,
    /// Where the group starts when it is new.
    pub consume_from_where: ConsumeFromWhere,
    /// How the members get messages.
    pub consume_type: ConsumeType,
    /// Who gets a message.
    pub message_model: MessageModel,
    /// Subscription by topic.
    pub subscription_table: BTreeMap<String, SubscriptionData>,
}

/// Body of the answer to 204.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerConnection {
    /// The members.
    pub connection_set: Vec<Connection>,
}

/// A producer, in the answer to 328.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerInfo {
    /// Id of the client.
    pub client_id: String,
    /// Its language, by the name of the wire.
    pub language: String,
    /// Its last heartbeat, in ms since 1970.
    pub last_update_timestamp: i64,
    /// `ip:port`.
    #[serde(rename = "remoteIP")]
    pub remote_ip: String,
    /// Its version.
    pub version: i32,
}

/// Body of the answer to 328.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerTable {
    /// Members by group.
    pub data: BTreeMap<String, Vec<ProducerInfo>>,
}
