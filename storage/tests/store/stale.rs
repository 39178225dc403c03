//! Records that name places in light queues which no broker gave them: copies with the places of
//! what they are copies of, and what a client made up. They cost nobody else's places.

use std::time::Duration;

use saturnmq_storage::config::StoreConfig;
use saturnmq_storage::store::Store;

use crate::light::{Dispatching, bodies, check_files, opened, send, text};
use crate::support::{small_config, wait_dispatched};

/// How the store comes to its next start.
#[derive(Clone, Copy, Debug)]
enum Start {
    Plain,
    Rebuilt,
    /// After an orderly stop, so that a resume point vouches for everything.
    StoppedAndRebuilt,
    /// Queues and resume point are lost.
    Lost,
}

const NAME: &str = "%LMQ%every";

/// Stores records of `topic` that say they stand at these offsets of the light queue.
fn store_stale(
    sending: &mut Dispatching,
    store: &Store,
    (topic, properties): (&str, &str),
    offsets: &[i64],
) {
    let queue = store.queue_or_create(topic, 0);
    for offset in offsets {
        let text = text(&[NAME]);
        let all = format!("{properties}{text}\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}{offset}");
        let end = sending.sender.send(&queue, b"999", all.as_bytes()).end;
        wait_dispatched(store, end);
    }
}

/// Kills or stops the store and starts it again.
fn restart(
    config: &StoreConfig,
    running: (std::sync::Arc<Store>, Dispatching),
    start: Start,
) -> (std::sync::Arc<Store>, Dispatching) {
    if matches!(start, Start::StoppedAndRebuilt) {
        running.0.close().expect("close");
    }
    drop(running);
    let mut config = config.clone();
    match start {
        Start::Plain => {}
        Start::Rebuilt | Start::StoppedAndRebuilt => config.rebuild_queues = true,
        Start::Lost => {
            std::fs::remove_dir_all(config.root.join("consumequeue")).expect("remove");
            std::fs::remove_file(config.root.join("saturnmq.resume")).expect("remove");
        }
    }
    opened(&config)
}

/// Six messages enter the light queue, then records come that name `offsets` of it, then three more
/// messages; all nine stand where they stood after the start.
fn costs_nothing(record: (&str, &str), offsets: &[i64], start: Start, stopped: bool) {
    let what = format!("{} {offsets:?} {start:?} stopped: {stopped}", record.0);
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = small_config(dir.path());
    config.resume_interval = Duration::from_secs(3600);
    let (mut store, mut sending) = opened(&config);
    send(&mut sending, &store, 0..6);
    if stopped {
        store.close().expect("close");
        drop((store, sending));
        (store, sending) = opened(&config);
    }
    store_stale(&mut sending, &store, record, offsets);
    send(&mut sending, &store, 6..9);
    assert_eq!(bodies(&store, NAME), Vec::from_iter(0..9), "before: {what}");
    let (store, mut sending) = restart(&config, (store, sending), start);
    assert_eq!(bodies(&store, NAME), Vec::from_iter(0..9), "{what}");
    send(&mut sending, &store, 9..12);
    assert_eq!(bodies(&store, NAME), Vec::from_iter(0..12), "{what}");
    store.close().expect("close");
    // Places that hold another record are no damage.
    check_files(&config);
}

const DEAD: (&str, &str) = ("%DLQ%g", "ORIGIN_MESSAGE_ID\u{1}00\u{2}");
const RETRIED: (&str, &str) = ("%RETRY%g", "ORIGIN_MESSAGE_ID\u{1}00\u{2}");
const DELAYED: (&str, &str) = ("SCHEDULE_TOPIC_XXXX", "ORIGIN_MESSAGE_ID\u{1}00\u{2}");
const REPLY: (&str, &str) = ("cluster_REPLY_TOPIC", "");

#[test]
fn copies_with_the_places_of_what_they_copy_cost_no_message_of_a_light_queue() {
    for record in [DEAD, RETRIED, DELAYED] {
        for offsets in [&[1][..], &[1, 2, 3], &[0, 1]] {
            for start in [Start::Plain, Start::Rebuilt, Start::Lost] {
                for stopped in [true, false] {
                    costs_nothing(record, offsets, start, stopped);
                }
            }
        }
    }
}

#[test]
fn places_that_a_client_made_up_cost_no_message_of_a_light_queue() {
    for offsets in [&[0, 1][..], &[2], &[2, 3, 4], &[100, 101], &[100]] {
        for start in [Start::Plain, Start::Rebuilt] {
            for stopped in [true, false] {
                costs_nothing(REPLY, offsets, start, stopped);
            }
        }
    }
    // Here the queue's files tell which of the two was in the place.
    for stopped in [true, false] {
        costs_nothing(REPLY, &[6], Start::StoppedAndRebuilt, stopped);
        costs_nothing(REPLY, &[6, 7], Start::StoppedAndRebuilt, stopped);
        // And here nothing does, but that a queue which is made anew begins with 0.
        costs_nothing(REPLY, &[2, 3, 4], Start::Lost, stopped);
    }
}

#[test]
fn a_copy_from_before_a_removal_takes_no_place_in_the_light_queue_made_anew() {
    let copies = [
        (DEAD, Start::StoppedAndRebuilt),
        (RETRIED, Start::Plain),
        (RETRIED, Start::Rebuilt),
        (DELAYED, Start::Plain),
        (DELAYED, Start::Rebuilt),
        (DELAYED, Start::StoppedAndRebuilt),
    ];
    for (record, start) in copies {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = small_config(dir.path());
        config.resume_interval = Duration::from_secs(3600);
        let (store, mut sending) = opened(&config);
        send(&mut sending, &store, 0..3);
        store.remove_topic(NAME).expect("removed");
        store_stale(&mut sending, &store, record, &[2]);
        send(&mut sending, &store, 3..4);
        store_stale(&mut sending, &store, record, &[1]);
        send(&mut sending, &store, 4..5);
        let (store, _sending) = restart(&config, (store, sending), start);
        assert_eq!(bodies(&store, NAME), [3, 4], "{} {start:?}", record.0);
        store.close().expect("close");
    }
}
