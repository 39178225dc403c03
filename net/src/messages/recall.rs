//! Recalling a message for a time: code 370 (docs/protocol.md, "Request codes").

use super::headers;

headers! {
    /// Recalls a message (370).
    RecallMessage<'a> {
        producer_group: Option<&'a str> = "producerGroup",
        topic: &'a str = "topic",
        /// What the answer to the send said.
        recall_handle: &'a str = "recallHandle",
    }
}
