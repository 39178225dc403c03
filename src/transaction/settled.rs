//! Whether a half message that nothing says is done with was dealt with all the same.
//!
//! A broker that dies between a message and the op message about it leaves such a half message; so
//! does a 5.x broker that stops with op messages in its memory: until it stores them it copies what
//! was ended long before, again and again. The index finds what became of the transaction: the
//! committed message, a newer copy, or the copy that was given up.

use std::collections::BTreeSet;

use saturnmq_storage::format::message::sys_flag;
use saturnmq_storage::format::record::Record;

use super::half::Half;
use crate::handler::properties;
use crate::names;
use crate::services::ServiceContext;

/// How far a client's clock, which says when the message was born, may be ahead of the broker's.
const SKEW_MS: i64 = 600_000;

/// Looks for what became of a half message.
pub fn is_settled(services: &mut ServiceContext, half: &Half<'_>) -> bool {
    let record = half.record;
    let newer = |other: &Record<'_>| other.physical_offset() > record.physical_offset();
    is_committed(services, half)
        // A message that is sent twice in a millisecond makes two half messages with one key.
        || exists(services, half, names::HALF_TOPIC, |other| newer(other) && is_copy(other))
        || exists(services, half, names::TRANS_CHECK_MAX_TIME_TOPIC, newer)
}

/// The newest copy of a half message that the index leads to: its offset in the half queue.
pub fn newest_copy(services: &mut ServiceContext, half: &Half<'_>) -> Option<i64> {
    let own = half.record.queue_offset();
    let mut newest = None;
    exists(services, half, names::HALF_TOPIC, |other| {
        // A client that uses a key twice makes no copy of it.
        if other.queue_offset() > own && is_copy(other) {
            newest = newest.max(Some(other.queue_offset()));
        }
        false
    });
    newest
}

/// Whether a half message was made of another one by the check, or put back.
fn is_copy(record: &Record<'_>) -> bool {
    let properties = record.properties();
    [properties::CHECK_TIMES, properties::PREPARED_QUEUE_OFFSET]
        .iter()
        .any(|name| properties.get(name).is_some())
}

/// Whether the message of a half message stands in its real topic.
pub fn is_committed(services: &mut ServiceContext, half: &Half<'_>) -> bool {
    let mut prepared = BTreeSet::new();
    exists(services, half, half.topic, |other| {
        if other.sys_flag() & sys_flag::TRANSACTION == sys_flag::COMMIT {
            prepared.insert(other.prepared_transaction_offset());
        }
        false
    });
    if prepared.is_empty() || prepared.contains(&half.record.physical_offset()) {
        return !prepared.is_empty();
    }
    // It, or another one, by way of a copy. A message that is sent twice in a millisecond makes
    // two transactions with one key, and nothing tells whose a copy is: all are done with then.
    let mut originals = 0;
    exists(services, half, names::HALF_TOPIC, |other| {
        originals += usize::from(!is_copy(other));
        false
    });
    prepared.len() >= originals
}

/// Whether a topic has a record of the same message: the same key, time and place of birth.
fn exists(
    services: &mut ServiceContext,
    half: &Half<'_>,
    topic: &str,
    mut counts: impl FnMut(&Record<'_>) -> bool,
) -> bool {
    let record = &half.record;
    let Some(key) = record.properties().get_str(properties::UNIQ_KEY) else {
        return false;
    };
    // A copy may be stored after the message: what counts is when the transaction began.
    let begin = record.store_timestamp().min(record.born_timestamp());
    services.became(topic, key, begin.saturating_sub(SKEW_MS), |other| {
        other.properties().get_str(properties::UNIQ_KEY) == Some(key)
            && other.born_timestamp() == record.born_timestamp()
            && other.born_host() == record.born_host()
            && counts(other)
    })
}
