//! Offsets of one group made from those of others: requests 308 and 314
//! (docs/behaviour.md, Offset resets).

use std::collections::BTreeMap;

use saturnmq_net::messages::offset::{CloneGroupOffset, CorrectionOffsets, QueryCorrectionOffset};

use crate::answer::{Answer, Reply, Request, SYSTEM_BUSY};
use crate::broker::Broker;
use crate::handler::topic::{json_reply, refused_name};
use crate::names;

/// 314: copies a group's offsets in a topic, or in all its topics, to another group. A topic to
/// which the source group, being online, does not subscribe is left out unless `offline` is set.
pub fn clone(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match CloneGroupOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    if let Err(error) = names::check_group(asked.dest_group) {
        return refused_name(request, error.to_string()).into();
    }
    let topics = match asked.topic.filter(|topic| !topic.trim().is_empty()) {
        Some(topic) => [topic.to_owned()].into(),
        None => broker.offsets.topics_of(asked.src_group),
    };
    for topic in topics {
        let known = broker.topics.get(&topic).is_some();
        if !known || !asked.offline && is_unsubscribed(broker, asked.src_group, &topic) {
            tracing::info!(topic, group = asked.src_group, "its offsets are not cloned");
            continue;
        }
        let offsets = &broker.offsets;
        if !offsets.copy_group(asked.src_group, asked.dest_group, &topic) {
            let remark = "the offset table is full: remove groups or topics that nobody uses";
            return Reply::error(SYSTEM_BUSY, remark).into();
        }
    }
    Answer::After(broker.offsets.save(), Reply::success())
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
pub fn correction(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match QueryCorrectionOffset::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let left_out: Vec<&str> = asked.filter_groups.unwrap_or_default().split(',').collect();
    let mut smallest: BTreeMap<i32, i64> = BTreeMap::new();
    for group in broker.offsets.groups_of(asked.topic) {
        if left_out.contains(&group.as_str()) {
            continue;
        }
        for (queue_id, offset) in broker.offsets.table(&group, asked.topic) {
            let queue = broker.store.queue(asked.topic, queue_id);
            if offset < queue.map_or(0, |queue| queue.min_offset()) {
                continue;
            }
            let least = smallest.entry(queue_id).or_insert(offset);
            *least = offset.min(*least);
        }
    }
    for (queue_id, compared) in broker.offsets.table(asked.compare_group, asked.topic) {
        if let Some(least) = smallest.get_mut(&queue_id)
            && *least > compared
        {
            *least = i64::MAX;
        }
    }
    json_reply(&CorrectionOffsets {
        correction_offsets: smallest,
    })
    .into()
}
