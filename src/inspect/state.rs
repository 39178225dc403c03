//! The state files below a store's root, as a start will find them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use saturnmq_storage::inspect::{Finding, Verified};
use saturnmq_storage::regular;
use serde_json::Value;

use crate::persist::File;

/// What a start finds at a path.
enum Found {
    Good,
    Absent,
    /// Nothing but blanks.
    Empty,
    Damaged(String),
}

/// Adds what is wrong with the state files of the store at `root`.
pub fn look(root: &Path, verified: &mut Verified) {
    let both = [File::relative_path, File::light_path];
    let paths = File::ALL
        .iter()
        .flat_map(|file| both.map(|path| (*file, path(*file))));
    let paths: BTreeMap<_, _> = paths.map(|(file, path)| (path, file)).collect();
    for (path, file) in paths {
        let path = root.join(path);
        let backup = PathBuf::from(format!("{}.bak", path.display()));
        let spare = read(&backup, file);
        let instead = match &spare {
            Found::Good => "a start uses its .bak",
            Found::Absent | Found::Empty => "there is no .bak: no start is possible with it",
            Found::Damaged(_) => "its .bak is damaged too: no start is possible with them",
        };
        let problem = match read(&path, file) {
            Found::Good => None,
            Found::Absent => match spare {
                Found::Good => {
                    verified.notes.push(format!(
                        "{} is missing; a start uses its .bak",
                        path.display()
                    ));
                    None
                }
                Found::Damaged(problem) => {
                    Some(format!("it is missing, and its .bak is damaged: {problem}"))
                }
                Found::Absent | Found::Empty => {
                    if file == File::Topics && verified.records > 0 {
                        verified.notes.push(format!(
                            "{} is missing and has no .bak: a start knows no topic, and messages \
                             cannot be read before their topics are made again",
                            path.display()
                        ));
                    }
                    None
                }
            },
            Found::Empty => Some(match spare {
                Found::Absent | Found::Empty => {
                    "it is empty: a start goes on without what it held".into()
                }
                _ => format!("it is empty; {instead}"),
            }),
            Found::Damaged(problem) => Some(format!("{problem}; {instead}")),
        };
        if let Some(problem) = problem {
            verified.damage += 1;
            verified.findings.push(Finding {
                file: path,
                offset: None,
                problem,
            });
        }
    }
}

/// The member that a state file cannot be without.
fn member(file: File) -> Option<&'static str> {
    match file {
        File::Topics => Some("topicConfigTable"),
        File::Groups => Some("subscriptionGroupTable"),
        File::ConsumerOffsets | File::DelayOffsets => Some("offsetTable"),
        File::ConsumerFilters | File::NameServerKv => None,
    }
}

fn read(path: &Path, file: File) -> Found {
    let bytes = match regular::read(path) {
        Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => return Found::Empty,
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Found::Absent,
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            return Found::Damaged(error.to_string());
        }
        Err(error) => return Found::Damaged(format!("it cannot be read: {error}")),
    };
    let root: Value = match saturnmq_net::fastjson::from_file(&bytes) {
        Ok(root) => root,
        Err(error) => return Found::Damaged(format!("it is no JSON: {error}")),
    };
    match member(file) {
        Some(member) if !root.get(member).is_some_and(Value::is_object) => {
            Found::Damaged(format!("it has no {member}"))
        }
        _ => Found::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(root: &Path, records: u64) -> Verified {
        let mut verified = Verified {
            log_begin: 0,
            log_end: 0,
            records,
            entries: 0,
            items: None,
            damage: 0,
            findings: Vec::new(),
            notes: Vec::new(),
        };
        look(root, &mut verified);
        verified
    }

    #[test]
    fn a_store_with_messages_and_without_topics_is_noted() {
        let dir = tempfile::tempdir().expect("directory");
        for there in [false, true] {
            let found = looked(dir.path(), 3);
            assert_eq!(found.damage, 0);
            let noted = found.notes.iter().any(|note| {
                note.contains(
                    "config/topics.json is missing and has no .bak: a start knows no topic",
                )
            });
            assert_eq!((noted, found.notes.len()), (!there, usize::from(!there)));
            std::fs::create_dir_all(dir.path().join("config")).expect("directory");
            let topics = dir.path().join("config/topics.json");
            std::fs::write(topics, "{\"topicConfigTable\":{}}").expect("write");
        }
    }

    #[test]
    fn a_state_file_that_no_start_can_use_is_named_with_what_a_start_does() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::create_dir(dir.path().join("config")).expect("directory");
        let (good, bad) = ("{\"topicConfigTable\":{}}", "{\"topicConfigTable\":{");
        for (text, backup, said) in [
            (Some(good), None, ""),
            (Some(good), Some(bad), ""),
            (None, None, ""),
            (None, Some(good), ""),
            (Some(bad), Some(good), "; a start uses its .bak"),
            (
                Some("{}"),
                Some(bad),
                "it has no topicConfigTable; its .bak is damaged too",
            ),
            (Some(bad), None, "there is no .bak: no start is possible"),
            (Some(""), None, "it is empty: a start goes on without"),
            (
                Some(" \n"),
                Some(good),
                "it is empty; a start uses its .bak",
            ),
            (
                None,
                Some(bad),
                "it is missing, and its .bak is damaged: it is no JSON",
            ),
        ] {
            for (name, text) in [("topics.json", text), ("topics.json.bak", backup)] {
                let path = dir.path().join("config").join(name);
                // It may not be there.
                let _ = std::fs::remove_file(&path);
                if let Some(text) = text {
                    std::fs::write(path, text).expect("write");
                }
            }
            let found = looked(dir.path(), 0);
            assert_eq!(
                found.damage,
                u64::from(!said.is_empty()),
                "{text:?} {backup:?}"
            );
            if let Some(finding) = found.findings.first() {
                assert!(finding.problem.contains(said), "{finding:?}");
                assert!(finding.file.ends_with("config/topics.json"));
            }
            assert_eq!(
                found.notes.len(),
                usize::from(text.is_none() && backup == Some(good))
            );
        }
    }
}
