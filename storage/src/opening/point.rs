//! The resume point that a start finds, and those that it stores before it changes anything: so a
//! start that is killed leaves a store that the next one opens with the same result.

use super::Opening;
use crate::checkpoint::CheckpointFile;
use crate::error::{FlushError, OpenError};
use crate::format::record::Record;
use crate::layout::LayoutError;
use crate::log_window::{LOOK_BYTES, WindowLimits};
use crate::rebuild::KnownQueue;
use crate::recovery::ScanEnd;
use crate::resume::{ResumeError, ResumePoint, ResumeQueue};
use crate::segments::is_no_space;

impl Opening<'_> {
    pub(super) fn load_resume_point(
        &mut self,
        checkpoint: &CheckpointFile,
    ) -> Result<(), OpenError> {
        let point = match ResumePoint::load(&self.layout.resume()) {
            Ok(Some(point)) => point,
            Ok(None) => return self.check_front(None, true),
            Err(error) => {
                self.report
                    .notes
                    .push(format!("{error}; the whole log is looked at instead"));
                return self.check_front(None, true);
            }
        };
        self.known_to = point.known_to.max(point.log_offset);
        for queue in &point.queues {
            // Removed since: what was made under the name again began anew.
            let removed_at = self.removed.get(&queue.topic);
            if removed_at.is_some_and(|offset| *offset >= point.log_offset) {
                continue;
            }
            let queues = self.known.entry(queue.topic.clone()).or_default();
            let known = KnownQueue {
                min: queue.min_offset,
                max: queue.max_offset,
                next: queue.next_offset,
            };
            queues.insert(queue.queue_id, known);
        }
        let later = last_time(checkpoint) > point.last_timestamp;
        // Whatever another broker did to the log, it did.
        self.foreign = later;
        if !later {
            self.refuse_shrunk()?;
            self.durable_to = self.known_to;
        }
        self.check_front(Some(&point), later)?;
        self.was_in_doubt = point.in_doubt;
        self.began_again = point.in_doubt
            && point.log_offset == point.last_record
            && point.log_offset == self.log_min();
        if !later && !self.began_again && self.confirms(&point)? {
            self.resume = Some(point);
        } else {
            let note = match later {
                true => "the log was written by another broker; all of it is looked at",
                false => "the log is not what the resume point says; all of it is looked at",
            };
            self.report.notes.push(note.into());
        }
        Ok(())
    }

    /// Whether the record that the resume point names as its last is in the log.
    fn confirms(&mut self, point: &ResumePoint) -> Result<bool, OpenError> {
        let range = self.log_min()..=self.log_limit();
        if !range.contains(&point.log_offset) || point.last_record > point.log_offset {
            return Ok(false);
        }
        let size = point.log_offset - point.last_record;
        if size == 0 {
            return Ok(point.log_offset == self.log_min());
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let bytes = self
            .window
            .bytes(point.last_record, size, WindowLimits::QUIET, LOOK_BYTES)?;
        Ok(bytes.is_some_and(|bytes| {
            Record::decode(bytes).is_ok_and(|record| {
                record.size() as usize == size
                    && record.check_place(point.last_record).is_ok()
                    && record.store_timestamp() == point.last_timestamp
            })
        }))
    }

    /// Says which log files are missing before the first one. Retention takes them one after the
    /// other, and none that the resume point does not lie behind; after an orderly stop the resume
    /// point knows what it took.
    fn check_front(&self, point: Option<&ResumePoint>, later: bool) -> Result<(), OpenError> {
        let begins_at = match point {
            Some(point) => point.log_min,
            None => self.first_named()?,
        };
        let log_min = self.log_min();
        let Some(begins_at) = begins_at.filter(|_| !self.bases.is_empty()) else {
            return Ok(());
        };
        let size = self.config.commit_log_file_size;
        let begins_at = begins_at - begins_at % size;
        if begins_at >= log_min {
            return Ok(());
        }
        let first_missing = self.window.path_of(begins_at);
        let retained = point.is_none_or(|point| log_min <= point.log_offset);
        if !later && (self.former.is_closed() || !retained) && !self.config.rebuild_queues {
            return Err(LayoutError::FrontMissing {
                first_missing,
                log_min,
            }
            .into());
        }
        tracing::warn!(
            first_missing = %first_missing.display(),
            log_min,
            files = (log_min - begins_at) / size,
            "log files are missing from the first that is known on; the log begins behind them. If \
             retention did not remove them, stop the broker and put them back"
        );
        Ok(())
    }

    /// Stores which offsets queues have entries for and how far the log goes with them, if the
    /// resume point does not know of them: before an entry is changed, for entries are the only
    /// evidence. And where there is no resume point to go back to, that everything is made again.
    pub(super) fn note_offsets(&mut self, checkpoint: &CheckpointFile) -> Result<(), OpenError> {
        let mut raised = false;
        for ((topic, queue_id), next) in &self.seen.next {
            let queues = self.known.entry(topic.clone()).or_default();
            let known = queues.entry(*queue_id).or_insert(KnownQueue {
                min: None,
                max: 0,
                next: 0,
            });
            raised |= known.next < *next;
            known.next = known.next.max(*next);
        }
        let queues = self.known_queues();
        let known_to = self.durable_to;
        let point = match self.resume.take() {
            Some(point) => {
                raised |= known_to > point.known_to;
                let known_to = known_to.max(point.known_to);
                self.resume.insert(ResumePoint {
                    known_to,
                    queues,
                    ..point
                })
            }
            None if self.bases.is_empty() && self.known_to == 0 => return Ok(()),
            None => {
                let log_min = self.log_min();
                raised = !self.began_again || raised;
                &mut ResumePoint {
                    in_doubt: true,
                    log_offset: log_min,
                    last_record: log_min,
                    last_timestamp: last_time(checkpoint),
                    log_min: Some(log_min),
                    known_to,
                    queues,
                    ..ResumePoint::default()
                }
            }
        };
        let point = point.clone();
        self.noted = Some(point.clone());
        if !raised {
            return Ok(());
        }
        // It says that what queues have entries for is on the disk.
        self.sync_log()?;
        match point.store(&self.layout.resume()) {
            // Sends are refused then, and reads need none of it.
            Err(ResumeError::File { source, .. }) if is_no_space(&source) => {
                tracing::warn!(
                    %source,
                    "if this start is killed, offsets that were given may be given again"
                );
                Ok(())
            }
            stored => Ok(stored.map_err(FlushError::from)?),
        }
    }

    /// Stores where the log ends, if that is before where it had been durable: before its files
    /// behind that are gone, for a start that lacks them is refused.
    pub(super) fn note_shrunk(&mut self, found: &ScanEnd) -> Result<(), OpenError> {
        if self.known_to <= found.end {
            return Ok(());
        }
        self.known_to = found.end;
        // The next one is to be waited for.
        self.whole = true;
        if let Some(point) = self.noted.as_mut() {
            point.known_to = found.end;
            point
                .store(&self.layout.resume())
                .map_err(FlushError::from)?;
        }
        Ok(())
    }

    fn known_queues(&self) -> Vec<ResumeQueue> {
        let mut list = Vec::new();
        for (topic, queues) in &self.known {
            list.extend(queues.iter().map(|(queue_id, known)| ResumeQueue {
                topic: topic.clone(),
                queue_id: *queue_id,
                min_offset: known.min,
                max_offset: known.max,
                next_offset: known.next,
            }));
        }
        list
    }
}

/// Store time of the last record that a checkpoint knows of, ms.
fn last_time(checkpoint: &CheckpointFile) -> i64 {
    let stored = checkpoint.stored();
    stored.log_timestamp.max(stored.queue_timestamp)
}
