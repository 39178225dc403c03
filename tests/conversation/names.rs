//! Names of groups, kinds of topics and subscriptions that Apache's brokers serve at their edges.

use super::delivery::{LEVELS, next};
use super::*;

/// A broker with one message, and where that stands in the log.
pub(super) fn one_message(talk: &mut Talk) -> String {
    let sent = talk.send_message("Orders", 0, "", b"bad");
    let id = saturnmq_storage::format::message_id::MessageId::parse(&sent.ext["msgId"]);
    id.expect("an id").1.to_string()
}

/// Sends that message back for a group.
pub(super) fn back(talk: &mut Talk, at: &str, group: &str, level: &str) -> Arrived {
    let fields = [
        ("offset", at),
        ("group", group),
        ("delayLevel", level),
        ("originTopic", "Orders"),
    ];
    talk.ask(36, &fields, b"")
}

#[test]
fn groups_with_long_names_consume_and_their_retries_go_to_clients_that_can_read_them() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let at = one_message(&mut talk);
    let group = "g".repeat(248);
    let queue = [
        ("topic", "Orders"),
        ("queueId", "0"),
        ("consumerGroup", &*group),
    ];
    let commit = [&queue[..], &[("commitOffset", "1")]].concat();
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    assert_eq!(talk.ask(14, &queue, b"").number("offset"), 1);
    let refused = back(&mut talk, &at, &group, "0");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.remark.starts_with("MESSAGE_ILLEGAL"), "{refused:?}");
    talk.version = 479;
    let answer = back(&mut talk, &at, &group, "0");
    assert_eq!(answer.code, 0, "{answer:?}");
    let retry = format!("%RETRY%{group}");
    let (_, (_, body, _)) = next(&mut talk, &Pull::of(&retry, 0));
    assert_eq!(body, b"bad");
}

#[test]
fn groups_as_long_as_clients_allow_consume_though_their_retry_topics_hold_nothing() {
    let (running, dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let at = one_message(&mut talk);
    for length in [249, 255] {
        let group = "g".repeat(length);
        let retry = format!("%RETRY%{group}");
        talk.version = 401;
        let beat = clients::heartbeat("c", &group, &[("Orders", "*")], 1);
        assert_eq!(talk.ask(34, &[], &beat).code, 0);
        let pull = Pull {
            group: &group,
            ..Pull::of("Orders", 0)
        };
        let (_, (_, body, _)) = next(&mut talk, &pull);
        assert_eq!(body, b"bad");
        // Tools ask for the route of the retry topic, consumers pull from it.
        let mut names = Talk::to(running.address("name server"));
        let route = names.ask(105, &[("topic", &*retry)], b"");
        assert_eq!(route.code, 0, "{route:?}");
        let pull = Pull {
            group: &group,
            ..Pull::of(&retry, 0)
        };
        assert_eq!(talk.pull(&pull).code, 19);
        for version in [401, 479] {
            talk.version = version;
            for level in ["0", "-1"] {
                let refused = back(&mut talk, &at, &group, level);
                let dead_fits = level == "-1" && length == 249 && version == 479;
                let code = i32::from(!dead_fits);
                assert_eq!(
                    refused.code, code,
                    "{length} {version} {level}: {refused:?}"
                );
            }
            let refused = talk.ask(310, &send_fields(&retry, "0", "", "false"), b"x");
            assert_ne!(refused.code, 0, "{refused:?}");
            assert!(refused.remark.contains("longer than topic max length"));
        }
    }
    assert_eq!(running.stop().code(), Some(0));
    let running = Running::start(dir.path(), &LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let all = talk.ask(21, &[], b"");
    let all = String::from_utf8(all.body).expect("text");
    assert!(all.contains(&format!("\"%RETRY%{}\"", "g".repeat(255))));
    let sent = talk.send_message("Orders", 0, "", b"goes on");
    assert_eq!(sent.code, 0, "{sent:?}");
    assert_eq!(
        talk.ask(207, &[("groupName", &"g".repeat(255))], b"").code,
        0
    );
    let retry = format!("%RETRY%{}", "g".repeat(255));
    assert_eq!(talk.ask(215, &[("topic", &retry)], b"").code, 0);
}

#[test]
fn a_dead_letter_whose_topic_a_client_can_read_is_kept_though_a_retry_could_not() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let at = one_message(&mut talk);
    let group = "g".repeat(121);
    assert_eq!(back(&mut talk, &at, &group, "0").code, 1);
    assert_eq!(back(&mut talk, &at, &group, "-1").code, 0);
    let (_, (_, body, _)) = next(&mut talk, &Pull::of(&format!("%DLQ%{group}"), 0));
    assert_eq!(body, b"bad");
}

#[test]
fn tools_make_and_remove_groups_that_no_client_would_name() {
    let (running, dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let at = one_message(&mut talk);
    let made = talk.ask(200, &[], br#"{"groupName":"bad group","retryQueueNums":1}"#);
    assert_eq!(made.code, 0, "{made:?}");
    // A client that is no stock client.
    let beat = clients::heartbeat("c", "bad group", &[("Orders", "*")], 1);
    assert_eq!(talk.ask(34, &[], &beat).code, 0);
    let refused = back(&mut talk, &at, "bad group", "0");
    assert_eq!(refused.code, 1, "{refused:?}");
    let progress = |talk: &mut Talk, group: &str| {
        let fields = [
            ("consumerGroup", group),
            ("topic", "Orders"),
            ("queueId", "0"),
        ];
        let found = talk.ask(14, &fields, b"");
        found.ext.get("offset").cloned()
    };
    let commit = [
        ("consumerGroup", "bad group"),
        ("topic", "Orders"),
        ("queueId", "0"),
        ("commitOffset", "1"),
    ];
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    assert_eq!(progress(&mut talk, "bad group").as_deref(), Some("1"));
    let copy = [
        ("srcGroup", "bad group"),
        ("destGroup", "its copy"),
        ("topic", "Orders"),
        ("offline", "true"),
    ];
    assert_eq!(talk.ask(314, &copy, b"").code, 0);
    for illegal in ["", " ", "a@b", "../b"] {
        let body = format!(r#"{{"groupName":"{illegal}","retryQueueNums":1}}"#);
        assert_eq!(talk.ask(200, &[], body.as_bytes()).code, 1, "{illegal:?}");
    }
    assert_eq!(running.stop().code(), Some(0));
    let running = Running::start(dir.path(), &LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let listed = |talk: &mut Talk| {
        let all = talk.ask(201, &[], b"");
        let all = String::from_utf8(all.body).expect("text");
        all.contains("\"bad group\"")
    };
    assert!(listed(&mut talk));
    for group in ["bad group", "its copy"] {
        assert_eq!(progress(&mut talk, group).as_deref(), Some("1"), "{group}");
    }
    assert_eq!(talk.ask(207, &[("groupName", "bad group")], b"").code, 0);
    assert!(!listed(&mut talk));
}

#[test]
fn topics_of_type_mixed_are_made_for_tools_of_releases_that_make_them() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let mut make = |version: i32, topic: &str, queues: &str, attributes: &str| {
        talk.version = version;
        let fields = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues),
            ("writeQueueNums", queues),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("order", "false"),
            ("attributes", attributes),
        ];
        talk.ask(17, &fields, b"").code
    };
    let mixed = "+message.type=MIXED";
    assert_eq!(make(433, "Mixed", "4", mixed), 0, "5.1.0");
    assert_eq!(make(441, "Other", "4", mixed), 29, "5.1.4");
    assert_eq!(make(401, "Mixed", "8", ""), 0, "4.9.7 alters what it knows");
}

#[test]
fn blanks_in_the_place_of_tags_match_nothing_and_bars_alone_are_refused() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"no tag");
    talk.send_message("T", 0, "TAGS\u{1}a\u{2}", b"tag");
    for (tags, code) in [
        (" ", 20),
        (" || ", 20),
        ("|| ||", 20),
        ("||", 23),
        (" ||a", 0),
    ] {
        let pull = Pull {
            tags,
            ..Pull::of("T", 0)
        };
        let answer = talk.pull(&pull);
        assert_eq!(answer.code, code, "{tags:?}: {answer:?}");
    }
}

/// One line that cannot be read makes the whole page none.
#[test]
fn a_group_s_name_is_a_label_of_the_metrics_whatever_tools_put_into_it() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    one_message(&mut talk);
    let made = talk.ask(200, &[], br#"{"groupName":"a\"b\\c","retryQueueNums":1}"#);
    assert_eq!(made.code, 0, "{made:?}");
    let commit = [
        ("consumerGroup", r#"a"b\c"#),
        ("topic", "Orders"),
        ("queueId", "0"),
        ("commitOffset", "0"),
    ];
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    let (_, metrics) = crate::admin::page(&running, "/metrics");
    let line = r#"saturnmq_consumer_lag_messages{group="a\"b\\c",topic="Orders",queue="0"} "#;
    assert!(metrics.contains(line), "{metrics}");
}
