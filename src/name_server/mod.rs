//! The embedded name server, and the registration with outer ones (docs/behaviour.md, "Name
//! server").

mod holders;
mod leases;
pub mod limits;
pub mod outer;
pub mod own_topics;
pub mod records;
pub mod registry;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use saturnmq_net::fastjson;
use serde::{Deserialize, Serialize};

use crate::answer::Channel;
use crate::persist::{File, LoadError, Persist};
use crate::state_json::DataVersion;
use crate::topics::TopicConfig;
use limits::Limits;
use registry::{Registration, Registry, TopicQueues, Version};

/// Key-value namespace with the queue order of ordered topics.
pub const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";

/// Namespace to key to value; the shape of `kvConfig.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KvConfig {
    /// Namespace to key to value.
    pub config_table: BTreeMap<String, BTreeMap<String, String>>,
}

/// Most bytes of namespaces, keys and values together: a listing fits a frame, and every change
/// writes the whole file.
const KV_BYTES_MAX: usize = 4 << 20;
/// What one entry counts for besides its bytes.
const KV_ENTRY_BYTES: usize = 64;

/// The key-value configuration takes no more.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the key-value configuration would take {0} bytes and may take {KV_BYTES_MAX}: delete keys"
)]
pub struct KvFull(usize);

impl KvConfig {
    /// Sets a value; `false` if it was that already.
    ///
    /// # Errors
    /// [`KvFull`] when all entries together would take too much.
    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<bool, KvFull> {
        let old = self.config_table.get(namespace).and_then(|t| t.get(key));
        if old.is_some_and(|old| old == value) {
            return Ok(false);
        }
        let entry = |namespace: &str, key: &str, value: &str| {
            KV_ENTRY_BYTES + namespace.len() + key.len() + value.len()
        };
        let freed = old.map_or(0, |old| entry(namespace, key, old));
        let grows = entry(namespace, key, value);
        let mut wanted = self.held() - freed + grows;
        if wanted > KV_BYTES_MAX {
            // Namespaces whose keys were all deleted make room.
            self.config_table.retain(|_, table| !table.is_empty());
            wanted = self.held() - freed + grows;
        }
        if wanted > KV_BYTES_MAX {
            return Err(KvFull(wanted));
        }
        let table = self.config_table.entry(namespace.to_owned()).or_default();
        table.insert(key.to_owned(), value.to_owned());
        Ok(true)
    }

    /// What all of it counts for, in bytes; a namespace without keys as an entry of its own.
    fn held(&self) -> usize {
        let of_table = |(space, table): (&String, &BTreeMap<String, String>)| {
            let entries = table.iter();
            let bytes: usize = entries
                .map(|(key, value)| KV_ENTRY_BYTES + space.len() + key.len() + value.len())
                .sum();
            bytes.max(KV_ENTRY_BYTES + space.len())
        };
        self.config_table.iter().map(of_table).sum()
    }

    /// Removes a key; its namespace stays, as in Apache. `false` if there is none.
    pub fn delete(&mut self, namespace: &str, key: &str) -> bool {
        let table = self.config_table.get_mut(namespace);
        table.is_some_and(|table| table.remove(key).is_some())
    }
}

/// Who the broker of this process is in the tables.
#[derive(Debug, Clone)]
pub struct LocalBroker {
    /// Cluster name.
    pub cluster: String,
    /// Broker name.
    pub name: String,
    /// Broker id, 0 for a master.
    pub id: i64,
    /// Advertised `ip:port`.
    pub address: String,
}

/// Route tables and key-value configuration, shared by all cores.
#[derive(Debug)]
pub struct NameServer {
    registry: RwLock<Registry<Channel>>,
    kv: Mutex<KvConfig>,
}

impl NameServer {
    /// Loads the key-value configuration; the route tables start empty and keep to `limits`.
    ///
    /// # Errors
    /// [`LoadError`] when the file and its backup are damaged.
    pub fn load(persist: &Persist, limits: Limits) -> Result<Self, LoadError> {
        let kv = persist.load(File::NameServerKv, |bytes| {
            fastjson::from_file::<KvConfig>(bytes).map_err(|error| error.to_string())
        })?;
        Ok(Self {
            registry: RwLock::new(Registry::new(limits)),
            kv: Mutex::new(kv.unwrap_or_default()),
        })
    }

    /// The route tables, to read: any number at a time, so that a walk over all of them keeps no
    /// core from one of them. Held for map operations only.
    pub fn registry(&self) -> RwLockReadGuard<'_, Registry<Channel>> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The route tables, to change them. Held for map operations only.
    pub fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry<Channel>> {
        let locked = self.registry.write();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// The key-value configuration. Held for map operations only.
    pub fn kv(&self) -> MutexGuard<'_, KvConfig> {
        self.kv.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text of `kvConfig.json`, or `None` if it cannot be written as JSON.
    pub fn kv_text(&self) -> Option<String> {
        serde_json::to_string_pretty(&*self.kv()).ok()
    }

    /// Enters the broker of this process, without its topics; whether it has another version of
    /// its topic table than it had.
    pub fn register_local(&self, local: &LocalBroker, version: DataVersion) -> bool {
        let registration = Registration {
            cluster: local.cluster.clone(),
            broker: local.name.clone(),
            id: local.id,
            address: local.address.clone(),
            ha_address: local.address.clone(),
            lease_ms: i64::MAX,
            acting_master: false,
            single_topic_first: true,
            version: registry_version(version),
            topics: Vec::new(),
        };
        let mut registry = self.registry_mut();
        let known = registry.version_of(&local.cluster, &local.address);
        let renewed = known != Some(registration.version);
        // Only what comes over the network is refused; were this, routes would be missing: say so.
        if registry.register(registration, None, 0).is_err() {
            tracing::error!("the embedded name server refused the broker of this process");
        }
        renewed
    }

    /// Enters one topic of the broker of this process.
    pub fn topic_changed(&self, broker: &str, config: &TopicConfig) {
        self.registry_mut()
            .set_topic(broker, &config.name, queues_of(config));
    }

    /// Removes one topic of the broker of this process.
    pub fn topic_removed(&self, broker: &str, topic: &str) {
        self.registry_mut().remove_topic_of(broker, topic);
    }
}

fn registry_version(version: DataVersion) -> Version {
    Version {
        state_version: version.state_version,
        timestamp: version.timestamp,
        counter: version.counter,
    }
}

fn queues_of(config: &TopicConfig) -> TopicQueues {
    TopicQueues {
        read_queues: config.read_queues,
        write_queues: config.write_queues,
        perm: config.perm,
        sys_flag: config.sys_flag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_clients_cannot_fill_the_memory() {
        let mut kv = KvConfig::default();
        let value = "v".repeat(100_000);
        let taken = (0..100)
            .filter(|n| kv.put("space", &n.to_string(), &value).is_ok())
            .count();
        assert_eq!(taken, 41);
        let error = kv.put("other", "k", &value).expect_err("full");
        assert!(error.to_string().contains("delete keys"), "{error}");
        assert_eq!(
            kv.config_table.len(),
            1,
            "nothing is kept of what was refused"
        );
        assert_eq!(kv.put("space", "1", "short"), Ok(true), "values may change");
    }

    #[test]
    fn namespaces_whose_keys_are_deleted_take_no_room() {
        let mut kv = KvConfig::default();
        let long = "n".repeat(100_000);
        for number in 0..200 {
            let space = format!("{long}{number}");
            assert_eq!(kv.put(&space, "k", "v"), Ok(true), "{number}");
            assert!(kv.delete(&space, "k") && !kv.delete(&space, "k"));
            assert!(kv.held() <= KV_BYTES_MAX);
        }
    }

    #[test]
    fn a_value_that_is_there_already_changes_nothing() {
        let mut kv = KvConfig::default();
        assert_eq!(kv.put("space", "k", "v"), Ok(true));
        assert_eq!(kv.put("space", "k", "v"), Ok(false));
        assert_eq!(kv.put("space", "k", "w"), Ok(true));
    }
}
