//! Brokers at a name server: codes 103, 104, 322 (docs/protocol.md, "Request codes").

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::headers;
use super::topic::{TopicConfig, TopicConfigSerializeWrapper, TopicFilterType};
use crate::fastjson::{self, BodyError};

/// First version whose compressed bodies have a part about static topics.
const VERSION_WITH_MAPPINGS: i32 = 413;

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
        compressed: bool = "compressed",
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
            push_part(&mut plain, &topic_to_text(topic)?);
        }
        push_json(&mut plain, &self.filter_server_list)?;
        if version >= VERSION_WITH_MAPPINGS {
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

fn topic_to_text(topic: &TopicConfig) -> Result<Vec<u8>, BodyError> {
    let TopicConfig {
        topic_name,
        read_queue_nums,
        write_queue_nums,
        perm,
        ..
    } = topic;
    let filter = topic.topic_filter_type.name();
    let head = format!("{topic_name} {read_queue_nums} {write_queue_nums} {perm} {filter} ");
    let mut text = head.into_bytes();
    fastjson::write(&mut text, &topic.attributes)?;
    Ok(text)
}
