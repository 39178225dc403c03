//! Delayed messages, retries and dead letters.

use super::*;

/// Delay levels of a second, so that tests end.
pub(super) const LEVELS: [&str; 2] = ["--set", "messageDelayLevel=1s 2s 1s 1s 1s"];

pub(super) fn next(talk: &mut Talk, pull: &Pull<'_>) -> (Arrived, (i64, Vec<u8>, String)) {
    let answer = talk.pull(&Pull {
        wait_ms: 18_000,
        ..*pull
    });
    assert_eq!(answer.code, 0, "{answer:?}");
    let record = records(&answer.body).remove(0);
    (answer, record)
}

/// Consumers of 5.x write a message trace only of messages that say where they came in, as those
/// that a 5.x broker took from a 5.x client do.
#[test]
fn a_message_of_a_5_x_client_says_where_it_came_in_and_that_it_is_traced() {
    let (running, _dir) = broker(&["--set", "regionId=Here"]);
    let mut talk = Talk::to(running.address("broker"));
    let mut stored = |version: i32, properties: &str| {
        talk.version = version;
        let sent = talk.send_message("T", 0, properties, b"x");
        let offset = sent.ext["queueOffset"].parse().expect("an offset");
        let (_, (_, _, properties)) = next(&mut talk, &Pull::of("T", offset));
        let pairs = properties.split('\u{2}');
        pairs
            .filter(|pair| pair.starts_with("MSG_REGION") || pair.starts_with("TRACE_ON"))
            .map(|pair| pair.replace('\u{1}', "="))
            .collect::<Vec<_>>()
    };
    assert_eq!(stored(399, "a\u{1}b"), [""; 0]);
    for properties in [
        "",
        "a\u{1}b",
        "MSG_REGION\u{1}There\u{2}TRACE_ON\u{1}false\u{2}a\u{1}b",
    ] {
        assert_eq!(
            stored(479, properties),
            ["MSG_REGION=Here", "TRACE_ON=true"],
            "{properties:?}"
        );
    }
}

#[test]
fn a_delayed_message_arrives_after_its_delay_with_its_properties() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 3, "", b"makes the topic");
    let mut at = 0;
    soon("a delay of 2 s", Duration::from_secs(6), || {
        at += 1;
        let begun = Instant::now();
        talk.send_message(
            "T",
            3,
            "DELAY\u{1}2\u{2}TAGS\u{1}A\u{2}WAIT\u{1}true\u{2}",
            b"later",
        );
        let (answer, (offset, body, properties)) = next(
            &mut talk,
            &Pull {
                queue: 3,
                tags: "A",
                ..Pull::of("T", at)
            },
        );
        let waited = answer.at - begun;
        assert_eq!((offset, &*body), (at, &b"later"[..]));
        assert_eq!(
            properties,
            "DELAY\u{1}2\u{2}TAGS\u{1}A\u{2}WAIT\u{1}true\u{2}CLUSTER\u{1}DefaultCluster\u{2}\
             REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}3"
        );
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
        waited
    });
}

#[test]
fn delayed_messages_of_a_level_keep_their_order_and_none_is_lost() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"makes the topic");
    for number in 0..700 {
        talk.send_message("T", 0, "DELAY\u{1}1\u{2}", format!("{number}").as_bytes());
    }
    let mut seen = 0;
    while seen < 700 {
        let answer = talk.pull(&Pull {
            wait_ms: 12_000,
            ..Pull::of("T", seen + 1)
        });
        assert_eq!(answer.code, 0, "{answer:?}");
        for (_, body, _) in records(&answer.body) {
            assert_eq!(body, seen.to_string().as_bytes());
            seen += 1;
        }
    }
}

#[test]
fn a_group_that_does_not_retry_has_a_retry_topic_without_queues_until_it_does() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let mut names = Talk::to(running.address("name server"));
    let sent = talk.send_message("Orders", 0, "", b"bad");
    let at = saturnmq_storage::format::message_id::MessageId::parse(&sent.ext["msgId"]);
    let offset = at.expect("an id").1.to_string();
    let back = [
        ("offset", &*offset),
        ("group", "g"),
        ("delayLevel", "1"),
        ("originTopic", "Orders"),
    ];
    let queues = |names: &mut Talk| {
        let route = names.ask(105, &[("topic", "%RETRY%g")], b"");
        assert_eq!(route.code, 0, "{route:?}");
        let route: serde_json::Value = serde_json::from_slice(&route.body).expect("JSON");
        let queues = route["queueDatas"][0]["readQueueNums"].as_i64();
        queues.expect("a number")
    };
    let group = |number: i32| format!(r#"{{"groupName":"g","retryQueueNums":{number}}}"#);
    assert_eq!(talk.ask(200, &[], group(0).as_bytes()).code, 0);
    let beat = clients::heartbeat("c", "g", &[("Orders", "*")], 1);
    assert_eq!(talk.ask(34, &[], &beat).code, 0);
    assert_eq!(queues(&mut names), 0);
    assert_eq!(talk.ask(36, &back, b"").code, 0, "left out, as Apache does");
    // Nobody could read what is stored in a topic without queues.
    assert_eq!(talk.ask(200, &[], group(2).as_bytes()).code, 0);
    assert_eq!(talk.ask(36, &back, b"").code, 0);
    assert_eq!(queues(&mut names), 2);
    assert_eq!(talk.ask(200, &[], group(0).as_bytes()).code, 0);
    assert_eq!(talk.ask(34, &[], &beat).code, 0);
    assert_eq!(queues(&mut names), 2, "what it has it keeps");
}

#[test]
fn a_message_sent_back_is_retried_and_becomes_a_dead_letter() {
    let (running, _dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let sent = talk.send_message("Orders", 0, "KEYS\u{1}k\u{2}", b"bad");
    let id = sent.ext["msgId"].clone();
    let at = saturnmq_storage::format::message_id::MessageId::parse(&id)
        .expect("an id")
        .1;
    let back = |talk: &mut Talk, offset: u64| {
        let offset = offset.to_string();
        let fields = [
            ("offset", &*offset),
            ("group", "g"),
            ("delayLevel", "0"),
            ("originTopic", "Orders"),
            ("unitMode", "false"),
            ("maxReconsumeTimes", "1"),
        ];
        let answer = talk.ask(36, &fields, b"");
        assert_eq!(answer.code, 0, "{answer:?}");
    };
    back(&mut talk, at);
    let answer = talk.pull(&Pull {
        wait_ms: 12_000,
        ..Pull::of("%RETRY%g", 0)
    });
    assert_eq!(answer.code, 0, "{answer:?}");
    let (_, body, properties) = records(&answer.body).remove(0);
    assert_eq!(body, b"bad");
    for part in [
        "RETRY_TOPIC\u{1}Orders",
        &format!("ORIGIN_MESSAGE_ID\u{1}{id}"),
        "KEYS\u{1}k",
    ] {
        assert!(properties.contains(part), "{properties:?}");
    }
    let record = saturnmq_storage::format::record::Record::decode(&answer.body).expect("a record");
    assert_eq!(record.reconsume_times(), 1);
    for (item, key) in [
        ("TOPIC_PUT_NUMS", "%RETRY%g"),
        ("SNDBCK_PUT_NUMS", "Orders@g"),
    ] {
        let counted = talk.ask(315, &[("statsName", item), ("statsKey", key)], b"");
        assert_eq!(counted.code, 0, "{item} {key}: {counted:?}");
    }

    back(&mut talk, record.physical_offset().unsigned_abs());
    let (_, (_, body, properties)) = next(&mut talk, &Pull::of("%DLQ%g", 0));
    assert_eq!(body, b"bad");
    assert!(
        properties.contains(&format!("ORIGIN_MESSAGE_ID\u{1}{id}")),
        "{properties:?}"
    );
}

#[test]
fn the_dead_letter_topic_is_on_disk_when_a_dead_letter_is_acknowledged() {
    let (running, dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let sent = talk.send_message("Orders", 0, "", b"bad");
    let at = saturnmq_storage::format::message_id::MessageId::parse(&sent.ext["msgId"])
        .expect("an id")
        .1
        .to_string();
    for group in ["g", "h", "i"] {
        let fields = [
            ("offset", &*at),
            ("group", group),
            ("delayLevel", "-1"),
            ("originTopic", "Orders"),
        ];
        let answer = talk.ask(36, &fields, b"");
        assert_eq!(answer.code, 0, "{answer:?}");
        let file = dir.path().join("config/topics.json");
        let topics = std::fs::read_to_string(file).expect("topics.json");
        assert!(topics.contains(&format!("%DLQ%{group}")), "{topics}");
        let (_, (_, body, _)) = next(&mut talk, &Pull::of(&format!("%DLQ%{group}"), 0));
        assert_eq!(body, b"bad");
    }
}

#[test]
fn delivery_goes_on_after_a_restart() {
    let (running, dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"makes the topic");
    talk.send_message("T", 0, "DELAY\u{1}2\u{2}", b"later");
    assert_eq!(running.stop().code(), Some(0));
    let running = Running::start(dir.path(), &LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let (_, (_, body, _)) = next(&mut talk, &Pull::of("T", 1));
    assert_eq!(body, b"later");
    let answer = talk.pull(&Pull {
        wait_ms: 1500,
        ..Pull::of("T", 2)
    });
    assert_eq!(answer.code, 19, "delivered once: {answer:?}");
}

/// Makes the log of a stopped store end with a record of an hour ahead, as a run leaves it whose
/// clock was wrong.
pub(super) fn stored_in_the_future(dir: &std::path::Path) {
    const STORE_TIME: usize = 56;
    let log = dir.join("commitlog").join(format!("{:020}", 0));
    let mut bytes = std::fs::read(&log).expect("the log");
    let (mut at, mut last) = (0, None);
    while let size @ 1.. = u32::from_be_bytes(bytes[at..at + 4].try_into().expect("a size")) {
        last = Some(at);
        at += size as usize;
    }
    let at = last.expect("a record") + STORE_TIME;
    let time = i64::from_be_bytes(bytes[at..at + 8].try_into().expect("a time")) + 3_600_000;
    bytes[at..at + 8].copy_from_slice(&time.to_be_bytes());
    std::fs::write(&log, bytes).expect("the log");
    for entry in std::fs::read_dir(dir).expect("the store") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("saturnmq.resume") {
            std::fs::remove_file(&path).expect("the resume point");
        }
    }
}

#[test]
fn a_delay_is_kept_while_the_clock_is_behind_the_log() {
    let (running, dir) = broker(&LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"of an hour ahead");
    assert!(running.stop().success());
    stored_in_the_future(dir.path());
    let running = Running::start(dir.path(), &LEVELS);
    let mut talk = Talk::to(running.address("broker"));
    let begun = Instant::now();
    for _ in 0..60 {
        talk.send_message("T", 0, "DELAY\u{1}2\u{2}", b"later");
    }
    let (answer, _) = next(&mut talk, &Pull::of("T", 1));
    let waited = answer.at - begun;
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    // One after the other would take two minutes.
    let (answer, _) = next(&mut talk, &Pull::of("T", 60));
    let all = answer.at - begun;
    assert!(all < Duration::from_secs(60), "{all:?}");
}
