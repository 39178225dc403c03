//! What reaches the medium: every sync and every change of a name below a store goes through here,
//! and so does every request for space.
//!
//! What was written survives a power cut once it was synced, and a name once its directory was. One
//! place for these requests lets the simulated disk (docs/design.md, "Simulated disk") hear of each
//! and refuse it; in the product every function is the call that it names.

use std::fs::File;
use std::io;
use std::path::Path;

/// A request, for whoever listens.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests listen"))]
pub(crate) enum Request<'a> {
    /// Everything written to a file is to be durable.
    SyncFile(&'a File),
    /// So are these bytes of a mapped file: position and length.
    SyncMapped(&'a Path, u64, u64),
    /// So are the names in a directory.
    SyncDirectory(&'a Path),
    /// So is the whole filesystem.
    SyncAll,
    /// Bytes are written to a file past the log's writer: position and length.
    Write(&'a File, u64, usize),
    /// A file gets a name, unless it has it already.
    Name(&'a Path),
    /// A directory is made, and those above it.
    MakeDirectories(&'a Path),
    /// A file or an empty directory goes.
    Remove(&'a Path),
    /// A file gets another name, which may be another file's until then.
    Rename(&'a Path, &'a Path),
    /// Two files get each other's names.
    Exchange(&'a Path, &'a Path),
    /// Space is wanted for a file that may have no name.
    Allocate,
    /// Space is wanted for a page of a mapped file.
    Populate(&'a Path),
    /// Pages that count as stored are to be read from the medium again.
    ForgetCached(&'a Path),
}

#[cfg(not(test))]
#[inline]
fn perform<T>(_request: Request<'_>, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    run()
}

/// Says that bytes of a mapped file were stored: position and length.
#[cfg(not(test))]
#[inline]
pub(crate) const fn stored(_path: &Path, _position: u64, _len: usize) {}

#[cfg(test)]
use witness::perform;
#[cfg(test)]
pub(crate) use witness::{Witness, listen, stored};

/// Waits until a file is on the medium.
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    perform(Request::SyncFile(file), || file.sync_all())
}

/// Waits until a file's bytes are on the medium.
pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    perform(Request::SyncFile(file), || file.sync_data())
}

/// Waits for `sync` to bring a range of a mapped file to the medium.
pub(crate) fn sync_mapped(
    path: &Path,
    position: u64,
    len: u64,
    sync: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    perform(Request::SyncMapped(path, position, len), sync)
}

/// Makes a directory durable: the names in it survive a crash of the machine.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    // The parent of a relative name is the empty path.
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    perform(Request::SyncDirectory(path), || {
        File::open(path)?.sync_all()
    })
}

/// Waits until everything on the filesystem that holds `inside` is on the medium.
pub(crate) fn sync_filesystem(inside: &Path) -> io::Result<()> {
    perform(Request::SyncAll, || {
        Ok(rustix::fs::syncfs(File::open(inside)?)?)
    })
}

/// Writes bytes at a position of a file.
pub(crate) fn write_at(file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    perform(Request::Write(file, position, bytes.len()), || {
        file.write_all_at(bytes, position)
    })
}

/// Runs what gives a file the name `path`.
pub(crate) fn name<T>(path: &Path, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    perform(Request::Name(path), run)
}

/// Makes a directory and those above it, where they are missing.
pub(crate) fn make_directories(path: &Path) -> io::Result<()> {
    perform(Request::MakeDirectories(path), || {
        std::fs::create_dir_all(path)
    })
}

/// Removes a file.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    perform(Request::Remove(path), || std::fs::remove_file(path))
}

/// Removes an empty directory.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    perform(Request::Remove(path), || std::fs::remove_dir(path))
}

/// Removes a directory with everything in it; what is gone already is no error.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match std::fs::read_dir(path) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let removed = match entry.file_type()?.is_dir() {
            true => remove_tree(&entry.path()),
            false => remove_file(&entry.path()),
        };
        match removed {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    match remove_directory(path) {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Gives a file another name, in place of the file that has it.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    perform(Request::Rename(from, to), || std::fs::rename(from, to))
}

/// Gives two files each other's names, at once; an error where one is missing or the filesystem
/// cannot.
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    perform(Request::Exchange(one, other), || {
        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    })
}

/// Runs what asks for a file's space.
pub(crate) fn allocate<T>(run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    perform(Request::Allocate, run)
}

/// Runs what asks for the space of a mapped page.
pub(crate) fn populate<T>(path: &Path, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    perform(Request::Populate(path), run)
}

/// Drops what the page cache holds of a file that was synced.
pub(crate) fn forget_cached(path: &Path) -> io::Result<()> {
    perform(Request::ForgetCached(path), || {
        let advice = rustix::fs::Advice::DontNeed;
        Ok(rustix::fs::fadvise(File::open(path)?, 0, None, advice)?)
    })
}

#[cfg(test)]
mod witness {
    use std::cell::RefCell;
    use std::io;
    use std::path::Path;
    use std::rc::Rc;

    use super::Request;

    /// Hears of the requests of one thread.
    pub(crate) trait Witness {
        /// Before a request is performed; an error takes its place.
        fn before(&mut self, request: Request<'_>) -> io::Result<()>;

        /// After it succeeded.
        fn after(&mut self, request: Request<'_>);

        /// Bytes of a mapped file were stored: position and length.
        fn stored(&mut self, _path: &Path, _position: u64, _len: usize) {}
    }

    type Listener = Option<Rc<RefCell<dyn Witness>>>;

    thread_local! {
        static LISTENER: RefCell<Listener> = const { RefCell::new(None) };
    }

    /// From now on the requests of this thread go to `listener`.
    pub(crate) fn listen(listener: Listener) {
        LISTENER.set(listener);
    }

    /// Says that bytes of a mapped file were stored: position and length.
    pub(crate) fn stored(path: &Path, position: u64, len: usize) {
        if let Some(listener) = LISTENER.with_borrow(Clone::clone) {
            listener.borrow_mut().stored(path, position, len);
        }
    }

    pub(super) fn perform<T>(
        request: Request<'_>,
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(listener) = LISTENER.with_borrow(Clone::clone) else {
            return run();
        };
        listener.borrow_mut().before(request)?;
        let done = run()?;
        listener.borrow_mut().after(request);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::resume::ResumePoint;

    /// Notes the kinds of requests, and refuses one kind.
    struct Notes(Vec<String>, &'static str);

    impl Witness for Notes {
        fn before(&mut self, request: Request<'_>) -> io::Result<()> {
            let text = format!("{request:?}");
            let kind = text.split('(').next().unwrap_or_default().to_owned();
            let refused = kind == self.1;
            self.0.push(kind);
            if refused {
                return Err(io::ErrorKind::Other.into());
            }
            Ok(())
        }

        fn after(&mut self, _request: Request<'_>) {}
    }

    #[test]
    fn a_resume_point_is_on_the_medium_before_it_takes_the_place_of_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.resume");
        for (refused, stored) in [("", true), ("SyncFile", false)] {
            let notes = Rc::new(RefCell::new(Notes(Vec::new(), refused)));
            listen(Some(notes.clone()));
            let result = ResumePoint::default().store(&path);
            listen(None);
            assert_eq!(result.is_ok(), stored);
            let all = match stored {
                true => "Name SyncFile Exchange Rename SyncDirectory",
                false => "Name SyncFile Remove",
            };
            assert_eq!(notes.borrow().0.join(" "), all);
        }
    }

    #[test]
    fn a_resume_point_needs_no_new_room_where_there_were_two() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.resume");
        let store = |log_offset| {
            let notes = Rc::new(RefCell::new(Notes(Vec::new(), "Name")));
            if log_offset > 2 {
                listen(Some(notes.clone()));
            }
            let point = ResumePoint {
                log_offset,
                ..ResumePoint::default()
            };
            let stored = point.store(&path);
            listen(None);
            stored.unwrap();
            assert_eq!(ResumePoint::load(&path).unwrap(), Some(point));
            // Names that are not durable yet may still lead to what is written over.
            let all = "SyncDirectory SyncFile Exchange SyncDirectory";
            assert!(log_offset <= 2 || notes.borrow().0.join(" ") == all);
            std::fs::metadata(&path).unwrap().ino()
        };
        let inodes = [1, 2, 3, 4, 5].map(store);
        assert_eq!(inodes[1..3], inodes[3..5]);
    }

    #[test]
    fn a_file_whose_sync_failed_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saturnmq.resume");
        for _ in 0..2 {
            ResumePoint::default().store(&path).unwrap();
        }
        for refused in ["SyncFile", "SyncDirectory"] {
            listen(Some(Rc::new(RefCell::new(Notes(Vec::new(), refused)))));
            let failed = ResumePoint::default().store(&path);
            listen(None);
            failed.unwrap_err();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
            assert!(ResumePoint::load(&path).unwrap().is_some());
            ResumePoint::default().store(&path).unwrap();
            ResumePoint::default().store(&path).unwrap();
        }
    }
}
