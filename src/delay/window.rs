//! The deliveries of a level that are on their way, and what became of those behind them.

use std::collections::VecDeque;

/// Deliveries of one level that the writer has not answered.
const MOST: i64 = 256;

/// A stretch of a level's queue: everything before it is settled, everything behind it was not
/// looked at.
#[derive(Debug)]
pub(super) struct Window {
    /// Queue offset of the first entry that is not settled.
    delivered: i64,
    /// Queue offset that is looked at next.
    next: i64,
    /// Whether entries from `delivered` on are settled: delivered, or dropped.
    settled: VecDeque<bool>,
    in_flight: usize,
    /// Whether one must be delivered again, once those in flight are answered.
    failed: bool,
}

impl Window {
    /// Everything before `offset` is settled.
    pub fn new(offset: i64) -> Self {
        Self {
            delivered: offset,
            next: offset,
            settled: VecDeque::new(),
            in_flight: 0,
            failed: false,
        }
    }

    /// Queue offset up to which everything is settled.
    pub fn delivered(&self) -> i64 {
        self.delivered
    }

    /// Queue offset of the entry to look at; it is not settled.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Whether the writer's answers come first.
    pub fn is_full(&self) -> bool {
        self.next - self.delivered >= MOST
    }

    /// Whether no delivery is on its way and none is to be made again.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && !self.failed
    }

    /// Goes back to what failed; `false` while deliveries behind it are on their way.
    pub fn takes_up(&mut self) -> bool {
        if self.failed && self.in_flight == 0 {
            self.failed = false;
            self.next = self.delivered;
        }
        !self.failed
    }

    /// The queue begins at `offset` now, or ends there; nothing may be in flight.
    pub fn start_at(&mut self, offset: i64) {
        let ahead = usize::try_from(offset - self.delivered);
        match ahead {
            Ok(ahead) => drop(self.settled.drain(..ahead.min(self.settled.len()))),
            Err(_) => self.settled.clear(),
        }
        self.delivered = offset;
        self.next = offset;
        self.advance();
    }

    /// The entry at [`Window::next`] was handed to the writer.
    pub fn sent(&mut self) {
        self.in_flight += 1;
        self.step(false);
    }

    /// The entry at [`Window::next`] is left out.
    pub fn dropped(&mut self) {
        self.step(true);
    }

    /// The writer has answered for the entry at `offset`.
    pub fn answered(&mut self, offset: i64, settled: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if settled {
            self.settle(offset);
        } else {
            self.failed = true;
        }
    }

    fn step(&mut self, settled: bool) {
        let at = self.next;
        if usize::try_from(at - self.delivered).is_ok_and(|index| index == self.settled.len()) {
            self.settled.push_back(false);
        }
        self.next += 1;
        if settled {
            self.settle(at);
        }
        self.pass_settled();
    }

    fn settle(&mut self, offset: i64) {
        let index = usize::try_from(offset - self.delivered).ok();
        if let Some(entry) = index.and_then(|index| self.settled.get_mut(index)) {
            *entry = true;
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self.settled.front() == Some(&true) {
            self.settled.pop_front();
            self.delivered += 1;
        }
        self.next = self.next.max(self.delivered);
        self.pass_settled();
    }

    /// What was settled behind a failure is not looked at again.
    fn pass_settled(&mut self) {
        let at = |next: i64| usize::try_from(next - self.delivered).ok();
        while at(self.next).and_then(|index| self.settled.get(index)) == Some(&true) {
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets that are handed to the writer until the window is full or at `end`.
    fn send_to(window: &mut Window, end: i64) -> Vec<i64> {
        let mut sent = Vec::new();
        while window.next() < end && !window.is_full() {
            sent.push(window.next());
            window.sent();
        }
        sent
    }

    #[test]
    fn what_was_delivered_behind_a_failure_is_not_delivered_again() {
        let mut window = Window::new(10);
        assert_eq!(send_to(&mut window, 16), [10, 11, 12, 13, 14, 15]);
        window.answered(10, true);
        window.answered(11, false);
        window.answered(12, true);
        window.answered(13, true);
        assert_eq!(window.delivered(), 11);
        assert!(!window.takes_up(), "two are on their way");
        window.answered(14, false);
        window.answered(15, true);
        assert!(window.takes_up());
        assert_eq!(send_to(&mut window, 18), [11, 14, 16, 17]);
        for offset in [11, 14, 16, 17] {
            window.answered(offset, true);
        }
        assert_eq!((window.delivered(), window.next()), (18, 18));
    }

    #[test]
    fn an_entry_that_is_left_out_waits_for_none_and_holds_none_up() {
        let mut window = Window::new(0);
        window.sent();
        window.dropped();
        window.dropped();
        window.sent();
        assert_eq!((window.delivered(), window.next()), (0, 4));
        window.answered(0, true);
        assert_eq!(window.delivered(), 3);
        window.answered(3, true);
        assert_eq!(window.delivered(), 4);
        assert!(window.is_idle());
    }

    #[test]
    fn no_more_than_a_window_is_on_its_way() {
        let mut window = Window::new(0);
        assert_eq!(send_to(&mut window, 10_000).len(), 256);
        window.answered(1, true);
        assert!(window.is_full(), "the first is not answered");
        window.answered(0, true);
        assert_eq!(send_to(&mut window, 10_000), [256, 257]);
    }

    #[test]
    fn a_queue_whose_front_expired_is_taken_up_at_its_new_front() {
        let mut window = Window::new(0);
        assert_eq!(send_to(&mut window, 4).len(), 4);
        window.answered(0, false);
        window.answered(1, true);
        window.answered(2, true);
        window.answered(3, false);
        assert!(window.takes_up());
        window.start_at(1);
        assert_eq!((window.delivered(), window.next()), (3, 3));
        window.start_at(0);
        assert_eq!((window.delivered(), window.next()), (0, 0));
    }
}
