//! Answers to sends, once the writer has said what became of their records.

use saturnmq_net::driver::Outbox;
use saturnmq_net::encode::Encoder;
use saturnmq_storage::append_queue::{AppendFailure, Appended};
use saturnmq_storage::format::message_id::MessageId;

use super::{InFlight, Sends};
use crate::broker::Broker;
use crate::config::LiveConfig;
use crate::core::Core;
use crate::handler::{MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE, TOPIC_NOT_EXIST};
use crate::handler::{send_checks, transaction};
use crate::topics::Topic;

/// How many results ahead of the one at hand the counters of a topic are fetched.
const RESULTS_AHEAD: usize = 4;

impl Sends {
    /// Has fetched what the results after the next one will touch: with thousands of topics nothing
    /// of a topic is in the cache any more when its message is on the disk.
    fn fetch_ahead(&self) {
        if let Some(later) = self.in_flight.get(2 * RESULTS_AHEAD) {
            Topic::fetch_way_to_traffic(&later.topic);
        }
        if let Some(sent) = self.in_flight.get(RESULTS_AHEAD) {
            sent.topic.fetch_traffic();
        }
    }
}

/// Answers the sends whose records the writer has acknowledged or refused.
pub fn results(core: &mut Core, io: &mut Outbox) {
    let ended = core.sends.port.is_abandoned();
    let live = core.broker.live.load();
    let sends = &mut core.sends;
    while let Some(result) = sends.port.pop() {
        sends.fetch_ahead();
        // Results come in the order of the pushes, and each push was booked.
        let Some(mut sent) = sends.in_flight.pop_front() else {
            return;
        };
        assert_eq!(
            sent.token, result.token,
            "results of the writer come in the order of pushes"
        );
        if let Some(end) = sent.end.take() {
            if let Ok(appended) = &result.outcome
                && end.is_message()
            {
                let bytes = appended.end - appended.physical_offset;
                sent.topic.traffic.put(1, bytes);
                core.broker.stats.thread(core.index).put(1, bytes);
            }
            transaction::appended(&core.broker, &mut core.ends, *end, result.outcome, io);
            continue;
        }
        io.request_finished(sent.conn);
        match result.outcome {
            Ok(appended) => {
                let records = sent.batch.max(1) as u64;
                sent.topic
                    .traffic
                    .put(records, appended.end - appended.physical_offset);
                core.broker
                    .stats
                    .thread(core.index)
                    .put(records, appended.end - appended.physical_offset);
                acknowledge(sends, &sent, &appended, &live, io);
            }
            Err(failure) => {
                let consumed = sent.batch.min(sends.batch_sizes.len());
                sends.batch_sizes.drain(..consumed);
                core.broker.stats.thread(core.index).put_failed();
                refuse(&core.broker, &sent, &failure, io);
            }
        }
    }
    if ended {
        abandoned(core, io);
    }
    transaction::after_results(core, io);
}

/// Answers what is in flight once the writer has ended without saying what became of it.
fn abandoned(core: &mut Core, io: &mut Outbox) {
    core.sends.batch_sizes.clear();
    while let Some(mut sent) = core.sends.in_flight.pop_front() {
        if let Some(end) = sent.end.take() {
            let failure = Err(AppendFailure::ShuttingDown);
            transaction::appended(&core.broker, &mut core.ends, *end, failure, io);
            continue;
        }
        io.request_finished(sent.conn);
        refuse(&core.broker, &sent, &AppendFailure::ShuttingDown, io);
    }
}

/// Writes SEND_OK.
fn acknowledge(
    sends: &mut Sends,
    sent: &InFlight,
    appended: &Appended,
    live: &LiveConfig,
    io: &mut Outbox,
) {
    let consumed = sent.batch.min(sends.batch_sizes.len());
    let sizes = sends.batch_sizes.drain(..consumed);
    let out = match io.buffer(sent.conn) {
        Some(out) if !sent.to.oneway => out,
        _ => return,
    };
    let mut offset = appended.physical_offset;
    let id = MessageId::new(sends.store_host, offset);
    let id = if sent.batch == 0 {
        id.as_str()
    } else {
        sends.id_list.clear();
        for size in sizes {
            if !sends.id_list.is_empty() {
                sends.id_list.push(',');
            }
            sends
                .id_list
                .push_str(MessageId::new(sends.store_host, offset).as_str());
            offset += u64::from(size);
        }
        sends.id_list.as_str()
    };
    let mut encoder = Encoder::response(out, sent.to, 0, None);
    encoder
        .field_i32("queueId", sent.queue_id)
        .field_bool("TRACE_ON", live.trace_on)
        .field_str("MSG_REGION", &live.region_id)
        .field_str("msgId", id)
        .field_i64("queueOffset", appended.queue_offset);
    if let Some(key) = sent.key.as_str() {
        encoder.field_str("transactionId", key);
    }
    if let Some(handle) = &sent.recall {
        encoder.field_str("recallHandle", handle);
    }
    encoder.finish();
}

fn refuse(broker: &Broker, sent: &InFlight, failure: &AppendFailure, io: &mut Outbox) {
    let reply = match failure {
        AppendFailure::QueueGone => send_checks::reply(
            broker,
            TOPIC_NOT_EXIST,
            format!(
                "topic[{}] not exist, apply first please!",
                sent.topic.config.name
            ),
        ),
        failure @ AppendFailure::LightTooLong { .. } => {
            send_checks::reply(broker, MESSAGE_ILLEGAL, failure.to_string())
        }
        failure => send_checks::reply(
            broker,
            SERVICE_NOT_AVAILABLE,
            send_checks::unavailable(failure),
        ),
    };
    crate::core::write_reply(io, sent.conn, sent.to, &reply);
}
