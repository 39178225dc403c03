//! Connections to a name server and to the brokers it names.

use std::collections::HashMap;
use std::time::Duration;

use saturnmq_net::client::{Client, OwnedCommand};
use saturnmq_net::codes::{request, response};
use saturnmq_net::encode::Encoder;
use saturnmq_net::fastjson;
use saturnmq_net::messages::namesrv::GetRoute;
use saturnmq_net::messages::route::{ClusterInfo, MASTER_ID, TopicList, TopicRouteData};
use serde::de::DeserializeOwned;

use super::AdminError;

/// Longest wait for a connection or an answer.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A queue to read from or write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedQueue {
    /// Name of the broker.
    pub broker: String,
    /// Address of its master.
    pub address: String,
    /// Number of the queue.
    pub queue_id: i32,
}

/// A name server and the brokers behind it.
pub struct Cluster {
    address: String,
    name_server: Client,
    brokers: HashMap<String, Client>,
}

impl Cluster {
    /// Connects to a name server.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn connect(name_server: &str) -> Result<Self, AdminError> {
        Ok(Self {
            address: name_server.to_owned(),
            name_server: Client::connect(name_server, TIMEOUT)?,
            brokers: HashMap::new(),
        })
    }

    /// Asks the name server; what it refuses is an error.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn ask_name_server(
        &mut self,
        code: i32,
        fields: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<OwnedCommand, AdminError> {
        let answer = self.name_server.invoke(code, fields, &[], TIMEOUT)?;
        accepted(&self.address, code, answer)
    }

    /// The connection to a broker, made at its first use.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn broker(&mut self, address: &str) -> Result<&mut Client, AdminError> {
        if !self.brokers.contains_key(address) {
            let client = Client::connect(address, TIMEOUT)?;
            self.brokers.insert(address.to_owned(), client);
        }
        match self.brokers.get_mut(address) {
            Some(client) => Ok(client),
            None => Err(AdminError::Impossible(format!(
                "no connection to {address}"
            ))),
        }
    }

    /// Asks a broker; any response code is given back.
    ///
    /// # Errors
    /// No answer.
    pub fn try_broker(
        &mut self,
        address: &str,
        code: i32,
        fields: impl FnOnce(&mut Encoder<'_>),
        body: &[u8],
    ) -> Result<OwnedCommand, AdminError> {
        Ok(self.broker(address)?.invoke(code, fields, body, TIMEOUT)?)
    }

    /// Asks a broker; what it refuses is an error.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn ask_broker(
        &mut self,
        address: &str,
        code: i32,
        fields: impl FnOnce(&mut Encoder<'_>),
        body: &[u8],
    ) -> Result<OwnedCommand, AdminError> {
        let answer = self.try_broker(address, code, fields, body)?;
        accepted(address, code, answer)
    }

    /// The route of a topic, or `None` if there is none.
    ///
    /// # Errors
    /// No answer, or a refusal for another reason.
    pub fn route(&mut self, topic: &str) -> Result<Option<TopicRouteData>, AdminError> {
        let code = request::GET_ROUTEINFO_BY_TOPIC;
        let asked = GetRoute {
            topic,
            accept_standard_json_only: Some(true),
        };
        let fields = |out: &mut Encoder<'_>| asked.encode_fields(out);
        let answer = self.name_server.invoke(code, fields, &[], TIMEOUT)?;
        if answer.code == response::TOPIC_NOT_EXIST {
            return Ok(None);
        }
        let answer = accepted(&self.address, code, answer)?;
        body(&self.address, code, &answer).map(Some)
    }

    /// The route of a topic that must exist.
    ///
    /// # Errors
    /// As [`Cluster::route`], and when there is none.
    pub fn known_route(&mut self, topic: &str) -> Result<TopicRouteData, AdminError> {
        self.route(topic)?.ok_or_else(|| {
            let sentence = format!("name server {} knows no topic {topic}", self.address);
            AdminError::Impossible(sentence)
        })
    }

    /// All brokers.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn info(&mut self) -> Result<ClusterInfo, AdminError> {
        let code = request::GET_BROKER_CLUSTER_INFO;
        let answer = self.ask_name_server(code, |_| {})?;
        body(&self.address, code, &answer)
    }

    /// Name and address of every master.
    ///
    /// # Errors
    /// As [`Cluster::info`], and when there is none.
    pub fn masters(&mut self) -> Result<Vec<(String, String)>, AdminError> {
        let info = self.info()?;
        let masters: Vec<_> = info
            .broker_addr_table
            .into_iter()
            .filter_map(|(name, mut broker)| Some((name, broker.broker_addrs.remove(&MASTER_ID)?)))
            .collect();
        if masters.is_empty() {
            let sentence = format!("name server {} knows no broker", self.address);
            return Err(AdminError::Impossible(sentence));
        }
        Ok(masters)
    }

    /// The names of all topics.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn topics(&mut self) -> Result<Vec<String>, AdminError> {
        let code = request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER;
        let answer = self.ask_name_server(code, |_| {})?;
        let mut list: TopicList = body(&self.address, code, &answer)?;
        list.topic_list.sort();
        list.topic_list.dedup();
        Ok(list.topic_list)
    }
}

fn accepted(server: &str, request: i32, answer: OwnedCommand) -> Result<OwnedCommand, AdminError> {
    if answer.code == response::SUCCESS {
        return Ok(answer);
    }
    Err(AdminError::Refused {
        server: server.to_owned(),
        request,
        code: answer.code,
        remark: answer.remark.unwrap_or_default(),
    })
}

/// Reads the body of an answer.
///
/// # Errors
/// It is not what is expected.
pub fn body<T: DeserializeOwned>(
    server: &str,
    request: i32,
    answer: &OwnedCommand,
) -> Result<T, AdminError> {
    fastjson::from_slice(&answer.body).map_err(|e| AdminError::garbled(server, request, &e))
}

/// The address of every master in a route.
pub fn masters_of(route: &TopicRouteData) -> Vec<String> {
    let masters = route.broker_datas.iter();
    masters
        .filter_map(|broker| broker.broker_addrs.get(&MASTER_ID).cloned())
        .collect()
}

/// The queues of a route that may be read, or written.
pub fn queues_of(route: &TopicRouteData, write: bool) -> Vec<RoutedQueue> {
    let mut queues = Vec::new();
    for data in &route.queue_datas {
        let broker = route.broker_datas.iter();
        let mut broker = broker.filter(|broker| broker.broker_name == data.broker_name);
        let Some(address) = broker.next().and_then(|b| b.broker_addrs.get(&MASTER_ID)) else {
            continue;
        };
        let (count, bit) = if write {
            (data.write_queue_nums, crate::topics::PERM_WRITE)
        } else {
            (data.read_queue_nums, crate::topics::PERM_READ)
        };
        if data.perm & bit == 0 {
            continue;
        }
        queues.extend((0..count).map(|queue_id| RoutedQueue {
            broker: data.broker_name.clone(),
            address: address.clone(),
            queue_id,
        }));
    }
    queues
}
