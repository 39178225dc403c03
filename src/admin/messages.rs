//! `saturnmq admin send` and `query`, and how messages are shown.

use std::io::Read as _;
use std::sync::atomic::{AtomicU32, Ordering};

use chrono::{Local, TimeZone as _};
use flate2::read::ZlibDecoder;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::query::{QueryMessage, ViewMessage};
use saturnmq_net::messages::send::{SYS_FLAG_COMPRESSED, SendRequest};
use saturnmq_storage::format::message_id::MessageId;
use saturnmq_storage::format::properties::{
    NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, names as property,
};
use saturnmq_storage::format::record::Record;
use serde_json::{Map, Value, json};

use super::cluster::{Cluster, RoutedQueue, masters_of, queues_of};
use super::{AdminError, Output, on_one_line};
use crate::names;
use crate::state_json::now_ms;

/// Producer group of what is sent.
const GROUP: &str = "SATURNMQ_ADMIN";
/// Queues of a topic that a send makes.
const NEW_TOPIC_QUEUES: i32 = 4;
/// Largest body that is shown decompressed, in bytes.
const MAX_BODY: u64 = 16 << 20;
/// Most messages asked for by key.
const MAX_FOUND: i32 = 64;

/// A message to send.
#[derive(Debug, Clone, Default)]
pub struct NewMessage<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Body.
    pub body: Vec<u8>,
    /// Tag.
    pub tag: Option<&'a str>,
    /// Keys.
    pub keys: Vec<String>,
    /// Queue; any if absent.
    pub queue: Option<i32>,
    /// Delay level.
    pub delay_level: Option<u32>,
    /// Further properties.
    pub properties: Vec<(String, String)>,
}

impl NewMessage<'_> {
    fn property_text(&self, id: &str) -> Result<String, AdminError> {
        let mut pairs = vec![(property::UNIQUE_KEY, id.to_owned())];
        pairs.push((property::WAIT, "true".to_owned()));
        if let Some(tag) = self.tag {
            pairs.push((property::TAGS, tag.to_owned()));
        }
        if !self.keys.is_empty() {
            pairs.push((property::KEYS, self.keys.join(" ")));
        }
        if let Some(level) = self.delay_level {
            pairs.push((property::DELAY, level.to_string()));
        }
        let more = self.properties.iter();
        pairs.extend(more.map(|(name, value)| (name.as_str(), value.clone())));
        let mut text = String::new();
        for (name, value) in pairs {
            let separator = |c: char| {
                c == char::from(NAME_VALUE_SEPARATOR) || c == char::from(PROPERTY_SEPARATOR)
            };
            if name.is_empty() || name.contains(separator) || value.contains(separator) {
                let sentence = format!("property {name:?} holds a character that ends properties");
                return Err(AdminError::Impossible(sentence));
            }
            text.push_str(name);
            text.push(char::from(NAME_VALUE_SEPARATOR));
            text.push_str(&value);
            text.push(char::from(PROPERTY_SEPARATOR));
        }
        Ok(text)
    }
}

/// A client-side message id, as long as Apache's: 32 hexadecimal digits.
fn unique_id() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    format!("{pid:08X}{:016X}{count:08X}", now_ms())
}

/// Sends a message and shows where it is stored.
///
/// # Errors
/// [`AdminError`].
pub fn send(
    cluster: &mut Cluster,
    message: &NewMessage<'_>,
    to: &mut Output<'_>,
) -> Result<(), AdminError> {
    let target = target(cluster, message)?;
    let id = unique_id();
    let properties = message.property_text(&id)?;
    let send = SendRequest {
        producer_group: GROUP,
        topic: message.topic,
        default_topic: names::AUTO_CREATE_TOPIC,
        default_topic_queue_nums: NEW_TOPIC_QUEUES,
        queue_id: target.queue_id,
        born_timestamp: now_ms(),
        properties: &properties,
        ..SendRequest::default()
    };
    let code = request::SEND_MESSAGE_V2;
    let fields = |out: &mut saturnmq_net::encode::Encoder<'_>| send.encode_fields(code, out);
    let answer = cluster.ask_broker(&target.address, code, fields, &message.body)?;
    let text = |name: &str| answer.get(name).unwrap_or_default().to_owned();
    let (queue, offset, stored) = (text("queueId"), text("queueOffset"), text("msgId"));
    if to.json {
        return to.value(&json!({
            "id": id,
            "offsetId": stored,
            "topic": message.topic,
            "broker": target.broker,
            "queue": queue.parse::<i32>().ok(),
            "offset": offset.parse::<i64>().ok(),
        }));
    }
    if let Some(level) = message.delay_level.filter(|level| *level > 0) {
        return to.line(&format!(
            "stored for {} on {}, delayed by level {level}, id {id}, offset id {stored}",
            message.topic, target.broker
        ));
    }
    to.line(&format!(
        "stored in {} queue {queue} at {offset} on {}, id {id}, offset id {stored}",
        message.topic, target.broker
    ))
}

/// The queue to send to: the one asked for, or any one of the topic or its template.
fn target(cluster: &mut Cluster, message: &NewMessage<'_>) -> Result<RoutedQueue, AdminError> {
    let mut queues = match cluster.route(message.topic)? {
        Some(route) => queues_of(&route, true),
        None => template_queues(cluster, message.topic)?,
    };
    if let Some(wanted) = message.queue {
        queues.retain(|queue| queue.queue_id == wanted);
    }
    if queues.is_empty() {
        let which = message
            .queue
            .map_or_else(String::new, |id| format!(" {id}"));
        let sentence = format!("topic {} has no queue{which} to write to", message.topic);
        return Err(AdminError::Impossible(sentence));
    }
    let any = now_ms().unsigned_abs() as usize % queues.len();
    Ok(queues.swap_remove(any))
}

/// The queues that a topic will have when its first message makes it.
fn template_queues(cluster: &mut Cluster, topic: &str) -> Result<Vec<RoutedQueue>, AdminError> {
    let Some(route) = cluster.route(names::AUTO_CREATE_TOPIC)? else {
        let sentence = format!("topic {topic} does not exist and no broker may make it");
        return Err(AdminError::Impossible(sentence));
    };
    let mut queues = queues_of(&route, true);
    queues.retain(|queue| queue.queue_id < NEW_TOPIC_QUEUES);
    Ok(queues)
}

/// Shows the messages of a topic that have a key.
///
/// # Errors
/// [`AdminError`]; also when there is none.
pub fn by_key(
    cluster: &mut Cluster,
    topic: &str,
    key: &str,
    to: &mut Output<'_>,
) -> Result<(), AdminError> {
    let found = query(cluster, topic, key, false)?;
    let shown = show_all(&found, to, |record| {
        record.properties().keys().any(|k| k == key.as_bytes())
    })?;
    if shown == 0 {
        let sentence = format!("no message of {topic} has the key {key}");
        return Err(AdminError::Impossible(sentence));
    }
    Ok(())
}

/// Shows the message with an id: one that its client gave it, or an offset message id.
///
/// # Errors
/// [`AdminError`]; also when there is none.
pub fn by_id(
    cluster: &mut Cluster,
    topic: &str,
    id: &str,
    to: &mut Output<'_>,
) -> Result<(), AdminError> {
    let found = query(cluster, topic, id, true)?;
    let is_it = |record: &Record<'_>| {
        let unique = record.properties().get(property::UNIQUE_KEY);
        unique == Some(id.as_bytes()) || record.message_id().as_str() == id
    };
    if show_all(&found, to, is_it)? > 0 {
        return Ok(());
    }
    let missing = || AdminError::Impossible(format!("{topic} has no message with the id {id}"));
    let (_, offset) = MessageId::parse(id).ok_or_else(missing)?;
    let asked = ViewMessage {
        offset: i64::try_from(offset).map_err(|_| missing())?,
        topic: Some(topic),
    };
    // The address in the id is not connected to: it may be anybody's.
    let route = cluster.known_route(topic)?;
    for address in masters_of(&route) {
        let code = request::VIEW_MESSAGE_BY_ID;
        let fields = |out: &mut saturnmq_net::encode::Encoder<'_>| asked.encode_fields(out);
        let answer = cluster.try_broker(&address, code, fields, &[])?;
        if answer.code == response::SUCCESS && show_all(&answer.body, to, is_it)? > 0 {
            return Ok(());
        }
    }
    Err(missing())
}

/// The records that a topic's brokers find under a key, one after the other.
fn query(
    cluster: &mut Cluster,
    topic: &str,
    key: &str,
    unique: bool,
) -> Result<Vec<u8>, AdminError> {
    let route = cluster.known_route(topic)?;
    let asked = QueryMessage {
        topic,
        key,
        max_num: MAX_FOUND,
        begin_timestamp: 0,
        end_timestamp: i64::MAX,
        unique_key: unique,
    };
    let mut records = Vec::new();
    for address in masters_of(&route) {
        let code = request::QUERY_MESSAGE;
        let fields = |out: &mut saturnmq_net::encode::Encoder<'_>| asked.encode_fields(out);
        let answer = cluster.try_broker(&address, code, fields, &[])?;
        match answer.code {
            response::SUCCESS => records.extend_from_slice(&answer.body),
            response::QUERY_NOT_FOUND => {}
            code => {
                return Err(AdminError::Refused {
                    server: address,
                    request: request::QUERY_MESSAGE,
                    code,
                    remark: answer.remark.unwrap_or_default(),
                });
            }
        }
    }
    Ok(records)
}

/// The records that stand one after the other in the body of an answer.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, AdminError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        match Record::decode(bytes) {
            Ok(record) => {
                bytes = bytes.get(record.size() as usize..).unwrap_or_default();
                Some(Ok(record))
            }
            Err(error) => {
                bytes = &[];
                let sentence = format!("the broker sent a message that cannot be read: {error}");
                Some(Err(AdminError::Impossible(sentence)))
            }
        }
    })
}

/// Shows the records that `wanted` picks; how many.
fn show_all(
    bytes: &[u8],
    to: &mut Output<'_>,
    wanted: impl Fn(&Record<'_>) -> bool,
) -> Result<usize, AdminError> {
    let mut shown = 0;
    for record in records(bytes) {
        let record = record?;
        if wanted(&record) {
            show(&record, to)?;
            shown += 1;
        }
    }
    Ok(shown)
}

/// Local time of milliseconds since the epoch.
pub fn local_time(ms: i64) -> String {
    match Local.timestamp_millis_opt(ms).earliest() {
        Some(time) => time.format("%Y-%m-%d %H:%M:%S%.3f").to_string(),
        None => ms.to_string(),
    }
}

/// A body for showing: decompressed where that is possible.
enum Body {
    Bytes(Vec<u8>),
    /// Not decompressed: how it is compressed.
    Packed(&'static str),
}

fn body_of(record: &Record<'_>) -> Body {
    let flags = record.sys_flag();
    if flags & SYS_FLAG_COMPRESSED == 0 {
        return Body::Bytes(record.body().to_vec());
    }
    // Bits 8 to 10 name the method; old clients leave them 0 and mean zlib.
    match flags >> 8 & 7 {
        1 => Body::Packed("LZ4"),
        2 => Body::Packed("ZSTD"),
        _ => {
            let mut bytes = Vec::new();
            let mut decoder = ZlibDecoder::new(record.body()).take(MAX_BODY);
            match decoder.read_to_end(&mut bytes) {
                Ok(_) => Body::Bytes(bytes),
                Err(_) => Body::Packed("unknown"),
            }
        }
    }
}

/// Shows one message: a JSON object, or lines for people.
///
/// # Errors
/// The stream's.
pub fn show(record: &Record<'_>, to: &mut Output<'_>) -> Result<(), AdminError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let properties: Map<String, Value> = record
        .properties()
        .iter()
        .map(|(name, value)| (text(name), Value::String(text(value))))
        .collect();
    let (body, packed) = match body_of(record) {
        Body::Bytes(bytes) => (bytes, None),
        Body::Packed(method) => (record.body().to_vec(), Some(method)),
    };
    let readable = match packed {
        None => String::from_utf8(body.clone()).ok(),
        Some(_) => None,
    };
    if to.json {
        let mut shown = json!({
            "topic": record.topic(),
            "queue": record.queue_id(),
            "offset": record.queue_offset(),
            "offsetId": record.message_id().as_str(),
            "storedMs": record.store_timestamp(),
            "bornMs": record.born_timestamp(),
            "bornHost": record.born_host().to_string(),
            "reconsumeTimes": record.reconsume_times(),
            "properties": properties,
        });
        match (readable, packed) {
            (Some(text), _) => shown["body"] = text.into(),
            (None, Some(method)) => {
                shown["compression"] = method.into();
                shown["bodyHex"] = hex(&body).into();
            }
            (None, None) => shown["bodyHex"] = hex(&body).into(),
        }
        return to.value(&shown);
    }
    let value = |name: &str| properties.get(name).and_then(Value::as_str);
    let mut line = format!(
        "{} {}:{} {}",
        local_time(record.store_timestamp()),
        record.queue_id(),
        record.queue_offset(),
        on_one_line(value(property::UNIQUE_KEY).unwrap_or("-"))
    );
    for (label, name) in [("tag", property::TAGS), ("keys", property::KEYS)] {
        if let Some(value) = value(name) {
            line.push_str(&format!(" {label}={}", on_one_line(value)));
        }
    }
    line.push_str("  ");
    match (readable, packed) {
        (Some(text), _) => line.push_str(&on_one_line(&text)),
        (None, Some(method)) => {
            line.push_str(&format!("<{} bytes, {method} compressed>", body.len()));
        }
        (None, None) => line.push_str(&format!("<{} bytes>", body.len())),
    }
    to.line(&line)
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_shown_without_what_moves_a_cursor() {
        assert_eq!(on_one_line("a\tb\n\u{1b}[2J"), "a\tb\\n\\u{1b}[2J");
        assert_eq!(hex(&[0, 0xab, 0xff]), "00abff");
    }

    #[test]
    fn ids_are_as_long_as_apaches_and_differ() {
        let (one, other) = (unique_id(), unique_id());
        assert_eq!((one.len(), other.len()), (32, 32));
        assert_ne!(one, other);
    }

    #[test]
    fn properties_with_separators_are_refused() {
        let mut message = NewMessage {
            tag: Some("A"),
            keys: vec!["k1".into(), "k2".into()],
            ..NewMessage::default()
        };
        let text = message.property_text("U").expect("legal");
        assert_eq!(
            text,
            "UNIQ_KEY\u{1}U\u{2}WAIT\u{1}true\u{2}TAGS\u{1}A\u{2}KEYS\u{1}k1 k2\u{2}"
        );
        message.properties.push(("a".into(), "b\u{2}c".into()));
        assert!(message.property_text("U").is_err());
    }

    #[test]
    fn garbage_from_a_broker_is_an_error_and_no_endless_loop() {
        let outcomes: Vec<_> = records(&[1, 2, 3]).collect();
        assert_eq!(outcomes.len(), 1);
        assert!(outcomes[0].is_err());
    }
}
