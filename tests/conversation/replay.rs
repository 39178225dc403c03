//! Requests recorded against Apache RocketMQ, sent again in the same order: every answer has the
//! code, the ext fields, the remark and the body of the recorded one, or stands in the table of
//! deliberate differences with its reason.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::*;

/// The settings of the recorded brokers.
const SETTINGS: [&str; 12] = [
    "--set",
    "messageDelayLevel=1s 5s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1h",
    "--set",
    "maxMessageSize=262144",
    "--set",
    "enablePropertyFilter=true",
    "--set",
    "traceTopicEnable=true",
    "--set",
    "brokerName=broker-a",
    "--set",
    "mappedFileSizeCommitLog=8388608",
];

/// Requests that this module looks at; the answers to others are other modules' business.
const CODES: [i64; 21] = [
    10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 46, 310, 320, 361,
];

/// Case (start of its mark), the code answered instead, and why.
const DIFFERENCES: [(&str, i32, &str); 12] = [
    (
        "320 batch with a broken body",
        13,
        "illegal, and never right when sent again",
    ),
    (
        "320 batch empty body",
        13,
        "illegal, and never right when sent again",
    ),
    (
        "310 empty body",
        0,
        "4.9 stores it, 5.3 fails with an exception: it is stored",
    ),
    (
        "pull SQL92 syntax error",
        23,
        "Apache lets every message through; a filter that cannot be compiled filters nothing",
    ),
    (
        "361 lite pull",
        0,
        "5.x consumers need it; nothing is gained by refusing it to others",
    ),
    (
        "14 with setZeroIfNotFound=false",
        22,
        "the field says what to do, whatever the release",
    ),
    (
        "33 offset 1 (not a record start)",
        1,
        "bytes that are no record are not handed out",
    ),
    (
        "36 send back, illegal group",
        26,
        "names that cannot be keys or directories are refused",
    ),
    (
        "15 missing commitOffset",
        26,
        "5.3 looks at the group first",
    ),
    (
        "310 sysFlag prepared without TRAN_MSG",
        13,
        "Apache stores it and shows it to nobody",
    ),
    ("310 missing topic field", 1, "the missing field is named"),
    ("310 no ext at all", 1, "the missing field is named"),
];

/// What depends on how often the broker has asked about a half message meanwhile.
const UNSTEADY: &str = "pull half topic";

/// Values that differ from run to run.
const VARYING: [&str; 4] = [
    "msgId",
    "transactionId",
    "indexLastUpdateTimestamp",
    "indexLastUpdatePhyoffset",
];

pub(super) struct Recording {
    pub(super) lines: Vec<Value>,
}

impl Recording {
    pub(super) fn open(server: &str, case: &str) -> Self {
        Self::of_client(server, "raw", case)
    }

    pub(super) fn of_client(server: &str, client: &str, case: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/frames");
        let path = root
            .join(server)
            .join(client)
            .join(format!("{case}.jsonl.zst"));
        let packed = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let text = zstd::decode_all(packed).expect("zstd");
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        Self {
            lines: lines
                .map(|l| serde_json::from_slice(l).expect("JSON"))
                .collect(),
        }
    }

    pub(super) fn bytes(line: &Value) -> Option<Vec<u8>> {
        Some(STANDARD.decode(line["b64"].as_str()?).expect("base64"))
    }

    /// The recorded answers by connection and opaque.
    pub(super) fn answers(&self) -> HashMap<(String, i64), Arrived> {
        let responses = self.lines.iter().filter(|line| line["kind"] == "response");
        responses
            .filter_map(|line| Some((key(line)?, arrived(&Self::bytes(line)?)?)))
            .collect()
    }
}

pub(super) fn key(line: &Value) -> Option<(String, i64)> {
    Some((line["conn"].as_str()?.to_owned(), line["opaque"].as_i64()?))
}

pub(super) fn arrived(bytes: &[u8]) -> Option<Arrived> {
    let Ok(Parsed::Complete { frame, .. }) = parse(bytes, MAX_FRAME) else {
        return None;
    };
    let mut scratch = Scratch::default();
    let command = decode(frame, &mut scratch).ok()?;
    Some(Arrived {
        code: command.code,
        codec: command.codec,
        opaque: command.opaque,
        is_response: command.is_response(),
        remark: command.remark.unwrap_or_default().to_owned(),
        ext: command
            .ext
            .iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect(),
        body: command.body.to_vec(),
        at: Instant::now(),
    })
}

/// Addresses vary from run to run.
fn without_addresses(remark: &str) -> String {
    let words = remark.split(' ').map(|word| {
        let place = word
            .find(|c: char| c.is_ascii_digit())
            .filter(|_| word.matches('.').count() == 3);
        place.map_or(word.to_owned(), |at| format!("{}ADDRESS", &word[..at]))
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What is wrong with an answer; `None` when it is right.
fn compare(mark: &str, code: i64, recorded: &Arrived, got: &Arrived) -> Option<String> {
    if let Some((_, expected, _)) = DIFFERENCES.iter().find(|d| mark.starts_with(d.0))
        && (got.code != recorded.code || got.remark != recorded.remark)
    {
        let right = got.code == *expected || got.code == recorded.code;
        return (!right).then(|| format!("code {} instead of {expected}", got.code));
    }
    if got.code != recorded.code {
        return Some(format!("code {} instead of {}", got.code, recorded.code));
    }
    if mark.starts_with(UNSTEADY) {
        return None;
    }
    let (mut keys, recorded_keys): (Vec<_>, Vec<_>) =
        (got.ext.keys().collect(), recorded.ext.keys().collect());
    // A 5.3 broker makes up a key for a message that has none; nothing made up is stored here.
    let made_up =
        recorded.ext.contains_key("transactionId") && !got.ext.contains_key("transactionId");
    let transaction = "transactionId".to_owned();
    if made_up {
        keys.push(&transaction);
        keys.sort();
    }
    if keys != recorded_keys {
        return Some(format!("ext {keys:?} instead of {recorded_keys:?}"));
    }
    for (name, value) in &recorded.ext {
        let same = got.ext.get(name) == Some(value) || VARYING.contains(&&**name);
        let counts = matches!(code, 10 | 310 | 320) && matches!(&**name, "queueOffset" | "queueId");
        let time = name == "timestamp" && value != "-1";
        if !same && !counts && !time {
            return Some(format!("{name} {:?} instead of {value}", got.ext.get(name)));
        }
    }
    let exception = recorded.remark.contains("java.lang.") || recorded.remark.contains("Exception");
    if exception && got.remark.is_empty() {
        return Some("no remark".into());
    }
    if !exception && without_addresses(&got.remark) != without_addresses(&recorded.remark) {
        return Some(format!(
            "remark {:?} instead of {:?}",
            got.remark, recorded.remark
        ));
    }
    compare_bodies(code, recorded, got)
}

fn compare_bodies(code: i64, recorded: &Arrived, got: &Arrived) -> Option<String> {
    if matches!(code, 11 | 361 | 12 | 33) {
        let (expected, have) = (records(&recorded.body), records(&got.body));
        let short = |records: &[(i64, Vec<u8>, String)]| {
            records
                .iter()
                .map(|r| (r.0, r.1.clone()))
                .collect::<Vec<_>>()
        };
        // The half messages and dead letters of the recorded run are not here.
        return (short(&expected) != short(&have)).then(|| format!("{have:?} not {expected:?}"));
    }
    if got.body.is_empty() != recorded.body.is_empty() {
        return Some(format!(
            "a body of {} not {} bytes",
            got.body.len(),
            recorded.body.len()
        ));
    }
    None
}

/// Sends recorded requests, with the times of today where a request asks for a time.
fn refreshed(bytes: &[u8], version: i32) -> Vec<u8> {
    let Ok(Parsed::Complete { frame, .. }) = parse(bytes, MAX_FRAME) else {
        return bytes.into();
    };
    if frame.codec != Codec::Json {
        return bytes.into();
    }
    let text = String::from_utf8_lossy(frame.header).into_owned();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("a clock");
    let now = now.as_millis() as i64;
    let mut text = text;
    let names = ["timestamp", "endTimestamp"];
    for name in names
        .iter()
        .flat_map(|n| [format!("\"{n}\": \""), format!("\"{n}\":\"")])
    {
        if let Some(at) = text.find(&name) {
            let digits = at + name.len();
            let end = digits + text[digits..].find('"').expect("a quote");
            let recorded: i64 = text[digits..end].parse().expect("a time");
            if recorded > 1_700_000_000_000 {
                text.replace_range(digits..end, &(now + 60_000).to_string());
            }
        }
    }
    let mut again = Vec::new();
    again.extend_from_slice(&((4 + text.len() + frame.body.len()) as u32).to_be_bytes());
    again.extend_from_slice(&(text.len() as u32).to_be_bytes());
    again.extend_from_slice(text.as_bytes());
    again.extend_from_slice(frame.body);
    with_version(&again, version)
}

fn replay(running: &Running, server: &str, case: &str, version: i32, wrong: &mut Vec<String>) {
    let recording = Recording::open(server, case);
    let answers = recording.answers();
    let mut talks: HashMap<String, Talk> = HashMap::new();
    let (mut mark, mut held) = (String::new(), Vec::new());
    for line in &recording.lines {
        if line["ev"] == "mark" {
            mark = line["text"].as_str().unwrap_or_default().to_owned();
        }
        if line["ev"] == "half" && line["dir"] != "s2c" && mark.contains("disconnects") {
            talks.remove(line["conn"].as_str().unwrap_or_default());
        }
        let connection = line["conn"].as_str().unwrap_or_default();
        if line["dir"] != "c2s" || !connection.starts_with("broker") {
            continue;
        }
        let Some(bytes) = Recording::bytes(line) else {
            continue;
        };
        let address = running.address("broker");
        let talk = talks
            .entry(connection.to_owned())
            .or_insert_with(|| Talk::to(address));
        talk.send_bytes(&refreshed(&bytes, version));
        let code = line["code"].as_i64().unwrap_or(0);
        let recorded = key(line).and_then(|key| answers.get(&key));
        let Some(recorded) = recorded.filter(|_| CODES.contains(&code)) else {
            continue;
        };
        if mark.starts_with("two pipelined pulls") && held.is_empty() {
            held.push((connection.to_owned(), recorded.clone()));
            continue;
        }
        let got = talk.answer(recorded.opaque);
        if let Some(problem) = compare(&mark, code, recorded, &got) {
            wrong.push(format!("{case}: {mark}: {problem}"));
        }
    }
    for (connection, recorded) in held {
        let got = talks
            .get_mut(&connection)
            .expect("a connection")
            .answer(recorded.opaque);
        if let Some(problem) = compare("held pull", 11, &recorded, &got) {
            wrong.push(format!("{case}: held pull: {problem}"));
        }
    }
}

#[test]
fn an_older_client_gets_the_answers_of_apache_4_9() {
    let (running, _dir) = broker(&SETTINGS);
    let mut wrong = Vec::new();
    for case in [
        "send_cases",
        "pull_cases",
        "offset_query_cases",
        "group_cases",
    ] {
        replay(&running, "server-4.9.7", case, 399, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_newer_client_gets_the_answers_of_apache_5_3() {
    let (running, _dir) = broker(&SETTINGS);
    let mut wrong = Vec::new();
    for case in ["send_cases", "pull_cases", "offset_query_cases"] {
        replay(&running, "server-5.3.3", case, 479, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sends the frames of each recorded connection; every connection is answered, or closed, as Apache
/// 4.9 did.
#[test]
fn every_form_of_header_is_answered_in_its_codec_and_broken_ones_close_the_connection() {
    let (running, _dir) = broker(&SETTINGS);
    let address = running.address("broker");
    let recording = Recording::open("server-4.9.7", "codec_cases");
    let (mut mark, mut talks, mut checked) = (String::new(), HashMap::new(), 0);
    for line in &recording.lines {
        if line["ev"] == "mark" {
            mark = line["text"].as_str().unwrap_or_default().to_owned();
        }
        let connection = line["conn"].as_str().unwrap_or_default();
        let bytes = Recording::bytes(line).filter(|_| connection.starts_with("broker"));
        let Some(bytes) = bytes else { continue };
        let talk = talks
            .entry(connection.to_owned())
            .or_insert_with(|| Talk::to(address));
        if line["dir"] == "c2s" {
            talk.send_bytes(&bytes);
            let answered = recording.lines.iter().any(|other| {
                other["conn"] == line["conn"] && other["dir"] == "s2c" && other["b64"].is_string()
            });
            if line["kind"] == "bad" && !answered {
                assert!(talk.is_closed(), "{mark}");
                checked += 1;
            }
            continue;
        }
        let recorded = arrived(&bytes).expect("a recorded answer");
        let got = talk
            .frame(Instant::now() + PATIENCE)
            .unwrap_or_else(|| panic!("{mark}: no answer"));
        assert_eq!(got.code, recorded.code, "{mark}: {got:?}");
        assert_eq!(got.codec, recorded.codec, "{mark}: {got:?}");
        let keys = |a: &Arrived| a.ext.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&got), keys(&recorded), "{mark}");
        // Without a number Java makes one up; 0 is as good.
        if !mark.contains("without opaque") && !mark.starts_with("JSON header without language, ") {
            assert_eq!(got.opaque, recorded.opaque, "{mark}");
        }
        checked += 1;
    }
    assert!(checked > 20, "only {checked} cases");
}
