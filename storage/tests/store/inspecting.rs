//! Looking at the store of a running broker, and at one that it left.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use saturnmq_storage::config::{FlushMode, StoreConfig};
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::inspect::{Found, StoreView, Verified, verify};
use saturnmq_storage::layout::Layout;
use saturnmq_storage::resume::ResumePoint;
use saturnmq_storage::store::Store;

use crate::damage::{COUNT, crashed, flip, served};
use crate::support::{Sender, copy_store, fill, open, small_config};

fn view(config: &StoreConfig) -> StoreView {
    let index = IndexShape {
        slots: config.index_slots,
        items: config.index_items,
    };
    StoreView::open(Layout::new(&config.root), None, None, Some(index)).expect("a store")
}

fn look(config: &StoreConfig) -> Verified {
    verify(&view(config), &mut |_| {}).expect("verify")
}

/// Inodes, sizes and times of everything below a directory.
fn state(directory: &Path) -> Vec<(u64, u64, i64, i64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        let details = path.symlink_metadata().expect("metadata");
        found.push((
            details.ino(),
            details.len(),
            details.mtime(),
            details.mtime_nsec(),
        ));
        if details.is_dir() {
            found.extend(state(&path));
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn a_running_store_is_sound_at_every_look_and_grows_between_them() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Before", 0..100);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let store = &opened.store;
        let done = &done;
        scope.spawn(move || {
            fill(store, &mut sender, "Live", 0..6000);
            done.store(true, Ordering::SeqCst);
        });
        let (mut looks, mut records) = (0, 0);
        while !done.load(Ordering::SeqCst) || looks < 2 {
            let found = look(&config);
            assert_eq!(found.damage, 0, "{found:#?}");
            assert!(found.records >= records);
            (looks, records) = (looks + 1, found.records);
        }
    });
    let live = view(&config);
    assert_eq!(live.held_by, Some(std::process::id() as i32));
    // The look took nothing: the lock is still held, and the store closes cleanly.
    assert!(open(&config).is_err());
    opened.store.close().expect("close");
    let before = state(dir.path());
    let found = look(&config);
    assert_eq!((found.damage, found.records), (0, 6100), "{found:#?}");
    assert_eq!(found.entries, 6100);
    assert_eq!(state(dir.path()), before, "a look changes nothing");
}

/// A store with four log files and what its broker left when it was stopped; with the lock it left
/// if it was killed right after its last resume point.
struct Left {
    dir: tempfile::TempDir,
    config: StoreConfig,
}

impl Left {
    fn by(killed: bool, work: impl FnOnce(&Store, &mut Sender)) -> Left {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = small_config(dir.path());
        let mut opened = open(&config).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        work(&opened.store, &mut sender);
        let abort = fs::read(dir.path().join("abort")).expect("abort");
        opened.store.close().expect("close");
        if killed {
            fs::write(dir.path().join("abort"), abort).expect("abort");
        }
        Left { dir, config }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn log_file(&self, number: u64) -> PathBuf {
        let base = number * self.config.commit_log_file_size;
        self.path(&format!("commitlog/{base:020}"))
    }

    /// What is said to be wrong.
    fn problems(&self) -> Vec<String> {
        let found = look(&self.config).findings.into_iter();
        let said = found.map(|finding| format!("{}: {}", finding.file.display(), finding.problem));
        said.collect()
    }

    fn assert_sound(&self, what: &str) {
        let found = look(&self.config);
        assert_eq!(found.damage, 0, "{what}: {found:#?}");
    }
}

#[test]
fn a_topic_that_was_deleted_and_made_again_leaves_a_sound_store() {
    for killed in [false, true] {
        for (what, counts) in [
            ("shorter", &[400, 40][..]),
            ("no queue but the first", &[400, 1]),
            ("no message", &[400, 0]),
            ("shorter each time", &[400, 300, 200, 3]),
            ("longer", &[40, 400]),
            ("shorter, then longer", &[40, 400, 2, 100]),
        ] {
            let left = Left::by(killed, |store, sender| {
                for (time, count) in counts.iter().enumerate() {
                    if time > 0 {
                        store.remove_topic("Again").expect("remove");
                    }
                    store.queue_or_create("Again", 0);
                    fill(store, sender, "Again", 0..*count);
                    fill(store, sender, "Other", 0..20);
                }
            });
            left.assert_sound(what);
            // Without our own resume point, as in a store that Apache wrote.
            if !killed && *counts.last().expect("a count") >= 3 {
                fs::remove_file(left.path("saturnmq.resume")).expect("remove");
                left.assert_sound(what);
            }
        }
    }
}

#[test]
fn a_topic_that_is_made_again_keeps_what_it_took_and_its_offsets_after_a_kill() {
    // The newest resume point is of after the removal, or of before.
    for older in [false, true] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = small_config(dir.path());
        let mut opened = open(&config).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        fill(&opened.store, &mut sender, "Again", 0..80);
        fill(&opened.store, &mut sender, "Gone", 0..80);
        opened.store.close().expect("close");

        let resume = dir.path().join("saturnmq.resume");
        let mut opened = open(&config).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        let before = fs::read(&resume).expect("a resume point");
        for topic in ["Again", "Gone"] {
            let queues = opened.store.remove_topic(topic).expect("remove");
            assert_eq!(queues.len(), 4);
        }
        fill(&opened.store, &mut sender, "Again", 0..20);
        drop(opened);
        if older {
            fs::write(&resume, before).expect("write");
        }
        assert_eq!(look(&config).damage, 0, "{:#?}", look(&config));

        let mut opened = open(&config).expect("open");
        assert!(opened.store.queue("Gone", 0).is_none());
        for queue_id in 0..4 {
            let queue = opened.store.queue("Again", queue_id).expect("queue");
            assert_eq!((queue.min_offset(), queue.max_offset()), (0, 5));
        }
        let mut sender = Sender::new(opened.ports.remove(0));
        let queue = opened.store.queue_or_create("Again", 0);
        assert_eq!(sender.send(&queue, b"next", b"").queue_offset, 5);
        opened.store.close().expect("close");
        assert_eq!(look(&config).damage, 0, "{:#?}", look(&config));
    }
}

/// A kill can come before a queue of it has a directory.
#[test]
fn a_topic_that_was_made_again_a_moment_before_a_kill_is_sound() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Young", 0..80);
    fill(&opened.store, &mut sender, "Other", 0..80);
    opened.store.close().expect("close");
    let resume = dir.path().join("saturnmq.resume");
    let before = fs::read(&resume).expect("a resume point");
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    opened.store.remove_topic("Young").expect("remove");
    fill(&opened.store, &mut sender, "Young", 0..4);
    drop(opened);
    fs::write(&resume, &before).expect("write");
    fs::remove_dir_all(dir.path().join("consumequeue/Young/3")).expect("remove");
    let found = look(&config);
    assert_eq!(found.damage, 0, "{found:#?}");
    let opened = open(&config).expect("open");
    let queue = opened.store.queue("Young", 3).expect("queue");
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, 1));
    opened.store.close().expect("close");
}

/// The next start makes them; nothing is lost.
#[test]
fn queues_and_index_that_were_being_made_again_are_no_damage() {
    let left = Left::by(true, |store, sender| fill(store, sender, "T", 0..200));
    let index = fs::read_dir(left.path("index")).expect("index").next();
    let index = index.expect("a file").expect("entry").path();
    let file = OpenOptions::new().write(true).open(&index).expect("open");
    let shape = IndexShape {
        slots: left.config.index_slots,
        items: left.config.index_items,
    };
    let places = (1..20).map(|item| shape.item_position(item));
    for place in places {
        file.write_all_at(&[9; 4], place).expect("damage");
    }
    assert_ne!(look(&left.config).damage, 0);
    let path = left.path("saturnmq.resume");
    let mut point = ResumePoint::load(&path).expect("load").expect("a point");
    point.in_doubt = true;
    point.store(&path).expect("store");
    let found = look(&left.config);
    assert_eq!(found.damage, 0, "{found:#?}");
    let said = |note: &String| note.contains("being made again");
    assert!(found.notes.iter().any(said), "{found:#?}");
}

#[test]
fn a_lost_queue_of_a_topic_that_was_made_again_is_told() {
    for resume in [true, false] {
        let left = Left::by(false, |store, sender| {
            fill(store, sender, "Again", 0..400);
            store.remove_topic("Again").expect("remove");
            fill(store, sender, "Again", 0..40);
        });
        if !resume {
            fs::remove_file(left.path("saturnmq.resume")).expect("remove");
        }
        fs::remove_dir_all(left.path("consumequeue/Again/2")).expect("remove");
        let said = left.problems();
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(
            said[0].contains("records of Again/2 have no queue on disk"),
            "{said:?}"
        );
    }
}

#[test]
fn a_lost_first_file_of_a_queue_is_told_once() {
    for (killed, resume) in [(false, true), (false, false), (true, true)] {
        let left = Left::by(killed, |store, sender| {
            fill(store, sender, "Orders", 0..1000)
        });
        if !resume {
            fs::remove_file(left.path("saturnmq.resume")).expect("remove");
        }
        let first = left.path("consumequeue/Orders/1/00000000000000000000");
        fs::remove_file(&first).expect("remove");
        let said = left.problems();
        assert_eq!(said.len(), 1, "{said:#?}");
        let text = "Orders/1@0 and what follows it up to queue offset 100 have no queue entry";
        assert!(said[0].contains(text), "{said:?}");
    }
}

#[test]
fn a_log_that_ends_before_what_was_durable_is_told_whoever_cut_it() {
    let size = 262_144;
    for killed in [false, true] {
        let make = || {
            Left::by(killed, |store, sender| {
                fill(store, sender, "Orders", 0..2000)
            })
        };
        let left = make();
        left.assert_sound("whole");
        let end = look(&left.config).log_end;
        let records = places(&left.config);
        let durable = format!("and was on the disk up to {end}");
        // The last record, the last file, all but the first file, the whole log.
        let cut = records[records.len() - 1];
        let file = fs::File::options()
            .write(true)
            .open(left.log_file(cut / size));
        let zeros = vec![0; (end - cut) as usize];
        file.expect("open")
            .write_all_at(&zeros, cut % size)
            .expect("write");
        let said = left.problems();
        assert!(
            said.iter()
                .any(|said| said.contains(&format!("ends at {cut}, {durable}")))
        );
        let left = make();
        for last in (0..=end / size).rev() {
            fs::remove_file(left.log_file(last)).expect("remove");
            let said = left.problems();
            assert!(said.iter().any(|said| said.contains(&durable)), "{said:#?}");
        }
        fs::remove_dir(left.path("commitlog")).expect("remove");
        let said = left.problems();
        assert!(said.iter().any(|said| said.contains(&durable)), "{said:#?}");
    }
}

/// Before the first resume point only queue entries know of the log's files.
#[test]
fn a_log_that_lacks_files_its_queue_entries_name_is_refused_untouched_and_told() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        for lacking in [0, 2] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, _) = crashed(&dir.path().join("store"), flush);
            let (size, end) = (config.commit_log_file_size, look(&config).log_end);
            let used = end.div_ceil(size);
            let kept = if lacking == 0 { 0 } else { used - lacking };
            let file = |number: u64| {
                let name = format!("{:020}", number * size);
                (
                    config.root.join("commitlog").join(&name),
                    dir.path().join(name),
                )
            };
            for number in kept.. {
                let (path, away) = file(number);
                if fs::rename(path, away).is_err() {
                    break;
                }
            }
            let before = state(&config.root.join("consumequeue"));
            let refused = open(&config).err().expect("refused").to_string();
            let text = format!("was on the disk up to {end}");
            assert!(refused.contains(&text), "{refused}");
            assert!(refused.contains("--rebuild-queues"), "{refused}");
            assert!(state(&config.root.join("consumequeue")) == before);
            let said = format!("{:?}", look(&config).findings);
            assert!(said.contains("files are missing"), "{said}");
            for number in kept..used {
                let (path, away) = file(number);
                fs::rename(away, path).expect("put back");
            }
            let opened = open(&config).expect("open");
            assert_eq!(served(&opened).len(), COUNT as usize);
            opened.store.close().expect("close");
        }
    }
}

#[test]
fn a_log_file_that_is_missing_or_no_file_is_named() {
    let make = || {
        Left::by(false, |store, sender| {
            fill(store, sender, "Orders", 0..2000)
        })
    };
    for number in 0..3 {
        let left = make();
        let path = left.log_file(number);
        fs::remove_file(&path).expect("remove");
        let said = left.problems();
        let named = |said: &String| said.starts_with(&format!("{}: it is missing", path.display()));
        assert!(said.iter().any(named), "{number}: {said:#?}");
        fs::create_dir(&path).expect("directory");
        let said = left.problems();
        let text = format!("{}: it is a directory", path.display());
        assert!(said.contains(&text), "{number}: {said:#?}");
        fs::remove_dir(&path).expect("remove");
        std::os::unix::fs::symlink("nowhere", &path).expect("link");
        let said = left.problems();
        let text = format!("{}: it is a link that leads nowhere", path.display());
        assert!(said.contains(&text), "{number}: {said:#?}");
    }
}

#[test]
fn damage_of_the_last_message_that_was_dispatched_is_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = crashed(dir.path(), FlushMode::Sync);
    let last = places[places.len() - 1];
    flip(&config, last + 500);
    let found = look(&config);
    assert_eq!(found.damage, 1, "{found:#?}");
    assert_eq!(found.findings[0].offset, Some(last));
    let opened = open(&config).expect("open");
    assert_eq!(opened.report.damaged_records, 1);
    opened.store.close().expect("close");
}

/// The log offset of every record.
fn places(config: &StoreConfig) -> Vec<u64> {
    let mut places = Vec::new();
    let walked = view(config).walk(0, |found| {
        if let Found::Record { offset, .. } = found {
            places.push(offset);
        }
        true
    });
    walked.expect("walk");
    places
}

#[test]
fn what_a_power_cut_can_have_left_is_no_damage_and_what_it_cannot_have_left_is() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(&dir.path().join("store"));
    config.resume_interval = Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..6000);
    let bound = fs::read_to_string(config.root.join("abort")).expect("abort");
    let bound = bound
        .split(' ')
        .nth(3)
        .and_then(|bytes| bytes.parse::<u64>().ok());
    let bound = bound.expect("a bound");
    let places = places(&config);
    let end = places[places.len() - 1];
    // What has an entry is dispatched, and everything before it was on the disk then.
    for (near, dispatched) in [(true, false), (true, true), (false, true)] {
        let mut killed = config.clone();
        killed.root = dir.path().join(format!("killed-{near}-{dispatched}"));
        copy_store(&config.root, &killed.root);
        // Copied as it was, so that no other broker seems to have taken it since.
        let locked = fs::metadata(config.root.join("lock")).expect("lock");
        let lock = fs::File::options()
            .write(true)
            .open(killed.root.join("lock"));
        let time = locked.modified().expect("time");
        lock.expect("open").set_modified(time).expect("time");
        let found = places
            .iter()
            .find(|place| (end - **place < bound / 2) == near);
        let hole = *found.expect("a record");
        let base = hole - hole % killed.commit_log_file_size;
        let file = killed.root.join(format!("commitlog/{base:020}"));
        let file = fs::File::options().write(true).open(file).expect("open");
        file.write_all_at(&[0; 8], hole - base).expect("write");
        if !dispatched {
            for name in ["consumequeue", "index"] {
                fs::remove_dir_all(killed.root.join(name)).expect("remove");
            }
        }
        let found = look(&killed);
        assert_eq!(found.damage, u64::from(dispatched), "{found:#?}");
        let told = match dispatched {
            false => found
                .notes
                .iter()
                .any(|note| note.contains("were in flight")),
            true => found.findings[0].offset == Some(hole),
        };
        assert!(told, "{found:#?}");
        // The start does as was told.
        let damaged = open(&killed).expect("open").report.damaged_records;
        assert_eq!(damaged, u64::from(dispatched), "{near}");
    }
    opened.store.close().expect("close");
}

#[test]
fn what_is_no_file_in_the_timer_log_is_named_as_the_start_names_it() {
    for link in [false, true] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = small_config(dir.path());
        open(&config).expect("open").store.close().expect("close");
        let path = dir.path().join("timerlog/00000000000000000000");
        fs::create_dir_all(dir.path().join("timerlog")).expect("directory");
        match link {
            true => std::os::unix::fs::symlink("nowhere", &path).expect("link"),
            false => fs::create_dir(&path).expect("directory"),
        }
        let found = look(&config);
        assert!(
            found.findings.iter().any(|found| found.file == path),
            "{found:#?}"
        );
        let refused = open(&config).err().expect("refused").to_string();
        assert!(
            refused.contains("timerlog/00000000000000000000 is a"),
            "{refused}"
        );
    }
}

#[test]
fn a_queue_file_cut_short_is_named_and_no_other() {
    for resume in [true, false] {
        let left = Left::by(false, |store, sender| {
            fill(store, sender, "Orders", 0..1000)
        });
        if !resume {
            fs::remove_file(left.path("saturnmq.resume")).expect("remove");
        }
        // The first one that is looked at.
        let path = left.path("consumequeue/Orders/0/00000000000000002000");
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.set_len(1000).expect("cut");
        let cut: Vec<_> = left
            .problems()
            .into_iter()
            .filter(|said| said.contains("instead of"))
            .collect();
        let text = format!("{}: it has 1000 bytes instead of 2000", path.display());
        assert_eq!(cut, [text]);
    }
}

#[test]
fn a_look_while_retention_takes_files_finds_no_damage() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..3000);
    let begun = view(&config);
    let later = SystemTime::now() + Duration::from_secs(73 * 3600);
    let limit = Instant::now() + Duration::from_secs(30);
    while opened.store.min_log_offset() == 0 {
        opened.store.retention_round(later, true).expect("round");
        assert!(Instant::now() < limit, "no file goes");
    }
    let found = verify(&begun, &mut |_| {}).expect("verify");
    assert_eq!(found.damage, 0, "{found:#?}");
    // Files may go while the look lasts.
    let left = look(&config).records;
    assert!(found.records >= left && left > 0, "{found:#?}");
}
