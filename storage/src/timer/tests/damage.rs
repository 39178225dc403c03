//! Damage in the timer files: found at the next start, and mended from the timer topic.

use std::os::unix::fs::FileExt;

use super::*;
use crate::format::timer::{SLOT_SIZE, slot_index};

const COUNT: u64 = 50;

/// A store that was closed in order, with messages 0 to 49 in three slots.
fn closed() -> Place {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..COUNT);
    store
        .check_point(NOW, Some(COUNT.cast_signed()), NOW)
        .unwrap();
    place
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Changes a slot of the wheel, which is mostly holes.
fn change_slot(place: &Place, tick: i64, change: impl FnOnce(&mut [u8; SLOT_SIZE])) {
    let path = place.layout().timer_wheel();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let at = slot_index(tick) * SLOT_SIZE as u64;
    let mut bytes = [0; SLOT_SIZE];
    file.read_exact_at(&mut bytes, at).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes, at).unwrap();
}

/// Enters what the topic has and the timer log does not, as the broker does.
fn enter_what_lacks(store: &mut TimerStore) -> u64 {
    let mut entered = 0;
    for n in store.queue_offset().cast_unsigned()..COUNT {
        if !store.is_entered(n.cast_signed()) && !store.is_settled(n.cast_signed(), nth(n).time_ms)
        {
            store.enter(&nth(n), NOW).unwrap();
            entered += 1;
        }
    }
    entered
}

/// Every message waits, once, in its slot.
fn is_whole(store: &mut TimerStore, what: &str) {
    for rest in 0..3 {
        let mut found = chain(store, NOW + 60_000 + rest as i64 * 1000);
        found.sort_unstable();
        let mut all = expected(COUNT, rest);
        all.reverse();
        assert_eq!(found, all, "{what}: slot {rest}");
    }
    assert_eq!(store.waiting(), COUNT.cast_signed(), "{what}");
}

/// After damage everything waits, and after the next start, and that start finds nothing wrong.
fn mends(place: &Place, what: &str) -> (TimerReport, u64) {
    let (mut store, first) = place.open(|n| n < COUNT);
    let entered = enter_what_lacks(&mut store);
    is_whole(&mut store, what);
    store
        .check_point(NOW, Some(COUNT.cast_signed()), NOW)
        .unwrap();
    drop(store);
    let (mut store, report) = place.open(|n| n < COUNT);
    let clean = report.mended_slots == 0 && report.damaged_items == 0 && !report.lost;
    assert!(clean, "{what}: {report:?}");
    assert_eq!(enter_what_lacks(&mut store), 0, "{what}");
    is_whole(&mut store, what);
    (first, entered)
}

#[test]
fn no_changed_bit_of_a_slot_hides_a_message() {
    let place = closed();
    for bit in 0..SLOT_SIZE * 8 {
        change_slot(&place, (NOW + 60_000) / 1000, |bytes| {
            bytes[bit / 8] ^= 1 << (bit % 8);
        });
        let what = format!("bit {bit} of a slot");
        let (report, entered) = mends(&place, &what);
        // One that leads behind the check point may be ahead of it.
        let reported = report.mended_slots > 0 || (128..192).contains(&bit);
        assert!(reported, "{what} was not reported");
        assert_eq!(entered, 0, "{what}");
    }
}

#[test]
fn a_wheel_of_zeros_or_of_other_bytes_is_made_again() {
    let place = closed();
    let wheel = place.layout().timer_wheel();
    for (what, byte) in [("zeros", 0), ("ones", 0xff), ("text", b't')] {
        change(&wheel, |bytes| bytes.fill(byte));
        let (report, entered) = mends(&place, what);
        assert!(report.mended_slots >= 3, "{what}: {report:?}");
        assert_eq!(entered, 0);
    }
}

#[test]
fn slots_of_messages_that_never_were_are_forgotten() {
    let place = closed();
    let slot = Slot {
        tick: (NOW + 90_000) / 1000,
        first: 0,
        last: 52,
        count: 2,
        magic: 0,
    };
    change_slot(&place, slot.tick, |bytes| *bytes = slot.encode());
    mends(&place, "another slot");
    let (mut store, _) = place.open(|_| true);
    assert_eq!(store.next_slot(NOW + 80_000, NOW + 100_000).unwrap(), None);
}

#[test]
fn a_wheel_of_another_size_is_made_again() {
    let place = closed();
    for len in [1, 100, 38_707_199, 38_707_201] {
        let file = File::options()
            .write(true)
            .open(place.layout().timer_wheel());
        file.unwrap().set_len(len).unwrap();
        mends(&place, &format!("{len} bytes"));
    }
}

#[test]
fn no_changed_bit_of_an_item_loses_a_message() {
    // The first of its slot, one in the middle, the last of a file, the last of all.
    for (number, bits) in [(0, 7), (4, 1), (17, 11), (13, 13)] {
        let mut place = closed();
        // Neither the hash of the topic nor what is reserved says anything of a message.
        for bit in (0..40 * 8).step_by(bits) {
            let file = place.layout().timer_log().join("00000000000000000000");
            let flip = |bytes: &mut Vec<u8>| bytes[number * 52 + bit / 8] ^= 1 << (bit % 8);
            change(&file, flip);
            mends(&place, &format!("bit {bit} of item {number}"));
            if place.open(|_| true).0.log.end() > 2900 {
                place = closed();
            }
        }
    }
}

#[test]
fn damaged_pages_of_the_timer_log_lose_no_message() {
    for (from, to) in [(0, 936), (0, 52), (100, 400), (936, 1000), (500, 1000)] {
        for byte in [0, 0xff] {
            let place = closed();
            let file = place.layout().timer_log().join("00000000000000001000");
            change(&file, |bytes| bytes[from..to].fill(byte));
            let what = format!("{from} to {to} are {byte}");
            let (report, entered) = mends(&place, &what);
            assert_eq!(report.lost, from < 936, "{what}");
            assert_eq!(entered, report.damaged_items, "{what}");
        }
    }
}

#[test]
fn a_file_of_the_timer_log_with_the_content_of_another_loses_no_message() {
    let place = closed();
    let log = place.layout().timer_log();
    let other = log.join("00000000000000001000");
    std::fs::copy(log.join("00000000000000000000"), &other).unwrap();
    let (report, entered) = mends(&place, "a copy");
    assert_eq!((report.damaged_items, entered), (18, 18));
}

#[test]
fn a_start_that_is_killed_while_it_mends_loses_nothing() {
    let place = closed();
    let file = place.layout().timer_log().join("00000000000000001000");
    change(&file, |bytes| bytes.fill(0));
    let (mut store, report) = place.open(|_| true);
    assert!(report.lost);
    // Some are entered; a check point comes in between.
    for n in 20..23 {
        store.enter(&nth(n), NOW).unwrap();
    }
    store.check_point(NOW, None, NOW).unwrap();
    drop(store);
    let (mut store, _) = place.open(|_| true);
    assert_eq!(store.queue_offset(), 0);
    assert_eq!(enter_what_lacks(&mut store), 15);
    is_whole(&mut store, "after a kill");
}

#[test]
fn what_was_delivered_before_the_damage_is_not_entered_again() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..COUNT);
    // The first slot was delivered.
    let read_ms = NOW + 61_000;
    store
        .check_point(read_ms, Some(COUNT.cast_signed()), read_ms)
        .unwrap();
    drop(store);
    std::fs::remove_dir_all(place.layout().timer_log()).unwrap();
    let (mut store, report) =
        TimerStore::open(&place.layout(), SETTINGS, read_ms, &mut Topic(|_| true)).unwrap();
    assert!(report.lost);
    assert_eq!(enter_what_lacks(&mut store), COUNT - 17);
}

#[test]
fn files_of_another_size_than_is_configured_are_read_and_go_on() {
    let place = closed();
    let settings = TimerSettings {
        log_file_size: 4096,
        ..SETTINGS
    };
    let mut topic = Topic(|_| true);
    let (mut store, report) = TimerStore::open(&place.layout(), settings, NOW, &mut topic).unwrap();
    assert!(!report.lost && report.damaged_items == 0);
    is_whole(&mut store, "another size");
    fill(&mut store, 50..90);
    holds(&mut store, 90);
    store.check_point(NOW, Some(90), NOW).unwrap();
    drop(store);
    let (mut store, _) = place.open(|_| true);
    holds(&mut store, 90);
}

#[test]
fn files_of_the_timer_log_that_were_cut_or_are_gone_lose_no_message() {
    for name in [
        "00000000000000000000",
        "00000000000000001000",
        "00000000000000002000",
    ] {
        for len in [None, Some(0), Some(1), Some(500), Some(999), Some(1001)] {
            let place = closed();
            let path = place.layout().timer_log().join(name);
            match len {
                Some(len) => {
                    let file = File::options().write(true).open(&path).unwrap();
                    file.set_len(len).unwrap();
                }
                None => std::fs::remove_file(&path).unwrap(),
            }
            mends(&place, &format!("{name} has {len:?} bytes"));
        }
    }
}

#[test]
fn damage_that_is_found_in_use_is_mended() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..COUNT);
    store
        .check_point(NOW, Some(COUNT.cast_signed()), NOW)
        .unwrap();
    let file = place.layout().timer_log().join("00000000000000001000");
    change(&file, |bytes| bytes[0..520].fill(0));
    change(&place.layout().timer_wheel(), |bytes| bytes.fill(0));
    let report = store
        .mend(&mut Topic(|_| true), NOW, COUNT.cast_signed())
        .unwrap();
    assert_eq!((report.damaged_items, report.lost), (10, true));
    assert_eq!(enter_what_lacks(&mut store), 10);
    is_whole(&mut store, "in use");
}
