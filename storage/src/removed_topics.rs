//! Topics that were removed while their messages stand in the log: `saturnmq.removed` at the root
//! of the store (docs/format.md, "Removed topics").
//!
//! Queues are functions of the log, but the log does not say which records are those of a topic
//! that was removed, and perhaps made again since. One line is appended for each removal, durably;
//! a line that was torn or damaged counts as none. Apache RocketMQ does not look at the file.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::error::FileError;
use crate::{medium, regular};

/// More of the file is not read: some million removals.
const SIZE_MAX: u64 = 64 << 20;

/// Log offsets up to which records of topics are those of a removed one.
pub(crate) type RemovedTopics = HashMap<String, u64>;

/// Reads the file; what cannot be read says nothing.
pub(crate) fn load(path: &Path) -> RemovedTopics {
    let mut removed = RemovedTopics::new();
    let size = fs::metadata(path).map_or(0, |found| found.len());
    if size > SIZE_MAX {
        return removed;
    }
    let bytes = regular::read(path).unwrap_or_default();
    for line in String::from_utf8_lossy(&bytes).lines() {
        if let Some((topic, offset)) = parse(line) {
            let at = removed.entry(topic.to_owned()).or_default();
            *at = offset.max(*at);
        }
    }
    removed
}

/// Adds that records of `topic` below `offset` are those of a removed topic, durably.
pub(crate) fn note(path: &Path, topic: &str, offset: u64) -> io::Result<()> {
    let is_new = !path.exists();
    let mut file = medium::name(path, || {
        regular::open_with(path, OpenOptions::new().append(true).create(true))
    })?;
    // A line that was torn ends here.
    file.write_all(format!("\n{}\n", line(topic, offset)).as_bytes())?;
    medium::sync_file(&file)?;
    if is_new {
        medium::sync_directory(path.parent().unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Forgets topics all of whose records stood before `log_min`.
pub(crate) fn forget(path: &Path, removed: &RemovedTopics, log_min: u64) -> Result<(), FileError> {
    if removed.values().all(|offset| *offset > log_min) {
        return Ok(());
    }
    let mut text = String::new();
    for (topic, offset) in removed.iter().filter(|(_, offset)| **offset > log_min) {
        text += &line(topic, *offset);
        text += "\n";
    }
    let temporary = path.with_extension("removed.tmp");
    let replace = || {
        let mut file = medium::name(&temporary, || File::create(&temporary))?;
        file.write_all(text.as_bytes())?;
        medium::sync_file(&file)?;
        medium::rename(&temporary, path)?;
        medium::sync_directory(path.parent().unwrap_or(Path::new(".")))
    };
    replace().map_err(FileError::at("replace", path))
}

fn line(topic: &str, offset: u64) -> String {
    let content = format!("{offset} {topic}");
    format!("{:08x} {content}", crc32fast::hash(content.as_bytes()))
}

fn parse(line: &str) -> Option<(&str, u64)> {
    let (crc, content) = line.split_once(' ')?;
    let crc = u32::from_str_radix(crc, 16).ok()?;
    let (offset, topic) = content.split_once(' ')?;
    let is_whole = crc == crc32fast::hash(content.as_bytes());
    Some((topic, offset.parse().ok()?)).filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_until_the_log_begins_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.removed");
        assert_eq!(load(&path), RemovedTopics::new());
        for (topic, offset) in [("A", 100), ("%RETRY%g", 200), ("A", 300)] {
            note(&path, topic, offset).unwrap();
        }
        let removed = load(&path);
        assert_eq!((removed["A"], removed["%RETRY%g"]), (300, 200));
        forget(&path, &removed, 200).unwrap();
        assert_eq!(load(&path), RemovedTopics::from([("A".to_owned(), 300)]));
    }

    #[test]
    fn a_damaged_line_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.removed");
        note(&path, "First", 100).unwrap();
        let one = fs::read(&path).unwrap();
        for cut in 1..one.len() - 1 {
            fs::write(&path, &one[..cut]).unwrap();
            note(&path, "Second", 200).unwrap();
            assert_eq!(
                load(&path),
                RemovedTopics::from([("Second".to_owned(), 200)])
            );
        }
        for at in 1..one.len() - 1 {
            let mut changed = one.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            note(&path, "Second", 200).unwrap();
            assert_eq!(
                load(&path),
                RemovedTopics::from([("Second".to_owned(), 200)])
            );
        }
    }
}
