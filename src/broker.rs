//! The broker's shared state: one structure in an `Arc`, read by every thread without locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::store::Store;

use crate::answer::CoreDirectory;
use crate::clients::Clients;
use crate::config::{Config, LiveConfig};
use crate::groups::Groups;
use crate::locks::QueueLocks;
use crate::name_server::{LocalBroker, NameServer};
use crate::names;
use crate::offsets::{ConsumerOffsets, DelayOffsets};
use crate::persist::{File, Persist, StateSource};
use crate::services::ServicesHandle;
use crate::topics::{Topic, Topics};

/// Ports that are listened on, once they are bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports {
    /// `listenPort`.
    pub broker: u16,
    /// `fastListenPort`.
    pub fast: Option<u16>,
    /// `nameServerPort`.
    pub name_server: Option<u16>,
    /// `httpPort`.
    pub http: Option<u16>,
}

/// Everything threads share.
pub struct Broker {
    /// Settings that are fixed for the life of the process.
    pub config: Config,
    /// Settings that request code 25 may change.
    pub live: ArcSwap<LiveConfig>,
    /// Ports that are listened on.
    pub ports: Ports,
    /// The store.
    pub store: Arc<Store>,
    /// Advertised address: written into records and offset message ids.
    pub store_host: SocketAddr,
    /// Topics.
    pub topics: Topics,
    /// Consumer groups.
    pub groups: Groups,
    /// Consumer offsets.
    pub offsets: ConsumerOffsets,
    /// Progress of the delay levels.
    pub delay_offsets: Arc<DelayOffsets>,
    /// Connected clients.
    pub clients: Clients,
    /// Locks of ordered consumption.
    pub locks: QueueLocks,
    /// The embedded name server's tables; unused when it is off.
    pub name_server: NameServer,
    /// State files.
    pub persist: Arc<Persist>,
    /// Network cores.
    pub cores: Arc<CoreDirectory>,
    /// The services thread.
    pub services: ServicesHandle,
    /// When this process started.
    pub started: Instant,
    /// The same in milliseconds since the epoch.
    pub started_ms: i64,
}

impl Broker {
    /// The store's queue behind a queue id of a topic.
    pub fn queue(&self, topic: &Topic, queue_id: i32) -> Option<Arc<Queue>> {
        topic.queue(queue_id, |name, id| {
            Some(self.store.queue_or_create(name, id))
        })
    }

    /// The queue that holds messages delayed by `level`, from 1.
    pub fn schedule_queue(&self, level: i32) -> Option<Arc<Queue>> {
        self.queue(
            self.topics.get(names::SCHEDULE_TOPIC)?.as_ref(),
            level.checked_sub(1)?,
        )
    }

    /// Enters this broker and its topics into the embedded name server's tables.
    pub fn register_local(&self) {
        let (version, topics) = self.topics.snapshot();
        let local = LocalBroker {
            cluster: self.config.cluster.clone(),
            name: self.config.broker_name.clone(),
            id: self.config.broker_id,
            address: self.address(),
        };
        self.name_server.register_local(&local, version, &topics);
    }

    /// `host:port` that clients are sent to.
    pub fn address(&self) -> String {
        address(&self.config.advertise, self.ports.broker)
    }
}

/// `host:port`, with brackets around an IPv6 host.
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

impl StateSource for Broker {
    fn text(&self, file: File) -> Option<String> {
        match file {
            File::Topics => Some(self.topics.text()),
            File::Groups => Some(self.groups.text()),
            File::ConsumerOffsets => Some(self.offsets.text()),
            File::DelayOffsets => Some(self.delay_offsets.text()),
            File::NameServerKv => self.name_server.kv_text(),
            File::ConsumerFilters => None,
        }
    }
}
