//! Messages by key and by place: requests 12 and 33 (docs/behaviour.md, Queries).

use saturnmq_net::messages::query::{QueryMessage, ViewMessage};
use saturnmq_storage::index_file::IndexHits;

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::handler::QUERY_NOT_FOUND;
use crate::services::ServiceContext;

/// Most bytes of records in one answer: it must fit a frame.
const MAX_BYTES: usize = 12 << 20;

/// 12: the messages of a topic that have a key.
pub fn by_key(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match QueryMessage::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let live = broker.live.load();
    let wanted = if asked.unique_key {
        live.default_query_messages
    } else {
        asked.max_num
    };
    let wanted = usize::try_from(wanted.min(live.max_query_messages)).unwrap_or(0);
    let (topic, key) = (asked.topic.to_owned(), asked.key.to_owned());
    let (begin, end) = (asked.begin_timestamp, asked.end_timestamp);
    Answer::Later(Box::new(move |services| {
        if wanted == 0 || begin > end {
            return not_found();
        }
        let found = services
            .reader
            .query_index(&topic, &key, wanted, begin, end);
        match found {
            Ok(hits) => collect(services, &hits),
            Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    }))
}

fn collect(services: &mut ServiceContext, hits: &IndexHits) -> Reply {
    let mut body = Vec::new();
    for &offset in &hits.offsets {
        let before = body.len();
        match services.reader.record(offset, &mut body) {
            Ok(true) if body.len() <= MAX_BYTES => {}
            Ok(true) => {
                body.truncate(before);
                break;
            }
            Ok(false) => body.truncate(before),
            Err(error) => return Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    }
    if body.is_empty() {
        return not_found();
    }
    Reply::success()
        .field("indexLastUpdateTimestamp", hits.last_timestamp)
        .field("indexLastUpdatePhyoffset", hits.last_offset)
        .body(body)
}

fn not_found() -> Reply {
    Reply::error(
        QUERY_NOT_FOUND,
        "can not find message, maybe time range not correct",
    )
    .field("indexLastUpdateTimestamp", 0)
    .field("indexLastUpdatePhyoffset", 0)
}

/// 33: the record at a log offset.
pub fn by_id(_broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match ViewMessage::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let offset = asked.offset;
    Answer::Later(Box::new(move |services| {
        let mut body = Vec::new();
        let found = match u64::try_from(offset) {
            Ok(offset) => services.reader.record(offset, &mut body),
            Err(_) => Ok(false),
        };
        match found {
            Ok(true) => Reply::success().body(body),
            Ok(false) => {
                let remark = format!("can not find message by the offset, {offset}");
                Reply::error(SYSTEM_ERROR, remark)
            }
            Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    }))
}
