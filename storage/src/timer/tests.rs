use std::fs::File;
use std::path::Path;

use super::*;

mod damage;

const NOW: i64 = 1_700_000_000_000;
const SETTINGS: TimerSettings = TimerSettings {
    precision_ms: 1000,
    roll_window_slots: 172_800,
    log_file_size: 1000,
};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("config")).unwrap();
        Self(dir)
    }

    fn layout(&self) -> Layout {
        Layout::new(self.0.path())
    }

    fn open(&self, has: impl FnMut(u64) -> bool) -> (TimerStore, TimerReport) {
        TimerStore::open(&self.layout(), SETTINGS, NOW, &mut Topic(has)).unwrap()
    }
}

/// A timer topic whose messages are those of [`fill`]: message n stands at n in the log and in the
/// queue, if the topic has it.
struct Topic<F>(F);

impl<F: FnMut(u64) -> bool> TimerTopic for Topic<F> {
    fn find(&mut self, log_offset: i64, size: i32) -> Found {
        match u64::try_from(log_offset) {
            Ok(n) if size == 300 && (self.0)(n) => Found::At(log_offset),
            _ => Found::Nothing,
        }
    }

    fn look(&mut self, log_offset: i64) -> Looked {
        match u64::try_from(log_offset) {
            Ok(n) if (self.0)(n) => Looked::Message(nth(n)),
            _ => Looked::Nothing,
        }
    }
}

/// A topic that nothing can be read of.
struct Unreadable;

impl TimerTopic for Unreadable {
    fn find(&mut self, _: i64, _: i32) -> Found {
        Found::Unreadable
    }

    fn look(&mut self, _: i64) -> Looked {
        Looked::Unreadable
    }
}

fn nth(n: u64) -> Waiting {
    message(NOW + 60_000 + (n % 3) as i64 * 1000, n)
}

fn message(time_ms: i64, log_offset: u64) -> Waiting {
    Waiting {
        time_ms,
        log_offset,
        size: 300,
        topic_hash: 7,
        deletes: false,
    }
}

/// Commit log offsets of a slot's messages, newest first.
fn chain(store: &mut TimerStore, time_ms: i64) -> Vec<i64> {
    let mut found = Vec::new();
    let Some(slot) = store.next_slot(time_ms, time_ms + 1000).unwrap() else {
        return found;
    };
    let mut at = slot.last;
    while let Some(item) = store.item(at).unwrap() {
        found.push(item.log_offset);
        at = item.previous;
    }
    found
}

fn fill(store: &mut TimerStore, range: std::ops::Range<u64>) {
    for n in range {
        store.enter(&nth(n), NOW).unwrap();
    }
}

fn expected(count: u64, rest: u64) -> Vec<i64> {
    let all = (0..count).filter(|n| n % 3 == rest);
    all.map(u64::cast_signed).rev().collect()
}

fn holds(store: &mut TimerStore, count: u64) {
    for rest in 0..3 {
        let time = NOW + 60_000 + rest as i64 * 1000;
        assert_eq!(chain(store, time), expected(count, rest), "slot {rest}");
    }
    assert_eq!(store.waiting(), count.cast_signed());
}

#[test]
fn a_check_point_keeps_everything_over_a_restart() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..100);
    store.check_point(NOW, Some(100), NOW).unwrap();
    drop(store);
    let (mut store, report) = place.open(|_| true);
    assert!(report.mended_slots == 0 && !report.lost);
    assert_eq!((store.queue_offset(), store.check().read_ms), (100, NOW));
    holds(&mut store, 100);
    assert_eq!(store.next_slot(NOW, NOW + 60_000).unwrap(), None);
    fill(&mut store, 100..110);
    holds(&mut store, 110);
}

#[test]
fn items_behind_the_check_point_count_once_when_their_messages_are_there() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..50);
    store.check_point(NOW, Some(50), NOW).unwrap();
    fill(&mut store, 50..80);
    // What a kill leaves: the log is written, the wheel is not.
    store.log.write().unwrap();
    drop(store);
    let (mut store, report) = place.open(|n| n < 70);
    assert!(report.mended_slots == 0 && !report.lost);
    assert_eq!(store.queue_offset(), 50);
    for n in 50..80i64 {
        assert_eq!(store.is_entered(n), n < 70, "{n}");
    }
    holds(&mut store, 70);
    fill(&mut store, 70..90);
    holds(&mut store, 90);
}

#[test]
fn a_wheel_that_ran_ahead_or_is_gone_is_made_again() {
    for gone in [false, true] {
        let place = Place::new();
        let (mut store, _) = place.open(|_| true);
        fill(&mut store, 0..50);
        store.check_point(NOW, Some(50), NOW).unwrap();
        fill(&mut store, 50..80);
        store.write().unwrap();
        drop(store);
        if gone {
            std::fs::remove_file(place.layout().timer_wheel()).unwrap();
        }
        let (mut store, report) = place.open(|n| n < 60);
        assert!((report.mended_slots > 0) == gone && !report.lost);
        holds(&mut store, 60);
    }
}

#[test]
fn a_lost_timer_log_is_told_and_its_rest_is_used() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..50);
    store.check_point(NOW, Some(50), NOW).unwrap();
    drop(store);
    // 18 items fit into a file of 1000 bytes.
    let log = place.layout().timer_log();
    let last = log.join("00000000000000002000");
    std::fs::remove_file(last).unwrap();
    let (mut store, report) = place.open(|_| true);
    assert!(report.lost);
    assert_eq!(store.queue_offset(), 0);
    holds(&mut store, 36);
    for n in 0..50i64 {
        assert_eq!(store.is_entered(n), n < 36, "{n}");
    }
    drop(store);
    std::fs::remove_dir_all(log).unwrap();
    let (mut store, report) = place.open(|_| true);
    assert!(report.lost);
    assert_eq!(store.queue_offset(), 0);
    holds(&mut store, 0);
}

#[test]
fn a_torn_item_ends_the_log_and_does_not_come_back() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..5);
    store.check_point(NOW, Some(5), NOW).unwrap();
    fill(&mut store, 5..10);
    store.log.write().unwrap();
    drop(store);
    let file = place.layout().timer_log().join("00000000000000000000");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[6 * 52..6 * 52 + 4].fill(0);
    std::fs::write(&file, bytes).unwrap();
    let (mut store, _) = place.open(|_| true);
    holds(&mut store, 6);
    fill(&mut store, 6..7);
    store.log.write().unwrap();
    drop(store);
    let (mut store, _) = place.open(|_| true);
    holds(&mut store, 7);
}

#[test]
fn far_messages_get_a_slot_within_the_window_and_the_roll_mark() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    let window = SETTINGS.roll_window_slots * 1000;
    for (delay, slot, rolls) in [
        (window - 1000, window - 1000, false),
        (window, window / 2, true),
        (window + window / 3 - 1000, window / 2, true),
        (window + window / 3, window, true),
        (10 * window, window, true),
    ] {
        let time = store.enter(&message(NOW + delay, 1), NOW).unwrap();
        assert_eq!(time, NOW + slot, "{delay}");
        let slot = store.next_slot(time, time + 1000).unwrap().unwrap();
        let item = store.item(slot.last).unwrap().unwrap();
        assert_eq!(item.marks & mark::ROLL != 0, rolls);
        assert_eq!(item.time_ms(), time);
    }
}

#[test]
fn a_message_that_deletes_counts_down_and_has_its_mark() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    let time = NOW + 5000;
    store.enter(&message(time, 1), NOW).unwrap();
    let deleting = Waiting {
        deletes: true,
        ..message(time, 2)
    };
    store.enter(&deleting, NOW).unwrap();
    assert_eq!(store.waiting(), 0);
    let slot = store.next_slot(NOW, NOW + 60_000).unwrap().unwrap();
    assert_eq!((slot.tick * 1000, slot.count), (time, 0));
    let item = store.item(slot.last).unwrap().unwrap();
    assert_eq!(item.marks, mark::ITEM | mark::DELETE);
    let mut found = Vec::new();
    let mut scan = store.scan_for(&slot);
    let more = scan.step(&mut store, |position, _| found.push(position));
    assert!(!more.unwrap());
    assert_eq!(found, [0, 52]);
}

#[test]
fn a_walk_over_all_items_takes_bounded_steps_and_passes_over_what_changes_in_between() {
    let place = Place::new();
    let settings = TimerSettings {
        log_file_size: 100_000,
        ..SETTINGS
    };
    let mut topic = Topic(|_| true);
    let opened = TimerStore::open(&place.layout(), settings, NOW, &mut topic);
    let mut store = opened.unwrap().0;
    fill(&mut store, 0..20_000);
    let mut scan = store.scan();
    let (mut found, mut steps) = (Vec::new(), 0);
    loop {
        let before = found.len();
        let more = scan.step(&mut store, |_, item| found.push(item.log_offset));
        assert!(found.len() - before <= 4096, "a step of {}", found.len());
        steps += 1;
        if steps == 2 {
            // Not there when it began.
            fill(&mut store, 20_000..20_010);
        }
        if !more.unwrap() {
            break;
        }
    }
    assert_eq!(found.len(), 20_000);
    assert!(found.is_sorted() && steps >= 5, "{steps}");
    // Its files go under it: it goes on with what is left.
    store.check_point(NOW, Some(20_010), NOW).unwrap();
    let mut scan = store.scan();
    let (mut first, mut left) = (0, 0);
    scan.step(&mut store, |_, _| first += 1).unwrap();
    store.trim(u64::MAX >> 1).unwrap();
    while scan.step(&mut store, |_, _| left += 1).unwrap() {}
    assert!(left > 0 && first + left < 20_010, "{first} and {left}");
}

#[test]
fn files_whose_messages_are_gone_are_removed_but_the_last() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..60);
    store.check_point(NOW, Some(60), NOW).unwrap();
    assert_eq!(store.trim(18).unwrap(), 1);
    assert_eq!(store.trim(1000).unwrap(), 2);
    assert_eq!(store.log.start(), 3000);
    drop(store);
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 60..61);
    assert_eq!(chain(&mut store, NOW + 60_000).first(), Some(&60));
}

#[test]
fn a_full_wheel_cache_is_written_and_read_back() {
    let place = Place::new();
    let settings = TimerSettings {
        log_file_size: 104_857_600,
        ..SETTINGS
    };
    let (mut store, _) = TimerStore::open(&place.layout(), settings, NOW, &mut Unreadable).unwrap();
    let count = (1 << 16) + 10;
    for n in 0..count {
        let time = NOW + 1000 + n * 1000;
        store.enter(&message(time, n.cast_unsigned()), NOW).unwrap();
    }
    assert_eq!(store.waiting(), count);
    let mut seen = 0;
    store
        .wheel
        .each(NOW / 1000, 1 << 20, |slot| {
            assert_eq!(slot.first, seen * 52);
            seen += 1;
            true
        })
        .unwrap();
    assert_eq!(seen, count);
}

/// A store that a 5.3.3 broker closed: `timer-clean-5.3.3` of tests/golden/stores.
fn golden() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/stores/timer-clean-5.3.3.tar.zst");
    let packed = zstd::Decoder::new(File::open(path).unwrap()).unwrap();
    tar::Archive::new(packed).unpack(dir.path()).unwrap();
    dir
}

#[test]
fn the_timers_of_an_apache_broker_are_carried_on_and_written_alike() {
    let dir = golden();
    let layout = Layout::new(dir.path().join("store"));
    let settings = TimerSettings {
        log_file_size: 1 << 20,
        ..SETTINGS
    };
    let bytes = |path: PathBuf| std::fs::read(path).unwrap();
    let log_file = layout.timer_log().join("00000000000000000000");
    let (wheel, log) = (bytes(layout.timer_wheel()), bytes(log_file.clone()));
    let closed_ms = Check::decode(&bytes(layout.timer_check())).read_ms;
    let (mut store, report) =
        TimerStore::open(&layout, settings, closed_ms, &mut Unreadable).unwrap();
    assert!(report.mended_slots == 0 && !report.lost && !report.unchecked);
    assert_eq!(store.queue_offset(), 6);
    assert_eq!(store.waiting(), 4);
    let read_ms = store.check().read_ms;
    let mut found = Vec::new();
    store
        .each_slot(read_ms, |slot| found.push((*slot, slot.last)))
        .unwrap();
    let mut offsets = Vec::new();
    for (slot, last) in found {
        let mut at = last;
        while let Some(item) = store.item(at).unwrap() {
            assert_eq!(item.time_ms() / 1000, slot.tick);
            let place = usize::try_from(at).unwrap();
            assert_eq!(item.encode(), log[place..place + 52]);
            offsets.push((item.log_offset, item.marks));
            at = item.previous;
        }
    }
    assert_eq!(offsets, [(0x27e, 1), (0x3be, 1), (0x643, 3), (0x500, 1)]);
    // Making everything again from the timer log gives Apache's bytes.
    store.wheel.clear().unwrap();
    recovery::recover(&mut store, &mut Unreadable, false).unwrap();
    store.check_point(read_ms, Some(6), NOW).unwrap();
    let ours = bytes(layout.timer_wheel());
    assert_eq!(ours.len(), wheel.len());
    for (ours, apaches) in ours.chunks(SLOT_BYTES).zip(wheel.chunks(SLOT_BYTES)) {
        let apaches = crate::format::timer::Slot::decode(apaches);
        let waits = apaches.tick * 1000 >= read_ms;
        assert!(!waits || crate::format::timer::Slot::decode(ours) == apaches);
    }
    assert_eq!(bytes(log_file), log);
}

const SLOT_BYTES: usize = crate::format::timer::SLOT_SIZE;

/// Lets one file be removed, then no more.
struct Killed(usize);

impl crate::medium::Witness for Killed {
    fn before(&mut self, request: crate::medium::Request<'_>) -> std::io::Result<()> {
        if matches!(request, crate::medium::Request::Remove(_)) {
            self.0 += 1;
            if self.0 > 1 {
                return Err(std::io::Error::other("killed"));
            }
        }
        Ok(())
    }

    fn after(&mut self, _: crate::medium::Request<'_>) {}
}

#[test]
fn a_start_that_ends_between_two_files_it_removes_leaves_no_gap() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..10);
    store.check_point(NOW, Some(10), NOW).unwrap();
    fill(&mut store, 10..90);
    store.log.write().unwrap();
    drop(store);
    crate::medium::listen(Some(std::rc::Rc::new(std::cell::RefCell::new(Killed(0)))));
    let killed = TimerStore::open(&place.layout(), SETTINGS, NOW, &mut Topic(|n| n < 10));
    crate::medium::listen(None);
    assert!(killed.is_err());
    let (mut store, report) = place.open(|_| true);
    assert!(!report.lost);
    // The last file is gone, and no other.
    holds(&mut store, 72);
}

#[test]
fn messages_are_entered_while_a_check_point_is_stored() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    let time = NOW + 60_000;
    for n in 0..10 {
        store.enter(&message(time, n), NOW).unwrap();
    }
    store.begin_check_point(NOW, Some(10), NOW).unwrap();
    for n in 10..20 {
        store.enter(&message(time, n), NOW).unwrap();
    }
    let slot = store.next_slot(NOW, NOW + 100_000).unwrap().unwrap();
    assert_eq!(
        (slot.count, slot.first),
        (20, 0),
        "those under way are known"
    );
    while store.is_checking().unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(store.check().queue_offset, 10);
    assert!(store.is_changed());
    store.check_point(NOW, Some(20), NOW).unwrap();
    assert!(!store.is_changed());
    drop(store);
    let (mut store, report) = place.open(|_| true);
    assert!(report.mended_slots == 0 && !report.lost);
    assert_eq!((store.waiting(), store.queue_offset()), (20, 20));
    let slot = store.next_slot(NOW, NOW + 100_000).unwrap().unwrap();
    assert_eq!(slot.count, 20);
}

#[test]
fn a_check_point_of_noise_hides_no_message() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..10);
    store.check_point(NOW, Some(10), NOW).unwrap();
    drop(store);
    let noise: Vec<u8> = (0..4096).map(|at| (at * 7 + 13) as u8).collect();
    std::fs::write(place.layout().timer_check(), noise).unwrap();
    // All are due meanwhile.
    let late = NOW + 90_000;
    let (mut store, report) =
        TimerStore::open(&place.layout(), SETTINGS, late, &mut Topic(|n| n < 10)).unwrap();
    assert!(report.unchecked);
    holds(&mut store, 10);
}

/// Up to that time each message is looked for before it is delivered.
#[test]
fn a_damaged_time_of_a_check_point_lies_a_year_ahead_at_most() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    store.check_point(NOW, Some(0), NOW).unwrap();
    store.check_point(NOW, Some(0), NOW | 1 << 62).unwrap();
    drop(store);
    let (store, report) = place.open(|_| true);
    assert!(!report.unchecked);
    assert_eq!(store.check().version_ms, NOW + YEAR_MS);
}

/// Hears which file of the timers is synced when, and what the others hold on disk then.
struct Synced {
    layout: Layout,
    before: [Vec<u8>; 2],
    heard: Vec<(&'static str, [bool; 2])>,
}

impl Synced {
    /// The wheel and the check point as they are.
    fn bytes(layout: &Layout) -> [Vec<u8>; 2] {
        [layout.timer_wheel(), layout.timer_check()].map(|path| std::fs::read(path).unwrap())
    }
}

impl crate::medium::Witness for Synced {
    fn before(&mut self, request: crate::medium::Request<'_>) -> std::io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let crate::medium::Request::SyncFile(file) = request else {
            return Ok(());
        };
        let log = self.layout.timer_log().join(crate::layout::file_name(0));
        let files = [
            ("log", log),
            ("wheel", self.layout.timer_wheel()),
            ("check", self.layout.timer_check()),
        ];
        let number = file.metadata()?.ino();
        for (name, path) in files {
            if path.metadata()?.ino() == number {
                let now = Self::bytes(&self.layout);
                let changed = [0, 1].map(|which| now[which] != self.before[which]);
                self.heard.push((name, changed));
            }
        }
        Ok(())
    }

    fn after(&mut self, _: crate::medium::Request<'_>) {}
}

#[test]
fn nothing_on_disk_leads_to_what_is_not_synced() {
    let place = Place::new();
    let (mut store, _) = place.open(|_| true);
    fill(&mut store, 0..2);
    store.check_point(NOW, Some(2), NOW).unwrap();
    fill(&mut store, 2..7);
    let layout = place.layout();
    let synced = Synced {
        before: Synced::bytes(&layout),
        layout,
        heard: Vec::new(),
    };
    let synced = std::rc::Rc::new(std::cell::RefCell::new(synced));
    crate::medium::listen(Some(synced.clone()));
    store.check_point(NOW, Some(7), NOW).unwrap();
    crate::medium::listen(None);
    let expected = [
        ("log", [false, false]),
        ("wheel", [true, false]),
        ("check", [true, true]),
    ];
    assert_eq!(synced.borrow().heard, expected);
}
