//! Which half messages are done with: one bit each, from the first that may not be.

use std::collections::VecDeque;

const BITS: i64 = 64;
/// Most half messages a window reaches over: 2 MiB of bits.
const REACH: i64 = 1 << 24;

/// Bits for the half messages from `start` on; those before it are all done with.
#[derive(Debug)]
pub struct Window {
    start: i64,
    /// Offset of the first bit of the first word, a multiple of 64.
    base: i64,
    words: VecDeque<u64>,
}

impl Window {
    /// Everything before `start` is done with, nothing from there on is known to be.
    pub fn new(start: i64) -> Self {
        Self {
            start,
            base: start - start.rem_euclid(BITS),
            words: VecDeque::new(),
        }
    }

    /// The first half message that is not known to be done with.
    pub fn start(&self) -> i64 {
        self.start
    }

    /// The first half message beyond what the bits can reach.
    pub fn end(&self) -> i64 {
        self.base.saturating_add(REACH)
    }

    /// Whether a half message is known to be done with.
    pub fn is_done(&self, offset: i64) -> bool {
        offset < self.start
            || self
                .place(offset)
                .and_then(|(word, bit)| Some(self.words.get(word)? & bit != 0))
                .unwrap_or(false)
    }

    /// Notes that a half message is done with; false when it lies beyond the reach.
    pub fn set(&mut self, offset: i64) -> bool {
        if offset < self.start {
            return true;
        }
        let Some((word, bit)) = self.place(offset) else {
            return false;
        };
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            *word |= bit;
        }
        true
    }

    /// The first half message from `from` on, and before `end`, that is not known to be done with.
    pub fn next_open(&self, from: i64, end: i64) -> Option<i64> {
        let mut at = from.max(self.start);
        while at < end {
            let index = usize::try_from((at - self.base) / BITS).unwrap_or(usize::MAX);
            let Some(word) = self.words.get(index) else {
                return Some(at);
            };
            let open = !word >> (at - self.base).rem_euclid(BITS);
            if open != 0 {
                let found = at + i64::from(open.trailing_zeros());
                return (found < end).then_some(found);
            }
            at += BITS - (at - self.base).rem_euclid(BITS);
        }
        None
    }

    /// Moves the start past what is done with, at most to `end`.
    pub fn advance(&mut self, end: i64) -> i64 {
        let start = self.next_open(self.start, end).unwrap_or(end);
        self.forget_before(start);
        self.start
    }

    /// Everything before `offset` is done with: its records are gone.
    pub fn forget_before(&mut self, offset: i64) {
        if offset <= self.start {
            return;
        }
        self.start = offset;
        let whole = (offset - self.base) / BITS;
        let drop = usize::try_from(whole).unwrap_or(usize::MAX);
        self.words.drain(..drop.min(self.words.len()));
        self.base += whole * BITS;
    }

    fn place(&self, offset: i64) -> Option<(usize, u64)> {
        if offset >= self.end() {
            return None;
        }
        let at = offset - self.base;
        Some((
            usize::try_from(at / BITS).ok()?,
            1 << u32::try_from(at % BITS).ok()?,
        ))
    }
}

/// The half messages that this process has ended, as far as `LAST` before the newest of them.
#[derive(Debug)]
pub struct Recent {
    /// One bit for each of the last offsets, at the offset modulo their number; none until the
    /// first one.
    words: Vec<u64>,
    /// The offset after the newest.
    end: i64,
}

impl Recent {
    /// How far back it reaches.
    const LAST: i64 = 1 << 20;

    /// None yet.
    pub fn new() -> Self {
        Self {
            words: Vec::new(),
            end: 0,
        }
    }

    /// Whether this half message was ended; false also when that is too long ago.
    pub fn contains(&self, offset: i64) -> bool {
        offset < self.end
            && offset >= self.end - Self::LAST
            && self
                .words
                .get(Self::word(offset))
                .is_some_and(|word| word & Self::bit(offset) != 0)
    }

    /// Notes that a half message was ended.
    pub fn insert(&mut self, offset: i64) {
        if self.words.is_empty() {
            self.words = vec![0; usize::try_from(Self::LAST / BITS).unwrap_or(1)];
            self.end = offset - offset.rem_euclid(BITS);
        }
        if offset < self.end - Self::LAST {
            return;
        }
        // Whole words are cleared as they come into use.
        while self.end <= offset {
            if self.end + Self::LAST <= offset {
                self.words.fill(0);
                self.end = offset - offset.rem_euclid(BITS);
            }
            if let Some(word) = self.words.get_mut(Self::word(self.end)) {
                *word = 0;
            }
            self.end += BITS;
        }
        if let Some(word) = self.words.get_mut(Self::word(offset)) {
            *word |= Self::bit(offset);
        }
    }

    fn word(offset: i64) -> usize {
        usize::try_from(offset.rem_euclid(Self::LAST) / BITS).unwrap_or(0)
    }

    fn bit(offset: i64) -> u64 {
        1 << offset.rem_euclid(BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_moves_past_what_is_done_and_no_further() {
        let mut window = Window::new(100);
        for offset in (100..300).filter(|offset| *offset != 230) {
            assert!(window.set(offset));
        }
        assert_eq!(window.advance(300), 230);
        assert_eq!(window.next_open(230, 300), Some(230));
        assert_eq!(window.next_open(231, 300), None);
        assert_eq!(window.next_open(231, 301), Some(300));
        window.set(230);
        assert_eq!(window.advance(290), 290, "not past the end of the queue");
        assert_eq!(window.advance(500), 300);
        assert!(window.is_done(3) && !window.is_done(300));
    }

    #[test]
    fn a_window_has_bounds_and_says_what_it_cannot_keep() {
        let mut window = Window::new(0);
        assert!(window.set(REACH - 1));
        assert!(!window.set(REACH));
        assert!(!window.is_done(REACH));
        assert_eq!(window.words.len() as i64 * BITS, REACH);
        window.forget_before(REACH / 2 + 7);
        assert!(window.is_done(REACH / 2) && window.is_done(REACH - 1));
        assert!(window.set(REACH), "it moves with its start");
        window.forget_before(i64::from(i32::MAX));
        assert!(window.words.is_empty());
        assert!(window.set(i64::from(i32::MAX)));
    }

    #[test]
    fn what_was_ended_is_remembered_for_a_bounded_number_of_offsets() {
        let mut recent = Recent::new();
        assert!(!recent.contains(0));
        for offset in [5_000_000, 5_000_001, 4_999_000, 5_000_100] {
            recent.insert(offset);
            assert!(recent.contains(offset));
        }
        assert!(!recent.contains(5_000_002));
        recent.insert(5_000_000 + Recent::LAST);
        assert!(!recent.contains(4_999_000) && !recent.contains(5_000_000));
        assert!(recent.contains(5_000_100));
        recent.insert(50_000_000);
        assert!(!recent.contains(5_000_100));
        recent.insert(7);
        assert!(!recent.contains(7), "too long ago");
    }
}
