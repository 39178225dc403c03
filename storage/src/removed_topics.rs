//! Topics that were removed while their messages stand in the log: `saturnmq.removed` at the root
//! of the store (docs/format.md, "Removed topics").
//!
//! Queues are functions of the log, but the log does not say which records are those of a topic
//! that was removed, and perhaps made again since. One line is appended for each removal, durably;
//! a line that was torn or damaged counts as none. Apache RocketMQ does not look at the file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use crate::error::FileError;
use crate::medium;

/// Longest line, in bytes; a longer one is damage.
const LINE_MAX: u64 = 4096;

/// Log offsets up to which records of topics are those of a removed one.
pub(crate) type RemovedTopics = HashMap<String, u64>;

/// Reads the file; what cannot be read says nothing.
pub(crate) fn load(path: &Path) -> RemovedTopics {
    let mut removed = RemovedTopics::new();
    let Ok(file) = File::open(path) else {
        return removed;
    };
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    // However long the file is: without its line a topic would come back.
    loop {
        line.clear();
        let read = (&mut file).take(LINE_MAX).read_until(b'\n', &mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return removed;
        }
        let text = str::from_utf8(line.trim_ascii_end()).unwrap_or_default();
        if let Some((topic, offset)) = parse(text) {
            let at = removed.entry(topic.to_owned()).or_default();
            *at = offset.max(*at);
        }
    }
}

/// Adds that records of `topic` below `offset` are those of a removed topic, durably.
pub(crate) fn note(path: &Path, topic: &str, offset: u64) -> io::Result<()> {
    let is_new = !path.exists();
    let mut file = medium::name(path, || {
        OpenOptions::new().append(true).create(true).open(path)
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
    use std::fs;

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
    fn a_long_file_brings_no_removed_topic_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.removed");
        note(&path, "First", 100).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut damaged = vec![b'x'; 1 << 20];
        damaged.push(b'\n');
        for _ in 0..65 {
            file.write_all(&damaged).unwrap();
        }
        note(&path, "Last", 200).unwrap();
        let removed = load(&path);
        assert_eq!((removed["First"], removed["Last"]), (100, 200));
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
