//! Where a topic's queues are.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use saturnmq_net::client::{Client, ClientError};
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::route::TopicRouteData;

use super::plan::Target;
use super::{BenchError, interrupt};

/// Topic whose route stands in for a topic that does not exist yet.
pub const TEMPLATE: &str = "TBW102";

/// Queues that a broker gives to a topic that it makes for a sender.
const NEW_QUEUES: i32 = 4;

/// Topics that a broker is asked to make at a time: it answers each when its state file is on the
/// disk, and writes that once for all that it was asked for meanwhile.
const MADE_AT_ONCE: usize = 64;

/// One topic's broker and queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The topic.
    pub topic: String,
    /// The broker, `host:port`.
    pub address: String,
    /// Its queues that may be written to.
    pub queues: i32,
    /// Whether it will be made by the first send.
    pub is_new: bool,
}

/// The routes of all topics, all asked on one connection; no answer is waited for longer than
/// `timeout`.
///
/// # Errors
/// [`BenchError`] when the name server does not answer or knows no broker.
pub fn find(
    target: &Target,
    topics: &[String],
    timeout: Duration,
) -> Result<Vec<Route>, BenchError> {
    match target {
        Target::NameServer(address) => {
            let mut client = Client::connect(address.as_str(), timeout)?;
            let find = |topic: &String| find_one(&mut client, address, topic, timeout);
            topics.iter().map(find).collect()
        }
        Target::Broker(address) => {
            let mut client = Client::connect(address.as_str(), timeout)?;
            let find = |topic: &String| ask_broker(&mut client, address, topic, timeout);
            topics.iter().map(find).collect()
        }
    }
}

/// The queues that the broker itself has for a topic: as many as it tells the ends of.
fn ask_broker(
    client: &mut Client,
    address: &str,
    topic: &str,
    timeout: Duration,
) -> Result<Route, BenchError> {
    interrupt::check()?;
    let mut queues = 0;
    let answer = client.invoke(
        request::GET_TOPIC_STATS_INFO,
        |fields| {
            fields.field_str("topic", topic);
        },
        &[],
        timeout,
    )?;
    if answer.code == response::SUCCESS {
        // One entry per queue; each names its queue once.
        queues = String::from_utf8_lossy(&answer.body)
            .matches("\"queueId\"")
            .count()
            .try_into()
            .unwrap_or(i32::MAX);
    }
    Ok(Route {
        topic: topic.to_owned(),
        address: address.to_owned(),
        queues: if queues == 0 { NEW_QUEUES } else { queues },
        is_new: queues == 0,
    })
}

fn find_one(
    client: &mut Client,
    name_server: &str,
    topic: &str,
    timeout: Duration,
) -> Result<Route, BenchError> {
    interrupt::check()?;
    let mut why = String::new();
    for name in [topic, TEMPLATE] {
        let answer = client.invoke(
            request::GET_ROUTEINFO_BY_TOPIC,
            |fields| {
                fields.field_str("topic", name);
            },
            &[],
            timeout,
        )?;
        if answer.code != response::SUCCESS {
            why = answer.remark.unwrap_or_default();
            continue;
        }
        let route: TopicRouteData = match saturnmq_net::fastjson::from_slice(&answer.body) {
            Ok(route) => route,
            Err(error) => {
                why = error.to_string();
                continue;
            }
        };
        let queues = route
            .queue_datas
            .first()
            .map_or(1, |queues| queues.write_queue_nums);
        let master = route
            .broker_datas
            .first()
            .and_then(|broker| broker.broker_addrs.get(&0));
        if let Some(address) = master {
            let is_new = name != topic;
            let queues = if is_new {
                queues.min(NEW_QUEUES)
            } else {
                queues
            };
            return Ok(Route {
                topic: topic.to_owned(),
                address: address.clone(),
                queues: queues.max(1),
                is_new,
            });
        }
        "no broker with id 0".clone_into(&mut why);
    }
    Err(BenchError::NoRoute {
        name_server: name_server.to_owned(),
        topic: topic.to_owned(),
        why,
    })
}

/// All queues of these topics.
pub fn queues(routes: &[Route]) -> Vec<(&str, i32)> {
    let mut queues = Vec::new();
    for route in routes {
        queues.extend((0..route.queues).map(|id| (route.topic.as_str(), id)));
    }
    queues
}

/// The broker of all these topics.
///
/// # Errors
/// [`BenchError::System`] when they are on several.
pub fn one_broker(routes: &[Route]) -> Result<&str, BenchError> {
    let first = routes.first().map_or("", |route| &route.address);
    match routes.iter().find(|route| route.address != first) {
        None => Ok(first),
        Some(route) => Err(BenchError::System(format!(
            "topic {} is on {}, topic {} on {first}: this load reads from one broker",
            route.topic, route.address, routes[0].topic
        ))),
    }
}

/// Makes the topics that do not exist yet, so that they can be read before anything is sent.
///
/// # Errors
/// [`BenchError`] when the broker refuses.
pub fn create(routes: &mut [Route], timeout: Duration) -> Result<(), BenchError> {
    let mut new: Vec<_> = routes.iter_mut().filter(|route| route.is_new).collect();
    new.sort_by(|one, other| one.address.cmp(&other.address));
    for there in new.chunk_by_mut(|one, other| one.address == other.address) {
        let mut client = Client::connect(there[0].address.as_str(), timeout)?;
        for some in there.chunks_mut(MADE_AT_ONCE) {
            interrupt::check()?;
            create_some(&mut client, some, timeout)?;
        }
    }
    Ok(())
}

/// Asks for all of these topics, then waits for the answers.
fn create_some(
    client: &mut Client,
    routes: &mut [&mut Route],
    timeout: Duration,
) -> Result<(), BenchError> {
    let mut asked = HashMap::with_capacity(routes.len());
    for (place, route) in routes.iter().enumerate() {
        let opaque = client.queue(
            request::UPDATE_AND_CREATE_TOPIC,
            false,
            |fields| {
                fields
                    .field_str("topic", &route.topic)
                    .field_str("defaultTopic", TEMPLATE)
                    .field_i32("readQueueNums", route.queues)
                    .field_i32("writeQueueNums", route.queues)
                    .field_i32("perm", 6)
                    .field_str("topicFilterType", "SINGLE_TAG")
                    .field_i32("topicSysFlag", 0)
                    .field_bool("order", false);
            },
            &[],
        )?;
        asked.insert(opaque, place);
    }
    client.flush()?;
    let deadline = Instant::now() + timeout;
    while !asked.is_empty() {
        let peer = client.peer();
        let Some(answer) = client.receive(deadline)? else {
            let after = timeout;
            return Err(ClientError::Timeout { peer, after }.into());
        };
        let place = asked
            .remove(&answer.opaque)
            .filter(|_| answer.is_response());
        let Some(place) = place else { continue };
        let route = &mut routes[place];
        if answer.code != response::SUCCESS {
            let remark = answer.remark.unwrap_or_default();
            let (topic, code) = (&route.topic, answer.code);
            let text = format!("topic {topic} cannot be created: code {code}: {remark}");
            return Err(BenchError::System(text));
        }
        route.is_new = false;
    }
    Ok(())
}
