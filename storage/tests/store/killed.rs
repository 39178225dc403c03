//! Damage in stores that were killed: what is known to have been on the disk is no torn tail, and
//! queue offsets that a client was told stay given.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use saturnmq_storage::config::{FlushMode, StoreConfig};
use saturnmq_storage::format::message::{MessageParts, assign, encode_into, encoded_len};
use saturnmq_storage::store::Opened;

use crate::damage::{BODY, COUNT, crashed, flip, served, without};
use crate::support::{Sender, open, read_all, small_config, wait_dispatched};

/// A store whose resume point stands behind its last record, killed.
fn killed(root: &Path, flush: FlushMode) -> (StoreConfig, Vec<u64>) {
    let (config, places) = crashed(root, flush);
    open(&config).expect("open").store.close().expect("close");
    drop(open(&config).expect("open"));
    (config, places)
}

fn end_of(places: &[u64]) -> u64 {
    places[COUNT as usize - 1] + 91 + 5 + BODY as u64
}

/// Sends a message to each of the two queues; they get the next offsets, and are there after
/// another kill.
fn go_on(config: &StoreConfig, mut opened: Opened, offset: i64) {
    let mut sender = Sender::new(opened.ports.remove(0));
    for queue_id in 0..2 {
        let queue = opened.store.queue_or_create("Large", queue_id);
        let sent = sender.send(&queue, b"next", b"");
        assert_eq!(sent.queue_offset, offset, "queue {queue_id}");
        wait_dispatched(&opened.store, sent.end);
    }
    drop(opened);
    let opened = open(config).expect("open again");
    for queue_id in 0..2 {
        let queue = opened.store.queue("Large", queue_id).expect("queue");
        let messages = read_all(&mut opened.store.reader().expect("reader"), &queue).0;
        let last = messages.last().expect("a message");
        assert_eq!((last.queue_offset, &last.body[..]), (offset, &b"next"[..]));
    }
    opened.store.close().expect("close");
}

#[test]
fn damage_below_the_resume_point_is_never_a_torn_tail() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        // The magic number, the size and the place of the resume point's last record.
        for (other, at) in [(100usize, 5), (190, 1), (198, 33)] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, places) = killed(dir.path(), flush);
            flip(&config, places[199] + at);
            flip(&config, places[other] + 500);
            let opened = open(&config).expect("open");
            assert_eq!(served(&opened), without(&[other as u32, 199]));
            assert_eq!(opened.report.log_end, end_of(&places));
            assert_eq!(opened.report.damaged_records, 2);
            go_on(&config, opened, 100);
        }
    }
}

#[test]
fn damage_before_a_record_that_was_dispatched_is_no_torn_tail() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        for (lost, at) in [(195usize, 500), (196, 5), (197, 1)] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, places) = crashed(dir.path(), flush);
            flip(&config, places[lost] + at);
            let opened = open(&config).expect("open");
            assert_eq!(opened.report.log_end, end_of(&places), "{flush:?} {lost}");
            assert_eq!(served(&opened), without(&[lost as u32]), "{flush:?} {lost}");
            go_on(&config, opened, 100);
        }
    }
}

/// Also where the last record says nothing any more: a body in the middle and the place that the
/// last record names were changed once (the breaker's seed 1100114), and all between them was cut.
#[test]
fn damage_before_a_damaged_last_record_costs_those_two_and_none_between() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        // Of the last record the body, its log offset, magic number, size.
        for at in [500, 33, 5, 1] {
            for (lost, with) in [(60usize, 500), (196, 500), (195, 33), (198, 1)] {
                let dir = tempfile::tempdir().expect("temporary directory");
                let (config, places) = crashed(dir.path(), flush);
                flip(&config, places[lost] + with);
                flip(&config, places[199] + at);
                let opened = open(&config).expect("open");
                let what = format!("{flush:?} {lost} {with} {at}");
                assert_eq!(opened.report.log_end, end_of(&places), "{what}");
                assert_eq!(served(&opened), without(&[lost as u32, 199]), "{what}");
                go_on(&config, opened, 100);
            }
        }
    }
}

/// No record stands behind it that would tell: its entry does.
#[test]
fn a_damaged_place_in_a_queues_last_record_costs_that_record_alone() {
    // Its queue offset, queue id, topic.
    for at in [23, 25, 26, 27, 12, 14, 15, 88 + BODY as u64 + 2] {
        for damaged in [&[199u32][..], &[195, 199]] {
            for how in ["killed", "stopped, no resume point", "queues made again"] {
                let dir = tempfile::tempdir().expect("temporary directory");
                let (mut config, places) = crashed(dir.path(), FlushMode::Sync);
                if how != "killed" {
                    open(&config).expect("open").store.close().expect("close");
                }
                if how == "stopped, no resume point" {
                    fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
                }
                config.rebuild_queues = how == "queues made again";
                for lost in damaged {
                    let at = if *lost == 199 { at } else { 33 };
                    flip(&config, places[*lost as usize] + at);
                }
                let opened = open(&config).expect("open");
                config.rebuild_queues = false;
                let what = format!("byte {at} of {damaged:?}, {how}");
                assert_eq!(opened.report.log_end, end_of(&places), "{what}");
                assert_eq!(served(&opened), without(damaged), "{what}");
                let queues: Vec<_> = fs::read_dir(dir.path().join("consumequeue"))
                    .expect("queues")
                    .flat_map(|topic| fs::read_dir(topic.expect("topic").path()).expect("topic"))
                    .collect();
                assert_eq!(queues.len(), 2, "{what}");
                go_on(&config, opened, 100);
            }
        }
    }
}

#[test]
fn offsets_of_dispatched_records_stay_given_although_the_records_are_damaged() {
    for (orderly, with_resume_point) in [(false, true), (false, false), (true, false)] {
        for lost in [&[199u32][..], &[198, 199], &[190, 197, 198, 199]] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let (config, places) = crashed(dir.path(), FlushMode::Sync);
            if orderly {
                open(&config).expect("open").store.close().expect("close");
            }
            for number in lost {
                flip(&config, places[*number as usize] + 5);
            }
            if !with_resume_point {
                fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
            }
            // A second start finds no entries any more.
            drop(open(&config).expect("open"));
            let opened = open(&config).expect("open");
            assert_eq!(served(&opened), without(lost), "{lost:?}");
            go_on(&config, opened, 100);
        }
    }
}

#[test]
fn after_a_kill_without_syncs_damage_costs_only_the_damaged_records() {
    for (at, lost) in [(500, 50u32), (5, 51), (1, 52)] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (config, places) = crashed(dir.path(), FlushMode::Async);
        flip(&config, places[lost as usize] + at);
        // Nothing but the log tells.
        fs::remove_dir_all(dir.path().join("consumequeue")).expect("remove");
        fs::remove_dir_all(dir.path().join("index")).expect("remove");
        let opened = open(&config).expect("open");
        assert_eq!(opened.report.log_end, end_of(&places), "byte {at}");
        assert_eq!(served(&opened), without(&[lost]), "byte {at}");
        go_on(&config, opened, 100);
    }
}

#[test]
fn messages_of_a_removed_topic_do_not_come_back_with_lost_files() {
    let lost_files: [&[&str]; 3] = [
        &["saturnmq.resume"],
        &["consumequeue", "index"],
        &["saturnmq.resume", "consumequeue", "index"],
    ];
    let cases = [true, false].map(|orderly| lost_files.map(|names| (orderly, names)));
    for (orderly, names) in cases.into_iter().flatten() {
        // Messages that the topic gets after it was made again.
        for again in [0, 1, 3] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let config = small_config(dir.path());
            let mut opened = open(&config).expect("open");
            let mut sender = Sender::new(opened.ports.remove(0));
            for topic in ["Removed", "Kept"] {
                let queue = opened.store.queue_or_create(topic, 0);
                for number in 0..10 {
                    let end = sender.send(&queue, format!("{number}").as_bytes(), b"").end;
                    wait_dispatched(&opened.store, end);
                }
            }
            assert!(
                !opened
                    .store
                    .remove_topic("Removed")
                    .expect("remove")
                    .is_empty()
            );
            let queue = opened.store.queue_or_create("Removed", 0);
            for number in 0..again {
                let sent = sender.send(&queue, format!("again {number}").as_bytes(), b"");
                assert_eq!(sent.queue_offset, number);
                wait_dispatched(&opened.store, sent.end);
            }
            match orderly {
                true => opened.store.close().expect("close"),
                false => drop(opened),
            }
            for name in names {
                let path = dir.path().join(name);
                match path.is_dir() {
                    true => fs::remove_dir_all(path).expect("remove"),
                    false => fs::remove_file(path).expect("remove"),
                }
            }
            let opened = open(&config).expect("open");
            let mut reader = opened.store.reader().expect("reader");
            let queue = opened.store.queue_or_create("Removed", 0);
            let (messages, _) = read_all(&mut reader, &queue);
            let bodies: Vec<String> = messages
                .into_iter()
                .map(|message| String::from_utf8(message.body).expect("text"))
                .collect();
            let expected: Vec<String> =
                (0..again).map(|number| format!("again {number}")).collect();
            assert_eq!(bodies, expected, "orderly {orderly}, {names:?} lost");
            let kept = opened.store.queue("Kept", 0).expect("queue");
            assert_eq!((kept.min_offset(), kept.max_offset()), (0, 10));
            opened.store.close().expect("close");
        }
    }
}

/// A record of queue T/0 as a body can hold it.
fn inner(queue_offset: i64, place: u64) -> Vec<u8> {
    let host = ([127, 0, 0, 1], 10911).into();
    let parts = MessageParts {
        topic: "T",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"forged",
        properties: &[],
    };
    let mut record = vec![0; encoded_len(&parts).expect("length")];
    encode_into(&parts, &mut record).expect("encoded");
    assign(&mut record, queue_offset, place, 1_700_000_000_000);
    record
}

#[test]
fn what_stands_inside_a_damaged_body_is_no_message() {
    // Size, magic number, body length; in the middle and at the log's end.
    for (at, behind) in [(2, 20), (5, 20), (86, 20), (5, 0)] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = small_config(dir.path());
        config.resume_interval = std::time::Duration::from_secs(3600);
        let mut opened = open(&config).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        let queue = opened.store.queue_or_create("T", 0);
        let mut place = 0;
        for _ in 0..20 {
            place = sender.send(&queue, b"good", b"").end;
        }
        let mut body = b"12345678".to_vec();
        for offset in [20, 21] {
            body.extend(inner(offset, place + 88 + body.len() as u64));
        }
        let mut end = sender.send(&queue, &body, b"").end;
        for _ in 0..behind {
            end = sender.send(&queue, b"good", b"").end;
        }
        wait_dispatched(&opened.store, end);
        drop(opened);
        flip(&config, place + at);
        let opened = open(&config).expect("open");
        let queue = opened.store.queue("T", 0).expect("queue");
        let mut reader = opened.store.reader().expect("reader");
        let (messages, _) = read_all(&mut reader, &queue);
        assert!(messages.iter().all(|message| message.body == b"good"));
        assert_eq!(messages.len(), 20 + behind, "byte {at}, {behind} behind");
        assert_eq!(queue.next_offset(), 21 + behind as i64);
        opened.store.close().expect("close");
    }
}

/// Without its queue entry nothing tells where the damaged record ends, and what its body was made
/// to hold can pass for messages; it hides none that is whole.
#[test]
fn what_stands_inside_a_damaged_body_hides_no_message_before_or_behind_it() {
    let lost_files: [&[&str]; 2] = [&["consumequeue"], &["consumequeue", "saturnmq.resume"]];
    for lost in lost_files {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = small_config(dir.path());
        let mut opened = open(&config).expect("open");
        let mut sender = Sender::new(opened.ports.remove(0));
        let queue = opened.store.queue_or_create("T", 0);
        let mut place = 0;
        for _ in 0..20 {
            place = sender.send(&queue, b"good", b"").end;
        }
        let mut body = b"12345678".to_vec();
        for offset in [20, 21] {
            body.extend(inner(offset, place + 88 + body.len() as u64));
        }
        sender.send(&queue, &body, b"");
        for _ in 0..20 {
            sender.send(&queue, b"good", b"");
        }
        opened.store.close().expect("close");
        let log = OpenOptions::new()
            .write(true)
            .open(dir.path().join("commitlog/00000000000000000000"));
        log.expect("log file")
            .write_all_at(&[0; 90], place)
            .expect("write");
        for name in lost {
            let path = dir.path().join(name);
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            };
            removed.expect("remove");
        }
        let opened = open(&config).expect("open");
        let queue = opened.store.queue("T", 0).expect("queue");
        let mut reader = opened.store.reader().expect("reader");
        let (messages, _) = read_all(&mut reader, &queue);
        let good = messages.iter().filter(|message| message.body == b"good");
        let offsets: Vec<i64> = good.map(|message| message.queue_offset).collect();
        let sent: Vec<i64> = (0..20).chain(21..41).collect();
        assert_eq!(offsets, sent, "{lost:?}");
        assert_eq!(queue.next_offset(), 41);
        opened.store.close().expect("close");
    }
}

/// Apache leaves entries in a queue's file where it cut its log after a power loss. Other messages
/// stand at those log offsets since, and their own queues may have gone on far behind them.
#[test]
fn an_entry_that_a_cut_left_in_another_queue_costs_no_message() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let mut opened = open(&config).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let (idle, busy) = ("Idle", "Busy");
    let [idle, busy] = [idle, busy].map(|topic| opened.store.queue_or_create(topic, 0));
    for _ in 0..3 {
        sender.send(&idle, b"idle", b"");
    }
    let first = sender.send(&busy, b"busy", b"");
    let mut end = first.end;
    for _ in 1..350 {
        end = sender.send(&busy, b"busy", b"").end;
    }
    wait_dispatched(&opened.store, end);
    opened.store.close().expect("close");
    drop((opened, sender, idle, busy));
    fs::remove_file(dir.path().join("saturnmq.resume")).expect("remove");
    let path = dir.path().join("consumequeue/Idle/0/00000000000000000000");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("open");
    let mut entry = [0; 20];
    entry[..8].copy_from_slice(&first.physical_offset.to_be_bytes());
    let size = u32::try_from(first.end - first.physical_offset).expect("short");
    entry[8..12].copy_from_slice(&size.to_be_bytes());
    file.write_all_at(&entry, 3 * 20).expect("write");
    let opened = open(&config).expect("open");
    let bodies = |topic: &str| {
        let queue = opened.store.queue(topic, 0).expect("queue");
        let messages = read_all(&mut opened.store.reader().expect("reader"), &queue).0;
        Vec::from_iter(messages.iter().map(|message| message.queue_offset))
    };
    assert_eq!(bodies("Idle"), Vec::from_iter(0..3));
    assert_eq!(bodies("Busy"), Vec::from_iter(0..350));
    opened.store.close().expect("close");
}
