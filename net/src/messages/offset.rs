//! Offsets of consumers and of queues: codes 14, 15, 29 to 32, 308, 314 and 220 to 223
//! (docs/protocol.md, "Request codes").

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::headers;
use super::stats::QueueMap;
use crate::fastjson::{self, BodyError};

headers! {
    /// Asks for a group's offset in a queue (14).
    QueryConsumerOffset<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        set_zero_if_not_found: Option<bool> = "setZeroIfNotFound",
        broker_name: Option<&'a str> = "bname",
    }

    /// Stores a group's offset in a queue (15).
    UpdateConsumerOffset<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        commit_offset: i64 = "commitOffset",
        broker_name: Option<&'a str> = "bname",
    }

    /// Asks for an offset by time (29).
    SearchOffset<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        /// In ms since 1970.
        timestamp: i64 = "timestamp",
        /// `LOWER` (also when absent) or `UPPER`.
        boundary_type: Option<&'a str> = "boundaryType",
        broker_name: Option<&'a str> = "bname",
    }

    /// Asks for the next offset to be written (30).
    MaxOffset<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        committed: Option<bool> = "committed",
        broker_name: Option<&'a str> = "bname",
    }

    /// Asks for the lowest offset (31).
    MinOffset<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        broker_name: Option<&'a str> = "bname",
    }

    /// Asks when the oldest message of a queue was stored (32).
    EarliestTime<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        broker_name: Option<&'a str> = "bname",
    }

    /// The answer to 14, 29, 30 and 31.
    OffsetResponse {
        offset: i64 = "offset",
    }

    /// The answer to 32.
    TimestampResponse {
        /// In ms since 1970; -1: the queue is empty.
        timestamp: i64 = "timestamp",
    }

    /// Sets a group's offsets by time (222), also on its way to clients (220).
    ResetOffset<'a> {
        topic: &'a str = "topic",
        group: &'a str = "group",
        /// In ms since 1970; negative: the end.
        timestamp: i64 = "timestamp",
        is_force: bool = "isForce",
        /// Negative or absent: all queues.
        queue_id: Option<i32> = "queueId",
        /// -1 or absent: by time.
        offset: Option<i64> = "offset",
    }

    /// Asks for the offsets that clients hold (223, and 221 to clients).
    GetConsumerStatus<'a> {
        topic: &'a str = "topic",
        group: &'a str = "group",
        client_addr: Option<&'a str> = "clientAddr",
    }

    /// Copies a group's offsets (314).
    CloneGroupOffset<'a> {
        src_group: &'a str = "srcGroup",
        dest_group: &'a str = "destGroup",
        topic: Option<&'a str> = "topic",
        offline: bool = "offline",
    }

    /// Asks for offsets corrected by those of other groups (308).
    QueryCorrectionOffset<'a> {
        /// Separated by commas.
        filter_groups: Option<&'a str> = "filterGroups",
        compare_group: &'a str = "compareGroup",
        topic: &'a str = "topic",
    }
}

impl SearchOffset<'_> {
    /// Is the largest offset not after the time wanted, instead of the smallest not before it?
    pub fn is_upper(&self) -> bool {
        self.boundary_type
            .is_some_and(|boundary| boundary.eq_ignore_ascii_case("upper"))
    }
}

/// Body of the answer to 222 and of 220.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResetOffsetBody {
    /// New offset by queue.
    pub offset_table: QueueMap<i64>,
}

impl ResetOffsetBody {
    /// Appends the body in the form Java and Go clients read.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(b"{\"offsetTable\":");
        self.offset_table.write(out)?;
        out.push(b'}');
        Ok(())
    }

    /// Appends the body in the form C++ clients read: a list.
    pub fn write_for_cpp(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Entry<'a> {
            broker_name: &'a str,
            offset: i64,
            queue_id: i32,
            topic: &'a str,
        }
        let entries: Vec<_> = self
            .offset_table
            .0
            .iter()
            .map(|(queue, offset)| Entry {
                broker_name: &queue.broker_name,
                offset: *offset,
                queue_id: queue.queue_id,
                topic: &queue.topic,
            })
            .collect();
        out.extend_from_slice(b"{\"offsetTable\":");
        fastjson::write(out, &entries)?;
        out.push(b'}');
        Ok(())
    }
}

/// Body of the answers to 221 and 223.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerStatusBody {
    /// Offset by queue, of one client (221).
    pub message_queue_table: QueueMap<i64>,
    /// The same by client id (223).
    pub consumer_table: BTreeMap<String, QueueMap<i64>>,
}

impl ConsumerStatusBody {
    /// Appends the body.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(b"{\"consumerTable\":{");
        for (index, (client, table)) in self.consumer_table.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            fastjson::write(out, client)?;
            out.push(b':');
            table.write(out)?;
        }
        out.extend_from_slice(b"},\"messageQueueTable\":");
        self.message_queue_table.write(out)?;
        out.push(b'}');
        Ok(())
    }
}

/// Body of the answer to 308: offset by queue id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CorrectionOffsets {
    /// Offset by queue id.
    pub correction_offsets: BTreeMap<i32, i64>,
}
