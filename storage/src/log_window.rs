//! Reads old log bytes from their files, a window at a time.
//!
//! What must always hold: the file that is being written is read with O_DIRECT only, never through
//! the page cache (docs/durability.md, "Promises"), and a window never shows bytes that were
//! not yet written when it was filled. Sealed files go through the page cache, which reads ahead; a
//! start, which walks along a log nobody writes to, has it read ahead past the page cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::disk::aligned::{ALIGNMENT, AlignedMemory};
use crate::disk::probe::LARGEST_BLOCK;
use crate::error::FileError;
use crate::layout::file_name;

mod ahead;

use ahead::{PIECE_BYTES, ROOM_BYTES, Walk};

/// Read at a time when reading on in order, in bytes.
pub const SCAN_BYTES: usize = 256 << 10;

/// Read at a time when looking at single records, in bytes.
pub const LOOK_BYTES: usize = 4096;

/// Memory that is kept once the large record it was made for is read, in bytes: enough for every
/// record that a broker takes by default.
const KEPT_BYTES: usize = 8 << 20;

/// Files kept open by one window.
const OPEN_FILES: usize = 8;

/// One open log file.
struct OpenFile {
    base: u64,
    direct: bool,
    path: PathBuf,
    file: File,
}

/// A piece of the log in aligned memory.
pub struct LogWindow {
    directory: PathBuf,
    file_size: u64,
    files: Vec<OpenFile>,
    memory: Option<AlignedMemory>,
    /// Log offset of the first byte that is held.
    start: u64,
    /// Where that is in the memory.
    at: usize,
    filled: usize,
    /// `None` if nothing is read ahead.
    walk: Option<Walk>,
}

impl LogWindow {
    /// A window over the log files of `directory`; nothing is opened yet.
    pub fn new(directory: &Path, file_size: u64) -> LogWindow {
        assert!(file_size > 0, "log files have a size");
        LogWindow {
            directory: directory.to_path_buf(),
            file_size,
            files: Vec::new(),
            memory: None,
            start: 0,
            at: 0,
            filled: 0,
            walk: None,
        }
    }

    /// As [`LogWindow::new`], for a walk along a log nobody writes to: what is asked for with
    /// [`WindowLimits::QUIET`], one part behind the other, is read ahead.
    pub fn walking(directory: &Path, file_size: u64) -> LogWindow {
        LogWindow {
            walk: Some(Walk::default()),
            ..LogWindow::new(directory, file_size)
        }
    }

    /// Another window over the same files, with nothing open.
    pub(crate) fn another(&self) -> LogWindow {
        LogWindow::new(&self.directory, self.file_size)
    }

    /// Size of a log file, in bytes.
    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Base of the file that holds log offset `offset`.
    pub fn base_of(&self, offset: u64) -> u64 {
        offset - offset % self.file_size
    }

    /// Path of the file that holds log offset `offset`.
    pub fn path_of(&self, offset: u64) -> PathBuf {
        self.directory.join(file_name(self.base_of(offset)))
    }

    /// The bytes `[offset, offset + size)`, which must lie in one file and end at or below `limit`,
    /// the log offset up to which bytes no longer change. Files at or above `active_base` are read
    /// directly. At least `ahead` bytes are read at a time. `None` if the file or these bytes of it
    /// do not exist.
    pub fn bytes(
        &mut self,
        offset: u64,
        size: usize,
        limits: WindowLimits,
        ahead: usize,
    ) -> Result<Option<&[u8]>, FileError> {
        let Some(end) = offset
            .checked_add(size as u64)
            .filter(|end| *end <= limits.end)
        else {
            return Ok(None);
        };
        if size as u64 > self.file_size - offset % self.file_size {
            return Ok(None);
        }
        let held = offset >= self.start && end <= self.start + self.filled as u64;
        let filled = held
            || (limits == WindowLimits::QUIET && self.walk_on(offset, size))
            || self.fill(offset, size.max(ahead), limits)?;
        if !filled {
            return Ok(None);
        }
        if end > self.start + self.filled as u64 {
            return Ok(None);
        }
        let from = self.at + (offset - self.start) as usize;
        // Held memory exists: `fill` made it, or `filled` would be 0 and the range empty.
        Ok(self
            .memory
            .as_mut()
            .and_then(|memory| memory.as_mut_slice().get(from..from + size)))
    }

    /// The first log offset from `offset` on that does not lie in a hole of its file; the file's
    /// end if there is none. `offset` itself where the filesystem does not tell.
    pub(crate) fn skip_hole(&mut self, offset: u64) -> Result<u64, FileError> {
        let base = self.base_of(offset);
        let Some(index) = self.open(base, false)? else {
            return Ok(offset);
        };
        let position = rustix::fs::SeekFrom::Data(offset - base);
        Ok(match rustix::fs::seek(&self.files[index].file, position) {
            Ok(found) => base + found.min(self.file_size),
            Err(rustix::io::Errno::NXIO) => base + self.file_size,
            Err(_) => offset,
        })
    }

    /// Closes the files below log offset `log_min`: an open file keeps its space after it is
    /// deleted.
    pub fn close_below(&mut self, log_min: u64) {
        self.files
            .retain(|file| file.base + self.file_size > log_min);
    }

    /// Forgets what is held, when files may have changed below it.
    pub fn forget(&mut self) {
        self.filled = 0;
        self.files.clear();
        if let Some(walk) = &mut self.walk {
            walk.leaves();
        }
    }

    /// Memory to read the log at `offset` into, in bytes.
    pub(crate) fn memory(&self, size: usize, offset: u64) -> Result<AlignedMemory, FileError> {
        AlignedMemory::new(size).map_err(FileError::at("read", &self.path_of(offset)))
    }

    /// Fills aligned memory with the log from `start` on, a multiple of [`LARGEST_BLOCK`] from the
    /// start of its file; returns how many bytes that is. `None` if there is no such file, or
    /// nothing in it that may be read.
    pub(crate) fn read_into(
        &mut self,
        start: u64,
        target: &mut [u8],
        limits: WindowLimits,
    ) -> Result<Option<usize>, FileError> {
        let base = self.base_of(start);
        let Some(index) = self.open(base, base >= limits.active_base)? else {
            return Ok(None);
        };
        let opened = &self.files[index];
        let most = (base + self.file_size - start).min(target.len() as u64) as usize;
        let target = &mut target[..most.next_multiple_of(ALIGNMENT)];
        let read = read_at(&opened.file, target, start - base)
            .map_err(FileError::at("read", &opened.path))?;
        let readable = limits.end.saturating_sub(start);
        let len = (read.min(most) as u64).min(readable) as usize;
        Ok((len > 0).then_some(len))
    }

    /// Holds the next piece of a walk, and before it what is held already of the bytes asked for;
    /// false, and nothing held is lost, if that does not give them.
    fn walk_on(&mut self, offset: u64, size: usize) -> bool {
        let end = self.start + self.filled as u64;
        let follows = self.filled > 0 && (self.start..=end).contains(&offset);
        let another = self.another();
        let Some(walk) = &mut self.walk else {
            return false;
        };
        if !follows {
            walk.leaves();
            return false;
        }
        // Longer ones are read once more.
        if size > PIECE_BYTES || end - offset > ROOM_BYTES as u64 {
            return false;
        }
        let Some(mut piece) = walk.piece(another, end, offset) else {
            return false;
        };
        let carried = piece.start.saturating_sub(offset) as usize;
        if carried > 0 {
            let held = self.at + (offset - self.start) as usize;
            let from = self.memory.as_mut();
            let from = from.and_then(|memory| memory.as_mut_slice().get(held..held + carried));
            // Held memory exists, and goes on up to where the first piece begins.
            let Some(from) = from.filter(|_| carried as u64 <= end - offset) else {
                walk.leaves();
                return false;
            };
            piece.memory.as_mut_slice()[ROOM_BYTES - carried..ROOM_BYTES].copy_from_slice(from);
        }
        walk.give_back(self.memory.take());
        self.start = piece.start - carried as u64;
        self.at = ROOM_BYTES - carried;
        self.filled = carried + piece.len;
        self.memory = Some(piece.memory);
        offset + size as u64 <= self.start + self.filled as u64
    }

    fn fill(&mut self, offset: u64, size: usize, limits: WindowLimits) -> Result<bool, FileError> {
        let base = self.base_of(offset);
        let direct = base >= limits.active_base;
        // Positions in a file: a block may be as large as a direct write of ours.
        let unit = if direct {
            LARGEST_BLOCK
        } else {
            ALIGNMENT as u64
        };
        let start = offset - (offset - base) % unit;
        let wanted_end = ((offset + size as u64) - base).next_multiple_of(unit) + base;
        let wanted_end = wanted_end.min(base + self.file_size);
        let wanted = (wanted_end - start) as usize;
        self.filled = 0;
        let unfit = |len: usize| len < wanted || (len > KEPT_BYTES && wanted <= KEPT_BYTES);
        if self
            .memory
            .as_ref()
            .is_none_or(|memory| unfit(memory.len()))
        {
            // Given back before more is asked for.
            self.memory = None;
            let memory = AlignedMemory::new(wanted.max(SCAN_BYTES));
            self.memory = Some(memory.map_err(FileError::at("read", &self.path_of(offset)))?);
        }
        let Some(index) = self.open(base, direct)? else {
            return Ok(false);
        };
        let opened = &self.files[index];
        let Some(memory) = self.memory.as_mut() else {
            return Ok(false);
        };
        let target = &mut memory.as_mut_slice()[..wanted.next_multiple_of(ALIGNMENT)];
        let read = read_at(&opened.file, target, start - base)
            .map_err(FileError::at("read", &opened.path))?;
        self.start = start;
        self.at = 0;
        self.filled = (read.min(wanted) as u64).min(limits.end.saturating_sub(start)) as usize;
        Ok(true)
    }

    /// Index of the open file with this base; `None` if there is no such file.
    fn open(&mut self, base: u64, direct: bool) -> Result<Option<usize>, FileError> {
        let found = self
            .files
            .iter()
            .position(|file| file.base == base && file.direct == direct);
        if let Some(index) = found {
            return Ok(Some(index));
        }
        let path = self.path_of(base);
        let file = match open_file(&path, direct) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::at("open", &path)(error)),
        };
        self.files.retain(|file| file.base != base);
        if self.files.len() == OPEN_FILES {
            self.files.remove(0);
        }
        self.files.push(OpenFile {
            base,
            direct,
            path,
            file,
        });
        Ok(Some(self.files.len() - 1))
    }
}

/// Which log bytes may be read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Log offset up to which bytes no longer change.
    pub end: u64,
    /// Base of the lowest file that may still be written to.
    pub active_base: u64,
}

impl WindowLimits {
    /// For a log nobody writes to.
    pub const QUIET: WindowLimits = WindowLimits {
        end: u64::MAX,
        active_base: u64::MAX,
    };
}

fn open_file(path: &Path, direct: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    if !direct {
        return options.open(path);
    }
    match options.custom_flags(libc::O_DIRECT).open(path) {
        // A filesystem without O_DIRECT: the writer writes through the page cache there too.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => File::open(path),
        other => other,
    }
}

/// Reads until `target` is full or the file ends.
fn read_at(file: &File, target: &mut [u8], position: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < target.len() {
        match file.read_at(&mut target[read..], position + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A direct read continues at a block boundary or not at all.
        if !read.is_multiple_of(512) {
            break;
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(bytes: &[u8], file_size: usize) -> (tempfile::TempDir, LogWindow) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (index, piece) in bytes.chunks(file_size).enumerate() {
            let name = format!("{:020}", index * file_size);
            std::fs::write(dir.path().join(name), piece).expect("write");
        }
        let window = LogWindow::new(dir.path(), file_size as u64);
        (dir, window)
    }

    #[test]
    fn bytes_come_from_the_right_place_of_the_right_file() {
        let bytes: Vec<u8> = (0..16_384u32).map(|at| (at / 7) as u8).collect();
        let (_dir, mut window) = log_of(&bytes, 8192);
        for offset in [0, 5, 4096, 8000, 8192, 12_000, 100] {
            let found = window
                .bytes(offset, 150, WindowLimits::QUIET, LOOK_BYTES)
                .expect("read");
            assert_eq!(found, Some(&bytes[offset as usize..offset as usize + 150]));
        }
        let direct = WindowLimits {
            end: u64::MAX,
            active_base: 8192,
        };
        let found = window.bytes(9000, 3000, direct, SCAN_BYTES).expect("read");
        assert_eq!(found, Some(&bytes[9000..12_000]));
    }

    #[test]
    fn a_walk_that_is_read_ahead_sees_what_is_in_the_files() {
        const FILE: usize = 12 << 20;
        let bytes: Vec<u8> = (0..2 * FILE as u32 + 5_000_000)
            .map(|at| (at / 3) as u8 ^ (at >> 12) as u8)
            .collect();
        let (dir, _) = log_of(&bytes, FILE);
        // Records of these sizes; a few that no piece holds, and looks at other places in between.
        for sizes in [&[1000, 70_000][..], &[300_000, 40], &[5 << 20, 9000]] {
            let mut window = LogWindow::walking(dir.path(), FILE as u64);
            let (mut at, mut count) = (0, 0);
            while at < bytes.len() {
                let left = (FILE - at % FILE).min(bytes.len() - at);
                let size = sizes[count % sizes.len()].min(left);
                let quiet = WindowLimits::QUIET;
                let looks = [at, 77, at];
                let looks = if count % 501 == 500 {
                    &looks[..]
                } else {
                    &looks[..1]
                };
                for at in looks {
                    let found = window.bytes(*at as u64, size, quiet, SCAN_BYTES);
                    let found = found.expect("read").expect("there");
                    assert!(found == &bytes[*at..*at + size], "{size} bytes at {at}");
                }
                (at, count) = (at + size, count + 1);
            }
            let behind = window.bytes(at as u64, 8, WindowLimits::QUIET, SCAN_BYTES);
            assert_eq!(behind.expect("read"), None);
        }
    }

    #[test]
    fn a_walk_is_read_ahead_and_single_looks_are_not() {
        let (dir, _) = log_of(&vec![7; 8 << 20], 8 << 20);
        let mut window = LogWindow::walking(dir.path(), 8 << 20);
        let mut look = |at: u64| {
            let quiet = WindowLimits::QUIET;
            let found = window.bytes(at, 8, quiet, LOOK_BYTES).expect("read");
            assert!(found.is_some());
            window.memory.as_ref().map_or(0, AlignedMemory::len)
        };
        for at in [0, 1 << 20, 4096, 2 << 20, 9000, 3 << 20] {
            assert_eq!(look(at), SCAN_BYTES);
        }
        let held: Vec<usize> = (0..40).map(|page| look(page * 4096)).collect();
        assert!(held.last() > Some(&PIECE_BYTES), "{held:?}");
    }

    #[test]
    fn a_direct_read_begins_and_ends_with_a_block_of_any_size() {
        let bytes: Vec<u8> = (0..1u32 << 20).map(|at| (at / 5) as u8).collect();
        let (_dir, mut window) = log_of(&bytes, 1 << 19);
        let direct = WindowLimits {
            end: u64::MAX,
            active_base: 0,
        };
        for offset in [70_000usize, 4096, (1 << 19) + 200_000, (1 << 20) - 100] {
            let found = window
                .bytes(offset as u64, 100, direct, LOOK_BYTES)
                .expect("read");
            assert_eq!(found, Some(&bytes[offset..offset + 100]));
            assert_eq!(window.start % LARGEST_BLOCK, 0);
            assert_eq!(window.filled as u64 % LARGEST_BLOCK, 0);
        }
    }

    #[test]
    fn memory_for_a_large_record_is_given_back() {
        let (_dir, mut window) = log_of(&vec![7; 16 << 20], 16 << 20);
        let held = |window: &LogWindow| window.memory.as_ref().map_or(0, AlignedMemory::len);
        for (size, memory) in [(100, SCAN_BYTES), (9 << 20, 9 << 20), (100, SCAN_BYTES)] {
            let quiet = WindowLimits::QUIET;
            let at = if size == 100 { 12 << 20 } else { 0 };
            assert!(
                window
                    .bytes(at, size, quiet, LOOK_BYTES)
                    .expect("read")
                    .is_some()
            );
            assert_eq!(held(&window), memory);
        }
    }

    #[test]
    fn nothing_is_shown_beyond_a_file_or_the_limit() {
        let (_dir, mut window) = log_of(&[7; 16_384], 8192);
        let quiet = WindowLimits::QUIET;
        assert_eq!(
            window.bytes(8100, 100, quiet, LOOK_BYTES).expect("read"),
            None
        );
        assert_eq!(
            window.bytes(16_384, 1, quiet, LOOK_BYTES).expect("read"),
            None
        );
        assert_eq!(
            window
                .bytes(u64::MAX - 3, 100, quiet, LOOK_BYTES)
                .expect("read"),
            None
        );
        let early = WindowLimits {
            end: 5000,
            active_base: 0,
        };
        assert_eq!(
            window.bytes(4990, 11, early, LOOK_BYTES).expect("read"),
            None
        );
        assert!(
            window
                .bytes(4990, 10, early, LOOK_BYTES)
                .expect("read")
                .is_some()
        );
        // What the earlier limit hid is read again, not taken from the window.
        assert!(
            window
                .bytes(4990, 100, quiet, LOOK_BYTES)
                .expect("read")
                .is_some()
        );
    }
}
