//! What clients that do not read, or ask for much, can make the broker keep in memory.

use super::*;

/// A body that leaves room for few answers beside it.
const LARGE: usize = 3 << 20;
/// Requests of one connection that does not read.
const MANY: usize = 24;

/// A broker on one core with `count` large messages in queue 0 of `Big`, which are old by then.
fn with_large_messages(count: usize) -> (Running, tempfile::TempDir, Vec<String>) {
    let mut more = vec!["--cores", "1", "--set", "tailCacheBytes=4194304"];
    more.extend(["--set", "mappedFileSizeCommitLog=16777216"]);
    let (running, dir) = broker(&more);
    let mut talk = Talk::to(running.address("broker"));
    let body = vec![b'x'; LARGE];
    let ids = (0..count)
        .map(|_| talk.send_message("Big", 0, "KEYS\u{1}k\u{2}", &body).ext["msgId"].clone())
        .collect();
    // Those behind push the others out of the memory for new ones.
    for _ in 0..2 {
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
