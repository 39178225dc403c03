//! Light queues: entered with dense offsets, across crashes, copies of records and removal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use saturnmq_storage::append_queue::{AppendFailure, LightQueues, PushError};
use saturnmq_storage::config::StoreConfig;
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::format::light;
use saturnmq_storage::format::message::{MessageParts, PROPERTIES_MAX};
use saturnmq_storage::format::record::Record;
use saturnmq_storage::inspect::{StoreView, verify};
use saturnmq_storage::layout::Layout;
use saturnmq_storage::store::Store;

use crate::support::{Sender, open, ranges, read_all, small_config, wait_dispatched};

/// Sends messages that name light queues.
pub struct Dispatching {
    pub sender: Sender,
    token: u64,
    sys_flag: i32,
}

pub fn text(names: &[&str]) -> String {
    format!(
        "TAGS\u{1}A\u{2}INNER_MULTI_DISPATCH\u{1}{}",
        names.join(",")
    )
}

fn push(
    sending: &mut Dispatching,
    store: &Store,
    (topic, names): (&str, &[&str]),
    (properties, body): (&[u8], &[u8]),
) -> Result<(), PushError> {
    let queue = store.queue_or_create(topic, 1);
    let mut light = LightQueues::default();
    for name in names {
        light.enter(&store.light_queue(name, usize::MAX).expect("room"));
    }
    let host = ([127, 0, 0, 1], 10911).into();
    let parts = MessageParts {
        topic,
        queue_id: 1,
        flag: 0,
        sys_flag: sending.sys_flag,
        born_timestamp: 1_700_000_000_000,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: &[properties],
    };
    sending.token += 1;
    let port = &mut sending.sender.port;
    port.push(sending.token, &queue, &parts, &light)?;
    port.submit();
    Ok(())
}

/// Sends `numbers` to `topic`: all to `%LMQ%every`, each third to `%LMQ%third` as well.
pub fn send(sending: &mut Dispatching, store: &Store, numbers: std::ops::Range<u32>) {
    let mut end = 0;
    for number in numbers {
        let names: &[&str] = match number % 3 {
            0 => &["%LMQ%every", "%LMQ%third"],
            _ => &["%LMQ%every"],
        };
        let body = number.to_string();
        let properties = text(names);
        let what = (properties.as_bytes(), body.as_bytes());
        push(sending, store, ("Orders", names), what).expect("push");
        end = sending.sender.wait().end;
    }
    wait_dispatched(store, end);
}

pub fn opened(config: &StoreConfig) -> (std::sync::Arc<Store>, Dispatching) {
    let mut opened = open(config).expect("open");
    let sender = Sender::new(opened.ports.remove(0));
    let sending = Dispatching {
        sender,
        token: 0,
        sys_flag: 0,
    };
    (opened.store, sending)
}

/// The bodies of a queue's messages; each has its offset in its property.
pub fn bodies(store: &Store, name: &str) -> Vec<u32> {
    let queue = store.queue(name, 0).expect("light queue");
    let mut reader = store.reader().expect("reader");
    let mut record = Vec::new();
    for offset in queue.min_offset()..queue.max_offset() {
        let entry = queue.entry(offset).expect("entry").expect("there");
        record.clear();
        assert!(
            reader
                .record(entry.physical_offset, &mut record)
                .expect("read")
        );
        let record = Record::decode(&record).expect("record");
        assert_eq!(
            (entry.size, entry.tags_code),
            (record.size(), record.tags_code())
        );
        let place = light::places(record.properties()).find(|(found, _)| *found == name);
        assert_eq!(place, Some((name, offset)));
    }
    let (messages, damaged) = read_all(&mut reader, &queue);
    assert_eq!(damaged, 0);
    let number = |body: &[u8]| String::from_utf8_lossy(body).parse().expect("number");
    messages
        .iter()
        .map(|message| number(&message.body))
        .collect()
}

fn check(store: &Store, count: u32) {
    assert_eq!(bodies(store, "%LMQ%every"), (0..count).collect::<Vec<_>>());
    let third: Vec<_> = (0..count).step_by(3).collect();
    assert_eq!(bodies(store, "%LMQ%third"), third);
    for (name, next) in [("%LMQ%every", count as usize), ("%LMQ%third", third.len())] {
        let queue = store.queue(name, 0).expect("light queue");
        assert_eq!(queue.next_offset(), next as i64, "{name}");
    }
}

pub fn check_files(config: &StoreConfig) {
    let index = IndexShape {
        slots: config.index_slots,
        items: config.index_items,
    };
    let view = StoreView::open(Layout::new(&config.root), None, None, Some(index)).expect("view");
    let verified = verify(&view, &mut |_| {}).expect("verify");
    assert_eq!(verified.damage, 0, "{:?}", verified.findings);
}

#[test]
fn a_message_enters_each_light_queue_that_it_names_at_the_offset_in_its_property() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..100);
    check(&store, 100);
    assert_eq!(store.light_queues(), 2);
    store.close().expect("close");
    check_files(&config);
    let (store, mut sending) = opened(&config);
    assert_eq!(store.light_queues(), 2);
    send(&mut sending, &store, 100..110);
    check(&store, 110);
    store.close().expect("close");
    check_files(&config);
}

#[test]
fn light_queues_and_their_next_offsets_come_back_from_the_log_after_a_crash() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = Duration::from_secs(3600);
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..100);
    drop((store, sending));
    for lost in ["%LMQ%third", "%LMQ%every"] {
        std::fs::remove_dir_all(dir.path().join("consumequeue").join(lost)).expect("remove");
        let (store, mut sending) = opened(&config);
        check(&store, 100);
        drop((store, std::mem::replace(&mut sending.token, 0)));
    }
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 100..130);
    check(&store, 130);
    store.close().expect("close");
    check_files(&config);
}

#[test]
fn a_queue_named_twice_or_the_messages_own_one_gets_one_entry() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let (store, mut sending) = opened(&config);
    let names = ["%LMQ%a", "%LMQ%b", "%LMQ%a"];
    for _ in 0..3 {
        let properties = text(&names);
        push(
            &mut sending,
            &store,
            ("Orders", &names),
            (properties.as_bytes(), b"x"),
        )
        .expect("push");
        let end = sending.sender.wait().end;
        wait_dispatched(&store, end);
    }
    let expected: BTreeMap<_, _> = [
        ("%LMQ%a/0", (0, 3)),
        ("%LMQ%b/0", (0, 3)),
        ("Orders/1", (0, 3)),
    ]
    .map(|(name, range)| (name.to_owned(), range))
    .into();
    assert_eq!(ranges(&store), expected);
    assert_eq!(store.misplaced_entries(), 0);
    drop((store, sending));
    let again = open(&config).expect("open").store;
    assert_eq!(ranges(&again), expected);
    again.close().expect("close");
    check_files(&config);
}

#[test]
fn a_copy_of_a_record_in_a_retry_topic_takes_no_place_of_the_first_one() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = Duration::from_secs(3600);
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..30);
    let retry = store.queue_or_create("%RETRY%g", 0);
    let mut end = 0;
    // As 5.x stores messages that come again: with the offsets of the first ones.
    for offset in 3..9 {
        let properties = format!(
            "{}\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}{offset}",
            text(&["%LMQ%every"])
        );
        end = sending
            .sender
            .send(&retry, b"999", properties.as_bytes())
            .end;
    }
    wait_dispatched(&store, end);
    send(&mut sending, &store, 30..40);
    drop((store, sending));
    let (store, sending) = opened(&config);
    check(&store, 40);
    store.close().expect("close");
    drop(sending);
    check_files(&config);
    std::fs::remove_dir_all(dir.path().join("consumequeue")).expect("remove");
    // Without the word of the last run everything is made from the log.
    std::fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
    let (store, _sending) = opened(&config);
    check(&store, 40);
    store.close().expect("close");
}

#[test]
fn properties_that_outgrow_their_length_with_the_offsets_are_refused_and_take_none() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (store, mut sending) = opened(&small_config(dir.path()));
    let names = ["%LMQ%a"];
    let base = text(&names);
    let pad = |len: usize| {
        let mut properties = format!("P\u{1}{}\u{2}", "p".repeat(len - base.len() - 3));
        properties.push_str(&base);
        properties
    };
    // The separator, the name, another separator and one digit.
    let added = "INNER_MULTI_QUEUE_OFFSET".len() + 3;
    let fits = pad(PROPERTIES_MAX - added);
    let longer = pad(PROPERTIES_MAX - added + 1);
    push(
        &mut sending,
        &store,
        ("Orders", &names),
        (longer.as_bytes(), b"x"),
    )
    .expect("push");
    let outcome = loop {
        if let Some(result) = sending.sender.port.pop() {
            break result.outcome;
        }
        std::thread::yield_now();
    };
    let len = PROPERTIES_MAX + 1;
    assert_eq!(outcome, Err(AppendFailure::LightTooLong { len, queues: 1 }));
    push(
        &mut sending,
        &store,
        ("Orders", &names),
        (fits.as_bytes(), b"x"),
    )
    .expect("push");
    let appended = sending.sender.wait();
    assert_eq!(appended.queue_offset, 0);
    wait_dispatched(&store, appended.end);
    assert_eq!(ranges(&store)["%LMQ%a/0"], (0, 1));
    store.close().expect("close");
}

#[test]
fn a_light_queue_that_was_removed_begins_anew_also_after_a_crash() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = Duration::from_secs(3600);
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..20);
    store.remove_topic("%LMQ%every").expect("removed");
    assert_eq!(store.light_queues(), 1);
    let names = ["%LMQ%every"];
    let properties = text(&names);
    for number in ["100", "101"] {
        let what = (properties.as_bytes(), number.as_bytes());
        push(&mut sending, &store, ("Orders", &names), what).expect("push");
        let end = sending.sender.wait().end;
        wait_dispatched(&store, end);
    }
    assert_eq!(bodies(&store, "%LMQ%every"), [100, 101]);
    drop((store, sending));
    let (store, _sending) = opened(&config);
    assert_eq!(bodies(&store, "%LMQ%every"), [100, 101]);
    assert_eq!(
        bodies(&store, "%LMQ%third"),
        (0..20).step_by(3).collect::<Vec<_>>()
    );
    store.close().expect("close");
}

#[test]
fn a_light_queue_that_is_being_removed_takes_nothing_before_its_removal_is_noted() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..3);
    let removal = store.begin_removal("%LMQ%every").expect("there");
    let names = ["%LMQ%third", "%LMQ%every"];
    let properties = text(&names);
    let what = (properties.as_bytes(), &b"3"[..]);
    let pushed = push(&mut sending, &store, ("Orders", &names), what);
    assert_eq!(pushed, Err(PushError::Full));
    // Others go on.
    let only = text(&names[..1]);
    let other = (only.as_bytes(), &b"4"[..]);
    push(&mut sending, &store, ("Orders", &names[..1]), other).expect("push");
    sending.sender.wait();
    store.finish_removal("%LMQ%every", removal).expect("noted");
    push(&mut sending, &store, ("Orders", &names), what).expect("push");
    let end = sending.sender.wait().end;
    wait_dispatched(&store, end);
    assert_eq!(bodies(&store, "%LMQ%every"), [3]);
    assert_eq!(bodies(&store, "%LMQ%third"), [0, 4, 3]);
    store.close().expect("close");
}

#[test]
fn a_record_without_a_queue_offset_takes_none_in_light_queues() {
    use saturnmq_storage::format::message::sys_flag::{PREPARED, ROLLBACK};

    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..1);
    let names = ["%LMQ%every"];
    let properties = text(&names);
    for sys_flag in [PREPARED, ROLLBACK] {
        sending.sys_flag = sys_flag;
        let what = (properties.as_bytes(), &b"none"[..]);
        push(&mut sending, &store, ("Orders", &names), what).expect("push");
        sending.sender.wait();
    }
    sending.sys_flag = 0;
    send(&mut sending, &store, 1..3);
    assert_eq!(bodies(&store, "%LMQ%every"), [0, 1, 2]);
    store.close().expect("close");
    check_files(&config);
    let (store, _sending) = opened(&config);
    assert_eq!(bodies(&store, "%LMQ%every"), [0, 1, 2]);
    store.close().expect("close");
}

#[test]
fn a_place_that_4_9_gave_to_a_message_that_comes_again_is_kept() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let (store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..1);
    let retry = store.queue_or_create("%RETRY%g", 0);
    let mut end = 0;
    for offset in ["1", "2"] {
        let properties = format!(
            "{}\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}{offset}",
            text(&["%LMQ%every"])
        );
        let sent = sending
            .sender
            .send(&retry, offset.as_bytes(), properties.as_bytes());
        end = sent.end;
    }
    wait_dispatched(&store, end);
    drop((store, sending));
    for lost in ["consumequeue", "saturnmq.resume"] {
        let lost = dir.path().join(lost);
        match lost.is_dir() {
            true => std::fs::remove_dir_all(lost).expect("remove"),
            false => drop(std::fs::remove_file(lost)),
        }
    }
    let (store, _sending) = opened(&config);
    assert_eq!(bodies(&store, "%LMQ%every"), [0, 1, 2]);
    store.close().expect("close");
}

#[test]
fn light_queues_lose_their_expired_entries_and_keep_their_offsets() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.retention.disk_max_used_percent = 95;
    config.retention.clean_file_forcibly = false;
    let (store, mut sending) = opened(&config);
    let (count, names) = (2000u32, ["%LMQ%every"]);
    let properties = text(&names);
    let mut end = 0;
    for number in 0..count {
        let body = format!("{number:0500}");
        let what = (properties.as_bytes(), body.as_bytes());
        push(&mut sending, &store, ("Orders", &names), what).expect("push");
        if number % 50 == 49 {
            for _ in 0..50 {
                end = sending.sender.wait().end;
            }
        }
    }
    wait_dispatched(&store, end);
    let files = store.watermarks().appended() / config.commit_log_file_size;
    assert!(files >= 3);
    let later = SystemTime::now() + Duration::from_secs(73 * 3600);
    let limit = Instant::now() + Duration::from_secs(30);
    let mut deleted = 0;
    while deleted < files {
        let report = store.retention_round(later, true).expect("round");
        deleted += report.deleted_log_files as u64;
        assert!(Instant::now() < limit, "no resume point");
        std::thread::yield_now();
    }
    let left = |store: &Store| {
        let first = store.queue("%LMQ%every", 0).expect("queue").min_offset() as u32;
        assert!(first > 0);
        let expected: Vec<_> = (first..count).collect();
        assert_eq!(bodies(store, "%LMQ%every"), expected);
        let next = store
            .queue("%LMQ%every", 0)
            .map(|queue| queue.next_offset());
        assert_eq!(next, Some(i64::from(count)));
    };
    left(&store);
    drop((store, sending));
    let (store, _sending) = opened(&config);
    left(&store);
    store.close().expect("close");
    check_files(&config);
}
