//! Each file beside the log and its queues, damaged in each way, after an orderly stop and after a
//! kill, and starts over it that are killed in their turn: the broker starts or says which file
//! keeps it from starting, every message stands where it was acknowledged, and those for a time and
//! with a delay come.
//!
//! Every so-manieth case runs; with `SATURNMQ_TEST_MATRIX=all` every one does, with a part of a
//! file's name every one of that file.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::serve::{refusal, serve};

/// Of the cases every so-manieth runs by default.
const SAMPLE: usize = 17;
const WORKERS: usize = 4;
const PAGE: usize = 4096;
const SETTINGS: [&str; 6] = [
    "--set",
    "timerPrecisionMs=100",
    "--set",
    "mappedFileSizeTimerLog=4096",
    "--set",
    "messageDelayLevel=1s 2s",
];
/// Messages of the plain topic, with a delay, and for a time.
const PLAIN: usize = 20;
const DELAYED: usize = 5;
const TIMED: usize = 8;
/// What a group committed last.
const COMMITTED: i64 = 7;

/// A file with its pages that are not all zero.
#[derive(Clone)]
struct Kept {
    len: usize,
    pages: Vec<(usize, Vec<u8>)>,
}

impl Kept {
    fn of(bytes: &[u8]) -> Kept {
        let numbered = bytes.chunks(PAGE).enumerate();
        let used = numbered.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        Kept {
            len: bytes.len(),
            pages: used
                .map(|(number, page)| (number * PAGE, page.to_vec()))
                .collect(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        for (at, page) in &self.pages {
            bytes[*at..at + page.len()].copy_from_slice(page);
        }
        bytes
    }

    fn write(&self, path: &Path) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::create(path).expect("create");
        file.set_len(self.len as u64).expect("size");
        for (at, page) in &self.pages {
            file.write_all_at(page, *at as u64).expect("write");
        }
    }

    /// A place in the first, the middle and the last used page.
    fn places(&self) -> Vec<usize> {
        let Some((last, page)) = self.pages.last() else {
            return Vec::new();
        };
        let end = last + page.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let (middle, _) = &self.pages[self.pages.len() / 2];
        let first = self.pages[0].0;
        let mut places = vec![first, first + (end - first).min(PAGE - 1) / 2, *middle, end];
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// A store as it was left.
struct Left {
    killed: bool,
    files: BTreeMap<PathBuf, Kept>,
    locked: SystemTime,
    /// When the last of its messages is due.
    due: Instant,
}

impl Left {
    fn by(killed: bool) -> Left {
        let (running, dir) = broker(&SETTINGS);
        first_life(&running);
        assert!(running.stop().success());
        let mut running = Running::start(dir.path(), &SETTINGS);
        second_life(&running);
        let due = Instant::now() + Duration::from_millis(3000);
        if killed {
            running.signal(Signal::SIGKILL);
            running.wait();
        } else {
            assert!(running.stop().success());
        }
        let mut files = BTreeMap::new();
        collect(dir.path(), dir.path(), &mut files);
        let locked = fs::metadata(dir.path().join("lock")).and_then(|lock| lock.modified());
        Left {
            killed,
            files,
            locked: locked.expect("time"),
            due,
        }
    }

    fn restore(&self, root: &Path) {
        // Nothing is there the first time.
        let _ = fs::remove_dir_all(root);
        for (name, kept) in &self.files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            kept.write(&path);
        }
        self.date_lock(root);
    }

    /// A store that is copied keeps the times of its files.
    fn date_lock(&self, root: &Path) {
        if let Ok(lock) = fs::File::options().write(true).open(root.join("lock")) {
            lock.set_modified(self.locked).expect("time");
        }
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let derived = ["commitlog", "consumequeue", "index"];
        for (name, kept) in &self.files {
            if derived.iter().any(|part| name.starts_with(part)) {
                continue;
            }
            let neighbour = self.files.keys().find(|other| {
                other.parent() == name.parent() && *other != name && self.files[*other].len > 0
            });
            let places = kept.places();
            let flips = places.iter().map(|at| Damage::Flip(*at));
            let zeros = kept
                .pages
                .iter()
                .step_by(7)
                .map(|(at, _)| Damage::Zeros(*at));
            let cuts = [1, kept.len / 2].map(Damage::Cut);
            let whole = [
                Damage::Missing,
                Damage::Empty,
                Damage::Noise,
                Damage::Grown(1),
                Damage::Grown(PAGE),
                Damage::Directory,
                Damage::Fifo,
                Damage::Loop,
            ];
            let others = neighbour.cloned().map(Damage::Other);
            let all = flips.chain(zeros).chain(cuts).chain(whole).chain(others);
            cases.extend(all.map(|damage| Case {
                name: name.clone(),
                damage,
            }));
        }
        cases
    }
}

fn collect(root: &Path, directory: &Path, files: &mut BTreeMap<PathBuf, Kept>) {
    for entry in fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("below").to_path_buf();
            files.insert(name, Kept::of(&fs::read(&path).expect("read")));
        }
    }
}

fn plain(number: usize) -> String {
    format!("plain {number}")
}

fn send_plain(talk: &mut Talk, numbers: std::ops::Range<usize>) {
    for number in numbers {
        talk.send_message("Plain", 0, "TAGS\u{1}t\u{2}", plain(number).as_bytes());
    }
}

fn send_later(talk: &mut Talk, topic: &str, key: &str, property: &str) {
    let properties = format!("UNIQ_KEY\u{1}{key}\u{2}WAIT\u{1}true\u{2}{property}\u{2}");
    talk.send_message(topic, 1, &properties, key.as_bytes());
}

fn queue_of_group() -> [(&'static str, &'static str); 3] {
    [("consumerGroup", "g"), ("topic", "Plain"), ("queueId", "0")]
}

fn commit(talk: &mut Talk, offset: i64) {
    let offset = offset.to_string();
    let mut fields = queue_of_group().to_vec();
    fields.push(("commitOffset", &offset));
    assert_eq!(talk.ask(15, &fields, b"").code, 0);
}

/// Some messages come, and each state file is written.
fn first_life(running: &Running) {
    let mut talk = Talk::to(running.address("broker"));
    send_plain(&mut talk, 0..10);
    for topic in ["Gone", "Slow", "Timed"] {
        talk.send_message(topic, 0, "", b"makes the topic");
    }
    assert_eq!(talk.ask(215, &[("topic", "Gone")], b"").code, 0);
    for number in 0..2 {
        send_later(&mut talk, "Slow", &format!("d{number}"), "DELAY\u{1}1");
        send_later(
            &mut talk,
            "Timed",
            &format!("t{number}"),
            "TIMER_DELAY_MS\u{1}300",
        );
    }
    commit(&mut talk, COMMITTED - 4);
    until_there(&mut talk, "Slow", 2).expect("delayed messages");
    until_there(&mut talk, "Timed", 2).expect("messages for a time");
}

/// More wait, and each state file has a copy of what it was.
fn second_life(running: &Running) {
    let mut talk = Talk::to(running.address("broker"));
    send_plain(&mut talk, 10..PLAIN);
    for number in 2..TIMED {
        send_later(
            &mut talk,
            "Timed",
            &format!("t{number}"),
            "TIMER_DELAY_MS\u{1}2500",
        );
    }
    for number in 2..DELAYED {
        send_later(&mut talk, "Slow", &format!("d{number}"), "DELAY\u{1}2");
    }
    commit(&mut talk, COMMITTED);
    talk.send_message("Last", 0, "", b"a younger topic");
    // All that wait are entered and noted.
    talk.version = 479;
    let until = Instant::now() + PATIENCE;
    let noted = |check: &[u8]| check[16..24] == (TIMED as i64).to_be_bytes();
    while !noted(&talk.ask(60, &[], b"").body) {
        assert!(Instant::now() < until, "the timer topic is not read");
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Damage {
    Flip(usize),
    Zeros(usize),
    Cut(usize),
    Grown(usize),
    Noise,
    Missing,
    Empty,
    Other(PathBuf),
    Directory,
    Fifo,
    Loop,
}

#[derive(Clone, Debug)]
struct Case {
    name: PathBuf,
    damage: Damage,
}

impl Case {
    fn apply(&self, left: &Left, root: &Path) {
        let path = root.join(&self.name);
        let kept = &left.files[&self.name];
        fs::remove_file(&path).expect("remove");
        match &self.damage {
            Damage::Missing => {}
            Damage::Directory => fs::create_dir(&path).expect("directory"),
            Damage::Fifo => mkfifo(&path, Mode::S_IRWXU).expect("FIFO"),
            Damage::Loop => std::os::unix::fs::symlink(&path, &path).expect("link"),
            Damage::Other(other) => left.files[other].write(&path),
            damage => {
                let mut bytes = kept.bytes();
                match damage {
                    Damage::Flip(at) => bytes[*at] ^= 0x10,
                    Damage::Zeros(from) => {
                        let to = (from + PAGE).min(kept.len);
                        bytes[*from..to].fill(0);
                    }
                    Damage::Cut(by) => bytes.truncate(kept.len - by),
                    Damage::Grown(by) => bytes.resize(kept.len + by, 0),
                    Damage::Noise => {
                        let noise = (0..kept.len.min(PAGE)).map(|at| (at * 7 + 13) as u8);
                        bytes.splice(..kept.len.min(PAGE), noise);
                    }
                    _ => bytes.clear(),
                }
                Kept::of(&bytes).write(&path);
            }
        }
        left.date_lock(root);
    }

    fn text(&self) -> &str {
        self.name.to_str().expect("text")
    }

    /// Whether a start may refuse the store: what is no file may hide anything, and a state file
    /// has no other copy.
    fn may_be_refused(&self, left: &Left) -> bool {
        let no_file = matches!(self.damage, Damage::Directory | Damage::Fifo | Damage::Loop);
        let backup = PathBuf::from(format!("{}.bak", self.text()));
        no_file || (self.text().ends_with(".json") && !left.files.contains_key(&backup))
    }

    /// Whether what a state file says is another thing now, and nothing shows it: it is text
    /// without a checksum, as Apache's.
    fn says_another_thing(&self) -> bool {
        self.text().ends_with(".json") && matches!(self.damage, Damage::Flip(_))
    }
}

/// Pulls queue `queue` of a topic from its beginning; bodies in their order.
fn bodies(talk: &mut Talk, topic: &str, queue: i32) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let answer = talk.pull(&Pull {
            queue,
            ..Pull::of(topic, found.len() as i64)
        });
        if answer.code != 0 {
            return found;
        }
        let bodies = records(&answer.body).into_iter().map(|(_, body, _)| body);
        found.extend(bodies.map(|body| String::from_utf8_lossy(&body).into_owned()));
    }
}

/// Waits until queue 1 of a topic has so many messages, each another one.
fn until_there(talk: &mut Talk, topic: &str, count: usize) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut found = bodies(talk, topic, 1);
        let end = found.len() as i64;
        found.sort_unstable();
        found.dedup();
        if found.len() == count {
            return Ok(());
        }
        if found.len() > count || Instant::now() > until {
            return Err(format!("{topic} has {found:?}"));
        }
        talk.pull(&Pull {
            queue: 1,
            wait_ms: 200,
            ..Pull::of(topic, end)
        });
    }
}

/// One case. An error says what is wrong.
fn run(left: &Left, root: &Path, case: &Case, number: usize) -> Result<(), String> {
    left.restore(root);
    case.apply(left, root);
    if number % 2 == 1 {
        // A start that is killed somewhere on its way.
        let mut child = serve(root, &SETTINGS).spawn().expect("the binary starts");
        std::thread::sleep(Duration::from_millis(number as u64 * 7 % 61));
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    let started = catch_unwind(AssertUnwindSafe(|| Running::start(root, &SETTINGS)));
    let Ok(running) = started else {
        let sentence = refusal(serve(root, &SETTINGS));
        let name = case.name.file_name().expect("name").to_str().expect("text");
        return match case.may_be_refused(left) && sentence.contains(name) {
            true => Ok(()),
            false => Err(format!("refused: {sentence}")),
        };
    };
    let found = look(&running, left, case);
    let log = stop(running, case)?;
    if let Err(what) = found {
        let name = case.name.file_name().expect("name").to_str().expect("text");
        let told = log.iter().any(|line| line.contains(name));
        let excused = case.says_another_thing() || (case.text().ends_with(".json") && told);
        if !excused {
            return Err(format!("{what}; log: {log:?}"));
        }
    }
    let again = Running::start(root, &SETTINGS);
    stop(again, case).map(drop)
}

/// Whether everything is where it was; an error says what is not.
fn look(running: &Running, left: &Left, case: &Case) -> Result<(), String> {
    let mut talk = Talk::to(running.address("broker"));
    let found = bodies(&mut talk, "Plain", 0);
    let expected: Vec<String> = (0..PLAIN).map(plain).collect();
    if found != expected {
        return Err(format!("Plain has {found:?}"));
    }
    let gone = bodies(&mut talk, "Gone", 0);
    if !gone.is_empty() {
        return Err(format!("a removed topic has {gone:?}"));
    }
    let answer = talk.ask(14, &queue_of_group(), b"");
    let committed = answer
        .ext
        .get("offset")
        .map_or(0, |_| answer.number("offset"));
    if committed > COMMITTED {
        return Err(format!(
            "a group that committed {COMMITTED} is at {committed}"
        ));
    }
    let whole = left.killed || case.text().contains("consumerOffset.json");
    if committed < COMMITTED && !whole {
        return Err(format!(
            "a group that committed {COMMITTED} is at {committed}"
        ));
    }
    until_there(&mut talk, "Slow", DELAYED)?;
    until_there(&mut talk, "Timed", TIMED)
}

/// Stops a broker in order; what it logged. Where a state file cannot be written, since a directory
/// is in its place, the stop says so.
fn stop(mut running: Running, case: &Case) -> Result<Vec<String>, String> {
    running.signal(Signal::SIGTERM);
    let status = running.wait();
    let log = running.rest_of_log();
    let panicked = log.iter().any(|line| line.contains("panicked"));
    let told = log.iter().any(|line| line.contains("cannot write"));
    let blocked = case.damage == Damage::Directory && case.text().contains(".json") && told;
    match (status.success() || blocked) && !panicked {
        true => Ok(log),
        false => Err(format!("{status}: {log:?}")),
    }
}

#[test]
fn no_damage_beside_the_log_loses_a_message_or_stops_a_start_without_a_name() {
    let wanted = std::env::var("SATURNMQ_TEST_MATRIX").unwrap_or_default();
    let named = |case: &Case| match &*wanted {
        "" => false,
        "all" => true,
        part => case.text().contains(part),
    };
    let stores = [false, true].map(Left::by);
    let cases: Vec<(&Left, Case)> = stores
        .iter()
        .flat_map(|left| left.cases().into_iter().map(move |case| (left, case)))
        .collect();
    let chosen: Vec<usize> = (0..cases.len())
        .filter(|number| match wanted.is_empty() {
            true => number % SAMPLE == 0,
            false => named(&cases[*number].1),
        })
        .collect();
    println!("{} of {} cases", chosen.len(), cases.len());
    // By then what waits is due, and comes with the start.
    let due = stores.iter().map(|left| left.due).max().expect("a store");
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let dir = directory();
                let root = dir.path().join("store");
                while let Some(number) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (left, case) = &cases[*number];
                    println!("{number} {case:?}");
                    let ran = catch_unwind(AssertUnwindSafe(|| run(left, &root, case, *number)));
                    let ran = ran.unwrap_or_else(|_| Err("a panic".into()));
                    if let Err(why) = ran {
                        let end = if left.killed { "killed" } else { "stopped" };
                        let text = format!("{end} {case:?}: {why}");
                        println!("{text}");
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
