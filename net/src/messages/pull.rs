//! Pulls: codes 11 and 361 (docs/protocol.md, "Pulling").

use super::headers;

/// `sysFlag` bit: `commitOffset` is to be stored.
pub const PULL_COMMIT_OFFSET: i32 = 0x1;
/// `sysFlag` bit: the answer may wait for messages.
pub const PULL_SUSPEND: i32 = 0x2;
/// `sysFlag` bit: the request's subscription counts, not that of the heartbeats.
pub const PULL_SUBSCRIPTION: i32 = 0x4;
/// `sysFlag` bit: a class filter (obsolete).
pub const PULL_CLASS_FILTER: i32 = 0x8;
/// `sysFlag` bit: a lite pull consumer asks.
pub const PULL_LITE: i32 = 0x10;

headers! {
    /// A pull from one queue.
    PullRequest<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        /// First queue offset wanted.
        queue_offset: i64 = "queueOffset",
        max_msg_nums: i32 = "maxMsgNums",
        /// See the `PULL_` bits.
        sys_flag: i32 = "sysFlag",
        /// Counts with [`PULL_COMMIT_OFFSET`].
        commit_offset: Option<i64> = "commitOffset",
        /// How long the answer may wait, in ms; counts with [`PULL_SUSPEND`].
        suspend_timeout_ms: Option<i64> = "suspendTimeoutMillis",
        /// Filter expression; counts with [`PULL_SUBSCRIPTION`].
        subscription: Option<&'a str> = "subscription",
        sub_version: Option<i64> = "subVersion",
        /// `TAG` or `SQL92`; absent: `TAG`.
        expression_type: Option<&'a str> = "expressionType",
        max_msg_bytes: Option<i32> = "maxMsgBytes",
        request_source: Option<i32> = "requestSource",
        broker_name: Option<&'a str> = "bname",
    }

    /// The answer to a pull, for all codes that tell where to go on (0, 19, 20, 21).
    PullResponse {
        /// 0: go on with the master.
        suggest_which_broker_id: i64 = "suggestWhichBrokerId",
        next_begin_offset: i64 = "nextBeginOffset",
        min_offset: i64 = "minOffset",
        max_offset: i64 = "maxOffset",
        offset_delta: Option<i64> = "offsetDelta",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        group_sys_flag: Option<i32> = "groupSysFlag",
        /// With code 16: 1 broker, 2 group, 3 topic, 4 broadcasting, 5 subscription.
        forbidden_type: Option<i32> = "forbiddenType",
    }
}
