//! The broker's configuration: requests 25 and 26 (docs/behaviour.md, Configuration over the wire).

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use saturnmq_net::listener::Complaint;

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;

/// Keeps refused changes from filling the log.
static REFUSED: Mutex<Complaint> = Mutex::new(Complaint::new());

/// 25: changes settings while the broker runs, all or none of those sent; nothing is written to
/// broker.conf.
pub fn update(request: &Request<'_>) -> Answer {
    let Ok(text) = std::str::from_utf8(request.command.body) else {
        return Reply::error(SYSTEM_ERROR, "the body is not UTF-8 text").into();
    };
    let (text, peer) = (text.to_owned(), request.peer);
    // A changed permission is told for every topic: not on a network core.
    Answer::Later(Box::new(move |services| {
        apply(&services.broker, &text, peer)
    }))
}

fn apply(broker: &Broker, text: &str, peer: SocketAddr) -> Reply {
    match broker.update_config(text) {
        Ok(()) => {
            broker.rules_changed();
            Reply::success()
        }
        Err(error) => {
            // Whoever sends them is answered each time; the log is not theirs to fill.
            let told = REFUSED.try_lock().ok();
            if let Some(untold) = told.and_then(|mut told| told.tell(Instant::now())) {
                tracing::warn!(
                    %peer,
                    untold,
                    "a change of the configuration is refused: {error}"
                );
            }
            Reply::error(error.code(), error.to_string())
        }
    }
}

/// 26: every key with its present value.
pub fn get(broker: &Broker, _request: &Request<'_>) -> Answer {
    let version = broker.topics.data_version();
    let version = format!(
        r#"{{"counter":{},"stateVersion":{},"timestamp":{}}}"#,
        version.counter, version.state_version, version.timestamp
    );
    let text = broker.live.load().to_properties_text();
    Reply::success()
        .field("version", version)
        .body(text.into_bytes())
        .into()
}
