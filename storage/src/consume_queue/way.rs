//! Where the end of a queue is in memory.

use std::sync::Arc;

use super::{ConsumeQueue, ENTRY};
use crate::mapping::CACHE_LINE;

impl ConsumeQueue {
    /// Addresses of what leads to the place of the next entry, and that of the place; zeros where
    /// there is none.
    pub(crate) fn way_to_end(&self) -> ([usize; 8], usize) {
        let files = self.files.load();
        let position = self.max_offset() as u64 * ENTRY;
        let Some((file, place)) = files.at(position, self.file_size) else {
            return ([0; 8], 0);
        };
        let (list, start) = (Arc::as_ptr(&files).addr(), Arc::as_ptr(file).addr());
        // The counts of references stand before what they count.
        let before = [list, start].map(|address| address - 2 * size_of::<usize>());
        let ([one, two, three], entry) = file.way_to(place);
        let way = [
            before[0],
            files.list.as_ptr().addr(),
            before[1],
            before[1] + CACHE_LINE,
            one,
            two,
            three,
            list,
        ];
        (way, entry)
    }
}
