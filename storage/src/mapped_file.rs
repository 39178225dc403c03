//! Files that are mapped while they are in use, under one cap on all mappings together.
//!
//! A process may have about 65,000 mappings (`vm.max_map_count`), and a store may have more
//! queue files than that. A [`MappedFile`] maps itself at its first access; when the cap is
//! reached, files that were not used since the last round lose their mapping (a clock, with
//! the active files in it too) and map themselves again at the next access. Stores already made
//! stay in the page cache. Accesses to a mapped file take no lock.
//!
//! While the cap is reached, most writes to a file without a mapping go through its descriptor:
//! with more active files than mappings, each written in turn, mapping at every write would cost
//! an unmapping too and never hit.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapOption;
use nix::fcntl::AtFlags;

use crate::mapping::{Advice, CACHE_LINE, Mapping, MappingError};
use crate::medium;

/// Of so many writes that find no mapping while the cap is reached, one maps the file: a file that
/// is written often gets its mapping back, one that is not leaves the others theirs.
const WRITES_BEFORE_MAPPING: u32 = 64;

/// How many mappings all [`MappedFile`]s of a store may have together.
#[derive(Debug)]
pub struct MapBudget {
    limit: usize,
    clock: Mutex<Clock>,
}

#[derive(Debug, Default)]
struct Clock {
    mapped: usize,
    ring: VecDeque<Weak<MappedFile>>,
}

impl MapBudget {
    /// Allows `limit` mappings, at least one.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            clock: Mutex::default(),
        })
    }

    /// How many files are mapped now.
    pub fn mapped(&self) -> usize {
        self.lock().mapped
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    /// Unmaps files until there is room for one more under `limit`. Returns the files it
    /// looked at: dropping the last reference to one takes the lock that the caller holds.
    #[must_use]
    fn make_room(&mut self, limit: usize) -> Vec<Arc<MappedFile>> {
        let mut seen = Vec::new();
        // Two rounds: the first may find every file used, the second then finds none used.
        let mut looks = 2 * self.ring.len();
        while looks > 0 && (self.mapped >= limit || self.ring.len() > 2 * self.mapped + 64) {
            looks -= 1;
            let Some(weak) = self.ring.pop_front() else {
                break;
            };
            let Some(file) = weak.upgrade() else { continue };
            if file.used.swap(false, Ordering::Relaxed) || self.mapped < limit {
                self.ring.push_back(weak);
            } else if file.mapping.swap(None).is_some() {
                self.mapped -= 1;
            }
            seen.push(file);
        }
        seen
    }
}

/// A file of fixed size that maps itself when it is accessed.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    size: u64,
    advice: Advice,
    budget: Arc<MapBudget>,
    mapping: ArcSwapOption<Mapping>,
    /// Writes that found no mapping while the cap was reached.
    misses: AtomicU32,
    used: AtomicBool,
    removed: AtomicBool,
}

impl MappedFile {
    /// A file that exists with exactly `size` bytes; checked at the first access.
    pub fn existing(
        path: PathBuf,
        size: u64,
        advice: Advice,
        budget: &Arc<MapBudget>,
    ) -> Arc<Self> {
        Arc::new(Self {
            path,
            size,
            advice,
            budget: Arc::clone(budget),
            mapping: ArcSwapOption::empty(),
            misses: AtomicU32::new(0),
            used: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        })
    }

    /// Creates a sparse file that has its full size from the moment its name appears. The
    /// directory is made when it is missing.
    pub fn create(
        path: PathBuf,
        size: u64,
        advice: Advice,
        budget: &Arc<MapBudget>,
    ) -> Result<Arc<Self>, MappingError> {
        create_sparse(&path, size).map_err(|source| MappingError::File {
            action: "create",
            path: path.clone(),
            source,
        })?;
        Ok(Self::existing(path, size, advice, budget))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies the bytes at `position` into `out`.
    pub fn read_at(self: &Arc<Self>, position: u64, out: &mut [u8]) -> Result<(), MappingError> {
        match self.with(|mapping| mapping.read_at(position, out)) {
            // On some file systems a look at a hole takes space, and the disk may just be full.
            Err(error @ MappingError::Poisoned { .. }) => {
                self.read_through(position, out).map_err(|_| error)
            }
            read => read,
        }
    }

    /// Reads through a descriptor what could not be read from the mapping.
    fn read_through(&self, position: u64, out: &mut [u8]) -> io::Result<()> {
        let file = std::fs::File::open(&self.path)?;
        if file.metadata()?.len() != self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.read_exact_at(out, position)
    }

    /// As [`MappedFile::read_at`] if the file is mapped; false if it is not, and stays so.
    pub fn read_if_mapped(
        self: &Arc<Self>,
        position: u64,
        out: &mut [u8],
    ) -> Result<bool, MappingError> {
        if self.mapping.load().is_none() {
            return Ok(false);
        }
        // Unmapped this very moment it is mapped again: rare, and correct.
        self.read_at(position, out).map(|()| true)
    }

    /// Stores `bytes` at `position`; only one thread stores to a file.
    pub fn write_at(self: &Arc<Self>, position: u64, bytes: &[u8]) -> Result<(), MappingError> {
        self.with(|mapping| mapping.write_at(position, bytes))?;
        medium::stored(&self.path, position, bytes.len());
        Ok(())
    }

    /// Stores `bytes` through a descriptor if the file has no mapping and is not to get one now:
    /// true. False: nothing is stored, store to the mapping.
    pub fn write_if_unmapped(&self, position: u64, bytes: &[u8]) -> Result<bool, MappingError> {
        if self.mapping.load().is_some() || !self.stays_unmapped() {
            return Ok(false);
        }
        self.write_through(position, bytes).map(|()| true)
    }

    /// Makes a range fit for stores. It comes before the first look at a place that is then
    /// stored to: on some file systems even reading a hole takes space.
    pub fn reserve(self: &Arc<Self>, position: u64, len: usize) -> Result<(), MappingError> {
        self.with(|mapping| mapping.reserve(position, len))
    }

    /// Waits until the range is on disk.
    pub fn sync(self: &Arc<Self>, position: u64, len: u64) -> Result<(), MappingError> {
        self.with(|mapping| mapping.sync(position, len))
    }

    /// Addresses of what leads to the bytes at `position`, and theirs; zeros without a mapping.
    pub(crate) fn way_to(&self, position: u64) -> ([usize; 3], usize) {
        let mapping = self.mapping.load();
        let Some(mapping) = &*mapping else {
            return ([0; 3], 0);
        };
        let start = Arc::as_ptr(mapping).addr();
        let (word, bytes) = mapping.way_to(position);
        ([start, start + CACHE_LINE, word], bytes)
    }

    /// Tells the kernel how the file is going to be read from here on.
    pub fn advise(self: &Arc<Self>, advice: Advice) -> Result<(), MappingError> {
        self.with(|mapping| {
            mapping.advise(advice);
            Ok(())
        })
    }

    /// Where data begins at or behind `from`: the file's size if there is only a hole, `from` where
    /// the file system does not tell.
    pub fn next_data(&self, from: u64) -> u64 {
        use rustix::fs::{SeekFrom, seek};
        let found = match std::fs::File::open(&self.path) {
            Ok(file) => seek(file, SeekFrom::Data(from)),
            Err(_) => return from,
        };
        match found {
            Ok(place) => place,
            Err(rustix::io::Errno::NXIO) => self.size,
            Err(_) => from,
        }
    }

    /// When the file was last written, by the file system's clock.
    pub fn modified(&self) -> io::Result<std::time::SystemTime> {
        std::fs::metadata(&self.path)?.modified()
    }

    /// Deletes the file; accesses fail from then on. A file that is gone already is no error.
    pub fn remove(&self) -> io::Result<()> {
        self.removed.store(true, Ordering::Release);
        self.unmap();
        match medium::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn with<T>(
        self: &Arc<Self>,
        access: impl FnOnce(&Mapping) -> Result<T, MappingError>,
    ) -> Result<T, MappingError> {
        let loaded = self.mapping.load();
        let fresh;
        let mapping = match &*loaded {
            Some(mapping) => {
                if !self.used.load(Ordering::Relaxed) {
                    self.used.store(true, Ordering::Relaxed);
                }
                mapping
            }
            None => {
                fresh = self.map()?;
                &fresh
            }
        };
        let result = access(mapping);
        if matches!(result, Err(MappingError::Poisoned { .. })) {
            self.forget(mapping);
        }
        result
    }

    fn stays_unmapped(&self) -> bool {
        let is_full = self.budget.lock().mapped >= self.budget.limit;
        let misses = self.misses.fetch_add(u32::from(is_full), Ordering::Relaxed);
        is_full && !(misses + 1).is_multiple_of(WRITES_BEFORE_MAPPING)
    }

    /// Writes through a descriptor; the page cache is the same that mappings show.
    fn write_through(&self, position: u64, bytes: &[u8]) -> Result<(), MappingError> {
        let failed = |action| {
            move |source| MappingError::File {
                action,
                path: self.path.clone(),
                source,
            }
        };
        if self.removed.load(Ordering::Acquire) {
            return Err(failed("open")(io::ErrorKind::NotFound.into()));
        }
        let file = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .map_err(failed("open"))?;
        let end = position.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(failed("write")(io::ErrorKind::InvalidInput.into()));
        }
        file.write_all_at(bytes, position)
            .map_err(failed("write"))?;
        medium::stored(&self.path, position, bytes.len());
        Ok(())
    }

    /// Unmaps after the disk failed: the next access tries the file anew. What was stored is
    /// in the page cache, except for the very store that failed.
    fn forget(&self, failed: &Arc<Mapping>) {
        let mut clock = self.budget.lock();
        let is_failed = |mapping: &Arc<Mapping>| Arc::ptr_eq(mapping, failed);
        if self.mapping.load().as_ref().is_some_and(is_failed) {
            self.mapping.store(None);
            clock.mapped -= 1;
        }
    }

    fn map(self: &Arc<Self>) -> Result<Arc<Mapping>, MappingError> {
        // Declared before the lock, so that it is dropped after it.
        let _seen;
        let mut clock = self.budget.lock();
        if let Some(mapping) = &*self.mapping.load() {
            return Ok(Arc::clone(mapping));
        }
        if self.removed.load(Ordering::Acquire) {
            let source = io::ErrorKind::NotFound.into();
            return Err(MappingError::File {
                action: "open",
                path: self.path.clone(),
                source,
            });
        }
        _seen = clock.make_room(self.budget.limit);
        let mapping = Arc::new(Mapping::open(&self.path, self.size)?);
        mapping.advise(self.advice);
        self.used.store(true, Ordering::Relaxed);
        self.mapping.store(Some(Arc::clone(&mapping)));
        clock.mapped += 1;
        clock.ring.push_back(Arc::downgrade(self));
        Ok(mapping)
    }

    pub(crate) fn unmap(&self) {
        let mut clock = self.budget.lock();
        if self.mapping.swap(None).is_some() {
            clock.mapped -= 1;
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Gives `path` to a new sparse file that has its full size from the moment it has its name, where
/// the filesystem can do that. An empty file of that name, which an attempt left that a crash or an
/// error ended in between, gives way; any other one is an error.
pub(crate) fn create_sparse(path: &Path, size: u64) -> io::Result<()> {
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    medium::make_directories(parent)?;
    match create_new_sparse(path, parent, size) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_empty_file(path) => {
            medium::remove_file(path)?;
            create_new_sparse(path, parent, size)
        }
        created => created,
    }
}

fn is_empty_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

fn create_new_sparse(path: &Path, parent: &Path, size: u64) -> io::Result<()> {
    let unnamed = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(parent);
    if let Ok(file) = unnamed {
        file.set_len(size)?;
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let here = nix::fcntl::AT_FDCWD;
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        let linked = medium::name(path, || {
            Ok(nix::unistd::linkat(
                here,
                from.as_str(),
                here,
                path,
                follow,
            )?)
        });
        match linked {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
    }
    // A file system without unnamed files: the size follows the name at once, and a file that
    // a crash left empty in between is recognised when the store opens.
    let file = medium::name(path, || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
    })?;
    file.set_len(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(dir: &Path, name: &str, budget: &Arc<MapBudget>) -> Arc<MappedFile> {
        MappedFile::create(dir.join(name), 5_000, Advice::Random, budget).unwrap()
    }

    #[test]
    fn a_new_file_has_its_full_size_and_takes_no_space() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(4);
        let path = dir.path().join("topic/0/00000000000000000000");
        MappedFile::create(path.clone(), 6_000_000, Advice::Random, &budget).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 6_000_000);
        assert!(metadata.blocks() * 512 < 100_000);
        let again = MappedFile::create(path, 6_000_000, Advice::Random, &budget).unwrap_err();
        assert!(matches!(
            again,
            MappingError::File {
                action: "create",
                ..
            }
        ));
    }

    #[test]
    fn an_empty_file_that_an_attempt_left_gives_way_and_no_other_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0/00000000000000000000");
        std::fs::create_dir(dir.path().join("0")).unwrap();
        std::fs::write(&path, b"").unwrap();
        create_sparse(&path, 5_000).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 5_000]);
        for content in [&b"x"[..], &[0; 5_000]] {
            std::fs::write(&path, content).unwrap();
            let again = create_sparse(&path, 5_000).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let in_the_way = create_sparse(&path, 5_000).unwrap_err();
        assert_eq!(in_the_way.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn no_more_files_are_mapped_than_the_budget_allows_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(3);
        let files: Vec<_> = (0..20)
            .map(|name| create(dir.path(), &name.to_string(), &budget))
            .collect();
        for round in 0..5u8 {
            for (number, file) in files.iter().enumerate() {
                file.write_at(u64::from(round), &[number as u8 + round])
                    .unwrap();
                assert!(budget.mapped() <= 3);
            }
        }
        for (number, file) in files.iter().enumerate() {
            let mut bytes = [0; 5];
            file.read_at(0, &mut bytes).unwrap();
            let number = number as u8;
            assert_eq!(
                bytes,
                [number, number + 1, number + 2, number + 3, number + 4]
            );
        }
        drop(files);
        assert_eq!(budget.mapped(), 0);
    }

    #[test]
    fn files_in_use_keep_their_mapping_before_idle_ones() {
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(2);
        let busy = create(dir.path(), "busy", &budget);
        for name in 0..10 {
            busy.write_at(0, &[1]).unwrap();
            let before = Arc::as_ptr(&busy.mapping.load_full().unwrap());
            create(dir.path(), &name.to_string(), &budget)
                .write_at(0, &[1])
                .unwrap();
            busy.write_at(0, &[1]).unwrap();
            assert_eq!(Arc::as_ptr(&busy.mapping.load_full().unwrap()), before);
        }
    }

    #[test]
    fn writes_in_turn_to_more_files_than_mappings_leave_most_mappings_alone() {
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(2);
        let files: Vec<_> = (0..3)
            .map(|name| create(dir.path(), &name.to_string(), &budget))
            .collect();
        let pointer = |file: &MappedFile| file.mapping.load_full().map(|m| Arc::as_ptr(&m));
        files[0].write_at(0, &[0]).unwrap();
        files[1].write_at(0, &[0]).unwrap();
        let before = (pointer(&files[0]), pointer(&files[1]));
        for round in 1..WRITES_BEFORE_MAPPING as u8 {
            let stored = files[2].write_if_unmapped(u64::from(round), &[round]);
            assert!(stored.unwrap());
            assert_eq!((pointer(&files[0]), pointer(&files[1])), before);
            assert_eq!(pointer(&files[2]), None);
        }
        assert!(
            files[2]
                .write_if_unmapped(4_999, &[1, 2])
                .is_ok_and(|stored| !stored)
        );
        assert!(files[2].write_if_unmapped(4_999, &[1, 2]).is_err());
        files[2].write_at(0, &[9]).unwrap();
        assert!(pointer(&files[2]).is_some());
        assert!(!files[2].write_if_unmapped(0, &[3]).unwrap());
        assert_eq!(budget.mapped(), 2);
        let mut bytes = [0; WRITES_BEFORE_MAPPING as usize];
        files[2].read_at(0, &mut bytes).unwrap();
        let expected: Vec<u8> = [9]
            .into_iter()
            .chain(1..WRITES_BEFORE_MAPPING as u8)
            .collect();
        assert_eq!(bytes, expected[..]);
    }

    #[test]
    fn a_removed_file_is_an_error_and_no_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(2);
        let file = create(dir.path(), "gone", &budget);
        file.write_at(0, &[1]).unwrap();
        file.remove().unwrap();
        file.remove().unwrap();
        assert!(file.read_at(0, &mut [0]).is_err());
        assert_eq!((budget.mapped(), file.path().exists()), (0, false));
    }

    #[test]
    fn evicting_a_file_while_others_use_it_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(2);
        let files: Vec<_> = (0..6)
            .map(|name| create(dir.path(), &name.to_string(), &budget))
            .collect();
        std::thread::scope(|scope| {
            for (number, file) in files.iter().enumerate() {
                let files = &files;
                scope.spawn(move || {
                    let mut bytes = [0; 8];
                    for round in 1..=300u64 {
                        file.write_at(8, &round.to_be_bytes()).unwrap();
                        file.read_at(8, &mut bytes).unwrap();
                        assert_eq!(u64::from_be_bytes(bytes), round);
                        let other = &files[(number + round as usize) % files.len()];
                        other.read_at(8, &mut bytes).unwrap();
                        assert!(u64::from_be_bytes(bytes) <= 300);
                    }
                });
            }
        });
        assert!(budget.mapped() <= 2);
    }

    #[test]
    fn a_file_whose_disk_failed_is_tried_anew() {
        let dir = tempfile::tempdir().unwrap();
        let budget = MapBudget::new(2);
        let file = create(dir.path(), "file", &budget);
        file.write_at(0, b"kept").unwrap();
        let handle = OpenOptions::new().write(true).open(file.path()).unwrap();
        handle.set_len(1).unwrap();
        assert!(matches!(
            file.read_at(4_500, &mut [0]),
            Err(MappingError::Poisoned { .. })
        ));
        assert!(matches!(
            file.read_at(0, &mut [0]),
            Err(MappingError::WrongSize { .. })
        ));
        handle.set_len(5_000).unwrap();
        let mut bytes = [0; 1];
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!((&bytes, budget.mapped()), (b"k", 1));
    }

    #[test]
    fn a_relative_name_has_a_directory_too() {
        medium::sync_directory(Path::new("")).unwrap();
    }
}
