//! Where queues and groups stand: requests 43, 45, 202, 208, 300, 303, 305, 315, 317, 343 and 345
//! (docs/behaviour.md, Consume statistics).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use saturnmq_net::fastjson::BodyError;
use saturnmq_net::messages::broker::ViewBrokerStats;
use saturnmq_net::messages::group::{GroupList, GroupName, GroupSubscription};
use saturnmq_net::messages::lock::MessageQueue;
use saturnmq_net::messages::route::TopicList;
use saturnmq_net::messages::stats::{
    ConsumeStats, ConsumeStatsList, ConsumeTimeSpans, GetBrokerConsumeStats, GetConsumeStats,
    OffsetWrapper, QueueTimeSpan, TopicOffset, TopicStatsTable,
};
use saturnmq_net::messages::topic::{TopicAndGroup, TopicName};
use saturnmq_storage::error::ReadError;

use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::groups::Group;
use crate::handler::TOPIC_NOT_EXIST;
use crate::handler::topic::json_reply;
use crate::names;
use crate::services::{STEP, ServiceContext};
use crate::state_json::now_ms;

/// An answer whose body writes itself.
pub fn written(write: impl FnOnce(&mut Vec<u8>) -> Result<(), BodyError>) -> Reply {
    let mut body = Vec::new();
    match write(&mut body) {
        Ok(()) => Reply::success().body(body),
        Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
    }
}

fn unreadable(error: &ReadError) -> Reply {
    Reply::error(SYSTEM_ERROR, error.to_string())
}

fn unknown_topic(topic: &str) -> Reply {
    Reply::error(TOPIC_NOT_EXIST, format!("topic[{topic}] not exist"))
}

fn message_queue(broker: &Broker, topic: &str, queue_id: i32) -> MessageQueue {
    MessageQueue {
        broker_name: broker.config.broker_name.clone(),
        queue_id,
        topic: topic.to_owned(),
    }
}

/// Store time of the message at an offset of a queue; `None` if there is no such message.
fn store_time(
    services: &mut ServiceContext,
    topic: &str,
    queue_id: i32,
    offset: i64,
) -> Result<Option<i64>, ReadError> {
    match services.broker.store.queue(topic, queue_id) {
        Some(queue) if offset >= 0 => services.reader.store_time(&queue, offset),
        _ => Ok(None),
    }
}

/// 202: where the queues of a topic begin and end.
pub fn topic_stats(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match TopicName::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let Some(topic) = broker.topics.get(asked.topic) else {
        return unknown_topic(asked.topic).into();
    };
    Answer::Later(Box::new(move |services| {
        let name = &topic.config.name;
        let mut table = TopicStatsTable {
            topic_put_tps: services.broker.stats.topic_tps(name),
            ..TopicStatsTable::default()
        };
        for queue_id in 0..topic.config.read_queues.max(topic.config.write_queues) {
            let offsets = match topic_offset(services, name, queue_id) {
                Ok(offsets) => offsets,
                Err(error) => return unreadable(&error),
            };
            let queue = message_queue(&services.broker, name, queue_id);
            table.offset_table.0.push((queue, offsets));
        }
        written(|out| table.write(out))
    }))
}

fn topic_offset(
    services: &mut ServiceContext,
    topic: &str,
    queue_id: i32,
) -> Result<TopicOffset, ReadError> {
    let Some(queue) = services.broker.store.queue(topic, queue_id) else {
        return Ok(TopicOffset::default());
    };
    let max_offset = queue.max_offset();
    let last = if max_offset > 0 {
        services.reader.store_time(&queue, max_offset - 1)?
    } else {
        None
    };
    Ok(TopicOffset {
        last_update_timestamp: last.unwrap_or(0),
        max_offset,
        min_offset: queue.min_offset(),
    })
}

/// Whether an online group no longer subscribes to a topic it has progress in.
fn is_unsubscribed(broker: &Broker, group: &str, topic: &str) -> bool {
    broker.clients.consumer(group).is_some_and(|online| {
        online.with_view(|view| {
            !view.subscriptions.is_empty() && !view.subscriptions.contains_key(topic)
        })
    })
}

/// 208: where a group stands.
pub fn consume_stats(_broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match GetConsumeStats::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let group = asked.consumer_group.to_owned();
    let named = |text: &str| -> BTreeSet<String> {
        let topics = text.split(';').map(str::trim);
        topics
            .filter(|t| !t.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let list = named(asked.topic_list.unwrap_or_default());
    let one = named(asked.topic.unwrap_or_default());
    Answer::Later(Box::new(move |services| {
        let listed = !list.is_empty();
        let topics = match (listed, one.is_empty()) {
            (true, _) => list,
            (false, false) => one,
            (false, true) => services.broker.offsets.topics_of(&group),
        };
        let mut stats = ConsumeStats::default();
        for topic in topics {
            if !listed && is_unsubscribed(&services.broker, &group, &topic) {
                continue;
            }
            if let Err(error) = group_in_topic(services, &group, &topic, &mut stats) {
                return unreadable(&error);
            }
        }
        written(|out| stats.write(out))
    }))
}

/// Adds where a group stands in a topic.
fn group_in_topic(
    services: &mut ServiceContext,
    group: &str,
    topic: &str,
    stats: &mut ConsumeStats,
) -> Result<(), ReadError> {
    let Some(known) = services.broker.topics.get(topic) else {
        return Ok(());
    };
    for queue_id in 0..known.config.read_queues {
        let broker = &services.broker;
        let queue = broker.store.queue(topic, queue_id);
        let stored = broker.offsets.query(group, topic, queue_id);
        let consumer_offset = stored.unwrap_or(0).max(0);
        let message_queue = message_queue(broker, topic, queue_id);
        let last = store_time(services, topic, queue_id, consumer_offset - 1)?;
        let wrapper = OffsetWrapper {
            broker_offset: queue.map_or(0, |queue| queue.max_offset()),
            consumer_offset,
            last_timestamp: last.unwrap_or(0),
            pull_offset: consumer_offset,
        };
        stats.offset_table.0.push((message_queue, wrapper));
    }
    stats.consume_tps += services.broker.stats.group_tps(topic, group);
    Ok(())
}

/// 317: where every group stands, or those of ordered topics.
pub fn broker_consume_stats(_broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match GetBrokerConsumeStats::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    Answer::Turns(Box::new(move |services, slot| {
        let (_, groups) = services.broker.groups.snapshot();
        let list = ConsumeStatsList {
            broker_addr: services.broker.address(),
            ..ConsumeStatsList::default()
        };
        let walk = Walk {
            groups: groups.into_iter(),
            ordered_only: asked.is_order,
            list,
        };
        walk.go_on(services, slot);
    }))
}

/// A walk through all groups, in steps.
struct Walk {
    groups: std::vec::IntoIter<Arc<Group>>,
    ordered_only: bool,
    list: ConsumeStatsList,
}

impl Walk {
    fn go_on(mut self, services: &mut ServiceContext, slot: ReplySlot) {
        let began = Instant::now();
        while let Some(group) = self.groups.next() {
            let name = &group.config.name;
            let topics = match topics_of_group(services, name, self.ordered_only) {
                Ok(topics) => topics,
                Err(error) => return services.reply(slot, unreadable(&error)),
            };
            let offsets = topics.iter().flat_map(|stats| &stats.offset_table.0);
            // Clients may have stored any number.
            let behind = offsets.map(|(_, at)| at.broker_offset.saturating_sub(at.consumer_offset));
            self.list.total_diff = behind.fold(self.list.total_diff, i64::saturating_add);
            self.list
                .consume_stats_list
                .push([(name.clone(), topics)].into());
            if began.elapsed() >= STEP {
                return services.go_on_later(
                    slot,
                    Box::new(move |services, slot| self.go_on(services, slot)),
                );
            }
        }
        services.reply(slot, written(|out| self.list.write(out)));
    }
}

fn topics_of_group(
    services: &mut ServiceContext,
    group: &str,
    ordered_only: bool,
) -> Result<Vec<ConsumeStats>, ReadError> {
    let mut all = Vec::new();
    for topic in services.broker.offsets.topics_of(group) {
        let known = services.broker.topics.get(&topic);
        let wanted = known.is_some_and(|known| known.config.order || !ordered_only);
        if !wanted || is_unsubscribed(&services.broker, group, &topic) {
            continue;
        }
        let mut stats = ConsumeStats::default();
        group_in_topic(services, group, &topic, &mut stats)?;
        all.push(stats);
    }
    Ok(all)
}

/// 303: how far a group is behind in the queues of a topic, by time.
pub fn time_span(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match TopicAndGroup::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let name = asked.topic.unwrap_or_default();
    let Some(topic) = broker.topics.get(name) else {
        return unknown_topic(name).into();
    };
    let group = asked.group.to_owned();
    Answer::Later(Box::new(move |services| {
        let mut spans = ConsumeTimeSpans::default();
        for queue_id in 0..topic.config.write_queues {
            match queue_span(services, &group, &topic.config.name, queue_id) {
                Ok(span) => spans.consume_time_span_set.push(span),
                Err(error) => return unreadable(&error),
            }
        }
        json_reply(&spans)
    }))
}

fn queue_span(
    services: &mut ServiceContext,
    group: &str,
    topic: &str,
    queue_id: i32,
) -> Result<QueueTimeSpan, ReadError> {
    let queue = services.broker.store.queue(topic, queue_id);
    let (min, max) = queue.map_or((0, 0), |q| (q.min_offset(), q.max_offset()));
    let first = store_time(services, topic, queue_id, min)?.unwrap_or(-1);
    let last = store_time(services, topic, queue_id, max - 1)?.unwrap_or(-1);
    let stored = services.broker.offsets.query(group, topic, queue_id);
    let offset = stored.unwrap_or(-1);
    let consumed = if offset > 0 {
        store_time(services, topic, queue_id, offset - 1)?.unwrap_or(-1)
    } else {
        first
    };
    Ok(QueueTimeSpan {
        consume_time_stamp: consumed,
        delay_time: if offset < max { now_ms() - consumed } else { 0 },
        max_time_stamp: last,
        min_time_stamp: first,
        message_queue: message_queue(&services.broker, topic, queue_id),
        ..QueueTimeSpan::default()
    })
}

/// 300: the groups that consume a topic: those online and those with progress in it.
pub fn groups_of_topic(request: &Request<'_>) -> Answer {
    let topic = match TopicName::decode(&request.command.ext) {
        Ok(asked) => asked.topic.to_owned(),
        Err(error) => return error.into(),
    };
    Answer::Later(Box::new(move |services| {
        let broker = &services.broker;
        let mut groups = broker.offsets.groups_of(&topic);
        for name in broker.clients.consumer_groups() {
            let group = broker.clients.consumer(&name);
            let subscribed = |group: std::sync::Arc<crate::clients::ConsumerGroup>| {
                group.with_view(|view| view.subscriptions.contains_key(&*topic))
            };
            if group.is_some_and(subscribed) {
                groups.insert(name.to_string());
            }
        }
        json_reply(&GroupList {
            group_list: groups.into_iter().collect(),
        })
    }))
}

/// 343: the topics in which a group has progress.
pub fn topics_of_consumer(request: &Request<'_>) -> Answer {
    let group = match GroupName::decode(&request.command.ext) {
        Ok(asked) => asked.group.to_owned(),
        Err(error) => return error.into(),
    };
    Answer::Later(Box::new(move |services| {
        let broker = &services.broker;
        json_reply(&TopicList {
            broker_addr: Some(broker.address()),
            topic_list: broker.offsets.topics_of(&group).into_iter().collect(),
        })
    }))
}

/// 345: what an online group wants of a topic.
pub fn subscription(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match TopicAndGroup::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let topic = asked.topic.unwrap_or_default();
    let found = broker.clients.consumer(asked.group).and_then(|group| {
        group.with_view(|view| view.subscriptions.get(topic).map(|s| s.data.clone()))
    });
    json_reply(&GroupSubscription {
        group: asked.group.to_owned(),
        subscription_data: found,
        topic: topic.to_owned(),
    })
    .into()
}

/// 305: the topics that belong to the system, those too that nothing was stored in yet: tools hide
/// what stands here.
pub fn system_topics() -> Answer {
    Answer::Later(Box::new(|services| {
        let broker = &services.broker;
        let (cluster, name) = (&broker.config.cluster, &broker.config.broker_name);
        let mut topics: BTreeSet<String> = names::SYSTEM_TOPICS.map(String::from).into();
        broker.topics.each(|topic| {
            if names::is_system_topic(&topic.config.name, cluster, name) {
                topics.insert(topic.config.name.clone());
            }
        });
        json_reply(&TopicList {
            broker_addr: Some(broker.address()),
            topic_list: topics.into_iter().collect(),
        })
    }))
}

/// 315: an item of the statistics.
pub fn item(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match ViewBrokerStats::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let traffic = |topic: &str| Some(std::sync::Arc::clone(&broker.topics.get(topic)?.traffic));
    let (name, key) = (asked.stats_name, asked.stats_key);
    match broker
        .stats
        .item(name, key, &broker.config.cluster, traffic)
    {
        Some(data) => json_reply(&data).into(),
        None => {
            let remark = format!("The stats <{name}> <{key}> not exist");
            Reply::error(SYSTEM_ERROR, remark).into()
        }
    }
}

/// 43: the progress of all groups, as the state file has it.
pub fn consumer_offsets(_broker: &Broker, _request: &Request<'_>) -> Answer {
    Answer::Later(Box::new(|services| {
        Reply::success().body(services.broker.offsets.text().into_bytes())
    }))
}

/// 45: the progress of the delay levels, as the state file has it.
pub fn delay_offsets(broker: &Broker, _request: &Request<'_>) -> Answer {
    Reply::success()
        .body(broker.delay_offsets.text().into_bytes())
        .into()
}
