//! Reads the topics from their state file (docs/format.md, State files).

use std::borrow::Cow;

use serde_json::Value;

use super::TopicConfig;
use crate::names;
use crate::state_json::{DataVersion, Generation};
use crate::state_members::{Expected, sound_members};

/// Members of a topic in the state file that are judged before they are used.
const MEMBERS: [(&str, Expected); 5] = [
    ("readQueueNums", Expected::Queues),
    ("writeQueueNums", Expected::Queues),
    ("perm", Expected::Int),
    ("topicSysFlag", Expected::Int),
    ("order", Expected::Flag),
];

/// What the state file held.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) version: DataVersion,
    pub(super) generation: Generation,
    pub(super) topics: Vec<TopicConfig>,
}

/// Reads `topics.json`; entries and members that cannot be used are named and left out.
pub(super) fn parse(bytes: &[u8]) -> Result<Loaded, String> {
    let root: Value = saturnmq_net::fastjson::from_file(bytes).map_err(|e| e.to_string())?;
    let table = root
        .get("topicConfigTable")
        .and_then(Value::as_object)
        .ok_or("it has no topicConfigTable")?;
    let topics = table
        .iter()
        .filter(|(name, _)| {
            let known = names::is_storable(name);
            if !known {
                tracing::warn!(
                    "topics.json: the name {name:?} is not legal, that topic is left out"
                );
            }
            known
        })
        .map(|(name, value)| {
            let (sound, wrong) = sound_members(name, value, &MEMBERS);
            for wrong in wrong {
                tracing::warn!("topics.json: topic {wrong}");
            }
            TopicConfig::read(name, &with_both_counts(name, value, sound))
        })
        .collect();
    Ok(Loaded {
        version: DataVersion::read(root.get("dataVersion")),
        generation: Generation::of(root.get("dataVersion")),
        topics,
    })
}

/// Where one of the two numbers of queues cannot be used, the other one stands for both: what is
/// sent to more queues than are read is read by nobody.
fn with_both_counts<'a>(name: &str, said: &Value, mut sound: Cow<'a, Value>) -> Cow<'a, Value> {
    let [read, write] = ["readQueueNums", "writeQueueNums"];
    for (left_out, other) in [(read, write), (write, read)] {
        let is_left_out = said.get(left_out).is_some_and(|value| !value.is_null());
        if is_left_out
            && sound.get(left_out).is_none()
            && let Some(queues) = sound.get(other).cloned()
            && let Value::Object(members) = sound.to_mut()
        {
            tracing::warn!("topics.json: topic {name:?}: {left_out}={queues} is used, as {other}");
            members.insert(left_out.to_owned(), queues);
        }
    }
    sound
}
