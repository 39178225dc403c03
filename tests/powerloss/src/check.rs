//! After a cut: is everything there that clients were told?

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::offset::QueryConsumerOffset;
use saturnmq_net::messages::query::{QueryMessage, ViewMessage};
use saturnmq_net::messages::topic::TopicName;
use saturnmq_storage::format::record::Record;

use crate::ledger::{Ledger, Place, Told, name, topic_name};
use crate::load::{ANSWER, GROUP, QUEUES, TOPICS, connect, end_of, pull};
use crate::message;

/// Messages looked up by key and by id after each cut.
const SAMPLES: usize = 24;

/// What a store holds.
pub struct Found {
    /// By place.
    pub messages: HashMap<Place, Told>,
    /// Next queue offset by queue.
    pub ends: BTreeMap<(usize, i32), i64>,
    /// What contradicts the ledger, as sentences.
    pub wrong: Vec<String>,
    /// Told messages that are gone, where the mode allows that.
    pub lost: usize,
}

/// Reads everything and compares it with the ledger. With `suffix_may_go` the newest messages may
/// be gone as one suffix of the log; the ledger forgets them then.
pub fn check(port: u16, ledger: &mut Ledger, suffix_may_go: bool, seed: u64) -> Result<Found> {
    let mut client = connect(port)?;
    let mut found = Found {
        messages: HashMap::new(),
        ends: BTreeMap::new(),
        wrong: Vec::new(),
        lost: 0,
    };
    for topic in 0..TOPICS {
        for queue in 0..QUEUES {
            read_queue(&mut client, (topic, queue), &mut found)?;
        }
    }
    only_once(&mut found);
    if suffix_may_go {
        forget_suffix(ledger, &mut found);
    }
    compare(ledger, &mut found);
    check_consumer(&mut client, ledger, &mut found)?;
    check_topics(&mut client, ledger, &mut found)?;
    check_samples(&mut client, ledger, &mut found, seed)?;
    Ok(found)
}

fn read_queue(client: &mut Client, (topic, queue): (usize, i32), found: &mut Found) -> Result<()> {
    let end = end_of(client, topic, queue)?.unwrap_or(0);
    found.ends.insert((topic, queue), end);
    let (mut offset, mut log_offset) = (0, -1);
    while offset < end {
        let pulled = pull(client, topic, queue, offset, false)?;
        if let Some((code, text)) = pulled.failure {
            let place = name(&(topic, queue, offset));
            found
                .wrong
                .push(format!("{place} cannot be read: {code} {text}"));
            return Ok(());
        }
        found.wrong.extend(pulled.wrong);
        let empty = pulled.messages.is_empty();
        for (place, told) in pulled.messages {
            if place.2 != offset {
                found
                    .wrong
                    .push(format!("{} comes where {offset} is due", name(&place)));
            }
            if told.log_offset <= log_offset {
                found
                    .wrong
                    .push(format!("{} stands before its predecessor", name(&place)));
            }
            (offset, log_offset) = (place.2 + 1, told.log_offset);
            found.messages.insert(place, told);
        }
        if pulled.next > offset || empty {
            let hole = format!("offsets {offset} to {} are a hole", pulled.next);
            found
                .wrong
                .push(format!("{} queue {queue}: {hole}", topic_name(topic)));
            offset = pulled.next.max(offset + 1);
        }
    }
    Ok(())
}

fn only_once(found: &mut Found) {
    let mut places: HashMap<u64, Place> = HashMap::new();
    for (place, told) in &found.messages {
        if let Some(other) = places.insert(told.number, *place) {
            let (here, there) = (name(place), name(&other));
            found.wrong.push(format!(
                "message {:x} stands at {here} and {there}",
                told.number
            ));
        }
    }
}

/// Takes out of the ledger what is gone, if it is all behind what is left.
fn forget_suffix(ledger: &mut Ledger, found: &mut Found) {
    let gone = |place: &Place| !found.messages.contains_key(place);
    let lost: Vec<Place> = ledger.told.keys().copied().filter(gone).collect();
    let first = lost.iter().map(|place| ledger.told[place].log_offset).min();
    if let Some(first) = first {
        let last = found.messages.values().map(|told| told.log_offset).max();
        if last.is_some_and(|last| last > first) {
            let sentence = format!("log offset {first} is lost and {last:?} is not: no suffix");
            found.wrong.push(sentence);
        }
    }
    for place in &lost {
        ledger.told.remove(place);
    }
    for (queue, end) in &mut ledger.ends {
        *end = (*end).min(found.ends.get(queue).copied().unwrap_or(0));
    }
    found.lost = lost.len();
}

fn compare(ledger: &Ledger, found: &mut Found) {
    for (place, told) in &ledger.told {
        match found.messages.get(place) {
            Some(there) if there == told => {}
            Some(there) => found.wrong.push(format!(
                "{} was told to hold {told:x?} and holds {there:x?}",
                name(place)
            )),
            None => found
                .wrong
                .push(format!("{} is gone: {told:x?}", name(place))),
        }
    }
    for ((topic, queue), told) in &ledger.ends {
        let end = found.ends.get(&(*topic, *queue)).copied().unwrap_or(0);
        if end < *told {
            let queue = format!("{} queue {queue}", topic_name(*topic));
            found.wrong.push(format!(
                "{queue} was told to end at {told} and ends at {end}"
            ));
        }
    }
}

/// What the consumer stored is there as far as a start before found it, and nothing else.
fn check_consumer(client: &mut Client, ledger: &mut Ledger, found: &mut Found) -> Result<()> {
    for (place @ (topic, queue), end) in &found.ends {
        let name = topic_name(*topic);
        let asked = QueryConsumerOffset {
            consumer_group: GROUP,
            topic: &name,
            queue_id: *queue,
            ..QueryConsumerOffset::default()
        };
        let code = request::QUERY_CONSUMER_OFFSET;
        let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
        let offset = answer.number("offset").unwrap_or(0);
        let committed = ledger.committed.get(place).copied().unwrap_or(0);
        let kept = ledger.kept.get(place).copied().unwrap_or(0).min(*end);
        if answer.code == response::SUCCESS && offset > *end {
            let sentence =
                format!("{name} queue {queue} ends at {end}, its consumer is at {offset}");
            found.wrong.push(sentence);
        }
        if offset > committed {
            let sentence =
                format!("{name} queue {queue}: {offset} is stored, {committed} was committed");
            found.wrong.push(sentence);
        }
        if offset < kept {
            let sentence = format!("{name} queue {queue}: {offset} is stored, {kept} was before");
            found.wrong.push(sentence);
        }
        ledger.kept.insert(*place, offset);
    }
    Ok(())
}

fn check_topics(client: &mut Client, ledger: &Ledger, found: &mut Found) -> Result<()> {
    for (topic, queues) in &ledger.created {
        let asked = TopicName { topic };
        let code = request::GET_TOPIC_CONFIG;
        let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
        let text = String::from_utf8_lossy(&answer.body);
        let wanted = format!("\"writeQueueNums\":{queues}");
        if answer.code != response::SUCCESS || !text.contains(&wanted) {
            let sentence = format!("topic {topic} of {queues} queues was created, and is {text}");
            found.wrong.push(sentence);
        }
    }
    Ok(())
}

/// Looks some messages up by key and by their place in the log.
fn check_samples(client: &mut Client, ledger: &Ledger, found: &mut Found, seed: u64) -> Result<()> {
    let mut all: Vec<(&Place, &Told)> = ledger.told.iter().collect();
    all.sort_unstable_by_key(|(_, told)| told.log_offset);
    let mut random = fastrand::Rng::with_seed(seed);
    // The newest are the ones a cut endangers.
    let newest = all
        .iter()
        .rev()
        .take(SAMPLES / 2)
        .copied()
        .collect::<Vec<_>>();
    let any = (0..SAMPLES / 2).filter_map(|_| random.choice(&all).copied());
    for (place, told) in newest.into_iter().chain(any) {
        let topic = topic_name(place.0);
        let key = message::key(told.number);
        let asked = QueryMessage {
            topic: &topic,
            key: &key,
            max_num: 8,
            begin_timestamp: 0,
            end_timestamp: i64::MAX,
            unique_key: false,
        };
        let code = request::QUERY_MESSAGE;
        let by_key = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
        let asked = ViewMessage {
            offset: told.log_offset,
            topic: Some(&topic),
        };
        let code = request::VIEW_MESSAGE_BY_ID;
        let by_id = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
        for (how, answer) in [("key", by_key), ("id", by_id)] {
            let holds = Record::decode(&answer.body)
                .ok()
                .and_then(|record| message::identify(record.body()));
            if holds != Some(told.number) {
                let remark = answer.remark.unwrap_or_default();
                found.wrong.push(format!(
                    "{} is not found by its {how}: {} {remark}",
                    name(place),
                    answer.code
                ));
            }
        }
    }
    Ok(())
}
