use super::*;
use crate::format::message::{MessageParts, assign, encode_into, encoded_len};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

const RECORD_A: &str = "
00 00 00 d7 da a3 20 a7 69 c8 65 ed 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00 05 00 00 00 00
00 00 03 e8 00 00 00 00 00 00 01 8b cf e5 68 7b c0 a8 01 0a 00 00 d4 31 00 00 01 8b cf e5 69 c8
0a 00 00 05 00 00 2a 9f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0e 48 65 6c 6c 6f 20 52 6f
63 6b 65 74 4d 51 09 54 6f 70 69 63 54 65 73 74 00 65 55 4e 49 51 5f 4b 45 59 01 41 43 31 31 30
30 30 31 30 30 30 30 32 41 39 46 30 30 30 30 30 30 30 30 30 30 30 30 30 30 41 31 02 4b 45 59 53
01 6f 72 64 65 72 2d 31 30 30 31 20 6f 72 64 65 72 2d 31 30 30 32 02 54 41 47 53 01 54 61 67 41
02 43 4c 55 53 54 45 52 01 44 65 66 61 75 6c 74 43 6c 75 73 74 65 72";

const RECORD_B: &str = "
00 00 00 75 da a3 20 a7 0c dc 16 83 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 30 00 00 01 8b cf e5 68 00 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01
00 00 00 01 00 00 01 8b cf e5 68 01 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 00 00 2a 9f
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 78 01 54 00 00";

fn parts_a<'a>(properties: &'a [&'a [u8]]) -> MessageParts<'a> {
    MessageParts {
        topic: "TopicTest",
        queue_id: 2,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_123,
        born_host: "192.168.1.10:54321".parse().unwrap(),
        store_host: "10.0.0.5:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"Hello RocketMQ",
        properties,
    }
}

fn encode(parts: &MessageParts<'_>, queue_offset: i64, offset: u64, time: i64) -> Vec<u8> {
    let mut bytes = vec![0xee; encoded_len(parts).unwrap()];
    encode_into(parts, &mut bytes).unwrap();
    assign(&mut bytes, queue_offset, offset, time);
    bytes
}

#[test]
fn record_a_is_encoded_as_apache_does() {
    let pieces: [&[u8]; 3] = [
        b"UNIQ_KEY\x01AC11000100002A9F00000000000000A1\x02",
        b"KEYS\x01order-1001 order-1002\x02TAGS\x01TagA\x02",
        b"CLUSTER\x01DefaultCluster",
    ];
    let bytes = encode(&parts_a(&pieces), 5, 1000, 1_700_000_000_456);
    assert_eq!(bytes, hex(RECORD_A));
}

#[test]
fn record_a_is_read_as_apache_does() {
    let mut bytes = hex(RECORD_A);
    bytes.extend_from_slice(b"more");
    let record = Record::decode(&bytes).unwrap();
    assert_eq!((record.size(), record.version()), (215, 1));
    assert_eq!((record.queue_id(), record.queue_offset()), (2, 5));
    assert_eq!((record.physical_offset(), record.sys_flag()), (1000, 0));
    assert_eq!(record.born_timestamp(), 1_700_000_000_123);
    assert_eq!(record.store_timestamp(), 1_700_000_000_456);
    assert_eq!(record.born_host().to_string(), "192.168.1.10:54321");
    assert_eq!(record.store_host().to_string(), "10.0.0.5:10911");
    assert_eq!(record.body(), b"Hello RocketMQ");
    assert_eq!(record.topic(), "TopicTest");
    assert_eq!(record.properties().get_str("TAGS"), Some("TagA"));
    assert_eq!(record.tags_code(), 2_598_919);
    assert_eq!(
        record.message_id().as_str(),
        "0A00000500002A9F00000000000003E8"
    );
    assert!(record.is_queued() && record.is_indexed());
    assert_eq!(record.check_body(), Ok(()));
    assert_eq!(record.check_place(1000), Ok(()));
    assert_eq!(record.check_text(1000), Ok(()));
    assert_eq!(record.check_record_crc(), Ok(false));
}

#[test]
fn ipv6_hosts_move_what_follows_them() {
    let parts = MessageParts {
        topic: "T",
        queue_id: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: "[2001:db8::1]:1".parse().unwrap(),
        store_host: "[2001:db8::1]:10911".parse().unwrap(),
        body: b"x",
        ..parts_a(&[])
    };
    let bytes = encode(&parts, 0, 0, 1_700_000_000_001);
    assert_eq!(bytes, hex(RECORD_B));
    let record = Record::decode(&bytes).unwrap();
    assert_eq!(record.store_timestamp(), 1_700_000_000_001);
    assert_eq!(record.born_host(), parts.born_host);
    assert_eq!(record.store_host(), parts.store_host);
    let id = "20010DB800000000000000000000000100002A9F0000000000000000";
    assert_eq!(record.message_id().as_str(), id);
    assert_eq!(record.check_text(0), Ok(()));
}

#[test]
fn the_host_bits_follow_the_hosts_and_not_the_client() {
    let parts = MessageParts {
        sys_flag: 0x31,
        ..parts_a(&[])
    };
    let bytes = encode(&parts, 0, 0, 1);
    let record = Record::decode(&bytes).unwrap();
    assert_eq!(record.sys_flag(), 1);
    let mapped = MessageParts {
        born_host: "[::ffff:192.168.1.10]:54321".parse().unwrap(),
        ..parts_a(&[])
    };
    assert_eq!(encode(&mapped, 0, 0, 1), encode(&parts_a(&[]), 0, 0, 1));
}

#[test]
fn a_long_topic_makes_a_version_2_record() {
    let topic = format!("%RETRY%{}", "g".repeat(125));
    let parts = MessageParts {
        topic: &topic,
        body: b"x",
        ..parts_a(&[])
    };
    let bytes = encode(&parts, 0, 0, 1);
    assert_eq!(bytes.len(), 225);
    assert_eq!(bytes[..8], [0, 0, 0, 0xe1, 0xda, 0xa3, 0x20, 0xab]);
    assert_eq!(bytes[0x58..0x5b], [b'x', 0, 0x84]);
    let record = Record::decode(&bytes).unwrap();
    assert_eq!((record.version(), record.topic()), (2, topic.as_str()));
}

#[test]
fn a_checksum_over_the_record_is_verified() {
    let mut bytes = hex(RECORD_A)[..0x70].to_vec();
    bytes[3] = 0x90;
    bytes.extend_from_slice(&hex(
        "00 1e 54 41 47 53 01 54 61 67 41 02 5f 5f 43 52 43 33 32 23 01 32 35 38 33 35 30 32 36 37
         31 02",
    ));
    let record = Record::decode(&bytes).unwrap();
    assert_eq!(record.check_record_crc(), Ok(true));
    assert_eq!(record.properties().get_str("TAGS"), Some("TagA"));
    bytes[15] ^= 1;
    let damaged = Record::decode(&bytes).unwrap().check_record_crc();
    assert!(matches!(
        damaged,
        Err(RecordError::RecordCrc {
            recorded: 1_762_053_852,
            ..
        })
    ));
}

#[test]
fn a_blank_record_ends_the_file() {
    let blank = hex("00 00 03 38 cb d4 31 94 00");
    assert!(matches!(
        decode(&blank),
        Ok(Decoded::Blank { remaining: 824 })
    ));
    assert!(matches!(
        Record::decode(&hex("00000008 cbd43194")),
        Err(RecordError::Blank)
    ));
}

#[test]
fn errors_say_what_is_wrong() {
    let good = hex(RECORD_A);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        Record::decode(&changed)
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(
        Record::decode(&good[..7]).unwrap_err(),
        RecordError::TooShort { available: 7 }
    );
    assert_eq!(
        Record::decode(&[0; 100]).unwrap_err(),
        RecordError::Magic { found: 0 }
    );
    let size = RecordError::Size {
        size: 215,
        available: 214,
    };
    assert_eq!(Record::decode(&good[..214]).unwrap_err(), size);
    let text = "record size 2147483647 is impossible with 215 bytes available";
    assert_eq!(with(0, &[0x7f, 0xff, 0xff, 0xff]).as_deref(), Some(text));
    let text = "record size -1 is impossible with 215 bytes available";
    assert_eq!(with(0, &[0xff; 4]).as_deref(), Some(text));
    let text = "the length of the body is -1, beyond the record's 215 bytes";
    assert_eq!(with(84, &[0xff; 4]).as_deref(), Some(text));
    let text = "the length of the topic is -128, beyond the record's 215 bytes";
    assert_eq!(with(102, &[0x80]).as_deref(), Some(text));
    let text = "the lengths inside add up to 214 bytes, the record has 215";
    assert_eq!(with(113, &[0x64]).as_deref(), Some(text));
    assert_eq!(
        with(103, &[0xff]).as_deref(),
        Some("the topic is not UTF-8")
    );
}

#[test]
fn no_damage_of_a_byte_makes_reading_panic() {
    let good = hex(RECORD_A);
    for at in 0..good.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            if let Ok(record) = Record::decode(&bytes) {
                let _ = (
                    record.born_host(),
                    record.store_host(),
                    record.store_timestamp(),
                );
                let _ = (
                    record.check_body(),
                    record.check_text(at as u64),
                    record.tags_code(),
                );
                let _ = (
                    record.message_id(),
                    record.check_record_crc(),
                    record.body(),
                );
                let _ = record.properties().index_keys().count();
            }
        }
        let _ = decode(&good[..at]);
    }
}

#[test]
fn a_damaged_body_has_another_checksum() {
    let mut bytes = hex(RECORD_A);
    bytes[90] ^= 1;
    let record = Record::decode(&bytes).unwrap();
    assert!(matches!(
        record.check_body(),
        Err(RecordError::BodyCrc { .. })
    ));
}

#[test]
fn a_sector_of_the_properties_that_never_reached_the_disk_is_found() {
    let long = [&b"KEYS\x01"[..], &[b'k'; 2000]].concat();
    let pieces = [long.as_slice()];
    let mut bytes = encode(&parts_a(&pieces), 0, 1000, 1);
    assert_eq!(Record::decode(&bytes).unwrap().check_text(1000), Ok(()));
    // Log offsets 1536 to 2047 are one sector of it.
    bytes[536..1048].fill(0);
    let torn = Record::decode(&bytes).unwrap().check_text(1000);
    assert_eq!(torn, Err(RecordError::Torn { at: 1536 }));
    // The same zeros elsewhere are not what a crash leaves.
    assert_eq!(Record::decode(&bytes).unwrap().check_text(900), Ok(()));
}

#[test]
fn a_record_elsewhere_than_it_says_is_found() {
    let bytes = hex(RECORD_A);
    let record = Record::decode(&bytes).unwrap();
    assert_eq!(
        record.check_place(1001),
        Err(RecordError::Misplaced {
            recorded: 1000,
            at: 1001
        })
    );
}
