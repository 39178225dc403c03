//! Queries by key.

use super::*;

#[test]
fn a_query_whose_chain_is_longer_than_a_turn_finds_what_is_at_its_end() {
    // One slot: every key is in the same chain.
    let shape = ["--set", "maxHashSlotNum=1", "--set", "maxIndexNum=3500"];
    let (running, _dir) = broker(&shape);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "KEYS\u{1}wanted\u{2}", b"wanted");
    for first in (0..5000).step_by(1000) {
        let keys: Vec<String> = (first..first + 1000).map(|key| key.to_string()).collect();
        let properties = format!("KEYS\u{1}{}\u{2}", keys.join(" "));
        talk.send_message("T", 0, &properties, b"other");
    }
    let end = i64::MAX.to_string();
    let mut fields = [
        ("topic", "T"),
        ("key", "wanted"),
        ("maxNum", "32"),
        ("beginTimestamp", "0"),
        ("endTimestamp", &*end),
    ];
    let answer = talk.ask(12, &fields, b"");
    assert_eq!(answer.code, 0, "{answer:?}");
    let found = records(&answer.body);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, b"wanted");
    fields[1].1 = "4711";
    assert_eq!(records(&talk.ask(12, &fields, b"").body).len(), 1);
    fields[1].1 = "none";
    assert_eq!(talk.ask(12, &fields, b"").code, 22);
}

#[test]
fn tools_are_told_of_every_system_topic_before_anything_is_stored_in_it() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let listed = String::from_utf8(talk.ask(305, &[], b"").body).expect("JSON");
    for topic in [
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "BenchmarkTest",
        "DefaultCluster",
    ] {
        assert!(
            listed.contains(&format!("\"{topic}\"")),
            "{topic}: {listed}"
        );
    }
}

#[test]
fn tools_are_told_that_the_broker_is_a_master_without_replicas() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let sent = talk.send_message("T", 0, "", b"body");
    assert_eq!(sent.code, 0);
    // A broker of 4.9 does not know the request.
    assert_eq!(talk.ask(907, &[], b"").code, 3);
    talk.version = 479;
    let answer = talk.ask(907, &[], b"");
    assert_eq!(answer.code, 0, "{answer:?}");
    let told: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(told["master"], true);
    assert_eq!(told["haConnectionInfo"], serde_json::json!([]));
    assert_eq!(told["inSyncSlaveNums"], 0);
    assert!(
        told["masterCommitLogMaxOffset"].as_u64() > Some(0),
        "{told}"
    );
}
