//! Raw conversations with the real binary: what a client on the wire gets to see.

mod apache_stores;
mod carried;
mod clients;
mod delivery;
mod light;
mod lists;
mod memory;
mod moving;
mod name_server;
mod name_server_replay;
mod names;
mod queries;
mod replay;
mod retention;
mod sending;
mod spoiled;
mod state_files;
mod timers;
mod transaction_replay;
mod transactions;
mod waiting;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use saturnmq_net::command::{Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{Codec, MAX_FRAME, Parsed, parse};

use crate::patience::{TooSlow, in_time, soon};
use crate::serve::{Running, directory};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A frame that arrived.
#[derive(Clone, Debug)]
struct Arrived {
    code: i32,
    codec: Codec,
    opaque: i32,
    is_response: bool,
    remark: String,
    ext: BTreeMap<String, String>,
    body: Vec<u8>,
    at: Instant,
}

impl Arrived {
    fn number(&self, name: &str) -> i64 {
        let value = self
            .ext
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }
}

/// A connection that sends bytes and reads frames.
struct Talk {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Arrived, and not asked for yet.
    early: Vec<Arrived>,
    next: i32,
    version: i32,
}

impl Talk {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        Self {
            stream,
            unread: Vec::new(),
            early: Vec::new(),
            next: 1,
            version: 399,
        }
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("write");
    }

    /// Encodes a request; this side always says it is an older Java client.
    fn encode(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> (i32, Vec<u8>) {
        let opaque = self.next;
        self.next += 1;
        let mut out = Vec::new();
        let mut encoder = Encoder::request(&mut out, Codec::Json, code, opaque, false);
        for (name, value) in fields {
            encoder.field_str(name, value);
        }
        encoder.body(body);
        (opaque, with_version(&out, self.version))
    }

    fn request(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> i32 {
        let (opaque, bytes) = self.encode(code, fields, body);
        self.send_bytes(&bytes);
        opaque
    }

    fn ask(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Arrived {
        let opaque = self.request(code, fields, body);
        self.answer(opaque)
    }

    /// The next frame, whatever it is; `None` when the time is over or the connection closed.
    fn frame(&mut self, until: Instant) -> Option<Arrived> {
        loop {
            if let Ok(Parsed::Complete { frame, consumed }) = parse(&self.unread, MAX_FRAME) {
                let mut scratch = Scratch::default();
                let command = decode(frame, &mut scratch).expect("a header");
                let arrived = Arrived {
                    code: command.code,
                    codec: command.codec,
                    opaque: command.opaque,
                    is_response: command.is_response(),
                    remark: command.remark.unwrap_or_default().to_owned(),
                    ext: command
                        .ext
                        .iter()
                        .map(|(k, v)| (k.into(), v.into()))
                        .collect(),
                    body: command.body.to_vec(),
                    at: Instant::now(),
                };
                self.unread.drain(..consumed);
                return Some(arrived);
            }
            let left = until.checked_duration_since(Instant::now())?;
            self.stream
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .expect("timeout");
            let mut buffer = [0; 65_536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                // Also when this process was stopped and goes on.
                Err(error) if is_over_or_interrupted(&error) => {}
                Err(_) => return None,
            }
        }
    }

    fn wait_for(&mut self, wanted: impl Fn(&Arrived) -> bool, what: &str) -> Arrived {
        if let Some(at) = self.early.iter().position(&wanted) {
            return self.early.remove(at);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let arrived = self.frame(until).unwrap_or_else(|| panic!("no {what}"));
            if wanted(&arrived) {
                return arrived;
            }
            self.early.push(arrived);
        }
    }

    fn answer(&mut self, opaque: i32) -> Arrived {
        self.wait_for(|a| a.is_response && a.opaque == opaque, "answer")
    }

    /// The next request of the broker itself with this code.
    fn pushed(&mut self, code: i32) -> Arrived {
        self.wait_for(|a| !a.is_response && a.code == code, "push")
    }

    /// Whether the broker closes the connection.
    fn is_closed(&mut self) -> bool {
        self.stream
            .set_read_timeout(Some(PATIENCE))
            .expect("timeout");
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    fn send_message(&mut self, topic: &str, queue: i32, properties: &str, body: &[u8]) -> Arrived {
        let queue = queue.to_string();
        let answer = self.ask(310, &send_fields(topic, &queue, properties, "false"), body);
        assert_eq!(answer.code, 0, "{answer:?}");
        answer
    }

    fn pull(&mut self, pull: &Pull<'_>) -> Arrived {
        let opaque = self.start_pull(pull);
        self.answer(opaque)
    }

    fn start_pull(&mut self, pull: &Pull<'_>) -> i32 {
        let queue = pull.queue.to_string();
        let offset = pull.offset.to_string();
        let flag = if pull.wait_ms > 0 { "6" } else { "4" };
        let wait = pull.wait_ms.to_string();
        let fields = [
            ("consumerGroup", pull.group),
            ("topic", pull.topic),
            ("queueId", &queue),
            ("queueOffset", &offset),
            ("maxMsgNums", "32"),
            ("sysFlag", flag),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", &wait),
            ("subscription", pull.tags),
            ("subVersion", "0"),
        ];
        self.request(11, &fields, b"")
    }
}

/// What a test pulls.
#[derive(Clone, Copy)]
struct Pull<'a> {
    group: &'a str,
    topic: &'a str,
    queue: i32,
    offset: i64,
    wait_ms: u64,
    tags: &'a str,
}

impl<'a> Pull<'a> {
    fn of(topic: &'a str, offset: i64) -> Self {
        Self {
            group: "g",
            topic,
            queue: 0,
            offset,
            wait_ms: 0,
            tags: "*",
        }
    }
}

fn send_fields<'a>(
    topic: &'a str,
    queue: &'a str,
    properties: &'a str,
    batch: &'a str,
) -> [(&'a str, &'a str); 12] {
    [
        ("a", "p"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", batch),
    ]
}

fn is_over_or_interrupted(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
    )
}

/// A JSON frame with another `version` member: the codec itself always says 479.
fn with_version(frame: &[u8], version: i32) -> Vec<u8> {
    let header = u32::from_be_bytes(frame[4..8].try_into().expect("4 bytes")) as usize & 0xff_ffff;
    let text = std::str::from_utf8(&frame[8..8 + header]).expect("JSON");
    let text = text
        .replace("\"version\":479", &format!("\"version\":{version}"))
        .replace("\"version\":399", &format!("\"version\":{version}"))
        .replace("\"version\": 399", &format!("\"version\":{version}"));
    let body = &frame[8 + header..];
    let mut out = Vec::new();
    out.extend_from_slice(&((4 + text.len() + body.len()) as u32).to_be_bytes());
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(body);
    out
}

/// The records of a pull's body: queue offset, body and properties of each.
fn records(body: &[u8]) -> Vec<(i64, Vec<u8>, String)> {
    use saturnmq_storage::format::record::Record;
    let mut rest = body;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let size = u32::from_be_bytes(rest[..4].try_into().expect("4 bytes")) as usize;
        let record = Record::decode(&rest[..size]).expect("a record");
        let properties = String::from_utf8_lossy(record.properties().as_bytes()).into_owned();
        found.push((record.queue_offset(), record.body().to_vec(), properties));
        rest = &rest[size..];
    }
    found
}

fn broker(more: &[&str]) -> (Running, tempfile::TempDir) {
    let dir = directory();
    let running = Running::start(dir.path(), more);
    (running, dir)
}
