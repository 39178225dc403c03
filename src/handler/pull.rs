//! Pulls: requests 11 and 361, and everything that waits for messages
//! (docs/behaviour.md, Reading a queue).
//!
//! Bodies are gathered straight into the connection's out buffer. A pull that finds nothing is
//! parked: first the core watches the queue, then it looks once more, so that no message slips in
//! between. What is acknowledged but not yet in its queue is waited for, so that a record is
//! visible once its SEND_OK is out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use saturnmq_net::command::ReplyTo;
use saturnmq_net::driver::{ConnectionId, Outbox, Room};
use saturnmq_storage::dispatch::WakeQueue;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::{PullOutcome, PullStatus, Pulled, StoreReader};

use crate::answer::{Channel, Reply, ReplySlot, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::{Core, write_reply};
use crate::groups::Group;
use crate::handler::pull_checks::{missing_topic_remark, pulled_none, still_passes};
use crate::handler::{
    PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SERVICE_NOT_AVAILABLE, TOPIC_NOT_EXIST,
};
use crate::parked::{Parked, ParkedLimits};
use crate::room::CROWDED;
use crate::topics::Topic;
use crate::traffic::GroupTraffic;

mod answers;
mod cold;
mod event;
mod filter;
mod limits;
mod moved;
mod over;

use answers::{code_of, found};
pub use answers::{encode_nothing, encode_status, found_cold};
use cold::count_found;
pub use cold::{Size, answer_cold};
pub use event::tell as tell_of_move;
pub use filter::Filter;
pub use limits::{in_memory, pull_limits};
pub use moved::ask_again;

/// Longest wait for the dispatcher to catch up with acknowledged records.
const DISPATCH_WAIT: Duration = Duration::from_secs(1);
/// Parked requests looked at again per pass; the rest follow in the next one.
const LOOKS_PER_PASS: usize = 8192;
/// How long a pass looks at them; the rest follow in the next one.
const LOOKS_TIME: Duration = Duration::from_millis(2);

/// The fields that 5.x pull responses have in addition.
#[derive(Copy, Clone, Debug)]
pub struct SysFlags {
    /// Of the topic.
    pub topic: i32,
    /// Of the group.
    pub group: i32,
}

/// A pull whose checks are done.
#[derive(Clone)]
pub struct Pull {
    /// The request it answers.
    pub to: ReplyTo,
    /// The topic.
    pub topic: Arc<Topic>,
    /// The queue.
    pub queue: Arc<Queue>,
    /// Queue offset asked for.
    pub offset: i64,
    /// Queue offset up to which everything was looked at and did not match.
    pub scanned: i64,
    /// Most messages wanted.
    pub max_count: i32,
    /// Which messages.
    pub filter: Filter,
    /// The group's counters.
    pub counted: Arc<GroupTraffic>,
    /// The group.
    pub group: Arc<Group>,
    /// [`Broker::rules`] when the pull was checked.
    pub rules: u32,
    /// Present for 5.x clients.
    pub sys_flags: Option<SysFlags>,
}

/// What waits on a core.
enum Waiting {
    /// A pull, for a message or its deadline.
    Message(Pull),
    /// A pull, for the dispatcher to reach a log offset; then it may wait for a message until that
    /// time.
    Dispatch(Pull, Option<Instant>),
    /// A question for the end of a queue, for the dispatcher to reach a log offset.
    QueueEnd(ReplyTo, Arc<Queue>),
}

impl Waiting {
    fn own_bytes(&self) -> usize {
        match self {
            Self::Message(pull) | Self::Dispatch(pull, _) => pull.filter.own_bytes(),
            Self::QueueEnd(..) => 0,
        }
    }
}

/// What one core needs for pulls.
pub struct Pulls {
    reader: StoreReader,
    parked: Parked<ConnectionId, Waiting>,
    wakes: WakeQueue,
    /// Requests that wait for the dispatcher: log offset and parked index, in order.
    behind: VecDeque<(u64, u32, ConnectionId)>,
    core: usize,
    /// Waiting requests to look at, and how many of them were.
    looked: Vec<u32>,
    looked_at: usize,
    expired: Vec<u32>,
}

impl Pulls {
    /// This core's reader of the store.
    pub(crate) fn reader(&mut self) -> &mut StoreReader {
        &mut self.reader
    }

    /// The pull side of core `core`.
    pub fn new(reader: StoreReader, wakes: WakeQueue, core: usize, now: Instant) -> Self {
        let parked = Parked::new(ParkedLimits::default(), now);
        Self {
            reader,
            parked,
            wakes,
            behind: VecDeque::new(),
            core,
            looked: Vec::new(),
            looked_at: 0,
            expired: Vec::new(),
        }
    }

    /// Forgets what a closed connection waits for.
    pub fn closed(&mut self, conn: ConnectionId) {
        self.parked.closed(conn);
    }

    /// When something must be answered at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.parked.next_deadline()
    }

    /// Whether a queue grew that something waits for, or the dispatcher got far enough.
    pub fn has_work(&self, broker: &Broker) -> bool {
        self.looked_at < self.looked.len() || !self.wakes.is_empty() || self.is_dispatched(broker)
    }

    /// Number of parked requests.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    fn is_dispatched(&self, broker: &Broker) -> bool {
        let dispatched = broker.store.watermarks().dispatched();
        self.behind
            .front()
            .is_some_and(|(target, _, _)| *target <= dispatched)
    }

    /// Parks `waiting` until the dispatcher reaches `target` or the wait is over. Given back when
    /// too much is parked.
    #[allow(clippy::result_large_err)] // what is given back is no error
    fn wait_dispatched(
        &mut self,
        conn: ConnectionId,
        queue: &Queue,
        target: u64,
        waiting: Waiting,
    ) -> Result<(), Waiting> {
        let deadline = Instant::now() + DISPATCH_WAIT;
        let bytes = waiting.own_bytes();
        let index = self
            .parked
            .park(conn, queue.slot, deadline, bytes, waiting)?;
        self.behind.push_back((target, index, conn));
        if let Some((first, _, _)) = self.behind.front() {
            self.wakes.wait_dispatched(*first);
        }
        Ok(())
    }
}

/// Whether a queue may have acknowledged records that are not readable yet; the log offset up to
/// which the dispatcher must come then.
fn behind(broker: &Broker, queue: &Queue) -> Option<u64> {
    if queue.next_offset() <= queue.max_offset() {
        return None;
    }
    let marks = broker.store.watermarks();
    let acknowledged = marks.acknowledged();
    (marks.dispatched() < acknowledged).then_some(acknowledged)
}

/// Reads for the first time; `suspend` is how long the client lets it wait for a message.
pub fn start(
    core: &mut Core,
    conn: ConnectionId,
    pull: Pull,
    suspend: Option<Duration>,
    io: &mut Outbox,
) {
    let mut pull = pull;
    loop {
        let pulled = match read(core, conn, &mut pull, io) {
            Read::Answered => return,
            Read::Nothing(pulled) => pulled,
        };
        let waits = code_of(pulled.status, pull.offset) == PULL_NOT_FOUND;
        if let Some(wait) = suspend
            && waits
        {
            pull.queue.watch(core.pulls.core);
            if pull.queue.max_offset() > pull.scanned {
                continue;
            }
            if pull.queue.is_removed() {
                return again(&pull, conn, io);
            }
            return park(core, conn, pull, pulled, wait, io);
        }
        if is_at_end(pulled.status) {
            if let Some(target) = behind(&core.broker, &pull.queue) {
                let queue = Arc::clone(&pull.queue);
                let until = suspend.map(|wait| Instant::now() + wait);
                let waiting = Waiting::Dispatch(pull, until);
                match core.pulls.wait_dispatched(conn, &queue, target, waiting) {
                    Err(Waiting::Dispatch(refused, _)) => pull = refused,
                    _ => return,
                }
            } else if pull.queue.max_offset() > pulled.max {
                continue;
            }
        }
        return nowhere(core, &pull, &pulled, conn, io);
    }
}

/// Whether the offset asked for lies at or beyond the end. It may be one that was acknowledged and
/// is not in the queue yet: telling the client to step back would hide a message from it.
fn is_at_end(status: PullStatus) -> bool {
    matches!(
        status,
        PullStatus::NoMessageInQueue
            | PullStatus::OffsetOverflowOne
            | PullStatus::OffsetOverflowBadly
    )
}

fn park(
    core: &mut Core,
    conn: ConnectionId,
    pull: Pull,
    pulled: Pulled,
    wait: Duration,
    io: &mut Outbox,
) {
    let slot = pull.queue.slot;
    let deadline = Instant::now() + wait;
    let bytes = pull.filter.own_bytes();
    let waiting = Waiting::Message(pull);
    let refused = core.pulls.parked.park(conn, slot, deadline, bytes, waiting);
    if let Err(Waiting::Message(pull)) = refused {
        tracing::debug!(?conn, "too many parked pulls: one is answered at once");
        nothing(&pull, &pulled, conn, io);
    }
}

/// What reading came to.
enum Read {
    /// A response is written, or is on its way from the services thread.
    Answered,
    /// No message; what the store says instead.
    Nothing(Pulled),
}

/// Reads from where the pull has come to; writes the response if there are messages.
fn read(core: &mut Core, conn: ConnectionId, pull: &mut Pull, io: &mut Outbox) -> Read {
    if is_refused(pull, conn, io) {
        return Read::Answered;
    }
    let limits = pull_limits(&core.broker.live.load());
    let Some(out) = io.buffer(conn) else {
        return Read::Answered;
    };
    match found(out, pull, &mut core.pulls.reader, &limits) {
        Ok(PullOutcome::Ready(pulled)) if pulled.status == PullStatus::Found => {
            io.wrote(pulled.bytes);
            count_found(core, pull, Size::of(&pulled));
            Read::Answered
        }
        Ok(PullOutcome::Ready(pulled)) => {
            core.broker.stats.thread(core.index).missed();
            if pulled.status == PullStatus::NoMatchedMessage {
                pull.scanned = pulled.next_begin;
            }
            Read::Nothing(settle(pull, pulled))
        }
        Ok(PullOutcome::Cold) => {
            let slot = ReplySlot {
                channel: Channel {
                    core: core.index,
                    conn,
                },
                to: pull.to,
            };
            core.submit_cold(slot, Box::new(pull.clone()), io);
            Read::Answered
        }
        Err(error) => {
            let reply = Reply::error(SYSTEM_ERROR, error.to_string());
            write_reply(io, conn, pull.to, &reply);
            Read::Answered
        }
    }
}

/// What a pull that looked at entries before comes to when there is nothing more now.
fn settle(pull: &Pull, pulled: Pulled) -> Pulled {
    let went_on = pull.scanned > pull.offset;
    if went_on && pulled.status == PullStatus::OffsetOverflowOne {
        return Pulled {
            status: PullStatus::NoMatchedMessage,
            next_begin: pull.scanned,
            ..pulled
        };
    }
    pulled
}

/// As [`nothing`], and the event that goes with an offset that leads nowhere.
fn nowhere(core: &Core, pull: &Pull, pulled: &Pulled, conn: ConnectionId, io: &mut Outbox) {
    nothing(pull, pulled, conn, io);
    event::submit(core, conn, pull, pulled);
}

/// Answers that there is no message now.
fn nothing(pull: &Pull, pulled: &Pulled, conn: ConnectionId, io: &mut Outbox) {
    if let Some(out) = io.buffer(conn) {
        encode_nothing(out, pull, pulled);
    }
}

/// Answers the end of a queue, once everything acknowledged is in it.
pub fn queue_end(
    core: &mut Core,
    conn: ConnectionId,
    to: ReplyTo,
    queue: Arc<Queue>,
    io: &mut Outbox,
) {
    match behind(&core.broker, &queue) {
        Some(target) => {
            let waiting = Waiting::QueueEnd(to, Arc::clone(&queue));
            if core
                .pulls
                .wait_dispatched(conn, &queue, target, waiting)
                .is_err()
            {
                write_reply(io, conn, to, &Reply::overload());
            }
        }
        None => answer_end(conn, to, &queue, io),
    }
}

fn answer_end(conn: ConnectionId, to: ReplyTo, queue: &Queue, io: &mut Outbox) {
    let reply = Reply::success().field("offset", queue.max_offset());
    write_reply(io, conn, to, &reply);
}

/// Looks again at what waits for queues that grew, for the dispatcher, and for deadlines.
pub fn wake(core: &mut Core, now: Instant, io: &mut Outbox) {
    let mut looked = std::mem::take(&mut core.pulls.looked);
    if core.pulls.looked_at == looked.len() {
        looked.clear();
        core.pulls.looked_at = 0;
        if core.pulls.wakes.take_overflow() {
            core.pulls.parked.all(&mut looked);
        }
        while looked.len() < LOOKS_PER_PASS
            && let Some(slot) = core.pulls.wakes.pop()
        {
            core.pulls.parked.waiting_for(slot, &mut looked);
        }
    }
    let began = Instant::now();
    // What an index stands for may be another request by the next pass: one that is looked at for
    // nothing.
    while let Some(index) = looked.get(core.pulls.looked_at) {
        core.pulls.looked_at += 1;
        look(core, *index, io);
        if began.elapsed() >= LOOKS_TIME {
            break;
        }
    }
    core.pulls.looked = looked;
    caught_up(core, io);
    over::expire_all(core, now, io);
}

/// A queue grew: a waiting pull is answered if a message matches, else it goes on waiting.
fn look(core: &mut Core, index: u32, io: &mut Outbox) {
    let Some((conn, waiting)) = core.pulls.parked.get(index) else {
        return;
    };
    let mut pull = match waiting {
        Waiting::Message(pull) => pull.clone(),
        // The dispatcher's mark decides about these.
        Waiting::Dispatch(..) | Waiting::QueueEnd(..) => return,
    };
    if core.broker.topics.get(&pull.topic.config.name).is_none() {
        core.pulls.parked.take(index);
        return gone(&pull, conn, io);
    }
    if is_outdated(core, &mut pull) {
        core.pulls.parked.take(index);
        return again(&pull, conn, io);
    }
    loop {
        match read(core, conn, &mut pull, io) {
            Read::Answered => {
                core.pulls.parked.take(index);
                return;
            }
            Read::Nothing(pulled) => {
                let code = code_of(pulled.status, pull.offset);
                if !matches!(code, PULL_NOT_FOUND | PULL_RETRY_IMMEDIATELY) {
                    core.pulls.parked.take(index);
                    return nowhere(core, &pull, &pulled, conn, io);
                }
                if code == PULL_RETRY_IMMEDIATELY && pulled.next_begin < pulled.max {
                    // It took its share, and there is more to look at.
                    core.pulls.parked.take(index);
                    return nothing(&pull, &pulled, conn, io);
                }
                pull.queue.watch(core.pulls.core);
                if pull.queue.is_removed() {
                    core.pulls.parked.take(index);
                    return again(&pull, conn, io);
                }
                if pull.queue.max_offset() <= pull.scanned {
                    break;
                }
            }
        }
    }
    if let Some(Waiting::Message(waiting)) = core.pulls.parked.get_mut(index) {
        waiting.scanned = pull.scanned;
        waiting.rules = pull.rules;
    }
}

/// Whether an administrator changed something that concerns the pull after it was checked: it may
/// not be allowed any more, so the client is to ask again. What others changed for themselves, as
/// happens all the time, must not end its wait.
fn is_outdated(core: &Core, pull: &mut Pull) -> bool {
    let rules = core.broker.rules.load(Ordering::Acquire);
    if rules != pull.rules && still_passes(&core.broker, pull) {
        pull.rules = rules;
    }
    rules != pull.rules
}

fn gone(pull: &Pull, conn: ConnectionId, io: &mut Outbox) {
    let remark = missing_topic_remark(&pull.topic.config.name, pull.to.version);
    write_reply(io, conn, pull.to, &Reply::error(TOPIC_NOT_EXIST, remark));
}

/// Whether there is no room for messages at the moment; the pull is answered then.
pub(crate) fn is_refused(pull: &Pull, conn: ConnectionId, io: &mut Outbox) -> bool {
    match io.room(conn, CROWDED) {
        Room::Enough => return false,
        Room::Crowded => again(pull, conn, io),
        Room::None => write_reply(io, conn, pull.to, &Reply::overload()),
    }
    true
}

/// Has the client ask again from where the pull has come to.
fn again(pull: &Pull, conn: ConnectionId, io: &mut Outbox) {
    if let Some(out) = io.buffer(conn) {
        encode_again(out, pull);
    }
}

/// The answer that has the client ask again from where the pull has come to.
pub fn encode_again(out: &mut Vec<u8>, pull: &Pull) {
    let none = pulled_none(pull, PullStatus::NoMatchedMessage, pull.scanned);
    encode_nothing(out, pull, &none);
}

/// Answers what waited for the dispatcher.
fn caught_up(core: &mut Core, io: &mut Outbox) {
    let began = Instant::now();
    let dispatched = core.broker.store.watermarks().dispatched();
    while let Some(&(target, index, conn)) = core.pulls.behind.front() {
        // The index may belong to something else by now: then another connection or no such wait.
        // Waits that are over go even if the dispatcher never comes that far.
        let waits = matches!(
            core.pulls.parked.get(index),
            Some((owner, Waiting::Dispatch(..) | Waiting::QueueEnd(..))) if owner == conn
        );
        if waits && target > dispatched {
            break;
        }
        if waits && began.elapsed() >= LOOKS_TIME {
            break;
        }
        core.pulls.behind.pop_front();
        if waits {
            resume(core, index, io);
        }
    }
    if let Some((target, _, _)) = core.pulls.behind.front() {
        core.pulls.wakes.wait_dispatched(*target);
    }
}

/// The dispatcher came as far as this waits for: a pull begins anew, and may wait for a message for
/// the rest of its time.
fn resume(core: &mut Core, index: u32, io: &mut Outbox) {
    let rest = match core.pulls.parked.get(index) {
        Some((_, Waiting::Dispatch(_, Some(until)))) => {
            until.saturating_duration_since(Instant::now())
        }
        _ => Duration::ZERO,
    };
    if rest.is_zero() {
        return over::expire(core, index, io);
    }
    if let Some((conn, Waiting::Dispatch(pull, _))) = core.pulls.parked.take_owned(index) {
        if core.broker.topics.get(&pull.topic.config.name).is_none() {
            return gone(&pull, conn, io);
        }
        start(core, conn, pull, Some(rest), io);
    }
}

/// Ends all waits, because the broker stops. A client whose pull is never answered asks no more
/// until its time-out, half a minute later; one that is told of messages, or of none, asks again at
/// once, on the connection that ends. After an error it waits for some seconds.
pub fn leave(core: &mut Core, io: &mut Outbox) {
    let mut waiting = Vec::new();
    core.pulls.parked.all(&mut waiting);
    for index in waiting {
        match core.pulls.parked.get(index) {
            Some((conn, Waiting::Message(pull) | Waiting::Dispatch(pull, _))) => {
                write_reply(io, conn, pull.to, &stopping());
                core.pulls.parked.take(index);
            }
            _ => over::expire(core, index, io),
        }
    }
}

/// The answer to a pull while the broker stops.
pub(crate) fn stopping() -> Reply {
    Reply::error(SERVICE_NOT_AVAILABLE, "the broker is stopping")
}
