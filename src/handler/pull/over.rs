//! Waits that are over.

use std::time::Instant;

use saturnmq_net::driver::Outbox;

use super::{LOOKS_TIME, Read, Waiting, again, answer_end, gone, is_outdated, nowhere, read};
use crate::core::Core;

/// Waits that are over are answered so many at a time, between looks at the clock.
const AT_ONCE: usize = 64;

/// Answers what has waited long enough; what is too much for a pass is due in the next one still.
pub(super) fn expire_all(core: &mut Core, now: Instant, io: &mut Outbox) {
    let began = Instant::now();
    let mut expired = std::mem::take(&mut core.pulls.expired);
    loop {
        core.pulls.parked.expired(now, AT_ONCE, &mut expired);
        if expired.is_empty() {
            break;
        }
        for index in expired.drain(..) {
            expire(core, index, io);
        }
        if began.elapsed() >= LOOKS_TIME {
            break;
        }
    }
    core.pulls.expired = expired;
}

/// A wait is over: whatever there is now is the answer.
pub(super) fn expire(core: &mut Core, index: u32, io: &mut Outbox) {
    let Some((conn, waiting)) = core.pulls.parked.take_owned(index) else {
        return;
    };
    let mut pull = match waiting {
        Waiting::Message(pull) | Waiting::Dispatch(pull, _) => pull,
        Waiting::QueueEnd(to, queue) => return answer_end(conn, to, &queue, io),
    };
    if core.broker.topics.get(&pull.topic.config.name).is_none() {
        return gone(&pull, conn, io);
    }
    if is_outdated(core, &mut pull) {
        return again(&pull, conn, io);
    }
    if let Read::Nothing(pulled) = read(core, conn, &mut pull, io) {
        nowhere(core, &pull, &pulled, conn, io);
    }
}
