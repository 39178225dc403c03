//! Pops: codes 200050 to 200055 and 200151 (docs/protocol.md, "Request codes").
//!
//! The codes do not fit into 16 bits: always JSON headers.

use serde::{Deserialize, Serialize};

use super::headers;

headers! {
    /// Asks for messages of any queue (200050).
    PopRequest<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        /// Negative: any queue of the broker.
        queue_id: i32 = "queueId",
        max_msg_nums: i32 = "maxMsgNums",
        /// How long nobody else gets the messages, in ms.
        invisible_time: i64 = "invisibleTime",
        /// How long the answer may wait, in ms.
        poll_time: i64 = "pollTime",
        /// When the request was made, in ms since 1970; 0 or absent: now.
        born_time: Option<i64> = "bornTime",
        /// Where a new group starts: 0 at the beginning, 1 at the end.
        init_mode: i32 = "initMode",
        /// `TAG` or `SQL92`.
        exp_type: Option<&'a str> = "expType",
        exp: Option<&'a str> = "exp",
        order: Option<bool> = "order",
        attempt_id: Option<&'a str> = "attemptId",
        broker_name: Option<&'a str> = "bname",
    }

    /// The answer to 200050.
    PopResponse<'a> {
        /// In ms since 1970.
        pop_time: i64 = "popTime",
        invisible_time: i64 = "invisibleTime",
        revive_qid: i32 = "reviveQid",
        rest_num: i64 = "restNum",
        start_offset_info: Option<&'a str> = "startOffsetInfo",
        msg_offset_info: Option<&'a str> = "msgOffsetInfo",
        order_count_info: Option<&'a str> = "orderCountInfo",
    }

    /// A popped message is consumed (200051).
    AckMessage<'a> {
        consumer_group: &'a str = "consumerGroup",
        /// Where the message is stored: the retry topic if it came from there.
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        /// The check point.
        extra_info: &'a str = "extraInfo",
        offset: i64 = "offset",
        broker_name: Option<&'a str> = "bname",
    }

    /// Changes when a popped message comes again (200053).
    ChangeInvisibleTime<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        /// The check point.
        extra_info: &'a str = "extraInfo",
        offset: i64 = "offset",
        /// In ms from now.
        invisible_time: i64 = "invisibleTime",
        broker_name: Option<&'a str> = "bname",
    }

    /// The answer to 200053: parts of the new check point.
    ChangeInvisibleTimeResponse {
        /// In ms since 1970.
        pop_time: i64 = "popTime",
        invisible_time: i64 = "invisibleTime",
        revive_qid: i32 = "reviveQid",
    }

    /// Waits until there is something to pop (200054).
    Notification<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        /// How long the answer may wait, in ms.
        poll_time: i64 = "pollTime",
        /// When the request was made, in ms since 1970.
        born_time: Option<i64> = "bornTime",
        order: Option<bool> = "order",
        attempt_id: Option<&'a str> = "attemptId",
    }

    /// The answer to 200054.
    NotificationResponse {
        has_msg: bool = "hasMsg",
        polling_full: bool = "pollingFull",
    }

    /// Asks how many wait (200055).
    PollingInfo<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
    }

    /// The answer to 200055.
    PollingInfoResponse {
        polling_num: i32 = "pollingNum",
    }

    /// Looks at messages without popping them (200052).
    PeekMessage<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        max_msg_nums: i32 = "maxMsgNums",
    }
}

/// Consumed messages of one check point (200151).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchAck {
    /// Bits as base64, the lowest of the first byte first: bit i stands for offset `so` + i.
    #[serde(rename = "b")]
    pub bits: String,
    /// The group.
    #[serde(rename = "c")]
    pub consumer_group: String,
    /// How long the messages were invisible, in ms.
    #[serde(rename = "it")]
    pub invisible_time: i64,
    /// When they were popped, in ms since 1970.
    #[serde(rename = "pt")]
    pub pop_time: i64,
    /// The queue.
    #[serde(rename = "q")]
    pub queue_id: i32,
    /// Kind of topic: 0 normal, 1 and 2 retry.
    #[serde(rename = "r")]
    pub retry: String,
    /// Queue of the revive topic.
    #[serde(rename = "rq")]
    pub revive_queue_id: i32,
    /// First offset.
    #[serde(rename = "so")]
    pub start_offset: i64,
    /// The topic, without what marks it as a retry topic.
    #[serde(rename = "t")]
    pub topic: String,
}

/// Body of 200151.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BatchAckBody {
    /// One entry per check point.
    pub acks: Vec<BatchAck>,
    /// Name of the broker.
    pub broker_name: String,
}
