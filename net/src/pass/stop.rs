//! The graceful stop of a core.
//!
//! Clients of the protocol do not take the end of a connection for an answer: a request that gets
//! none runs into its time-out. So requests are served to the end. At first answers are held back:
//! clients that wait for them fall silent, and then nothing is on its way. Each connection then
//! gets its answers and its end together.

use std::time::{Duration, Instant};

use super::{Core, Transport};
use crate::connection::{ConnectionId, Stage};
use crate::driver::Protocol;

/// Peers that have sent nothing for so long wait for answers, or have nothing to ask.
const SILENCE: Duration = Duration::from_millis(20);
/// How long a stop waits for silence: some peers ask without waiting for answers.
const GATHER: Duration = Duration::from_millis(500);
/// How long the end of a stop waits for the peers to hang up, before connections are cut.
const LINGER: Duration = Duration::from_millis(300);
/// How long the end of a stop waits for cut connections' last completions.
const CUT: Duration = Duration::from_secs(2);

/// Where a stop stands.
pub(super) enum Stop {
    No,
    /// Requests are served, their answers held back, until the peers are silent or the time is
    /// over.
    Gathering {
        end: Instant,
        heard: Instant,
    },
    /// Nothing is read; answers in flight are waited for and sent, until then.
    Draining(Instant),
    /// Everything is sent; peers may hang up, until then.
    Lingering(Instant),
    /// Connections are cut; their completions are waited for, until then.
    Cutting(Instant),
    Done,
}

impl Stop {
    /// Bytes arrived.
    pub fn heard(&mut self, now: Instant) {
        if let Stop::Gathering { heard, .. } = self {
            *heard = now;
        }
    }

    /// When time alone may take the stop further.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        match self {
            Stop::No | Stop::Done => None,
            // After the silence it is a request in flight that is waited for.
            Stop::Gathering { end, heard } if now < *heard + SILENCE => {
                Some(*end.min(&(*heard + SILENCE)))
            }
            Stop::Gathering { end, .. }
            | Stop::Draining(end)
            | Stop::Lingering(end)
            | Stop::Cutting(end) => Some(*end),
        }
    }
}

impl<P: Protocol> Core<P> {
    pub(super) fn advance_stop<T: Transport>(&mut self, transport: &mut T) {
        match self.stop {
            Stop::No => {
                self.stop = Stop::Gathering {
                    end: self.now + GATHER,
                    heard: self.now,
                };
                self.protocol.leaving(&mut self.io);
                self.hurry = true;
            }
            Stop::Gathering { end, heard } if self.now >= end || self.is_silent(heard) => {
                self.drop_inbox();
                self.stop = Stop::Draining(self.now + self.limits.stop);
                self.protocol.leaving(&mut self.io);
                self.each(|core, id| {
                    if let Some(connection) = core.io.get(id) {
                        connection.send_with_end();
                    }
                });
                self.hurry = true;
            }
            Stop::Draining(end) if self.now >= end || self.is_drained() => {
                self.stop = Stop::Lingering(self.now + LINGER);
                self.each(Self::hang_up);
                self.hurry = true;
            }
            Stop::Lingering(end) if self.now >= end => {
                self.stop = Stop::Cutting(self.now + CUT);
                self.each(|core, id| core.cut(transport, id));
                self.hurry = true;
            }
            Stop::Cutting(end) if self.now >= end => self.stop = Stop::Done,
            _ => {}
        }
    }

    /// Does something with each connection, which is settled afterwards.
    fn each(&mut self, mut work: impl FnMut(&mut Self, ConnectionId)) {
        for index in 0..self.io.slot_count() {
            if let Some(id) = self.io.at(index) {
                self.io.touch(id);
                work(self, id);
            }
        }
    }

    /// Whether no request is on its way, as far as can be known, and none is in flight.
    fn is_silent(&self, heard: Instant) -> bool {
        let nobody = self.io.is_empty() && self.shared.inbox.is_empty();
        (nobody || self.now >= heard + SILENCE) && self.resume.is_empty() && self.protocol.idle()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.protocol.idle()
            && self.resume.is_empty()
            && (0..self.io.slot_count()).all(|index| {
                let connection = self.io.at(index).and_then(|id| self.io.get(id));
                connection.is_none_or(|connection| connection.unsent() == 0)
            })
    }

    /// Ends a connection that has all its answers while others have not.
    pub(super) fn hang_up_if_answered(&mut self, id: ConnectionId) {
        let answered = self.io.get(id).is_some_and(|connection| {
            connection.in_flight == 0
                && connection.unsent() == 0
                && connection.holds.may_parse()
                && !connection.queued
        });
        if answered {
            self.hang_up(id);
        }
    }

    /// Shuts the sending side of a connection, so that its peer reads the last answers and an end;
    /// closing at once would reset it if bytes of it are unread here.
    fn hang_up(&mut self, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if connection.stage == Stage::Open {
            connection.stage = Stage::Flushing;
            self.forget_unread(id);
            self.protocol.closed(id);
        }
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if connection.stage == Stage::Flushing && connection.unsent() == 0 {
            connection.stage = Stage::Lingering;
            connection.shut_sending();
        }
    }
}
