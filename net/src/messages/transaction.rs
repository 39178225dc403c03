//! Transactions: codes 37, 39 and 323 (docs/protocol.md, "Request codes").

use super::headers;

/// `commitOrRollback` of a transaction whose state the client does not know.
pub const TRANSACTION_UNKNOWN: i32 = 0x0;
/// `commitOrRollback` of a commit.
pub const TRANSACTION_COMMIT: i32 = 0x8;
/// `commitOrRollback` of a rollback.
pub const TRANSACTION_ROLLBACK: i32 = 0xc;

headers! {
    /// Ends a transaction (37).
    EndTransaction<'a> {
        topic: Option<&'a str> = "topic",
        producer_group: &'a str = "producerGroup",
        /// Queue offset of the half message.
        tran_state_table_offset: i64 = "tranStateTableOffset",
        /// Log offset of the half message.
        commit_log_offset: i64 = "commitLogOffset",
        /// See the `TRANSACTION_` values.
        commit_or_rollback: i32 = "commitOrRollback",
        /// The client was asked (39).
        from_transaction_check: bool = "fromTransactionCheck",
        msg_id: Option<&'a str> = "msgId",
        transaction_id: Option<&'a str> = "transactionId",
        broker_name: Option<&'a str> = "bname",
    }

    /// Asks a client what became of a transaction (39, broker to client).
    CheckTransactionState<'a> {
        topic: Option<&'a str> = "topic",
        tran_state_table_offset: i64 = "tranStateTableOffset",
        commit_log_offset: i64 = "commitLogOffset",
        msg_id: Option<&'a str> = "msgId",
        transaction_id: Option<&'a str> = "transactionId",
        offset_msg_id: Option<&'a str> = "offsetMsgId",
        broker_name: Option<&'a str> = "bname",
    }

    /// Starts checking a half message again (323).
    ResumeCheckHalfMessage<'a> {
        topic: Option<&'a str> = "topic",
        msg_id: Option<&'a str> = "msgId",
    }
}
