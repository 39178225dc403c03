//! Sends: requests 10, 310 and 320 (docs/behaviour.md, Sending).
//!
//! A send is decoded in place, its properties are rebuilt in one reused buffer, and the record is
//! encoded straight into the append queue. The response is written when the writer has
//! acknowledged the record. Nothing is allocated, formatted or locked per message.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use saturnmq_net::command::ReplyTo;
use saturnmq_net::driver::{ConnectionId, Outbox};
use saturnmq_net::messages::send::SendRequest;
use saturnmq_storage::append_queue::{AppendFailure, AppendPort, LightQueues, PushError};
use saturnmq_storage::format::message::{EncodeError, MessageParts, sys_flag};
use saturnmq_storage::queue_table::Queue;

use crate::answer::{Answer, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::Core;
use crate::handler::ahead::Destinations;
use crate::handler::kept_key::KeptKey;
use crate::handler::properties::{self, PropertyScan};
use crate::handler::send_checks::{self, Redirect};
use crate::handler::send_light;
use crate::handler::send_properties::{self, Stored};
use crate::handler::transaction::Ending;
use crate::handler::{MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE};
use crate::names;
use crate::topics::known::KnownTopics;
use crate::topics::{Topic, TopicFilterType};

mod results;

pub use results::results;

/// A send whose record is on its way to the log.
struct InFlight {
    token: u64,
    conn: ConnectionId,
    to: ReplyTo,
    /// The queue that the client gets to see.
    queue_id: i32,
    /// Records of a batch; 0 for a single message.
    batch: usize,
    key: KeptKey,
    topic: Arc<Topic>,
    /// The handle by which a message for a time is recalled.
    recall: Option<Box<str>>,
    /// A record of a transaction's end is no send.
    end: Option<Box<Ending>>,
}

/// The destination of a send whose frame was not decoded.
struct Coming {
    /// Address of the frame.
    at: usize,
    hash: u64,
    queue_id: usize,
}

/// What one core needs for sends.
pub struct Sends {
    port: AppendPort,
    in_flight: VecDeque<InFlight>,
    next_token: u64,
    /// Record sizes of the batches in flight, in order.
    batch_sizes: VecDeque<u32>,
    sizes: Vec<u32>,
    scan: PropertyScan,
    properties: Vec<u8>,
    /// Light queues of the message at hand.
    light: LightQueues,
    id_list: String,
    random: u64,
    topics: KnownTopics,
    destinations: Destinations,
    coming: Option<Coming>,
    store_host: SocketAddr,
    cluster: String,
    max_message_size: usize,
    delay_levels: i32,
}

impl Sends {
    /// The send side of core `index`.
    pub fn new(broker: &Broker, port: AppendPort, index: usize) -> Self {
        let config = &broker.config;
        Self {
            port,
            in_flight: VecDeque::new(),
            next_token: 0,
            batch_sizes: VecDeque::new(),
            sizes: Vec::new(),
            scan: PropertyScan::default(),
            properties: Vec::new(),
            light: LightQueues::default(),
            id_list: String::new(),
            random: (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            topics: KnownTopics::default(),
            destinations: Destinations::default(),
            coming: None,
            store_host: broker.store_host,
            cluster: config.cluster.clone(),
            max_message_size: broker.live.load().max_message_size,
            delay_levels: i32::try_from(config.delay_levels_ms.len()).unwrap_or(i32::MAX),
        }
    }

    /// Whether the writer has answered something.
    pub fn has_results(&self) -> bool {
        self.port.has_results()
    }

    /// Wakes the writer for what was pushed.
    pub fn submit(&mut self) {
        self.port.submit();
    }

    /// Sends that the writer has not answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether every send was answered.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Appends a record of a transaction's end; given back when that fails.
    pub(crate) fn push_end(
        &mut self,
        broker: &Broker,
        (queue, topic): (&Queue, &Arc<Topic>),
        parts: &MessageParts<'_>,
        end: Ending,
    ) -> Result<(), (PushError, Ending)> {
        broker.enter_light_queues(parts, &mut self.light);
        let (token, light) = (self.next_token, &self.light);
        if let Err(error) = self.port.push(token, queue, parts, light) {
            return Err((error, end));
        }
        self.in_flight.push_back(InFlight {
            token: self.next_token,
            conn: end.slot().channel.conn,
            to: end.slot().to,
            queue_id: 0,
            batch: 0,
            key: KeptKey::None,
            recall: None,
            topic: Arc::clone(topic),
            end: Some(Box::new(end)),
        });
        self.next_token += 1;
        Ok(())
    }

    /// Has fetched what the send that these bytes begin with will touch, and of the one behind it
    /// where that stands.
    pub fn fetch_for(&mut self, bytes: &[u8]) {
        if !self.topics.are_many() {
            return;
        }
        let here = bytes.as_ptr().addr();
        let coming = self.coming.take().filter(|coming| coming.at == here);
        if let Some(coming) = coming.or_else(|| self.coming(bytes)) {
            self.topics.fetch(coming.hash, coming.queue_id);
        }
        let length = bytes
            .first_chunk()
            .map(|length| u32::from_be_bytes(*length));
        let behind = length.and_then(|length| bytes.get(4 + length as usize..));
        self.coming = behind.and_then(|behind| self.coming(behind));
        if let Some(coming) = &self.coming {
            self.topics.fetch_place(coming.hash);
        }
    }

    fn coming(&self, bytes: &[u8]) -> Option<Coming> {
        let (topic, queue_id) = self.destinations.find(bytes)?;
        Some(Coming {
            at: bytes.as_ptr().addr(),
            hash: self.topics.hash(topic),
            queue_id,
        })
    }

    /// A number from a xorshift generator.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 33
    }

    /// A number below `bound`.
    fn random_below(&mut self, bound: i32) -> i32 {
        (self.random() % bound.max(1) as u64) as i32
    }
}

/// A send after its checks: what is stored, and where.
struct Checked<'a> {
    send: SendRequest<'a>,
    topic: Arc<Topic>,
    queue_id: i32,
}

/// Handles a send.
pub fn send(core: &mut Core, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let send = match SendRequest::decode(request.command.code, &request.command.ext) {
        Ok(send) => send,
        Err(error) => return error.into(),
    };
    // Borrowed apart: counting references to the broker would be shared by all cores.
    let Core { broker, sends, .. } = core;
    let broker: &Broker = broker;
    sends.max_message_size = broker.live.load().max_message_size;
    let topic = match sends.topics.get(&broker.topics, send.topic) {
        Some(topic) => topic,
        None => match send_checks::missing_topic(broker, request, &send) {
            Ok(topic) => topic,
            Err(answer) => return answer,
        },
    };
    if let Some(refusal) = send_checks::refuse(broker, request, &send, &topic) {
        return refusal;
    }
    let queue_id = match send.queue_id {
        id if id < 0 => sends.random_below(topic.config.write_queues),
        id => id,
    };
    if let Some(ticket) = broker.awaited(&topic, queue_id) {
        return Answer::Rerun(ticket);
    }
    let checked = Checked {
        send,
        topic,
        queue_id,
    };
    if checked.send.batch {
        batch(sends, broker, request, checked, io)
    } else {
        single(sends, broker, request, checked, io)
    }
}

fn single(
    sends: &mut Sends,
    broker: &Broker,
    request: &Request<'_>,
    checked: Checked<'_>,
    io: &mut Outbox,
) -> Answer {
    let Checked {
        send,
        mut topic,
        queue_id,
    } = checked;
    let mut stored_queue_id = queue_id;
    sends.scan.read(send.properties);
    let random = sends.random();
    let asked = match send_properties::asked(broker, &sends.scan, &send, random) {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    let (mut delay, half, mut dead) = (asked.level, asked.half, false);
    if let Some(group) = send.topic.strip_prefix(names::RETRY_PREFIX) {
        match send_checks::retry_target(broker, request, &send, group) {
            Redirect::None => {}
            Redirect::DeadLetter(dlq) => {
                (topic, stored_queue_id, delay, dead) = (dlq, 0, 0, true);
            }
            Redirect::Refused(answer) => return answer,
        }
    }
    if half && broker.live.load().reject_transactions {
        return send_checks::transactions_forbidden(broker);
    }
    if request.command.body.len() > sends.max_message_size {
        return illegal(broker, sends.max_message_size);
    }
    let stored = Stored {
        level: delay.min(sends.delay_levels),
        wanted_level: delay,
        half,
        time: asked.time,
        topic: &topic.config.name,
        queue_id: stored_queue_id,
        dead,
        v5: request.is_v5(),
    };
    store(
        sends,
        broker,
        request,
        (&send, &topic, queue_id),
        &stored,
        io,
    )
}

/// Stores a single message that was checked.
fn store(
    sends: &mut Sends,
    broker: &Broker,
    request: &Request<'_>,
    (send, topic, queue_id): (&SendRequest<'_>, &Arc<Topic>, i32),
    stored: &Stored<'_>,
    io: &mut Outbox,
) -> Answer {
    let key = sends.scan.get(send.properties, properties::UNIQ_KEY);
    let key = KeptKey::keep(key.filter(|_| request.is_v5()));
    let text = send.properties;
    let live = broker.live.load();
    let origin = (sends.cluster.as_str(), &**live);
    stored.write(text, &mut sends.scan, origin, &mut sends.properties);
    if sends.properties.len() > stored.properties_max() {
        return illegal(broker, sends.max_message_size);
    }
    let Some((stored_topic, stored_queue_id, queue)) = stored.place(broker, topic) else {
        return send_checks::refused(broker, SYSTEM_ERROR, "the queue cannot be opened");
    };
    let parts = MessageParts {
        topic: stored_topic,
        queue_id: stored_queue_id,
        sys_flag: stored.sys_flag(sys_flags(send, topic)),
        properties: &[&sends.properties],
        ..message(request, send, topic, sends.store_host)
    };
    let named = (&sends.scan, text, stored_topic, sends.properties.len());
    if let Err(refusal) = send_light::find(broker, named, &mut sends.light) {
        return refusal;
    }
    let pushed = sends
        .port
        .push(sends.next_token, &queue, &parts, &sends.light);
    if stored_queue_id == queue_id {
        sends.topics.note_queue(topic, queue_id, &queue);
    }
    let counted = send_properties::counted(broker, stored_topic, topic);
    let mut accepted = Taken::new(counted, queue_id, 0, key);
    accepted.recall = stored.recall_handle(broker, text, &sends.scan);
    taken(sends, broker, request, pushed, accepted, io)
}

fn batch(
    sends: &mut Sends,
    broker: &Broker,
    request: &Request<'_>,
    checked: Checked<'_>,
    io: &mut Outbox,
) -> Answer {
    let Checked {
        send,
        topic,
        queue_id,
    } = checked;
    if send.topic.len() > names::TOPIC_MAX_LENGTH {
        let remark = format!("message topic length too long {}", send.topic.len());
        return send_checks::refused(broker, MESSAGE_ILLEGAL, remark);
    }
    if request.is_v5() && send.topic.starts_with(names::RETRY_PREFIX) {
        let remark = format!("batch request does not support retry group {}", send.topic);
        return send_checks::refused(broker, MESSAGE_ILLEGAL, remark);
    }
    sends.scan.read(send.properties);
    let delayed = match send_properties::delay_level(&sends.scan, send.properties) {
        Ok(level) => level > 0,
        Err(refusal) => return refusal.into(),
    };
    let transaction = send.sys_flag & sys_flag::TRANSACTION != 0;
    if delayed || transaction || request.command.body.len() > sends.max_message_size {
        return illegal(broker, sends.max_message_size);
    }
    if let Some(remark) = send_properties::not_in_a_batch(&sends.scan, &send, request.command.body)
    {
        return send_checks::refused(broker, MESSAGE_ILLEGAL, remark);
    }
    let key = sends.scan.get(send.properties, properties::UNIQ_KEY);
    let key = KeptKey::keep(key.filter(|_| request.is_v5()));
    sends.properties.clear();
    sends.scan.remove(send.properties, properties::CLUSTER);
    if request.is_v5() {
        send_properties::remove_traced(send.properties, &mut sends.scan);
    }
    sends.scan.write(send.properties, &mut sends.properties);
    properties::append(&mut sends.properties, properties::CLUSTER, &sends.cluster);
    if request.is_v5() {
        send_properties::append_traced(&broker.live.load(), &mut sends.properties);
    }
    let Some(queue) = broker.queue(&topic, queue_id) else {
        return send_checks::refused(broker, SYSTEM_ERROR, "the queue cannot be opened");
    };
    let properties: &[u8] = &sends.properties;
    let parts = MessageParts {
        queue_id,
        properties: &[properties],
        ..message(request, &send, &topic, sends.store_host)
    };
    sends.sizes.clear();
    let pushed = sends
        .port
        .push_batch(sends.next_token, &queue, &parts, &mut sends.sizes);
    let batch = sends.sizes.len();
    if pushed.is_ok() {
        sends.batch_sizes.extend(&sends.sizes);
    }
    let accepted = Taken::new(topic, queue_id, batch, key);
    taken(sends, broker, request, pushed, accepted, io)
}

/// What of a record comes from the request as it is.
fn message<'a>(
    request: &Request<'a>,
    send: &SendRequest<'a>,
    topic: &'a Topic,
    store_host: SocketAddr,
) -> MessageParts<'a> {
    MessageParts {
        topic: &topic.config.name,
        queue_id: 0,
        flag: send.flag,
        sys_flag: sys_flags(send, topic),
        born_timestamp: send.born_timestamp,
        born_host: request.peer,
        store_host,
        reconsume_times: send.reconsume_times,
        prepared_transaction_offset: 0,
        body: request.command.body,
        properties: &[],
    }
}

fn sys_flags(send: &SendRequest<'_>, topic: &Topic) -> i32 {
    // Only Apache's batch queues hold inner batches: recovery would make no entry for the record.
    let flags = send.sys_flag & !sys_flag::INNER_BATCH;
    match topic.config.filter_type {
        TopicFilterType::MultiTag => flags | sys_flag::MULTI_TAGS,
        TopicFilterType::SingleTag => flags,
    }
}

struct Taken {
    topic: Arc<Topic>,
    queue_id: i32,
    batch: usize,
    key: KeptKey,
    recall: Option<Box<str>>,
}

impl Taken {
    fn new(topic: Arc<Topic>, queue_id: i32, batch: usize, key: KeptKey) -> Self {
        Self {
            topic,
            queue_id,
            batch,
            key,
            recall: None,
        }
    }
}

/// Books a pushed record as in flight, or answers why it was not taken.
fn taken(
    sends: &mut Sends,
    broker: &Broker,
    request: &Request<'_>,
    pushed: Result<(), PushError>,
    taken: Taken,
    io: &mut Outbox,
) -> Answer {
    match pushed {
        Ok(()) => {
            let Taken {
                topic,
                queue_id,
                batch,
                key,
                recall,
            } = taken;
            sends.in_flight.push_back(InFlight {
                token: sends.next_token,
                conn: request.conn,
                to: request.command.reply_to(),
                queue_id,
                batch,
                key,
                recall,
                topic,
                end: None,
            });
            sends.next_token += 1;
            io.request_started(request.conn);
            Answer::Nothing
        }
        Err(PushError::Full) => Answer::Stall,
        Err(PushError::Closed) => send_checks::refused(
            broker,
            SERVICE_NOT_AVAILABLE,
            send_checks::unavailable(&AppendFailure::ShuttingDown),
        ),
        Err(PushError::Message(error @ EncodeError::Zeros { .. })) => {
            send_checks::refused(broker, MESSAGE_ILLEGAL, error.to_string())
        }
        Err(error) => {
            tracing::debug!(%error, "a message cannot be stored");
            illegal(broker, sends.max_message_size)
        }
    }
}

fn illegal(broker: &Broker, limit: usize) -> Answer {
    let remark = format!(
        "the message is illegal, maybe msg body or properties length not matched. msg body length \
         limit {limit}B, msg properties length limit 32KB."
    );
    send_checks::refused(broker, MESSAGE_ILLEGAL, remark)
}
