//! Encoding one message as a commit-log record (docs/format.md, Commit log record).
//!
//! A record is encoded once, in place, without allocation. Queue offset, log offset and store
//! time are zero until [`assign`] sets them: only the writer thread knows them.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use super::names::{LONG_TOPIC_MAX, TOPIC_MAX, is_stored_topic};
use super::properties::PROPERTY_SEPARATOR;
use super::record::{RECORD_CRC_SIZE, SECTOR, recorded_crc};

/// Magic number of a version 1 record (one byte of topic length).
pub const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
/// Magic number of a version 2 record (two bytes of topic length).
pub const MAGIC_V2: i32 = 0xDAA3_20AB_u32 as i32;
/// Magic number of the blank record that ends a file.
pub const MAGIC_BLANK: i32 = 0xCBD4_3194_u32 as i32;

/// Bytes that must stay free behind every record of a file.
pub const BLANK_SIZE: usize = 8;
/// Bytes of a version 1 record with IPv4 hosts beside body, topic and properties.
pub const FIXED_SIZE: usize = 91;
/// Position of the queue offset.
pub const QUEUE_OFFSET_AT: usize = 20;
/// Position of the log offset.
pub const PHYSICAL_OFFSET_AT: usize = 28;
/// Position of the system flags.
pub const SYS_FLAG_AT: usize = 36;
/// Position of the store time when the born host is IPv4.
pub const STORE_TIMESTAMP_AT: usize = 56;
/// Position of the store time when the born host is IPv6.
pub const STORE_TIMESTAMP_AT_V6: usize = 68;
/// The longest property string, in bytes.
pub const PROPERTIES_MAX: usize = i16::MAX as usize;
/// The most zero bytes in a row that a property string may hold: with one of its length in front
/// they do not fill a sector, which recovery takes for one that was never written.
pub const ZEROS_MAX: usize = SECTOR as usize - 2;

const HOST_V4: usize = 4 + 4;
const HOST_V6: usize = 16 + 4;
const BORN_HOST_AT: usize = 48;

const _: () = assert!(BORN_HOST_AT + HOST_V4 == STORE_TIMESTAMP_AT);
const _: () = assert!(BORN_HOST_AT + HOST_V6 == STORE_TIMESTAMP_AT_V6);
const _: () = assert!(STORE_TIMESTAMP_AT + 8 + HOST_V4 + 4 + 8 + 4 + 1 + 2 == FIXED_SIZE);

/// Bits of a record's system flags.
pub mod sys_flag {
    /// The body is compressed.
    pub const COMPRESSED: i32 = 0x1;
    /// The topic's filter type is MULTI_TAG.
    pub const MULTI_TAGS: i32 = 0x2;
    /// Mask of the transaction type.
    pub const TRANSACTION: i32 = 0xC;
    /// Transaction type: prepared.
    pub const PREPARED: i32 = 0x4;
    /// Transaction type: committed.
    pub const COMMIT: i32 = 0x8;
    /// Transaction type: rolled back.
    pub const ROLLBACK: i32 = 0xC;
    /// The born host has 16 bytes.
    pub const BORN_HOST_V6: i32 = 0x10;
    /// The store host has 16 bytes.
    pub const STORE_HOST_V6: i32 = 0x20;
    /// The body is a batch that clients unwrap.
    pub const NEED_UNWRAP: i32 = 0x40;
    /// The record stands for a whole batch.
    pub const INNER_BATCH: i32 = 0x80;
    /// Mask of the compression type.
    pub const COMPRESSION: i32 = 0x700;

    /// Whether a record gets a queue offset and an entry: prepared and rollback ones get none.
    #[must_use]
    pub const fn is_queued(flags: i32) -> bool {
        let kind = flags & TRANSACTION;
        kind != PREPARED && kind != ROLLBACK
    }

    /// The flags of a record that gets them all the same: without bits that deny it.
    #[must_use]
    pub const fn queued(flags: i32) -> i32 {
        match is_queued(flags) {
            true => flags,
            false => flags & !TRANSACTION,
        }
    }
}

/// What a record is made of. Of a batch, `body` is the client's batch body and `properties`
/// are the ones of the request, which are appended to each message's own.
#[derive(Copy, Clone, Debug)]
pub struct MessageParts<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Queue id.
    pub queue_id: i32,
    /// The user's flag.
    pub flag: i32,
    /// System flags; the two host bits are set from the hosts, whatever they are here.
    pub sys_flag: i32,
    /// The producer's time, ms.
    pub born_timestamp: i64,
    /// The producer's address.
    pub born_host: SocketAddr,
    /// The broker's address.
    pub store_host: SocketAddr,
    /// How often the message was consumed in vain.
    pub reconsume_times: i32,
    /// Log offset of the half message of a committed transaction, else 0.
    pub prepared_transaction_offset: i64,
    /// The body as it is to be stored.
    pub body: &'a [u8],
    /// Pieces of the property string; they are concatenated.
    pub properties: &'a [&'a [u8]],
}

/// Why a message cannot be a record.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum EncodeError {
    /// The topic is empty.
    #[error("the topic is empty")]
    NoTopic,
    /// The topic is too long for any record.
    #[error("the topic has {len} bytes, more than {LONG_TOPIC_MAX}")]
    TopicTooLong {
        /// Bytes of the topic.
        len: usize,
    },
    /// No topic of this name can be stored.
    #[error("the topic {topic:?} has characters that no topic may have")]
    TopicText {
        /// The topic.
        topic: String,
    },
    /// The property string looks like space that was never written.
    #[error("the properties have {len} zero bytes in a row, more than {ZEROS_MAX}")]
    Zeros {
        /// How many, at least.
        len: usize,
    },
    /// The property string does not fit its 16-bit length.
    #[error("the properties have {len} bytes, more than {PROPERTIES_MAX}")]
    PropertiesTooLong {
        /// Bytes of the property string.
        len: usize,
    },
    /// The record does not fit its 32-bit length.
    #[error("the record would have {len} bytes, more than 2 GiB")]
    RecordTooLong {
        /// Bytes of the record.
        len: usize,
    },
    /// The place given for the record has another size than the record.
    #[error("the record has {len} bytes, its place {place}")]
    WrongPlace {
        /// Bytes of the record.
        len: usize,
        /// Bytes of the place.
        place: usize,
    },
}

/// Bytes of the record that `parts` make.
pub fn encoded_len(parts: &MessageParts<'_>) -> Result<usize, EncodeError> {
    Encoding::single(parts).measure()
}

/// A record that was checked and measured.
pub(crate) struct Measured<'a> {
    encoding: Encoding<'a>,
    /// Bytes of the record.
    pub len: usize,
}

impl<'a> Measured<'a> {
    /// Checks the parts of a record.
    pub fn new(parts: &'a MessageParts<'a>) -> Result<Self, EncodeError> {
        let encoding = Encoding::single(parts);
        let len = encoding.measure()?;
        Ok(Self { encoding, len })
    }

    /// Bytes of the property string.
    pub fn properties_len(&self) -> usize {
        self.encoding.properties_len()
    }

    /// As [`encode_into`].
    ///
    /// # Panics
    /// When `out` does not have `len` bytes.
    pub fn write(&self, out: &mut [u8]) {
        self.encoding.write_measured(out);
    }
}

/// Encodes a record into `out`, whose size must be [`encoded_len`]. Queue offset, log offset
/// and store time are zero afterwards.
pub fn encode_into(parts: &MessageParts<'_>, out: &mut [u8]) -> Result<(), EncodeError> {
    Encoding::single(parts).write(out)
}

/// Sets what only the writer knows in an encoded record.
///
/// # Panics
/// When `record` is shorter than any record: it must come from [`encode_into`].
pub fn assign(record: &mut [u8], queue_offset: i64, physical_offset: u64, store_timestamp: i64) {
    assert!(record.len() >= FIXED_SIZE, "not an encoded record");
    assert!(physical_offset <= i64::MAX as u64, "log offset beyond 2^63");
    put(record, QUEUE_OFFSET_AT, &queue_offset.to_be_bytes());
    put(record, PHYSICAL_OFFSET_AT, &physical_offset.to_be_bytes());
    let at = store_timestamp_position(record);
    put(record, at, &store_timestamp.to_be_bytes());
}

/// Where the store time stands in an encoded record.
pub fn store_timestamp_position(record: &[u8]) -> usize {
    match super::i32_at(record, SYS_FLAG_AT) {
        Some(flags) if flags & sys_flag::BORN_HOST_V6 != 0 => STORE_TIMESTAMP_AT_V6,
        _ => STORE_TIMESTAMP_AT,
    }
}

/// The checksum stored for a body: CRC-32 without its highest bit, 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7fff_ffff
}

/// The blank record that ends a file with `remaining` unused bytes.
pub fn blank_record(remaining: u32) -> [u8; BLANK_SIZE] {
    assert!(
        remaining as usize >= BLANK_SIZE,
        "no room for a blank record"
    );
    let mut bytes = [0; BLANK_SIZE];
    bytes[0..4].copy_from_slice(&remaining.to_be_bytes());
    bytes[4..8].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    bytes
}

/// Whether records of `len` bytes fit a file that has `remaining` bytes left: a blank record
/// must always fit behind them.
pub fn fits(len: usize, remaining: u64) -> bool {
    (len + BLANK_SIZE) as u64 <= remaining
}

/// Is one more separator, which means nothing, set behind the properties? Where they end in a
/// zero byte, as a sector that was never written does, and where a client's text would pass
/// for the record's checksum.
fn is_closed(own: &[u8], properties: &[&[u8]]) -> bool {
    let pieces = [own].into_iter().chain(properties.iter().copied()).rev();
    let mut tail = [0; RECORD_CRC_SIZE];
    let mut at = RECORD_CRC_SIZE;
    for byte in pieces.flat_map(|piece| piece.iter().rev()) {
        if at == RECORD_CRC_SIZE && *byte != PROPERTY_SEPARATOR {
            return *byte == 0;
        }
        at -= 1;
        tail[at] = *byte;
        if at == 0 {
            return recorded_crc(&tail).is_some();
        }
    }
    false
}

/// One record to encode: a single message or one message of a batch.
pub(super) struct Encoding<'a> {
    parts: &'a MessageParts<'a>,
    flag: i32,
    body: &'a [u8],
    own_properties: &'a [u8],
    /// What stands between the two kinds of properties.
    separator: &'static [u8],
    /// What stands behind them.
    closing: &'static [u8],
}

impl<'a> Encoding<'a> {
    fn single(parts: &'a MessageParts<'a>) -> Self {
        Self::new(parts, parts.flag, parts.body, (&[], false))
    }

    /// Properties of the message itself stand in front of those in `parts`; with or without 0x02
    /// between the two.
    pub fn new(
        parts: &'a MessageParts<'a>,
        flag: i32,
        body: &'a [u8],
        (own_properties, separator): (&'a [u8], bool),
    ) -> Self {
        let separated = |yes: bool| -> &'static [u8] { if yes { SEPARATOR } else { &[] } };
        Self {
            parts,
            flag,
            body,
            own_properties,
            separator: separated(separator),
            closing: separated(is_closed(own_properties, parts.properties)),
        }
    }

    pub fn measure(&self) -> Result<usize, EncodeError> {
        let topic = self.parts.topic.len();
        if topic == 0 {
            return Err(EncodeError::NoTopic);
        }
        if topic > LONG_TOPIC_MAX {
            return Err(EncodeError::TopicTooLong { len: topic });
        }
        if !is_stored_topic(self.parts.topic) {
            return Err(EncodeError::TopicText {
                topic: self.parts.topic.to_owned(),
            });
        }
        self.check_zeros()?;
        let properties = self.properties_len();
        if properties > PROPERTIES_MAX {
            return Err(EncodeError::PropertiesTooLong { len: properties });
        }
        let hosts = host_len(self.parts.born_host) + host_len(self.parts.store_host);
        let version_2 = usize::from(topic > TOPIC_MAX);
        let fixed = FIXED_SIZE - 2 * HOST_V4 + hosts + version_2;
        let len = fixed + self.body.len() + topic + properties;
        if len > i32::MAX as usize {
            return Err(EncodeError::RecordTooLong { len });
        }
        Ok(len)
    }

    pub fn write(&self, out: &mut [u8]) -> Result<(), EncodeError> {
        let len = self.measure()?;
        if out.len() != len {
            return Err(EncodeError::WrongPlace {
                len,
                place: out.len(),
            });
        }
        self.write_measured(out);
        Ok(())
    }

    /// Writes the record into its place, which is as long as [`Encoding::measure`] has said.
    fn write_measured(&self, out: &mut [u8]) {
        let len = out.len();
        let parts = self.parts;
        let version_2 = parts.topic.len() > TOPIC_MAX;
        let mut place = Place { out, at: 0 };
        place.put(&(len as i32).to_be_bytes());
        place.put(&if version_2 { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
        place.put(&body_crc(self.body).to_be_bytes());
        place.put(&parts.queue_id.to_be_bytes());
        place.put(&self.flag.to_be_bytes());
        place.put(&[0; 16]); // queue offset, log offset
        place.put(&host_flags(parts).to_be_bytes());
        place.put(&parts.born_timestamp.to_be_bytes());
        place.host(parts.born_host);
        place.put(&[0; 8]); // store time
        place.host(parts.store_host);
        place.put(&parts.reconsume_times.to_be_bytes());
        place.put(&parts.prepared_transaction_offset.to_be_bytes());
        place.put(&(self.body.len() as i32).to_be_bytes());
        place.put(self.body);
        if version_2 {
            place.put(&(parts.topic.len() as i16).to_be_bytes());
        } else {
            place.put(&[parts.topic.len() as u8]);
        }
        place.put(parts.topic.as_bytes());
        place.put(&(self.properties_len() as i16).to_be_bytes());
        for piece in self.pieces() {
            place.put(piece);
        }
        assert_eq!(place.at, len, "a record is as long as measured");
    }

    /// The property string in pieces.
    fn pieces(&self) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        [self.own_properties, self.separator]
            .into_iter()
            .chain(self.parts.properties.iter().copied())
            .chain([self.closing])
    }

    fn properties_len(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }

    /// Recovery must be able to tell the properties from space that was never written.
    fn check_zeros(&self) -> Result<(), EncodeError> {
        let mut row = 0;
        for piece in self.pieces() {
            if !piece.is_empty() && !piece.contains(&0) {
                row = 0;
                continue;
            }
            for byte in piece {
                row = if *byte == 0 { row + 1 } else { 0 };
                if row > ZEROS_MAX {
                    return Err(EncodeError::Zeros { len: row });
                }
            }
        }
        Ok(())
    }
}

const SEPARATOR: &[u8] = &[PROPERTY_SEPARATOR];

fn host_flags(parts: &MessageParts<'_>) -> i32 {
    // Whole batches in one record are not stored: such a record would have no queue entry of its
    // own when it is read back.
    let foreign = sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6 | sys_flag::INNER_BATCH;
    let mut flags = parts.sys_flag & !foreign;
    if host_len(parts.born_host) == HOST_V6 {
        flags |= sys_flag::BORN_HOST_V6;
    }
    if host_len(parts.store_host) == HOST_V6 {
        flags |= sys_flag::STORE_HOST_V6;
    }
    flags
}

/// IPv4 addresses that arrive in IPv6 form are stored as IPv4, as Java sees them.
fn host_len(host: SocketAddr) -> usize {
    if host.ip().to_canonical().is_ipv4() {
        HOST_V4
    } else {
        HOST_V6
    }
}

/// A length that was checked to fit its field.
pub(super) fn i32_field(len: usize) -> [u8; 4] {
    (len as i32).to_be_bytes()
}

/// A length that was checked to fit its field.
pub(super) fn i16_field(len: usize) -> [u8; 2] {
    (len as i16).to_be_bytes()
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

struct Place<'o> {
    out: &'o mut [u8],
    at: usize,
}

impl Place<'_> {
    fn put(&mut self, bytes: &[u8]) {
        put(self.out, self.at, bytes);
        self.at += bytes.len();
    }

    fn host(&mut self, host: SocketAddr) {
        match host.ip().to_canonical() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;

    #[test]
    fn the_body_checksum_has_31_bits() {
        let cases: [(&[u8], u32); 7] = [
            (b"", 0),
            (b"a", 0x68b7_be43),
            (b"abc", 0x3524_41c2),
            (b"123456789", 0x4bf4_3926),
            (b"hello", 0x3610_a686),
            (b"\0", 0x5202_ef8d),
            (b"Hello RocketMQ", 0x69c8_65ed),
        ];
        for (body, crc) in cases {
            assert_eq!(body_crc(body), crc, "{body:?}");
        }
    }

    #[test]
    fn a_record_leaves_room_for_a_blank_one() {
        assert!(fits(816, 824));
        assert!(!fits(817, 824));
        assert_eq!(
            blank_record(824),
            [0, 0, 0x03, 0x38, 0xcb, 0xd4, 0x31, 0x94]
        );
        assert_eq!(blank_record(8), [0, 0, 0, 8, 0xcb, 0xd4, 0x31, 0x94]);
    }

    #[test]
    fn what_does_not_fit_a_record_is_refused() {
        let host: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let mut parts = MessageParts {
            topic: "",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"",
            properties: &[],
        };
        assert_eq!(encoded_len(&parts), Err(EncodeError::NoTopic));
        let long = "t".repeat(256);
        parts.topic = &long;
        assert_eq!(
            encoded_len(&parts),
            Err(EncodeError::TopicTooLong { len: 256 })
        );
        parts.topic = "T";
        let (most, one) = (vec![b'p'; PROPERTIES_MAX], b"p".as_slice());
        let (fitting, too_many) = ([most.as_slice()], [most.as_slice(), one]);
        parts.properties = &fitting;
        assert_eq!(encoded_len(&parts), Ok(91 + 1 + PROPERTIES_MAX));
        parts.properties = &too_many;
        let error = EncodeError::PropertiesTooLong {
            len: PROPERTIES_MAX + 1,
        };
        assert_eq!(encoded_len(&parts), Err(error));
        parts.properties = &[];
        let error = EncodeError::WrongPlace { len: 92, place: 91 };
        assert_eq!(encode_into(&parts, &mut [0; 91]), Err(error));
    }

    fn parts<'a>(properties: &'a [&'a [u8]]) -> MessageParts<'a> {
        let host: SocketAddr = "127.0.0.1:1".parse().unwrap();
        MessageParts {
            topic: "host.example-%RETRY%a|b_c+1",
            queue_id: 0,
            flag: 0,
            sys_flag: sys_flag::INNER_BATCH | sys_flag::COMPRESSED,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            properties,
        }
    }

    /// Encodes and checks as recovery does, wherever the record may stand.
    fn recovered(parts: &MessageParts<'_>) -> Vec<u8> {
        let mut bytes = vec![0; encoded_len(parts).unwrap()];
        encode_into(parts, &mut bytes).unwrap();
        let record = Record::decode(&bytes).unwrap();
        for at in 0..SECTOR {
            assert_eq!(
                record.check_text(at),
                Ok(()),
                "at {at}: {:?}",
                parts.properties
            );
        }
        assert_eq!(record.check_record_crc(), Ok(false));
        assert_eq!(record.sys_flag(), sys_flag::COMPRESSED);
        record.properties().as_bytes().to_vec()
    }

    #[test]
    fn recovery_accepts_every_record_that_is_encoded() {
        let zeros = [0; ZEROS_MAX];
        let words: [&[u8]; 9] = [
            b"",
            b"k\x01v\x02",
            b"k\x01\0",
            &zeros,
            b"__CRC32#\x010123456780\x02",
            b"__CRC32#\x01",
            b"0123456789",
            b"\x02",
            b"\0",
        ];
        let word = |number: usize| words[number % words.len()];
        let mut refused = 0;
        for number in 0..words.len().pow(4) {
            let [a, b, c] = [9, 81, 729].map(|place| word(number / place));
            let properties = [word(number), a, b, c];
            let parts = parts(&properties);
            match encoded_len(&parts) {
                Ok(_) => drop(recovered(&parts)),
                Err(EncodeError::Zeros { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn a_separator_is_set_only_where_recovery_needs_it() {
        for plain in ["", "k\u{1}v", "k\u{1}v\u{2}", "\0k\u{1}v"] {
            assert_eq!(recovered(&parts(&[plain.as_bytes()])), plain.as_bytes());
        }
        assert_eq!(recovered(&parts(&[b"k\x01", b"v\0"])), b"k\x01v\0\x02");
        let crc = b"k\x01v\x02__CRC32#\x010123456780\x02";
        let closed = [crc.as_slice(), b"\x02"].concat();
        assert_eq!(recovered(&parts(&[&crc[..9], &crc[9..]])), closed);
    }

    #[test]
    fn what_looks_like_unwritten_space_is_refused() {
        let zeros = [0; ZEROS_MAX + 1];
        let (left, right) = zeros.split_at(100);
        let properties: [&[u8]; 4] = [b"k\x01", left, right, b"\x02"];
        let error = Err(EncodeError::Zeros { len: ZEROS_MAX + 1 });
        assert_eq!(encoded_len(&parts(&properties)), error);
        let topic = "a b";
        let parts = MessageParts {
            topic,
            ..parts(&[])
        };
        let topic = topic.to_owned();
        assert_eq!(encoded_len(&parts), Err(EncodeError::TopicText { topic }));
    }
}
