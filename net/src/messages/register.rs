//! Brokers at a name server: codes 103, 104, 322 (docs/protocol.md, "Request codes").

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::headers;
use super::topic::{TopicConfig, TopicConfigSerializeWrapper, TopicFilterType};
use crate::fastjson::{self, BodyError};

/// First version whose compressed bodies have attributes of topics and a part about static topics;
/// earlier ones refuse them.
const VERSION_5: i32 = 413;

/// Largest size of a compressed body after inflation, in bytes.
const MAX_INFLATED: u64 = 64 * 1024 * 1024;

headers! {
    /// A broker registers (103).
    RegisterBroker<'a> {
        broker_name: &'a str = "brokerName",
        /// `ip:port`.
        broker_addr: &'a str = "brokerAddr",
        cluster_name: &'a str = "clusterName",
        ha_server_addr: &'a str = "haServerAddr",
        broker_id: i64 = "brokerId",
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMillis",
        enable_acting_master: Option<bool> = "enableActingMaster",
        compressed: Option<bool> = "compressed",
        /// 0: not to be checked; else as [`body_crc32`] says.
        body_crc32: Option<i32> = "bodyCrc32",
    }

    /// The answer to 103.
    RegisterBrokerResponse<'a> {
        ha_server_addr: Option<&'a str> = "haServerAddr",
        master_addr: Option<&'a str> = "masterAddr",
    }

    /// A broker leaves (104) or asks whether its topics are known (322).
    BrokerIdentity<'a> {
        broker_name: &'a str = "brokerName",
        broker_addr: &'a str = "brokerAddr",
        cluster_name: &'a str = "clusterName",
        broker_id: i64 = "brokerId",
    }

    /// The answer to 322.
    QueryDataVersionResponse {
        changed: bool = "changed",
    }
}

/// The checksum of a registration's body as `bodyCrc32` holds it.
pub fn body_crc32(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7fff_ffff) as i32
}

/// Body of 103.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RegisterBrokerBody {
    /// Obsolete.
    pub filter_server_list: Vec<String>,
    /// The broker's topics.
    pub topic_config_serialize_wrapper: TopicConfigSerializeWrapper,
}

impl RegisterBrokerBody {
    /// Reads a body, compressed or not; an absent one is an empty table.
    pub fn decode(body: &[u8], compressed: bool) -> Result<Self, BodyError> {
        match (body.is_empty(), compressed) {
            (true, _) => Ok(RegisterBrokerBody::default()),
            (false, false) => fastjson::from_slice(body),
            (false, true) => Self::decode_compressed(body),
        }
    }

    fn decode_compressed(body: &[u8]) -> Result<Self, BodyError> {
        let mut inflated = Vec::new();
        let mut decoder = ZlibDecoder::new(body).take(MAX_INFLATED + 1);
        decoder
            .read_to_end(&mut inflated)
            .map_err(|error| damaged(&error.to_string()))?;
        if inflated.len() as u64 > MAX_INFLATED {
            return Err(damaged("it inflates to more than 64 MiB"));
        }
        let mut parts = Parts(&inflated);
        let mut wrapper = TopicConfigSerializeWrapper {
            data_version: fastjson::from_slice(parts.part()?)?,
            ..TopicConfigSerializeWrapper::default()
        };
        for _ in 0..parts.number()? {
            let topic = topic_from_text(parts.part()?)?;
            wrapper
                .topic_config_table
                .insert(topic.topic_name.clone(), topic);
        }
        let filters = parts.part()?;
        let filter_server_list = if filters.is_empty() {
            Vec::new()
        } else {
            fastjson::from_slice(filters)?
        };
        // Brokers before 5.0 end here.
        let mappings = if parts.0.is_empty() {
            0
        } else {
            parts.number()?
        };
        for _ in 0..mappings {
            let mapping: Value = fastjson::parse(parts.part()?)?;
            if let Some(topic) = mapping.get("topic").and_then(Value::as_str) {
                wrapper
                    .topic_queue_mapping_info_map
                    .insert(topic.to_owned(), mapping.clone());
            }
        }
        Ok(RegisterBrokerBody {
            filter_server_list,
            topic_config_serialize_wrapper: wrapper,
        })
    }

    /// The body as it is sent with `compressed`, for a name server that takes this side for a
    /// broker of `version`.
    pub fn encode_compressed(&self, version: i32) -> Result<Vec<u8>, BodyError> {
        let wrapper = &self.topic_config_serialize_wrapper;
        let mut plain = Vec::new();
        push_json(&mut plain, &wrapper.data_version)?;
        push_number(&mut plain, wrapper.topic_config_table.len());
        for topic in wrapper.topic_config_table.values() {
            push_part(&mut plain, &topic_to_text(topic, version)?);
        }
        push_json(&mut plain, &self.filter_server_list)?;
        if version >= VERSION_5 {
            push_number(&mut plain, wrapper.topic_queue_mapping_info_map.len());
            for mapping in wrapper.topic_queue_mapping_info_map.values() {
                push_json(&mut plain, mapping)?;
            }
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        let written = encoder.write_all(&plain).and_then(|()| encoder.finish());
        written.map_err(|error| damaged(&error.to_string()))
    }
}

fn damaged(why: &str) -> BodyError {
    BodyError::Unusable(format!("damaged compressed registration: {why}"))
}

/// Reads numbers and parts with a length from the front.
struct Parts<'b>(&'b [u8]);

impl<'b> Parts<'b> {
    fn number(&mut self) -> Result<usize, BodyError> {
        let (number, rest) = self
            .0
            .split_first_chunk::<4>()
            .ok_or_else(|| damaged("too short"))?;
        self.0 = rest;
        usize::try_from(i32::from_be_bytes(*number)).map_err(|_| damaged("negative length"))
    }

    fn part(&mut self) -> Result<&'b [u8], BodyError> {
        let length = self.number()?;
        let (part, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| damaged("too short"))?;
        self.0 = rest;
        Ok(part)
    }
}

fn push_number(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_be_bytes());
}

fn push_part(out: &mut Vec<u8>, part: &[u8]) {
    push_number(out, part.len());
    out.extend_from_slice(part);
}

fn push_json<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<(), BodyError> {
    let mut json = Vec::new();
    fastjson::write(&mut json, value)?;
    push_part(out, &json);
    Ok(())
}

/// `name read write perm filterType attributes`, attributes only from 5.0 on.
fn topic_from_text(text: &[u8]) -> Result<TopicConfig, BodyError> {
    let text = std::str::from_utf8(text).map_err(|_| BodyError::NotUtf8)?;
    let mut words = text.splitn(6, ' ');
    let mut word = || {
        words
            .next()
            .ok_or_else(|| damaged("a topic without all of its parts"))
    };
    let number = |word: &str| {
        word.parse()
            .map_err(|_| damaged("a topic's number is none"))
    };
    let topic_name = word()?.to_owned();
    let read_queue_nums = number(word()?)?;
    let write_queue_nums = number(word()?)?;
    let perm = number(word()?)?;
    let topic_filter_type = TopicFilterType::from_name(word()?).unwrap_or_default();
    let attributes = words
        .next()
        .filter(|text| !text.is_empty() && *text != "null");
    Ok(TopicConfig {
        attributes: attributes
            .map(fastjson::from_str)
            .transpose()?
            .unwrap_or_default(),
        perm,
        read_queue_nums,
        topic_filter_type,
        topic_name,
        write_queue_nums,
        ..TopicConfig::default()
    })
}

fn topic_to_text(topic: &TopicConfig, version: i32) -> Result<Vec<u8>, BodyError> {
    let TopicConfig {
        topic_name,
        read_queue_nums,
        write_queue_nums,
        perm,
        ..
    } = topic;
    let filter = topic.topic_filter_type.name();
    let mut text = format!("{topic_name} {read_queue_nums} {write_queue_nums} {perm} {filter}");
    if version >= VERSION_5 {
        let attributes = serde_json::to_string(&topic.attributes).map_err(BodyError::custom)?;
        // Apache cuts the text at every blank, also at one inside an attribute.
        text.push(' ');
        text.push_str(&attributes.replace(' ', "\\u0020"));
    }
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Topics T1 (3 read, 4 write queues, `message.type` FIFO) and T2, filter server f:1; written
    /// by Apache RocketMQ 5.3.3.
    const BY_5_3_3: &str = concat!(
        "78da636060b0a8564ace2fcd2b492d52b232d0512a2e492c490d4b2d2acecccf030b9464e6a60205730b",
        "94ac0ccd2dcd0c0c2c0c2c4c0d0c0d6a1918189880583bc450c158c144c14c21d8d3cfddc7353ec4d15d",
        "a15a09a8a938313d55afa4b22055c94ac9cdd3cd5f09a44522c448c1d00c84503580e4d8a395d2ac0c95",
        "62814c06008ed62685",
    );
    /// The same without the attribute; written by Apache RocketMQ 4.9.7.
    const BY_4_9_7: &str = concat!(
        "78da63606050af564ace2fcd2b492d52b232d0512ac9cc4d2d2e49cc2d50b23234b7343330b030b03035",
        "b634ac656060600262e1104305630513053385604f3f771fd7f8104777a0b068889182a11908a149b047",
        "2ba559192ac5020041b71799",
    );

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let pairs = hexadecimal.as_bytes().chunks(2);
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16);
        pairs
            .map(|digits| pair(digits).expect("two digits"))
            .collect()
    }

    #[test]
    fn compressed_bodies_of_apache_are_read() {
        for (body, attributes) in [(BY_5_3_3, 1), (BY_4_9_7, 0)] {
            let body = RegisterBrokerBody::decode(&bytes(body), true).expect("Apache's body");
            assert_eq!(body.filter_server_list, ["f:1"]);
            let topics = body.topic_config_serialize_wrapper.topic_config_table;
            let first = &topics["T1"];
            assert_eq!(
                (first.read_queue_nums, first.write_queue_nums, first.perm),
                (3, 4, 6)
            );
            assert_eq!(first.attributes.len(), attributes);
            assert_eq!(topics["T2"].write_queue_nums, 16);
        }
    }

    #[test]
    fn compressed_bodies_are_read_back_but_for_what_old_ones_lack() {
        let mut topic = TopicConfig {
            topic_name: "T".into(),
            ..TopicConfig::default()
        };
        topic
            .attributes
            .insert("with a blank".into(), "and another".into());
        let mut body = RegisterBrokerBody::default();
        let table = &mut body.topic_config_serialize_wrapper.topic_config_table;
        table.insert("T".into(), topic);
        let new = body.encode_compressed(479).expect("a body");
        assert_eq!(RegisterBrokerBody::decode(&new, true).as_ref(), Ok(&body));
        let old = body.encode_compressed(399).expect("a body");
        let old = RegisterBrokerBody::decode(&old, true).expect("a body");
        assert!(
            old.topic_config_serialize_wrapper.topic_config_table["T"]
                .attributes
                .is_empty()
        );
    }

    #[test]
    fn absent_bodies_are_empty_and_broken_ones_errors() {
        assert_eq!(
            RegisterBrokerBody::decode(b"", true),
            Ok(RegisterBrokerBody::default())
        );
        let whole = bytes(BY_5_3_3);
        for end in 1..whole.len() {
            assert!(
                RegisterBrokerBody::decode(&whole[..end], true).is_err(),
                "{end}"
            );
        }
    }
}
