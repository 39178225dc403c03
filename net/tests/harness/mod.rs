//! A server whose protocol echoes, refuses and delays, and a blocking client for it.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test binary uses a part"
)]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use saturnmq_net::driver::{
    ConnectionId, CoreHandle, CoreSettings, Outbox, Protocol, Verdict, spawn_core,
};
use saturnmq_net::frame::Frame;
use saturnmq_net::limits::Limits;
use saturnmq_net::listener::{Acceptor, bind, stop_accepting};
use saturnmq_net::probe::{Engine, Features, choose_named};

/// Makes one test per engine and function.
macro_rules! each_engine {
    ($($name:ident),+ $(,)?) => {
        mod uring { $(#[test] fn $name() { crate::harness::on("uring", super::$name); })+ }
        mod uring_6_1 { $(#[test] fn $name() { crate::harness::on("uring-6.1", super::$name); })+ }
        mod uring_plain {
            $(#[test] fn $name() { crate::harness::on("uring-plain", super::$name); })+
        }
        mod epoll { $(#[test] fn $name() { crate::harness::on("epoll", super::$name); })+ }
    };
}
pub(crate) use each_engine;

/// Runs `test` on that engine; says so when the host does not have it.
pub fn on(name: &str, test: fn(Engine)) {
    let engine = match name {
        "uring-6.1" => choose_named(Some("uring")).map(|engine| match engine {
            Engine::Uring(features) => Engine::Uring(Features {
                incremental: false,
                no_iowait: false,
                quiet_sends: false,
                ..features
            }),
            other => other,
        }),
        name => choose_named(Some(name)),
    };
    match engine {
        Ok(engine) => test(engine),
        Err(error) => eprintln!("not tested on {name}: {error}"),
    }
}

/// The first byte of a frame's header says what the protocol does with it.
pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + body.len());
    bytes.extend_from_slice(&(5 + body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&1u32.to_be_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

/// A frame whose body says its number and has `size` further bytes.
pub fn numbered(kind: u8, number: u32, size: usize) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(4 + size, number as u8);
    frame(kind, &body)
}

pub fn body_of(frame: &[u8]) -> &[u8] {
    &frame[9..]
}

pub fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    stream.read_exact(&mut bytes)?;
    let length = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    bytes.resize(4 + length, 0);
    stream.read_exact(&mut bytes[4..])?;
    Ok(bytes)
}

/// Bytes until the peer closes; a reset is an end too.
pub fn read_to_end(stream: &mut TcpStream) -> usize {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => bytes.len(),
        Err(error) => panic!("no end of the connection: {error}"),
    }
}

/// A connection that gives up after 60 s.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// Waits for a condition, at most 60 s; how often it did not hold.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) -> usize {
    let start = Instant::now();
    let mut looks = 0;
    while !condition() {
        looks += 1;
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "not within 60 s: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    looks
}

/// Raises the limit of descriptors for `wanted` connections; returns how many are possible.
pub fn raise_descriptors(wanted: usize) -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = 3 * wanted as u64 + 500;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).unwrap();
    }
    wanted.min((needed.min(hard.max(soft)) as usize - 500) / 3)
}

#[derive(Default)]
pub struct Seen {
    opened: AtomicUsize,
    closed: AtomicUsize,
    refusals: AtomicUsize,
    unanswerable: AtomicUsize,
    signals: AtomicUsize,
    late: Mutex<Vec<(ConnectionId, Vec<u8>)>>,
}

/// An answer from another thread; `finishes`: it belongs to a request in flight.
struct Pushed {
    conn: ConnectionId,
    bytes: Vec<u8>,
    finishes: bool,
}

struct Echo {
    seen: Arc<Seen>,
    pushed: Receiver<Pushed>,
    watched: UnixStream,
    offers: HashMap<ConnectionId, u32>,
    in_flight: usize,
}

fn write_frame(out: &mut Vec<u8>, frame: Frame<'_>) {
    let length = 4 + frame.header.len() + frame.body.len();
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.extend_from_slice(&(frame.header.len() as u32).to_be_bytes());
    out.extend_from_slice(frame.header);
    out.extend_from_slice(frame.body);
}

impl Protocol for Echo {
    fn opened(&mut self, _: ConnectionId, peer: SocketAddr, local_port: u16) {
        assert!(peer.port() > 0 && local_port > 0);
        self.seen.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(&mut self, conn: ConnectionId) {
        self.offers.remove(&conn);
        self.seen.closed.fetch_add(1, Ordering::SeqCst);
    }

    fn frame(&mut self, conn: ConnectionId, frame: Frame<'_>, io: &mut Outbox) -> Verdict {
        match frame.header[0] {
            b'e' => {}
            // Refused twice before it is taken.
            b'r' => {
                let offers = self.offers.entry(conn).or_default();
                *offers += 1;
                if !(*offers).is_multiple_of(3) {
                    self.seen.refusals.fetch_add(1, Ordering::Relaxed);
                    return Verdict::Retry;
                }
            }
            b'l' => {
                let mut bytes = Vec::new();
                write_frame(&mut bytes, frame);
                io.request_started(conn);
                self.in_flight += 1;
                self.seen.late.lock().unwrap().push((conn, bytes));
                return Verdict::Done;
            }
            b'!' => panic!("the protocol was told to panic"),
            _ => return Verdict::Close,
        }
        if let Some(out) = io.buffer(conn) {
            write_frame(out, frame);
        }
        Verdict::Done
    }

    fn pass(&mut self, _: Instant, io: &mut Outbox) {
        while let Ok(read @ 1..) = self.watched.read(&mut [0; 16]) {
            self.seen.signals.fetch_add(read, Ordering::SeqCst);
        }
        while let Ok(pushed) = self.pushed.try_recv() {
            match io.buffer(pushed.conn) {
                Some(out) => out.extend_from_slice(&pushed.bytes),
                None => {
                    self.seen.unanswerable.fetch_add(1, Ordering::SeqCst);
                }
            }
            if pushed.finishes {
                self.in_flight -= 1;
                io.request_finished(pushed.conn);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn has_work(&self) -> bool {
        !self.pushed.is_empty()
    }

    fn end_of_pass(&mut self) {}

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watched.as_fd())
    }

    fn idle(&self) -> bool {
        self.in_flight == 0
    }

    fn leaving(&mut self, _: &mut Outbox) {}
}

/// One core behind a listener.
pub struct Server {
    pub handle: CoreHandle,
    pub address: SocketAddr,
    seen: Arc<Seen>,
    push: Sender<Pushed>,
    signal: UnixStream,
    listener: TcpListener,
    accepting: JoinHandle<()>,
    core: JoinHandle<()>,
}

/// What a server had seen when it ended.
pub struct End {
    pub closed: usize,
}

impl Server {
    pub fn start(engine: Engine, limits: Limits) -> Server {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (push, pushed) = crossbeam_channel::unbounded();
        let settings = CoreSettings {
            limits,
            ..CoreSettings::new(0, None, engine)
        };
        let of_core = Arc::clone(&seen);
        let (signal, watched) = UnixStream::pair().unwrap();
        watched.set_nonblocking(true).unwrap();
        let (handle, core) = spawn_core(settings, move |_| Echo {
            seen: of_core,
            pushed,
            watched,
            offers: HashMap::new(),
            in_flight: 0,
        })
        .unwrap();
        let mut acceptor = Acceptor::new(vec![handle.clone()]);
        let accepts = listener.try_clone().unwrap();
        let accepting = std::thread::spawn(move || acceptor.run(&accepts).unwrap());
        Server {
            handle,
            address,
            seen,
            push,
            signal,
            listener,
            accepting,
            core,
        }
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    pub fn opened(&self) -> usize {
        self.seen.opened.load(Ordering::SeqCst)
    }

    pub fn closed(&self) -> usize {
        self.seen.closed.load(Ordering::SeqCst)
    }

    pub fn refusals(&self) -> usize {
        self.seen.refusals.load(Ordering::SeqCst)
    }

    /// Makes the descriptor readable that the protocol has watched.
    pub fn signal(&self) {
        (&self.signal).write_all(b"s").unwrap();
    }

    pub fn signals_seen(&self) -> usize {
        self.seen.signals.load(Ordering::SeqCst)
    }

    pub fn unanswerable(&self) -> usize {
        self.seen.unanswerable.load(Ordering::SeqCst)
    }

    /// Requests that wait for `answer_late`.
    pub fn late(&self) -> usize {
        self.seen.late.lock().unwrap().len()
    }

    /// Waits for a late request; returns its connection.
    pub fn late_connection(&self) -> ConnectionId {
        until("a late request", || self.late() > 0);
        self.seen.late.lock().unwrap()[0].0
    }

    /// Answers the late requests from this thread; returns how many.
    pub fn answer_late(&self) -> usize {
        let late = std::mem::take(&mut *self.seen.late.lock().unwrap());
        let count = late.len();
        for (conn, bytes) in late {
            self.push
                .send(Pushed {
                    conn,
                    bytes,
                    finishes: true,
                })
                .unwrap();
            self.handle.wake();
        }
        count
    }

    pub fn push(&self, conn: ConnectionId, bytes: Vec<u8>) {
        self.push
            .send(Pushed {
                conn,
                bytes,
                finishes: false,
            })
            .unwrap();
        self.handle.wake();
    }

    /// Stops accepting and waits for the core, which panics; false: it did not.
    pub fn crash(self) -> bool {
        stop_accepting(&self.listener).unwrap();
        self.accepting.join().unwrap();
        until("the core has ended", || self.handle.has_ended());
        self.core.join().is_err()
    }

    /// Stops it all; every connection was told closed by then.
    pub fn stop(self) -> End {
        stop_accepting(&self.listener).unwrap();
        self.accepting.join().unwrap();
        self.handle.stop();
        let start = Instant::now();
        let looks = until("the core has ended", || self.handle.has_ended());
        // Time in which the machine stood still is one look.
        assert!(
            start.elapsed() < Duration::from_secs(5) || looks < 2_000,
            "a stop took {:?}",
            start.elapsed()
        );
        self.core.join().unwrap();
        let closed = self.seen.closed.load(Ordering::SeqCst);
        assert_eq!(self.seen.opened.load(Ordering::SeqCst), closed);
        assert_eq!(self.handle.connections(), 0);
        End { closed }
    }
}

/// Sends everything while reading as much back: for peers that echo more than buffers take.
pub fn exchange(stream: &mut TcpStream, request: &[u8], answer: &mut [u8]) {
    stream.write_all(request).unwrap();
    stream.read_exact(answer).unwrap();
}
