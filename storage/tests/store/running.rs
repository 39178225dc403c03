//! A running store: appends become readable, in order and once; closing and opening changes
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use saturnmq_storage::config::{FlushMode, PullLimits};
use saturnmq_storage::dispatch::Waker;
use saturnmq_storage::error::OpenError;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::reader::{PullFilter, PullOutcome, PullRequest, PullStatus, TimeBoundary};
use saturnmq_storage::store::{Store, StoreState};

use crate::support::{
    Asleep, Sender, check_filled, check_key, fill, open, ranges, small_config, wait_dispatched,
};

#[test]
fn what_was_acknowledged_is_readable_and_still_there_after_a_restart() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = small_config(dir.path());
        config.flush = flush;
        let mut opened = open(&config).expect("open");
        assert!(dir.path().join("abort").exists());
        let mut sender = Sender::new(opened.ports.remove(0));
        fill(&opened.store, &mut sender, "Orders", 0..900);
        check_filled(&opened.store, "Orders", 900);
        let before = ranges(&opened.store);
        opened.store.close().expect("close");
        assert!(!dir.path().join("abort").exists());
        assert_eq!(opened.store.state(), StoreState::Closed);

        let mut again = open(&config).expect("open again");
        assert_eq!(again.report.scanned_bytes, 0);
        assert_eq!(ranges(&again.store), before);
        check_filled(&again.store, "Orders", 900);
        let mut sender = Sender::new(again.ports.remove(0));
        fill(&again.store, &mut sender, "Orders", 900..1000);
        check_filled(&again.store, "Orders", 1000);
        for number in [0, 500, 999] {
            check_key(&again.store, "Orders", number);
        }
        again.store.close().expect("close");
        again.store.close().expect("closing twice is no error");
    }
}

#[test]
fn a_store_in_use_is_refused_and_free_again_after_close() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let first = open(&config).expect("open");
    let second = open(&config).err().expect("refused");
    assert!(matches!(second, OpenError::Locked { .. }), "{second}");
    assert!(second.to_string().contains("storePathRootDir"), "{second}");
    first.store.close().expect("close");
    open(&config)
        .expect("open again")
        .store
        .close()
        .expect("close");
}

#[test]
fn a_root_below_a_file_is_refused_in_words() {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::write(dir.path().join("file"), b"").expect("write");
    let config = small_config(&dir.path().join("file/store"));
    let refused = open(&config).err().expect("refused").to_string();
    assert!(refused.contains("file/store"), "{refused}");
}

#[test]
fn pulls_report_where_they_stand() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let empty = opened.store.queue_or_create("Empty", 0);
    fill(&opened.store, &mut sender, "Orders", 0..400);
    let queue = opened.store.queue("Orders", 0).expect("queue");
    let mut reader = opened.store.reader().expect("reader");
    let limits = PullLimits::default();
    let mut pull = |queue, offset, max| {
        let mut out = Vec::new();
        let pulled = reader
            .pull(
                &PullRequest {
                    queue,
                    offset,
                    max_count: max,
                    filter: &TagFilter::All,
                    limits: &limits,
                },
                &mut out,
            )
            .expect("pull");
        match pulled {
            PullOutcome::Ready(pulled) => {
                assert_eq!(pulled.bytes, out.len());
                (pulled.status, pulled.next_begin, pulled.count)
            }
            PullOutcome::Cold => panic!("the whole log is in memory"),
        }
    };
    assert_eq!(pull(&empty, 0, 32), (PullStatus::NoMessageInQueue, 0, 0));
    assert_eq!(pull(&queue, -1, 32), (PullStatus::OffsetTooSmall, 0, 0));
    assert_eq!(
        pull(&queue, 100, 32),
        (PullStatus::OffsetOverflowOne, 100, 0)
    );
    assert_eq!(
        pull(&queue, 101, 32),
        (PullStatus::OffsetOverflowBadly, 100, 0)
    );
    assert_eq!(pull(&queue, 0, 0), (PullStatus::Found, 1, 1));
    assert_eq!(pull(&queue, 10, 5), (PullStatus::Found, 15, 5));
    assert_eq!(pull(&queue, 10, 1000), (PullStatus::Found, 42, 32));
    assert_eq!(pull(&queue, 90, 32), (PullStatus::Found, 100, 10));
    opened.store.close().expect("close");
}

#[test]
fn a_pull_of_old_entries_is_cold_before_a_queue_file_is_looked_at() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Old", 0);
    let end = sender.send(&queue, b"first", b"").end;
    wait_dispatched(&opened.store, end);
    opened.store.close().expect("close");
    drop(opened);
    let mut opened = open(&config).expect("open again");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue("Old", 0).expect("queue");
    let mut reader = opened.store.reader().expect("reader");
    let (limits, mut out) = (PullLimits::default(), Vec::new());
    // A core that opened the file would find it gone.
    let path = dir.path().join("consumequeue/Old/0/00000000000000000000");
    let aside = dir.path().join("aside");
    std::fs::rename(&path, &aside).expect("move");
    let mut hot = |offset, out: &mut Vec<u8>| {
        reader
            .pull(
                &PullRequest {
                    queue: &queue,
                    offset,
                    max_count: 32,
                    filter: &TagFilter::All,
                    limits: &limits,
                },
                out,
            )
            .expect("no file is opened")
    };
    assert_eq!(hot(0, &mut out), PullOutcome::Cold);
    std::fs::rename(&aside, &path).expect("move back");
    let end = sender.send(&queue, b"second", b"").end;
    wait_dispatched(&opened.store, end);
    assert_eq!(hot(0, &mut out), PullOutcome::Cold);
    assert!(matches!(hot(1, &mut out), PullOutcome::Ready(pulled) if pulled.count == 1));
    opened.store.close().expect("close");
}

#[test]
fn a_pull_keeps_to_byte_limits_and_to_its_queue_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Big", 0);
    let mut end = 0;
    for _ in 0..150 {
        end = sender.send(&queue, &[b'b'; 30_000], b"").end;
    }
    wait_dispatched(&opened.store, end);
    let mut reader = opened.store.reader().expect("reader");
    let mut out = Vec::new();
    let mut pull = |offset, limits: &PullLimits| {
        out.clear();
        reader
            .pull_cold(
                &PullRequest {
                    queue: &queue,
                    offset,
                    max_count: 32,
                    filter: &TagFilter::All,
                    limits,
                },
                &mut out,
            )
            .expect("pull")
    };
    let limits = PullLimits::default();
    // 262,144 bytes hold eight such records; far from the end 65,536 hold two.
    assert_eq!(pull(0, &limits).count, 8);
    let far = PullLimits {
        memory_distance: 0,
        ..limits
    };
    let pulled = pull(0, &far);
    assert_eq!((pulled.count, pulled.far_behind), (2, true));
    // A queue file holds 100 entries, and a pull ends with it.
    assert_eq!(
        (pull(97, &limits).count, pull(97, &limits).next_begin),
        (3, 100)
    );
    // One record goes out whatever the limits say.
    let tight = PullLimits {
        max_bytes_in_memory: 10,
        ..limits
    };
    assert_eq!(pull(5, &tight).count, 1);
    opened.store.close().expect("close");
}

#[test]
fn a_tag_filter_passes_over_what_it_does_not_want() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..400);
    let queue = opened.store.queue("Orders", 0).expect("queue");
    let mut reader = opened.store.reader().expect("reader");
    let limits = PullLimits::default();
    let mut out = Vec::new();
    let filter = TagFilter::parse(Some("t1")).expect("filter");
    let pulled = reader
        .pull_cold(
            &PullRequest {
                queue: &queue,
                offset: 0,
                max_count: 32,
                filter: &filter,
                limits: &limits,
            },
            &mut out,
        )
        .expect("pull");
    // Numbers 0, 4, 8, …: every third of them has tag t1, the second one first.
    assert_eq!((pulled.status, pulled.count), (PullStatus::Found, 32));
    assert_eq!(pulled.next_begin, 95);
    let first = Record::decode(&out).expect("record");
    assert_eq!(first.queue_offset(), 1);
    let none = TagFilter::parse(Some("nothing")).expect("filter");
    out.clear();
    let pulled = reader
        .pull_cold(
            &PullRequest {
                queue: &queue,
                offset: 0,
                max_count: 32,
                filter: &none,
                limits: &limits,
            },
            &mut out,
        )
        .expect("pull");
    assert_eq!(
        (pulled.status, pulled.next_begin),
        (PullStatus::NoMatchedMessage, 100)
    );
    let few = PullLimits {
        max_filter_bytes: 400,
        ..limits
    };
    let pulled = reader
        .pull_cold(
            &PullRequest {
                queue: &queue,
                offset: 0,
                max_count: 5,
                filter: &none,
                limits: &few,
            },
            &mut out,
        )
        .expect("pull");
    assert_eq!(
        (pulled.status, pulled.next_begin),
        (PullStatus::NoMatchedMessage, 20)
    );
    opened.store.close().expect("close");
}

/// Wants no record, and takes its time to say so.
struct Dear;

impl PullFilter for Dear {
    fn matches_code(&self, _: i64) -> bool {
        true
    }

    fn needs_record(&self) -> bool {
        true
    }

    fn matches_record(&self, _: &Record<'_>, work: &mut usize) -> bool {
        *work += 100;
        false
    }
}

#[test]
fn a_pull_ends_once_its_filter_has_worked_enough() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..400);
    let queue = opened.store.queue("Orders", 0).expect("queue");
    let mut reader = opened.store.reader().expect("reader");
    let limits = PullLimits {
        max_filter_work: 950,
        ..PullLimits::default()
    };
    let mut out = Vec::new();
    let pulled = reader
        .pull_cold(
            &PullRequest {
                queue: &queue,
                offset: 0,
                max_count: 32,
                filter: &Dear,
                limits: &limits,
            },
            &mut out,
        )
        .expect("pull");
    let expected = (PullStatus::NoMatchedMessage, 10);
    assert_eq!((pulled.status, pulled.next_begin), expected);
    opened.store.close().expect("close");
}

#[test]
fn prepared_and_rolled_back_messages_are_in_the_log_but_in_no_queue() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("T", 0);
    let mut places = Vec::new();
    for flags in [0x4, 0xC, 0x8, 0] {
        sender.push_with_flags(&queue, b"body", b"UNIQ_KEY\x01u", flags);
        places.push(sender.wait());
    }
    wait_dispatched(&opened.store, places[3].end);
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, 2));
    assert_eq!([places[2].queue_offset, places[3].queue_offset], [0, 1]);
    let mut reader = opened.store.reader().expect("reader");
    let mut out = Vec::new();
    assert!(
        reader
            .record(places[1].physical_offset, &mut out)
            .expect("read")
    );
    assert_eq!(Record::decode(&out).expect("record").sys_flag(), 0xC);
    // All but the rolled back one are found by key.
    let hits = reader
        .query_index("T", "u", 64, 0, i64::MAX)
        .expect("query")
        .offsets;
    let indexed = [
        places[0].physical_offset,
        places[2].physical_offset,
        places[3].physical_offset,
    ];
    assert_eq!(hits, indexed);
    opened.store.close().expect("close");
    let again = open(&small_config(dir.path())).expect("open");
    assert_eq!(again.store.queue("T", 0).expect("queue").max_offset(), 2);
    again.store.close().expect("close");
}

#[test]
fn a_place_inside_a_record_or_outside_of_the_log_gives_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..600);
    let queue = opened.store.queue("Orders", 3).expect("queue");
    let places: Vec<u64> = (0..queue.max_offset())
        .map(|offset| {
            queue
                .entry(offset)
                .expect("entry")
                .expect("there")
                .physical_offset
        })
        .collect();
    let end = opened.store.watermarks().appended();
    let mut reader = opened.store.reader().expect("reader");
    let mut out = Vec::new();
    for place in &places {
        for inside in [1, 4, 28, 90, 120] {
            assert!(!reader.record(place + inside, &mut out).expect("read"));
        }
        assert!(out.is_empty());
    }
    for outside in [end, end + 1, end + 1_000_000, u64::MAX] {
        assert!(!reader.record(outside, &mut out).expect("read"));
    }
    assert!(reader.record(places[0], &mut out).expect("read"));
    opened.store.close().expect("close");
}

#[test]
fn scheduled_messages_carry_their_time_of_delivery_in_the_queue() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("SCHEDULE_TOPIC_XXXX", 2);
    for (properties, delay) in [("DELAY\u{1}3", 10_000), ("DELAY\u{1}99", 7_200_000)] {
        let appended = sender.send(&queue, b"later", properties.as_bytes());
        wait_dispatched(&opened.store, appended.end);
        let entry = queue
            .entry(appended.queue_offset)
            .expect("entry")
            .expect("there");
        assert_eq!(entry.tags_code, appended.store_timestamp + delay);
    }
    opened.store.close().expect("close");
}

/// Counts wake-ups per core.
#[derive(Default)]
struct Counting([AtomicU64; 2]);

impl Waker for Counting {
    fn wake(&self, core: usize) {
        self.0[core].fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_watching_core_hears_of_a_queue_once_per_watch() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let waker = Arc::new(Counting::default());
    let for_store: Arc<dyn Waker> = Arc::clone(&waker) as Arc<dyn Waker>;
    let mut opened = Store::open(small_config(dir.path()), 2, for_store).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("T", 0);
    queue.watch(1);
    for _ in 0..5 {
        let end = sender.send(&queue, b"x", b"").end;
        wait_dispatched(&opened.store, end);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while opened.wakes[1].is_empty() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(opened.wakes[1].pop(), Some(queue.slot));
    assert_eq!(
        opened.wakes[1].pop(),
        None,
        "not again before the next watch"
    );
    assert_eq!(opened.wakes[0].pop(), None, "nobody watched there");
    assert!(waker.0[1].load(Ordering::SeqCst) >= 1);

    // A core that waits for the log to be dispatched is woken when it is.
    let woken = waker.0[1].load(Ordering::SeqCst);
    let next_end = opened.store.watermarks().appended() + 1;
    opened.wakes[1].wait_dispatched(next_end);
    sender.send(&queue, b"x", b"");
    let deadline = Instant::now() + Duration::from_secs(10);
    while waker.0[1].load(Ordering::SeqCst) == woken {
        assert!(Instant::now() < deadline, "not woken");
        std::thread::yield_now();
    }
    opened.store.close().expect("close");
}

#[test]
fn a_removed_topic_is_gone_and_stays_gone() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Gone", 0..100);
    fill(&opened.store, &mut sender, "Kept", 0..100);
    assert!(
        !opened
            .store
            .remove_topic("Gone")
            .expect("remove")
            .is_empty()
    );
    assert!(opened.store.queue("Gone", 0).is_none());
    opened.store.close().expect("close");
    let opened = open(&config).expect("open");
    assert!(opened.store.queue("Gone", 0).is_none());
    check_filled(&opened.store, "Kept", 100);
    opened.store.close().expect("close");
}

#[test]
fn readers_beside_a_busy_writer_see_every_message_once_and_in_order() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let store = Arc::clone(&opened.store);
    let total = 6000;
    let mut threads = Vec::new();
    for queue_id in 0..4 {
        let queue = store.queue_or_create("Busy", queue_id);
        let mut reader = store.reader().expect("reader");
        threads.push(std::thread::spawn(move || {
            let limits = PullLimits::default();
            let (mut next, mut out) = (0i64, Vec::new());
            let deadline = Instant::now() + Duration::from_secs(60);
            while next < i64::from(total / 4) {
                assert!(Instant::now() < deadline, "stuck at {next}");
                out.clear();
                let pulled = reader
                    .pull_cold(
                        &PullRequest {
                            queue: &queue,
                            offset: next,
                            max_count: 32,
                            filter: &TagFilter::All,
                            limits: &limits,
                        },
                        &mut out,
                    )
                    .expect("pull");
                assert_eq!(pulled.damaged, 0);
                let mut rest = &out[..];
                while !rest.is_empty() {
                    let record = Record::decode(rest).expect("record");
                    assert_eq!(record.queue_offset(), next);
                    record.check_body().expect("body");
                    rest = &rest[record.size() as usize..];
                    next += 1;
                }
            }
        }));
    }
    for number in 0..total {
        let queue = store.queue_or_create("Busy", number % 4);
        sender.push(
            &queue,
            &vec![number as u8; 100 + number as usize % 3000],
            b"TAGS\x01t",
        );
        if number % 50 == 49 {
            for _ in 0..50 {
                sender.wait();
            }
        }
    }
    for thread in threads {
        thread.join().expect("reader");
    }
    opened.store.close().expect("close");
}

#[test]
fn times_find_their_offsets() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..1000);
    let queue = opened.store.queue("Orders", 1).expect("queue");
    let mut reader = opened.store.reader().expect("reader");
    let times: Vec<i64> = (0..queue.max_offset())
        .map(|offset| {
            reader
                .store_time(&queue, offset)
                .expect("read")
                .expect("time")
        })
        .collect();
    assert_eq!(
        reader.earliest_store_time(&queue).expect("read"),
        Some(times[0])
    );
    let mut search = |time, boundary| {
        reader
            .offset_by_time(&queue, time, boundary)
            .expect("search")
    };
    for time in times[0] - 2..times[times.len() - 1] + 3 {
        let lower = times.partition_point(|stored| *stored < time) as i64;
        let upper = times.partition_point(|stored| *stored <= time) as i64 - 1;
        assert_eq!(search(time, TimeBoundary::Lower), lower);
        assert_eq!(search(time, TimeBoundary::Upper), upper.max(0));
        // Within the queue file of the first message at or after it, as Apache 4.9 chooses it.
        let nearest = search(time, TimeBoundary::Nearest) as usize;
        let file = (lower as usize).min(times.len() - 1) / 100 * 100;
        let within = &times[file..times.len().min(file + 100)];
        let best = within
            .iter()
            .map(|stored| stored.abs_diff(time))
            .min()
            .expect("times");
        assert_eq!(times[nearest].abs_diff(time), best, "{time}");
    }
    opened.store.close().expect("close");
}

#[test]
fn a_store_without_a_key_index_works() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.message_index = false;
    let mut opened = Store::open(config.clone(), 1, Arc::new(Asleep)).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..50);
    opened.store.close().expect("close");
    let again = open(&config).expect("open");
    assert_eq!(again.report.scanned_bytes, 0);
    check_filled(&again.store, "Orders", 50);
    again.store.close().expect("close");
}

#[test]
fn an_entry_that_stands_elsewhere_than_its_record_says_is_counted() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut opened = open(&small_config(dir.path())).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Orders", 0);
    for (next, misplaced) in [(0, 0), (1, 0), (0, 1), (5_000_000, 2)] {
        queue.set_next_offset(next);
        let end = sender.send(&queue, b"body", b"").end;
        wait_dispatched(&opened.store, end);
        assert_eq!(opened.store.misplaced_entries(), misplaced);
    }
    opened.store.close().expect("close");
}

#[test]
fn a_log_file_that_was_ended_for_nothing_does_not_spoil_the_close() {
    // Whether the queue goes before, while or after its message starts a file is up to the threads.
    for round in 0..20 {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = small_config(dir.path());
        config.commit_log_file_size = 131_072;
        let mut opened = open(&config).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        let kept = opened.store.queue_or_create("Kept", 0);
        let end = sender.send(&kept, &[b'k'; 65_536], b"").end;
        wait_dispatched(&opened.store, end);
        let gone = opened.store.queue_or_create("Gone", 0);
        sender.push(&gone, &[b'g'; 65_536], b"");
        for _ in 0..round * 500 {
            std::hint::spin_loop();
        }
        opened.store.remove_topic("Gone").expect("remove");
        opened.store.close().expect("a clean close");
        drop(opened);
        let again = open(&config).expect("open again");
        assert!(again.report.clean);
        again.store.close().expect("close");
    }
}
