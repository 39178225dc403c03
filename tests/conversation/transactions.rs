//! Transactions: what becomes of half messages, also over a kill.

use std::collections::{BTreeSet, HashSet};

use nix::sys::signal::Signal;
use saturnmq_storage::format::message_id::MessageId;
use saturnmq_storage::format::record::Record;

use super::*;

mod ended_once;

const HALF: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const OP: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
const GIVEN_UP: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
const COMMIT: &str = "8";
const ROLLBACK: &str = "12";
/// Questions soon and often.
const QUICK: [&str; 4] = [
    "--set",
    "transactionTimeOut=300",
    "--set",
    "transactionCheckInterval=200",
];
/// No questions while a test runs.
const QUIET: [&str; 2] = ["--set", "transactionCheckInterval=600000"];

/// Where a half message stands.
#[derive(Clone, Debug)]
struct Half {
    log_offset: String,
    queue_offset: String,
}

impl Half {
    /// Of the answer to a send.
    fn of(answer: &Arrived) -> Self {
        assert_eq!(answer.code, 0, "{answer:?}");
        let id = MessageId::parse(&answer.ext["msgId"]).expect("an id");
        Self {
            log_offset: id.1.to_string(),
            queue_offset: answer.ext["queueOffset"].clone(),
        }
    }

    /// Of the question about it.
    fn asked(question: &Arrived) -> Self {
        Self {
            log_offset: question.ext["commitLogOffset"].clone(),
            queue_offset: question.ext["tranStateTableOffset"].clone(),
        }
    }
}

fn now_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock");
    since.as_millis() as i64
}

impl Talk {
    fn try_half(&mut self, topic: &str, key: &str, more: &str, born_ms: i64) -> Arrived {
        let properties = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}g\u{2}UNIQ_KEY\u{1}{key}\u{2}");
        let (properties, born) = (properties + more, born_ms.to_string());
        let mut fields = send_fields(topic, "0", &properties, "false");
        fields[5].1 = "4";
        fields[6].1 = &born;
        self.ask(310, &fields, key.as_bytes())
    }

    fn half(&mut self, topic: &str, key: &str) -> Half {
        Half::of(&self.try_half(topic, key, "", now_ms()))
    }

    fn end_as(&mut self, half: &Half, how: &str, group: &str, asked: bool) -> Arrived {
        let fields = [
            ("producerGroup", group),
            ("tranStateTableOffset", &*half.queue_offset),
            ("commitLogOffset", &*half.log_offset),
            ("commitOrRollback", how),
            ("fromTransactionCheck", if asked { "true" } else { "false" }),
            ("msgId", "x"),
        ];
        self.ask(37, &fields, b"")
    }

    fn end(&mut self, half: &Half, how: &str) {
        let answer = self.end_as(half, how, "g", false);
        assert_eq!(answer.code, 0, "{answer:?}");
    }

    /// Makes this connection a producer of group `g`.
    fn produces(&mut self, client: &str) {
        self.produces_in("g", client);
    }

    fn produces_in(&mut self, group: &str, client: &str) {
        let body = format!(
            "{{\"clientID\":\"{client}\",\"consumerDataSet\":[],\
             \"producerDataSet\":[{{\"groupName\":\"{group}\"}}]}}"
        );
        assert_eq!(self.ask(34, &[], body.as_bytes()).code, 0);
    }

    /// A question arrives within this time.
    fn is_asked_within(&mut self, limit: Duration) -> Option<Arrived> {
        let asks = |a: &Arrived| !a.is_response && a.code == 39;
        if let Some(at) = self.early.iter().position(asks) {
            return Some(self.early.remove(at));
        }
        let until = Instant::now() + limit;
        while let Some(arrived) = self.frame(until) {
            if asks(&arrived) {
                return Some(arrived);
            }
            self.early.push(arrived);
        }
        None
    }

    /// One question more than those that arrived may have been on its way before the transaction
    /// with this key ended: while its copy goes to the disk, which takes as long as it takes.
    fn is_asked_at_most_once_more(&mut self, key: &str) -> Option<Arrived> {
        let mut last = None;
        while let Some(question) = self.is_asked_within(Duration::from_millis(1500)) {
            assert_eq!(question.ext["msgId"], key);
            assert!(last.is_none(), "asked again");
            last = Some(question);
        }
        last
    }

    /// Bodies of all messages in queue 0 of a topic.
    fn bodies(&mut self, topic: &str) -> Vec<String> {
        self.all(topic).into_iter().map(|(body, _)| body).collect()
    }

    /// Bodies and properties of all messages in queue 0 of a topic.
    fn all(&mut self, topic: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        loop {
            let answer = self.pull(&Pull::of(topic, found.len() as i64));
            if answer.code != 0 {
                return found;
            }
            for (_, body, properties) in records(&answer.body) {
                found.push((String::from_utf8_lossy(&body).into_owned(), properties));
            }
        }
    }

    /// Waits until queue 0 of a topic has so many messages.
    fn until_stored(&mut self, topic: &str, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.bodies(topic).len() < count {
            assert!(Instant::now() < until, "no {count} messages in {topic}");
            std::thread::yield_now();
        }
    }
}

fn killed(mut running: Running, dir: &std::path::Path, more: &[&str]) -> Running {
    running.signal(Signal::SIGKILL);
    running.wait();
    drop(running);
    Running::start(dir, more)
}

#[test]
fn a_half_message_is_visible_after_its_commit_only_and_once() {
    let (running, _dir) = broker(&QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let (kept, dropped, open) = (
        talk.half("T", "kept"),
        talk.half("T", "dropped"),
        talk.half("T", "open"),
    );
    assert_eq!(talk.bodies("T"), [""; 0]);
    assert_eq!(talk.bodies(HALF), ["kept", "dropped", "open"]);
    talk.end(&kept, COMMIT);
    talk.end(&dropped, ROLLBACK);
    // No answer to "unknown": the answer to the next request is the next frame.
    let fields = [
        ("producerGroup", "g"),
        ("tranStateTableOffset", &*open.queue_offset),
        ("commitLogOffset", &*open.log_offset),
        ("commitOrRollback", "0"),
    ];
    talk.request(37, &fields, b"");
    for how in [COMMIT, ROLLBACK, COMMIT] {
        talk.end(&kept, how);
        talk.end(&dropped, how);
    }
    assert_eq!(talk.bodies("T"), ["kept"]);
    assert_eq!(talk.bodies(OP), ["0", "1"]);
    let answer = talk.pull(&Pull::of("T", 0));
    let record = Record::decode(&answer.body).expect("a record");
    assert_eq!(record.sys_flag() & 12, 8);
    assert_eq!(
        record.prepared_transaction_offset().to_string(),
        kept.log_offset
    );
}

#[test]
fn a_stranger_cannot_end_a_transaction() {
    let (running, _dir) = broker(&QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let plain = talk.send_message("T", 0, "PGROUP\u{1}g\u{2}", b"plain");
    let half = talk.half("T", "half");
    let other = Half {
        queue_offset: "7".into(),
        ..half.clone()
    };
    let nowhere = Half {
        log_offset: "5".into(),
        ..half.clone()
    };
    for (what, group, remark) in [
        (&half, "h", "The producer group wrong"),
        (&other, "g", "The transaction state table offset wrong"),
        (&nowhere, "g", "Find prepared transaction message failed"),
        (
            &Half::of(&plain),
            "g",
            "Find prepared transaction message failed",
        ),
    ] {
        let answer = talk.end_as(what, COMMIT, group, false);
        assert_eq!((answer.code, &*answer.remark), (1, remark));
    }
    assert_eq!(talk.bodies("T"), ["plain"]);
    talk.end(&half, COMMIT);
    assert_eq!(talk.bodies("T"), ["plain", "half"]);
}

#[test]
fn transactions_that_cannot_be_kept_are_refused() {
    let (running, _dir) = broker(&QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let answer = talk.try_half("T", "k", "DELAY\u{1}3\u{2}", now_ms());
    assert_eq!(answer.code, 13, "{answer:?}");
    assert!(answer.remark.contains("DELAY"), "{answer:?}");
    let answer = talk.ask(25, &[], b"rejectTransactionMessage=true\n");
    assert_eq!(answer.code, 0, "{answer:?}");
    let answer = talk.try_half("T", "k", "", now_ms());
    assert_eq!(answer.code, 16, "{answer:?}");
    assert!(
        answer
            .remark
            .ends_with("sending transaction message is forbidden")
    );
    talk.send_message("T", 0, "", b"plain");
}

#[test]
fn a_producer_is_asked_and_its_answer_counts_once() {
    let (running, _dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let half = talk.half("T", "message");
    let question = talk.pushed(39);
    assert_eq!(question.ext["msgId"], "message");
    assert_eq!(question.ext["transactionId"], "message");
    let record = Record::decode(&question.body).expect("a record");
    assert_eq!((record.topic(), record.queue_id()), ("T", 0));
    assert_eq!(record.body(), b"message");
    let asked = Half::asked(&question);
    assert_eq!(record.physical_offset().to_string(), asked.log_offset);
    let answer = talk.end_as(&asked, COMMIT, "g", true);
    assert_eq!(answer.code, 0, "{answer:?}");
    // A late word about the first copy.
    talk.end(&half, COMMIT);
    assert_eq!(talk.bodies("T"), ["message"]);
    assert!(talk.all("T")[0].1.contains("TRANSACTION_CHECK_TIMES"));
    talk.early.clear();
    talk.is_asked_at_most_once_more("message");
}

#[test]
fn a_producer_is_asked_while_the_clock_is_behind_the_log() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"of an hour ahead");
    assert!(running.stop().success());
    super::delivery::stored_in_the_future(dir.path());
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    talk.half("T", "message");
    assert_eq!(talk.pushed(39).ext["msgId"], "message");
}

#[test]
fn a_late_word_about_the_first_copy_ends_the_newest() {
    let (running, _dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let half = talk.half("T", "message");
    talk.pushed(39);
    talk.pushed(39);
    talk.end(&half, COMMIT);
    talk.early.clear();
    if let Some(question) = talk.is_asked_at_most_once_more("message") {
        talk.end_as(&Half::asked(&question), COMMIT, "g", true);
    }
    assert_eq!(talk.bodies("T"), ["message"]);
}

#[test]
fn another_member_of_the_group_is_asked_when_one_is_gone() {
    let (running, _dir) = broker(&QUICK);
    let mut first = Talk::to(running.address("broker"));
    first.produces("first");
    first.half("T", "left");
    drop(first);
    let mut second = Talk::to(running.address("broker"));
    second.produces("second");
    let asked = Half::asked(&second.pushed(39));
    assert_eq!(second.end_as(&asked, COMMIT, "g", true).code, 0);
    assert_eq!(second.bodies("T"), ["left"]);
}

#[test]
fn one_that_is_never_ended_is_given_up_and_may_be_resumed() {
    let (running, _dir) = broker(&[&QUICK[..], &["--set", "transactionCheckMax=3"]].concat());
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    talk.half("T", "message");
    talk.until_stored(GIVEN_UP, 1);
    let (body, properties) = talk.all(GIVEN_UP).remove(0);
    assert_eq!(body, "message");
    assert!(
        properties.contains("TRANSACTION_CHECK_TIMES\u{1}3"),
        "{properties:?}"
    );
    for _ in 0..3 {
        talk.pushed(39);
    }
    let quiet = Duration::from_millis(1000);
    assert!(talk.is_asked_within(quiet).is_none(), "asked a fourth time");
    let answer = talk.pull(&Pull::of(GIVEN_UP, 0));
    let record = Record::decode(&answer.body).expect("a record");
    let id = record.message_id().to_string();
    let answer = talk.ask(323, &[("topic", GIVEN_UP), ("msgId", &id)], b"");
    assert_eq!(answer.code, 0, "{answer:?}");
    let asked = Half::asked(&talk.pushed(39));
    assert_eq!(talk.end_as(&asked, COMMIT, "g", true).code, 0);
    assert_eq!(talk.bodies("T"), ["message"]);
    let answer = talk.ask(323, &[("topic", "T"), ("msgId", "nonsense")], b"");
    assert_eq!(answer.code, 1, "{answer:?}");
}

#[test]
fn nobody_is_asked_during_an_immunity_time_and_others_do_not_wait_for_it() {
    in_time(an_immunity_time);
}

fn an_immunity_time(times: u32) -> Result<(), TooSlow> {
    let (running, _dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let immune = format!("CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}{}\u{2}", 3 * times);
    let begun = Instant::now();
    let half = Half::of(&talk.try_half("T", "immune", &immune, now_ms()));
    talk.half("T", "other");
    let other = talk.pushed(39);
    let early = Duration::from_secs(2) * times;
    if begun.elapsed() > early {
        return Err(TooSlow);
    }
    assert_eq!(other.ext["msgId"], "other");
    talk.end_as(&Half::asked(&other), ROLLBACK, "g", true);
    let mut question = talk.pushed(39);
    // It was on its way before its answer.
    if question.ext["msgId"] == "other" {
        question = talk.pushed(39);
    }
    assert_eq!(question.ext["msgId"], "immune");
    assert!(begun.elapsed() > early, "asked too early");
    let copies = talk.bodies(HALF);
    let most = 2 + begun.elapsed().as_secs() as usize;
    let times = copies.iter().filter(|body| *body == "immune").count();
    assert!(times <= most, "copied {times} times");
    talk.version = 479;
    assert_eq!(talk.end_as(&half, COMMIT, "g", false).code, 604);
    talk.end_as(&Half::asked(&question), COMMIT, "g", true);
    assert_eq!(talk.bodies("T"), ["immune"]);
    Ok(())
}

#[test]
fn a_kill_changes_nothing_about_transactions() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let (kept, dropped) = (talk.half("T", "kept"), talk.half("T", "dropped"));
    talk.half("T", "open");
    talk.end(&kept, COMMIT);
    talk.end(&dropped, ROLLBACK);
    // Asked about twice.
    running = killed(running, dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    for times in 1..3 {
        let question = talk.pushed(39);
        assert_eq!(question.ext["msgId"], "open");
        let properties = &records(&question.body)[0].2;
        let count = format!("TRANSACTION_CHECK_TIMES\u{1}{times}");
        assert!(properties.ends_with(&count), "{properties:?}");
    }
    // Given up after two more.
    let four = [&QUICK[..], &["--set", "transactionCheckMax=4"]].concat();
    running = killed(running, dir.path(), &four);
    let mut talk = Talk::to(running.address("broker"));
    talk.until_stored(GIVEN_UP, 1);
    assert_eq!(talk.bodies("T"), ["kept"]);
    let halves = talk.bodies(HALF).len();
    talk.until_stored(OP, halves);
    running = killed(running, dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let quiet = Duration::from_millis(1500);
    assert!(
        talk.is_asked_within(quiet).is_none(),
        "asked about what is done with"
    );
    assert_eq!(talk.bodies(HALF).len(), halves, "copied again");
    assert_eq!(talk.bodies(GIVEN_UP), ["open"]);
    assert_eq!(talk.bodies("T"), ["kept"]);
    drop(running);
}

#[test]
fn the_end_of_a_transaction_that_is_told_again_after_a_kill_counts_once() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let (kept, open) = (talk.half("T", "kept"), talk.half("T", "open"));
    talk.end(&kept, COMMIT);
    running = killed(running, dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    talk.end(&kept, COMMIT);
    talk.end(&open, COMMIT);
    talk.end(&kept, COMMIT);
    assert_eq!(talk.bodies("T"), ["kept", "open"]);
    drop(running);
}

#[test]
fn what_was_committed_without_an_op_message_is_not_delivered_again_after_a_crash() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &QUIET);
    let mut talk = Talk::to(running.address("broker"));
    let born = now_ms();
    talk.try_half("T", "message", "", born);
    Half::of(&talk.try_half("T", "open", "", born));
    // What a crash behind the message and before the op message leaves.
    let born = born.to_string();
    let properties = "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}g\u{2}UNIQ_KEY\u{1}message\u{2}";
    let mut fields = send_fields("T", "0", properties, "false");
    let without: Vec<_> = properties.split_inclusive('\u{2}').skip(1).collect();
    let without = without.concat();
    (fields[5].1, fields[6].1, fields[8].1) = ("8", &born, &without);
    assert_eq!(talk.ask(310, &fields, b"message").code, 0);
    assert_eq!(talk.bodies("T"), ["message"]);
    running = killed(running, dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces("c");
    let question = talk.pushed(39);
    assert_eq!(question.ext["msgId"], "open");
    talk.end_as(&Half::asked(&question), ROLLBACK, "g", true);
    let early = talk.early.iter().filter(|early| early.code == 39);
    assert!(early.into_iter().all(|asked| asked.ext["msgId"] == "open"));
    talk.early.clear();
    talk.is_asked_at_most_once_more("open");
    assert_eq!(talk.bodies("T"), ["message"]);
    drop(running);
}

/// The first key in a property string.
fn key(properties: &str) -> String {
    let keys = properties.split('\u{2}').find_map(|property| {
        let keys = property.strip_prefix("KEYS\u{1}")?;
        Some(keys.to_owned())
    });
    keys.expect("keys")
}

#[test]
fn what_another_broker_committed_and_copied_all_the_same_is_not_delivered_again() {
    let dir = directory();
    let recorded = "tests/golden/transactions/asked-again-and-again-5.3.3.tar.zst";
    let recorded = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(recorded);
    let packed = std::fs::File::open(recorded).expect("a recorded store");
    let packed = zstd::Decoder::new(packed).expect("zstd");
    tar::Archive::new(packed)
        .unpack(dir.path())
        .expect("unpack");
    let mut command = crate::serve::program(&dir.path().join("store"));
    command.arg("-c").arg(dir.path().join("broker.conf"));
    // Its messages are old, and given up at their age otherwise.
    command
        .args(QUICK)
        .args(["--set", "fileReservedTime=1000000"]);
    let running = Running::run(command);
    let mut talk = Talk::to(running.address("broker"));
    talk.produces_in("transactions", "c");
    let mut asked = BTreeSet::new();
    // The first questions come when they come; then nobody is asked about anything else.
    let patience = |asked: &BTreeSet<String>| match asked.len() {
        ..4 => PATIENCE,
        4.. => Duration::from_millis(1500),
    };
    while let Some(question) = talk.is_asked_within(patience(&asked)) {
        let key = key(&records(&question.body)[0].2);
        // What was rolled back leaves no trace but op messages, so one more question is right.
        let how = match key.as_str() {
            "nothing" => ROLLBACK,
            _ => COMMIT,
        };
        talk.end_as(&Half::asked(&question), how, "transactions", true);
        // A question may be put again while its answer is on the way.
        asked.insert(key);
    }
    let open = ["pending-apache-0", "pending-apache-1", "pending-apache-2"];
    let asked: Vec<String> = asked.into_iter().collect();
    assert_eq!(asked[1..], open);
    assert_eq!(asked[0], "nothing");
    let mut stored = Vec::new();
    for queue in 0..4 {
        let answer = talk.pull(&Pull {
            queue,
            ..Pull::of("Transactions", 0)
        });
        stored.extend(records(&answer.body).iter().map(|record| key(&record.2)));
    }
    stored.sort();
    let ended = ["ended-apache", "ended-saturnmq"];
    let before = ["pending-saturnmq-0", "pending-saturnmq-1"];
    assert_eq!(stored, [&ended[..], &open, &before].concat());
}

#[test]
fn many_transactions_on_many_connections_are_each_ended_once() {
    let (running, _dir) = broker(&QUIET);
    let address = running.address("broker");
    let mut talks: Vec<Talk> = (0..8).map(|_| Talk::to(address)).collect();
    let mut wanted = HashSet::new();
    let mut waiting = Vec::new();
    for round in 0..100 {
        for (number, talk) in talks.iter_mut().enumerate() {
            let key = format!("{round}-{number}");
            let half = talk.half("T", &key);
            let how = if round % 3 == 0 { ROLLBACK } else { COMMIT };
            if round % 3 != 0 {
                wanted.insert(key);
            }
            let fields = [
                ("producerGroup", "g"),
                ("tranStateTableOffset", &*half.queue_offset),
                ("commitLogOffset", &*half.log_offset),
                ("commitOrRollback", how),
            ];
            waiting.push((number, talk.request(37, &fields, b"")));
        }
    }
    for (number, opaque) in waiting {
        assert_eq!(talks[number].answer(opaque).code, 0);
    }
    let found = talks[0].bodies("T");
    assert_eq!(found.len(), wanted.len());
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), wanted);
    assert_eq!(talks[0].bodies(OP).len(), 800);
}
