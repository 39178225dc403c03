//! Moving and asking for the progress of groups: clients that are told and asked by the broker,
//! and a broker that is about to stop.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;
use saturnmq_net::fastjson;
use saturnmq_net::messages::offset::{ConsumerStatusBody, ResetOffsetBody};
use serde_json::json;

use super::clients::heartbeat;
use super::*;

fn commit(talk: &mut Talk, group: &str, topic: &str, offset: &str) {
    let fields = [
        ("consumerGroup", group),
        ("topic", topic),
        ("queueId", "0"),
        ("commitOffset", offset),
    ];
    assert_eq!(talk.ask(15, &fields, b"").code, 0);
}

fn committed(talk: &mut Talk, group: &str, topic: &str) -> Option<i64> {
    let fields = [
        ("consumerGroup", group),
        ("topic", topic),
        ("queueId", "0"),
        ("setZeroIfNotFound", "false"),
    ];
    let answer = talk.ask(14, &fields, b"");
    (answer.code == 0).then(|| answer.number("offset"))
}

fn offsets(body: &[u8]) -> Vec<i64> {
    let body: ResetOffsetBody = fastjson::from_slice(body).expect("a table");
    body.offset_table.0.into_iter().map(|(_, o)| o).collect()
}

/// Answers what the broker asked with these offsets.
fn tell(talk: &mut Talk, asked: &Arrived, code: i32, offset: i64) {
    let body = format!(
        "{{\"messageQueueTable\":{{{{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}}:{offset}}}}}"
    );
    let mut out = Vec::new();
    let to = saturnmq_net::command::ReplyTo {
        codec: Codec::Json,
        opaque: asked.opaque,
        oneway: false,
        version: 399,
        code: 221,
    };
    Encoder::response(&mut out, to, code, None).body(body.as_bytes());
    talk.send_bytes(&out);
}

#[test]
fn the_status_of_a_group_is_what_those_of_its_clients_say_that_answer() {
    let (running, _dir) = broker(&["--cores", "2"]);
    let mut tool = Talk::to(running.address("broker"));
    let status = [("topic", "T"), ("group", "g")];
    let answer = tool.ask(223, &status, b"");
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(
        answer.remark.contains("No Any Consumer online"),
        "{answer:?}"
    );
    let mut clients: Vec<Talk> = (0..3)
        .map(|_| Talk::to(running.address("broker")))
        .collect();
    for (client, id) in clients.iter_mut().zip(["a", "b", "c"]) {
        let beat = heartbeat(id, "g", &[("T", "*")], 1);
        assert_eq!(client.ask(34, &[], &beat).code, 0);
    }
    let opaque = tool.request(223, &status, b"");
    for (client, (code, offset)) in clients.iter_mut().zip([(0, 5), (1, 6), (0, 7)]) {
        let asked = client.pushed(221);
        assert_eq!((&*asked.ext["topic"], &*asked.ext["group"]), ("T", "g"));
        tell(client, &asked, code, offset);
    }
    let answer = tool.answer(opaque);
    assert_eq!(answer.code, 0, "{answer:?}");
    let body: ConsumerStatusBody = fastjson::from_slice(&answer.body).expect("a table");
    let said = |client: &str| Some(body.consumer_table.get(client)?.0[0].1);
    assert_eq!((said("a"), said("b"), said("c")), (Some(5), None, Some(7)));

    let one = [("topic", "T"), ("group", "g"), ("clientAddr", "c")];
    let opaque = tool.request(223, &one, b"");
    drop(clients.pop());
    let answer = tool.answer(opaque);
    assert_eq!(answer.code, 0, "a client that left is not waited for");
    let body: ConsumerStatusBody = fastjson::from_slice(&answer.body).expect("a table");
    assert!(body.consumer_table.is_empty());
}

#[test]
fn without_the_server_s_own_way_the_clients_are_told_where_to_go_on() {
    let (running, _dir) = broker(&["--set", "useServerSideResetOffset=false"]);
    let mut tool = Talk::to(running.address("broker"));
    tool.make_topic("T", 1);
    for body in [b"a", b"b", b"c"] {
        tool.send_message("T", 0, "", body);
    }
    let reset = |tool: &mut Talk, time: &str, force: &str| {
        let fields = [
            ("topic", "T"),
            ("group", "g"),
            ("timestamp", time),
            ("isForce", force),
        ];
        tool.ask(222, &fields, b"")
    };
    let answer = reset(&mut tool, "-1", "true");
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("<g> not exist"), "{answer:?}");
    commit(&mut tool, "g", "T", "1");
    let answer = reset(&mut tool, "-1", "true");
    assert_eq!(answer.code, 206, "nobody is online: {answer:?}");
    let mut client = Talk::to(running.address("broker"));
    let beat = heartbeat("a", "g", &[("T", "*")], 1);
    assert_eq!(client.ask(34, &[], &beat).code, 0);
    for (time, force, expected) in [("-1", "true", 3), ("-1", "false", 1), ("0", "false", 0)] {
        let answer = reset(&mut tool, time, force);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert_eq!(offsets(&answer.body), [expected]);
        let told = client.pushed(220);
        assert_eq!(offsets(&told.body), [expected]);
        assert_eq!((&*told.ext["topic"], &*told.ext["group"]), ("T", "g"));
    }
    assert_eq!(committed(&mut tool, "g", "T"), Some(1), "the client's work");
    commit(&mut client, "g", "T", "0");
    assert_eq!(committed(&mut tool, "g", "T"), Some(0));
}

#[test]
fn a_tool_that_resets_a_group_of_cpp_clients_gets_a_table_that_it_can_read() {
    let (running, _dir) = broker(&[]);
    let mut tool = Talk::to(running.address("broker"));
    tool.send_message("T", 0, "", b"a");
    assert_eq!(tool.pull(&Pull::of("T", 0)).code, 0, "makes the group");
    let fields = r#"{"topic":"T","group":"g","timestamp":"-1","isForce":"true"}"#;
    let header = format!(
        r#"{{"code":222,"language":"CPP","version":477,"opaque":7,"flag":0,"extFields":{fields}}}"#
    );
    let length = u32::try_from(header.len()).expect("short");
    tool.send_bytes(&(length + 4).to_be_bytes());
    tool.send_bytes(&length.to_be_bytes());
    tool.send_bytes(header.as_bytes());
    let answer = tool.answer(7);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(offsets(&answer.body).contains(&1), "to the end: {answer:?}");
}

#[test]
fn a_group_s_offsets_can_be_copied_and_compared() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    for topic in ["T", "U"] {
        talk.make_topic(topic, 1);
        for body in [b"a", b"b", b"c"] {
            talk.send_message(topic, 0, "", body);
        }
        commit(&mut talk, "from", topic, "2");
    }
    let clone = |talk: &mut Talk, to: &str, topic: &str, offline: &str| {
        let fields = [
            ("srcGroup", "from"),
            ("destGroup", to),
            ("topic", topic),
            ("offline", offline),
        ];
        talk.ask(314, &fields, b"").code
    };
    assert_eq!(clone(&mut talk, "one", "T", "true"), 0);
    assert_eq!(committed(&mut talk, "one", "T"), Some(2));
    assert_eq!(committed(&mut talk, "one", "U"), None);
    assert_eq!(clone(&mut talk, "all", "", "true"), 0);
    assert_eq!(committed(&mut talk, "all", "U"), Some(2));
    let beat = heartbeat("a", "from", &[("U", "*")], 1);
    assert_eq!(talk.ask(34, &[], &beat).code, 0);
    assert_eq!(clone(&mut talk, "online", "", "false"), 0);
    assert_eq!(committed(&mut talk, "online", "T"), None, "not subscribed");
    assert_eq!(committed(&mut talk, "online", "U"), Some(2));
    assert_eq!(clone(&mut talk, "not/legal", "T", "true"), 1);

    commit(&mut talk, "late", "T", "1");
    let correction = |talk: &mut Talk, filtered: &str, compared: &str| {
        let fields = [
            ("filterGroups", filtered),
            ("compareGroup", compared),
            ("topic", "T"),
        ];
        let answer = talk.ask(308, &fields, b"");
        assert_eq!(answer.code, 0, "{answer:?}");
        let body = fastjson::parse(&answer.body).expect("JSON");
        body["correctionOffsets"]["0"].clone()
    };
    assert_eq!(correction(&mut talk, "", "from"), json!(1));
    assert_eq!(correction(&mut talk, "late", "from"), json!(2));
    assert_eq!(correction(&mut talk, "late", "late"), json!(i64::MAX));
    assert_eq!(committed(&mut talk, "late", "T"), Some(1), "only left out");
    running.signal(Signal::SIGKILL);
    drop(running);
    let running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(committed(&mut talk, "all", "T"), Some(2), "on the disk");
}

#[test]
fn a_retry_topic_is_ordered_as_long_as_a_topic_of_its_group_is() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let make = |talk: &mut Talk, order: &str| {
        let fields = [
            ("topic", "T"),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", "1"),
            ("writeQueueNums", "1"),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("order", order),
        ];
        assert_eq!(talk.ask(17, &fields, b"").code, 0);
    };
    for (order, version) in [("false", 1), ("true", 2), ("false", 3)] {
        make(&mut talk, order);
        let beat = heartbeat("a", "g", &[("T", "*")], version);
        assert_eq!(talk.ask(34, &[], &beat).code, 0);
        talk.version = 479;
        let answer = talk.ask(351, &[("topic", "%RETRY%g")], b"");
        talk.version = 399;
        let config = fastjson::parse(&answer.body).expect("JSON");
        assert_eq!(config["order"], json!(order == "true"), "{config}");
    }
}

#[test]
fn a_broker_that_stops_gracefully_tells_newer_clients_to_go() {
    let settings = [
        "enableShutdownGracefully=true",
        "shutdownWaitTimeSeconds=3600",
    ];
    let (mut running, _dir) = broker(&["--set", settings[0], "--set", settings[1]]);
    let mut newer = Talk::to(running.address("broker"));
    newer.version = 477;
    let mut older = Talk::to(running.address("broker"));
    older.version = 475;
    let ask = |talk: &mut Talk| talk.ask(30, &[("topic", "T"), ("queueId", "0")], b"").code;
    assert_eq!((ask(&mut newer), ask(&mut older)), (0, 0));
    running.signal(Signal::SIGTERM);
    let until = Instant::now() + PATIENCE;
    while ask(&mut newer) != 1500 {
        assert!(Instant::now() < until, "nobody is told to go");
    }
    assert_eq!(ask(&mut older), 0, "it would not understand");
    // A second signal does not wait for the rest of the hour.
    running.insist();
}

/// Moves a group to the end of all queues of a topic.
const TO_THE_ENDS: [(&str, &str); 4] = [
    ("topic", "Wide"),
    ("group", "g"),
    ("timestamp", "-1"),
    ("isForce", "true"),
];

/// Makes a topic of so many queues, and a group.
fn wide(talk: &mut Talk, queues: &str) {
    let topic = [
        ("topic", "Wide"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", queues),
        ("writeQueueNums", queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "false"),
    ];
    assert_eq!(talk.ask(17, &topic, b"").code, 0);
    let group = serde_json::json!({"groupName": "g"}).to_string();
    assert_eq!(talk.ask(200, &[], group.as_bytes()).code, 0);
}

/// What is asked for behind it is answered first, and nothing is made of queues without a message.
#[test]
fn a_group_is_moved_in_very_many_queues_while_others_are_served() {
    const QUEUES: &str = "65536";
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    wide(&mut talk, QUEUES);
    let moved = talk.request(222, &TO_THE_ENDS, b"");
    let behind = talk.request(201, &[], b"");
    let first = talk.frame(Instant::now() + PATIENCE).expect("an answer");
    assert_eq!(first.opaque, behind);
    let moved = talk.answer(moved);
    assert_eq!(moved.code, 0, "{moved:?}");
    // One brace for each queue, and two for what holds them.
    let braces = moved.body.iter().filter(|byte| **byte == b'}').count();
    assert_eq!((braces - 2).to_string(), QUEUES);
}

/// They have their turns, and whoever asks for something else is served between them.
#[test]
fn very_many_moves_at_a_time_hold_nobody_else_up() {
    const MOVES: usize = 100;
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    wide(&mut talk, "16384");
    let asked: Vec<i32> = (0..MOVES)
        .map(|_| talk.request(222, &TO_THE_ENDS, b""))
        .collect();
    let behind = talk.request(201, &[], b"");
    let mut moved = 0;
    loop {
        let answer = talk.frame(Instant::now() + PATIENCE).expect("an answer");
        if answer.opaque == behind {
            break;
        }
        assert!(asked.contains(&answer.opaque));
        moved += 1;
    }
    // Those that were under way may have come to their ends.
    assert!(moved <= MOVES / 3, "{moved} of {MOVES} were done first");
}

/// However much else is asked for: those that wait for their first turn get it.
#[test]
fn moves_that_wait_come_to_their_turn_while_others_ask_without_pause() {
    const MOVES: usize = 24;
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    wide(&mut talk, "4096");
    let (ended, flows) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let mut other = Talk::to(running.address("broker"));
        assert_eq!(other.ask(222, &TO_THE_ENDS, b"").code, 0);
        let (ended, flows) = (&ended, &flows);
        scope.spawn(move || {
            // Long to find, and short to answer.
            let looked = [
                ("topic", "Wide"),
                ("compareGroup", "g"),
                ("filterGroups", "g"),
            ];
            let (mut asked, mut flowing) = (0, false);
            while !ended.load(Ordering::Relaxed) {
                while asked < 200 {
                    other.request(308, &looked, b"");
                    asked += 1;
                }
                if other.frame(Instant::now() + PATIENCE).is_none() {
                    break;
                }
                asked -= 1;
                if !std::mem::replace(&mut flowing, true) {
                    flows.wait();
                }
            }
        });
        flows.wait();
        let began = Instant::now();
        for _ in 0..MOVES {
            talk.request(222, &TO_THE_ENDS, b"");
        }
        let mut done = 0;
        while done < MOVES && talk.frame(began + PATIENCE).is_some() {
            done += 1;
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(done, MOVES, "after {:?}", began.elapsed());
    });
}

#[test]
fn a_group_is_not_moved_in_a_topic_that_was_made_anew_meanwhile() {
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    wide(&mut talk, "65536");
    for _ in 0..3 {
        talk.send_message("Wide", 0, "", b"old");
    }
    let moved = talk.request(222, &TO_THE_ENDS, b"");
    assert_eq!(talk.ask(215, &[("topic", "Wide")], b"").code, 0);
    wide(&mut talk, "4");
    let moved = talk.answer(moved);
    assert!([0, 17].contains(&moved.code), "{moved:?}");
    let progress = [("consumerGroup", "g"), ("topic", "Wide"), ("queueId", "0")];
    let found = talk.ask(14, &progress, b"");
    assert_ne!(found.ext.get("offset").map(String::as_str), Some("3"));
}

/// Each keeps the targets that it has found: so few are under way that the memory is bounded.
#[test]
fn moves_that_wait_for_their_turn_keep_nothing_yet() {
    const QUEUES: &str = "16384";
    const MOVES: usize = 200;
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut talk = Talk::to(running.address("broker"));
    wide(&mut talk, QUEUES);
    let before = running.anonymous_bytes();
    let asked: Vec<i32> = (0..MOVES)
        .map(|_| talk.request(222, &TO_THE_ENDS, b""))
        .collect();
    let first = talk.frame(Instant::now() + PATIENCE).expect("an answer");
    assert!(asked.contains(&first.opaque));
    let grown = running.anonymous_bytes().saturating_sub(before) >> 20;
    // All at a time take 140; answers that this did not read yet are kept, too.
    assert!(grown < 80, "{MOVES} moves take {grown} MiB");
}
