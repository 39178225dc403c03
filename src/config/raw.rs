//! Configuration as it was brought: text by key, from broker.conf and the command line.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use saturnmq_storage::config::RetentionConfig;
use saturnmq_storage::regular;
use thiserror::Error;

use super::keys::{self, Effect};
use super::properties::parse_properties;

/// Longest broker.conf that is read, in bytes.
const FILE_MAX: u64 = 4 << 20;

/// Why the configuration cannot be used. Each is one sentence that names the thing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {problem}; check the path given with -c", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// A line of the file is no Java property.
    #[error("{source_name} is not a Java properties file: {problem}")]
    Syntax {
        /// The file or the request.
        source_name: String,
        /// What does not fit.
        problem: String,
    },
    /// A value of the wrong form.
    #[error("{key}={value}{at} is not possible: it takes {expected}")]
    Malformed {
        /// The key.
        key: String,
        /// What was brought.
        value: String,
        /// Where, with a leading blank; empty for the command line.
        at: String,
        /// What it takes.
        expected: String,
    },
    /// A promise that is not kept here.
    #[error(
        "{key}={value}{at} promises what SaturnMQ does not keep: {why}; remove the key or start \
             Apache RocketMQ for it"
    )]
    Refused {
        /// The key.
        key: String,
        /// What was brought.
        value: String,
        /// Where, with a leading blank; empty for the command line.
        at: String,
        /// What is supported.
        why: String,
    },
    /// `--set` without an equals sign, or without a key before it.
    #[error("--set {0} is not of the form key=value")]
    NoEquals(String),
    /// Two settings, or a setting and the host, that do not go together.
    #[error("{0}")]
    Contradiction(String),
}

/// A value with the place it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Brought {
    value: String,
    at: String,
}

/// Text by key, later sources over earlier ones.
#[derive(Debug, Clone, Default)]
pub struct RawConfig {
    values: BTreeMap<String, Brought>,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

impl RawConfig {
    /// Reads a Java properties file.
    ///
    /// # Errors
    /// [`ConfigError::File`] or [`ConfigError::Syntax`].
    pub fn read_file(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |problem: String| ConfigError::File {
            path: path.to_path_buf(),
            problem,
        };
        let mut bytes = Vec::new();
        open(path)
            .and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes))
            .map_err(|e| unreadable(e.to_string()))?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(unreadable(format!("it has more than {FILE_MAX} bytes")));
        }
        let mut raw = Self {
            file: Some(path.to_path_buf()),
            ..Self::default()
        };
        let name = path.display().to_string();
        for (key, value, line) in parse_properties(&bytes, &name)? {
            let at = format!(" ({name} line {line})");
            raw.values.insert(key, Brought { value, at });
        }
        if !raw.values.is_empty() && !raw.values.keys().any(|key| keys::find(key).is_some()) {
            return Err(unreadable(
                "not one of its keys is a broker's, so it is some other file".into(),
            ));
        }
        Ok(raw)
    }

    /// Sets a key, over the file.
    pub fn set(&mut self, key: &str, value: &str) {
        let brought = Brought {
            value: value.to_string(),
            at: String::new(),
        };
        self.values.insert(key.trim().to_string(), brought);
    }

    /// Sets what `--set key=value` says.
    ///
    /// # Errors
    /// [`ConfigError::NoEquals`].
    pub fn set_pair(&mut self, pair: &str) -> Result<(), ConfigError> {
        let no_equals = || ConfigError::NoEquals(pair.to_string());
        let (key, value) = pair
            .split_once('=')
            .filter(|(key, _)| !key.trim().is_empty())
            .ok_or_else(no_equals)?;
        self.set(key, value);
        Ok(())
    }

    /// The text of a key, if it was brought.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|b| b.value.as_str())
    }

    /// Checks every value brought, and says which keys are unknown or have no effect.
    ///
    /// # Errors
    /// The first value that is malformed or refused.
    pub fn check(&self) -> Result<Remarks, ConfigError> {
        let mut remarks = Remarks::default();
        for (name, brought) in &self.values {
            let Some(key) = keys::find(name) else {
                let meant = keys::nearest(name)
                    .map_or_else(String::new, |k| format!("; the nearest known key is {k}"));
                remarks
                    .sentences
                    .push(format!("unknown key {name}{}{meant}", brought.at));
                continue;
            };
            if let Err(expected) = key.check(&brought.value) {
                return Err(ConfigError::Malformed {
                    key: name.clone(),
                    value: quoted(&brought.value),
                    at: brought.at.clone(),
                    expected,
                });
            }
            if let Some(why) = key.refusal(&brought.value) {
                return Err(ConfigError::Refused {
                    key: name.clone(),
                    value: quoted(&brought.value),
                    at: brought.at.clone(),
                    why,
                });
            }
            if let Some(counts_as) = clamped(name, &brought.value) {
                let (value, at) = (quoted(&brought.value), &brought.at);
                remarks
                    .sentences
                    .push(format!("{name}={value}{at} counts as {counts_as}"));
            }
            if key.effect == Effect::Ignored {
                remarks.ignored.push(name.clone());
            }
        }
        Ok(remarks)
    }

    /// Key and text of everything brought.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values
            .iter()
            .map(|(k, b)| (k.as_str(), b.value.as_str()))
    }
}

/// What is worth saying about a configuration that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remarks {
    /// One sentence for each key that is unknown, or counts as another value.
    pub sentences: Vec<String>,
    /// Keys that have no effect here.
    pub ignored: Vec<String>,
}

/// What a value counts as that Apache takes: a ratio of the disk outside of its bounds, a size of
/// messages that no answer could carry.
fn clamped(key: &str, value: &str) -> Option<usize> {
    if key == "maxMessageSize" {
        let brought: usize = value.trim().parse().ok()?;
        return (brought > keys::BODY_CARRIED).then_some(keys::BODY_CARRIED);
    }
    let percent: u8 = value.trim().parse().ok()?;
    let brought = RetentionConfig {
        disk_max_used_percent: percent,
        clean_forcibly_percent: percent,
        warning_percent: percent,
        ..RetentionConfig::default()
    };
    let kept = brought.clamped();
    let counts_as = match key {
        "diskMaxUsedSpaceRatio" => kept.disk_max_used_percent,
        "diskSpaceCleanForciblyRatio" => kept.clean_forcibly_percent,
        "diskSpaceWarningLevelRatio" => kept.warning_percent,
        _ => return None,
    };
    (counts_as != percent).then_some(usize::from(counts_as))
}

/// A text that somebody else chose, as a sentence may quote it: short, and on one line.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut short: String = text
        .chars()
        .filter(|c| !c.is_control())
        .take(LONGEST)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push_str("...");
    }
    short
}

/// Opens a configuration. A pipe that this process was given (`-c <(...)`) is read like a file; a
/// FIFO with a name could keep the start waiting for somebody who writes to it.
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::FileTypeExt;
    let is_fifo = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    // The name of a pipe without one leads nowhere.
    match is_fifo && path.canonicalize().is_ok() {
        true => regular::open(path),
        false => std::fs::File::open(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawConfig {
        let mut raw = RawConfig::default();
        for (key, value) in pairs {
            raw.set(key, value);
        }
        raw
    }

    #[test]
    fn a_setting_without_a_key_is_refused() {
        for pair in ["=x", " = x", "x", ""] {
            let refused = RawConfig::default().set_pair(pair).unwrap_err().to_string();
            assert!(refused.contains("key=value"), "{refused}");
        }
    }

    #[test]
    fn a_ratio_beyond_apaches_bounds_is_taken_and_what_it_counts_as_is_told() {
        let remarks = raw(&[
            ("diskMaxUsedSpaceRatio", "98"),
            ("diskSpaceWarningLevelRatio", "90"),
        ])
        .check()
        .expect("taken");
        assert_eq!(remarks.sentences, ["diskMaxUsedSpaceRatio=98 counts as 95"]);
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_known_one() {
        let remarks = raw(&[("flushDiskTpye", "x"), ("qqqqqqqqqqqqqqqq", "1")])
            .check()
            .expect("ok");
        assert_eq!(
            remarks.sentences,
            [
                "unknown key flushDiskTpye; the nearest known key is flushDiskType",
                "unknown key qqqqqqqqqqqqqqqq"
            ]
        );
    }

    #[test]
    fn malformed_values_name_key_value_place_and_limit() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("broker.conf");
        std::fs::write(&path, "brokerName=a\nmaxMessageSize=4M\n").expect("write");
        let error = RawConfig::read_file(&path)
            .expect("file")
            .check()
            .expect_err("malformed");
        let text = error.to_string();
        for part in ["maxMessageSize=4M", "broker.conf line 2", "between 10 and"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        for (key, value) in [
            ("listenPort", "70000"),
            ("listenPort", "off"),
            ("nameServerPort", "maybe"),
            ("autoCreateTopicEnable", "yes"),
            ("flushDiskType", "FAST"),
            ("deleteWhen", "24"),
            ("messageDelayLevel", "1 2 3"),
            ("pullThreadPoolQueueCapacity", "many"),
        ] {
            let error = raw(&[(key, value)]).check().expect_err(key).to_string();
            assert!(error.starts_with(&format!("{key}={value} ")), "{error}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_not_taken_for_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("broker.conf");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("write");
            RawConfig::read_file(&path).map(|_| ())
        };
        for (bytes, part) in [
            (&b"brokerName=a\n\x7fELF\0\0"[..], "byte 13 is 0x7f"),
            (b"\0\0\0\x04lock", "byte 0 is 0x00"),
            (
                b"# A title\nSome text without keys.\n",
                "not one of its keys",
            ),
            (
                &vec![b'#'; (FILE_MAX + 1) as usize],
                "more than 4194304 bytes",
            ),
        ] {
            let text = read(bytes).expect_err(part).to_string();
            assert!(
                text.contains(part) && text.contains("broker.conf"),
                "{text}"
            );
        }
        assert_eq!(read(b""), Ok(()));
        assert_eq!(
            read("brokerName=a\n# \u{e4}\t\u{df}\r\n".as_bytes()),
            Ok(())
        );
        // A pipe, and a file without an end.
        let error = RawConfig::read_file(Path::new("/dev/zero")).expect_err("endless");
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn promises_that_are_not_kept_refuse_by_name() {
        for (key, value) in [
            ("aclEnable", "true"),
            ("authenticationEnabled", "true"),
            ("authorizationEnabled", "TRUE"),
            ("tls.server.mode", "enforcing"),
            ("brokerRole", "SYNC_MASTER"),
            ("brokerRole", "SLAVE"),
            ("enableDLegerCommitLog", "true"),
            ("enableControllerMode", "true"),
            ("storeType", "defaultRocksDB"),
            ("storePathCommitLog", "/a,/b"),
        ] {
            let error = raw(&[(key, value)]).check().expect_err(key);
            assert!(matches!(error, ConfigError::Refused { .. }), "{error}");
            assert!(
                error.to_string().starts_with(&format!("{key}={value} ")),
                "{error}"
            );
        }
        let kept = raw(&[
            ("aclEnable", "false"),
            ("brokerRole", "ASYNC_MASTER"),
            ("storeType", "default"),
        ]);
        assert!(kept.check().is_ok());
    }

    #[test]
    fn what_somebody_else_chose_is_quoted_short_and_on_one_line() {
        let long = format!("a\nb{}", "x".repeat(1000));
        let text = quoted(&long);
        assert!(text.starts_with("abx") && text.ends_with("...") && text.len() < 130);
        assert_eq!(quoted("short"), "short");
    }

    #[test]
    fn a_missing_file_and_a_set_without_equals_are_told() {
        let error = RawConfig::read_file(Path::new("/nonexistent/broker.conf")).expect_err("none");
        assert!(
            error.to_string().contains("/nonexistent/broker.conf"),
            "{error}"
        );
        let error = RawConfig::default()
            .set_pair("listenPort")
            .expect_err("no equals");
        assert!(error.to_string().contains("key=value"), "{error}");
    }
}
