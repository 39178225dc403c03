//! A store's directory as it is looked at: its shape, its files, and who has it open.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::last_run::LastRun;
use super::{Finding, InspectError, LogLook};
use crate::format::extension_unit::Unit;
use crate::format::index_entry::IndexShape;
use crate::format::record::Record;
use crate::layout::{FixedFile, Layout, LayoutError, parse_file_name};
use crate::{layout, lock};

/// Why a directory cannot be looked at.
#[derive(Debug, Error)]
pub enum ViewError {
    /// Nothing there is a store's.
    #[error("{} holds no message store: it has no commitlog, consumequeue or index", .0.display())]
    NoStore(PathBuf),
    /// It is kept in a form that is not read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// What.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Sizes that the files have, and that are recorded nowhere but in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a log file.
    pub log_file: u64,
    /// Bytes of a queue file.
    pub queue_file: u64,
    /// Slots and items of an index file; `None` if it is not known.
    pub index: Option<IndexShape>,
}

/// A store that is looked at.
#[derive(Debug)]
pub struct StoreView {
    /// Where its parts are.
    pub layout: Layout,
    /// The sizes of its files.
    pub shape: Shape,
    /// The process that has it open.
    pub held_by: Option<i32>,
    /// Whether the last broker on it stopped in order; of no meaning while one has it open.
    pub clean: bool,
    /// Log files of the right size, by base.
    pub log_files: Vec<FixedFile>,
    /// Files that do not belong where they are.
    pub misfits: Vec<Finding>,
    /// Looks at what units of queue entries say of consumer filters, if anything can.
    pub units: Option<Box<dyn UnitCheck>>,
    /// What the last run left said about them.
    pub(crate) last_run: LastRun,
}

/// Knows what the extension unit of a record must say (docs/format.md, "Extension unit"): the
/// broker's consumer filters do.
pub trait UnitCheck: std::fmt::Debug {
    /// What is wrong with the unit of a record, as the rest of a sentence; nothing if it can be
    /// right.
    fn problem(&self, record: &Record<'_>, unit: &Unit<'_>) -> Option<String>;
}

impl StoreView {
    /// Looks at a store. Sizes that are not given are those of the files there.
    pub fn open(
        layout: Layout,
        log_file: Option<u64>,
        queue_file: Option<u64>,
        index: Option<IndexShape>,
    ) -> Result<StoreView, ViewError> {
        let parts = [
            layout.commit_log().to_path_buf(),
            layout.consume_queues(),
            layout.index(),
        ];
        if !parts.iter().any(|path| path.is_dir()) {
            return Err(ViewError::NoStore(layout.root().to_path_buf()));
        }
        let unreadable = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ViewError::Unreadable { path, source }
        };
        layout::list_queues(&layout.consume_queues())?;
        let mut misfits: Vec<Finding> = layout::wrong_kinds(&layout).map(misfit_of).collect();
        let held_by = match misfits.iter().any(|misfit| misfit.file == layout.lock()) {
            true => None,
            false => lock::holder(layout.root()).map_err(unreadable(&layout.lock()))?,
        };
        let found = list(layout.commit_log()).map_err(unreadable(layout.commit_log()))?;
        let log_file = log_file.or(most_frequent(&found.files)).unwrap_or(1 << 30);
        let (last_run, unread) = LastRun::of(&layout);
        misfits.extend(unread);
        let queue_file = match queue_file.or(last_run.queue_file_size()) {
            Some(size) => size,
            None => queue_file_size(&layout)?.unwrap_or(6_000_000),
        };
        let mut view = StoreView {
            clean: last_run.former.is_closed(),
            shape: Shape {
                log_file,
                queue_file,
                index: None,
            },
            layout,
            held_by,
            log_files: Vec::new(),
            misfits,
            units: None,
            last_run,
        };
        view.shape.index = index.or_else(|| view.default_index());
        let (files, misfits) = fitting(found, log_file);
        view.log_files = files;
        view.misfits.extend(misfits);
        if view.confirms_resume_point() {
            view.last_run.confirm();
        }
        Ok(view)
    }

    /// Whether the log holds the record that the resume point names as its last.
    fn confirms_resume_point(&self) -> bool {
        let Some((end, start, timestamp)) = self.last_run.place() else {
            return false;
        };
        if start == end {
            return end == self.log_begin();
        }
        LogLook::new(self).record(start).is_ok_and(|record| {
            record.is_some_and(|record| {
                start + u64::from(record.size()) == end && record.store_timestamp() == timestamp
            })
        })
    }

    /// Whether a broker has it open.
    pub fn is_live(&self) -> bool {
        self.held_by.is_some()
    }

    /// Whether everything in the log has its entries; otherwise some may be missing that the next
    /// start, or the broker that runs, makes.
    pub fn is_settled(&self) -> bool {
        self.clean && !self.is_live() && !self.last_run.is_in_doubt()
    }

    /// Whether the record at a log offset must have its entries.
    pub fn is_settled_at(&self, offset: u64) -> bool {
        self.is_settled() || (!self.is_live() && self.last_run.vouches_for(offset))
    }

    /// Whether no crash can have torn what stands at a log offset.
    pub(super) fn is_durable(&self, offset: u64) -> bool {
        !self.is_live() && (self.clean || offset < self.last_run.durable_to())
    }

    /// Log offset of the first byte.
    pub fn log_begin(&self) -> u64 {
        self.log_files.first().map_or(0, |file| file.base)
    }

    /// Log offset after the last byte that any file can hold.
    pub(super) fn log_limit(&self) -> u64 {
        self.log_files
            .last()
            .map_or(0, |file| file.base + self.shape.log_file)
    }

    /// The same once more: while a broker runs, retention may have taken files since.
    pub(super) fn log_begin_now(&self) -> u64 {
        let gone = |file: &&FixedFile| self.is_live() && !file.path.exists();
        let there = self.log_files.iter().find(|file| !gone(file));
        there.map_or(self.log_begin(), |file| file.base)
    }

    /// Shows everything in the log from offset `from` on, in order, until `show` says false.
    pub fn walk(
        &self,
        from: u64,
        show: impl FnMut(super::Found<'_>) -> bool,
    ) -> Result<super::Summary, InspectError> {
        let size = self.shape.log_file;
        let first = self
            .log_files
            .partition_point(|file| file.base + size <= from);
        super::walk_files(
            self.layout.commit_log(),
            &self.log_files[first..],
            size,
            self.is_live(),
            show,
        )
    }

    /// Path of the log file that holds an offset.
    pub fn log_path(&self, offset: u64) -> PathBuf {
        let base = offset - offset % self.shape.log_file;
        self.layout.commit_log().join(layout::file_name(base))
    }

    /// Apache's default, if the files have its size or there are none.
    fn default_index(&self) -> Option<IndexShape> {
        let shape = IndexShape::APACHE_DEFAULT;
        let found = list(&self.layout.index()).unwrap_or_default().files;
        let fits = |(_, size): &(PathBuf, u64)| *size == shape.file_size();
        found.iter().all(fits).then_some(shape)
    }
}

/// Something of another kind in the place of a file or directory.
fn misfit_of(wrong: LayoutError) -> Finding {
    match wrong {
        LayoutError::Kind {
            path,
            found,
            wanted,
        } => {
            let text = format!("it is {found}, but the store has a {wanted} there");
            Finding::file(&path, text)
        }
        other => Finding::file(Path::new(""), other.to_string()),
    }
}

/// What a directory holds.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Its files with their sizes, in the order of their names.
    pub files: Vec<(PathBuf, u64)>,
    /// What has the name of a file and is none.
    pub misfits: Vec<Finding>,
}

/// Lists a directory; there is nothing where there is none. Directories whose names are no numbers
/// are left alone.
pub(super) fn list(directory: &Path) -> io::Result<Listing> {
    let mut found = Listing::default();
    let entries = match std::fs::read_dir(directory) {
        Err(error) if layout::is_none(&error) => return Ok(found),
        other => other?,
    };
    for entry in entries {
        let path = entry?.path();
        let problem = match std::fs::metadata(&path) {
            Ok(details) if details.is_file() => {
                found.files.push((path, details.len()));
                continue;
            }
            Ok(details) if details.is_dir() && !is_number(&path) => continue,
            Ok(details) if details.is_dir() => "it is a directory",
            Ok(_) => "it is no file",
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Retention took it meanwhile, unless its name is still there.
                if path.symlink_metadata().is_err() {
                    continue;
                }
                "it is a link that leads nowhere"
            }
            Err(error) => return Err(error),
        };
        found.misfits.push(Finding::file(&path, problem.into()));
    }
    found.files.sort();
    found
        .misfits
        .sort_by(|one, other| one.file.cmp(&other.file));
    Ok(found)
}

/// Whether a name is a number.
pub(super) fn is_number(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The size that most files have; the larger of two.
fn most_frequent<'a>(found: impl IntoIterator<Item = &'a (PathBuf, u64)>) -> Option<u64> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for (path, size) in found {
        if base_of(path).is_some() && *size > 0 {
            *counts.entry(*size).or_default() += 1;
        }
    }
    let most = counts
        .into_iter()
        .max_by_key(|(size, count)| (*count, *size));
    most.map(|(size, _)| size)
}

/// The size that most queue files have.
fn queue_file_size(layout: &Layout) -> Result<Option<u64>, LayoutError> {
    let mut found = Vec::new();
    for (topic, queue_id) in layout::list_queues(&layout.consume_queues())? {
        let directory = layout::queue_directory(&layout.consume_queues(), &topic, queue_id);
        // One that cannot be read is told when it is looked at.
        if let Some(listing) = directory.ok().and_then(|path| list(&path).ok()) {
            found.extend(listing.files);
        }
    }
    Ok(most_frequent(&found))
}

fn base_of(path: &Path) -> Option<u64> {
    parse_file_name(path.file_name()?.to_str()?)
}

/// The files that can be part of a sequence, by base, and what is wrong with the others.
fn fitting(found: Listing, size: u64) -> (Vec<FixedFile>, Vec<Finding>) {
    let (mut files, mut misfits) = (Vec::<FixedFile>::new(), found.misfits);
    let last = found.files.len().saturating_sub(1);
    for (index, (path, found)) in found.files.into_iter().enumerate() {
        let misfit = match base_of(&path) {
            None => "its name is not 20 digits".into(),
            // What a crash between creating and sizing it leaves.
            Some(_) if found == 0 && index == last => continue,
            Some(_) if found != size => format!("it has {found} bytes instead of {size}"),
            Some(base) if !base.is_multiple_of(size) || base > i64::MAX as u64 - size => {
                format!("its name is no multiple of the file size, {size}")
            }
            Some(base) => {
                files.push(FixedFile { base, path });
                continue;
            }
        };
        misfits.push(Finding::file(&path, misfit));
    }
    let gaps = files
        .windows(2)
        .filter_map(|pair| gap(&pair[0], &pair[1], size));
    // What stands there and is not used is named already.
    let new = gaps.filter(|gap| misfits.iter().all(|misfit| misfit.file != gap.file));
    let new: Vec<Finding> = new.collect();
    misfits.extend(new);
    (files, misfits)
}

/// What is missing between two files.
fn gap(before: &FixedFile, behind: &FixedFile, size: u64) -> Option<Finding> {
    let base = before.base + size;
    let more = behind.base.checked_sub(base)? / size;
    let text = match more {
        0 => return None,
        1 => "it is missing".into(),
        more => format!("it is missing, and {} files behind it", more - 1),
    };
    Some(Finding::file(
        &before.path.with_file_name(layout::file_name(base)),
        text,
    ))
}

/// The same for a directory.
pub(super) fn list_fitting(
    directory: &Path,
    size: u64,
) -> Result<(Vec<FixedFile>, Vec<Finding>), InspectError> {
    let found = list(directory).map_err(InspectError::at(directory))?;
    Ok(fitting(found, size))
}
