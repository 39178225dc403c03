//! Who may be read when the memory for incomplete frames is used up, and who is closed when that
//! for answers is.
//!
//! A connection may always have its equal share of that memory, so that frames of ordinary size are
//! not held up by anybody. Of those that have more, one at a time goes on, and the others are not
//! read. What takes longer than [`Limits::turn`](crate::limits::Limits::turn) meanwhile is closed.

use std::time::Duration;

use super::Core;
use crate::connection::{Connection, ConnectionId, Holds, Stage};
use crate::driver::{Protocol, count};

/// Turns of connections that fit into the time after which a slow one is closed.
const TURNS: u32 = 10;

impl<P: Protocol> Core<P> {
    pub(crate) fn is_over_memory(&self) -> bool {
        self.reassembly > self.limits.reassembly_bytes
    }

    /// What each connection may have of the memory, however much is in use, in bytes.
    fn share(&self) -> usize {
        self.limits.reassembly_bytes / self.io.len().max(1)
    }

    /// How long one connection is let go on before it is another one's turn.
    pub(super) fn turn(&self) -> Duration {
        self.limits.turn / TURNS
    }

    /// Whether the connection has more than its share of memory that is used up.
    fn is_greedy(&self, id: ConnectionId) -> bool {
        self.is_over_memory() && self.is_over_share(id)
    }

    fn is_over_share(&self, id: ConnectionId) -> bool {
        let connection = self.io.get(id);
        connection.is_some_and(|connection| connection.unread.len() > self.share())
    }

    /// Whether the connection must not be read now, for want of memory.
    pub(crate) fn lacks_memory(&self, id: ConnectionId) -> bool {
        self.favoured != Some(id) && self.is_greedy(id)
    }

    /// Holds a connection that has more than its share, except one at a time.
    pub(super) fn update_memory(&mut self, id: ConnectionId) {
        let large = self.is_over_share(id);
        let greedy = large && self.is_over_memory();
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        if !large || !connection.holds.may_parse() {
            connection.holds.clear(Holds::MEMORY);
            if self.favoured == Some(id) {
                self.favoured = None;
            }
        } else if greedy && self.favoured.is_none() {
            self.favour(id);
        } else if greedy && self.favoured != Some(id) {
            self.starve(id);
        }
    }

    fn starve(&mut self, id: ConnectionId) {
        let Some(connection) = self.io.get_mut(id) else {
            return;
        };
        connection.holds.set(Holds::MEMORY);
        if !connection.starved {
            connection.starved = true;
            self.starved.push_back(id);
            self.next_sweep = self.next_sweep.min(self.now + self.turn());
            count(&self.shared.counters.held, 1);
        }
    }

    fn favour(&mut self, id: ConnectionId) {
        if let Some(connection) = self.io.get_mut(id) {
            connection.holds.clear(Holds::MEMORY);
        }
        self.favoured = Some(id);
        self.turn_ends = self.now + self.turn();
    }

    /// Lets connections that wait for memory go on: all when there is enough, else one.
    pub(super) fn relieve(&mut self) {
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
            if enough {
                // It waited for others: its time begins anew.
                connection.frame_since_ms = self.now_ms;
            } else {
                self.favour(id);
            }
            self.io.touch(id);
        }
    }

    /// While connections wait for memory: gives the next one its turn, and closes those that have
    /// had time enough.
    pub(super) fn end_turns(&mut self) {
        if self.now >= self.turn_ends
            && let Some(id) = self.favoured.take()
        {
            if self.is_greedy(id) {
                self.starve(id);
            }
            self.io.touch(id);
        }
        if self.is_over_memory() {
            self.close_the_slow();
        }
    }

    /// Closes connections whose frames took too long, the oldest first, until half of the memory
    /// is free. The youngest is spared where it fits alone: it waited for the others.
    fn close_the_slow(&mut self) {
        let slow = self.since(self.limits.turn, |core, id| {
            core.is_greedy(id)
                .then(|| core.io.get(id).map(|connection| connection.frame_since_ms))?
        });
        let mut left = self.reassembly;
        for (number, &id) in slow.iter().enumerate() {
            let last = number > 0 && number + 1 == slow.len();
            let limit = self.limits.reassembly_bytes;
            if left <= if last { limit } else { limit / 2 } {
                return;
            }
            left -= self.close(
                id,
                |connection| connection.unread.capacity(),
                "connection closed: its frame came too slowly while memory for incomplete frames \
                 was short",
            );
        }
    }

    /// Closes connections whose peers do not read, the longest first, until half of the memory for
    /// unsent bytes is free.
    pub(super) fn close_the_stuck(&mut self) {
        let stuck = self.since(self.limits.unread, |core, id| {
            let connection = core.io.get(id)?;
            (connection.sending > 0).then_some(connection.sending_since_ms)
        });
        let mut left = self.io.unsent_total;
        for id in stuck {
            if left <= self.limits.unsent_total_bytes / 2 {
                return;
            }
            left -= self.close(
                id,
                |connection| connection.counted_unsent,
                "connection closed: its answers were not read while memory for them was short",
            );
        }
    }

    /// Connections for which `since` gives a time at least that long ago, the oldest first.
    fn since(
        &self,
        long: Duration,
        since: impl Fn(&Self, ConnectionId) -> Option<u64>,
    ) -> Vec<ConnectionId> {
        let long = long.as_millis() as u64;
        let mut found: Vec<(u64, ConnectionId)> = (0..self.io.slot_count())
            .filter_map(|index| self.io.at(index))
            .filter_map(|id| Some((since(self, id)?, id)))
            .filter(|(since, _)| self.now_ms.saturating_sub(*since) >= long)
            .collect();
        found.sort_unstable_by_key(|(since, _)| *since);
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Closes a connection and says why; what that frees, in bytes.
    fn close(
        &mut self,
        id: ConnectionId,
        frees: impl FnOnce(&Connection) -> usize,
        why: &'static str,
    ) -> usize {
        let Some(connection) = self.io.get_mut(id) else {
            return 0;
        };
        connection.broken = true;
        let (freed, peer) = (frees(connection), connection.peer);
        if let Some(suppressed) = self.faults.permit(self.now_ms) {
            tracing::warn!(%peer, suppressed, "{why}");
        }
        self.io.touch(id);
        self.hurry = true;
        freed
    }
}
