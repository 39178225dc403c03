//! The clients of a group.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use saturnmq_net::command::Language;

use crate::answer::Channel;

/// One client of a group: a connection and what its last heartbeat said.
#[derive(Debug)]
pub struct Member {
    /// The connection.
    pub channel: Channel,
    /// Client id.
    pub client_id: Arc<str>,
    /// Language of the client.
    pub language: Language,
    /// Protocol version of the client.
    pub version: i32,
    /// Address of the client.
    pub peer: SocketAddr,
    last_seen_ms: AtomicI64,
}

impl Member {
    /// A member seen at `steady_ms`.
    pub fn new(
        channel: Channel,
        client_id: &str,
        language: Language,
        version: i32,
        peer: SocketAddr,
        steady_ms: i64,
    ) -> Self {
        Self {
            channel,
            client_id: Arc::from(client_id),
            language,
            version,
            peer,
            last_seen_ms: AtomicI64::new(steady_ms),
        }
    }

    /// When the client's last heartbeat arrived, by [`crate::core::steady_ms`].
    pub fn last_seen_ms(&self) -> i64 {
        self.last_seen_ms.load(Ordering::Relaxed)
    }

    pub(super) fn seen(&self, steady_ms: i64) {
        self.last_seen_ms.store(steady_ms, Ordering::Relaxed);
    }
}
