//! Reading commit-log records as borrowed views (docs/format.md, Commit log record).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use super::hash::tags_code;
use super::message::{
    FIXED_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT,
    body_crc, store_timestamp_position, sys_flag,
};
use super::message_id::MessageId;
use super::names::is_stored_topic;
use super::properties::{Properties, names};
use super::{i16_at, i32_at, i64_at};

/// Bytes of a sector: the smallest piece of a write that a crash keeps or loses whole.
pub(super) const SECTOR: u64 = 512;
/// Bytes at the end of a record that hold its own checksum, when it has one.
pub(super) const RECORD_CRC_SIZE: usize = 20;

/// What stands at a position of the log.
#[derive(Copy, Clone, Debug)]
pub enum Decoded<'a> {
    /// A message.
    Record(Record<'a>),
    /// The end of the file: the log continues in the next one.
    Blank {
        /// Bytes that were left in the file, as recorded; readers must not rely on it.
        remaining: i32,
    },
}

/// Why bytes are not a record.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum RecordError {
    /// Fewer bytes than the fixed fields need.
    #[error("only {available} bytes are left, too few for a record")]
    TooShort {
        /// Bytes that are there.
        available: usize,
    },
    /// Neither a record nor a blank one. Magic number 0 is the ordinary end of the log.
    #[error("magic number {found:08x} is no record's")]
    Magic {
        /// The number found.
        found: i32,
    },
    /// A blank record where a message was asked for.
    #[error("a blank record, no message")]
    Blank,
    /// The size is impossible or reaches beyond the bytes that are there.
    #[error("record size {size} is impossible with {available} bytes available")]
    Size {
        /// The size found.
        size: i32,
        /// Bytes that are there.
        available: usize,
    },
    /// A length inside of the record is negative or reaches beyond the record.
    #[error("the length of the {field} is {len}, beyond the record's {size} bytes")]
    Length {
        /// Which field.
        field: &'static str,
        /// The length found.
        len: i32,
        /// Bytes of the record.
        size: usize,
    },
    /// The lengths inside add up to another size than the record has.
    #[error("the lengths inside add up to {sum} bytes, the record has {size}")]
    Sum {
        /// Sum of the lengths.
        sum: usize,
        /// Bytes of the record.
        size: usize,
    },
    /// The topic is not UTF-8.
    #[error("the topic is not UTF-8")]
    TopicText,
    /// The topic has characters that no broker stores.
    #[error("topic {topic:?} is illegal")]
    Topic {
        /// The topic found.
        topic: String,
    },
    /// A sector of the topic or the properties was never written.
    #[error("the topic or the properties hold an empty sector at log offset {at}")]
    Torn {
        /// Log offset of the first empty byte.
        at: u64,
    },
    /// The body does not have the checksum recorded for it.
    #[error("the body's checksum is {computed:08x}, recorded is {recorded:08x}")]
    BodyCrc {
        /// Checksum of the bytes.
        computed: u32,
        /// Checksum in the record.
        recorded: u32,
    },
    /// The record does not have the checksum recorded in its properties.
    #[error("the record's checksum is {computed:08x}, recorded is {recorded:08x}")]
    RecordCrc {
        /// Checksum of the bytes.
        computed: u32,
        /// Checksum in the record.
        recorded: u32,
    },
    /// The record says that it belongs elsewhere.
    #[error("the record's own log offset is {recorded}, it stands at {at}")]
    Misplaced {
        /// Log offset in the record.
        recorded: i64,
        /// Log offset where it was found.
        at: u64,
    },
}

/// Reads what stands at the start of `bytes`, which may go on behind the record.
pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, RecordError> {
    let short = RecordError::TooShort {
        available: bytes.len(),
    };
    let (Some(size), Some(magic)) = (i32_at(bytes, 0), i32_at(bytes, 4)) else {
        return Err(short);
    };
    let version_2 = match magic {
        MAGIC_V1 => false,
        MAGIC_V2 => true,
        MAGIC_BLANK => return Ok(Decoded::Blank { remaining: size }),
        found => return Err(RecordError::Magic { found }),
    };
    let available = bytes.len();
    let wrong_size = RecordError::Size { size, available };
    let size = usize::try_from(size).map_err(|_| wrong_size.clone())?;
    if size < FIXED_SIZE {
        return Err(wrong_size);
    }
    let bytes = bytes.get(..size).ok_or(wrong_size)?;
    Record::parse(bytes, version_2).map(Decoded::Record)
}

/// Bytes from which [`can_have_size`] judges any record.
pub const SIZE_HEAD: usize = 112;

/// Whether the record that begins with `head` can be `size` bytes long, by the length of its body:
/// besides that a record holds little. Tells damaged size fields before memory is asked for.
pub fn can_have_size(head: &[u8], size: usize) -> bool {
    const REST_MAX: usize = FIXED_SIZE + 2 * 12 + 1 + 2 * i16::MAX as usize;
    let v6 = i32_at(head, SYS_FLAG_AT).is_some_and(|flags| flags & sys_flag::STORE_HOST_V6 != 0);
    let after_hosts = store_timestamp_position(head) + 8 + if v6 { 20 } else { 8 };
    let body = i32_at(head, after_hosts + 12).and_then(|len| usize::try_from(len).ok());
    body.and_then(|body| size.checked_sub(body))
        .is_some_and(|rest| (FIXED_SIZE..=REST_MAX).contains(&rest))
}

/// A record whose lengths have been checked. Body and topic have been checked only as far as
/// the lengths go, see [`Record::check_body`] and [`Record::check_text`].
#[derive(Copy, Clone, Debug)]
pub struct Record<'a> {
    bytes: &'a [u8],
    store_host_at: usize,
    after_hosts: usize,
    body_len: usize,
    topic: &'a str,
    topic_at: usize,
    properties_at: usize,
}

impl<'a> Record<'a> {
    /// Reads the record at the start of `bytes`, which may go on behind it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RecordError> {
        match decode(bytes)? {
            Decoded::Record(record) => Ok(record),
            Decoded::Blank { .. } => Err(RecordError::Blank),
        }
    }

    fn parse(bytes: &'a [u8], version_2: bool) -> Result<Self, RecordError> {
        let size = bytes.len();
        let short = || RecordError::TooShort { available: size };
        let flags = i32_at(bytes, SYS_FLAG_AT).ok_or_else(short)?;
        let store_host_at = store_timestamp_position(bytes) + 8;
        let store_host_len = if flags & sys_flag::STORE_HOST_V6 != 0 {
            20
        } else {
            8
        };
        let after_hosts = store_host_at + store_host_len;
        let length = |field, len: i32| RecordError::Length { field, len, size };

        let len = i32_at(bytes, after_hosts + 12).ok_or_else(short)?;
        let body_len = usize::try_from(len).map_err(|_| length("body", len))?;
        let topic_len_at = after_hosts + 16 + body_len;
        let (len, topic_at) = if version_2 {
            (i16_at(bytes, topic_len_at).map(i32::from), topic_len_at + 2)
        } else {
            let byte = bytes.get(topic_len_at).map(|byte| i32::from(*byte as i8));
            (byte, topic_len_at + 1)
        };
        let len = len.ok_or_else(|| length("body", body_len as i32))?;
        let topic_len = usize::try_from(len).map_err(|_| length("topic", len))?;
        let properties_len_at = topic_at + topic_len;
        let properties_at = properties_len_at + 2;
        let len = i16_at(bytes, properties_len_at).ok_or_else(|| length("topic", len))?;
        let len = i32::from(len);
        let properties_len = usize::try_from(len).map_err(|_| length("properties", len))?;
        let sum = properties_at + properties_len;
        if sum != size {
            return Err(RecordError::Sum { sum, size });
        }
        let topic = std::str::from_utf8(&bytes[topic_at..properties_len_at])
            .map_err(|_| RecordError::TopicText)?;
        Ok(Self {
            bytes,
            store_host_at,
            after_hosts,
            body_len,
            topic,
            topic_at,
            properties_at,
        })
    }

    /// The record's own bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of the record.
    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// 1, or 2 for a record with a long topic.
    pub fn version(&self) -> u8 {
        if self.int(4) == MAGIC_V2 { 2 } else { 1 }
    }

    /// The checksum recorded for the body.
    pub fn body_crc(&self) -> u32 {
        self.int(8) as u32
    }

    /// Queue id.
    pub fn queue_id(&self) -> i32 {
        self.int(12)
    }

    /// The user's flag.
    pub fn flag(&self) -> i32 {
        self.int(16)
    }

    /// Offset in the queue; 0 for prepared and rolled back messages, which have none.
    pub fn queue_offset(&self) -> i64 {
        self.long(QUEUE_OFFSET_AT)
    }

    /// Log offset of the record's first byte, as recorded.
    pub fn physical_offset(&self) -> i64 {
        self.long(PHYSICAL_OFFSET_AT)
    }

    /// System flags, see [`sys_flag`].
    pub fn sys_flag(&self) -> i32 {
        self.int(SYS_FLAG_AT)
    }

    /// The producer's time, ms.
    pub fn born_timestamp(&self) -> i64 {
        self.long(40)
    }

    /// The producer's address; a port beyond 65535 reads as 0.
    pub fn born_host(&self) -> SocketAddr {
        self.host(48, sys_flag::BORN_HOST_V6)
    }

    /// When the broker stored the message, ms.
    pub fn store_timestamp(&self) -> i64 {
        self.long(self.store_host_at - 8)
    }

    /// The address of the broker that stored the message.
    pub fn store_host(&self) -> SocketAddr {
        self.host(self.store_host_at, sys_flag::STORE_HOST_V6)
    }

    /// How often the message was consumed in vain.
    pub fn reconsume_times(&self) -> i32 {
        self.int(self.after_hosts)
    }

    /// Log offset of the half message of a committed transaction, else 0.
    pub fn prepared_transaction_offset(&self) -> i64 {
        self.long(self.after_hosts + 4)
    }

    /// The body as stored, possibly compressed.
    pub fn body(&self) -> &'a [u8] {
        let at = self.after_hosts + 16;
        &self.bytes[at..at + self.body_len]
    }

    /// The topic.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties.
    pub fn properties(&self) -> Properties<'a> {
        Properties::new(&self.bytes[self.properties_at..])
    }

    /// The message id that the broker answered.
    pub fn message_id(&self) -> MessageId {
        MessageId::new(self.store_host(), self.physical_offset() as u64)
    }

    /// Whether the record gets a consume queue entry: all but prepared and rolled back ones.
    pub fn is_queued(&self) -> bool {
        matches!(
            self.sys_flag() & sys_flag::TRANSACTION,
            0 | sys_flag::COMMIT
        )
    }

    /// Whether the record gets index entries: all but rolled back ones.
    pub fn is_indexed(&self) -> bool {
        self.sys_flag() & sys_flag::TRANSACTION != sys_flag::ROLLBACK
    }

    /// The tag code of an ordinary topic's queue entry; 0 without tags.
    pub fn tags_code(&self) -> i64 {
        self.properties().get(names::TAGS).map_or(0, tags_code)
    }

    /// Checks the body's checksum.
    pub fn check_body(&self) -> Result<(), RecordError> {
        let (computed, recorded) = (body_crc(self.body()), self.body_crc());
        if computed == recorded {
            Ok(())
        } else {
            Err(RecordError::BodyCrc { computed, recorded })
        }
    }

    /// Checks that the record stands where it says it does, at log offset `at`.
    pub fn check_place(&self, at: u64) -> Result<(), RecordError> {
        let recorded = self.physical_offset();
        if i64::try_from(at) == Ok(recorded) {
            Ok(())
        } else {
            Err(RecordError::Misplaced { recorded, at })
        }
    }

    /// Rejects what a crash can leave of topic and properties, which have no checksum: an
    /// illegal topic, or a sector in them (the record stands at log offset `at`) without any
    /// byte written. Only for records that were possibly in flight when the broker died.
    pub fn check_text(&self, at: u64) -> Result<(), RecordError> {
        if !is_stored_topic(self.topic) {
            return Err(RecordError::Topic {
                topic: self.topic.to_owned(),
            });
        }
        let end = self.bytes.len() as u64;
        let mut from = self.topic_at as u64;
        while from < end {
            let next = ((at + from) / SECTOR + 1) * SECTOR - at;
            let to = next.min(end);
            let sector = &self.bytes[from as usize..to as usize];
            if sector.iter().all(|byte| *byte == 0) && !sector.is_empty() {
                // Two zero bytes are also what empty properties look like.
                if self.properties_at < self.bytes.len() || to < end {
                    return Err(RecordError::Torn { at: at + from });
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Checks the checksum over the whole record when its properties end with one
    /// (`enabledAppendPropCRC`); `Ok(false)` when there is none.
    pub fn check_record_crc(&self) -> Result<bool, RecordError> {
        let Some(recorded) = self.record_crc() else {
            return Ok(false);
        };
        let covered = &self.bytes[..self.bytes.len() - RECORD_CRC_SIZE];
        let computed = crc32fast::hash(covered) & 0x7fff_ffff;
        if computed == recorded {
            Ok(true)
        } else {
            Err(RecordError::RecordCrc { computed, recorded })
        }
    }

    fn record_crc(&self) -> Option<u32> {
        let text = self.properties().as_bytes();
        recorded_crc(text.get(text.len().checked_sub(RECORD_CRC_SIZE)?..)?)
    }

    // The positions below were checked by `parse`.

    fn int(&self, at: usize) -> i32 {
        i32_at(self.bytes, at).unwrap_or(0)
    }

    fn long(&self, at: usize) -> i64 {
        i64_at(self.bytes, at).unwrap_or(0)
    }

    fn host(&self, at: usize, v6_flag: i32) -> SocketAddr {
        let bytes = &self.bytes[at..];
        let (ip, port_at) = if self.sys_flag() & v6_flag != 0 {
            let octets = bytes.first_chunk::<16>().copied().unwrap_or_default();
            (Ipv6Addr::from(octets).into(), 16)
        } else {
            let octets = bytes.first_chunk::<4>().copied().unwrap_or_default();
            (Ipv4Addr::from(octets).into(), 4)
        };
        let port = i32_at(bytes, port_at).unwrap_or(0);
        SocketAddr::new(ip, u16::try_from(port).unwrap_or(0))
    }
}

/// The checksum that the last bytes of a property string name, if they name one.
pub(super) fn recorded_crc(tail: &[u8]) -> Option<u32> {
    let digits = tail.strip_prefix(b"__CRC32#\x01")?.strip_suffix(b"\x02")?;
    let number = digits.iter().rev().try_fold(0u64, |number, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + u64::from(digit - b'0'))
    })?;
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests;
