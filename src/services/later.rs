//! Work in turns: what takes long goes on after the other jobs that wait.

use super::{Job, ServiceContext, Work};
use crate::answer::{Reply, ReplySlot, WorkJob};

impl ServiceContext {
    /// Goes on with `job` when those that wait have had their turn; when too many wait, the
    /// request is answered that there is too much to do.
    pub(crate) fn go_on_later(&self, slot: ReplySlot, job: WorkJob) {
        let job = Job::of_any_time(slot, Work::Open(job));
        if self.broker.services.submit(job).is_err() {
            self.reply(slot, Reply::overload());
        }
    }
}
