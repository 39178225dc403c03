//! Where a topic's queues are.

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::route::TopicRouteData;

use super::{ANSWER_TIMEOUT, BenchError};

/// Topic whose route stands in for a topic that does not exist yet.
pub const TEMPLATE: &str = "TBW102";

/// One topic's broker and queues.
#[derive(Debug, Clone)]
pub struct Route {
    /// The topic.
    pub topic: String,
    /// The broker, `host:port`.
    pub address: String,
    /// Its queues that may be written to.
    pub queues: i32,
}

/// The routes of all topics, all asked on one connection.
///
/// # Errors
/// [`BenchError`] when the name server does not answer or knows no broker.
pub fn find(name_server: &str, topics: &[String]) -> Result<Vec<Route>, BenchError> {
    let mut client = Client::connect(name_server, ANSWER_TIMEOUT)?;
    topics
        .iter()
        .map(|topic| find_one(&mut client, name_server, topic))
        .collect()
}

fn find_one(client: &mut Client, name_server: &str, topic: &str) -> Result<Route, BenchError> {
    let mut why = String::new();
    for name in [topic, TEMPLATE] {
        let answer = client.invoke(
            request::GET_ROUTEINFO_BY_TOPIC,
            |fields| {
                fields.field_str("topic", name);
            },
            &[],
            ANSWER_TIMEOUT,
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
            let queues = if name == TEMPLATE {
                queues.min(4)
            } else {
                queues
            };
            return Ok(Route {
                topic: topic.to_owned(),
                address: address.clone(),
                queues: queues.max(1),
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
