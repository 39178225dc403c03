//! HTTP connections with limits: a number at a time, a time to ask something, a time of silence.
//!
//! Whoever comes always gets in: with all places taken, the connection goes that has waited
//! longest for its client, of the address that holds most. A client that keeps connections open
//! and says nothing therefore never keeps a health check out.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep};

/// Pause after a failed accept: others may close some files meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between two log lines about failed accepts.
const COMPLAIN: Duration = Duration::from_secs(60);

/// What connections may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Time for the head of a request, from the connection's start or the last answer on.
    pub head: Duration,
    /// A connection that neither sends nor takes anything for this long is closed.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(10),
            silence: Duration::from_secs(30),
        }
    }
}

/// Serves `routes` on `listener` for the life of the runtime.
pub async fn serve(listener: TcpListener, routes: Router, limits: Limits) {
    let start = Instant::now();
    let mut open: Vec<Open> = Vec::new();
    let mut complained: Option<Instant> = None;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, mostly.
                if complained.is_none_or(|at| at.elapsed() >= COMPLAIN) {
                    tracing::warn!("HTTP cannot accept a connection: {error}");
                    complained = Some(Instant::now());
                }
                sleep(PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.task.is_finished());
        while open.len() >= limits.connections {
            let Some(victim) = longest_waiting(&open) else {
                break;
            };
            let victim = open.swap_remove(victim);
            tracing::debug!(peer = %victim.peer, "HTTP: closed for another connection");
            victim.task.abort();
        }
        let turn = Arc::new(Turn::begin(start));
        let serving = serve_one(stream, routes.clone(), limits, Arc::clone(&turn));
        open.push(Open {
            peer: peer.ip(),
            turn,
            task: tokio::spawn(serving).abort_handle(),
        });
    }
}

/// An open connection.
struct Open {
    peer: IpAddr,
    turn: Arc<Turn>,
    task: AbortHandle,
}

/// The connection that is closed when room is needed.
fn longest_waiting(open: &[Open]) -> Option<usize> {
    let held_by = |peer: IpAddr| open.iter().filter(|other| other.peer == peer).count();
    let rank = |connection: &Open| {
        let (ours, since) = connection.turn.now();
        // Nobody is cut off while we owe an answer, unless that is all there is.
        (ours, std::cmp::Reverse(held_by(connection.peer)), since)
    };
    (0..open.len()).min_by_key(|index| rank(&open[*index]))
}

/// Whose turn it is on a connection: the client's, to ask or to take the answer, or ours.
struct Turn {
    start: Instant,
    ours: AtomicBool,
    /// Microseconds from `start` to the last change.
    since: AtomicU64,
}

impl Turn {
    fn begin(start: Instant) -> Self {
        let turn = Self {
            start,
            ours: AtomicBool::new(false),
            since: AtomicU64::new(0),
        };
        turn.set(false);
        turn
    }

    fn set(&self, ours: bool) {
        let since = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.since.store(since, Ordering::Relaxed);
        self.ours.store(ours, Ordering::Relaxed);
    }

    fn now(&self) -> (bool, u64) {
        (
            self.ours.load(Ordering::Relaxed),
            self.since.load(Ordering::Relaxed),
        )
    }
}

async fn serve_one(stream: TcpStream, routes: Router, limits: Limits, turn: Arc<Turn>) {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |request| {
        let (answer, turn) = (routes.call(request), Arc::clone(&turn));
        turn.set(true);
        async move {
            let answer = answer.await;
            turn.set(false);
            answer
        }
    });
    let stream = QuietStream {
        stream,
        limit: limits.silence,
        silence: Box::pin(sleep(limits.silence)),
    };
    let mut builder = http1::Builder::new();
    let connection = builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!("an HTTP connection ends: {error}");
    }
}

/// A connection that fails once it was silent for too long.
struct QuietStream {
    stream: TcpStream,
    limit: Duration,
    silence: Pin<Box<Sleep>>,
}

impl QuietStream {
    /// Turns a pending poll into an error once the silence lasted too long; restarts the clock
    /// when something happened.
    fn heard<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let until = Instant::now() + self.limit;
            self.silence.as_mut().reset(until);
            return polled;
        }
        match self.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for QuietStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard(context, polled)
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.heard(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    /// No test waits longer than this.
    const PATIENCE: Duration = Duration::from_secs(20);
    const NEVER: Duration = Duration::from_secs(3600);

    async fn served(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let routes = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/never", get(std::future::pending::<&'static str>));
        tokio::spawn(serve(listener, routes, limits));
        address
    }

    async fn send(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        stream.write_all(text.as_bytes()).await.expect("send");
        stream
    }

    async fn all_of(mut stream: TcpStream) -> String {
        let mut text = String::new();
        let read = timeout(PATIENCE, stream.read_to_string(&mut text));
        // A connection that was cut off may end with a reset.
        let _ = read.await.expect("an end in time");
        text
    }

    async fn is_healthy(address: SocketAddr) {
        let request = "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let answer = all_of(send(address, request).await).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }

    /// The answer to a request that ends with `wanted`, in some tries: on a busy machine one may be
    /// cut off before it was sent.
    async fn answered(address: SocketAddr, request: &str, wanted: &str) {
        let mut answer = String::new();
        for _ in 0..20 {
            answer = all_of(send(address, request).await).await;
            if answer.ends_with(wanted) {
                return;
            }
            assert!(!answer.contains("200"), "{answer:?}");
        }
        panic!("never {wanted:?}, but {answer:?}");
    }

    #[tokio::test]
    async fn connections_that_never_finish_a_request_keep_nobody_out() {
        let limits = Limits {
            connections: 4,
            head: NEVER,
            silence: NEVER,
        };
        let address = served(limits).await;
        let mut slow = Vec::new();
        for _ in 0..8 {
            slow.push(send(address, "GET /heal").await);
            is_healthy(address).await;
        }
        assert_eq!(all_of(slow.remove(0)).await, "", "the oldest goes first");
    }

    #[tokio::test]
    async fn connections_that_wait_for_an_answer_keep_nobody_out() {
        let limits = Limits {
            connections: 4,
            head: NEVER,
            silence: NEVER,
        };
        let address = served(limits).await;
        let mut waiting = Vec::new();
        for _ in 0..8 {
            waiting.push(send(address, "GET /never HTTP/1.1\r\nHost: h\r\n\r\n").await);
            is_healthy(address).await;
        }
    }

    #[tokio::test]
    async fn a_head_that_takes_too_long_ends_the_connection() {
        let limits = Limits {
            head: Duration::from_millis(50),
            silence: NEVER,
            ..Limits::default()
        };
        let address = served(limits).await;
        let answer = all_of(send(address, "GET /heal").await).await;
        assert!(!answer.contains("200"), "{answer:?}");
        let request = "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        answered(address, request, "ok").await;
    }

    #[tokio::test]
    async fn silence_ends_a_connection_that_waits_between_requests() {
        let limits = Limits {
            head: NEVER,
            silence: Duration::from_millis(50),
            ..Limits::default()
        };
        let address = served(limits).await;
        answered(address, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n", "ok").await;
    }

    #[test]
    fn the_address_with_most_connections_gives_first_and_answers_owed_are_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("runtime");
        let task = runtime.spawn(std::future::pending::<()>());
        let connection = |peer: u8, ours: bool, since: u64| Open {
            peer: IpAddr::from([127, 0, 0, peer]),
            turn: Arc::new(Turn {
                start: Instant::now(),
                ours: AtomicBool::new(ours),
                since: AtomicU64::new(since),
            }),
            task: task.abort_handle(),
        };
        let mut open = vec![
            connection(1, false, 1),
            connection(2, true, 2),
            connection(2, false, 4),
            connection(2, false, 3),
        ];
        assert_eq!(longest_waiting(&open), Some(3));
        open.truncate(2);
        assert_eq!(longest_waiting(&open), Some(0));
        open.remove(0);
        assert_eq!(longest_waiting(&open), Some(0));
        assert_eq!(longest_waiting(&[]), None);
    }
}
