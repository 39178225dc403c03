//! JSON bodies as fastjson reads and writes them (docs/protocol.md, "JSON dialect").
//!
//! Read: names without quotes or in single quotes, numbers as names, objects as names (kept as
//! their compact text), stray commas; then, on the way into Rust types, numbers in quotes, text
//! that is a number, enums by name or by number, and nulls as if absent. Written: compact JSON;
//! maps whose keys are objects by [`write_object_map`], because no JSON library writes those.

use serde::Serialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use crate::error::HeaderError;
use crate::frame::MAX_FRAME;
use crate::header::lexer::{Lexer, MAX_DEPTH, Scalar};

/// Most values a body may consist of: more than the topics that fit a frame take.
const MAX_VALUES: usize = 1_000_000;
/// Most values of a request that any client makes, again and again.
const MAX_CLIENT_VALUES: usize = 200_000;

/// Why a body cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BodyError {
    /// The body is not UTF-8.
    #[error("the body is not UTF-8 text")]
    NotUtf8,
    /// The body is longer than a frame.
    #[error("a body of {size} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The body consists of more values than are read.
    #[error("the body has more than {limit} values")]
    TooManyValues {
        /// The limit in values.
        limit: usize,
    },
    /// Values are nested deeper than the reader follows.
    #[error("the body is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit in levels.
        limit: usize,
    },
    /// The JSON text is broken.
    #[error("broken JSON in the body at byte {at}: expected {expected}")]
    Syntax {
        /// Offset in the body, in bytes.
        at: usize,
        /// What would have been right.
        expected: &'static str,
    },
    /// Good JSON, but not what the request's body should be; also a compressed body that is
    /// damaged.
    #[error("unusable body: {0}")]
    Unusable(String),
}

impl serde::de::Error for BodyError {
    fn custom<T: std::fmt::Display>(text: T) -> Self {
        BodyError::Unusable(text.to_string())
    }
}

impl From<HeaderError> for BodyError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Syntax { at, expected } => BodyError::Syntax { at, expected },
            HeaderError::TooDeep { limit } => BodyError::TooDeep { limit },
            other => BodyError::Unusable(other.to_string()),
        }
    }
}

/// Reads a body into a type.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyError> {
    T::deserialize(Lenient(parse(bytes)?))
}

/// Reads the body of a request of an ordinary client into a type: it may not be large, because
/// others wait while it is read.
pub fn from_client<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyError> {
    T::deserialize(Lenient(parse_within(bytes, MAX_FRAME, MAX_CLIENT_VALUES)?))
}

/// Reads a text into a type.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, BodyError> {
    from_slice(text.as_bytes())
}

/// Reads a file of ours into a type: it may be larger than any body.
pub fn from_file<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyError> {
    T::deserialize(Lenient(parse_within(bytes, u32::MAX as usize, usize::MAX)?))
}

/// Reads a body as a tree of values. Objects as keys become their compact text.
pub fn parse(bytes: &[u8]) -> Result<Value, BodyError> {
    parse_within(bytes, MAX_FRAME, MAX_VALUES)
}

fn parse_within(bytes: &[u8], limit: usize, most_values: usize) -> Result<Value, BodyError> {
    if bytes.len() > limit {
        return Err(BodyError::TooLarge {
            size: bytes.len(),
            limit,
        });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| BodyError::NotUtf8)?;
    let mut parser = Parser {
        text,
        lexer: Lexer::new(text),
        buffer: String::new(),
        values: 0,
        most_values,
    };
    let value = parser.value(0)?;
    match parser.lexer.peek() {
        None => Ok(value),
        Some(_) => Err(parser.lexer.expected("nothing behind the value").into()),
    }
}

/// Appends a value as compact JSON.
///
/// Fails only for types that JSON cannot express; none of this crate's bodies is one.
pub fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), BodyError> {
    serde_json::to_writer(out, value).map_err(BodyError::custom)
}

/// Appends a map whose keys are objects the way fastjson writes it: `{{…}:…,{…}:…}`.
pub fn write_object_map<K: Serialize, V: Serialize>(
    out: &mut Vec<u8>,
    entries: impl IntoIterator<Item = (K, V)>,
) -> Result<(), BodyError> {
    out.push(b'{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, &key)?;
        out.push(b':');
        write(out, &value)?;
    }
    out.push(b'}');
    Ok(())
}

struct Parser<'t> {
    text: &'t str,
    lexer: Lexer<'t>,
    /// Unescaped text of the word at hand.
    buffer: String,
    values: usize,
    most_values: usize,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, BodyError> {
        if depth > MAX_DEPTH {
            return Err(BodyError::TooDeep { limit: MAX_DEPTH });
        }
        self.values += 1;
        if self.values > self.most_values {
            return Err(BodyError::TooManyValues {
                limit: self.most_values,
            });
        }
        match self.lexer.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            _ => self.scalar(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, BodyError> {
        self.lexer.require(b'{', "an object")?;
        let mut members = Map::new();
        loop {
            self.lexer.skip_commas();
            if self.lexer.take(b'}') {
                return Ok(Value::Object(members));
            }
            let name = self.name(depth)?;
            let value = self.value(depth + 1)?;
            members.insert(name, value);
            self.lexer.end_of_member(b'}')?;
        }
    }

    fn name(&mut self, depth: usize) -> Result<String, BodyError> {
        if matches!(self.lexer.peek(), Some(b'{' | b'[')) {
            let key = self.value(depth + 1)?;
            self.lexer.require(b':', "a colon")?;
            return Ok(key.to_string());
        }
        self.buffer.clear();
        let name = self.lexer.name(&mut self.buffer)?;
        Ok(name.text(self.text, &self.buffer).to_owned())
    }

    fn array(&mut self, depth: usize) -> Result<Value, BodyError> {
        self.lexer.require(b'[', "an array")?;
        let mut elements = Vec::new();
        loop {
            self.lexer.skip_commas();
            if self.lexer.take(b']') {
                return Ok(Value::Array(elements));
            }
            elements.push(self.value(depth + 1)?);
            self.lexer.end_of_member(b']')?;
        }
    }

    fn scalar(&mut self) -> Result<Value, BodyError> {
        self.buffer.clear();
        Ok(match self.lexer.scalar(&mut self.buffer)? {
            Scalar::Text(span) => Value::String(span.text(self.text, &self.buffer).to_owned()),
            Scalar::Number(span) => {
                let number = number(span.text(self.text, &self.buffer));
                Value::Number(number.ok_or_else(|| self.lexer.expected("a smaller number"))?)
            }
            Scalar::Bool(_, truth) => Value::Bool(truth),
            Scalar::Null => Value::Null,
        })
    }
}

fn number(text: &str) -> Option<Number> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    if let Ok(whole) = text.parse::<u64>() {
        return Some(whole.into());
    }
    Number::from_f64(text.parse().ok()?)
}

/// Turns values into Rust types as forgivingly as fastjson turns them into Java's.
struct Lenient(Value);

impl Lenient {
    fn whole(&self) -> Result<i64, BodyError> {
        let whole = match &self.0 {
            Value::Number(number) => whole(number),
            Value::String(text) if text.is_empty() => Some(0),
            Value::String(text) => text.trim().parse().ok(),
            Value::Bool(truth) => Some(i64::from(*truth)),
            _ => None,
        };
        whole.ok_or_else(|| self.wrong("a whole number"))
    }

    fn float(&self) -> Result<f64, BodyError> {
        let float = match &self.0 {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        float.ok_or_else(|| self.wrong("a number"))
    }

    fn truth(&self) -> Result<bool, BodyError> {
        match &self.0 {
            Value::Bool(truth) => Ok(*truth),
            Value::Number(number) => Ok(number.as_i64() == Some(1)),
            Value::String(text) => Ok(text.eq_ignore_ascii_case("true") || text == "1"),
            _ => Err(self.wrong("a truth value")),
        }
    }

    fn wrong(&self, expected: &str) -> BodyError {
        let kind = match &self.0 {
            Value::Null => "null",
            Value::Bool(_) => "a truth value",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        BodyError::Unusable(format!("{kind} where {expected} is expected"))
    }
}

/// A number without its fraction.
fn whole(number: &Number) -> Option<i64> {
    let float = || number.as_f64().filter(|float| float.abs() < 9.2e18);
    number
        .as_i64()
        .or_else(|| float().map(|float| float as i64))
}

macro_rules! whole_numbers {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
                visitor.visit_i64(self.whole()?)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Lenient {
    type Error = BodyError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(truth) => visitor.visit_bool(truth),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(whole), _) => visitor.visit_i64(whole),
                (None, Some(whole)) => visitor.visit_u64(whole),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(elements) => visitor.visit_seq(Elements(elements.into_iter())),
            Value::Object(members) => visitor.visit_map(Members {
                rest: members.into_iter(),
                value: None,
            }),
        }
    }

    whole_numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        visitor.visit_f64(self.float()?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        visitor.visit_f64(self.float()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        visitor.visit_bool(self.truth()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        match self.0 {
            Value::String(text) => visitor.visit_string(text),
            other => visitor.visit_string(other.to_string()),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        let variant = match &self.0 {
            Value::String(text) => variants.iter().find(|variant| *variant == text),
            Value::Number(number) => {
                let ordinal = number
                    .as_u64()
                    .and_then(|ordinal| usize::try_from(ordinal).ok());
                ordinal.and_then(|ordinal| variants.get(ordinal))
            }
            _ => None,
        };
        match variant {
            Some(variant) => visitor.visit_enum(Variant(variant)),
            None => Err(BodyError::Unusable(format!("{} is no {name}", self.0))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        char bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

/// The elements of an array; nulls are left out.
struct Elements(std::vec::IntoIter<Value>);

impl<'de> SeqAccess<'de> for Elements {
    type Error = BodyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, BodyError> {
        let element = self.0.by_ref().find(|element| !element.is_null());
        element
            .map(|element| seed.deserialize(Lenient(element)))
            .transpose()
    }
}

/// The members of an object; nulls are left out.
struct Members {
    rest: serde_json::map::IntoIter,
    value: Option<Value>,
}

impl<'de> MapAccess<'de> for Members {
    type Error = BodyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, BodyError> {
        let Some((name, value)) = self.rest.by_ref().find(|(_, value)| !value.is_null()) else {
            return Ok(None);
        };
        self.value = Some(value);
        seed.deserialize(Lenient(Value::String(name))).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, BodyError> {
        seed.deserialize(Lenient(self.value.take().unwrap_or_default()))
    }
}

/// A variant without content, by name.
struct Variant(&'static str);

impl<'de> EnumAccess<'de> for Variant {
    type Error = BodyError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), BodyError> {
        let name: StrDeserializer<'de, BodyError> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = BodyError;

    fn unit_variant(self) -> Result<(), BodyError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, BodyError> {
        Err(self.has_no_content())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, BodyError> {
        Err(self.has_no_content())
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, BodyError> {
        Err(self.has_no_content())
    }
}

impl Variant {
    fn has_no_content(&self) -> BodyError {
        BodyError::Unusable(format!("{} has no content", self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::messages::heartbeat::{ConsumeType, HeartbeatData, MessageModel};
    use crate::messages::lock::MessageQueue;
    use crate::messages::route::{BrokerData, QueueData, TopicRouteData};
    use crate::messages::stats::{ConsumeStats, OffsetWrapper, QueueMap, TopicStatsTable};

    fn queue(queue_id: i32) -> MessageQueue {
        MessageQueue {
            broker_name: "b".into(),
            queue_id,
            topic: "T".into(),
        }
    }

    #[test]
    fn the_dialect_is_read_as_the_values_it_means() {
        let text = "{a:1,,'b':\"x\\u0041\",0:{1:'one'},{q:0}:[1,,2.5,],c:null,a:-2,}\n";
        let value = parse(text.as_bytes()).expect("the dialect");
        let members = r#"{"a":-2,"b":"xA","0":{"1":"one"},"{\"q\":0}":[1,2.5],"c":null}"#;
        assert_eq!(value.to_string(), members);
    }

    #[test]
    fn broken_text_is_refused_with_its_place() {
        for text in [
            "",
            "{",
            "[1",
            "{a}",
            "{a:1}}",
            "{a:1 b:2}",
            "nul",
            "1e999",
            "{\"a\":\"",
            "{a:01x}",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let syntax = BodyError::Syntax {
            at: 4,
            expected: "nothing behind the value",
        };
        assert_eq!(parse(b"{ } x"), Err(syntax));
        assert_eq!(parse(b"\"\xff\""), Err(BodyError::NotUtf8));
    }

    #[test]
    fn heartbeats_of_all_clients_are_read() {
        let cpp = br#"{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,
            "groupName":"g","messageModel":0,"subscriptionDataSet":[{"codeSet":["2598919",-7],
            "subString":"TagA","subVersion":"1700000000000","tagsSet":["TagA"],"topic":"T"}]}],
            "producerDataSet":null,"heartbeatFingerprint":"12","unknown":{}}"#;
        let beat: HeartbeatData = from_slice(cpp).expect("a heartbeat");
        let group = &beat.consumer_data_set[0];
        assert_eq!(group.consume_type, ConsumeType::ConsumePassively);
        assert_eq!(group.message_model, MessageModel::Broadcasting);
        let subscription = &group.subscription_data_set[0];
        assert_eq!(subscription.code_set, [2_598_919, -7]);
        assert_eq!(subscription.sub_version, 1_700_000_000_000);
        assert_eq!(subscription.expression_type, "TAG");
        assert!(beat.producer_data_set.is_empty() && beat.heartbeat_fingerprint == 12);
        let wrong = from_slice::<HeartbeatData>(br#"{"consumerDataSet":[{"consumeType":9}]}"#);
        let wrong = wrong.expect_err("no such ordinal").to_string();
        assert!(wrong.contains('9'), "{wrong}");
        let go = br#"{"consumerDataSet":[{"consumeType":"PUSH","messageModel":"CLUSTERING"}]}"#;
        let beat: HeartbeatData = from_slice(go).expect("a name that nobody knows is none");
        assert_eq!(
            beat.consumer_data_set[0].consume_type,
            ConsumeType::ConsumePassively
        );
    }

    #[test]
    fn integers_out_of_range_are_errors_not_other_integers() {
        for text in [
            "{queueId:2147483648}",
            "{queueId:'x'}",
            "{queueId:1e30}",
            "{queueId:[]}",
        ] {
            assert!(from_str::<MessageQueue>(text).is_err(), "{text}");
        }
        let read: MessageQueue =
            from_str("{queueId:'7',topic:12,brokerName:true}").expect("a queue");
        let expected = MessageQueue {
            broker_name: "true".into(),
            queue_id: 7,
            topic: "12".into(),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn maps_by_queue_have_bare_objects_as_keys() {
        let stats = ConsumeStats {
            consume_tps: 0.5,
            offset_table: QueueMap(vec![
                (
                    queue(0),
                    OffsetWrapper {
                        broker_offset: 9,
                        ..OffsetWrapper::default()
                    },
                ),
                (queue(1), OffsetWrapper::default()),
            ]),
        };
        let mut out = Vec::new();
        stats.write(&mut out).expect("JSON can express it");
        let expected = concat!(
            r#"{"consumeTps":0.5,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"#,
            r#"{"brokerOffset":9,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0},"#,
            r#"{"brokerName":"b","queueId":1,"topic":"T"}:"#,
            r#"{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}"#,
        );
        assert_eq!(std::str::from_utf8(&out), Ok(expected));
        assert_eq!(from_slice::<ConsumeStats>(&out), Ok(stats));
        let quoted =
            r#"{"offsetTable":{"{\"brokerName\":\"b\",\"topic\":\"T\"}":{"maxOffset":5}}}"#;
        let table: TopicStatsTable = from_str(quoted).expect("quoted keys");
        assert_eq!(
            (
                &table.offset_table.0[0].0,
                table.offset_table.0[0].1.max_offset
            ),
            (&queue(0), 5)
        );
    }

    #[test]
    fn routes_are_written_compact_and_strict() {
        let route = TopicRouteData {
            broker_datas: vec![BrokerData {
                broker_addrs: BTreeMap::from([(0, "10.0.0.1:10911".to_owned())]),
                broker_name: "broker-a".into(),
                cluster: "DefaultCluster".into(),
                ..BrokerData::default()
            }],
            queue_datas: vec![QueueData {
                broker_name: "broker-a".into(),
                perm: 6,
                read_queue_nums: 8,
                topic_sys_flag: 0,
                write_queue_nums: 8,
            }],
            ..TopicRouteData::default()
        };
        let mut out = Vec::new();
        write(&mut out, &route).expect("JSON can express it");
        let expected = concat!(
            r#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","#,
            r#""cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"#,
            r#""queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"#,
            r#""topicSysFlag":0,"writeQueueNums":8}]}"#,
        );
        assert_eq!(std::str::from_utf8(&out), Ok(expected));
        let bare = expected
            .replace("\"0\":", "0:")
            .replace("topicSysFlag", "topicSynFlag");
        assert_eq!(from_str::<TopicRouteData>(&bare), Ok(route));
    }
}
