//! Topics: codes 17, 18, 21, 215, 351 (docs/protocol.md, "Names and permissions").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::headers;

/// `perm` bit: consumers may read.
pub const PERM_READ: i32 = 4;
/// `perm` bit: producers may write.
pub const PERM_WRITE: i32 = 2;
/// `perm` bit: the topic is a template for automatic creation.
pub const PERM_INHERIT: i32 = 1;

headers! {
    /// Creates or changes a topic (17).
    CreateTopic<'a> {
        topic: &'a str = "topic",
        default_topic: Option<&'a str> = "defaultTopic",
        read_queue_nums: i32 = "readQueueNums",
        write_queue_nums: i32 = "writeQueueNums",
        perm: i32 = "perm",
        /// `SINGLE_TAG` or `MULTI_TAG`.
        topic_filter_type: Option<&'a str> = "topicFilterType",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        order: bool = "order",
        /// `+key=value,-key`.
        attributes: Option<&'a str> = "attributes",
        force: Option<bool> = "force",
    }

    /// Names a topic: 215, 202, 300, 351, 217.
    TopicName<'a> {
        topic: &'a str = "topic",
    }

    /// Names a topic and a group: 303, 345, 353.
    TopicAndGroup<'a> {
        group: &'a str = "group",
        topic: Option<&'a str> = "topic",
        readable: Option<bool> = "readable",
    }

    /// Asks for all topics of a broker (21); older clients send no fields.
    GetAllTopicConfig<'a> {
        topic_seq: Option<i32> = "topicSeq",
        data_version: Option<&'a str> = "dataVersion",
        max_topic_num: Option<i32> = "maxTopicNum",
    }
}

/// Which tags a message of a topic may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TopicFilterType {
    /// One.
    #[default]
    SingleTag,
    /// Several.
    MultiTag,
}

impl TopicFilterType {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            TopicFilterType::SingleTag => "SINGLE_TAG",
            TopicFilterType::MultiTag => "MULTI_TAG",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [TopicFilterType::SingleTag, TopicFilterType::MultiTag]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// What a broker knows of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfig {
    /// Further settings by key.
    pub attributes: BTreeMap<String, String>,
    /// Order of messages matters.
    pub order: bool,
    /// See the `PERM_` bits.
    pub perm: i32,
    /// Queues that are read.
    pub read_queue_nums: i32,
    /// Which tags messages have.
    pub topic_filter_type: TopicFilterType,
    /// Name of the topic.
    pub topic_name: String,
    /// Bits: 1 unit, 2 has unit subscribers.
    pub topic_sys_flag: i32,
    /// Queues that are written.
    pub write_queue_nums: i32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        TopicConfig {
            attributes: BTreeMap::new(),
            order: false,
            perm: PERM_READ | PERM_WRITE,
            read_queue_nums: 16,
            topic_filter_type: TopicFilterType::SingleTag,
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

/// Tells a changed table from an unchanged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVersion {
    /// Number of changes.
    pub counter: i64,
    /// Number of role changes.
    pub state_version: i64,
    /// Time of the last change, in ms since 1970.
    pub timestamp: i64,
}

/// All topics of a broker: body of the answer to 21 and part of that of 103.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigSerializeWrapper {
    /// Version of the table.
    pub data_version: DataVersion,
    /// Version of the static topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping_data_version: Option<DataVersion>,
    /// Topics by name.
    pub topic_config_table: BTreeMap<String, TopicConfig>,
    /// Static topics, as they were sent.
    pub topic_queue_mapping_detail_map: BTreeMap<String, Value>,
    /// Static topics, as they were sent.
    pub topic_queue_mapping_info_map: BTreeMap<String, Value>,
}

/// Body of 18.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigList {
    /// The topics.
    pub topic_config_list: Vec<TopicConfig>,
}
