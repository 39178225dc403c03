//! `saturnmq serve`: reads the configuration, opens the store, starts every thread, says what runs,
//! and hands the main thread to [`control`](crate::control).

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use saturnmq_net::listener::BindError;
use saturnmq_net::probe::{self, Engine, ProbeError};
use saturnmq_storage::error::OpenError;
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, ConfigError, Options, Resolved};
use crate::control::{self, Sockets};
use crate::persist::LoadError;
use crate::wiring::{self, Wired};
use crate::{banner, host, log};

const EXAMPLES: &str = "\
Examples:
  saturnmq serve
      on loopback, store under ./saturnmq-data, name server on 9876, broker on 10911
  saturnmq serve --listen 0.0.0.0 --data-dir /var/lib/saturnmq
      for clients on other hosts
  saturnmq serve -c broker.conf
      with Apache's file and key names
  saturnmq serve --set flushDiskType=ASYNC_FLUSH --set nameServerPort=off
      single keys; they go over the file
  saturnmq serve --listen 127.0.0.1:0 --name-server-port 0
      any free ports; they are printed
  saturnmq serve --rebuild-queues
      consume queues and index made again from the commit log first";

/// Arguments of `serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub struct ServeArgs {
    /// Apache's broker.conf: Java properties with Apache's key names.
    #[arg(short = 'c', long = "conf", value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// Directory of the store [./saturnmq-data, or ~/store with -c].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address to listen on, with or without a port [127.0.0.1, or all with -c].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub listen: Option<String>,
    /// Port of the embedded name server: 0 for any free one, or "off" [9876].
    #[arg(long, value_name = "PORT")]
    pub name_server_port: Option<String>,
    /// Address that clients are told to connect to [the one listened on, else one of this host's].
    #[arg(long, value_name = "ADDRESS")]
    pub advertise: Option<String>,
    /// Network threads; 0 is as many as without it [CPUs minus one, at most 8].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub cores: Option<usize>,
    /// Sets a key of broker.conf; may be given often.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Makes consume queues and index again from the commit log before serving.
    #[arg(long)]
    pub rebuild_queues: bool,
    /// Form of the log on stderr; RUST_LOG chooses what is logged.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Why the broker did not start, or did not stop well: one sentence that names the thing.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address or port.
    #[error("{0}: {option} (key {1})", option = port_option(.1))]
    Bind(#[source] BindError, &'static str),
    /// Something stands where the store is to be.
    #[error(
        "the store cannot be at {}: {} is no directory; choose another place with --data-dir",
        .0.display(), .1.display()
    )]
    NoDirectory(PathBuf, PathBuf),
    /// RLIMIT_NOFILE.
    #[error(
        "only {0} files may be open, and a broker needs {needed}: ulimit -n 1048576 (systemd: \
         LimitNOFILE=1048576)",
        needed = host::FILES_NEEDED
    )]
    FewFiles(u64),
    /// The choice of engine.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A state file.
    #[error(transparent)]
    State(#[from] LoadError),
    /// A thread, a runtime or a signal handler.
    #[error("cannot start {what}: {source}")]
    Start {
        /// Which.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// `RUST_LOG`.
    #[error(
        "RUST_LOG={0:?} is no log filter ({1}); an example is RUST_LOG=saturnmq_net=debug,info"
    )]
    LogFilter(String, String),
    /// The stop was not clean.
    #[error("{0}")]
    Stop(String),
}

/// How another port is chosen for `key`.
fn port_option(key: &str) -> String {
    match key {
        "listenPort" => "--listen ADDRESS:PORT, or --set listenPort=PORT".into(),
        "nameServerPort" => "--name-server-port PORT".into(),
        key => format!("--set {key}=PORT"),
    }
}

/// Runs the broker until a signal ends it.
///
/// # Errors
/// [`ServeError`], for `main` to print.
pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let begun = Instant::now();
    survive_file_size_limit()?;
    start_log(args.log_format)?;
    let mut resolved = Config::resolve(&Options {
        conf: args.conf.clone(),
        data_dir: args.data_dir.clone(),
        listen: args.listen.clone(),
        name_server_port: args.name_server_port.clone(),
        advertise: args.advertise.clone(),
        cores: args.cores,
        set: args.set.clone(),
    })?;
    resolved.config.store.rebuild_queues = args.rebuild_queues;
    tell_remarks(&resolved);
    let facts = host::Facts::gather(resolved.config.root());
    if facts.files < host::FILES_NEEDED {
        return Err(ServeError::FewFiles(facts.files));
    }
    let log = resolved.config.store.commit_log_path();
    for path in [resolved.config.root(), &log] {
        if let Some(file) = host::in_the_way(path) {
            return Err(ServeError::NoDirectory(path.into(), file));
        }
    }
    let engine = probe::choose()?;
    // Taken ports are told before the store is touched; the sockets proper are made once it is
    // open, so that nobody waits in a queue while a store is recovered.
    drop(Sockets::bind(&resolved.config)?);
    let Wired {
        broker,
        cores,
        services,
        report,
        sockets,
    } = wiring::start(resolved, &engine, begun)?;
    let ring = matches!(engine, Engine::Uring(_));
    let shared = Arc::clone(&broker);
    let announce = Box::new(move || {
        print_banner(&banner::text(&shared, &facts, &engine, &report));
    });
    control::run(control::Parts {
        broker,
        cores,
        services,
        sockets,
        ring,
        announce,
    })
}

/// A file that may not grow further (RLIMIT_FSIZE) is an error of that write, not the end of the
/// process: threads started from here on inherit the blocked signal.
fn survive_file_size_limit() -> Result<(), ServeError> {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGXFSZ);
    blocked.thread_block().map_err(|error| ServeError::Start {
        what: "with SIGXFSZ blocked",
        source: error.into(),
    })
}

fn tell_remarks(resolved: &Resolved) {
    for sentence in &resolved.remarks.sentences {
        tracing::warn!("{sentence}");
    }
    if !resolved.remarks.ignored.is_empty() {
        tracing::debug!(
            "keys without effect here: {}",
            resolved.remarks.ignored.join(", ")
        );
    }
}

fn start_log(format: LogFormat) -> Result<(), ServeError> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(text) if !text.trim().is_empty() => EnvFilter::try_new(&text)
            .map_err(|error| ServeError::LogFilter(text, error.to_string()))?,
        _ => EnvFilter::new("info"),
    };
    let writer = log::writer().map_err(|source| ServeError::Start {
        what: "the log",
        source,
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || writer)
        // It would be said on stderr, by a macro that panics when that fails as well.
        .log_internal_errors(false);
    // A second log in the same process (tests) keeps the first.
    let _ = match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Ok(())
}

/// A closed stdout is no reason not to serve.
fn print_banner(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
