//! What a handler gives back for a request, and what other threads send to a network core.
//!
//! A network core decodes a frame, asks `handler::dispatch` and acts on the [`Answer`]. Other
//! threads reach a connection only through its core: they post a [`CoreMessage`] with
//! [`CoreDirectory::post`], never touching the connection itself.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use saturnmq_net::command::{Command, ReplyTo};
use saturnmq_net::driver::{ConnectionId, CoreHandle};
use saturnmq_net::frame::Frame;
use saturnmq_net::header::fields::FieldError;

use crate::handler::consumer_status::Part;
use crate::handler::pull::{Pull, Size};
use crate::held::{Held, HeldBytes};
use crate::persist::Ticket;
use crate::services::{Bell, ServiceContext};

/// Response code SUCCESS.
pub const SUCCESS: i32 = 0;
/// Response code SYSTEM_ERROR.
pub const SYSTEM_ERROR: i32 = 1;
/// Response code SYSTEM_BUSY.
pub const SYSTEM_BUSY: i32 = 2;
/// Response code REQUEST_CODE_NOT_SUPPORTED.
pub const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;

/// Remark of code 2 when a bounded queue of the broker is full.
pub const OVERLOAD: &str = "[OVERLOAD]system busy, start flow control for a while";

/// First protocol version of the 5.x generation (V5_0_0): clients below it get what 4.9.7 answers.
pub const V5_0_0: i32 = 413;

/// One request as a handler sees it. Everything borrowed is valid during the call only.
#[derive(Copy, Clone)]
pub struct Request<'a> {
    /// Index of the network core that owns the connection.
    pub core: usize,
    /// The connection, unique on its core.
    pub conn: ConnectionId,
    /// Address of the client's socket.
    pub peer: SocketAddr,
    /// Local port the connection was accepted on.
    pub local_port: u16,
    /// The decoded command.
    pub command: &'a Command<'a>,
    /// The frame it was decoded from.
    pub frame: Frame<'a>,
}

impl Request<'_> {
    /// Whether the client speaks the 5.x generation of the protocol (`version` >= V5_0_0).
    pub fn is_v5(&self) -> bool {
        self.command.version >= V5_0_0
    }

    /// The connection with its core: how other threads address it.
    pub fn channel(&self) -> Channel {
        Channel {
            core: self.core,
            conn: self.conn,
        }
    }
}

/// A connection addressed from anywhere in the process.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Index of the network core that owns the connection.
    pub core: usize,
    /// The connection, unique on its core.
    pub conn: ConnectionId,
}

/// A response that was not written on the hot path.
#[derive(Debug, Default, Clone)]
pub struct Reply {
    /// Response code.
    pub code: i32,
    /// Remark, shown to users by clients.
    pub remark: Option<Cow<'static, str>>,
    /// Ext fields of the response.
    pub fields: Vec<(&'static str, String)>,
    /// Body bytes.
    pub body: Vec<u8>,
}

impl Reply {
    /// Code 0 without remark, fields or body.
    pub fn success() -> Self {
        Self::default()
    }

    /// A response with `code` and `remark`.
    pub fn error(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            remark: Some(remark.into()),
            ..Self::default()
        }
    }

    /// Adds an ext field.
    pub fn field(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }

    /// Sets the remark.
    pub fn remark(mut self, remark: impl Into<Cow<'static, str>>) -> Self {
        self.remark = Some(remark.into());
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    /// Code 2 with the overload remark.
    pub fn overload() -> Self {
        Self::error(SYSTEM_BUSY, OVERLOAD)
    }
}

/// Work for the services thread that ends in one response.
pub type LaterJob = Box<dyn FnOnce(&mut ServiceContext) -> Reply + Send>;

/// Work for the services thread that answers through its [`ReplySlot`], now or later.
pub type WorkJob = Box<dyn FnOnce(&mut ServiceContext, ReplySlot) + Send>;

/// A question for another client, whose answer is relayed to whoever asked (307, 309, 221).
#[derive(Debug)]
pub struct Ask {
    /// The client that is asked.
    pub channel: Channel,
    /// Request code of the question.
    pub code: i32,
    /// Ext fields of the question.
    pub fields: Vec<(&'static str, String)>,
    /// Body of the question.
    pub body: Vec<u8>,
    /// How long the client has.
    pub timeout: Duration,
    /// Answered when the client does not, or is gone.
    pub late: Reply,
}

/// What a handler decided.
pub enum Answer {
    /// A response off the hot path; the core encodes it.
    Reply(Reply),
    /// The handler wrote the response into the connection's out buffer itself.
    Sent,
    /// No response now (held: append in flight, parked pull) or by design none at all.
    Nothing,
    /// The response counts once a state file change is durable.
    After(Vec<Ticket>, Reply),
    /// Handle the same request again once a state file change is durable.
    Rerun(Ticket),
    /// Run on the services thread (it alone may read old log pages), then answer.
    Later(LaterJob),
    /// Run on the services thread; the job answers through its slot, possibly after an append.
    Work(WorkJob),
    /// As [`Answer::Work`], in turns with others: so few of these are under way at a time that what
    /// they gather is bounded, and the rest wait.
    Turns(WorkJob),
    /// Ask another client; its code, remark and body are the answer.
    Ask(Box<Ask>),
    /// The append queue is full: consume nothing, offer the frame again after the next pass.
    Stall,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl From<FieldError> for Reply {
    fn from(error: FieldError) -> Self {
        Self::error(SYSTEM_ERROR, error.to_string())
    }
}

impl From<FieldError> for Answer {
    fn from(error: FieldError) -> Self {
        Self::Reply(error.into())
    }
}

impl<E: Into<Answer>> From<Result<Answer, E>> for Answer {
    fn from(result: Result<Answer, E>) -> Self {
        match result {
            Ok(answer) => answer,
            Err(error) => error.into(),
        }
    }
}

/// Where a response goes that is not made on the connection's core.
#[derive(Copy, Clone, Debug)]
pub struct ReplySlot {
    /// The connection.
    pub channel: Channel,
    /// Codec, opaque and one-way bit of the request.
    pub to: ReplyTo,
}

/// What other threads may ask a network core to do.
///
/// `Reply`, `Rerun` and `Pulled` each settle one request that the core counts as in flight: exactly
/// one of them is posted for each `After`, `Rerun`, `Later`, `Work` or `Ask` answer.
#[derive(Debug)]
pub enum CoreMessage {
    /// Encode and send a response.
    Reply {
        /// The connection.
        conn: ConnectionId,
        /// The request answered.
        to: ReplyTo,
        /// The response.
        reply: Reply,
    },
    /// Decode and handle a whole request frame (length word included) that had to wait.
    Rerun {
        /// The connection.
        conn: ConnectionId,
        /// The frame.
        frame: Box<[u8]>,
        /// Counts it.
        held: Held,
    },
    /// Send a request to the client, already encoded.
    Push {
        /// The connection.
        conn: ConnectionId,
        /// The frame.
        frame: Box<[u8]>,
    },
    /// Send the finished response to a pull of old messages; if there is no room for it by now
    /// the client is to ask again.
    Pulled {
        /// The connection.
        conn: ConnectionId,
        /// The frame.
        frame: Vec<u8>,
        /// The messages in it.
        found: Size,
        /// The pull.
        pull: Box<Pull>,
    },
    /// Ask a client of this core something, and send what it says to `slot`.
    Ask {
        /// The question.
        ask: Box<Ask>,
        /// Who waits for the answer.
        slot: ReplySlot,
    },
    /// The same, but `slot` gets `confirm` when the client says 0, else the question's `late`.
    Confirm {
        /// The question.
        ask: Box<Ask>,
        /// Who waits for the answer.
        slot: ReplySlot,
        /// The answer once the client has confirmed.
        confirm: Box<Reply>,
    },
    /// Ask a client of this core something, as one of several: the last answer settles `slot`.
    Gather {
        /// The question.
        ask: Box<Ask>,
        /// Who waits for the answers.
        slot: ReplySlot,
        /// Takes this client's answer.
        part: Box<Part>,
    },
    /// A group was moved in the queue with this slot: pulls that wait for it are to ask again.
    Moved {
        /// Slot of the queue.
        queue: u32,
    },
    /// Close the connection (expired registration, administration).
    Close {
        /// The connection.
        conn: ConnectionId,
    },
}

/// Bytes of answers and questions in one core's inbox above which nothing large is read for it.
const MOST_ON_THE_WAY: usize = 64 << 20;

struct CoreSlot {
    inbox: Sender<CoreMessage>,
    handle: OnceLock<CoreHandle>,
    /// Bytes of the answers and questions in the inbox.
    on_the_way: AtomicUsize,
    /// Its connections have so much unsent that nothing large is taken for any of them.
    full: AtomicBool,
    held: HeldBytes,
}

/// The network cores and the services thread of this process, reachable from every thread.
pub struct CoreDirectory {
    slots: Box<[CoreSlot]>,
    capacity: usize,
    services: OnceLock<Bell>,
}

impl CoreDirectory {
    /// A directory of `cores` cores, and the receiving ends of their inboxes in core order.
    /// [`CoreDirectory::attach`] completes a slot when its core runs. An inbox that holds
    /// `capacity` messages takes no more notifications; responses are always taken, because a core
    /// admits only so many requests that are answered elsewhere.
    pub fn new(cores: usize, capacity: usize) -> (Self, Vec<Receiver<CoreMessage>>) {
        let mut slots = Vec::with_capacity(cores);
        let mut inboxes = Vec::with_capacity(cores);
        for _ in 0..cores {
            let (inbox, receiver) = unbounded();
            slots.push(CoreSlot {
                inbox,
                handle: OnceLock::new(),
                on_the_way: AtomicUsize::new(0),
                full: AtomicBool::new(false),
                held: HeldBytes::default(),
            });
            inboxes.push(receiver);
        }
        let slots = slots.into_boxed_slice();
        (
            Self {
                slots,
                capacity,
                services: OnceLock::new(),
            },
            inboxes,
        )
    }

    /// Tells the directory how to wake core `index`; called by the core's own constructor.
    pub fn attach(&self, index: usize, handle: CoreHandle) {
        if let Some(slot) = self.slots.get(index) {
            // A second attach of the same core would be a wiring mistake; the first one stands.
            let _ = slot.handle.set(handle);
        }
    }

    /// Tells the directory how to wake the services thread, the producer behind the last core.
    pub fn attach_services(&self, bell: Bell) {
        // As above: the first one stands.
        let _ = self.services.set(bell);
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no core (tests of state alone).
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The handle of a running core.
    pub fn handle(&self, core: usize) -> Option<&CoreHandle> {
        self.slots.get(core)?.handle.get()
    }

    /// Hands `message` to a core and wakes it. Given back when the core is gone, or when it is a
    /// notification and the inbox is full: the caller drops it then.
    pub fn post(&self, core: usize, message: CoreMessage) -> Result<(), CoreMessage> {
        let Some(slot) = self.slots.get(core) else {
            return Err(message);
        };
        if message.is_notification() && slot.inbox.len() >= self.capacity {
            return Err(message);
        }
        let bytes = message.bytes();
        slot.on_the_way.fetch_add(bytes, Ordering::Relaxed);
        slot.inbox.send(message).map_err(|refused| {
            slot.on_the_way.fetch_sub(bytes, Ordering::Relaxed);
            refused.0
        })?;
        self.wake(core);
        Ok(())
    }

    /// Counts bytes of a request of core `index` as held while another thread works for it. `None`:
    /// there is no such core.
    pub fn hold(&self, index: usize, bytes: usize) -> Option<Held> {
        Some(self.slots.get(index)?.held.hold(bytes))
    }

    /// What is held for core `index`.
    pub fn held(&self, index: usize) -> HeldBytes {
        let slot = self.slots.get(index);
        slot.map(|slot| slot.held.clone()).unwrap_or_default()
    }

    /// Tells that core `index` took a message of so many bytes out of its inbox.
    pub fn took(&self, index: usize, bytes: usize) {
        if let Some(slot) = self.slots.get(index) {
            slot.on_the_way.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Tells whether the connections of core `index` have too much unsent.
    pub fn set_full(&self, index: usize, full: bool) {
        if let Some(slot) = self.slots.get(index) {
            slot.full.store(full, Ordering::Relaxed);
        }
    }

    /// Whether core `index` can take something large now: asked before it is read from the log, so
    /// that what a core has not sent yet is bounded (docs/design.md, Network cores).
    pub fn has_room(&self, index: usize) -> bool {
        self.slots.get(index).is_none_or(|slot| {
            !slot.full.load(Ordering::Relaxed)
                && slot.on_the_way.load(Ordering::Relaxed) <= MOST_ON_THE_WAY
        })
    }

    /// Wakes a core, or the services thread behind the last one, if it sleeps.
    pub fn wake(&self, core: usize) {
        if core == self.slots.len() {
            if let Some(bell) = self.services.get() {
                bell.ring();
            }
        } else if let Some(handle) = self.handle(core) {
            handle.wake();
        }
    }
}

impl CoreMessage {
    /// Bytes of what is to be sent.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Reply { reply, .. } => reply.body.len(),
            Self::Pulled { frame, .. } => frame.len(),
            Self::Push { frame, .. } => frame.len(),
            Self::Ask { ask, .. } | Self::Confirm { ask, .. } | Self::Gather { ask, .. } => {
                ask.body.len()
            }
            Self::Rerun { .. } | Self::Moved { .. } | Self::Close { .. } => 0,
        }
    }

    fn is_notification(&self) -> bool {
        matches!(
            self,
            Self::Push { .. } | Self::Close { .. } | Self::Moved { .. }
        )
    }
}

impl saturnmq_storage::dispatch::Waker for CoreDirectory {
    fn wake(&self, core: usize) {
        CoreDirectory::wake(self, core);
    }
}
