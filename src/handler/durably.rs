//! Answers that count once several state files are on disk.

use std::sync::Arc;

use crate::answer::{CoreMessage, Reply, ReplySlot, SYSTEM_ERROR, WorkJob};
use crate::broker::Broker;
use crate::persist::Ticket;
use crate::services::{Job, ServiceContext, Work};

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

/// Goes on with `job` on the services thread once the change is durable: no message is acknowledged
/// in a topic that a crash may take away.
pub fn then(services: &ServiceContext, ticket: Ticket, slot: ReplySlot, job: WorkJob) {
    let broker = Arc::clone(&services.broker);
    services
        .broker
        .persist
        .when_durable(ticket, move |written| {
            let work = Work::Open(job);
            let refused = match written {
                Ok(()) => {
                    let job = Job::of_any_time(slot, work);
                    match broker.services.submit(job) {
                        Ok(()) => return,
                        Err(_) => Reply::overload(),
                    }
                }
                Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
            };
            post(&broker, slot, refused);
        });
}

fn post(broker: &Broker, slot: ReplySlot, reply: Reply) {
    let (conn, to) = (slot.channel.conn, slot.to);
    // Given back only when the core has ended: nobody is left to answer.
    let _ = broker
        .cores
        .post(slot.channel.core, CoreMessage::Reply { conn, to, reply });
}
