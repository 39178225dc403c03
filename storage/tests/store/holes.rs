//! Long holes in the log, and log files that are missing, renamed or behind its end: nothing that
//! is whole is removed, and what cannot be is refused untouched.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use saturnmq_storage::config::{FlushMode, StoreConfig};

use crate::damage::{BODY, COUNT, crashed, flip, forget_entries, rebooted, served, without};
use crate::heard::hear;
use crate::support::{Sender, copy_store, open};

/// The log's files by name.
fn log_files(root: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(root.join("commitlog")).expect("list");
    let mut files: Vec<_> = list.map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    files
}

/// The files of the log in which there is anything: the next one may be there already.
fn used_files(root: &Path) -> usize {
    let used = |path: &PathBuf| fs::read(path).expect("read").iter().any(|byte| *byte != 0);
    log_files(root).iter().filter(|path| used(path)).count()
}

/// Every file below `root` with its bytes, but the lock.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut directories) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("list") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if !path.ends_with("lock") {
                let bytes = fs::read(&path).expect("read");
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// Zeroes `[from, to)` of the log; a hole where whole blocks go.
fn zero(config: &StoreConfig, from: u64, to: u64) {
    let size = config.commit_log_file_size;
    let mut at = from;
    while at < to {
        let base = at - at % size;
        let end = to.min(base + size);
        let path = config.root.join(format!("commitlog/{base:020}"));
        let file = OpenOptions::new().write(true).open(path).expect("log file");
        if end - at == size {
            file.set_len(0).expect("cut");
            file.set_len(size).expect("size");
        } else {
            let zeros = vec![0; (end - at) as usize];
            file.write_all_at(&zeros, at - base).expect("write");
        }
        at = end;
    }
}

fn lose(root: &Path, names: &[&str]) {
    for name in names {
        let path = root.join(name);
        if path.is_dir() {
            fs::remove_dir_all(path).expect("remove");
        } else {
            fs::remove_file(path).expect("remove");
        }
    }
}

fn end_of(places: &[u64]) -> u64 {
    places[COUNT as usize - 1] + 91 + 5 + BODY as u64
}

/// As [`crashed`] under SYNC_FLUSH, but closed.
fn closed(root: &Path) -> (StoreConfig, Vec<u64>) {
    let (config, places) = crashed(root, FlushMode::Sync);
    open(&config).expect("open").store.close().expect("close");
    (config, places)
}

/// As [`closed`], and then killed once more.
fn killed(root: &Path) -> (StoreConfig, Vec<u64>) {
    let (config, places) = closed(root);
    drop(open(&config).expect("open"));
    (config, places)
}

#[test]
fn a_hole_longer_than_a_crash_can_leave_costs_only_its_messages() {
    let lost_files: [&[&str]; 3] = [
        &[],
        &["saturnmq.resume"],
        &["saturnmq.resume", "consumequeue", "index"],
    ];
    // 3.6 MB within the log, and all but the first and the last file of it: more than twice what
    // can be in flight, 1.4 MB here.
    for (by_file, orderly) in [(false, false), (true, false), (true, true)] {
        for names in lost_files {
            if orderly && names.is_empty() {
                // Nobody looks at what was on the disk then; readers find the hole.
                continue;
            }
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, places) = match orderly {
                true => closed(dir.path()),
                false => crashed(dir.path(), FlushMode::Sync),
            };
            let size = config.commit_log_file_size;
            let (from, to) = match by_file {
                false => (places[44], places[164]),
                true => (size, places[199] - places[199] % size),
            };
            zero(&config, from, to);
            lose(dir.path(), names);
            let files = used_files(dir.path());
            let opened = open(&config).expect("open");
            assert_eq!(opened.report.log_end, end_of(&places), "{names:?}");
            let inside = |number: &u32| (from..to).contains(&places[*number as usize]);
            let lost: Vec<u32> = (0..COUNT).filter(inside).collect();
            assert_eq!(served(&opened), without(&lost), "{names:?}");
            opened.store.close().expect("close");
            assert_eq!(used_files(dir.path()), files);
        }
    }
}

#[test]
fn a_long_hole_before_a_torn_tail_is_damage_and_the_tail_is_cut() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = crashed(dir.path(), FlushMode::Sync);
    zero(&config, places[20], places[140]);
    flip(&config, places[197] + 500);
    forget_entries(dir.path());
    let opened = open(&config).expect("open");
    assert_eq!(opened.report.log_end, places[197]);
    let kept = |number: &u32| *number < 20 || (140..197).contains(number);
    assert_eq!(served(&opened), (0..COUNT).filter(kept).collect::<Vec<_>>());
    opened.store.close().expect("close");
}

#[test]
fn log_files_with_each_others_names_are_refused_untouched() {
    for make in [closed, killed] {
        for (one, other) in [(0, 2), (23, 24), (0, 24)] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, _) = make(dir.path());
            let files = log_files(dir.path());
            let between = dir.path().join("commitlog/between");
            let swap = || {
                fs::rename(&files[one], &between).expect("rename");
                fs::rename(&files[other], &files[one]).expect("rename");
                fs::rename(&between, &files[other]).expect("rename");
            };
            swap();
            let before = contents(dir.path());
            let refused = open(&config).err().expect("refused").to_string();
            let name = files[other].file_name().expect("name").to_string_lossy();
            let text = format!("{} holds the log of {name}", files[one].display());
            assert!(refused.contains(&text), "{refused}");
            assert!(contents(dir.path()) == before, "something was changed");
            swap();
            let opened = open(&config).expect("open");
            assert_eq!(served(&opened), without(&[]));
            opened.store.close().expect("close");
        }
    }
}

#[test]
fn a_copy_of_a_log_file_over_another_costs_what_stood_there() {
    for make in [closed, killed] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (config, places) = make(dir.path());
        let files = log_files(dir.path());
        fs::copy(&files[3], &files[5]).expect("copy");
        fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
        let opened = open(&config).expect("open");
        let file = |number: &u32| places[*number as usize] / config.commit_log_file_size == 5;
        let lost: Vec<u32> = (0..COUNT).filter(file).collect();
        assert_eq!(served(&opened), without(&lost));
        opened.store.close().expect("close");
    }
}

#[test]
fn log_files_behind_the_end_are_put_aside_and_can_be_put_back() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path().join("store");
    let (mut config, places) = crashed(&root, FlushMode::Async);
    rebooted(&root);
    flip(&config, places[50] + 500);
    let before = contents(&root);
    let opened = open(&config).expect("open");
    assert_eq!(opened.report.log_end, places[50]);
    assert_eq!(served(&opened), (0..50).collect::<Vec<_>>());
    opened.store.close().expect("close");
    let aside = root.join(format!("saturnmq-aside-{}", places[50]));
    let moved = log_files(&aside);
    let size = config.commit_log_file_size;
    let first_moved = places[50] / size * size + size;
    assert_eq!(moved.len() as u64, places[199] / size - places[50] / size);
    for path in &moved {
        let name = path.file_name().expect("name");
        let original = root.join("commitlog").join(name);
        assert!(fs::read(path).expect("read") == before[&original]);
        fs::rename(path, original).expect("put back");
    }
    config.rebuild_queues = true;
    let opened = open(&config).expect("open");
    let kept = |number: &u32| *number < 50 || places[*number as usize] >= first_moved;
    assert_eq!(served(&opened), (0..COUNT).filter(kept).collect::<Vec<_>>());
    opened.store.close().expect("close");
    assert_eq!(log_files(&aside).len(), 0);
}

#[test]
fn a_log_that_lacks_files_it_had_is_refused_untouched() {
    for make in [closed, killed] {
        for kept in [0, 20, 24] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (root, elsewhere) = (dir.path().join("store"), dir.path().join("elsewhere"));
            let (mut config, places) = make(&root);
            let files = log_files(&root);
            fs::create_dir(&elsewhere).expect("directory");
            let away = |path: &PathBuf| elsewhere.join(path.file_name().expect("name"));
            for path in &files[kept..] {
                fs::rename(path, away(path)).expect("rename");
            }
            let before = contents(&root);
            let refused = open(&config).err().expect("refused").to_string();
            let size = config.commit_log_file_size;
            let (end, known_to) = (kept as u64 * size, end_of(&places));
            let text = format!("ends at {end} at the latest, and was on the disk up to {known_to}");
            assert!(refused.contains(&text), "{refused}");
            assert!(contents(&root) == before, "something was changed");
            // With the files back nothing has happened.
            let copy = dir.path().join("copy");
            copy_store(&root, &copy);
            for path in &files[kept..] {
                fs::copy(away(path), path).expect("put back");
            }
            let opened = open(&config).expect("open");
            assert_eq!(served(&opened), without(&[]));
            opened.store.close().expect("close");
            // Without them it goes on when asked to, and gives no offset again.
            config.root = copy;
            config.rebuild_queues = true;
            let mut opened = open(&config).expect("open");
            let queue = opened.store.queue_or_create("Large", 0);
            let mut sender = Sender::new(opened.ports.remove(0));
            assert_eq!(sender.send(&queue, b"next", b"").queue_offset, 100);
            opened.store.close().expect("close");
        }
    }
}

#[test]
fn an_emptied_last_file_of_a_log_that_had_more_is_refused_untouched() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, _) = closed(dir.path());
    let files = log_files(dir.path());
    fs::write(&files[24], b"").expect("empty");
    let refused = open(&config).err().expect("refused").to_string();
    assert!(refused.contains("bytes of it are missing"), "{refused}");
    assert!(files[24].exists());
}

#[test]
fn a_log_whose_first_files_are_missing_is_refused_untouched() {
    let makes: [fn(&Path, &Path); 2] = [
        |file, _| fs::remove_file(file).expect("remove"),
        |file, elsewhere| {
            fs::rename(file, elsewhere).expect("rename");
            fs::create_dir(file).expect("directory");
        },
    ];
    for (number, take) in makes.into_iter().enumerate() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (root, elsewhere) = (dir.path().join("store"), dir.path().join("elsewhere"));
        let (mut config, places) = closed(&root);
        let first = log_files(&root)[0].clone();
        fs::copy(&first, &elsewhere).expect("copy");
        take(&first, &dir.path().join("taken"));
        let before = contents(&root);
        let refused = open(&config).err().expect("refused").to_string();
        assert!(refused.contains(&first.display().to_string()), "{refused}");
        let why = ["are missing", "is a directory"][number];
        assert!(refused.contains(why), "{refused}");
        assert!(contents(&root) == before, "something was changed");
        if number == 0 {
            // Who asks for it goes on without, from then on.
            let copy = dir.path().join("copy");
            copy_store(&root, &copy);
            config.root = copy;
            config.rebuild_queues = true;
            open(&config).expect("open").store.close().expect("close");
            config.rebuild_queues = false;
            let opened = open(&config).expect("open");
            let size = config.commit_log_file_size;
            let kept = |number: &u32| places[*number as usize] >= size;
            assert_eq!(served(&opened), (0..COUNT).filter(kept).collect::<Vec<_>>());
            opened.store.close().expect("close");
            config.root.clone_from(&root);
        } else {
            fs::remove_dir(&first).expect("directory");
        }
        fs::rename(&elsewhere, &first).expect("put back");
        let opened = open(&config).expect("open");
        assert_eq!(served(&opened), without(&[]));
        opened.store.close().expect("close");
    }
}

#[test]
fn first_files_that_retention_can_have_taken_are_not_missed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = killed(dir.path());
    let size = config.commit_log_file_size;
    fs::remove_file(&log_files(dir.path())[0]).expect("remove");
    let opened = open(&config).expect("open");
    let kept = |number: &u32| places[*number as usize] >= size;
    assert_eq!(served(&opened), (0..COUNT).filter(kept).collect::<Vec<_>>());
    opened.store.close().expect("close");
    // All that the resume point lies behind.
    drop(open(&config).expect("open"));
    let files = log_files(dir.path());
    let last = files.len() - 1;
    for file in &files[..last] {
        fs::remove_file(file).expect("remove");
    }
    let opened = open(&config).expect("open");
    opened.store.close().expect("close");
    // What retention took is not missed after an orderly stop.
    let opened = open(&config).expect("open");
    opened.store.close().expect("close");
}

/// What says where the log ended, of a store that was closed.
const EVIDENCE: [&str; 3] = ["saturnmq.resume", "saturnmq.resume.tmp", "consumequeue"];

#[test]
fn damage_after_an_orderly_stop_costs_only_the_damaged_records_whatever_else_is_lost() {
    for more in [&["index"][..], &[]] {
        // A body, a size, a magic number; in the newest file.
        for (lost, at) in [(193usize, 500), (194, 1), (195, 5)] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, places) = closed(dir.path());
            flip(&config, places[lost] + at);
            lose(dir.path(), &[&EVIDENCE[..], more].concat());
            let opened = open(&config).expect("open");
            assert_eq!(served(&opened), without(&[lost as u32]), "byte {at}");
            assert_eq!(opened.report.log_end, end_of(&places), "byte {at}");
            assert_eq!(opened.report.damaged_records, 1, "byte {at}");
            opened.store.close().expect("close");
        }
    }
}

#[test]
fn what_is_cut_off_a_closed_log_is_told_with_its_place_and_number() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (config, places) = closed(dir.path());
    flip(&config, places[199] + 500);
    lose(dir.path(), &EVIDENCE);
    let (opened, heard) = hear(|| open(&config).expect("open"));
    assert_eq!(served(&opened), without(&[199]));
    let told = format!("end={} from=", places[199]);
    let named = |warning: &String| warning.contains(&told);
    assert!(heard.warnings.iter().any(named), "{:?}", heard.warnings);
    opened.store.close().expect("close");
}

/// Writes into a file of the store.
fn put(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("file");
    file.write_all_at(bytes, at).expect("write");
}

/// Apache leaves what it cuts, and writes over it from the cut on.
#[test]
fn old_records_behind_the_end_of_a_closed_log_do_not_come_back_and_are_told() {
    for queues in [false, true] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (config, places) = closed(dir.path());
        flip(&config, places[195] + 5);
        for place in &places[196..] {
            let base = place - place % config.commit_log_file_size;
            let path = dir.path().join(format!("commitlog/{base:020}"));
            // Their store time.
            put(
                &path,
                place - base + 56,
                &1_700_000_000_000u64.to_be_bytes(),
            );
        }
        lose(dir.path(), if queues { &EVIDENCE[..2] } else { &EVIDENCE });
        for queue in [0u64, 1].into_iter().filter(|_| queues) {
            let path = format!("consumequeue/Large/{queue}/00000000000000000000");
            let from = (98 - queue) * 20;
            put(&dir.path().join(path), from, &vec![0; 2000 - from as usize]);
        }
        let (opened, heard) = hear(|| open(&config).expect("open"));
        assert_eq!(opened.report.log_end, places[195], "{queues}");
        assert_eq!(served(&opened), (0..195).collect::<Vec<_>>(), "{queues}");
        let told = format!("end={} records=4", places[195]);
        let named = |warning: &String| warning.contains(&told);
        assert!(heard.warnings.iter().any(named), "{:?}", heard.warnings);
        opened.store.close().expect("close");
    }
}
