//! What `saturnmq admin` does: tools for any broker that speaks RocketMQ's protocol, reached
//! through its name server.

pub mod cluster;
pub mod consume;
pub mod groups;
pub mod messages;
pub mod table;
pub mod topics;

use std::io;

use saturnmq_net::client::ClientError;
use saturnmq_net::codes::{request, response};
use saturnmq_net::fastjson::BodyError;
use thiserror::Error;

/// Why an administrator's command failed, as one sentence.
#[derive(Debug, Error)]
pub enum AdminError {
    /// No connection, or no answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server refused.
    #[error(
        "{server} refuses {}: {remark} ({} {code})",
        request_name(*request),
        response_name(*code)
    )]
    Refused {
        /// Its address.
        server: String,
        /// Request code.
        request: i32,
        /// Response code.
        code: i32,
        /// What it says.
        remark: String,
    },
    /// An answer that cannot be read.
    #[error("{server} answers {} with what cannot be read: {problem}", request_name(*request))]
    Garbled {
        /// Its address.
        server: String,
        /// Request code.
        request: i32,
        /// What is wrong.
        problem: String,
    },
    /// Something that was named does not exist, or is not possible.
    #[error("{0}")]
    Impossible(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl AdminError {
    /// Whether the reader of our output has gone away, which is no error to tell anybody.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn garbled(server: &str, request: i32, problem: &BodyError) -> Self {
        Self::Garbled {
            server: server.to_owned(),
            request,
            problem: problem.to_string(),
        }
    }
}

fn request_name(code: i32) -> String {
    request::name(code).map_or_else(|| format!("request {code}"), str::to_owned)
}

fn response_name(code: i32) -> &'static str {
    response::name(code).unwrap_or("code")
}

/// A number with its noun, in the plural unless it is one.
fn counted(count: impl ToString, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Text of others that cannot take over a terminal: control characters but line ends and tabs are
/// escaped.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The same on one line.
fn on_one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// Where results go, and in which form.
pub struct Output<'a> {
    /// JSON for scripts instead of tables for people.
    pub json: bool,
    /// The stream.
    pub out: &'a mut dyn io::Write,
}

impl Output<'_> {
    /// Writes one JSON value on a line of its own.
    ///
    /// # Errors
    /// The stream's.
    pub fn value(&mut self, value: &serde_json::Value) -> Result<(), AdminError> {
        writeln!(self.out, "{value}")?;
        self.out.flush()?;
        Ok(())
    }

    /// Writes a line of text for people; scripts do not get it.
    ///
    /// # Errors
    /// The stream's.
    pub fn line(&mut self, text: &str) -> Result<(), AdminError> {
        if !self.json {
            writeln!(self.out, "{}", printable(text))?;
            self.out.flush()?;
        }
        Ok(())
    }
}
