//! Accepting connections on the control thread, which hands each to the least-loaded core.
//!
//! Waiting goes through the runtime's own ring where there is one (a poll request submitted through
//! tokio-uring), and through epoll where there is none. [`Accepting::stop`] shuts the listeners
//! down: a poll request holds its socket open until the ring ends, so closing it is not enough.

use std::cell::RefCell;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use io_uring_control::{cqueue, opcode, types};
use nix::poll::PollFlags;
use saturnmq_net::listener::{self, Acceptor, AfterError};
use tokio::io::unix::AsyncFd;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot};

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
            listener.set_nonblocking(true)?;
            let listener = Rc::new(listener);
            let wait = if ring {
                Wait::Ring(Rc::clone(&listener))
            } else {
                Wait::Epoll(AsyncFd::register(Rc::clone(&listener))?)
            };
            let task = accept_all(Rc::clone(&listener), wait, Rc::clone(&acceptor));
            accepting.listeners.push(listener);
            accepting.tasks.push(spawn_local(task));
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

/// How to wait for a connection.
enum Wait {
    Ring(Rc<TcpListener>),
    Epoll(AsyncFd<Rc<TcpListener>>),
}

impl Wait {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Ring(listener) => {
                let fd = types::Fd(listener.as_raw_fd());
                let events = u32::try_from(PollFlags::POLLIN.bits()).unwrap_or(1);
                let poll = opcode::PollAdd::new(fd, events).build();
                UnsubmittedOneshot::new((), Polled, poll).submit().await
            }
            Self::Epoll(socket) => {
                socket.readable().await?.clear_ready();
                Ok(())
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

async fn accept_all(listener: Rc<TcpListener>, wait: Wait, acceptor: Rc<RefCell<Acceptor>>) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    let mut taken = 0;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                // Not borrowed across an await, and this thread alone runs these tasks.
                acceptor.borrow_mut().hand_over(stream, peer, port);
                taken += 1;
                if taken % BURST == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Err(error) = wait.readable().await {
                    tracing::error!("port {port} takes no more connections: {error}");
                    return;
                }
            }
            Err(error) => match listener::after_error(&error) {
                AfterError::Continue => tracing::debug!("accepting on port {port}: {error}"),
                AfterError::Pause(pause) => {
                    tracing::warn!("accepting on port {port}: {error}; see LimitNOFILE");
                    sleep(pause).await;
                }
                AfterError::Stop => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    /// Waits on a listener until a client came and until it was shut down.
    async fn wait_twice(wait: fn(Rc<TcpListener>) -> Wait) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        let address = listener.local_addr().expect("address");
        let listener = Rc::new(listener);
        let wait = wait(Rc::clone(&listener));
        let client = TcpStream::connect(address).expect("connect");
        wait.readable().await.expect("readable");
        listener.accept().expect("accept");
        let waiting = spawn_local(async move { wait.readable().await });
        tokio::task::yield_now().await;
        listener::stop_accepting(&listener).expect("shutdown");
        let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await;
        ended.expect("in time").expect("task").expect("readable");
        let error = listener.accept().expect_err("stopped");
        assert_eq!(listener::after_error(&error), AfterError::Stop);
        drop(client);
    }

    #[test]
    fn the_ring_wakes_for_a_connection_and_for_the_end() {
        // Where io_uring is refused there is no ring to test.
        if let Ok(runtime) = tokio_uring::Runtime::new(&tokio_uring::builder()) {
            runtime.block_on(wait_twice(Wait::Ring));
        }
    }

    #[test]
    fn epoll_wakes_for_a_connection_and_for_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        tokio::task::LocalSet::new().block_on(
            &runtime.expect("runtime"),
            wait_twice(|listener| Wait::Epoll(AsyncFd::register(listener).expect("epoll"))),
        );
    }
}
