//! Sends: codes 10, 310, 320, replies 324, 325, and 36 (docs/protocol.md, "Sending").

use super::headers;
use crate::codes::request;
use crate::encode::Encoder;
use crate::header::fields::{FieldError, Fields, is_true, parse_i32, parse_i64};

/// `sysFlag` bit: the body is compressed.
pub const SYS_FLAG_COMPRESSED: i32 = 0x1;
/// `sysFlag` bit: prepared part of a transaction.
pub const SYS_FLAG_TRANSACTION_PREPARED: i32 = 0x4;

/// Number of fields of a send.
const FIELDS: usize = 14;

/// The wire names of codes 10 and 324, in the order of the letters `a` to `n` of the other codes.
const LONG_NAMES: [&str; FIELDS] = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
];

/// The wire names of codes 310, 320 and 325.
const LETTERS: [&str; FIELDS] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n",
];

/// A send of one message or of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendRequest<'a> {
    /// Group of the producer.
    pub producer_group: &'a str,
    /// Topic to store under.
    pub topic: &'a str,
    /// Template for a topic that does not exist yet; empty when absent.
    pub default_topic: &'a str,
    /// Queues wanted for a topic that does not exist yet.
    pub default_topic_queue_nums: i32,
    /// Queue to store in; negative: any.
    pub queue_id: i32,
    /// Bits of the message that the system defines.
    pub sys_flag: i32,
    /// When the message was made, in ms since 1970.
    pub born_timestamp: i64,
    /// Bits of the message that users define.
    pub flag: i32,
    /// Properties in their stored form; empty when absent.
    pub properties: &'a str,
    /// How often the message has been consumed in vain.
    pub reconsume_times: i32,
    /// Unit mode.
    pub unit_mode: bool,
    /// How often the message may be consumed in vain.
    pub max_reconsume_times: Option<i32>,
    /// The body is a batch. This decides, not the request code.
    pub batch: bool,
    /// Broker that the client believes to be talking to.
    pub broker_name: Option<&'a str>,
}

impl<'a> SendRequest<'a> {
    /// Do requests of this code name their fields by single letters?
    pub fn has_letters(code: i32) -> bool {
        matches!(
            code,
            request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE | request::SEND_REPLY_MESSAGE_V2
        )
    }

    /// Reads the fields of a request with that code.
    pub fn decode(code: i32, fields: &Fields<'a>) -> Result<Self, FieldError> {
        let mut values = [None; FIELDS];
        let names = if Self::has_letters(code) {
            for (name, value) in fields.walk() {
                if let [letter @ b'a'..=b'n'] = name.as_bytes()
                    && let Some(place) = values.get_mut(usize::from(letter - b'a'))
                {
                    *place = value;
                }
            }
            &LETTERS
        } else {
            for (place, name) in values.iter_mut().zip(LONG_NAMES) {
                *place = fields.get(name);
            }
            &LONG_NAMES
        };
        let fields = Values { names, values };
        Ok(SendRequest {
            producer_group: fields.text(0)?,
            topic: fields.text(1)?,
            default_topic: fields.optional(2).unwrap_or_default(),
            default_topic_queue_nums: fields.number(3)?,
            queue_id: fields.number(4)?,
            sys_flag: fields.number(5)?,
            born_timestamp: parse_i64(fields.name(6), fields.text(6)?)?,
            flag: fields.number(7)?,
            properties: fields.optional(8).unwrap_or_default(),
            reconsume_times: fields.optional_number(9)?.unwrap_or(0),
            unit_mode: fields.optional(10).is_some_and(is_true),
            max_reconsume_times: fields.optional_number(11)?,
            batch: fields.optional(12).is_some_and(is_true),
            broker_name: fields.optional(13),
        })
    }

    /// Writes the fields under the names that requests of that code use.
    pub fn encode_fields(&self, code: i32, encoder: &mut Encoder<'_>) {
        let names = if Self::has_letters(code) {
            LETTERS
        } else {
            LONG_NAMES
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = names;
        encoder
            .field_str(a, self.producer_group)
            .field_str(b, self.topic);
        encoder
            .field_str(c, self.default_topic)
            .field_i32(d, self.default_topic_queue_nums);
        encoder
            .field_i32(e, self.queue_id)
            .field_i32(f, self.sys_flag);
        encoder
            .field_i64(g, self.born_timestamp)
            .field_i32(h, self.flag);
        encoder
            .field_str(i, self.properties)
            .field_i32(j, self.reconsume_times);
        encoder.field_bool(k, self.unit_mode);
        if let Some(times) = self.max_reconsume_times {
            encoder.field_i32(l, times);
        }
        encoder.field_bool(m, self.batch);
        if let Some(name) = self.broker_name {
            encoder.field_str(n, name);
        }
    }
}

/// The values of a send by their places.
struct Values<'a> {
    names: &'static [&'static str; FIELDS],
    values: [Option<&'a str>; FIELDS],
}

impl<'a> Values<'a> {
    fn name(&self, place: usize) -> &'static str {
        self.names[place]
    }

    fn optional(&self, place: usize) -> Option<&'a str> {
        self.values[place]
    }

    fn text(&self, place: usize) -> Result<&'a str, FieldError> {
        self.optional(place).ok_or(FieldError::Missing {
            field: self.name(place),
        })
    }

    fn number(&self, place: usize) -> Result<i32, FieldError> {
        parse_i32(self.name(place), self.text(place)?)
    }

    fn optional_number(&self, place: usize) -> Result<Option<i32>, FieldError> {
        self.optional(place)
            .map(|value| parse_i32(self.name(place), value))
            .transpose()
    }
}

headers! {
    /// The answer to a send, for all codes that mean "stored".
    SendResponse<'a> {
        /// Offset message ids, separated by commas for a batch.
        msg_id: &'a str = "msgId",
        queue_id: i32 = "queueId",
        /// Of the first message of a batch.
        queue_offset: i64 = "queueOffset",
        transaction_id: Option<&'a str> = "transactionId",
        batch_uniq_id: Option<&'a str> = "batchUniqId",
        recall_handle: Option<&'a str> = "recallHandle",
        region: Option<&'a str> = "MSG_REGION",
        trace_on: Option<bool> = "TRACE_ON",
    }

    /// A consumer gives a message back (36).
    SendBack<'a> {
        /// Log offset of the message.
        offset: i64 = "offset",
        group: &'a str = "group",
        delay_level: i32 = "delayLevel",
        origin_msg_id: Option<&'a str> = "originMsgId",
        origin_topic: Option<&'a str> = "originTopic",
        unit_mode: bool = "unitMode",
        max_reconsume_times: Option<i32> = "maxReconsumeTimes",
        broker_name: Option<&'a str> = "bname",
    }

    /// A reply on its way to the client that asked (326, broker to client).
    PushReply<'a> {
        producer_group: &'a str = "producerGroup",
        topic: &'a str = "topic",
        default_topic: &'a str = "defaultTopic",
        default_topic_queue_nums: i32 = "defaultTopicQueueNums",
        queue_id: i32 = "queueId",
        sys_flag: i32 = "sysFlag",
        /// In ms since 1970.
        born_timestamp: i64 = "bornTimestamp",
        flag: i32 = "flag",
        properties: Option<&'a str> = "properties",
        reconsume_times: Option<i32> = "reconsumeTimes",
        unit_mode: Option<bool> = "unitMode",
        /// `ip:port`.
        born_host: &'a str = "bornHost",
        /// `ip:port`.
        store_host: &'a str = "storeHost",
        /// In ms since 1970.
        store_timestamp: i64 = "storeTimestamp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Scratch, decode};
    use crate::frame::{Codec, Frame, MAX_FRAME, Parsed, parse};

    const SEND: SendRequest<'static> = SendRequest {
        producer_group: "pg",
        topic: "T",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: -1,
        sys_flag: SYS_FLAG_TRANSACTION_PREPARED,
        born_timestamp: 1_700_000_000_000,
        flag: i32::MIN,
        properties: "TAGS\u{1}a\u{2}",
        reconsume_times: 3,
        unit_mode: true,
        max_reconsume_times: Some(16),
        batch: true,
        broker_name: Some("broker-a"),
    };

    #[test]
    fn long_names_and_letters_carry_the_same_request() {
        for code in [10, 310, 320, 324, 325] {
            let mut out = Vec::new();
            let mut encoder = Encoder::request(&mut out, Codec::Json, code, 1, false);
            SEND.encode_fields(code, &mut encoder);
            encoder.finish();
            let Ok(Parsed::Complete { frame, .. }) = parse(&out, MAX_FRAME) else {
                panic!("no frame");
            };
            let mut scratch = Scratch::default();
            let ext = decode(frame, &mut scratch).expect("a header").ext;
            assert_eq!(ext.get("b").is_some(), code != 10 && code != 324);
            assert_eq!(SendRequest::decode(code, &ext), Ok(SEND));
            let other = if SendRequest::has_letters(code) {
                10
            } else {
                310
            };
            assert!(SendRequest::decode(other, &ext).is_err());
        }
    }

    #[test]
    fn errors_name_the_field_as_the_request_does() {
        let header = br#"{"extFields":{"a":"p","b":"T","c":null,"d":4,"e":"zero","b":"U"}}"#;
        let frame = Frame {
            codec: Codec::Json,
            header,
            body: b"",
        };
        let mut scratch = Scratch::default();
        let ext = decode(frame, &mut scratch).expect("a header").ext;
        let error = SendRequest::decode(310, &ext)
            .expect_err("no number")
            .to_string();
        assert!(error.starts_with("the field e holds \"zero\""), "{error}");
        let error = SendRequest::decode(10, &ext)
            .expect_err("no long name")
            .to_string();
        assert_eq!(error, "the field producerGroup is missing");
    }
}
