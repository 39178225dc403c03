use std::fs;

use super::*;

/// Entries of a file in these tests.
const N: i64 = 100;
const SIZE: u64 = N as u64 * ENTRY;
const RECORD: u64 = 200;

struct Fixture {
    dir: tempfile::TempDir,
    queue: ConsumeQueue,
}

fn entry(number: u64) -> ConsumeEntry {
    let physical_offset = number * RECORD;
    ConsumeEntry {
        physical_offset,
        size: RECORD as u32,
        tags_code: number as i64,
    }
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let queue = ConsumeQueue::empty(dir.path(), "T", 3, SIZE, &MapBudget::new(3));
        Self { dir, queue }
    }

    fn with_entries(count: i64) -> Self {
        let fixture = Self::new();
        for offset in 0..count {
            let placed = fixture.queue.append(offset, entry(offset as u64)).unwrap();
            assert_eq!(placed, Placed::Appended);
        }
        fixture
    }

    fn reopened(self) -> Self {
        let Self { dir, queue } = self;
        drop(queue);
        let queue = ConsumeQueue::open(dir.path(), "T", 3, SIZE, &MapBudget::new(3)).unwrap();
        Self { dir, queue }
    }

    fn path(&self, base: u64) -> PathBuf {
        self.dir.path().join("T/3").join(layout::file_name(base))
    }

    fn bases(&self) -> Vec<u64> {
        let found = layout::list_fixed_files(&self.dir.path().join("T/3"), SIZE, "").unwrap();
        found.files.iter().map(|file| file.base).collect()
    }

    fn range(&self) -> (i64, i64) {
        (self.queue.min_offset(), self.queue.max_offset())
    }

    fn numbers(&self, from: i64, max: usize) -> Vec<i64> {
        let mut out = Vec::new();
        self.queue.entries(from, max, &mut out).unwrap();
        out.iter().map(|entry| entry.tags_code).collect()
    }
}

#[test]
fn entries_are_read_as_appended_and_after_a_restart() {
    let mut fixture = Fixture::with_entries(250);
    for _ in 0..2 {
        assert_eq!(fixture.range(), (0, 250));
        assert_eq!(fixture.queue.log_end(), 250 * RECORD);
        for offset in [0, 99, 100, 249] {
            assert_eq!(
                fixture.queue.entry(offset).unwrap(),
                Some(entry(offset as u64))
            );
        }
        for offset in [-1, 250, i64::MIN, i64::MAX] {
            assert_eq!(fixture.queue.entry(offset).unwrap(), None);
        }
        fixture = fixture.reopened();
    }
}

#[test]
fn a_read_ends_with_its_file_and_its_limit() {
    let fixture = Fixture::with_entries(250);
    assert_eq!(fixture.numbers(10, 5), [10, 11, 12, 13, 14]);
    assert_eq!(fixture.numbers(90, 800), (90..100).collect::<Vec<_>>());
    assert_eq!(fixture.numbers(100, 800), (100..200).collect::<Vec<_>>());
    assert_eq!(fixture.numbers(240, 800), (240..250).collect::<Vec<_>>());
    assert_eq!(fixture.numbers(0, 0), []);
    for from in [-1, 250, 251, i64::MAX - N] {
        assert_eq!(fixture.numbers(from, 800), [], "{from}");
    }
    assert_eq!(fixture.queue.next_file_offset(99), 100);
    assert_eq!(fixture.queue.next_file_offset(100), 200);
}

#[test]
fn files_have_full_size_and_exactly_the_entries() {
    let fixture = Fixture::with_entries(101);
    let first = fs::read(fixture.path(0)).unwrap();
    let expected: Vec<u8> = (0..100).flat_map(|number| entry(number).encode()).collect();
    assert_eq!(first, expected);
    let mut second = entry(100).encode().to_vec();
    second.resize(SIZE as usize, 0);
    assert_eq!(fs::read(fixture.path(SIZE)).unwrap(), second);
}

#[test]
fn a_record_that_is_there_already_is_not_appended_again() {
    let fixture = Fixture::with_entries(10);
    for offset in [0, 9] {
        let placed = fixture.queue.append(offset, entry(offset as u64)).unwrap();
        assert_eq!(placed, Placed::Duplicate);
    }
    // A later record at an earlier queue offset.
    assert_eq!(
        fixture.queue.append(5, entry(20)).unwrap(),
        Placed::Duplicate
    );
    assert_eq!(fixture.range(), (0, 10));
}

#[test]
fn after_a_gap_entries_stand_at_the_end_as_in_apache() {
    let fixture = Fixture::with_entries(10);
    let placed = fixture.queue.append(12, entry(12)).unwrap();
    assert_eq!(placed, Placed::Displaced { at: 10 });
    assert_eq!(
        fixture.queue.append(0, entry(13)).unwrap(),
        Placed::Displaced { at: 11 }
    );
    assert_eq!(fixture.range(), (0, 12));
}

#[test]
fn an_empty_queue_that_begins_late_is_filled_in_front() {
    let size = 6_000_000;
    let dir = tempfile::tempdir().unwrap();
    let queue = ConsumeQueue::empty(dir.path(), "T", 0, size, &MapBudget::new(1));
    assert_eq!(queue.append(300_005, entry(7)).unwrap(), Placed::Appended);
    assert_eq!((queue.min_offset(), queue.max_offset()), (300_005, 300_006));
    assert_eq!(queue.entry(300_004).unwrap(), None);
    assert_eq!(queue.entry(300_005).unwrap(), Some(entry(7)));
    let bytes = fs::read(dir.path().join("T/0/00000000000006000000")).unwrap();
    for blank in bytes[..100].chunks(20) {
        assert_eq!(blank, ConsumeEntry::PRE_BLANK.encode());
    }
    assert_eq!(bytes[100..120], entry(7).encode());
    assert!(bytes[120..].iter().all(|byte| *byte == 0));

    drop(queue);
    let queue = ConsumeQueue::open(dir.path(), "T", 0, size, &MapBudget::new(1)).unwrap();
    assert_eq!(queue.max_offset(), 300_006);
    queue.correct_min(0).unwrap();
    assert_eq!(
        queue.min_offset(),
        300_005,
        "blank entries are not readable"
    );
}

#[test]
fn an_impossible_queue_offset_is_refused() {
    let fixture = Fixture::new();
    for offset in [-1, i64::MAX, i64::MAX / 20] {
        let result = fixture.queue.append(offset, entry(1));
        assert!(
            matches!(result, Err(ConsumeQueueError::Offset { .. })),
            "{offset}"
        );
    }
    assert_eq!(fixture.bases(), []);
}

#[test]
fn a_topic_that_leads_elsewhere_gets_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let queue = ConsumeQueue::empty(dir.path(), "../x", 0, SIZE, &MapBudget::new(1));
    let result = queue.append(0, entry(0));
    assert!(matches!(
        result,
        Err(ConsumeQueueError::Layout(LayoutError::Topic { .. }))
    ));
}

#[test]
fn the_end_is_the_first_entry_that_is_none_and_files_behind_it_go() {
    let fixture = Fixture::with_entries(350);
    let mut bytes = fs::read(fixture.path(2 * SIZE)).unwrap();
    bytes[50 * 20..51 * 20].fill(0);
    fs::write(fixture.path(2 * SIZE), &bytes).unwrap();
    let fixture = fixture.reopened();
    assert_eq!(fixture.range(), (0, 250));
    assert_eq!(fixture.bases(), [0, SIZE, 2 * SIZE]);
    assert_eq!(fixture.queue.log_end(), 250 * RECORD);
    // What stood behind the end must not come back when an entry joins it to the rest.
    assert_eq!(
        fixture.queue.append(250, entry(250)).unwrap(),
        Placed::Appended
    );
    let fixture = fixture.reopened();
    assert_eq!(fixture.range(), (0, 251));
}

#[test]
fn a_last_file_without_an_entry_keeps_its_place() {
    let fixture = Fixture::with_entries(100);
    fs::write(fixture.path(SIZE), vec![0; SIZE as usize]).unwrap();
    let fixture = fixture.reopened();
    assert_eq!(
        (fixture.range(), fixture.bases()),
        ((0, 100), vec![0, SIZE])
    );
    fs::remove_file(fixture.path(0)).unwrap();
    let fixture = fixture.reopened();
    assert_eq!(fixture.range(), (100, 100));
    assert_eq!(
        fixture.queue.append(100, entry(100)).unwrap(),
        Placed::Appended
    );
}

#[test]
fn an_empty_last_file_of_a_crash_is_deleted() {
    let fixture = Fixture::with_entries(100);
    fs::write(fixture.path(SIZE), b"").unwrap();
    let fixture = fixture.reopened();
    assert_eq!((fixture.range(), fixture.bases()), ((0, 100), vec![0]));
}

#[test]
fn a_queue_is_cut_to_the_log_at_every_offset() {
    for cut in [0, 1, 50, 99, 100, 101, 199, 200, 250, 300] {
        let fixture = Fixture::with_entries(250);
        fixture.queue.truncate(cut * RECORD).unwrap();
        let end = (cut as i64).min(250);
        assert_eq!(fixture.range(), (0, end), "{cut}");
        assert_eq!(fixture.queue.log_end(), end as u64 * RECORD);
        // Neither a restart nor the next entry brings back what was cut off.
        let fixture = fixture.reopened();
        assert_eq!(fixture.range(), (0, end), "{cut}");
        assert_eq!(
            fixture.queue.append(end, entry(end as u64)).unwrap(),
            Placed::Appended
        );
        let fixture = fixture.reopened();
        assert_eq!(fixture.range(), (0, end + 1), "{cut}");
    }
}

#[test]
fn a_cut_inside_a_record_takes_only_later_ones() {
    let fixture = Fixture::with_entries(10);
    fixture.queue.truncate(5 * RECORD + 1).unwrap();
    assert_eq!(fixture.range(), (0, 6));
}

#[test]
fn min_is_the_first_entry_that_the_log_still_holds() {
    let fixture = Fixture::with_entries(250);
    for (log_min, min) in [(0, 0), (1, 1), (30 * RECORD, 30), (220 * RECORD, 220)] {
        fixture.queue.correct_min(log_min).unwrap();
        assert_eq!(fixture.range(), (min, 250));
    }
    assert_eq!(fixture.queue.entry(219).unwrap(), None);
    fixture.queue.correct_min(250 * RECORD).unwrap();
    assert_eq!(fixture.range(), (250, 250));
}

#[test]
fn expired_files_go_from_the_front_and_the_last_one_stays() {
    let fixture = Fixture::with_entries(250);
    assert_eq!(fixture.queue.delete_before(99 * RECORD).unwrap(), 0);
    assert_eq!(fixture.queue.delete_before(100 * RECORD).unwrap(), 1);
    assert_eq!(
        (fixture.range(), fixture.bases()),
        ((100, 250), vec![SIZE, 2 * SIZE])
    );
    assert_eq!(fixture.queue.entry(99).unwrap(), None);
    assert_eq!(fixture.numbers(100, 1), [100]);
    assert_eq!(fixture.queue.delete_before(u64::MAX).unwrap(), 1);
    assert_eq!(
        (fixture.range(), fixture.bases()),
        ((200, 250), vec![2 * SIZE])
    );
    assert_eq!(
        fixture.queue.append(250, entry(250)).unwrap(),
        Placed::Appended
    );
    assert_eq!(fixture.reopened().range(), (200, 251));
}

#[test]
fn a_flush_leaves_nothing_unsynced() {
    let fixture = Fixture::with_entries(250);
    assert!(fixture.queue.is_dirty());
    fixture.queue.flush().unwrap();
    assert!(!fixture.queue.is_dirty());
    fixture.queue.append(250, entry(250)).unwrap();
    assert!(fixture.queue.is_dirty());
}

#[test]
fn a_closed_queue_is_empty_and_takes_nothing() {
    let fixture = Fixture::with_entries(250);
    fixture.queue.close();
    assert_eq!(
        fixture.queue.append(250, entry(250)).unwrap(),
        Placed::Duplicate
    );
    assert_eq!(
        (fixture.range(), fixture.queue.entry(0).unwrap()),
        ((0, 0), None)
    );
    fixture.queue.flush().unwrap();
}

#[test]
fn readers_see_every_entry_below_the_published_offset() {
    let fixture = Fixture::new();
    let queue = &fixture.queue;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                let mut next = 0;
                let mut out = Vec::new();
                while next < 5_000 {
                    out.clear();
                    let max = queue.max_offset();
                    queue.entries(next, 32, &mut out).unwrap();
                    for read in &out {
                        assert_eq!(*read, entry(next as u64));
                        next += 1;
                    }
                    assert!(next >= max || !out.is_empty(), "{next} of {max}");
                }
            });
        }
        for offset in 0..5_000 {
            queue.append(offset, entry(offset as u64)).unwrap();
        }
    });
}

#[test]
fn young_entries_are_those_whose_records_may_still_be_in_the_tail() {
    let fixture = Fixture::new();
    let queue = &fixture.queue;
    let tail = 64 * RECORD;
    assert!(!queue.is_recent(0, 0), "nothing was appended");
    for number in 0..1000 {
        let tail_start = (number * RECORD).saturating_sub(tail);
        queue.note_recent(number * RECORD, tail_start, tail);
        queue.append(number as i64, entry(number)).unwrap();
        assert!(queue.is_recent(number as i64, tail_start));
        assert!(queue.is_recent((tail_start / RECORD) as i64, tail_start));
        assert!(!queue.is_recent((tail_start / RECORD) as i64 - 8, tail_start));
    }
    let after = 5000 * RECORD;
    assert!(!queue.is_recent(999, after), "the tail has moved on");
    queue.note_recent(5000 * RECORD, after - RECORD, tail);
    queue.append(1000, entry(5000)).unwrap();
    assert!(queue.is_recent(1000, after - RECORD));
    assert!(!queue.is_recent(999, after - RECORD));
}

#[test]
fn entries_of_a_file_that_is_not_mapped_are_left_alone_on_request() {
    let fixture = Fixture::with_entries(250).reopened();
    let budget = Arc::clone(&fixture.queue.budget);
    for file in &fixture.queue.files.load().list {
        file.read_at(0, &mut [0]).unwrap();
    }
    assert_eq!(budget.mapped(), 3);
    let mut out = Vec::new();
    assert!(fixture.queue.mapped_entries(120, 10, &mut out).unwrap());
    assert_eq!(out.len(), 10);
    let files = fixture.queue.files.load_full();
    files.list[1].unmap();
    assert!(!fixture.queue.mapped_entries(120, 10, &mut out).unwrap());
    assert_eq!((out.len(), budget.mapped()), (10, 2));
}

#[test]
fn the_end_below_a_log_offset_leaves_out_what_begins_behind_it() {
    let fixture = Fixture::with_entries(250);
    for (records, end) in [
        (0, 0),
        (1, 1),
        (3, 3),
        (120, 120),
        (249, 249),
        (250, 250),
        (400, 250),
    ] {
        let found = fixture.queue.end_below(250, records * RECORD).unwrap();
        assert_eq!(found, end);
    }
    assert_eq!(fixture.queue.end_below(250, RECORD + 1).unwrap(), 2);
    assert_eq!(Fixture::new().queue.end_below(0, 0).unwrap(), 0);
}

#[test]
fn a_queue_that_is_cut_to_its_first_offset_goes_on_there() {
    let fixture = Fixture::with_entries(250);
    fixture.queue.delete_before(150 * RECORD).unwrap();
    fixture.queue.correct_min(150 * RECORD).unwrap();
    assert_eq!(fixture.range(), (150, 250));
    fixture.queue.truncate(50 * RECORD).unwrap();
    assert_eq!(fixture.range(), (100, 100));
    let fixture = fixture.reopened();
    assert_eq!(fixture.range(), (100, 100));
    assert_eq!(
        fixture.queue.append(100, entry(100)).unwrap(),
        Placed::Appended
    );
}

#[test]
fn a_queue_whose_only_file_holds_nothing_begins_at_the_offset_of_its_first_record() {
    let fixture = Fixture::with_entries(5);
    fixture.queue.truncate(0).unwrap();
    fs::create_dir_all(fixture.dir.path().join("T/3")).unwrap();
    fs::write(fixture.path(0), [0; SIZE as usize]).unwrap();
    let fixture = fixture.reopened();
    assert_eq!(fixture.range(), (0, 0));
    for offset in [7, 8] {
        let placed = fixture.queue.append_in_place(offset, entry(offset as u64));
        assert_eq!(placed.unwrap(), Placed::Appended);
    }
    assert_eq!(fixture.range(), (7, 9));
    assert_eq!(fixture.queue.entry(7).unwrap(), Some(entry(7)));
}

#[test]
fn files_without_an_entry_behind_others_are_not_taken_for_full_ones() {
    let fixture = Fixture::with_entries(2 * N + 50);
    // What a cut can leave of files that nobody synced.
    for base in [3, 4, 5] {
        let path = fixture.path(base * SIZE);
        fs::write(path, [0; SIZE as usize]).unwrap();
    }
    let fixture = fixture.reopened();
    assert_eq!(fixture.range(), (0, 2 * N + 50));
    assert_eq!(fixture.queue.log_end(), (2 * N as u64 + 50) * RECORD);
}

#[test]
fn blank_entries_let_no_file_with_a_kept_record_expire() {
    let fixture = Fixture::with_entries(N - 10);
    let next = entry(N as u64 + 5);
    fixture.queue.append_in_place(N + 5, next).unwrap();
    // The last entries of the first file are blank; the record before them is still there.
    let kept = entry(N as u64 - 11);
    assert_eq!(
        fixture.queue.delete_before(kept.physical_offset).unwrap(),
        0
    );
    assert_eq!(fixture.queue.delete_before(kept.end()).unwrap(), 1);
}
