//! Reading a send or a pull and writing its answer allocates nothing once buffers are warm.
//!
//! The only test of its binary: the counter counts the whole process.

mod recorded;

use std::alloc::System;

use recorded::{read, recorded};
use saturnmq_net::command::Scratch;
use saturnmq_net::encode::{Encoder, LateResponse};
use saturnmq_net::messages::offset::UpdateConsumerOffset;
use saturnmq_net::messages::pull::{PullRequest, PullResponse};
use saturnmq_net::messages::send::{SendRequest, SendResponse};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Reads one request and writes the answer a broker would give.
fn answer(bytes: &[u8], scratch: &mut Scratch, out: &mut Vec<u8>) {
    let command = read(bytes, scratch);
    let to = command.reply_to();
    out.clear();
    match command.code {
        10 | 310 | 320 => {
            let Ok(send) = SendRequest::decode(command.code, &command.ext) else {
                return;
            };
            let mut encoder = Encoder::response(out, to, 0, None);
            let msg_id = "7F00000100002A9F0000000000001000";
            let response = SendResponse {
                msg_id,
                queue_id: send.queue_id,
                queue_offset: send.born_timestamp,
                region: Some("DefaultRegion"),
                trace_on: Some(true),
                ..SendResponse::default()
            };
            response.encode_fields(&mut encoder);
            encoder.finish();
        }
        11 | 361 => {
            let Ok(pull) = PullRequest::decode(&command.ext) else {
                return;
            };
            let mut late = LateResponse::new(out, to);
            late.buffer().extend_from_slice(&[0; 4096]);
            let response = PullResponse {
                max_offset: pull.queue_offset,
                ..Default::default()
            };
            late.finish(0, Some("FOUND"), |encoder| response.encode_fields(encoder));
        }
        15 if UpdateConsumerOffset::decode(&command.ext).is_ok() => {
            Encoder::response(out, to, 0, None).finish();
        }
        _ => {}
    }
}

#[test]
fn hot_requests_are_read_and_answered_without_allocation() {
    let hot = |code| matches!(code, 10 | 11 | 15 | 310 | 320 | 361);
    let (mut scratch, mut out) = (Scratch::default(), Vec::new());
    let mut requests = Vec::new();
    for frame in recorded().iter().filter(|frame| frame.kind == "request") {
        // Raw requests are broken on purpose: errors repeat the wrong value.
        let raw = frame.file.contains("raw/");
        if !raw && hot(read(&frame.bytes, &mut scratch).code) {
            requests.push(frame.bytes.as_slice());
        }
    }
    assert!(requests.len() > 2_000, "only {} requests", requests.len());
    requests
        .iter()
        .for_each(|bytes| answer(bytes, &mut scratch, &mut out));
    let region = Region::new(ALLOCATOR);
    requests
        .iter()
        .for_each(|bytes| answer(bytes, &mut scratch, &mut out));
    let change = region.change();
    // Requests that are broken on purpose repeat their wrong value in the error.
    let broken = 40;
    assert!(
        change.allocations < broken,
        "{change:?} in {} requests",
        requests.len()
    );
}
