//! The walk over a log of two files.

use super::*;
use crate::format::message::{MessageParts, assign, blank_record, encode_into, encoded_len};

const SIZE: usize = 4096;

fn record(body: &[u8], offset: u64) -> Vec<u8> {
    let host = "127.0.0.1:10911".parse().unwrap();
    let parts = MessageParts {
        topic: "T",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: &[],
    };
    let mut bytes = vec![0; encoded_len(&parts).unwrap()];
    encode_into(&parts, &mut bytes).unwrap();
    assign(&mut bytes, 0, offset, 1);
    bytes
}

/// Two files: ten records and a blank one; three records.
fn log() -> (tempfile::TempDir, Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Vec::new();
    for number in 0..10 {
        let record = record(&[number; 200], first.len() as u64);
        first.extend_from_slice(&record);
    }
    let remaining = (SIZE - first.len()) as u32;
    first.extend_from_slice(&blank_record(remaining));
    first.resize(SIZE, 0);
    let mut second = Vec::new();
    for number in 0..3 {
        let record = record(&[number; 200], (SIZE + second.len()) as u64);
        second.extend_from_slice(&record);
    }
    second.resize(SIZE, 0);
    store(&dir, &first, &second);
    (dir, first, second)
}

fn store(dir: &tempfile::TempDir, first: &[u8], second: &[u8]) {
    std::fs::write(dir.path().join(layout::file_name(0)), first).unwrap();
    std::fs::write(dir.path().join(layout::file_name(SIZE as u64)), second).unwrap();
}

fn inspect(dir: &tempfile::TempDir) -> (Summary, Vec<String>) {
    let mut seen = Vec::new();
    let summary = walk(dir.path(), SIZE as u64, |found| match found {
        Found::Record { problem: None, .. } => {}
        Found::Record {
            offset,
            problem: Some(problem),
            ..
        } => {
            seen.push(format!("{offset}: {problem}"));
        }
        Found::Blank { offset, remaining } => seen.push(format!("{offset}: blank {remaining}")),
        Found::Damage {
            offset,
            error,
            len,
            path,
        } => {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            seen.push(format!("{offset} in {name}: {len} bytes, {error}"));
        }
        Found::Unused { offset, len } => seen.push(format!("{offset}: unused {len}")),
    });
    (summary.unwrap(), seen)
}

#[test]
fn a_sound_log_is_walked_from_end_to_end() {
    let (dir, ..) = log();
    let (summary, seen) = inspect(&dir);
    let size = 92 + 200;
    assert_eq!(seen, ["2920: blank 1176", "4972: unused 3220"]);
    let end = (SIZE + 3 * size) as u64;
    let expected = Summary {
        files: 2,
        records: 13,
        end,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
}

#[test]
fn damage_is_named_with_offset_and_file_and_what_follows_is_found() {
    let (dir, mut first, second) = log();
    first[292 + 4..292 + 100].fill(0xee);
    store(&dir, &first, &second);
    let (summary, seen) = inspect(&dir);
    let damage = "292 in 00000000000000000000: 292 bytes, \
                  magic number eeeeeeee is no record's";
    assert_eq!(seen[0], damage);
    assert_eq!(
        (summary.end, summary.records, summary.damages),
        (292, 12, 1)
    );
    assert_eq!(summary.records_behind_damage, 11);
}

#[test]
fn a_damaged_body_and_a_misplaced_record_are_named() {
    let (dir, mut first, mut second) = log();
    first[100] ^= 1;
    second[35] ^= 1;
    store(&dir, &first, &second);
    let (summary, seen) = inspect(&dir);
    assert!(
        seen[0].starts_with("0: the body's checksum is "),
        "{seen:?}"
    );
    assert_eq!(
        seen[2],
        "4096: the record's own log offset is 4097, it stands at 4096"
    );
    assert_eq!(
        (summary.end, summary.bad_records, summary.damages),
        (0, 2, 0)
    );
}

#[test]
fn no_damage_of_a_byte_stops_the_walk() {
    let (dir, first, second) = log();
    for at in (0..700).chain(2900..2940) {
        let mut changed = first.clone();
        changed[at] = !changed[at];
        store(&dir, &changed, &second);
        let (summary, _) = inspect(&dir);
        assert!(summary.records >= 11, "{at}: {summary:?}");
    }
}

#[test]
fn an_empty_directory_is_an_empty_log() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(inspect(&dir), (Summary::default(), vec![]));
}
