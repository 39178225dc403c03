//! What waits in a broker, and what it was told, over an orderly stop and over a kill.

use std::path::Path;

use nix::sys::signal::Signal;

use super::delivery::next;
use super::names::{back, one_message};
use super::*;

/// The retry and the delayed message are due in an hour, and with the settings of the next start
/// at once: however long a broker takes, they wait when it ends.
const SETTINGS: [&str; 4] = [
    "--set",
    "messageDelayLevel=1s 1h 1s 1s 1s",
    "--set",
    "enablePropertyFilter=true",
];
const NEXT: [&str; 4] = [
    "--set",
    "messageDelayLevel=1s 2s 1s 1s 1s",
    "--set",
    "enablePropertyFilter=true",
];

fn stopped(running: Running, dir: &Path) -> Running {
    assert_eq!(running.stop().code(), Some(0));
    Running::start(dir, &NEXT)
}

fn killed(mut running: Running, dir: &Path) -> Running {
    running.signal(Signal::SIGKILL);
    running.wait();
    drop(running);
    Running::start(dir, &NEXT)
}

/// Numbers of the messages in queue 0 of a topic.
fn stored(talk: &mut Talk, topic: &str) -> i64 {
    let answer = talk.ask(30, &[("topic", topic), ("queueId", "0")], b"");
    answer.number("offset")
}

fn is_carried_over(over: fn(Running, &Path) -> Running) {
    let (running, dir) = broker(&SETTINGS);
    let mut talk = Talk::to(running.address("broker"));
    let at = one_message(&mut talk);
    talk.send_message("Orders", 0, "DELAY\u{1}2\u{2}", b"later");
    assert_eq!(back(&mut talk, &at, "g", "2").code, 0);
    assert_eq!(back(&mut talk, &at, "g", "-1").code, 0);
    let closed = br#"{"groupName":"closed","consumeEnable":false,"retryQueueNums":1}"#;
    assert_eq!(talk.ask(200, &[], closed).code, 0);
    let topic = [
        ("topic", "Ordered"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "3"),
        ("writeQueueNums", "2"),
        ("perm", "4"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "true"),
    ];
    assert_eq!(talk.ask(17, &topic, b"").code, 0);
    let barred = [
        ("group", "barred"),
        ("topic", "Orders"),
        ("readable", "false"),
    ];
    let mut tool = Talk::to(running.address("broker"));
    tool.version = 479;
    let set = tool.ask(353, &barred, b"");
    assert_eq!(set.code, 0, "{set:?}");
    let order = [
        ("namespace", "ORDER_TOPIC_CONFIG"),
        ("key", "Ordered"),
        ("value", "broker-a:2"),
    ];
    let mut names = Talk::to(running.address("name server"));
    assert_eq!(names.ask(100, &order, b"").code, 0);

    let running = over(running, dir.path());
    let mut names = Talk::to(running.address("name server"));
    let answer = names.ask(101, &order[..2], b"");
    assert_eq!(answer.ext["value"], "broker-a:2");
    let mut talk = Talk::to(running.address("broker"));
    let (_, (_, body, _)) = next(&mut talk, &Pull::of("Orders", 1));
    assert_eq!(body, b"later");
    let (retry, (_, body, _)) = next(&mut talk, &Pull::of("%RETRY%g", 0));
    assert_eq!(body, b"bad");
    let record = saturnmq_storage::format::record::Record::decode(&retry.body).expect("a record");
    assert_eq!(record.reconsume_times(), 1);
    let (_, (_, body, _)) = next(&mut talk, &Pull::of("%DLQ%g", 0));
    assert_eq!(body, b"bad");
    // What is due later shows that nothing came twice.
    talk.send_message("Orders", 0, "DELAY\u{1}1\u{2}", b"last");
    let (_, (_, body, _)) = next(&mut talk, &Pull::of("Orders", 2));
    assert_eq!(body, b"last");
    for topic in ["%RETRY%g", "%DLQ%g"] {
        assert_eq!(stored(&mut talk, topic), 1, "{topic}");
    }
    let closed = Pull {
        group: "closed",
        ..Pull::of("Orders", 0)
    };
    assert_eq!(talk.pull(&closed).code, 16);
    let mut tool = Talk::to(running.address("broker"));
    tool.version = 479;
    let answer = tool.ask(353, &barred[..2], b"");
    let answer: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(answer["readable"], false, "{answer}");
    let all = talk.ask(21, &[], b"");
    let all: serde_json::Value = serde_json::from_slice(&all.body).expect("JSON");
    let ordered = &all["topicConfigTable"]["Ordered"];
    for (member, value) in [("readQueueNums", 3), ("writeQueueNums", 2), ("perm", 4)] {
        assert_eq!(ordered[member], value, "{ordered}");
    }
    assert_eq!(ordered["order"], true, "{ordered}");
}

#[test]
fn what_waits_and_what_was_set_outlives_a_stop() {
    is_carried_over(stopped);
}

#[test]
fn what_waits_and_what_was_set_outlives_a_kill() {
    is_carried_over(killed);
}
