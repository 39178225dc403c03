//! What waits for a state file, and what does not.

use std::fs;

use super::clients::heartbeat;
use super::*;

fn alter(talk: &mut Talk, topic: &str, queues: &str) -> Arrived {
    let fields = [
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", queues),
        ("writeQueueNums", queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "false"),
    ];
    talk.ask(17, &fields, b"")
}

#[test]
fn a_topic_goes_on_while_a_change_of_it_cannot_be_written() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(alter(&mut talk, "T", "4").code, 0);
    assert_eq!(talk.send_message("T", 3, "", b"before").code, 0);
    let in_the_way = dir.path().join("config/topics.json.tmp");
    fs::create_dir(&in_the_way).expect("a directory");
    let refused = alter(&mut talk, "T", "8");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.remark.contains("topics.json"), "{refused:?}");
    assert_eq!(talk.send_message("T", 3, "", b"meanwhile").code, 0);
    // A crash would take this queue and what was acknowledged in it.
    let refused = talk.ask(310, &send_fields("T", "7", "", "false"), b"early");
    assert_eq!(refused.code, 1, "{refused:?}");
    fs::remove_dir(&in_the_way).expect("gone");
    assert_eq!(alter(&mut talk, "U", "4").code, 0);
    assert_eq!(talk.send_message("T", 7, "", b"after").code, 0);
    let pulled = talk.pull(&Pull {
        queue: 3,
        ..Pull::of("T", 0)
    });
    let bodies: Vec<_> = records(&pulled.body).into_iter().map(|r| r.1).collect();
    assert_eq!(bodies, [b"before".to_vec(), b"meanwhile".to_vec()]);
}

#[test]
fn a_group_is_on_the_disk_when_the_heartbeat_that_makes_it_is_answered() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    for n in 0..20 {
        let group = format!("group{n}");
        let answer = talk.ask(34, &[], &heartbeat("c", &group, &[("T", "*")], 1));
        assert_eq!(answer.code, 0, "{answer:?}");
        let path = dir.path().join("config/subscriptionGroup.json");
        let text = fs::read_to_string(path).expect("the file");
        assert!(text.contains(&format!("\"{group}\"")), "{group}");
    }
}
