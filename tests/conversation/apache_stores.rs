//! Stores that Apache RocketMQ wrote, behind the real binary: a client gets every message of the
//! manifest by queue, by offset, by key and by time, finds topics, groups and progress as they
//! were, and its next message goes behind the last (docs/migration.md).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

/// What Apache refuses to open as well, and what must be said of it.
const REFUSED: [(&str, &str); 2] = [
    ("foreign-file-4.9.7", "README"),
    ("short-file-4.9.7", "has 100000 bytes"),
];

/// A recorded store, unpacked, and what its manifest says of it.
struct Recorded {
    name: String,
    manifest: Value,
    dir: tempfile::TempDir,
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/stores")
}

fn names() -> Vec<String> {
    let files = fs::read_dir(recorded()).expect("recorded stores");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry
            .expect("entry")
            .file_name()
            .into_string()
            .expect("name");
        name.strip_suffix(".tar.zst").map(str::to_owned)
    };
    let names: Vec<_> = files.filter_map(name).collect();
    assert!(names.len() > 50, "{} recorded stores", names.len());
    names
}

impl Recorded {
    fn unpack(name: &str) -> Self {
        let dir = directory();
        let open = |suffix| File::open(recorded().join(format!("{name}{suffix}"))).expect("file");
        let packed = zstd::Decoder::new(open(".tar.zst")).expect("zstd");
        let mut archive = tar::Archive::new(packed);
        archive.set_preserve_mtime(true);
        archive.unpack(dir.path()).expect("unpack");
        let text = zstd::decode_all(open(".json.zst")).expect("zstd");
        Self {
            name: name.to_owned(),
            manifest: serde_json::from_slice(&text).expect("manifest"),
            dir,
        }
    }

    /// `serve` as its owner would start it: with Apache's own `broker.conf`.
    fn command(&self) -> std::process::Command {
        let file = self.dir.path().join("broker.conf");
        let mut command = crate::serve::program(&self.dir.path().join("store"));
        command.arg("-c").arg(file);
        command
    }

    /// What the broker that wrote it reports, or the other one where that one refuses.
    fn expected(&self) -> &Value {
        let by_version = &self.manifest["expected"];
        let writer = self.manifest["writer"].as_str().expect("writer");
        if by_version[writer]["loaded"] == true {
            &by_version[writer]
        } else {
            &by_version["5.3.3"]
        }
    }

    /// Records that stand in a queue, at their own place in the log and with a sound body.
    fn messages(&self) -> Vec<&Value> {
        let end = self.expected()["maxPhy"].as_i64().unwrap_or(0);
        let list = |key: &str| self.manifest[key].as_array().expect("records");
        let served = |record: &&Value| {
            record["physicalOffset"] == record["at"]
                && number(record, "at") + number(record, "storeSize") <= end
                && record["bad"].is_null()
                && !matches!(number(record, "sysFlag") & 12, 4 | 12)
        };
        let all = list("records").iter().chain(list("behindStop"));
        all.filter(served).collect()
    }

    fn state(&self, file: &str) -> Value {
        let path = self.dir.path().join("store/config").join(file);
        let text = fs::read_to_string(path).unwrap_or_default();
        serde_json::from_str(&quoted(&text)).unwrap_or_default()
    }
}

fn number(record: &Value, key: &str) -> i64 {
    record[key]
        .as_i64()
        .unwrap_or_else(|| panic!("no {key} in {record}"))
}

fn text<'a>(record: &'a Value, key: &str) -> &'a str {
    record[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// Apache writes numeric keys without quotes.
fn quoted(json: &str) -> String {
    let mut out = String::new();
    let (mut in_text, mut digits) = (false, None);
    for (at, letter) in json.char_indices() {
        if letter == '"' {
            in_text = !in_text;
        }
        match (digits, letter) {
            (None, '0'..='9') if !in_text && json[..at].ends_with(['{', ',']) => digits = Some(at),
            (Some(from), ':') => {
                out.push_str(&format!("\"{}\":", &json[from..at]));
                digits = None;
            }
            (Some(_), '0'..='9') => {}
            (Some(from), _) => {
                out.push_str(&json[from..at]);
                out.push(letter);
                digits = None;
            }
            (None, _) => out.push(letter),
        }
    }
    out
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Single records of a body: their log offset, queue offset and hash.
fn found(body: &[u8]) -> Vec<(i64, i64, String)> {
    use saturnmq_storage::format::record::Record;
    let mut rest = body;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let size = u32::from_be_bytes(rest[..4].try_into().expect("4 bytes")) as usize;
        let record = Record::decode(&rest[..size]).expect("a record");
        let place = (record.physical_offset(), record.queue_offset());
        found.push((place.0, place.1, sha256(&rest[..size])));
        rest = &rest[size..];
    }
    found
}

/// Asks one broker about one recorded store.
struct Visit<'a> {
    golden: &'a Recorded,
    talk: Talk,
}

impl Visit<'_> {
    fn offset(&mut self, code: i32, topic: &str, queue: i64) -> i64 {
        let queue = queue.to_string();
        let answer = self
            .talk
            .ask(code, &[("topic", topic), ("queueId", &queue)], b"");
        assert_eq!(
            answer.code, 0,
            "{} {topic}/{queue}: {answer:?}",
            self.golden.name
        );
        answer.number("offset")
    }

    fn json(&mut self, code: i32) -> Value {
        let answer = self.talk.ask(code, &[], b"");
        assert_eq!(answer.code, 0, "{}: {answer:?}", self.golden.name);
        let body = String::from_utf8(answer.body).expect("text");
        serde_json::from_str(&quoted(&body)).expect("JSON")
    }

    /// Everything that a queue gives, by queue offset.
    fn drain(&mut self, topic: &str, queue: i64) -> BTreeMap<i64, String> {
        let (mut offset, end) = (self.offset(31, topic, queue), self.offset(30, topic, queue));
        let mut all = BTreeMap::new();
        while offset < end {
            let queue = i32::try_from(queue).expect("queue id");
            let answer = self.talk.pull(&Pull {
                queue,
                ..Pull::of(topic, offset)
            });
            let name = &self.golden.name;
            let next = answer.number("nextBeginOffset");
            assert!(
                next > offset,
                "{name} {topic}/{queue} at {offset}: {answer:?}"
            );
            all.extend(
                found(&answer.body)
                    .into_iter()
                    .map(|(_, offset, hash)| (offset, hash)),
            );
            offset = next;
        }
        all
    }

    /// Topics of dead letters, which Apache makes so that none may read, are opened for reading.
    fn open_topics(&mut self) {
        let topics = self.json(21)["topicConfigTable"].clone();
        for (topic, config) in topics.as_object().expect("topics") {
            let count = |key: &str| number(config, key).to_string();
            if topic.starts_with("%DLQ%") && number(config, "perm") & 4 == 0 {
                let fields = [
                    ("topic", topic.as_str()),
                    ("defaultTopic", "TBW102"),
                    ("readQueueNums", &count("readQueueNums")),
                    ("writeQueueNums", &count("writeQueueNums")),
                    ("perm", "6"),
                    ("topicFilterType", "SINGLE_TAG"),
                    ("topicSysFlag", "0"),
                    ("order", "false"),
                ];
                let answer = self.talk.ask(17, &fields, b"");
                assert_eq!(answer.code, 0, "{topic}: {answer:?}");
            }
        }
    }

    fn check_queues(&mut self) -> usize {
        let name = &self.golden.name;
        let mut queues: BTreeMap<_, BTreeMap<i64, &str>> = BTreeMap::new();
        for record in self.golden.messages() {
            let queue = (text(record, "topic"), number(record, "queueId"));
            let hash = text(record, "recordSha256");
            queues
                .entry(queue)
                .or_default()
                .insert(number(record, "queueOffset"), hash);
        }
        let mut count = 0;
        for ((topic, queue), expected) in queues {
            let all = self.drain(topic, queue);
            for (offset, hash) in expected {
                let place = format!("{name} {topic}/{queue}/{offset}");
                assert_eq!(all.get(&offset).map(String::as_str), Some(hash), "{place}");
                count += 1;
            }
        }
        count
    }

    fn check_offset_ids(&mut self) {
        for record in self.golden.messages() {
            let place = number(record, "at").to_string();
            let answer = self.talk.ask(33, &[("offset", &place)], b"");
            let hash = found(&answer.body).pop().map(|(_, _, hash)| hash);
            let name = &self.golden.name;
            assert_eq!(
                hash.as_deref(),
                record["recordSha256"].as_str(),
                "{name} {place}"
            );
        }
    }

    fn check_keys(&mut self) -> usize {
        let expected = self.golden.expected()["keys"].clone();
        let mut count = 0;
        for probe in expected.as_array().into_iter().flatten() {
            let (topic, key) = (
                probe[0].as_str().expect("topic"),
                probe[1].as_str().expect("key"),
            );
            let fields = [
                ("topic", topic),
                ("key", key),
                ("maxNum", "64"),
                ("beginTimestamp", "0"),
                ("endTimestamp", "9223372036854775807"),
            ];
            let body = self.talk.ask(12, &fields, b"").body;
            let places: BTreeSet<i64> = found(&body).into_iter().map(|(at, ..)| at).collect();
            for place in probe[2].as_array().expect("places") {
                let place = place.as_i64().expect("place");
                let name = &self.golden.name;
                assert!(
                    places.contains(&place),
                    "{name}: {topic} {key} at {place}: {places:?}"
                );
                count += 1;
            }
        }
        count
    }

    /// The recorded probes of 4.9 hang on times of last change where a queue has several files.
    fn check_times(&mut self) -> usize {
        let mut count = 0;
        for (version, number) in [("4.9.7", 399), ("5.3.3", 479)] {
            self.talk.version = number;
            let reported = &self.golden.manifest["expected"][version];
            for (queue, probes) in reported["time"].as_object().into_iter().flatten() {
                let (topic, id) = queue.rsplit_once('/').expect("queue");
                let id_number = id.parse().expect("id");
                let range = [31, 30].map(|code| self.offset(code, topic, id_number));
                if range[1] > 100 || reported["queues"][queue] != serde_json::json!(range) {
                    continue;
                }
                for probe in probes.as_array().expect("probes") {
                    let time = probe[0].to_string();
                    let fields = [("topic", topic), ("queueId", id), ("timestamp", &time)];
                    let offset = self.talk.ask(29, &fields, b"").number("offset");
                    assert_eq!(probe[1], offset, "{} {queue} at {time}", self.golden.name);
                    count += 1;
                }
            }
        }
        self.talk.version = 399;
        count
    }

    fn check_state(&mut self) {
        let name = self.golden.name.clone();
        let members = |file: &str, table: &str| self.golden.state(file)[table].clone();
        let topics = members("topics.json", "topicConfigTable");
        let groups = members("subscriptionGroup.json", "subscriptionGroupTable");
        let offsets = members("consumerOffset.json", "offsetTable");
        let tables = [
            (21, "topicConfigTable", topics),
            (201, "subscriptionGroupTable", groups),
            (43, "offsetTable", offsets),
        ];
        for (code, table, expected) in tables {
            let answered = self.json(code)[table].clone();
            for (entry, members) in expected.as_object().into_iter().flatten() {
                for (member, value) in members.as_object().expect("members") {
                    let found = &answered[entry][member];
                    assert_eq!(found, value, "{name} {entry} {member}");
                }
            }
        }
    }

    /// Apache 5.3.3 would not open the store again.
    fn check_batch_topic(&mut self) {
        let topics = self.golden.state("topics.json")["topicConfigTable"].clone();
        let topics = topics.as_object().expect("topics").iter();
        let of_batches =
            |entry: &(&String, &Value)| entry.1["attributes"]["queue.type"] == "BatchCQ";
        let (topic, _) = topics.clone().find(of_batches).expect("a topic");
        let fields = send_fields(topic, "0", "", "false");
        let answer = self.talk.ask(310, &fields, b"one");
        assert_eq!(answer.code, 13, "{answer:?}");
        assert!(answer.remark.contains("queue.type=BatchCQ"), "{answer:?}");
        assert!(
            !self
                .golden
                .dir
                .path()
                .join("store/consumequeue")
                .join(topic)
                .exists()
        );
    }

    /// The next message of a queue goes behind its last one and is served like those before it.
    fn check_writing(&mut self) {
        let messages = self.golden.messages();
        let Some(record) = messages
            .iter()
            .find(|record| record["topic"] != "SCHEDULE_TOPIC_XXXX")
        else {
            return;
        };
        let (topic, queue) = (text(record, "topic"), number(record, "queueId"));
        if topic.starts_with('%') || topic.to_lowercase().starts_with("rmq_sys") {
            return;
        }
        let end = self.offset(30, topic, queue);
        let id = i32::try_from(queue).expect("queue id");
        let answer = self.talk.send_message(topic, id, "", b"after the move");
        assert_eq!(
            answer.number("queueOffset"),
            end,
            "{} {topic}/{queue}",
            self.golden.name
        );
        let pulled = self.talk.pull(&Pull {
            queue: id,
            ..Pull::of(topic, end)
        });
        assert_eq!(records(&pulled.body)[0].1, b"after the move");
    }
}

#[derive(Debug, Default)]
struct Counts {
    messages: AtomicUsize,
    keys: AtomicUsize,
    times: AtomicUsize,
}

fn visit(name: &str, counts: &Counts) {
    let golden = Recorded::unpack(name);
    let running = Running::run(golden.command());
    let mut visit = Visit {
        golden: &golden,
        talk: Talk::to(running.address("broker")),
    };
    visit.check_state();
    visit.open_topics();
    // Batch queues stay in the log, and the start says so. Nothing is written to them.
    if name.starts_with("batchcq") {
        assert!(running.says("batch queues"), "{name}");
        visit.check_batch_topic();
    } else {
        counts
            .messages
            .fetch_add(visit.check_queues(), Ordering::Relaxed);
        counts
            .times
            .fetch_add(visit.check_times(), Ordering::Relaxed);
        visit.check_writing();
    }
    visit.check_offset_ids();
    counts.keys.fetch_add(visit.check_keys(), Ordering::Relaxed);
    drop(visit);
    assert_eq!(running.stop().code(), Some(0), "{name}");
}

#[test]
fn apaches_stores_are_served_whole_and_go_on() {
    let mut left = names();
    left.retain(|name| !REFUSED.iter().any(|(refused, _)| refused == name));
    let (left, counts) = (Mutex::new(left), Counts::default());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = next() {
                    visit(&name, &counts);
                }
            });
        }
    });
    let Counts {
        messages,
        keys,
        times,
    } = counts;
    let counted = [messages, keys, times].map(AtomicUsize::into_inner);
    assert!(
        counted[0] > 20_000 && counted[1] > 3_000 && counted[2] > 2_000,
        "messages, keys and times compared: {counted:?}"
    );
}

#[test]
fn what_apache_refuses_is_refused_by_name_and_left_alone() {
    for (name, said) in REFUSED {
        let golden = Recorded::unpack(name);
        let command = golden.command();
        let before = crate::serve::contents(golden.dir.path());
        let refusal = crate::serve::refusal(command);
        assert!(refusal.contains(said), "{name}: {refusal}");
        assert_eq!(crate::serve::contents(golden.dir.path()), before, "{name}");
    }
}
