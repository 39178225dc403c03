//! `saturnmq admin group`.

use std::collections::BTreeMap;

use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::group::SubscriptionGroupWrapper;
use saturnmq_net::messages::heartbeat::{ConsumerConnection, ConsumerGroup};
use saturnmq_net::messages::stats::{ConsumeStats, GetConsumeStats};
use serde_json::json;

use super::cluster::{Cluster, body};
use super::table::Table;
use super::{AdminError, Output, counted};
use crate::names;

/// What is shown of a group: whether it may consume, retries, connected members.
type GroupRow = (bool, i32, usize);

/// Lists groups with their members; those of the system only if asked for.
///
/// # Errors
/// [`AdminError`].
pub fn list(cluster: &mut Cluster, system: bool, to: &mut Output<'_>) -> Result<(), AdminError> {
    let mut groups: BTreeMap<String, GroupRow> = BTreeMap::new();
    for (_, address) in cluster.masters()? {
        let code = request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG;
        let answer = cluster.ask_broker(&address, code, |_| {}, &[])?;
        let all: SubscriptionGroupWrapper = body(&address, code, &answer)?;
        for (name, group) in all.subscription_group_table {
            if !system && names::is_system_group(&name) {
                continue;
            }
            let members = members(cluster, &address, &name)?;
            let row = groups.entry(name).or_default();
            row.0 = group.consume_enable;
            row.1 = group.retry_max_times;
            row.2 = row.2.max(members.map_or(0, |m| m.connection_set.len()));
        }
    }
    if to.json {
        let rows = groups.iter().map(|(name, (enabled, retries, members))| {
            json!({"group": name, "consumes": enabled, "retries": retries, "members": members})
        });
        return to.value(&rows.collect());
    }
    let mut table = Table::new(&["GROUP", "MEMBERS", "CONSUMES", "RETRIES"]);
    for (name, (enabled, retries, members)) in groups {
        let consumes = if enabled { "yes" } else { "no" };
        table.row(vec![
            name,
            members.to_string(),
            consumes.to_owned(),
            retries.to_string(),
        ]);
    }
    table.write(to)
}

/// The members of a group on a broker; `None` while nobody is connected.
fn members(
    cluster: &mut Cluster,
    address: &str,
    group: &str,
) -> Result<Option<ConsumerConnection>, AdminError> {
    let code = request::GET_CONSUMER_CONNECTION_LIST;
    let asked = ConsumerGroup {
        consumer_group: group,
    };
    let answer = cluster.try_broker(address, code, |out| asked.encode_fields(out), &[])?;
    if answer.code == response::SUCCESS {
        body(address, code, &answer).map(Some)
    } else {
        Ok(None)
    }
}

/// Whether some broker has a group.
fn exists(cluster: &mut Cluster, group: &str) -> Result<bool, AdminError> {
    for (_, address) in cluster.masters()? {
        let code = request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG;
        let answer = cluster.ask_broker(&address, code, |_| {}, &[])?;
        let all: SubscriptionGroupWrapper = body(&address, code, &answer)?;
        if all.subscription_group_table.contains_key(group) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Shows where a group stands in its topics.
///
/// # Errors
/// [`AdminError`].
pub fn progress(cluster: &mut Cluster, group: &str, to: &mut Output<'_>) -> Result<(), AdminError> {
    let heading = [
        "TOPIC",
        "BROKER",
        "QUEUE",
        "CONSUMED",
        "END",
        "LAG",
        "LAST CONSUMED",
    ];
    let mut table = Table::new(&heading);
    let (mut rows, mut lag, mut online) = (Vec::new(), 0_i64, 0);
    for (_, address) in cluster.masters()? {
        online += members(cluster, &address, group)?.map_or(0, |m| m.connection_set.len());
        let code = request::GET_CONSUME_STATS;
        let asked = GetConsumeStats {
            consumer_group: group,
            ..GetConsumeStats::default()
        };
        let answer = cluster.ask_broker(&address, code, |out| asked.encode_fields(out), &[])?;
        let mut stats: ConsumeStats = body(&address, code, &answer)?;
        let key = |queue: &saturnmq_net::messages::lock::MessageQueue| {
            (queue.topic.clone(), queue.queue_id)
        };
        stats.offset_table.0.sort_by_key(|(queue, _)| key(queue));
        for (queue, at) in &stats.offset_table.0 {
            let behind = at.broker_offset.saturating_sub(at.consumer_offset);
            lag = lag.saturating_add(behind);
            let last = (at.last_timestamp > 0).then_some(at.last_timestamp);
            table.row(vec![
                queue.topic.clone(),
                queue.broker_name.clone(),
                queue.queue_id.to_string(),
                at.consumer_offset.to_string(),
                at.broker_offset.to_string(),
                behind.to_string(),
                last.map_or_else(|| "-".to_owned(), super::messages::local_time),
            ]);
            rows.push(json!({
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "consumed": at.consumer_offset,
                "end": at.broker_offset,
                "lag": behind,
                "lastConsumedMs": last,
            }));
        }
    }
    if rows.is_empty() && online == 0 && !exists(cluster, group)? {
        let sentence = format!("no broker knows the group {group:?}");
        return Err(AdminError::Impossible(sentence));
    }
    if to.json {
        return to.value(&json!({
            "group": group, "lag": lag, "members": online, "queues": rows
        }));
    }
    if rows.is_empty() {
        let members = counted(online, "member");
        let sentence = format!("{group} has not consumed anything; connected: {members}");
        return to.line(&sentence);
    }
    table.write(to)?;
    to.line(&format!(
        "{} behind, {} connected",
        counted(lag, "message"),
        counted(online, "member")
    ))
}
