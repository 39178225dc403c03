//! How fast are entries of a ConsumeQueue read, and what does a tag filter add?

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use saturnmq_storage::consume_queue::ConsumeQueue;
use saturnmq_storage::filter::TagFilter;
use saturnmq_storage::format::consume_entry::ConsumeEntry;
use saturnmq_storage::mapped_file::MapBudget;
use tempfile::TempDir;

const FILE: u64 = 6_000_000;
const ENTRIES: i64 = 250_000;

fn main() {
    divan::main();
}

fn filled() -> (TempDir, ConsumeQueue) {
    let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
    let queue = ConsumeQueue::empty(dir.path(), "orders", 3, FILE, &MapBudget::new(100));
    for offset in 0..ENTRIES {
        let entry = ConsumeEntry {
            physical_offset: offset as u64 * 1200,
            size: 1200,
            tags_code: offset % 100,
        };
        queue.append(offset, entry).expect("an entry");
    }
    (dir, queue)
}

#[divan::bench(args = [32, 1024, 250_000])]
fn scan(bencher: Bencher<'_, '_>, count: usize) {
    let (_dir, queue) = filled();
    let mut out = Vec::with_capacity(count);
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        out.clear();
        queue
            .entries(black_box(0), count, &mut out)
            .expect("entries");
        assert_eq!(out.len(), count);
    });
}

#[divan::bench(args = ["*", "a", "a || b || c || d || e || f || g || h"])]
fn tag_filter(bencher: Bencher<'_, '_>, expression: &str) {
    let filter = TagFilter::parse(Some(expression)).expect("an expression");
    let codes: Vec<i64> = (0..1024).map(|number| number * 37 % 200).collect();
    bencher
        .counter(ItemsCount::new(codes.len()))
        .bench_local(|| {
            let matches = |code: &&i64| filter.matches(**code);
            black_box(&codes).iter().filter(matches).count()
        });
}
