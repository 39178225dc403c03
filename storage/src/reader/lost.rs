//! Queue offsets whose messages the log has lost, as ranges: one for a stretch of the log, however
//! many messages stood in it.

use std::collections::BTreeMap;

/// Queue offsets of one queue, as ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OffsetRanges {
    /// First offset of each, and the offset after its last.
    ranges: BTreeMap<i64, i64>,
}

impl OffsetRanges {
    /// The offsets `[first, end)`.
    pub(super) fn of(first: i64, end: i64) -> OffsetRanges {
        let mut all = OffsetRanges::default();
        all.insert(first, end);
        all
    }

    /// Adds `[first, end)`, merged with what it meets.
    pub(super) fn insert(&mut self, first: i64, end: i64) {
        if first >= end {
            return;
        }
        let (mut first, mut end) = (first, end);
        while let Some((&start, &stop)) = self.ranges.range(..=end).next_back() {
            if stop < first {
                break;
            }
            self.ranges.remove(&start);
            first = first.min(start);
            end = end.max(stop);
        }
        self.ranges.insert(first, end);
    }

    /// Takes one offset out.
    pub(super) fn remove(&mut self, offset: i64) {
        if let Some((first, end)) = self.containing(offset) {
            self.ranges.remove(&first);
            self.insert_apart(first, offset);
            self.insert_apart(offset.saturating_add(1), end);
        }
    }

    /// Takes every offset from `from` on out.
    pub(super) fn cut(&mut self, from: i64) {
        if let Some((first, _)) = self.containing(from) {
            self.ranges.insert(first, from);
        }
        self.ranges.split_off(&from);
    }

    fn insert_apart(&mut self, first: i64, end: i64) {
        if first < end {
            self.ranges.insert(first, end);
        }
    }

    /// The range with `offset` in it: its first offset, and the one after its last.
    pub(super) fn containing(&self, offset: i64) -> Option<(i64, i64)> {
        let (&first, &end) = self.ranges.range(..=offset).next_back()?;
        (offset < end).then_some((first, end))
    }

    /// All ranges, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.ranges.iter().map(|(first, end)| (*first, *end))
    }

    /// Number of ranges.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Offsets in all ranges.
    pub(super) fn offsets(&self) -> u64 {
        self.iter().map(|(first, end)| first.abs_diff(end)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_exactly_what_a_set_of_offsets_would() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 33) % below) as i64
        };
        for _ in 0..200 {
            let mut ranges = OffsetRanges::default();
            let mut set = std::collections::BTreeSet::new();
            for _ in 0..60 {
                let (first, length) = (random(100), random(20));
                match random(8) {
                    0..3 => {
                        ranges.insert(first, first + length);
                        set.extend(first..first + length);
                    }
                    3..7 => {
                        ranges.remove(first);
                        set.remove(&first);
                    }
                    _ => {
                        ranges.cut(first);
                        set.retain(|offset| *offset < first);
                    }
                }
                assert_eq!(ranges.offsets(), set.len() as u64);
                for offset in -1..130 {
                    let held = ranges.containing(offset);
                    assert_eq!(held.is_some(), set.contains(&offset), "{ranges:?}");
                }
            }
        }
    }
}
