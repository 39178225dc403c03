//! What of a topic is not on the disk yet, and what relies on it.

use super::{Topic, TopicConfig};
use crate::persist::Ticket;

/// The changes of a topic that a crash may take back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    /// Its making.
    made: Option<Ticket>,
    /// Its last change.
    last: Option<Ticket>,
    /// Queues from 0 on that it has whichever of its changes a crash takes.
    kept: i32,
}

impl Pending {
    /// A topic that was made by this change; `None`: one that was read from the disk.
    pub(super) fn made(by: Option<Ticket>) -> Self {
        Self {
            made: by,
            last: by,
            kept: 0,
        }
    }

    /// The same topic after another change; `before` is what was configured until then.
    pub(super) fn altered(
        self,
        by: Option<Ticket>,
        before: &TopicConfig,
        is_durable: impl Fn(Ticket) -> bool,
    ) -> Self {
        let queues = before.read_queues.min(before.write_queues);
        Self {
            made: self.made.filter(|made| !is_durable(*made)),
            last: by,
            kept: match self.last {
                Some(last) if !is_durable(last) => queues.min(self.kept),
                _ => queues,
            },
        }
    }

    /// The change without which what is stored in a queue could not be read.
    fn awaited(&self, queue_id: i32) -> Option<Ticket> {
        if queue_id < self.kept {
            self.made
        } else {
            self.last
        }
    }
}

impl Topic {
    /// The change that made or last altered this topic, unless it was read from disk.
    pub fn ticket(&self) -> Option<Ticket> {
        self.pending.last
    }

    /// The change that must be on the disk before anything is acknowledged in that queue: the
    /// topic's making, or the one that may have added the queue. Other changes take nothing with
    /// them: as long as they cannot be written, the queues that there were go on.
    pub fn awaited(&self, queue_id: i32) -> Option<Ticket> {
        self.pending.awaited(queue_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::{File, Persist};

    #[test]
    fn queues_that_were_there_wait_for_the_making_of_their_topic_and_new_ones_for_their_own() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let persist = Persist::new(dir.path());
        let [making, second, third, fourth] = [(); 4].map(|()| persist.changed(File::Topics));
        let config = |queues| TopicConfig::new("T", queues, 6);
        let nothing = |_: Ticket| false;
        let the_making = |ticket: Ticket| ticket == making;

        let made = Pending::made(Some(making));
        assert_eq!(made.awaited(0), Some(making));
        let early = made.altered(Some(second), &config(4), nothing);
        assert_eq!(early.awaited(0), Some(second), "nothing is on the disk");
        let grown = made.altered(Some(second), &config(4), the_making);
        assert_eq!((grown.awaited(3), grown.awaited(4)), (None, Some(second)));
        // Not written yet, it shrinks and grows again: a crash may leave what was in between.
        let shrunk = grown.altered(Some(third), &config(8), the_making);
        assert_eq!((shrunk.awaited(3), shrunk.awaited(4)), (None, Some(third)));
        let again = shrunk.altered(Some(fourth), &config(2), the_making);
        assert_eq!((again.awaited(1), again.awaited(2)), (None, Some(fourth)));
        let loaded = Pending::default().altered(Some(second), &config(8), nothing);
        assert_eq!((loaded.awaited(7), loaded.awaited(8)), (None, Some(second)));
    }
}
