//! Starts that are killed at every step, one after the other: the next one must come to what an
//! undisturbed one comes to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::append_queue::LightQueues;
use crate::config::StoreConfig;
use crate::dispatch::Waker;
use crate::format::consume_entry::ConsumeEntry;
use crate::format::message::MessageParts;
use crate::medium::{Request, Witness, listen};
use crate::queue_table::Queue;
use crate::store::Store;
use crate::store::start::Parts;

mod full_disk;

/// Size of the log's files.
const FILE: u64 = 16_384;
/// Messages before the resume point, and all of them; 15 to a file.
const BEFORE: usize = 70;
const ALL: usize = 110;
/// Of the stores into mappings every so-manieth is a step.
const STORES: u64 = 11;

struct Nobody;

impl Waker for Nobody {
    fn wake(&self, _core: usize) {}
}

/// Kills the process at one of its steps.
struct Killer {
    steps: u64,
    kill_at: u64,
    stores: u64,
    killed: bool,
}

impl Killer {
    fn step(&mut self) {
        self.killed |= self.steps == self.kill_at;
        self.steps += 1;
    }
}

impl Witness for Killer {
    fn before(&mut self, _request: Request<'_>) -> io::Result<()> {
        self.step();
        match self.killed {
            true => Err(io::Error::other("killed")),
            false => Ok(()),
        }
    }

    fn after(&mut self, _request: Request<'_>) {}

    fn stored(&mut self, _path: &Path, _position: u64, _len: usize) {
        if self.killed {
            return;
        }
        self.stores += 1;
        if self.stores.is_multiple_of(STORES) {
            self.step();
        }
        if self.killed {
            resume_unwind(Box::new("killed"));
        }
    }
}

/// A store, and where its records stand.
struct Killed {
    config: StoreConfig,
    places: Vec<u64>,
    end: u64,
    /// Places of damaged records; their index items may stay.
    damaged: Vec<u64>,
}

fn config(root: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(root);
    config.commit_log_file_size = FILE;
    config.consume_queue_file_size = 20 * 10;
    config.index_slots = 20;
    config.index_items = 60;
    config.max_message_size = 4 << 10;
    config.tail_cache_bytes = 1 << 20;
    config.append_ring_bytes = 1 << 16;
    config.prepare_files = false;
    config.resume_interval = Duration::from_secs(1_000_000);
    config
}

/// Sends messages to three queues in turn.
fn send(config: &StoreConfig, numbers: std::ops::Range<usize>, close: bool) -> Vec<u64> {
    let mut opened = Store::open(config.clone(), 1, Arc::new(Nobody)).unwrap();
    let mut port = opened.ports.remove(0);
    let host = ([127, 0, 0, 1], 10911).into();
    let mut ends = Vec::new();
    for number in numbers {
        let queue = opened.store.queue_or_create("T", number as i32 % 3);
        let properties = format!(
            "UNIQ_KEY\u{1}u{number}\u{2}KEYS\u{1}k{number}\u{2}TAGS\u{1}t{}",
            number % 3
        );
        let parts = MessageParts {
            topic: "T",
            queue_id: queue.queue_id,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &[b'a' + (number % 26) as u8; 892],
            properties: &[properties.as_bytes()],
        };
        port.push(number as u64, &queue, &parts, LightQueues::NONE)
            .unwrap();
        port.submit();
        let appended = loop {
            if let Some(result) = port.pop() {
                break result.outcome.unwrap();
            }
            std::thread::yield_now();
        };
        ends.push(appended.physical_offset);
        ends.push(appended.end);
    }
    while opened.store.watermarks().dispatched() < *ends.last().unwrap() {
        std::thread::yield_now();
    }
    if close {
        opened.store.close().unwrap();
    }
    ends
}

/// The same whose queue entries have extension units.
fn extended(root: &Path) -> StoreConfig {
    let mut config = config(root);
    config.write_extensions = true;
    config.extension_file_size = 256;
    config
}

/// A store with a resume point before its end, killed.
fn killed(config: StoreConfig) -> Killed {
    let mut ends = send(&config, 0..BEFORE, true);
    ends.extend(send(&config, BEFORE..ALL, false));
    Killed {
        config,
        places: ends.iter().copied().step_by(2).collect(),
        end: *ends.last().unwrap(),
        damaged: Vec::new(),
    }
}

fn log_file(store: &Killed, place: u64) -> fs::File {
    let base = place - place % FILE;
    let path = store.config.root.join(format!("commitlog/{base:020}"));
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

/// Damages the magic number of a record.
fn damage(store: &mut Killed, number: usize) {
    let place = store.places[number];
    store.damaged.push(place);
    log_file(store, place)
        .write_all_at(b"\x11", place % FILE + 5)
        .unwrap();
}

fn lose(store: &Killed, name: &str) {
    let path = store.config.root.join(name);
    match path.is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => fs::remove_file(path).unwrap(),
    }
}

fn zero_from(store: &mut Killed, number: usize) {
    let mut at = store.places[number];
    store.damaged.extend(&store.places[number..]);
    while at < store.end {
        let zeros = vec![0; (FILE - at % FILE) as usize];
        log_file(store, at).write_all_at(&zeros, at % FILE).unwrap();
        at += zeros.len() as u64;
    }
}

fn close(store: &Killed) {
    let opened = Store::open(store.config.clone(), 1, Arc::new(Nobody)).unwrap();
    opened.store.close().unwrap();
}

/// First, end, and next offset of a queue; and its entries, with their tag codes in place of the
/// addresses of units.
type Ends = (i64, i64, i64, Vec<Option<ConsumeEntry>>);

/// What a start comes to.
#[derive(Debug, PartialEq, Eq)]
struct Result {
    log_min: u64,
    log_end: u64,
    queues: BTreeMap<(String, i32), Ends>,
    keys: BTreeMap<String, BTreeSet<u64>>,
    /// The log from its beginning to its end, and what stands behind it in its file.
    log: Vec<u8>,
    aside: BTreeSet<String>,
}

/// An entry with its tag code, which may stand in a unit.
fn with_code(queue: &Queue, entry: ConsumeEntry) -> ConsumeEntry {
    let tags_code = queue.tags_code(&entry).unwrap_or(entry.tags_code);
    ConsumeEntry { tags_code, ..entry }
}

/// Starts without a thread; `None` if it was killed.
fn start(config: &StoreConfig, kill_at: Option<u64>) -> Option<Result> {
    let killer = Rc::new(RefCell::new(Killer {
        steps: 0,
        kill_at: kill_at.unwrap_or(u64::MAX),
        stores: 0,
        killed: false,
    }));
    listen(Some(killer.clone()));
    let run = || {
        let (layout, _lock, recovered) = Store::recover(config).map_err(|e| e.to_string())?;
        let (log_min, log_end) = (recovered.log_min, recovered.log_end);
        let (table, index) = (Arc::clone(&recovered.table), Arc::clone(&recovered.index));
        let (_parts, _flusher) =
            Parts::new(config.clone(), layout, recovered).map_err(|e| e.to_string())?;
        let mut result = Result {
            log_min,
            log_end,
            queues: BTreeMap::new(),
            keys: BTreeMap::new(),
            log: Vec::new(),
            aside: BTreeSet::new(),
        };
        for queue in table.all() {
            let (min, max) = (queue.min_offset(), queue.max_offset());
            let entries = (min..max).map(|offset| queue.entry(offset).unwrap());
            let entries = entries.map(|entry| entry.map(|entry| with_code(&queue, entry)));
            let ends = (min, max, queue.next_offset(), entries.collect());
            let name = (queue.topic.to_string(), queue.queue_id);
            if max > 0 || queue.next_offset() > 0 {
                result.queues.insert(name, ends);
            }
        }
        for number in 0..ALL {
            for key in [format!("k{number}"), format!("u{number}")] {
                let hits = index.query("T", key.as_bytes(), 64, 0, i64::MAX).unwrap();
                result.keys.insert(key, hits.offsets.into_iter().collect());
            }
        }
        Ok::<_, String>(result)
    };
    let ran = catch_unwind(AssertUnwindSafe(run));
    listen(None);
    if killer.borrow().killed {
        return None;
    }
    let mut result = ran.unwrap().unwrap_or_else(|why| panic!("refused: {why}"));
    for base in (result.log_min..=result.log_end).step_by(FILE as usize) {
        let path = config.root.join(format!("commitlog/{base:020}"));
        result.log.extend(fs::read(path).unwrap_or_default());
    }
    for entry in fs::read_dir(&config.root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("saturnmq-aside") {
            for file in fs::read_dir(path.join("commitlog")).unwrap() {
                let file = file.unwrap().file_name();
                result.aside.insert(format!("{name}/{}", file.display()));
            }
        }
    }
    Some(result)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
            let modified = entry.metadata().unwrap().modified().unwrap();
            let file = OpenOptions::new().write(true).open(target).unwrap();
            file.set_modified(modified).unwrap();
        }
    }
}

/// Kills starts of a spoiled store at each step; what an undisturbed one comes to.
fn check(what: &str, spoil: impl Fn(&mut Killed)) -> Result {
    check_of(what, config, spoil)
}

/// As [`check`], of a store with this configuration.
fn check_of(
    what: &str,
    config: impl Fn(&Path) -> StoreConfig,
    spoil: impl Fn(&mut Killed),
) -> Result {
    let place = Path::new("/dev/shm");
    let place = place.is_dir().then_some(place);
    let dir = match place {
        Some(place) => tempfile::tempdir_in(place).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let original = dir.path().join("original");
    let mut store = killed(config(&original));
    spoil(&mut store);
    let mut config = store.config.clone();
    let root = dir.path().join("copy");
    config.root.clone_from(&root);
    copy(&original, &root);
    let run = |kill_at| {
        let mut result = start(&config, kill_at)?;
        for places in result.keys.values_mut() {
            places.retain(|place| !store.damaged.contains(place));
        }
        Some(result)
    };
    let expected = run(None).unwrap();
    for kill_at in 0.. {
        fs::remove_dir_all(&root).unwrap();
        copy(&original, &root);
        if run(Some(kill_at)).is_some() {
            println!("{what}: {kill_at} steps");
            assert!(kill_at > 5, "{what}");
            break;
        }
        let found = catch_unwind(AssertUnwindSafe(|| run(None)));
        let found = found.unwrap_or_else(|_| panic!("{what}: killed at step {kill_at}"));
        let found = found.unwrap();
        for (queue, ends) in &expected.queues {
            assert_eq!(
                found.queues.get(queue),
                Some(ends),
                "{what}, step {kill_at}"
            );
        }
        for (key, places) in &expected.keys {
            assert_eq!(found.keys.get(key), Some(places), "{what}, step {kill_at}");
        }
        assert_eq!(found.log_end, expected.log_end, "{what}, step {kill_at}");
        assert!(found == expected, "{what}, step {kill_at}");
    }
    expected
}

#[test]
fn a_start_killed_at_any_step_after_a_kill_changes_nothing() {
    let all = check("killed", |_| ());
    assert_eq!(all.queues.len(), 3);
    let same = check("a queue lost", |store| lose(store, "consumequeue/T/1"));
    assert_eq!(same.log_end, all.log_end);
    check("index lost", |store| lose(store, "index"));
    check("resume point lost", |store| lose(store, "saturnmq.resume"));
    check("all but the log lost", |store| {
        for name in ["saturnmq.resume", "consumequeue", "index"] {
            lose(store, name);
        }
    });
    check("queue file cut", |store| {
        let path = store
            .config
            .root
            .join(format!("consumequeue/T/0/{:020}", 0));
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(100).unwrap();
    });
}

#[test]
fn a_start_killed_at_any_step_of_a_cut_changes_nothing() {
    let torn = check("torn tail", |store| {
        damage(store, BEFORE + 10);
        lose(store, "consumequeue");
        lose(store, "index");
    });
    assert_eq!(torn.queues.len(), 3);
    let put_aside = check("torn, another broker's crash", |store| {
        damage(store, BEFORE + 5);
        fs::write(store.config.root.join("abort"), b"4711").unwrap();
    });
    assert!(put_aside.aside.len() > 1);
    let shrunk = check("zeros below the resume point", |store| {
        close(store);
        drop(Store::open(store.config.clone(), 1, Arc::new(Nobody)).unwrap());
        zero_from(store, ALL - 8);
    });
    assert!(shrunk.log_end < 7 * FILE);
    let next: Vec<i64> = shrunk.queues.values().map(|ends| ends.2).collect();
    assert_eq!(next.iter().sum::<i64>(), ALL as i64, "{next:?}");
    check("zeros, resume point lost", |store| {
        zero_from(store, ALL - 8);
        lose(store, "saturnmq.resume");
    });
    let fewer = check("last files lost, asked to go on", |store| {
        store.config.rebuild_queues = true;
        for base in (0..=store.end).step_by(FILE as usize).skip(2) {
            lose(store, &format!("commitlog/{base:020}"));
        }
    });
    assert!(fewer.log_end <= 2 * FILE);
}

#[test]
fn a_start_killed_at_any_step_over_damage_changes_nothing() {
    check("the resume point's last record and one before", |store| {
        damage(store, BEFORE - 1);
        damage(store, BEFORE / 2);
    });
    let last = check("the last record, which has its entry", |store| {
        damage(store, ALL - 1);
    });
    let next: Vec<i64> = last.queues.values().map(|ends| ends.2).collect();
    assert_eq!(next.iter().sum::<i64>(), ALL as i64, "{next:?}");
    let between = check("between records that were dispatched", |store| {
        damage(store, BEFORE + 5);
        damage(store, ALL - 10);
    });
    assert_eq!(between.log_end, last.log_end);
    check("the same without a resume point", |store| {
        damage(store, ALL - 1);
        lose(store, "saturnmq.resume");
    });
}

#[test]
fn a_start_killed_at_any_step_after_an_orderly_stop_changes_nothing() {
    check("index lost", |store| {
        close(store);
        lose(store, "index");
    });
    let whole = check("resume point and queues lost", |store| {
        close(store);
        lose(store, "saturnmq.resume");
        lose(store, "consumequeue");
    });
    check("all but the log lost", |store| {
        close(store);
        for name in ["saturnmq.resume", "consumequeue", "index"] {
            lose(store, name);
        }
    });
    for lost in [
        &["saturnmq.resume", "consumequeue"][..],
        &["saturnmq.resume"],
    ] {
        let kept = check("damage in the newest file, evidence lost", |store| {
            close(store);
            damage(store, ALL - 4);
            lost.iter().for_each(|name| lose(store, name));
        });
        assert_eq!(kept.log_end, whole.log_end);
    }
    check("the last record damaged", |store| {
        close(store);
        damage(store, ALL - 1);
        lose(store, "saturnmq.resume");
    });
}

/// Puts the content of one file of the store into another one.
fn put_over(store: &Killed, from: &str, to: &str) {
    let root = &store.config.root;
    fs::copy(root.join(from), root.join(to)).unwrap();
}

/// The newest index file.
fn index_file(store: &Killed) -> std::path::PathBuf {
    let files = fs::read_dir(store.config.root.join("index")).unwrap();
    files.map(|entry| entry.unwrap().path()).max().unwrap()
}

#[test]
fn a_start_killed_at_any_step_over_damaged_queues_and_index_changes_nothing() {
    let first = format!("consumequeue/T/0/{:020}", 0);
    let other = format!("consumequeue/T/1/{:020}", 0);
    let last = format!("consumequeue/T/0/{:020}", 600);
    for closed in [false, true] {
        let all = check("a queue file missing", |store| {
            if closed {
                close(store);
            }
            lose(store, &first);
        });
        assert_eq!(all.queues.len(), 3);
        let same = check("another's entries, and all made again", |store| {
            if closed {
                close(store);
            }
            put_over(store, &other, &last);
            store.config.rebuild_queues = true;
        });
        assert_eq!(same.queues, all.queues);
        check("index file of zeros", |store| {
            if closed {
                close(store);
            }
            let path = index_file(store);
            let len = fs::metadata(&path).unwrap().len();
            fs::write(&path, vec![0; len as usize]).unwrap();
        });
        check("checkpoint of another file's bytes", |store| {
            if closed {
                close(store);
            }
            put_over(store, &first, "checkpoint");
        });
    }
}

#[test]
fn a_start_killed_at_any_step_over_lost_units_changes_nothing() {
    let all = check_of("units", extended, |_| ());
    let lost = check_of("units and queues lost", extended, |store| {
        lose(store, "consumequeue_ext");
        lose(store, "consumequeue");
    });
    assert_eq!(lost.queues, all.queues);
    check_of("a queue's units lost", extended, |store| {
        lose(store, "consumequeue_ext/T/1");
    });
    // What a tag code is may be lost with the units: then the message is for everybody.
    check_of("units of zeros", extended, |store| {
        let path = format!("consumequeue_ext/T/0/{:020}", 0);
        fs::write(store.config.root.join(path), [0; 256]).unwrap();
    });
    check_of("torn tail", extended, |store| {
        damage(store, BEFORE + 10);
        lose(store, "consumequeue");
        lose(store, "index");
    });
}
