//! What a broker says while its disk fails.

use std::time::{Duration, Instant};

use saturnmq_net::client::ClientError;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::send::SendRequest;

use crate::load::{ANSWER, connect, pull};
use crate::plan::Failure;

/// How long refusals may take to begin.
const LATCHED: Duration = Duration::from_secs(5);

/// Checks that sends are refused in clear words where they must be, and that reads go on.
pub fn after_failure(port: u16, failure: &Failure, path: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if failure.must_refuse(path)
        && let Err(sentence) = refuses(port)
    {
        wrong.push(format!("after the disk failed at {path}: {sentence}"));
    }
    if failure.reads_go_on()
        && let Err(sentence) = reads(port)
    {
        wrong.push(format!("after the disk failed at {path}: {sentence}"));
    }
    wrong
}

/// Sends until one is refused; from then on none may be accepted.
fn refuses(port: u16) -> Result<(), String> {
    let deadline = Instant::now() + LATCHED;
    loop {
        let (code, remark) = send(port).map_err(|error| error.to_string())?;
        if code == response::SUCCESS {
            return Err("a send was answered SEND_OK".to_owned());
        }
        if code == response::SERVICE_NOT_AVAILABLE && !remark.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("sends are refused with {code} and \"{remark}\""));
        }
    }
}

fn send(port: u16) -> Result<(i32, String), ClientError> {
    let send = SendRequest {
        producer_group: "power-probe",
        topic: "PowerProbe",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        ..SendRequest::default()
    };
    let code = request::SEND_MESSAGE_V2;
    let fields = |out: &mut saturnmq_net::encode::Encoder<'_>| send.encode_fields(code, out);
    let answer = connect(port)?.invoke(code, fields, b"probe", ANSWER)?;
    Ok((answer.code, answer.remark.unwrap_or_default()))
}

fn reads(port: u16) -> Result<(), String> {
    let pulled = connect(port)
        .and_then(|mut client| pull(&mut client, 0, 0, 0, true))
        .map_err(|error| error.to_string())?;
    match pulled.failure {
        Some((code, text)) => Err(format!("a pull is refused: {code} {text}")),
        None => Ok(()),
    }
}
