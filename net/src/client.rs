//! A small blocking client for tools and load generation.
//!
//! Requests may be pipelined ([`Client::queue`], [`Client::flush`], [`Client::receive`]) or made
//! one at a time ([`Client::invoke`]). Requests that the server makes meanwhile are kept, up to a
//! limit, for [`Client::pushed`]. Every wait ends at its deadline.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use thiserror::Error;

use crate::command::{Command, Language, ReplyTo, Scratch, decode};
use crate::encode::Encoder;
use crate::error::{FrameError, HeaderError};
use crate::frame::{Codec, Frame, MAX_FRAME, Parsed, parse};

/// Pushed requests kept before the oldest are dropped.
const MAX_PUSHED: usize = 1024;

/// Most bytes of requests that wait for a flush.
const MAX_QUEUED: usize = 2 * MAX_FRAME;

/// Waits shorter than this end on time; longer ones may be cut short and begun again.
const PRECISE_WAIT: Duration = Duration::from_millis(100);

/// Bytes asked for in one read, and the buffers' size between large frames.
const CHUNK: usize = 64 * 1024;

/// Why a request failed. After all but `TooLarge` and `QueueFull` the connection is of no use.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No address could be connected to.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address as given.
        address: String,
        /// Why the last attempt failed.
        source: io::Error,
    },
    /// The connection broke.
    #[error("connection to {peer} failed: {source}")]
    Io {
        /// The server.
        peer: SocketAddr,
        /// What failed.
        source: io::Error,
    },
    /// The server closed the connection.
    #[error("{peer} closed the connection")]
    Closed {
        /// The server.
        peer: SocketAddr,
    },
    /// No answer in time.
    #[error("no answer from {peer} within {after:?}")]
    Timeout {
        /// The server.
        peer: SocketAddr,
        /// How long was waited.
        after: Duration,
    },
    /// The server sent what is no frame.
    #[error("bad frame from {peer}: {source}")]
    Frame {
        /// The server.
        peer: SocketAddr,
        /// What is wrong.
        source: FrameError,
    },
    /// The server sent a header that cannot be read.
    #[error("bad header from {peer}: {source}")]
    Header {
        /// The server.
        peer: SocketAddr,
        /// What is wrong.
        source: HeaderError,
    },
    /// The request is larger than a frame can be; it was not sent.
    #[error("the request is larger than a frame of {MAX_FRAME} bytes")]
    TooLarge,
    /// Too much waits for a flush; the request was not queued.
    #[error("more than {MAX_QUEUED} bytes of requests wait for a flush")]
    QueueFull,
}

/// A command that owns its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedCommand {
    /// Request code, or response code of a response.
    pub code: i32,
    /// The server's language.
    pub language: Language,
    /// The server's version.
    pub version: i32,
    /// Number of the request.
    pub opaque: i32,
    /// Flag bits.
    pub flag: i32,
    /// Text beside the code.
    pub remark: Option<String>,
    /// The ext fields.
    pub ext: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// What an answer needs to know, if this is a request.
    pub reply_to: ReplyTo,
}

impl OwnedCommand {
    /// The text of an ext field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.ext
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// An ext field as a number; `None` when it is absent or none.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }
}

impl From<&Command<'_>> for OwnedCommand {
    fn from(command: &Command<'_>) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        OwnedCommand {
            code: command.code,
            language: command.language,
            version: command.version,
            opaque: command.opaque,
            flag: command.flag,
            remark: command.remark.map(str::to_owned),
            ext: command.ext.iter().map(owned).collect(),
            body: command.body.to_vec(),
            reply_to: command.reply_to(),
        }
    }
}

/// A connection to a broker or name server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    peer: SocketAddr,
    codec: Codec,
    last_opaque: i32,
    out: Vec<u8>,
    inbox: Inbox,
    scratch: Scratch,
    pushed: VecDeque<OwnedCommand>,
    pushed_lost: u64,
}

impl Client {
    /// Connects to the first address that answers within `timeout`; each gets that long.
    pub fn connect(
        address: impl ToSocketAddrs + std::fmt::Display,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect {
            address: address.to_string(),
            source,
        };
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for peer in address.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&peer, timeout) {
                Ok(stream) => return Self::over(stream, peer, timeout).map_err(failed),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    fn over(stream: TcpStream, peer: SocketAddr, timeout: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        Ok(Client {
            stream,
            peer,
            codec: Codec::Json,
            last_opaque: 0,
            out: Vec::new(),
            inbox: Inbox::default(),
            scratch: Scratch::default(),
            pushed: VecDeque::new(),
            pushed_lost: 0,
        })
    }

    /// Writes requests in that codec from now on; JSON is the default.
    pub fn set_codec(&mut self, codec: Codec) {
        self.codec = codec;
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end's address.
    pub fn local(&self) -> Result<SocketAddr, ClientError> {
        self.stream.local_addr().map_err(|source| ClientError::Io {
            peer: self.peer,
            source,
        })
    }

    /// Makes a request and waits for its answer. Answers to other requests are dropped.
    pub fn invoke(
        &mut self,
        code: i32,
        fields: impl FnOnce(&mut Encoder<'_>),
        body: &[u8],
        timeout: Duration,
    ) -> Result<OwnedCommand, ClientError> {
        let deadline = Instant::now() + timeout;
        let opaque = self.queue(code, false, fields, body)?;
        self.flush()?;
        loop {
            let peer = self.peer;
            let Some(command) = self.receive(deadline)? else {
                return Err(ClientError::Timeout {
                    peer,
                    after: timeout,
                });
            };
            if command.is_response() {
                if command.opaque == opaque {
                    return Ok(OwnedCommand::from(&command));
                }
                continue;
            }
            let pushed = OwnedCommand::from(&command);
            self.keep(pushed);
        }
    }

    /// Makes a request that wants no answer.
    pub fn oneway(
        &mut self,
        code: i32,
        fields: impl FnOnce(&mut Encoder<'_>),
        body: &[u8],
    ) -> Result<(), ClientError> {
        self.queue(code, true, fields, body)?;
        self.flush()
    }

    /// Appends a request to those that [`Client::flush`] sends; returns its number.
    pub fn queue(
        &mut self,
        code: i32,
        oneway: bool,
        fields: impl FnOnce(&mut Encoder<'_>),
        body: &[u8],
    ) -> Result<i32, ClientError> {
        if self.out.len() > MAX_QUEUED {
            return Err(ClientError::QueueFull);
        }
        let before = self.out.len();
        self.last_opaque = self.last_opaque.wrapping_add(1);
        let opaque = self.last_opaque;
        let mut encoder = Encoder::request(&mut self.out, self.codec, code, opaque, oneway);
        fields(&mut encoder);
        encoder.body(body);
        if self.out.len() == before {
            Err(ClientError::TooLarge)
        } else {
            Ok(opaque)
        }
    }

    /// Sends what is queued. Fails when the server takes nothing for as long as the timeout that
    /// the connection was made with.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let written = self.stream.write_all(&self.out);
        self.out.clear();
        self.out.shrink_to(CHUNK);
        written.map_err(|source| ClientError::Io {
            peer: self.peer,
            source,
        })
    }

    /// The next command from the server, be it an answer or a request; `None` at the deadline.
    /// It borrows from the client's buffers.
    pub fn receive(&mut self, deadline: Instant) -> Result<Option<Command<'_>>, ClientError> {
        let peer = self.peer;
        if !self.inbox.fill(&mut self.stream, peer, deadline)? {
            return Ok(None);
        }
        let Some(frame) = self.inbox.take(peer)? else {
            return Ok(None);
        };
        let command = decode(frame, &mut self.scratch);
        command
            .map(Some)
            .map_err(|source| ClientError::Header { peer, source })
    }

    /// The oldest request of the server that is not handed out yet; waits for one until the
    /// deadline. Answers that arrive meanwhile are dropped.
    pub fn pushed(&mut self, deadline: Instant) -> Result<Option<OwnedCommand>, ClientError> {
        if let Some(pushed) = self.pushed.pop_front() {
            return Ok(Some(pushed));
        }
        while let Some(command) = self.receive(deadline)? {
            if !command.is_response() {
                return Ok(Some(OwnedCommand::from(&command)));
            }
        }
        Ok(None)
    }

    /// Pushed requests that were dropped because nobody fetched them.
    pub fn pushed_lost(&self) -> u64 {
        self.pushed_lost
    }

    /// Answers a pushed request.
    pub fn respond(
        &mut self,
        to: ReplyTo,
        code: i32,
        remark: Option<&str>,
        body: &[u8],
    ) -> Result<(), ClientError> {
        Encoder::response(&mut self.out, to, code, remark).body(body);
        self.flush()
    }

    fn keep(&mut self, pushed: OwnedCommand) {
        if self.pushed.len() == MAX_PUSHED {
            self.pushed.pop_front();
            self.pushed_lost += 1;
        }
        self.pushed.push_back(pushed);
    }
}

/// What has been received and not been taken: `bytes[start..end]`.
#[derive(Debug, Default)]
struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// The socket's present read timeout; zero before the first read.
    timeout: Duration,
}

impl Inbox {
    fn received(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads until a whole frame is there; false: the deadline came first.
    fn fill(
        &mut self,
        stream: &mut TcpStream,
        peer: SocketAddr,
        deadline: Instant,
    ) -> Result<bool, ClientError> {
        loop {
            let wanted = match parse(self.received(), MAX_FRAME) {
                Ok(Parsed::Complete { .. }) => return Ok(true),
                Ok(Parsed::Incomplete { wanted }) => wanted,
                Err(source) => return Err(ClientError::Frame { peer, source }),
            };
            self.make_room(wanted);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match self.read(stream, left) {
                Ok(0) => return Err(ClientError::Closed { peer }),
                Ok(count) => self.end += count,
                Err(error) if is_timeout(&error) => {}
                Err(source) => return Err(ClientError::Io { peer, source }),
            }
        }
    }

    /// One read that waits no longer than `left`. Short waits are timed exactly: load generators
    /// send at set moments, and a socket's timeout ends with a tick of the kernel's clock.
    fn read(&mut self, stream: &mut TcpStream, left: Duration) -> io::Result<usize> {
        if left < PRECISE_WAIT {
            let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            if ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None)? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
            return stream.read(self.bytes.get_mut(self.end..).unwrap_or_default());
        }
        self.read_coarsely(stream, left)
    }

    /// The socket's timeout is rounded down to a power of two so that it is set once, not before
    /// every read; the caller waits again for the rest.
    fn read_coarsely(&mut self, stream: &mut TcpStream, left: Duration) -> io::Result<usize> {
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let timeout = Duration::from_millis(1 << millis.ilog2());
        if self.timeout != timeout {
            stream.set_read_timeout(Some(timeout))?;
            self.timeout = timeout;
        }
        stream.read(self.bytes.get_mut(self.end..).unwrap_or_default())
    }

    /// Moves what is there to the front and makes room for a frame of `wanted` bytes and for one
    /// more read.
    fn make_room(&mut self, wanted: usize) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let size = wanted.max(self.end + 1).next_multiple_of(CHUNK);
        if size > self.bytes.len() || self.bytes.len() > 4 * size {
            self.bytes.resize(size, 0);
            self.bytes.shrink_to(size);
        }
    }

    /// Takes the frame that is there.
    fn take(&mut self, peer: SocketAddr) -> Result<Option<Frame<'_>>, ClientError> {
        let received = self.bytes.get(self.start..self.end).unwrap_or_default();
        match parse(received, MAX_FRAME) {
            Ok(Parsed::Complete { frame, consumed }) => {
                self.start += consumed;
                Ok(Some(frame))
            }
            Ok(Parsed::Incomplete { .. }) => Ok(None),
            Err(source) => Err(ClientError::Frame { peer, source }),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    const LONG: Duration = Duration::from_secs(10);

    fn later() -> Instant {
        Instant::now() + LONG
    }

    /// A server that handles one connection and as many requests as `serve` says.
    fn server(
        requests: usize,
        serve: impl Fn(&Command<'_>, &mut Vec<u8>) + Send + 'static,
    ) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let thread = thread::spawn(move || {
            let (mut stream, peer) = listener.accept().expect("a client");
            let (mut inbox, mut scratch) = (Inbox::default(), Scratch::default());
            for _ in 0..requests {
                assert!(inbox.fill(&mut stream, peer, later()).expect("bytes"));
                let frame = inbox.take(peer).expect("a frame").expect("a whole frame");
                let mut out = Vec::new();
                serve(&decode(frame, &mut scratch).expect("a header"), &mut out);
                stream.write_all(&out).expect("a client that reads");
            }
        });
        (address, thread)
    }

    #[test]
    fn an_answer_is_found_among_pushed_requests_and_stray_answers() {
        let (address, thread) = server(1, |command, out| {
            let to = command.reply_to();
            Encoder::request(out, Codec::Binary, 40, 9, true).finish();
            Encoder::response(out, ReplyTo { opaque: 77, ..to }, 5, None).finish();
            let mut encoder = Encoder::response(out, to, 0, Some("well"));
            encoder.field_str("echo", command.ext.get("say").unwrap_or("nothing"));
            encoder.body(command.body);
        });
        let mut client = Client::connect(address, LONG).expect("a server");
        let say = |encoder: &mut Encoder<'_>| {
            encoder.field_str("say", "hi");
        };
        let answer = client.invoke(105, say, b"body", LONG).expect("an answer");
        assert_eq!((answer.code, answer.remark.as_deref()), (0, Some("well")));
        assert_eq!(
            (answer.get("echo"), answer.body.as_slice()),
            (Some("hi"), &b"body"[..])
        );
        let pushed = client
            .pushed(Instant::now())
            .expect("no failure")
            .expect("a pushed request");
        assert_eq!((pushed.code, pushed.flag), (40, 2));
        thread.join().expect("a server that was content");
        assert!(matches!(
            client.pushed(later()),
            Err(ClientError::Closed { .. })
        ));
    }

    #[test]
    fn pipelined_requests_are_answered_in_any_size() {
        let (address, thread) = server(50, |command, out| {
            let body = vec![7; command.ext.i64("size").ok().flatten().unwrap_or(0) as usize];
            Encoder::response(out, command.reply_to(), 0, None).body(&body);
        });
        let mut client = Client::connect(address, LONG).expect("a server");
        client.set_codec(Codec::Binary);
        let sizes: Vec<i64> = (0..50).map(|number| number * number * 97).collect();
        for size in &sizes {
            let field = |encoder: &mut Encoder<'_>| {
                encoder.field_i64("size", *size);
            };
            client.queue(10, false, field, b"").expect("room");
        }
        client.flush().expect("a server that reads");
        for (number, size) in sizes.iter().enumerate() {
            let answer = client
                .receive(later())
                .expect("no failure")
                .expect("an answer");
            assert_eq!(
                (answer.opaque, answer.body.len()),
                (number as i32 + 1, *size as usize)
            );
        }
        thread.join().expect("a server that was content");
    }

    #[test]
    fn silence_ends_at_the_deadline_and_a_closed_port_at_once() {
        // Nobody else takes a port of this address once it is closed.
        let listener = TcpListener::bind("127.77.0.3:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let mut client = Client::connect(address, LONG).expect("a listener");
        let answer = client.invoke(28, |_| {}, b"", Duration::from_millis(50));
        assert!(
            matches!(answer, Err(ClientError::Timeout { .. })),
            "{answer:?}"
        );
        drop(listener);
        let refused = Client::connect(address, LONG);
        assert!(
            matches!(refused, Err(ClientError::Connect { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn a_request_too_large_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let mut client = Client::connect(address, LONG).expect("a listener");
        let sent = client.oneway(10, |_| {}, &vec![0; MAX_FRAME]);
        assert!(matches!(sent, Err(ClientError::TooLarge)), "{sent:?}");
    }
}
