//! 222 as brokers of 4.9 do it, and newer ones with `useServerSideResetOffset=false`: the members
//! of the group are told by 220 where to go on, and store it themselves.

use saturnmq_net::codes::{request as code, response};
use saturnmq_net::command::Language;
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::Codec;
use saturnmq_net::messages::lock::MessageQueue;
use saturnmq_net::messages::offset::{ResetOffset, ResetOffsetBody};
use saturnmq_storage::reader::TimeBoundary;

use crate::answer::{Answer, CoreMessage, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::clients::Member;
use crate::handler::V3_0_7;
use crate::handler::client::next_opaque;
use crate::handler::consumer_status::too_old;
use crate::handler::stats::written;
use crate::services::ServiceContext;

/// What is to be moved where.
struct Wanted {
    group: String,
    topic: String,
    timestamp: i64,
    forced: bool,
    for_cpp: bool,
}

pub fn by_clients(broker: &Broker, request: &Request<'_>, asked: &ResetOffset<'_>) -> Answer {
    let Some(topic) = broker.topics.get(asked.topic) else {
        let remark = format!(
            "[reset-offset] reset offset failed, no topic in this broker. topic={}",
            asked.topic
        );
        return Reply::error(SYSTEM_ERROR, remark).into();
    };
    let wanted = Wanted {
        group: asked.group.to_owned(),
        topic: asked.topic.to_owned(),
        timestamp: asked.timestamp,
        forced: asked.is_force,
        for_cpp: request.command.language == Language::Cpp,
    };
    Answer::Later(Box::new(move |services| {
        let queues = topic.config.write_queues;
        let told = offsets(services, &wanted, queues).and_then(|body| {
            tell(&services.broker, &wanted, &body)?;
            Ok(body)
        });
        match told {
            Ok(body) => written(|out| body.write(out)),
            Err(reply) => reply,
        }
    }))
}

/// Where the group is to go on in each queue. Unless forced, it does not go forward.
fn offsets(
    services: &mut ServiceContext,
    wanted: &Wanted,
    queues: i32,
) -> Result<ResetOffsetBody, Reply> {
    let mut body = ResetOffsetBody::default();
    for queue_id in 0..queues {
        let broker = &services.broker;
        let stored = broker
            .offsets
            .query(&wanted.group, &wanted.topic, queue_id)
            .filter(|offset| *offset >= 0);
        let Some(stored) = stored else {
            let remark = format!("THe consumer group <{}> not exist", wanted.group);
            return Err(Reply::error(SYSTEM_ERROR, remark));
        };
        let message_queue = MessageQueue {
            broker_name: broker.config.broker_name.clone(),
            queue_id,
            topic: wanted.topic.clone(),
        };
        let by_time = match broker.store.queue(&wanted.topic, queue_id) {
            None => 0,
            Some(queue) if wanted.timestamp == -1 => queue.max_offset(),
            Some(queue) => services
                .reader
                .offset_by_time(&queue, wanted.timestamp, TimeBoundary::Nearest)
                .map_err(|error| Reply::error(SYSTEM_ERROR, error.to_string()))?,
        };
        let offset = if wanted.forced {
            by_time
        } else {
            by_time.min(stored)
        };
        body.offset_table.0.push((message_queue, offset));
    }
    Ok(body)
}

/// Tells every member of the group.
fn tell(broker: &Broker, wanted: &Wanted, body: &ResetOffsetBody) -> Result<(), Reply> {
    let view = broker.clients.consumer(&wanted.group).map(|g| g.view());
    let members = view.map(|view| view.members.clone()).unwrap_or_default();
    if members.is_empty() {
        let remark = format!(
            "Consumer not online, so can not reset offset, Group: {} Topic: {} Timestamp: {}",
            wanted.group, wanted.topic, wanted.timestamp
        );
        return Err(Reply::error(response::CONSUMER_NOT_ONLINE, remark));
    }
    if let Some(old) = members.iter().find(|member| member.version < V3_0_7) {
        return Err(too_old(old));
    }
    let mut json = Vec::new();
    let wrote = if wanted.for_cpp {
        body.write_for_cpp(&mut json)
    } else {
        body.write(&mut json)
    };
    wrote.map_err(|error| Reply::error(SYSTEM_ERROR, error.to_string()))?;
    for member in &members {
        push(broker, wanted, member, &json);
    }
    Ok(())
}

fn push(broker: &Broker, wanted: &Wanted, member: &Member, json: &[u8]) {
    let mut frame = Vec::new();
    let code = code::RESET_CONSUMER_CLIENT_OFFSET;
    let mut encoder = Encoder::request(&mut frame, Codec::Json, code, next_opaque(), true);
    encoder.field_str("topic", &wanted.topic);
    encoder.field_str("group", &wanted.group);
    encoder.field_str("timestamp", &wanted.timestamp.to_string());
    encoder.field_str("isForce", if wanted.forced { "true" } else { "false" });
    encoder.body(json);
    let message = CoreMessage::Push {
        conn: member.channel.conn,
        frame: frame.into_boxed_slice(),
    };
    if broker.cores.post(member.channel.core, message).is_err() {
        tracing::warn!(
            group = wanted.group,
            "a member is not told of its new offsets: its core's inbox is full"
        );
    }
}
