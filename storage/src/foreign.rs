//! What Apache RocketMQ can keep in a store directory and this store cannot carry on: looked for
//! before anything is opened, locked or created, so that the directory stays as it was
//! (docs/migration.md, "What is refused").

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::layout::{Layout, LayoutError, entries, list_fixed_files};
use crate::regular;

/// State that Apache keeps in RocksDB below `config/`: directory and what stands in it.
const ROCKS_STATE: [(&str, &str); 5] = [
    ("topics", "topics in RocksDB"),
    ("subscriptionGroups", "consumer groups in RocksDB"),
    ("consumerOffsets", "consumer offsets in RocksDB"),
    ("rdb", "topics, groups and offsets in RocksDB"),
    ("metadata", "topics, groups and offsets in RocksDB"),
];

/// Refuses a directory that holds what would be lost or read wrongly; changes nothing in it.
pub(crate) fn examine(layout: &Layout, log_file_size: u64) -> Result<(), LayoutError> {
    let root = layout.root();
    rocks_queues(&layout.consume_queues())?;
    rocks_queues(&root.join("consumequeue_r"))?;
    for (name, what) in ROCKS_STATE {
        let path = layout.config().join(name);
        if is_database(&path) {
            let instead = "write it as JSON with Apache's own tools and remove the directory";
            return Err(foreign(path, what, instead));
        }
    }
    raft_log(root)?;
    compacted_topics(&root.join("compaction/compactionLog"))?;
    tiers(&layout.config().join("tieredStoreMetadata.json"))?;
    static_topics(&layout.config().join("topicQueueMapping.json"))?;
    list_fixed_files(
        layout.commit_log(),
        log_file_size,
        "mappedFileSizeCommitLog",
    )
    .map(drop)
}

fn foreign(path: PathBuf, what: &'static str, instead: &'static str) -> LayoutError {
    LayoutError::Feature {
        path,
        what,
        instead,
    }
}

/// Whether a directory is a RocksDB database.
fn is_database(directory: &Path) -> bool {
    directory.join("CURRENT").is_file()
}

fn rocks_queues(path: &Path) -> Result<(), LayoutError> {
    if !is_database(path) {
        return Ok(());
    }
    let instead = "remove the directory: the queues are made again from the commit log";
    Err(foreign(path.into(), "consume queues in RocksDB", instead))
}

/// Messages of a raft group are not in the commit log.
fn raft_log(root: &Path) -> Result<(), LayoutError> {
    for path in entries(root)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("dledger-") && path.join("data").is_dir() {
            let instead = "its messages can only be sent again from Apache's broker";
            return Err(foreign(path, "a DLedger log", instead));
        }
    }
    Ok(())
}

/// Compacted topics are read from copies that outlive the commit log's files.
fn compacted_topics(logs: &Path) -> Result<(), LayoutError> {
    match entries(logs)?.into_iter().next() {
        Some(path) => {
            let instead = "delete the topic, or remove the directory to keep only what the commit \
                           log still holds of it";
            Err(foreign(path, "a compacted topic", instead))
        }
        None => Ok(()),
    }
}

fn tiers(path: &Path) -> Result<(), LayoutError> {
    if !path.exists() {
        return Ok(());
    }
    let instead = "remove the file to go on without the messages that only stand there";
    Err(foreign(path.into(), "messages in tiered storage", instead))
}

/// A static topic's queues stand on several brokers under numbers of their own.
fn static_topics(path: &Path) -> Result<(), LayoutError> {
    let bytes = match regular::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            let path = path.into();
            return Err(LayoutError::Directory { path, source });
        }
        Ok(bytes) => bytes,
    };
    // Apache writes the table of a broker that never had one, too: empty.
    let text = String::from_utf8_lossy(&bytes);
    let table: String = text.split_whitespace().collect();
    if table.is_empty() || table.contains("\"topicQueueMappingInfoMap\":{}") {
        return Ok(());
    }
    let instead = "delete these topics on Apache's broker";
    Err(foreign(path.into(), "static topics", instead))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refusal(file: &str, text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        match examine(&Layout::new(dir.path()), 1 << 20) {
            Ok(()) => String::new(),
            Err(error) => error
                .to_string()
                .replace(&format!("{}/", dir.path().display()), ""),
        }
    }

    #[test]
    fn every_feature_that_would_be_lost_is_refused_by_name() {
        for (file, said) in [
            (
                "consumequeue/CURRENT",
                "consumequeue holds consume queues in RocksDB",
            ),
            (
                "consumequeue_r/CURRENT",
                "consumequeue_r holds consume queues in RocksDB",
            ),
            (
                "config/topics/CURRENT",
                "config/topics holds topics in RocksDB",
            ),
            (
                "config/subscriptionGroups/CURRENT",
                "consumer groups in RocksDB",
            ),
            (
                "config/consumerOffsets/CURRENT",
                "consumer offsets in RocksDB",
            ),
            (
                "dledger-n0/data/00000000000000000000",
                "dledger-n0 holds a DLedger log",
            ),
            (
                "compaction/compactionLog/T/0/00000000000000000000",
                "a compacted topic",
            ),
            (
                "config/tieredStoreMetadata.json",
                "messages in tiered storage",
            ),
            ("config/topicQueueMapping.json", "static topics"),
            ("commitlog/README", "commitlog/README does not belong there"),
        ] {
            let error = refusal(file, "{\"topicQueueMappingInfoMap\":{\"T\":{}}}");
            assert!(error.contains(said), "{file}: {error:?}");
        }
    }

    #[test]
    fn what_apache_always_leaves_is_no_reason() {
        for (file, text) in [
            ("compaction/position-checkpoint", "{}"),
            (
                "config/topicQueueMapping.json",
                "{\n\t\"topicQueueMappingInfoMap\":{}\n}",
            ),
            ("config/topics.json", "{}"),
            ("config/topics/notes", ""),
            ("timerlog/00000000000000000000", ""),
        ] {
            assert_eq!(refusal(file, text), "", "{file}");
        }
    }
}
