//! The route tables: which broker of which cluster holds which topic's queues.
//!
//! Pure state: time comes in as epoch milliseconds, connections as opaque keys. The rules are
//! docs/behaviour.md, "Name server".

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Perm bit that lets producers use a topic's queues (docs/protocol.md, "Names and permissions").
pub const PERM_WRITE: i32 = 2;
/// What 327 sets: read and write.
pub const PERM_READ_WRITE: i32 = 6;
/// Apache's registration lease, in milliseconds, when the broker names none.
pub const DEFAULT_LEASE_MS: i64 = 120_000;
/// A topic with the unit bit belongs to one unit.
const SYS_FLAG_UNIT: i32 = 1;
/// A topic with the unit-subscription bit has subscribers in units.
const SYS_FLAG_UNIT_SUB: i32 = 2;

/// Version of a broker's topic table: a change of it makes the registry take the table anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Version {
    /// Controller term; 0 without a controller.
    pub state_version: i64,
    /// Epoch milliseconds of the change.
    pub timestamp: i64,
    /// Changes counted since the table was made.
    pub counter: i64,
}

/// Queues of one topic on one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicQueues {
    /// Queues a consumer may read.
    pub read_queues: i32,
    /// Queues a producer may write.
    pub write_queues: i32,
    /// Permission bits: 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// Unit bits.
    pub sys_flag: i32,
}

/// One broker name: its cluster and the address of each of its ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerEntry {
    /// Cluster the broker belongs to.
    pub cluster: String,
    /// Broker id (0 = master) to `ip:port`.
    pub addresses: BTreeMap<i64, String>,
    /// Whether a slave may act as master (5.x brokers say so).
    pub acting_master: bool,
}

/// What a broker says of itself when it registers (code 103).
#[derive(Debug, Clone)]
pub struct Registration {
    /// Cluster name.
    pub cluster: String,
    /// Broker name.
    pub broker: String,
    /// Broker id, 0 = master.
    pub id: i64,
    /// Address clients reach it at, `ip:port`.
    pub address: String,
    /// Address slaves replicate from.
    pub ha_address: String,
    /// Lease in milliseconds.
    pub lease_ms: i64,
    /// Whether a slave of it may act as master.
    pub acting_master: bool,
    /// Whether a single topic may come before the full table (brokers before 5.0).
    pub single_topic_first: bool,
    /// Version of `topics`.
    pub version: Version,
    /// Its topics.
    pub topics: Vec<(String, TopicQueues)>,
}

/// What the registry answers a registration with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registered {
    /// Set for slaves: the master's address.
    pub master_address: Option<String>,
    /// Set for slaves: the master's replication address.
    pub ha_address: Option<String>,
}

/// Why a registration was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// It brought a single topic before this broker was known, as an incremental registration that
    /// overtook the full one does. The text is Apache's.
    #[error("register broker failed")]
    NotYetKnown,
    /// It would take the place of the broker in this process, which only that one may change.
    #[error(
        "brokerName {broker} with brokerId {id}, or the address {address}, is that of this name \
         server's own broker: give one of them another"
    )]
    OwnPlace {
        /// The name it wanted.
        broker: String,
        /// The id it wanted.
        id: i64,
        /// The address it wanted.
        address: String,
    },
}

/// Route of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Broker name and its queues.
    pub queues: Vec<(String, TopicQueues)>,
    /// The brokers named in `queues`.
    pub brokers: Vec<(String, BrokerEntry)>,
}

#[derive(Debug)]
struct Live<K> {
    cluster: String,
    broker: String,
    id: i64,
    ha_address: String,
    version: Version,
    lease_ms: i64,
    last_ms: i64,
    /// The connection it registered on; `None` for the broker in this process, which never expires.
    connection: Option<K>,
}

/// The tables of a name server. `K` identifies a connection.
#[derive(Debug)]
pub struct Registry<K> {
    clusters: BTreeMap<String, BTreeSet<String>>,
    brokers: BTreeMap<String, BrokerEntry>,
    topics: BTreeMap<String, BTreeMap<String, TopicQueues>>,
    live: HashMap<(String, String), Live<K>>,
}

impl<K> Default for Registry<K> {
    fn default() -> Self {
        Self {
            clusters: BTreeMap::new(),
            brokers: BTreeMap::new(),
            topics: BTreeMap::new(),
            live: HashMap::new(),
        }
    }
}

impl<K: Copy + PartialEq> Registry<K> {
    /// Takes a broker's registration; `connection` is `None` for the broker of this process, which
    /// thereby also forgets topics that it no longer has.
    ///
    /// # Errors
    /// [`Refused::NotYetKnown`] when a single topic comes before the broker's full table,
    /// [`Refused::OwnPlace`] for a namesake of the broker of this process.
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
        self.enter_broker(&registration);
        if connection.is_none() {
            self.forget_topics_missing_from(&registration);
        }
        if registration.id == 0 {
            let renewed = known_version != Some(registration.version) || !known_id;
            self.enter_topics(&registration, renewed);
        }
        let answer = self.answer_for(&registration);
        self.live.insert(
            key,
            Live {
                cluster: registration.cluster,
                broker: registration.broker,
                id: registration.id,
                ha_address: registration.ha_address,
                version: registration.version,
                lease_ms: registration.lease_ms,
                last_ms: now_ms,
                connection,
            },
        );
        Ok(answer)
    }

    /// Whether a registration that came over the network is that of the broker of this process.
    fn is_own(&self, registration: &Registration) -> Result<bool, Refused> {
        let own = self.live.iter().find(|(_, live)| live.connection.is_none());
        let Some(((_, address), live)) = own else {
            return Ok(false);
        };
        let same_place = live.broker == registration.broker && live.id == registration.id;
        let same_address = *address == registration.address;
        if same_place != same_address {
            return Err(Refused::OwnPlace {
                broker: registration.broker.clone(),
                id: registration.id,
                address: registration.address.clone(),
            });
        }
        Ok(same_place)
    }

    fn forget_topics_missing_from(&mut self, registration: &Registration) {
        let names: HashSet<&str> = registration
            .topics
            .iter()
            .map(|(topic, _)| topic.as_str())
            .collect();
        self.topics.retain(|topic, holders| {
            if !names.contains(topic.as_str()) {
                holders.remove(&registration.broker);
            }
            !holders.is_empty()
        });
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
            let holders = self.topics.entry(topic.clone()).or_default();
            if renewed || !holders.contains_key(&registration.broker) {
                holders.insert(registration.broker.clone(), queues.clone());
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

    /// Adds or replaces one topic of a registered broker, as an incremental registration does.
    pub fn set_topic(&mut self, broker: &str, topic: &str, queues: TopicQueues) {
        self.topics
            .entry(topic.to_owned())
            .or_default()
            .insert(broker.to_owned(), queues);
    }

    /// Removes one topic of one broker.
    pub fn remove_topic_of(&mut self, broker: &str, topic: &str) {
        if let Some(holders) = self.topics.get_mut(topic) {
            holders.remove(broker);
            if holders.is_empty() {
                self.topics.remove(topic);
            }
        }
    }

    /// Refreshes the lease of a broker address (904, 322).
    pub fn touch(&mut self, cluster: &str, address: &str, now_ms: i64) {
        if let Some(live) = self.live.get_mut(&(cluster.to_owned(), address.to_owned())) {
            live.last_ms = now_ms;
        }
    }

    /// The version a broker last registered with, or `None` when it is unknown.
    #[must_use]
    pub fn version_of(&self, cluster: &str, address: &str) -> Option<Version> {
        self.live
            .get(&(cluster.to_owned(), address.to_owned()))
            .map(|live| live.version)
    }

    /// Removes one address of a broker; its queues go with the broker's last address. The broker
    /// of this process stays, whoever asks.
    pub fn unregister(&mut self, cluster: &str, broker: &str, id: i64, address: &str) {
        let key = (cluster.to_owned(), address.to_owned());
        if self
            .live
            .get(&key)
            .is_some_and(|live| live.connection.is_none())
        {
            return;
        }
        self.live.remove(&key);
        let Some(entry) = self.brokers.get_mut(broker) else {
            return;
        };
        if entry.addresses.get(&id).is_some_and(|held| held == address) {
            entry.addresses.remove(&id);
        }
        if !entry.addresses.is_empty() {
            return;
        }
        let cluster = entry.cluster.clone();
        self.brokers.remove(broker);
        if let Some(members) = self.clusters.get_mut(&cluster) {
            members.remove(broker);
            if members.is_empty() {
                self.clusters.remove(&cluster);
            }
        }
        for holders in self.topics.values_mut() {
            holders.remove(broker);
        }
        self.topics.retain(|_, holders| !holders.is_empty());
    }

    /// Removes every broker whose registration came on `connection`.
    pub fn connection_closed(&mut self, connection: K) {
        let gone: Vec<_> = self
            .live
            .iter()
            .filter(|(_, live)| live.connection == Some(connection))
            .map(|((_, address), live)| {
                (
                    live.cluster.clone(),
                    live.broker.clone(),
                    live.id,
                    address.clone(),
                )
            })
            .collect();
        for (cluster, broker, id, address) in gone {
            self.unregister(&cluster, &broker, id, &address);
        }
    }

    /// Removes brokers whose lease ran out; returns the connections to close.
    pub fn expire(&mut self, now_ms: i64) -> Vec<K> {
        let gone: Vec<_> = self
            .live
            .values()
            .filter(|live| now_ms - live.last_ms > live.lease_ms)
            .filter_map(|live| live.connection)
            .collect();
        for connection in &gone {
            self.connection_closed(*connection);
        }
        gone
    }

    /// Route of `topic`, or `None` when no registered broker has it.
    #[must_use]
    pub fn route(&self, topic: &str) -> Option<Route> {
        let holders = self.topics.get(topic)?;
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

    /// Every broker by name.
    pub fn brokers(&self) -> impl Iterator<Item = (&String, &BrokerEntry)> {
        self.brokers.iter()
    }

    /// Every cluster with its broker names.
    pub fn clusters(&self) -> impl Iterator<Item = (&String, &BTreeSet<String>)> {
        self.clusters.iter()
    }

    /// Every topic's name.
    pub fn topics(&self) -> impl Iterator<Item = &String> {
        self.topics.keys()
    }

    /// Topics held by the brokers of `cluster`; none when the cluster is unknown.
    #[must_use]
    pub fn topics_of_cluster(&self, cluster: &str) -> Vec<String> {
        let Some(members) = self.clusters.get(cluster) else {
            return Vec::new();
        };
        self.topics
            .iter()
            .filter(|(_, holders)| holders.keys().any(|broker| members.contains(broker)))
            .map(|(topic, _)| topic.clone())
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
            .map(|(topic, _)| topic.clone())
            .collect()
    }

    /// Clears (`writable` false) or sets the write permission in every queue entry of `broker`;
    /// returns how many topics that touched.
    pub fn set_writable(&mut self, broker: &str, writable: bool) -> i32 {
        let mut touched = 0;
        for holders in self.topics.values_mut() {
            if let Some(queues) = holders.get_mut(broker) {
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
        let Some(cluster) = cluster else {
            self.topics.remove(topic);
            return;
        };
        let Some(members) = self.clusters.get(cluster) else {
            return;
        };
        if let Some(holders) = self.topics.get_mut(topic) {
            holders.retain(|broker, _| !members.contains(broker));
            if holders.is_empty() {
                self.topics.remove(topic);
            }
        }
    }
}

/// Which unit topics a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitTopics {
    /// 311: topics of a unit.
    Unit,
    /// 312: topics with subscribers in units.
    UnitSub,
    /// 313: topics with subscribers in units that belong to none.
    UnitSubNotUnit,
}

impl UnitTopics {
    fn matches(self, sys_flag: i32) -> bool {
        let unit = sys_flag & SYS_FLAG_UNIT != 0;
        let sub = sys_flag & SYS_FLAG_UNIT_SUB != 0;
        match self {
            Self::Unit => unit,
            Self::UnitSub => sub,
            Self::UnitSubNotUnit => sub && !unit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(n: i32) -> TopicQueues {
        TopicQueues {
            read_queues: n,
            write_queues: n,
            perm: 6,
            sys_flag: 0,
        }
    }

    fn registration(address: &str, counter: i64, topics: &[(&str, i32)]) -> Registration {
        Registration {
            cluster: "C".into(),
            broker: "b".into(),
            id: 0,
            address: address.into(),
            ha_address: "127.0.0.1:2".into(),
            lease_ms: DEFAULT_LEASE_MS,
            acting_master: false,
            single_topic_first: false,
            version: Version {
                counter,
                ..Version::default()
            },
            topics: topics
                .iter()
                .map(|(t, n)| ((*t).to_owned(), queues(*n)))
                .collect(),
        }
    }

    #[test]
    fn a_registered_topic_has_a_route_until_its_connection_closes() {
        let mut registry = Registry::default();
        let first = registration("127.0.0.1:1", 1, &[("T", 4), ("U", 8)]);
        registry.register(first, Some(7_u64), 0).unwrap();
        let route = registry.route("T").unwrap();
        assert_eq!(route.queues, vec![("b".to_owned(), queues(4))]);
        assert_eq!(route.brokers[0].1.addresses[&0], "127.0.0.1:1");
        registry.connection_closed(7);
        assert_eq!(registry.route("T"), None);
        assert_eq!(registry.topics().count(), 0);
        assert_eq!(registry.clusters().count(), 0);
    }

    #[test]
    fn nobody_takes_the_place_of_the_broker_of_this_process() {
        let mut registry = Registry::<u64>::default();
        let own = || registration("127.0.0.1:1", 1, &[("T", 4), ("U", 8)]);
        registry.register(own(), None, 0).unwrap();
        let namesake = registration("127.0.0.1:9", 1, &[("T", 4), ("U", 8)]);
        let refused = registry.register(namesake, Some(9), 0).unwrap_err();
        assert!(refused.to_string().contains("brokerName b"), "{refused}");
        let mut neighbour = registration("127.0.0.1:1", 1, &[("T", 4), ("U", 8)]);
        neighbour.broker = "other".into();
        registry.register(neighbour, Some(9), 0).unwrap_err();
        // Registered over the network as well, it does not depend on that connection.
        registry.register(own(), Some(7), 0).unwrap();
        registry.connection_closed(7);
        registry.unregister("C", "b", 0, "127.0.0.1:1");
        let route = registry.route("T").unwrap();
        assert_eq!(route.brokers[0].1.addresses[&0], "127.0.0.1:1");
    }

    #[test]
    fn the_broker_of_this_process_forgets_topics_that_its_table_lacks() {
        let mut registry = Registry::<u64>::default();
        let own = |topics: &[(&str, i32)]| registration("127.0.0.1:1", 1, topics);
        registry
            .register(own(&[("T", 4), ("U", 8)]), None, 0)
            .unwrap();
        let mut other = registration("127.0.0.1:9", 1, &[("T", 4), ("W", 8)]);
        other.broker = "other".into();
        registry.register(other, Some(9), 0).unwrap();
        registry
            .register(own(&[("U", 8), ("V", 1)]), None, 0)
            .unwrap();
        assert_eq!(registry.route("T").unwrap().queues[0].0, "other");
        assert!(registry.route("V").is_some() && registry.route("W").is_some());
    }

    #[test]
    fn a_single_topic_before_the_full_table_is_refused() {
        let mut registry = Registry::<u64>::default();
        let single = registration("127.0.0.1:1", 1, &[("T", 4)]);
        let refused = Err(Refused::NotYetKnown);
        assert_eq!(registry.register(single.clone(), Some(1), 0), refused);
        let mut old = single;
        old.single_topic_first = true;
        old.broker = "old".into();
        old.address = "127.0.0.1:5".into();
        registry.register(old, Some(5), 0).unwrap();
        registry.connection_closed(5);
        registry
            .register(
                registration("127.0.0.1:1", 1, &[("T", 4), ("U", 1)]),
                Some(1),
                0,
            )
            .unwrap();
        registry
            .register(registration("127.0.0.1:1", 2, &[("V", 2)]), Some(1), 0)
            .unwrap();
        assert!(registry.route("T").is_some() && registry.route("V").is_some());
    }

    #[test]
    fn queue_counts_change_only_with_the_data_version() {
        let mut registry = Registry::<u64>::default();
        registry
            .register(
                registration("127.0.0.1:1", 1, &[("T", 4), ("U", 1)]),
                Some(1),
                0,
            )
            .unwrap();
        registry.set_writable("b", false);
        registry
            .register(
                registration("127.0.0.1:1", 1, &[("T", 4), ("U", 1)]),
                Some(1),
                1,
            )
            .unwrap();
        assert_eq!(registry.route("T").unwrap().queues[0].1.perm, 4);
        registry
            .register(
                registration("127.0.0.1:1", 2, &[("T", 4), ("U", 1)]),
                Some(1),
                2,
            )
            .unwrap();
        assert_eq!(registry.route("T").unwrap().queues[0].1.perm, 6);
    }

    #[test]
    fn a_lease_that_runs_out_removes_the_broker_and_names_its_connection() {
        let mut registry = Registry::default();
        registry
            .register(
                registration("127.0.0.1:1", 1, &[("T", 4), ("U", 1)]),
                Some(9_u64),
                0,
            )
            .unwrap();
        assert!(registry.expire(DEFAULT_LEASE_MS).is_empty());
        registry.touch("C", "127.0.0.1:1", 5_000);
        assert!(registry.expire(DEFAULT_LEASE_MS + 5_000).is_empty());
        assert_eq!(registry.expire(DEFAULT_LEASE_MS + 5_001), vec![9]);
        assert_eq!(registry.route("T"), None);
    }

    #[test]
    fn the_broker_of_this_process_never_expires() {
        let mut registry = Registry::<u64>::default();
        registry
            .register(
                registration("127.0.0.1:1", 1, &[("T", 4), ("U", 1)]),
                None,
                0,
            )
            .unwrap();
        assert!(registry.expire(i64::MAX).is_empty());
        assert!(registry.route("T").is_some());
    }

    #[test]
    fn a_slave_learns_its_master_and_adds_no_queues() {
        let mut registry = Registry::<u64>::default();
        registry
            .register(
                registration("127.0.0.1:1", 1, &[("T", 4), ("U", 1)]),
                Some(1),
                0,
            )
            .unwrap();
        let mut slave = registration("127.0.0.1:9", 1, &[("T", 4), ("W", 1)]);
        slave.id = 1;
        let answer = registry.register(slave, Some(2), 0).unwrap();
        assert_eq!(answer.master_address.as_deref(), Some("127.0.0.1:1"));
        assert_eq!(answer.ha_address.as_deref(), Some("127.0.0.1:2"));
        assert_eq!(registry.route("W"), None);
        assert_eq!(registry.route("T").unwrap().brokers[0].1.addresses.len(), 2);
    }
}
