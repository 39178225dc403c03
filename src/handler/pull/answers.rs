//! Responses to pulls: headers that every client reads, and bodies gathered in place.

use saturnmq_net::encode::{Encoder, LateResponse};
use saturnmq_storage::config::PullLimits;
use saturnmq_storage::error::ReadError;
use saturnmq_storage::reader::{PullOutcome, PullRequest, PullStatus, Pulled, StoreReader};

use super::Pull;
use crate::handler::{PULL_NOT_FOUND, PULL_OFFSET_MOVED, PULL_RETRY_IMMEDIATELY};

/// Reads messages into a response frame in `out`; leaves `out` as it was when there are none.
pub fn found(
    out: &mut Vec<u8>,
    pull: &Pull,
    reader: &mut StoreReader,
    limits: &PullLimits,
) -> Result<PullOutcome, ReadError> {
    frame(out, pull, |body| reader.pull(&request(pull, limits), body))
}

fn request<'a>(pull: &'a Pull, limits: &'a PullLimits) -> PullRequest<'a> {
    PullRequest {
        queue: &pull.queue,
        offset: pull.scanned,
        max_count: pull.max_count,
        filter: &pull.filter,
        limits,
    }
}

/// As [`found`], on the services thread, where old log pages may be read.
pub fn found_cold(
    out: &mut Vec<u8>,
    pull: &Pull,
    reader: &mut StoreReader,
    limits: &PullLimits,
) -> Result<PullOutcome, ReadError> {
    frame(out, pull, |body| {
        reader
            .pull_cold(&request(pull, limits), body)
            .map(PullOutcome::Ready)
    })
}

/// Lets `gather` append the body, and finishes the frame when there are messages.
fn frame<E>(
    out: &mut Vec<u8>,
    pull: &Pull,
    gather: impl FnOnce(&mut Vec<u8>) -> Result<PullOutcome, E>,
) -> Result<PullOutcome, E> {
    let mut response = LateResponse::new(out, pull.to);
    let outcome = gather(response.buffer())?;
    if let PullOutcome::Ready(pulled) = &outcome
        && pulled.status == PullStatus::Found
    {
        response.finish(0, Some(PullStatus::Found.as_str()), |header| {
            write_header(header, pull, pulled);
        });
    }
    Ok(outcome)
}

/// The fields that every client reads without looking whether they are there.
fn write_header(encoder: &mut Encoder<'_>, pull: &Pull, pulled: &Pulled) {
    encoder
        .field_i64("suggestWhichBrokerId", 0)
        .field_i64("nextBeginOffset", pulled.next_begin)
        .field_i64("minOffset", pulled.min)
        .field_i64("maxOffset", pulled.max);
    if let Some(flags) = pull.sys_flags {
        encoder
            .field_i32("topicSysFlag", flags.topic)
            .field_i32("groupSysFlag", flags.group);
    }
}

/// The response code of a status.
pub fn code_of(status: PullStatus, offset: i64) -> i32 {
    match status {
        PullStatus::Found => 0,
        PullStatus::NoMatchedMessage | PullStatus::MessageWasRemoving => PULL_RETRY_IMMEDIATELY,
        PullStatus::NoMatchedLogicQueue | PullStatus::NoMessageInQueue if offset != 0 => {
            PULL_OFFSET_MOVED
        }
        PullStatus::NoMatchedLogicQueue
        | PullStatus::NoMessageInQueue
        | PullStatus::OffsetFoundNull
        | PullStatus::OffsetOverflowOne => PULL_NOT_FOUND,
        PullStatus::OffsetOverflowBadly | PullStatus::OffsetTooSmall => PULL_OFFSET_MOVED,
    }
}

/// Appends the response for a pull without messages.
pub fn encode_nothing(out: &mut Vec<u8>, pull: &Pull, pulled: &Pulled) {
    if pull.to.oneway {
        return;
    }
    let code = code_of(pulled.status, pull.offset);
    encode_status(out, pull, code, pulled.status.as_str(), pulled);
}

/// Answers with a status that is not the store's.
pub fn encode_status(out: &mut Vec<u8>, pull: &Pull, code: i32, status: &str, pulled: &Pulled) {
    let mut encoder = Encoder::response(out, pull.to, code, Some(status));
    write_header(&mut encoder, pull, pulled);
    encoder.finish();
}
