//! Offsets of one group made from those of others: requests 308 and 314
//! (docs/behaviour.md, Offset resets).

use std::collections::BTreeMap;
use std::sync::Arc;

use saturnmq_net::messages::offset::{CloneGroupOffset, CorrectionOffsets, QueryCorrectionOffset};

use crate::answer::{Answer, Reply, Request, SYSTEM_BUSY};
use crate::broker::Broker;
use crate::handler::durably;
use crate::handler::topic::{json_reply, refused_name};
use crate::names;
use crate::persist::Ticket;

/// 314: copies a group's offsets in a topic, or in all its topics, to another group. A topic to
/// which the source group, being online, does not subscribe is left out unless `offline` is set.
pub fn clone(request: &Request<'_>) -> Answer {
    let asked = match CloneGroupOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    if let Err(error) = names::check_configured_group(asked.dest_group) {
        return refused_name(request.is_v5(), error.to_string()).into();
    }
    let topic = asked.topic.filter(|topic| !topic.trim().is_empty());
    let topic = topic.map(str::to_owned);
    let groups = (asked.src_group.to_owned(), asked.dest_group.to_owned());
    let offline = asked.offline;
    Answer::Work(Box::new(move |services, slot| {
        let broker = Arc::clone(&services.broker);
        match copy(&broker, (&groups.0, &groups.1), topic, offline) {
            Ok(ticket) => durably::reply(broker, slot, vec![ticket], Reply::success()),
            Err(refusal) => services.reply(slot, refusal),
        }
    }))
}

fn copy(
    broker: &Broker,
    (from, to): (&str, &str),
    topic: Option<String>,
    offline: bool,
) -> Result<Ticket, Reply> {
    let topics = match topic {
        Some(topic) => [topic].into(),
        None => broker.offsets.topics_of(from),
    };
    for topic in topics {
        let known = broker.topics.get(&topic).is_some();
        if !known || !offline && is_unsubscribed(broker, from, &topic) {
            // A name that is no topic's is a client's text of any length.
            let topic = if known { &topic } else { "(no such topic)" };
            tracing::info!(topic, group = from, "its offsets are not cloned");
            continue;
        }
        if !broker.offsets.copy_group(from, to, &topic) {
            let remark = "the offset table is full: remove groups or topics that nobody uses";
            return Err(Reply::error(SYSTEM_BUSY, remark));
        }
    }
    Ok(broker.offsets.save())
}

/// Whether a group is online without a subscription to the topic.
fn is_unsubscribed(broker: &Broker, group: &str, topic: &str) -> bool {
    let online = broker.clients.consumer(group);
    online.is_some_and(|online| {
        online.with_view(|view| {
            !view.subscriptions.is_empty() && !view.subscriptions.contains_key(topic)
        })
    })
}

/// 308: for each queue of a topic the smallest offset of all groups but those named; where that
/// lies beyond the offset of the compared group, the largest number there is.
pub fn correction(request: &Request<'_>) -> Answer {
    let asked = match QueryCorrectionOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let left_out = asked.filter_groups.unwrap_or_default().to_owned();
    let (topic, compared) = (asked.topic.to_owned(), asked.compare_group.to_owned());
    Answer::Later(Box::new(move |services| {
        corrections(&services.broker, &topic, &compared, &left_out)
    }))
}

fn corrections(broker: &Broker, topic: &str, compared: &str, left_out: &str) -> Reply {
    let left_out: Vec<&str> = left_out.split(',').collect();
    let mut smallest: BTreeMap<i32, i64> = BTreeMap::new();
    for group in broker.offsets.groups_of(topic) {
        if left_out.contains(&group.as_str()) {
            continue;
        }
        for (queue_id, offset) in broker.offsets.table(&group, topic) {
            let queue = broker.store.queue(topic, queue_id);
            if offset < queue.map_or(0, |queue| queue.min_offset()) {
                continue;
            }
            let least = smallest.entry(queue_id).or_insert(offset);
            *least = offset.min(*least);
        }
    }
    for (queue_id, compared) in broker.offsets.table(compared, topic) {
        if let Some(least) = smallest.get_mut(&queue_id)
            && *least > compared
        {
            *least = i64::MAX;
        }
    }
    json_reply(&CorrectionOffsets {
        correction_offsets: smallest,
    })
}
