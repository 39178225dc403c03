//! What clients were told: what a cut must not take back.

use std::collections::{BTreeMap, HashMap};

use crate::later::LaterMessages;

/// Topic (an index), queue, queue offset.
pub type Place = (usize, i32, i64);

/// A message as a client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which message (see `message`).
    pub number: u64,
    /// Where it stands in the log.
    pub log_offset: i64,
}

/// What the clients of one run were told.
#[derive(Default)]
pub struct Gathered {
    /// Acknowledged with SEND_OK.
    pub acknowledged: Vec<(Place, Told)>,
    /// Handed to a consumer.
    pub seen: Vec<(Place, Told)>,
    /// Ends of queues that were answered.
    pub ends: BTreeMap<(usize, i32), i64>,
    /// Consumer offsets stored with success.
    pub committed: BTreeMap<(usize, i32), i64>,
    /// Refused sends by code and text.
    pub refused: BTreeMap<(i32, String), u64>,
    /// Failed pulls by code and text.
    pub failed_pulls: BTreeMap<(i32, String), u64>,
    /// Topics whose creation was answered with success, with their queues.
    pub created: Vec<(String, i32)>,
    /// Messages in batches that were answered with SEND_OK.
    pub batched: u64,
    /// Messages that are to come later.
    pub later: LaterMessages,
    /// What was wrong at once.
    pub wrong: Vec<String>,
}

impl Gathered {
    /// Adds what another client was told.
    pub fn join(&mut self, other: Gathered) {
        self.acknowledged.extend(other.acknowledged);
        self.seen.extend(other.seen);
        for (queue, end) in other.ends {
            let known = self.ends.entry(queue).or_default();
            *known = (*known).max(end);
        }
        self.committed.extend(other.committed);
        for (refusal, count) in other.refused {
            *self.refused.entry(refusal).or_default() += count;
        }
        for (refusal, count) in other.failed_pulls {
            *self.failed_pulls.entry(refusal).or_default() += count;
        }
        self.created.extend(other.created);
        self.batched += other.batched;
        self.later.extend(other.later);
        self.wrong.extend(other.wrong);
    }
}

/// What a store has been told to keep, over all its cuts.
#[derive(Default)]
pub struct Ledger {
    /// What a client was told stands at a place.
    pub told: HashMap<Place, Told>,
    /// The highest end of a queue that was told.
    pub ends: BTreeMap<(usize, i32), i64>,
    /// Topics created, with their queues.
    pub created: BTreeMap<String, i32>,
    /// The highest offset that the consumer stored in a queue.
    pub committed: BTreeMap<(usize, i32), i64>,
    /// The offset that the last start found: no later one may be behind it.
    pub kept: BTreeMap<(usize, i32), i64>,
    /// Messages that are to come later.
    pub later: LaterMessages,
}

impl Ledger {
    /// Takes over what a run's clients were told; what contradicts it, as sentences.
    pub fn add(&mut self, gathered: &Gathered) -> Vec<String> {
        let mut wrong = gathered.wrong.clone();
        for (place, told) in gathered.acknowledged.iter().chain(&gathered.seen) {
            if let Some(known) = self.told.insert(*place, *told)
                && known != *told
            {
                wrong.push(format!(
                    "{} was told to hold {known:x?}, then {told:x?}",
                    name(place)
                ));
            }
        }
        for (queue, end) in &gathered.ends {
            let known = self.ends.entry(*queue).or_default();
            *known = (*known).max(*end);
        }
        for (queue, offset) in &gathered.committed {
            let known = self.committed.entry(*queue).or_default();
            *known = (*known).max(*offset);
        }
        self.later.extend(&gathered.later);
        self.created.extend(gathered.created.iter().cloned());
        wrong
    }
}

/// A place in words.
pub fn name((topic, queue, offset): &Place) -> String {
    format!("{} queue {queue} offset {offset}", topic_name(*topic))
}

/// Name of a topic.
pub fn topic_name(topic: usize) -> String {
    format!("Power{topic}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_given_to_a_second_message_is_noticed() {
        let mut ledger = Ledger::default();
        let place = (0, 1, 7);
        let told = |number| Told {
            number,
            log_offset: 9,
        };
        let gathered = |number| Gathered {
            acknowledged: vec![(place, told(number))],
            ..Gathered::default()
        };
        assert!(ledger.add(&gathered(1)).is_empty());
        assert!(ledger.add(&gathered(1)).is_empty());
        assert_eq!(ledger.add(&gathered(2)).len(), 1);
    }
}
