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
    let held = talk.ask(21, &[], b"");
    assert!(!String::from_utf8_lossy(&held.body).contains("\"T0\""));
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

/// What is asked for behind a list is answered before it, also while the list is looked at only.
#[test]
fn a_long_list_leaves_the_services_thread_to_others_before_anything_of_it_is_made() {
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = 479;
    // The last one is refused, so nothing is made.
    let topics = (0..20_000).map(|n| json!({"topicName": format!("T{n}"), "perm": 6}));
    let topics: Vec<_> = topics.chain([json!({"topicName": "no/name"})]).collect();
    let groups = (0..20_000).map(|n| json!({"groupName": format!("G{n}")}));
    let groups: Vec<_> = groups.chain([json!({"groupName": "no/name"})]).collect();
    let lists = [
        (18, json!({"topicConfigList": topics})),
        (225, json!({"groupConfigList": groups})),
    ];
    for (code, list) in lists {
        let list = talk.request(code, &[], list.to_string().as_bytes());
        let behind = talk.request(201, &[], b"");
        let until = Instant::now() + PATIENCE;
        let first = talk.frame(until).expect("an answer");
        assert_eq!(first.opaque, behind, "{code}");
        let answer = talk.answer(list);
        assert_ne!(answer.code, 0, "{answer:?}");
    }
}
