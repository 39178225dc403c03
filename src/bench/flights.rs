//! The sends on their way, by the number that their answers carry.

use std::time::Instant;

/// A send on its way.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// From when its latency counts.
    pub since: Instant,
    /// Number of its first message.
    pub sequence: u64,
    /// Bytes of the bodies.
    pub bytes: u64,
    /// Place of its topic among those of the run.
    pub topic: usize,
    /// Queue that it is for.
    pub queue: i32,
    /// Its offset must not lie before this one: all before were acknowledged before it was sent.
    pub after: i64,
}

/// A table that never grows: answers come nearly in the order of their requests, so that a send is
/// nearly always found where it is looked for first.
#[derive(Debug)]
pub struct Flights(Vec<Option<(i32, Sent)>>);

impl Flights {
    /// Room for that many.
    pub fn new(in_flight: usize) -> Self {
        Self(vec![None; (in_flight * 4).next_power_of_two()])
    }

    /// The places at which a number may stand, best first.
    fn places(&self, opaque: i32) -> impl Iterator<Item = usize> + use<> {
        let size = self.0.len();
        (0..size).map(move |step| (opaque as u32 as usize).wrapping_add(step) & (size - 1))
    }

    /// Adds one; false when there is no room.
    pub fn insert(&mut self, opaque: i32, sent: Sent) -> bool {
        // A send that many others have overtaken may still be where this one belongs.
        let free = self.places(opaque).find(|place| self.0[*place].is_none());
        let Some(place) = free else { return false };
        self.0[place] = Some((opaque, sent));
        true
    }

    /// Takes all of them out.
    pub fn drain(&mut self) -> impl Iterator<Item = Sent> + use<> {
        let places = std::mem::take(&mut self.0);
        places.into_iter().flatten().map(|(_, sent)| sent)
    }

    /// Takes the one with that number out.
    pub fn take(&mut self, opaque: i32) -> Option<Sent> {
        let is_it = |place: &usize| self.0[*place].is_some_and(|(number, _)| number == opaque);
        let place = self.places(opaque).find(is_it)?;
        self.0[place].take().map(|(_, sent)| sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank(since: Instant) -> Sent {
        Sent {
            since,
            sequence: 0,
            bytes: 0,
            topic: 0,
            queue: 0,
            after: 0,
        }
    }

    #[test]
    fn an_answer_that_many_others_overtook_is_found() {
        let since = Instant::now();
        let sent = |sequence| Sent {
            sequence,
            ..blank(since)
        };
        let mut flights = Flights::new(2);
        assert!(flights.insert(i32::MAX, sent(0)));
        for number in 1..1000 {
            let opaque = i32::MAX.wrapping_add(number);
            assert!(flights.insert(opaque, sent(number as u64)));
            let found = flights.take(opaque).map(|sent| sent.sequence);
            assert_eq!(found, Some(number as u64));
            assert!(flights.take(opaque).is_none(), "it was answered before");
        }
        assert_eq!(flights.take(i32::MAX).map(|sent| sent.sequence), Some(0));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let since = Instant::now();
        let sent = blank(since);
        let mut flights = Flights::new(1);
        assert!((0..4).all(|opaque| flights.insert(opaque * 4, sent)));
        assert!(!flights.insert(1, sent));
        assert!((0..4).all(|opaque| flights.take(opaque * 4).is_some()));
    }
}
