//! Who is registered: the addresses of brokers, each with its lease.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::records::{Registration, Version};

/// A cluster and an address in it.
pub(super) type InCluster = (String, String);

/// One address of a broker.
#[derive(Debug)]
pub(super) struct Lease<K> {
    pub(super) cluster: String,
    pub(super) broker: String,
    pub(super) id: i64,
    pub(super) ha_address: String,
    pub(super) version: Version,
    pub(super) lease_ms: i64,
    pub(super) last_ms: i64,
    /// The connection it registered on; `None` for the broker in this process, which never expires.
    pub(super) connection: Option<K>,
}

impl<K> Lease<K> {
    pub(super) fn of(registration: Registration, connection: Option<K>, now_ms: i64) -> Self {
        Self {
            cluster: registration.cluster,
            broker: registration.broker,
            id: registration.id,
            ha_address: registration.ha_address,
            version: registration.version,
            lease_ms: registration.lease_ms,
            last_ms: now_ms,
            connection,
        }
    }
}

/// The leases by cluster and address. Whose they are and what they came on is kept as well: no
/// change and no connection that closes walks the others.
#[derive(Debug)]
pub(super) struct Leases<K> {
    by_address: HashMap<InCluster, Lease<K>>,
    /// Of each connection that brokers registered on, their clusters and addresses.
    by_connection: HashMap<K, HashSet<InCluster>>,
    /// Of each broker name its clusters, and how many addresses it has in each.
    members: HashMap<String, HashMap<String, usize>>,
    /// Cluster and address of the broker in this process.
    own: Option<InCluster>,
}

impl<K> Default for Leases<K> {
    fn default() -> Self {
        Self {
            by_address: HashMap::new(),
            by_connection: HashMap::new(),
            members: HashMap::new(),
            own: None,
        }
    }
}

impl<K: Copy + Eq + Hash> Leases<K> {
    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn get(&self, key: &InCluster) -> Option<&Lease<K>> {
        self.by_address.get(key)
    }

    pub(super) fn touch(&mut self, key: &InCluster, now_ms: i64) {
        if let Some(lease) = self.by_address.get_mut(key) {
            lease.last_ms = now_ms;
        }
    }

    /// The broker in this process: its address, and its lease.
    pub(super) fn own(&self) -> Option<(&str, &Lease<K>)> {
        let key = self.own.as_ref()?;
        Some((&key.1, self.by_address.get(key)?))
    }

    /// Whether a broker of this name has an address in that cluster.
    pub(super) fn has_member(&self, cluster: &str, broker: &str) -> bool {
        let clusters = self.members.get(broker);
        clusters.is_some_and(|clusters| clusters.contains_key(cluster))
    }

    /// The clusters in which a broker of this name has an address.
    pub(super) fn clusters_of(&self, broker: &str) -> impl Iterator<Item = &String> {
        let clusters = self.members.get(broker);
        clusters.into_iter().flat_map(HashMap::keys)
    }

    /// The addresses that registered on a connection.
    pub(super) fn of_connection(&self, connection: K) -> impl Iterator<Item = &InCluster> {
        self.by_connection.get(&connection).into_iter().flatten()
    }

    /// The connections of leases that ran out.
    pub(super) fn expired(&self, now_ms: i64) -> HashSet<K> {
        let leases = self.by_address.values();
        leases
            .filter(|lease| now_ms.saturating_sub(lease.last_ms) > lease.lease_ms)
            .filter_map(|lease| lease.connection)
            .collect()
    }

    /// Enters an address, in the place of what was entered for it.
    pub(super) fn insert(&mut self, key: InCluster, lease: Lease<K>) {
        self.remove(&key);
        let clusters = self.members.entry(lease.broker.clone()).or_default();
        *clusters.entry(lease.cluster.clone()).or_default() += 1;
        match lease.connection {
            Some(connection) => {
                let keys = self.by_connection.entry(connection).or_default();
                keys.insert(key.clone());
            }
            None => self.own = Some(key.clone()),
        }
        self.by_address.insert(key, lease);
    }

    pub(super) fn remove(&mut self, key: &InCluster) -> Option<Lease<K>> {
        let lease = self.by_address.remove(key)?;
        self.remove_member(&lease);
        match lease.connection {
            None => self.own = None,
            Some(connection) => {
                if let Some(keys) = self.by_connection.get_mut(&connection) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.by_connection.remove(&connection);
                    }
                }
            }
        }
        Some(lease)
    }

    fn remove_member(&mut self, lease: &Lease<K>) {
        let Some(clusters) = self.members.get_mut(&lease.broker) else {
            return;
        };
        if let Some(addresses) = clusters.get_mut(&lease.cluster) {
            *addresses -= 1;
            if *addresses == 0 {
                clusters.remove(&lease.cluster);
            }
        }
        if clusters.is_empty() {
            self.members.remove(&lease.broker);
        }
    }
}
