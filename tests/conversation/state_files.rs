//! What waits for a state file, and what does not.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use super::clients::heartbeat;
use super::*;

/// The next write of a state file hangs, and fails when it is told to; those after it succeed.
struct Hanging {
    path: PathBuf,
    /// Full: what more is written waits until somebody reads.
    pipe: fs::File,
}

impl Hanging {
    fn write_of(file: &str, store: &Path) -> Self {
        let path = store.join("config").join(format!("{file}.tmp"));
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true);
        let options = options.custom_flags(OFlag::O_NONBLOCK.bits());
        let mut pipe = options.open(&path).expect("the pipe");
        while pipe.write(&[b' '; 4096]).is_ok() {}
        Self { path, pipe }
    }

    /// Waits until the broker writes: what changes from now on is not in it.
    fn begun(&self, running: &Running) {
        let open = format!("/proc/{}/fd", running.pid());
        until("write", || {
            let mut files = fs::read_dir(&open).expect("descriptors").flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == self.path))
        });
    }

    fn fail(self) {
        fs::remove_file(&self.path).expect("away");
        drop(self.pipe);
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "no {what}");
        std::thread::yield_now();
    }
}

fn kept(store: &Path, file: &str) -> String {
    fs::read_to_string(store.join("config").join(file)).expect("the file")
}

/// Topics and groups are on the disk: those of the start, topic T and group G.
fn nothing_is_left_to_write(talk: &mut Talk) {
    assert_eq!(alter(talk, "T", "4").code, 0);
    let group = json!({"groupName": "G"}).to_string();
    assert_eq!(talk.ask(200, &[], group.as_bytes()).code, 0);
}

/// Waits until a name is that of a topic, or of a group, that the broker has in memory.
fn is_held(talk: &mut Talk, (code, table): (i32, &str), name: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = talk.ask(code, &[], b"");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        if body[table].get(name).is_some() {
            return;
        }
        assert!(Instant::now() < until, "no {name}: {body}");
    }
}

/// What was asked for before has been taken, and made in memory.
fn is_taken(talk: &mut Talk) {
    assert_eq!(talk.ask(28, &[], b"").code, 0);
    // By the services thread as well.
    assert_eq!(talk.ask(TOPICS.0, &[], b"").code, 0);
}

const TOPICS: (i32, &str) = (21, "topicConfigTable");
const GROUPS: (i32, &str) = (201, "subscriptionGroupTable");

fn alter(talk: &mut Talk, topic: &str, queues: &str) -> Arrived {
    let opaque = start_altering(talk, topic, queues);
    talk.answer(opaque)
}

fn start_altering(talk: &mut Talk, topic: &str, queues: &str) -> i32 {
    let fields = [
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", queues),
        ("writeQueueNums", queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "false"),
    ];
    talk.request(17, &fields, b"")
}

#[test]
fn a_topic_goes_on_while_a_change_of_it_cannot_be_written() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(alter(&mut talk, "T", "4").code, 0);
    assert_eq!(talk.send_message("T", 3, "", b"before").code, 0);
    let in_the_way = dir.path().join("config/topics.json.tmp");
    fs::create_dir(&in_the_way).expect("a directory");
    let refused = alter(&mut talk, "T", "8");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.remark.contains("topics.json"), "{refused:?}");
    assert_eq!(talk.send_message("T", 3, "", b"meanwhile").code, 0);
    // A crash would take this queue and what was acknowledged in it.
    let refused = talk.ask(310, &send_fields("T", "7", "", "false"), b"early");
    assert_eq!(refused.code, 1, "{refused:?}");
    fs::remove_dir(&in_the_way).expect("gone");
    assert_eq!(alter(&mut talk, "U", "4").code, 0);
    assert_eq!(talk.send_message("T", 7, "", b"after").code, 0);
    let pulled = talk.pull(&Pull {
        queue: 3,
        ..Pull::of("T", 0)
    });
    let bodies: Vec<_> = records(&pulled.body).into_iter().map(|r| r.1).collect();
    assert_eq!(bodies, [b"before".to_vec(), b"meanwhile".to_vec()]);
}

#[test]
fn a_group_is_on_the_disk_when_the_heartbeat_that_makes_it_is_answered() {
    let (running, dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    for n in 0..20 {
        let group = format!("group{n}");
        let answer = talk.ask(34, &[], &heartbeat("c", &group, &[("T", "*")], 1));
        assert_eq!(answer.code, 0, "{answer:?}");
        let path = dir.path().join("config/subscriptionGroup.json");
        let text = fs::read_to_string(path).expect("the file");
        assert!(text.contains(&format!("\"{group}\"")), "{group}");
    }
}

/// A change that is made already, by a write that is under way, hides none that comes later.
#[test]
fn a_list_is_answered_by_the_write_that_holds_all_of_it() {
    let (running, dir) = broker(&[]);
    let mut first = Talk::to(running.address("broker"));
    let mut second = Talk::to(running.address("broker"));
    (first.version, second.version) = (479, 479);
    nothing_is_left_to_write(&mut first);
    let cases = [
        (18, "topicConfigList", "topicName", "topics.json", TOPICS),
        (
            225,
            "groupConfigList",
            "groupName",
            "subscriptionGroup.json",
            GROUPS,
        ),
    ];
    for (code, list, name, file, what) in cases {
        let one = |of: &str| {
            json!({
                name: of, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": false,
            })
        };
        let asked = |of: &[&str]| {
            let all: Vec<_> = of.iter().map(|of| one(of)).collect();
            json!({list: all}).to_string().into_bytes()
        };
        let hanging = Hanging::write_of(file, dir.path());
        let other = first.request(code, &[], &asked(&["There"]));
        is_held(&mut first, what, "There");
        hanging.begun(&running);
        let opaque = second.request(code, &[], &asked(&["New", "There"]));
        is_held(&mut first, what, "New");
        hanging.fail();
        assert_eq!(first.answer(other).code, 1, "{code}");
        let answer = second.answer(opaque);
        assert_eq!(
            answer.code, 0,
            "{code}: the write of another answers it: {answer:?}"
        );
        assert!(kept(dir.path(), file).contains("\"New\""), "{code}");
    }
}

#[test]
fn a_heartbeat_is_answered_by_the_write_that_holds_all_of_its_groups() {
    let (running, dir) = broker(&[]);
    let mut first = Talk::to(running.address("broker"));
    let mut second = Talk::to(running.address("broker"));
    let consumer = |group: &str| {
        json!({
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": [],
            "unitMode": false,
        })
    };
    let both = json!({
        "clientID": "b", "consumerDataSet": [consumer("new"), consumer("there")],
        "producerDataSet": [],
    });
    let file = "subscriptionGroup.json";
    nothing_is_left_to_write(&mut first);
    let hanging = Hanging::write_of(file, dir.path());
    let other = first.request(34, &[], &heartbeat("a", "there", &[], 1));
    is_held(&mut first, GROUPS, "there");
    hanging.begun(&running);
    let opaque = second.request(34, &[], both.to_string().as_bytes());
    is_held(&mut first, GROUPS, "new");
    hanging.fail();
    assert_eq!(first.answer(other).code, 1);
    let answer = second.answer(opaque);
    assert_eq!(
        answer.code, 0,
        "the write of another answers it: {answer:?}"
    );
    assert!(kept(dir.path(), file).contains("\"new\""));
}

/// The file that a request changes, its code and its fields.
type Asked<'a> = (&'a str, i32, &'a [(&'a str, &'a str)]);

#[test]
fn what_another_request_removed_or_forbade_is_answered_when_it_is_on_the_disk() {
    let (running, dir) = broker(&[]);
    let mut first = Talk::to(running.address("broker"));
    let mut second = Talk::to(running.address("broker"));
    (first.version, second.version) = (479, 479);
    nothing_is_left_to_write(&mut first);
    let forbid = [("group", "G"), ("topic", "T"), ("readable", "false")];
    let requests: [Asked<'_>; 3] = [
        ("subscriptionGroup.json", 353, &forbid),
        ("subscriptionGroup.json", 207, &[("groupName", "G")]),
        ("topics.json", 215, &[("topic", "T")]),
    ];
    for (file, code, fields) in requests {
        let hanging = Hanging::write_of(file, dir.path());
        let one = first.request(code, fields, b"");
        is_taken(&mut first);
        hanging.begun(&running);
        let other = second.request(code, fields, b"");
        is_taken(&mut second);
        hanging.fail();
        assert_eq!(first.answer(one).code, 1, "{code}");
        let again = second.answer(other);
        assert_eq!(again.code, 1, "{code} says that it is done: {again:?}");
    }
}

#[test]
fn the_topic_of_very_many_groups_is_deleted_and_the_broker_goes_on() {
    const GROUPS: usize = 20_000;
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(alter(&mut talk, "T", "4").code, 0);
    for group in 0..GROUPS {
        let group = format!("g{group}");
        let commit = [
            ("consumerGroup", group.as_str()),
            ("topic", "T"),
            ("queueId", "0"),
            ("commitOffset", "0"),
        ];
        let last = talk.request(15, &commit, b"");
        // The last one among them.
        if group.ends_with("99") {
            assert_eq!(talk.answer(last).code, 0);
            talk.early.clear();
        }
    }
    let deleted = talk.ask(215, &[("topic", "T")], b"");
    assert_eq!(deleted.code, 0, "{deleted:?}");
    assert_eq!(talk.ask(28, &[], b"").code, 0);
}
