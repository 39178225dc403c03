//! Heartbeats: request 34 (docs/behaviour.md, Client management). One of a client as they are is
//! taken on the network core; a long one goes to the services thread, a few milliseconds at a time,
//! for no other connection of a core should wait for it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use saturnmq_net::command::Language;
use saturnmq_net::driver::Outbox;
use saturnmq_net::fastjson;
use saturnmq_net::messages::heartbeat::{ConsumerData, HeartbeatData, ProducerData};

use super::client::notify;
use super::send_checks::give_queues;
use super::{SUBSCRIPTION_PARSE_FAILED, durably};
use crate::answer::{Answer, Channel, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::clients::{ClientsFull, ConsumeType, ConsumerHeartbeat, Member, Registered};
use crate::core::{now_ms, steady_ms};
use crate::filter::registered::Registration;
use crate::groups::{FoundGroup, Group};
use crate::names;
use crate::persist::{LastChanges, Ticket};
use crate::services::{STEP, ServiceContext};
use crate::subscription::{check_size, subscriptions};
use crate::topics::{PERM_READ, PERM_WRITE, TopicConfig, UNIT_SUBSCRIPTION};

/// Longest client id or producer group that is kept.
const NAME_MAX: usize = 1024;
/// The largest body that is taken on the network core, in bytes: some hundred groups.
const SHORT: usize = 64 << 10;

/// Who sends a heartbeat.
#[derive(Clone, Copy)]
struct Sender {
    channel: Channel,
    peer: SocketAddr,
    language: Language,
    version: i32,
    is_v5: bool,
}

/// 34: a client says who it is.
pub fn heartbeat(broker: &Broker, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let command = request.command;
    let sender = Sender {
        channel: request.channel(),
        peer: request.peer,
        language: command.language,
        version: command.version,
        is_v5: request.is_v5(),
    };
    if command.body.len() > SHORT {
        let body = command.body.to_vec();
        return Answer::Turns(Box::new(move |services, slot| {
            match Heartbeat::read(sender, &body) {
                Ok(beat) => beat.go_on(services, slot),
                Err(reply) => services.reply(slot, reply),
            }
        }));
    }
    match Heartbeat::read(sender, command.body) {
        Ok(mut beat) => {
            while beat.step(broker, Some((request.core, &mut *io))) {}
            beat.answer()
        }
        Err(reply) => reply.into(),
    }
}

/// One heartbeat while its groups are registered.
struct Heartbeat {
    consumers: std::vec::IntoIter<ConsumerData>,
    producers: std::vec::IntoIter<ProducerData>,
    member: Arc<Member>,
    is_v5: bool,
    fingerprint: i32,
    without_subscriptions: bool,
    subscription_changed: bool,
    /// The last changes of groups and of topics, that the answer waits for.
    made: LastChanges,
    refused: Option<ClientsFull>,
    now: i64,
}

impl Heartbeat {
    fn read(sender: Sender, body: &[u8]) -> Result<Self, Reply> {
        let data: HeartbeatData = fastjson::from_client(body)
            .map_err(|error| Reply::error(SYSTEM_ERROR, format!("the body: {error}")))?;
        if data.client_id.len() > NAME_MAX {
            return Err(Reply::error(SYSTEM_ERROR, "the client id is too long"));
        }
        let sets = data.consumer_data_set.iter();
        let mut sent = sets.flat_map(|consumer| &consumer.subscription_data_set);
        sent.try_for_each(check_size)
            .map_err(|error| Reply::error(SUBSCRIPTION_PARSE_FAILED, error.to_string()))?;
        let now = steady_ms();
        let member = Member::new(
            sender.channel,
            &data.client_id,
            sender.language,
            sender.version,
            sender.peer,
            now,
        );
        Ok(Heartbeat {
            consumers: data.consumer_data_set.into_iter(),
            producers: data.producer_data_set.into_iter(),
            member: Arc::new(member),
            is_v5: sender.is_v5,
            fingerprint: data.heartbeat_fingerprint,
            without_subscriptions: data.without_sub && data.heartbeat_fingerprint != 0,
            subscription_changed: data.heartbeat_fingerprint == 0,
            made: LastChanges::default(),
            refused: None,
            now,
        })
    }

    fn go_on(mut self, services: &mut ServiceContext, slot: ReplySlot) {
        let began = Instant::now();
        let broker = Arc::clone(&services.broker);
        while self.step(&broker, None) {
            if began.elapsed() >= STEP {
                return services.go_on_later(
                    slot,
                    Box::new(move |services, slot| self.go_on(services, slot)),
                );
            }
        }
        match self.end() {
            Ok((made, reply)) => durably::reply(broker, slot, made, reply),
            Err(reply) => services.reply(slot, reply),
        }
    }

    /// Registers one group; `false` when all are.
    fn step(&mut self, broker: &Broker, here: Option<(usize, &mut Outbox)>) -> bool {
        if let Some(consumer) = self.consumers.next() {
            self.consumer(broker, consumer, here);
            return true;
        }
        let Some(ProducerData { group_name }) = self.producers.next() else {
            return false;
        };
        if group_name.len() <= NAME_MAX && !group_name.is_empty() {
            let clients = &broker.clients;
            let registered = clients.register_producer(&group_name, &self.member, self.now);
            self.refused = self.refused.or(registered.err());
        }
        true
    }

    /// What the answer waits for, and the answer.
    fn end(self) -> Result<(Vec<Ticket>, Reply), Reply> {
        if let Some(full) = self.refused {
            return Err(Reply::error(SYSTEM_ERROR, full.to_string()));
        }
        let mut reply = Reply::success();
        if self.is_v5 {
            reply = reply
                .field("IS_SUPPORT_HEART_BEAT_V2", true)
                .field("IS_SUB_CHANGE", self.subscription_changed);
        }
        Ok((self.made.into_tickets(), reply))
    }

    fn answer(self) -> Answer {
        match self.end() {
            Ok((made, reply)) if made.is_empty() => reply.into(),
            Ok((made, reply)) => Answer::After(made, reply),
            Err(reply) => reply.into(),
        }
    }

    fn consumer(
        &mut self,
        broker: &Broker,
        consumer: ConsumerData,
        here: Option<(usize, &mut Outbox)>,
    ) {
        let live = broker.live.load();
        let actively = consumer.consume_type == ConsumeType::ConsumeActively;
        if live.reject_pull_consumer && actively {
            return;
        }
        // Nothing is made for a group that would be refused.
        let room = broker
            .clients
            .check_groups(self.member.channel, &consumer.group_name);
        if let Err(full) = room {
            self.refused = self.refused.or(Some(full));
            return;
        }
        // A group that does not exist is left out; the client's pulls tell it so.
        let groups = &broker.groups;
        let group = match groups.find_or_create(&consumer.group_name, &live) {
            FoundGroup::Found(group) | FoundGroup::Created(group, _) => group,
            FoundGroup::Missing | FoundGroup::Illegal(_) => return,
        };
        let ordered = consumer.subscription_data_set.iter().any(|subscription| {
            let topic = broker.topics.get(&subscription.topic);
            topic.is_some_and(|topic| topic.config.order)
        });
        // Made by it or by another request a moment ago.
        self.made.add(Self::pending(broker, group.ticket()));
        self.make_retry_topic(broker, &group, ordered, consumer.unit_mode);
        let known = broker.clients.consumer(&consumer.group_name);
        let view = known.as_ref().map(|known| known.view());
        let subscriptions = (!self.without_subscriptions).then(|| {
            let before = view.map_or_else(HashMap::new, |view| view.subscriptions.clone());
            let sent = consumer.subscription_data_set;
            subscriptions(sent, &before, live.filter_support_retry)
        });
        let heartbeat = ConsumerHeartbeat {
            group: consumer.group_name,
            consume_type: consumer.consume_type,
            message_model: consumer.message_model,
            consume_from_where: consumer.consume_from_where,
            subscriptions,
            fingerprint: self.fingerprint,
        };
        let Registered {
            changed,
            resubscribed,
            fingerprint_differed,
            refused,
        } = broker
            .clients
            .register_consumer(heartbeat, &self.member, self.now);
        self.refused = self.refused.or(refused);
        if resubscribed {
            broker.rules_changed();
        }
        if !self.without_subscriptions && refused.is_none() {
            Self::keep_filters(broker, &group.config.name);
        }
        self.subscription_changed |=
            fingerprint_differed || (self.without_subscriptions && known.is_none());
        if changed {
            notify(broker, &group.config.name, here);
        }
    }

    /// Writes the selectors of a group down.
    fn keep_filters(broker: &Broker, group: &str) {
        let Some(view) = broker.clients.consumer(group).map(|held| held.view()) else {
            return;
        };
        let registrations: Vec<Registration<'_>> = view
            .subscriptions
            .values()
            .filter(|subscription| subscription.filter.is_some())
            .map(|subscription| Registration {
                topic: &subscription.data.topic,
                kind: &subscription.data.expression_type,
                expression: &subscription.data.sub_string,
                version: subscription.data.sub_version,
            })
            .collect();
        broker.filters.register(group, &registrations, now_ms());
    }

    /// That change, unless it is on the disk.
    fn pending(broker: &Broker, change: Option<Ticket>) -> Option<Ticket> {
        change.filter(|ticket| !broker.persist.is_durable(*ticket))
    }

    /// The retry topic of a group is ordered as long as one of the group's topics is.
    fn make_retry_topic(&mut self, broker: &Broker, group: &Group, ordered: bool, unit: bool) {
        let name = names::retry_topic(&group.config.name);
        // A tool's group that no stock client would have.
        if !names::is_storable(&name) {
            return;
        }
        if let Some(topic) = broker.topics.get(&name) {
            self.made.add(Self::pending(broker, topic.ticket()));
            let mut config = topic.config.clone();
            if !self.without_subscriptions {
                config.order = ordered;
            }
            give_queues(&mut config, group.config.retry_queue_nums);
            if config != topic.config {
                self.made.add(broker.topics.create_or_update(config));
            }
            return;
        }
        // A group that does not retry has one without queues: tools ask for its route.
        let queues = group.config.retry_queue_nums.max(0);
        let mut config = TopicConfig::new(name, queues, PERM_READ | PERM_WRITE);
        config.order = ordered;
        if unit {
            config.sys_flag = UNIT_SUBSCRIPTION;
        }
        if let Err(full) = broker.topics.check_room(std::slice::from_ref(&config)) {
            // The first message that is sent back is told so.
            tracing::debug!(group = group.config.name, %full, "no retry topic");
            return;
        }
        // Made by another request in the meantime: it is that one's change.
        let (topic, ticket) = broker.topics.create_if_absent(config);
        self.made
            .add(ticket.or_else(|| Self::pending(broker, topic.ticket())));
    }
}
