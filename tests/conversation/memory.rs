//! What clients that do not read, or ask for much, can make the broker keep in memory.

use super::*;

/// A body that leaves room for few answers beside it.
const LARGE: usize = 3 << 20;
/// Requests of one connection that does not read.
const MANY: usize = 24;

/// A broker on one core with `count` large messages in queue 0 of `Big`, which are old by then.
fn with_large_messages(count: usize) -> (Running, tempfile::TempDir, Vec<String>) {
    let mut more = vec!["--cores", "1", "--set", "tailCacheBytes=16777216"];
    more.extend(["--set", "mappedFileSizeCommitLog=16777216"]);
    let (running, dir) = broker(&more);
    let mut talk = Talk::to(running.address("broker"));
    let body = vec![b'x'; LARGE];
    let ids = (0..count)
        .map(|_| talk.send_message("Big", 0, "KEYS\u{1}k\u{2}", &body).ext["msgId"].clone())
        .collect();
    // Those behind push the others out of the memory for new ones.
    for _ in 0..7 {
        talk.send_message("Big", 1, "", &body);
    }
    (running, dir, ids)
}

/// Has another connection answered by the thread that reads old messages: it has answered what was
/// asked before by then.
fn wait_for_services(running: &Running) {
    let mut other = Talk::to(running.address("broker"));
    let found = other.ask(12, &by_key("none"), b"");
    assert_eq!(found.code, 22, "{found:?}");
}

fn by_key(key: &str) -> [(&str, &str); 5] {
    [
        ("topic", "Big"),
        ("key", key),
        ("maxNum", "2"),
        ("beginTimestamp", "0"),
        ("endTimestamp", "9000000000000"),
    ]
}

#[test]
fn old_messages_are_not_kept_for_a_client_that_does_not_read() {
    let (running, _dir, _) = with_large_messages(2);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(talk.pull(&Pull::of("Big", 0)).code, 0, "makes the group");
    let pulls: Vec<_> = (0..MANY)
        .map(|_| talk.start_pull(&Pull::of("Big", 1)))
        .collect();
    wait_for_services(&running);
    let mut found = 0;
    for opaque in pulls {
        let answer = talk.answer(opaque);
        match answer.code {
            0 => {
                assert_eq!(records(&answer.body)[0].0, 1);
                found += 1;
            }
            code => {
                assert_eq!((code, answer.number("nextBeginOffset")), (20, 1));
            }
        }
    }
    assert!((1..MANY - 4).contains(&found), "{found} of {MANY}");
    let answer = talk.pull(&Pull::of("Big", 1));
    assert_eq!(answer.code, 0, "one that reads again gets it");
}

#[test]
fn views_and_queries_are_not_kept_for_a_client_that_does_not_read() {
    let (running, _dir, ids) = with_large_messages(2);
    let offset = i64::from_str_radix(&ids[1][16..], 16).expect("an offset");
    let offset = offset.to_string();
    let mut talk = Talk::to(running.address("broker"));
    let asked: Vec<_> = (0..MANY)
        .map(|n| match n % 2 {
            0 => talk.request(33, &[("offset", &offset)], b""),
            _ => talk.request(12, &by_key("k"), b""),
        })
        .collect();
    wait_for_services(&running);
    let mut found = 0;
    for opaque in asked {
        let answer = talk.answer(opaque);
        match answer.code {
            0 => found += answer.body.len() / LARGE,
            code => assert_eq!(code, 2, "flow control: {answer:?}"),
        }
    }
    let all = MANY / 2 * 3;
    assert!((1..all - 8).contains(&found), "{found} of {all} messages");
    assert_eq!(talk.ask(33, &[("offset", &offset)], b"").code, 0);
}

#[test]
fn replies_are_not_kept_for_a_requester_that_does_not_read() {
    let (running, _dir) = broker(&["--cores", "1", "--set", "storeReplyMessageEnable=false"]);
    let mut requester = Talk::to(running.address("broker"));
    let registered = b"{\"clientID\":\"asker\",\"consumerDataSet\":[],\
                       \"producerDataSet\":[{\"groupName\":\"askers\"}]}";
    assert_eq!(requester.ask(34, &[], registered).code, 0);
    let mut replier = Talk::to(running.address("broker"));
    replier.send_message("Replies", 0, "", b"makes the topic");
    let body = vec![b'x'; LARGE];
    let to = "REPLY_TO_CLIENT\u{1}asker\u{2}CORRELATION_ID\u{1}c\u{2}";
    let asked: Vec<_> = (0..MANY)
        .map(|_| replier.request(325, &send_fields("Replies", "0", to, "false"), &body))
        .collect();
    // Those that are not pushed are answered at once; the requester says nothing to the others.
    let mut told = 0;
    for opaque in asked.into_iter().rev().take(4) {
        let answer = replier.answer(opaque);
        assert_eq!(answer.code, 1, "{answer:?}");
        told += 1;
    }
    assert_eq!(told, 4);
    let alive = requester.request(34, &[], registered);
    requester.answer(alive);
    let pushed = requester.early.iter().filter(|frame| frame.code == 326);
    assert!((1..MANY - 4).contains(&pushed.count()));
}

#[test]
fn a_subscription_that_no_client_makes_is_refused_before_it_is_kept() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"0");
    assert_eq!(talk.pull(&Pull::of("T", 1)).code, 19, "makes the group");
    let tags = "tag||".repeat(1 << 16);
    // Waiting is what would keep it.
    let refused = talk.pull(&Pull {
        wait_ms: 600_000,
        tags: &tags,
        ..Pull::of("T", 1)
    });
    assert_eq!(refused.code, 23, "{}", refused.remark);
    let limit = format!("the expression has {} bytes, at most 32768", tags.len());
    assert!(refused.remark.contains(&limit), "{}", refused.remark);

    let beat = |subscription: &str| {
        format!(
            "{{\"clientID\":\"c\",\"producerDataSet\":[],\"consumerDataSet\":[{{\"groupName\":\"g\",\
             \"consumeType\":\"CONSUME_PASSIVELY\",\"messageModel\":\"CLUSTERING\",\
             \"consumeFromWhere\":\"CONSUME_FROM_LAST_OFFSET\",\"unitMode\":false,\
             \"subscriptionDataSet\":[{{\"topic\":\"T\",\"subVersion\":1,{subscription}}}]}}]}}"
        )
    };
    let codes: Vec<String> = (0..20_000).map(|code: i32| code.to_string()).collect();
    for subscription in [
        format!("\"subString\":\"{tags}\",\"tagsSet\":[],\"codeSet\":[]"),
        format!("\"subString\":\"a\",\"tagsSet\":[\"{tags}\"],\"codeSet\":[]"),
        format!(
            "\"subString\":\"a\",\"tagsSet\":[],\"codeSet\":[{}]",
            codes.join(",")
        ),
    ] {
        let refused = talk.ask(34, &[], beat(&subscription).as_bytes());
        assert_eq!(refused.code, 23, "{refused:?}");
        assert!(
            refused.remark.contains("at most 32768 bytes"),
            "{refused:?}"
        );
    }
    let members = talk.ask(38, &[("consumerGroup", "g")], b"");
    assert_eq!(
        members.code, 1,
        "a refused client is no member: {members:?}"
    );
    let usual = "\"subString\":\"a || b\",\"tagsSet\":[\"a\",\"b\"],\"codeSet\":[97,98]";
    assert_eq!(talk.ask(34, &[], beat(usual).as_bytes()).code, 0);
}

#[test]
fn a_configuration_value_that_every_answer_would_carry_is_refused() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let value = "r".repeat(1 << 20);
    let refused = talk.ask(25, &[], format!("regionId={value}\n").as_bytes());
    assert_ne!(refused.code, 0, "{}", refused.code);
    assert!(
        refused.remark.contains("at most 4096 bytes"),
        "{}",
        refused.remark.len()
    );
    assert!(
        refused.remark.len() < 1000,
        "{} bytes",
        refused.remark.len()
    );
    let sent = talk.send_message("T", 0, "", b"0");
    assert_eq!(sent.ext["MSG_REGION"], "DefaultRegion");
}

#[test]
fn a_query_that_cannot_see_what_was_acknowledged_is_refused_and_not_answered_without_it() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    // The queue's first file cannot be made, so its entries are not stored.
    let file = dir.path().join("consumequeue/Big/0/00000000000000000000");
    std::fs::create_dir_all(&file).expect("a directory in its place");
    let sent = talk.ask(
        310,
        &send_fields("Big", "0", "KEYS\u{1}k\u{2}", "false"),
        b"x",
    );
    assert_eq!(sent.code, 0, "{sent:?}");
    let refused = talk.ask(12, &by_key("k"), b"");
    assert_eq!(refused.code, 2, "{refused:?}");
    // What does not depend on it is answered all the same.
    assert_eq!(talk.ask(28, &[], b"").code, 0);
    std::fs::remove_dir(&file).expect("away");
    let found = loop {
        let answer = talk.ask(12, &by_key("k"), b"");
        if answer.code != 2 {
            break answer;
        }
    };
    assert_eq!((found.code, records(&found.body).len()), (0, 1));
}

#[test]
fn large_requests_that_wait_for_a_state_file_stay_with_the_client() {
    const SENDS: usize = 48;
    let more = ["--cores", "1", "--set", "mappedFileSizeCommitLog=16777216"];
    let (running, dir) = broker(&more);
    // Writing topics.json goes on when somebody reads what it writes.
    let fifo = dir.path().join("config/topics.json.tmp");
    std::fs::create_dir_all(dir.path().join("config")).expect("its directory");
    let until = Instant::now() + PATIENCE;
    // The start may still be writing its own.
    while let Err(error) = nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU) {
        let is_there = error == nix::errno::Errno::EEXIST;
        assert!(is_there && Instant::now() < until, "{error}");
        std::thread::yield_now();
    }
    let mut talk = Talk::to(running.address("broker"));
    let body = vec![b'x'; 4_000_000];
    let (opaques, frames): (Vec<i32>, Vec<Vec<u8>>) = (0..SENDS)
        .map(|_| talk.encode(310, &send_fields("New", "0", "", "false"), &body))
        .unzip();
    let mut stream = talk.stream.try_clone().expect("the socket");
    let (done, is_done) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        for frame in frames {
            stream.write_all(&frame).expect("write");
        }
        done.send(()).expect("the test");
    });
    // As long as nothing of it can be stored most of it is not taken.
    let taken = is_done.recv_timeout(Duration::from_secs(3));
    assert!(taken.is_err(), "{} MB are in the broker", SENDS * 4);
    // Small requests of others that wait for it are taken, and those that do not are answered.
    let mut other = Talk::to(running.address("broker"));
    let small = other.request(310, &send_fields("Small", "0", "", "false"), b"x");
    assert_eq!(other.ask(28, &[], b"").code, 0);

    let mut reader = std::fs::File::open(&fifo).expect("the pipe");
    std::fs::remove_file(&fifo).expect("away");
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("what it wrote");
    assert!(text.contains("dataVersion"), "{text}");
    // Syncing a pipe fails, so those that were held are told; when it is written again others are
    // stored.
    let codes: Vec<i32> = opaques
        .iter()
        .map(|&opaque| talk.answer(opaque).code)
        .collect();
    writer.join().expect("the writer");
    assert!(codes.iter().all(|code| [0, 1].contains(code)), "{codes:?}");
    assert!([0, 1].contains(&other.answer(small).code));
    while other
        .ask(310, &send_fields("New", "0", "", "false"), &body)
        .code
        != 0
    {}
}
