//! A listener that takes a limited number of connections, and keeps none that says nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// A connection that neither sends nor takes anything for this long is closed.
const SILENCE: Duration = Duration::from_secs(30);

/// A [`TcpListener`] with limits.
pub struct LimitedListener {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl LimitedListener {
    /// Limits `listener`.
    pub fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            room: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (LimitedStream, SocketAddr) {
        loop {
            let room = Arc::clone(&self.room).acquire_owned().await;
            // The semaphore is never closed; without room there is no limit to keep.
            let permit = room.ok();
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let stream = LimitedStream {
                        stream,
                        silence: Box::pin(sleep(SILENCE)),
                        _permit: permit,
                    };
                    return (stream, peer);
                }
                Err(error) => {
                    // Too many open files, mostly: others may close some.
                    tracing::warn!("HTTP cannot accept a connection: {error}");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection of a [`LimitedListener`].
pub struct LimitedStream {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl LimitedStream {
    /// Turns a pending poll into an error once the silence lasted too long; restarts the clock
    /// when something happened.
    fn heard<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return polled;
        }
        match self.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard(context, polled)
    }
}

impl AsyncWrite for LimitedStream {
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
