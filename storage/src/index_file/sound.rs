//! A look at each index file that tells most damage for two pages read.

use super::{Index, IndexFile};

impl Index {
    /// Whether the headers are possible, and first and last items are where they say. What stands
    /// between is not looked at.
    pub(crate) fn is_sound(&self) -> bool {
        let files = self.files.load();
        files.iter().enumerate().all(|(number, file)| {
            // Only the newest can have no items yet.
            let is_newest = number + 1 == files.len();
            let sound = file.is_sound() && (is_newest || file.header().next_item > 1);
            if !sound {
                let path = file.file.path().display();
                tracing::warn!(file = %path, "index file is damaged; the index is made again");
            }
            sound
        })
    }
}

impl Index {
    /// Log offsets of the first and the last indexed record of each file.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let files = self.files.load();
        let headers = files.iter().map(|file| file.header());
        let used = headers.filter(|header| header.next_item > 1);
        used.map(|header| {
            let offset = |offset| u64::try_from(offset).unwrap_or(0);
            (offset(header.begin_offset), offset(header.end_offset))
        })
        .collect()
    }
}

impl IndexFile {
    fn is_sound(&self) -> bool {
        let header = self.header();
        let items = header.next_item;
        if items <= 1 {
            return true;
        }
        let possible = items as u32 <= self.shape.items
            && (1..items).contains(&header.slot_count)
            && header.begin_offset <= header.end_offset;
        // An item that cannot be read is none.
        let item = |number| self.item(number).ok().flatten();
        let first = item(1).is_some_and(|first| first.physical_offset == header.begin_offset);
        let last = item(items - 1).is_some_and(|last| {
            last.physical_offset == header.end_offset && last.previous < items - 1
        });
        possible && first && last
    }
}
