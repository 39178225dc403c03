//! The broker's shared state: one structure in an `Arc`, read by every thread without locks.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use saturnmq_storage::append_queue::LightQueues;
use saturnmq_storage::format::message::MessageParts;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::store::Store;

use crate::answer::CoreDirectory;
use crate::clients::Clients;
use crate::config::{Config, LiveConfig, UpdateError};
use crate::core::now_ms;
use crate::filter::registered::RegisteredFilters;
use crate::groups::Groups;
use crate::light::{self, is_light};
use crate::locks::QueueLocks;
use crate::name_server::{LocalBroker, NameServer};
use crate::names;
use crate::offsets::{ConsumerOffsets, DelayOffsets};
use crate::persist::{File, Persist, StateSource, Ticket};
use crate::services::ServicesHandle;
use crate::stats::Stats;
use crate::timer::Timers;
use crate::topics::{Topic, TopicConfig, Topics};
use crate::transaction::Transactions;

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
    /// Transactions.
    pub transactions: Transactions,
    /// Messages for a time.
    pub timers: Timers,
    /// Connected clients.
    pub clients: Clients,
    /// Locks of ordered consumption.
    pub locks: QueueLocks,
    /// The embedded name server's tables; unused when it is off.
    pub name_server: NameServer,
    /// SQL92 selectors as they are written down.
    pub filters: RegisteredFilters,
    /// State files.
    pub persist: Arc<Persist>,
    /// Network cores.
    pub cores: Arc<CoreDirectory>,
    /// The services thread.
    pub services: ServicesHandle,
    /// Configuration updates, one at a time, and who hears that the registration changed.
    pub updates: Updates,
    /// What goes through, over time.
    pub stats: Stats,
    /// Counts changes by administrators, and of groups' subscriptions, after which a pull that
    /// waits must be checked anew.
    pub rules: AtomicU32,
    /// Whether clients are asked to go elsewhere: the broker is about to stop.
    pub leaving: AtomicBool,
    /// When this process started.
    pub started: Instant,
    /// The same in milliseconds since the epoch.
    pub started_ms: i64,
}

impl Broker {
    /// What may be read, or is wanted, changed: pulls that wait are checked anew.
    pub fn rules_changed(&self) {
        self.rules.fetch_add(1, Ordering::Release);
    }

    /// These queues were removed: pulls that wait for their messages ask again, perhaps for those
    /// of a topic that is made anew.
    pub fn queues_gone(&self, queues: &[Arc<Queue>]) {
        for queue in queues {
            let watchers = queue.take_watchers();
            for core in (0..self.cores.len()).filter(|core| watchers >> core & 1 != 0) {
                // A full inbox: the pull is answered when its time is over.
                let _ = self.cores.post(
                    core,
                    crate::answer::CoreMessage::Moved { queue: queue.slot },
                );
            }
        }
    }

    /// The store's queue behind a queue id of a topic.
    pub fn queue(&self, topic: &Topic, queue_id: i32) -> Option<Arc<Queue>> {
        topic.queue(queue_id, |name, id| {
            let light = self.config.light;
            if light.enabled && is_light(name) {
                return self.store.light_queue(name, light.most);
            }
            Some(self.store.queue_or_create(name, id))
        })
    }

    /// The light queues that a message enters which was acknowledged before, as
    /// [`light::enter_at_last`] finds them.
    pub(crate) fn enter_light_queues(&self, parts: &MessageParts<'_>, queues: &mut LightQueues) {
        light::enter_at_last(&self.store, self.config.light, parts, queues);
    }

    /// The change of a topic that is not on the disk yet and that a queue of it relies on: nothing
    /// may be acknowledged in the queue before it is, or a crash would take both.
    pub fn awaited(&self, topic: &Topic, queue_id: i32) -> Option<Ticket> {
        topic
            .awaited(queue_id)
            .filter(|ticket| !self.persist.is_durable(*ticket))
    }

    /// The queue that holds messages delayed by `level`, from 1.
    pub fn schedule_queue(&self, level: i32) -> Option<Arc<Queue>> {
        self.queue(
            self.topics.get(names::SCHEDULE_TOPIC)?.as_ref(),
            level.checked_sub(1)?,
        )
    }

    /// The queue that holds half messages.
    pub fn half_queue(&self) -> Option<Arc<Queue>> {
        self.queue(self.topics.get(names::HALF_TOPIC)?.as_ref(), 0)
    }

    /// The queue that holds messages for a time.
    pub fn timer_queue(&self) -> Option<Arc<Queue>> {
        self.queue(self.topics.get(names::TIMER_TOPIC)?.as_ref(), 0)
    }

    /// The queue that says which half messages are done with.
    pub fn op_queue(&self) -> Option<Arc<Queue>> {
        self.queue(self.topics.get(names::OP_HALF_TOPIC)?.as_ref(), 0)
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
        let renewed = self.name_server.register_local(&local, version);
        let names = topics.into_iter().map(|config| config.name);
        let mask = |config: &mut TopicConfig| self.mask(config);
        self.name_server
            .enter_topics(&local.name, &self.topics, names, renewed, mask);
    }

    /// Enters one topic that was made or altered.
    pub fn register_topic(&self, config: &TopicConfig) {
        let mut config = config.clone();
        self.mask(&mut config);
        self.name_server
            .topic_changed(&self.config.broker_name, &config);
    }

    /// A topic permits no more than its broker does; one that reads and writes changes nothing,
    /// neither the bit of template topics.
    fn mask(&self, config: &mut TopicConfig) {
        config.perm = masked(config.perm, self.live.load().broker_permission);
    }

    /// Applies an update of the configuration (request code 25): everything or nothing. A changed
    /// `brokerPermission` is registered at once.
    ///
    /// # Errors
    /// [`UpdateError`] names the first key that cannot be applied.
    pub fn update_config(&self, properties_text: &str) -> Result<(), UpdateError> {
        let _one = self
            .updates
            .one
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = self.live.load_full();
        let after = before.apply(properties_text)?;
        let registered = before.broker_permission == after.broker_permission;
        self.live.store(Arc::new(after));
        if !registered {
            self.topics.touch();
            self.register_local();
            if let Some(tell) = self.updates.registration.get() {
                tell();
            }
        }
        Ok(())
    }

    /// `host:port` that clients are sent to.
    pub fn address(&self) -> String {
        address(&self.config.advertise, self.ports.broker)
    }
}

/// What configuration updates need beside the settings themselves.
#[derive(Default)]
pub struct Updates {
    one: Mutex<()>,
    /// Called when outer name servers must hear of this broker again.
    pub registration: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What a name server is told of a topic's permission.
pub fn masked(topic: i32, broker: i32) -> i32 {
    const READ_WRITE: i32 = 6;
    if broker == READ_WRITE {
        topic
    } else {
        topic & broker
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
            File::ConsumerFilters => self.filters.text(now_ms()),
        }
    }
}
