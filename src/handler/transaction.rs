//! Transactions: requests 37 and 323 (docs/behaviour.md, Transactions).
//!
//! A core ends a transaction itself while the half message is in memory, else the services thread
//! does. The op message is appended only when the message itself is on the disk: between the two a
//! crash leaves a half message that is asked about again, never one that is lost.

use std::collections::VecDeque;
use std::sync::Arc;

use saturnmq_net::driver::Outbox;
use saturnmq_net::messages::message_id;
use saturnmq_net::messages::transaction::{
    EndTransaction, ResumeCheckHalfMessage, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK,
    TRANSACTION_UNKNOWN,
};
use saturnmq_storage::append_queue::{AppendFailure, Appended, PushError};
use saturnmq_storage::format::record::Record;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::InMemory;

use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR, WorkJob};
use crate::broker::Broker;
use crate::core::{Core, now_ms, write_reply};
use crate::handler::send::Sends;
use crate::handler::send_checks::{batch_queues, closed_store};
use crate::handler::{
    MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE, TOPIC_NOT_EXIST, durably, properties,
};
use crate::names;
use crate::persist::Ticket;
use crate::services::ServiceContext;
use crate::topics::Topic;
use crate::transaction::half::{Digits, End, Half, not_found, op_message, with_property};
use crate::transaction::settled::{is_committed, newest_copy};
use crate::transaction::table::Begin;
use crate::transaction::{Close, Ended};

/// ILLEGAL_OPERATION, of 5.x.
pub const ILLEGAL_OPERATION: i32 = 604;
/// A half message buffer larger than this is given back.
const KEEP_BYTES: usize = 256 << 10;

/// The end of a transaction, one of whose records is on its way to the log.
pub struct Ending {
    /// The half message that is open.
    half: i64,
    ended: Ended,
    /// Whether the record is the op message, else it is the message in its real topic.
    op: bool,
}

impl Ending {
    /// Whether the record on its way is a message that consumers get to see.
    pub fn is_message(&self) -> bool {
        !self.op
    }

    /// Who waits for the answer.
    pub fn slot(&self) -> ReplySlot {
        self.ended.slot
    }
}

/// What one core needs to end transactions.
#[derive(Default)]
pub struct Ends {
    half: Vec<u8>,
    /// Op messages that found the append queue full.
    ops: VecDeque<Ending>,
}

impl Ends {
    /// Whether nothing is left to append.
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }
}

/// 37: a producer says what becomes of a transaction.
pub fn end(core: &mut Core, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let asked = match EndTransaction::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let commit = match asked.commit_or_rollback {
        TRANSACTION_COMMIT => true,
        TRANSACTION_ROLLBACK => false,
        // The half message stays, and by design there is no answer.
        TRANSACTION_UNKNOWN => return Answer::Nothing,
        other => {
            let remark = format!("the field commitOrRollback holds {other}, not 0, 8 or 12");
            return Reply::error(SYSTEM_ERROR, remark).into();
        }
    };
    let end = End::new(&asked, commit, request.is_v5());
    let Ok(offset) = u64::try_from(end.log_offset) else {
        return not_found().into();
    };
    let Core {
        broker,
        sends,
        pulls,
        ends,
        ..
    } = core;
    ends.half.clear();
    ends.half.shrink_to(KEEP_BYTES);
    match pulls.reader().record_in_memory(offset, &mut ends.half) {
        InMemory::Found if is_doubtful(broker, &ends.half) => {
            return Answer::Work(Box::new(move |services, slot| cold(services, slot, end)));
        }
        InMemory::Found => {}
        InMemory::Missing => return not_found().into(),
        InMemory::Cold => {
            return Answer::Work(Box::new(move |services, slot| cold(services, slot, end)));
        }
    }
    let half = std::mem::take(&mut ends.half);
    let answer = match Ready::new(broker, &end, &half, false) {
        Ok(ready) => hot(broker, sends, ends, (request, io), &ready),
        Err(NotReady::Refused(reply)) => reply.into(),
        Err(NotReady::Awaited(ticket)) => Answer::Rerun(ticket),
        Err(NotReady::Forgotten) => {
            Answer::Work(Box::new(move |services, slot| cold(services, slot, end)))
        }
    };
    core.ends.half = half;
    answer
}

/// Whether a half message may have been ended without a trace in memory.
fn is_doubtful(broker: &Broker, half: &[u8]) -> bool {
    Record::decode(half).is_ok_and(|record| broker.transactions.is_doubtful(&record))
}

/// A transaction that may be ended.
struct Ready<'r> {
    half: Half<'r>,
    /// The half message that is open; `None` if it was ended before.
    open: Option<i64>,
    /// Where a committed message goes.
    target: Option<(Arc<Topic>, Arc<Queue>)>,
}

/// Why a transaction is not ended now.
enum NotReady {
    Refused(Reply),
    /// The topic of its message is not on the disk yet.
    Awaited(Ticket),
    /// The index must be asked for its newest copy.
    Forgotten,
}

impl From<Reply> for NotReady {
    fn from(reply: Reply) -> Self {
        Self::Refused(reply)
    }
}

impl<'r> Ready<'r> {
    /// Makes every check; from here on the half message counts as being ended. `linked`: the
    /// index was asked for copies that the table does not know.
    fn new(broker: &Broker, end: &End, bytes: &'r [u8], linked: bool) -> Result<Self, NotReady> {
        let record = Record::decode(bytes).map_err(|_| not_found())?;
        let half = end.check(&record)?;
        let timeout = broker.live.load().transaction_timeout_ms;
        if end.is_late(&half, now_ms(), timeout) {
            let late = Reply {
                code: ILLEGAL_OPERATION,
                ..Reply::default()
            };
            return Err(late.into());
        }
        if let Some(why) = closed_store(&broker.store.state()) {
            return Err(unavailable(&why).into());
        }
        let mut target = None;
        if end.commit {
            let topic = broker.topics.get(half.topic).ok_or_else(|| {
                let remark = format!("topic[{}] not exist", half.topic);
                Reply::error(TOPIC_NOT_EXIST, remark)
            })?;
            if topic.config.has_batch_queues() {
                return Err(Reply::error(MESSAGE_ILLEGAL, batch_queues(half.topic)).into());
            }
            if let Some(ticket) = broker.awaited(&topic, half.queue_id) {
                return Err(NotReady::Awaited(ticket));
            }
            let queue = broker
                .queue(&topic, half.queue_id)
                .ok_or_else(|| Reply::error(SYSTEM_ERROR, "the queue cannot be opened"))?;
            target = Some((topic, queue));
        }
        let mut table = broker.transactions.table();
        if !linked && table.has_forgotten(end.half) {
            return Err(NotReady::Forgotten);
        }
        let open = match table.begin(end.half) {
            Begin::Go(open) => Some(open),
            Begin::Ended => None,
        };
        Ok(Self { half, open, target })
    }
}

fn unavailable(why: &dyn std::fmt::Display) -> Reply {
    let remark = format!("Service not available now. ({why})");
    Reply::error(SERVICE_NOT_AVAILABLE, remark)
}

fn illegal(error: &PushError) -> Reply {
    let remark = format!(
        "The message is illegal, maybe msg body or properties length not matched. ({error})"
    );
    Reply::error(MESSAGE_ILLEGAL, remark)
}

fn failed(failure: &AppendFailure) -> Reply {
    match failure {
        AppendFailure::QueueGone => Reply::error(TOPIC_NOT_EXIST, "the topic was deleted"),
        failure => unavailable(failure),
    }
}

/// Ends a transaction on the core.
fn hot(
    broker: &Broker,
    sends: &mut Sends,
    ends: &mut Ends,
    (request, io): (&Request<'_>, &mut Outbox),
    ready: &Ready<'_>,
) -> Answer {
    let Some(open) = ready.open else {
        return Reply::success().into();
    };
    let mut ending = Ending {
        half: open,
        ended: Ended {
            commit: ready.target.is_some(),
            slot: ReplySlot {
                channel: request.channel(),
                to: request.command.reply_to(),
            },
        },
        op: false,
    };
    let Some((topic, queue)) = &ready.target else {
        ending.op = true;
        io.request_started(request.conn);
        ends.ops.push_back(ending);
        ops(broker, sends, ends, io);
        return Answer::Nothing;
    };
    let properties = [ready.half.record.properties().as_bytes()];
    let parts = ready.half.committed(&properties);
    match sends.push_end(broker, (queue, topic), &parts, ending) {
        Ok(()) => {
            io.request_started(request.conn);
            Answer::Nothing
        }
        Err((error, _)) => {
            broker.transactions.table().failed(open);
            match error {
                PushError::Full => Answer::Stall,
                PushError::Closed => unavailable(&AppendFailure::ShuttingDown).into(),
                error => illegal(&error).into(),
            }
        }
    }
}

/// Appends op messages that wait, as far as the append queue takes them.
fn ops(broker: &Broker, sends: &mut Sends, ends: &mut Ends, io: &mut Outbox) {
    while let Some(ending) = ends.ops.pop_front() {
        let body = Digits::of(ending.half);
        let parts = op_message(body.as_bytes(), broker.store_host, now_ms());
        let topic = broker.topics.get(names::OP_HALF_TOPIC);
        let (Some(topic), Some(queue)) = (topic, broker.op_queue()) else {
            settle(broker, &ending, io, Err(AppendFailure::QueueGone));
            continue;
        };
        match sends.push_end(broker, (&queue, &topic), &parts, ending) {
            Ok(()) => {}
            Err((PushError::Full, ending)) => {
                // The writer answers what fills the queue, and this is called again then.
                ends.ops.push_front(ending);
                return;
            }
            Err((_, ending)) => {
                settle(broker, &ending, io, Err(AppendFailure::ShuttingDown));
            }
        }
    }
}

/// Appends the op messages that are due after a look at the writer's results.
pub fn after_results(core: &mut Core, io: &mut Outbox) {
    if core.ends.is_idle() {
        return;
    }
    let Core {
        broker,
        sends,
        ends,
        ..
    } = core;
    ops(broker, sends, ends, io);
}

/// The writer has answered for a record of a transaction's end.
pub fn appended(
    broker: &Broker,
    ends: &mut Ends,
    mut ending: Ending,
    outcome: Result<Appended, AppendFailure>,
    io: &mut Outbox,
) {
    if outcome.is_ok() && ending.is_message() {
        ending.op = true;
        ends.ops.push_back(ending);
    } else {
        settle(broker, &ending, io, outcome);
    }
}

/// Books the end of a transaction and answers it.
fn settle(
    broker: &Broker,
    ending: &Ending,
    io: &mut Outbox,
    outcome: Result<Appended, AppendFailure>,
) {
    let Ended { commit, slot } = ending.ended;
    let reply = booked(broker, ending.half, commit, outcome);
    io.request_finished(slot.channel.conn);
    write_reply(io, slot.channel.conn, slot.to, &reply);
}

/// Books what became of an op message; the reply for who ended the transaction.
pub fn booked(
    broker: &Broker,
    half: i64,
    commit: bool,
    outcome: Result<Appended, AppendFailure>,
) -> Reply {
    match outcome {
        Ok(appended) => {
            broker
                .transactions
                .ended(half, appended.queue_offset, commit);
            Reply::success()
        }
        Err(failure) => {
            tracing::warn!(half, %failure, "a transaction could not be ended");
            broker.transactions.table().failed(half);
            let log_end = broker.store.watermarks().appended();
            broker.transactions.op_failed(log_end);
            failed(&failure)
        }
    }
}

/// Has the table know the newest copy of a half message, where it may not: whoever ends the half
/// message ends that copy, else the answer to a question about it would count once more.
fn link(services: &mut ServiceContext, end: &End, bytes: &[u8]) {
    let half = Record::decode(bytes).ok();
    let Some(half) = half.and_then(|record| end.check(&record).ok()) else {
        return;
    };
    let broker = Arc::clone(&services.broker);
    let transactions = &broker.transactions;
    let forgotten = transactions.table().has_forgotten(end.half);
    if !forgotten && !transactions.is_doubtful(&half.record) {
        return;
    }
    if let Some(copy) = newest_copy(services, &half) {
        transactions.table().stands_for(copy, end.half);
    }
}

/// Ends a transaction on the services thread: its half message is not in memory.
fn cold(services: &mut ServiceContext, slot: ReplySlot, end: End) {
    let mut bytes = Vec::new();
    let found = u64::try_from(end.log_offset).map_or(Ok(false), |offset| {
        services.reader.record(offset, &mut bytes)
    });
    let broker = Arc::clone(&services.broker);
    let ready = match found {
        Ok(true) => {
            link(services, &end, &bytes);
            Ready::new(&broker, &end, &bytes, true)
        }
        Ok(false) => Err(not_found().into()),
        Err(error) => Err(Reply::error(SYSTEM_ERROR, error.to_string()).into()),
    };
    let ready = match ready {
        Ok(ready) => ready,
        Err(NotReady::Refused(reply)) => return services.reply(slot, reply),
        Err(NotReady::Forgotten) => return services.reply(slot, Reply::overload()),
        Err(NotReady::Awaited(ticket)) => {
            let again: WorkJob = Box::new(move |services, slot| cold(services, slot, end));
            return durably::then(services, ticket, slot, again);
        }
    };
    let Some(open) = ready.open else {
        return services.reply(slot, Reply::success());
    };
    let close = Close {
        half: open,
        ended: Some(Ended {
            commit: end.commit,
            slot,
        }),
    };
    let Some((_, queue)) = &ready.target else {
        return services.close(close);
    };
    // An earlier run may have stored the message, or this one without the op message about it, or
    // so long ago that the table has forgotten.
    if is_committed(services, &ready.half) {
        return services.close(close);
    }
    let properties = [ready.half.record.properties().as_bytes()];
    let parts = ready.half.committed(&properties);
    let then = Box::new(
        move |services: &mut ServiceContext, outcome: Result<Appended, AppendFailure>| match outcome
        {
            Ok(_) => services.close(close),
            Err(failure) => {
                services.broker.transactions.table().failed(close.half);
                services.reply(slot, failed(&failure));
            }
        },
    );
    if let Err(error) = services.append(queue, &parts, then) {
        broker.transactions.table().failed(open);
        let reply = match error {
            PushError::Full => Reply::overload(),
            PushError::Closed => unavailable(&AppendFailure::ShuttingDown),
            error => illegal(&error),
        };
        services.reply(slot, reply);
    }
}

/// 323: a half message that was given up is asked about again.
pub fn resume(_broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match ResumeCheckHalfMessage::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let id = asked.msg_id.unwrap_or_default();
    let Some((_, offset)) = message_id::parse(id) else {
        return not_resumed(&format!("msgId {id:?} is no offset message id")).into();
    };
    Answer::Work(Box::new(move |services, slot| {
        put_back(services, slot, offset)
    }))
}

fn not_resumed(why: &str) -> Reply {
    let remark = format!("Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed. ({why})");
    Reply::error(SYSTEM_ERROR, remark)
}

fn put_back(services: &mut ServiceContext, slot: ReplySlot, offset: u64) {
    let mut bytes = Vec::new();
    match services.reader.record(offset, &mut bytes) {
        Ok(true) => {}
        Ok(false) => return services.reply(slot, not_resumed("there is no message")),
        Err(error) => return services.reply(slot, not_resumed(&error.to_string())),
    }
    let record = Record::decode(&bytes).ok();
    let Some(half) = record.and_then(|record| Half::given_up(&record)) else {
        return services.reply(slot, not_resumed("the message was no half message"));
    };
    let broker = Arc::clone(&services.broker);
    if let Some(why) = closed_store(&broker.store.state()) {
        return services.reply(slot, not_resumed(&why));
    }
    let Some(queue) = broker.half_queue() else {
        return services.reply(slot, not_resumed("there is no half topic"));
    };
    let properties = with_property(half.record.properties(), properties::CHECK_TIMES, "0");
    let properties = [properties.as_slice()];
    let parts = half.moved(names::HALF_TOPIC, &properties);
    let pushed = services.append(
        &queue,
        &parts,
        Box::new(move |services, outcome| {
            let reply = match outcome {
                Ok(_) => {
                    let broker = &services.broker;
                    let log_end = broker.store.watermarks().appended();
                    broker.transactions.put_back(log_end);
                    Reply::success()
                }
                Err(failure) => not_resumed(&failure.to_string()),
            };
            services.reply(slot, reply);
        }),
    );
    match pushed {
        Ok(()) => {}
        Err(PushError::Full) => services.reply(slot, Reply::overload()),
        Err(error) => services.reply(slot, not_resumed(&error.to_string())),
    }
}
