//! Registration of clients: requests 34, 35, 38 and 46, and the notification 40
//! (docs/behaviour.md, Client management).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use saturnmq_net::codes::request as codes;
use saturnmq_net::driver::Outbox;
use saturnmq_net::encode::Encoder;
use saturnmq_net::fastjson;
use saturnmq_net::frame::Codec;
use saturnmq_net::header::fields::FieldError;
use saturnmq_net::messages::heartbeat::{
    CheckClientConfig, ConsumerData, ConsumerIdList, HeartbeatData,
};

use crate::answer::{Answer, Channel, CoreMessage, Reply, Request, SYSTEM_ERROR, V5_0_0};
use crate::broker::Broker;
use crate::clients::{
    ClientsFull, ConsumeType, ConsumerHeartbeat, Member, MessageModel, Registered,
};
use crate::core::{now_ms, steady_ms};
use crate::filter::SQL92;
use crate::filter::registered::Registration;
use crate::groups::{FoundGroup, Group};
use crate::handler::SUBSCRIPTION_PARSE_FAILED;
use crate::handler::pull_checks::unsupported;
use crate::handler::send_checks::give_queues;
use crate::names;
use crate::persist::{LastChanges, Ticket};
use crate::room;
use crate::subscription::{check_size, is_tag, own_filter, subscriptions};
use crate::topics::{PERM_READ, PERM_WRITE, TopicConfig, UNIT_SUBSCRIPTION};

/// Longest client id or producer group that is kept.
const NAME_MAX: usize = 1024;

/// Numbers of the requests that this broker sends by itself.
static NEXT_OPAQUE: AtomicI32 = AtomicI32::new(1);

/// The number of the next request that this broker sends by itself.
pub fn next_opaque() -> i32 {
    NEXT_OPAQUE.fetch_add(1, Ordering::Relaxed)
}

fn body<T: serde::de::DeserializeOwned>(request: &Request<'_>) -> Result<T, Reply> {
    fastjson::from_client(request.command.body)
        .map_err(|error| Reply::error(SYSTEM_ERROR, format!("the body: {error}")))
}

/// 34: a client says who it is.
pub fn heartbeat(broker: &Broker, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let data: HeartbeatData = match body(request) {
        Ok(data) => data,
        Err(reply) => return reply.into(),
    };
    if data.client_id.len() > NAME_MAX {
        return Reply::error(SYSTEM_ERROR, "the client id is too long").into();
    }
    let sets = data.consumer_data_set.iter();
    let mut subscriptions = sets.flat_map(|consumer| &consumer.subscription_data_set);
    if let Err(error) = subscriptions.try_for_each(check_size) {
        return Reply::error(SUBSCRIPTION_PARSE_FAILED, error.to_string()).into();
    }
    let now = steady_ms();
    let command = request.command;
    let member = Arc::new(Member::new(
        request.channel(),
        &data.client_id,
        command.language,
        command.version,
        request.peer,
        now,
    ));
    let mut beat = Heartbeat {
        broker,
        request,
        member: &member,
        fingerprint: data.heartbeat_fingerprint,
        without_subscriptions: data.without_sub && data.heartbeat_fingerprint != 0,
        subscription_changed: data.heartbeat_fingerprint == 0,
        made: LastChanges::default(),
        refused: None,
        now,
    };
    for consumer in data.consumer_data_set {
        beat.consumer(consumer, io);
    }
    for producer in data.producer_data_set {
        if producer.group_name.len() <= NAME_MAX && !producer.group_name.is_empty() {
            let registered = broker
                .clients
                .register_producer(&producer.group_name, &member, now);
            beat.refused = beat.refused.or(registered.err());
        }
    }
    if let Some(full) = beat.refused {
        return Reply::error(SYSTEM_ERROR, full.to_string()).into();
    }
    let mut reply = Reply::success();
    if request.is_v5() {
        reply = reply
            .field("IS_SUPPORT_HEART_BEAT_V2", true)
            .field("IS_SUB_CHANGE", beat.subscription_changed);
    }
    let made = beat.made.into_tickets();
    if made.is_empty() {
        return reply.into();
    }
    Answer::After(made, reply)
}

/// One heartbeat while its groups are registered.
struct Heartbeat<'a> {
    broker: &'a Broker,
    request: &'a Request<'a>,
    member: &'a Arc<Member>,
    fingerprint: i32,
    without_subscriptions: bool,
    subscription_changed: bool,
    /// The last changes of groups and of topics, that the answer waits for.
    made: LastChanges,
    refused: Option<ClientsFull>,
    now: i64,
}

impl Heartbeat<'_> {
    fn consumer(&mut self, consumer: ConsumerData, io: &mut Outbox) {
        let live = self.broker.live.load();
        let actively = consumer.consume_type == ConsumeType::ConsumeActively;
        if live.reject_pull_consumer && actively {
            return;
        }
        // Nothing is made for a group that would be refused.
        let room = self
            .broker
            .clients
            .check_groups(self.request.channel(), &consumer.group_name);
        if let Err(full) = room {
            self.refused = self.refused.or(Some(full));
            return;
        }
        // A group that does not exist is left out; the client's pulls tell it so.
        let groups = &self.broker.groups;
        let group = match groups.find_or_create(&consumer.group_name, &live) {
            FoundGroup::Found(group) | FoundGroup::Created(group, _) => group,
            FoundGroup::Missing | FoundGroup::Illegal(_) => return,
        };
        let ordered = consumer.subscription_data_set.iter().any(|subscription| {
            let topic = self.broker.topics.get(&subscription.topic);
            topic.is_some_and(|topic| topic.config.order)
        });
        // Made by it or by another request a moment ago.
        self.made.add(self.pending(group.ticket()));
        self.make_retry_topic(&group, ordered, consumer.unit_mode);
        let known = self.broker.clients.consumer(&consumer.group_name);
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
        } = self
            .broker
            .clients
            .register_consumer(heartbeat, self.member, self.now);
        self.refused = self.refused.or(refused);
        if resubscribed {
            self.broker.rules_changed();
        }
        if !self.without_subscriptions && refused.is_none() {
            self.keep_filters(&group.config.name);
        }
        self.subscription_changed |=
            fingerprint_differed || (self.without_subscriptions && known.is_none());
        if changed {
            notify(
                self.broker,
                &group.config.name,
                Some((self.request.core, io)),
            );
        }
    }

    /// Writes the selectors of a group down.
    fn keep_filters(&self, group: &str) {
        let Some(view) = self.broker.clients.consumer(group).map(|held| held.view()) else {
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
        self.broker
            .filters
            .register(group, &registrations, now_ms());
    }

    /// That change, unless it is on the disk.
    fn pending(&self, change: Option<Ticket>) -> Option<Ticket> {
        change.filter(|ticket| !self.broker.persist.is_durable(*ticket))
    }

    /// The retry topic of a group is ordered as long as one of the group's topics is.
    fn make_retry_topic(&mut self, group: &Group, ordered: bool, unit: bool) {
        let name = names::retry_topic(&group.config.name);
        if let Some(topic) = self.broker.topics.get(&name) {
            self.made.add(self.pending(topic.ticket()));
            let mut config = topic.config.clone();
            if !self.without_subscriptions {
                config.order = ordered;
            }
            give_queues(&mut config, group.config.retry_queue_nums);
            if config != topic.config {
                self.made.add(self.broker.topics.create_or_update(config));
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
        if let Err(full) = self.broker.topics.check_room(std::slice::from_ref(&config)) {
            // The first message that is sent back is told so.
            tracing::debug!(group = group.config.name, %full, "no retry topic");
            return;
        }
        // Made by another request in the meantime: it is that one's change.
        let (topic, ticket) = self.broker.topics.create_if_absent(config);
        self.made
            .add(ticket.or_else(|| self.pending(topic.ticket())));
    }
}

/// Tells every member of a group that its members or subscriptions changed. Connections of the
/// calling core are written to at once, so that the notification precedes what is answered next.
pub fn notify(broker: &Broker, group: &str, mut here: Option<(usize, &mut Outbox)>) {
    let enabled = broker
        .groups
        .get(group)
        .is_none_or(|group| group.config.notify_changes);
    if !enabled || !broker.live.load().notify_consumer_ids_changed {
        return;
    }
    let Some(registered) = broker.clients.consumer(group) else {
        return;
    };
    let view = registered.view();
    let broadcasting = view.message_model == MessageModel::Broadcasting;
    for member in &view.members {
        // Members of a broadcasting group share nothing; only the older generation is told.
        if broadcasting && member.version >= V5_0_0 {
            continue;
        }
        let Channel { core, conn } = member.channel;
        if let Some((own, io)) = &mut here
            && *own == core
        {
            if room::is_for(io, conn, 0)
                && let Some(out) = io.buffer(conn)
            {
                encode_notification(out, group);
            }
            continue;
        }
        let mut frame = Vec::new();
        encode_notification(&mut frame, group);
        let message = CoreMessage::Push {
            conn,
            frame: frame.into_boxed_slice(),
        };
        if broker.cores.post(core, message).is_err() {
            tracing::debug!(
                group,
                "a member is not told of a change: its core's inbox is full"
            );
        }
    }
}

fn encode_notification(out: &mut Vec<u8>, group: &str) {
    let code = codes::NOTIFY_CONSUMER_IDS_CHANGED;
    let mut encoder = Encoder::request(out, Codec::Json, code, next_opaque(), true);
    encoder.field_str("consumerGroup", group);
    encoder.finish();
}

/// Takes what a connection that is gone registered at the name server.
pub fn withdraw(broker: &Broker, channel: Channel) {
    let name_server = &broker.name_server;
    // Few connections are a broker's: the others wait for nobody who reads the tables.
    let is_broker = name_server.registry().has_connection(channel);
    if is_broker {
        name_server.registry_mut().connection_closed(channel);
    }
}

/// A connection is gone: its registrations with it, also those of a broker at the name server.
pub fn closed(broker: &Broker, channel: Channel) {
    withdraw(broker, channel);
    for group in broker.clients.closed(channel, steady_ms()) {
        filters_unused(broker, &group);
        notify(broker, &group, None);
    }
}

/// A group that lost its last member uses its selectors no longer.
fn filters_unused(broker: &Broker, group: &str) {
    if broker.clients.consumer(group).is_none() {
        broker.filters.unregister(group, now_ms());
    }
}

/// 35: a client leaves a group.
pub fn unregister(broker: &Broker, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let named = |name: &'static str| -> Result<Option<&str>, FieldError> {
        Ok(request
            .command
            .ext
            .str(name)?
            .filter(|group| !group.is_empty()))
    };
    let left = || -> Result<(Option<&str>, Option<&str>), FieldError> {
        Ok((named("producerGroup")?, named("consumerGroup")?))
    };
    let (producer, consumer) = match left() {
        Ok(groups) => groups,
        Err(error) => return error.into(),
    };
    if let Some(group) = producer {
        broker.clients.unregister_producer(group, request.channel());
    }
    if let Some(group) = consumer
        && broker
            .clients
            .unregister_consumer(group, request.channel(), steady_ms())
    {
        filters_unused(broker, group);
        notify(broker, group, Some((request.core, io)));
    }
    Reply::success().into()
}

/// 38: the client ids of a group.
pub fn consumer_list(broker: &Broker, request: &Request<'_>) -> Answer {
    let group = match request.command.ext.required_str("consumerGroup") {
        Ok(group) => group,
        Err(error) => return error.into(),
    };
    let ids: Vec<String> = broker
        .clients
        .consumer(group)
        .map(|group| {
            group
                .view()
                .members
                .iter()
                .map(|m| m.client_id.to_string())
                .collect()
        })
        .unwrap_or_default();
    if ids.is_empty() {
        let remark = format!("no consumer for this group, {group}");
        return Reply::error(SYSTEM_ERROR, remark).into();
    }
    match serde_json::to_vec(&ConsumerIdList {
        consumer_id_list: ids,
    }) {
        Ok(json) => Reply::success().body(json).into(),
        Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()).into(),
    }
}

/// 46: whether a subscription can be served.
pub fn check_config(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked: CheckClientConfig = match body(request) {
        Ok(asked) => asked,
        Err(reply) => return reply.into(),
    };
    let data = &asked.subscription_data;
    if is_tag(&data.expression_type) {
        return Reply::success().into();
    }
    if !broker.live.load().enable_property_filter {
        return unsupported(&data.expression_type).into();
    }
    if data.expression_type != SQL92 {
        let remark = format!(
            "the expression type \"{}\" is neither TAG nor SQL92",
            data.expression_type
        );
        return Reply::error(SUBSCRIPTION_PARSE_FAILED, remark).into();
    }
    match own_filter(&data.expression_type, &data.sub_string) {
        Ok(_) => Reply::success().into(),
        Err(error) => Reply::error(SUBSCRIPTION_PARSE_FAILED, error.to_string()).into(),
    }
}
