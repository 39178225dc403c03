//! Topics that are removed from a running store.

use std::sync::Arc;

use super::Store;
use crate::consume_queue::ConsumeQueueError;
use crate::queue_table::Queue;
use crate::queue_table::removal::TopicRemoval;
use crate::removed_topics;

impl Store {
    /// Removes a topic's queues and returns those that there were. May wait for the disk. Their
    /// files go in the background.
    pub fn remove_topic(&self, topic: &str) -> Result<Arc<Vec<Arc<Queue>>>, ConsumeQueueError> {
        let removal = self.begin_removal(topic);
        removal.map_or_else(
            || Ok(Arc::default()),
            |removal| self.finish_removal(topic, removal),
        )
    }

    /// Takes a topic's queues out of the table, without a wait: the first half of
    /// [`Self::remove_topic`]. Queues that are made under its name take nothing before the second.
    pub fn begin_removal(&self, topic: &str) -> Option<TopicRemoval<'_>> {
        self.table.begin_removal(topic)
    }

    /// The second half of [`Self::remove_topic`].
    pub fn finish_removal(
        &self,
        topic: &str,
        removal: TopicRemoval<'_>,
    ) -> Result<Arc<Vec<Arc<Queue>>>, ConsumeQueueError> {
        let removed = removal.finish(|| {
            self.watermarks.wait_for_staging();
            // Whatever stands behind that is of a topic that is made again.
            let (path, end) = (self.layout.removed_topics(), self.watermarks.appended());
            removed_topics::note(&path, topic, end)
                .map_err(|source| ConsumeQueueError::File { path, source })
        });
        self.leftovers.sweep();
        if let Some(running) = self.running().as_ref() {
            running.flusher.request();
        }
        removed
    }
}
