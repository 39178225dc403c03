//! Pulls of old messages, which the services thread reads, and what they came to.

use saturnmq_net::driver::{ConnectionId, Outbox};
use saturnmq_storage::reader::Pulled;

use super::{Pull, is_refused};
use crate::core::Core;

impl std::fmt::Debug for Pull {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Pull")
            .field("topic", &self.topic.config.name)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// How much a pull found.
#[derive(Copy, Clone, Debug, Default)]
pub struct Size {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

impl Size {
    /// What the store found.
    pub fn of(pulled: &Pulled) -> Self {
        Self {
            messages: u64::from(pulled.count),
            bytes: pulled.bytes as u64,
        }
    }
}

/// Answers a pull of old messages, which may have found `found` in `frame`.
pub fn answer_cold(
    core: &Core,
    conn: ConnectionId,
    pull: &Pull,
    found: Size,
    frame: &[u8],
    io: &mut Outbox,
) {
    // Others may have taken the room while it was read.
    if found.messages > 0 && is_refused(pull, conn, io) {
        return;
    }
    if let Some(out) = io.buffer(conn) {
        out.extend_from_slice(frame);
        io.wrote(frame.len());
        if found.messages > 0 {
            count_found(core, pull, found);
        }
    }
}

/// Counts what a client is sent.
pub fn count_found(core: &Core, pull: &Pull, found: Size) {
    let Size { messages, bytes } = found;
    pull.topic.traffic.get(&pull.counted, messages, bytes);
    core.broker.stats.thread(core.index).found(messages, bytes);
}
