//! `saturnmq admin topic`.

use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::namesrv::DeleteTopicInNamesrv;
use saturnmq_net::messages::stats::TopicStatsTable;
use saturnmq_net::messages::topic::{
    CreateTopic, TopicConfig, TopicConfigSerializeWrapper, TopicFilterType, TopicName,
};
use serde_json::json;

use super::cluster::{Cluster, body, masters_of};
use super::table::Table;
use super::{AdminError, Output, counted};
use crate::names;
use crate::topics::{PERM_READ, PERM_WRITE};

/// Queues of a topic that is made without saying how many.
pub const QUEUES: i32 = 8;

/// What a topic is to be.
#[derive(Debug, Clone)]
pub struct NewTopic<'a> {
    /// Name.
    pub name: &'a str,
    /// Queues to read and to write; `None`: as many as it has, or [`QUEUES`].
    pub queues: Option<i32>,
    /// Permission bits; `None`: as they are, or read and write.
    pub perm: Option<i32>,
    /// Whether its messages are globally ordered; a topic that is altered stays so.
    pub order: bool,
    /// `+key=value,-key`.
    pub attributes: &'a str,
}

/// Makes or alters a topic on every broker.
///
/// # Errors
/// [`AdminError`].
pub fn create(
    cluster: &mut Cluster,
    new: &NewTopic<'_>,
    to: &mut Output<'_>,
) -> Result<(), AdminError> {
    for (broker, address) in cluster.masters()? {
        // What is not named stays: queues taken away would take their messages from consumers.
        let known = config_of(cluster, &address, new.name)?;
        let queues = |known: Option<i32>| new.queues.or(known).unwrap_or(QUEUES);
        let asked = CreateTopic {
            topic: new.name,
            default_topic: Some(names::AUTO_CREATE_TOPIC),
            read_queue_nums: queues(known.as_ref().map(|known| known.read_queue_nums)),
            write_queue_nums: queues(known.as_ref().map(|known| known.write_queue_nums)),
            perm: new
                .perm
                .or(known.as_ref().map(|known| known.perm))
                .unwrap_or(PERM_READ | PERM_WRITE),
            topic_filter_type: Some(
                known
                    .as_ref()
                    .map_or(TopicFilterType::SingleTag, |known| known.topic_filter_type)
                    .name(),
            ),
            topic_sys_flag: Some(known.as_ref().map_or(0, |known| known.topic_sys_flag)),
            order: new.order || known.as_ref().is_some_and(|known| known.order),
            attributes: Some(new.attributes),
            force: None,
        };
        let code = request::UPDATE_AND_CREATE_TOPIC;
        cluster.ask_broker(&address, code, |out| asked.encode_fields(out), &[])?;
        let name = new.name;
        to.line(&format!(
            "{name} with {} on {broker} ({address})",
            counted(asked.read_queue_nums, "queue")
        ))?;
        if to.json {
            to.value(&json!({"topic": name, "broker": broker, "address": address}))?;
        }
    }
    Ok(())
}

/// A topic as a broker has it.
fn config_of(
    cluster: &mut Cluster,
    address: &str,
    topic: &str,
) -> Result<Option<TopicConfig>, AdminError> {
    let code = request::GET_ALL_TOPIC_CONFIG;
    let answer = cluster.ask_broker(address, code, |_| {}, &[])?;
    let mut all: TopicConfigSerializeWrapper = body(address, code, &answer)?;
    Ok(all.topic_config_table.remove(topic))
}

/// Lists topics; those of the system only if asked for.
///
/// # Errors
/// [`AdminError`].
pub fn list(cluster: &mut Cluster, system: bool, to: &mut Output<'_>) -> Result<(), AdminError> {
    let info = cluster.info()?;
    let is_system = |topic: &str| {
        let mut clusters = info.cluster_addr_table.iter();
        names::is_retry_or_dlq(topic)
            || clusters.any(|(cluster, brokers)| {
                brokers
                    .iter()
                    .any(|broker| names::is_system_topic(topic, cluster, broker))
            })
    };
    let topics = cluster.topics()?;
    let shown: Vec<_> = topics
        .into_iter()
        .filter(|topic| system || !is_system(topic))
        .collect();
    if to.json {
        return to.value(&json!(shown));
    }
    for topic in shown {
        to.line(&topic)?;
    }
    Ok(())
}

/// Shows where the queues of a topic are.
///
/// # Errors
/// [`AdminError`].
pub fn route(cluster: &mut Cluster, topic: &str, to: &mut Output<'_>) -> Result<(), AdminError> {
    let route = cluster.known_route(topic)?;
    if to.json {
        let problem = |e: serde_json::Error| AdminError::Impossible(e.to_string());
        return to.value(&serde_json::to_value(&route).map_err(problem)?);
    }
    let mut table = Table::new(&["BROKER", "ADDRESS", "READ QUEUES", "WRITE QUEUES", "PERM"]);
    for data in &route.queue_datas {
        let mut brokers = route.broker_datas.iter();
        let broker = brokers.find(|broker| broker.broker_name == data.broker_name);
        let addresses = broker.map(|broker| {
            let addresses: Vec<_> = broker.broker_addrs.values().map(String::as_str).collect();
            addresses.join(", ")
        });
        table.row(vec![
            data.broker_name.clone(),
            addresses.unwrap_or_default(),
            data.read_queue_nums.to_string(),
            data.write_queue_nums.to_string(),
            permission(data.perm),
        ]);
    }
    table.write(to)
}

/// Permission bits as letters.
fn permission(perm: i32) -> String {
    let bit = |bit: i32, letter: char| if perm & bit == 0 { '-' } else { letter };
    [bit(4, 'r'), bit(2, 'w'), bit(1, 'x')].iter().collect()
}

/// Shows where the queues of a topic begin and end.
///
/// # Errors
/// [`AdminError`].
pub fn status(cluster: &mut Cluster, topic: &str, to: &mut Output<'_>) -> Result<(), AdminError> {
    let route = cluster.known_route(topic)?;
    let mut table = Table::new(&["BROKER", "QUEUE", "MIN", "MAX", "MESSAGES", "LAST STORED"]);
    let mut rows = Vec::new();
    let (mut total, mut rate) = (0, 0.0);
    for address in masters_of(&route) {
        let code = request::GET_TOPIC_STATS_INFO;
        let asked = TopicName { topic };
        let answer = cluster.ask_broker(&address, code, |out| asked.encode_fields(out), &[])?;
        let mut stats: TopicStatsTable = body(&address, code, &answer)?;
        stats
            .offset_table
            .0
            .sort_by_key(|(queue, _)| queue.queue_id);
        rate += stats.topic_put_tps;
        for (queue, at) in &stats.offset_table.0 {
            let messages = at.max_offset - at.min_offset;
            total += messages;
            let last = (at.last_update_timestamp > 0).then_some(at.last_update_timestamp);
            table.row(vec![
                queue.broker_name.clone(),
                queue.queue_id.to_string(),
                at.min_offset.to_string(),
                at.max_offset.to_string(),
                messages.to_string(),
                last.map_or_else(|| "-".to_owned(), super::messages::local_time),
            ]);
            rows.push(json!({
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "min": at.min_offset,
                "max": at.max_offset,
                "lastStoredMs": last,
            }));
        }
    }
    if to.json {
        return to.value(&json!({
            "topic": topic, "messages": total, "perSecond": rate, "queues": rows
        }));
    }
    table.write(to)?;
    to.line(&format!(
        "{}, {rate:.1} per second in the last minute",
        counted(total, "message")
    ))
}

/// Removes a topic from every broker and from the name server.
///
/// # Errors
/// [`AdminError`].
pub fn delete(cluster: &mut Cluster, topic: &str, to: &mut Output<'_>) -> Result<(), AdminError> {
    cluster.known_route(topic)?;
    for (_, address) in cluster.masters()? {
        let code = request::DELETE_TOPIC_IN_BROKER;
        let asked = TopicName { topic };
        cluster.ask_broker(&address, code, |out| asked.encode_fields(out), &[])?;
    }
    let asked = DeleteTopicInNamesrv {
        topic,
        cluster_name: None,
    };
    let code = request::DELETE_TOPIC_IN_NAMESRV;
    match cluster.ask_name_server(code, |out| asked.encode_fields(out)) {
        // A broker's embedded name server has forgotten it already.
        Err(AdminError::Refused { code, .. }) if code == response::TOPIC_NOT_EXIST => {}
        outcome => {
            outcome?;
        }
    }
    to.line(&format!("{topic} is deleted"))?;
    if to.json {
        to.value(&json!({"deleted": topic}))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_letters() {
        assert_eq!(permission(6), "rw-");
        assert_eq!(permission(4), "r--");
        assert_eq!(permission(7), "rwx");
    }
}
