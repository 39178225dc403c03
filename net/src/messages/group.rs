//! Consumer groups: codes 200, 201, 207, 225, 300, 343, 345, 352, 353 and assignments 400, 401
//! (docs/protocol.md, "Request codes").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::headers;
use super::heartbeat::{MessageModel, SubscriptionData};
use super::lock::MessageQueue;
use super::topic::DataVersion;

headers! {
    /// Deletes a group (207).
    DeleteGroup<'a> {
        group_name: &'a str = "groupName",
        clean_offset: Option<bool> = "cleanOffset",
        /// What Apache RocketMQ 4.9 calls `cleanOffset`.
        remove_offset: Option<bool> = "removeOffset",
    }

    /// Names a group: 343, 352.
    GroupName<'a> {
        group: &'a str = "group",
    }

    /// Asks for all groups of a broker (201); older clients send no fields.
    GetAllGroups<'a> {
        group_seq: Option<i32> = "groupSeq",
        data_version: Option<&'a str> = "dataVersion",
        max_group_num: Option<i32> = "maxGroupNum",
    }
}

impl DeleteGroup<'_> {
    /// Are the group's offsets to be deleted as well?
    pub fn cleans_offsets(&self) -> bool {
        self.clean_offset.or(self.remove_offset).unwrap_or(false)
    }
}

/// How long a message waits before it is tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupRetryPolicy {
    /// Counts for `CUSTOMIZED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customized_retry_policy: Option<CustomizedRetryPolicy>,
    /// Counts for `EXPONENTIAL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exponential_retry_policy: Option<ExponentialRetryPolicy>,
    /// `CUSTOMIZED` or `EXPONENTIAL`.
    #[serde(rename = "type")]
    pub kind: String,
}

impl Default for GroupRetryPolicy {
    fn default() -> Self {
        GroupRetryPolicy {
            customized_retry_policy: None,
            exponential_retry_policy: None,
            kind: "CUSTOMIZED".to_owned(),
        }
    }
}

/// A list of waiting times.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CustomizedRetryPolicy {
    /// The times in ms.
    pub next: Vec<i64>,
}

/// Waiting times that grow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExponentialRetryPolicy {
    /// The first time in ms.
    pub initial: i64,
    /// The longest time in ms.
    pub max: i64,
    /// Each time is that many times the one before.
    pub multiplier: f64,
}

impl Default for ExponentialRetryPolicy {
    fn default() -> Self {
        ExponentialRetryPolicy {
            initial: 5_000,
            max: 7_200_000,
            multiplier: 2.0,
        }
    }
}

/// A subscription set for a group by its administrator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SimpleSubscription {
    /// The filter.
    pub expression: String,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// The topic.
    pub topic: String,
    /// Grows with every change.
    pub version: i64,
}

/// What a broker knows of a group: body of 200.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupConfig {
    /// Further settings by key.
    pub attributes: BTreeMap<String, String>,
    /// Broker to read from.
    pub broker_id: i64,
    /// Broadcasting is allowed.
    pub consume_broadcast_enable: bool,
    /// Consuming is allowed.
    pub consume_enable: bool,
    /// Obsolete.
    pub consume_from_min_enable: bool,
    /// Pops keep the order.
    pub consume_message_orderly: bool,
    /// After that many minutes a message counts as not consumed.
    pub consume_timeout_minute: i32,
    /// Name of the group.
    pub group_name: String,
    /// Waiting times between tries.
    pub group_retry_policy: GroupRetryPolicy,
    /// Bits like those of topics.
    pub group_sys_flag: i32,
    /// Members are told when others come and go.
    pub notify_consumer_ids_changed_enable: bool,
    /// Tries before a message is a dead letter.
    pub retry_max_times: i32,
    /// Queues of the retry topic.
    pub retry_queue_nums: i32,
    /// Subscriptions set by the administrator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data_set: Option<Vec<SimpleSubscription>>,
    /// Broker to read from when the group lags.
    pub which_broker_when_consume_slowly: i64,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        SubscriptionGroupConfig {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_retry_policy: GroupRetryPolicy::default(),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            subscription_data_set: None,
            which_broker_when_consume_slowly: 1,
        }
    }
}

/// All groups of a broker: body of the answer to 201.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupWrapper {
    /// Version of the table.
    pub data_version: DataVersion,
    /// Topics a group must not read: bits by topic by group.
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    /// Groups by name.
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

/// Body of 225.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupList {
    /// The groups.
    pub group_config_list: Vec<SubscriptionGroupConfig>,
}

/// Body of the answer to 300.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupList {
    /// Names of groups.
    pub group_list: Vec<String>,
}

/// Body of the answer to 345.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupSubscription {
    /// The group.
    pub group: String,
    /// What it wants of the topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data: Option<SubscriptionData>,
    /// The topic.
    pub topic: String,
}

/// Body of the answer to 353.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupForbidden {
    /// The group.
    pub group: String,
    /// May it read the topic?
    pub readable: bool,
    /// The topic.
    pub topic: String,
}

/// Body of 400.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueryAssignment {
    /// The client that asks.
    pub client_id: String,
    /// Its group.
    pub consumer_group: String,
    /// Who gets a message.
    pub message_model: MessageModel,
    /// `AVG` or `AVG_BY_CIRCLE`.
    pub strategy_name: String,
    /// The topic.
    pub topic: String,
}

/// A queue for a client, in the answer to 400.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assignment {
    /// The queue.
    pub message_queue: MessageQueue,
    /// `PULL` or `POP`.
    pub mode: String,
}

/// Body of the answer to 400.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assignments {
    /// The queues; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_queue_assignments: Option<Vec<Assignment>>,
}

/// Body of 401.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SetRequestMode {
    /// The group.
    pub consumer_group: String,
    /// `PULL` or `POP`.
    pub mode: String,
    /// How many queues clients share.
    pub pop_share_queue_num: i32,
    /// The topic.
    pub topic: String,
}
