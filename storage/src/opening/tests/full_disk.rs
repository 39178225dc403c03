//! Starts on a disk that is full from some request on.

use super::*;
use crate::opening::Recovered;

/// Has no space for entries from one of its requests on.
struct Full {
    requests: u64,
    full_at: u64,
}

impl Witness for Full {
    fn before(&mut self, request: Request<'_>) -> io::Result<()> {
        let takes_space = match request {
            Request::Populate(_) => true,
            Request::Name(path) => path
                .iter()
                .any(|part| part == "consumequeue" || part == "index"),
            _ => false,
        };
        self.requests += u64::from(takes_space);
        match takes_space && self.requests > self.full_at {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => Ok(()),
        }
    }

    fn after(&mut self, _request: Request<'_>) {}
}

/// Runs on such a disk; whether it came to be full.
fn full<T>(full_at: u64, run: impl FnOnce() -> T) -> (T, bool) {
    let requests = 0;
    let disk = Rc::new(RefCell::new(Full { requests, full_at }));
    listen(Some(disk.clone()));
    let ran = run();
    listen(None);
    let was_full = disk.borrow().requests > full_at;
    (ran, was_full)
}

/// Topic, queue and entries of every queue.
type Entries = BTreeMap<(String, i32), Vec<Option<ConsumeEntry>>>;

fn entries(recovered: &Recovered) -> Entries {
    let queues = recovered.table.all();
    let queues = queues.iter().map(|queue| {
        let range = queue.min_offset()..queue.max_offset();
        let entries = range.map(|offset| queue.entry(offset).unwrap());
        ((queue.topic.to_string(), queue.queue_id), entries.collect())
    });
    queues.collect()
}

fn next_offsets(recovered: &Recovered) -> Vec<i64> {
    let queues = recovered.table.all();
    queues.iter().map(|queue| queue.next_offset()).collect()
}

fn indexed(recovered: &Recovered) -> Vec<BTreeSet<u64>> {
    let look = |number| {
        let key = format!("k{number}");
        let hits = recovered.index.query("T", key.as_bytes(), 64, 0, i64::MAX);
        hits.unwrap().offsets.into_iter().collect()
    };
    (0..ALL).map(look).collect()
}

#[test]
fn a_start_on_a_full_disk_serves_what_is_there_and_makes_the_rest_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = killed(&dir.path().join("store"));
    let at = |name: &str| {
        let mut config = store.config.clone();
        config.root = dir.path().join(name);
        copy(&store.config.root, &config.root);
        config
    };
    let (_, _lock, whole) = Store::recover(&at("whole")).unwrap();
    assert!(whole.late.is_none());
    let mut starts = 0;
    for full_at in 0.. {
        let config = at(&format!("full-{full_at}"));
        let (started, was_full) = full(full_at, || Store::recover(&config));
        let (_, _lock, behind) = match started {
            // This disk does not know that what is overwritten before the walk has its space.
            Err(error) if starts == 0 && error.is_no_space() => continue,
            started => started.unwrap(),
        };
        assert_eq!(behind.late.is_some(), was_full, "full at {full_at}");
        let Some(late) = behind.late.clone() else {
            break;
        };
        starts += 1;
        assert_eq!(behind.log_end, whole.log_end);
        assert_eq!(
            next_offsets(&behind),
            next_offsets(&whole),
            "full at {full_at}"
        );
        for (queue, found) in entries(&behind) {
            let expected = &entries(&whole)[&queue];
            assert_eq!(found, expected[..found.len()], "full at {full_at}");
        }
        assert!(late.why.contains("No space left"), "{}", late.why);
        for more in [0, 1] {
            let (made, was_full) = full(more, || late.make());
            assert_eq!(made.is_err(), was_full, "full at {full_at}");
        }
        late.make().unwrap();
        let files = fs::read_dir(config.root.join("index")).unwrap().count();
        assert_eq!(files, behind.index.file_count(), "full at {full_at}");
        assert_eq!(entries(&behind), entries(&whole), "full at {full_at}");
        assert_eq!(indexed(&behind), indexed(&whole), "full at {full_at}");
    }
    assert!(starts > 3, "{starts} starts went on without room");
}

#[test]
fn a_store_that_was_opened_on_a_full_disk_heals() {
    let dir = tempfile::tempdir().unwrap();
    let store = killed(dir.path());
    let open = || Store::open(store.config.clone(), 1, Arc::new(Nobody));
    let opened = (0..).find_map(|full_at| {
        let (opened, was_full) = full(full_at, open);
        assert!(was_full, "never opened on a full disk");
        opened.ok()
    });
    let opened = opened.unwrap();
    // The disk is full for this thread only.
    while !opened.store.state().is_writable() {
        std::thread::yield_now();
    }
    assert_eq!(opened.store.watermarks().dispatched(), store.end);
    let ends = opened.store.queues_of("T");
    let ends: Vec<i64> = ends.iter().map(|queue| queue.max_offset()).collect();
    assert_eq!(ends.iter().sum::<i64>(), ALL as i64);
    opened.store.close().unwrap();
    drop(opened);
    send(&store.config, ALL..ALL + 3, true);
    let again = open().unwrap();
    assert!(again.report.clean);
    for (end, queue) in ends.iter().zip(again.store.queues_of("T").iter()) {
        assert_eq!(queue.max_offset(), end + 1);
    }
}
