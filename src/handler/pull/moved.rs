//! Waiting pulls of a queue in which a group was moved.

use saturnmq_net::driver::Outbox;

use super::{Waiting, again};
use crate::core::Core;

/// Has every pull that waits for a message of queue `slot` asked again, whatever its group: the
/// next one is told where its group was moved.
pub fn ask_again(core: &mut Core, slot: u32, io: &mut Outbox) {
    // Not the list that `wake` is still walking.
    let mut found = Vec::new();
    core.pulls.parked.waiting_for(slot, &mut found);
    for index in found {
        let waiting = core.pulls.parked.get(index);
        if let Some((conn, Waiting::Message(pull))) = waiting {
            again(pull, conn, io);
            core.pulls.parked.take(index);
        }
    }
}
