//! A medium under a store's directory: real files and mappings are what the process sees (live);
//! beside them stands what a power cut leaves (durable).
//!
//! Bytes become durable by a sync, by a durable write, or at any moment by themselves (write-back);
//! at a cut each sector that differs is there or not. Names become durable in the order in which
//! they changed, as in the journal of ext4 or XFS: a sync of a directory takes along all changes
//! before its last one, and a cut keeps a first part of the rest. After a failed sync what it was
//! to store counts as stored and is not, unless it is written again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::disk::faulty::{Medium, Seed};
use crate::medium::{Request, Witness};

/// Unit in which the page cache stores, in bytes.
const PAGE: usize = 4096;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    /// Its inode.
    File(u64),
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Put(PathBuf, Node),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, Node),
    Exchange((PathBuf, Node), (PathBuf, Node)),
}

impl Change {
    fn is_in(&self, directory: &Path) -> bool {
        match self {
            Change::Put(path, _) | Change::Remove(path) => path.parent() == Some(directory),
            Change::Rename(from, to, _) | Change::Exchange((from, _), (to, _)) => {
                from.parent() == Some(directory) || to.parent() == Some(directory)
            }
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            Change::Put(path, node) => {
                names.insert(path.clone(), *node);
            }
            Change::Remove(path) => {
                names.remove(path);
            }
            Change::Exchange((one, node), (other, other_node)) => {
                names.insert(one.clone(), *other_node);
                names.insert(other.clone(), *node);
            }
            Change::Rename(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }
}

/// One file.
struct Inode {
    file: File,
    durable: Vec<u8>,
    /// Pages that a failed sync left marked as stored: what they held then.
    lost: BTreeMap<usize, Vec<u8>>,
}

impl Inode {
    fn live(&self) -> Vec<u8> {
        let len = self.file.metadata().expect("a live file").len() as usize;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, 0).expect("live bytes");
        bytes
    }

    /// Makes the pages of a range durable, except those that count as stored.
    fn store(&mut self, from: usize, to: usize) {
        let live = self.live();
        if self.durable.len() < live.len() {
            self.durable.resize(live.len(), 0);
        }
        self.durable.truncate(live.len());
        let mut at = from - from % PAGE;
        while at < to.min(live.len()) {
            let end = (at + PAGE).min(live.len());
            let page = &live[at..end];
            if self.lost.get(&at).is_none_or(|held| held != page) {
                self.lost.remove(&at);
                self.durable[at..end].copy_from_slice(page);
            }
            at = end;
        }
    }

    /// A write: the pages that it covers do not count as stored any more.
    fn written_again(&mut self, from: usize, len: usize) {
        self.lost
            .retain(|at, _| *at + PAGE <= from || from + len <= *at);
    }

    /// A sync of this range failed.
    fn lose(&mut self, from: usize, to: usize) {
        let live = self.live();
        let mut at = from - from % PAGE;
        while at < to.min(live.len()) {
            let end = (at + PAGE).min(live.len());
            let durable = self.durable.get(at..end);
            if durable != Some(&live[at..end]) {
                self.lost.insert(at, live[at..end].to_vec());
            }
            at = end;
        }
    }
}

/// What fails, and how often in a thousand requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    pub failed_syncs: u64,
    /// There is no space for new files and pages.
    pub full: bool,
}

/// See the module's description.
pub struct State {
    root: PathBuf,
    seed: Seed,
    sector: usize,
    /// By number; numbers are given as files appear, for those of the file system differ from run
    /// to run.
    inodes: BTreeMap<u64, Inode>,
    /// By the file system's number.
    numbers: BTreeMap<u64, u64>,
    names: BTreeMap<PathBuf, Node>,
    durable_names: BTreeMap<PathBuf, Node>,
    changes: Vec<Change>,
    pub trouble: Trouble,
    /// A cut takes everything that was not synced, by no draw.
    pub drops_all: bool,
    /// A name may be durable before the size of its file, as where files cannot be unnamed: a cut
    /// leaves a file empty of which nothing was synced.
    pub loose: bool,
    /// Requests until the machine stops.
    pub stop_after: Option<u64>,
    pub stopped: bool,
    /// Requests so far.
    pub requests: u64,
    /// What happened, if it is wanted.
    pub trace: Option<Vec<String>>,
}

/// The state, shared by the disk of the log, the listener of `medium.rs` and the run.
#[derive(Clone)]
pub struct Simulated(pub Rc<RefCell<State>>);

impl State {
    pub fn new(root: &Path, seed: u64, sector: usize, traced: bool) -> State {
        State {
            root: root.to_path_buf(),
            seed: Seed(seed),
            sector,
            inodes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            trouble: Trouble::default(),
            drops_all: false,
            loose: false,
            stop_after: None,
            stopped: false,
            requests: 0,
            trace: traced.then(Vec::new),
        }
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(text());
        }
    }

    fn shown<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    fn is_ours(&self, path: &Path) -> bool {
        path.starts_with(&self.root)
    }

    fn inode(&mut self, file: &File) -> io::Result<u64> {
        let known = self.numbers.len() as u64;
        let number = *self.numbers.entry(file.metadata()?.ino()).or_insert(known);
        if let Entry::Vacant(place) = self.inodes.entry(number) {
            // A handle of its own: without O_DIRECT, and the inode stays as long as it is known.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            place.insert(Inode {
                file,
                durable: Vec::new(),
                lost: BTreeMap::new(),
            });
        }
        Ok(number)
    }

    fn inode_at(&mut self, path: &Path) -> io::Result<u64> {
        match self.names.get(path) {
            Some(Node::File(number)) if self.inodes.contains_key(number) => Ok(*number),
            _ => self.inode_named(path),
        }
    }

    /// The same, from the file system: for names that are new.
    fn inode_named(&mut self, path: &Path) -> io::Result<u64> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        self.inode(&file)
    }

    fn get(&mut self, number: u64) -> io::Result<&mut Inode> {
        let found = self.inodes.get_mut(&number);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// The first `count` changes of names are durable.
    fn commit(&mut self, count: usize) {
        for change in self.changes.drain(..count) {
            change.apply(&mut self.durable_names);
        }
    }

    /// Some pages reach the medium by themselves.
    pub fn write_back(&mut self) {
        let numbers: Vec<u64> = self.inodes.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = numbers[self.seed.below(numbers.len() as u64) as usize];
        let skipped = self.seed.below(4);
        let count = self.seed.below(self.changes.len() as u64 + 1) as usize;
        if skipped == 0 {
            self.commit(count);
        }
        let Some(inode) = self.inodes.get_mut(&number) else {
            return;
        };
        let pages = inode.live().len().div_ceil(PAGE);
        for page in 0..pages {
            if self.seed.chance(1, 2) {
                inode.store(page * PAGE, page * PAGE + 1);
            }
        }
    }

    /// Whether these bytes of the file at `path` are durable; its name is not asked for.
    pub fn is_durable(&mut self, path: &Path, offset: usize, bytes: &[u8]) -> bool {
        let Ok(number) = self.inode_at(path) else {
            return false;
        };
        let inode = &self.inodes[&number];
        inode.durable.get(offset..offset + bytes.len()) == Some(bytes)
    }

    /// A power cut: makes the directory what the medium holds.
    pub fn cut(&mut self) {
        let kept = match self.drops_all {
            true => 0,
            false => self.seed.below(self.changes.len() as u64 + 1) as usize,
        };
        let (all, kept) = (self.changes.len(), kept);
        self.note(|| format!("power cut: {kept} of {all} unsynced changes of names survive"));
        self.commit(kept);
        self.changes.clear();
        let target = std::mem::take(&mut self.durable_names);
        let mut contents = BTreeMap::new();
        for (path, node) in &target {
            if let Node::File(number) = node {
                let bytes = self.survivor(path, *number);
                let details = self.inodes[number].file.metadata().expect("a live file");
                contents.insert(path.clone(), (bytes, details.modified().expect("a time")));
            }
        }
        self.inodes.clear();
        self.numbers.clear();
        for (path, node) in self.names.iter().rev() {
            match node {
                Node::Directory => fs::remove_dir(path).expect("a live directory"),
                Node::File(_) => fs::remove_file(path).expect("a live file"),
            }
        }
        self.names.clear();
        for (path, node) in target {
            if !path.parent().is_some_and(Path::exists) {
                panic!("a name without its directory: {}", path.display());
            }
            let node = match node {
                Node::Directory => {
                    fs::create_dir(&path).expect("directory");
                    Node::Directory
                }
                Node::File(_) => {
                    let (bytes, modified) = &contents[&path];
                    fs::write(&path, bytes).expect("file");
                    let file = OpenOptions::new().write(true).open(&path).expect("file");
                    file.set_modified(*modified).expect("time");
                    let number = self.inode_named(&path).expect("inode");
                    self.inodes.entry(number).and_modify(|inode| {
                        inode.durable.clone_from(bytes);
                    });
                    Node::File(number)
                }
            };
            self.names.insert(path, node);
        }
        self.durable_names = self.names.clone();
        self.stop_after = None;
        self.stopped = false;
    }

    /// What a cut leaves of a file.
    fn survivor(&mut self, path: &Path, number: u64) -> Vec<u8> {
        let loose = self.loose;
        let fixed = path.parent() != Some(&self.root);
        let Some(inode) = self.inodes.get_mut(&number) else {
            panic!("{} has no inode", path.display());
        };
        let live = inode.live();
        let mut bytes = inode.durable.clone();
        // Log, queue and index files have their size before their name; others grow as written.
        let empty = loose && bytes.is_empty();
        if fixed && !empty || !fixed && self.seed.chance(1, 2) {
            bytes.resize(live.len(), 0);
        }
        let kind = match self.drops_all {
            true => 0,
            false => self.seed.below(6),
        };
        let mut kept = 0;
        let mut differing = 0;
        for at in (0..bytes.len().min(live.len())).step_by(self.sector) {
            let end = (at + self.sector).min(bytes.len()).min(live.len());
            let page = at - at % PAGE;
            if bytes[at..end] == live[at..end] || inode.lost.contains_key(&page) {
                continue;
            }
            differing += 1;
            let keep = match kind {
                0 => false,
                1 => true,
                _ => self.seed.chance(1, 2),
            };
            if keep {
                kept += 1;
                bytes[at..end].copy_from_slice(&live[at..end]);
            }
        }
        if differing > 0 {
            let name = path.strip_prefix(&self.root).unwrap_or(path).to_path_buf();
            self.note(|| {
                format!(
                    "  {}: {kept} of {differing} unsynced sectors survive",
                    name.display()
                )
            });
        }
        bytes
    }

    fn before(&mut self, request: Request<'_>) -> io::Result<()> {
        if self.stopped {
            return Err(io::Error::other("the machine stopped"));
        }
        self.requests += 1;
        if let Some(left) = &mut self.stop_after {
            if *left == 0 {
                self.stopped = true;
                self.note(|| format!("the machine stops before {request:?}"));
                return Err(io::Error::other("the machine stopped"));
            }
            *left -= 1;
        }
        match request {
            Request::SyncFile(_) | Request::SyncMapped(..) | Request::SyncDirectory(_)
                if self.seed.chance(self.trouble.failed_syncs, 1000) =>
            {
                self.note(|| format!("EIO from {request:?}"));
                self.failed_sync(request)?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            Request::Allocate | Request::Populate(_) if self.trouble.full => {
                self.note(|| format!("ENOSPC from {request:?}"));
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            Request::Name(path)
                if self.trouble.full && path.parent() != Some(&self.root) && !path.exists() =>
            {
                self.note(|| format!("ENOSPC from {request:?}"));
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            _ => Ok(()),
        }
    }

    fn failed_sync(&mut self, request: Request<'_>) -> io::Result<()> {
        match request {
            Request::SyncFile(file) => {
                let number = self.inode(file)?;
                self.get(number)?.lose(0, usize::MAX);
            }
            Request::SyncMapped(path, position, len) => {
                let number = self.inode_at(path)?;
                let (from, to) = (position as usize, (position + len) as usize);
                self.get(number)?.lose(from, to);
            }
            _ => {}
        }
        Ok(())
    }

    fn after(&mut self, request: Request<'_>) -> io::Result<()> {
        match request {
            Request::SyncFile(file) => {
                let number = self.inode(file)?;
                self.get(number)?.store(0, usize::MAX);
            }
            Request::SyncMapped(path, position, len) => {
                let number = self.inode_at(path)?;
                let (from, to) = (position as usize, (position + len) as usize);
                self.get(number)?.store(from, to);
            }
            Request::SyncDirectory(path) => {
                let last = self.changes.iter().rposition(|change| change.is_in(path));
                self.commit(last.map_or(0, |last| last + 1));
            }
            Request::SyncAll => {
                self.commit(self.changes.len());
                for inode in self.inodes.values_mut() {
                    inode.store(0, usize::MAX);
                }
            }
            Request::Name(path) if self.is_ours(path) => {
                let number = self.inode_named(path)?;
                // What is written into it from now on is written again, whatever it was.
                self.get(number)?.lost.clear();
                if self.names.get(path) != Some(&Node::File(number)) {
                    self.change(Change::Put(path.to_path_buf(), Node::File(number)));
                }
            }
            Request::MakeDirectories(path) if self.is_ours(path) => {
                let mut missing: Vec<PathBuf> = path
                    .ancestors()
                    .take_while(|above| *above != self.root)
                    .filter(|above| !self.names.contains_key(*above))
                    .map(Path::to_path_buf)
                    .collect();
                while let Some(path) = missing.pop() {
                    self.change(Change::Put(path, Node::Directory));
                }
            }
            Request::Remove(path) => {
                if self.names.contains_key(path) {
                    self.change(Change::Remove(path.to_path_buf()));
                }
            }
            Request::Rename(from, to) => {
                if let Some(node) = self.names.get(from).copied() {
                    self.change(Change::Rename(from.to_path_buf(), to.to_path_buf(), node));
                }
            }
            Request::Exchange(one, other) => {
                let nodes = (self.names.get(one), self.names.get(other));
                if let (Some(node), Some(other_node)) = nodes {
                    let one = (one.to_path_buf(), *node);
                    let other = (other.to_path_buf(), *other_node);
                    self.change(Change::Exchange(one, other));
                }
            }
            Request::ForgetCached(path) => {
                let number = self.inode_at(path)?;
                let inode = self.get(number)?;
                for (at, _) in std::mem::take(&mut inode.lost) {
                    let end = (at + PAGE).min(inode.durable.len());
                    if at < end {
                        inode
                            .file
                            .write_all_at(&inode.durable[at..end], at as u64)?;
                    }
                }
            }
            Request::Write(file, position, len) => {
                let number = self.inode(file)?;
                self.get(number)?.written_again(position as usize, len);
            }
            Request::Allocate
            | Request::Populate(_)
            | Request::Name(_)
            | Request::MakeDirectories(_) => {}
        }
        let shown = match request {
            Request::SyncFile(_) | Request::Write(..) | Request::Allocate | Request::SyncAll => {
                String::new()
            }
            Request::SyncMapped(path, ..)
            | Request::SyncDirectory(path)
            | Request::Name(path)
            | Request::MakeDirectories(path)
            | Request::Remove(path)
            | Request::Rename(_, path)
            | Request::Exchange(_, path)
            | Request::Populate(path)
            | Request::ForgetCached(path) => self.shown(path).to_string(),
        };
        self.note(|| {
            let kind = format!("{request:?}");
            format!("  {} {shown}", kind.split('(').next().unwrap_or_default())
        });
        Ok(())
    }

    /// A sector of a write reaches the medium; in a process that was killed its file too.
    fn land(&mut self, number: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let inode = self.get(number)?;
        inode.written_again(offset as usize, bytes.len());
        inode.file.write_all_at(bytes, offset)?;
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        if inode.durable.len() < to {
            inode.durable.resize(to, 0);
        }
        inode.durable[from..to].copy_from_slice(bytes);
        Ok(())
    }
}

impl Witness for State {
    fn before(&mut self, request: Request<'_>) -> io::Result<()> {
        State::before(self, request)
    }

    fn after(&mut self, request: Request<'_>) {
        State::after(self, request).expect("the simulated medium follows");
    }

    fn stored(&mut self, path: &Path, position: u64, len: usize) {
        let number = self.inode_at(path).expect("an inode");
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.written_again(position as usize, len);
        }
    }
}

impl Medium for Simulated {
    type File = File;

    fn open(&mut self, file: File) -> io::Result<u64> {
        self.0.borrow_mut().inode(&file)
    }

    fn write(&mut self, file: u64, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if state.stopped {
            return Err(io::Error::other("the machine stopped"));
        }
        if durable {
            return state.land(file, offset, bytes);
        }
        let inode = state.get(file)?;
        inode.written_again(offset as usize, bytes.len());
        inode.file.write_all_at(bytes, offset)
    }

    fn land(&mut self, file: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().land(file, offset, bytes)
    }

    fn sync(&mut self, file: u64) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if state.stopped {
            return Err(io::Error::other("the machine stopped"));
        }
        state.get(file)?.store(0, usize::MAX);
        Ok(())
    }

    fn lose(&mut self, file: u64) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.note(|| "EIO from a sync of the log".to_owned());
        state.get(file)?.lose(0, usize::MAX);
        Ok(())
    }
}
