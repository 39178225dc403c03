//! Routes and lists of the name server: bodies of 105, 106, 206, 224, 304, 311 to 313, 901
//! (docs/protocol.md, "Request codes").
//!
//! Written as strict compact JSON with quoted keys, which every client reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Broker id of a master.
pub const MASTER_ID: i64 = 0;

/// A broker's queues of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueData {
    /// Name of the broker.
    pub broker_name: String,
    /// Permission bits of the topic.
    pub perm: i32,
    /// Queues that are read.
    pub read_queue_nums: i32,
    /// Bits of the topic; servers up to 4.8 spell it differently.
    #[serde(alias = "topicSynFlag")]
    pub topic_sys_flag: i32,
    /// Queues that are written.
    pub write_queue_nums: i32,
}

/// A broker, by the addresses of its master and slaves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerData {
    /// `ip:port` by broker id; 0 is the master.
    pub broker_addrs: BTreeMap<i64, String>,
    /// Name of the broker.
    pub broker_name: String,
    /// Name of its cluster.
    pub cluster: String,
    /// A slave may act for the master.
    pub enable_acting_master: bool,
    /// Zone of the broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_name: Option<String>,
}

/// Body of the answer to 105.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicRouteData {
    /// The brokers that have the topic.
    pub broker_datas: Vec<BrokerData>,
    /// Obsolete: filter servers by broker address.
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues;…` for ordered topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// The queues by broker.
    pub queue_datas: Vec<QueueData>,
}

/// Body of the answer to 106.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Brokers by name.
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

/// A list of topics.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicList {
    /// Address of a broker to ask for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The names.
    pub topic_list: Vec<String>,
}

/// The members of a broker, in the answer to 901.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    /// `ip:port` by broker id.
    pub broker_addrs: BTreeMap<i64, String>,
    /// Name of the broker.
    pub broker_name: String,
    /// Name of its cluster.
    pub cluster: String,
}

/// Body of the answer to 901.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GetBrokerMemberGroupResponse {
    /// The members.
    pub broker_member_group: BrokerMemberGroup,
}
