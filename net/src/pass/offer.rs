//! Cutting received bytes into frames and offering them to the protocol.
//!
//! Frames are parsed where they were received; only a frame that straddles two receives, or that
//! the protocol does not take yet, is copied to the connection's reassembly buffer.

use std::time::Instant;

use super::{Core, RETRIES_PER_PASS};
use crate::connection::{ConnectionId, Holds, Stage, Unread};
use crate::driver::{Protocol, Verdict, count};
use crate::frame::{self, Frame, Parsed};

enum Given {
    Taken,
    Held,
    Closed,
}

impl<P: Protocol> Core<P> {
    pub(super) fn offer(&mut self, id: ConnectionId, mut bytes: &[u8]) {
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
            connection.frame_since_ms = self.now_ms;
            connection.unread.append(&bytes[used..], wanted);
            let after = connection.unread.capacity();
            self.reassembly = self.reassembly + after - before;
        }
    }

    fn put_back(&mut self, id: ConnectionId, mut unread: Unread, before: usize) {
        // Kept for the next frame, unless that would keep others from being read.
        if unread.is_empty() && self.reassembly > self.limits.reassembly_bytes / 2 {
            unread = Unread::default();
        }
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
                        self.frame_begins(id);
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
                Ok(Parsed::Complete { frame, consumed }) => {
                    let behind = &bytes[used + consumed..];
                    if !behind.is_empty() {
                        self.protocol.ahead(behind);
                    }
                    match self.give(id, frame) {
                        Given::Taken => used += consumed,
                        Given::Held => return (used, 0),
                        Given::Closed => return (bytes.len(), 0),
                    }
                }
            }
        }
        (used, 0)
    }

    fn give(&mut self, id: ConnectionId, frame: Frame<'_>) -> Given {
        match self.protocol.frame(id, frame, &mut self.io) {
            Verdict::Done => {
                count(&self.shared.counters.frames, 1);
                self.charge(id);
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
                match self.io.blame.take() {
                    Some(why) => self.bad_frame(id, &why),
                    None => self.io.close(id),
                }
                Given::Closed
            }
        }
    }

    fn frame_begins(&mut self, id: ConnectionId) {
        if let Some(connection) = self.io.get_mut(id) {
            connection.frame_since_ms = self.now_ms;
        }
    }

    /// Charges the time since the last charge to the connection, whose further frames wait for the
    /// next pass once it has had its slice of this one.
    fn charge(&mut self, id: ConnectionId) {
        let now = Instant::now();
        let took = now - self.charged;
        self.charged = now;
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if connection.pass == self.pass_number {
            connection.spent += took;
        } else {
            connection.pass = self.pass_number;
            connection.spent = took;
        }
        if connection.spent >= self.limits.slice {
            connection.holds.set(Holds::SLICE);
            self.hurry = true;
            self.resume_later(id);
        }
    }

    fn may_parse(&self, id: ConnectionId) -> bool {
        self.io.get(id).is_some_and(|connection| {
            connection.stage == Stage::Open
                && !connection.close_wanted
                && connection.holds.may_parse()
        })
    }

    /// What a connection may have unsent at the moment.
    pub(super) fn most_unsent(&self) -> usize {
        if self.io.unsent_total > self.limits.unsent_total_bytes {
            self.limits.unsent_bytes.min(self.limits.unsent_when_short)
        } else {
            self.limits.unsent_bytes
        }
    }

    pub(super) fn hold_if_full(&mut self, id: ConnectionId) {
        let most = self.most_unsent();
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        let before = connection.holds;
        if connection.unsent() > most {
            connection.holds.set(Holds::UNSENT);
        }
        if connection.in_flight > self.limits.requests_in_flight {
            connection.holds.set(Holds::IN_FLIGHT);
        }
        if before != connection.holds {
            count(&self.shared.counters.held, 1);
        }
    }

    pub(super) fn resume_later(&mut self, id: ConnectionId) {
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

    pub(super) fn offer_again(&mut self) {
        if self.resume.is_empty() {
            return;
        }
        self.charged = Instant::now();
        let mut refused = 0;
        for _ in 0..self.resume.len() {
            let Some(id) = self.resume.pop_front() else {
                return;
            };
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            if connection.pass == self.pass_number && connection.holds.has(Holds::SLICE) {
                self.resume.push_back(id);
                continue;
            }
            connection.queued = false;
            connection.holds.clear(Holds::RETRY | Holds::SLICE);
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
}
