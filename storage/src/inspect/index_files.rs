//! The index files, read only.

use std::path::PathBuf;

use super::queue_files::read_exact;
use super::view::{is_number, list};
use super::{Finding, InspectError, StoreView};
use crate::format::hash::index_hash;
use crate::format::index_entry::{
    INDEX_HEADER_SIZE, INDEX_ITEM_SIZE, IndexHeader, IndexItem, IndexShape,
};

/// Items or slots read at once.
const STEP: u32 = 4096;

/// One index file.
#[derive(Clone, Debug)]
pub struct IndexFileView {
    /// Its path.
    pub path: PathBuf,
    /// Its header.
    pub header: IndexHeader,
}

/// All index files, oldest first.
#[derive(Debug)]
pub struct IndexFiles {
    /// Their shape.
    pub shape: IndexShape,
    /// The files.
    pub files: Vec<IndexFileView>,
}

impl IndexFiles {
    /// Reads the headers; `None` if there are files and their shape is not known.
    pub fn open(view: &StoreView) -> Result<Option<(IndexFiles, Vec<Finding>)>, InspectError> {
        let directory = view.layout.index();
        let found = list(&directory).map_err(InspectError::at(&directory))?;
        let Some(shape) = view.shape.index else {
            return Ok(None);
        };
        let (mut files, mut misfits) = (Vec::new(), found.misfits);
        for (path, found) in found.files {
            if !is_number(&path) {
                continue;
            }
            if found != shape.file_size() {
                let size = shape.file_size();
                let text = format!(
                    "it has {found} bytes instead of {size}, which maxHashSlotNum={} and \
                     maxIndexNum={} make",
                    shape.slots, shape.items
                );
                misfits.push(Finding::file(&path, text));
                continue;
            }
            let mut bytes = [0; INDEX_HEADER_SIZE];
            if read_exact(&path, 0, &mut bytes)? {
                let header = IndexHeader::decode(&bytes);
                if header.next_item as u32 > shape.items {
                    let text = format!("its header counts {} items", header.next_item);
                    misfits.push(Finding::file(&path, text));
                }
                files.push(IndexFileView { path, header });
            }
        }
        Ok(Some((IndexFiles { shape, files }, misfits)))
    }

    /// Log offsets of the records that may have a key, newest first, at most `max`.
    pub fn query(&self, topic: &str, key: &[u8], max: usize) -> Result<Vec<u64>, InspectError> {
        let hash = index_hash(topic, key);
        let mut offsets = Vec::new();
        for file in self.files.iter().rev() {
            let slot = self.shape.slot_position(self.shape.slot_of(hash));
            let mut word = [0; 4];
            if !read_exact(&file.path, slot, &mut word)? {
                continue;
            }
            let mut item = i32::from_be_bytes(word);
            // A damaged header leads to nothing behind the last item.
            let items = i32::try_from(self.shape.items).unwrap_or(i32::MAX);
            let mut limit = file.header.next_item.min(items);
            while item > 0 && item < limit && offsets.len() < max {
                let found = self.item(file, item as u32)?;
                if found.hash == hash
                    && let Ok(offset) = u64::try_from(found.physical_offset)
                {
                    offsets.push(offset);
                }
                // Only ever downwards: a damaged chain ends.
                limit = item;
                item = found.previous;
            }
        }
        offsets.dedup();
        Ok(offsets)
    }

    /// One item of a file.
    pub fn item(&self, file: &IndexFileView, number: u32) -> Result<IndexItem, InspectError> {
        let mut bytes = [0; INDEX_ITEM_SIZE];
        read_exact(&file.path, self.shape.item_position(number), &mut bytes)?;
        Ok(IndexItem::decode(&bytes))
    }

    /// Items of a file from `from` on, at most those up to its next item.
    pub(super) fn items(
        &self,
        file: &IndexFileView,
        from: u32,
    ) -> Result<Vec<IndexItem>, InspectError> {
        let end = (file.header.next_item as u32).min(self.shape.items);
        let count = end.saturating_sub(from).min(STEP);
        let mut bytes = vec![0; count as usize * INDEX_ITEM_SIZE];
        read_exact(&file.path, self.shape.item_position(from), &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(IndexItem::decode).collect())
    }

    /// What the slots of a file name.
    pub(super) fn slots(&self, file: &IndexFileView) -> Result<Vec<i32>, InspectError> {
        let mut bytes = vec![0; self.shape.slots as usize * 4];
        read_exact(&file.path, self.shape.slot_position(0), &mut bytes)?;
        let words = bytes.as_chunks().0.iter();
        Ok(words.map(|word| i32::from_be_bytes(*word)).collect())
    }
}
