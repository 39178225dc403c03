//! Whether a half message that nothing says is done with was committed all the same.
//!
//! A broker that dies between the message and the op message leaves such a half message; so does a
//! 5.x broker that dies with op messages in its memory. The index finds the message.

use saturnmq_storage::format::message::sys_flag;
use saturnmq_storage::format::record::Record;

use super::half::Half;
use crate::handler::properties;
use crate::services::ServiceContext;

/// Records with the same unique key that are looked at.
const LOOK_AT: usize = 16;
/// The index keeps seconds.
const COARSE_MS: i64 = 1000;

/// Looks for the committed message: the same key, time and place of birth.
pub fn is_committed(services: &mut ServiceContext, half: &Half<'_>) -> bool {
    let record = &half.record;
    let Some(key) = record.properties().get_str(properties::UNIQ_KEY) else {
        return false;
    };
    let begin = record.store_timestamp().saturating_sub(COARSE_MS);
    let hits = services
        .reader
        .query_index(half.topic, key, LOOK_AT, begin, i64::MAX);
    let hits = match hits {
        Ok(hits) => hits,
        Err(error) => {
            tracing::warn!(%error, "the index cannot say whether a transaction was committed");
            return false;
        }
    };
    let mut bytes = Vec::new();
    hits.offsets.iter().any(|offset| {
        bytes.clear();
        matches!(services.reader.record(*offset, &mut bytes), Ok(true))
            && Record::decode(&bytes).is_ok_and(|other| is_made_of(&other, record, key))
    })
}

fn is_made_of(message: &Record<'_>, half: &Record<'_>, key: &str) -> bool {
    message.sys_flag() & sys_flag::TRANSACTION == sys_flag::COMMIT
        && message.properties().get_str(properties::UNIQ_KEY) == Some(key)
        && message.born_timestamp() == half.born_timestamp()
        && message.born_host() == half.born_host()
}
