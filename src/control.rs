//! The main thread: accepting, signals, state files, schedules, and the order of a stop.
//!
//! It runs a tokio-uring runtime where io_uring works, and a plain tokio runtime of one thread
//! where it does not; both run the same tasks. No request passes through it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use saturnmq_net::listener::{self, Acceptor, BindError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::accept::Accepting;
use crate::answer::CoreMessage;
use crate::broker::{Broker, Ports};
use crate::cli::serve::ServeError;
use crate::config::{Config, PortChoice};
use crate::core::steady_ms;
use crate::http;
use crate::name_server::outer::Registrar;
use crate::persist::StateSource;
use crate::stats;
use crate::systemd::Notifier;
use crate::topics::{Topic, TopicChange};
use crate::wiring::RunningCore;

/// How long an address in use is tried again: a killed broker's sockets outlive it for a moment.
const LISTEN_PATIENCE: Duration = Duration::from_millis(1500);
/// How often the name server looks for brokers that went silent.
const NAME_SERVER_SCAN: Duration = Duration::from_secs(5);
/// Signals this soon after the first are the same wish.
const SAME_SIGNAL: Duration = Duration::from_millis(50);
/// How often failed state files are tried again.
const PERSIST_RETRY: Duration = Duration::from_secs(5);
/// How often threads are looked at that must not end.
const THREAD_WATCH: Duration = Duration::from_secs(1);
/// How long a stop waits for a thread beyond the thread's own limit.
const THREAD_GRACE: Duration = Duration::from_secs(15);
/// Pause between two looks at a thread that is to end.
const THREAD_POLL: Duration = Duration::from_millis(2);

/// Listening sockets, bound and accepting into the kernel's queue.
#[derive(Debug)]
pub struct Sockets {
    broker: TcpListener,
    fast: Option<TcpListener>,
    name_server: Option<TcpListener>,
    http: Option<TcpListener>,
    ports: Ports,
}

impl Sockets {
    /// Listens on every configured port.
    ///
    /// # Errors
    /// [`ServeError::Bind`] names the address and the key.
    pub fn bind(config: &Config) -> Result<Self, ServeError> {
        let bind = |choice: PortChoice, key| -> Result<Option<TcpListener>, ServeError> {
            // Beside any free port the next pair is tried at once.
            let patience = match (config.listen_port, key) {
                (PortChoice::Any, "fastListenPort") => Duration::ZERO,
                _ => LISTEN_PATIENCE,
            };
            let listen = |port| listener::bind_within(SocketAddr::new(config.bind, port), patience);
            choice
                .number()
                .map(listen)
                .transpose()
                .map_err(|e| ServeError::Bind(e, key))
        };
        let (broker, fast) = bind_broker(config, &bind)?;
        let name_server = bind(config.name_server_port, "nameServerPort")?;
        let http = bind(config.http_port, "httpPort")?;
        let ports = Ports {
            broker: port_of(&broker),
            fast: fast.as_ref().map(port_of),
            name_server: name_server.as_ref().map(port_of),
            http: http.as_ref().map(port_of),
        };
        Ok(Self {
            broker,
            fast,
            name_server,
            http,
            ports,
        })
    }

    /// The ports, as bound.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// Sockets of the remoting protocol, and the one for HTTP.
    fn split(self) -> (Vec<TcpListener>, Option<TcpListener>) {
        let remoting = [Some(self.broker), self.fast, self.name_server];
        (remoting.into_iter().flatten().collect(), self.http)
    }
}

type Bind<'a> = dyn Fn(PortChoice, &'static str) -> Result<Option<TcpListener>, ServeError> + 'a;

/// With any free port asked for, clients still derive the fast port as the broker's minus two: some
/// pairs are tried for that.
fn bind_broker(
    config: &Config,
    bind: &Bind<'_>,
) -> Result<(TcpListener, Option<TcpListener>), ServeError> {
    const PAIRS: usize = 32;
    for _ in 0..PAIRS {
        let Some(broker) = bind(config.listen_port, "listenPort")? else {
            break;
        };
        let port = port_of(&broker);
        let fast = config.fast_port_for(port);
        match bind(fast, "fastListenPort") {
            Err(ServeError::Bind(BindError::InUse { .. }, _))
                if config.listen_port == PortChoice::Any && config.fast_port.is_none() => {}
            fast => return Ok((broker, fast?)),
        }
    }
    // listenPort cannot be off, so the loop only ends without a pair of free ports.
    let address = SocketAddr::new(config.bind, 0);
    let none = BindError::Other {
        address,
        source: io::ErrorKind::AddrInUse.into(),
    };
    Err(ServeError::Bind(none, "listenPort"))
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

/// What the control thread works with.
pub struct Parts {
    /// The shared state.
    pub broker: Arc<Broker>,
    /// Network cores.
    pub cores: Vec<RunningCore>,
    /// The services thread.
    pub services: JoinHandle<()>,
    /// Listening sockets.
    pub sockets: Sockets,
    /// Whether io_uring may be used.
    pub ring: bool,
    /// Called once signals are heeded and connections accepted.
    pub announce: Box<dyn FnOnce()>,
}

/// Runs the control thread until a signal, then stops everything in order.
///
/// # Errors
/// The runtime cannot be made, or the stop was not clean.
pub fn run(mut parts: Parts) -> Result<(), ServeError> {
    if parts.ring {
        match tokio_uring::Runtime::new(tokio_uring::builder().entries(64)) {
            Ok(runtime) => return runtime.block_on(serve(parts)),
            Err(error) => {
                tracing::warn!("the control thread does without io_uring: {error}");
                parts.ring = false;
            }
        }
    }
    let failed = |source| ServeError::Start {
        what: "the control runtime",
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(parts))
}

/// Signals that end the broker.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal is closed; `None` where that is to be ignored (`nohup`).
    hang_up: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        let failed = |source| ServeError::Start {
            what: "the signal handlers",
            source,
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            hang_up: match ignores_hang_up() {
                true => None,
                false => Some(signal(SignalKind::hangup()).map_err(failed)?),
            },
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hang_up(&mut self.hang_up) => "SIGHUP",
        }
    }
}

async fn hang_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => signal.recv().await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP was ignored when the process was started.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}

async fn serve(parts: Parts) -> Result<(), ServeError> {
    let Parts {
        broker,
        cores,
        services,
        sockets,
        ring,
        announce,
    } = parts;
    let mut signals = Signals::new()?;
    let source: Arc<dyn StateSource> = Arc::clone(&broker) as _;
    let persisting = tokio::spawn(Arc::clone(&broker.persist).run(Arc::clone(&source)));
    let registrar = Arc::new(Registrar::new(Arc::clone(&broker)));
    announce_topics(&broker, &registrar);
    registrar.spawn();
    let handles = cores.iter().map(|core| core.handle.clone()).collect();
    let (remoting, http) = sockets.split();
    let accepting = Accepting::start(remoting, Acceptor::new(handles), ring).map_err(|source| {
        ServeError::Start {
            what: "accepting connections",
            source,
        }
    })?;
    start_schedules(&broker);
    start_http(&broker, http)?;
    announce();
    let notifier = Notifier::from_environment().map(Rc::new);
    if let Some(notifier) = &notifier {
        notifier.ready(&format!("serving {}", broker.address()));
    }
    keep_alive(notifier.clone());
    let died = tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}: stopping; a second signal ends at once");
            None
        }
        name = dead_thread(&cores, &services) => {
            tracing::error!("{name} ended by itself: stopping");
            Some(name)
        }
    };
    if let Some(notifier) = &notifier {
        notifier.stopping();
    }
    let stop = stop(&broker, cores, services, accepting, &registrar, persisting);
    tokio::select! {
        outcome = stop => match died {
            Some(name) => Err(ServeError::Stop(format!("{name} ended by itself; see the log"))),
            None => outcome,
        },
        name = second(&mut signals) => {
            tracing::warn!("{name} again: ending at once; the next start recovers the store");
            std::process::exit(1);
        }
    }
}

/// The next signal that is a wish of its own: what sends one to a process and to its group sends it
/// twice.
async fn second(signals: &mut Signals) -> &'static str {
    let begun = Instant::now();
    loop {
        let name = signals.next().await;
        if begun.elapsed() >= SAME_SIGNAL {
            return name;
        }
    }
}

/// Tells the service manager that this thread runs, if it wants to know.
fn keep_alive(notifier: Option<Rc<Notifier>>) {
    if let Some(notifier) = notifier
        && let Some(period) = notifier.alive_interval()
    {
        every(period, move || notifier.alive());
    }
}

/// Waits until a thread ends that should not: half a broker is worse than a restart.
async fn dead_thread(cores: &[RunningCore], services: &JoinHandle<()>) -> String {
    let mut ticks = interval(THREAD_WATCH);
    loop {
        ticks.tick().await;
        if let Some(core) = cores.iter().find(|core| core.thread.is_finished()) {
            return format!("network core {}", core.handle.index());
        }
        if services.is_finished() {
            return "the services thread".into();
        }
    }
}

/// Tells the embedded name server, and outer ones, of every topic and every change.
fn announce_topics(broker: &Arc<Broker>, registrar: &Arc<Registrar>) {
    let weak = Arc::downgrade(broker);
    let outer = Arc::clone(registrar);
    broker.topics.set_listener(Box::new(move |change| {
        if let Some(broker) = weak.upgrade() {
            match change {
                TopicChange::Updated(config) => broker.register_topic(config),
                TopicChange::Removed(topic) => {
                    broker
                        .name_server
                        .topic_removed(&broker.config.broker_name, topic);
                }
            }
        }
        outer.topic_changed();
    }));
    let outer = Arc::clone(registrar);
    // Set once: this is the only caller, and it runs once.
    let _ = broker
        .updates
        .registration
        .set(Box::new(move || outer.topic_changed()));
    broker.register_local();
}

/// Serves HTTP until this thread's runtime ends: a stop can be watched through it.
fn start_http(broker: &Arc<Broker>, listener: Option<TcpListener>) -> Result<(), ServeError> {
    let failed = |source| ServeError::Start {
        what: "the HTTP server",
        source,
    };
    if let Some(listener) = listener {
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        tokio::spawn(http::serve(Arc::clone(broker), listener));
    }
    Ok(())
}

/// Runs `work` every `period`, first after one period, for the life of the runtime.
fn every(period: Duration, mut work: impl FnMut() + 'static) {
    tokio::task::spawn_local(async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            work();
        }
    });
}

/// What comes round on this thread. Retention and silent clients are the services thread's.
fn start_schedules(broker: &Arc<Broker>) {
    let shared = Arc::clone(broker);
    every(broker.config.offset_flush_interval, move || {
        shared.offsets.save_if_changed();
    });
    let shared = Arc::clone(broker);
    every(broker.config.delay_flush_interval, move || {
        shared.delay_offsets.save_if_changed();
    });
    let shared = Arc::clone(broker);
    every(PERSIST_RETRY, move || shared.persist.retry_failed());
    let shared = Arc::clone(broker);
    every(NAME_SERVER_SCAN, move || close_silent_brokers(&shared));
    if broker.ports.name_server.is_some() {
        // Like any broker again and again: what others unregistered by mistake comes back.
        let shared = Arc::clone(broker);
        every(broker.config.register_period, move || {
            shared.register_local();
        });
    }
    let shared = Arc::clone(broker);
    every(stats::TICK, move || {
        shared.stats.tick(stats::Moment::now(), |look| {
            let traffic = |topic: &Arc<Topic>| look(&topic.config.name, &topic.traffic);
            shared.topics.each(traffic);
        });
    });
}

fn close_silent_brokers(broker: &Broker) {
    let silent = broker.name_server.registry_mut().expire(steady_ms());
    for channel in silent {
        let close = CoreMessage::Close { conn: channel.conn };
        let _ = broker.cores.post(channel.core, close);
    }
}

/// The order of a stop: nobody new, what is in flight answered, progress and store on disk.
async fn stop(
    broker: &Arc<Broker>,
    cores: Vec<RunningCore>,
    services: JoinHandle<()>,
    accepting: Accepting,
    registrar: &Registrar,
    persisting: tokio::task::JoinHandle<()>,
) -> Result<(), ServeError> {
    let begun = Instant::now();
    registrar.unregister().await;
    if let Some(wait) = broker.config.graceful_stop {
        broker.leaving.store(true, Ordering::Relaxed);
        tracing::info!("clients have {} s to go elsewhere", wait.as_secs());
        sleep(wait).await;
    }
    accepting.stop().await;
    for core in &cores {
        core.handle.stop();
    }
    for core in cores {
        let index = core.handle.index();
        join(core.thread, &format!("network core {index}")).await;
    }
    broker.services.stop();
    join(services, "the services thread").await;
    broker.offsets.save_if_changed();
    broker.delay_offsets.save_if_changed();
    broker.persist.stop();
    // The executor finishes the write it is at; what is left is written here.
    let _ = timeout(THREAD_GRACE, persisting).await;
    let shared = Arc::clone(broker);
    let closing = tokio::task::spawn_blocking(move || {
        let state = shared.persist.flush(shared.as_ref());
        let store = shared.store.close();
        (state, store)
    });
    let (state, store) = closing.await.map_err(|e| ServeError::Stop(e.to_string()))?;
    state.map_err(|e| ServeError::Stop(e.to_string()))?;
    store.map_err(|e| ServeError::Stop(e.to_string()))?;
    tracing::info!("stopped in {} ms", begun.elapsed().as_millis());
    Ok(())
}

/// Waits for a thread without blocking this one; gives up when it takes too long.
async fn join(thread: JoinHandle<()>, name: &str) {
    let ended = timeout(THREAD_GRACE, async {
        while !thread.is_finished() {
            sleep(THREAD_POLL).await;
        }
    });
    match ended.await {
        Ok(()) if thread.join().is_err() => tracing::error!("{name} panicked"),
        Ok(()) => {}
        Err(_) => tracing::error!("{name} does not end; going on without it"),
    }
}
