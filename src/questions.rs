//! Questions that tools ask clients through the broker: sent to the client as requests of the
//! broker, answered to the tool with what the client says.

use std::collections::HashMap;
use std::time::Instant;

use saturnmq_net::command::Command;
use saturnmq_net::driver::{ConnectionId, Outbox};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::Codec;

use crate::answer::{Ask, CoreDirectory, CoreMessage, Reply, ReplySlot, SUCCESS};
use crate::handler::client::next_opaque;
use crate::handler::consumer_status::Part;
use crate::room;

/// Most questions open on one core; each belongs to a request that some core admitted.
const MAX_OPEN: usize = 4096;

/// What becomes of a client's answer.
#[derive(Debug)]
pub enum Then {
    /// It is the answer to whoever asked.
    Relay,
    /// This is, if the client says 0; else the question's `late`.
    Confirm(Reply),
    /// It is one of several, which are answered together.
    Gather(Box<Part>),
}

struct Open {
    slot: ReplySlot,
    then: Then,
    deadline: Instant,
    late: Reply,
}

impl Open {
    /// Answers with `reply`, or with `late` if there is none.
    fn settle(self, cores: &CoreDirectory, reply: Option<Reply>) {
        let reply = match (self.then, reply) {
            (Then::Confirm(confirm), Some(reply)) if reply.code == SUCCESS => Some(confirm),
            (Then::Confirm(_), _) => Some(self.late),
            (Then::Relay, reply) => Some(reply.unwrap_or(self.late)),
            (Then::Gather(part), reply) => part.answered(&reply.unwrap_or(self.late)),
        };
        if let Some(reply) = reply {
            settle(cores, self.slot, reply);
        }
    }
}

/// The open questions to the clients of one core.
#[derive(Default)]
pub struct Questions {
    open: HashMap<(ConnectionId, i32), Open>,
    /// Not after the earliest deadline; answers leave it as it is until it comes.
    earliest: Option<Instant>,
}

impl Questions {
    /// Sends a question to a client of this core, for whoever waits at the slot.
    pub fn put(
        &mut self,
        cores: &CoreDirectory,
        ask: Ask,
        slot: ReplySlot,
        then: Then,
        io: &mut Outbox,
    ) {
        let open = Open {
            slot,
            then,
            deadline: Instant::now() + ask.timeout,
            late: ask.late,
        };
        let conn = ask.channel.conn;
        let room = self.open.len() < MAX_OPEN && room::is_for(io, conn, ask.body.len());
        let Some(out) = io.buffer(conn).filter(|_| room) else {
            return open.settle(cores, None);
        };
        let opaque = next_opaque();
        let mut encoder = Encoder::request(out, Codec::Json, ask.code, opaque, false);
        for (name, value) in &ask.fields {
            encoder.field_str(name, value);
        }
        encoder.body(&ask.body);
        io.wrote(ask.body.len());
        self.keep((conn, opaque), open);
    }

    fn keep(&mut self, key: (ConnectionId, i32), open: Open) {
        let first = self.earliest.unwrap_or(open.deadline);
        self.earliest = Some(first.min(open.deadline));
        self.open.insert(key, open);
    }

    /// Relays a client's answer; answers to nothing are ignored.
    pub fn answered(&mut self, cores: &CoreDirectory, conn: ConnectionId, answer: &Command<'_>) {
        let Some(open) = self.open.remove(&(conn, answer.opaque)) else {
            return;
        };
        let reply = Reply {
            code: answer.code,
            remark: answer.remark.map(|remark| remark.to_owned().into()),
            fields: Vec::new(),
            body: answer.body.to_vec(),
        };
        open.settle(cores, Some(reply));
    }

    /// The connection is gone: nobody answers.
    pub fn closed(&mut self, cores: &CoreDirectory, conn: ConnectionId) {
        self.end(cores, |(asked, _), _| *asked == conn);
    }

    /// Gives up on questions whose time is over.
    pub fn expire(&mut self, cores: &CoreDirectory, now: Instant) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.end(cores, |_, open| open.deadline <= now);
            self.earliest = self.open.values().map(|open| open.deadline).min();
        }
    }

    /// When the next question's time may be over.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    fn end(&mut self, cores: &CoreDirectory, over: impl Fn(&(ConnectionId, i32), &Open) -> bool) {
        for (_, open) in self.open.extract_if(|key, open| over(key, open)) {
            open.settle(cores, None);
        }
    }
}

fn settle(cores: &CoreDirectory, slot: ReplySlot, reply: Reply) {
    let conn = slot.channel.conn;
    // Given back only when the core has ended: nobody is left to answer.
    let _ = cores.post(
        slot.channel.core,
        CoreMessage::Reply {
            conn,
            to: slot.to,
            reply,
        },
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use saturnmq_net::command::ReplyTo;

    use super::*;
    use crate::answer::Channel;

    #[test]
    fn the_next_deadline_is_kept_and_never_later_than_a_question_s() {
        let (cores, _inboxes) = CoreDirectory::new(1, 1);
        let conn = ConnectionId::from_bits(7);
        let slot = ReplySlot {
            channel: Channel { core: 0, conn },
            to: ReplyTo {
                codec: Codec::Json,
                opaque: 0,
                oneway: false,
                version: 479,
                code: 307,
            },
        };
        let now = Instant::now();
        let mut asked = Questions::default();
        for (opaque, seconds) in [(1, 5), (2, 1), (3, 9)] {
            let open = Open {
                slot,
                then: Then::Relay,
                deadline: now + Duration::from_secs(seconds),
                late: Reply::success(),
            };
            asked.keep((conn, opaque), open);
        }
        assert_eq!(asked.next_deadline(), Some(now + Duration::from_secs(1)));
        asked.expire(&cores, now + Duration::from_secs(1));
        assert_eq!(asked.next_deadline(), Some(now + Duration::from_secs(5)));
        asked.closed(&cores, conn);
        asked.expire(&cores, now + Duration::from_secs(5));
        assert_eq!(asked.next_deadline(), None);
    }
}
