//! Load: producers that remember what was acknowledged and a consumer that remembers what it saw.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use saturnmq_net::client::{Client, ClientError, OwnedCommand};
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::offset::{MaxOffset, UpdateConsumerOffset};
use saturnmq_net::messages::pull::{PULL_SUBSCRIPTION, PullRequest};
use saturnmq_net::messages::send::SendRequest;
use saturnmq_net::messages::topic::CreateTopic;
use saturnmq_storage::format::batch::{BatchItem, push_item};
use saturnmq_storage::format::record::Record;

use crate::later::{self, now_ms};
use crate::ledger::{self, Gathered, Place, Told, topic_name};
use crate::message;

/// Topics written to.
pub const TOPICS: usize = 3;
/// Queues of each.
pub const QUEUES: i32 = 4;
/// Group of the consumer.
pub const GROUP: &str = "power-readers";
/// Producers at once.
const PRODUCERS: u32 = 4;
/// Sends that a producer has under way.
const IN_FLIGHT: usize = 12;
/// Longest wait for any answer.
pub const ANSWER: Duration = Duration::from_secs(20);
/// Pause after a refused send, so that a broken disk is not asked a million times.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(2);

/// A running load.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Gathered>>,
}

impl Load {
    /// Starts it against the broker on that port. `round` is the number of this run on its store;
    /// `positions` is where the consumer left its queues.
    pub fn start(port: u16, round: u32, positions: HashMap<(usize, i32), i64>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for producer in 0..PRODUCERS {
            let stop = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || {
                let mut gathered = Gathered::default();
                // Ends with the broker: an error of the connection is the end of the load.
                let _ = produce(port, round, producer, &stop, &mut gathered);
                gathered
            }));
        }
        let later_stop = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || {
            let mut gathered = Gathered::default();
            let _ = later::produce(port, round, &later_stop, &mut gathered.later);
            gathered
        }));
        let consumer_stop = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || {
            let mut gathered = Gathered::default();
            let _ = consume(port, round, &consumer_stop, positions, &mut gathered);
            gathered
        }));
        Load { stop, threads }
    }

    /// Ends it; what its clients were told.
    pub fn end(self) -> Gathered {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Gathered::default();
        for thread in self.threads {
            match thread.join() {
                Ok(gathered) => all.join(gathered),
                Err(_) => all.wrong.push("a client panicked".to_owned()),
            }
        }
        all
    }
}

/// A connection to the broker on that port.
pub fn connect(port: u16) -> Result<Client, ClientError> {
    Client::connect(format!("127.0.0.1:{port}"), ANSWER)
}

/// A send that waits for its answer.
struct Waiting {
    topic: usize,
    queue: i32,
    numbers: Vec<u64>,
}

fn produce(
    port: u16,
    round: u32,
    producer: u32,
    stop: &AtomicBool,
    gathered: &mut Gathered,
) -> Result<(), ClientError> {
    let mut client = connect(port)?;
    let mut random = fastrand::Rng::with_seed(message::number(round, producer, 0));
    let mut waiting: HashMap<i32, Waiting> = HashMap::new();
    let mut sends = 0;
    while !stop.load(Ordering::Relaxed) {
        while waiting.len() < IN_FLIGHT {
            let (topic, queue) = (random.usize(..TOPICS), random.i32(0..QUEUES));
            let count = if random.u8(..16) == 0 {
                random.u32(2..6)
            } else {
                1
            };
            let numbers: Vec<u64> = (0..count)
                .map(|index| message::number(round, producer, sends + index))
                .collect();
            sends += count;
            let opaque = queue_send(&mut client, topic, queue, &numbers)?;
            waiting.insert(
                opaque,
                Waiting {
                    topic,
                    queue,
                    numbers,
                },
            );
        }
        client.flush()?;
        let Some(answer) = client.receive(Instant::now() + ANSWER)? else {
            gathered
                .wrong
                .push(format!("a send got no answer in {ANSWER:?}"));
            return Ok(());
        };
        let answer = OwnedCommand::from(&answer);
        if let Some(sent) = waiting.remove(&answer.opaque) {
            note_answer(&answer, &sent, gathered);
            if answer.code != response::SUCCESS {
                std::thread::sleep(REFUSED_PAUSE);
            }
        }
    }
    Ok(())
}

fn queue_send(
    client: &mut Client,
    topic: usize,
    queue: i32,
    numbers: &[u64],
) -> Result<i32, ClientError> {
    let batch = numbers.len() > 1;
    let mut body = Vec::new();
    let mut properties = String::new();
    if batch {
        for number in numbers {
            let key = format!("KEYS\u{1}{}\u{2}", message::key(*number));
            // Small ones: a batch has one limit for all.
            let item = BatchItem {
                flag: 0,
                body: &message::body(*number),
                properties: key.as_bytes(),
            };
            push_item(&mut body, &item);
        }
    } else {
        body = message::body(numbers[0]);
        properties = format!(
            "KEYS\u{1}{}\u{2}WAIT\u{1}true\u{2}",
            message::key(numbers[0])
        );
    }
    let name = topic_name(topic);
    let send = SendRequest {
        producer_group: "power-writers",
        topic: &name,
        default_topic: "TBW102",
        default_topic_queue_nums: QUEUES,
        queue_id: queue,
        born_timestamp: now_ms(),
        properties: &properties,
        batch,
        ..SendRequest::default()
    };
    let code = if batch {
        request::SEND_BATCH_MESSAGE
    } else {
        request::SEND_MESSAGE_V2
    };
    client.queue(
        code,
        false,
        |fields| send.encode_fields(code, fields),
        &body,
    )
}

fn note_answer(answer: &OwnedCommand, sent: &Waiting, gathered: &mut Gathered) {
    if answer.code != response::SUCCESS {
        let text = answer.remark.clone().unwrap_or_default();
        *gathered.refused.entry((answer.code, text)).or_default() += 1;
        return;
    }
    let ids = answer.get("msgId").unwrap_or_default();
    let log_offsets: Vec<i64> = ids
        .split(',')
        .filter_map(|id| i64::from_str_radix(id.get(16..32)?, 16).ok())
        .collect();
    let offset = answer.number("queueOffset");
    let queue = answer.number("queueId");
    let (Some(offset), true) = (offset, log_offsets.len() == sent.numbers.len()) else {
        let sentence = format!("an answer without a place: {answer:?}");
        gathered.wrong.push(sentence);
        return;
    };
    if queue != Some(i64::from(sent.queue)) {
        gathered
            .wrong
            .push(format!("a send to queue {} went to {queue:?}", sent.queue));
    }
    if sent.numbers.len() > 1 {
        gathered.batched += sent.numbers.len() as u64;
    }
    let places = sent.numbers.iter().zip(log_offsets).zip(offset..);
    for ((number, log_offset), offset) in places {
        let place = (sent.topic, sent.queue, offset);
        let told = Told {
            number: *number,
            log_offset,
        };
        gathered.acknowledged.push((place, told));
    }
}

fn consume(
    port: u16,
    round: u32,
    stop: &AtomicBool,
    mut positions: HashMap<(usize, i32), i64>,
    gathered: &mut Gathered,
) -> Result<(), ClientError> {
    let mut client = connect(port)?;
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for topic in 0..TOPICS {
            for queue in 0..QUEUES {
                let position = positions.entry((topic, queue)).or_default();
                let pulled = pull(&mut client, topic, queue, *position, true)?;
                if let Some(failure) = pulled.failure {
                    *gathered.failed_pulls.entry(failure).or_default() += 1;
                    continue;
                }
                idle &= pulled.messages.is_empty();
                *position = pulled.next.max(*position);
                let seen = pulled.messages.into_iter();
                gathered.seen.extend(seen);
                gathered.wrong.extend(pulled.wrong);
                commit(&mut client, topic, queue, *position, gathered)?;
                ask_end(&mut client, topic, queue, gathered)?;
            }
        }
        if turn % 8 == 0 {
            create(
                &mut client,
                format!("Made{round}-{turn}"),
                1 + turn % 7,
                gathered,
            )?;
        }
        turn += 1;
        if idle {
            std::thread::sleep(REFUSED_PAUSE);
        }
    }
    Ok(())
}

/// What a pull brought.
#[derive(Default)]
pub struct Pulled {
    /// The messages.
    pub messages: Vec<(Place, Told)>,
    /// Where to go on.
    pub next: i64,
    /// Code and text of an answer that is no answer.
    pub failure: Option<(i32, String)>,
    /// Records that are not what they should be.
    pub wrong: Vec<String>,
}

/// Pulls once from a queue.
pub fn pull(
    client: &mut Client,
    topic: usize,
    queue: i32,
    offset: i64,
    fresh: bool,
) -> Result<Pulled, ClientError> {
    let name = topic_name(topic);
    let asked = PullRequest {
        consumer_group: GROUP,
        topic: &name,
        queue_id: queue,
        queue_offset: offset,
        max_msg_nums: 64,
        sys_flag: PULL_SUBSCRIPTION,
        commit_offset: Some(0),
        suspend_timeout_ms: Some(0),
        subscription: Some("*"),
        sub_version: Some(0),
        expression_type: Some("TAG"),
        ..PullRequest::default()
    };
    let answer = client.invoke(
        request::PULL_MESSAGE,
        |fields| asked.encode_fields(fields),
        &[],
        ANSWER,
    )?;
    let mut pulled = Pulled {
        next: answer.number("nextBeginOffset").unwrap_or(offset),
        ..Pulled::default()
    };
    match answer.code {
        response::SUCCESS => read_records(&answer.body, (topic, queue), &mut pulled),
        response::PULL_NOT_FOUND => {}
        // The topic is made with its first message.
        response::TOPIC_NOT_EXIST if fresh => pulled.next = offset,
        response::PULL_OFFSET_MOVED | response::PULL_RETRY_IMMEDIATELY if fresh => {}
        code => pulled.failure = Some((code, answer.remark.unwrap_or_default())),
    }
    Ok(pulled)
}

fn read_records(mut bytes: &[u8], (topic, queue): (usize, i32), pulled: &mut Pulled) {
    while !bytes.is_empty() {
        let record = match Record::decode(bytes) {
            Ok(record) => record,
            Err(error) => {
                let sentence = format!("a pull brought what is no record: {error}");
                return pulled.wrong.push(sentence);
            }
        };
        let size = record.size() as usize;
        bytes = bytes.get(size..).unwrap_or_default();
        let place = (topic, queue, record.queue_offset());
        let right = record.topic() == topic_name(topic) && record.queue_id() == queue;
        match message::identify(record.body()) {
            Some(number) if right => {
                let told = Told {
                    number,
                    log_offset: record.physical_offset(),
                };
                pulled.messages.push((place, told));
            }
            _ => pulled.wrong.push(format!(
                "{} holds what was never sent there",
                ledger::name(&place)
            )),
        }
    }
}

fn commit(
    client: &mut Client,
    topic: usize,
    queue: i32,
    position: i64,
    gathered: &mut Gathered,
) -> Result<(), ClientError> {
    let name = topic_name(topic);
    let asked = UpdateConsumerOffset {
        consumer_group: GROUP,
        topic: &name,
        queue_id: queue,
        commit_offset: position,
        ..UpdateConsumerOffset::default()
    };
    let code = request::UPDATE_CONSUMER_OFFSET;
    let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
    if answer.code == response::SUCCESS {
        gathered.committed.insert((topic, queue), position);
    }
    Ok(())
}

/// The end of a queue; `None` when the broker does not say.
pub fn end_of(client: &mut Client, topic: usize, queue: i32) -> Result<Option<i64>, ClientError> {
    let name = topic_name(topic);
    let asked = MaxOffset {
        topic: &name,
        queue_id: queue,
        ..MaxOffset::default()
    };
    let code = request::GET_MAX_OFFSET;
    let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
    Ok((answer.code == response::SUCCESS)
        .then(|| answer.number("offset"))
        .flatten())
}

fn ask_end(
    client: &mut Client,
    topic: usize,
    queue: i32,
    gathered: &mut Gathered,
) -> Result<(), ClientError> {
    if let Some(end) = end_of(client, topic, queue)? {
        let known = gathered.ends.entry((topic, queue)).or_default();
        *known = (*known).max(end);
    }
    Ok(())
}

fn create(
    client: &mut Client,
    name: String,
    queues: i32,
    gathered: &mut Gathered,
) -> Result<(), ClientError> {
    let asked = CreateTopic {
        topic: &name,
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm: 6,
        ..CreateTopic::default()
    };
    let code = request::UPDATE_AND_CREATE_TOPIC;
    let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
    if answer.code == response::SUCCESS {
        gathered.created.push((name, queues));
    }
    Ok(())
}
