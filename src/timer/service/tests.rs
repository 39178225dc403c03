use saturnmq_storage::timer::{Found, Looked, TimerSettings, TimerTopic, Waiting};

use super::*;

const NOW: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;

/// A topic without messages.
struct Nothing;

impl TimerTopic for Nothing {
    fn find(&mut self, _: i64, _: i32) -> Found {
        Found::Nothing
    }

    fn look(&mut self, _: i64) -> Looked {
        Looked::Nothing
    }
}

/// New files at `now_ms`.
fn open(dir: &std::path::Path, now_ms: i64) -> Open {
    std::fs::create_dir_all(dir.join("config")).unwrap();
    let settings = TimerSettings {
        precision_ms: 1000,
        roll_window_slots: 172_800,
        log_file_size: 4096,
    };
    let opened = TimerStore::open(&Layout::new(dir), settings, now_ms, &mut Nothing);
    let now = Instant::now();
    Open {
        store: opened.unwrap().0,
        next: 0,
        write_ms: now_ms,
        read_ms: now_ms,
        doubtful_ms: 0,
        doubtful_until: 0,
        ending: None,
        direct: Direct::default(),
        slot: None,
        mends: false,
        mended_tick: None,
        next_check: now,
        check_interval: Duration::ZERO,
        idle_check: now,
        next_trim: now + TRIM,
        record: Vec::new(),
        properties: Vec::new(),
    }
}

#[test]
fn a_clock_that_is_put_back_while_the_broker_runs_has_its_slots_again_with_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let mut open = open(dir.path(), NOW);
    open.see_clock(0, true, NOW + HOUR);
    open.read_ms = NOW + HOUR;
    assert_eq!(open.write_ms, NOW + HOUR);
    open.see_clock(0, true, NOW + 8000);
    assert_eq!((open.read_ms, open.write_ms), (NOW + 8000, NOW + 8000));
    // What the slots of that hour had is looked for before it is delivered.
    assert_eq!(open.doubtful_ms, NOW + HOUR);
    // A second of jitter is no jump.
    open.see_clock(0, true, NOW + 7500);
    assert_eq!(open.write_ms, NOW + 8000);
}

#[test]
fn a_check_point_tells_of_slots_that_were_delivered_before_the_clock_was_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let now = now_ms() / 1000 * 1000;
    let mut open = open(dir.path(), now);
    open.see_clock(0, true, now + HOUR);
    open.read_ms = now + HOUR;
    open.see_clock(0, true, now);
    open.note().unwrap();
    let check = open.store.check();
    assert_eq!((check.read_ms, check.version_ms), (now, now + HOUR));
}

#[test]
fn no_check_point_is_made_while_late_messages_are_on_their_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut open = open(dir.path(), NOW);
    let message = Waiting {
        time_ms: NOW + HOUR,
        log_offset: 300,
        size: 300,
        topic_hash: 7,
        deletes: false,
    };
    open.direct.sent(0);
    open.store.enter(&message, NOW).unwrap();
    open.next = 2;
    open.check_point(Instant::now()).unwrap();
    assert!(!open.store.is_checking().unwrap());
    assert!(open.store.is_changed(), "it was noted");
    open.direct.answered(0, true);
    open.check_point(Instant::now()).unwrap();
    while open.store.is_checking().unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(open.store.check().queue_offset, 2);
}
