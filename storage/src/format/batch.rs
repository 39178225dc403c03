//! A client's batch body, and the records it becomes (docs/format.md, Batches).
//!
//! Each message of a batch is stored as a record of its own. The properties of the request are
//! appended to each message's own ones, with 0x02 in between when it is missing.

use thiserror::Error;

use super::message::{EncodeError, Encoding, MessageParts};
use super::properties::PROPERTY_SEPARATOR;
use super::{i16_at, i32_at};

/// Bytes of an item in front of its body: total, magic, crc, flag, body length.
const ITEM_HEAD: usize = 5 * 4;

/// One message of a batch body.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct BatchItem<'a> {
    /// The user's flag.
    pub flag: i32,
    /// The body.
    pub body: &'a [u8],
    /// The message's own property string.
    pub properties: &'a [u8],
}

/// Why a batch cannot be stored; the whole batch is refused.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum BatchError {
    /// There is no message in it.
    #[error("the batch is empty")]
    Empty,
    /// It ends inside of a message.
    #[error("the batch ends inside of message {index}")]
    Truncated {
        /// Number of the message, from 0.
        index: usize,
    },
    /// A length in it is negative or reaches beyond the batch.
    #[error("message {index} of the batch has an impossible {field} length {len}")]
    Length {
        /// Number of the message, from 0.
        index: usize,
        /// Which field.
        field: &'static str,
        /// The length found.
        len: i32,
    },
    /// A message of it cannot be a record.
    #[error("message {index} of the batch: {source}")]
    Message {
        /// Number of the message, from 0.
        index: usize,
        /// Why.
        source: EncodeError,
    },
    /// The place given for the records has another size than they have.
    #[error("the records do not fill their place exactly")]
    WrongPlace,
}

/// Iterates over the messages of a batch body; ends after the first error.
#[derive(Clone, Debug)]
pub struct BatchItems<'a> {
    rest: &'a [u8],
    index: usize,
}

impl<'a> BatchItems<'a> {
    /// Iterates over `body`, the body of a batch request.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            rest: body,
            index: 0,
        }
    }

    fn item(&mut self) -> Result<BatchItem<'a>, BatchError> {
        let index = self.index;
        let truncated = || BatchError::Truncated { index };
        let flag = i32_at(self.rest, 12).ok_or_else(truncated)?;
        let len = i32_at(self.rest, 16).ok_or_else(truncated)?;
        let body = usize::try_from(len)
            .map_err(|_| BatchError::Length {
                index,
                field: "body",
                len,
            })
            .and_then(|len| part(self.rest, ITEM_HEAD, len).ok_or_else(truncated))?;
        let at = ITEM_HEAD + body.len();
        let len = i32::from(i16_at(self.rest, at).ok_or_else(truncated)?);
        let properties = usize::try_from(len)
            .map_err(|_| BatchError::Length {
                index,
                field: "property",
                len,
            })
            .and_then(|len| part(self.rest, at + 2, len).ok_or_else(truncated))?;
        self.rest = &self.rest[at + 2 + properties.len()..];
        self.index += 1;
        Ok(BatchItem {
            flag,
            body,
            properties,
        })
    }
}

impl<'a> Iterator for BatchItems<'a> {
    type Item = Result<BatchItem<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.item();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

/// Appends the size of each record of the batch to `sizes` and returns their sum. `sizes` is
/// left as it was when the batch is refused.
pub fn measure_batch(parts: &MessageParts<'_>, sizes: &mut Vec<u32>) -> Result<usize, BatchError> {
    let before = sizes.len();
    let mut total = 0usize;
    let mut measure = || {
        for (index, item) in BatchItems::new(parts.body).enumerate() {
            let size = encoding(parts, item?)
                .measure()
                .map_err(|source| BatchError::Message { index, source })?;
            sizes.push(size as u32);
            total += size;
        }
        if sizes.len() == before {
            Err(BatchError::Empty)
        } else {
            Ok(())
        }
    };
    let measured = measure();
    if measured.is_err() {
        sizes.truncate(before);
    }
    measured.map(|()| total)
}

/// Encodes the records of the batch one after the other into `out`, whose size must be what
/// [`measure_batch`] returned.
pub fn encode_batch(parts: &MessageParts<'_>, out: &mut [u8]) -> Result<(), BatchError> {
    let mut rest = out;
    for (index, item) in BatchItems::new(parts.body).enumerate() {
        let encoding = encoding(parts, item?);
        let refused = |source| BatchError::Message { index, source };
        let size = encoding.measure().map_err(refused)?;
        let (place, behind) = std::mem::take(&mut rest)
            .split_at_mut_checked(size)
            .ok_or(BatchError::WrongPlace)?;
        encoding.write(place).map_err(refused)?;
        rest = behind;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(BatchError::WrongPlace)
    }
}

fn encoding<'a>(parts: &'a MessageParts<'a>, item: BatchItem<'a>) -> Encoding<'a> {
    let outer = parts.properties.iter().any(|piece| !piece.is_empty());
    let ended = item
        .properties
        .last()
        .is_none_or(|byte| *byte == PROPERTY_SEPARATOR);
    let properties = (item.properties, outer && !ended);
    Encoding::new(parts, item.flag, item.body, properties)
}

fn part(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(len)?)
}

/// Appends a message to a client's batch body.
pub fn push_item(out: &mut Vec<u8>, item: &BatchItem<'_>) {
    let total = ITEM_HEAD + item.body.len() + 2 + item.properties.len();
    out.extend_from_slice(&(total as i32).to_be_bytes());
    out.extend_from_slice(&[0; 8]); // magic, crc: the broker computes its own
    out.extend_from_slice(&item.flag.to_be_bytes());
    out.extend_from_slice(&(item.body.len() as i32).to_be_bytes());
    out.extend_from_slice(item.body);
    out.extend_from_slice(&(item.properties.len() as i16).to_be_bytes());
    out.extend_from_slice(item.properties);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::Record;

    fn parts<'a>(body: &'a [u8], properties: &'a [&'a [u8]]) -> MessageParts<'a> {
        let host = "127.0.0.1:10911".parse().unwrap();
        MessageParts {
            topic: "T",
            queue_id: 3,
            flag: 99,
            sys_flag: 0,
            born_timestamp: 7,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties,
        }
    }

    #[test]
    fn each_message_becomes_a_record_with_the_outer_properties_behind_its_own() {
        let mut body = Vec::new();
        let own: [&[u8]; 3] = [b"TAGS\x01A", b"TAGS\x01B\x02", b""];
        for (flag, properties) in own.iter().enumerate() {
            push_item(
                &mut body,
                &BatchItem {
                    flag: flag as i32,
                    body: b"x",
                    properties,
                },
            );
        }
        let outer: [&[u8]; 2] = [b"WAIT\x01true\x02", b"CLUSTER\x01c"];
        let parts = parts(&body, &outer);
        let mut sizes = vec![1];
        let total = measure_batch(&parts, &mut sizes).unwrap();
        assert_eq!(sizes.len(), 4);
        assert_eq!(
            total,
            sizes[1..].iter().map(|size| *size as usize).sum::<usize>()
        );

        let mut out = vec![0xee; total];
        encode_batch(&parts, &mut out).unwrap();
        let mut rest = out.as_slice();
        let joined: [&[u8]; 3] = [b"TAGS\x01A\x02", b"TAGS\x01B\x02", b""];
        for (flag, own) in joined.iter().enumerate() {
            let record = Record::decode(rest).unwrap();
            assert_eq!(record.flag(), flag as i32);
            assert_eq!(record.queue_id(), 3);
            let expected = [own, &b"WAIT\x01true\x02CLUSTER\x01c"[..]].concat();
            assert_eq!(record.properties().as_bytes(), expected);
            record.check_body().unwrap();
            rest = &rest[record.size() as usize..];
        }
        assert!(rest.is_empty());
        assert_eq!(
            encode_batch(&parts, &mut vec![0; total + 1]),
            Err(BatchError::WrongPlace)
        );
        assert_eq!(
            encode_batch(&parts, &mut vec![0; total - 1]),
            Err(BatchError::WrongPlace)
        );
    }

    #[test]
    fn without_outer_properties_nothing_is_appended() {
        let mut body = Vec::new();
        push_item(
            &mut body,
            &BatchItem {
                flag: 0,
                body: b"x",
                properties: b"a\x01b",
            },
        );
        let parts = parts(&body, &[b""]);
        let mut out = vec![0; measure_batch(&parts, &mut Vec::new()).unwrap()];
        encode_batch(&parts, &mut out).unwrap();
        assert_eq!(
            Record::decode(&out).unwrap().properties().as_bytes(),
            b"a\x01b"
        );
    }

    #[test]
    fn a_broken_batch_is_refused_whole_at_every_cut() {
        let mut body = Vec::new();
        for _ in 0..2 {
            push_item(
                &mut body,
                &BatchItem {
                    flag: 0,
                    body: b"body",
                    properties: b"a\x01b",
                },
            );
        }
        let item = body.len() / 2;
        for cut in 0..body.len() {
            let mut sizes = vec![7];
            let result = measure_batch(&parts(&body[..cut], &[]), &mut sizes);
            match cut {
                0 => assert_eq!(result, Err(BatchError::Empty)),
                _ if cut == item => assert!(result.is_ok()),
                _ => {
                    assert_eq!(result, Err(BatchError::Truncated { index: cut / item }));
                    assert_eq!(sizes, [7]);
                }
            }
        }
        body[16] = 0x80;
        let result = measure_batch(&parts(&body, &[]), &mut Vec::new());
        assert!(matches!(
            result,
            Err(BatchError::Length {
                index: 0,
                field: "body",
                ..
            })
        ));
    }
}
