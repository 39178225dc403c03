//! The load generator: drives any RocketMQ-protocol broker and checks what it does.
//!
//! Every message carries who sent it, its number and the moment it was meant to be sent; a run in
//! which one is lost, doubled, out of order, damaged or refused has failed.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use saturnmq_net::client::ClientError;
use thiserror::Error;

pub mod catch_up;
pub mod compare;
pub mod delay;
pub mod drain;
pub mod end_to_end;
pub mod environment;
pub mod faults;
pub mod flights;
pub mod idle;
pub mod interrupt;
pub mod knee;
pub mod message;
pub mod monitor;
pub mod packing;
pub mod page;
pub mod payload;
pub mod pin;
pub mod plan;
pub mod plots;
pub mod process;
pub mod produce;
pub mod puller;
pub mod read_back;
pub mod recorder;
pub mod report;
pub mod route;
pub mod topics;
pub mod written;

/// Why no measurement came of it.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A connection failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The name server has no usable route.
    #[error("name server {name_server} has no route for topic {topic} nor for TBW102: {why}")]
    NoRoute {
        /// The name server.
        name_server: String,
        /// The topic.
        topic: String,
        /// What it answered.
        why: String,
    },
    /// The system refused something.
    #[error("{0}")]
    System(String),
    /// Ctrl-C came while a further step was prepared.
    #[error("interrupted")]
    Interrupted,
    /// The broker did not do what it should; the report has been printed.
    #[error("the run has failed: {0}")]
    Failed(String),
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A line on the standard error stream. Nobody may be reading it any more, which ends no run.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The result, on the standard output stream.
///
/// # Errors
/// [`BenchError::System`] when it cannot be written; a reader that has gone away is no error.
pub fn print(text: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(BenchError::System(
            format!("the standard output stream: {error}"),
        )),
        _ => Ok(()),
    }
}

/// A number of things: `1 message`, `2 messages`.
pub fn counted(number: u64, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

/// Microseconds as people read them.
pub fn shown_us(micros: u64) -> String {
    match micros {
        0..=9_999 => format!("{micros} us"),
        10_000..=9_999_999 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}
