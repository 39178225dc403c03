//! From a producer's ring into the tail, and from a completed write back to the producer.
//!
//! What must always hold: a record is patched with its final offsets and store time before anyone
//! can see it; pushes are answered in log order; a record is handed to the dispatcher before its
//! producer hears of it, and never twice.

use std::collections::VecDeque;

use crate::append_queue::{AppendFailure, AppendResult, Appended, Entry, PortEnd};
use crate::dispatch::{DispatchItem, DispatchSender, NO_QUEUE};
use crate::format::light::Lengths;
use crate::format::message::{FIXED_SIZE, assign};
use crate::tail::TailWriter;

/// What the writer assigns to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Log offset of the first byte.
    pub offset: u64,
    /// Queue offset of the first record.
    pub queue_offset: i64,
    /// Store time of all records, in milliseconds.
    pub store_timestamp: i64,
}

/// A property that is appended to the record of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addition<'a> {
    /// What is appended.
    pub text: &'a [u8],
    /// The length fields of the record with it.
    pub lengths: Lengths,
}

/// Copies an entry into reserved room of the tail and patches its records; returns the log offset
/// after it.
pub(crate) fn stage(
    tail: &mut TailWriter,
    port: &mut PortEnd,
    entry: &Entry,
    place: Place,
    addition: Option<Addition<'_>>,
) -> u64 {
    port.take(entry, |first, second| {
        tail.write(place.offset, first);
        tail.write(place.offset + first.len() as u64, second);
    });
    let mut end = place.offset + u64::from(entry.len);
    if let Some(Addition { text, lengths }) = addition {
        tail.write(end, text);
        end += text.len() as u64;
        tail.write(place.offset + lengths.record.0 as u64, &lengths.record.1);
        let properties = lengths.properties;
        tail.write(place.offset + properties.0 as u64, &properties.1);
    }
    let mut at = place.offset;
    let mut queue_offset = place.queue_offset;
    for _ in 0..entry.records {
        let size = record_size(tail, at);
        assert!(
            size >= FIXED_SIZE as u32 && at + u64::from(size) <= end,
            "an entry with a record of {size} bytes at {at}, ending at {end}"
        );
        patch(tail, at, queue_offset, place.store_timestamp);
        at += u64::from(size);
        if entry.assign_offset {
            queue_offset += 1;
        }
    }
    assert_eq!(at, end, "the records of an entry do not fill it");
    end
}

fn patch(tail: &mut TailWriter, at: u64, queue_offset: i64, store_timestamp: i64) {
    let mut head = [0; FIXED_SIZE];
    tail.read(at, &mut head);
    assign(&mut head, queue_offset, at, store_timestamp);
    tail.write(at, &head);
}

fn record_size(tail: &TailWriter, at: u64) -> u32 {
    let mut size = [0; 4];
    tail.read(at, &mut size);
    u32::from_be_bytes(size)
}

/// An entry that was taken from its port and waits for its answer.
#[derive(Debug)]
struct Waiting {
    port: usize,
    entry: Entry,
    place: Place,
    /// Log offset after the entry; for one that was refused, where the log stood.
    end: u64,
    refused: Option<AppendFailure>,
    /// Records handed to the dispatcher, and the log offset after them.
    dispatched: u32,
    dispatched_to: u64,
}

/// All entries that wait for their answers, in log order.
pub(crate) struct Unanswered {
    waiting: VecDeque<Waiting>,
    answered_ports: Vec<bool>,
}

impl Unanswered {
    /// Room for `capacity` entries of `ports` ports, so that waiting allocates nothing.
    pub fn new(ports: usize, capacity: usize) -> Unanswered {
        let waiting = VecDeque::with_capacity(capacity);
        Unanswered {
            waiting,
            answered_ports: vec![false; ports],
        }
    }

    /// Whether everybody was answered.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the next answer is due now that the log is acknowledged up to this offset.
    pub fn is_due(&self, acknowledged: u64) -> bool {
        self.waiting
            .front()
            .is_some_and(|front| front.end <= acknowledged)
    }

    /// A staged entry.
    pub fn staged(&mut self, port: usize, entry: Entry, place: Place, end: u64) {
        self.push(port, entry, place, end, None);
    }

    /// An entry that was refused while the log stood at `place`: answered after those before it.
    pub fn refused(&mut self, port: usize, entry: Entry, log_end: u64, why: AppendFailure) {
        let place = Place {
            offset: log_end,
            queue_offset: 0,
            store_timestamp: 0,
        };
        self.push(port, entry, place, log_end, Some(why));
    }

    fn push(
        &mut self,
        port: usize,
        entry: Entry,
        place: Place,
        end: u64,
        refused: Option<AppendFailure>,
    ) {
        self.waiting.push_back(Waiting {
            port,
            entry,
            place,
            end,
            refused,
            dispatched: 0,
            dispatched_to: place.offset,
        });
    }

    /// Answers, in order, everything up to log offset `acknowledged`, and what was refused; with
    /// `latched` the rest too, as failed. `is_watched` tells of a slot whether somebody waits for
    /// its queue. False if the dispatcher's queue filled up: call again.
    pub fn answer(
        &mut self,
        acknowledged: u64,
        latched: Option<&AppendFailure>,
        tail: &TailWriter,
        (dispatcher, is_watched): (&mut DispatchSender, &mut dyn FnMut(u32) -> bool),
        ports: &mut [PortEnd],
    ) -> bool {
        while let Some(front) = self.waiting.front_mut() {
            let outcome = if let Some(why) = front.refused.take() {
                if front.end > acknowledged && latched.is_none() {
                    front.refused = Some(why);
                    return true;
                }
                Err(why)
            } else if front.end <= acknowledged {
                if !dispatch(front, tail, dispatcher, is_watched) {
                    return false;
                }
                Ok(Appended {
                    physical_offset: front.place.offset,
                    queue_offset: front.place.queue_offset,
                    store_timestamp: front.place.store_timestamp,
                    end: front.end,
                })
            } else if let Some(why) = latched {
                Err(why.clone())
            } else {
                return true;
            };
            ports[front.port].answer(AppendResult {
                token: front.entry.token,
                outcome,
            });
            self.answered_ports[front.port] = true;
            self.waiting.pop_front();
        }
        true
    }

    /// The fault of that name.
    #[cfg(test)]
    pub fn dispatch_early(&mut self, tail: &TailWriter, dispatcher: &mut DispatchSender) {
        let mut staged = self.waiting.iter_mut().filter(|one| one.refused.is_none());
        staged.all(|waiting| dispatch(waiting, tail, dispatcher, &mut |_| true));
    }

    /// Calls `wake` for every port answered since the last call.
    pub fn wake_answered(&mut self, wake: &mut dyn FnMut(usize)) {
        for (port, answered) in self.answered_ports.iter_mut().enumerate() {
            if std::mem::take(answered) {
                wake(port);
            }
        }
    }
}

/// Hands an entry's records to the dispatcher; false if its queue filled up on the way.
fn dispatch(
    waiting: &mut Waiting,
    tail: &TailWriter,
    dispatcher: &mut DispatchSender,
    is_watched: &mut dyn FnMut(u32) -> bool,
) -> bool {
    let assigned = waiting.entry.assign_offset;
    let light = waiting.entry.light > 0;
    // Which of its light queues somebody waits for is not looked up.
    let urgent = light || assigned && is_watched(waiting.entry.slot);
    while waiting.dispatched < waiting.entry.records {
        let size = record_size(tail, waiting.dispatched_to);
        let item = DispatchItem {
            physical_offset: waiting.dispatched_to,
            size,
            slot: if assigned {
                waiting.entry.slot
            } else {
                NO_QUEUE
            },
            queue_offset: waiting.place.queue_offset + i64::from(waiting.dispatched),
            light,
        };
        if dispatcher.push(item, urgent).is_err() {
            return false;
        }
        waiting.dispatched += 1;
        waiting.dispatched_to += u64::from(size);
    }
    assert_eq!(
        waiting.dispatched_to, waiting.end,
        "a record changed its size while it waited"
    );
    true
}
