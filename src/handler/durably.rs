//! Answers that count once several state files are on disk.

use std::sync::Arc;

use crate::answer::{CoreMessage, Reply, ReplySlot, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::persist::Ticket;

/// Sends `reply` to `slot` once every change of `tickets` is durable, or the error of the first
/// file that cannot be written.
pub fn reply(broker: Arc<Broker>, slot: ReplySlot, mut tickets: Vec<Ticket>, reply: Reply) {
    let Some(ticket) = tickets.pop() else {
        post(&broker, slot, reply);
        return;
    };
    let next = Arc::clone(&broker);
    broker
        .persist
        .when_durable(ticket, move |written| match written {
            Ok(()) => self::reply(next, slot, tickets, reply),
            Err(error) => post(&next, slot, Reply::error(SYSTEM_ERROR, error.to_string())),
        });
}

fn post(broker: &Broker, slot: ReplySlot, reply: Reply) {
    let (conn, to) = (slot.channel.conn, slot.to);
    // Given back only when the core has ended: nobody is left to answer.
    let _ = broker
        .cores
        .post(slot.channel.core, CoreMessage::Reply { conn, to, reply });
}
