//! A broker that lies: it hands everything on to a real one, but for one message.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use saturnmq_net::client::{Client, OwnedCommand};
use saturnmq_net::codes::request;
use saturnmq_net::command::{Command, Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{MAX_FRAME, Parsed, parse};

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
}

/// Which message that is.
const VICTIM: u64 = 100;

/// Starts one before `broker`; gives its address.
pub(super) fn proxy(broker: SocketAddr, deed: Deed) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let sends = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sends = Arc::clone(&sends);
            thread::spawn(move || {
                let behind = Client::connect(broker, PATIENCE).expect("the broker");
                hand_on(stream, behind, deed, &sends);
            });
        }
    });
    address
}

fn hand_on(mut stream: TcpStream, mut behind: Client, deed: Deed, sends: &AtomicU64) {
    let (mut received, mut scratch) = (Vec::new(), Scratch::default());
    let mut chunk = [0; 65536];
    // What the last send was answered.
    let mut last = None;
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        received.extend_from_slice(&chunk[..count]);
        while let Ok(Parsed::Complete { frame, consumed }) = parse(&received, MAX_FRAME) {
            let command = decode(frame, &mut scratch).expect("a header");
            let is_send = command.code == request::SEND_MESSAGE_V2;
            let is_victim = is_send && sends.fetch_add(1, Ordering::Relaxed) == VICTIM;
            if is_victim && deed == Deed::Double {
                ask(&mut behind, &command);
            }
            let answer = match last.take_if(|_| is_victim && deed == Deed::Drop) {
                Some(answer) => answer,
                None => ask(&mut behind, &command),
            };
            let mut out = Vec::new();
            let remark = answer.remark.as_deref();
            let mut encoder = Encoder::response(&mut out, command.reply_to(), answer.code, remark);
            for (name, value) in &answer.ext {
                encoder.field_str(name, value);
            }
            encoder.body(&answer.body);
            if is_send {
                last = Some(answer);
            }
            received.drain(..consumed);
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    }
}

fn ask(behind: &mut Client, command: &Command<'_>) -> OwnedCommand {
    let fields = |to: &mut Encoder<'_>| {
        for (name, value) in command.ext.iter() {
            to.field_str(name, value);
        }
    };
    behind
        .invoke(command.code, fields, command.body, PATIENCE)
        .expect("an answer")
}
