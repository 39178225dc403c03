//! Names and places of a store's files, and what may lie beside them
//! (docs/format.md, Directory layout).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::names::is_directory_name;
use crate::{regular, side_by_side};

/// Digits of the name of a commit-log or consume-queue file.
pub const NAME_DIGITS: usize = 20;

/// Why a directory of the store is not what it must be.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// A directory cannot be read.
    #[error("cannot read directory {path}: {source}")]
    Directory {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory, or a link that leads nowhere, where the store has a file, or the reverse.
    #[error(
        "{path} is {found}, but the store has a {wanted} there; move it to another directory: the \
         broker makes what it needs"
    )]
    Kind {
        /// Which one.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
        /// What must stand there, or nothing.
        wanted: &'static str,
    },
    /// Something that Apache RocketMQ would refuse to start on.
    #[error("{path} does not belong there: {why}; move it to another directory")]
    Foreign {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file has another size than configured.
    #[error(
        "{path} has {found} bytes, {expected} are configured ({key}): set {key} to the size that \
         its files have; if only this one differs, it was cut or is no file of the store: put back \
         a whole copy, or move it and every later file to another directory"
    )]
    Size {
        /// Which file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
        /// Bytes it must have.
        expected: u64,
        /// The configuration key that says so.
        key: &'static str,
    },
    /// A file's name is no position that a file of the configured size can begin at.
    #[error(
        "the name of {path} is no multiple of the file size {size} that is configured ({key}): set \
         {key} to the size that its files have, or move the file to another directory"
    )]
    Base {
        /// Which file.
        path: PathBuf,
        /// Bytes of a file.
        size: u64,
        /// The configuration key that says so.
        key: &'static str,
    },
    /// A file is missing between two others.
    #[error(
        "{path} is missing between the files before and after it: put it back, or move the files \
         before it to another directory to go on without their messages"
    )]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// Log files have each other's names.
    #[error("{path} holds the log of {belongs}: give the files their names back")]
    Misnamed {
        /// Which file.
        path: PathBuf,
        /// The name that its records give it.
        belongs: String,
    },
    /// The log lacks files that it had.
    #[error(
        "the log in {directory} ends at {end} at the latest, and was on the disk up to {known_to}: \
         {} bytes of it are missing. Mount its disk or put the files back (storePathCommitLog), \
         and start again; to go on without those messages, start once with --rebuild-queues",
        known_to.saturating_sub(*end)
    )]
    Shrunk {
        /// Directory of the log.
        directory: PathBuf,
        /// Log offset after the last byte that its files can hold.
        end: u64,
        /// Log offset up to which the last run had made it durable.
        known_to: u64,
    },
    /// The log lacks its first files.
    #[error(
        "{first_missing} and all log files before {log_min} are missing, which were there when the \
         broker stopped: put them back; to go on without them, start once with --rebuild-queues"
    )]
    FrontMissing {
        /// The first missing file.
        first_missing: PathBuf,
        /// Log offset at which the first file begins that is there.
        log_min: u64,
    },
    /// The consume queues are kept in RocksDB.
    #[error("{path} is a RocksDB database; only file-based consume queues can be opened")]
    RocksDb {
        /// Which directory.
        path: PathBuf,
    },
    /// Something that Apache RocketMQ keeps there and nothing here can carry on.
    #[error("{path} holds {what}, which SaturnMQ cannot carry on; {instead}")]
    Feature {
        /// Which file or directory.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What its owner can do.
        instead: &'static str,
    },
    /// A topic whose name cannot be a directory.
    #[error("topic {topic:?} cannot be a directory name")]
    Topic {
        /// The topic.
        topic: String,
    },
}

/// Where the parts of a store are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Layout {
    root: PathBuf,
    commit_log: PathBuf,
}

impl Layout {
    /// The usual layout below `root` (`storePathRootDir`).
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let commit_log = root.join("commitlog");
        Self { root, commit_log }
    }

    /// The same with the commit log elsewhere (`storePathCommitLog`).
    #[must_use]
    pub fn with_commit_log(mut self, path: impl Into<PathBuf>) -> Self {
        self.commit_log = path.into();
        self
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of the commit log.
    pub fn commit_log(&self) -> &Path {
        &self.commit_log
    }

    /// Directory of all consume queues.
    pub fn consume_queues(&self) -> PathBuf {
        self.root.join("consumequeue")
    }

    /// The directory of the consume queues' extension files.
    pub fn extensions(&self) -> PathBuf {
        self.root.join("consumequeue_ext")
    }

    /// Directory of the index files.
    pub fn index(&self) -> PathBuf {
        self.root.join("index")
    }

    /// Directory of the state files.
    pub fn config(&self) -> PathBuf {
        self.root.join("config")
    }

    /// The checkpoint file.
    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// The timer wheel.
    pub fn timer_wheel(&self) -> PathBuf {
        self.root.join("timerwheel")
    }

    /// Directory of the timer log.
    pub fn timer_log(&self) -> PathBuf {
        self.root.join("timerlog")
    }

    /// How far timer messages have come.
    pub fn timer_check(&self) -> PathBuf {
        self.config().join("timercheck")
    }

    /// The file that exists while a broker runs.
    pub fn abort(&self) -> PathBuf {
        self.root.join("abort")
    }

    /// The file whose lock says that a broker runs.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Our own resume point.
    pub fn resume(&self) -> PathBuf {
        self.root.join("saturnmq.resume")
    }

    /// Our own list of topics that were removed.
    pub fn removed_topics(&self) -> PathBuf {
        self.root.join("saturnmq.removed")
    }
}

/// Sees that what stands at the places of the store's files and directories is of their kind;
/// changes nothing.
pub(crate) fn check_kinds(layout: &Layout) -> Result<(), LayoutError> {
    wrong_kinds(layout).next().map_or(Ok(()), Err)
}

/// Whatever stands at the place of a file or directory of the store and is of another kind.
pub(crate) fn wrong_kinds(layout: &Layout) -> impl Iterator<Item = LayoutError> + use<> {
    let files = [
        layout.lock(),
        layout.abort(),
        layout.checkpoint(),
        layout.resume(),
        layout.resume().with_extension("resume.tmp"),
        layout.removed_topics(),
        layout.removed_topics().with_extension("removed.tmp"),
        layout.timer_wheel(),
        layout.timer_check(),
    ];
    let directories = [
        layout.root().to_path_buf(),
        layout.commit_log().to_path_buf(),
        layout.consume_queues(),
        layout.extensions(),
        layout.index(),
        layout.config(),
        layout.timer_log(),
    ];
    let directories = directories.into_iter().filter_map(|path| {
        let found = match found_at(&path)? {
            "a directory" => return None,
            link @ "a link that leads nowhere" => link,
            _ => "no directory",
        };
        let wanted = "directory";
        Some(LayoutError::Kind {
            path,
            found,
            wanted,
        })
    });
    let files = files.into_iter().chain(numbered(&layout.timer_log()));
    let files = files.filter_map(|path| {
        let found = found_at(&path).filter(|found| *found != "a file")?;
        let wanted = "file";
        Some(LayoutError::Kind {
            path,
            found,
            wanted,
        })
    });
    directories.chain(files)
}

/// Whatever has the name of a file in a directory of such; nothing where it cannot be listed.
fn numbered(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| parse_file_name(name).is_some())
        })
        .collect();
    paths.sort();
    paths
}

/// What stands at a path; `None` if nothing does, or it cannot be told: whoever needs it meets the
/// same error.
fn found_at(path: &Path) -> Option<&'static str> {
    let found = fs::metadata(path).or_else(|_| fs::symlink_metadata(path));
    Some(regular::kind(found.ok()?.file_type()))
}

/// Directory of one queue below `consume_queues`; an error when the topic cannot be one.
pub fn queue_directory(
    consume_queues: &Path,
    topic: &str,
    queue_id: i32,
) -> Result<PathBuf, LayoutError> {
    if !is_directory_name(topic) {
        return Err(LayoutError::Topic {
            topic: topic.to_owned(),
        });
    }
    Ok(consume_queues.join(topic).join(queue_id.to_string()))
}

/// The name of the file that begins at `base`: 20 digits.
pub fn file_name(base: u64) -> String {
    format!("{base:020}")
}

/// The base of a file name; `None` when it is not 20 digits.
pub fn parse_file_name(name: &str) -> Option<u64> {
    if name.len() != NAME_DIGITS || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    name.parse().ok()
}

/// A file of fixed size in a directory of such files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FixedFile {
    /// Offset of its first byte.
    pub base: u64,
    /// Its path.
    pub path: PathBuf,
}

/// What a directory of fixed-size files holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FixedFiles {
    /// The files of full size, by base, without a gap.
    pub files: Vec<FixedFile>,
    /// A last file without a byte: a crash between creating and sizing it. It may be deleted.
    pub empty_last: Option<PathBuf>,
}

/// Lists a directory whose files must all have `size` bytes and names of 20 digits that are
/// multiples of it, without gaps; `key` is the configuration key of the size. A directory that
/// does not exist is empty. Directories without such a name are left alone, as Apache RocketMQ 5.x
/// leaves them: every ext4 filesystem has `lost+found` at its top. Links are followed. Anything
/// else is an error, as it is to Apache RocketMQ.
pub fn list_fixed_files(
    directory: &Path,
    size: u64,
    key: &'static str,
) -> Result<FixedFiles, LayoutError> {
    let mut found = Vec::new();
    for path in entries(directory)? {
        let foreign = |why| LayoutError::Foreign {
            path: path.clone(),
            why,
        };
        let metadata = fs::metadata(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => foreign("it is a link that leads nowhere"),
            _ => LayoutError::Directory {
                path: path.clone(),
                source,
            },
        })?;
        let name = path.file_name().and_then(|name| name.to_str());
        let base = name.and_then(parse_file_name);
        if metadata.is_dir() && base.is_none() {
            tracing::info!(path = %path.display(), "a directory among files is left alone");
            continue;
        }
        if metadata.is_dir() {
            let (found, wanted) = ("a directory", "file");
            return Err(LayoutError::Kind {
                path,
                found,
                wanted,
            });
        }
        if !metadata.is_file() {
            return Err(foreign("only files are allowed"));
        }
        let base = base.ok_or_else(|| foreign("its name is not 20 digits"))?;
        if !base.is_multiple_of(size) {
            return Err(LayoutError::Base { path, size, key });
        }
        if base > i64::MAX as u64 - size {
            return Err(foreign("its name is beyond what offsets can reach"));
        }
        found.push((base, path, metadata.len()));
    }
    found.sort();
    let empty_last = match found.last() {
        Some((_, _, 0)) => found.pop().map(|(_, path, _)| path),
        _ => None,
    };
    let mut files: Vec<FixedFile> = Vec::with_capacity(found.len());
    for (base, path, found) in found {
        if found != size {
            return Err(LayoutError::Size {
                path,
                found,
                expected: size,
                key,
            });
        }
        if let Some(before) = files.last()
            && before.base + size != base
        {
            let path = directory.join(file_name(before.base + size));
            return Err(LayoutError::Missing { path });
        }
        files.push(FixedFile { base, path });
    }
    Ok(FixedFiles { files, empty_last })
}

/// Topic and queue id of every queue directory. Others are left alone, as Apache leaves them.
pub fn list_queues(consume_queues: &Path) -> Result<Vec<(String, i32)>, LayoutError> {
    if consume_queues.join("CURRENT").is_file() {
        return Err(LayoutError::RocksDb {
            path: consume_queues.into(),
        });
    }
    let topics = entries(consume_queues)?;
    let mut queues = Vec::new();
    for found in side_by_side::map(&topics, |path| queues_of_topic(path)) {
        queues.append(&mut found?);
    }
    queues.sort();
    Ok(queues)
}

/// The queues of what may be a topic's directory.
fn queues_of_topic(path: &Path) -> Result<Vec<(String, i32)>, LayoutError> {
    // The second is there, and unreadable, at the top of every ext4 filesystem.
    if !path.is_dir() || path.ends_with("lost+found") {
        return Ok(Vec::new());
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(topic) = name else {
        return Err(LayoutError::Foreign {
            path: path.into(),
            why: "its name is not UTF-8",
        });
    };
    let mut queues = Vec::new();
    for queue_path in entries(path)? {
        let name = queue_path.file_name().and_then(|name| name.to_str());
        if let Some(queue_id) = name.and_then(|name| name.parse::<i32>().ok())
            && queue_path.is_dir()
        {
            queues.push((topic.to_owned(), queue_id));
        }
    }
    Ok(queues)
}

/// Whether reading a directory failed because there is none: what is in its place instead is told
/// by [`wrong_kinds`].
pub(crate) fn is_none(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// What stands in a directory; nothing when there is none.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, LayoutError> {
    let unreadable = |source| LayoutError::Directory {
        path: directory.into(),
        source,
    };
    match fs::read_dir(directory) {
        Err(error) if is_none(&error) => Ok(Vec::new()),
        Err(error) => Err(unreadable(error)),
        Ok(list) => list
            .map(|entry| entry.map(|entry| entry.path()).map_err(unreadable))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "mappedFileSizeCommitLog";

    fn directory(files: &[(&str, usize)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, size) in files {
            fs::write(dir.path().join(name), vec![0; *size]).unwrap();
        }
        dir
    }

    fn error(files: &[(&str, usize)]) -> String {
        let dir = directory(files);
        let error = list_fixed_files(dir.path(), 100, KEY)
            .unwrap_err()
            .to_string();
        error.replace(&format!("{}/", dir.path().display()), "")
    }

    #[test]
    fn files_are_listed_by_base_and_a_missing_directory_is_empty() {
        let dir = directory(&[("00000000000000000300", 100), ("00000000000000000200", 100)]);
        let listed = list_fixed_files(dir.path(), 100, KEY).unwrap();
        let bases: Vec<_> = listed.files.iter().map(|file| file.base).collect();
        assert_eq!(bases, [200, 300]);
        assert_eq!(file_name(200), "00000000000000000200");
        let none = list_fixed_files(&dir.path().join("none"), 100, KEY).unwrap();
        assert_eq!(none, FixedFiles::default());
    }

    #[test]
    fn what_does_not_belong_there_is_refused_by_name() {
        let good = ("00000000000000000000", 100);
        let text = "README does not belong there: its name is not 20 digits; move it to another \
                    directory";
        assert_eq!(error(&[good, ("README", 3)]), text);
        let text = "00000000000000000100 has 99 bytes, 100 are configured \
                    (mappedFileSizeCommitLog): set ";
        let found = error(&[good, ("00000000000000000100", 99)]);
        assert!(found.starts_with(text), "{found}");
        let text = "the name of 00000000000000000050 is no multiple of the file size 100 that is \
                    configured (mappedFileSizeCommitLog): set ";
        let found = error(&[good, ("00000000000000000050", 100)]);
        assert!(found.starts_with(text), "{found}");
        let text = "18446744073709551600 does not belong there: its name is beyond what offsets \
                    can reach; move it to another directory";
        assert_eq!(error(&[good, ("18446744073709551600", 100)]), text);
        let text = "00000000000000000100 is missing between the files before and after it: ";
        let found = error(&[good, ("00000000000000000200", 100)]);
        assert!(found.starts_with(text), "{found}");
        let empty_first = [("00000000000000000000", 0), ("00000000000000000100", 100)];
        assert!(error(&empty_first).contains("has 0 bytes"));
    }

    #[test]
    fn other_directories_are_left_alone_and_links_to_files_followed() {
        let dir = directory(&[("00000000000000000000", 100)]);
        let elsewhere = directory(&[("moved", 100)]);
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        let link = |target: &Path, name| {
            std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
        };
        link(&elsewhere.path().join("moved"), "00000000000000000100");
        let listed = list_fixed_files(dir.path(), 100, KEY).unwrap();
        let bases: Vec<_> = listed.files.iter().map(|file| file.base).collect();
        assert_eq!(bases, [0, 100]);
        link(&elsewhere.path().join("none"), "00000000000000000200");
        let refused = list_fixed_files(dir.path(), 100, KEY)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("leads nowhere; move it"), "{refused}");
    }

    #[test]
    fn a_directory_in_the_place_of_a_file_is_refused() {
        let dir = directory(&[("00000000000000000000", 100)]);
        fs::create_dir(dir.path().join("00000000000000000100")).unwrap();
        let refused = list_fixed_files(dir.path(), 100, KEY)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("00000000000000000100"), "{refused}");
        assert!(refused.contains("directory"), "{refused}");
    }

    #[test]
    fn what_is_of_another_kind_is_named_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path());
        check_kinds(&layout).unwrap();
        fs::create_dir(layout.config()).unwrap();
        for path in [
            layout.lock(),
            layout.abort(),
            layout.checkpoint(),
            layout.resume(),
            root.path().join("saturnmq.resume.tmp"),
            layout.removed_topics(),
            layout.timer_wheel(),
            layout.timer_check(),
        ] {
            let is = |found: &str| {
                let refused = check_kinds(&layout).unwrap_err().to_string();
                let text = format!("{} is {found}, but the store has a file", path.display());
                assert!(refused.starts_with(&text), "{refused}");
            };
            fs::create_dir(&path).unwrap();
            is("a directory");
            fs::remove_dir(&path).unwrap();
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            is("a FIFO");
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/null", &path).unwrap();
            is("a device");
            fs::remove_file(&path).unwrap();
        }
        fs::remove_dir(layout.config()).unwrap();
        for path in [
            layout.commit_log().into(),
            layout.config(),
            layout.index(),
            layout.extensions(),
            layout.timer_log(),
        ] {
            fs::write(&path, b"x").unwrap();
            let refused = check_kinds(&layout).unwrap_err().to_string();
            let text = format!("{} is no directory, but the store has", path.display());
            assert!(refused.starts_with(&text), "{refused}");
            fs::remove_file(&path).unwrap();
        }
        std::os::unix::fs::symlink("none", layout.checkpoint()).unwrap();
        let refused = check_kinds(&layout).unwrap_err().to_string();
        assert!(refused.contains("a link that leads nowhere"), "{refused}");
    }

    #[test]
    fn an_empty_last_file_is_what_a_crash_leaves() {
        let dir = directory(&[("00000000000000000000", 100), ("00000000000000000100", 0)]);
        let listed = list_fixed_files(dir.path(), 100, KEY).unwrap();
        assert_eq!(listed.files.len(), 1);
        assert_eq!(
            listed.empty_last,
            Some(dir.path().join("00000000000000000100"))
        );
    }

    #[test]
    fn queues_are_the_numbered_directories_of_topics() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["%RETRY%g/0", "T/3", "T/12", "T/notes"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("stray"), b"").unwrap();
        let queues = list_queues(dir.path()).unwrap();
        let expected = [("%RETRY%g", 0), ("T", 3), ("T", 12)];
        assert_eq!(
            queues,
            expected.map(|(topic, queue)| (topic.to_owned(), queue))
        );
        fs::write(dir.path().join("CURRENT"), b"").unwrap();
        assert!(matches!(
            list_queues(dir.path()),
            Err(LayoutError::RocksDb { .. })
        ));
    }

    #[test]
    fn no_topic_leads_out_of_the_store() {
        let root = Path::new("/s");
        assert_eq!(queue_directory(root, "T", 3).unwrap(), Path::new("/s/T/3"));
        for topic in ["..", "a/b", ""] {
            assert!(matches!(
                queue_directory(root, topic, 0),
                Err(LayoutError::Topic { .. })
            ));
        }
    }
}
