//! A store's directory as it is looked at: its shape, its files, and who has it open.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Finding, InspectError};
use crate::format::index_entry::IndexShape;
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
        let held_by = lock::holder(layout.root()).map_err(unreadable(&layout.lock()))?;
        let found = sizes(layout.commit_log()).map_err(unreadable(layout.commit_log()))?;
        let log_file = log_file.or(most_frequent(&found)).unwrap_or(1 << 30);
        let queue_file = match queue_file {
            Some(size) => size,
            None => queue_file_size(&layout)?.unwrap_or(6_000_000),
        };
        let mut view = StoreView {
            clean: !layout.abort().exists(),
            shape: Shape {
                log_file,
                queue_file,
                index: None,
            },
            layout,
            held_by,
            log_files: Vec::new(),
            misfits: Vec::new(),
        };
        view.shape.index = index.or_else(|| view.default_index());
        (view.log_files, view.misfits) = fitting(found, log_file);
        Ok(view)
    }

    /// Whether a broker has it open.
    pub fn is_live(&self) -> bool {
        self.held_by.is_some()
    }

    /// Whether entries may be missing that the next start, or the broker that runs, makes.
    pub fn is_settled(&self) -> bool {
        self.clean && !self.is_live()
    }

    /// Log offset of the first byte.
    pub fn log_begin(&self) -> u64 {
        self.log_files.first().map_or(0, |file| file.base)
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
        let found = sizes(&self.layout.index()).unwrap_or_default();
        let fits = |(_, size): &(PathBuf, u64)| *size == shape.file_size();
        found.iter().all(fits).then_some(shape)
    }
}

/// Files of a directory with their sizes; none where there is no directory.
fn sizes(directory: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let list = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in list {
        let path = entry?.path();
        match std::fs::metadata(&path) {
            Ok(details) if details.is_dir() => {}
            Ok(details) => found.push((path, details.len())),
            // Retention took it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.sort();
    Ok(found)
}

/// The size that most files have; the larger of two.
fn most_frequent(found: &[(PathBuf, u64)]) -> Option<u64> {
    let named = |(path, _): &&(PathBuf, u64)| base_of(path).is_some();
    let sizes: Vec<u64> = found.iter().filter(named).map(|(_, size)| *size).collect();
    let count = |size: u64| sizes.iter().filter(|other| **other == size).count();
    sizes
        .iter()
        .copied()
        .filter(|size| *size > 0)
        .max_by_key(|size| (count(*size), *size))
}

fn queue_file_size(layout: &Layout) -> Result<Option<u64>, LayoutError> {
    for (topic, queue_id) in layout::list_queues(&layout.consume_queues())? {
        let Ok(directory) = layout::queue_directory(&layout.consume_queues(), &topic, queue_id)
        else {
            continue;
        };
        if let Some(size) = sizes(&directory)
            .ok()
            .and_then(|found| most_frequent(&found))
        {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

fn base_of(path: &Path) -> Option<u64> {
    parse_file_name(path.file_name()?.to_str()?)
}

/// The files that can be part of a sequence, by base, and what is wrong with the others.
pub(super) fn fitting(found: Vec<(PathBuf, u64)>, size: u64) -> (Vec<FixedFile>, Vec<Finding>) {
    let (mut files, mut misfits) = (Vec::<FixedFile>::new(), Vec::new());
    let last = found.len().saturating_sub(1);
    for (index, (path, found)) in found.into_iter().enumerate() {
        let misfit = match base_of(&path) {
            None => "its name is not 20 digits".into(),
            // What a crash between creating and sizing it leaves.
            Some(_) if found == 0 && index == last => continue,
            Some(_) if found != size => format!("it has {found} bytes instead of {size}"),
            Some(base) if !base.is_multiple_of(size) || base > i64::MAX as u64 - size => {
                format!("its name is no multiple of the file size, {size}")
            }
            Some(base) => {
                let before = files.last().map(|file| file.base + size);
                if before.is_some_and(|before| before != base) {
                    let text = "the file before it is missing";
                    misfits.push(Finding::file(&path, text.into()));
                }
                files.push(FixedFile { base, path });
                continue;
            }
        };
        misfits.push(Finding::file(&path, misfit));
    }
    (files, misfits)
}

/// The same for a directory.
pub(super) fn list_fitting(
    directory: &Path,
    size: u64,
) -> Result<(Vec<FixedFile>, Vec<Finding>), InspectError> {
    let found = sizes(directory).map_err(InspectError::at(directory))?;
    Ok(fitting(found, size))
}
