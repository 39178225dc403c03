//! Queue locks of orderly consumers: codes 41 and 42 (docs/protocol.md, "Request codes").

use serde::{Deserialize, Serialize};

/// A queue of a broker. As a key of a map it is written as an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MessageQueue {
    /// Name of the broker.
    pub broker_name: String,
    /// Number of the queue.
    pub queue_id: i32,
    /// The topic.
    pub topic: String,
}

/// Body of 41 and 42.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LockBatchRequest {
    /// The client that locks.
    pub client_id: String,
    /// The group it belongs to.
    pub consumer_group: String,
    /// The queues.
    pub mq_set: Vec<MessageQueue>,
    /// Do not ask other brokers.
    pub only_this_broker: bool,
}

/// Body of the answer to 41.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LockBatchResponse {
    /// The queues of the request that the client now holds.
    #[serde(rename = "lockOKMQSet")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}
