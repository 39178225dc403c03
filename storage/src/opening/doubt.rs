//! Whether queues and index are what the resume point says.
//!
//! While they are made again from the log, what stands in them is neither what was nor what is to
//! be. A start that ends meanwhile leaves them so, perhaps in the page cache alone, and their ends
//! look right. So the resume point says beforehand that nothing of them is to be believed, and
//! every later start makes them again until one has come to its end.

use super::Opening;
use crate::error::{FlushError, OpenError};
use crate::queue_table::QueueTable;

impl Opening<'_> {
    /// Whether a start was interrupted that made queues and index again.
    pub(super) fn in_doubt(&self) -> bool {
        self.resume.as_ref().is_some_and(|point| point.in_doubt)
    }

    /// Says so durably, before anything below the resume point is changed.
    pub(super) fn doubt(&mut self) -> Result<(), OpenError> {
        if let Some(point) = self.resume.as_mut().filter(|point| !point.in_doubt) {
            point.in_doubt = true;
            point
                .store(&self.layout.resume())
                .map_err(FlushError::from)?;
        }
        Ok(())
    }

    /// Whether a queue begins behind or ends before what the resume point says of it, or may.
    pub(super) fn lags(&self, table: &QueueTable) -> bool {
        let lags = self.known.iter().any(|(topic, queues)| {
            queues.iter().any(|(queue_id, known)| {
                let Some(queue) = table.get(topic, *queue_id) else {
                    return known.max > 0;
                };
                let readable = known.min.filter(|min| *min < known.max);
                known.max > queue.max_offset()
                    || readable.is_some_and(|min| min < queue.first_stored())
            })
        });
        lags || self.in_doubt()
    }
}
