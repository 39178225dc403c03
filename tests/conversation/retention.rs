//! What clients see of messages that expired.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::sys::signal::Signal;

use super::*;

/// Small queue files, and rounds in quick succession.
const SMALL: [&str; 6] = [
    "--set",
    "mappedFileSizeConsumeQueue=2000",
    "--set",
    "cleanResourceInterval=100",
    "--set",
    "messageDelayLevel=1s 1h",
];

fn log_files(dir: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(dir.join("commitlog")).expect("directory");
    let mut files: Vec<_> = list.map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    files
}

/// Makes every log file that is full as old as a week.
fn age(dir: &Path) -> Vec<PathBuf> {
    let mut files = log_files(dir);
    let written = |path: &PathBuf| {
        let bytes = fs::read(path).expect("read");
        bytes[..8].iter().any(|byte| *byte != 0)
    };
    files.retain(written);
    files.pop();
    let week_ago = SystemTime::now() - Duration::from_secs(7 * 24 * 3600);
    for path in &files {
        let file = File::options().write(true).open(path).expect("open");
        file.set_times(FileTimes::new().set_modified(week_ago))
            .expect("times");
    }
    files
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// Ages the log and has it deleted on request.
fn expire(talk: &mut Talk, dir: &Path) {
    let old = age(dir);
    assert!(!old.is_empty());
    assert_eq!(talk.ask(329, &[], b"").code, 0);
    wait_until("the files go", || old.iter().all(|path| !path.exists()));
}

fn send_many(talk: &mut Talk, topic: &str, count: usize) -> Vec<String> {
    let body = [7; 3000];
    let send = |_| talk.send_message(topic, 0, "KEYS\u{1}k\u{2}", &body).ext["msgId"].clone();
    (0..count).map(send).collect()
}

fn queue_fields(topic: &str) -> [(&str, &str); 3] {
    [("topic", topic), ("queueId", "0"), ("consumerGroup", "g")]
}

/// Smallest and next queue offset, as the broker tells them.
fn range(talk: &mut Talk, topic: &str) -> (i64, i64) {
    let min = talk.ask(31, &queue_fields(topic), b"").number("offset");
    let max = talk.ask(30, &queue_fields(topic), b"").number("offset");
    (min, max)
}

/// What is the same before and after a restart.
fn check_expired(talk: &mut Talk, first_id: &str) -> i64 {
    assert_eq!(range(talk, "Old"), (100, 100));
    let below = talk.pull(&Pull::of("Old", 10));
    assert_eq!((below.code, &*below.remark), (21, "OFFSET_TOO_SMALL"));
    let numbers = ["nextBeginOffset", "minOffset", "maxOffset"].map(|name| below.number(name));
    assert_eq!(numbers, [100, 100, 100]);
    assert_eq!(talk.pull(&Pull::of("Old", 100)).code, 19);
    let (min, max) = range(talk, "Both");
    assert!(min > 0 && max == 600, "{min} {max}");
    let below = talk.pull(&Pull::of("Both", min - 1));
    assert_eq!(
        (below.code, below.number("nextBeginOffset")),
        (21, min),
        "{below:?}"
    );
    let first = talk.pull(&Pull::of("Both", min));
    assert_eq!((first.code, records(&first.body)[0].0), (0, min));
    for topic in ["Old", "Both"] {
        let stored = talk.ask(14, &queue_fields(topic), b"");
        assert_eq!((stored.code, stored.number("offset")), (0, 10), "{topic}");
    }
    let offset = u64::from_str_radix(&first_id[16..], 16)
        .expect("an id")
        .to_string();
    assert_ne!(talk.ask(33, &[("offset", &offset)], b"").code, 0);
    let query = [
        ("topic", "Old"),
        ("key", "k"),
        ("maxNum", "64"),
        ("beginTimestamp", "0"),
        ("endTimestamp", "9000000000000"),
    ];
    assert_eq!(talk.ask(12, &query, b"").code, 22);
    min
}

#[test]
fn expired_messages_are_gone_for_every_request_and_offsets_go_on() {
    let (mut running, dir) = broker(&SMALL);
    let mut talk = Talk::to(running.address("broker"));
    let ids = send_many(&mut talk, "Old", 100);
    send_many(&mut talk, "Both", 600);
    let commit = [("commitOffset", "10")];
    for topic in ["Old", "Both"] {
        let fields = [&queue_fields(topic)[..], &commit].concat();
        assert_eq!(talk.ask(15, &fields, b"").code, 0);
    }
    expire(&mut talk, dir.path());
    // The queues' starts and files follow the files of the log.
    wait_until("the queues' starts", || {
        let (min, _) = range(&mut talk, "Both");
        let first = talk.pull(&Pull::of("Both", min));
        first.code == 0 && range(&mut talk, "Old").0 == 100
    });
    let min = check_expired(&mut talk, &ids[0]);
    let kept = format!("{:020}", min / 100 * 2000);
    wait_until("the queue's files go", || {
        let queue_files = fs::read_dir(dir.path().join("consumequeue/Both/0")).expect("directory");
        let first = queue_files
            .map(|file| file.expect("entry").file_name())
            .min();
        first.expect("a file").into_string().expect("name") == kept
    });
    // A resume point, as there is one every few seconds.
    assert_eq!(running.stop().code(), Some(0));
    running = Running::start(dir.path(), &SMALL);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(check_expired(&mut talk, &ids[0]), min);
    running.signal(Signal::SIGKILL);
    running.wait();
    running = Running::start(dir.path(), &SMALL);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(check_expired(&mut talk, &ids[0]), min);
    let sent = talk.send_message("Old", 0, "", b"new");
    assert_eq!(sent.number("queueOffset"), 100);
    let found = talk.pull(&Pull::of("Old", 100));
    assert_eq!(records(&found.body)[0].1, b"new");
}

#[test]
fn no_queue_offset_is_given_twice_though_a_queue_expired_and_its_files_are_lost() {
    let (mut running, dir) = broker(&SMALL);
    let mut talk = Talk::to(running.address("broker"));
    send_many(&mut talk, "Old", 100);
    send_many(&mut talk, "Both", 600);
    expire(&mut talk, dir.path());
    assert_eq!(running.stop().code(), Some(0));
    for (round, clean) in [true, false, true].into_iter().enumerate() {
        fs::remove_dir_all(dir.path().join("consumequeue")).expect("remove");
        fs::remove_dir_all(dir.path().join("index")).expect("remove");
        running = Running::start(dir.path(), &SMALL);
        let mut talk = Talk::to(running.address("broker"));
        let sent = talk.send_message("Old", 0, "", format!("{round}").as_bytes());
        assert_eq!(sent.number("queueOffset"), 100 + round as i64);
        let found = talk.pull(&Pull::of("Old", 100 + round as i64));
        assert_eq!(records(&found.body)[0].1, format!("{round}").as_bytes());
        if clean {
            assert_eq!(running.stop().code(), Some(0));
        } else {
            running.signal(Signal::SIGKILL);
            running.wait();
        }
    }
}

#[test]
fn a_request_to_delete_outlasts_a_batch() {
    let more = [&SMALL[..], &["--set", "deleteFileBatchMax=1"]].concat();
    let (running, dir) = broker(&more);
    let mut talk = Talk::to(running.address("broker"));
    send_many(&mut talk, "T", 1300);
    assert!(log_files(dir.path()).len() >= 4);
    expire(&mut talk, dir.path());
    // The queue's start follows the files.
    wait_until("the queue's start", || range(&mut talk, "T").0 > 900);
    drop(running);
}

#[test]
fn delayed_messages_that_expired_hold_up_none_behind_them() {
    let (running, dir) = broker(&SMALL);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"makes the topic");
    for _ in 0..30 {
        talk.send_message("T", 0, "DELAY\u{1}2\u{2}", b"lost");
    }
    send_many(&mut talk, "Filler", 700);
    expire(&mut talk, dir.path());
    assert_eq!(range(&mut talk, "SCHEDULE_TOPIC_XXXX").1, 0);
    talk.send_message("T", 0, "DELAY\u{1}1\u{2}", b"kept");
    let answer = talk.pull(&Pull {
        wait_ms: 12_000,
        ..Pull::of("T", 1)
    });
    assert_eq!(
        (answer.code, &*records(&answer.body)[0].1),
        (0, &b"kept"[..])
    );
    drop(running);
}

#[test]
fn cleaning_queues_keeps_their_offsets_and_cleaning_topics_keeps_the_configured() {
    let (running, dir) = broker(&SMALL);
    let mut talk = Talk::to(running.address("broker"));
    send_many(&mut talk, "Old", 100);
    send_many(&mut talk, "Filler", 600);
    expire(&mut talk, dir.path());
    wait_until("the queue's start", || range(&mut talk, "Old").0 == 100);
    for code in [306, 316] {
        assert_eq!(talk.ask(code, &[], b"").code, 0);
        assert_eq!(range(&mut talk, "Old"), (100, 100));
    }
    let sent = talk.send_message("Old", 0, "", b"new");
    assert_eq!(sent.number("queueOffset"), 100);
    drop(running);
}

#[test]
fn a_shorter_time_to_keep_messages_acts_while_the_broker_runs() {
    let hours: Vec<String> = (0..24).map(|hour| hour.to_string()).collect();
    let always = format!("deleteWhen={}", hours.join(";"));
    let keep = ["--set", &always, "--set", "fileReservedTime=1000"];
    let (running, dir) = broker(&[&SMALL[..], &keep].concat());
    let mut talk = Talk::to(running.address("broker"));
    send_many(&mut talk, "Old", 100);
    send_many(&mut talk, "Both", 600);
    let old = age(dir.path());
    assert!(!old.is_empty());
    assert_eq!(talk.ask(25, &[], b"fileReservedTime=48").code, 0);
    wait_until("the files go", || old.iter().all(|path| !path.exists()));
    let text = String::from_utf8(talk.ask(26, &[], b"").body).expect("properties");
    assert!(text.contains("fileReservedTime=48\n"), "{text}");
}
