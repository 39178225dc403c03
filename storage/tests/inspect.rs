//! Inspecting stores: what sound ones, damaged ones and those of a running broker look like.

use std::fs::File;
use std::path::{Path, PathBuf};

use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::inspect::{LogLook, QueueFiles, StoreView, Verified, is_of, verify};
use saturnmq_storage::layout::{Layout, list_queues};
use serde_json::Value;

fn golden_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/stores")
}

fn names() -> Vec<String> {
    let list = std::fs::read_dir(golden_directory()).expect("golden stores");
    let mut names: Vec<String> = list
        .filter_map(|entry| entry.expect("entry").file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".tar.zst").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn open(name: &str) -> (tempfile::TempDir, StoreView) {
    let at = |suffix: &str| golden_directory().join(format!("{name}{suffix}"));
    let decoder =
        |path: PathBuf| zstd::Decoder::new(File::open(path).expect("open")).expect("zstd");
    let manifest: Value = serde_json::from_reader(decoder(at(".json.zst"))).expect("JSON");
    let dir = tempfile::tempdir().expect("directory");
    tar::Archive::new(decoder(at(".tar.zst")))
        .unpack(dir.path())
        .expect("unpack");
    let number = |key: &str, default: u64| {
        let text = manifest["conf"][key].as_str();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let index = IndexShape {
        slots: number("maxHashSlotNum", 5_000_000) as u32,
        items: number("maxIndexNum", 20_000_000) as u32,
    };
    let layout = Layout::new(dir.path().join("store"));
    let log_file = number("mappedFileSizeCommitLog", 1 << 30);
    let queue_file = number("mappedFileSizeConsumeQueue", 6_000_000);
    let view = StoreView::open(layout, Some(log_file), Some(queue_file), Some(index));
    (dir, view.expect("a store"))
}

fn verified(view: &StoreView) -> Verified {
    verify(view, &mut |_| {}).expect("verify")
}

/// What is wrong with a golden store: a count and a part of the first finding.
fn expected(name: &str) -> (u64, &'static str) {
    let damaged = [
        (
            "bad-phyoffset-4.9.7",
            1,
            "the record's own log offset is 12345",
        ),
        (
            "cq-lag-clean-5.3.3",
            12,
            "and what follows it have no queue entry",
        ),
        ("crc-last-file-clean-4.9.7", 1, "the body's checksum"),
        ("crc-old-file-clean-4.9.7", 1, "the body's checksum"),
        ("crc-old-file-clean-5.3.3", 1, "the body's checksum"),
        ("foreign-file-4.9.7", 1, "its name is not 20 digits"),
        ("lost-tail-clean-4.9.7", 121, "the end of the log is lost"),
        ("lost-tail-clean-5.3.3", 244, "the end of the log is lost"),
        ("no-cq-index-clean-4.9.7", 12, "have no queue on disk"),
        ("no-cq-index-clean-5.3.3", 12, "have no queue on disk"),
        ("one-queue-missing-clean-4.9.7", 1, "have no queue on disk"),
        ("one-queue-missing-clean-5.3.3", 1, "have no queue on disk"),
        (
            "short-file-4.9.7",
            2,
            "it has 100000 bytes instead of 262144",
        ),
        ("torn-hole-5.3.3", 1, "762 bytes are no record"),
    ];
    let found = damaged.iter().find(|(damaged, ..)| *damaged == name);
    found.map_or((0, ""), |(_, count, part)| (*count, part))
}

#[test]
fn apaches_stores_are_sound_unless_they_were_damaged_on_purpose() {
    for name in names() {
        let (_dir, view) = open(&name);
        let found = verified(&view);
        let (count, part) = expected(&name);
        assert_eq!(found.damage, count, "{name}: {found:#?}");
        if let Some(first) = found.findings.first() {
            assert!(first.problem.contains(part), "{name}: {first:?}");
            let missing_queue = part == "have no queue on disk";
            assert!(missing_queue || first.file.exists(), "{name}: {first:?}");
        }
    }
}

/// Changes a byte of a file.
fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[!byte[0]], at).expect("write");
}

#[test]
fn every_changed_byte_of_a_queue_entry_or_an_index_item_is_found() {
    let (dir, view) = open("basic-clean-4.9.7");
    let store = dir.path().join("store");
    let index = std::fs::read_dir(store.join("index")).expect("index");
    let index = index.map(|file| file.expect("entry").path()).next();
    let index = index.expect("an index file");
    let items = 40 + 4 * 100 + 20;
    let mut places: Vec<(PathBuf, u64)> = (0..8)
        .map(|at| (index.clone(), items + at))
        .chain([16, 17, 18, 19].map(|at| (index.clone(), items + 40 + at)))
        .collect();
    let queues = std::fs::read_dir(store.join("consumequeue")).expect("queues");
    let topic = queues.map(|topic| topic.expect("entry").path()).min();
    let queue = std::fs::read_dir(topic.expect("a topic")).expect("queue");
    let queue = queue.map(|queue| queue.expect("entry").path()).min();
    let file = queue.expect("a queue").join("00000000000000000000");
    places.extend((0..20).map(|at| (file.clone(), at)));
    for (path, at) in places {
        flip(&path, at);
        let found = verified(&view);
        assert!(found.damage > 0, "{} at {at}", path.display());
        let named = |finding: &saturnmq_storage::inspect::Finding| finding.file == path;
        let in_log = found.findings.iter().any(|finding| {
            finding.problem.contains("no queue entry")
                || finding.problem.contains("not in the index")
        });
        assert!(found.findings.iter().any(named) || in_log, "{found:#?}");
        flip(&path, at);
    }
    assert_eq!(verified(&view).damage, 0);
}

#[test]
fn no_changed_byte_of_the_log_stops_the_look_at_it() {
    let (dir, view) = open("delay-clean-5.3.3");
    let log = dir.path().join("store/commitlog/00000000000000000000");
    let end = verified(&view).log_end;
    // Fields that nothing repeats and no checksum covers: flags, times, hosts and the like.
    let mut unseen = 0;
    for at in (0..end).step_by(7) {
        flip(&log, at);
        unseen += u64::from(verified(&view).damage == 0);
        flip(&log, at);
    }
    assert!(unseen < end / 7 * 6 / 10, "{unseen} of {end}");
}

#[test]
fn every_entry_of_a_light_queue_leads_to_a_record_of_it() {
    for name in ["lmq-clean-4.9.7", "lmq-clean-5.3.3"] {
        let (_dir, view) = open(name);
        let mut log = LogLook::new(&view);
        let mut light = 0;
        for (topic, queue_id) in list_queues(&view.layout.consume_queues()).expect("queues") {
            let (mut files, _) = QueueFiles::open(&view, &topic, queue_id).expect("queue");
            for at in 0..files.end().expect("end") {
                let entry = files.entry(at).expect("read").expect("an entry");
                let record = log.record(entry.physical_offset).expect("read");
                let record = record.expect("a record");
                assert!(is_of(&record, &topic, queue_id, at), "{name} {topic}@{at}");
                assert!(!is_of(&record, &topic, queue_id, at + 1));
                light += u32::from(topic.starts_with("%LMQ%"));
            }
        }
        assert!(light > 0, "{name}");
    }
}
