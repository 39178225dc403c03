//! The checks of a send that are not its hot path, in Apache's order, and the answers they give
//! (docs/behaviour.md, Sending). Every answer carries the two ext fields that clients read without
//! looking whether they are there.

use std::borrow::Cow;
use std::sync::Arc;

use saturnmq_net::messages::send::SendRequest;
use saturnmq_storage::store::StoreState;

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::{now_ms, steady_ms};
use crate::groups::{FoundGroup, Group};
use crate::handler::{
    INVALID_PARAMETER, MESSAGE_ILLEGAL, NO_PERMISSION, SERVICE_NOT_AVAILABLE,
    SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, V3_4_9, faq,
};
use crate::names;
use crate::topics::{AutoCreate, PERM_READ, PERM_WRITE, Topic, TopicConfig};

/// A reply with the ext fields of every send response.
pub fn reply(broker: &Broker, code: i32, remark: impl Into<Cow<'static, str>>) -> Reply {
    let live = broker.live.load();
    Reply::error(code, remark)
        .field("TRACE_ON", live.trace_on)
        .field("MSG_REGION", &live.region_id)
}

/// The same as an answer.
pub fn refused(broker: &Broker, code: i32, remark: impl Into<Cow<'static, str>>) -> Answer {
    reply(broker, code, remark).into()
}

/// Remark of code 14: Apache's text, and what really happened.
pub fn unavailable(why: &dyn std::fmt::Display) -> String {
    format!(
        "service not available now. It may be caused by one of the following reasons: the broker's \
         disk is full, messages are put to the slave, message store has been shut down, etc. \
         ({why})"
    )
}

/// The refusals that need the topic; `None` when the send may go on.
pub fn refuse(
    broker: &Broker,
    request: &Request<'_>,
    send: &SendRequest<'_>,
    topic: &Topic,
) -> Option<Answer> {
    let live = broker.live.load();
    if live.accept_sends_from_ms > 0 && now_ms() < live.accept_sends_from_ms {
        let remark = format!(
            "broker unable to service, until {}",
            live.accept_sends_from_ms
        );
        return Some(refused(broker, SYSTEM_ERROR, remark));
    }
    if live.broker_permission & PERM_WRITE == 0 && topic.config.order {
        let remark = format!(
            "the broker[{}] sending message is forbidden",
            broker.store_host.ip()
        );
        return Some(refused(broker, NO_PERMISSION, remark));
    }
    if names::is_closed_to_clients(send.topic) {
        let remark = format!("Sending message to topic[{}] is forbidden.", send.topic);
        return Some(refused(broker, NO_PERMISSION, remark));
    }
    // A retry topic that is there for its route alone.
    if send.topic.len() > names::RETRY_TOPIC_MAX_LENGTH {
        let remark = names::NameError::TopicTooLong.to_string();
        return Some(refused(broker, wrong_parameter(request), remark));
    }
    let queues = topic.config.write_queues.max(topic.config.read_queues);
    let no_queue = send.queue_id < 0 && topic.config.write_queues <= 0;
    if send.queue_id >= queues || no_queue {
        let remark = format!(
            "request queueId[{}] is illegal, {} Producer: {}",
            send.queue_id,
            describe(&topic.config, request),
            request.peer
        );
        return Some(refused(broker, wrong_parameter(request), remark));
    }
    if topic.config.has_batch_queues() {
        return Some(refused(broker, MESSAGE_ILLEGAL, batch_queues(send.topic)));
    }
    closed_store(&broker.store.state()).map(|why| {
        let remark = unavailable(&why);
        refused(broker, SERVICE_NOT_AVAILABLE, remark)
    })
}

/// The remark for a topic to which nothing can be written.
pub fn batch_queues(topic: &str) -> String {
    format!("topic[{topic}] has queue.type=BatchCQ, which this broker does not write")
}

/// Why the store takes no messages now; `None` when it does.
pub fn closed_store(state: &StoreState) -> Option<String> {
    Some(match state {
        StoreState::Writable => return None,
        StoreState::DiskFull => "the disk is full".to_owned(),
        StoreState::NoNextFile(why) => why.clone(),
        StoreState::DispatchFault(why) => format!("queue entries cannot be stored: {why}"),
        StoreState::ReadOnly(why) => format!("the log is read-only: {why}"),
        StoreState::Closed => "the store is shutting down".to_owned(),
    })
}

/// Code for a wrong name or queue: 4.9 has none of its own.
fn wrong_parameter(request: &Request<'_>) -> i32 {
    if request.is_v5() {
        INVALID_PARAMETER
    } else {
        SYSTEM_ERROR
    }
}

/// The refusal of half messages while `rejectTransactionMessage` is set.
pub fn transactions_forbidden(broker: &Broker) -> Answer {
    let host = broker.store_host.ip();
    let remark = format!("the broker[{host}] sending transaction message is forbidden");
    refused(broker, NO_PERMISSION, remark)
}

/// Looks for a topic that is not there: refused by name, made from the template, or missing.
pub fn missing_topic(
    broker: &Broker,
    request: &Request<'_>,
    send: &SendRequest<'_>,
) -> Result<Arc<Topic>, Answer> {
    if let Err(error) = names::check_topic(send.topic) {
        return Err(refused(broker, wrong_parameter(request), error.to_string()));
    }
    if names::is_closed_to_clients(send.topic) {
        let remark = format!("Sending message to topic[{}] is forbidden.", send.topic);
        return Err(refused(broker, NO_PERMISSION, remark));
    }
    let live = broker.live.load();
    let made = broker.topics.auto_create(
        send.topic,
        send.default_topic,
        send.default_topic_queue_nums,
        i32::from(send.unit_mode),
        live.auto_create_topic,
    );
    match made {
        AutoCreate::Existing(topic) => Ok(topic),
        AutoCreate::Created(_, ticket) => Err(Answer::Rerun(ticket)),
        AutoCreate::Refused(_) if send.topic.starts_with(names::RETRY_PREFIX) => {
            own_topic(broker, send.topic, 1)
        }
        AutoCreate::Refused(reason) => {
            tracing::debug!(topic = send.topic, reason, "a topic is not created");
            let remark = format!(
                "topic[{}] not exist, apply first please!{}",
                send.topic,
                faq(request)
            );
            Err(refused(broker, TOPIC_NOT_EXIST, remark))
        }
    }
}

/// Gives a topic without queues as many: a retry topic that was made when its group did not retry.
/// Nobody would read what is stored in it.
pub fn give_queues(config: &mut TopicConfig, queues: i32) {
    if config.write_queues == 0 && config.read_queues == 0 && queues > 0 {
        config.write_queues = queues;
        config.read_queues = queues;
    }
}

/// A retry or dead letter topic, made when it is missing. Whoever made it a moment ago: what is
/// stored in it is acknowledged only once it is on disk.
pub fn own_topic(broker: &Broker, name: &str, queues: i32) -> Result<Arc<Topic>, Answer> {
    let topic = match broker.topics.get(name) {
        Some(topic) if topic.config.write_queues == 0 => {
            let mut config = topic.config.clone();
            give_queues(&mut config, queues);
            broker.topics.create_or_update(config);
            broker.topics.get(name).unwrap_or(topic)
        }
        Some(topic) => topic,
        None => {
            let config = TopicConfig::new(name, queues, PERM_READ | PERM_WRITE);
            if let Err(full) = broker.topics.check_room(std::slice::from_ref(&config)) {
                return Err(refused(broker, SYSTEM_ERROR, full.to_string()));
            }
            broker.topics.create_if_absent(config).0
        }
    };
    // Whichever of its queues is taken.
    match broker.awaited(&topic, topic.config.write_queues.saturating_sub(1)) {
        Some(ticket) => Err(Answer::Rerun(ticket)),
        None => Ok(topic),
    }
}

/// Where a send to a retry topic really goes.
pub enum Redirect {
    /// To the retry topic.
    None,
    /// To the dead letter topic.
    DeadLetter(Arc<Topic>),
    /// Nowhere, or not yet.
    Refused(Answer),
}

/// Decides between retry and dead letter topic for a send to `%RETRY%<group>`.
pub fn retry_target(
    broker: &Broker,
    request: &Request<'_>,
    send: &SendRequest<'_>,
    group: &str,
) -> Redirect {
    let group = match find_group(broker, request, group) {
        Ok(group) => group,
        Err(answer) => return Redirect::Refused(answer),
    };
    let honoured = send
        .max_reconsume_times
        .filter(|_| request.command.version >= V3_4_9);
    let limit = honoured.unwrap_or(group.config.retry_max_times);
    // Ordered consumers send a message at their limit, not above it: a 4.9 broker counts that as
    // dead, a 5.x broker any message of a group that holds locks.
    let dead = if request.is_v5() {
        send.reconsume_times > limit || broker.locks.holds_any(&group.config.name, steady_ms())
    } else {
        send.reconsume_times >= limit
    };
    if !dead {
        return Redirect::None;
    }
    match own_topic(broker, &names::dlq_topic(&group.config.name), 1) {
        Ok(topic) => Redirect::DeadLetter(topic),
        Err(answer) => Redirect::Refused(answer),
    }
}

fn find_group(broker: &Broker, request: &Request<'_>, name: &str) -> Result<Arc<Group>, Answer> {
    match broker.groups.find_or_create(name, &broker.live.load()) {
        FoundGroup::Found(group) => Ok(group),
        FoundGroup::Created(_, ticket) => Err(Answer::Rerun(ticket)),
        FoundGroup::Missing | FoundGroup::Illegal(_) => {
            let remark = format!("subscription group not exist, {name} {}", faq(request));
            Err(refused(broker, SUBSCRIPTION_GROUP_NOT_EXIST, remark))
        }
    }
}

/// A topic's configuration as Apache prints it.
fn describe(config: &TopicConfig, request: &Request<'_>) -> String {
    let bit = |bit: i32, letter: char| if config.perm & bit != 0 { letter } else { '-' };
    let attributes = if request.is_v5() {
        ", attributes={}"
    } else {
        ""
    };
    format!(
        "TopicConfig [topicName={}, readQueueNums={}, writeQueueNums={}, perm={}{}{}, \
         topicFilterType={}, topicSysFlag={}, order={}{attributes}]",
        config.name,
        config.read_queues,
        config.write_queues,
        bit(PERM_READ, 'R'),
        bit(PERM_WRITE, 'W'),
        bit(1, 'X'),
        config.filter_type.as_str(),
        config.sys_flag,
        config.order,
    )
}
