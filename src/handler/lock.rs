//! Queue locks of ordered consumers: requests 41 and 42.

use saturnmq_net::fastjson;
use saturnmq_net::messages::lock::{LockBatchRequest, LockBatchResponse};

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::steady_ms;

/// Longest group name or client id that is kept.
const NAME_MAX: usize = 1024;

fn decode(request: &Request<'_>) -> Result<LockBatchRequest, Answer> {
    let body: LockBatchRequest = fastjson::from_client(request.command.body)
        .map_err(|error| Reply::error(SYSTEM_ERROR, format!("the body: {error}")))?;
    if body.consumer_group.len() > NAME_MAX || body.client_id.len() > NAME_MAX {
        return Err(Reply::error(SYSTEM_ERROR, "a name in the body is too long").into());
    }
    Ok(body)
}

/// Takes or renews locks; answers those that the client holds now.
pub fn lock(broker: &Broker, request: &Request<'_>) -> Answer {
    let body = match decode(request) {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let lock_ok_mq_set = broker.locks.lock(
        &body.consumer_group,
        &body.client_id,
        body.mq_set,
        steady_ms(),
    );
    match serde_json::to_vec(&LockBatchResponse { lock_ok_mq_set }) {
        Ok(json) => Reply::success().body(json).into(),
        Err(error) => Reply::error(SYSTEM_ERROR, error.to_string()).into(),
    }
}

/// Frees locks of the client.
pub fn unlock(broker: &Broker, request: &Request<'_>) -> Answer {
    match decode(request) {
        Ok(body) => {
            broker
                .locks
                .unlock(&body.consumer_group, &body.client_id, &body.mq_set);
            Reply::success().into()
        }
        Err(answer) => answer,
    }
}
