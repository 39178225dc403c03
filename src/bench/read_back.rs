//! Reads the messages of a run back after it: each one that was acknowledged must be in its queue,
//! once, whole, and at the offset that its SEND_OK named.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use saturnmq_net::codes::request;
use saturnmq_storage::format::record::Record;

use super::BenchError;
use super::faults::Faults;
use super::monitor::Monitor;
use super::payload::{Arrivals, Content, Numbers, STAMP_BYTES};
use super::plan::Plan;
use super::produce::{Tallies, are_done};
use super::puller::{GROUP, Puller, Queue, ends_of};
use super::report::Report;
use super::route::Route;

/// Most connections that read from one broker.
const READERS: usize = 4;
/// Queues that a connection reads at a time.
const QUEUES: usize = 64;
/// Most messages of one pull.
const PULL: i32 = 128;
/// How long an acknowledged message may take to show in its queue.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// How long after the last message it is looked for what should not be there: a message that comes
/// again.
pub const SETTLED: Duration = Duration::from_secs(1);
/// Queue offset that has not been asked for.
const UNKNOWN: i64 = -1;
/// How long a reader waits before it looks again for messages that are not there yet.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Longest wait for an answer before it is looked whether the time is over.
const LOOK: Duration = Duration::from_millis(100);

/// Where a message is, as one number; the sum over many tells whether all are where they should be.
pub fn mark(producer: u32, sequence: u64, queue: i32, offset: i64) -> u64 {
    let mut mark = 0_u64;
    for part in [
        u64::from(producer),
        sequence,
        u64::from(queue.cast_unsigned()),
        offset.cast_unsigned(),
    ] {
        // The finisher of splitmix64: each bit of the input changes half of those of the output.
        mark = (mark ^ part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mark = (mark ^ (mark >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mark = (mark ^ (mark >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mark ^= mark >> 31;
    }
    mark
}

/// Where the queues ended before a run: what is read back begins there.
pub struct Start<'a> {
    plan: &'a Plan,
    /// By broker: its address and its queues.
    brokers: Vec<(&'a str, Vec<Queue>)>,
}

/// What readers share.
struct Shared<'a> {
    plan: &'a Plan,
    run: u64,
    accepted: &'a [Numbers],
    expected: u64,
    /// Messages found so far.
    found: AtomicU64,
    deadline: Instant,
    /// Nothing comes any more from then on.
    settled: Instant,
    stop: AtomicBool,
}

/// What one reader found.
#[derive(Default)]
struct Found {
    arrivals: Arrivals,
    /// Sum of the marks of acknowledged messages.
    places: u64,
    faults: Faults,
    /// Whether it was stopped before it had read all.
    cut: bool,
    /// Whether it could not look.
    failed: bool,
}

impl<'a> Start<'a> {
    /// Where the queues end now; `None` when nothing is to be read back.
    ///
    /// # Errors
    /// [`BenchError`] when a broker does not say.
    pub fn now(plan: &'a Plan, routes: &'a [Route]) -> Result<Option<Self>, BenchError> {
        if plan.read_back.is_zero() {
            return Ok(None);
        }
        let mut brokers: Vec<(&str, Vec<Queue>)> = Vec::new();
        for route in routes {
            // A topic that does not exist has no ends yet.
            let next = if route.is_new { 0 } else { UNKNOWN };
            let queues = (0..route.queues).map(|id| Queue::new(&route.topic, id, next, i64::MAX));
            match brokers.iter_mut().find(|(at, _)| *at == route.address) {
                Some((_, known)) => known.extend(queues),
                None => brokers.push((&route.address, queues.collect())),
            }
        }
        for (address, queues) in &mut brokers {
            let mut known: Vec<_> = queues.iter_mut().filter(|q| q.next == UNKNOWN).collect();
            let asked: Vec<_> = known.iter().map(|q| (q.topic.as_str(), q.id)).collect();
            let mut client = plan.connect(address)?;
            let ends = ends_of(&mut client, request::GET_MAX_OFFSET, &asked, plan.timeout)?;
            for (queue, end) in known.iter_mut().zip(ends) {
                queue.next = end;
            }
        }
        Ok(Some(Self { plan, brokers }))
    }

    /// Reads what has been sent since, and adds to the report what was checked and what is wrong.
    ///
    /// # Errors
    /// [`BenchError`] when a reader's thread fails.
    pub fn check(
        self,
        run: u64,
        sent: &Tallies,
        monitor: &mut Monitor<'_>,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let shared = Shared {
            plan: self.plan,
            run,
            accepted: &sent.accepted,
            expected: sent.expected,
            found: AtomicU64::new(0),
            deadline: Instant::now() + self.plan.read_back,
            settled: sent.last + SETTLED,
            stop: AtomicBool::new(false),
        };
        let mut all = Found::default();
        thread::scope(|scope| {
            let shared = &shared;
            let mut readers = Vec::new();
            for (address, queues) in self.brokers {
                let share = queues.len().div_ceil(READERS).max(1);
                for queues in queues.chunks(share) {
                    let queues = queues.to_vec();
                    readers.push(scope.spawn(move || read(shared, address, queues)));
                }
            }
            let found = || shared.found.load(Ordering::Relaxed);
            if !monitor.attend(|| are_done(&readers), "read back", found, shared.expected) {
                shared.stop.store(true, Ordering::Relaxed);
            }
            for reader in readers {
                let part = reader
                    .join()
                    .map_err(|_| BenchError::System("a reader thread panicked".to_owned()))?;
                all.arrivals.add(&part.arrivals, &mut all.faults);
                all.places = all.places.wrapping_add(part.places);
                all.faults.add(&part.faults);
                all.cut |= part.cut;
                all.failed |= part.failed;
            }
            Ok::<_, BenchError>(())
        })?;
        judge(&shared, sent, &mut all, report);
        Ok(())
    }
}

/// What the readers found, as the report says it.
fn judge(shared: &Shared<'_>, sent: &Tallies, all: &mut Found, report: &mut Report) {
    let found = shared.found.load(Ordering::Relaxed);
    let expected = shared.expected;
    let small = shared.is_small();
    let was_right = all.faults.total() == 0;
    let missing = if small {
        expected.saturating_sub(found)
    } else {
        let of = |(producer, accepted)| all.arrivals.missing(producer, accepted);
        sent.accepted.iter().enumerate().map(of).sum()
    };
    let what = match small {
        true => "counted (bodies under 40 bytes say no more)",
        false => "whole, once, and where SEND_OK said",
    };
    report.checked = format!("{found} of {expected} messages read back: {what}");
    if all.failed {
        let why = "; the rest could not be looked at, and loss is not judged";
        report.checked.push_str(why);
        let kind = "message acknowledged and not looked at: reading back failed";
        all.faults.count_many(kind, missing);
    } else if all.cut {
        report
            .checked
            .push_str("; the rest was not read in time, and loss is not judged");
    } else {
        let kind = "message acknowledged and not found in its queue";
        all.faults.count_many(kind, missing);
        if !small && missing == 0 && was_right && all.places != sent.places {
            let kind = "messages at other queue offsets than SEND_OK named";
            all.faults.count(kind);
        }
    }
    report.faults.add(&all.faults);
}

impl Shared<'_> {
    /// Whether bodies are too short to say which message they are.
    fn is_small(&self) -> bool {
        (self.plan.shape.sizes.smallest() as usize) < STAMP_BYTES
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    fn has_all(&self) -> bool {
        self.found.load(Ordering::Relaxed) >= self.expected
    }

    /// Notes a message that was read; whether it is one that was looked for.
    fn note(&self, record: &Record<'_>, content: Content, found: &mut Found) -> bool {
        let stamp = match content {
            Content::Whole(stamp) if stamp.run == self.run => stamp,
            Content::Foreign => return self.is_small(),
            _ => return self.is_small() && content != Content::Damaged,
        };
        let is_new = found.arrivals.note(stamp.producer, stamp.sequence);
        if !is_new {
            found.faults.count("message stored twice");
        }
        let of = self.accepted.get(stamp.producer as usize);
        let is_acknowledged = of.is_some_and(|of| of.contains(stamp.sequence));
        if is_acknowledged {
            let (queue, offset) = (record.queue_id(), record.queue_offset());
            let mark = mark(stamp.producer, stamp.sequence, queue, offset);
            found.places = found.places.wrapping_add(mark);
        }
        is_new && is_acknowledged
    }
}

/// Reads queues from where they ended before the run to where they end, again and again until all
/// messages were found or no more come.
fn read(shared: &Shared<'_>, address: &str, mut queues: Vec<Queue>) -> Found {
    let mut found = Found::default();
    if let Err(error) = read_all(shared, address, &mut queues, &mut found) {
        found.faults.count(&format!("reading back: {error}"));
        found.failed = true;
    }
    found
}

fn read_all(
    shared: &Shared<'_>,
    address: &str,
    queues: &mut [Queue],
    found: &mut Found,
) -> Result<(), BenchError> {
    let client = shared.plan.connect(address)?;
    let mut puller = Puller::new(client, GROUP, Vec::new(), PULL, Duration::ZERO);
    let mut progress = (shared.found.load(Ordering::Relaxed), Instant::now());
    loop {
        // One more look when all are there: what is stored twice comes behind the first.
        let is_last = shared.has_all() && Instant::now() >= shared.settled;
        for queues in queues.chunks_mut(QUEUES) {
            if !read_to_ends(shared, &mut puller, queues, found)? {
                found.cut = true;
                return Ok(());
            }
        }
        let so_far = shared.found.load(Ordering::Relaxed);
        if so_far != progress.0 {
            progress = (so_far, Instant::now());
        }
        if is_last || progress.1.elapsed() > LAST_WAIT {
            found.faults.add(&puller.faults);
            return Ok(());
        }
        thread::sleep(LOOK_AGAIN);
        while shared.has_all() && Instant::now() < shared.settled && !shared.is_over() {
            thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Reads some queues to where they end now; false when the time was over before.
fn read_to_ends(
    shared: &Shared<'_>,
    puller: &mut Puller,
    queues: &mut [Queue],
    found: &mut Found,
) -> Result<bool, BenchError> {
    let asked: Vec<_> = queues.iter().map(|q| (q.topic.as_str(), q.id)).collect();
    let timeout = shared.plan.timeout;
    let ends = ends_of(puller.client(), request::GET_MAX_OFFSET, &asked, timeout)?;
    for (queue, end) in queues.iter_mut().zip(ends) {
        queue.end = end;
    }
    puller.take_queues(queues.to_vec());
    let mut heard = Instant::now();
    let mut in_time = true;
    while !puller.is_done() {
        if shared.is_over() {
            in_time = false;
            break;
        }
        puller.ask()?;
        let mut number = 0;
        let limit = heard + timeout;
        let asked = puller.answer(limit.min(Instant::now() + LOOK), |record, content, _| {
            number += u64::from(shared.note(record, content, found));
        })?;
        if asked.is_some() {
            heard = Instant::now();
        } else if Instant::now() >= limit {
            let text = format!("no answer to a pull within {timeout:?}");
            return Err(BenchError::System(text));
        }
        shared.found.fetch_add(number, Ordering::Relaxed);
    }
    for (queue, read) in queues.iter_mut().zip(puller.take_queues(Vec::new())) {
        *queue = read;
    }
    Ok(in_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_depends_on_every_part_of_a_place() {
        let places = [
            (0, 0, 0, 0),
            (1, 0, 0, 0),
            (0, 1, 0, 0),
            (0, 0, 1, 0),
            (0, 0, 0, 1),
            (1, 1, 0, 0),
            (0, 1, 1, 0),
        ];
        let marks = places.map(|(a, b, c, d)| mark(a, b, c, d));
        let distinct: std::collections::BTreeSet<_> = marks.into_iter().collect();
        assert_eq!(distinct.len(), places.len());
        // Two messages that changed places have another sum.
        let sum = |one, other| mark(0, 1, 0, one).wrapping_add(mark(0, 2, 0, other));
        assert_ne!(sum(7, 8), sum(8, 7));
    }
}
