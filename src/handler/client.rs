//! Registration of clients: requests 34, 35, 38 and 46, and the notification 40
//! (docs/behaviour.md, Client management).

use std::sync::atomic::{AtomicI32, Ordering};

use saturnmq_net::codes::request as codes;
use saturnmq_net::driver::Outbox;
use saturnmq_net::encode::Encoder;
use saturnmq_net::fastjson;
use saturnmq_net::frame::Codec;
use saturnmq_net::header::fields::FieldError;
use saturnmq_net::messages::heartbeat::{CheckClientConfig, ConsumerIdList};

use crate::answer::{Answer, Channel, CoreMessage, Reply, Request, SYSTEM_ERROR, V5_0_0};
use crate::broker::Broker;
use crate::clients::MessageModel;
use crate::core::{now_ms, steady_ms};
use crate::filter::SQL92;
use crate::handler::SUBSCRIPTION_PARSE_FAILED;
use crate::handler::pull_checks::unsupported;
use crate::room;
use crate::subscription::{is_tag, own_filter};

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
fn withdraw(broker: &Broker, channel: Channel) {
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
