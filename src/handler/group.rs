//! Consumer groups as administrators see them: requests 200, 201, 207, 352 and 353
//! (docs/behaviour.md, Consumer groups).

use std::sync::Arc;

use saturnmq_net::fastjson;
use saturnmq_net::messages::group as wire;
use saturnmq_net::messages::topic::TopicAndGroup;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::groups::{FoundGroup, GroupConfig, GroupRefused, Groups};
use crate::handler::topic::{Page, json_reply, refused_name, version_to_wire};
use crate::handler::{SUBSCRIPTION_GROUP_NOT_EXIST, attributes, durably};
use crate::names;
use crate::persist::File;
use crate::state_members::Expected;

/// Bit of what is forbidden to a group: reading.
pub const FORBIDDEN_READ: i32 = 1 << 2;

fn body(request: &Request<'_>) -> Result<Value, Reply> {
    fastjson::from_client(request.command.body)
        .map_err(|error| Reply::error(SYSTEM_ERROR, error.to_string()))
}

/// The group that a JSON object describes, its attributes merged with those known.
pub(super) fn wanted(broker: &Broker, is_v5: bool, value: &Value) -> Result<GroupConfig, Reply> {
    let name = value.get("groupName").and_then(Value::as_str);
    let name = name.unwrap_or_default();
    names::check_configured_group(name).map_err(|error| refused_name(is_v5, error.to_string()))?;
    let mut config = GroupConfig::read(name, value);
    let known = broker.groups.get(name);
    let known = known.as_ref().map(|group| &group.config.attributes);
    config.attributes = attributes::alter_group(known, &config.attributes)
        .map_err(|remark| Reply::error(SYSTEM_ERROR, remark))?;
    Expected::Queues
        .check("retryQueueNums", &config.retry_queue_nums.into())
        .map_err(|wrong| Reply::error(SYSTEM_ERROR, wrong.to_string()))?;
    Groups::check_bytes(&config).map_err(refused)?;
    Ok(config)
}

fn refused(why: GroupRefused) -> Reply {
    Reply::error(SYSTEM_ERROR, why.to_string())
}

pub(super) fn check_room(broker: &Broker, configs: &[GroupConfig]) -> Result<(), Reply> {
    broker.groups.check_room(configs).map_err(refused)
}

/// 200: makes or alters a group.
pub fn create(broker: &Broker, request: &Request<'_>) -> Answer {
    let config = body(request).and_then(|value| {
        let config = wanted(broker, request.is_v5(), &value)?;
        check_room(broker, std::slice::from_ref(&config))?;
        Ok(config)
    });
    let made = config.map(|config| {
        let known = broker.groups.get(&config.name).is_some();
        let ticket = broker.groups.create_or_update(config);
        if known {
            broker.rules_changed();
        }
        ticket
    });
    match made {
        Ok(Some(ticket)) => Answer::After(vec![ticket], Reply::success()),
        Ok(None) => Reply::success().into(),
        Err(reply) => reply.into(),
    }
}

/// 201: all groups, or the page that is asked for.
pub fn all(_broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::GetAllGroups::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let page = Page::new(asked.group_seq, asked.max_group_num);
    Answer::Later(Box::new(move |services| {
        let (version, groups) = services.broker.groups.snapshot();
        let table: Map<String, Value> = page
            .of(&groups)
            .iter()
            .map(|group| (group.config.name.clone(), group.config.to_json()))
            .collect();
        json_reply(&json!({
            "dataVersion": version_to_wire(version),
            "forbiddenTable": services.broker.groups.forbidden_table(),
            "subscriptionGroupTable": table,
        }))
        .field("totalGroupNum", groups.len())
    }))
}

/// 352: one group; made like any other look-up would.
pub fn get(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::GroupName::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    match broker
        .groups
        .find_or_create(asked.group, &broker.live.load())
    {
        FoundGroup::Found(group) => json_reply(&group.config.to_json()).into(),
        FoundGroup::Created(_, ticket) => Answer::Rerun(ticket),
        FoundGroup::Missing | FoundGroup::Illegal(_) => {
            let remark = format!("No group in this broker. group: {}", asked.group);
            Reply::error(SUBSCRIPTION_GROUP_NOT_EXIST, remark).into()
        }
    }
}

/// 207: removes a group, and its progress if that is asked for.
pub fn delete(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match wire::DeleteGroup::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let removed = broker.groups.remove(asked.group_name);
    // Removed by another request a moment ago: it is that one's change.
    let removed = removed.map(|(_, ticket)| ticket);
    let removed = removed.unwrap_or_else(|| broker.persist.latest(File::Groups));
    let mut tickets = vec![removed];
    // Also without a configuration: a group that is made again would go on where it was.
    if asked.cleans_offsets() {
        tickets.push(broker.offsets.remove_group(asked.group_name));
    }
    let name = asked.group_name.to_owned();
    Answer::Work(Box::new(move |services, slot| {
        let broker = Arc::clone(&services.broker);
        broker.topics.each(|topic| topic.traffic.forget(&name));
        durably::reply(broker, slot, tickets, Reply::success());
    }))
}

/// 353: whether a group may read a topic, after setting it if that is asked for.
pub fn forbidden(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match TopicAndGroup::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let (group, topic) = (asked.group, asked.topic.unwrap_or_default());
    if let Err(error) = names::check_configured_group(group) {
        return refused_name(request.is_v5(), error.to_string()).into();
    }
    if let Err(error) = names::check_topic(topic) {
        return refused_name(request.is_v5(), error.to_string()).into();
    }
    let old = broker.groups.forbidden(group, topic);
    let bits = match asked.readable {
        None => old,
        Some(true) => old & !FORBIDDEN_READ,
        Some(false) => old | FORBIDDEN_READ,
    };
    let ticket = broker.groups.set_forbidden(group, topic, bits);
    // Set by another request a moment ago: it is that one's change.
    let set = asked.readable.is_some();
    let ticket = ticket.or_else(|| set.then(|| broker.persist.latest(File::Groups)));
    if bits != old {
        broker.rules_changed();
    }
    let reply = json_reply(&wire::GroupForbidden {
        group: group.to_owned(),
        readable: bits & FORBIDDEN_READ == 0,
        topic: topic.to_owned(),
    });
    match ticket {
        Some(ticket) => Answer::After(vec![ticket], reply),
        None => reply.into(),
    }
}
