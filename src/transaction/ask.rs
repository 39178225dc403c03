//! The question to a producer: what became of a transaction (request code 39).

use saturnmq_net::codes::request::CHECK_TRANSACTION_STATE;
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::Codec;
use saturnmq_storage::append_queue::Appended;
use saturnmq_storage::format::message::{assign, encode_into, encoded_len};
use saturnmq_storage::format::record::Record;

use super::half::Half;
use crate::answer::{CoreMessage, V5_0_0};
use crate::broker::Broker;
use crate::clients::Member;
use crate::handler::client::next_opaque;
use crate::handler::properties;
use crate::names;
use crate::services::ServiceContext;

/// Clients of a group that are tried until one can be told.
const TRIES: usize = 3;

/// Asks a member of the producer group about the half message that was just stored; false when
/// nobody can be asked.
pub fn ask(services: &mut ServiceContext, stored: &Appended) -> bool {
    let mut bytes = Vec::new();
    let found = services.reader.record(stored.physical_offset, &mut bytes);
    if !matches!(found, Ok(true)) {
        tracing::warn!(
            ?found,
            "a half message is not asked about: it cannot be read"
        );
        return false;
    }
    let record = Record::decode(&bytes).ok();
    let Some(half) = record.and_then(|record| Half::of(&record)) else {
        return false;
    };
    let group = half.record.properties().get_str(properties::PGROUP);
    let producers = group.and_then(|group| services.broker.clients.producer(group));
    let Some(producers) = producers else {
        tracing::debug!(group, "nobody can be asked about a transaction");
        return false;
    };
    let Some(body) = shown(&half) else {
        return false;
    };
    for _ in 0..TRIES {
        let Some(member) = producers.next() else {
            return false;
        };
        if !services.broker.cores.has_room(member.channel.core) {
            continue;
        }
        let message = CoreMessage::Push {
            conn: member.channel.conn,
            frame: question(&services.broker, &half, &member, &body),
        };
        if services
            .broker
            .cores
            .post(member.channel.core, message)
            .is_ok()
        {
            return true;
        }
    }
    false
}

/// The record with its real topic and queue.
fn shown(half: &Half<'_>) -> Option<Vec<u8>> {
    let properties = [half.record.properties().as_bytes()];
    let parts = half.shown(&properties);
    let mut body = vec![0; encoded_len(&parts).ok()?];
    encode_into(&parts, &mut body).ok()?;
    let record = &half.record;
    let at = u64::try_from(record.physical_offset()).ok()?;
    assign(
        &mut body,
        record.queue_offset(),
        at,
        record.store_timestamp(),
    );
    Some(body)
}

fn question(broker: &Broker, half: &Half<'_>, member: &Member, body: &[u8]) -> Box<[u8]> {
    let mut frame = Vec::new();
    let code = CHECK_TRANSACTION_STATE;
    let mut encoder = Encoder::request(&mut frame, Codec::Json, code, next_opaque(), true);
    encoder
        .field_i64("commitLogOffset", half.record.physical_offset())
        .field_i64("tranStateTableOffset", half.record.queue_offset())
        .field_str("offsetMsgId", half.record.message_id().as_str());
    if let Some(key) = half.record.properties().get_str(properties::UNIQ_KEY) {
        encoder
            .field_str("msgId", key)
            .field_str("transactionId", key);
    }
    if member.version >= V5_0_0 {
        encoder
            .field_str("topic", names::HALF_TOPIC)
            .field_str("bname", &broker.config.broker_name);
    }
    encoder.body(body);
    frame.into_boxed_slice()
}
