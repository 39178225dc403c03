//! One connection that pulls some queues and checks every message.

use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use saturnmq_net::command::Command;
use saturnmq_net::encode::Encoder;
use saturnmq_net::messages::pull::{PULL_SUBSCRIPTION, PULL_SUSPEND, PullRequest, PullResponse};
use saturnmq_storage::format::record::Record;

use super::faults::Faults;
use super::packing::Method;
use super::payload::{Content, Filling};
use super::{BenchError, interrupt};

/// Consumer group of the load generator; where there are more, its name's beginning.
pub const GROUP: &str = "saturnmq_bench_consumer";
/// Ends of queues that are asked for before the first answer is read.
const ASKED_AT_A_TIME: usize = 256;
/// Code of an answer that has no messages yet.
const NOT_FOUND: i32 = 19;
/// Code of an answer that asks to pull again at once.
const RETRY_IMMEDIATELY: i32 = 20;

/// A queue and how far it was read.
#[derive(Debug, Clone)]
pub struct Queue {
    /// The topic.
    pub topic: String,
    /// Queue id.
    pub id: i32,
    /// Queue offset of the next message.
    pub next: i64,
    /// Queue offset behind the last message wanted; `i64::MAX` for all that come.
    pub end: i64,
    /// The pull under way, and when it was asked for.
    asked: Option<(i32, Instant)>,
}

impl Queue {
    /// From `next` on, up to `end`.
    pub fn new(topic: &str, id: i32, next: i64, end: i64) -> Self {
        Self {
            topic: topic.to_owned(),
            id,
            next,
            end,
            asked: None,
        }
    }

    /// Whether all wanted messages were read.
    pub fn is_done(&self) -> bool {
        self.next >= self.end
    }
}

/// A connection to a broker and the queues it pulls.
pub struct Puller {
    client: Client,
    group: String,
    queues: Vec<Queue>,
    batch: i32,
    wait: Duration,
    filling: Filling,
    unpacked: Vec<u8>,
    /// What the broker did wrong.
    pub faults: Faults,
}

/// One end of each of some queues: `code` is that of the question for the first or for the last
/// offset. Many are asked for at a time, and have to be told within `timeout`.
///
/// # Errors
/// [`BenchError`] when the broker does not say.
pub fn ends_of(
    client: &mut Client,
    code: i32,
    queues: &[(&str, i32)],
    timeout: Duration,
) -> Result<Vec<i64>, BenchError> {
    let mut ends = Vec::with_capacity(queues.len());
    for window in queues.chunks(ASKED_AT_A_TIME) {
        interrupt::check()?;
        let mut asked: Vec<(i32, Option<i64>)> = Vec::with_capacity(window.len());
        for (topic, id) in window {
            let fields = |fields: &mut Encoder<'_>| {
                fields.field_str("topic", topic).field_i32("queueId", *id);
            };
            asked.push((client.queue(code, false, fields, &[])?, None));
        }
        client.flush()?;
        let deadline = Instant::now() + timeout;
        while asked.iter().any(|(_, end)| end.is_none()) {
            let Some(answer) = client.receive(deadline)? else {
                let text = format!("the ends of queues: no answer within {timeout:?}");
                return Err(BenchError::System(text));
            };
            let Some(at) = asked.iter().position(|(n, _)| *n == answer.opaque) else {
                continue;
            };
            let end = answer.ext.get("offset").and_then(|text| text.parse().ok());
            let Some(end) = end.filter(|_| answer.code == response::SUCCESS) else {
                let ((topic, id), code) = (window[at], answer.code);
                let remark = answer.remark.unwrap_or("no remark");
                let text = format!("an end of {topic}/{id}: code {code}: {remark}");
                return Err(BenchError::System(text));
            };
            asked[at].1 = Some(end);
        }
        ends.extend(asked.iter().filter_map(|(_, end)| *end));
    }
    Ok(ends)
}

impl Puller {
    /// Pulls up to `batch` messages at a time; the broker may hold a pull for `wait`.
    pub fn new(
        client: Client,
        group: &str,
        queues: Vec<Queue>,
        batch: i32,
        wait: Duration,
    ) -> Self {
        Self {
            client,
            group: group.to_owned(),
            queues,
            batch,
            wait,
            filling: Filling::default(),
            unpacked: Vec::new(),
            faults: Faults::default(),
        }
    }

    /// Its connection, while no pull is under way.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Gives up its queues for others.
    pub fn take_queues(&mut self, queues: Vec<Queue>) -> Vec<Queue> {
        std::mem::replace(&mut self.queues, queues)
    }

    /// Whether all wanted messages were read.
    pub fn is_done(&self) -> bool {
        self.queues.iter().all(Queue::is_done)
    }

    /// Since when the oldest pull under way has had no answer.
    pub fn waits_since(&self) -> Option<Instant> {
        self.queues
            .iter()
            .filter_map(|queue| Some(queue.asked?.1))
            .min()
    }

    /// Asks for the next messages of every queue of which none are asked for.
    ///
    /// # Errors
    /// [`BenchError`] when the connection fails.
    pub fn ask(&mut self) -> Result<(), BenchError> {
        for queue in &mut self.queues {
            if queue.asked.is_some() || queue.is_done() {
                continue;
            }
            let suspend = if self.wait.is_zero() { 0 } else { PULL_SUSPEND };
            let pull = PullRequest {
                consumer_group: &self.group,
                topic: &queue.topic,
                queue_id: queue.id,
                queue_offset: queue.next,
                max_msg_nums: self.batch,
                sys_flag: suspend | PULL_SUBSCRIPTION,
                commit_offset: Some(0),
                suspend_timeout_ms: i64::try_from(self.wait.as_millis()).ok(),
                subscription: Some("*"),
                sub_version: Some(0),
                expression_type: Some("TAG"),
                max_msg_bytes: None,
                request_source: None,
                broker_name: None,
            };
            let code = request::PULL_MESSAGE;
            let opaque = self
                .client
                .queue(code, false, |f| pull.encode_fields(f), &[])?;
            queue.asked = Some((opaque, Instant::now()));
        }
        self.client.flush().map_err(BenchError::from)
    }

    /// Waits for one answer, hands out its messages, and gives the moment at which they were asked
    /// for; `None` at the deadline.
    ///
    /// # Errors
    /// [`BenchError`] when the connection fails or the answer cannot be read.
    pub fn answer(
        &mut self,
        deadline: Instant,
        mut each: impl FnMut(&Record<'_>, Content, &mut Faults),
    ) -> Result<Option<Instant>, BenchError> {
        loop {
            let Some(command) = self.client.receive(deadline)? else {
                return Ok(None);
            };
            if !command.is_response() {
                continue;
            }
            let is_of = |queue: &&mut Queue| {
                let asked = queue.asked;
                asked.is_some_and(|(opaque, _)| opaque == command.opaque)
            };
            let Some(queue) = self.queues.iter_mut().find(is_of) else {
                self.faults.count("an answer that nobody asked for");
                continue;
            };
            let Some((_, asked)) = queue.asked.take() else {
                continue;
            };
            let (filling, unpacked) = (&mut self.filling, &mut self.unpacked);
            let faults = &mut self.faults;
            let mut checked = |record: &Record<'_>, faults: &mut Faults| {
                let content = content_of(record, filling, unpacked);
                if record.check_body().is_err() || content == Content::Damaged {
                    faults.count("damaged body");
                }
                each(record, content, faults);
            };
            take(queue, &command, faults, &mut checked)?;
            return Ok(Some(asked));
        }
    }
}

/// What a message carries, unpacked if it was compressed.
fn content_of(record: &Record<'_>, filling: &mut Filling, unpacked: &mut Vec<u8>) -> Content {
    match Method::of(record.sys_flag()) {
        None => filling.check(record.body()),
        Some(method) => match method.unpack(record.body(), unpacked) {
            Ok(()) => filling.check(unpacked),
            Err(_) => Content::Damaged,
        },
    }
}

fn take(
    queue: &mut Queue,
    command: &Command<'_>,
    faults: &mut Faults,
    each: &mut impl FnMut(&Record<'_>, &mut Faults),
) -> Result<(), BenchError> {
    match command.code {
        response::SUCCESS => {}
        NOT_FOUND => return Ok(()),
        RETRY_IMMEDIATELY => {
            let answer = PullResponse::decode(&command.ext)
                .map_err(|error| BenchError::System(error.to_string()))?;
            if answer.next_begin_offset > queue.next {
                faults.count("queue offsets that the broker left out");
                queue.next = answer.next_begin_offset;
            }
            return Ok(());
        }
        code => {
            let remark = command.remark.unwrap_or("no remark");
            let (topic, id) = (&queue.topic, queue.id);
            let text = format!("a pull of {topic}/{id}: code {code}: {remark}");
            return Err(BenchError::System(text));
        }
    }
    let mut rest = command.body;
    while !rest.is_empty() {
        let record = match Record::decode(rest) {
            Ok(record) => record,
            Err(error) => {
                return Err(BenchError::System(format!("a pulled record: {error}")));
            }
        };
        rest = &rest[record.size() as usize..];
        match record.queue_offset() {
            offset if offset == queue.next => {}
            offset if offset < queue.next => faults.count("message again or out of order"),
            _ => faults.count("gap in the queue offsets"),
        }
        if record.queue_offset() >= queue.end {
            // Not wanted now: whoever wants it later reads it again.
            queue.next = queue.end;
            break;
        }
        queue.next = record.queue_offset() + 1;
        each(&record, faults);
    }
    Ok(())
}
