//! Light queues: messages that enter queues besides their own one.

use nix::sys::signal::Signal;

use super::*;

const LIGHT: [&str; 4] = [
    "--set",
    "enableLmq=true",
    "--set",
    "enableMultiDispatch=true",
];

fn light(more: &[&str]) -> (Running, tempfile::TempDir) {
    broker(&[&LIGHT, more].concat())
}

fn to(names: &str) -> String {
    format!("INNER_MULTI_DISPATCH\u{1}{names}\u{2}")
}

fn pull_of(topic: &str, offset: i64) -> Pull<'_> {
    Pull {
        group: "%LMQ%readers",
        ..Pull::of(topic, offset)
    }
}

/// Bodies and offsets in light queues of all messages of a queue.
fn all(talk: &mut Talk, topic: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    loop {
        let answer = talk.pull(&pull_of(topic, found.len() as i64));
        if answer.code != 0 {
            return found;
        }
        for (_, body, properties) in records(&answer.body) {
            let mut pairs = properties
                .split('\u{2}')
                .filter_map(|pair| pair.split_once('\u{1}'));
            let offsets = pairs.rfind(|(name, _)| *name == "INNER_MULTI_QUEUE_OFFSET");
            let offsets = offsets.map(|(_, value)| value).unwrap_or_default();
            found.push((
                String::from_utf8_lossy(&body).into_owned(),
                offsets.to_owned(),
            ));
        }
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(body, offsets): &(&str, &str)| ((*body).to_owned(), (*offsets).to_owned());
    expected.iter().map(owned).collect()
}

fn try_send(talk: &mut Talk, topic: &str, properties: &str, batch: &str, body: &[u8]) -> Arrived {
    talk.ask(310, &send_fields(topic, "0", properties, batch), body)
}

#[test]
fn a_message_is_pulled_from_each_light_queue_that_it_names() {
    let (running, _dir) = light(&[]);
    let mut talk = Talk::to(running.address("broker"));
    // It waits before there is such a queue.
    let waiting = talk.start_pull(&Pull {
        wait_ms: 15_000,
        ..pull_of("%LMQ%a", 0)
    });
    talk.send_message("T", 0, "", b"none");
    talk.send_message("T", 0, &to("%LMQ%a"), b"one");
    let answer = talk.answer(waiting);
    assert_eq!(answer.code, 0, "{answer:?}");
    let record = &records(&answer.body)[0];
    assert_eq!((record.0, &*record.1), (1, &b"one"[..]));
    assert_eq!(
        record.2,
        "INNER_MULTI_DISPATCH\u{1}%LMQ%a\u{2}CLUSTER\u{1}DefaultCluster\u{2}\
         INNER_MULTI_QUEUE_OFFSET\u{1}0"
    );
    let forged = to("%LMQ%b,%LMQ%a,%LMQ%b") + "INNER_MULTI_QUEUE_OFFSET\u{1}7\u{2}";
    talk.send_message("T", 1, &forged, b"two");
    talk.send_message("U", 0, &to("%LMQ%b"), b"three");
    assert_eq!(
        all(&mut talk, "%LMQ%a"),
        pairs(&[("one", "0"), ("two", "0,1,0")])
    );
    assert_eq!(
        all(&mut talk, "%LMQ%b"),
        pairs(&[("two", "0,1,0"), ("three", "1")])
    );
    for (code, end) in [(30, 2), (31, 0)] {
        let answer = talk.ask(code, &[("topic", "%LMQ%b"), ("queueId", "0")], b"");
        assert_eq!(answer.number("offset"), end, "{answer:?}");
    }
}

#[test]
fn names_that_are_none_are_refused_and_nothing_is_stored() {
    let (running, dir) = light(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"makes the topic");
    for name in ["U", "%LMQ%a/../../b", "%LMQ%a,,%LMQ%b"] {
        for more in ["", "DELAY\u{1}1\u{2}"] {
            let properties = to(&format!("%LMQ%a,{name}")) + more;
            let answer = try_send(&mut talk, "T", &properties, "false", b"x");
            assert_eq!(answer.code, 13, "{answer:?}");
            assert!(answer.remark.contains("INNER_MULTI_DISPATCH"), "{answer:?}");
        }
    }
    assert!(all(&mut talk, "%LMQ%a").is_empty());
    // Its queue is there once its message can be pulled.
    assert_eq!(all(&mut talk, "T").len(), 1);
    let made = std::fs::read_dir(dir.path().join("consumequeue")).expect("directory");
    assert_eq!(made.count(), 1, "only that of T");
}

#[test]
fn a_batch_says_nowhere_where_its_messages_stand() {
    use saturnmq_storage::format::batch::{BatchItem, push_item};

    let (running, _dir) = light(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"makes the topic");
    let mut batch = |properties: &str, body: &[u8]| {
        let properties = properties.as_bytes();
        let (flag, mut bytes) = (0, Vec::new());
        push_item(
            &mut bytes,
            &BatchItem {
                flag,
                body,
                properties,
            },
        );
        try_send(&mut talk, "T", "", "true", &bytes)
    };
    let offsets = "INNER_MULTI_QUEUE_OFFSET\u{1}0\u{2}";
    let refused = batch(&(to("%LMQ%a") + offsets), b"x");
    assert_eq!(refused.code, 13, "{refused:?}");
    assert!(
        refused.remark.contains("INNER_MULTI_QUEUE_OFFSET"),
        "{refused:?}"
    );
    let answer = batch(&to("%LMQ%a"), offsets.as_bytes());
    assert_eq!(answer.code, 0, "a body may say anything: {answer:?}");
    assert!(all(&mut talk, "%LMQ%a").is_empty(), "as with Apache");
}

#[test]
fn what_comes_later_enters_light_queues_when_it_comes_and_once() {
    let (running, dir) = light(&["--set", "messageDelayLevel=1s 1s 1s"]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"makes the topic");
    let half = to("%LMQ%a") + "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}g\u{2}UNIQ_KEY\u{1}k\u{2}";
    let mut fields = send_fields("T", "0", &half, "false");
    fields[5].1 = "4";
    let half = talk.ask(310, &fields, b"half");
    assert_eq!(half.code, 0, "{half:?}");
    talk.send_message("T", 0, &(to("%LMQ%a") + "DELAY\u{1}1\u{2}"), b"delayed");
    talk.version = 495;
    talk.send_message(
        "T",
        0,
        &(to("%LMQ%a") + "TIMER_DELAY_MS\u{1}1500\u{2}"),
        b"timed",
    );
    talk.version = 399;
    talk.send_message("T", 0, &to("%LMQ%a"), b"at once");
    assert_eq!(all(&mut talk, "%LMQ%a"), pairs(&[("at once", "0")]));
    let mut later: Vec<String> = Vec::new();
    for offset in [1, 2] {
        let answer = talk.pull(&Pull {
            wait_ms: 15_000,
            ..pull_of("%LMQ%a", offset)
        });
        assert_eq!(answer.code, 0, "{answer:?}");
        let record = &records(&answer.body)[0];
        later.push(String::from_utf8_lossy(&record.1).into_owned());
    }
    later.sort();
    assert_eq!(later, ["delayed", "timed"]);
    let at = saturnmq_storage::format::message_id::MessageId::parse(&half.ext["msgId"]);
    let at = at.expect("an id").1.to_string();
    let end = [
        ("producerGroup", "g"),
        ("tranStateTableOffset", &*half.ext["queueOffset"]),
        ("commitLogOffset", &at),
        ("commitOrRollback", "8"),
        ("fromTransactionCheck", "false"),
        ("msgId", "x"),
    ];
    assert_eq!(talk.ask(37, &end, b"").code, 0);
    let found = all(&mut talk, "%LMQ%a");
    assert_eq!(found[3], ("half".to_owned(), "3".to_owned()));
    // One of them comes again, in its retry topic only.
    let back = [
        ("offset", &*at),
        ("group", "g"),
        ("delayLevel", "1"),
        ("originTopic", "T"),
    ];
    let answer = talk.pull(&Pull::of("T", 0));
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(talk.ask(36, &back, b"").code, 0);
    let again = talk.pull(&Pull {
        wait_ms: 15_000,
        ..Pull::of("%RETRY%g", 0)
    });
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(all(&mut talk, "%LMQ%a").len(), 4);
    drop(talk);
    drop(running);
    let text = std::fs::read_to_string(dir.path().join("config/topics.json")).expect("topics");
    assert!(!text.contains("%LMQ%"), "{text}");
}

#[test]
fn with_too_many_light_queues_none_is_made_and_those_that_are_there_go_on() {
    let (running, _dir) = light(&["--set", "maxLmqConsumeQueueNum=1"]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, &to("%LMQ%a,%LMQ%b"), b"two queues");
    let refused = try_send(&mut talk, "T", &to("%LMQ%a,%LMQ%c"), "false", b"x");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused
            .remark
            .starts_with("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]"),
        "{refused:?}"
    );
    let refused = talk.pull(&pull_of("%LMQ%d", 0));
    assert_eq!(refused.code, 1, "{refused:?}");
    talk.send_message("T", 0, &to("%LMQ%b"), b"goes on");
    assert_eq!(all(&mut talk, "%LMQ%b").len(), 2);
    assert_eq!(all(&mut talk, "%LMQ%a").len(), 1);
    assert_eq!(talk.ask(215, &[("topic", "%LMQ%a")], b"").code, 0);
    talk.send_message("T", 0, &to("%LMQ%c"), b"in its place");
    assert_eq!(all(&mut talk, "%LMQ%c").len(), 1);
}

#[test]
fn a_reply_says_nowhere_where_it_stands() {
    let dir = directory();
    let running = Running::start(dir.path(), &LIGHT);
    let mut talk = Talk::to(running.address("broker"));
    for number in 0..8_i64 {
        if number == 5 {
            // Its names are not all light queues': it enters none.
            let says = "INNER_MULTI_QUEUE_OFFSET\u{1}5,0\u{2}";
            let properties = to("%LMQ%a,bad/name") + says;
            let fields = send_fields("T", "0", &properties, "false");
            let answer = talk.ask(325, &fields, b"a reply to nobody");
            assert!(answer.remark.contains("REPLY_TO_CLIENT"), "{answer:?}");
        }
        talk.send_message("T", 0, &to("%LMQ%a"), number.to_string().as_bytes());
    }
    let expected: Vec<_> = (0..8_i64).map(|n| (n.to_string(), n.to_string())).collect();
    assert_eq!(all(&mut talk, "%LMQ%a"), expected);
    let mut running = running;
    running.signal(Signal::SIGKILL);
    running.wait();
    let again = [&LIGHT[..], &["--rebuild-queues"]].concat();
    let running = Running::start(dir.path(), &again);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(all(&mut talk, "%LMQ%a"), expected);
    let mut fields = send_fields("T", "0", "", "false");
    fields[5].1 = "4";
    let refused = talk.ask(325, &fields, b"prepared");
    assert_eq!(refused.code, 13, "{refused:?}");
}

#[test]
fn dead_letters_stand_in_no_light_queue_of_their_originals() {
    let dir = directory();
    let running = Running::start(dir.path(), &LIGHT);
    let mut talk = Talk::to(running.address("broker"));
    let mut places = Vec::new();
    for number in 0..6_i32 {
        let body = number.to_string();
        let sent = talk.send_message("T", 0, &to("%LMQ%a"), body.as_bytes());
        let id = saturnmq_storage::format::message_id::MessageId::parse(&sent.ext["msgId"]);
        places.push(id.expect("an id").1.to_string());
    }
    let expected = all(&mut talk, "%LMQ%a");
    assert_eq!(expected.len(), 6);
    assert_eq!(running.stop().code(), Some(0));
    // Nobody looks at names of light queues now.
    let mut running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to(running.address("broker"));
    for place in &places[1..4] {
        let fields = [("offset", &**place), ("group", "g"), ("delayLevel", "-1")];
        let answer = talk.ask(36, &fields, b"");
        assert_eq!(answer.code, 0, "{answer:?}");
    }
    running.signal(Signal::SIGKILL);
    running.wait();
    let running = Running::start(dir.path(), &LIGHT);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(all(&mut talk, "%LMQ%a"), expected);
}

#[test]
fn light_queues_and_the_offsets_of_their_groups_outlive_a_kill_and_a_stop() {
    let dir = directory();
    let running = Running::start(dir.path(), &LIGHT);
    let mut talk = Talk::to(running.address("broker"));
    for number in 0..20 {
        talk.send_message(
            "T",
            number % 4,
            &to("%LMQ%a"),
            number.to_string().as_bytes(),
        );
    }
    let mut running = running;
    running.signal(Signal::SIGKILL);
    running.wait();
    let mut running = Running::start(dir.path(), &LIGHT);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, &to("%LMQ%a"), b"20");
    let expected: Vec<_> = (0..21)
        .map(|n: i32| (n.to_string(), n.to_string()))
        .collect();
    assert_eq!(all(&mut talk, "%LMQ%a"), expected);
    let commit = |talk: &mut Talk, group: &str, queue: &str, offset: &str| {
        let fields = [
            ("consumerGroup", group),
            ("topic", "%LMQ%a"),
            ("queueId", queue),
            ("commitOffset", offset),
        ];
        assert_eq!(talk.ask(15, &fields, b"").code, 0);
    };
    commit(&mut talk, "%LMQ%readers", "3", "17");
    commit(&mut talk, "g", "0", "5");
    running.signal(Signal::SIGTERM);
    running.wait();
    let text = std::fs::read_to_string(dir.path().join("config/lmqConsumerOffset.json"));
    let text = text.expect("offsets").replace(['\n', '\t'], "");
    assert!(
        text.contains("\"lmqOffsetTable\":{\"%LMQ%a@%LMQ%readers\":17}"),
        "{text}"
    );
    assert!(text.contains("\"%LMQ%a@g\":{0:5}"), "{text}");
    let running = Running::start(dir.path(), &LIGHT);
    let mut talk = Talk::to(running.address("broker"));
    for (group, offset) in [("%LMQ%readers", 17), ("g", 5)] {
        let fields = [
            ("consumerGroup", group),
            ("topic", "%LMQ%a"),
            ("queueId", "0"),
        ];
        assert_eq!(talk.ask(14, &fields, b"").number("offset"), offset);
    }
}

#[test]
fn groups_go_on_where_they_were_when_light_queues_are_enabled_and_disabled() {
    let dir = directory();
    let asked = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")];
    let steps: [(&[&str], &str); 3] = [(&[], "3"), (&LIGHT, "4"), (&LIGHT, "5")];
    for (number, (settings, commit)) in steps.into_iter().enumerate() {
        let mut running = Running::start(dir.path(), settings);
        let mut talk = Talk::to(running.address("broker"));
        talk.send_message("T", 0, "", b"x");
        if number > 0 {
            let before = talk.ask(14, &asked, b"").number("offset");
            assert_eq!(before, number as i64 + 2);
        }
        let fields = [asked[0], asked[1], asked[2], ("commitOffset", commit)];
        assert_eq!(talk.ask(15, &fields, b"").code, 0);
        running.signal(Signal::SIGTERM);
        running.wait();
    }
}

#[test]
fn without_the_keys_the_names_mean_nothing() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, &to("%LMQ%a"), b"x");
    let answer = talk.pull(&pull_of("%LMQ%a", 0));
    assert_eq!(answer.code, 17, "{answer:?}");
    let mut command = crate::serve::program(directory().path());
    let refused = command
        .args(["--set", "enableMultiDispatch=true"])
        .output()
        .expect("run");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("enableMultiDispatch=true needs enableLmq=true"),
        "{said}"
    );
}
