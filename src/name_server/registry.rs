//! The route tables: which broker of which cluster holds which topic's queues.
//!
//! Pure state: time comes in as epoch milliseconds, connections as opaque keys. The rules are
//! docs/behaviour.md, "Name server".

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::holders::Holders;
use super::leases::{InCluster, Lease, Leases};
use super::limits::{LimitReached, Limits, check_name};
pub use super::records::{
    BrokerEntry, DEFAULT_LEASE_MS, LONGEST_LEASE_MS, PERM_READ_WRITE, PERM_WRITE, Refused,
    Registered, Registration, Route, TopicQueues, UnitTopics, Version,
};
use crate::core::off_the_cores;

/// The tables of a name server. `K` identifies a connection.
#[derive(Debug)]
pub struct Registry<K> {
    clusters: BTreeMap<String, BTreeSet<String>>,
    brokers: BTreeMap<String, BrokerEntry>,
    topics: Holders,
    /// By cluster and address. Every address in `brokers` and every member in `clusters` has one
    /// here: what bounds this table bounds those.
    live: Leases<K>,
    limits: Limits,
}

impl<K: Copy + Eq + Hash> Registry<K> {
    /// Empty tables that hold no more than this.
    pub fn new(limits: Limits) -> Self {
        Self {
            clusters: BTreeMap::new(),
            brokers: BTreeMap::new(),
            topics: Holders::default(),
            live: Leases::default(),
            limits,
        }
    }

    /// Takes a broker's registration; `connection` is `None` for the broker of this process.
    ///
    /// # Errors
    /// [`Refused::NotYetKnown`] when a single topic comes before the broker's full table,
    /// [`Refused::OwnPlace`] for a namesake of the broker of this process, [`Refused::Limit`] when
    /// the tables do not take so much; then nothing of it is taken.
    pub fn register(
        &mut self,
        registration: Registration,
        connection: Option<K>,
        now_ms: i64,
    ) -> Result<Registered, Refused> {
        if connection.is_some() && self.is_own(&registration)? {
            // It knows this name server from its configuration as well: all is entered already.
            return Ok(Registered::default());
        }
        if self.is_superseded(&registration) {
            return Ok(Registered::default());
        }
        let key = (registration.cluster.clone(), registration.address.clone());
        let known_version = self.live.get(&key).map(|live| live.version);
        let known_id = self
            .brokers
            .get(&registration.broker)
            .is_some_and(|entry| entry.addresses.contains_key(&registration.id));
        if !known_id && registration.topics.len() == 1 && !registration.single_topic_first {
            return Err(Refused::NotYetKnown);
        }
        if connection.is_some() {
            self.check_room(&registration, &key)?;
        }
        self.leave_former_name(&registration, &key);
        self.enter_broker(&registration);
        if registration.id == 0 {
            let renewed = known_version != Some(registration.version) || !known_id;
            self.enter_topics(&registration, renewed);
        }
        let answer = self.answer_for(&registration);
        self.live
            .insert(key, Lease::of(registration, connection, now_ms));
        Ok(answer)
    }

    /// Whether a registration that came over the network is that of the broker of this process.
    fn is_own(&self, registration: &Registration) -> Result<bool, Refused> {
        let Some((address, live)) = self.live.own() else {
            return Ok(false);
        };
        let same_place = live.broker == registration.broker && live.id == registration.id;
        let same_address = address == registration.address;
        if same_place != same_address {
            return Err(Refused::OwnPlace {
                broker: registration.broker.clone(),
                id: registration.id,
                address: registration.address.clone(),
            });
        }
        Ok(same_place)
    }

    /// Whether all of a registration fits the tables.
    fn check_room(&self, registration: &Registration, key: &InCluster) -> Result<(), LimitReached> {
        for (field, name) in [
            ("clusterName", &registration.cluster),
            ("brokerName", &registration.broker),
            ("brokerAddr", &registration.address),
            ("haServerAddr", &registration.ha_address),
        ] {
            check_name(field, name)?;
        }
        let added = usize::from(self.live.get(key).is_none());
        self.limits.check_brokers(self.live.len() + added)?;
        if registration.id != 0 {
            return Ok(());
        }
        let names = registration.topics.iter().map(|(topic, _)| topic.as_str());
        self.check_topics(&registration.broker, names)
    }

    /// Whether these topics of a broker fit the tables.
    fn check_topics<'a>(
        &self,
        broker: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(), LimitReached> {
        let (mut topics, mut routes) = (HashSet::new(), HashSet::new());
        for name in names {
            check_name("topic", name)?;
            match self.topics.of_topic(name) {
                None => {
                    topics.insert(name);
                    routes.insert(name);
                }
                Some(holders) if !holders.contains_key(broker) => {
                    routes.insert(name);
                }
                Some(_) => {}
            }
        }
        if routes.is_empty() {
            return Ok(());
        }
        let (topics, routes) = (topics.len(), routes.len());
        self.limits
            .check_topics(self.topics.topics() + topics, self.topics.routes() + routes)
    }

    /// An address belongs to one broker: under another name it is no longer the former's.
    fn leave_former_name(&mut self, registration: &Registration, key: &InCluster) {
        if let Some(live) = self.live.get(key)
            && live.broker != registration.broker
        {
            self.remove(key);
        }
    }

    /// Another address holds this id with a higher controller term: the newcomer is stale.
    fn is_superseded(&self, registration: &Registration) -> bool {
        let Some(entry) = self.brokers.get(&registration.broker) else {
            return false;
        };
        let Some(holder) = entry.addresses.get(&registration.id) else {
            return false;
        };
        if *holder == registration.address {
            return false;
        }
        self.live
            .get(&(registration.cluster.clone(), holder.clone()))
            .is_some_and(|live| live.version.state_version > registration.version.state_version)
    }

    fn enter_broker(&mut self, registration: &Registration) {
        self.clusters
            .entry(registration.cluster.clone())
            .or_default()
            .insert(registration.broker.clone());
        let entry = self
            .brokers
            .entry(registration.broker.clone())
            .or_insert_with(|| BrokerEntry {
                cluster: registration.cluster.clone(),
                addresses: BTreeMap::new(),
                acting_master: registration.acting_master,
            });
        entry.acting_master = registration.acting_master;
        entry
            .addresses
            .retain(|id, address| *address != registration.address || *id == registration.id);
        entry
            .addresses
            .insert(registration.id, registration.address.clone());
    }

    fn enter_topics(&mut self, registration: &Registration, renewed: bool) {
        for (topic, queues) in &registration.topics {
            if renewed || !self.topics.has(&registration.broker, topic) {
                self.topics.set(&registration.broker, topic, queues.clone());
            }
        }
    }

    fn answer_for(&self, registration: &Registration) -> Registered {
        if registration.id == 0 {
            return Registered::default();
        }
        let master = self
            .brokers
            .get(&registration.broker)
            .and_then(|entry| entry.addresses.get(&0))
            .cloned();
        let ha_address = master
            .as_ref()
            .and_then(|address| {
                self.live
                    .get(&(registration.cluster.clone(), address.clone()))
            })
            .map(|live| live.ha_address.clone());
        Registered {
            master_address: master,
            ha_address,
        }
    }

    /// Adds or replaces one topic of a broker that registered here (217).
    ///
    /// # Errors
    /// [`LimitReached`]: the tables do not take it.
    pub fn add_topic(
        &mut self,
        broker: &str,
        topic: &str,
        queues: TopicQueues,
    ) -> Result<(), LimitReached> {
        self.check_topics(broker, std::iter::once(topic))?;
        self.set_topic(broker, topic, queues);
        Ok(())
    }

    /// Adds or replaces one topic of the broker of this process, whatever the limits.
    pub fn set_topic(&mut self, broker: &str, topic: &str, queues: TopicQueues) {
        self.topics.set(broker, topic, queues);
    }

    /// Whether a topic has queues on a broker.
    #[must_use]
    pub fn holds(&self, broker: &str, topic: &str) -> bool {
        self.topics.has(broker, topic)
    }

    /// The topics that have queues on a broker.
    #[must_use]
    pub fn topics_of(&self, broker: &str) -> Vec<String> {
        self.topics.of_broker(broker).map(Arc::to_string).collect()
    }

    /// Removes one topic of one broker.
    pub fn remove_topic_of(&mut self, broker: &str, topic: &str) {
        self.topics.remove(broker, topic);
    }

    /// Refreshes the lease of a broker address (904, 322).
    pub fn touch(&mut self, cluster: &str, address: &str, now_ms: i64) {
        let key = (cluster.to_owned(), address.to_owned());
        self.live.touch(&key, now_ms);
    }

    /// The version a broker last registered with, or `None` when it is unknown.
    #[must_use]
    pub fn version_of(&self, cluster: &str, address: &str) -> Option<Version> {
        self.live
            .get(&(cluster.to_owned(), address.to_owned()))
            .map(|live| live.version)
    }

    /// Removes one address of a broker; its queues go with the broker's last address. The broker
    /// of this process stays, whoever asks, and so does one that registered under another name.
    pub fn unregister(&mut self, cluster: &str, broker: &str, address: &str) {
        let key = (cluster.to_owned(), address.to_owned());
        // What is removed is what was entered, whatever id the request names: nothing may stay
        // behind in `brokers` without its lease.
        let held = self.live.get(&key);
        if held.is_some_and(|live| live.connection.is_some() && live.broker == broker) {
            self.remove(&key);
        }
    }

    /// Removes an address, and with a broker's last one its queues.
    fn remove(&mut self, key: &InCluster) {
        let Some(Lease {
            cluster,
            broker,
            id,
            ..
        }) = self.live.remove(key)
        else {
            return;
        };
        if !self.live.has_member(&cluster, &broker) {
            self.leave_cluster(&cluster, &broker);
        }
        let Some(entry) = self.brokers.get_mut(&broker) else {
            return;
        };
        if entry.addresses.get(&id) == Some(&key.1) {
            entry.addresses.remove(&id);
        }
        if entry.addresses.is_empty() {
            self.brokers.remove(&broker);
            let elsewhere: Vec<_> = self.live.clusters_of(&broker).cloned().collect();
            for cluster in elsewhere {
                self.leave_cluster(&cluster, &broker);
            }
            self.topics.remove_broker(&broker);
        }
    }

    fn leave_cluster(&mut self, cluster: &str, broker: &str) {
        if let Some(names) = self.clusters.get_mut(cluster) {
            names.remove(broker);
            if names.is_empty() {
                self.clusters.remove(cluster);
            }
        }
    }

    /// Whether a broker's registration came on `connection`.
    pub fn has_connection(&self, connection: K) -> bool {
        self.live.of_connection(connection).next().is_some()
    }

    /// Removes every broker whose registration came on `connection`.
    pub fn connection_closed(&mut self, connection: K) {
        let gone: Vec<_> = self.live.of_connection(connection).cloned().collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Removes brokers whose lease ran out; returns the connections to close.
    pub fn expire(&mut self, now_ms: i64) -> Vec<K> {
        let gone = self.live.expired(now_ms);
        for connection in &gone {
            self.connection_closed(*connection);
        }
        gone.into_iter().collect()
    }

    /// Route of `topic`, or `None` when no registered broker has it.
    #[must_use]
    pub fn route(&self, topic: &str) -> Option<Route> {
        let holders = self.topics.of_topic(topic)?;
        let queues: Vec<_> = holders
            .iter()
            .map(|(name, queues)| (name.clone(), queues.clone()))
            .collect();
        let brokers: Vec<_> = holders
            .keys()
            .filter_map(|name| Some((name.clone(), self.brokers.get(name)?.clone())))
            .collect();
        if brokers.is_empty() {
            return None;
        }
        Some(Route { queues, brokers })
    }

    /// What is known of the broker with this name.
    #[must_use]
    pub fn broker(&self, name: &str) -> Option<&BrokerEntry> {
        self.brokers.get(name)
    }

    /// Every broker by name.
    pub fn brokers(&self) -> impl Iterator<Item = (&String, &BrokerEntry)> {
        self.brokers.iter()
    }

    /// Every cluster with its broker names.
    pub fn clusters(&self) -> impl Iterator<Item = (&String, &BTreeSet<String>)> {
        off_the_cores();
        self.clusters.iter()
    }

    /// Every topic's name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.iter().map(|(topic, _)| topic)
    }

    /// Topics held by the brokers of `cluster`; none when the cluster is unknown.
    #[must_use]
    pub fn topics_of_cluster(&self, cluster: &str) -> Vec<String> {
        off_the_cores();
        let Some(members) = self.clusters.get(cluster) else {
            return Vec::new();
        };
        self.topics
            .iter()
            .filter(|(_, holders)| holders.keys().any(|broker| members.contains(broker)))
            .map(|(topic, _)| topic.to_string())
            .collect()
    }

    /// Topics by their unit bits: `unit` for 311, `unit_sub` for 312, both for 313 (subscribed in
    /// units but not of one).
    #[must_use]
    pub fn unit_topics(&self, kind: UnitTopics) -> Vec<String> {
        self.topics
            .iter()
            .filter(|(_, holders)| {
                holders
                    .values()
                    .next()
                    .is_some_and(|queues| kind.matches(queues.sys_flag))
            })
            .map(|(topic, _)| topic.to_string())
            .collect()
    }

    /// Clears (`writable` false) or sets the write permission in every queue entry of `broker`;
    /// returns how many topics that touched.
    pub fn set_writable(&mut self, broker: &str, writable: bool) -> i32 {
        off_the_cores();
        let topics: Vec<_> = self.topics.of_broker(broker).cloned().collect();
        let mut touched = 0;
        for topic in topics {
            if let Some(queues) = self.topics.queues_mut(broker, &topic) {
                queues.perm = if writable {
                    PERM_READ_WRITE
                } else {
                    queues.perm & !PERM_WRITE
                };
                touched += 1;
            }
        }
        touched
    }

    /// Forgets a topic, on the brokers of `cluster` only if one is named.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(holders) = self.topics.of_topic(topic) else {
            return;
        };
        let is_meant = |broker: &&String| match cluster {
            None => true,
            Some(cluster) => self
                .clusters
                .get(cluster)
                .is_some_and(|members| members.contains(*broker)),
        };
        let gone: Vec<_> = holders.keys().filter(is_meant).cloned().collect();
        for broker in gone {
            self.topics.remove(&broker, topic);
        }
    }
}

#[cfg(test)]
mod tests;
