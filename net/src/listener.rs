//! Listening sockets, and the way of an accepted connection to the least-loaded core.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, shutdown};
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::CoreHandle;
pub use crate::ring::Messenger;

/// Connections that wait for `accept`, as Apache's server has it.
const BACKLOG: i32 = 1024;
/// How long accepting pauses when the process is out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Pause between two tries for an address in use.
const BIND_AGAIN: Duration = Duration::from_millis(10);

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there.
    #[error(
        "cannot listen on {address}: the address is in use; `ss -ltnp 'sport = :{port}'` shows \
         who uses it: stop that server or configure another port"
    )]
    InUse {
        /// What was asked for.
        address: SocketAddr,
        /// Its port.
        port: u16,
    },
    /// The address belongs to no interface.
    #[error("cannot listen on {0}: this host has no such address; `ip address` lists those it has")]
    NoSuchAddress(SocketAddr),
    /// The port needs a privilege.
    #[error(
        "cannot listen on {0}: ports below net.ipv4.ip_unprivileged_port_start need \
         CAP_NET_BIND_SERVICE; configure a higher port"
    )]
    Privileged(SocketAddr),
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// Listens on `address`; port 0 takes any free one (ask `local_addr`).
///
/// # Errors
/// Names the address, and what to do where that is known.
pub fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    let listen = || -> io::Result<TcpListener> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    listen().map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse {
            address,
            port: address.port(),
        },
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress(address),
        io::ErrorKind::PermissionDenied => BindError::Privileged(address),
        _ => BindError::Other { address, source },
    })
}

/// As [`bind`], but an address in use is tried again for `patience`: the kernel may let go of a
/// killed process's io_uring, and so of its sockets, some milliseconds after the process is gone.
///
/// # Errors
/// As [`bind`].
pub fn bind_within(address: SocketAddr, patience: Duration) -> Result<TcpListener, BindError> {
    let begin = Instant::now();
    loop {
        match bind(address) {
            Err(BindError::InUse { .. }) if begin.elapsed() < patience => {
                std::thread::sleep(BIND_AGAIN);
            }
            settled => return settled,
        }
    }
}

/// Ends accepting on `listener`: a blocked or later accept fails, queued connections are refused.
///
/// # Errors
/// The system refuses, which means that accepting has ended already.
pub fn stop_accepting(listener: &TcpListener) -> io::Result<()> {
    Ok(shutdown(listener.as_raw_fd(), Shutdown::Both)?)
}

/// What to do after a failed accept.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum AfterError {
    /// Accept again: that one connection was lost.
    Continue,
    /// Accept again after this long: the process lacks descriptors or memory.
    Pause(Duration),
    /// Accepting was stopped (see [`stop_accepting`]).
    Stop,
}

/// Judges an error of accept.
pub fn after_error(error: &io::Error) -> AfterError {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EBADF) => AfterError::Stop,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            AfterError::Pause(PAUSE)
        }
        _ => AfterError::Continue,
    }
}

/// How often a condition that lasts is told again.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Keeps a failure that comes back ten times a second from filling the log.
#[derive(Debug, Default)]
pub struct Complaint {
    told: Option<Instant>,
    untold: u64,
}

impl Complaint {
    /// Nothing was told yet.
    pub const fn new() -> Self {
        Self {
            told: None,
            untold: 0,
        }
    }

    /// Whether to tell of a failure that shows at `now`: `Some` with the number of those that were
    /// not told of since the last time.
    pub fn tell(&mut self, now: Instant) -> Option<u64> {
        let due = self
            .told
            .is_none_or(|told| now.saturating_duration_since(told) >= TELL_AGAIN);
        if !due {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// Distributes accepted connections over the cores.
pub struct Acceptor {
    cores: Vec<CoreHandle>,
    /// Tells cores of new sockets through their rings; else they are woken by eventfd.
    messenger: Option<Messenger>,
    /// Where the search for the least-loaded core starts, so that equal ones take turns.
    first: usize,
    /// Of connections that a core refused.
    refused: Complaint,
}

impl Acceptor {
    /// An acceptor for these cores; there must be at least one.
    ///
    /// # Panics
    /// `cores` is empty.
    pub fn new(cores: Vec<CoreHandle>) -> Acceptor {
        assert!(!cores.is_empty(), "an acceptor needs a core");
        let rings = cores.iter().any(|core| core.ring_fd().is_some());
        let messenger = if rings { Messenger::new().ok() } else { None };
        Acceptor {
            cores,
            messenger,
            first: 0,
            refused: Complaint::default(),
        }
    }

    /// The core with the fewest connections; equal ones take turns.
    fn least_loaded(&mut self) -> usize {
        let count = self.cores.len();
        self.first = (self.first + 1) % count;
        let turns = (0..count).map(|step| (self.first + step) % count);
        // The iterator has at least one element: there is at least one core.
        turns
            .min_by_key(|&core| (self.cores[core].has_ended(), self.cores[core].connections()))
            .unwrap_or(0)
    }

    /// Hands a connection to the least-loaded core. False: the core refused, it is closed.
    pub fn hand_over(&mut self, socket: TcpStream, peer: SocketAddr, local_port: u16) -> bool {
        let taken = self.offer(socket, peer, local_port);
        if !taken && let Some(untold) = self.refused.tell(Instant::now()) {
            tracing::warn!(
                %peer, untold, "connection refused: a core's inbox is full, or it stops"
            );
        }
        taken
    }

    fn offer(&mut self, socket: TcpStream, peer: SocketAddr, local_port: u16) -> bool {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
        }
        let chosen = self.least_loaded();
        let core = &self.cores[chosen];
        let Some(messenger) = &mut self.messenger else {
            return core.adopt(socket.into(), peer, local_port);
        };
        match core.adopt_message(socket.into(), peer, local_port) {
            Err(_) => false,
            Ok(None) => true,
            Ok(Some(message)) => {
                if let Err(error) = messenger.send(&message) {
                    tracing::debug!(%error, "MSG_RING failed; cores are woken by eventfd");
                    self.messenger = None;
                    self.cores[chosen].wake();
                }
                true
            }
        }
    }

    /// Accepts until [`stop_accepting`], blocking the calling thread.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn run(&mut self, listener: &TcpListener) -> io::Result<()> {
        let local_port = listener.local_addr()?.port();
        let mut complaint = Complaint::default();
        loop {
            match listener.accept() {
                Ok((socket, peer)) => {
                    self.hand_over(socket, peer, local_port);
                }
                Err(error) => match after_error(&error) {
                    AfterError::Continue => tracing::debug!(%error, "a connection was lost"),
                    AfterError::Pause(pause) => {
                        if let Some(untold) = complaint.tell(Instant::now()) {
                            tracing::error!(
                                %error, untold, "cannot accept connections; see LimitNOFILE"
                            );
                        }
                        std::thread::sleep(pause);
                    }
                    AfterError::Stop => return Ok(()),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_told_once_a_minute_with_a_count() {
        let begin = Instant::now();
        let mut complaint = Complaint::default();
        let told: Vec<u64> = (0..1300_u64)
            .filter_map(|tenths| complaint.tell(begin + Duration::from_millis(tenths * 100)))
            .collect();
        assert_eq!(told, [0, 599, 599]);
    }

    #[test]
    fn a_taken_address_is_named_with_what_to_do() {
        let taken = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = taken.local_addr().unwrap();
        let message = bind(address).unwrap_err().to_string();
        assert!(message.contains(&address.to_string()), "{message}");
        assert!(
            message.contains("stop that server or configure another port"),
            "{message}"
        );
    }

    #[test]
    fn an_address_that_becomes_free_within_the_patience_is_taken() {
        let taken = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = taken.local_addr().unwrap();
        let soon = bind_within(address, Duration::from_millis(1));
        assert!(matches!(soon, Err(BindError::InUse { .. })), "{soon:?}");
        let waiting = std::thread::spawn(move || bind_within(address, Duration::from_secs(60)));
        drop(taken);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn a_foreign_address_is_refused_by_name() {
        let message = bind("192.0.2.1:1".parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("this host has no such address"),
            "{message}"
        );
    }

    #[test]
    fn a_port_is_free_again_as_soon_as_its_listener_is_gone() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (served, _) = listener.accept().unwrap();
        drop((served, listener));
        bind(address).unwrap();
        drop(client);
    }

    #[test]
    fn shutting_the_listener_ends_a_blocked_accept() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let second = listener.try_clone().unwrap();
        let accepting = std::thread::spawn(move || {
            loop {
                if let Err(error) = second.accept() {
                    return after_error(&error);
                }
            }
        });
        let _client = TcpStream::connect(address).unwrap();
        stop_accepting(&listener).unwrap();
        assert_eq!(accepting.join().unwrap(), AfterError::Stop);
    }
}
