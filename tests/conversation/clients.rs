//! Groups, their members and their offsets.

use nix::sys::signal::Signal;

use super::*;

pub(super) fn heartbeat(
    client: &str,
    group: &str,
    topics: &[(&str, &str)],
    version: i64,
) -> Vec<u8> {
    let subscriptions: Vec<_> = topics
        .iter()
        .map(|(topic, expression)| {
            serde_json::json!({
                "classFilterMode": false, "codeSet": [], "expressionType": "TAG",
                "subString": expression, "subVersion": version, "tagsSet": [], "topic": topic,
            })
        })
        .collect();
    serde_json::json!({
        "clientID": client,
        "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": group, "messageModel": "CLUSTERING",
            "subscriptionDataSet": subscriptions, "unitMode": false,
        }],
        "producerDataSet": [{"groupName": "p"}],
    })
    .to_string()
    .into_bytes()
}

fn members(talk: &mut Talk, group: &str) -> Vec<String> {
    let answer = talk.ask(38, &[("consumerGroup", group)], b"");
    if answer.code != 0 {
        return Vec::new();
    }
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    let ids = body["consumerIdList"].as_array().expect("a list");
    let mut ids: Vec<String> = ids
        .iter()
        .filter_map(|id| Some(id.as_str()?.to_owned()))
        .collect();
    ids.sort();
    ids
}

#[test]
fn a_consumer_is_a_member_whatever_it_calls_its_consume_type() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    // Go clients before 2.0.0 say PUSH.
    for (group, key, word) in [
        ("g1", "CONSUME_PASSIVELY", "PUSH"),
        ("g2", "CLUSTERING", "NOBODY_KNOWS"),
        ("g3", "CONSUME_FROM_LAST_OFFSET", "NOBODY_KNOWS"),
    ] {
        let body = heartbeat("c", group, &[("T", "*")], 1);
        let body = String::from_utf8(body).expect("JSON").replace(key, word);
        let answer = talk.ask(34, &[], body.as_bytes());
        assert_eq!((answer.code, answer.remark.as_str()), (0, ""));
        assert_eq!(members(&mut talk, group), ["c"]);
        let told = talk.ask(203, &[("consumerGroup", group)], b"");
        let told: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
        assert_eq!(told["consumeType"], "CONSUME_PASSIVELY");
        assert_eq!(told["messageModel"], "CLUSTERING");
    }
}

#[test]
fn every_member_hears_of_one_that_joins_or_leaves() {
    let (running, _dir) = broker(&["--cores", "2"]);
    let mut first = Talk::to(running.address("broker"));
    let mut second = Talk::to(running.address("broker"));
    let opaque = first.request(34, &[], &heartbeat("a", "g", &[("T", "*")], 1));
    let told = first.frame(Instant::now() + PATIENCE).expect("a frame");
    assert_eq!(
        (told.code, told.is_response),
        (40, false),
        "before the heartbeat's answer"
    );
    assert_eq!(told.ext["consumerGroup"], "g");
    assert_eq!(first.answer(opaque).code, 0);
    assert_eq!(
        second
            .ask(34, &[], &heartbeat("b", "g", &[("T", "*")], 1))
            .code,
        0
    );
    first.pushed(40);
    second.pushed(40);
    assert_eq!(members(&mut first, "g"), ["a", "b"]);
    drop(second);
    first.pushed(40);
    assert_eq!(members(&mut first, "g"), ["a"]);
    let left = [
        ("clientID", "a"),
        ("consumerGroup", "g"),
        ("producerGroup", ""),
    ];
    assert_eq!(first.ask(35, &left, b"").code, 0);
    assert_eq!(members(&mut first, "g"), [] as [String; 0]);
}

/// Of a client in groups `g0` to `g{groups - 1}`.
fn long_heartbeat(client: &str, groups: usize) -> Vec<u8> {
    let one = heartbeat(client, "g", &[("T", "*")], 1);
    let mut body: serde_json::Value = serde_json::from_slice(&one).expect("JSON");
    let consumer = body["consumerDataSet"][0].clone();
    let all = (0..groups).map(|number| {
        let mut consumer = consumer.clone();
        consumer["groupName"] = format!("g{number}").into();
        consumer
    });
    body["consumerDataSet"] = all.collect();
    body.to_string().into_bytes()
}

#[test]
fn nobody_waits_for_a_long_heartbeat_of_another_client() {
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    let long = talk.request(34, &[], &long_heartbeat("a", 2000));
    let short = talk.request(34, &[], &heartbeat("a", "g", &[("T", "*")], 1));
    let mut answers = Vec::new();
    while answers.len() < 2 {
        let frame = talk.frame(Instant::now() + PATIENCE).expect("a frame");
        if frame.is_response {
            assert_eq!(frame.code, 0, "{frame:?}");
            answers.push(frame.opaque);
        }
    }
    assert_eq!(answers, [short, long]);
    for group in ["g0", "g1999"] {
        assert_eq!(members(&mut talk, group), ["a"]);
    }
}

#[test]
fn a_client_that_is_gone_before_its_heartbeat_is_taken_is_no_member() {
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut staying = Talk::to(running.address("broker"));
    staying.ask(34, &[], &heartbeat("stays", "g1999", &[("T", "*")], 1));
    staying.early.clear();
    let mut leaving = Talk::to(running.address("broker"));
    leaving.request(34, &[], &long_heartbeat("leaves", 2000));
    drop(leaving);
    // It joins, and goes with its connection, whatever comes first.
    staying.pushed(40);
    let until = Instant::now() + PATIENCE;
    while members(&mut staying, "g1999") != ["stays"] {
        assert!(Instant::now() < until, "it stays a member");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(members(&mut staying, "g0").is_empty());
}

#[test]
fn a_pull_uses_the_registered_subscription_and_refuses_an_older_one() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "TAGS\u{1}A\u{2}", b"a");
    talk.send_message("T", 0, "TAGS\u{1}B\u{2}", b"b");
    let pull = |talk: &mut Talk, version: &str| {
        let fields = [
            ("consumerGroup", "g"),
            ("topic", "T"),
            ("queueId", "0"),
            ("queueOffset", "0"),
            ("maxMsgNums", "32"),
            ("sysFlag", "0"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "0"),
            ("subVersion", version),
        ];
        talk.ask(11, &fields, b"")
    };
    assert_eq!(pull(&mut talk, "5").code, 24);
    assert_eq!(
        talk.ask(34, &[], &heartbeat("a", "g", &[("T", "B")], 5))
            .code,
        0
    );
    let answer = pull(&mut talk, "5");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(records(&answer.body).len(), 1);
    assert_eq!(records(&answer.body)[0].1, b"b");
    assert_eq!(pull(&mut talk, "6").code, 25);
    assert_eq!(
        talk.ask(34, &[], &heartbeat("a", "g", &[("Other", "*")], 7))
            .code,
        0
    );
    assert_eq!(pull(&mut talk, "5").code, 24, "the last heartbeat counts");
}

#[test]
fn the_retry_topic_is_there_when_the_heartbeat_is_answered() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let topics = [("T", "*"), ("%RETRY%g", "*")];
    assert_eq!(talk.ask(34, &[], &heartbeat("a", "g", &topics, 1)).code, 0);
    let answer = talk.pull(&Pull::of("%RETRY%g", 0));
    assert_eq!(answer.code, 19, "{answer:?}");
    let file = std::fs::read_to_string(dir.path().join("config/topics.json")).expect("topics.json");
    assert!(file.contains("%RETRY%g"));
}

#[test]
fn committed_offsets_are_kept_over_a_restart() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"x");
    let queue = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")];
    assert_eq!(
        talk.ask(14, &queue, b"").number("offset"),
        0,
        "a young queue starts at 0"
    );
    let mut commit = queue.to_vec();
    commit.push(("commitOffset", "1"));
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    assert_eq!(running.stop().code(), Some(0));
    let running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(talk.ask(14, &queue, b"").number("offset"), 1);
}

#[test]
fn a_pull_that_commits_nothing_leaves_the_progress_of_its_group() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"x");
    let queue = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")];
    let mut commit = queue.to_vec();
    commit.push(("commitOffset", "1"));
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    let mut pull = queue.to_vec();
    pull.extend([
        ("queueOffset", "0"),
        ("maxMsgNums", "32"),
        ("sysFlag", "5"),
        ("suspendTimeoutMillis", "0"),
        ("subVersion", "0"),
        ("subscription", "*"),
    ]);
    let answer = talk.ask(11, &pull, b"");
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("commitOffset"), "{answer:?}");
    assert_eq!(talk.ask(14, &queue, b"").number("offset"), 1);
}

#[test]
fn a_group_or_topic_that_has_no_configuration_leaves_no_progress_when_it_is_deleted() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"x");
    let queue = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")];
    let mut commit = queue.to_vec();
    commit.push(("commitOffset", "1"));
    let delete = |clean| [("groupName", "g"), ("cleanOffset", clean)];
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    assert_eq!(talk.ask(207, &delete("false"), b"").code, 0);
    assert_eq!(talk.ask(14, &queue, b"").number("offset"), 1, "kept");
    assert_eq!(talk.ask(207, &delete("true"), b"").code, 0);
    assert_eq!(
        talk.ask(14, &queue, b"").number("offset"),
        0,
        "as a new group"
    );
    assert_eq!(talk.ask(215, &[("topic", "T")], b"").code, 0);
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    assert_eq!(talk.ask(215, &[("topic", "T")], b"").code, 0);
    assert_eq!(talk.ask(14, &queue, b"").number("offset"), 0);
}

/// Answers a request of the broker with `code`.
fn respond(talk: &mut Talk, to: &Arrived, code: i32) {
    let mut out = Vec::new();
    let to = saturnmq_net::command::ReplyTo {
        codec: Codec::Json,
        opaque: to.opaque,
        oneway: false,
        version: 399,
        code: to.code,
    };
    Encoder::response(&mut out, to, code, None).finish();
    talk.send_bytes(&out);
}

#[test]
fn a_reply_reaches_the_producer_that_waits_for_it() {
    let (running, _dir) = broker(&["--cores", "2"]);
    let mut requester = Talk::to(running.address("broker"));
    let mut replier = Talk::to(running.address("broker"));
    let topic = "DefaultCluster_REPLY_TOPIC";
    let properties = |client: &str| {
        format!("MSG_TYPE\u{1}reply\u{2}REPLY_TO_CLIENT\u{1}{client}\u{2}CORRELATION_ID\u{1}c")
    };
    assert_eq!(
        requester
            .ask(34, &[], &heartbeat("asker", "g", &[], 1))
            .code,
        0
    );
    for (code, expected) in [(0, 0), (1, 1)] {
        let text = properties("asker");
        let opaque = replier.request(325, &send_fields(topic, "0", &text, "false"), b"answer");
        let pushed = requester.pushed(326);
        assert_eq!(pushed.body, b"answer");
        assert!(
            pushed.ext["properties"].contains("CORRELATION_ID\u{1}c"),
            "{pushed:?}"
        );
        respond(&mut requester, &pushed, code);
        let answer = replier.answer(opaque);
        assert_eq!(answer.code, expected, "{answer:?}");
        assert!(answer.ext.contains_key("TRACE_ON"), "{answer:?}");
    }
    let text = properties("nobody");
    let answer = replier.ask(325, &send_fields(topic, "0", &text, "false"), b"answer");
    assert_eq!(answer.code, 1);
    assert!(
        answer.remark.contains("channel of <nobody> not found"),
        "{answer:?}"
    );
    // A pull that finds something does not wait for the rest; asking for the end does.
    let end = replier.ask(30, &[("topic", topic), ("queueId", "0")], b"");
    assert_eq!(end.number("offset"), 3);
    let stored = replier.pull(&Pull::of(topic, 0));
    assert_eq!(
        records(&stored.body).len(),
        3,
        "replies are stored whatever became of the push"
    );
}

#[test]
fn a_reply_to_a_producer_that_leaves_is_answered_all_the_same() {
    let (running, _dir) = broker(&["--cores", "2"]);
    let mut requester = Talk::to(running.address("broker"));
    let mut replier = Talk::to(running.address("broker"));
    let beat = heartbeat("asker", "g", &[], 1);
    assert_eq!(requester.ask(34, &[], &beat).code, 0);
    let fields = send_fields(
        "DefaultCluster_REPLY_TOPIC",
        "0",
        "REPLY_TO_CLIENT\u{1}asker",
        "false",
    );
    let opaque = replier.request(324, &long_names(&fields), b"answer");
    requester.pushed(326);
    drop(requester);
    let answer = replier.answer(opaque);
    assert_eq!(answer.code, 1, "{answer:?}");
}

/// The fields of a send under the names that requests 10 and 324 use.
fn long_names<'a>(fields: &[(&str, &'a str); 12]) -> Vec<(&'static str, &'a str)> {
    let names = [
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
        "properties",
        "reconsumeTimes",
        "unitMode",
        "batch",
    ];
    names
        .into_iter()
        .zip(fields.iter().map(|field| field.1))
        .collect()
}

#[test]
fn the_routes_of_a_broker_go_with_its_connection() {
    let (running, _dir) = broker(&[]);
    let mut other = Talk::to(running.address("name server"));
    let mut client = Talk::to(running.address("name server"));
    let identity = [
        ("brokerName", "other"),
        ("brokerAddr", "127.0.0.1:1"),
        ("clusterName", "DefaultCluster"),
        ("haServerAddr", "127.0.0.1:2"),
        ("brokerId", "0"),
    ];
    let body = br#"{"topicConfigSerializeWrapper":{"topicConfigTable":{
        "T":{"topicName":"T"},"U":{"topicName":"U"}}}}"#;
    assert_eq!(other.ask(103, &identity, body).code, 0);
    assert_eq!(client.ask(105, &[("topic", "T")], b"").code, 0);
    drop(other);
    let until = Instant::now() + PATIENCE;
    while client.ask(105, &[("topic", "T")], b"").code == 0 {
        assert!(Instant::now() < until, "the route stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_broker_that_is_gone_before_it_is_entered_leaves_no_routes() {
    const LEFT: usize = 40;
    let (running, _dir) = broker(&[]);
    let mut client = Talk::to(running.address("name server"));
    let lease = i64::MAX.to_string();
    // So many topics that another thread enters them.
    let tables = |name: &str, topics: usize| {
        let topics: serde_json::Map<_, _> = (0..topics)
            .map(|n| {
                let topic = format!("{name}_topic_with_quite_a_long_name_{n}");
                (
                    topic.clone(),
                    serde_json::json!({"topicName": topic, "readQueueNums": 8}),
                )
            })
            .collect();
        let wrapper = serde_json::json!({"topicConfigTable": topics});
        serde_json::json!({"topicConfigSerializeWrapper": wrapper}).to_string()
    };
    let register = |talk: &mut Talk, name: &str, n: usize, topics: usize| {
        let address = format!("127.0.0.2:{n}");
        let identity = [
            ("brokerName", name),
            ("brokerAddr", address.as_str()),
            ("clusterName", "DefaultCluster"),
            ("haServerAddr", "127.0.0.1:2"),
            ("brokerId", "0"),
            ("heartbeatTimeoutMillis", lease.as_str()),
        ];
        talk.request(103, &identity, tables(name, topics).as_bytes())
    };
    // It has much to do first.
    let mut staying = Talk::to(running.address("name server"));
    register(&mut staying, "stays", LEFT, 40_000);
    for n in 0..LEFT {
        let mut leaving = Talk::to(running.address("name server"));
        register(&mut leaving, &format!("left{n}"), n, 400);
        // What it is answered at once finds nobody, which ends the connection.
        leaving.request(105, &[("topic", "T")], b"");
        leaving.request(105, &[("topic", "T")], b"");
    }
    let opaque = register(&mut staying, "stays", LEFT, 400);
    assert_eq!(
        staying.answer(opaque).code,
        0,
        "those before it have been entered"
    );
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = client.ask(106, &[], b"");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.contains("\"stays\""), "{text}");
        if !text.contains("\"left") {
            break;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_group_is_not_ahead_of_what_a_crash_left() {
    let (mut running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"x");
    running.signal(nix::sys::signal::Signal::SIGKILL);
    running.wait();
    drop(running);
    // As the file is on the disk when the messages that were consumed are not.
    let offsets = r#"{"offsetTable":{"T@g":{0:100,1:7},"Gone@g":{0:5}}}"#;
    std::fs::write(dir.path().join("config/consumerOffset.json"), offsets).expect("offsets");
    let running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to(running.address("broker"));
    let at = |talk: &mut Talk, topic: &str, queue: &str| {
        let asked = [("consumerGroup", "g"), ("topic", topic), ("queueId", queue)];
        talk.ask(14, &asked, b"").number("offset")
    };
    assert_eq!(at(&mut talk, "T", "0"), 1);
    assert_eq!(at(&mut talk, "T", "1"), 0);
    assert_eq!(
        at(&mut talk, "Gone", "0"),
        5,
        "of a topic that nobody knows"
    );
}

#[test]
fn the_retry_topic_of_a_group_in_unit_mode_says_so() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let beat = |group: &str, unit: bool| {
        let text = String::from_utf8(heartbeat("a", group, &[("T", "*")], 1)).expect("JSON");
        let unit = format!(r#""unitMode":{unit}"#);
        text.replace(r#""unitMode":false"#, &unit).into_bytes()
    };
    assert_eq!(talk.ask(34, &[], &beat("units", true)).code, 0);
    assert_eq!(talk.ask(34, &[], &beat("plain", false)).code, 0);
    let all = talk.ask(21, &[], b"");
    let all: serde_json::Value = serde_json::from_slice(&all.body).expect("JSON");
    for (topic, flag) in [("%RETRY%units", 2), ("%RETRY%plain", 0)] {
        let config = &all["topicConfigTable"][topic];
        assert_eq!(config["topicSysFlag"], flag, "{config}");
    }
}

#[test]
fn requests_of_pop_consumers_are_answered_that_they_are_not_supported() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"x");
    talk.version = 495;
    let fields = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")];
    for code in [
        200_050, 200_051, 200_151, 200_052, 200_053, 200_054, 200_055, 400, 401,
    ] {
        let answer = talk.ask(code, &fields, b"{}");
        assert_eq!(answer.code, 3, "{answer:?}");
        assert_eq!(answer.remark, format!(" request type {code} not supported"));
    }
}

#[test]
fn committed_offsets_are_saved_while_the_broker_runs() {
    let often = ["--set", "flushConsumerOffsetInterval=200"];
    let (mut running, dir) = broker(&often);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"x");
    let queue = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")];
    let mut commit = queue.to_vec();
    commit.push(("commitOffset", "1"));
    assert_eq!(talk.ask(15, &commit, b"").code, 0);
    let path = dir.path().join("config/consumerOffset.json");
    let until = Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains("T@g")) {
        assert!(Instant::now() < until, "the offset is not saved");
        assert_eq!(talk.ask(14, &queue, b"").number("offset"), 1);
    }
    running.signal(Signal::SIGKILL);
    running.wait();
    let running = Running::start(dir.path(), &often);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(talk.ask(14, &queue, b"").number("offset"), 1);
}
