//! Up to where the op queue is needed no more: the consumer offset that Apache keeps for it.
//!
//! An op message is needed while it names a half message that is not behind the progress in the
//! half queue yet. Of each block of op messages only the highest half offset is kept.

use std::collections::VecDeque;

/// Op messages of a block.
const BLOCK: i64 = 1024;

#[derive(Debug, Clone, Copy)]
struct Block {
    /// Messages that were noted.
    known: i64,
    /// The highest queue offset among them.
    last: i64,
    /// The highest half offset they name.
    names: i64,
}

/// What is known of the op messages from `start` on.
#[derive(Debug)]
pub struct Trail {
    start: i64,
    /// The first one holds `start`.
    blocks: VecDeque<Block>,
}

impl Trail {
    /// Nothing before `start` is needed.
    pub fn new(start: i64) -> Self {
        let mut trail = Self {
            start,
            blocks: VecDeque::new(),
        };
        trail.open_first();
        trail
    }

    /// Notes the op message at queue offset `op`, once; `names` is the highest half offset in it.
    pub fn note(&mut self, op: i64, names: i64) {
        if op < self.start {
            return;
        }
        let index = op / BLOCK - self.start / BLOCK;
        let Ok(index) = usize::try_from(index) else {
            return;
        };
        let empty = Block {
            known: 0,
            last: -1,
            names: -1,
        };
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, empty);
        }
        if let Some(block) = self.blocks.get_mut(index) {
            block.known += 1;
            block.last = block.last.max(op);
            block.names = block.names.max(names);
        }
    }

    /// Moves the start past messages that name nothing from `half` on; the start afterwards.
    pub fn advance(&mut self, half: i64) -> i64 {
        while let Some(block) = self.blocks.front() {
            let first = self.start / BLOCK * BLOCK;
            let without_gaps = block.known > 0 && block.last + 1 - first == block.known;
            if block.names >= half || !without_gaps {
                break;
            }
            self.start = self.start.max(block.last + 1);
            if block.known < BLOCK {
                break;
            }
            self.blocks.pop_front();
            if self.blocks.is_empty() {
                self.open_first();
            }
        }
        self.start
    }

    /// Messages before the start count as noted.
    fn open_first(&mut self) {
        self.blocks.push_back(Block {
            known: self.start % BLOCK,
            last: self.start - 1,
            names: -1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_follows_the_progress_in_the_half_queue() {
        let mut trail = Trail::new(10);
        assert_eq!(trail.advance(i64::MAX), 10, "nothing is known yet");
        for op in 10..5000 {
            trail.note(op, op * 2);
        }
        assert_eq!(trail.advance(0), 10);
        let start = trail.advance(4000);
        assert!(start <= 2000 && start > 0, "{start}");
        assert_eq!(trail.advance(9999), 5000);
        assert_eq!(trail.blocks.len(), 1);
    }

    #[test]
    fn a_message_that_is_not_known_yet_is_waited_for() {
        let mut trail = Trail::new(0);
        for op in (0..3000).filter(|op| *op != 2000) {
            trail.note(op, 1);
        }
        assert_eq!(trail.advance(2), 1024);
        trail.note(2000, 1);
        assert_eq!(trail.advance(2), 3000);
        trail.note(3000, 1);
        assert_eq!(trail.advance(2), 3001);
    }

    #[test]
    fn one_named_far_ahead_holds_its_block_only() {
        let mut trail = Trail::new(0);
        for op in 0..4096 {
            trail.note(op, if op == 1500 { 1_000_000 } else { op });
        }
        assert_eq!(trail.advance(5000), 1024);
        assert_eq!(trail.advance(1_000_001), 4096);
        assert_eq!(trail.blocks.len(), 1);
    }
}
