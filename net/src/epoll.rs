//! The transport for hosts that refuse io_uring: level-triggered epoll and non-blocking sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, recv, send};

use crate::connection::{Connection, ConnectionId, Reading};
use crate::driver::{Protocol, Shared, count};
use crate::pass::{Core, Sending, Transport, Wait};

/// Events taken by one wait.
const EVENTS: usize = 256;
/// Bytes received by one call.
const RECEIVE: usize = 64 * 1024;
const WAKE: u64 = u64::MAX;
const WATCHED: u64 = u64::MAX - 1;

/// How far the descriptor that the protocol has watched is known to epoll.
enum Watch {
    New,
    Armed,
    Fired,
}

struct Line {
    buffer: Vec<u8>,
    sent: usize,
    interest: EpollFlags,
}

impl Default for Line {
    fn default() -> Self {
        Line {
            buffer: Vec::new(),
            sent: 0,
            interest: EpollFlags::empty(),
        }
    }
}

pub(crate) struct EpollTransport {
    epoll: Epoll,
    shared: Arc<Shared>,
    events: Vec<EpollEvent>,
    received: Vec<u8>,
    watch: Watch,
    /// What is being sent, by the connection's index.
    lines: Vec<Line>,
}

impl EpollTransport {
    pub fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(
            shared.wake.as_fd(),
            EpollEvent::new(EpollFlags::EPOLLIN, WAKE),
        )?;
        Ok(EpollTransport {
            epoll,
            shared: Arc::clone(shared),
            events: vec![EpollEvent::empty(); EVENTS],
            received: vec![0; RECEIVE],
            watch: Watch::New,
            lines: Vec::new(),
        })
    }

    /// Has the next wait end when the descriptor is readable.
    fn watch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        let mut event = EpollEvent::new(once, WATCHED);
        match std::mem::replace(&mut self.watch, Watch::Armed) {
            Watch::New => self.epoll.add(descriptor, event)?,
            Watch::Fired => self.epoll.modify(descriptor, &mut event)?,
            Watch::Armed => {}
        }
        Ok(())
    }

    fn set_interest(&mut self, id: ConnectionId, connection: &Connection, interest: EpollFlags) {
        let line = &mut self.lines[id.index()];
        if line.interest == interest {
            return;
        }
        line.interest = interest;
        let mut event = EpollEvent::new(interest, id.bits());
        if let Err(error) = self.epoll.modify(connection.socket.as_fd(), &mut event) {
            tracing::error!(peer = %connection.peer, %error, "epoll_ctl failed");
        }
    }

    fn interest(&self, id: ConnectionId) -> EpollFlags {
        self.lines[id.index()].interest
    }

    fn readable<P: Protocol>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        if core.lacks_memory(id) {
            return core.look_at(id);
        }
        let Some(connection) = core.connection(id) else {
            return;
        };
        let socket = connection.socket.as_raw_fd();
        match recv(socket, &mut self.received, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => core.ended(id),
            Ok(bytes) => core.received(id, &self.received[..bytes]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => core.failed(id, &error.into()),
        }
    }

    fn writable<P: Protocol>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        let Some(connection) = core.connection(id) else {
            return;
        };
        match self.send_more(id, connection) {
            Ok(true) => {
                let interest = self.interest(id) - EpollFlags::EPOLLOUT;
                self.set_interest(id, connection, interest);
                let line = &mut self.lines[id.index()];
                core.sent(id, std::mem::take(&mut line.buffer));
            }
            Ok(false) => {}
            Err(error) => core.failed(id, &error),
        }
    }

    /// Sends what the socket takes; true: nothing is left.
    fn send_more(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<bool> {
        let line = &mut self.lines[id.index()];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while line.sent < line.buffer.len() {
            match send(
                connection.socket.as_raw_fd(),
                &line.buffer[line.sent..],
                flags,
            ) {
                Ok(bytes) => line.sent += bytes,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn dispatch<P: Protocol>(&mut self, core: &mut Core<P>, event: EpollEvent) {
        if event.data() == WAKE {
            if let Err(error) = self.shared.wake.read() {
                tracing::error!(%error, "cannot read the wake-up counter");
            }
            return;
        }
        if event.data() == WATCHED {
            self.watch = Watch::Fired;
            return;
        }
        let id = ConnectionId::from_bits(event.data());
        let flags = event.events();
        let broken = flags.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        if core.connection(id).is_none() {
            return;
        }
        let interest = self.interest(id);
        if interest.contains(EpollFlags::EPOLLIN) && (broken || flags.contains(EpollFlags::EPOLLIN))
        {
            self.readable(core, id);
        } else if broken {
            core.failed(id, &io::ErrorKind::ConnectionReset.into());
            return;
        }
        if flags.contains(EpollFlags::EPOLLOUT) && interest.contains(EpollFlags::EPOLLOUT) {
            self.writable(core, id);
        }
    }
}

impl Transport for EpollTransport {
    fn open(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<()> {
        let socket = connection.socket.as_fd();
        let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
        fcntl(socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        if self.lines.len() <= id.index() {
            self.lines.resize_with(id.index() + 1, Line::default);
        }
        self.lines[id.index()] = Line::default();
        self.epoll
            .add(socket, EpollEvent::new(EpollFlags::empty(), id.bits()))?;
        Ok(())
    }

    fn read(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.reading = Reading::Armed;
        let interest = self.interest(id) | EpollFlags::EPOLLIN;
        self.set_interest(id, connection, interest);
    }

    fn pause(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.reading = Reading::Idle;
        let interest = self.interest(id) - EpollFlags::EPOLLIN;
        self.set_interest(id, connection, interest);
    }

    fn send(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
        _awaited: bool,
    ) -> io::Result<Sending> {
        let line = &mut self.lines[id.index()];
        line.buffer = connection.take_out();
        line.sent = 0;
        if self.send_more(id, connection)? {
            let line = &mut self.lines[id.index()];
            connection.give_back(std::mem::take(&mut line.buffer));
            return Ok(Sending::Done);
        }
        let interest = self.interest(id) | EpollFlags::EPOLLOUT;
        self.set_interest(id, connection, interest);
        Ok(Sending::Pending)
    }

    fn shut(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.shut_both();
        connection.reading = Reading::Idle;
        connection.sending = 0;
        self.lines[id.index()] = Line::default();
        if let Err(error) = self.epoll.delete(connection.socket.as_fd()) {
            tracing::error!(peer = %connection.peer, %error, "epoll_ctl failed");
        }
    }

    fn turn<P: Protocol>(&mut self, core: &mut Core<P>, wait: Wait) -> io::Result<()> {
        if let Some(descriptor) = core.watched() {
            self.watch(descriptor)?;
        }
        let ready = match self.epoll.wait(&mut self.events, timeout(wait)) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        count(&self.shared.counters.enters, 1);
        core.woke();
        for index in 0..ready {
            let event = self.events[index];
            self.dispatch(core, event);
        }
        Ok(())
    }
}

/// Rounded up to milliseconds: waking early would only mean another wait.
fn timeout(wait: Wait) -> EpollTimeout {
    let Wait::Until(deadline) = wait else {
        return EpollTimeout::ZERO;
    };
    let Some(deadline) = deadline else {
        return EpollTimeout::NONE;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let left_ms = left
        .as_nanos()
        .div_ceil(Duration::from_millis(1).as_nanos());
    EpollTimeout::try_from(left_ms.min(3_600_000) as i32).unwrap_or(EpollTimeout::ZERO)
}
