//! Each file of a store, damaged in each way, after an orderly stop and after kills: no start and
//! no look hangs or panics, nothing wrong is served, nothing but the damaged record is lost, the
//! damage is told with the file it is in, and the start after is quiet.
//!
//! Every so-manieth case runs; with `SATURNMQ_TEST_MATRIX=all` every one does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use saturnmq_storage::config::{FlushMode, StoreConfig};
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::inspect::{StoreView, Verified, verify};
use saturnmq_storage::layout::Layout;
use saturnmq_storage::store::{Opened, Store};

use crate::flips::{collect, read_at};
use crate::heard::{Heard, hear};
use crate::support::{Sender, open, small_config, wait_dispatched};

/// Of the cases every so-manieth runs by default.
const SAMPLE: usize = 13;
const WORKERS: usize = 6;
const PAGE: usize = 4096;
/// Messages before the resume point of a killed store, and all of them; 15 to a log file.
const BEFORE: u32 = 25;
const ALL: u32 = 40;
const TOPIC: &str = "Matrix";

fn config(root: &Path, flush: FlushMode) -> StoreConfig {
    let mut config = small_config(root);
    config.commit_log_file_size = 16_384;
    config.consume_queue_file_size = 200;
    config.index_slots = 8;
    config.index_items = 40;
    config.max_message_size = 4096;
    config.write_extensions = true;
    config.extension_file_size = 4096;
    config.flush = flush;
    config.resume_interval = std::time::Duration::from_secs(3600);
    config
}

fn body(number: u32) -> Vec<u8> {
    let text = format!("message {number} ");
    text.bytes().cycle().take(900).collect()
}

/// How a store was left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Stopped,
    Killed(FlushMode),
}

impl End {
    fn flush(self) -> FlushMode {
        match self {
            End::Killed(flush) => flush,
            End::Stopped => FlushMode::Sync,
        }
    }
}

/// A store as it was left: its files, and where its records stand.
struct Left {
    end: End,
    files: BTreeMap<PathBuf, Vec<u8>>,
    locked: SystemTime,
    records: Vec<Range<u64>>,
    /// Log offset of the resume point.
    resumed: u64,
}

impl Left {
    fn by(end: End) -> Left {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = config(dir.path(), end.flush());
        let mut records = Vec::new();
        let mut opened = open(&config).expect("open");
        send(&mut opened, "Removed", 0..2, &mut Vec::new());
        assert!(
            !opened
                .store
                .remove_topic("Removed")
                .expect("remove")
                .is_empty()
        );
        send(&mut opened, TOPIC, 0..BEFORE, &mut records);
        opened.store.close().expect("close");
        let resumed = records.last().expect("a record").end;
        let mut opened = open(&config).expect("open");
        send(&mut opened, TOPIC, BEFORE..ALL, &mut records);
        match end {
            End::Stopped => opened.store.close().expect("close"),
            End::Killed(_) => drop(opened),
        }
        let mut files = BTreeMap::new();
        collect(dir.path(), dir.path(), &mut files);
        let lock = fs::metadata(dir.path().join("lock")).expect("lock");
        Left {
            end,
            files,
            locked: lock.modified().expect("time"),
            resumed: match end {
                End::Stopped => records.last().expect("a record").end,
                End::Killed(_) => resumed,
            },
            records,
        }
    }

    /// Writes the store anew, with the time of its lock.
    fn restore(&self, root: &Path) {
        // Nothing is there the first time.
        let _ = fs::remove_dir_all(root);
        for (name, bytes) in &self.files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            fs::write(path, bytes).expect("write");
        }
        self.date_lock(root);
    }

    fn date_lock(&self, root: &Path) {
        if let Ok(lock) = fs::File::options().write(true).open(root.join("lock")) {
            lock.set_modified(self.locked).expect("time");
        }
    }

    /// Log offsets of the records that were not served.
    fn missing(&self, served: &Served) -> Vec<u64> {
        let numbered = self.records.iter().zip(0u32..);
        let missing = numbered.filter(|(_, number)| !served.contains_key(number));
        missing.map(|(record, _)| record.start).collect()
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (name, bytes) in &self.files {
            let text = name.to_str().expect("text");
            let used = bytes.iter().rposition(|byte| *byte != 0);
            let used = used.map_or(0, |last| last + 1);
            let mut flips = BTreeSet::from([0, used / 2, used.saturating_sub(1)]);
            if text.starts_with("commitlog") {
                flips = self.parts_of_records(text);
            }
            let flips = flips.into_iter().filter(|at| *at < used).map(Damage::Flip);
            let zeros = (0..used).step_by(PAGE).map(Damage::Zeros);
            let sizes = [1, PAGE, bytes.len() / 2];
            let cuts = sizes.into_iter().filter(|by| *by <= bytes.len());
            let whole = [
                Damage::Missing,
                Damage::Empty,
                Damage::Directory,
                Damage::Fifo,
                Damage::Grown(1),
                Damage::Grown(PAGE),
            ];
            let others = self.others_for(name).into_iter().map(Damage::Other);
            let all = flips.chain(zeros).chain(cuts.map(Damage::Cut));
            cases.extend(all.chain(whole).chain(others).map(|damage| Case {
                name: name.clone(),
                damage,
            }));
        }
        cases
    }

    /// The size, magic number, queue id, queue offset, place, body and topic of the first, a
    /// middle and the last record of a log file.
    fn parts_of_records(&self, name: &str) -> BTreeSet<usize> {
        let base: u64 = name
            .rsplit('/')
            .next()
            .expect("name")
            .parse()
            .expect("20 digits");
        let in_file = |range: &&Range<u64>| (base..base + 16_384).contains(&range.start);
        let records: Vec<_> = self.records.iter().filter(in_file).collect();
        let chosen = [0, records.len() / 2, records.len() - 1].map(|index| records[index]);
        let parts = [1, 5, 15, 26, 33, 500, 88 + 900 + 2];
        let at = |range: &Range<u64>| parts.map(|part| (range.start - base) as usize + part);
        chosen.into_iter().flat_map(at).collect()
    }

    /// Files whose content comes in the place of a file's: a neighbour, and one of another kind.
    fn others_for(&self, name: &Path) -> Vec<PathBuf> {
        let beside = |other: &&PathBuf| *other != name && other.parent() == name.parent();
        let strange = |other: &&PathBuf| other.parent() != name.parent();
        let found = [
            self.files.keys().find(beside),
            self.files.keys().find(strange),
        ];
        found.into_iter().flatten().cloned().collect()
    }
}

fn send(opened: &mut Opened, topic: &str, numbers: Range<u32>, records: &mut Vec<Range<u64>>) {
    let mut sender = Sender::new(opened.ports.remove(0));
    let mut end = 0;
    for number in numbers {
        let queue = opened.store.queue_or_create(topic, (number % 2) as i32);
        let properties = format!("KEYS\u{1}k{number}\u{2}TAGS\u{1}t");
        let appended = sender.send(&queue, &body(number), properties.as_bytes());
        records.push(appended.physical_offset..appended.end);
        end = appended.end;
    }
    wait_dispatched(&opened.store, end);
    opened.ports.push(sender.port);
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(usize),
    Zeros(usize),
    Cut(usize),
    Grown(usize),
    Missing,
    Empty,
    Other(PathBuf),
    Directory,
    Fifo,
}

#[derive(Clone, Debug)]
struct Case {
    name: PathBuf,
    damage: Damage,
}

impl Case {
    /// Damages a store that was restored; the bytes of the file that are not what they were.
    fn apply(&self, left: &Left, root: &Path) -> Range<u64> {
        let path = root.join(&self.name);
        let bytes = &left.files[&self.name];
        let len = bytes.len();
        let mut changed = bytes.clone();
        let range = match &self.damage {
            Damage::Flip(at) => {
                changed[*at] ^= 0x10;
                *at..*at + 1
            }
            Damage::Zeros(from) => {
                let to = (from + PAGE).min(len);
                changed[*from..to].fill(0);
                *from..to
            }
            Damage::Cut(by) => {
                changed.truncate(len - by);
                len - by..len
            }
            Damage::Grown(by) => {
                changed.resize(len + by, 0);
                len..len
            }
            Damage::Empty => {
                changed.clear();
                0..len
            }
            Damage::Other(other) => {
                changed.clone_from(&left.files[other]);
                0..len
            }
            Damage::Missing | Damage::Directory | Damage::Fifo => {
                fs::remove_file(&path).expect("remove");
                match self.damage {
                    Damage::Directory => fs::create_dir(&path).expect("directory"),
                    Damage::Fifo => {
                        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("FIFO");
                    }
                    _ => {}
                }
                return 0..len as u64;
            }
        };
        fs::write(&path, changed).expect("write");
        left.date_lock(root);
        range.start as u64..range.end as u64
    }

    fn in_log(&self) -> Option<u64> {
        let below = self.name.strip_prefix("commitlog").ok()?;
        below.to_str()?.parse().ok()
    }

    /// Whether a start says it as long as nobody does anything about it.
    fn may_be_said_again(&self, line: &str) -> bool {
        let said: &[&str] = match self.name.to_str().expect("text") {
            name if name.starts_with("commitlog") => &[
                "damaged place in the log",
                "a log file is a copy",
                "the log is not what the resume point says",
            ],
            name if name.starts_with("consumequeue_ext") => &["are left alone"],
            name if name.starts_with("index") => &["not an index file"],
            _ => &[],
        };
        said.iter().any(|said| line.contains(said))
    }

    /// Whether a start may refuse the store.
    fn may_be_refused(&self) -> bool {
        match self.damage {
            Damage::Directory | Damage::Fifo => true,
            Damage::Flip(_) | Damage::Zeros(_) => false,
            _ => self.in_log().is_some(),
        }
    }
}

/// What a start served: bodies by number.
type Served = BTreeMap<u32, Vec<u8>>;

/// One case, looked at from all sides. An error says what is wrong.
fn run(left: &Left, root: &Path, case: &Case) -> Result<(), String> {
    left.restore(root);
    let range = case.apply(left, root);
    let config = config(root, left.end.flush());
    let name = case.name.file_name().expect("name").to_str().expect("text");
    let looked = look(&config);
    let spoiled = contents(root);
    let (opened, heard) = hear(|| open(&config));
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) if case.may_be_refused() => {
            let error = error.to_string();
            let names = error.contains(name) || error.contains("commitlog");
            check(names, || format!("refused without a name: {error}"))?;
            let said = names_any(&looked, name, &[]);
            check(said, || format!("inspect says {looked:?}"))?;
            let same = contents(root) == spoiled;
            return check(same, || "refused, and files were changed".into());
        }
        Err(error) => return Err(format!("refused: {error}")),
    };
    let first = Start::of(&opened, heard);
    let lost = lost(left, case, &range);
    let served = serve(&opened.store, left, &lost)?;
    let writable = opened.store.state().is_writable();
    check(writable, || format!("{:?}", opened.store.state()))?;
    let reads = opened.store.damaged_reads() + opened.store.mended_entries();
    opened.store.close().map_err(|error| error.to_string())?;
    let missing = left.missing(&served);
    let said = reads > 0 || first.damaged > 0 || names_any(&first.lines(), name, &missing);
    check(said || missing.is_empty(), || {
        format!("lost and not told: {first:?}")
    })?;
    let seen = names_any(&looked, name, &missing);
    check(seen || missing.is_empty(), || {
        format!("lost and inspect says {looked:?}")
    })?;
    check(!looked.is_empty() || !must_be_told(case), || {
        "inspect says nothing".into()
    })?;
    second(left, case, &config, &served)
}

/// The start after, which has nothing to tell.
fn second(left: &Left, case: &Case, config: &StoreConfig, served: &Served) -> Result<(), String> {
    let (opened, heard) = hear(|| open(config));
    let opened = opened.map_err(|error| format!("second start: {error}"))?;
    let again = Start::of(&opened, heard);
    let all = 0..left.records.len() as u32;
    let lost = all.filter(|number| !served.contains_key(number)).collect();
    let same = serve(&opened.store, left, &lost)? == *served;
    opened.store.close().map_err(|error| error.to_string())?;
    check(same, || "the second start serves others".into())?;
    let lines = again.lines();
    let is_quiet = lines.iter().all(|line| case.may_be_said_again(line));
    check(is_quiet, || format!("second start: {again:?}"))
}

fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// What a start said.
#[derive(Debug)]
struct Start {
    notes: Vec<String>,
    warnings: Vec<String>,
    damaged: u64,
}

impl Start {
    fn of(opened: &Opened, heard: Heard) -> Start {
        Start {
            notes: opened.report.notes.clone(),
            warnings: heard.warnings,
            damaged: opened.report.damaged_records,
        }
    }

    fn lines(&self) -> Vec<String> {
        self.notes.iter().chain(&self.warnings).cloned().collect()
    }
}

/// Numbers of the messages that may be lost.
fn lost(left: &Left, case: &Case, range: &Range<u64>) -> BTreeSet<u32> {
    let Some(base) = case.in_log() else {
        return BTreeSet::new();
    };
    let hit = base + range.start..base + range.end;
    let is_hit = |record: &Range<u64>| record.start < hit.end && hit.start < record.end;
    let first = left.records.iter().position(is_hit);
    // Without syncs what is not known to have been on the disk may be torn.
    let torn = first.filter(|first| {
        let start = left.records[*first].start;
        left.end == End::Killed(FlushMode::Async) && left.resumed <= start
    });
    let numbered = left.records.iter().zip(0u32..);
    let gone = numbered.filter(|(record, number)| {
        is_hit(record) || torn.is_some_and(|first| *number as usize >= first)
    });
    gone.map(|(_, number)| number).collect()
}

/// Every message, each as it was sent; those of `lost` may be missing.
fn serve(store: &Store, left: &Left, lost: &BTreeSet<u32>) -> Result<Served, String> {
    let mut reader = store.reader().expect("reader");
    let mut served = Served::new();
    for number in 0..left.records.len() as u32 {
        let queue = store.queue_or_create(TOPIC, (number % 2) as i32);
        let found = read_at(&mut reader, &queue, i64::from(number / 2), TOPIC);
        match found {
            Some(found) if found != body(number) => return Err(format!("{number} is another's")),
            Some(found) => drop(served.insert(number, found)),
            None if lost.contains(&number) => {}
            None => return Err(format!("{number} is lost")),
        }
    }
    let removed = store.queue_or_create("Removed", 0);
    check(removed.max_offset() <= removed.min_offset(), || {
        "a removed topic came back".into()
    })?;
    Ok(served)
}

/// What `inspect --verify` says, in words; an error is one that names what it is about.
fn look(config: &StoreConfig) -> Vec<String> {
    let shape = IndexShape {
        slots: config.index_slots,
        items: config.index_items,
    };
    let view = StoreView::open(Layout::new(&config.root), None, None, Some(shape));
    let found: Result<Verified, String> = match view {
        Ok(view) => verify(&view, &mut |_| {}).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match found {
        Ok(found) => {
            let words = |finding: &saturnmq_storage::inspect::Finding| {
                let at = finding.offset.map_or(String::new(), |at| format!("@{at}"));
                format!("{}{at}: {}", finding.file.display(), finding.problem)
            };
            let findings = found.findings.iter().map(words);
            findings.chain(found.notes.iter().cloned()).collect()
        }
        Err(error) => vec![error],
    }
}

/// Whether lines name a file, or a record by its log offset, or say where the log begins or ends
/// now.
fn names_any(lines: &[String], name: &str, records: &[u64]) -> bool {
    let ends = [
        "torn",
        "the log ends at",
        "the log began at",
        "behind the log's end",
    ];
    lines.iter().any(|line| {
        line.contains(name)
            || ends.iter().any(|end| line.contains(end))
            || records.iter().any(|at| line.contains(&at.to_string()))
    })
}

/// Whether a look must find something, whether or not anything is lost.
fn must_be_told(case: &Case) -> bool {
    let name = case.name.to_str().expect("text");
    let kind = matches!(case.damage, Damage::Directory | Damage::Fifo);
    let ours = name == "saturnmq.resume" && !matches!(case.damage, Damage::Missing);
    let derived = ["commitlog", "consumequeue/", "consumequeue_ext/", "index"];
    let derived = derived.iter().any(|part| name.starts_with(part));
    kind || ours || derived
}

/// Every regular file below a directory with its bytes, but those that a start makes anew before it
/// looks.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("list") {
            let path = entry.expect("entry").path();
            let details = fs::symlink_metadata(&path).expect("details");
            if details.is_dir() {
                directories.push(path);
            } else if details.is_file() && !made_anew(&path) {
                let bytes = fs::read(&path).expect("read");
                found.insert(path, bytes);
            }
        }
    }
    found
}

fn made_anew(path: &Path) -> bool {
    let names = [
        "lock",
        "checkpoint",
        "saturnmq.resume",
        "saturnmq.resume.tmp",
    ];
    names.iter().any(|name| path.ends_with(name))
}

#[test]
fn no_damage_of_a_file_stops_a_start_is_served_or_goes_unnoticed() {
    let all = std::env::var("SATURNMQ_TEST_MATRIX").is_ok_and(|text| text == "all");
    let ends = [
        End::Stopped,
        End::Killed(FlushMode::Sync),
        End::Killed(FlushMode::Async),
    ];
    let stores = ends.map(Left::by);
    let cases: Vec<(&Left, Case)> = stores
        .iter()
        .flat_map(|left| left.cases().into_iter().map(move |case| (left, case)))
        .enumerate()
        .filter(|(number, _)| all || number % SAMPLE == 0)
        .map(|(_, case)| case)
        .collect();
    println!("{} cases", cases.len());
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let dir = tempfile::tempdir().expect("temporary directory");
                let root = dir.path().join("store");
                while let Some((left, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ran = std::panic::catch_unwind(|| run(left, &root, case));
                    let ran = ran.unwrap_or_else(|_| Err("a panic".into()));
                    if let Err(why) = ran {
                        let text = format!("{:?} {case:?}: {why}", left.end);
                        failed.lock().expect("list").push(text);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("list");
    assert!(
        failed.is_empty(),
        "{}:\n{}",
        failed.len(),
        failed.join("\n")
    );
}
