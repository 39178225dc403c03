//! What goes into the route tables and comes out of them.

use std::collections::BTreeMap;

use super::limits::LimitReached;

/// Perm bit that lets producers use a topic's queues (docs/protocol.md, "Names and permissions").
pub const PERM_WRITE: i32 = 2;
/// What 327 sets: read and write.
pub const PERM_READ_WRITE: i32 = 6;
/// Apache's registration lease, in milliseconds, when the broker names none.
pub const DEFAULT_LEASE_MS: i64 = 120_000;
/// The longest lease that a broker may ask for, in milliseconds: a dead host's end some day.
pub const LONGEST_LEASE_MS: i64 = 3_600_000;
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
#[derive(Debug, Clone, Default)]
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
    /// The tables do not take so much, or not such names.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}

/// Route of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Broker name and its queues.
    pub queues: Vec<(String, TopicQueues)>,
    /// The brokers named in `queues`.
    pub brokers: Vec<(String, BrokerEntry)>,
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
    /// Whether topics with these unit bits are asked for.
    pub fn matches(self, sys_flag: i32) -> bool {
        let unit = sys_flag & SYS_FLAG_UNIT != 0;
        let sub = sys_flag & SYS_FLAG_UNIT_SUB != 0;
        match self {
            Self::Unit => unit,
            Self::UnitSub => sub,
            Self::UnitSubNotUnit => sub && !unit,
        }
    }
}
