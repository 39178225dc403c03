//! Who is connected: members of consumer groups and their subscriptions, and producers
//! (docs/behaviour.md, Client management).
//!
//! Heartbeats take a lock per group; pulls read a snapshot. A channel that closes is removed from
//! every group it registered with.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use papaya::HashMap as LockFreeMap;
pub use saturnmq_net::messages::heartbeat::{ConsumeFromWhere, ConsumeType, MessageModel};

use crate::answer::Channel;
use crate::core::off_the_cores;
use crate::subscription::{Subscription, follow_selectors};

mod full;
mod member;

pub use full::ClientsFull;
pub use member::Member;

use full::{MAX_GROUPS_PER_CHANNEL, PRODUCER_BYTES_MAX, SUBSCRIPTION_BYTES_MAX, producer_bytes};

/// A producer not renewed by a heartbeat for this long is dropped, in milliseconds.
pub const CHANNEL_EXPIRED_MS: i64 = 120_000;

/// What is known of a consumer group at one moment.
#[derive(Debug, Clone, Default)]
pub struct ConsumerView {
    /// Of the last heartbeat.
    pub consume_type: ConsumeType,
    /// Of the last heartbeat.
    pub message_model: MessageModel,
    /// Of the last heartbeat.
    pub consume_from_where: ConsumeFromWhere,
    /// By topic; merged from the heartbeats of all members, the last writer wins.
    pub subscriptions: HashMap<Arc<str>, Arc<Subscription>>,
    /// The connected clients.
    pub members: Vec<Arc<Member>>,
    /// What the subscriptions take, in bytes.
    subscription_bytes: usize,
    /// Fingerprint of the last V2 heartbeat; 0 for none.
    pub fingerprint: i32,
}

impl ConsumerView {
    /// The member on a connection.
    pub fn member(&self, channel: Channel) -> Option<&Arc<Member>> {
        self.members.iter().find(|member| member.channel == channel)
    }
}

/// A consumer group with at least one member, or one that just lost its last.
#[derive(Debug, Default)]
pub struct ConsumerGroup {
    view: ArcSwap<ConsumerView>,
    change: Mutex<()>,
    /// When this group's registration last changed.
    updated_ms: AtomicI64,
}

impl ConsumerGroup {
    /// The group as of now.
    pub fn view(&self) -> Arc<ConsumerView> {
        self.view.load_full()
    }

    /// The subscription of the group for a topic, without locks and without counting references.
    pub fn with_view<T>(&self, look: impl FnOnce(&ConsumerView) -> T) -> T {
        look(&self.view.load())
    }

    /// When this group's members or subscriptions last changed.
    pub fn updated_ms(&self) -> i64 {
        self.updated_ms.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The view is replaced whole: a panic elsewhere leaves it consistent.
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One consumer group of a heartbeat.
#[derive(Debug)]
pub struct ConsumerHeartbeat {
    /// Group name.
    pub group: String,
    /// How the group gets messages.
    pub consume_type: ConsumeType,
    /// How members share.
    pub message_model: MessageModel,
    /// Where a new group starts.
    pub consume_from_where: ConsumeFromWhere,
    /// All subscriptions of this client, or `None` to keep those known (V2 without subscriptions).
    pub subscriptions: Option<Vec<Subscription>>,
    /// Fingerprint of a V2 heartbeat; 0 for none.
    pub fingerprint: i32,
}

/// What a consumer registration did.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Registered {
    /// A member joined or left, or the set of topics changed: members must rebalance.
    pub changed: bool,
    /// Subscriptions that were known are other ones now: pulls that wait were checked against the
    /// old ones.
    pub resubscribed: bool,
    /// The fingerprint known for the group differed.
    pub fingerprint_differed: bool,
    /// It, or what it subscribes to, is not kept.
    pub refused: Option<ClientsFull>,
}

/// A producer group: its clients, and whose turn it is to be asked.
#[derive(Debug, Default)]
pub struct ProducerGroup {
    members: ArcSwap<Vec<Arc<Member>>>,
    change: Mutex<()>,
    turn: AtomicUsize,
}

impl ProducerGroup {
    /// The connected clients.
    pub fn members(&self) -> Arc<Vec<Arc<Member>>> {
        self.members.load_full()
    }

    /// One of the clients, another one each time.
    pub fn next(&self) -> Option<Arc<Member>> {
        let members = self.members.load();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        members.get(turn.checked_rem(members.len())?).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct ChannelGroups {
    consumers: HashSet<Arc<str>>,
    producers: HashSet<Arc<str>>,
}

#[derive(Copy, Clone)]
enum Side {
    Consumers,
    Producers,
}

impl ChannelGroups {
    fn side(&mut self, side: Side) -> &mut HashSet<Arc<str>> {
        match side {
            Side::Consumers => &mut self.consumers,
            Side::Producers => &mut self.producers,
        }
    }
}

/// The registries of consumers and producers.
#[derive(Debug, Default)]
pub struct Clients {
    consumers: LockFreeMap<Arc<str>, Arc<ConsumerGroup>>,
    producers: LockFreeMap<Arc<str>, Arc<ProducerGroup>>,
    channels: Mutex<HashMap<Channel, ChannelGroups>>,
    refused: AtomicU64,
    /// Bytes of the subscriptions of all groups.
    subscription_bytes: AtomicUsize,
    /// Bytes of the producer groups of all connections.
    producer_bytes: AtomicUsize,
}

impl Clients {
    /// The consumer group, if it has members.
    pub fn consumer(&self, group: &str) -> Option<Arc<ConsumerGroup>> {
        self.consumers.pin().get(group).cloned()
    }

    /// The producer group, if it has members.
    pub fn producer(&self, group: &str) -> Option<Arc<ProducerGroup>> {
        self.producers.pin().get(group).cloned()
    }

    /// Names of all consumer groups with members.
    pub fn consumer_groups(&self) -> Vec<Arc<str>> {
        off_the_cores();
        self.consumers.pin().keys().cloned().collect()
    }

    /// Names of all producer groups with members.
    pub fn producer_groups(&self) -> Vec<Arc<str>> {
        off_the_cores();
        self.producers.pin().keys().cloned().collect()
    }

    /// A producer's connection by client id, in whatever group it is.
    pub fn producer_by_id(&self, client_id: &str) -> Option<Arc<Member>> {
        off_the_cores();
        let producers = self.producers.pin();
        producers.values().find_map(|group| {
            group
                .members
                .load()
                .iter()
                .find(|member| &*member.client_id == client_id)
                .cloned()
        })
    }

    /// Registrations refused because a connection had too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Registers or renews a member of a consumer group and merges its subscriptions.
    pub fn register_consumer(
        &self,
        heartbeat: ConsumerHeartbeat,
        member: &Arc<Member>,
        steady_ms: i64,
    ) -> Registered {
        let name: Arc<str> = Arc::from(heartbeat.group.as_str());
        if let Err(full) = self.note(member.channel, &name, Side::Consumers) {
            return Registered {
                refused: Some(full),
                ..Registered::default()
            };
        }
        loop {
            let group = {
                let consumers = self.consumers.pin();
                Arc::clone(consumers.get_or_insert_with(Arc::clone(&name), Arc::default))
            };
            let guard = group.lock();
            // A group that lost its last member leaves the map under its lock: start again then.
            if !self
                .consumers
                .pin()
                .get(&*name)
                .is_some_and(|held| Arc::ptr_eq(held, &group))
            {
                continue;
            }
            let registered = self.merge(&group, heartbeat, member, steady_ms);
            drop(guard);
            return registered;
        }
    }

    /// Registers or renews a member of a producer group.
    ///
    /// # Errors
    /// [`ClientsFull`] when the connection, or all of them, are in too many.
    pub fn register_producer(
        &self,
        group: &str,
        member: &Arc<Member>,
        steady_ms: i64,
    ) -> Result<(), ClientsFull> {
        let name: Arc<str> = Arc::from(group);
        self.note(member.channel, &name, Side::Producers)?;
        loop {
            let group = {
                let producers = self.producers.pin();
                Arc::clone(producers.get_or_insert_with(Arc::clone(&name), Arc::default))
            };
            let _guard = group.lock();
            if !self
                .producers
                .pin()
                .get(&*name)
                .is_some_and(|held| Arc::ptr_eq(held, &group))
            {
                continue;
            }
            let members = group.members.load();
            match members.iter().find(|known| known.channel == member.channel) {
                Some(known) if same_client(known, member) => known.seen(steady_ms),
                _ => {
                    let mut changed: Vec<_> = without(&members, member.channel);
                    changed.push(Arc::clone(member));
                    group.members.store(Arc::new(changed));
                }
            }
            return Ok(());
        }
    }

    /// Removes a connection from one consumer group; true if it was a member.
    pub fn unregister_consumer(&self, group: &str, channel: Channel, steady_ms: i64) -> bool {
        self.forget(channel, group, Side::Consumers);
        self.remove_consumer(group, channel, steady_ms)
    }

    /// Removes a connection from one producer group.
    pub fn unregister_producer(&self, group: &str, channel: Channel) {
        self.forget(channel, group, Side::Producers);
        self.remove_producer(group, channel);
    }

    /// Removes a closed connection everywhere; names the consumer groups that lost a member.
    pub fn closed(&self, channel: Channel, steady_ms: i64) -> Vec<Arc<str>> {
        let groups = self.channels().remove(&channel);
        let Some(groups) = groups else {
            return Vec::new();
        };
        for group in &groups.producers {
            self.producer_bytes
                .fetch_sub(producer_bytes(group), Ordering::Relaxed);
            self.remove_producer(group, channel);
        }
        let mut lost: Vec<Arc<str>> = groups.consumers.into_iter().collect();
        lost.retain(|group| self.remove_consumer(group, channel, steady_ms));
        lost
    }

    /// Connections whose registration ran out; the caller closes them, which removes them.
    pub fn expired(&self, steady_ms: i64, consumers_after_ms: i64) -> Vec<Channel> {
        let mut channels = Vec::new();
        let mut check = |members: &[Arc<Member>], after_ms: i64| {
            for member in members {
                if steady_ms - member.last_seen_ms() > after_ms {
                    channels.push(member.channel);
                }
            }
        };
        for group in self.consumers.pin().values() {
            check(&group.view.load().members, consumers_after_ms);
        }
        for group in self.producers.pin().values() {
            check(&group.members.load(), CHANNEL_EXPIRED_MS);
        }
        channels
    }

    fn remove_consumer(&self, group: &str, channel: Channel, steady_ms: i64) -> bool {
        let Some(held) = self.consumer(group) else {
            return false;
        };
        let _guard = held.lock();
        let view = held.view.load_full();
        if view.member(channel).is_none() {
            return false;
        }
        let members = without(&view.members, channel);
        let mut subscription_bytes = view.subscription_bytes;
        if members.is_empty() {
            self.consumers.pin().remove(group);
            self.subscription_bytes
                .fetch_sub(subscription_bytes, Ordering::Relaxed);
            subscription_bytes = 0;
        }
        held.view.store(Arc::new(ConsumerView {
            members,
            subscription_bytes,
            ..(*view).clone()
        }));
        held.updated_ms.store(steady_ms, Ordering::Relaxed);
        true
    }

    fn remove_producer(&self, group: &str, channel: Channel) {
        let Some(held) = self.producer(group) else {
            return;
        };
        let _guard = held.lock();
        let members = without(&held.members.load(), channel);
        if members.is_empty() {
            self.producers.pin().remove(group);
        }
        held.members.store(Arc::new(members));
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<Channel, ChannelGroups>> {
        // Every change of the table is one operation: a panic elsewhere leaves it whole.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection may be in that consumer group beside those that it is in.
    ///
    /// # Errors
    /// [`ClientsFull::Connection`] when it is in as many as it may be.
    pub fn check_groups(&self, channel: Channel, group: &str) -> Result<(), ClientsFull> {
        let mut channels = self.channels();
        let groups = channels.get_mut(&channel);
        let groups = groups.map(|groups| groups.side(Side::Consumers));
        let full = |groups: &mut HashSet<Arc<str>>| {
            groups.len() >= MAX_GROUPS_PER_CHANNEL && !groups.contains(group)
        };
        if groups.is_some_and(full) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(ClientsFull::Connection);
        }
        Ok(())
    }

    fn note(&self, channel: Channel, group: &Arc<str>, side: Side) -> Result<(), ClientsFull> {
        let mut channels = self.channels();
        let groups = channels.entry(channel).or_default().side(side);
        if groups.contains(group) {
            return Ok(());
        }
        let mut full = (groups.len() >= MAX_GROUPS_PER_CHANNEL).then_some(ClientsFull::Connection);
        if let Side::Producers = side {
            // Added to only while the channels are locked.
            let bytes = self.producer_bytes.load(Ordering::Relaxed) + producer_bytes(group);
            if bytes > PRODUCER_BYTES_MAX {
                full = Some(ClientsFull::Producers(bytes));
            }
            if full.is_none() {
                self.producer_bytes
                    .fetch_add(producer_bytes(group), Ordering::Relaxed);
            }
        }
        if let Some(full) = full {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(full);
        }
        groups.insert(Arc::clone(group));
        Ok(())
    }

    fn forget(&self, channel: Channel, group: &str, side: Side) {
        let mut channels = self.channels();
        if let Some(groups) = channels.get_mut(&channel) {
            if groups.side(side).remove(group)
                && let Side::Producers = side
            {
                self.producer_bytes
                    .fetch_sub(producer_bytes(group), Ordering::Relaxed);
            }
            if groups.consumers.is_empty() && groups.producers.is_empty() {
                channels.remove(&channel);
            }
        }
    }

    /// Merges a heartbeat into a group whose lock the caller holds.
    fn merge(
        &self,
        group: &ConsumerGroup,
        heartbeat: ConsumerHeartbeat,
        member: &Arc<Member>,
        steady_ms: i64,
    ) -> Registered {
        let old = group.view.load_full();
        let known = old
            .member(member.channel)
            .filter(|known| same_client(known, member));
        if let Some(known) = known {
            known.seen(steady_ms);
        }
        let joined = known.is_none();
        let merged = heartbeat
            .subscriptions
            .and_then(|sent| merge_subscriptions(&old, sent));
        let mut refused = None;
        let merged = merged.filter(|(subscriptions, _)| {
            let bytes = bytes_of(subscriptions);
            let all = &self.subscription_bytes;
            let others = all
                .load(Ordering::Relaxed)
                .saturating_sub(old.subscription_bytes);
            if bytes > old.subscription_bytes && others + bytes > SUBSCRIPTION_BYTES_MAX {
                refused = Some(ClientsFull::Subscriptions(others + bytes));
            }
            refused.is_none()
        });
        let topics_changed = merged.as_ref().is_some_and(|(_, changed)| *changed);
        let same_shape = old.consume_type == heartbeat.consume_type
            && old.message_model == heartbeat.message_model
            && old.consume_from_where == heartbeat.consume_from_where
            && old.fingerprint == heartbeat.fingerprint;
        let registered = Registered {
            changed: joined || topics_changed,
            resubscribed: merged.is_some() && !old.subscriptions.is_empty(),
            fingerprint_differed: old.fingerprint != 0 && old.fingerprint != heartbeat.fingerprint,
            refused,
        };
        if !joined && merged.is_none() && same_shape {
            return registered;
        }
        let mut view = ConsumerView {
            consume_type: heartbeat.consume_type,
            message_model: heartbeat.message_model,
            consume_from_where: heartbeat.consume_from_where,
            fingerprint: heartbeat.fingerprint,
            ..(*old).clone()
        };
        if let Some((subscriptions, _)) = merged {
            view.subscription_bytes = bytes_of(&subscriptions);
            view.subscriptions = subscriptions;
            let all = &self.subscription_bytes;
            all.fetch_add(view.subscription_bytes, Ordering::Relaxed);
            all.fetch_sub(old.subscription_bytes, Ordering::Relaxed);
        }
        if joined {
            view.members = without(&view.members, member.channel);
            view.members.push(Arc::clone(member));
        }
        group.view.store(Arc::new(view));
        group.updated_ms.store(steady_ms, Ordering::Relaxed);
        registered
    }
}

type Subscriptions = HashMap<Arc<str>, Arc<Subscription>>;

fn bytes_of(subscriptions: &Subscriptions) -> usize {
    subscriptions.values().map(|sent| sent.bytes()).sum()
}

/// The merged table and whether topics came or went; `None` when nothing changes at all.
fn merge_subscriptions(
    old: &ConsumerView,
    sent: Vec<Subscription>,
) -> Option<(Subscriptions, bool)> {
    let mut topics_changed = false;
    let mut replaced = false;
    let mut merged = Subscriptions::with_capacity(sent.len());
    for subscription in sent {
        let kept = match old.subscriptions.get(&*subscription.topic) {
            None => {
                topics_changed = true;
                Arc::new(subscription)
            }
            Some(known) if subscription.data.sub_version > known.data.sub_version => {
                replaced = true;
                Arc::new(subscription)
            }
            Some(known) => Arc::clone(known),
        };
        merged.insert(Arc::clone(&kept.topic), kept);
    }
    topics_changed |= old
        .subscriptions
        .keys()
        .any(|topic| !merged.contains_key(topic));
    if !topics_changed && !replaced {
        return None;
    }
    // A retry topic is filtered by the selectors of the group's topics, one of which changed.
    follow_selectors(&mut merged);
    Some((merged, topics_changed))
}

fn same_client(known: &Member, member: &Member) -> bool {
    known.client_id == member.client_id && known.version == member.version
}

fn without(members: &[Arc<Member>], channel: Channel) -> Vec<Arc<Member>> {
    members
        .iter()
        .filter(|member| member.channel != channel)
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use saturnmq_net::command::Language;
    use saturnmq_net::messages::heartbeat::SubscriptionData;

    use super::*;
    use crate::subscription::Wanted;

    fn member(conn: u64) -> Arc<Member> {
        let channel = Channel {
            core: 0,
            conn: saturnmq_net::driver::ConnectionId::from_bits(conn),
        };
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Arc::new(Member::new(channel, "id", Language::Java, 399, peer, 0))
    }

    fn heartbeat(group: &str, expression_bytes: usize) -> ConsumerHeartbeat {
        let data = SubscriptionData {
            topic: "T".into(),
            sub_string: "x".repeat(expression_bytes),
            // Not hashed: that takes long for so many bytes.
            expression_type: "SQL92".into(),
            ..SubscriptionData::default()
        };
        ConsumerHeartbeat {
            group: group.into(),
            consume_type: ConsumeType::default(),
            message_model: MessageModel::default(),
            consume_from_where: ConsumeFromWhere::default(),
            subscriptions: Some(vec![Subscription::new(data)]),
            fingerprint: 0,
        }
    }

    #[test]
    fn subscriptions_of_clients_cannot_fill_the_memory() {
        let clients = Clients::default();
        let member = member(1);
        let beat = |group: &str| {
            let heartbeat = heartbeat(group, 60 << 20);
            clients.register_consumer(heartbeat, &member, 0)
        };
        for group in ["a", "b", "c", "d"] {
            assert_eq!(beat(group).refused, None);
            assert_eq!(beat(group).refused, None, "the same again is no more");
        }
        let full = beat("e").refused.expect("it is too much");
        assert!(full.to_string().contains("may take 268435456"), "{full}");
        let view = clients.consumer("e").expect("registered").view();
        assert!(view.subscriptions.is_empty() && view.members.len() == 1);
        clients.unregister_consumer("a", member.channel, 0);
        assert_eq!(beat("e").refused, None);
        clients.closed(member.channel, 0);
        assert_eq!(clients.subscription_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn producer_groups_of_clients_cannot_fill_the_memory() {
        let clients = Clients::default();
        let long = "g".repeat(1000);
        let mut full = None;
        'all: for conn in 0..1000 {
            let member = member(conn);
            for number in 0..1000 {
                let group = format!("{long}{number}");
                if let Err(error) = clients.register_producer(&group, &member, 0) {
                    full = Some(error);
                    break 'all;
                }
            }
        }
        let full = full.expect("it is too much").to_string();
        assert!(full.contains("may take 134217728"), "{full}");
        let known = format!("{long}0");
        assert_eq!(clients.register_producer(&known, &member(0), 0), Ok(()));
        clients.unregister_producer(&known, member(0).channel);
        assert_eq!(clients.register_producer("other", &member(0), 0), Ok(()));
        for conn in 0..1000 {
            clients.closed(member(conn).channel, 0);
        }
        assert_eq!(clients.producer_bytes.load(Ordering::Relaxed), 0);
        let member = member(1);
        for number in 0..MAX_GROUPS_PER_CHANNEL {
            let group = number.to_string();
            assert_eq!(clients.register_producer(&group, &member, 0), Ok(()));
        }
        let one_more = clients.register_producer("one more", &member, 0);
        assert_eq!(one_more, Err(ClientsFull::Connection));
    }

    #[test]
    fn a_retry_topic_follows_a_selector_that_changes() {
        let clients = Clients::default();
        let member = member(1);
        let sql = |topic: &str, expression: &str, sub_version| SubscriptionData {
            topic: topic.into(),
            sub_string: expression.into(),
            expression_type: "SQL92".into(),
            sub_version,
            ..SubscriptionData::default()
        };
        let by_origin = |expression, version| {
            let data = vec![sql("T", expression, version), sql("%RETRY%g", "TRUE", 1)];
            let mut beat = heartbeat("g", 0);
            let known = HashMap::new();
            beat.subscriptions = Some(crate::subscription::subscriptions(data, &known, true));
            clients.register_consumer(beat, &member, 0);
            let view = clients.consumer("g").expect("registered").view();
            match &view.subscriptions["%RETRY%g"].filter {
                Some(Wanted::SelectedByOrigin(all)) => format!("{:?}", all["T"]),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(by_origin("a = 1", 1), "Selector((a = 1))");
        assert_eq!(by_origin("a = 2", 2), "Selector((a = 2))");
        assert_eq!(by_origin("a = 1", 1), "Selector((a = 2))", "an old version");
    }
}
