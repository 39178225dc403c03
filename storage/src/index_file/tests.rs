use std::fs;

use super::*;
use crate::format::message::{MessageParts, assign, encode_into, encoded_len};

fn record(topic: &str, properties: &[u8], offset: u64, time: i64) -> Vec<u8> {
    let host = "127.0.0.1:10911".parse().unwrap();
    let parts = MessageParts {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"x",
        properties: &[properties],
    };
    let mut bytes = vec![0; encoded_len(&parts).unwrap()];
    encode_into(&parts, &mut bytes).unwrap();
    assign(&mut bytes, 0, offset, time);
    bytes
}

struct Fixture {
    dir: tempfile::TempDir,
    index: Index,
}

impl Fixture {
    fn new(slots: u32, items: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let index = Self::open(&dir, slots, items);
        Self { dir, index }
    }

    fn open(dir: &tempfile::TempDir, slots: u32, items: u32) -> Index {
        let path = dir.path().join("index");
        Index::open(path, IndexShape { slots, items }, MapBudget::new(4)).unwrap()
    }

    fn put(&self, topic: &str, properties: &[u8], offset: u64, time: i64) {
        let bytes = record(topic, properties, offset, time);
        self.index.put(&Record::decode(&bytes).unwrap()).unwrap();
    }

    fn key(&self, key: &str, offset: u64, time: i64) {
        self.put(
            "TopicTest",
            format!("KEYS\x01{key}").as_bytes(),
            offset,
            time,
        );
    }

    fn find(&self, key: &str, begin: i64, end: i64) -> Vec<u64> {
        self.index
            .query("TopicTest", key.as_bytes(), 64, begin, end)
            .unwrap()
            .offsets
    }

    fn files(&self) -> Vec<Vec<u8>> {
        let mut paths: Vec<_> = fs::read_dir(self.dir.path().join("index"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        paths.iter().map(|path| fs::read(path).unwrap()).collect()
    }
}

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

#[test]
fn items_slots_and_header_are_those_of_apache() {
    // Apache's default shape needs 420 MB of sparse file, of which a few pages are written.
    let fixture = Fixture::new(5_000_000, 20_000_000);
    let keys = b"UNIQ_KEY\x01AC11000100002A9F00000000000000A1\x02KEYS\x01order-1001 order-1002";
    fixture.put("TopicTest", keys, 1000, 1_700_000_000_456);
    let path = fs::read_dir(fixture.dir.path().join("index"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let file = fs::File::open(path.path()).unwrap();
    let bytes = |at: u64, len: usize| {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    assert_eq!(file.metadata().unwrap().len(), 420_000_040);
    for (at, item) in [
        (20_000_060, "6b1faa6f 00000000000003e8 00000000 00000000"),
        (20_000_080, "3e373301 00000000000003e8 00000000 00000000"),
        (20_000_100, "3e373302 00000000000003e8 00000000 00000000"),
    ] {
        assert_eq!(bytes(at, 20), hex(item));
    }
    for (at, item) in [(8_949_476, 1), (15_219_756, 2), (15_219_760, 3)] {
        assert_eq!(bytes(at, 4), [0, 0, 0, item]);
    }
    let header = "0000018bcfe569c8 0000018bcfe569c8 00000000000003e8 00000000000003e8 \
                  00000003 00000004";
    assert_eq!(bytes(0, 40), hex(header));

    fixture.key("order-1001", 2000, 1_700_000_011_356);
    assert_eq!(
        bytes(20_000_120, 20),
        hex("3e373301 00000000000007d0 0000000a 00000002")
    );
    assert_eq!(bytes(15_219_756, 4), [0, 0, 0, 4]);
    let header = "0000018bcfe569c8 0000018bcfe5945c 00000000000003e8 00000000000007d0 \
                  00000003 00000005";
    assert_eq!(bytes(0, 40), hex(header));
    assert_eq!(fixture.find("order-1001", 0, i64::MAX), [2000, 1000]);
    // Times are whole seconds: the later record counts as stored at …010456.
    assert_eq!(fixture.find("order-1001", 1_700_000_010_457, i64::MAX), []);
}

#[test]
fn a_full_file_hands_its_end_to_the_next_one() {
    let fixture = Fixture::new(10, 2);
    fixture.key("first", 777, 1_700_000_000_000);
    drop(fixture.index);
    let fixture = Fixture {
        index: Fixture::open(&fixture.dir, 10, 2),
        dir: fixture.dir,
    };
    assert_eq!(fixture.index.full_end_timestamp(), 1_700_000_000_000);
    fixture.key("k", 5000, 1_700_000_005_999);
    let files = fixture.files();
    let item = "4a53eea9 0000000000001388 00000005 00000000";
    assert_eq!(files[1][40 + 40 + 20..], hex(item));
    let header = "0000018bcfe57f6f 0000018bcfe57f6f 0000000000001388 0000000000001388 \
                  00000001 00000002";
    assert_eq!(files[1][..40], hex(header));
    assert_eq!(fixture.index.file_count(), 2);
    assert_eq!(fixture.find("first", 0, i64::MAX), [777]);
}

#[test]
fn a_file_holds_one_key_less_than_it_has_items() {
    let fixture = Fixture::new(3, 5);
    for number in 0..9u64 {
        fixture.key(
            &format!("k{number}"),
            1000 + number,
            1_000_000 + number as i64,
        );
    }
    assert_eq!(fixture.index.file_count(), 3);
    for number in 0..9u64 {
        assert_eq!(
            fixture.find(&format!("k{number}"), 0, i64::MAX),
            [1000 + number]
        );
    }
    let hits = fixture
        .index
        .query("TopicTest", b"none", 64, 0, i64::MAX)
        .unwrap();
    assert_eq!((hits.last_timestamp, hits.last_offset), (1_000_008, 1008));
}

#[test]
fn a_record_without_keys_makes_a_file_and_no_item() {
    let fixture = Fixture::new(3, 5);
    fixture.put("T", b"TAGS\x01a", 0, 1);
    assert_eq!(fixture.files(), [vec![0; 40 + 12 + 100]]);
}

#[test]
fn records_before_the_last_one_are_skipped() {
    let fixture = Fixture::new(3, 50);
    fixture.key("a", 1000, 1);
    fixture.key("a", 999, 1);
    fixture.key("a", 1000, 1);
    assert_eq!(fixture.find("a", 0, i64::MAX), [1000, 1000]);
}

#[test]
fn a_query_ends_at_its_limit_and_its_time_range() {
    let fixture = Fixture::new(1, 100);
    for number in 0..50u64 {
        let key = if number % 2 == 0 { "even" } else { "odd" };
        fixture.key(key, number, 1_000_000 + number as i64 * 1000);
    }
    let hits = fixture
        .index
        .query("TopicTest", b"even", 3, 0, i64::MAX)
        .unwrap();
    assert_eq!(hits.offsets, [48, 46, 44]);
    assert_eq!(fixture.find("odd", 1_010_000, 1_014_000), [13, 11]);
    assert_eq!(fixture.find("odd", 1_060_000, 1_070_000), []);
}

#[test]
fn a_query_looks_at_so_many_items_in_a_step_and_finds_the_same() {
    let fixture = Fixture::new(10, 1000);
    for number in 0..2500u64 {
        fixture.key("same", number, 1_000_000 + number as i64 * 1000);
    }
    let all = fixture
        .index
        .query("TopicTest", b"same", 64, 0, 1_009_000)
        .unwrap();
    assert_eq!(all.offsets, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    for (per_step, steps) in [(100, 10), (1, 999), (333, 3), (5000, 1)] {
        let mut query = KeyQuery::new("TopicTest", b"same", 64, 0, 1_009_000);
        let mut taken = 1;
        let hits = loop {
            match fixture.index.go_on(&mut query, per_step).unwrap() {
                Some(hits) => break hits,
                None => taken += 1,
            }
        };
        // The oldest of three files is the one whose times are asked for.
        assert_eq!((taken, hits), (steps, all.clone()), "{per_step}");
    }
}

#[test]
fn a_query_ends_where_files_expired_between_two_steps() {
    let fixture = Fixture::new(10, 100);
    for number in 0..250u64 {
        fixture.key("same", number, 1_000_000);
    }
    let mut query = KeyQuery::new("TopicTest", b"same", 1000, 0, i64::MAX);
    assert_eq!(fixture.index.go_on(&mut query, 100).unwrap(), None);
    assert_eq!(fixture.index.delete_before(198).unwrap(), 2);
    let hits = fixture.index.go_on(&mut query, 1000).unwrap().unwrap();
    let found: Vec<u64> = (150..250).rev().collect();
    assert_eq!(hits.offsets, found);
}

#[test]
fn a_damaged_chain_ends_the_query() {
    let fixture = Fixture::new(1, 10);
    for number in 0..5 {
        fixture.key("k", number, 1_000_000);
    }
    let path = fs::read_dir(fixture.dir.path().join("index"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let good = fs::read(path.path()).unwrap();
    let previous_of_4 = 40 + 4 + 4 * 20 + 16;
    for previous in [4, 5, 9, -1, i32::MAX, i32::MIN] {
        let mut bytes = good.clone();
        bytes[previous_of_4..previous_of_4 + 4].copy_from_slice(&previous.to_be_bytes());
        fs::write(path.path(), &bytes).unwrap();
        let index = Fixture::open(&fixture.dir, 1, 10);
        let hits = index.query("TopicTest", b"k", 64, 0, i64::MAX).unwrap();
        assert_eq!(hits.offsets, [4, 3], "{previous}");
    }
    // A slot and an item count beyond the file.
    let mut bytes = good;
    bytes[40..44].copy_from_slice(&i32::MAX.to_be_bytes());
    bytes[36..40].copy_from_slice(&i32::MAX.to_be_bytes());
    fs::write(path.path(), &bytes).unwrap();
    let index = Fixture::open(&fixture.dir, 1, 10);
    assert_eq!(
        index
            .query("TopicTest", b"k", 64, 0, i64::MAX)
            .unwrap()
            .offsets,
        []
    );
}

#[test]
fn a_file_of_another_shape_is_refused_by_name() {
    let fixture = Fixture::new(3, 5);
    fixture.key("a", 0, 1);
    let path = fixture.dir.path().join("index");
    let shape = IndexShape { slots: 3, items: 6 };
    let error = Index::open(path, shape, MapBudget::new(1)).unwrap_err();
    assert!(matches!(
        error,
        IndexError::Shape {
            found: 152,
            expected: 172,
            ..
        }
    ));
    assert!(error.to_string().contains("maxHashSlotNum"));
}

#[test]
fn what_is_no_number_is_left_alone_and_an_empty_file_goes() {
    let fixture = Fixture::new(3, 5);
    fixture.key("a", 0, 1);
    let path = fixture.dir.path().join("index");
    fs::write(path.join("notes.txt"), b"mine").unwrap();
    fs::write(path.join("99999999999999999"), b"").unwrap();
    let index = Fixture::open(&fixture.dir, 3, 5);
    assert_eq!(index.file_count(), 1);
    assert!(path.join("notes.txt").exists() && !path.join("99999999999999999").exists());
}

#[test]
fn expired_files_go_and_the_last_one_stays() {
    let fixture = Fixture::new(3, 3);
    for number in 0..7 {
        fixture.key("k", number * 100, 1_000_000);
    }
    assert_eq!(fixture.index.file_count(), 4);
    assert_eq!(fixture.index.delete_before(100).unwrap(), 0);
    assert_eq!(fixture.index.delete_before(101).unwrap(), 1);
    assert_eq!(fixture.index.delete_before(u64::MAX).unwrap(), 2);
    assert_eq!(fixture.index.file_count(), 1);
    assert_eq!(fixture.find("k", 0, i64::MAX), [600]);
}

#[test]
fn after_a_crash_files_newer_than_the_checkpoint_go_and_say_where_to_begin_again() {
    let fixture = Fixture::new(3, 3);
    for number in 0..6 {
        fixture.key("k", number * 100, 1_000_000 + number as i64);
    }
    assert_eq!(fixture.index.drop_newer_than(1_000_005).unwrap(), None);
    assert_eq!(fixture.index.drop_newer_than(1_000_001).unwrap(), Some(200));
    assert_eq!(fixture.index.file_count(), 1);
    assert_eq!(fixture.index.drop_newer_than(0).unwrap(), Some(0));
    assert_eq!(fixture.index.file_count(), 0);
}

/// Items behind the end are garbage that nobody reads; the rest must be the same.
fn used(mut file: Vec<u8>, shape: IndexShape) -> Vec<u8> {
    let header = IndexHeader::decode(file[..40].try_into().unwrap());
    file.truncate(shape.item_position(header.next_item as u32) as usize);
    file
}

#[test]
fn a_rewound_index_is_what_it_was() {
    let shape = IndexShape { slots: 4, items: 8 };
    for keep in 1..20u64 {
        let fixture = Fixture::new(4, 8);
        let put = |from: u64, to: u64| {
            for number in from..to {
                fixture.key(
                    &format!("k{}", number % 5),
                    number * 10,
                    1_000_000 + number as i64,
                );
            }
        };
        put(0, keep);
        let (mark, before) = (fixture.index.mark().unwrap(), fixture.files());
        put(keep, 25);
        let after = fixture.files();
        assert!(fixture.index.rewind(Some(&mark)).unwrap());
        let rewound = fixture.files();
        assert_eq!(rewound.len(), before.len());
        for (rewound, before) in rewound.into_iter().zip(before) {
            assert_eq!(used(rewound, shape), used(before, shape), "{keep}");
        }
        put(keep, 25);
        for (again, after) in fixture.files().into_iter().zip(after) {
            assert_eq!(used(again, shape), used(after, shape), "{keep}");
        }
    }
}

#[test]
fn without_its_marked_file_the_index_begins_again() {
    let fixture = Fixture::new(4, 8);
    fixture.key("k", 0, 1);
    let mut mark = fixture.index.mark().unwrap();
    mark.header.next_item = 5;
    assert!(!fixture.index.rewind(Some(&mark)).unwrap());
    assert_eq!(fixture.index.file_count(), 0);
    fixture.key("k", 0, 1);
    assert!(
        fixture.index.rewind(None).unwrap(),
        "nothing was indexed at the resume point"
    );
    assert_eq!(fixture.index.file_count(), 0);
}

#[test]
fn the_index_is_cut_with_the_log() {
    for cut in 0..26u64 {
        let fixture = Fixture::new(4, 8);
        for number in 0..25u64 {
            fixture.key("k", number * 10, 1_000_000 + number as i64 * 700);
        }
        fixture.index.truncate(cut * 10).unwrap();
        let expected: Vec<u64> = (0..cut.min(25)).rev().map(|number| number * 10).collect();
        assert_eq!(fixture.find("k", 0, i64::MAX), expected, "{cut}");
        let last = (cut.min(25).saturating_sub(1)) as i64;
        let near = fixture.find("k", 1_000_000 + last * 700 - 999, i64::MAX);
        assert_eq!(near.first(), expected.first(), "{cut}");
        // The next record of the log is indexed again.
        fixture.key("k", cut * 10, 1_000_000 + cut as i64 * 700);
        assert_eq!(fixture.find("k", 0, i64::MAX).first(), Some(&(cut * 10)));
    }
}

/// A file that was begun and holds nothing yet begins with the end of the one before.
#[test]
fn what_comes_after_a_cut_is_indexed_also_where_an_empty_file_knew_more() {
    for is_opened_anew in [false, true] {
        let mut fixture = Fixture::new(3, 4);
        for offset in [100, 200, 300] {
            fixture.key("k", offset, 1);
        }
        fixture.put("TopicTest", b"TAGS\x01a", 400, 1);
        assert_eq!(fixture.index.file_count(), 2);
        if is_opened_anew {
            fixture.index = Fixture::open(&fixture.dir, 3, 4);
        }
        fixture.index.truncate(250).unwrap();
        assert_eq!(fixture.find("k", 0, i64::MAX), [200, 100]);
        for offset in [250, 310] {
            fixture.key("k", offset, 1);
        }
        assert_eq!(fixture.find("k", 0, i64::MAX), [310, 250, 200, 100]);
    }
}

#[test]
fn the_first_key_of_a_file_is_found_by_its_time_however_long_nothing_came_before() {
    let fixture = Fixture::new(5, 4);
    for number in 0..5 {
        let time = 1_700_000_000_000 + i64::from(number) * 10_000;
        fixture.key(&format!("k{number}"), 1000 + number as u64 * 100, time);
    }
    assert_eq!(fixture.files().len(), 2);
    for number in 0..5 {
        let time = 1_700_000_000_000 + i64::from(number) * 10_000;
        let found = fixture.find(&format!("k{number}"), time - 1000, time);
        assert_eq!(found, [1000 + number as u64 * 100]);
    }
}

/// Has no space for a page that has none yet.
struct Full;

impl medium::Witness for Full {
    fn before(&mut self, request: medium::Request<'_>) -> io::Result<()> {
        match request {
            medium::Request::Populate(_) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => Ok(()),
        }
    }

    fn after(&mut self, _request: medium::Request<'_>) {}
}

#[test]
fn an_index_is_taken_back_on_a_full_disk() {
    let fixture = Fixture::new(20_000, 8);
    fixture.key("kept", 0, 1);
    let mark = fixture.index.mark().unwrap();
    fixture.key("taken", 10, 2);
    medium::listen(Some(std::rc::Rc::new(std::cell::RefCell::new(Full))));
    let rewound = fixture.index.rewind(Some(&mark));
    medium::listen(None);
    assert!(rewound.unwrap());
    assert_eq!(fixture.find("kept", 0, i64::MAX), [0]);
    assert!(fixture.find("taken", 0, i64::MAX).is_empty());
}
