//! Says what a former run had and the log has no more.

use super::Opening;
use crate::error::OpenError;
use crate::former_run::FormerRun;
use crate::layout::LayoutError;
use crate::queue_table::QueueTable;
use crate::rebuild::{EntryPlace, KnownQueues};
use crate::recovery::Scanned;

impl Opening<'_> {
    /// Refuses a log whose files end before the resume point, up to which the last run had made it
    /// durable, before anything is changed: no crash explains it, and a disk that is not mounted
    /// does. Who asks for queues to be made again from what there is gets that.
    pub(super) fn refuse_shrunk(&self) -> Result<(), OpenError> {
        self.refuse_ending_before(self.known_to)
    }

    /// The same, where the newest queue entries name what is missing: after a crash that leaves a
    /// bound each of them was made of a record that was on the disk. One alone may be damaged.
    pub(super) fn refuse_lost_files(&self) -> Result<(), OpenError> {
        if !matches!(self.former, FormerRun::Bounded(_)) || self.seen.beyond < 2 {
            return Ok(());
        }
        self.refuse_ending_before(self.seen.beyond_to)
    }

    fn refuse_ending_before(&self, known_to: u64) -> Result<(), OpenError> {
        let end = self.log_limit();
        if end >= known_to || self.config.rebuild_queues {
            return Ok(());
        }
        let directory = self.layout.commit_log().to_path_buf();
        Err(LayoutError::Shrunk {
            directory,
            end,
            known_to,
        }
        .into())
    }
}

impl Opening<'_> {
    /// Tells what queue entries know of messages that the log does not have, where no resume point
    /// does.
    pub(super) fn tell_gone(&self, log_end: u64) {
        let messages = self.seen.behind(log_end);
        if messages == 0 || self.known_to > log_end {
            return;
        }
        tracing::warn!(
            path = %self.window.path_of(log_end).display(),
            log_end,
            messages,
            "queue entries name messages behind the log's end: they are gone. A power cut takes \
             messages so only under ASYNC_FLUSH; if a file of the log is missing or was replaced, \
             stop the broker before anybody sends, put it back and start once with \
             --rebuild-queues"
        );
    }

    /// Tells a record that says it belongs elsewhere than the queue entry that was made of it: its
    /// header is damaged, and its message is missing in the queue that it was sent to.
    pub(super) fn tell_moved(&self, scanned: &Scanned<'_>, stood: &EntryPlace<'_>) {
        let (record, offset) = (&scanned.record, scanned.offset);
        let EntryPlace {
            topic,
            queue_id,
            queue_offset,
        } = stood;
        tracing::warn!(
            path = %self.window.path_of(offset).display(),
            offset,
            entry = %format_args!("{topic}/{queue_id}@{queue_offset}"),
            record = %format_args!(
                "{}/{}@{}", record.topic(), record.queue_id(), record.queue_offset()
            ),
            "the record at this log offset is of another place than the queue entry that was made \
             of it: its header is damaged, and the entry goes"
        );
    }
}

/// Tells if the log ends before `known_to`, up to which a former run had made it durable: before
/// the entries of what is missing are cut off.
pub(super) fn tell(
    table: &QueueTable,
    known: &KnownQueues,
    known_to: u64,
    log_end: u64,
) -> Result<(), OpenError> {
    let Some(bytes) = known_to.checked_sub(log_end).filter(|bytes| *bytes > 0) else {
        return Ok(());
    };
    tracing::error!(
        log_end,
        known_to,
        bytes,
        messages = messages_lost(table, known, log_end)?,
        "the log ends before where the last run had made it durable: the messages between are \
         gone, and their queue entries are cut off. If files were replaced (storePathCommitLog), \
         stop the broker before anybody sends, put them back and start once with \
         --rebuild-queues; otherwise nothing is to be done"
    );
    Ok(())
}

/// Messages of all queues of which the log has no record any more.
fn messages_lost(table: &QueueTable, known: &KnownQueues, log_end: u64) -> Result<u64, OpenError> {
    let mut lost = 0;
    for (topic, queues) in known {
        for (queue_id, known) in queues {
            let kept = match table.get(topic, *queue_id) {
                Some(queue) => queue.end_below(queue.max_offset(), log_end)?,
                None => 0,
            };
            let from = kept.max(known.min.unwrap_or(0));
            lost += u64::try_from(known.max.saturating_sub(from)).unwrap_or(0);
        }
    }
    Ok(lost)
}
