//! Recalling a message for a time: request 370 (docs/behaviour.md, Messages for a time).

use std::sync::Mutex;
use std::time::Instant;

use saturnmq_net::listener::Complaint;
use saturnmq_net::messages::recall::RecallMessage;
use saturnmq_storage::append_queue::PushError;
use saturnmq_storage::format::message::MessageParts;

use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::handler::properties::{self, PropertyScan};
use crate::handler::send_checks::closed_store;
use crate::handler::transaction::ILLEGAL_OPERATION;
use crate::handler::{NO_PERMISSION, SERVICE_NOT_AVAILABLE, TOPIC_NOT_EXIST};
use crate::names;
use crate::services::ServiceContext;
use crate::timer;
use crate::timer::handle::Handle;
use crate::topics::PERM_WRITE;

/// Keeps failures of every message alike from filling the log.
static FAILED: Mutex<Complaint> = Mutex::new(Complaint::new());

const TAG: &str = "_RECALL_TAG_";
const UNAVAILABLE: &str = "recall failed, broker service not available";

/// Handles a recall: stores a message that deletes the one that is meant. The answer is 0 when
/// that is stored, whether or not there is something to delete.
pub fn recall(broker: &Broker, request: &Request<'_>) -> Answer {
    let recall = match RecallMessage::decode(&request.command.ext) {
        Ok(recall) => recall,
        Err(error) => return error.into(),
    };
    let handle = match check(broker, &recall) {
        Ok(handle) => handle,
        Err(reply) => return with_region(broker, reply).into(),
    };
    let now = now_ms();
    let mut text = Vec::new();
    let deletes = format!("{}+{}", handle.topic, handle.key);
    for (name, value) in [
        (properties::TIMER_DELETES, deletes.as_str()),
        (properties::UNIQ_KEY, &handle.key),
        (properties::TIMER_DELIVER_MS, &handle.time_ms.to_string()),
        ("BORN_TIMESTAMP", &now.to_string()),
        (
            properties::PGROUP,
            recall.producer_group.unwrap_or_default(),
        ),
        (properties::TAGS, TAG),
    ] {
        if !value.is_empty() {
            properties::append(&mut text, name, value);
        }
    }
    let asked = String::from_utf8_lossy(&text).into_owned();
    let mut scan = PropertyScan::default();
    scan.read(&asked);
    let time = match timer::asked::asked(broker, &scan, &asked, now.unsigned_abs()) {
        Ok(Some(time)) => time,
        Ok(None) => return with_region(broker, illegal("recall failed, timestamp invalid")).into(),
        Err(refusal) => return refusal,
    };
    properties::append(&mut text, properties::TIMER_OUT_MS, &time.to_string());
    properties::append(&mut text, properties::REAL_TOPIC, &handle.topic);
    properties::append(&mut text, properties::REAL_QID, "0");
    let peer = request.peer;
    Answer::Work(Box::new(move |services, slot| {
        store(services, slot, &text, handle.key, peer);
    }))
}

/// What the handle says, if the message may be recalled by it.
fn check(broker: &Broker, recall: &RecallMessage<'_>) -> Result<Handle, Reply> {
    let live = broker.live.load();
    if !live.timers.recall {
        let remark = "recall failed, operation is forbidden";
        return Err(Reply::error(NO_PERMISSION, remark));
    }
    let early = now_ms() < live.accept_sends_from_ms;
    let closed = live.broker_permission & PERM_WRITE == 0 && !live.timers.recall_unwritable;
    if early || closed {
        return Err(Reply::error(SERVICE_NOT_AVAILABLE, UNAVAILABLE));
    }
    if broker.topics.get(recall.topic).is_none() {
        let topic = recall.topic;
        let remark = format!("recall failed, the topic[{topic}] not exist");
        return Err(Reply::error(TOPIC_NOT_EXIST, remark));
    }
    let handle =
        Handle::decode(recall.recall_handle).ok_or_else(|| illegal("recall handle is invalid"))?;
    if handle.topic != recall.topic {
        return Err(illegal("recall failed, topic not match"));
    }
    if handle.broker != broker.config.broker_name {
        return Err(illegal(UNAVAILABLE));
    }
    let left = handle.time_ms.saturating_sub(now_ms());
    if left <= 0 || left >= live.timers.max_delay_ms {
        return Err(illegal("recall failed, timestamp invalid"));
    }
    // They become properties.
    let unfit = |text: &str| text.is_empty() || text.contains(char::is_control);
    match unfit(&handle.key) || unfit(recall.producer_group.unwrap_or("-")) {
        true => Err(illegal("recall handle is invalid")),
        false => Ok(handle),
    }
}

fn illegal(remark: &'static str) -> Reply {
    Reply::error(ILLEGAL_OPERATION, remark)
}

fn with_region(broker: &Broker, reply: Reply) -> Reply {
    reply.field("MSG_REGION", &broker.live.load().region_id)
}

fn store(
    services: &mut ServiceContext,
    slot: ReplySlot,
    properties: &[u8],
    key: String,
    peer: std::net::SocketAddr,
) {
    let broker = std::sync::Arc::clone(&services.broker);
    let failed = |broker: &Broker, code, why: &str| {
        let told = FAILED.try_lock().ok();
        if let Some(untold) = told.and_then(|mut told| told.tell(Instant::now())) {
            tracing::warn!(untold, "a message could not be recalled: {why}");
        }
        with_region(broker, Reply::error(code, "recall failed, execute error"))
    };
    if let Some(why) = closed_store(&broker.store.state()) {
        let reply = failed(&broker, SYSTEM_ERROR, &why);
        return services.reply(slot, reply);
    }
    let Some(queue) = broker.timer_queue() else {
        let reply = failed(&broker, SYSTEM_ERROR, "there is no timer topic");
        return services.reply(slot, reply);
    };
    let parts = MessageParts {
        topic: names::TIMER_TOPIC,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: now_ms(),
        born_host: peer,
        store_host: broker.store_host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"0",
        properties: &[properties],
    };
    let pushed = services.append(
        &queue,
        &parts,
        Box::new(move |services, outcome| {
            let reply = match outcome {
                Ok(_) => with_region(&services.broker, Reply::success().field("msgId", key)),
                Err(failure) => failed(&services.broker, SYSTEM_ERROR, &failure.to_string()),
            };
            services.reply(slot, reply);
        }),
    );
    match pushed {
        Ok(()) => {}
        Err(PushError::Full) => services.reply(slot, Reply::overload()),
        Err(error) => {
            let reply = failed(&broker, SYSTEM_ERROR, &error.to_string());
            services.reply(slot, reply);
        }
    }
}
