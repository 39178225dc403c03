//! Topics and groups by the list.

use serde_json::{Value, json};

use super::*;

/// More than one connection may be in.
const GROUPS: usize = 5000;
const MOST_GROUPS: u64 = 4096;

fn groups_held(talk: &mut Talk) -> u64 {
    let answer = talk.ask(201, &[], b"");
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let table = body["subscriptionGroupTable"].as_object().expect("groups");
    table.len() as u64
}

#[test]
fn a_heartbeat_makes_nothing_for_groups_that_are_refused() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let before = groups_held(&mut talk);
    let consumers: Vec<_> = (0..GROUPS)
        .map(|n| {
            json!({
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY", "groupName": format!("group{n}"),
                "messageModel": "CLUSTERING", "subscriptionDataSet": [], "unitMode": false,
            })
        })
        .collect();
    let beat = json!({"clientID": "c", "consumerDataSet": consumers, "producerDataSet": []});
    let answer = talk.ask(34, &[], beat.to_string().as_bytes());
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("4096 groups"), "{answer:?}");
    assert_eq!(groups_held(&mut talk) - before, MOST_GROUPS);
    let topics = talk.ask(21, &[], b"");
    let body: Value = serde_json::from_slice(&topics.body).expect("JSON");
    let topics = body["topicConfigTable"].as_object().expect("topics");
    let retries = topics.keys().filter(|name| name.starts_with("%RETRY%"));
    assert_eq!(retries.count() as u64, MOST_GROUPS);
}

#[test]
fn a_list_of_any_length_is_made_whole_or_not_at_all_and_outlives_the_answer() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = 479;
    let topics: Vec<_> = (0..3000)
        .map(|n| {
            json!({
                "topicName": format!("T{n}"), "readQueueNums": 2, "writeQueueNums": 3, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": false,
                "attributes": {},
            })
        })
        .collect();
    let mut wrong = topics.clone();
    wrong[2999]["topicName"] = json!("no/name");
    let answer = talk.ask(
        18,
        &[],
        json!({"topicConfigList": wrong}).to_string().as_bytes(),
    );
    assert_eq!(answer.code, 29, "{answer:?}");
    assert!(!text_of(&dir, "topics.json").contains("\"T0\""));
    let answer = talk.ask(
        18,
        &[],
        json!({"topicConfigList": topics}).to_string().as_bytes(),
    );
    assert_eq!(answer.code, 0, "{answer:?}");
    let groups: Vec<_> = (0..3000)
        .map(|n| json!({"groupName": format!("G{n}")}))
        .collect();
    let answer = talk.ask(
        225,
        &[],
        json!({"groupConfigList": groups}).to_string().as_bytes(),
    );
    assert_eq!(answer.code, 0, "{answer:?}");
    for (file, name) in [("topics.json", "T"), ("subscriptionGroup.json", "G")] {
        let text = text_of(&dir, file);
        assert!(
            (0..3000).all(|n| text.contains(&format!("\"{name}{n}\""))),
            "{file}"
        );
    }
}

fn text_of(dir: &tempfile::TempDir, file: &str) -> String {
    std::fs::read_to_string(dir.path().join("config").join(file)).unwrap_or_default()
}
