//! What is written to connections that did not ask at this moment: late answers, and requests of
//! the broker itself. Not reading a connection stops neither, so each asks for room first
//! (docs/design.md, Network cores).

use saturnmq_net::command::ReplyTo;
use saturnmq_net::driver::{ConnectionId, Outbox, Room};

use crate::answer::Reply;
use crate::core::write_reply;

/// Bytes not sent to a client above which it gets no messages and no requests of the broker.
pub const CROWDED: usize = 4 << 20;
/// Bytes not sent to a client above which late answers that are large give way to flow control.
const CROWDED_LATE: usize = 16 << 20;
/// Up to here a body is small: such answers are bounded by their number.
const SMALL: usize = 4 << 10;

/// Writes an answer that another thread made; one that is large and finds no room gives way to
/// flow control.
pub fn write_late(io: &mut Outbox, conn: ConnectionId, to: ReplyTo, reply: &Reply) {
    if reply.body.len() > SMALL && io.room(conn, CROWDED_LATE) != Room::Enough {
        write_reply(io, conn, to, &Reply::overload());
    } else {
        write_reply(io, conn, to, reply);
    }
}

/// Whether the client gets a request of the broker with so many bytes.
pub fn is_for(io: &Outbox, conn: ConnectionId, bytes: usize) -> bool {
    match io.room(conn, CROWDED) {
        Room::Enough => true,
        Room::Crowded => bytes <= SMALL && io.unsent(conn) <= CROWDED,
        Room::None => false,
    }
}

/// Writes a request of the broker; false if there is no room for it.
pub fn push(io: &mut Outbox, conn: ConnectionId, frame: &[u8]) -> bool {
    if !is_for(io, conn, frame.len()) {
        return false;
    }
    if let Some(out) = io.buffer(conn) {
        out.extend_from_slice(frame);
        io.wrote(frame.len());
    }
    true
}
