//! Requests that wait on a network core: for a message of a queue, for the dispatcher to catch up,
//! and always for a deadline.
//!
//! What must always hold: a parked request is found by its queue, by its connection and by its
//! deadline, or not at all; taking it removes it from all three. Nothing allocates once the tables
//! have reached their working size.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Width of a wheel bucket: how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(8);
/// Buckets of the wheel; deadlines farther away than one turn wait for another turn.
const BUCKETS: usize = 4096;
/// No entry.
const NONE: u32 = u32::MAX;

/// How many requests may wait.
#[derive(Copy, Clone, Debug)]
pub struct ParkedLimits {
    /// On one core.
    pub total: usize,
    /// Of one connection.
    pub per_connection: usize,
    /// Bytes that those of one core keep besides.
    pub bytes: usize,
    /// Bytes that those of one connection keep besides.
    pub bytes_per_connection: usize,
}

impl Default for ParkedLimits {
    fn default() -> Self {
        Self {
            total: 262_144,
            per_connection: 16_384,
            bytes: 256 << 20,
            bytes_per_connection: 64 << 20,
        }
    }
}

/// The neighbours of an entry in one list.
#[derive(Copy, Clone)]
struct Links {
    previous: u32,
    next: u32,
}

/// A list of entries, in the order in which they were parked.
#[derive(Copy, Clone)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: List = List {
        first: NONE,
        last: NONE,
    };
}

/// The lists that each entry is in: the places of their [`Links`].
const BUCKET: usize = 0;
const SLOT: usize = 1;
const CONNECTION: usize = 2;

struct Entry<C, T> {
    value: Option<T>,
    connection: C,
    slot: u32,
    bytes: usize,
    deadline: u64,
    links: [Links; 3],
}

/// The waiting requests of one connection.
struct Own {
    waiting: List,
    count: usize,
    bytes: usize,
}

/// The waiting requests of one core; `C` names connections, `T` is what waits.
pub struct Parked<C, T> {
    entries: Vec<Entry<C, T>>,
    free: Vec<u32>,
    by_slot: Vec<List>,
    by_connection: HashMap<C, Own>,
    bytes: usize,
    buckets: Box<[List]>,
    occupied: Box<[u64]>,
    start: Instant,
    swept: u64,
    limits: ParkedLimits,
}

impl<C: Copy + Eq + Hash, T> Parked<C, T> {
    /// Nothing parked; `now` starts the wheel.
    pub fn new(limits: ParkedLimits, now: Instant) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_slot: Vec::new(),
            by_connection: HashMap::new(),
            bytes: 0,
            buckets: vec![List::EMPTY; BUCKETS].into_boxed_slice(),
            occupied: vec![0; BUCKETS / 64].into_boxed_slice(),
            start: now,
            swept: 0,
            limits,
        }
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets `value`, which keeps `bytes` besides, wait for queue `slot` until `deadline`. Gives it
    /// back when a limit is reached.
    pub fn park(
        &mut self,
        connection: C,
        slot: u32,
        deadline: Instant,
        bytes: usize,
        value: T,
    ) -> Result<u32, T> {
        let taken = self.entries.len() - self.free.len();
        let limits = &self.limits;
        let (own_count, own_bytes) = self
            .by_connection
            .get(&connection)
            .map_or((0, 0), |own| (own.count, own.bytes));
        if taken >= limits.total
            || own_count >= limits.per_connection
            || self.bytes + bytes > limits.bytes
            || own_bytes + bytes > limits.bytes_per_connection
        {
            return Err(value);
        }
        // A deadline that is over is noticed at the next sweep, never in a bucket just swept.
        let tick = self.tick(deadline).max(self.swept + 1);
        let entry = Entry {
            value: Some(value),
            connection,
            slot,
            bytes,
            deadline: tick,
            links: [Links {
                previous: NONE,
                next: NONE,
            }; 3],
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.bytes += bytes;
        self.link(index);
        Ok(index)
    }

    /// Removes a waiting request.
    pub fn take(&mut self, index: u32) -> Option<T> {
        let value = self.entries.get_mut(index as usize)?.value.take()?;
        self.unlink(index);
        self.free.push(index);
        Some(value)
    }

    /// Removes a waiting request and names its connection.
    pub fn take_owned(&mut self, index: u32) -> Option<(C, T)> {
        let connection = self.entries.get(index as usize)?.connection;
        Some((connection, self.take(index)?))
    }

    /// A waiting request and its connection.
    pub fn get(&self, index: u32) -> Option<(C, &T)> {
        let entry = self.entries.get(index as usize)?;
        Some((entry.connection, entry.value.as_ref()?))
    }

    /// A waiting request, for a change in place.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// Appends the requests that wait for queue `slot` to `out`, oldest first.
    pub fn waiting_for(&self, slot: u32, out: &mut Vec<u32>) {
        let mut index = self
            .by_slot
            .get(slot as usize)
            .map_or(NONE, |list| list.first);
        while index != NONE {
            out.push(index);
            index = self.entries[index as usize].links[SLOT].next;
        }
    }

    /// Appends all waiting requests to `out`.
    pub fn all(&self, out: &mut Vec<u32>) {
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.value.is_some() {
                out.push(index as u32);
            }
        }
    }

    /// Appends requests whose deadline is over to `out`, about `most` of them. They stay until
    /// taken: the caller takes what it was given, and asks again until nothing comes.
    pub fn expired(&mut self, now: Instant, most: usize, out: &mut Vec<u32>) {
        let now = self.past_tick(now);
        // Farther back than a turn of the wheel every bucket is looked at once.
        self.swept = self.swept.max(now.saturating_sub(BUCKETS as u64));
        while self.swept < now {
            let bucket = (self.swept + 1) as usize % BUCKETS;
            if self.occupied[bucket / 64] >> (bucket % 64) & 1 != 0 {
                let mut index = self.buckets[bucket].first;
                while index != NONE {
                    if out.len() >= most {
                        return;
                    }
                    let entry = &self.entries[index as usize];
                    if entry.deadline <= now {
                        out.push(index);
                    }
                    index = entry.links[BUCKET].next;
                }
            }
            self.swept += 1;
        }
    }

    /// When [`Parked::expired`] should be asked next.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let first = (self.swept + 1) as usize;
        let mut step = 0;
        while step < BUCKETS {
            let bucket = (first + step) % BUCKETS;
            let word = self.occupied[bucket / 64] >> (bucket % 64);
            if word != 0 {
                let ticks = self.swept + 1 + step as u64 + u64::from(word.trailing_zeros());
                // Enough for 584 years.
                let since = (TICK.as_nanos() as u64).saturating_mul(ticks);
                return Some(self.start + Duration::from_nanos(since));
            }
            step += 64 - bucket % 64;
        }
        None
    }

    /// Forgets everything of a connection.
    pub fn closed(&mut self, connection: C) {
        while let Some(own) = self.by_connection.get(&connection) {
            self.take(own.waiting.first);
        }
    }

    /// The first tick at which `instant` has passed.
    fn tick(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        since.as_nanos().div_ceil(TICK.as_nanos()) as u64
    }

    /// The last tick that has passed at `now`.
    fn past_tick(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.start).as_nanos() / TICK.as_nanos()) as u64
    }

    /// Puts a new entry at the end of its three lists.
    fn link(&mut self, index: u32) {
        let Entry {
            connection,
            slot,
            bytes,
            deadline,
            ..
        } = self.entries[index as usize];
        let slot = slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, List::EMPTY);
        }
        append(&mut self.entries, &mut self.by_slot[slot], SLOT, index);
        let own = self.by_connection.entry(connection).or_insert(Own {
            waiting: List::EMPTY,
            count: 0,
            bytes: 0,
        });
        append(&mut self.entries, &mut own.waiting, CONNECTION, index);
        own.count += 1;
        own.bytes += bytes;
        let bucket = deadline as usize % BUCKETS;
        append(&mut self.entries, &mut self.buckets[bucket], BUCKET, index);
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
    }

    /// Takes an entry out of its three lists.
    fn unlink(&mut self, index: u32) {
        let Entry {
            connection,
            slot,
            bytes,
            deadline,
            ..
        } = self.entries[index as usize];
        self.bytes -= bytes;
        if let Some(list) = self.by_slot.get_mut(slot as usize) {
            cut(&mut self.entries, list, SLOT, index);
        }
        if let Some(own) = self.by_connection.get_mut(&connection) {
            cut(&mut self.entries, &mut own.waiting, CONNECTION, index);
            own.count -= 1;
            own.bytes -= bytes;
            if own.count == 0 {
                self.by_connection.remove(&connection);
            }
        }
        let bucket = deadline as usize % BUCKETS;
        cut(&mut self.entries, &mut self.buckets[bucket], BUCKET, index);
        if self.buckets[bucket].first == NONE {
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        }
    }
}

fn append<C, T>(entries: &mut [Entry<C, T>], list: &mut List, kind: usize, index: u32) {
    entries[index as usize].links[kind] = Links {
        previous: list.last,
        next: NONE,
    };
    match list.last {
        NONE => list.first = index,
        last => entries[last as usize].links[kind].next = index,
    }
    list.last = index;
}

fn cut<C, T>(entries: &mut [Entry<C, T>], list: &mut List, kind: usize, index: u32) {
    let Links { previous, next } = entries[index as usize].links[kind];
    match previous {
        NONE => list.first = next,
        previous => entries[previous as usize].links[kind].next = next,
    }
    match next {
        NONE => list.last = previous,
        next => entries[next as usize].links[kind].previous = previous,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked() -> (Parked<u64, &'static str>, Instant) {
        let now = Instant::now();
        (
            Parked::new(
                ParkedLimits {
                    total: 4,
                    per_connection: 3,
                    bytes: 100,
                    bytes_per_connection: 60,
                },
                now,
            ),
            now,
        )
    }

    fn due(parked: &mut Parked<u64, &'static str>, now: Instant) -> Vec<&'static str> {
        let mut out = Vec::new();
        let mut values = Vec::new();
        loop {
            parked.expired(now, 2, &mut out);
            if out.is_empty() {
                return values;
            }
            values.extend(out.drain(..).filter_map(|index| parked.take(index)));
        }
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_wait_is_no_shorter_after_a_year_and_more() {
        let (mut parked, start) = parked();
        let now = start + Duration::from_secs(400 * 86_400);
        assert!(due(&mut parked, now).is_empty());
        parked.park(1, 0, now + ms(1000), 0, "a").unwrap();
        let wake = parked.next_deadline().unwrap();
        assert!(wake >= now + ms(1000) && wake <= now + ms(1000) + TICK);
        assert_eq!(due(&mut parked, wake), ["a"]);
    }

    #[test]
    fn a_deadline_is_noticed_within_a_tick_and_never_early() {
        let (mut parked, start) = parked();
        parked.park(1, 0, start + ms(1000), 0, "a").unwrap();
        let wake = parked.next_deadline().unwrap();
        assert!(wake >= start + ms(1000) && wake <= start + ms(1000) + TICK);
        assert!(due(&mut parked, start + ms(999)).is_empty());
        assert_eq!(due(&mut parked, wake), ["a"]);
        assert_eq!(parked.next_deadline(), None);
    }

    #[test]
    fn a_deadline_farther_than_a_turn_of_the_wheel_waits_for_its_turn() {
        let (mut parked, start) = parked();
        let far = start + TICK * (BUCKETS as u32 + 5);
        parked.park(1, 0, far, 0, "far").unwrap();
        assert!(due(&mut parked, start + TICK * 6).is_empty());
        assert!(due(&mut parked, far - TICK).is_empty());
        assert_eq!(due(&mut parked, far + TICK), ["far"]);
    }

    #[test]
    fn a_deadline_in_the_past_is_due_at_the_next_look() {
        let (mut parked, start) = parked();
        due(&mut parked, start + ms(500));
        parked.park(1, 0, start, 0, "late").unwrap();
        let wake = parked.next_deadline().unwrap();
        assert_eq!(due(&mut parked, wake), ["late"]);
    }

    #[test]
    fn what_waits_for_a_queue_is_found_by_its_slot() {
        let (mut parked, start) = parked();
        parked.park(1, 7, start + ms(10), 0, "a").unwrap();
        parked.park(2, 3, start + ms(10), 0, "b").unwrap();
        parked.park(2, 7, start + ms(10), 0, "c").unwrap();
        let mut found = Vec::new();
        parked.waiting_for(7, &mut found);
        let values: Vec<_> = found
            .into_iter()
            .filter_map(|index| parked.take(index))
            .collect();
        assert_eq!(values, ["a", "c"]);
        assert_eq!(due(&mut parked, start + ms(100)), ["b"]);
    }

    #[test]
    fn a_closed_connection_takes_its_requests_along() {
        let (mut parked, start) = parked();
        parked.park(1, 0, start + ms(10), 0, "a").unwrap();
        parked.park(2, 0, start + ms(10), 0, "b").unwrap();
        parked.park(1, 1, start + ms(20), 0, "c").unwrap();
        parked.closed(1);
        assert_eq!(parked.len(), 1);
        assert_eq!(due(&mut parked, start + ms(100)), ["b"]);
    }

    #[test]
    fn limits_hold_per_connection_and_in_all() {
        let (mut parked, start) = parked();
        for value in ["a", "b", "c"] {
            parked.park(1, 0, start, 0, value).unwrap();
        }
        assert_eq!(parked.park(1, 0, start, 0, "d"), Err("d"));
        parked.park(2, 0, start, 0, "d").unwrap();
        assert_eq!(parked.park(3, 0, start, 0, "e"), Err("e"));
    }

    #[test]
    fn bytes_kept_are_limited_per_connection_and_in_all() {
        let (mut parked, start) = parked();
        let first = parked.park(1, 0, start, 60, "a").unwrap();
        assert_eq!(parked.park(1, 0, start, 1, "b"), Err("b"));
        parked.park(2, 0, start, 40, "b").unwrap();
        assert_eq!(parked.park(3, 0, start, 1, "c"), Err("c"));
        parked.park(3, 0, start, 0, "c").unwrap();
        assert_eq!(parked.take(first), Some("a"));
        parked.park(1, 0, start, 60, "a").unwrap();
        parked.closed(1);
        parked.closed(2);
        parked.park(4, 0, start, 60, "d").unwrap();
    }

    #[test]
    fn what_waits_for_a_queue_stays_in_order_as_others_go() {
        let now = Instant::now();
        let mut parked: Parked<u64, u32> = Parked::new(ParkedLimits::default(), now);
        let indices: Vec<u32> = (0..9)
            .map(|n| parked.park(u64::from(n % 3), 5, now, 0, n).unwrap())
            .collect();
        for gone in [0, 8, 4] {
            assert_eq!(parked.take(indices[gone]), Some(gone as u32));
        }
        parked.closed(1);
        parked.park(7, 5, now, 0, 9).unwrap();
        let mut found = Vec::new();
        parked.waiting_for(5, &mut found);
        let values: Vec<u32> = found.iter().map(|&at| *parked.get(at).unwrap().1).collect();
        assert_eq!(values, [2, 3, 5, 6, 9]);
    }

    #[test]
    fn waits_that_end_together_are_given_out_in_pieces() {
        let now = Instant::now();
        let mut parked: Parked<u64, u32> = Parked::new(ParkedLimits::default(), now);
        for n in 0..100 {
            parked.park(1, 0, now + ms(50), 0, n).unwrap();
        }
        parked.park(1, 0, now + ms(20), 0, 100).unwrap();
        let later = now + ms(200);
        let mut pieces = Vec::new();
        let mut out = Vec::new();
        loop {
            parked.expired(later, 30, &mut out);
            if out.is_empty() {
                break;
            }
            pieces.push(out.len());
            for index in out.drain(..) {
                assert!(parked.take(index).is_some());
            }
            let next = parked.next_deadline();
            assert!(
                next.is_none_or(|next| next <= later),
                "the rest is due at once"
            );
        }
        assert_eq!(pieces, [30, 30, 30, 11]);
        assert!(parked.is_empty());
    }
}
