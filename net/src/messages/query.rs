//! Messages by key and by place: codes 12, 33 and 321 (docs/protocol.md, "Request codes").

use super::headers;

headers! {
    /// Asks for messages by key (12).
    QueryMessage<'a> {
        topic: &'a str = "topic",
        key: &'a str = "key",
        max_num: i32 = "maxNum",
        /// Stored not before, in ms since 1970.
        begin_timestamp: i64 = "beginTimestamp",
        /// Stored not after, in ms since 1970.
        end_timestamp: i64 = "endTimestamp",
        /// The key is a unique id that clients give to each message.
        unique_key: bool = "_UNIQUE_KEY_QUERY",
    }

    /// The answer to 12.
    QueryMessageResponse {
        /// In ms since 1970.
        index_last_update_timestamp: i64 = "indexLastUpdateTimestamp",
        index_last_update_phyoffset: i64 = "indexLastUpdatePhyoffset",
    }

    /// Asks for one message (33).
    ViewMessage<'a> {
        /// Its place in the log.
        offset: i64 = "offset",
        topic: Option<&'a str> = "topic",
    }

    /// Asks for entries of a consume queue (321).
    QueryConsumeQueue<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        index: i64 = "index",
        count: i32 = "count",
        consumer_group: Option<&'a str> = "consumerGroup",
    }
}
