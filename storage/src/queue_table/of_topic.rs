//! The queues of one topic by queue id, in blocks.
//!
//! Readers take no lock. A queue goes into its cell, and only the list of blocks is copied, for
//! each new block: however many queues a topic has, one more costs the same.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use super::Queue;

/// Cells of the largest blocks. The first ones are smaller: most topics have few queues, and light
/// ones have one.
const BLOCK_MAX: i64 = 128;
/// Queue ids from here on lie in blocks of [`BLOCK_MAX`].
const EVEN_FROM: i64 = BLOCK_MAX - 1;

/// Neighbouring queue ids.
#[derive(Debug)]
struct Block {
    first: i64,
    cells: Box<[OnceLock<Arc<Queue>>]>,
}

impl Block {
    /// The block of a queue id, without queues: of 1, 2, 4, … cells up to the largest.
    fn of(queue_id: i32) -> Block {
        let id = i64::from(queue_id);
        let (first, cells) = if (0..EVEN_FROM).contains(&id) {
            let cells = 1 << (id + 1).ilog2();
            (cells - 1, cells)
        } else {
            let block = (id - EVEN_FROM).div_euclid(BLOCK_MAX);
            (EVEN_FROM + block * BLOCK_MAX, BLOCK_MAX)
        };
        Block {
            first,
            cells: (0..cells).map(|_| OnceLock::new()).collect(),
        }
    }

    fn cell(&self, queue_id: i32) -> Option<&OnceLock<Arc<Queue>>> {
        let at = usize::try_from(i64::from(queue_id) - self.first);
        self.cells.get(at.ok()?)
    }
}

/// The queues of one topic.
#[derive(Debug, Default)]
pub(super) struct QueuesOfTopic {
    /// In the order of their queue ids, none twice.
    blocks: ArcSwap<Vec<Arc<Block>>>,
}

impl QueuesOfTopic {
    /// The queue with this id, if there is one.
    pub fn get(&self, queue_id: i32) -> Option<Arc<Queue>> {
        let blocks = self.blocks.load();
        let block = blocks[..behind(&blocks, queue_id)].last()?;
        block.cell(queue_id)?.get().map(Arc::clone)
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.blocks.load().is_empty()
    }

    /// All queues, by queue id.
    pub fn all(&self) -> Vec<Arc<Queue>> {
        let blocks = self.blocks.load();
        let cells = blocks.iter().flat_map(|block| block.cells.iter());
        cells.filter_map(OnceLock::get).map(Arc::clone).collect()
    }

    /// Adds a queue whose id none has yet, and returns how many blocks were copied for it. The
    /// caller keeps others from adding at the same time.
    pub fn insert(&self, queue: &Arc<Queue>) -> usize {
        let blocks = self.blocks.load_full();
        let at = behind(&blocks, queue.queue_id);
        let here = blocks[..at]
            .last()
            .and_then(|block| block.cell(queue.queue_id));
        if let Some(cell) = here {
            cell.get_or_init(|| Arc::clone(queue));
            return 0;
        }
        let block = Block::of(queue.queue_id);
        if let Some(cell) = block.cell(queue.queue_id) {
            cell.get_or_init(|| Arc::clone(queue));
        }
        let mut more = Vec::with_capacity(blocks.len() + 1);
        more.extend_from_slice(&blocks[..at]);
        more.push(Arc::new(block));
        more.extend_from_slice(&blocks[at..]);
        self.blocks.store(Arc::new(more));
        blocks.len()
    }
}

/// How many blocks begin with this queue id or before it.
fn behind(blocks: &[Arc<Block>], queue_id: i32) -> usize {
    blocks.partition_point(|block| block.first <= i64::from(queue_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::MapBudget;
    use crate::queue_table::QueueTable;

    #[test]
    fn a_queue_more_costs_the_same_however_many_its_topic_has() {
        let dir = tempfile::tempdir().unwrap();
        let table = QueueTable::new(dir.path().join("consumequeue"), 2000, MapBudget::new(10));
        // In an order in which each has others on both sides.
        let count = 1 << 14;
        let ids = (0..count).map(|number| number * 5 % count);
        let odd = [i32::MIN, -1, i32::MAX - 1, i32::MAX, 1 << 20];
        let copied = QueuesOfTopic::default();
        let mut blocks = 0;
        for queue_id in ids.chain(odd) {
            let queue = table.get_or_create("T", queue_id);
            blocks += copied.insert(&queue);
            assert_eq!(
                copied.get(queue_id).map(|found| found.slot),
                Some(queue.slot)
            );
        }
        assert!(blocks < count as usize, "{blocks} blocks copied");
        let mut expected: Vec<_> = (0..count).chain(odd).collect();
        expected.sort_unstable();
        for queues in [&copied.all(), table.queues_of("T").as_ref()] {
            let found: Vec<_> = queues.iter().map(|queue| queue.queue_id).collect();
            assert!(found == expected);
        }
        for absent in [-2, count, (1 << 20) + 1, i32::MAX - 2, i32::MIN + 1] {
            assert!(table.get("T", absent).is_none(), "{absent}");
        }
    }
}
