//! Replies of consumers to the producer of a request: requests 324 and 325, and 326 to the producer
//! (docs/protocol.md, Sending). The reply is stored like any message, then pushed; the answer says
//! whether the producer got it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use saturnmq_net::codes::request as codes;
use saturnmq_net::messages::send::SendRequest;
use saturnmq_storage::append_queue::{AppendFailure, Appended, PushError};
use saturnmq_storage::format::message::{MessageParts, sys_flag};
use saturnmq_storage::format::message_id::MessageId;
use saturnmq_storage::format::properties::names::INNER_MULTI_QUEUE_OFFSET;
use saturnmq_storage::queue_table::Queue;

use crate::answer::{Answer, Ask, CoreMessage, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::handler::properties::{self, PropertyScan};
use crate::handler::send_checks;
use crate::handler::send_properties::UNQUEUED;
use crate::handler::{MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE};
use crate::held::Held;
use crate::services::ServiceContext;

/// How long the producer has to take its reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// The client that a reply is for.
const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
/// When the reply was pushed.
const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";

/// A reply, taken out of the request.
struct Taken {
    queue: Arc<Queue>,
    topic: String,
    producer_group: String,
    default_topic: String,
    default_topic_queue_nums: i32,
    queue_id: i32,
    sys_flag: i32,
    born_timestamp: i64,
    born_host: SocketAddr,
    flag: i32,
    reconsume_times: i32,
    unit_mode: bool,
    properties: String,
    body: Vec<u8>,
    /// Counts it until the reply is pushed or refused.
    _held: Option<Held>,
}

/// Handles a reply.
pub fn reply(broker: &Broker, request: &Request<'_>) -> Answer {
    let send = match SendRequest::decode(request.command.code, &request.command.ext) {
        Ok(send) => send,
        Err(error) => return error.into(),
    };
    let topic = match broker.topics.get(send.topic) {
        Some(topic) => topic,
        None => match send_checks::missing_topic(broker, request, &send) {
            Ok(topic) => topic,
            Err(answer) => return answer,
        },
    };
    if let Some(refusal) = send_checks::refuse(broker, request, &send, &topic) {
        return refusal;
    }
    if let Some(ticket) = broker.awaited(&topic, send.queue_id.max(0)) {
        return Answer::Rerun(ticket);
    }
    if !sys_flag::is_queued(send.sys_flag) {
        return send_checks::refused(broker, MESSAGE_ILLEGAL, UNQUEUED);
    }
    let limit = broker.live.load().max_message_size;
    if request.command.body.len() > limit {
        let remark = format!("the message is illegal: its body exceeds the limit of {limit}B");
        return send_checks::refused(broker, MESSAGE_ILLEGAL, remark);
    }
    let queue_id = send.queue_id.max(0);
    let Some(queue) = broker.queue(&topic, queue_id) else {
        return send_checks::refused(broker, SYSTEM_ERROR, "the queue cannot be opened");
    };
    let taken = Taken {
        queue,
        topic: send.topic.to_owned(),
        producer_group: send.producer_group.to_owned(),
        default_topic: send.default_topic.to_owned(),
        default_topic_queue_nums: send.default_topic_queue_nums,
        queue_id,
        sys_flag: send.sys_flag,
        born_timestamp: send.born_timestamp,
        born_host: request.peer,
        flag: send.flag,
        reconsume_times: send.reconsume_times,
        unit_mode: send.unit_mode,
        properties: send.properties.to_owned(),
        body: request.command.body.to_vec(),
        _held: broker.cores.hold(request.core, request.command.body.len()),
    };
    Answer::Work(Box::new(move |services, slot| {
        store(services, slot, taken);
    }))
}

/// Stores the reply, if that is wanted, and pushes it then.
fn store(services: &mut ServiceContext, slot: ReplySlot, taken: Taken) {
    let broker = Arc::clone(&services.broker);
    if !broker.live.load().store_reply_message {
        return push(services, slot, &taken, None);
    }
    let properties = properties_kept(&taken.properties);
    let (queue, body) = (Arc::clone(&taken.queue), taken.body.clone());
    let topic = taken.topic.clone();
    let parts = MessageParts {
        topic: &topic,
        queue_id: taken.queue_id,
        flag: taken.flag,
        sys_flag: taken.sys_flag,
        born_timestamp: taken.born_timestamp,
        born_host: taken.born_host,
        store_host: broker.store_host,
        reconsume_times: taken.reconsume_times,
        prepared_transaction_offset: 0,
        body: &body,
        properties: &[&properties],
    };
    let then = move |services: &mut ServiceContext, outcome: Result<Appended, _>| {
        push(services, slot, &taken, outcome.ok());
    };
    if let Err(error) = services.append(&queue, &parts, Box::new(then)) {
        services.reply(slot, refusal(&broker, &error));
    }
}

/// What is stored of a reply's properties: only the broker says where a message stands.
fn properties_kept(text: &str) -> Vec<u8> {
    let mut scan = PropertyScan::default();
    scan.read(text);
    if !scan.has_inner() {
        return text.as_bytes().to_vec();
    }
    scan.remove(text, INNER_MULTI_QUEUE_OFFSET);
    let mut kept = Vec::with_capacity(text.len());
    scan.write(text, &mut kept);
    kept
}

/// Why a reply was not stored. Only 13 says that sending it again is of no use.
fn refusal(broker: &Broker, error: &PushError) -> Reply {
    match error {
        PushError::Full => Reply::overload(),
        PushError::Closed => {
            let why = send_checks::unavailable(&AppendFailure::ShuttingDown);
            send_checks::reply(broker, SERVICE_NOT_AVAILABLE, why)
        }
        error => send_checks::reply(broker, MESSAGE_ILLEGAL, error.to_string()),
    }
}

/// Pushes the reply to the producer that waits for it.
fn push(services: &ServiceContext, slot: ReplySlot, taken: &Taken, stored: Option<Appended>) {
    let broker = &services.broker;
    let mut scan = PropertyScan::default();
    scan.read(&taken.properties);
    let Some(client) = scan.get(&taken.properties, REPLY_TO_CLIENT) else {
        let remark = format!("reply message properties[{REPLY_TO_CLIENT}] is null");
        return services.reply(slot, answer(broker, taken, stored, Some(remark)));
    };
    let Some(member) = broker.clients.producer_by_id(client) else {
        let remark = format!("push reply message fail, channel of <{client}> not found.");
        return services.reply(slot, answer(broker, taken, stored, Some(remark)));
    };
    let failed = format!("push reply message to {client}fail.");
    let ask = Box::new(Ask {
        channel: member.channel,
        code: codes::PUSH_REPLY_MESSAGE_TO_CLIENT,
        fields: fields(broker, taken, &scan),
        body: taken.body.clone(),
        timeout: PATIENCE,
        late: answer(broker, taken, stored, Some(failed)),
    });
    let confirm = Box::new(answer(broker, taken, stored, None));
    let message = CoreMessage::Confirm { ask, slot, confirm };
    if let Err(CoreMessage::Confirm { ask, .. }) = broker.cores.post(member.channel.core, message) {
        services.reply(slot, ask.late);
    }
}

fn fields(broker: &Broker, taken: &Taken, scan: &PropertyScan) -> Vec<(&'static str, String)> {
    let now = now_ms().to_string();
    let mut pushed = Vec::new();
    scan.write(&taken.properties, &mut pushed);
    properties::append(&mut pushed, PUSH_REPLY_TIME, &now);
    vec![
        ("producerGroup", taken.producer_group.clone()),
        ("topic", taken.topic.clone()),
        ("defaultTopic", taken.default_topic.clone()),
        (
            "defaultTopicQueueNums",
            taken.default_topic_queue_nums.to_string(),
        ),
        ("queueId", taken.queue_id.to_string()),
        ("sysFlag", taken.sys_flag.to_string()),
        ("bornTimestamp", taken.born_timestamp.to_string()),
        ("flag", taken.flag.to_string()),
        ("properties", String::from_utf8_lossy(&pushed).into_owned()),
        ("reconsumeTimes", taken.reconsume_times.to_string()),
        ("unitMode", taken.unit_mode.to_string()),
        ("bornHost", taken.born_host.to_string()),
        ("storeHost", broker.store_host.to_string()),
        ("storeTimestamp", now),
    ]
}

/// What the replying consumer is told; the place of the stored copy, if there is one.
fn answer(
    broker: &Broker,
    taken: &Taken,
    stored: Option<Appended>,
    failed: Option<String>,
) -> Reply {
    let live = broker.live.load();
    let reply = match failed {
        Some(remark) => Reply::error(SYSTEM_ERROR, remark),
        None => Reply::success(),
    };
    let id = stored.map(|at| MessageId::new(broker.store_host, at.physical_offset).to_string());
    reply
        .field("queueId", taken.queue_id)
        .field("TRACE_ON", live.trace_on)
        .field("MSG_REGION", &live.region_id)
        .field("msgId", id.unwrap_or_else(|| "0".to_owned()))
        .field("queueOffset", stored.map_or(0, |at| at.queue_offset))
}
