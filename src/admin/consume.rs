//! `saturnmq admin consume`: follows a topic without taking part in any group's progress.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use saturnmq_net::client::OwnedCommand;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::offset::{MaxOffset, MinOffset};
use saturnmq_net::messages::pull::{PULL_SUBSCRIPTION, PULL_SUSPEND, PullRequest};

use super::cluster::{Cluster, RoutedQueue, queues_of};
use super::messages::{records, show};
use super::{AdminError, Output};

/// A group that every broker has; its progress is neither read nor written.
const GROUP: &str = "TOOLS_CONSUMER";
/// Messages per pull.
const BATCH: i32 = 32;
/// How long a broker may hold a pull.
const HOLD: Duration = Duration::from_secs(15);
/// Pause before a queue whose broker refused is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// Behind what is there.
    Latest,
    /// At what is kept.
    Earliest,
    /// At an offset of every queue.
    Offset(i64),
}

impl std::str::FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "latest" => Ok(Self::Latest),
            "earliest" => Ok(Self::Earliest),
            number => match number.parse() {
                Ok(offset) if offset >= 0 => Ok(Self::Offset(offset)),
                _ => Err(format!("{text} is none of latest, earliest, or an offset")),
            },
        }
    }
}

/// What to follow.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Where to begin.
    pub from: From,
    /// One queue instead of all.
    pub queue: Option<i32>,
    /// Tag expression: `*`, or tags with `||` between them.
    pub tags: &'a str,
    /// End after so many messages.
    pub count: Option<u64>,
    /// End when all that is there was shown.
    pub exit: bool,
}

struct Following {
    queue: RoutedQueue,
    next: i64,
    /// Queue offset behind what was there at the start.
    end: i64,
    /// Number of the pull that is open, if one is.
    open: Option<i32>,
    /// Not asked again before.
    not_before: Instant,
}

/// Shows messages as they come, until the plan's count, or for ever.
///
/// # Errors
/// [`AdminError`].
pub fn run(cluster: &mut Cluster, plan: &Plan<'_>, to: &mut Output<'_>) -> Result<(), AdminError> {
    let mut all = start(cluster, plan)?;
    let brokers = by_broker(&all);
    let mut left = plan.count.unwrap_or(u64::MAX);
    while left > 0 {
        if plan.exit && all.iter().all(|one| one.next >= one.end) {
            return Ok(());
        }
        for (address, queues) in &brokers {
            for index in queues {
                pull(cluster, plan, &mut all[*index])?;
            }
            cluster.broker(address)?.flush()?;
            // One broker is waited for; several are looked at in turn.
            let wait = if brokers.len() == 1 {
                PAUSE
            } else {
                PAUSE / 10
            };
            let until = Instant::now() + wait;
            while left > 0 {
                let client = cluster.broker(address)?;
                let Some(answer) = client.receive(until)?.map(|c| OwnedCommand::from(&c)) else {
                    break;
                };
                let mine = queues
                    .iter()
                    .find(|index| all[**index].open == Some(answer.opaque));
                let Some(index) = mine else {
                    continue;
                };
                left -= take(plan, &mut all[*index], &answer, left, to)?;
                if left > 0 {
                    pull(cluster, plan, &mut all[*index])?;
                    cluster.broker(address)?.flush()?;
                }
            }
        }
    }
    Ok(())
}

fn by_broker(all: &[Following]) -> HashMap<String, Vec<usize>> {
    let mut brokers: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, one) in all.iter().enumerate() {
        let queues = brokers.entry(one.queue.address.clone()).or_default();
        queues.push(index);
    }
    brokers
}

/// Every queue with the offset to begin at.
fn start(cluster: &mut Cluster, plan: &Plan<'_>) -> Result<Vec<Following>, AdminError> {
    let route = cluster.known_route(plan.topic)?;
    let mut queues = queues_of(&route, false);
    if let Some(wanted) = plan.queue {
        queues.retain(|queue| queue.queue_id == wanted);
    }
    if queues.is_empty() {
        let sentence = format!("topic {} has no such queue to read", plan.topic);
        return Err(AdminError::Impossible(sentence));
    }
    let mut all = Vec::with_capacity(queues.len());
    for queue in queues {
        let end = offset(cluster, plan.topic, &queue, request::GET_MAX_OFFSET)?;
        let next = match plan.from {
            From::Latest => end,
            From::Earliest => offset(cluster, plan.topic, &queue, request::GET_MIN_OFFSET)?,
            From::Offset(offset) => offset,
        };
        all.push(Following {
            queue,
            next,
            end,
            open: None,
            not_before: Instant::now(),
        });
    }
    Ok(all)
}

fn offset(
    cluster: &mut Cluster,
    topic: &str,
    queue: &RoutedQueue,
    code: i32,
) -> Result<i64, AdminError> {
    let queue_id = queue.queue_id;
    let answer = cluster.ask_broker(
        &queue.address,
        code,
        |out| {
            if code == request::GET_MAX_OFFSET {
                let asked = MaxOffset {
                    topic,
                    queue_id,
                    ..MaxOffset::default()
                };
                asked.encode_fields(out);
            } else {
                let asked = MinOffset {
                    topic,
                    queue_id,
                    ..MinOffset::default()
                };
                asked.encode_fields(out);
            }
        },
        &[],
    )?;
    Ok(answer.number("offset").unwrap_or(0))
}

/// Sends a pull for a queue unless one is open.
fn pull(cluster: &mut Cluster, plan: &Plan<'_>, one: &mut Following) -> Result<(), AdminError> {
    if one.open.is_some() || Instant::now() < one.not_before {
        return Ok(());
    }
    let suspend = if plan.exit { 0 } else { PULL_SUSPEND };
    let asked = PullRequest {
        consumer_group: GROUP,
        topic: plan.topic,
        queue_id: one.queue.queue_id,
        queue_offset: one.next,
        max_msg_nums: BATCH,
        sys_flag: PULL_SUBSCRIPTION | suspend,
        commit_offset: Some(0),
        suspend_timeout_ms: i64::try_from(HOLD.as_millis()).ok(),
        subscription: Some(plan.tags),
        sub_version: Some(0),
        expression_type: Some("TAG"),
        ..PullRequest::default()
    };
    let client = cluster.broker(&one.queue.address)?;
    let fields = |out: &mut saturnmq_net::encode::Encoder<'_>| asked.encode_fields(out);
    one.open = Some(client.queue(request::PULL_MESSAGE, false, fields, &[])?);
    Ok(())
}

/// Shows what a pull brought, at most `left` messages; how many.
fn take(
    plan: &Plan<'_>,
    one: &mut Following,
    answer: &OwnedCommand,
    left: u64,
    to: &mut Output<'_>,
) -> Result<u64, AdminError> {
    one.open = None;
    let next = answer.number("nextBeginOffset");
    match answer.code {
        response::SUCCESS => {
            let mut shown = 0;
            for record in records(&answer.body) {
                let record = record?;
                if shown < left && has_tag(plan.tags, &record) {
                    show(&record, to)?;
                    shown += 1;
                }
            }
            one.next = next.unwrap_or(one.next).max(one.next);
            Ok(shown)
        }
        response::PULL_RETRY_IMMEDIATELY | response::PULL_OFFSET_MOVED => {
            one.next = next.unwrap_or(one.next);
            Ok(0)
        }
        response::PULL_NOT_FOUND => {
            // Nobody held the pull: the queue is asked again after a pause.
            one.next = next.unwrap_or(one.next).max(one.next);
            one.end = one.end.min(one.next);
            one.not_before = Instant::now() + PAUSE;
            Ok(0)
        }
        code => Err(AdminError::Refused {
            server: one.queue.address.clone(),
            request: request::PULL_MESSAGE,
            code,
            remark: answer.remark.clone().unwrap_or_default(),
        }),
    }
}

/// Brokers filter by hash: other tags may have the same.
fn has_tag(expression: &str, record: &saturnmq_storage::format::record::Record<'_>) -> bool {
    if expression.trim().is_empty() || expression.trim() == "*" {
        return true;
    }
    let tag = record.properties().get_str("TAGS").unwrap_or_default();
    expression.split("||").any(|wanted| wanted.trim() == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_words_or_offsets() {
        assert_eq!("latest".parse(), Ok(From::Latest));
        assert_eq!("earliest".parse(), Ok(From::Earliest));
        assert_eq!("17".parse(), Ok(From::Offset(17)));
        assert!("-1".parse::<From>().is_err() && "now".parse::<From>().is_err());
    }
}
