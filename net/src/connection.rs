//! The connections of one core: their buffers, their flow control and the table that owns them.
//!
//! Always true: a [`ConnectionId`] names one connection for ever (index and generation), and a
//! slot is reused only after the transport has no operation left on its socket.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use socket2::SockRef;

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const LAST_GENERATION: u32 = u32::MAX;
/// A buffer larger than this is given back once it is empty.
const KEPT_CAPACITY: usize = 512 * 1024;

/// Names one connection of one core; never reused for another connection.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct ConnectionId(u64);

impl ConnectionId {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        debug_assert!(u64::from(index) <= INDEX_MASK);
        ConnectionId(u64::from(generation) << INDEX_BITS | u64::from(index))
    }

    /// The 56 bits of the name, for completions.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The connection with these bits; nothing answers to a name that the driver did not give.
    pub fn from_bits(bits: u64) -> Self {
        ConnectionId(bits)
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32
    }
}

/// Why a connection is not read (or its frames are not taken) at the moment.
#[derive(Copy, Clone, Default, Eq, PartialEq, Debug)]
pub(crate) struct Holds(u8);

impl Holds {
    /// Too many bytes wait to be sent.
    pub const UNSENT: u8 = 1;
    /// Too many requests are in flight.
    pub const IN_FLIGHT: u8 = 2;
    /// The protocol asked to be offered the frame again.
    pub const RETRY: u8 = 4;
    /// The core's reassembly memory is used up.
    pub const MEMORY: u8 = 8;
    /// Its requests took their share of this pass.
    pub const SLICE: u8 = 16;

    pub fn set(&mut self, hold: u8) {
        self.0 |= hold;
    }

    pub fn clear(&mut self, hold: u8) {
        self.0 &= !hold;
    }

    pub fn has(self, hold: u8) -> bool {
        self.0 & hold != 0
    }

    /// Whether all of it ends by itself in one of the next passes.
    pub fn is_short(self) -> bool {
        self.0 & !(Self::RETRY | Self::SLICE) == 0
    }

    /// Whether frames may be given to the protocol.
    pub fn may_parse(self) -> bool {
        self.0 & (Self::UNSENT | Self::IN_FLIGHT | Self::RETRY | Self::SLICE) == 0
    }
}

/// Received bytes that are not taken yet: an incomplete frame, or whole ones while held.
#[derive(Default)]
pub(crate) struct Unread {
    bytes: Vec<u8>,
    start: usize,
}

impl Unread {
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub fn slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Appends received bytes. Capacity doubles, but not past a frame of `wanted` bytes (0: not
    /// known): memory follows what was received, never what a length word announces.
    pub fn append(&mut self, more: &[u8], wanted: usize) {
        if self.start > 0 && self.bytes.len() + more.len() > self.bytes.capacity() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let needed = self.bytes.len() + more.len();
        if needed > self.bytes.capacity() {
            let doubled = self.bytes.capacity().saturating_mul(2).max(4096);
            let most = if wanted == 0 { doubled } else { wanted };
            let target = doubled.min(most).max(needed);
            self.bytes.reserve_exact(target - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
    }

    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len());
        self.start += count;
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > KEPT_CAPACITY {
                self.bytes = Vec::new();
            }
        }
    }
}

/// Where the transport stands with reading a socket.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Reading {
    Idle,
    Armed,
    Stopping,
}

/// What may still happen on a connection.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Stage {
    /// Served.
    Open,
    /// The protocol was told it is closed; what was answered is still being sent.
    Flushing,
    /// Everything sent and the sending side shut: received bytes are thrown away until the end.
    Lingering,
    /// Shut down; freed once the transport has no operation left.
    Shut,
}

pub(crate) struct Connection {
    pub socket: OwnedFd,
    pub peer: SocketAddr,
    pub stage: Stage,
    pub unread: Unread,
    /// Answers not handed to the transport yet.
    pub out: Vec<u8>,
    /// The other of the two swapped send buffers, when the transport does not have it.
    pub spare: Vec<u8>,
    /// Bytes the transport is sending.
    pub sending: usize,
    /// When that began, in milliseconds since the core started.
    pub sending_since_ms: u64,
    /// Unsent bytes as the core has them in its total.
    pub counted_unsent: usize,
    pub holds: Holds,
    pub reading: Reading,
    pub in_flight: u32,
    /// The peer sends no more.
    pub ended: bool,
    /// At least one byte was received: the TLS check is done.
    pub greeted: bool,
    /// In the list of connections to settle at the end of the pass.
    pub listed: bool,
    /// In the queue of connections whose unread bytes are offered again.
    pub queued: bool,
    /// In the queue of connections waiting for reassembly memory.
    pub starved: bool,
    /// Close once `out` is sent.
    pub close_wanted: bool,
    /// Lost, or to be cut: nothing is sent any more.
    pub broken: bool,
    /// When the incomplete frame in `unread` began, in milliseconds since the core started.
    pub frame_since_ms: u64,
    /// The pass in which its requests were handled last.
    pub pass: u64,
    /// How long they took in that pass.
    pub spent: Duration,
    /// Milliseconds since the core started, at the last read or write.
    pub last_active_ms: u64,
}

impl Connection {
    fn new(socket: OwnedFd, peer: SocketAddr, now_ms: u64) -> Self {
        Connection {
            socket,
            peer,
            stage: Stage::Open,
            unread: Unread::default(),
            out: Vec::new(),
            spare: Vec::new(),
            sending: 0,
            sending_since_ms: now_ms,
            counted_unsent: 0,
            holds: Holds::default(),
            reading: Reading::Idle,
            in_flight: 0,
            ended: false,
            greeted: false,
            listed: false,
            queued: false,
            starved: false,
            close_wanted: false,
            broken: false,
            frame_since_ms: now_ms,
            pass: 0,
            spent: Duration::ZERO,
            last_active_ms: now_ms,
        }
    }

    /// Bytes answered and not sent yet.
    pub fn unsent(&self) -> usize {
        self.out.len() + self.sending
    }

    /// Whether the peer sends no more, and everything it asked for is answered and sent.
    pub fn is_finished(&self) -> bool {
        self.ended
            && self.in_flight == 0
            && self.unsent() == 0
            && self.holds.may_parse()
            && !self.queued
    }

    /// Whether bytes should be received, as far as this connection goes.
    pub fn wants_reading(&self, stalled_bytes: usize) -> bool {
        if self.ended || self.close_wanted || self.broken {
            return false;
        }
        match self.stage {
            Stage::Open if self.holds == Holds::default() => true,
            Stage::Open => self.holds.is_short() && self.unread.len() < stalled_bytes,
            Stage::Lingering => true,
            Stage::Flushing | Stage::Shut => false,
        }
    }

    /// Keeps a last piece of what is sent until the end of the stream can go with it.
    pub fn send_with_end(&self) {
        // Without it the end comes a moment after the answers.
        let _ = SockRef::from(&self.socket).set_tcp_cork(true);
    }

    /// Tells the peer that nothing more will be sent.
    pub fn shut_sending(&self) {
        // An error means that the connection is gone already, which reading will tell.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
    }

    /// Ends both directions: pending operations on the socket complete.
    pub fn shut_both(&self) {
        // As above.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    /// Takes the out buffer for sending and puts the spare one in its place.
    pub fn take_out(&mut self) -> Vec<u8> {
        let full = std::mem::replace(&mut self.out, std::mem::take(&mut self.spare));
        self.sending = full.len();
        full
    }

    /// Takes a sent buffer back, for the next swap.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        self.sending = 0;
        buffer.clear();
        if buffer.capacity() > KEPT_CAPACITY {
            return;
        }
        if self.out.is_empty() && self.out.capacity() < buffer.capacity() {
            self.spare = std::mem::replace(&mut self.out, buffer);
        } else {
            self.spare = buffer;
        }
    }

    /// Gives memory back that a quiet connection does not need.
    pub fn release_buffers(&mut self) {
        if self.out.is_empty() {
            self.out = Vec::new();
        }
        self.spare = Vec::new();
        if self.unread.is_empty() {
            self.unread = Unread::default();
        }
    }
}

struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// The connections of a core as the protocol sees them: where answers are written.
pub struct Outbox {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
    /// Connections to settle at the end of the pass: written to, read from, closed.
    pub(crate) touched: Vec<ConnectionId>,
    /// Unsent bytes of all connections, as of the last pass.
    pub(crate) unsent_total: usize,
    /// Over these the core is short of memory for unsent bytes.
    unsent_limit: usize,
    /// Bytes of large answers since then.
    pub(crate) written: usize,
    /// Why the protocol closes a connection.
    pub(crate) blame: Option<String>,
}

/// Whether a protocol should write an answer that may be large.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Room {
    /// Yes.
    Enough,
    /// The connection has too much unsent: it should ask again.
    Crowded,
    /// All connections together have: it should come back later.
    None,
}

impl Outbox {
    pub(crate) fn new(unsent_limit: usize) -> Self {
        Outbox {
            slots: Vec::new(),
            free: Vec::new(),
            live: 0,
            touched: Vec::new(),
            unsent_total: 0,
            unsent_limit,
            written: 0,
            blame: None,
        }
    }

    /// The buffer that answers for `conn` are appended to; sent after the pass. `None`: the
    /// connection is gone.
    pub fn buffer(&mut self, conn: ConnectionId) -> Option<&mut Vec<u8>> {
        self.touch(conn);
        match self.get_mut(conn) {
            Some(open) if open.stage == Stage::Open => Some(&mut open.out),
            _ => None,
        }
    }

    /// The address of the other side. `None`: the connection is gone.
    pub fn peer(&self, conn: ConnectionId) -> Option<SocketAddr> {
        self.get(conn)
            .filter(|open| open.stage == Stage::Open)
            .map(|open| open.peer)
    }

    /// Bytes answered to `conn` and not sent yet: a protocol that can wait should not add to many.
    pub fn unsent(&self, conn: ConnectionId) -> usize {
        self.get(conn).map_or(0, Connection::unsent)
    }

    /// Whether an answer may be written that may be large. A connection may have `most` bytes
    /// unsent, or none when all connections together have too much.
    pub fn room(&self, conn: ConnectionId, most: usize) -> Room {
        if self.is_full() {
            return Room::None;
        }
        let total = self.unsent_total + self.written;
        let most = if total > self.unsent_limit { 0 } else { most };
        if self.unsent(conn) > most {
            Room::Crowded
        } else {
            Room::Enough
        }
    }

    /// Whether all connections together have so much unsent that nobody has room, as
    /// [`Room::None`] says.
    pub fn is_full(&self) -> bool {
        (self.unsent_total + self.written) / 2 > self.unsent_limit
    }

    /// Says why the frame at hand gets [`Verdict::Close`](crate::driver::Verdict::Close), for the
    /// log.
    pub fn blame(&mut self, why: String) {
        self.blame = Some(why);
    }

    /// Notes that an answer of so many bytes was written, for [`Outbox::room`] in the same pass.
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Closes `conn` after the pass, once what was answered so far is sent.
    pub fn close(&mut self, conn: ConnectionId) {
        if let Some(open) = self.get_mut(conn) {
            open.close_wanted = true;
        }
        self.touch(conn);
    }

    /// Counts a request that is answered later and whose answer is certain to come soon (an
    /// append). Long waits, like parked pulls, are not counted: they must not stop reading.
    pub fn request_started(&mut self, conn: ConnectionId) {
        if let Some(open) = self.get_mut(conn) {
            open.in_flight += 1;
        }
    }

    /// The counterpart of [`Outbox::request_started`].
    pub fn request_finished(&mut self, conn: ConnectionId) {
        if let Some(open) = self.get_mut(conn) {
            debug_assert!(open.in_flight > 0, "a request finished that never started");
            open.in_flight = open.in_flight.saturating_sub(1);
        }
        self.touch(conn);
    }

    /// Connections in the table, those being closed included.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is no connection at all.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(crate) fn touch(&mut self, id: ConnectionId) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        if !connection.listed {
            connection.listed = true;
            self.touched.push(id);
        }
    }

    pub(crate) fn insert(
        &mut self,
        socket: OwnedFd,
        peer: SocketAddr,
        now_ms: u64,
    ) -> ConnectionId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                connection: None,
            });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        assert!(slot.connection.is_none());
        slot.generation += 1;
        slot.connection = Some(Box::new(Connection::new(socket, peer, now_ms)));
        self.live += 1;
        ConnectionId::new(index, slot.generation)
    }

    /// Frees the slot: closes the socket. The transport has no operation left on it.
    pub(crate) fn remove(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation != id.generation() {
            return None;
        }
        let connection = slot.connection.take()?;
        self.live -= 1;
        if slot.generation != LAST_GENERATION {
            self.free.push(id.index() as u32);
        }
        Some(connection)
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(id.index())?;
        if slot.generation != id.generation() {
            return None;
        }
        slot.connection.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation != id.generation() {
            return None;
        }
        slot.connection.as_deref_mut()
    }

    /// The id in slot `index`, if a connection is there: for sweeps over all of them.
    pub(crate) fn at(&self, index: usize) -> Option<ConnectionId> {
        let slot = self.slots.get(index)?;
        slot.connection.as_ref()?;
        Some(ConnectionId::new(index as u32, slot.generation))
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn socket() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn an_id_is_not_valid_for_the_next_connection_in_its_slot() {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut table = Outbox::new(usize::MAX);
        let first = table.insert(socket(), peer, 0);
        assert!(table.remove(first).is_some());
        let second = table.insert(socket(), peer, 0);
        assert_eq!(first.index(), second.index());
        assert_ne!(first, second);
        assert!(table.buffer(first).is_none());
        assert!(table.remove(first).is_none());
        assert!(table.buffer(second).is_some());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn an_id_survives_its_way_through_a_completion() {
        let id = ConnectionId::new(0xff_ffff, u32::MAX);
        let tagged = id.bits() << 8 | 0xff;
        assert_eq!(ConnectionId::from_bits(tagged >> 8), id);
    }

    #[test]
    fn unread_memory_follows_what_was_received_not_what_was_announced() {
        let mut unread = Unread::default();
        unread.append(&[0; 100], 16 << 20);
        assert!(unread.capacity() <= 4096);
        for _ in 0..100 {
            unread.append(&[0; 1000], 16 << 20);
            assert!(unread.capacity() <= 2 * unread.len().max(4096));
        }
    }

    #[test]
    fn unread_memory_does_not_grow_past_a_known_frame() {
        let mut unread = Unread::default();
        for _ in 0..10 {
            unread.append(&[0; 1000], 10_000);
        }
        assert_eq!((unread.len(), unread.capacity()), (10_000, 10_000));
    }

    #[test]
    fn a_large_buffer_is_given_back_once_it_is_empty() {
        let mut unread = Unread::default();
        unread.append(&vec![0; 2 * KEPT_CAPACITY], 0);
        unread.consume(2 * KEPT_CAPACITY - 1);
        assert!(unread.capacity() > KEPT_CAPACITY);
        unread.consume(1);
        assert_eq!(unread.capacity(), 0);
    }
}
