//! Whether a half message that nothing says is done with was dealt with all the same.
//!
//! A broker that dies between a message and the op message about it leaves such a half message; so
//! does a 5.x broker that stops with op messages in its memory: until it stores them it copies what
//! was ended long before, again and again. The index finds what became of the transaction: the
//! committed message, a newer copy, or the copy that was given up.

use saturnmq_storage::format::message::sys_flag;
use saturnmq_storage::format::record::Record;

use super::half::Half;
use crate::handler::properties;
use crate::names;
use crate::services::ServiceContext;

/// Records with the same unique key that are looked at, the newest first.
const LOOK_AT: usize = 16;
/// How far a client's clock, which says when the message was born, may be ahead of the broker's.
const SKEW_MS: i64 = 600_000;

/// Looks for what became of a half message.
pub fn is_settled(services: &mut ServiceContext, half: &Half<'_>) -> bool {
    let record = half.record;
    let committed =
        |other: &Record<'_>| other.sys_flag() & sys_flag::TRANSACTION == sys_flag::COMMIT;
    let newer = |other: &Record<'_>| other.physical_offset() > record.physical_offset();
    exists(services, half, half.topic, committed)
        || exists(services, half, names::HALF_TOPIC, newer)
        || exists(services, half, names::TRANS_CHECK_MAX_TIME_TOPIC, newer)
}

/// Whether a topic has a record of the same message: the same key, time and place of birth.
fn exists(
    services: &mut ServiceContext,
    half: &Half<'_>,
    topic: &str,
    counts: impl Fn(&Record<'_>) -> bool,
) -> bool {
    let record = &half.record;
    let Some(key) = record.properties().get_str(properties::UNIQ_KEY) else {
        return false;
    };
    // A copy may be stored after the message: what counts is when the transaction began.
    let begin = record.store_timestamp().min(record.born_timestamp());
    let begin = begin.saturating_sub(SKEW_MS);
    let hits = services
        .reader
        .query_index(topic, key, LOOK_AT, begin, i64::MAX);
    let hits = match hits {
        Ok(hits) => hits,
        Err(error) => {
            tracing::warn!(%error, "the index cannot say what became of a transaction");
            return false;
        }
    };
    let mut bytes = Vec::new();
    hits.offsets.iter().any(|offset| {
        bytes.clear();
        matches!(services.reader.record(*offset, &mut bytes), Ok(true))
            && Record::decode(&bytes).is_ok_and(|other| {
                other.topic() == topic && is_same(&other, record, key) && counts(&other)
            })
    })
}

fn is_same(other: &Record<'_>, half: &Record<'_>, key: &str) -> bool {
    other.properties().get_str(properties::UNIQ_KEY) == Some(key)
        && other.born_timestamp() == half.born_timestamp()
        && other.born_host() == half.born_host()
}
