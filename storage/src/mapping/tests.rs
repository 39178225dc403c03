use super::*;

fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn what_is_stored_is_read_back_at_every_alignment() {
    let file = file_of(&[0; 10_000]);
    let mapping = Mapping::open(file.path(), 10_000).unwrap();
    let pattern: Vec<u8> = (0..=255)
        .cycle()
        .take(300)
        .map(|byte: u8| byte ^ 0x5a)
        .collect();
    for at in 4_080..4_100 {
        for len in [0, 1, 7, 8, 9, 20, 300] {
            mapping.write_at(at, &pattern[..len]).unwrap();
            let mut back = vec![0; len];
            mapping.read_at(at, &mut back).unwrap();
            assert_eq!(back, pattern[..len], "{len} bytes at {at}");
        }
    }
    mapping.sync(4_099, 300).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert_eq!(bytes[4_099..4_399], pattern);
}

#[test]
fn no_access_leaves_the_file() {
    let file = file_of(&[1; 100]);
    let mapping = Mapping::open(file.path(), 100).unwrap();
    for (position, len) in [(100, 1), (99, 2), (0, 101), (u64::MAX, 1), (u64::MAX, 0)] {
        let read = mapping.read_at(position, &mut vec![0; len]);
        assert!(
            matches!(read, Err(MappingError::Outside { .. })),
            "{len} at {position}"
        );
        let write = mapping.write_at(position, &vec![0; len]);
        assert!(
            matches!(write, Err(MappingError::Outside { .. })),
            "{len} at {position}"
        );
    }
    mapping.read_at(100, &mut []).unwrap();
}

#[test]
fn a_file_of_another_size_is_refused_by_name() {
    let file = file_of(&[1; 100]);
    let error = Mapping::open(file.path(), 200).unwrap_err();
    let text = format!("{} has 100 bytes instead of 200", file.path().display());
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_file_cut_short_gives_errors_and_no_dead_process() {
    let size = 8 * faults::page_size() as u64;
    let file = file_of(&vec![7; size as usize]);
    let healthy = file_of(&vec![9; size as usize]);
    let mapping = Mapping::open(file.path(), size).unwrap();
    let other = Mapping::open(healthy.path(), size).unwrap();
    mapping.write_at(0, b"x").unwrap();
    file.as_file().set_len(0).unwrap();
    let mut bytes = [1; 16];
    let read = mapping.read_at(size / 2, &mut bytes);
    assert!(matches!(read, Err(MappingError::Poisoned { .. })));
    assert!(mapping.poisoned());
    assert!(matches!(
        mapping.write_at(0, b"y"),
        Err(MappingError::Poisoned { .. })
    ));
    assert!(mapping.write_at(size / 4, b"y").is_err());
    // Only the damaged file's mapping is marked, also for whoever gets its place next.
    other.read_at(size / 2, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 16]);
    drop(mapping);
    let next = Mapping::open(healthy.path(), size).unwrap();
    next.read_at(0, &mut bytes).unwrap();
}

#[test]
fn a_sparse_file_without_space_is_an_error_of_the_store() {
    // A page beyond the end of a file stands in for a page without space.
    let size = 4 * faults::page_size() as u64;
    let file = file_of(&vec![0; size as usize]);
    let mapping = Mapping::open(file.path(), size).unwrap();
    file.as_file().set_len(1).unwrap();
    let error = mapping.write_at(size / 2, b"y").unwrap_err();
    assert!(matches!(error, MappingError::NoPage { .. }), "{error}");
    assert!(!error.is_no_space());
    assert!(!mapping.poisoned(), "the page was asked for, not touched");
}

#[test]
fn many_threads_may_fault_at_once() {
    let size = 64 * faults::page_size() as u64;
    let file = file_of(&vec![7; size as usize]);
    let mapping = Mapping::open(file.path(), size).unwrap();
    file.as_file().set_len(0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mapping = &mapping;
            scope.spawn(move || {
                for page in 0..64u64 {
                    let at = (page * 7 + thread) % 64 * faults::page_size() as u64;
                    assert!(mapping.read_at(at, &mut [0; 8]).is_err());
                }
            });
        }
    });
}
