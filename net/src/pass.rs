//! The loop of a network core, the same over every transport.
//!
//! One pass: wait, offer what was received, `Protocol::pass`, offer again what was not taken,
//! `Protocol::end_of_pass`, then settle each touched connection: send, hold or read on, close.
//! Always true: bytes of a connection are offered in order, and none is dropped while it is open.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::connection::{Connection, ConnectionId, Holds, Outbox, Reading, Stage, Unread};
use crate::driver::{CoreSettings, Newcomer, Protocol, Shared, Verdict, count};
use crate::frame::{self, Frame, Parsed};
use crate::limits::Limits;

/// Adoptions of one pass: a burst of connections must not starve those that work.
const ADOPTIONS_PER_PASS: usize = 256;
/// After so many refused frames in a row the rest of the queue waits for the next pass.
const RETRIES_PER_PASS: usize = 8;
/// A refused frame is offered again after this long even if nothing wakes the core.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// How long the end of a stop waits for the peers to hang up, before connections are cut.
const LINGER: Duration = Duration::from_millis(300);
/// How long the end of a stop waits for cut connections' last completions.
const CUT: Duration = Duration::from_secs(2);
/// A connection quiet for this long gives its buffers back.
const BUFFERS_KEPT_MS: u64 = 10_000;
/// First byte of a TLS handshake; a frame's first byte is 0.
const TLS_HANDSHAKE: u8 = 0x16;
/// Log lines about faulty peers, per second.
const FAULTS_LOGGED: u32 = 5;

/// How long a transport may wait for events.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Wait {
    /// Not at all: take what is there.
    No,
    /// Until the first event, or that time.
    Until(Option<Instant>),
}

/// What became of a send that was started.
pub(crate) enum Sending {
    /// All of it is with the kernel.
    Done,
    /// The end is reported by [`Core::sent`].
    Pending,
}

/// Moves bytes for a core. Events are reported to the core from `turn` only.
pub(crate) trait Transport {
    /// Prepares a new connection; nothing is read yet.
    fn open(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<()>;
    /// Starts reading; `connection.reading` is `Idle`.
    fn read(&mut self, id: ConnectionId, connection: &mut Connection);
    /// Stops reading; bytes may still be reported until `connection.reading` is `Idle`.
    fn pause(&mut self, id: ConnectionId, connection: &mut Connection);
    /// Starts sending `connection.out`; `connection.sending` is 0.
    fn send(&mut self, id: ConnectionId, connection: &mut Connection) -> io::Result<Sending>;
    /// Ends all traffic; the slot is free once `reading` is `Idle` and `sending` is 0.
    fn shut(&mut self, id: ConnectionId, connection: &mut Connection);
    /// Waits, then reports what happened.
    fn turn<P: Protocol>(&mut self, core: &mut Core<P>, wait: Wait) -> io::Result<()>;
}

/// Limits log lines about what peers do wrong.
struct FaultLog {
    second: u64,
    written: u32,
    suppressed: u64,
}

impl FaultLog {
    /// Whether a line may be written now, and how many were not since the last one.
    fn permit(&mut self, now_ms: u64) -> Option<u64> {
        let second = now_ms / 1000;
        if second != self.second {
            self.second = second;
            self.written = 0;
        }
        if self.written >= FAULTS_LOGGED {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

enum Stop {
    No,
    /// Answers in flight are waited for, until then.
    Draining(Instant),
    /// Everything is sent; peers may hang up, until then.
    Lingering(Instant),
    /// Connections are cut; their completions are waited for, until then.
    Cutting(Instant),
    Done,
}

enum Given {
    Taken,
    Held,
    Closed,
}

pub(crate) struct Core<P> {
    protocol: P,
    io: Outbox,
    pub(crate) shared: Arc<Shared>,
    limits: Limits,
    spin: Duration,
    started: Instant,
    now: Instant,
    now_ms: u64,
    busy_until: Instant,
    /// Connections whose unread bytes are to be offered again.
    resume: VecDeque<ConnectionId>,
    /// Connections not read for lack of reassembly memory.
    starved: VecDeque<ConnectionId>,
    /// The one connection that may go over the reassembly memory, so that its frame completes.
    favoured: Option<ConnectionId>,
    /// Reassembly memory in use, in bytes.
    reassembly: usize,
    /// Do not sleep: something can go on at once.
    hurry: bool,
    next_sweep: Instant,
    sweep_at: usize,
    stop: Stop,
    faults: FaultLog,
}

impl<P: Protocol> Core<P> {
    pub fn new(protocol: P, settings: CoreSettings, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Core {
            protocol,
            io: Outbox::new(),
            shared,
            limits: settings.limits,
            spin: settings.spin,
            started: now,
            now,
            now_ms: 0,
            busy_until: now,
            resume: VecDeque::new(),
            starved: VecDeque::new(),
            favoured: None,
            reassembly: 0,
            hurry: false,
            next_sweep: now,
            sweep_at: 0,
            stop: Stop::No,
            faults: FaultLog {
                second: 0,
                written: 0,
                suppressed: 0,
            },
        }
    }

    /// Runs until a graceful stop is complete, or the transport fails.
    pub fn run<T: Transport>(mut self, transport: &mut T) -> io::Result<()> {
        let outcome = loop {
            let wait = self.plan_wait();
            if let Err(error) = transport.turn(&mut self, wait) {
                tracing::error!(core = self.shared.index, %error, "network core failed");
                break Err(error);
            }
            self.pass(transport);
            if matches!(self.stop, Stop::Done) {
                break Ok(());
            }
        };
        self.drop_inbox();
        outcome
    }

    fn plan_wait(&mut self) -> Wait {
        if std::mem::take(&mut self.hurry) || self.now < self.busy_until {
            return Wait::No;
        }
        let mut deadline = self.protocol.next_deadline();
        let mut no_later = |time: Instant| match deadline {
            Some(earlier) if earlier <= time => {}
            _ => deadline = Some(time),
        };
        if !self.io.is_empty() {
            no_later(self.next_sweep);
        }
        if !self.resume.is_empty() {
            no_later(self.now + RETRY_INTERVAL);
        }
        if let Stop::Draining(end) | Stop::Lingering(end) | Stop::Cutting(end) = self.stop {
            no_later(end);
        }
        self.shared.asleep.store(true, Ordering::SeqCst);
        // Pairs with the fence in `CoreHandle::wake`.
        fence(Ordering::SeqCst);
        let stop_unseen =
            self.shared.stopping.load(Ordering::SeqCst) && matches!(self.stop, Stop::No);
        if self.protocol.has_work() || !self.shared.inbox.is_empty() || stop_unseen {
            self.shared.asleep.store(false, Ordering::SeqCst);
            return Wait::No;
        }
        Wait::Until(deadline)
    }

    /// The transport calls this when it has waited, before it reports events.
    pub fn woke(&mut self) {
        self.shared.asleep.store(false, Ordering::SeqCst);
        self.now = Instant::now();
        self.now_ms = (self.now - self.started).as_millis() as u64;
    }

    /// Bytes arrived on a connection.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8]) {
        count(&self.shared.counters.bytes_in, bytes.len() as u64);
        self.io.touch(id);
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        connection.last_active_ms = self.now_ms;
        if connection.stage != Stage::Open || connection.close_wanted || bytes.is_empty() {
            return;
        }
        if !connection.greeted {
            connection.greeted = true;
            if bytes[0] == TLS_HANDSHAKE {
                let peer = connection.peer;
                connection.close_wanted = true;
                if let Some(suppressed) = self.faults.permit(self.now_ms) {
                    tracing::warn!(%peer, suppressed,
                        "connection closed: the peer speaks TLS, which is not served here");
                }
                return;
            }
        }
        self.offer(id, bytes);
        self.mark_busy();
    }

    /// The peer sends no more bytes.
    pub fn ended(&mut self, id: ConnectionId) {
        if let Some(connection) = self.io.get_mut(id) {
            connection.ended = true;
            self.io.touch(id);
        }
    }

    /// The connection failed: nothing can be read or sent any more.
    pub fn failed(&mut self, id: ConnectionId, error: &io::Error) {
        if let Some(connection) = self.io.get_mut(id) {
            tracing::debug!(peer = %connection.peer, %error, "connection lost");
            connection.broken = true;
            self.io.touch(id);
        }
    }

    /// A pending send is complete.
    pub fn sent(&mut self, id: ConnectionId, buffer: Vec<u8>) {
        if let Some(connection) = self.io.get_mut(id) {
            count(&self.shared.counters.bytes_out, buffer.len() as u64);
            connection.give_back(buffer);
            connection.last_active_ms = self.now_ms;
            self.io.touch(id);
        }
    }

    /// A pending send failed: what the peer has got of it is unknown.
    pub fn send_failed(&mut self, id: ConnectionId, error: &io::Error) {
        if let Some(connection) = self.io.get_mut(id) {
            connection.sending = 0;
        }
        self.failed(id, error);
    }

    /// Has the connection settled at the end of the pass.
    pub fn look_at(&mut self, id: ConnectionId) {
        self.io.touch(id);
    }

    /// The transport is no longer reading the connection, though nobody paused it.
    pub fn reading_stopped(&mut self, id: ConnectionId) {
        if let Some(connection) = self.io.get_mut(id) {
            connection.reading = Reading::Idle;
            self.io.touch(id);
        }
    }

    /// The receive buffers of the transport ran out.
    pub fn buffers_exhausted(&mut self) {
        count(&self.shared.counters.buffers_exhausted, 1);
    }

    /// The connection, for a transport's own state.
    pub fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.io.get_mut(id)
    }

    /// Notes bytes sent at once, for a transport that does not wait for a completion.
    fn sent_at_once(&mut self, id: ConnectionId, bytes: usize) {
        count(&self.shared.counters.bytes_out, bytes as u64);
        if let Some(connection) = self.io.get_mut(id) {
            connection.last_active_ms = self.now_ms;
        }
    }

    fn mark_busy(&mut self) {
        if !self.spin.is_zero() {
            self.busy_until = self.now + self.spin;
        }
    }

    // --- offering frames ---

    fn offer(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if !connection.unread.is_empty() {
            let mut unread = std::mem::take(&mut connection.unread);
            let before = unread.capacity();
            bytes = self.offer_unread(id, &mut unread, bytes);
            self.put_back(id, unread, before);
        }
        if bytes.is_empty() {
            return;
        }
        let (used, wanted) = self.offer_in_place(id, bytes);
        if used == bytes.len() {
            return;
        }
        if let Some(connection) = self.io.get_mut(id) {
            let before = connection.unread.capacity();
            connection.unread.append(&bytes[used..], wanted);
            let after = connection.unread.capacity();
            self.reassembly = self.reassembly + after - before;
        }
    }

    fn put_back(&mut self, id: ConnectionId, unread: Unread, before: usize) {
        let after = unread.capacity();
        match self.io.get_mut(id) {
            Some(connection) => {
                connection.unread = unread;
                self.reassembly = self.reassembly + after - before;
            }
            None => self.reassembly -= before,
        }
    }

    /// Offers frames out of the reassembly buffer, completing the first one from `bytes`; returns
    /// the bytes that are behind them.
    fn offer_unread<'b>(
        &mut self,
        id: ConnectionId,
        unread: &mut Unread,
        mut bytes: &'b [u8],
    ) -> &'b [u8] {
        loop {
            if !self.may_parse(id) {
                unread.append(bytes, 0);
                return &[];
            }
            match frame::parse(unread.slice(), self.limits.max_frame) {
                Err(error) => {
                    self.bad_frame(id, &error);
                    return &[];
                }
                Ok(Parsed::Incomplete { wanted }) => {
                    if bytes.is_empty() {
                        return bytes;
                    }
                    let missing = wanted.saturating_sub(unread.len()).max(1);
                    let (now, later) = bytes.split_at(missing.min(bytes.len()));
                    unread.append(now, wanted);
                    bytes = later;
                }
                Ok(Parsed::Complete { frame, consumed }) => match self.give(id, frame) {
                    Given::Taken => {
                        unread.consume(consumed);
                        if unread.is_empty() {
                            return bytes;
                        }
                    }
                    Given::Held => {}
                    Given::Closed => return &[],
                },
            }
        }
    }

    /// Offers the frames in `bytes`; returns how many bytes were taken, and the size of the
    /// incomplete frame behind them if it is known.
    fn offer_in_place(&mut self, id: ConnectionId, bytes: &[u8]) -> (usize, usize) {
        let mut used = 0;
        while used < bytes.len() && self.may_parse(id) {
            match frame::parse(&bytes[used..], self.limits.max_frame) {
                Err(error) => {
                    self.bad_frame(id, &error);
                    return (bytes.len(), 0);
                }
                Ok(Parsed::Incomplete { wanted }) => return (used, wanted),
                Ok(Parsed::Complete { frame, consumed }) => match self.give(id, frame) {
                    Given::Taken => used += consumed,
                    Given::Held => return (used, 0),
                    Given::Closed => return (bytes.len(), 0),
                },
            }
        }
        (used, 0)
    }

    fn give(&mut self, id: ConnectionId, frame: Frame<'_>) -> Given {
        match self.protocol.frame(id, frame, &mut self.io) {
            Verdict::Done => {
                count(&self.shared.counters.frames, 1);
                self.hold_if_full(id);
                Given::Taken
            }
            Verdict::Retry => {
                if let Some(connection) = self.io.get_mut(id) {
                    connection.holds.set(Holds::RETRY);
                }
                self.resume_later(id);
                Given::Held
            }
            Verdict::Close => {
                self.io.close(id);
                Given::Closed
            }
        }
    }

    fn may_parse(&self, id: ConnectionId) -> bool {
        self.io.get(id).is_some_and(|connection| {
            connection.stage == Stage::Open
                && !connection.close_wanted
                && connection.holds.may_parse()
        })
    }

    fn hold_if_full(&mut self, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        let before = connection.holds;
        if connection.unsent() > self.limits.unsent_bytes {
            connection.holds.set(Holds::UNSENT);
        }
        if connection.in_flight > self.limits.requests_in_flight {
            connection.holds.set(Holds::IN_FLIGHT);
        }
        if before != connection.holds {
            count(&self.shared.counters.held, 1);
        }
    }

    fn resume_later(&mut self, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if !connection.queued {
            connection.queued = true;
            self.resume.push_back(id);
        }
    }

    fn bad_frame(&mut self, id: ConnectionId, error: &dyn std::fmt::Display) {
        count(&self.shared.counters.bad_frames, 1);
        if let Some(peer) = self.io.peer(id)
            && let Some(suppressed) = self.faults.permit(self.now_ms)
        {
            tracing::warn!(%peer, %error, suppressed, "connection closed: malformed frame");
        }
        self.io.close(id);
    }

    fn offer_again(&mut self) {
        let mut refused = 0;
        for _ in 0..self.resume.len() {
            let Some(id) = self.resume.pop_front() else {
                return;
            };
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            connection.queued = false;
            connection.holds.clear(Holds::RETRY);
            if connection.holds.may_parse() {
                self.offer(id, &[]);
            }
            self.io.touch(id);
            if self
                .io
                .get(id)
                .is_some_and(|connection| connection.holds.has(Holds::RETRY))
            {
                refused += 1;
                if refused >= RETRIES_PER_PASS {
                    return;
                }
            }
        }
    }

    // --- the pass ---

    fn pass<T: Transport>(&mut self, transport: &mut T) {
        count(&self.shared.counters.passes, 1);
        self.adopt(transport);
        self.protocol.pass(self.now, &mut self.io);
        self.offer_again();
        self.protocol.end_of_pass();
        self.relieve();
        if self.now >= self.next_sweep {
            self.sweep();
        }
        self.advance_stop(transport);
        self.settle_touched(transport);
        if !self.starved.is_empty() && self.favoured.is_none() {
            self.hurry = true;
        }
        self.shared
            .counters
            .reassembly_bytes
            .store(self.reassembly as u64, Ordering::Relaxed);
    }

    fn adopt<T: Transport>(&mut self, transport: &mut T) {
        if !matches!(self.stop, Stop::No) {
            self.drop_inbox();
            return;
        }
        for _ in 0..ADOPTIONS_PER_PASS {
            let Ok(newcomer) = self.shared.inbox.try_recv() else {
                return;
            };
            let Newcomer {
                socket,
                peer,
                local_port,
            } = newcomer;
            if self.io.len() >= self.limits.max_connections {
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                if let Some(suppressed) = self.faults.permit(self.now_ms) {
                    let limit = self.limits.max_connections;
                    tracing::warn!(%peer, limit, suppressed, "connection refused: core is full");
                }
                continue;
            }
            let id = self.io.insert(socket, peer, self.now_ms);
            let Some(connection) = self.io.get(id) else {
                continue;
            };
            if let Err(error) = transport.open(id, connection) {
                tracing::warn!(%peer, %error, "connection refused");
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                self.io.remove(id);
                continue;
            }
            count(&self.shared.counters.accepted, 1);
            self.protocol.opened(id, peer, local_port);
            self.io.touch(id);
        }
        self.hurry = true;
    }

    fn drop_inbox(&mut self) {
        while self.shared.inbox.try_recv().is_ok() {
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn settle_touched<T: Transport>(&mut self, transport: &mut T) {
        let mut touched = std::mem::take(&mut self.io.touched);
        for id in touched.drain(..) {
            self.settle(transport, id);
        }
        // Settling touches nothing else, so the list keeps its memory.
        touched.append(&mut self.io.touched);
        self.io.touched = touched;
    }

    /// Brings one connection into the state that follows from what happened in this pass.
    fn settle<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        connection.listed = false;
        if connection.broken {
            self.cut(transport, id);
        }
        self.close_if_due(id);
        if self.send(transport, id).is_err() {
            self.cut(transport, id);
        }
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        match connection.stage {
            Stage::Open => {
                self.update_flow(id);
                self.update_memory(transport, id);
                self.update_reading(transport, id);
                // A send that was complete at once may have been all that was waited for.
                if self.io.get(id).is_some_and(Connection::is_finished) {
                    self.close_if_due(id);
                    self.cut(transport, id);
                }
            }
            Stage::Flushing if connection.unsent() == 0 => self.cut(transport, id),
            Stage::Lingering if connection.ended => self.cut(transport, id),
            Stage::Flushing | Stage::Lingering | Stage::Shut => {
                self.update_reading(transport, id);
            }
        }
        self.free_if_quiet(id);
    }

    fn close_if_due(&mut self, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if connection.stage == Stage::Open && (connection.close_wanted || connection.is_finished())
        {
            connection.stage = Stage::Flushing;
            self.forget_unread(id);
            self.protocol.closed(id);
        }
    }

    fn forget_unread(&mut self, id: ConnectionId) {
        if self.favoured == Some(id) {
            self.favoured = None;
        }
        if let Some(connection) = self.io.get_mut(id) {
            self.reassembly -= connection.unread.capacity();
            connection.unread = Unread::default();
        }
    }

    fn send<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) -> io::Result<()> {
        let Some(connection) = self.io.get_mut(id) else {
            return Ok(());
        };
        let sends = matches!(connection.stage, Stage::Open | Stage::Flushing);
        if !sends || connection.out.is_empty() || connection.sending > 0 {
            return Ok(());
        }
        let bytes = connection.out.len();
        if let Sending::Done = transport.send(id, connection)? {
            self.sent_at_once(id, bytes);
        }
        self.mark_busy();
        Ok(())
    }

    fn update_flow(&mut self, id: ConnectionId) {
        self.hold_if_full(id);
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        let held = !connection.holds.may_parse();
        if connection.unsent() <= self.limits.unsent_bytes / 2 {
            connection.holds.clear(Holds::UNSENT);
        }
        if connection.in_flight <= self.limits.requests_in_flight / 2 {
            connection.holds.clear(Holds::IN_FLIGHT);
        }
        if held && connection.holds.may_parse() && !connection.unread.is_empty() {
            self.resume_later(id);
            self.hurry = true;
        }
    }

    fn update_memory<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) {
        let over = self.reassembly > self.limits.reassembly_bytes;
        let far_over = self.reassembly > self.limits.reassembly_bytes + self.limits.max_frame;
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if connection.unread.is_empty() {
            connection.holds.clear(Holds::MEMORY);
            if self.favoured == Some(id) {
                self.favoured = None;
            }
        } else if over && self.favoured.is_none() {
            self.favoured = Some(id);
        } else if over && self.favoured != Some(id) {
            if !connection.starved {
                connection.starved = true;
                self.starved.push_back(id);
                count(&self.shared.counters.held, 1);
            }
            connection.holds.set(Holds::MEMORY);
        } else if far_over {
            let peer = connection.peer;
            if let Some(suppressed) = self.faults.permit(self.now_ms) {
                tracing::warn!(%peer, suppressed,
                    "connection closed: too many incomplete frames for the memory allowed");
            }
            self.cut(transport, id);
        }
    }

    /// Lets connections that wait for reassembly memory go on: all when there is enough, else one.
    fn relieve(&mut self) {
        let enough = self.reassembly <= self.limits.reassembly_bytes / 2;
        while !self.starved.is_empty() && (enough || self.favoured.is_none()) {
            let Some(id) = self.starved.pop_front() else {
                return;
            };
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            connection.starved = false;
            if connection.stage != Stage::Open {
                continue;
            }
            connection.holds.clear(Holds::MEMORY);
            if !enough {
                self.favoured = Some(id);
            }
            self.io.touch(id);
        }
    }

    fn update_reading<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) {
        let draining = matches!(self.stop, Stop::Draining(_));
        let stalled_bytes = self.limits.stalled_bytes;
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        let wanted = connection.wants_reading(stalled_bytes) && !draining;
        match (wanted, connection.reading) {
            (true, Reading::Idle) => transport.read(id, connection),
            (false, Reading::Armed) if connection.stage != Stage::Shut => {
                transport.pause(id, connection);
            }
            _ => {}
        }
    }

    /// Ends a connection at once; what was not sent is lost.
    fn cut<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if connection.stage == Stage::Shut {
            return;
        }
        let was_open = connection.stage == Stage::Open;
        connection.stage = Stage::Shut;
        connection.out = Vec::new();
        transport.shut(id, connection);
        self.forget_unread(id);
        if was_open {
            self.protocol.closed(id);
        }
    }

    fn free_if_quiet(&mut self, id: ConnectionId) {
        let quiet = self.io.get(id).is_some_and(|connection| {
            connection.stage == Stage::Shut
                && connection.reading == Reading::Idle
                && connection.sending == 0
        });
        if quiet {
            self.io.remove(id);
            count(&self.shared.counters.closed, 1);
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    // --- time ---

    /// Looks at a quarter of the connections: closes quiet ones, takes back unused buffers.
    fn sweep(&mut self) {
        let tick = (self.limits.idle / 32).clamp(Duration::from_millis(10), Duration::from_secs(1));
        self.next_sweep = self.now + tick;
        let idle_ms = self.limits.idle.as_millis() as u64;
        let slots = self.io.slot_count();
        for _ in 0..slots.div_ceil(4) {
            self.sweep_at = if self.sweep_at + 1 < slots {
                self.sweep_at + 1
            } else {
                0
            };
            let Some(id) = self.io.at(self.sweep_at) else {
                continue;
            };
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            let quiet_ms = self.now_ms.saturating_sub(connection.last_active_ms);
            if quiet_ms >= idle_ms {
                tracing::debug!(peer = %connection.peer, quiet_ms, "quiet connection closed");
                connection.broken = true;
                count(&self.shared.counters.idle_closed, 1);
                self.io.touch(id);
            } else if quiet_ms >= BUFFERS_KEPT_MS {
                let before = connection.unread.capacity();
                connection.release_buffers();
                self.reassembly = self.reassembly + connection.unread.capacity() - before;
            }
        }
        // Another one gets its turn, so that a peer that trickles cannot hold up the rest.
        if let Some(id) = self.favoured.take_if(|_| !self.starved.is_empty()) {
            self.io.touch(id);
            self.relieve();
        }
    }

    // --- stopping ---

    fn advance_stop<T: Transport>(&mut self, transport: &mut T) {
        match self.stop {
            Stop::No if self.shared.stopping.load(Ordering::Acquire) => {
                self.drop_inbox();
                self.stop = Stop::Draining(self.now + self.limits.stop);
                self.touch_all();
                self.hurry = true;
            }
            Stop::Draining(end) if self.now >= end || self.is_drained() => {
                self.stop = Stop::Lingering(self.now + LINGER);
                self.hang_up();
                self.hurry = true;
            }
            Stop::Lingering(_) | Stop::Cutting(_) if self.io.is_empty() => self.stop = Stop::Done,
            Stop::Lingering(end) if self.now >= end => {
                self.stop = Stop::Cutting(self.now + CUT);
                for index in 0..self.io.slot_count() {
                    if let Some(id) = self.io.at(index) {
                        self.cut(transport, id);
                        self.io.touch(id);
                    }
                }
                self.hurry = true;
            }
            Stop::Cutting(end) if self.now >= end => self.stop = Stop::Done,
            _ => {}
        }
    }

    fn touch_all(&mut self) {
        for index in 0..self.io.slot_count() {
            if let Some(id) = self.io.at(index) {
                self.io.touch(id);
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.protocol.idle()
            && self.resume.is_empty()
            && (0..self.io.slot_count()).all(|index| {
                let connection = self.io.at(index).and_then(|id| self.io.get(id));
                connection.is_none_or(|connection| connection.unsent() == 0)
            })
    }

    /// Shuts the sending side of each connection, so that peers read the last answers and an end;
    /// closing at once would reset connections that have bytes unread here.
    fn hang_up(&mut self) {
        for index in 0..self.io.slot_count() {
            let Some(id) = self.io.at(index) else {
                continue;
            };
            self.io.touch(id);
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            if connection.stage == Stage::Open {
                connection.stage = Stage::Flushing;
                self.forget_unread(id);
                self.protocol.closed(id);
            }
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            if connection.stage == Stage::Flushing && connection.unsent() == 0 {
                connection.stage = Stage::Lingering;
                connection.shut_sending();
            }
        }
    }
}
