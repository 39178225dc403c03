//! The loop of a network core, the same over every transport.
//!
//! One pass: wait, offer what was received, `Protocol::pass`, offer again what was not taken,
//! `Protocol::end_of_pass`, then settle each touched connection: send, hold or read on, close.
//! Always true: bytes of a connection are offered in order, and none is dropped while it is open.

mod memory;
mod offer;
mod settle;
mod stop;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::connection::{Connection, ConnectionId, Outbox, Reading, Stage};
use crate::driver::{CoreSettings, Newcomer, Protocol, Shared, count};
use crate::limits::Limits;
use stop::Stop;

/// Adoptions of one pass: a burst of connections must not starve those that work.
const ADOPTIONS_PER_PASS: usize = 256;
/// After so many refused frames in a row the rest of the queue waits for the next pass.
const RETRIES_PER_PASS: usize = 8;
/// A refused frame is offered again after this long even if nothing wakes the core.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time between two looks at connections for quiet ones.
const SWEEP: Duration = Duration::from_secs(5);
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
    /// Starts sending `connection.out`; `connection.sending` is 0. `awaited`: the core has
    /// something to do when it is sent; if not, the end may be reported with the next event.
    fn send(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
        awaited: bool,
    ) -> io::Result<Sending>;
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

pub(crate) struct Core<P> {
    protocol: P,
    io: Outbox,
    pub(crate) shared: Arc<Shared>,
    limits: Limits,
    spin: Duration,
    started: Instant,
    now: Instant,
    now_ms: u64,
    /// Number of the pass, from 1.
    pass_number: u64,
    /// Up to when the core's time is charged to connections.
    charged: Instant,
    busy_until: Instant,
    /// Connections whose unread bytes are to be offered again.
    resume: VecDeque<ConnectionId>,
    /// Connections not read for lack of reassembly memory.
    starved: VecDeque<ConnectionId>,
    /// The one connection that may go over the reassembly memory, so that its frame completes.
    favoured: Option<ConnectionId>,
    /// When another one's turn is, if others wait.
    turn_ends: Instant,
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
            io: Outbox::new(settings.limits.unsent_total_bytes),
            shared,
            limits: settings.limits,
            spin: settings.spin,
            started: now,
            now,
            now_ms: 0,
            pass_number: 0,
            charged: now,
            busy_until: now,
            resume: VecDeque::new(),
            starved: VecDeque::new(),
            favoured: None,
            turn_ends: now,
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
        if let Some(time) = self.stop.next_look(self.now) {
            no_later(time);
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
        self.charged = self.now;
        self.pass_number += 1;
        self.now_ms = (self.now - self.started).as_millis() as u64;
    }

    /// Bytes arrived on a connection.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8]) {
        count(&self.shared.counters.bytes_in, bytes.len() as u64);
        self.stop.heard(self.now);
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

    /// What the protocol has watched beside its connections.
    pub fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.protocol.watched()
    }

    fn mark_busy(&mut self) {
        if !self.spin.is_zero() {
            self.busy_until = self.now + self.spin;
        }
    }

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
        self.settle_touched(transport);
        if self.shared.stopping.load(Ordering::Acquire) {
            self.advance_stop(transport);
            self.settle_touched(transport);
            if self.io.is_empty() && matches!(self.stop, Stop::Lingering(_) | Stop::Cutting(_)) {
                self.stop = Stop::Done;
            }
        }
        if !self.starved.is_empty() && self.favoured.is_none() {
            self.hurry = true;
        }
        self.shared
            .counters
            .reassembly_bytes
            .store(self.reassembly as u64, Ordering::Relaxed);
    }

    fn adopt<T: Transport>(&mut self, transport: &mut T) {
        if !matches!(self.stop, Stop::No | Stop::Gathering { .. }) {
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

    /// Looks at a quarter of the connections: closes quiet ones, takes back unused buffers.
    fn sweep(&mut self) {
        let tick = (self.limits.idle / 32).clamp(Duration::from_millis(10), SWEEP);
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
        if self.io.unsent_total > self.limits.unsent_total_bytes {
            self.close_the_stuck();
        }
        if !self.starved.is_empty() {
            self.next_sweep = self.next_sweep.min(self.now + self.turn());
            self.end_turns();
        }
    }
}
