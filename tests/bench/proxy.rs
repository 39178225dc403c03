//! A broker that lies: it hands everything on to a real one, but for one message.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use saturnmq_net::client::{Client, OwnedCommand};
use saturnmq_net::codes::request;
use saturnmq_net::command::{Command, ReplyTo, Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{MAX_FRAME, Parsed, parse};
use saturnmq_storage::format::record::Record;

const PATIENCE: Duration = Duration::from_secs(20);

/// What it does with one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// Nothing wrong.
    Honest,
    /// Acknowledges and forgets it.
    Drop,
    /// Stores it twice.
    Double,
    /// Stores the last one again, a while after it was acknowledged.
    DoubleLast,
    /// Takes ten times as long for each as they are sent at.
    Slow,
    /// Stores it with another byte in its body.
    Damage,
    /// Says that it is where a later one is, and the other way round.
    Misplace,
    /// Leaves it out of an answer to a pull.
    LeaveOut,
    /// Has it twice in an answer to a pull.
    Repeat,
    /// Has the one behind it first in an answer to a pull.
    Swap,
    /// Never answers a request with that code.
    Mute(i32),
}

/// Which message that is, of those that are sent.
const VICTIM: u64 = 100;
/// How many are sent per second by most loads, and in all by those of a second.
pub(super) const SENDS: u64 = 300;
/// Connections that send them.
pub(super) const SENDERS: u64 = 2;
/// How long after it was acknowledged the last message is stored again.
const AGAIN: Duration = Duration::from_millis(300);

/// A running one.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    sends: AtomicU64,
    /// Whether an answer to a pull was changed.
    is_done: AtomicBool,
    /// Requests that were never answered.
    muted: AtomicU64,
}

impl Proxy {
    /// Requests that it did not answer.
    pub(super) fn muted(&self) -> u64 {
        self.shared.muted.load(Ordering::SeqCst)
    }
}

/// Starts one before `broker`.
pub(super) fn proxy(broker: SocketAddr, deed: Deed) -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let shared = Arc::new(Shared::default());
    let proxy = Proxy {
        address,
        shared: Arc::clone(&shared),
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let link = Link {
                    broker,
                    behind: Client::connect(broker, PATIENCE).expect("the broker"),
                    deed,
                    shared,
                    last: None,
                    held: None,
                };
                link.hand_on(stream);
            });
        }
    });
    proxy
}

/// One connection through it.
struct Link {
    broker: SocketAddr,
    behind: Client,
    deed: Deed,
    shared: Arc<Shared>,
    /// What the last send was answered.
    last: Option<OwnedCommand>,
    /// A send that is not answered yet: what it was, and its answer.
    held: Option<(ReplyTo, OwnedCommand)>,
}

impl Link {
    fn hand_on(mut self, mut stream: TcpStream) {
        let (mut received, mut scratch) = (Vec::new(), Scratch::default());
        let mut chunk = [0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            received.extend_from_slice(&chunk[..count]);
            while let Ok(Parsed::Complete { frame, consumed }) = parse(&received, MAX_FRAME) {
                let command = decode(frame, &mut scratch).expect("a header");
                let mut out = Vec::new();
                self.serve(&command, &mut out);
                received.drain(..consumed);
                if stream.write_all(&out).is_err() {
                    return;
                }
            }
        }
    }

    fn serve(&mut self, command: &Command<'_>, out: &mut Vec<u8>) {
        if self.deed == Deed::Mute(command.code) {
            self.shared.muted.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let body = command.body;
        match command.code {
            _ if command.is_oneway() => {
                let sent = self
                    .behind
                    .oneway(command.code, |to| copy(command, to), body);
                sent.expect("the broker");
            }
            request::SEND_MESSAGE_V2 => self.send(command, out),
            request::PULL_MESSAGE => {
                let answer = self.pull(command);
                write(out, command.reply_to(), &answer);
            }
            _ => {
                let answer = self.ask(command, body);
                write(out, command.reply_to(), &answer);
            }
        }
    }

    fn send(&mut self, command: &Command<'_>, out: &mut Vec<u8>) {
        let number = self.shared.sends.fetch_add(1, Ordering::SeqCst);
        let is_victim = number == VICTIM;
        if self.deed == Deed::Slow {
            thread::sleep(Duration::from_secs(10 * SENDERS) / SENDS as u32);
        }
        let mut body = command.body.to_vec();
        let answer = match (self.deed, is_victim) {
            (Deed::Drop, true) => self.last.take().expect("an earlier send"),
            (Deed::Double, true) => {
                self.ask(command, &body);
                self.ask(command, &body)
            }
            (Deed::Damage, true) => {
                body[200] ^= 1;
                self.ask(command, &body)
            }
            _ => self.ask(command, &body),
        };
        if self.deed == Deed::DoubleLast && number + 1 == SENDS {
            self.send_again(command);
        }
        let reply_to = command.reply_to();
        if self.deed == Deed::Misplace && is_victim {
            self.held = Some((reply_to, answer));
            return;
        }
        let queue = |of: &OwnedCommand| of.get("queueId").map(str::to_owned);
        let is_with = |(_, held): &mut (ReplyTo, OwnedCommand)| queue(held) == queue(&answer);
        if let Some((first, held)) = self.held.take_if(is_with) {
            write(out, first, &answer);
            write(out, reply_to, &held);
        } else {
            write(out, reply_to, &answer);
        }
        self.last = Some(answer);
    }

    fn send_again(&self, command: &Command<'_>) {
        let (broker, code, body) = (self.broker, command.code, command.body.to_vec());
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let fields: Vec<_> = command.ext.iter().map(owned).collect();
        thread::spawn(move || {
            thread::sleep(AGAIN);
            let mut client = Client::connect(broker, PATIENCE).expect("the broker");
            let all = |to: &mut Encoder<'_>| {
                for (name, value) in &fields {
                    to.field_str(name, value);
                }
            };
            let answer = client.invoke(code, all, &body, PATIENCE);
            assert_eq!(answer.expect("an answer").code, 0);
        });
    }

    /// The answer to a pull; the first with two messages that can be had is changed.
    fn pull(&mut self, command: &Command<'_>) -> OwnedCommand {
        let deed = self.deed;
        let changes = [Deed::LeaveOut, Deed::Repeat, Deed::Swap].contains(&deed);
        loop {
            let mut answer = self.ask(command, command.body);
            if !changes || answer.code != 0 || self.shared.is_done.load(Ordering::SeqCst) {
                return answer;
            }
            let size = |from: &[u8]| Record::decode(from).map(|record| record.size() as usize);
            let one = size(&answer.body).expect("a record");
            let Ok(two) = size(&answer.body[one..]).map(|size| one + size) else {
                // It will have another message soon.
                continue;
            };
            if self.shared.is_done.swap(true, Ordering::SeqCst) {
                return answer;
            }
            let (first, second) = (&answer.body[..one], &answer.body[one..two]);
            let changed = match deed {
                Deed::LeaveOut => second.to_vec(),
                Deed::Repeat => [first, first, second].concat(),
                _ => [second, first].concat(),
            };
            answer.body.splice(..two, changed);
            return answer;
        }
    }

    fn ask(&mut self, command: &Command<'_>, body: &[u8]) -> OwnedCommand {
        let fields = |to: &mut Encoder<'_>| copy(command, to);
        self.behind
            .invoke(command.code, fields, body, PATIENCE)
            .expect("an answer")
    }
}

fn copy(command: &Command<'_>, to: &mut Encoder<'_>) {
    for (name, value) in command.ext.iter() {
        // A pull that is held would hold up those behind it on this connection.
        let value = match name {
            "suspendTimeoutMillis" => "20",
            _ => value,
        };
        to.field_str(name, value);
    }
}

fn write(out: &mut Vec<u8>, reply_to: ReplyTo, answer: &OwnedCommand) {
    let remark = answer.remark.as_deref();
    let mut encoder = Encoder::response(out, reply_to, answer.code, remark);
    for (name, value) in &answer.ext {
        encoder.field_str(name, value);
    }
    encoder.body(&answer.body);
}
