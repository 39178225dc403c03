//! Registration with outer name servers (`namesrvAddr`), Apache's or ours.
//!
//! One task per name server on the control thread's runtime. A registration always carries the
//! whole topic table: it is sent at start, every `registerNameServerPeriod`, and when a topic
//! changed; changes that come while one is on its way are sent together by the next. A name server
//! that closes the connection, or answers no, is asked again every second.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use saturnmq_net::codes::{request, response};
use saturnmq_net::command::{self, Scratch};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{self, Codec, MAX_FRAME, Parsed};
use saturnmq_net::messages::register::{
    BrokerIdentity, RegisterBroker, RegisterBrokerBody, body_crc32,
};
use saturnmq_net::messages::topic::{
    DataVersion, TopicConfig, TopicConfigSerializeWrapper, TopicFilterType,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use crate::broker::{Broker, masked};
use crate::topics;

/// Longest answer read from a name server, in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Most bytes of a registration's body: a frame has a header as well.
const MAX_BODY: usize = MAX_FRAME - 64 * 1024;
/// Shortest pause between two registrations: a burst of new topics goes out together.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// How long a name server may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest a stop waits for a name server to take the farewell.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failed registration: a name server that comes back soon knows this broker.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Keeps this broker registered with every configured name server.
pub struct Registrar {
    broker: Arc<Broker>,
    changed: Vec<Arc<Notify>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// What went wrong with one exchange.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error("an answer that is no frame: {0}")]
    Garbled(String),
    #[error(
        "the topic table takes {0} bytes even compressed and does not fit a frame of {MAX_FRAME}: \
         remove topics"
    )]
    TooLarge(usize),
    #[error("code {code}: {remark}")]
    Refused { code: i32, remark: String },
}

impl Registrar {
    /// A registrar for the configured name servers; nothing is sent before [`Registrar::spawn`].
    #[must_use]
    pub fn new(broker: Arc<Broker>) -> Self {
        let changed = broker
            .config
            .name_servers
            .iter()
            .map(|_| Arc::default())
            .collect();
        Self {
            broker,
            changed,
            tasks: Mutex::default(),
        }
    }

    /// Starts a task per name server on the current runtime.
    pub fn spawn(&self) {
        for (address, changed) in self.broker.config.name_servers.iter().zip(&self.changed) {
            let task = tokio::spawn(keep_registered(
                Arc::clone(&self.broker),
                address.clone(),
                Arc::clone(changed),
            ));
            self.tasks().push(task.abort_handle());
        }
    }

    /// Says that a topic was made, altered or removed.
    pub fn topic_changed(&self) {
        for changed in &self.changed {
            changed.notify_one();
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unregisters from every name server, at an orderly stop; nothing registers again after it.
    pub async fn unregister(&self) {
        for task in self.tasks().drain(..) {
            task.abort();
        }
        let mut farewells = JoinSet::new();
        for address in &self.broker.config.name_servers {
            farewells.spawn(say_farewell(Arc::clone(&self.broker), address.clone()));
        }
        farewells.join_all().await;
    }
}

async fn say_farewell(broker: Arc<Broker>, address: String) {
    let farewell = async {
        let mut link = Link::open(&address).await?;
        link.unregister(&broker, FAREWELL_TIMEOUT).await
    };
    match tokio::time::timeout(FAREWELL_TIMEOUT, farewell).await {
        Ok(Ok(())) => tracing::info!("unregistered from name server {address}"),
        Ok(Err(error)) => tracing::warn!("unregistering from {address}: {error}"),
        Err(_) => tracing::warn!("unregistering from {address}: no answer in time"),
    }
}

async fn keep_registered(broker: Arc<Broker>, address: String, changed: Arc<Notify>) {
    let period = broker.config.register_period;
    let mut link: Option<Link> = None;
    let mut registered = false;
    let mut complained: Option<Instant> = None;
    loop {
        match register_once(&broker, &address, &mut link).await {
            Ok(()) => {
                if !registered {
                    let own = broker.address();
                    tracing::info!("registered with name server {address} as {own}");
                }
                registered = true;
                complained = None;
            }
            Err(error) => {
                registered = false;
                link = None;
                if complained.is_none_or(|at| at.elapsed() >= period) {
                    complained = Some(Instant::now());
                    tracing::warn!("registering with name server {address}: {error}");
                }
            }
        }
        tokio::time::sleep(MIN_PAUSE).await;
        tokio::select! {
            () = tokio::time::sleep(if registered { period } else { RETRY_PAUSE }) => {}
            () = changed.notified() => {}
            () = closed(link.as_ref()) => {
                tracing::warn!("name server {address} closed its connection");
                (link, registered) = (None, false);
            }
        }
    }
}

/// Waits until the other side closes the connection: a name server that went forgot this broker.
async fn closed(link: Option<&Link>) {
    let Some(link) = link else {
        return std::future::pending().await;
    };
    // Bytes that nobody asked for stay for the next exchange, which passes over them.
    if let Ok(1..) = link.stream.peek(&mut [0]).await {
        std::future::pending().await
    }
}

async fn register_once(
    broker: &Broker,
    address: &str,
    link: &mut Option<Link>,
) -> Result<(), ExchangeError> {
    let timeout = Duration::from_millis(broker.live.load().register_timeout_ms);
    if link.is_none() {
        *link = Some(Link::open(address).await?);
    }
    let Some(open) = link.as_mut() else {
        return Ok(());
    };
    match open.register(broker, timeout).await {
        // The name server may have dropped an idle connection: once more on a new one.
        Err(ExchangeError::Io(_)) => {
            let fresh = link.insert(Link::open(address).await?);
            fresh.register(broker, timeout).await
        }
        outcome => outcome,
    }
}

/// A connection to one name server.
struct Link {
    stream: TcpStream,
    opaque: i32,
}

impl Link {
    async fn open(address: &str) -> Result<Self, ExchangeError> {
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .map_err(|_| ExchangeError::Timeout(CONNECT_TIMEOUT))??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, opaque: 0 })
    }

    async fn register(&mut self, broker: &Broker, limit: Duration) -> Result<(), ExchangeError> {
        let body = registration_body(broker);
        let plain =
            serde_json::to_vec(&body).map_err(|error| ExchangeError::Garbled(error.to_string()))?;
        let (bytes, compressed) = packed(&body, plain, broker.config.compressed_register)?;
        let own = broker.address();
        let header = RegisterBroker {
            broker_name: &broker.config.broker_name,
            broker_addr: &own,
            cluster_name: &broker.config.cluster,
            ha_server_addr: &own,
            broker_id: broker.config.broker_id,
            heartbeat_timeout_ms: None,
            enable_acting_master: None,
            compressed: Some(compressed),
            body_crc32: Some(body_crc32(&bytes)),
        };
        let mut out = Vec::new();
        let mut encoder = self.request(&mut out, request::REGISTER_BROKER);
        header.encode_fields(&mut encoder);
        encoder.body(&bytes);
        self.exchange(&out, limit).await
    }

    async fn unregister(&mut self, broker: &Broker, limit: Duration) -> Result<(), ExchangeError> {
        let own = broker.address();
        let header = BrokerIdentity {
            broker_name: &broker.config.broker_name,
            broker_addr: &own,
            cluster_name: &broker.config.cluster,
            broker_id: broker.config.broker_id,
        };
        let mut out = Vec::new();
        let mut encoder = self.request(&mut out, request::UNREGISTER_BROKER);
        header.encode_fields(&mut encoder);
        encoder.finish();
        self.exchange(&out, limit).await
    }

    fn request<'o>(&mut self, out: &'o mut Vec<u8>, code: i32) -> Encoder<'o> {
        self.opaque = self.opaque.wrapping_add(1);
        Encoder::request(out, Codec::Json, code, self.opaque, false)
    }

    async fn exchange(&mut self, frame: &[u8], limit: Duration) -> Result<(), ExchangeError> {
        let opaque = self.opaque;
        let stream = &mut self.stream;
        let work = async {
            stream.write_all(frame).await?;
            read_answer(stream, opaque).await
        };
        tokio::time::timeout(limit, work)
            .await
            .map_err(|_| ExchangeError::Timeout(limit))?
    }
}

/// Reads frames until the answer to `opaque` comes; what else a name server says is passed over.
async fn read_answer(stream: &mut TcpStream, opaque: i32) -> Result<(), ExchangeError> {
    let mut received = Vec::new();
    let mut scratch = Scratch::default();
    loop {
        let parsed = frame::parse(&received, MAX_ANSWER)
            .map_err(|error| ExchangeError::Garbled(error.to_string()))?;
        match parsed {
            Parsed::Complete { frame, consumed } => {
                let answer = command::decode(frame, &mut scratch)
                    .map_err(|error| ExchangeError::Garbled(error.to_string()))?;
                if answer.is_response() && answer.opaque == opaque {
                    return match answer.code {
                        response::SUCCESS => Ok(()),
                        code => Err(ExchangeError::Refused {
                            code,
                            remark: answer.remark.unwrap_or_default().to_owned(),
                        }),
                    };
                }
                received.drain(..consumed);
            }
            Parsed::Incomplete { .. } => {
                if stream.read_buf(&mut received).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
    }
}

/// The body as it is sent: compressed if that is configured, or if it fits a frame only so.
fn packed(
    body: &RegisterBrokerBody,
    plain: Vec<u8>,
    compress: bool,
) -> Result<(Vec<u8>, bool), ExchangeError> {
    let fits = plain.len() <= MAX_BODY;
    if fits && !compress {
        return Ok((plain, false));
    }
    match body.encode_compressed(saturnmq_net::encode::VERSION) {
        Ok(bytes) if bytes.len() <= MAX_BODY => Ok((bytes, true)),
        _ if fits => Ok((plain, false)),
        Ok(bytes) => Err(ExchangeError::TooLarge(bytes.len())),
        Err(_) => Err(ExchangeError::TooLarge(plain.len())),
    }
}

/// The whole topic table; permissions are masked by what the broker itself permits.
fn registration_body(broker: &Broker) -> RegisterBrokerBody {
    let permission = broker.live.load().broker_permission;
    let (version, topics) = broker.topics.snapshot();
    let table: BTreeMap<_, _> = topics
        .into_iter()
        .map(|config| (config.name.clone(), registered_topic(config, permission)))
        .collect();
    RegisterBrokerBody {
        filter_server_list: Vec::new(),
        topic_config_serialize_wrapper: TopicConfigSerializeWrapper {
            data_version: DataVersion {
                counter: version.counter,
                state_version: version.state_version,
                timestamp: version.timestamp,
            },
            topic_config_table: table,
            ..TopicConfigSerializeWrapper::default()
        },
    }
}

fn registered_topic(config: topics::TopicConfig, permission: i32) -> TopicConfig {
    TopicConfig {
        attributes: config.attributes,
        order: config.order,
        perm: masked(config.perm, permission),
        read_queue_nums: config.read_queues,
        topic_filter_type: match config.filter_type {
            topics::TopicFilterType::SingleTag => TopicFilterType::SingleTag,
            topics::TopicFilterType::MultiTag => TopicFilterType::MultiTag,
        },
        topic_name: config.name,
        topic_sys_flag: config.sys_flag,
        write_queue_nums: config.write_queues,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(topics: usize) -> RegisterBrokerBody {
        let config = |n: usize| {
            let config = topics::TopicConfig::new(format!("topic-with-a-long-name-{n:08}"), 4, 6);
            (config.name.clone(), registered_topic(config, 6))
        };
        RegisterBrokerBody {
            topic_config_serialize_wrapper: TopicConfigSerializeWrapper {
                topic_config_table: (0..topics).map(config).collect(),
                ..TopicConfigSerializeWrapper::default()
            },
            ..RegisterBrokerBody::default()
        }
    }

    #[test]
    fn a_registration_that_fits_no_frame_is_sent_compressed() {
        let small = body(10);
        let plain = serde_json::to_vec(&small).expect("JSON");
        let sent = packed(&small, plain.clone(), false).expect("fits");
        assert_eq!(sent, (plain.clone(), false));
        assert!(packed(&small, plain, true).expect("fits").1);
        let large = body(100_000);
        let plain = serde_json::to_vec(&large).expect("JSON");
        assert!(plain.len() > MAX_FRAME, "{} bytes", plain.len());
        let (bytes, compressed) = packed(&large, plain, false).expect("fits compressed");
        assert!(
            compressed && bytes.len() <= MAX_BODY,
            "{} bytes",
            bytes.len()
        );
    }

    #[test]
    fn a_registration_that_fits_no_frame_even_compressed_names_the_reason() {
        let error = ExchangeError::TooLarge(20_000_000).to_string();
        assert!(
            error.contains("20000000 bytes") && error.contains("remove topics"),
            "{error}"
        );
    }
}
