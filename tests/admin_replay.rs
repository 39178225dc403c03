//! Administrators' requests recorded against Apache RocketMQ 4.9.7, sent again in the same order:
//! code, remark and the members of the body are those recorded, or the difference is meant.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use saturnmq_net::command::{Scratch, decode};
use saturnmq_net::fastjson;
use saturnmq_net::frame::{MAX_FRAME, Parsed, parse};
use serde_json::Value;

use crate::serve::{Running, directory};

/// Start of a case's mark, the code answered instead of the recorded one, and why.
const DIFFERENCES: [(&str, i32, &str); 12] = [
    (
        "17 bad filter type",
        1,
        "the remark without Java's class names",
    ),
    (
        "222 reset by time",
        26,
        "resets are made by the broker, as 5.x does",
    ),
    ("222 reset, topic absent", 17, "as 5.x"),
    ("222 reset, group absent", 26, "as 5.x"),
    (
        "223",
        1,
        "what newer releases say, without Java's class names",
    ),
    ("323", 1, "it is no half message; Apache puts it among them"),
    (
        "25 unknown key",
        1,
        "an update that changes nothing says so",
    ),
    ("25 bad number", 1, "an update that changes nothing says so"),
    ("25 black list", 16, "as 5.x; it says which key"),
    ("25 no = sign", 1, "an update that changes nothing says so"),
    ("200 bad name", 1, "a group's name becomes that of a topic"),
    ("200 no body", 1, "the remark without Java's class names"),
];

struct Answer {
    code: i32,
    remark: String,
    body: Vec<u8>,
}

fn answer(bytes: &[u8]) -> Option<(i32, Answer, usize)> {
    let Ok(Parsed::Complete { frame, consumed }) = parse(bytes, MAX_FRAME) else {
        return None;
    };
    let mut scratch = Scratch::default();
    let command = decode(frame, &mut scratch).expect("a header");
    let answer = Answer {
        code: command.code,
        remark: command.remark.unwrap_or_default().to_owned(),
        body: command.body.to_vec(),
    };
    Some((command.opaque, answer, consumed))
}

struct Line {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Line {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connect");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("timeout");
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    fn ask(&mut self, request: &[u8], opaque: i32) -> Answer {
        self.stream.write_all(request).expect("write");
        loop {
            while let Some((number, answer, consumed)) = answer(&self.unread) {
                self.unread.drain(..consumed);
                if number == opaque {
                    return answer;
                }
            }
            let mut chunk = [0; 65_536];
            let count = self.stream.read(&mut chunk).expect("an answer");
            assert!(count > 0, "the connection closed");
            self.unread.extend_from_slice(&chunk[..count]);
        }
    }
}

fn recording() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/frames/server-4.9.7/raw/admin_cases.jsonl.zst");
    let packed = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let text = zstd::decode_all(packed).expect("zstd");
    let lines = text.split(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect()
}

/// The members of a JSON object; nothing for other bodies.
fn members(body: &[u8]) -> BTreeSet<String> {
    let value = fastjson::parse(body).ok();
    let object = value.as_ref().and_then(Value::as_object);
    object.into_iter().flat_map(|o| o.keys().cloned()).collect()
}

fn compare(mark: &str, recorded: &Answer, got: &Answer) -> Option<String> {
    let meant = DIFFERENCES.iter().find(|d| mark.starts_with(d.0));
    let same_remark = recorded.remark == got.remark || recorded.remark.starts_with("not set any");
    if recorded.code == got.code && same_remark {
        let (wanted, found) = (members(&recorded.body), members(&got.body));
        let missing: Vec<_> = wanted.difference(&found).collect();
        return (!missing.is_empty()).then(|| format!("{mark}: {missing:?} missing"));
    }
    match meant {
        Some((_, code, _)) if *code == got.code => None,
        _ => Some(format!(
            "{mark}: {} {:?} instead of {} {:?}",
            got.code, got.remark, recorded.code, recorded.remark
        )),
    }
}

/// What was there before the recording began.
fn prepare(running: &Running) {
    for number in 0..6 {
        let status = Command::new(env!("CARGO_BIN_EXE_saturnmq"))
            .args([
                "admin", "send", "raw_P", "--queue", "0", "--body", "x", "--json",
            ])
            .arg("--name-server")
            .arg(running.address("name server").to_string())
            .output()
            .expect("the binary starts");
        assert!(status.status.success(), "message {number}: {status:?}");
    }
}

#[test]
fn recorded_requests_of_administrators_are_answered_like_apache() {
    let dir = directory();
    let running = Running::start(dir.path(), &["--set", "brokerName=broker-a"]);
    prepare(&running);
    let lines = recording();
    let bytes = |line: &Value| {
        STANDARD
            .decode(line["b64"].as_str().expect("b64"))
            .expect("b64")
    };
    let key = |line: &Value| (line["conn"].to_string(), line["opaque"].as_i64());
    let answers: HashMap<_, _> = lines
        .iter()
        .filter(|line| line["kind"] == "response")
        .filter_map(|line| Some((key(line), answer(&bytes(line))?.1)))
        .collect();
    let mut line_to_broker = Line::to(running.address("broker"));
    let (mut mark, mut compared, mut wrong) = (String::new(), 0, Vec::new());
    for line in &lines {
        if line["ev"] == "mark" {
            mark = line["text"].as_str().unwrap_or_default().to_owned();
        }
        let to_broker = line["conn"]
            .as_str()
            .is_some_and(|c| c.starts_with("broker"));
        if line["kind"] != "request" || !to_broker || line["dir"] != "c2s" {
            continue;
        }
        let opaque = line["opaque"].as_i64().expect("opaque");
        let opaque = i32::try_from(opaque).expect("opaque");
        let got = line_to_broker.ask(&bytes(line), opaque);
        if let Some(recorded) = answers.get(&key(line)) {
            compared += 1;
            wrong.extend(compare(&mark, recorded, &got));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 70, "only {compared} requests were compared");
    assert_eq!(running.stop().code(), Some(0));
}
