//! Messages that a consumer could not process: request 36 (docs/behaviour.md, Retry and dead
//! letters). The message is read and its copy appended on the services thread.

use std::sync::Arc;

use saturnmq_net::messages::send::SendBack;
use saturnmq_storage::append_queue::PushError;
use saturnmq_storage::format::message::{MessageParts, sys_flag};
use saturnmq_storage::format::properties::names::INNER_MULTI_QUEUE_OFFSET;
use saturnmq_storage::format::record::Record;

use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR, WorkJob};
use crate::broker::Broker;
use crate::groups::FoundGroup;
use crate::handler::properties::{self, PropertyScan};
use crate::handler::send_checks::{closed_store, own_topic, unavailable};
use crate::handler::{NO_PERMISSION, SUBSCRIPTION_GROUP_NOT_EXIST, V3_4_9, durably, faq};
use crate::names;
use crate::services::ServiceContext;
use crate::topics::{PERM_WRITE, Topic};

/// A message to send back, its target topics made already.
struct Back {
    offset: i64,
    delay_level: i32,
    limit: i32,
    /// Longest name of a topic to which this client's messages go, in bytes.
    longest: usize,
    retry: Arc<Topic>,
    group: String,
}

/// Handles a send-back.
pub fn send_back(broker: &Broker, request: &Request<'_>) -> Answer {
    let sent = match SendBack::decode(&request.command.ext) {
        Ok(sent) => sent,
        Err(error) => return error.into(),
    };
    let live = broker.live.load();
    let group = match broker.groups.find_or_create(sent.group, &live) {
        FoundGroup::Found(group) => group,
        FoundGroup::Created(_, ticket) => return Answer::Rerun(ticket),
        FoundGroup::Missing | FoundGroup::Illegal(_) => {
            let pointer = faq(request);
            let remark = format!("subscription group not exist, {} {pointer}", sent.group);
            return Reply::error(SUBSCRIPTION_GROUP_NOT_EXIST, remark).into();
        }
    };
    if live.broker_permission & PERM_WRITE == 0 {
        let remark = format!(
            "the broker[{}] sending message is forbidden",
            broker.store_host.ip()
        );
        return Reply::error(NO_PERMISSION, remark).into();
    }
    if group.config.retry_queue_nums <= 0 {
        return Reply::success().into();
    }
    let retry = names::retry_topic(&group.config.name);
    if !names::is_storable(&retry) {
        let remark = format!("MESSAGE_ILLEGAL: {retry} cannot be a topic name");
        return Reply::error(SYSTEM_ERROR, remark).into();
    }
    let retry = match own_topic(broker, &retry, group.config.retry_queue_nums) {
        Ok(topic) => topic,
        Err(answer) => return answer,
    };
    if !retry.is_writable() {
        let remark = format!(
            "the topic[{}] sending message is forbidden",
            retry.config.name
        );
        return Reply::error(NO_PERMISSION, remark).into();
    }
    let honoured = sent
        .max_reconsume_times
        .filter(|_| request.command.version >= V3_4_9);
    // Clients of 4.9 take the length of a topic for a signed byte.
    let longest = if request.is_v5() {
        names::RETRY_TOPIC_MAX_LENGTH
    } else {
        names::TOPIC_MAX_LENGTH
    };
    let back = Back {
        offset: sent.offset,
        delay_level: sent.delay_level,
        limit: honoured.unwrap_or(group.config.retry_max_times),
        longest,
        retry,
        group: group.config.name.clone(),
    };
    Answer::Work(Box::new(move |services, slot| read(services, slot, back)))
}

fn read(services: &mut ServiceContext, slot: ReplySlot, back: Back) {
    let mut bytes = Vec::new();
    let found = match u64::try_from(back.offset) {
        Ok(offset) => services.reader.record(offset, &mut bytes),
        Err(_) => Ok(false),
    };
    match found {
        Ok(true) => match Record::decode(&bytes) {
            Ok(record) => match dead_letters(&services.broker, &back, &record) {
                Ok(dead) => append(services, slot, &back, &record, dead),
                Err(Answer::Rerun(ticket)) => {
                    let again: WorkJob = Box::new(move |services, slot| read(services, slot, back));
                    durably::then(services, ticket, slot, again);
                }
                Err(Answer::Reply(reply)) => services.reply(slot, reply),
                Err(_) => services.reply(slot, failed("the dead letter topic cannot be used")),
            },
            Err(error) => services.reply(slot, Reply::error(SYSTEM_ERROR, error.to_string())),
        },
        Ok(false) => {
            let remark = format!("look message by offset failed, {}", back.offset);
            services.reply(slot, Reply::error(SYSTEM_ERROR, remark));
        }
        Err(error) => services.reply(slot, Reply::error(SYSTEM_ERROR, error.to_string())),
    }
}

/// The dead letter topic if the message is dead; `Err` while that topic is not on disk yet, or
/// cannot be made.
fn dead_letters(
    broker: &Broker,
    back: &Back,
    record: &Record<'_>,
) -> Result<Option<Arc<Topic>>, Answer> {
    if record.reconsume_times() >= back.limit || back.delay_level < 0 {
        own_topic(broker, &names::dlq_topic(&back.group), 1).map(Some)
    } else {
        Ok(None)
    }
}

/// The refusal of a copy that its topic's readers, or the log, could not take. Clients wait then
/// and process the message once more, as with Apache's brokers.
fn too_long(back: &Back, dead: Option<&Topic>) -> Option<Reply> {
    let target = &dead.unwrap_or(&back.retry).config.name;
    (target.len() > back.longest).then(|| {
        let longest = back.longest;
        let remark = format!("MESSAGE_ILLEGAL: {target} is longer than {longest} bytes");
        Reply::error(SYSTEM_ERROR, remark)
    })
}

/// The copy's properties, and its delay level; 0 for a dead letter.
fn copy_properties(back: &Back, record: &Record<'_>, dead: bool, level: i32) -> Vec<u8> {
    let text = String::from_utf8_lossy(record.properties().as_bytes());
    let mut scan = PropertyScan::default();
    scan.read(&text);
    let mut out = Vec::new();
    scan.remove(&text, properties::DELAY);
    if !dead {
        scan.remove(&text, properties::REAL_TOPIC);
        scan.remove(&text, properties::REAL_QID);
    }
    scan.remove(&text, properties::WAIT);
    // The copy stands elsewhere: it is said anew where it enters light queues.
    scan.remove(&text, INNER_MULTI_QUEUE_OFFSET);
    let origin = scan
        .get(&text, properties::ORIGIN_MESSAGE_ID)
        .map(str::to_owned);
    scan.remove(&text, properties::ORIGIN_MESSAGE_ID);
    let retried = scan.get(&text, properties::RETRY_TOPIC).is_some();
    scan.write(&text, &mut out);
    // Apache stores that nobody waits for the copy; it is flushed like any other record here.
    properties::append(&mut out, properties::WAIT, "false");
    if !retried {
        properties::append(&mut out, properties::RETRY_TOPIC, record.topic());
    }
    let origin = origin.unwrap_or_else(|| record.message_id().to_string());
    properties::append(&mut out, properties::ORIGIN_MESSAGE_ID, &origin);
    properties::append_number(&mut out, properties::DELAY, if dead { 0 } else { level });
    if !dead {
        properties::append(&mut out, properties::REAL_TOPIC, &back.retry.config.name);
    }
    out
}

fn append(
    services: &mut ServiceContext,
    slot: ReplySlot,
    back: &Back,
    record: &Record<'_>,
    dead: Option<Arc<Topic>>,
) {
    if let Some(refusal) = too_long(back, dead.as_deref()) {
        return services.reply(slot, refusal);
    }
    let broker = Arc::clone(&services.broker);
    let levels = i32::try_from(broker.config.delay_levels_ms.len()).unwrap_or(i32::MAX);
    let wanted = match back.delay_level {
        0 => record.reconsume_times().saturating_add(3),
        level => level,
    };
    let level = wanted.clamp(1, levels);
    let mut properties = copy_properties(back, record, dead.is_some(), level);
    let (topic_name, queue_id, queue) = if let Some(topic) = dead {
        (topic.config.name.clone(), 0, broker.queue(&topic, 0))
    } else {
        let queues = back.retry.config.write_queues.max(1);
        let target = (record.physical_offset().unsigned_abs() % queues as u64) as i32;
        properties::append_number(&mut properties, properties::REAL_QID, target);
        (
            names::SCHEDULE_TOPIC.to_owned(),
            level - 1,
            broker.schedule_queue(level),
        )
    };
    if let Some(why) = closed_store(&broker.store.state()) {
        return services.reply(slot, failed(&unavailable(&why)));
    }
    let Some(queue) = queue else {
        return services.reply(slot, failed("no queue to append to"));
    };
    let parts = MessageParts {
        topic: &topic_name,
        queue_id,
        flag: record.flag(),
        sys_flag: sys_flag::queued(record.sys_flag()),
        born_timestamp: record.born_timestamp(),
        born_host: record.born_host(),
        store_host: broker.store_host,
        reconsume_times: record.reconsume_times().saturating_add(1),
        prepared_transaction_offset: 0,
        body: record.body(),
        properties: &[&properties],
    };
    let count = counting(&broker, back, record, topic_name == names::SCHEDULE_TOPIC);
    let pushed = services.append(
        &queue,
        &parts,
        Box::new(move |services, outcome| {
            let reply = match outcome {
                Ok(stored) => {
                    count(stored.end - stored.physical_offset);
                    Reply::success()
                }
                Err(failure) => Reply::error(SYSTEM_ERROR, failure.to_string()),
            };
            services.reply(slot, reply);
        }),
    );
    match pushed {
        Ok(()) => {}
        Err(PushError::Full) => services.reply(slot, Reply::overload()),
        Err(error) => services.reply(slot, failed(&error.to_string())),
    }
}

/// Counts a send-back of so many bytes: for the group in the message's first topic, and as traffic
/// of the retry topic. As with Apache, dead letters are no traffic of theirs.
fn counting(
    broker: &Broker,
    back: &Back,
    record: &Record<'_>,
    retried: bool,
) -> impl FnOnce(u64) + Send + 'static {
    let origin = record.properties().get_str(properties::RETRY_TOPIC);
    let topic = broker.topics.get(origin.unwrap_or(record.topic()));
    let group = topic.map(|topic| topic.traffic.group(&back.group));
    let retry = retried.then(|| Arc::clone(&back.retry));
    move |bytes| {
        if let Some(group) = group {
            group.send_back();
        }
        if let Some(retry) = retry {
            retry.traffic.put(1, bytes);
        }
    }
}

fn failed(why: &str) -> Reply {
    Reply::error(SYSTEM_ERROR, why.to_owned())
}
