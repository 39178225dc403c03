//! The disk that forgets: a tree of files of which a part is durable.
//!
//! Every change to a file waits until a sync of that file; every change of names waits until a
//! sync of a directory that it touches, which takes all earlier changes of names and sizes along,
//! as the journals of ext4 and XFS do (a loose disk does not: sizes wait for the file's own sync).
//! A sync of a file makes its size and bytes durable and no name.
//! A cut keeps what is durable and of the rest what [`Loss`] says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use crate::content::Content;
use crate::cut::{self, Loss};

/// Inode number of the root directory.
pub const ROOT: u64 = 1;

/// A change to a file that no sync has made durable.
pub struct Change {
    /// Its place among all changes of the disk.
    pub sequence: u64,
    /// Thread that made it by a direct write; 0 for all others, which go through the page cache.
    pub thread: u32,
    /// What it was.
    pub what: What,
}

/// What a change did.
pub enum What {
    /// Bytes were stored; the file grew if it had to.
    Write {
        /// Position in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The size was set, or grown by an allocation.
    Size(u64),
    /// A range was given up.
    Punch(u64, u64),
}

impl Change {
    fn range(&self) -> (u64, u64) {
        match &self.what {
            What::Write { offset, bytes } => (*offset, offset + bytes.len() as u64),
            What::Size(_) => (0, u64::MAX),
            What::Punch(offset, len) => (*offset, offset + len),
        }
    }

    /// Does it to `content`.
    pub fn apply(&self, content: &mut Content) {
        match &self.what {
            What::Write { offset, bytes } => content.write(*offset, bytes),
            What::Size(size) => content.resize(*size),
            What::Punch(offset, len) => content.punch(*offset, *len),
        }
    }
}

/// Names in a directory.
pub type Entries = BTreeMap<OsString, u64>;

/// A file or a directory.
pub enum Node {
    /// A file.
    File {
        /// What readers see.
        live: Content,
        /// What a cut leaves at least.
        durable: Content,
        /// What is between the two, oldest first.
        changes: Vec<Change>,
    },
    /// A directory.
    Directory {
        /// What readers see.
        live: Entries,
        /// What a cut leaves at least.
        durable: Entries,
    },
}

impl Node {
    fn empty_file() -> Node {
        Node::File {
            live: Content::default(),
            durable: Content::default(),
            changes: Vec::new(),
        }
    }
}

/// A node with what `stat` shows of it.
pub struct Inode {
    /// File or directory.
    pub node: Node,
    /// Permission bits.
    pub mode: u16,
    /// Last change of the content.
    pub modified: SystemTime,
    /// Directory and name it was last given.
    pub place: (u64, OsString),
}

/// A change of names that no sync has made durable.
pub struct Naming {
    /// Its place among all changes of the disk.
    pub sequence: u64,
    /// Directory, name, and what stands there from now on.
    pub entries: Vec<(u64, OsString, Option<u64>)>,
}

/// How much was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Syncs of directories.
    pub directory_syncs: u64,
    /// Changes of names.
    pub namings: u64,
}

/// The tree.
pub struct Disk {
    inodes: HashMap<u64, Inode>,
    next: u64,
    sequence: u64,
    namings: Vec<Naming>,
    /// How much was done since the last cut.
    pub counts: Counts,
    /// A data sync by a thread with unsynced direct writes of its own covers only those: what
    /// `O_DSYNC` promises for one write, and no more.
    pub narrow: bool,
    /// Sizes are durable with their file's sync only, whatever became of its name.
    pub loose: bool,
}

impl Disk {
    /// An empty disk.
    pub fn new() -> Disk {
        let root = Inode {
            node: Node::Directory {
                live: Entries::new(),
                durable: Entries::new(),
            },
            mode: 0o755,
            modified: SystemTime::now(),
            place: (ROOT, OsString::new()),
        };
        Disk {
            inodes: HashMap::from([(ROOT, root)]),
            next: ROOT + 1,
            sequence: 0,
            namings: Vec::new(),
            counts: Counts::default(),
            narrow: false,
            loose: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// An inode.
    pub fn inode(&self, number: u64) -> Option<&Inode> {
        self.inodes.get(&number)
    }

    /// An inode, to change.
    pub fn inode_mut(&mut self, number: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&number)
    }

    /// The names of a directory.
    pub fn entries(&self, directory: u64) -> Option<&Entries> {
        match &self.inodes.get(&directory)?.node {
            Node::Directory { live, .. } => Some(live),
            Node::File { .. } => None,
        }
    }

    /// The content of a file.
    pub fn content(&self, number: u64) -> Option<&Content> {
        match &self.inodes.get(&number)?.node {
            Node::File { live, .. } => Some(live),
            Node::Directory { .. } => None,
        }
    }

    /// What stands under a name.
    pub fn look_up(&self, directory: u64, name: &OsStr) -> Option<u64> {
        self.entries(directory)?.get(name).copied()
    }

    /// Path from the root, by the names last given.
    pub fn path(&self, number: u64) -> String {
        let mut parts = Vec::new();
        let mut at = number;
        while at != ROOT
            && let Some(inode) = self.inodes.get(&at)
        {
            parts.push(inode.place.1.to_string_lossy());
            at = inode.place.0;
        }
        parts.reverse();
        parts.join("/")
    }

    /// Bytes that files take.
    pub fn used(&self) -> u64 {
        let files = self.inodes.values().map(|inode| match &inode.node {
            Node::File { live, .. } => live.used(),
            Node::Directory { .. } => 0,
        });
        files.sum()
    }

    /// Makes an empty file or directory under a name.
    pub fn make(&mut self, directory: u64, name: &OsStr, is_directory: bool, mode: u16) -> u64 {
        let node = if is_directory {
            Node::Directory {
                live: Entries::new(),
                durable: Entries::new(),
            }
        } else {
            Node::empty_file()
        };
        let number = self.insert(node, mode, (directory, name.to_owned()));
        self.name(vec![(directory, name.to_owned(), Some(number))]);
        number
    }

    /// Makes an empty file that has no name until it is linked.
    pub fn make_unnamed(&mut self, directory: u64, mode: u16) -> u64 {
        self.insert(Node::empty_file(), mode, (directory, "(unnamed)".into()))
    }

    fn insert(&mut self, node: Node, mode: u16, place: (u64, OsString)) -> u64 {
        let number = self.next;
        self.next += 1;
        let inode = Inode {
            node,
            mode,
            modified: SystemTime::now(),
            place,
        };
        self.inodes.insert(number, inode);
        number
    }

    /// Changes names, all at once.
    pub fn name(&mut self, entries: Vec<(u64, OsString, Option<u64>)>) {
        self.counts.namings += 1;
        let sequence = self.number();
        for (directory, name, number) in &entries {
            self.apply_name(*directory, name, *number, false);
            if let Some(number) = number
                && let Some(inode) = self.inodes.get_mut(number)
            {
                inode.place = (*directory, name.clone());
            }
        }
        self.namings.push(Naming { sequence, entries });
    }

    fn apply_name(&mut self, directory: u64, name: &OsStr, number: Option<u64>, lasting: bool) {
        let Some(inode) = self.inodes.get_mut(&directory) else {
            return;
        };
        if let Node::Directory { live, durable } = &mut inode.node {
            let entries = if lasting { durable } else { live };
            match number {
                Some(number) => entries.insert(name.to_owned(), number),
                None => entries.remove(name),
            };
        }
    }

    /// Changes a file.
    pub fn change(&mut self, number: u64, thread: u32, what: What) -> bool {
        if matches!(what, What::Write { .. }) {
            self.counts.writes += 1;
        }
        let sequence = self.number();
        let Some(inode) = self.inodes.get_mut(&number) else {
            return false;
        };
        inode.modified = SystemTime::now();
        let Node::File { live, changes, .. } = &mut inode.node else {
            return false;
        };
        let change = Change {
            sequence,
            thread,
            what,
        };
        change.apply(live);
        changes.push(change);
        true
    }

    /// A sync of a file by `thread`.
    pub fn sync_file(&mut self, number: u64, thread: u32, data_only: bool) {
        self.counts.syncs += 1;
        let narrow = self.narrow && data_only;
        let Some(inode) = self.inodes.get_mut(&number) else {
            return;
        };
        if let Node::File {
            durable, changes, ..
        } = &mut inode.node
        {
            let own = |change: &Change| change.thread == thread && thread != 0;
            let wanted = if narrow && changes.iter().any(own) {
                with_what_lies_under(changes, own)
            } else {
                vec![true; changes.len()]
            };
            let mut take = wanted.iter();
            changes.retain(|change| {
                let taken = take.next().copied().unwrap_or(true);
                if taken {
                    change.apply(durable);
                }
                !taken
            });
        }
    }

    /// A sync of a file failed: what it should have saved is never saved by a later one.
    pub fn lose_changes(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number)
            && let Node::File { changes, .. } = &mut inode.node
        {
            changes.clear();
        }
    }

    /// A sync of a directory.
    pub fn sync_directory(&mut self, number: u64) {
        self.counts.directory_syncs += 1;
        let touches = |naming: &Naming| {
            naming
                .entries
                .iter()
                .any(|(directory, ..)| *directory == number)
        };
        let Some(last) = self.namings.iter().rposition(touches) else {
            return;
        };
        let durable: Vec<_> = self.namings.drain(..=last).collect();
        if !self.loose {
            // A journal is written as far as it goes.
            self.make_sizes_durable(u64::MAX);
        }
        for naming in durable {
            self.make_durable(naming);
        }
    }

    fn make_durable(&mut self, naming: Naming) {
        if !self.loose {
            self.make_sizes_durable(naming.sequence);
        }
        for (directory, name, number) in naming.entries {
            self.apply_name(directory, &name, number, true);
        }
    }

    /// Takes along what the journal holds of sizes before a change of names.
    fn make_sizes_durable(&mut self, before: u64) {
        for inode in self.inodes.values_mut() {
            if let Node::File {
                durable, changes, ..
            } = &mut inode.node
            {
                changes.retain(|change| match change.what {
                    What::Size(size) if change.sequence < before => {
                        durable.resize(size);
                        false
                    }
                    _ => true,
                });
            }
        }
    }

    /// The power is cut: only what is durable and what `loss` keeps stays. Returns how many
    /// changes were not durable.
    pub fn cut(&mut self, loss: Loss, random: &mut fastrand::Rng) -> usize {
        let mut sequences: Vec<u64> = self.namings.iter().map(|naming| naming.sequence).collect();
        for inode in self.inodes.values() {
            if let Node::File { changes, .. } = &inode.node {
                sequences.extend(changes.iter().map(|change| change.sequence));
            }
        }
        sequences.sort_unstable();
        let horizon = cut::Horizon::choose(loss, &sequences, random);
        let kept = horizon.names(self.namings.iter().map(|naming| naming.sequence), random);
        for naming in std::mem::take(&mut self.namings).into_iter().take(kept) {
            self.make_durable(naming);
        }
        // In the order of their numbers, so that one seed makes one image.
        let mut numbers: Vec<u64> = self.inodes.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            match self.inodes.get_mut(&number).map(|inode| &mut inode.node) {
                Some(Node::File {
                    live,
                    durable,
                    changes,
                }) => {
                    horizon.settle(durable, changes, random);
                    changes.clear();
                    *live = durable.clone();
                }
                Some(Node::Directory { live, durable }) => *live = durable.clone(),
                None => {}
            }
        }
        self.forget_unnamed();
        self.counts = Counts::default();
        sequences.len()
    }

    /// Drops what no directory names.
    fn forget_unnamed(&mut self) {
        let mut named = HashSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(directory) = open.pop() {
            for number in self
                .entries(directory)
                .into_iter()
                .flat_map(Entries::values)
            {
                if named.insert(*number) {
                    open.push(*number);
                }
            }
        }
        self.inodes.retain(|number, _| named.contains(number));
    }
}

/// Marks the changes that `own` picks, and the earlier ones whose bytes those overwrite: saved
/// later, they would bring old bytes back.
fn with_what_lies_under(changes: &[Change], own: impl Fn(&Change) -> bool) -> Vec<bool> {
    let mut taken = vec![false; changes.len()];
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (index, change) in changes.iter().enumerate().rev() {
        let (from, to) = change.range();
        if own(change) || ranges.iter().any(|(start, end)| from < *end && *start < to) {
            taken[index] = true;
            ranges.push((from, to));
        }
    }
    taken
}

#[cfg(test)]
mod tests;
