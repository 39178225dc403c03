//! Who may be read when the memory for incomplete frames is used up.
//!
//! A connection may always have its equal share of that memory, so that frames of ordinary size are
//! not held up by anybody. Of those that have more, one at a time goes on, and the others are not
//! read. What takes longer than [`Limits::turn`](crate::limits::Limits::turn) meanwhile is closed.

use std::time::Duration;

use super::Core;
use crate::connection::{ConnectionId, Holds, Stage};
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
    /// is free.
    fn close_the_slow(&mut self) {
        let patience = self.limits.turn.as_millis() as u64;
        let mut slow: Vec<(u64, ConnectionId)> = (0..self.io.slot_count())
            .filter_map(|index| self.io.at(index))
            .filter(|&id| self.is_greedy(id))
            .filter_map(|id| Some((self.io.get(id)?.frame_since_ms, id)))
            .filter(|(since, _)| self.now_ms.saturating_sub(*since) >= patience)
            .collect();
        slow.sort_unstable_by_key(|(since, _)| *since);
        let mut left = self.reassembly;
        for (_, id) in slow {
            if left <= self.limits.reassembly_bytes / 2 {
                return;
            }
            let Some(connection) = self.io.get_mut(id) else {
                continue;
            };
            connection.broken = true;
            left -= connection.unread.capacity();
            let peer = connection.peer;
            if let Some(suppressed) = self.faults.permit(self.now_ms) {
                tracing::warn!(%peer, suppressed, "connection closed: its frame came too slowly \
                    while memory for incomplete frames was short");
            }
            self.io.touch(id);
            self.hurry = true;
        }
    }
}
