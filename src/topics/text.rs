//! The text of `topics.json`. What was written of the topics is kept, some 200 bytes each: one that
//! is made only adds to it, so that making many does not write all of them again each time.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Topic, Topics};
use crate::core::off_the_cores;
use crate::state_json::JsonWriter;

/// What of the text stays from one to the next.
#[derive(Default)]
pub(super) struct Kept {
    written: Mutex<Written>,
    since: Mutex<Since>,
}

/// The members of `topicConfigTable` in the last text.
#[derive(Default)]
struct Written {
    members: String,
    /// Whether they are all that there were; not at the start, nor after a panic.
    sound: bool,
}

/// What became of the table since the last text; guarded by the table's lock, too.
#[derive(Default)]
struct Since {
    /// Topics that were made, in file order.
    made: Vec<Arc<Topic>>,
    /// Something else changed: nothing is kept.
    altered: bool,
}

impl Kept {
    /// The caller holds the table's lock.
    pub(super) fn made(&self, topic: &Arc<Topic>) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if !since.altered {
            since.made.push(Arc::clone(topic));
        }
    }

    /// A topic was altered or removed; the caller holds the table's lock.
    pub(super) fn altered(&self) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.made = Vec::new();
        since.altered = true;
    }

    fn take(&self) -> Since {
        std::mem::take(&mut *self.since.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Topics {
    /// The text of `topics.json`.
    pub fn text(&self) -> String {
        off_the_cores();
        let mut written = self
            .kept
            .written
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let was_sound = std::mem::replace(&mut written.sound, false);
        let version = self.lock();
        let since = self.kept.take();
        let topics = if since.altered || !was_sound {
            written.members.clear();
            self.in_file_order()
        } else {
            since.made
        };
        let of = *version;
        drop(version);
        let members = std::mem::take(&mut written.members);
        let mut table = JsonWriter::within(1, members);
        for topic in topics {
            topic.config.write(&mut table, self.generation);
        }
        written.members = table.unfinished();
        written.sound = true;
        let mut out = JsonWriter::new();
        of.write(&mut out, self.generation);
        out.object("topicConfigTable");
        out.members(&written.members);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::persist::{File, Persist, StateSource};
    use crate::topics::tests::system;
    use crate::topics::{TopicConfig, Topics};
    use std::sync::Arc;

    /// Writes nothing: the text of a table that was made whole.
    fn whole(topics: &Topics) -> String {
        topics.kept.altered();
        topics.text()
    }

    #[test]
    fn a_text_that_only_grew_is_the_one_that_is_written_whole() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let persist = Arc::new(Persist::new(dir.path()));
        let topics = Topics::load(Arc::clone(&persist), &system()).expect("loaded");
        let first = topics.text();
        assert_eq!(first, whole(&topics));
        for name in ["grown-b", "grown-a"] {
            topics.create_or_update(TopicConfig::new(name, 4, 6));
            assert!(topics.text().contains(name));
        }
        let grown = topics.text();
        assert_eq!(grown, whole(&topics));
        assert!(grown.find("grown-b") < grown.find("grown-a"), "as made");

        topics.create_or_update(TopicConfig::new("grown-b", 8, 4));
        topics.create_or_update(TopicConfig::new("grown-c", 1, 6));
        let altered = topics.text();
        assert_ne!(altered, grown);
        assert_eq!(altered, whole(&topics));
        topics.remove("grown-b");
        let removed = topics.text();
        assert!(!removed.contains("grown-b") && removed.contains("grown-c"));
        topics.create_or_update(TopicConfig::new("grown-b", 4, 6));
        let again = topics.text();
        assert!(again.find("grown-c") < again.find("grown-b"), "made anew");
        assert_eq!(again, whole(&topics));
    }

    #[test]
    fn what_a_panic_left_of_the_text_is_not_written() {
        struct Source(Topics);
        impl StateSource for Source {
            fn text(&self, file: File) -> Option<String> {
                (file == File::Topics).then(|| self.0.text())
            }
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let persist = Arc::new(Persist::new(dir.path()));
        let source = Source(Topics::load(Arc::clone(&persist), &system()).expect("loaded"));
        persist.flush(&source).expect("written");
        {
            let mut written = source.0.kept.written.lock().expect("no panic yet");
            written.sound = false;
            written.members.truncate(7);
        }
        source.0.create_or_update(TopicConfig::new("after", 4, 6));
        persist.flush(&source).expect("written");
        let read = std::fs::read_to_string(persist.path(File::Topics)).expect("file");
        assert_eq!(read, whole(&source.0));
    }
}
