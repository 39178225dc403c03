//! Network cores: one pinned thread each, serving connections through one wait point.
//!
//! A core runs a [`Protocol`] over io_uring or epoll (see [`crate::probe`]): received bytes are cut
//! into frames and offered to it, what it writes into the [`Outbox`] is sent at the end of the
//! pass. Always true: a core touches only its own connections, and a thread that pushed work for a
//! core and called [`CoreHandle::wake`] is seen by that core's next pass, asleep or not.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use nix::sys::eventfd::{EfdFlags, EventFd};

pub use crate::connection::{ConnectionId, Outbox, Room};
use crate::epoll::EpollTransport;
use crate::frame::Frame;
use crate::limits::Limits;
use crate::pass::Core;
use crate::probe::Engine;
use crate::ring::RingTransport;

/// What a protocol says about a frame it was offered.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Verdict {
    /// Taken.
    Done,
    /// Not taken: parsing this connection stops, the frame is offered again after the next pass.
    Retry,
    /// Not taken, and the connection is closed once what was answered so far is sent.
    Close,
}

/// What frames mean. All calls come from the core's own thread.
pub trait Protocol {
    /// A connection was adopted.
    fn opened(&mut self, conn: ConnectionId, peer: SocketAddr, local_port: u16);
    /// A connection is gone; called once for each opened one.
    fn closed(&mut self, conn: ConnectionId);
    /// A frame arrived. Its bytes are valid during the call only.
    fn frame(&mut self, conn: ConnectionId, frame: Frame<'_>, io: &mut Outbox) -> Verdict;
    /// Bytes that were received behind the frame that is offered next: a hint of what comes, which
    /// may be cut short or make no frame.
    fn ahead(&mut self, _bytes: &[u8]) {}
    /// Once per pass, after received bytes were offered: drain queues, run timers.
    fn pass(&mut self, now: Instant, io: &mut Outbox);
    /// Wake no later than this.
    fn next_deadline(&self) -> Option<Instant>;
    /// Asked before sleeping, after the core was published as asleep: are queues non-empty?
    fn has_work(&self) -> bool;
    /// The end of a pass: push staged appends, wake the writer.
    fn end_of_pass(&mut self);
    /// A descriptor that ends the core's sleep when it is readable; always the same one.
    fn watched(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Asked while stopping: nothing in flight any more?
    fn idle(&self) -> bool;
    /// Called when a stop begins, and again when no more frames are read: what waits is to be
    /// answered now.
    fn leaving(&mut self, io: &mut Outbox);
}

/// How one core is set up.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    /// Number of the core, for names and logs.
    pub index: usize,
    /// The CPU its thread is pinned to.
    pub cpu: Option<usize>,
    /// What moves the bytes.
    pub engine: Engine,
    /// Bounds of buffers and queues.
    pub limits: Limits,
    /// How long the core looks for work before it sleeps; zero: it sleeps at once.
    pub spin: Duration,
}

impl CoreSettings {
    /// Settings with the default limits and without spinning.
    pub fn new(index: usize, cpu: Option<usize>, engine: Engine) -> Self {
        CoreSettings {
            index,
            cpu,
            engine,
            limits: Limits::default(),
            spin: Duration::ZERO,
        }
    }
}

/// Running totals of one core: written by its thread only, readable by any.
#[derive(Default, Debug)]
pub struct Counters {
    /// Connections adopted so far.
    pub accepted: AtomicU64,
    /// Connections closed so far.
    pub closed: AtomicU64,
    /// Connections closed for a malformed frame.
    pub bad_frames: AtomicU64,
    /// Connections closed for being quiet too long.
    pub idle_closed: AtomicU64,
    /// Frames taken by the protocol.
    pub frames: AtomicU64,
    /// Bytes received.
    pub bytes_in: AtomicU64,
    /// Bytes sent.
    pub bytes_out: AtomicU64,
    /// Passes of the loop.
    pub passes: AtomicU64,
    /// Waits or submissions: `io_uring_enter` or `epoll_wait` calls.
    pub enters: AtomicU64,
    /// Times a connection was not read for back-pressure.
    pub held: AtomicU64,
    /// Times the receive buffers of the core ran out.
    pub buffers_exhausted: AtomicU64,
    /// Bytes held for incomplete or untaken frames at the moment.
    pub reassembly_bytes: AtomicU64,
}

/// Adds to a counter that only this thread writes: no locked instruction.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

/// A socket on its way to a core.
pub(crate) struct Newcomer {
    pub socket: OwnedFd,
    pub peer: SocketAddr,
    pub local_port: u16,
}

/// What the threads around a core share with it.
pub(crate) struct Shared {
    pub index: usize,
    pub asleep: AtomicBool,
    pub stopping: AtomicBool,
    pub ended: AtomicBool,
    pub connections: AtomicUsize,
    pub ring_fd: AtomicI32,
    pub wake: EventFd,
    pub counters: Counters,
    pub inbox: Receiver<Newcomer>,
}

impl Shared {
    pub fn new(index: usize, inbox: Receiver<Newcomer>) -> io::Result<Shared> {
        Ok(Shared {
            index,
            asleep: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            ring_fd: AtomicI32::new(-1),
            // Blocking: a ring would refuse to wait on a non-blocking descriptor.
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?,
            counters: Counters::default(),
            inbox,
        })
    }
}

/// A core, seen from other threads.
#[derive(Clone)]
pub struct CoreHandle {
    shared: Arc<Shared>,
    inbox: Sender<Newcomer>,
}

/// A message for another ring that makes a core look into its inbox: the fields of an
/// `IORING_OP_MSG_RING` data message.
#[derive(Copy, Clone, Debug)]
pub struct RingMessage {
    /// The ring of the core.
    pub ring_fd: RawFd,
    /// `len` of the submission.
    pub result: i32,
    /// `off` of the submission.
    pub user_data: u64,
}

impl CoreHandle {
    /// Makes the core run a pass soon. Cheap while it is awake: call it after pushing work.
    pub fn wake(&self) {
        // Pairs with the fence after `asleep` is published: either this thread sees the flag, or
        // the core sees what was pushed before this call.
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed)
            && self.shared.asleep.swap(false, Ordering::SeqCst)
        {
            self.ring_bell();
        }
    }

    fn ring_bell(&self) {
        if let Err(error) = self.shared.wake.write(1) {
            tracing::error!(core = self.shared.index, %error, "cannot wake a network core");
        }
    }

    /// Hands a connected socket to the core and wakes it. Returns false, and closes the socket,
    /// when the core's inbox is full or the core has stopped.
    pub fn adopt(&self, socket: OwnedFd, peer: SocketAddr, local_port: u16) -> bool {
        let queued = self.enqueue(socket, peer, local_port);
        if queued {
            self.wake();
        }
        queued
    }

    /// Hands a connected socket to the core without waking it, and returns the message that a
    /// thread with a ring of its own sends to do so. `None`: the core has no ring; it was woken.
    /// Returns `Err` when the socket was refused, like [`CoreHandle::adopt`].
    ///
    /// # Errors
    /// The inbox is full, or the core has stopped: the socket is closed.
    pub fn adopt_message(
        &self,
        socket: OwnedFd,
        peer: SocketAddr,
        local_port: u16,
    ) -> Result<Option<RingMessage>, Refused> {
        if !self.enqueue(socket, peer, local_port) {
            return Err(Refused);
        }
        match self.ring_fd() {
            Some(ring_fd) => Ok(Some(RingMessage {
                ring_fd,
                result: 0,
                user_data: crate::ring::MESSAGE_USER_DATA,
            })),
            None => {
                self.wake();
                Ok(None)
            }
        }
    }

    fn enqueue(&self, socket: OwnedFd, peer: SocketAddr, local_port: u16) -> bool {
        if self.shared.stopping.load(Ordering::Acquire) {
            return false;
        }
        // Counted first: the core may have taken and closed it before this thread goes on.
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        match self.inbox.try_send(Newcomer {
            socket,
            peer,
            local_port,
        }) {
            Ok(()) => true,
            Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) => {
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::debug!(core = self.shared.index, peer = %refused.peer,
                    "connection refused: the core's inbox is full");
                false
            }
        }
    }

    /// The descriptor of the core's ring, when it has one and still runs.
    pub fn ring_fd(&self) -> Option<RawFd> {
        let fd = self.shared.ring_fd.load(Ordering::Acquire);
        (fd >= 0).then_some(fd)
    }

    /// Connections the core serves, those on their way to it included.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Number of the core.
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// The core's running totals.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Graceful stop: what arrives is answered until the peers are silent, because they wait for
    /// answers that are held back; then each gets its answers and the end of the connection in one
    /// go, and the thread ends.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether the core's thread has finished.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }
}

/// The core took no socket: its inbox is full or it has stopped.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the network core takes no further connection")]
pub struct Refused;

/// Starts a core: its thread makes the engine, then runs the protocol that `make` returns.
///
/// # Errors
/// The limits contradict each other, or the thread, the eventfd or the engine cannot be made.
pub fn spawn_core<P: Protocol + 'static>(
    settings: CoreSettings,
    make: impl FnOnce(CoreHandle) -> P + Send + 'static,
) -> io::Result<(CoreHandle, JoinHandle<()>)> {
    settings
        .limits
        .check()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let (sender, receiver) = crossbeam_channel::bounded(settings.limits.inbox);
    let shared = Arc::new(Shared::new(settings.index, receiver)?);
    let handle = CoreHandle {
        shared: Arc::clone(&shared),
        inbox: sender,
    };
    let (started, start) = mpsc::sync_channel(1);
    let own = handle.clone();
    let thread = std::thread::Builder::new()
        .name(format!("net-{}", settings.index))
        .spawn(move || run_core(settings, own, make, &started))?;
    match start.recv() {
        Ok(Ok(())) => Ok((handle, thread)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the network core ended while it started")),
    }
}

/// Marks the core as ended however its thread ends.
struct EndMark(Arc<Shared>);

impl Drop for EndMark {
    fn drop(&mut self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        self.0.ring_fd.store(-1, Ordering::Release);
        self.0.ended.store(true, Ordering::Release);
    }
}

fn run_core<P: Protocol>(
    settings: CoreSettings,
    handle: CoreHandle,
    make: impl FnOnce(CoreHandle) -> P,
    started: &mpsc::SyncSender<io::Result<()>>,
) {
    let shared = Arc::clone(&handle.shared);
    let _mark = EndMark(Arc::clone(&shared));
    if let Some(cpu) = settings.cpu {
        pin(settings.index, cpu);
    }
    let outcome = match &settings.engine {
        Engine::Uring(features) => RingTransport::new(*features, &shared).map(|mut transport| {
            shared.ring_fd.store(transport.fd(), Ordering::Release);
            // The starter may have given up only by ending itself.
            let _ = started.send(Ok(()));
            Core::new(make(handle), settings, shared).run(&mut transport)
        }),
        Engine::Epoll(_) => EpollTransport::new(&shared).map(|mut transport| {
            let _ = started.send(Ok(()));
            Core::new(make(handle), settings, shared).run(&mut transport)
        }),
    };
    if let Err(error) = outcome {
        let _ = started.send(Err(error));
    }
}

fn pin(core: usize, cpu: usize) {
    let mut set = nix::sched::CpuSet::new();
    let pinned = set
        .set(cpu)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
    if let Err(error) = pinned {
        tracing::warn!(core, cpu, %error, "network core is not pinned to its CPU");
    }
}
