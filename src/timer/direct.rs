//! Messages that were due before they could be entered: they go to their real topics at once, and
//! the progress in the timer topic waits for them.

use std::collections::VecDeque;

/// Those that the writer has not acknowledged, at most.
const WINDOW: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Flying,
    Failed,
    Done,
}

/// By queue offset in the timer topic, in order.
#[derive(Debug, Default)]
pub(super) struct Direct(VecDeque<(i64, State)>);

impl Direct {
    /// Whether one more may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < WINDOW
    }

    /// Whether the progress waits for none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The writer has one more.
    pub(super) fn sent(&mut self, offset: i64) {
        match self.0.iter_mut().find(|(other, _)| *other == offset) {
            Some((_, state)) => *state = State::Flying,
            None => self.0.push_back((offset, State::Flying)),
        }
    }

    /// The writer has answered.
    pub(super) fn answered(&mut self, offset: i64, delivered: bool) {
        if let Some((_, state)) = self.0.iter_mut().find(|(other, _)| *other == offset) {
            *state = if delivered {
                State::Done
            } else {
                State::Failed
            };
        }
        while let Some((_, State::Done)) = self.0.front() {
            self.0.pop_front();
        }
    }

    /// One that must be sent again.
    pub(super) fn failed(&self) -> Option<i64> {
        let failed = self.0.iter().find(|(_, state)| *state == State::Failed);
        failed.map(|(offset, _)| *offset)
    }

    /// The progress in the timer topic when `next` is entered next.
    pub(super) fn progress(&self, next: i64) -> i64 {
        self.0.front().map_or(next, |(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_waits_for_each_and_failed_ones_come_again() {
        let mut direct = Direct::default();
        for offset in 3..6 {
            direct.sent(offset);
        }
        assert_eq!(direct.progress(9), 3);
        direct.answered(4, true);
        direct.answered(3, false);
        assert_eq!((direct.progress(9), direct.failed()), (3, Some(3)));
        direct.sent(3);
        assert_eq!(direct.failed(), None);
        direct.answered(3, true);
        assert_eq!(direct.progress(9), 5);
        direct.answered(5, true);
        assert_eq!(direct.progress(9), 9);
        assert!(direct.has_room());
    }
}
