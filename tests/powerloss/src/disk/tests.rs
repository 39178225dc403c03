use super::*;

fn write(disk: &mut Disk, file: u64, thread: u32, offset: u64, bytes: &[u8]) {
    let bytes = bytes.to_vec();
    assert!(disk.change(file, thread, What::Write { offset, bytes }));
}

fn new_file(disk: &mut Disk, name: &str) -> u64 {
    disk.make(ROOT, OsStr::new(name), false, 0o644)
}

fn read(disk: &Disk, name: &str) -> Option<Vec<u8>> {
    let number = disk.look_up(ROOT, OsStr::new(name))?;
    disk.content(number).map(|content| content.read(0, 1 << 20))
}

#[test]
fn a_name_lasts_only_with_its_directory_and_bytes_only_with_their_file() {
    let mut disk = Disk::new();
    let mut random = fastrand::Rng::with_seed(1);
    let a = new_file(&mut disk, "a");
    write(&mut disk, a, 1, 0, b"kept");
    disk.sync_file(a, 1, false);
    disk.sync_directory(ROOT);
    write(&mut disk, a, 1, 4, b"lost");
    let b = new_file(&mut disk, "b");
    write(&mut disk, b, 1, 0, b"unnamed");
    disk.sync_file(b, 1, false);
    assert_eq!(disk.cut(Loss::All, &mut random), 2);
    assert_eq!(read(&disk, "a").as_deref(), Some(&b"kept"[..]));
    assert_eq!(read(&disk, "b"), None);
    assert!(disk.inode(b).is_none(), "what no directory names is gone");
}

#[test]
fn a_rename_happens_whole_or_not_at_all() {
    for seed in 0..50 {
        let mut disk = Disk::new();
        let mut random = fastrand::Rng::with_seed(seed);
        let old = new_file(&mut disk, "state");
        write(&mut disk, old, 1, 0, b"old");
        disk.sync_file(old, 1, false);
        disk.sync_directory(ROOT);
        let new = new_file(&mut disk, "state.tmp");
        write(&mut disk, new, 1, 0, b"new");
        disk.sync_file(new, 1, false);
        let entries = vec![
            (ROOT, "state.tmp".into(), None),
            (ROOT, "state".into(), Some(new)),
        ];
        disk.name(entries);
        disk.cut(Loss::Sectors, &mut random);
        let left = read(&disk, "state").expect("one of the two");
        assert!(left == b"old" || left == b"new");
        assert!(left == b"old" || read(&disk, "state.tmp").is_none());
    }
}

#[test]
fn a_narrow_sync_saves_the_thread_s_own_writes_and_what_they_overwrote() {
    let mut disk = Disk::new();
    disk.narrow = true;
    let mut random = fastrand::Rng::with_seed(1);
    let file = new_file(&mut disk, "log");
    disk.change(file, 9, What::Size(12288));
    disk.sync_file(file, 9, false);
    disk.sync_directory(ROOT);
    write(&mut disk, file, 1, 0, &[1; 4096]);
    write(&mut disk, file, 2, 4096, &[2; 4096]);
    write(&mut disk, file, 3, 8192, &[3; 4096]);
    write(&mut disk, file, 2, 0, &[4; 512]);
    disk.sync_file(file, 2, true);
    disk.cut(Loss::All, &mut random);
    let left = read(&disk, "log").expect("file");
    assert_eq!(left[..512], [4; 512]);
    assert_eq!(left[512..4096], [1; 3584]);
    assert_eq!(left[4096..8192], [2; 4096]);
    assert_eq!(left[8192..], [0; 4096]);
}

#[test]
fn what_a_failed_sync_lost_stays_lost() {
    let mut disk = Disk::new();
    let mut random = fastrand::Rng::with_seed(1);
    let file = new_file(&mut disk, "log");
    disk.sync_directory(ROOT);
    write(&mut disk, file, 1, 0, b"gone");
    disk.lose_changes(file);
    write(&mut disk, file, 1, 4, b"here");
    disk.sync_file(file, 1, false);
    assert_eq!(read(&disk, "log").as_deref(), Some(&b"gonehere"[..]));
    disk.cut(Loss::All, &mut random);
    assert_eq!(read(&disk, "log").as_deref(), Some(&b"\0\0\0\0here"[..]));
}

#[test]
fn a_torn_cut_leaves_a_prefix_and_parts_of_one_write() {
    let mut torn = 0;
    for seed in 0..200 {
        let mut disk = Disk::new();
        let mut random = fastrand::Rng::with_seed(seed);
        let file = new_file(&mut disk, "log");
        disk.change(file, 1, What::Size(8192));
        disk.sync_file(file, 1, false);
        disk.sync_directory(ROOT);
        write(&mut disk, file, 1, 0, &[1; 4096]);
        write(&mut disk, file, 1, 4096, &[2; 4096]);
        disk.cut(Loss::Torn, &mut random);
        let left = read(&disk, "log").expect("file");
        let (first, second) = left.split_at(4096);
        let whole = first == [1; 4096];
        assert!(whole || second == [0; 4096], "the second without the first");
        let parts = |half: &[u8]| half.contains(&0) && half.iter().any(|byte| *byte != 0);
        torn += usize::from(parts(first) || parts(second));
    }
    assert!(torn > 50, "{torn} of 200 cuts tore a write");
}

#[test]
fn a_journal_keeps_the_size_of_a_file_that_has_its_name_and_a_loose_disk_may_not() {
    for loose in [false, true] {
        let mut disk = Disk::new();
        disk.loose = loose;
        let mut random = fastrand::Rng::with_seed(1);
        let file = new_file(&mut disk, "queue");
        disk.change(file, 1, What::Size(6000));
        disk.sync_directory(ROOT);
        disk.cut(Loss::All, &mut random);
        let size = read(&disk, "queue").map(|bytes| bytes.len());
        assert_eq!(size, Some(if loose { 0 } else { 6000 }));
    }
}
