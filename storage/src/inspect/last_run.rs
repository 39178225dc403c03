//! What the last run said of the store before it ended: `saturnmq.resume`, `abort`, `checkpoint`.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::Finding;
use crate::format::checkpoint::{CHECKPOINT_FIELDS, Checkpoint};
use crate::former_run::FormerRun;
use crate::layout::Layout;
use crate::regular;
use crate::removed_topics::{self, RemovedTopics};
use crate::resume::{ResumeError, ResumePoint, ResumeQueue};

/// Looks at a resume point that a running broker may just be writing over.
const LOOKS: usize = 5;

/// Everything that was said.
#[derive(Debug)]
pub(crate) struct LastRun {
    /// How it ended.
    pub former: FormerRun,
    /// What the checkpoint holds; zeros without one.
    pub checkpoint: Checkpoint,
    /// The resume point, unless another broker wrote to the store since.
    point: Option<ResumePoint>,
    /// Topics that were removed, with the log offset up to which their records go.
    removed: RemovedTopics,
    /// Its queues, once the log has confirmed it.
    queues: Option<HashMap<String, HashMap<i32, ResumeQueue>>>,
}

impl LastRun {
    /// Reads what is there, and says what cannot be read.
    pub fn of(layout: &Layout) -> (LastRun, Vec<Finding>) {
        let mut misfits = Vec::new();
        let checkpoint = read_checkpoint(&layout.checkpoint()).unwrap_or_else(|error| {
            // What is no file is told with all of its kind.
            if error.kind() != ErrorKind::InvalidInput {
                let problem = format!("it cannot be read: {error}");
                misfits.push(Finding::file(&layout.checkpoint(), problem));
            }
            Checkpoint::default()
        });
        let point = load(&layout.resume()).unwrap_or_else(|error| {
            let problem = match error {
                ResumeError::File { source, .. } if source.kind() == ErrorKind::InvalidInput => {
                    return None;
                }
                ResumeError::Damaged { why, .. } => format!("{why}; the whole log is looked at"),
                ResumeError::File { source, .. } => format!("it cannot be read: {source}"),
            };
            misfits.push(Finding::file(&layout.resume(), problem));
            None
        });
        let newest = checkpoint.log_timestamp.max(checkpoint.queue_timestamp);
        let run = LastRun {
            former: FormerRun::of(layout),
            checkpoint,
            point: point.filter(|point| newest <= point.last_timestamp),
            removed: removed_topics::load(&layout.removed_topics()),
            queues: None,
        };
        (run, misfits)
    }

    /// The resume point: its log offset, and log offset and store time of the last record before.
    pub fn place(&self) -> Option<(u64, u64, i64)> {
        let point = self.point.as_ref()?;
        Some((point.log_offset, point.last_record, point.last_timestamp))
    }

    /// The log holds the record that the resume point names: queues are what it says.
    pub fn confirm(&mut self) {
        let mut queues: HashMap<String, HashMap<i32, ResumeQueue>> = HashMap::new();
        for queue in self.point.iter().flat_map(|point| &point.queues) {
            let removed_at = self.removed.get(&queue.topic);
            if removed_at.is_some_and(|offset| *offset >= self.durable_to()) {
                continue;
            }
            let of_topic = queues.entry(queue.topic.clone()).or_default();
            of_topic.insert(queue.queue_id, queue.clone());
        }
        self.queues = Some(queues);
    }

    /// Size of queue files, in bytes; `None` if it was not noted.
    pub fn queue_file_size(&self) -> Option<u64> {
        let size = self.point.as_ref().map(|point| point.queue_file_size);
        size.filter(|size| *size > 0)
    }

    /// Log offset up to which the log was on the disk; 0 if that is not known.
    pub fn durable_to(&self) -> u64 {
        self.point.as_ref().map_or(0, |point| point.log_offset)
    }

    /// Log offset of the first byte that was kept; `None` if that is not known.
    pub fn log_min(&self) -> Option<u64> {
        self.point.as_ref().and_then(|point| point.log_min)
    }

    /// Whether a start was interrupted that made queues and index again.
    pub fn is_in_doubt(&self) -> bool {
        self.point.as_ref().is_some_and(|point| point.in_doubt)
    }

    /// Whether the resume point tells what queues the record at a log offset belongs to.
    pub fn vouches_for(&self, offset: u64) -> bool {
        self.queues.is_some() && !self.is_in_doubt() && offset < self.durable_to()
    }

    /// What the resume point says of a queue.
    pub fn queue(&self, topic: &str, queue_id: i32) -> Option<&ResumeQueue> {
        self.queues.as_ref()?.get(topic)?.get(&queue_id)
    }

    /// Whether the record at a log offset is one of a topic that was removed behind it.
    pub fn was_removed(&self, topic: &str, offset: u64) -> bool {
        self.removed.get(topic).is_some_and(|end| offset < *end)
    }

    /// Whether the record at a log offset belongs to no queue that there was at the resume point,
    /// or was removed since: its topic was deleted before, and perhaps made again.
    pub fn had_deleted(&self, (topic, queue_id, at): (&str, i32, u64), offset: u64) -> bool {
        let below = |limit: i64| u64::try_from(limit).is_ok_and(|limit| at < limit);
        if self.was_removed(topic, offset) {
            return true;
        }
        self.vouches_for(offset)
            && self
                .queue(topic, queue_id)
                .is_none_or(|queue| !below(queue.max_offset) || queue.min_offset.is_some_and(below))
    }
}

/// The resume point; while a broker runs the file may change below the look.
fn load(path: &Path) -> Result<Option<ResumePoint>, ResumeError> {
    for _ in 1..LOOKS {
        if let Ok(point) = ResumePoint::load(path) {
            return Ok(point);
        }
    }
    ResumePoint::load(path)
}

fn read_checkpoint(path: &Path) -> std::io::Result<Checkpoint> {
    let mut bytes = Vec::new();
    match regular::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        file => {
            let fields = file?.take(CHECKPOINT_FIELDS as u64);
            let mut fields = fields;
            fields.read_to_end(&mut bytes)?;
        }
    }
    Ok(Checkpoint::decode(&bytes))
}
