//! Files made ready, handed over and removed.

use super::*;
use crate::config::FlushMode;

const SIZE: u64 = 1 << 20;

fn start(dir: &std::path::Path) -> (Preparer, PreparedFiles) {
    let segments = Segments {
        dir: dir.to_path_buf(),
        file_size: SIZE,
        direct: true,
        prepare: true,
    };
    let marks = Arc::new(Watermarks::new(FlushMode::Sync, 0));
    let bell = Arc::new(Doorbell::new().expect("eventfd"));
    let next = FirstFile {
        base: SIZE,
        goes_on_at: None,
    };
    let status = Arc::default();
    let (work, files) =
        Work::new(segments, next, marks, status, bell, Arc::default()).expect("work");
    (Preparer::start(work).expect("start"), files)
}

fn take(files: &mut PreparedFiles, base: u64, urgent: bool) -> LogFile<File> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let NextFile::Ready(file) = files.take(base) {
            return file;
        }
        files.want(base, urgent);
        std::thread::yield_now();
    }
    panic!("no file within 20 s");
}

#[test]
fn the_spare_has_no_name_until_it_is_wanted() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let (_preparer, mut files) = start(dir.path());
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    for base in [SIZE, 2 * SIZE, 3 * SIZE] {
        let file = take(&mut files, base, base == 3 * SIZE);
        assert_eq!(file.base, base);
        assert!(base == 3 * SIZE || file.zeroed_to == SIZE);
    }
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .expect("list")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("name")
        })
        .collect();
    names.sort();
    let expected = [SIZE, 2 * SIZE, 3 * SIZE].map(crate::layout::file_name);
    assert_eq!(names, expected);
}

/// A preparer whose first file exists, holds records up to position 7, and is not open yet.
fn with_records(dir: &Path) -> (Work, PreparedFiles, PathBuf) {
    let segments = Segments {
        dir: dir.to_path_buf(),
        file_size: SIZE,
        direct: true,
        prepare: true,
    };
    let path = segments.path(SIZE);
    let java = File::create_new(&path).expect("create");
    std::os::unix::fs::FileExt::write_all_at(&java, b"records", 0).expect("write");
    java.set_len(SIZE).expect("size");
    let marks = Arc::new(Watermarks::new(FlushMode::Sync, SIZE + 7));
    let next = FirstFile {
        base: SIZE,
        goes_on_at: Some(7),
    };
    let bell = Arc::new(Doorbell::new().expect("eventfd"));
    let status = Arc::default();
    let (work, files) =
        Work::new(segments, next, marks, status, bell, Arc::default()).expect("work");
    (work, files, path)
}

#[test]
fn a_file_there_was_no_room_to_open_is_handed_over_with_what_it_holds() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let (work, mut files, path) = with_records(dir.path());
    let _preparer = Preparer::start(work).expect("start");
    let file = take(&mut files, SIZE, true);
    assert!(file.base == SIZE && file.zeroed_to >= 7);
    let bytes = std::fs::read(&path).expect("read");
    assert!(bytes.starts_with(b"records") && bytes.len() as u64 == SIZE);
    assert_eq!(take(&mut files, 2 * SIZE, true).base, 2 * SIZE);
}

#[test]
fn the_first_file_of_a_log_is_made_when_there_is_room_for_it() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let segments = Segments {
        dir: dir.path().to_path_buf(),
        file_size: SIZE,
        direct: true,
        prepare: true,
    };
    let marks = Arc::new(Watermarks::new(FlushMode::Sync, SIZE));
    let next = FirstFile {
        base: SIZE,
        goes_on_at: Some(0),
    };
    let bell = Arc::new(Doorbell::new().expect("eventfd"));
    let status = Arc::default();
    let (work, mut files) =
        Work::new(segments, next, marks, status, bell, Arc::default()).expect("work");
    let _preparer = Preparer::start(work).expect("start");
    assert_eq!(take(&mut files, SIZE, true).base, SIZE);
    assert_eq!(files.shared.status.unmakable(), None);
}

/// Fails the first sync of a file.
struct OneFailedSync(bool);

impl medium::Witness for OneFailedSync {
    fn before(&mut self, request: medium::Request<'_>) -> io::Result<()> {
        let fails = matches!(request, medium::Request::SyncFile(_)) && !self.0;
        self.0 |= fails;
        if fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    fn after(&mut self, _: medium::Request<'_>) {}
}

#[test]
fn a_failed_sync_of_a_file_with_records_keeps_them_and_ends_the_writing() {
    use std::{cell::RefCell, rc::Rc};
    let dir = tempfile::tempdir_in(".").expect("directory");
    let (mut work, mut files, path) = with_records(dir.path());
    medium::listen(Some(Rc::new(RefCell::new(OneFailedSync(false)))));
    files.want(SIZE, true);
    for _ in 0..20 {
        work.turn(true);
    }
    medium::listen(None);
    let bytes = std::fs::read(&path).expect("read");
    assert!(bytes.starts_with(b"records"), "{:?}", &bytes[..8]);
    let why = files.shared.status.read_only().expect("read-only");
    assert!(why.contains(path.to_str().expect("path")), "{why}");
}

#[test]
fn a_file_that_the_log_goes_on_in_is_never_replaced() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let (work, _files, path) = with_records(dir.path());
    let other = work.segments.create(SIZE).expect("create");
    let error = work
        .segments
        .publish(&other, SIZE + 7)
        .expect_err("refused");
    assert!(
        error.to_string().contains("must not be replaced"),
        "{error}"
    );
    let bytes = std::fs::read(&path).expect("read");
    assert!(bytes.starts_with(b"records"));
}

#[test]
fn removals_asked_for_are_done_before_the_end() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let (mut preparer, _files) = start(dir.path());
    let path = dir.path().join("00000000000000000000");
    std::fs::write(&path, b"old").expect("write");
    Removals(Arc::clone(&preparer.shared)).remove(path.clone(), 3);
    preparer.stop();
    assert!(!path.exists());
}

#[test]
fn a_missing_directory_refuses_and_heals() {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let log = dir.path().join("commitlog");
    let (_preparer, mut files) = start(&log);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !matches!(files.take(SIZE), NextFile::NoSpace) {
        assert!(Instant::now() < deadline, "never refused");
        std::thread::yield_now();
    }
    assert!(files.shared.status.no_space());
    let why = files.shared.status.unmakable().expect("a reason");
    assert!(why.contains("No such file"), "{why}");
    std::fs::create_dir(&log).expect("directory");
    assert_eq!(take(&mut files, SIZE, false).base, SIZE);
    assert!(!files.shared.status.no_space());
}
