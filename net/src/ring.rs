//! The io_uring transport: one ring per core, made and used on the core's own thread.
//!
//! Memory that the kernel may touch (receive buffers, buffers being sent, the wake-up counter)
//! belongs to this module from submission to completion. Always true: what is freed or reused has
//! no request left; should requests not end when a core goes down, their memory is leaked instead.

mod messenger;

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::buffers::ReceiveBuffers;
use crate::connection::{Connection, ConnectionId, Reading};
use crate::driver::{Protocol, Shared, count};
use crate::pass::{Core, Sending, Transport, Wait};
use crate::probe::Features;

pub use messenger::Messenger;

const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;
const GROUP: u16 = 0;
/// Receive buffers that the kernel fills piece by piece: number and bytes of each.
const INCREMENTAL_BUFFERS: (u16, u32) = (8, 128 * 1024);
/// Receive buffers that serve one receive each: number and bytes of each.
const PLAIN_BUFFERS: (u16, u32) = (32, 32 * 1024);
/// How long a core that goes down waits for requests it has cancelled.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);

/// What a completion is about: the low 8 bits of its user data; above them the connection.
const OP_RECEIVE: u64 = 1;
const OP_SEND: u64 = 2;
const OP_CANCEL: u64 = 3;
const OP_WAKE: u64 = 4;
const OP_MESSAGE: u64 = 5;
const OP_WATCH: u64 = 6;
const OP_BITS: u32 = 8;

/// User data of a message from another ring: look into the inbox.
pub(crate) const MESSAGE_USER_DATA: u64 = OP_MESSAGE;

fn tag(id: ConnectionId, op: u64) -> u64 {
    id.bits() << OP_BITS | op
}

/// What a connection is sending.
#[derive(Default)]
struct Outgoing {
    buffer: Vec<u8>,
    /// Bytes of it that were sent by an earlier request.
    done: usize,
    /// The connection, if the request ends without a completion when the socket takes all of it
    /// at once.
    quiet: Option<ConnectionId>,
}

pub(crate) struct RingTransport {
    ring: ManuallyDrop<IoUring>,
    buffers: ManuallyDrop<ReceiveBuffers>,
    /// What is being sent, by the connection's index.
    sends: ManuallyDrop<Vec<Outgoing>>,
    /// Connections whose send was queued as a quiet one and is not known to have ended.
    quiet: Vec<ConnectionId>,
    /// Where the eventfd's counter is read to.
    counter: ManuallyDrop<Box<u64>>,
    shared: Arc<Shared>,
    features: Features,
    wake_armed: bool,
    watch_armed: bool,
    /// Requests that may touch our memory and have not ended.
    outstanding: usize,
    completions: Vec<cqueue::Entry>,
    fault: Option<io::Error>,
}

impl RingTransport {
    pub fn new(wanted: Features, shared: &Arc<Shared>) -> io::Result<Self> {
        let (ring, mut features) = build(wanted, SUBMISSIONS, COMPLETIONS)?;
        let buffers = register_buffers(&ring, &mut features)?;
        if features != wanted {
            tracing::warn!(
                core = shared.index,
                ?features,
                "this core's ring lacks features"
            );
        }
        Ok(RingTransport {
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            sends: ManuallyDrop::new(Vec::new()),
            quiet: Vec::new(),
            counter: ManuallyDrop::new(Box::new(0)),
            shared: Arc::clone(shared),
            features,
            wake_armed: false,
            watch_armed: false,
            outstanding: 0,
            completions: Vec::with_capacity(COMPLETIONS as usize),
            fault: None,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Queues a request; enters the kernel only when the queue is full.
    fn push(&mut self, entry: squeue::Entry) {
        for _ in 0..COMPLETIONS {
            // SAFETY: each caller passes memory that this struct owns until the completion (see
            // `outstanding` and `drop`), or none at all.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            count(&self.shared.counters.enters, 1);
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if passes(&error) => self.reap(),
                Err(error) => {
                    self.fault = Some(error);
                    return;
                }
            }
        }
        self.fault = Some(io::Error::other("the submission queue stays full"));
    }

    fn reap(&mut self) {
        self.completions.extend(self.ring.completion());
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let into: *mut u64 = &mut **self.counter;
        let read = opcode::Read::new(Fd(self.shared.wake.as_fd().as_raw_fd()), into.cast(), 8)
            .build()
            .user_data(OP_WAKE);
        self.wake_armed = true;
        self.outstanding += 1;
        self.push(read);
    }

    fn arm_watch(&mut self, watched: Option<BorrowedFd<'_>>) {
        if let Some(descriptor) = watched
            && !self.watch_armed
        {
            let descriptor = Fd(descriptor.as_raw_fd());
            let poll = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build();
            self.watch_armed = true;
            self.outstanding += 1;
            self.push(poll.user_data(OP_WATCH));
        }
    }

    /// Submits what is queued and waits: the one system call of a pass.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let timeout = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::Until(deadline) => {
                deadline.map(|time| time.saturating_duration_since(Instant::now()))
            }
        };
        let sleeps = self.completions.is_empty() && timeout != Some(Duration::ZERO);
        if !sleeps {
            let queue = self.ring.submission();
            if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                return Ok(());
            }
        }
        let mut flags = EnterFlags::empty();
        if sleeps && self.features.no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let span = Timespec::from(timeout.unwrap_or_default());
        let mut arguments = SubmitArgs::new();
        if sleeps && timeout.is_some() {
            arguments = arguments.timespec(&span);
        }
        count(&self.shared.counters.enters, 1);
        let entered =
            self.ring
                .submitter()
                .submit_with_args_and_flags(sleeps.into(), &arguments, flags);
        match entered {
            Err(error) if !passes(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn completed<P: Protocol>(&mut self, core: &mut Core<P>, entry: &cqueue::Entry) {
        let id = ConnectionId::from_bits(entry.user_data() >> OP_BITS);
        match entry.user_data() & ((1 << OP_BITS) - 1) {
            OP_RECEIVE => self.receive_completed(core, id, entry),
            OP_SEND => self.send_completed(core, id, entry.result()),
            OP_CANCEL if entry.result() < 0 => cancel_failed(core, id),
            OP_WAKE => {
                self.wake_armed = false;
                self.ended(entry.result());
            }
            OP_WATCH => {
                self.watch_armed = false;
                self.ended(entry.result());
            }
            _ => {}
        }
    }

    /// A request that the core cannot do without has ended.
    fn ended(&mut self, result: i32) {
        self.outstanding -= 1;
        let error = io::Error::from_raw_os_error(-result.min(0));
        if result < 0 && !passes(&error) {
            self.fault = Some(error);
        }
    }

    fn receive_completed<P: Protocol>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        entry: &cqueue::Entry,
    ) {
        if !cqueue::more(entry.flags()) {
            self.outstanding -= 1;
            core.reading_stopped(id);
        }
        let result = entry.result();
        let buffer = cqueue::buffer_select(entry.flags());
        if result > 0
            && let Some(buffer) = buffer
        {
            core.received(id, self.buffers.take(buffer, result as usize));
        }
        if let Some(buffer) = buffer {
            self.buffers.recycle(buffer, entry.flags());
        }
        match -result {
            0 => core.ended(id),
            libc::ENOBUFS => core.buffers_exhausted(),
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
            code if code > 0 => core.failed(id, &io::Error::from_raw_os_error(code)),
            _ => {}
        }
    }

    /// Queues what is left of a connection's buffer.
    fn push_send(&mut self, id: ConnectionId, socket: RawFd) {
        let Outgoing {
            buffer,
            done,
            quiet,
        } = &self.sends[id.index()];
        let rest = &buffer[*done..];
        let mut flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        if quiet.is_some() {
            flags |= libc::MSG_DONTWAIT;
        }
        let mut entry = opcode::Send::new(Fd(socket), rest.as_ptr(), rest.len() as u32)
            .flags(flags)
            .build()
            .user_data(tag(id, OP_SEND));
        if quiet.is_some() {
            entry = entry.flags(squeue::Flags::SKIP_SUCCESS);
            self.quiet.push(id);
        }
        self.outstanding += 1;
        self.push(entry);
    }

    fn send_completed<P: Protocol>(&mut self, core: &mut Core<P>, id: ConnectionId, result: i32) {
        self.outstanding -= 1;
        let outgoing = &mut self.sends[id.index()];
        let was_quiet = outgoing.quiet.take().is_some();
        let sent = usize::try_from(result);
        outgoing.done += sent.unwrap_or(0);
        let whole = outgoing.done == outgoing.buffer.len();
        // The socket's buffer is full: the rest is sent by a request that waits for room.
        if was_quiet
            && !whole
            && (sent.is_ok() || result == -libc::EAGAIN)
            && let Some(connection) = core.connection(id)
        {
            let socket = connection.socket.as_raw_fd();
            self.push_send(id, socket);
            return;
        }
        let buffer = std::mem::take(&mut outgoing.buffer);
        match sent {
            Ok(_) if whole => core.sent(id, buffer),
            Ok(_) => core.send_failed(id, &io::ErrorKind::WriteZero.into()),
            Err(_) => core.send_failed(id, &io::Error::from_raw_os_error(-result)),
        }
    }

    /// Quiet sends that the kernel has seen, and whose failure it has not reported, are done: they
    /// run while they are submitted. To be called when all completions were looked at.
    fn quiet_sends_ended(&mut self, mut ended: impl FnMut(ConnectionId, Vec<u8>)) {
        if self.quiet.is_empty() {
            return;
        }
        let queue = self.ring.submission();
        // A failure may be among the completions that found no room.
        if !queue.is_empty() || queue.cq_overflow() || !self.completions.is_empty() {
            return;
        }
        drop(queue);
        let mut quiet = std::mem::take(&mut self.quiet);
        for id in quiet.drain(..) {
            let outgoing = &mut self.sends[id.index()];
            if outgoing.quiet == Some(id) {
                outgoing.quiet = None;
                self.outstanding -= 1;
                ended(id, std::mem::take(&mut outgoing.buffer));
            }
        }
        self.quiet = quiet;
    }

    /// Cancels every request and waits for their ends; false: some have not ended.
    fn cancel_all(&mut self) -> bool {
        let end = Instant::now() + CANCEL_PATIENCE;
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build();
        self.push(cancel.user_data(OP_CANCEL));
        while self.outstanding > 0 && Instant::now() < end && self.fault.is_none() {
            let wait = Wait::Until(Some(Instant::now() + Duration::from_millis(20)));
            if self.enter(wait).is_err() {
                return false;
            }
            self.reap();
            for entry in self.completions.drain(..) {
                let op = entry.user_data() & ((1 << OP_BITS) - 1);
                let ends = matches!(op, OP_RECEIVE | OP_SEND | OP_WAKE | OP_WATCH);
                if ends && !cqueue::more(entry.flags()) {
                    self.outstanding -= 1;
                }
                if op == OP_SEND {
                    let id = ConnectionId::from_bits(entry.user_data() >> OP_BITS);
                    self.sends[id.index()].quiet = None;
                }
            }
            self.quiet_sends_ended(|_, _| {});
        }
        self.outstanding == 0
    }
}

impl Drop for RingTransport {
    fn drop(&mut self) {
        let ended = self.outstanding == 0 || self.cancel_all();
        // SAFETY: none of these is used again. The ring is closed first; the memory goes only when
        // no request refers to it, and is leaked otherwise.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            if ended {
                ManuallyDrop::drop(&mut self.buffers);
                ManuallyDrop::drop(&mut self.sends);
                ManuallyDrop::drop(&mut self.counter);
            } else {
                tracing::error!(
                    requests = self.outstanding,
                    "requests of a ring did not end"
                );
            }
        }
    }
}

/// Errors of entering the kernel that the next pass gets over.
fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ECANCELED)
    )
}

/// The receive to be cancelled had just been woken: it goes on, and must be cancelled again.
fn cancel_failed<P: Protocol>(core: &mut Core<P>, id: ConnectionId) {
    if let Some(connection) = core.connection(id)
        && connection.reading == Reading::Stopping
    {
        connection.reading = Reading::Armed;
        core.look_at(id);
    }
}

impl Transport for RingTransport {
    fn open(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<()> {
        // A ring does not wait on non-blocking descriptors, it returns EAGAIN.
        let socket = connection.socket.as_fd();
        let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
        if flags.contains(OFlag::O_NONBLOCK) {
            fcntl(socket, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
        }
        if self.sends.len() <= id.index() {
            self.sends.resize_with(id.index() + 1, Outgoing::default);
        }
        Ok(())
    }

    fn read(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.reading = Reading::Armed;
        let socket = Fd(connection.socket.as_raw_fd());
        let entry = if self.features.multishot {
            opcode::RecvMulti::new(socket, GROUP).build()
        } else {
            opcode::Recv::new(socket, std::ptr::null_mut(), 0)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        self.outstanding += 1;
        self.push(entry.user_data(tag(id, OP_RECEIVE)));
    }

    fn pause(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.reading = Reading::Stopping;
        let cancel = opcode::AsyncCancel::new(tag(id, OP_RECEIVE)).build();
        self.push(cancel.user_data(tag(id, OP_CANCEL)));
    }

    fn send(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
        awaited: bool,
    ) -> io::Result<Sending> {
        u32::try_from(connection.out.len()).map_err(io::Error::other)?;
        self.sends[id.index()] = Outgoing {
            buffer: connection.take_out(),
            done: 0,
            quiet: (self.features.quiet_sends && !awaited).then_some(id),
        };
        self.push_send(id, connection.socket.as_raw_fd());
        Ok(Sending::Pending)
    }

    fn shut(&mut self, _id: ConnectionId, connection: &mut Connection) {
        connection.shut_both();
    }

    fn turn<P: Protocol>(&mut self, core: &mut Core<P>, wait: Wait) -> io::Result<()> {
        self.arm_wake();
        self.arm_watch(core.watched());
        self.enter(wait)?;
        core.woke();
        self.reap();
        let mut completions = std::mem::take(&mut self.completions);
        for entry in &completions {
            self.completed(core, entry);
        }
        completions.clear();
        // A full queue may have been reaped meanwhile.
        completions.append(&mut self.completions);
        self.completions = completions;
        self.quiet_sends_ended(|id, buffer| core.sent(id, buffer));
        match self.fault.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Makes a ring with as many of the wanted features as the kernel has.
fn build(wanted: Features, entries: u32, completions: u32) -> io::Result<(IoUring, Features)> {
    let mut features = wanted;
    let ring = loop {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).dontfork();
        if features.defer_taskrun {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag();
            builder.setup_submit_all();
        } else if features.coop_taskrun {
            builder
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all();
        }
        match builder.build(entries) {
            Ok(ring) => break ring,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && features.coop_taskrun => {
                if !features.defer_taskrun {
                    features.coop_taskrun = false;
                }
                features.defer_taskrun = false;
            }
            Err(error) => return Err(error),
        }
    };
    let parameters = ring.params();
    if !parameters.is_feature_ext_arg() || !parameters.is_feature_nodrop() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its io_uring is too old",
        ));
    }
    features.no_iowait &= parameters.is_feature_no_iowait();
    // Older kernels do not always tell how much of a send that ended early was sent.
    features.quiet_sends &= features.no_iowait && parameters.is_feature_skip_cqe_on_success();
    Ok((ring, features))
}

fn register_buffers(ring: &IoUring, features: &mut Features) -> io::Result<ReceiveBuffers> {
    if features.incremental {
        let (number, size) = INCREMENTAL_BUFFERS;
        match ReceiveBuffers::register(ring, GROUP, number, size, true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                features.incremental = false;
            }
            outcome => return outcome,
        }
    }
    let (number, size) = PLAIN_BUFFERS;
    ReceiveBuffers::register(ring, GROUP, number, size, false)
}

/// Finds out by use which of the wanted features this host has.
///
/// # Errors
/// The host has no usable io_uring.
pub(crate) fn probe(wanted: Features) -> io::Result<Features> {
    let (mut ring, mut features) = build(wanted, 8, 16)?;
    let buffers = register_buffers(&ring, &mut features)?;
    if features.multishot {
        features.multishot = receives(&mut ring, true)?;
    }
    if !features.multishot && !receives(&mut ring, false)? {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its io_uring cannot receive",
        ));
    }
    drop(ring);
    drop(buffers);
    Ok(features)
}

/// Receives one byte and the end of a stream; false: the kernel does not know how.
fn receives(ring: &mut IoUring, multishot: bool) -> io::Result<bool> {
    let (mut writer, reader) = UnixStream::pair()?;
    writer.write_all(b"x")?;
    drop(writer);
    let socket = Fd(reader.as_raw_fd());
    let entry = if multishot {
        opcode::RecvMulti::new(socket, GROUP).build()
    } else {
        opcode::Recv::new(socket, std::ptr::null_mut(), 0)
            .buf_group(GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT)
    };
    // SAFETY: the receive fills a registered buffer only; it ends below, as its peer is closed.
    if unsafe { ring.submission().push(&entry) }.is_err() {
        return Err(io::Error::other("a new ring is full"));
    }
    let mut received = false;
    loop {
        ring.submit_and_wait(1)?;
        while let Some(entry) = ring.completion().next() {
            received |= entry.result() == 1;
            if !cqueue::more(entry.flags()) {
                return Ok(received);
            }
        }
    }
}
