//! Accepting connections on the control thread, which hands each to the least-loaded core.
//!
//! Waiting goes through the runtime's own ring where there is one (a poll request submitted through
//! tokio-uring), and through epoll where there is none. [`Accepting::stop`] shuts the listeners
//! down: a poll request holds its socket open until the ring ends, so closing it is not enough.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Instant;

use io_uring_control::{cqueue, opcode, types};
use nix::poll::PollFlags;
use saturnmq_net::listener::{self, Acceptor, AfterError, Complaint};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot};

use crate::host;

/// Connections taken in a row before other tasks of the thread get their turn.
const BURST: usize = 64;

/// Running accept tasks.
pub struct Accepting {
    listeners: Vec<Rc<TcpListener>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Accepting {
    /// Accepts on `listeners` from now on; `ring` says whether this thread's runtime has a ring.
    ///
    /// # Errors
    /// A socket cannot be waited for.
    pub fn start(listeners: Vec<TcpListener>, acceptor: Acceptor, ring: bool) -> io::Result<Self> {
        let acceptor = Rc::new(RefCell::new(acceptor));
        let mut accepting = Self {
            listeners: Vec::new(),
            tasks: Vec::new(),
        };
        for listener in listeners {
            let port = listener.local_addr()?.port();
            let listener = Rc::new(listener);
            let source = Source::new(&listener, ring)?;
            accepting.listeners.push(listener);
            accepting
                .tasks
                .push(spawn_local(accept_all(source, port, Rc::clone(&acceptor))));
        }
        Ok(accepting)
    }

    /// Takes nobody any more; connections that wait in the kernel's queue are refused.
    pub async fn stop(self) {
        for listener in &self.listeners {
            if let Err(error) = listener::stop_accepting(listener) {
                tracing::debug!("stopping to accept: {error}");
            }
        }
        for task in self.tasks {
            // A task that panicked accepts no more, which is what is wanted here.
            let _ = task.await;
        }
    }
}

/// Where connections come from.
enum Source {
    Ring(Rc<TcpListener>),
    Epoll(tokio::net::TcpListener),
}

impl Source {
    fn new(listener: &Rc<TcpListener>, ring: bool) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        if ring {
            return Ok(Self::Ring(Rc::clone(listener)));
        }
        tokio::net::TcpListener::from_std(listener.try_clone()?).map(Self::Epoll)
    }

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let listener = match self {
            Self::Ring(listener) => listener,
            Self::Epoll(listener) => {
                let (stream, peer) = listener.accept().await?;
                return Ok((stream.into_std()?, peer));
            }
        };
        loop {
            match listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let fd = types::Fd(listener.as_raw_fd());
                    let events = u32::try_from(PollFlags::POLLIN.bits()).unwrap_or(1);
                    let poll = opcode::PollAdd::new(fd, events).build();
                    UnsubmittedOneshot::new((), Polled, poll).submit().await?;
                }
                accepted => return accepted,
            }
        }
    }
}

/// What a finished poll request says.
struct Polled;

impl OneshotOutputTransform for Polled {
    type Output = io::Result<()>;
    type StoredData = ();

    fn transform_oneshot_output(self, (): (), completion: cqueue::Entry) -> io::Result<()> {
        match completion.result() {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(()),
        }
    }
}

async fn accept_all(source: Source, port: u16, acceptor: Rc<RefCell<Acceptor>>) {
    let mut taken = 0;
    let mut complaint = Complaint::default();
    let descriptors = host::descriptors_for_connections();
    loop {
        match source.accept().await {
            Ok((stream, peer)) if !fits(&stream, descriptors) => {
                drop(stream);
                if let Some(untold) = complaint.tell(Instant::now()) {
                    tracing::warn!(
                        "the connection of {peer} to port {port} is closed: the other descriptors \
                         are for files, {untold} more since the last such line; see LimitNOFILE"
                    );
                }
                tokio::task::yield_now().await;
            }
            Ok((stream, peer)) => {
                // Not borrowed across an await, and this thread alone runs these tasks.
                acceptor.borrow_mut().hand_over(stream, peer, port);
                taken += 1;
                if taken % BURST == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => match listener::after_error(&error) {
                AfterError::Continue => tracing::debug!("accepting on port {port}: {error}"),
                AfterError::Pause(pause) => {
                    if let Some(untold) = complaint.tell(Instant::now()) {
                        tracing::warn!(
                            "accepting on port {port}: {error}, {untold} times since the last \
                             such line; see LimitNOFILE"
                        );
                    }
                    sleep(pause).await;
                }
                AfterError::Stop => return,
            },
        }
    }
}

/// Whether a connection leaves the descriptors from `end` on to the store.
fn fits(stream: &TcpStream, end: u64) -> bool {
    u64::try_from(stream.as_raw_fd()).is_ok_and(|descriptor| descriptor < end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Takes a client, then waits for another until the listener is shut down.
    async fn accept_and_stop(ring: bool) {
        let listener = Rc::new(TcpListener::bind("127.0.0.1:0").expect("bind"));
        let source = Source::new(&listener, ring).expect("source");
        let address = listener.local_addr().expect("address");
        let (tell, told) = tokio::sync::oneshot::channel();
        let accepting = spawn_local(async move {
            let (_, peer) = source.accept().await.expect("a client");
            tell.send(peer).expect("the test waits");
            source.accept().await
        });
        let client = TcpStream::connect(address).expect("connect");
        let limit = Duration::from_secs(10);
        let peer = tokio::time::timeout(limit, told)
            .await
            .expect("in time")
            .expect("a client");
        assert_eq!(peer, client.local_addr().expect("address"));
        listener::stop_accepting(&listener).expect("shutdown");
        let ended = tokio::time::timeout(limit, accepting)
            .await
            .expect("in time");
        let error = ended.expect("task").expect_err("stopped");
        assert_eq!(listener::after_error(&error), AfterError::Stop);
    }

    #[test]
    fn connections_leave_descriptors_to_the_store() {
        let end = host::descriptors_for_connections();
        assert!(end > 0);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let stream = TcpStream::connect(address).expect("connect");
        let descriptor = u64::try_from(stream.as_raw_fd()).expect("a number");
        assert!(fits(&stream, descriptor + 1) && !fits(&stream, descriptor));
    }

    #[test]
    fn the_ring_wakes_for_a_connection_and_for_the_end() {
        // Where io_uring is refused there is no ring to test.
        if let Ok(runtime) = tokio_uring::Runtime::new(&tokio_uring::builder()) {
            runtime.block_on(accept_and_stop(true));
        }
    }

    #[test]
    fn epoll_wakes_for_a_connection_and_for_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("runtime"), accept_and_stop(false));
    }
}
