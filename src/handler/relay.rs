//! Questions of tools to clients: requests 307 and 309 (docs/behaviour.md, Client
//! management).

use std::sync::Arc;
use std::time::Duration;

use saturnmq_net::codes::request as code;
use saturnmq_net::messages::heartbeat::{ConsumeMessageDirectly, ConsumerRunningInfo};
use saturnmq_net::messages::message_id;

use crate::answer::{Answer, Ask, CoreMessage, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::clients::Member;
use crate::services::ServiceContext;

/// CONSUME_MSG_TIMEOUT.
const CONSUME_MSG_TIMEOUT: i32 = 207;
/// How long a client has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The member of a consumer group with this client id.
fn member(broker: &Broker, group: &str, client_id: &str) -> Result<Arc<Member>, Reply> {
    let view = broker.clients.consumer(group).map(|group| group.view());
    let found = view.and_then(|view| {
        let mut members = view.members.iter();
        members.find(|m| &*m.client_id == client_id).cloned()
    });
    found.ok_or_else(|| {
        let remark = format!("The Consumer <{group}> <{client_id}> not online");
        Reply::error(SYSTEM_ERROR, remark)
    })
}

fn late(group: &str, client_id: &str) -> Reply {
    let remark = format!("consumer <{group}> <{client_id}> does not answer");
    Reply::error(CONSUME_MSG_TIMEOUT, remark)
}

/// 307: a client's inner state.
pub fn running_info(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match ConsumerRunningInfo::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let (group, client_id) = (asked.consumer_group, asked.client_id);
    match member(broker, group, client_id) {
        Ok(member) => Answer::Ask(Box::new(Ask {
            channel: member.channel,
            code: code::GET_CONSUMER_RUNNING_INFO,
            fields: vec![
                ("consumerGroup", group.to_owned()),
                ("clientId", client_id.to_owned()),
                ("jstackEnable", asked.jstack_enable.to_string()),
            ],
            body: Vec::new(),
            timeout: PATIENCE,
            late: late(group, client_id),
        })),
        Err(reply) => reply.into(),
    }
}

/// 309: has a client consume one message; a member is chosen when none is named.
pub fn consume_directly(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match ConsumeMessageDirectly::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let group = asked.consumer_group;
    let found = match asked.client_id {
        Some(client_id) => member(broker, group, client_id),
        None => any_member(broker, group),
    };
    let member = match found {
        Ok(member) => member,
        Err(reply) => return reply.into(),
    };
    let id = asked.msg_id.unwrap_or_default();
    let Some((_, offset)) = message_id::parse(id) else {
        let remark = format!("msgId {id:?} is no offset message id");
        return Reply::error(SYSTEM_ERROR, remark).into();
    };
    let topic = asked.topic.and_then(|topic| broker.topics.get(topic));
    let known = broker.groups.get(group);
    let mut fields = vec![
        ("consumerGroup", group.to_owned()),
        ("clientId", member.client_id.to_string()),
        ("msgId", id.to_owned()),
        ("brokerName", broker.config.broker_name.clone()),
        (
            "topicSysFlag",
            topic.map_or(0, |t| t.config.sys_flag).to_string(),
        ),
        (
            "groupSysFlag",
            known.map_or(0, |g| g.config.sys_flag).to_string(),
        ),
    ];
    if let Some(topic) = asked.topic {
        fields.push(("topic", topic.to_owned()));
    }
    let ask = Ask {
        channel: member.channel,
        code: code::CONSUME_MESSAGE_DIRECTLY,
        fields,
        body: Vec::new(),
        timeout: PATIENCE,
        late: late(group, &member.client_id),
    };
    Answer::Work(Box::new(move |services, slot| {
        ask_with_record(services, slot, ask, offset);
    }))
}

fn any_member(broker: &Broker, group: &str) -> Result<Arc<Member>, Reply> {
    let view = broker.clients.consumer(group).map(|group| group.view());
    let first = view.and_then(|view| view.members.first().cloned());
    first.ok_or_else(|| {
        Reply::error(
            SYSTEM_ERROR,
            format!("The Consumer <{group}> <null> not online"),
        )
    })
}

fn ask_with_record(services: &mut ServiceContext, slot: ReplySlot, mut ask: Ask, offset: u64) {
    if !services.broker.cores.has_room(ask.channel.core) {
        return services.reply(slot, Reply::overload());
    }
    match services.reader.record(offset, &mut ask.body) {
        Ok(true) => {
            let core = ask.channel.core;
            // Given back only when that core has ended: the broker stops.
            let _ = services.broker.cores.post(
                core,
                CoreMessage::Ask {
                    ask: Box::new(ask),
                    slot,
                },
            );
        }
        Ok(false) => {
            let remark = format!("can not find message by the offset, {offset}");
            services.reply(slot, Reply::error(SYSTEM_ERROR, remark));
        }
        Err(error) => services.reply(slot, Reply::error(SYSTEM_ERROR, error.to_string())),
    }
}
