//! Retention: what goes with expired log files, and the resume points it waits for.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use saturnmq_storage::store::Store;

use crate::support::{Sender, fill, open, read_all, small_config, wait_dispatched};

/// Log files below file number `limit` that this process has open, deleted ones too.
fn open_files_below(commit_log: &std::path::Path, limit: u64) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let old = |target: &std::path::PathBuf| {
        let name = target
            .strip_prefix(commit_log)
            .ok()
            .and_then(|name| name.to_str());
        let base = name
            .and_then(|name| name.get(..20))
            .and_then(|base| base.parse::<u64>().ok());
        base.is_some_and(|base| base / 262_144 < limit)
    };
    targets.filter(old).count()
}

#[test]
fn expired_log_files_go_with_their_entries_and_nothing_else() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.retention.disk_max_used_percent = 95;
    config.retention.clean_file_forcibly = false;
    // No resume point is due: the round has one made behind the files that go.
    config.resume_interval = Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..2500);
    let files_before = opened.store.watermarks().appended() / config.commit_log_file_size;
    assert!(files_before >= 4);
    let now = SystemTime::now();
    let later = now + Duration::from_secs(73 * 3600);
    wait_dispatched(&opened.store, opened.store.watermarks().appended());
    let mut old_reader = opened.store.reader().expect("reader");
    assert!(old_reader.record(0, &mut Vec::new()).expect("read"));
    assert!(open_files_below(&config.root.join("commitlog"), files_before) > 0);
    let nothing = opened.store.retention_round(now, true).expect("round");
    assert!(nothing.deleted_log_files == 0 && nothing.awaits_resume);
    // A resume point was asked for, and is made in the background.
    let limit = Instant::now() + Duration::from_secs(30);
    let (mut log_files, mut queue_files, mut index_files) = (0, 0, 0);
    while log_files < files_before {
        let report = opened.store.retention_round(later, true).expect("round");
        log_files += report.deleted_log_files as u64;
        queue_files += report.deleted_queue_files;
        index_files += report.deleted_index_files;
        assert!(Instant::now() < limit, "no resume point");
        std::thread::yield_now();
    }
    assert_eq!(log_files, files_before);
    assert!(queue_files > 0 && index_files > 0);
    let log_min = opened.store.min_log_offset();
    assert_eq!(log_min, files_before * config.commit_log_file_size);
    let check = |store: &Store| {
        let mut reader = store.reader().expect("reader");
        for queue in store.queues() {
            let first = queue
                .entry(queue.min_offset())
                .expect("entry")
                .expect("there");
            assert!(first.physical_offset >= log_min);
            assert_eq!(queue.max_offset(), 625);
            let (messages, _) = read_all(&mut reader, &queue);
            assert_eq!(messages.len() as i64, 625 - queue.min_offset());
            assert_eq!(messages[0].queue_offset, queue.min_offset());
        }
    };
    check(&opened.store);
    let mut out = Vec::new();
    let mut reader = opened.store.reader().expect("reader");
    assert!(!reader.record(0, &mut out).expect("read"));
    old_reader.release_expired();
    drop(reader);
    // The preparer holds a removed file open until it has given its space back.
    let limit = Instant::now() + Duration::from_secs(30);
    while open_files_below(&config.root.join("commitlog"), files_before) > 0 {
        assert!(Instant::now() < limit, "removed files stay open");
        std::thread::yield_now();
    }
    opened.store.close().expect("close");
    let again = open(&config).expect("open");
    assert_eq!(again.store.min_log_offset(), log_min);
    check(&again.store);
    again.store.close().expect("close");
}

/// Takes the place of the file that resume points are written to.
fn without_resume_points(root: &Path) -> PathBuf {
    let block = root.join("saturnmq.resume.tmp");
    std::fs::create_dir(&block).expect("directory");
    block
}

#[test]
fn retention_goes_on_while_no_resume_point_can_be_made() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    without_resume_points(dir.path());
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..2500);
    wait_dispatched(&opened.store, opened.store.watermarks().appended());
    // Many rounds, each of which waited once: more than a test may take.
    for _ in 0..100 {
        let report = opened.store.retention_round(SystemTime::now(), false);
        assert!(report.expect("round").awaits_resume);
    }
}

#[test]
fn a_resume_point_that_failed_is_made_later_by_itself() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = Duration::from_secs(3600);
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Gone", 0..40);
    fill(&opened.store, &mut sender, "Kept", 0..40);
    wait_dispatched(&opened.store, opened.store.watermarks().appended());
    let block = without_resume_points(dir.path());
    opened.store.remove_topic("Gone").expect("remove");
    let resume = dir.path().join("saturnmq.resume");
    let before = std::fs::read(&resume).ok();
    std::fs::remove_dir(&block).expect("directory");
    let limit = Instant::now() + Duration::from_secs(30);
    while std::fs::read(&resume).ok() == before {
        assert!(Instant::now() < limit, "no resume point");
        std::thread::yield_now();
    }
    drop(opened);
    let opened = open(&config).expect("open");
    assert!(opened.store.queues_of("Gone").is_empty());
    assert_eq!(opened.store.queues_of("Kept").len(), 4);
}
