//! The end of a pass for one connection: send, hold or read on, close, free.

use std::io;
use std::sync::atomic::Ordering;

use super::{Core, Sending, Stop, Transport};
use crate::connection::{Connection, ConnectionId, Holds, Reading, Stage, Unread};
use crate::driver::{Protocol, count};

/// The end of a larger send is waited for: it may take long, and its memory is wanted back.
const QUIET_MOST: usize = 64 * 1024;

impl<P: Protocol> Core<P> {
    pub(super) fn settle_touched<T: Transport>(&mut self, transport: &mut T) {
        let mut touched = std::mem::take(&mut self.io.touched);
        for id in touched.drain(..) {
            self.settle(transport, id);
        }
        self.io.written = 0;
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
        if !connection.broken && connection.unsent() > self.limits.unsent_most {
            connection.broken = true;
            let (peer, unsent) = (connection.peer, connection.unsent());
            if let Some(suppressed) = self.faults.permit(self.now_ms) {
                tracing::warn!(%peer, unsent, suppressed,
                    "connection closed: it does not read what is sent to it");
            }
        }
        if self.io.get(id).is_some_and(|connection| connection.broken) {
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
                self.update_memory(id);
                self.update_reading(transport, id);
                // A send that was complete at once may have been all that was waited for.
                if self.io.get(id).is_some_and(Connection::is_finished) {
                    self.close_if_due(id);
                    self.cut(transport, id);
                }
                if matches!(self.stop, Stop::Draining(_)) {
                    self.hang_up_if_answered(id);
                }
            }
            Stage::Flushing if connection.unsent() == 0 => self.cut(transport, id),
            Stage::Lingering if connection.ended => self.cut(transport, id),
            Stage::Flushing | Stage::Lingering | Stage::Shut => {
                self.update_reading(transport, id);
            }
        }
        self.count_unsent(id);
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

    pub(super) fn forget_unread(&mut self, id: ConnectionId) {
        if self.favoured == Some(id) {
            self.favoured = None;
        }
        if let Some(connection) = self.io.get_mut(id) {
            self.reassembly -= connection.unread.capacity();
            connection.unread = Unread::default();
        }
    }

    fn send<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) -> io::Result<()> {
        let most = self.most_unsent();
        let Some(connection) = self.io.get_mut(id) else {
            return Ok(());
        };
        let sends = matches!(connection.stage, Stage::Open | Stage::Flushing);
        if !sends || connection.out.is_empty() || connection.sending > 0 {
            return Ok(());
        }
        // Answers wait for the end of the connection, unless they are so many that nothing is read.
        let gathering = matches!(self.stop, Stop::Gathering { .. });
        if gathering && connection.stage == Stage::Open && !connection.holds.has(Holds::UNSENT) {
            return Ok(());
        }
        let bytes = connection.out.len();
        connection.sending_since_ms = self.now_ms;
        let goes_on = connection.stage == Stage::Open
            && !connection.ended
            && !connection.close_wanted
            && connection.holds == Holds::default();
        let awaited = !goes_on
            || !matches!(self.stop, Stop::No)
            || bytes > most.min(QUIET_MOST)
            || self.io.unsent_total > self.limits.unsent_total_bytes / 2;
        let Some(connection) = self.io.get_mut(id) else {
            return Ok(());
        };
        if let Sending::Done = transport.send(id, connection, awaited)? {
            self.sent_at_once(id, bytes);
        }
        self.mark_busy();
        Ok(())
    }

    fn update_flow(&mut self, id: ConnectionId) {
        self.hold_if_full(id);
        let most = self.most_unsent();
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        let held = !connection.holds.may_parse();
        if connection.unsent() <= most / 2 {
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

    fn update_reading<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) {
        let draining = matches!(self.stop, Stop::Draining(_));
        let stalled_bytes = if self.is_over_memory() {
            0
        } else {
            self.limits.stalled_bytes
        };
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        let over = draining && connection.stage == Stage::Open;
        let wanted = connection.wants_reading(stalled_bytes) && !over;
        match (wanted, connection.reading) {
            (true, Reading::Idle) => transport.read(id, connection),
            (false, Reading::Armed) if connection.stage != Stage::Shut => {
                transport.pause(id, connection);
            }
            _ => {}
        }
    }

    /// Ends a connection at once; what was not sent is lost.
    pub(super) fn cut<T: Transport>(&mut self, transport: &mut T, id: ConnectionId) {
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

    fn count_unsent(&mut self, id: ConnectionId) {
        if let Some(connection) = self.io.get_mut(id) {
            let unsent = connection.unsent();
            let counted = std::mem::replace(&mut connection.counted_unsent, unsent);
            self.io.unsent_total = self.io.unsent_total + unsent - counted;
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
}
