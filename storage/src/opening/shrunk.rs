//! Says what a former run had and the log has no more.

use crate::queue_table::QueueTable;
use crate::rebuild::KnownQueues;

/// Warns if the log ends before `known_to`, up to which a former run had synced it.
pub(super) fn tell(table: &QueueTable, known: &KnownQueues, known_to: u64, log_end: u64) {
    let Some(bytes) = known_to.checked_sub(log_end).filter(|bytes| *bytes > 0) else {
        return;
    };
    tracing::warn!(
        log_end,
        known_to,
        bytes,
        messages = messages_lost(table, known),
        "the log ends before where the last run had it: these messages are gone. If its disk is \
         not mounted or files were moved (storePathCommitLog), stop the broker before anybody \
         sends, put them back and start once with --rebuild-queues; otherwise nothing is to be done"
    );
}

/// Messages of all queues behind where each ends now.
fn messages_lost(table: &QueueTable, known: &KnownQueues) -> u64 {
    let queues = known.iter().flat_map(|(topic, queues)| {
        queues.iter().map(move |(queue_id, known)| {
            let max = table
                .get(topic, *queue_id)
                .map_or(0, |queue| queue.max_offset());
            let from = max.max(known.min.unwrap_or(0));
            u64::try_from(known.max.saturating_sub(from)).unwrap_or(0)
        })
    });
    queues.sum()
}
