//! Starts everything in its order: store, state files, services, network cores, sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use crossbeam_channel::Receiver;
use saturnmq_net::driver::{CoreHandle, CoreSettings, spawn_core};
use saturnmq_net::probe::Engine;
use saturnmq_storage::append_queue::AppendPort;
use saturnmq_storage::dispatch::{UnitBits, WakeQueue};
use saturnmq_storage::store::{LentWriter, OpenReport, Opened, Store};

use crate::answer::{CoreDirectory, CoreMessage};
use crate::broker::{Broker, Updates};
use crate::cli::serve::ServeError;
use crate::clients::Clients;
use crate::config::{Config, ConfigError, Resolved};
use crate::control::Sockets;
use crate::core::{Core, CoreParts};
use crate::filter::registered::RegisteredFilters;
use crate::groups::Groups;
use crate::light::is_light;
use crate::locks::QueueLocks;
use crate::name_server::NameServer;
use crate::offsets::{ConsumerOffsets, DelayOffsets};
use crate::persist::Persist;
use crate::services::{Services, ServicesHandle, ServicesInbox};
use crate::state_json::now_ms;
use crate::stats::{Moment, Stats};
use crate::timer::Timers;
use crate::timer::service::TimerService;
use crate::topics::Topics;
use crate::transaction::Transactions;

/// Messages that wait for one core, at most.
const INBOX: usize = 16_384;

/// Environment variable that keeps the writer on its own thread (`thread`), or leaves it to the
/// network core (`core`) where there is one.
const WRITER_VARIABLE: &str = "SATURNMQ_WRITER";

/// Whether the network core takes the writer's turns: where there is only one, and its ring sleeps
/// as cheaply as the writer's own would. `forced` is the value of [`WRITER_VARIABLE`].
fn core_writes(cores: usize, engine: &Engine, forced: Option<&str>) -> Result<bool, ServeError> {
    let possible = cores == 1 && matches!(engine, Engine::Uring(found) if found.defer_taskrun);
    match forced {
        None | Some("" | "core") => Ok(possible),
        Some("thread") => Ok(false),
        Some(other) => Err(ServeError::Config(ConfigError::Contradiction(format!(
            "{WRITER_VARIABLE}={other:?} is not one of thread, core"
        )))),
    }
}

/// A running network core.
pub struct RunningCore {
    /// How other threads reach it.
    pub handle: CoreHandle,
    /// Its thread.
    pub thread: JoinHandle<()>,
}

/// What was started.
pub struct Wired {
    /// The shared state.
    pub broker: Arc<Broker>,
    /// Network cores.
    pub cores: Vec<RunningCore>,
    /// The services thread.
    pub services: JoinHandle<()>,
    /// What opening the store found.
    pub report: OpenReport,
    /// Listening sockets.
    pub sockets: Sockets,
}

/// Starts the broker.
///
/// # Errors
/// Whatever cannot be started; what was started before is stopped again, the store closed.
pub fn start(resolved: Resolved, engine: &Engine, begun: Instant) -> Result<Wired, ServeError> {
    let Resolved { config, live, .. } = resolved;
    let (directory, inboxes) = CoreDirectory::new(config.cores, INBOX);
    let directory = Arc::new(directory);
    // Before the store: it makes units for queue entries that are missing.
    let persist = Persist::new(&config.store.root).with_light(config.light.enabled);
    let persist = Arc::new(persist);
    let filters = RegisteredFilters::load(Arc::clone(&persist), &config.filters, now_ms())?;
    let mut store_config = config.store.clone();
    store_config.unit_bits = filters
        .marks()
        .map(|marks| UnitBits(Arc::clone(marks) as _));
    // One port for each core, and the last one for the services thread.
    let forced = std::env::var(WRITER_VARIABLE).ok();
    store_config.lend_writer = core_writes(config.cores, engine, forced.as_deref())?;
    let opened = Store::open(store_config, config.cores + 1, Arc::clone(&directory) as _)?;
    let store = Arc::clone(&opened.store);
    let parts = Parts {
        config,
        live,
        directory,
        inboxes,
        opened,
        persist,
        filters,
        begun,
    };
    start_on_store(parts, engine).inspect_err(|_| {
        if let Err(error) = store.close() {
            tracing::error!("the store was not closed cleanly: {error}");
        }
    })
}

struct Parts {
    config: Config,
    live: crate::config::LiveConfig,
    directory: Arc<CoreDirectory>,
    inboxes: Vec<Receiver<CoreMessage>>,
    opened: Opened,
    persist: Arc<Persist>,
    filters: RegisteredFilters,
    begun: Instant,
}

fn start_on_store(parts: Parts, engine: &Engine) -> Result<Wired, ServeError> {
    let Parts {
        config,
        live,
        directory,
        inboxes,
        opened,
        persist,
        filters,
        begun,
    } = parts;
    let Opened {
        store,
        mut ports,
        mut wakes,
        report,
        writer,
    } = opened;
    let sockets = Sockets::bind(&config)?;
    let (services, inbox) = ServicesHandle::new();
    let broker = Arc::new(Broker {
        live: ArcSwap::from_pointee(live),
        ports: sockets.ports(),
        store_host: SocketAddr::new(config.advertise_ip, sockets.ports().broker),
        topics: Topics::load(Arc::clone(&persist), &config.system_topics)?.with_light(config.light),
        groups: Groups::load(Arc::clone(&persist))?.with_light(config.light),
        offsets: ConsumerOffsets::load(Arc::clone(&persist))?,
        filters,
        delay_offsets: Arc::new(DelayOffsets::load(Arc::clone(&persist))?),
        name_server: NameServer::load(&persist, config.name_server_limits)?,
        transactions: Transactions::new(store.watermarks().appended()),
        timers: Timers::default(),
        clients: Clients::default(),
        locks: QueueLocks::default(),
        cores: directory,
        services,
        updates: Updates::default(),
        stats: Stats::new(config.cores + 1, Moment::now()),
        leaving: AtomicBool::new(false),
        started: begun,
        rules: AtomicU32::new(0),
        started_ms: now_ms(),
        config,
        store,
        persist,
    });
    tell_unknown_topics(&broker);
    if !report.clean {
        hold_offsets(&broker);
    }
    // The services thread has the port behind those of the cores; it looks at no wake queue.
    let port = ports.split_off(broker.config.cores);
    wakes.truncate(broker.config.cores);
    let services = start_services(&broker, inbox, port, report.clean)?;
    match start_cores(&broker, engine, (ports, wakes, writer), inboxes) {
        Ok(cores) => Ok(Wired {
            broker,
            cores,
            services,
            report,
            sockets,
        }),
        Err(error) => {
            broker.services.stop();
            // A panic of the thread was printed by the panic hook; the start fails anyway.
            let _ = services.join();
            Err(error)
        }
    }
}

/// No group is ahead of what came back after a crash: it would miss what gets those offsets next.
fn hold_offsets(broker: &Broker) {
    let held = broker.offsets.hold_within(|topic, queue| {
        broker.topics.get(topic)?;
        let queue = broker.store.queue(topic, queue);
        Some(queue.map_or(0, |queue| queue.next_offset().max(queue.max_offset())))
    });
    if held > 0 {
        tracing::warn!(
            offsets = held,
            "groups had consumed messages that the crash took: they go on at the ends of the queues"
        );
    }
}

/// Names that one line holds.
const NAMED: usize = 5;

/// Says which topics have messages and do not stand in `topics.json`: nobody can read them.
fn tell_unknown_topics(broker: &Broker) {
    let mut unknown: BTreeMap<Arc<str>, i32> = BTreeMap::new();
    for queue in broker.store.queues() {
        // Light queues have no topic of their own.
        let light = is_light(&queue.topic);
        if queue.max_offset() > queue.min_offset()
            && !light
            && broker.topics.get(&queue.topic).is_none()
        {
            let most = unknown.entry(Arc::clone(&queue.topic)).or_default();
            *most = (*most).max(queue.queue_id.saturating_add(1));
        }
    }
    if unknown.is_empty() {
        return;
    }
    let named = unknown.iter().take(NAMED);
    let named: Vec<_> = named
        .map(|(topic, n)| format!("{topic} ({n} queues)"))
        .collect();
    tracing::warn!(
        topics = unknown.len(),
        "topics have messages and do not stand in topics.json, so nobody can read them, among them \
         {}: put back the file, or create them with that many queues (`saturnmq admin topic \
         create`); those that were deleted expire with their messages",
        named.join(", ")
    );
}

fn start_services(
    broker: &Arc<Broker>,
    inbox: ServicesInbox,
    ports: Vec<AppendPort>,
    clean: bool,
) -> Result<JoinHandle<()>, ServeError> {
    let failed = |source| ServeError::Start {
        what: "the services thread",
        source,
    };
    let port = ports
        .into_iter()
        .next()
        .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let mut reader = broker
        .store
        .reader()
        .map_err(|e| failed(io::Error::other(e)))?;
    let timers =
        TimerService::new(broker, &mut reader, clean).map_err(|e| failed(io::Error::other(e)))?;
    let services = Services::new(Arc::clone(broker), inbox, port, reader, timers);
    let builder = std::thread::Builder::new().name("services".into());
    builder.spawn(move || services.run()).map_err(failed)
}

fn start_cores(
    broker: &Arc<Broker>,
    engine: &Engine,
    (ports, wakes, mut writer): (Vec<AppendPort>, Vec<WakeQueue>, Option<LentWriter>),
    inboxes: Vec<Receiver<CoreMessage>>,
) -> Result<Vec<RunningCore>, ServeError> {
    let mut cores = Vec::with_capacity(inboxes.len());
    for (index, ((port, wakes), inbox)) in ports.into_iter().zip(wakes).zip(inboxes).enumerate() {
        match start_core(broker, engine, index, (port, wakes, inbox, writer.take())) {
            Ok(core) => cores.push(core),
            Err(source) => {
                stop_cores(cores);
                return Err(ServeError::Start {
                    what: "a network core",
                    source,
                });
            }
        }
    }
    Ok(cores)
}

fn start_core(
    broker: &Arc<Broker>,
    engine: &Engine,
    index: usize,
    (port, wakes, inbox, writer): (
        AppendPort,
        WakeQueue,
        Receiver<CoreMessage>,
        Option<LentWriter>,
    ),
) -> io::Result<RunningCore> {
    let cpu = broker
        .config
        .core_cpus
        .as_ref()
        .and_then(|cpus| cpus.get(index).copied());
    let mut settings = CoreSettings::new(index, cpu, engine.clone());
    broker.config.network.apply(&mut settings);
    settings.limits.idle = broker.config.idle_timeout;
    let reader = broker.store.reader().map_err(io::Error::other)?;
    let parts = CoreParts {
        index,
        reader,
        port,
        wakes,
        inbox,
        writer,
    };
    let shared = Arc::clone(broker);
    let (handle, thread) = spawn_core(settings, move |handle| Core::new(shared, handle, parts))?;
    Ok(RunningCore { handle, thread })
}

fn stop_cores(cores: Vec<RunningCore>) {
    for core in &cores {
        core.handle.stop();
    }
    for core in cores {
        // As for the services thread.
        let _ = core.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use saturnmq_net::probe::Features;

    use super::*;

    #[test]
    fn the_only_core_writes_where_its_ring_has_everything() {
        let full = Engine::Uring(Features::FULL);
        let writes = |cores, engine, forced| core_writes(cores, engine, forced).ok();
        assert_eq!(writes(1, &full, None), Some(true));
        assert_eq!(writes(1, &full, Some("")), Some(true));
        assert_eq!(writes(1, &full, Some("thread")), Some(false));
        assert_eq!(writes(2, &full, Some("core")), Some(false));
        assert_eq!(
            writes(1, &Engine::Uring(Features::PLAIN), None),
            Some(false)
        );
        let epoll = Engine::Epoll(String::new());
        assert_eq!(writes(1, &epoll, Some("core")), Some(false));
        let refused = core_writes(1, &full, Some("cores")).expect_err("a wrong name");
        let refused = refused.to_string();
        assert!(
            refused.contains("SATURNMQ_WRITER") && refused.contains("cores"),
            "{refused}"
        );
    }
}
