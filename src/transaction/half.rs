//! Half messages and op messages as records (docs/format.md, Half messages).

use std::net::SocketAddr;
use std::str::FromStr;

use saturnmq_net::messages::transaction::EndTransaction;
use saturnmq_storage::format::message::{MessageParts, sys_flag};
use saturnmq_storage::format::properties::Properties;
use saturnmq_storage::format::record::Record;

use crate::answer::{Reply, SYSTEM_ERROR};
use crate::handler::properties::{self, NAME_END, PAIR_END, REAL_QID, REAL_TOPIC};
use crate::names;

/// Properties of an op message.
const OP_PROPERTIES: &[u8] = b"WAIT\x01true\x02TAGS\x01d";

/// What a client says about a transaction (request code 37).
#[derive(Debug, Clone)]
pub struct End {
    /// To be delivered, or else dropped.
    pub commit: bool,
    /// Whether the client was asked.
    pub asked: bool,
    /// Queue offset of the half message.
    pub half: i64,
    /// Log offset of the half message.
    pub log_offset: i64,
    /// Producer group.
    pub group: String,
    /// Whether the client is of the 5.x generation.
    pub v5: bool,
}

impl End {
    /// Owned, for wherever it goes.
    pub fn new(asked: &EndTransaction<'_>, commit: bool, v5: bool) -> Self {
        Self {
            commit,
            asked: asked.from_transaction_check,
            half: asked.tran_state_table_offset,
            log_offset: asked.commit_log_offset,
            group: asked.producer_group.to_owned(),
            v5,
        }
    }

    /// The half message, if it is the one that is meant.
    ///
    /// # Errors
    /// The reply that says what does not fit, in Apache's order and words.
    pub fn check<'r>(&self, record: &Record<'r>) -> Result<Half<'r>, Reply> {
        let wrong = |remark: &'static str| Err(Reply::error(SYSTEM_ERROR, remark));
        let Some(half) = Half::of(record) else {
            return Err(not_found());
        };
        if record.properties().get_str(properties::PGROUP) != Some(self.group.as_str()) {
            return wrong("The producer group wrong");
        }
        if record.queue_offset() != self.half {
            return wrong("The transaction state table offset wrong");
        }
        if record.physical_offset() != self.log_offset {
            return wrong("The commit log offset wrong");
        }
        Ok(half)
    }

    /// Whether it comes too late: a message with an immunity time of its own is left to the check
    /// once that time is over, as a 5.x broker does.
    pub fn is_late(&self, half: &Half<'_>, now_ms: i64, timeout_ms: i64) -> bool {
        let age = now_ms.saturating_sub(half.record.born_timestamp());
        self.v5
            && !self.asked
            && half
                .immunity_ms(timeout_ms)
                .is_some_and(|immunity| age > immunity)
    }
}

/// The answer when there is no half message where the client says.
pub fn not_found() -> Reply {
    Reply::error(SYSTEM_ERROR, "Find prepared transaction message failed")
}

/// A half message.
#[derive(Debug, Clone, Copy)]
pub struct Half<'r> {
    /// Its record.
    pub record: Record<'r>,
    /// The topic it is meant for.
    pub topic: &'r str,
    /// The queue it is meant for.
    pub queue_id: i32,
}

impl<'r> Half<'r> {
    /// The half message in a record of the half topic; `None` if it is none.
    pub fn of(record: &Record<'r>) -> Option<Self> {
        if record.topic() != names::HALF_TOPIC {
            return None;
        }
        Self::given_up(record)
    }

    /// The same for a record of any topic.
    pub fn given_up(record: &Record<'r>) -> Option<Self> {
        let properties = record.properties();
        let topic = properties.get_str(REAL_TOPIC)?;
        let queue_id = i32::from_str(properties.get_str(REAL_QID)?).ok()?;
        let legal = names::check_topic(topic).is_ok() && topic != names::HALF_TOPIC;
        (legal && queue_id >= 0).then_some(Self {
            record: *record,
            topic,
            queue_id,
        })
    }

    /// How often its producer was asked about it.
    pub fn checks(&self) -> i64 {
        let properties = self.record.properties();
        properties.get_i64(properties::CHECK_TIMES).unwrap_or(0)
    }

    /// Its own immunity time, if it has one; `timeout_ms` stands for one that is no number.
    pub fn immunity_ms(&self, timeout_ms: i64) -> Option<i64> {
        let text = self.record.properties().get(properties::CHECK_IMMUNITY)?;
        let seconds = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
        let immunity = match seconds {
            None | Some(-1) => timeout_ms,
            Some(seconds) => i64::saturating_mul(seconds, 1000),
        };
        Some(immunity)
    }

    /// The record that makes it visible.
    pub fn committed<'a>(&'a self, properties: &'a [&'a [u8]]) -> MessageParts<'a> {
        MessageParts {
            topic: self.topic,
            queue_id: self.queue_id,
            sys_flag: self.record.sys_flag() & !sys_flag::TRANSACTION | sys_flag::COMMIT,
            prepared_transaction_offset: self.record.physical_offset(),
            ..self.copy(properties)
        }
    }

    /// A copy in a topic of the broker's, in its queue 0.
    pub fn moved<'a>(&'a self, topic: &'a str, properties: &'a [&'a [u8]]) -> MessageParts<'a> {
        MessageParts {
            topic,
            ..self.copy(properties)
        }
    }

    /// The message as its producer is asked about it, without its offsets.
    pub fn shown<'a>(&'a self, properties: &'a [&'a [u8]]) -> MessageParts<'a> {
        MessageParts {
            topic: self.topic,
            queue_id: self.queue_id,
            ..self.copy(properties)
        }
    }

    fn copy<'a>(&'a self, properties: &'a [&'a [u8]]) -> MessageParts<'a> {
        let record = &self.record;
        MessageParts {
            topic: "",
            queue_id: 0,
            flag: record.flag(),
            sys_flag: record.sys_flag(),
            born_timestamp: record.born_timestamp(),
            born_host: record.born_host(),
            store_host: record.store_host(),
            reconsume_times: record.reconsume_times(),
            prepared_transaction_offset: 0,
            body: record.body(),
            properties,
        }
    }
}

/// The properties with one of them set.
pub fn with_property(properties: Properties<'_>, name: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(properties.as_bytes().len() + name.len() + value.len() + 2);
    for (other, text) in properties.iter() {
        if other != name.as_bytes() {
            out.extend_from_slice(other);
            out.push(NAME_END);
            out.extend_from_slice(text);
            out.push(PAIR_END);
        }
    }
    out.extend_from_slice(name.as_bytes());
    out.push(NAME_END);
    out.extend_from_slice(value.as_bytes());
    out
}

/// Decimal digits of an offset.
pub struct Digits([u8; 20], usize);

impl Digits {
    /// The digits of `number`, which is not negative.
    pub fn of(number: i64) -> Self {
        let mut digits = [b'0'; 20];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return Self(digits, at);
            }
        }
    }

    /// The digits.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

/// The op message that says a half message is done with: its body is the half offset.
pub fn op_message(body: &[u8], host: SocketAddr, now_ms: i64) -> MessageParts<'_> {
    MessageParts {
        topic: names::OP_HALF_TOPIC,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: now_ms,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: &[OP_PROPERTIES],
    }
}

/// The half offsets that an op message names: one, or from 5.x brokers several, each with a comma
/// behind it.
pub fn named_halves<'r>(record: &Record<'r>) -> impl Iterator<Item = i64> + use<'r> {
    let removes = record.properties().get(properties::TAGS) == Some(b"d");
    let body = if removes { record.body() } else { &[] };
    body.split(|byte| *byte == b',').filter_map(|piece| {
        let number: i64 = std::str::from_utf8(piece).ok()?.trim().parse().ok()?;
        (number >= 0).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use saturnmq_storage::format::message::{encode_into, encoded_len};

    use super::*;

    fn record(parts: &MessageParts<'_>) -> Vec<u8> {
        let mut bytes = vec![0; encoded_len(parts).unwrap()];
        encode_into(parts, &mut bytes).unwrap();
        bytes
    }

    fn host() -> SocketAddr {
        "10.11.0.1:20911".parse().unwrap()
    }

    #[test]
    fn an_op_message_is_as_long_as_apache_s() {
        let body = Digits::of(7);
        let bytes = record(&op_message(body.as_bytes(), host(), 1));
        assert_eq!(bytes.len(), 135);
        let bytes = record(&op_message(Digits::of(11).as_bytes(), host(), 1));
        assert_eq!(bytes.len(), 136);
    }

    #[test]
    fn op_messages_of_both_generations_are_read() {
        let named = |body: &str| -> Vec<i64> {
            let bytes = record(&op_message(body.as_bytes(), host(), 1));
            named_halves(&Record::decode(&bytes).unwrap()).collect()
        };
        assert_eq!(named("12"), [12]);
        assert_eq!(named("12,15,16,"), [12, 15, 16]);
        assert_eq!(named("12,x,-3,99999999999999999999,4"), [12, 4]);
        assert!(named("").is_empty());
        let other = MessageParts {
            properties: &[b"TAGS\x01x"],
            ..op_message(b"3", host(), 1)
        };
        let bytes = record(&other);
        assert_eq!(named_halves(&Record::decode(&bytes).unwrap()).count(), 0);
    }

    #[test]
    fn a_property_is_set_once() {
        let text = Properties::new(b"A\x011\x02TRANSACTION_CHECK_TIMES\x013\x02B\x012\x02");
        let set = with_property(text, properties::CHECK_TIMES, "4");
        assert_eq!(set, b"A\x011\x02B\x012\x02TRANSACTION_CHECK_TIMES\x014");
        assert_eq!(with_property(Properties::new(b""), "A", "1"), b"A\x011");
    }

    #[test]
    fn digits_are_those_of_java() {
        for number in [0, 7, 10, 1_234_567_890_123, i64::MAX] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }

    fn half(properties: &[u8]) -> Vec<u8> {
        record(&MessageParts {
            topic: names::HALF_TOPIC,
            properties: &[properties],
            ..op_message(b"body", host(), 1)
        })
    }

    #[test]
    fn a_transaction_is_ended_only_by_who_began_it_and_knows_where_it_is() {
        let end = End {
            commit: true,
            asked: false,
            half: 0,
            log_offset: 0,
            group: "g".into(),
            v5: false,
        };
        let refused = |properties: &[u8], end: &End| {
            let bytes = half(properties);
            let record = Record::decode(&bytes).unwrap();
            let remark = end.check(&record).err().and_then(|reply| reply.remark);
            remark.map(|text| text.into_owned())
        };
        let good = b"REAL_TOPIC\x01T\x02REAL_QID\x013\x02PGROUP\x01g";
        assert_eq!(refused(good, &end), None);
        let wrong = |end: End| refused(good, &end).unwrap_or_default();
        let group = "h".to_owned();
        assert!(
            wrong(End {
                group,
                ..end.clone()
            })
            .contains("producer group")
        );
        assert!(
            wrong(End {
                half: 1,
                ..end.clone()
            })
            .contains("state table offset")
        );
        assert!(
            wrong(End {
                log_offset: 1,
                ..end.clone()
            })
            .contains("commit log offset")
        );
        for none in [
            &b"PGROUP\x01g"[..],
            b"REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02PGROUP\x01g",
            b"REAL_TOPIC\x01T T\x02REAL_QID\x011\x02PGROUP\x01g",
            b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02PGROUP\x01g",
        ] {
            let remark = refused(none, &end).unwrap_or_default();
            assert!(remark.starts_with("Find prepared"), "{remark}");
        }
    }

    #[test]
    fn the_immunity_time_is_the_message_s_own_or_the_broker_s() {
        let own = |text: &str| {
            let text = format!(
                "REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}0\u{2}CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}{text}"
            );
            let bytes = half(text.as_bytes());
            let record = Record::decode(&bytes).unwrap();
            Half::of(&record).unwrap().immunity_ms(6000)
        };
        assert_eq!(own("10"), Some(10_000));
        assert_eq!(own("-1"), Some(6000));
        assert_eq!(own("soon"), Some(6000));
        assert_eq!(own(""), None);
    }
}
