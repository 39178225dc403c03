//! Waiting pulls of a queue in which a group was moved, or whose topic was removed.

use saturnmq_net::driver::Outbox;

use super::{Waiting, again, gone};
use crate::core::Core;

/// Has every pull that waits for a message of queue `slot` asked again, whatever its group: the
/// next one is told where its group was moved, or is one of a topic that was made anew.
pub fn ask_again(core: &mut Core, slot: u32, io: &mut Outbox) {
    // Not the list that `wake` is still walking.
    let mut found = Vec::new();
    core.pulls.parked.waiting_for(slot, &mut found);
    for index in found {
        let waiting = core.pulls.parked.get(index);
        if let Some((conn, Waiting::Message(pull))) = waiting {
            match core.broker.topics.get(&pull.topic.config.name) {
                Some(_) => again(pull, conn, io),
                None => gone(pull, conn, io),
            }
            core.pulls.parked.take(index);
        }
    }
}
