//! Name-server requests recorded against Apache RocketMQ, sent again in the same order: every
//! answer has the code, the ext fields, the remark and the body of the recorded one, or stands in
//! the table of deliberate differences with its reason.

use std::collections::HashMap;

use saturnmq_net::fastjson;
use serde_json::Value;

use super::replay::{Recording, key};
use super::*;

/// Case (start of its mark), the code answered instead, and why.
const DIFFERENCES: [(&str, i32, &str); 6] = [
    ("34 broker code", 3, "4.9 leaves the client waiting"),
    ("310 broker code", 3, "4.9 leaves the client waiting"),
    ("9999", 3, "4.9 leaves the client waiting"),
    ("901", 0, "4.9 leaves the client waiting"),
    ("318 update", 1, "an update that changes nothing says so"),
    (
        "318 unknown key",
        1,
        "an update that changes nothing says so",
    ),
];

/// Where the recorded broker was.
const RECORDED_ADDRESS: &str = "10.11.0.100:10911";

/// Bodies that list the topics of an earlier recording, or the settings of one release.
const FREE_BODIES: [&str; 3] = ["206", "224", "319"];

/// Whether `got` says all that `recorded` does; lists are in no order.
fn says(recorded: &Value, got: &Value) -> bool {
    match (recorded, got) {
        (Value::Object(recorded), Value::Object(got)) => {
            let known = |name: &String| {
                // 4.9 does not have them, and its clients pass over what they do not know.
                let newer = ["enableActingMaster", "stateVersion"];
                recorded.contains_key(name) || newer.contains(&name.as_str())
            };
            got.keys().all(known)
                && recorded
                    .iter()
                    .all(|(name, value)| got.get(name).is_some_and(|got| says(value, got)))
        }
        (Value::Array(recorded), Value::Array(got)) => {
            let found = |value: &Value| got.iter().any(|got| says(value, got));
            recorded.len() == got.len() && recorded.iter().all(found)
        }
        _ => recorded == got,
    }
}

fn compare_bodies(mark: &str, recorded: &Arrived, got: &str) -> Option<String> {
    let recorded = std::str::from_utf8(&recorded.body).expect("text");
    if recorded.is_empty() || got.is_empty() {
        return (recorded != got).then(|| format!("body {got:?} instead of {recorded:?}"));
    }
    if mark.starts_with("319") {
        return (!got.contains("listenPort=")).then(|| format!("body {got:?}"));
    }
    // Go's parser of routes cuts the text up by hand: no blanks, quoted keys.
    if got.contains(": ") || got.contains("{0") {
        return Some(format!("body {got:?}"));
    }
    let value = |text: &str| fastjson::parse(text.as_bytes()).expect("JSON");
    let (recorded, got) = (value(recorded), value(got));
    let free = FREE_BODIES.iter().any(|case| mark.starts_with(case)) && mark != "224 absent";
    let right = if free {
        got["topicList"].as_array().is_some_and(|l| l.len() > 5)
    } else {
        says(&recorded, &got)
    };
    (!right).then(|| format!("body {got} instead of {recorded}"))
}

fn compare(mark: &str, recorded: Option<&Arrived>, got: &Arrived, own: &str) -> Option<String> {
    let meant = DIFFERENCES.iter().find(|d| mark.starts_with(d.0));
    if let Some((_, code, _)) = meant
        && recorded.is_none_or(|recorded| recorded.code != got.code)
    {
        return (got.code != *code).then(|| format!("code {} instead of {code}", got.code));
    }
    let Some(recorded) = recorded else {
        return Some(format!("code {} where none is recorded", got.code));
    };
    let same_remark = got.remark == recorded.remark || recorded.remark.starts_with("not set any");
    if got.code != recorded.code || !same_remark || got.ext != recorded.ext {
        return Some(format!(
            "{} {:?} {:?} instead of {} {:?} {:?}",
            got.code, got.remark, got.ext, recorded.code, recorded.remark, recorded.ext
        ));
    }
    let body = String::from_utf8(got.body.clone()).expect("text");
    compare_bodies(mark, recorded, &body.replace(own, RECORDED_ADDRESS))
}

/// A JSON frame whose client says that it is of another release.
fn of_release(frame: &[u8], version: i32) -> Vec<u8> {
    let text = String::from_utf8_lossy(&frame[8..]);
    let place = text.find("\"version\":").expect("a version") + 10;
    let end = place + text[place..].find([',', '}']).expect("an end");
    let name = &text[place - 10..end];
    let length = u32::from_be_bytes(frame[4..8].try_into().expect("4 bytes")) as usize;
    let header = text[..length].replace(name, "\"version\": 399");
    let mut again = Vec::new();
    again.extend_from_slice(&((4 + header.len() + frame.len() - 8 - length) as u32).to_be_bytes());
    again.extend_from_slice(&(header.len() as u32).to_be_bytes());
    again.extend_from_slice(header.as_bytes());
    again.extend_from_slice(&frame[8 + length..]);
    with_version(&again, version)
}

/// Sends the recorded requests; `newer` raises the release that their client says it is.
fn replay(server: &str, newer: Option<i32>) {
    let (running, _dir) = broker(&[
        "--set",
        "brokerName=broker-a",
        "--set",
        "messageDelayLevel=1s 5s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1h",
    ]);
    let own = running.address("broker").to_string();
    Talk::to(running.address("broker")).make_topic("raw_T", 4);
    let recording = Recording::open(server, "namesrv_cases");
    let answers = recording.answers();
    let mut talks: HashMap<String, Talk> = HashMap::new();
    let (mut mark, mut compared, mut wrong) = ("", 0, Vec::new());
    for line in &recording.lines {
        let connection = line["conn"].as_str().unwrap_or_default();
        match line["ev"].as_str() {
            Some("mark") => mark = line["text"].as_str().expect("text"),
            Some("close") => drop(talks.remove(connection)),
            _ => {}
        }
        if line["kind"] != "request" || !connection.starts_with("ns#") {
            continue;
        }
        let bytes = Recording::bytes(line).expect("a frame");
        let bytes = newer.map_or(bytes.clone(), |version| of_release(&bytes, version));
        let opaque = line["opaque"].as_i64().expect("opaque") as i32;
        let talk = talks
            .entry(connection.to_owned())
            .or_insert_with(|| Talk::to(running.address("name server")));
        let recorded = answers.get(&key(line).expect("a key"));
        let until = Instant::now() + PATIENCE;
        let problem = loop {
            talk.send_bytes(&bytes);
            let got = talk.answer(opaque);
            let problem = compare(mark, recorded, &got, &own);
            // Only the end of a connection takes its time.
            if problem.is_none() || !mark.contains("closed") || Instant::now() > until {
                break problem;
            }
        };
        wrong.extend(problem.map(|problem| format!("{mark}: {problem}")));
        compared += 1;
    }
    assert!(wrong.is_empty(), "{server}\n{}", wrong.join("\n"));
    assert!(compared > 60, "only {compared} requests were compared");
}

#[test]
fn recorded_requests_get_the_answers_of_the_name_server_of_apache_4_9() {
    replay("server-4.9.7", None);
}

#[test]
fn recorded_requests_of_a_newer_client_get_the_answers_of_the_name_server_of_apache_5_3() {
    replay("server-5.3.3", Some(479));
}
