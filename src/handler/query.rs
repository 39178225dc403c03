//! Messages by key and by place, and entries of queues: requests 12, 33 and 321
//! (docs/behaviour.md, Queries).

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use saturnmq_net::messages::query::{QueryConsumeQueue, QueryMessage, ViewMessage};
use saturnmq_net::messages::stats::{ConsumeQueueData, QueryConsumeQueueResponse};
use saturnmq_storage::consume_queue::UnitLook;
use saturnmq_storage::error::ReadError;
use saturnmq_storage::format::consume_entry::ConsumeEntry;
use saturnmq_storage::format::extension_unit::is_address;
use saturnmq_storage::index_file::{IndexHits, KeyQuery};
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::PullFilter as _;

use crate::answer::{Answer, Reply, ReplySlot, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::handler::QUERY_NOT_FOUND;
use crate::handler::pull_checks::negative;
use crate::handler::topic::json_reply;
use crate::services::ServiceContext;
use crate::subscription::Wanted;

/// Most bytes of records in one answer: it must fit a frame.
const MAX_BYTES: usize = 12 << 20;
/// Items of the index that a query by key looks at in a turn on the services thread: some 100 µs.
const ITEMS_PER_STEP: usize = 1024;

/// 12: the messages of a topic that have a key.
pub fn by_key(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match QueryMessage::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    if asked.max_num < 0 && !asked.unique_key {
        return negative("maxNum", asked.max_num).into();
    }
    let live = broker.live.load();
    let wanted = if asked.unique_key {
        live.default_query_messages
    } else {
        asked.max_num
    };
    let wanted = usize::try_from(wanted.min(live.max_query_messages)).unwrap_or(0);
    let (begin, end) = (asked.begin_timestamp, asked.end_timestamp);
    let query = KeyQuery::new(asked.topic, asked.key.as_bytes(), wanted, begin, end);
    if wanted == 0 || begin > end {
        return not_found().into();
    }
    let core = request.core;
    Answer::Turns(Box::new(move |services, slot| {
        look_on(services, slot, query, core)
    }))
}

/// Goes on with a query by key; others get their turn on the thread between two steps.
fn look_on(services: &mut ServiceContext, slot: ReplySlot, mut query: KeyQuery, core: usize) {
    let reply = if services.broker.cores.has_room(core) {
        match services.reader.query_on(&mut query, ITEMS_PER_STEP) {
            Ok(Some(hits)) => collect(services, &hits),
            Ok(None) => {
                return services.go_on_later(
                    slot,
                    Box::new(move |services, slot| look_on(services, slot, query, core)),
                );
            }
            Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()),
        }
    } else {
        Reply::overload()
    };
    services.reply(slot, reply);
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
            // One damaged record hides none of the others.
            Err(error @ ReadError::Damaged { .. }) => {
                body.truncate(before);
                tracing::warn!(%error, "left out of the answer to a query by key");
            }
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
    let (offset, core) = (asked.offset, request.core);
    Answer::Later(Box::new(move |services| {
        if !services.broker.cores.has_room(core) {
            return Reply::overload();
        }
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

/// Most entries of a queue in one answer.
const MAX_ENTRIES: i32 = 10_000;

/// 321: entries of a consume queue, and whether a group's filter passes them.
pub fn queue_entries(broker: &Broker, request: &Request<'_>) -> Answer {
    let asked = match QueryConsumeQueue::decode(&request.command.ext) {
        Ok(asked) => asked,
        Err(error) => return error.into(),
    };
    let (topic, queue_id) = (asked.topic, asked.queue_id);
    let Some(queue) = broker.store.queue(topic, queue_id) else {
        let remark = format!("{queue_id}@{topic} is not exist!");
        return Reply::error(SYSTEM_ERROR, remark).into();
    };
    let group = asked.consumer_group.filter(|group| !group.is_empty());
    let subscription = group.and_then(|group| {
        let online = broker.clients.consumer(group)?;
        online.with_view(|view| view.subscriptions.get(topic).cloned())
    });
    // Of a group that is online Apache shows the compiled filter here, which only SQL92 has.
    let filter = group.map(|group| match subscription {
        Some(_) => "null".to_owned(),
        None => format!("{group}@{topic} is not online!"),
    });
    let from = asked.index;
    let count = usize::try_from(asked.count.min(MAX_ENTRIES)).unwrap_or(0);
    Answer::Later(Box::new(move |_| {
        let mut entries = Vec::new();
        // Entries are read up to the end of one queue file.
        let read = queue.entries(from.max(queue.min_offset()), count, &mut entries);
        if let Err(error) = read {
            return Reply::error(SYSTEM_ERROR, error.to_string());
        }
        let wanted = subscription.as_ref().and_then(|s| s.filter.as_ref());
        json_reply(&QueryConsumeQueueResponse {
            filter_data: filter,
            max_queue_index: queue.max_offset(),
            min_queue_index: queue.min_offset(),
            queue_data: entries
                .iter()
                .map(|entry| described(&queue, entry, wanted))
                .collect(),
            subscription_data: subscription.as_ref().map(|s| s.data.clone()),
        })
    }))
}

/// An entry as Apache shows it, with its extension unit if it has one.
fn described(queue: &Queue, entry: &ConsumeEntry, filter: Option<&Wanted>) -> ConsumeQueueData {
    let mut data = ConsumeQueueData {
        physic_offset: i64::try_from(entry.physical_offset).unwrap_or(-1),
        physic_size: i32::try_from(entry.size).unwrap_or(i32::MAX),
        tags_code: entry.tags_code,
        ..ConsumeQueueData::default()
    };
    let mut bytes = Vec::new();
    match queue.unit(entry.tags_code, false, &mut bytes) {
        UnitLook::Found(unit) => {
            data.eval = filter.is_some_and(|filter| filter.matches_unit(&unit));
            let size = unit.size().unwrap_or(0);
            let mut shown = serde_json::json!({
                "bitMapSize": unit.bits.len(),
                "msgStoreTime": unit.store_timestamp,
                "size": size,
                "tagsCode": unit.tags_code,
            });
            if !unit.bits.is_empty() {
                shown["filterBitMap"] = BASE64_STANDARD.encode(unit.bits).into();
                data.bit_map = Some(bit_text(unit.bits));
            }
            data.extend_data_json = Some(shown.to_string());
        }
        UnitLook::Missing | UnitLook::NotMapped => {
            let code = entry.tags_code;
            data.eval = filter.is_some_and(|one| is_address(code) || one.matches_code(code));
            data.msg = is_address(code).then(|| format!("Cq extend not exist!addr: {code}"));
        }
    }
    data
}

/// Bits as Apache writes them: the last first, 64 in a line.
fn bit_text(bits: &[u8]) -> String {
    let mut text = String::new();
    for (index, byte) in bits.iter().enumerate().rev() {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:08b}");
        if index % 8 == 0 {
            text.push('\n');
        }
    }
    text
}
