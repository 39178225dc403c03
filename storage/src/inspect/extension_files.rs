//! The extension files of one consume queue, as they are (docs/format.md, "Extension unit").

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::{InspectError, StoreView};
use crate::format::extension_unit::{HEAD_SIZE, Unit, size_of_unit};
use crate::{layout, regular};

/// See the module's description.
pub(super) struct ExtensionFiles {
    directory: PathBuf,
    /// Bytes of each file, as the first one has; `None` until one was looked at.
    file_size: Option<u64>,
    /// The file looked at last, and its name's number.
    open: Option<(u64, File)>,
    bytes: Vec<u8>,
}

impl ExtensionFiles {
    pub(super) fn new(
        view: &StoreView,
        topic: &str,
        queue_id: i32,
    ) -> Result<ExtensionFiles, InspectError> {
        let directory = layout::queue_directory(&view.layout.extensions(), topic, queue_id)?;
        Ok(ExtensionFiles {
            directory,
            file_size: None,
            open: None,
            bytes: Vec::new(),
        })
    }

    /// The unit at a position of the files; `None` if there is none that can be read.
    pub(super) fn unit(&mut self, position: u64) -> Option<Unit<'_>> {
        let size = self.size()?;
        let (base, place) = (position - position % size, position % size);
        if self.open.as_ref().is_none_or(|(open, _)| *open != base) {
            let path = self.directory.join(layout::file_name(base));
            self.open = Some((base, regular::open(&path).ok()?));
        }
        let (_, file) = self.open.as_ref()?;
        self.bytes.clear();
        self.bytes.resize(HEAD_SIZE, 0);
        file.read_exact_at(&mut self.bytes, place).ok()?;
        let unit_size = size_of_unit(&self.bytes)?;
        self.bytes.resize(unit_size, 0);
        file.read_exact_at(&mut self.bytes[HEAD_SIZE..], place + HEAD_SIZE as u64)
            .ok()?;
        Unit::decode(&self.bytes)
    }

    fn size(&mut self) -> Option<u64> {
        if self.file_size.is_none() {
            let paths = layout::entries(&self.directory).ok()?;
            let sizes = paths.iter().filter_map(|path| std::fs::metadata(path).ok());
            self.file_size = sizes
                .filter(|found| found.is_file() && found.len() > 0)
                .map(|found| found.len())
                .next();
        }
        self.file_size
    }
}
