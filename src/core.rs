//! One network core: decodes the requests of its connections, has them handled, and writes every
//! response. Nothing here is shared with another core; what other threads have for a connection
//! arrives in the core's inbox.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::Receiver;
use saturnmq_net::command::{ReplyTo, Scratch, decode};
use saturnmq_net::driver::{ConnectionId, CoreHandle, Outbox, Protocol, Verdict};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{Frame, MAX_FRAME, Parsed, parse};
use saturnmq_storage::append_queue::AppendPort;
use saturnmq_storage::dispatch::WakeQueue;
use saturnmq_storage::reader::StoreReader;
use saturnmq_storage::store::LentWriter;

use crate::answer::{Answer, Ask, Channel, CoreMessage, Reply, ReplySlot, Request};
use crate::broker::Broker;
use crate::cold::Cold;
use crate::handler;
use crate::handler::pull::{Pull, Pulls};
use crate::handler::send::Sends;
use crate::handler::transaction::Ends;
use crate::held::{Held, HeldBytes};
use crate::persist::Ticket;
use crate::questions::{Questions, Then};
use crate::room;
use crate::services::{Job, Work};

/// Most requests of one core that are answered by another thread at a time.
const MAX_ELSEWHERE: usize = 16_384;
/// Most inbox messages handled in one pass.
const INBOX_PER_PASS: usize = 4096;
/// How long a pass handles them; the rest follow in the next one.
const INBOX_TIME: Duration = Duration::from_millis(2);

/// What a core remembers of a connection.
#[derive(Copy, Clone, Debug)]
struct Connection {
    peer: SocketAddr,
    local_port: u16,
}

/// What a core is made of besides the broker.
pub struct CoreParts {
    /// Index of the core.
    pub index: usize,
    /// This core's reader of the store.
    pub reader: StoreReader,
    /// This core's way to the log.
    pub port: AppendPort,
    /// Queues that grew while this core watched them.
    pub wakes: WakeQueue,
    /// Messages from other threads.
    pub inbox: Receiver<CoreMessage>,
    /// The store's writer, where this core takes its turns.
    pub writer: Option<LentWriter>,
}

/// The protocol of one network thread.
pub struct Core {
    pub(crate) broker: Arc<Broker>,
    pub(crate) index: usize,
    pub(crate) sends: Sends,
    pub(crate) pulls: Pulls,
    pub(crate) ends: Ends,
    inbox: Receiver<CoreMessage>,
    writer: Option<LentWriter>,
    connections: HashMap<ConnectionId, Connection>,
    scratch: Scratch,
    /// Requests answered by another thread at the moment.
    elsewhere: usize,
    /// Pulls of old messages, which the services thread answers.
    cold: Cold<ConnectionId, (ReplySlot, Box<Pull>)>,
    /// Questions to clients of this core.
    asked: Questions,
    /// The broker stops: no pull is answered with messages any more.
    pub(crate) leaving: bool,
    /// Frames to handle again that found the append queue full.
    stalled: VecDeque<(ConnectionId, Box<[u8]>, Held)>,
    /// Bytes of requests that are kept for other threads.
    held: HeldBytes,
    /// The frame at hand was held: it is not refused for want of room, or those held would wait for
    /// one another.
    reruns: bool,
}

impl Core {
    /// A core for `broker`; `handle` is how other threads wake it.
    pub fn new(broker: Arc<Broker>, handle: CoreHandle, parts: CoreParts) -> Self {
        let CoreParts {
            index,
            reader,
            port,
            wakes,
            inbox,
            writer,
        } = parts;
        IS_CORE.set(true);
        broker.cores.attach(index, handle);
        let held = broker.cores.held(index);
        let sends = Sends::new(&broker, port, index);
        let pulls = Pulls::new(reader, wakes, index, Instant::now());
        Self {
            broker,
            index,
            sends,
            pulls,
            ends: Ends::default(),
            inbox,
            writer,
            connections: HashMap::new(),
            scratch: Scratch::default(),
            elsewhere: 0,
            cold: Cold::default(),
            asked: Questions::default(),
            leaving: false,
            stalled: VecDeque::new(),
            held,
            reruns: false,
        }
    }

    fn handle(
        &mut self,
        conn: ConnectionId,
        frame: Frame<'_>,
        scratch: &mut Scratch,
        io: &mut Outbox,
    ) -> Verdict {
        let command = match decode(frame, scratch) {
            Ok(command) => command,
            Err(error) => {
                io.blame(error.to_string());
                return Verdict::Close;
            }
        };
        let Some(connection) = self.connections.get(&conn).copied() else {
            return Verdict::Close;
        };
        if command.is_response() {
            self.asked.answered(&self.broker.cores, conn, &command);
            return Verdict::Done;
        }
        let request = Request {
            core: self.index,
            conn,
            peer: connection.peer,
            local_port: connection.local_port,
            command: &command,
            frame,
        };
        let answer = handler::dispatch(self, &request, io);
        self.act(&request, answer, io)
    }

    /// Does what a handler decided.
    fn act(&mut self, request: &Request<'_>, answer: Answer, io: &mut Outbox) -> Verdict {
        let to = request.command.reply_to();
        match answer {
            Answer::Reply(reply) => write_reply(io, request.conn, to, &reply),
            Answer::Sent | Answer::Nothing => {}
            Answer::Stall => return Verdict::Retry,
            // The bytes stay where they are, in the end with the client.
            Answer::Rerun(_) if !self.may_hold(request) => return Verdict::Retry,
            Answer::Later(_) | Answer::Work(_) | Answer::Turns(_) if !self.may_hold(request) => {
                write_reply(io, request.conn, to, &Reply::overload());
            }
            answer if self.elsewhere >= MAX_ELSEWHERE => {
                drop(answer);
                write_reply(io, request.conn, to, &Reply::overload());
            }
            answer => self.elsewhere(request, answer, io),
        }
        Verdict::Done
    }

    /// Whether the request may be kept while another thread works for it.
    fn may_hold(&self, request: &Request<'_>) -> bool {
        self.reruns || self.held.has_room(request.frame.bytes())
    }

    /// Hands a request to another thread; it comes back as one inbox message.
    fn elsewhere(&mut self, request: &Request<'_>, answer: Answer, io: &mut Outbox) {
        let (conn, to) = (request.conn, request.command.reply_to());
        let slot = ReplySlot {
            channel: request.channel(),
            to,
        };
        self.elsewhere += 1;
        io.request_started(conn);
        let work = match answer {
            Answer::After(tickets, reply) => {
                return handler::durably::reply(Arc::clone(&self.broker), slot, tickets, reply);
            }
            Answer::Rerun(ticket) => {
                let frame = whole_frame(&request.frame);
                let held = self.held.hold(frame.len());
                let rerun = CoreMessage::Rerun { conn, frame, held };
                return self.when_durable(ticket, slot, rerun);
            }
            Answer::Later(job) => Work::Later(job),
            Answer::Work(job) => Work::Open(job),
            Answer::Turns(job) => Work::Turns(job),
            Answer::Ask(ask) => return self.ask_elsewhere(ask, slot, io),
            Answer::Reply(_) | Answer::Sent | Answer::Nothing | Answer::Stall => return,
        };
        // The name server's tables are no part of the store.
        let readable_from = match self.broker.ports.name_server == Some(request.local_port) {
            true => 0,
            false => self.broker.store.watermarks().acknowledged(),
        };
        if self
            .broker
            .services
            .submit(Job {
                slot,
                readable_from,
                needs_newest: handler::needs_newest(request.command.code),
                held: Some(self.held.hold(request.frame.bytes())),
                work,
            })
            .is_err()
        {
            self.settled(conn, io);
            write_reply(io, conn, to, &Reply::overload());
        }
    }

    /// Passes a question on to the core of the client that is asked.
    fn ask_elsewhere(&mut self, ask: Box<Ask>, slot: ReplySlot, io: &mut Outbox) {
        let core = ask.channel.core;
        if let Err(CoreMessage::Ask { ask, .. }) =
            self.broker.cores.post(core, CoreMessage::Ask { ask, slot })
        {
            self.settled(slot.channel.conn, io);
            write_reply(io, slot.channel.conn, slot.to, &ask.late);
        }
    }

    /// Hands a pull to the services thread, which writes the whole response frame itself; now, or
    /// when the connection has fewer of them there.
    pub(crate) fn submit_cold(&mut self, slot: ReplySlot, pull: Box<Pull>, io: &mut Outbox) {
        let conn = slot.channel.conn;
        if handler::pull::is_refused(&pull, conn, io) {
            return;
        }
        match self.cold.admit(conn, (slot, pull)) {
            Some((slot, pull)) => self.run_cold(slot, pull, io),
            None => io.request_started(conn),
        }
    }

    fn run_cold(&mut self, slot: ReplySlot, pull: Box<Pull>, io: &mut Outbox) {
        let conn = slot.channel.conn;
        let job = Job::of_any_time(slot, Work::Pull(pull));
        if self.elsewhere >= MAX_ELSEWHERE || self.broker.services.submit(job).is_err() {
            self.cold.finished(conn);
            return write_reply(io, conn, slot.to, &Reply::overload());
        }
        self.elsewhere += 1;
        io.request_started(conn);
    }

    /// A cold pull is answered: those that waited for it go on.
    fn cold_finished(&mut self, conn: ConnectionId, io: &mut Outbox) {
        self.cold.finished(conn);
        while let Some((slot, pull)) = self.cold.next(conn) {
            io.request_finished(conn);
            if handler::pull::is_refused(&pull, conn, io) {
                self.cold.finished(conn);
            } else {
                self.run_cold(slot, pull, io);
            }
        }
    }

    fn when_durable(&self, ticket: Ticket, slot: ReplySlot, message: CoreMessage) {
        let broker = Arc::clone(&self.broker);
        self.broker.persist.when_durable(ticket, move |written| {
            let Channel { core, conn } = slot.channel;
            let message = match written {
                Ok(()) => message,
                Err(error) => {
                    let reply = Reply::error(crate::answer::SYSTEM_ERROR, error.to_string());
                    CoreMessage::Reply {
                        conn,
                        to: slot.to,
                        reply,
                    }
                }
            };
            // Given back only when the core has ended: nobody is left to answer.
            let _ = broker.cores.post(core, message);
        });
    }

    /// Counts one request answered by another thread as done.
    fn settled(&mut self, conn: ConnectionId, io: &mut Outbox) {
        self.elsewhere = self.elsewhere.saturating_sub(1);
        io.request_finished(conn);
    }

    fn message(&mut self, message: CoreMessage, io: &mut Outbox) {
        self.broker.cores.took(self.index, message.bytes());
        match message {
            CoreMessage::Reply { conn, to, reply } => {
                self.settled(conn, io);
                room::write_late(io, conn, to, &reply);
                if io.peer(conn).is_none() {
                    // What another thread registered after its connection had closed.
                    let core = self.index;
                    handler::client::closed(&self.broker, Channel { core, conn });
                }
            }
            CoreMessage::Rerun { conn, frame, held } => {
                self.settled(conn, io);
                self.rerun(conn, frame, held, io);
            }
            CoreMessage::Pulled {
                conn,
                frame,
                found,
                pull,
            } => {
                self.settled(conn, io);
                handler::pull::answer_cold(self, conn, &pull, found, &frame, io);
                self.cold_finished(conn, io);
            }
            CoreMessage::Push { conn, frame } => {
                if !room::push(io, conn, &frame) {
                    tracing::debug!(?conn, "not told of something: the client does not read");
                }
            }
            CoreMessage::Ask { ask, slot } => {
                self.asked
                    .put(&self.broker.cores, *ask, slot, Then::Relay, io);
            }
            CoreMessage::Confirm { ask, slot, confirm } => {
                let then = Then::Confirm(*confirm);
                self.asked.put(&self.broker.cores, *ask, slot, then, io);
            }
            CoreMessage::Gather { ask, slot, part } => {
                let then = Then::Gather(part);
                self.asked.put(&self.broker.cores, *ask, slot, then, io);
            }
            CoreMessage::Moved { queue } => handler::pull::ask_again(self, queue, io),
            CoreMessage::Close { conn } => io.close(conn),
        }
    }

    fn rerun(&mut self, conn: ConnectionId, bytes: Box<[u8]>, held: Held, io: &mut Outbox) {
        if !self.connections.contains_key(&conn) {
            return;
        }
        let Ok(Parsed::Complete { frame, .. }) = parse(&bytes, MAX_FRAME) else {
            return;
        };
        self.reruns = true;
        let verdict = self.frame(conn, frame, io);
        self.reruns = false;
        match verdict {
            Verdict::Done => {}
            Verdict::Retry => {
                // Its answer is owed, also on a connection that the client has half closed.
                io.request_started(conn);
                self.stalled.push_back((conn, bytes, held));
            }
            Verdict::Close => io.close(conn),
        }
    }

    fn retry_stalled(&mut self, io: &mut Outbox) {
        for _ in 0..self.stalled.len() {
            let before = self.stalled.len();
            let Some((conn, bytes, held)) = self.stalled.pop_front() else {
                return;
            };
            io.request_finished(conn);
            self.rerun(conn, bytes, held, io);
            if self.stalled.len() == before {
                // Refused again: it stays the first, so that frames keep their order.
                self.stalled.rotate_right(1);
                return;
            }
        }
    }
}

impl Protocol for Core {
    fn opened(&mut self, conn: ConnectionId, peer: SocketAddr, local_port: u16) {
        self.connections
            .insert(conn, Connection { peer, local_port });
    }

    fn closed(&mut self, conn: ConnectionId) {
        self.connections.remove(&conn);
        self.pulls.closed(conn);
        self.cold.closed(conn);
        self.asked.closed(&self.broker.cores, conn);
        handler::client::closed(
            &self.broker,
            Channel {
                core: self.index,
                conn,
            },
        );
    }

    fn ahead(&mut self, bytes: &[u8]) {
        self.sends.fetch_for(bytes);
    }

    fn frame(&mut self, conn: ConnectionId, frame: Frame<'_>, io: &mut Outbox) -> Verdict {
        let mut scratch = std::mem::take(&mut self.scratch);
        let verdict = self.handle(conn, frame, &mut scratch, io);
        self.scratch = scratch;
        verdict
    }

    fn pass(&mut self, now: Instant, io: &mut Outbox) {
        if let Some(writer) = &mut self.writer {
            writer.turn();
        }
        handler::send::results(self, io);
        let began = Instant::now();
        for _ in 0..INBOX_PER_PASS {
            let Ok(message) = self.inbox.try_recv() else {
                break;
            };
            self.message(message, io);
            if began.elapsed() >= INBOX_TIME {
                break;
            }
        }
        if !self.stalled.is_empty() {
            self.retry_stalled(io);
        }
        handler::pull::wake(self, now, io);
        self.asked.expire(&self.broker.cores, now);
        self.broker.cores.set_full(self.index, io.is_full());
    }

    fn next_deadline(&self) -> Option<Instant> {
        let turn = self.writer.as_ref().and_then(LentWriter::next_turn);
        let deadlines = [self.pulls.next_deadline(), self.asked.next_deadline(), turn];
        deadlines.into_iter().flatten().min()
    }

    fn has_work(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(LentWriter::is_due)
            || self.sends.has_results()
            || !self.inbox.is_empty()
            || self.pulls.has_work(&self.broker)
    }

    fn end_of_pass(&mut self) {
        let counters = self.broker.stats.thread(self.index);
        counters.set_waiting(self.pulls.parked(), self.sends.in_flight());
        self.sends.submit();
        if let Some(writer) = &mut self.writer {
            writer.turn_for_entries();
        }
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.writer.as_ref().and_then(LentWriter::descriptor)
    }

    fn idle(&self) -> bool {
        self.sends.is_idle()
            && self.ends.is_idle()
            && self.elsewhere == 0
            && self.stalled.is_empty()
    }

    fn leaving(&mut self, io: &mut Outbox) {
        self.leaving = true;
        handler::pull::leave(self, io);
    }
}

/// Wall-clock time in milliseconds.
pub fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

thread_local! {
    /// Whether this is a network core's thread.
    static IS_CORE: Cell<bool> = const { Cell::new(false) };
}

/// Says that what comes takes the longer the more topics, groups or clients there are: it is not
/// for a network core, whose connections all wait meanwhile. Debug builds stop on one.
pub fn off_the_cores() {
    debug_assert!(!IS_CORE.get(), "a network core walks over a whole table");
}

/// Milliseconds since the broker began that no setting of the clock changes: for lives that are
/// renewed (sessions, queue locks, leases of brokers). Never 0; nothing to another process.
pub fn steady_ms() -> i64 {
    static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    i64::try_from(1 + BEGAN.elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// Writes a response off the hot path; nothing for one-way requests and gone connections.
pub(crate) fn write_reply(io: &mut Outbox, conn: ConnectionId, to: ReplyTo, reply: &Reply) {
    if to.oneway {
        return;
    }
    if let Some(out) = io.buffer(conn) {
        encode_reply(out, to, reply);
        io.wrote(reply.body.len());
    }
}

/// Appends a response frame to `out`.
pub(crate) fn encode_reply(out: &mut Vec<u8>, to: ReplyTo, reply: &Reply) {
    let mut encoder = Encoder::response(out, to, reply.code, reply.remark.as_deref());
    for (name, value) in &reply.fields {
        encoder.field_str(name, value);
    }
    encoder.body(&reply.body);
}

/// The frame as it was received, length word included.
fn whole_frame(frame: &Frame<'_>) -> Box<[u8]> {
    let length = 4 + frame.header.len() + frame.body.len();
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    let codec = u32::from(frame.codec.byte()) << 24 | frame.header.len() as u32;
    bytes.extend_from_slice(&codec.to_be_bytes());
    bytes.extend_from_slice(frame.header);
    bytes.extend_from_slice(frame.body);
    bytes.into_boxed_slice()
}
