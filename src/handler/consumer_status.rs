//! Offsets as the clients of a group hold them: request 223, which asks each of them by 221
//! (docs/behaviour.md, Offset resets).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use saturnmq_net::codes::request as code;
use saturnmq_net::fastjson;
use saturnmq_net::messages::offset::{ConsumerStatusBody, GetConsumerStatus};

use crate::answer::{Answer, Ask, CoreMessage, Reply, Request, SUCCESS, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::clients::Member;
use crate::handler::V3_0_7;
use crate::handler::stats::written;

/// How long each client has to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What clients answered so far, while some have not.
#[derive(Debug)]
struct Gathered {
    left: usize,
    body: ConsumerStatusBody,
}

/// One of several clients that are asked at the same time.
#[derive(Debug)]
pub struct Part {
    client: Arc<str>,
    gathered: Arc<Mutex<Gathered>>,
}

impl Part {
    /// Takes a client's answer; gives the whole when it was the last. Who does not answer, or
    /// answers an error, is left out.
    pub fn answered(self, reply: &Reply) -> Option<Reply> {
        let sent = (reply.code == SUCCESS)
            .then(|| fastjson::from_client::<ConsumerStatusBody>(&reply.body).ok())
            .flatten();
        let gathered = self.gathered.lock();
        let mut gathered = gathered.unwrap_or_else(PoisonError::into_inner);
        if let Some(sent) = sent {
            let table = &mut gathered.body.consumer_table;
            table.insert(self.client.to_string(), sent.message_queue_table);
        }
        gathered.left -= 1;
        (gathered.left == 0).then(|| written(|out| gathered.body.write(out)))
    }
}

/// 223: asks all clients of a group, or the one that is named.
pub fn status(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match GetConsumerStatus::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let view = broker.clients.consumer(asked.group).map(|g| g.view());
    let mut members = view.map(|view| view.members.clone()).unwrap_or_default();
    if members.is_empty() {
        let remark = format!(
            "No Any Consumer online in the consumer group: [{}]",
            asked.group
        );
        return Reply::error(SYSTEM_ERROR, remark).into();
    }
    if let Some(old) = members.iter().find(|member| member.version < V3_0_7) {
        return too_old(old).into();
    }
    if let Some(wanted) = asked.client_addr.filter(|text| !text.trim().is_empty()) {
        members.retain(|member| &*member.client_id == wanted);
    }
    if members.is_empty() {
        return written(|out| ConsumerStatusBody::default().write(out)).into();
    }
    let fields = vec![
        ("topic", asked.topic.to_owned()),
        ("group", asked.group.to_owned()),
    ];
    Answer::Work(Box::new(move |services, slot| {
        let gathered = Arc::new(Mutex::new(Gathered {
            left: members.len(),
            body: ConsumerStatusBody::default(),
        }));
        for member in members {
            let part = Box::new(Part {
                client: Arc::clone(&member.client_id),
                gathered: Arc::clone(&gathered),
            });
            let ask = Box::new(question(&member, fields.clone()));
            let message = CoreMessage::Gather { ask, slot, part };
            // Given back only when that core has ended: the broker stops.
            let _ = services.broker.cores.post(member.channel.core, message);
        }
    }))
}

/// The refusal of what a client is too old for.
pub fn too_old(member: &Member) -> Reply {
    let remark = format!(
        "the client does not support this feature. version={}",
        member.version
    );
    Reply::error(SYSTEM_ERROR, remark)
}

fn question(member: &Member, fields: Vec<(&'static str, String)>) -> Ask {
    Ask {
        channel: member.channel,
        code: code::GET_CONSUMER_STATUS_FROM_CLIENT,
        fields,
        body: Vec::new(),
        timeout: PATIENCE,
        late: Reply::error(SYSTEM_ERROR, "the client does not answer"),
    }
}
