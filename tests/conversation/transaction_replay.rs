//! Transactions recorded between real clients and real brokers, held again with this one: the same
//! answers and the same questions, places in the log and times aside.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use saturnmq_storage::format::message_id::MessageId;
use saturnmq_storage::format::record::Record;

use super::replay::{Recording, arrived, key};
use super::*;

const SETTINGS: [&str; 6] = [
    "--set",
    "transactionTimeOut=300",
    "--set",
    "transactionCheckInterval=1000",
    "--set",
    "brokerName=broker-a",
];

/// Where half messages stand in the recording, and here.
#[derive(Default)]
struct Places {
    log: HashMap<i64, i64>,
    queue: HashMap<i64, i64>,
}

impl Places {
    fn sent(&mut self, recorded: &Arrived, got: &Arrived) {
        let log = |a: &Arrived| MessageId::parse(&a.ext["msgId"]).expect("an id").1 as i64;
        self.log.insert(log(recorded), log(got));
        let queue = "queueOffset";
        self.queue.insert(recorded.number(queue), got.number(queue));
    }

    fn asked(&mut self, recorded: &Arrived, got: &Arrived) {
        let (log, queue) = ("commitLogOffset", "tranStateTableOffset");
        self.log.insert(recorded.number(log), got.number(log));
        self.queue.insert(recorded.number(queue), got.number(queue));
    }

    /// The request with the places of here, born now.
    fn moved(&self, request: &Arrived) -> Vec<(String, String)> {
        let fields = request.ext.iter().map(|(name, value)| {
            let table = match &**name {
                "commitLogOffset" => &self.log,
                "tranStateTableOffset" => &self.queue,
                "g" | "bornTimestamp" => return (name.clone(), now_ms().to_string()),
                _ => return (name.clone(), value.clone()),
            };
            let here = table[&value.parse::<i64>().expect("an offset")];
            (name.clone(), here.to_string())
        });
        fields.collect()
    }
}

fn now_ms() -> u128 {
    std::time::UNIX_EPOCH
        .elapsed()
        .expect("a clock")
        .as_millis()
}

fn keys(frame: &Arrived) -> BTreeSet<&str> {
    frame.ext.keys().map(|name| &**name).collect()
}

/// The properties of a record, less what only 5.x brokers store and what Apache sets in memory.
fn properties(record: &Record<'_>) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = record.properties().iter();
    let mut all: BTreeMap<_, _> = all.map(|(name, value)| (text(name), text(value))).collect();
    for name in ["WAIT", "MSG_REGION", "TRACE_ON"] {
        all.remove(name);
    }
    all
}

fn compare_questions(recorded: &Arrived, got: &Arrived) {
    assert_eq!(keys(recorded), keys(got));
    for name in ["msgId", "transactionId"] {
        assert_eq!(recorded.ext[name], got.ext[name]);
    }
    assert_eq!(recorded.ext.get("bname"), got.ext.get("bname"));
    assert_eq!(recorded.ext.get("topic"), got.ext.get("topic"));
    let (theirs, ours) = (
        Record::decode(&recorded.body).expect("a record"),
        Record::decode(&got.body).expect("a record"),
    );
    assert_eq!(theirs.topic(), ours.topic());
    assert_eq!(theirs.queue_id(), ours.queue_id());
    assert_eq!(theirs.body(), ours.body());
    assert_eq!(theirs.body_crc(), ours.body_crc());
    assert_eq!(theirs.sys_flag(), ours.sys_flag());
    assert_eq!(theirs.reconsume_times(), ours.reconsume_times());
    assert_eq!(properties(&theirs), properties(&ours));
    for (question, record) in [(recorded, &theirs), (got, &ours)] {
        assert_eq!(question.number("commitLogOffset"), record.physical_offset());
        assert_eq!(
            question.number("tranStateTableOffset"),
            record.queue_offset()
        );
    }
}

/// Holds the conversation of one client; gives back how many questions and ends there were.
fn hold(server: &str, client: &str, version: i32) -> (usize, usize) {
    let recording = Recording::of_client(server, client, "transaction");
    let answers = recording.answers();
    let (running, _dir) = broker(&SETTINGS);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = version;
    let mut places = Places::default();
    let (mut questions, mut ends) = (0, 0);
    for line in &recording.lines {
        let ours = line["conn"]
            .as_str()
            .is_some_and(|c| c.starts_with("broker#"));
        let Some(bytes) = Recording::bytes(line).filter(|_| ours) else {
            continue;
        };
        let frame = arrived(&bytes).expect("a frame");
        match (line["dir"].as_str(), frame.code) {
            (Some("s2c"), 39) => {
                let id = frame.ext["msgId"].clone();
                let about = |a: &Arrived| a.code == 39 && a.ext.get("msgId") == Some(&id);
                let got = talk.wait_for(about, "question");
                compare_questions(&frame, &got);
                places.asked(&frame, &got);
                questions += 1;
            }
            (Some("c2s"), code @ (10 | 310 | 34 | 37)) => {
                let fields = places.moved(&frame);
                let fields: Vec<_> = fields.iter().map(|(n, v)| (&**n, &**v)).collect();
                let body = frame.body.as_slice();
                let opaque = talk.request(code, &fields, body);
                let Some(recorded) = key(line).and_then(|key| answers.get(&key)) else {
                    continue;
                };
                let got = talk.answer(opaque);
                assert_eq!(got.code, recorded.code, "{got:?}");
                assert_eq!(keys(&got), keys(recorded));
                ends += usize::from(code == 37);
                if code != 34 && code != 37 {
                    places.sent(recorded, &got);
                }
            }
            _ => {}
        }
    }
    (questions, ends)
}

#[test]
fn clients_of_4_9_have_the_conversation_they_have_with_apache() {
    assert_eq!(hold("server-4.9.7", "java-4.9.7", 407), (2, 0));
    assert_eq!(hold("server-4.9.7", "go-2.1.3-20251226", 317), (2, 4));
}

#[test]
fn clients_of_5_x_have_the_conversation_they_have_with_apache() {
    let (questions, ends) = hold("server-5.3.3", "go-2.1.3-20251226", 479);
    assert_eq!((questions, ends), (2, 4));
}
