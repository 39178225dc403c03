//! Transactions whose copies the broker does not remember, and those with a key of many.

use super::*;

/// Ends a transaction by its first half message, then by the question about its newest copy.
fn ended_twice(talk: &mut Talk, half: &Half, how: &str) {
    let question = Half::asked(&talk.pushed(39));
    assert_ne!(question.queue_offset, half.queue_offset);
    talk.end(half, how);
    let answer = talk.end_as(&question, COMMIT, "g", true);
    assert_eq!(answer.code, 0, "{answer:?}");
    // A question that was on its way before the end.
    while let Some(question) = talk.is_asked_within(Duration::from_millis(1000)) {
        let answer = talk.end_as(&Half::asked(&question), COMMIT, "g", true);
        assert_eq!(answer.code, 0, "{answer:?}");
    }
}

#[test]
fn a_transaction_that_was_asked_about_before_a_restart_is_ended_once() {
    for (how, kept) in [(COMMIT, &["message"][..]), (ROLLBACK, &[])] {
        let dir = directory();
        let mut running = Running::start(dir.path(), &QUICK);
        let mut talk = Talk::to(running.address("broker"));
        talk.produces("c");
        let half = talk.half("T", "message");
        talk.pushed(39);
        assert!(running.stop().success());
        running = Running::start(dir.path(), &QUICK);
        let mut talk = Talk::to(running.address("broker"));
        talk.produces("c");
        ended_twice(&mut talk, &half, how);
        assert_eq!(talk.bodies("T"), kept, "{how}");
        drop(running);
    }
}

#[test]
fn a_transaction_that_is_resumed_is_ended_once() {
    let (running, _dir) = broker(&[&QUICK[..], &["--set", "transactionCheckMax=1"]].concat());
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let half = talk.half("T", "message");
    talk.until_stored(GIVEN_UP, 1);
    talk.pushed(39);
    let answer = talk.pull(&Pull::of(GIVEN_UP, 0));
    let record = Record::decode(&answer.body).expect("a record");
    let id = record.message_id().to_string();
    let answer = talk.ask(323, &[("topic", GIVEN_UP), ("msgId", &id)], b"");
    assert_eq!(answer.code, 0, "{answer:?}");
    ended_twice(&mut talk, &half, COMMIT);
    assert_eq!(talk.bodies("T"), ["message"]);
}

#[test]
fn what_was_committed_is_found_also_behind_many_with_the_same_key() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let born = now_ms();
    talk.try_half("T", "message", "", born);
    // What a crash behind the message and before the op message leaves.
    let born = born.to_string();
    let properties = "PGROUP\u{1}g\u{2}UNIQ_KEY\u{1}message\u{2}";
    let mut fields = send_fields("T", "0", properties, "false");
    (fields[5].1, fields[6].1) = ("8", &born);
    assert_eq!(talk.ask(310, &fields, b"message").code, 0);
    for _ in 0..100 {
        talk.send_message("T", 0, properties, b"other");
    }
    running = killed(running, dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let asked = talk.is_asked_within(Duration::from_millis(1500));
    assert!(asked.is_none(), "{asked:?}");
    drop(running);
}

#[test]
fn two_transactions_with_one_key_and_birth_are_ended_each() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let born = now_ms();
    let halves = [(); 3].map(|()| Half::of(&talk.try_half("T", "message", "", born)));
    talk.end(&halves[0], COMMIT);
    running = killed(running, dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    talk.end(&halves[1], COMMIT);
    assert_eq!(talk.bodies("T"), ["message"; 2]);
    // Said again, it counts once.
    for half in &halves[..2] {
        talk.end_as(half, COMMIT, "g", true);
    }
    assert_eq!(talk.bodies("T"), ["message"; 2]);
    running = killed(running, dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let question = talk.pushed(39);
    let answer = talk.end_as(&Half::asked(&question), COMMIT, "g", true);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(talk.bodies("T"), ["message"; 3]);
    drop(running);
}
