//! Options that the kinds of load have in common.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use saturnmq_net::frame::Codec;

use crate::bench::environment::Environment;
use crate::bench::message::{Kind, Shape, Sizes};
use crate::bench::packing::Method;
use crate::bench::pin::{self, Pin};
use crate::bench::plan::{Pace, Plan, Target, Watch};
use crate::bench::report::Report;
use crate::bench::{self, BenchError, process, route};

/// A run that ends by itself, not by the clock, is given up after this.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Sends in flight per connection of a closed loop.
const IN_FLIGHT: u16 = 8;
/// Highest rate that can be asked for, in messages per second.
const MAX_RATE: u32 = 10_000_000;

fn rate(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(rate @ 1..=MAX_RATE) => Ok(rate),
        _ => Err(format!(
            "must be a number of messages per second from 1 to {MAX_RATE}; --closed sends as fast \
             as the broker answers"
        )),
    }
}

/// Form of the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Header {
    /// JSON, Apache's default.
    Json,
    /// Apache's fixed layout.
    Rocketmq,
}

/// Which broker, how to load it, and what to report: for every kind of load.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Name server.
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9876",
        value_parser = address
    )]
    pub name_server: String,
    /// Broker, without a name server.
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with = "name_server",
        value_parser = address
    )]
    pub broker: Option<String>,
    /// Topic; made if it does not exist. With more topics: their names' beginning.
    #[arg(long, default_value = "saturnmq_bench")]
    pub topic: String,
    /// Number of topics.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub topics: u32,
    /// Queues of each topic that are used: all by default.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(1..=1024)
    )]
    pub queues: Option<i32>,
    /// Connections, each with a thread of its own.
    #[arg(
        long,
        visible_alias = "producers",
        value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub connections: Option<u16>,
    /// Form of the headers.
    #[arg(long, value_enum, default_value = "json")]
    pub header: Header,
    /// Seconds before anything is counted.
    #[arg(
        long,
        value_name = "S", allow_negative_numbers = true,
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(0..=3600)
    )]
    pub warm_up: u32,
    /// What sizes, keys and tags are drawn from.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 1
    )]
    pub seed: u64,
    /// Seconds that any answer may take, and all that are missing at the end of the run together;
    /// what is missing then is an error.
    #[arg(
        long,
        value_name = "S", allow_negative_numbers = true,
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=3600)
    )]
    pub timeout: u32,
    /// Broker process on this host whose use of it is reported.
    #[arg(long, visible_alias = "broker-pid", value_name = "PID")]
    pub pid: Option<u32>,
    /// Run on these CPUs, such as 0,2-3; "apart": on those that the broker (--pid) does not use.
    #[arg(long, value_name = "CPUS")]
    pub pin: Option<Pin>,
    /// Seconds between two looks at the run.
    #[arg(
        long,
        value_name = "S", allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=3600)
    )]
    pub interval: u32,
    /// Show no progress.
    #[arg(long)]
    pub quiet: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Write the latencies of each interval for HdrHistogram's tools.
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// Write an HTML page with plots.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Note a fact in the report's environment, such as commit=1234abc.
    #[arg(long, value_name = "NAME=VALUE", value_parser = note)]
    pub note: Vec<(String, String)>,
}

fn note(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("\"{text}\" is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What is sent, how fast and for how long: for every kind of load that sends.
#[derive(Debug, Clone, Args)]
pub struct SendArgs {
    /// Body bytes: a size, a range LOW-HIGH, or several with weights, such as 128*9,1024-65536*1.
    /// From 40 bytes on every message is checked.
    #[arg(long, value_name = "SIZES", default_value = "1024")]
    pub size: Sizes,
    /// Give each message one of N keys.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 0
    )]
    pub keys: u64,
    /// Give each message one of N tags.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 0
    )]
    pub tags: u32,
    /// Give each message N more properties, of 16 bytes each.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(0..=500)
    )]
    pub properties: u16,
    /// Give each message a unique key, as Apache's clients do.
    #[arg(long)]
    pub unique_key: bool,
    /// Messages of one send.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub batch: u16,
    /// Compress bodies, as Apache's clients do those over 4 KiB: zlib, lz4 or zstd.
    #[arg(long, value_name = "METHOD", conflicts_with = "batch")]
    pub compress: Option<Method>,
    /// Open loop: messages per second, of all connections together, whatever the broker does.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 1000,
        value_parser = rate
    )]
    pub rate: u32,
    /// Closed loop: each connection sends as fast as the broker answers.
    #[arg(long, conflicts_with = "rate")]
    pub closed: bool,
    /// Sends in flight per connection of a closed loop, which this asks for.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        conflicts_with = "rate",
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub in_flight: Option<u16>,
    /// Seconds that are counted.
    #[arg(
        long,
        value_name = "S", allow_negative_numbers = true,
        default_value_t = 10,
        conflicts_with = "count",
        value_parser = clap::value_parser!(u32).range(1..=86_400)
    )]
    pub seconds: u32,
    /// Messages that are counted, in place of a time.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub count: Option<u64>,
}

fn address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    match port.parse::<u16>() {
        Ok(1..) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("must be HOST:PORT, such as 127.0.0.1:9876".to_owned()),
    }
}

impl RunArgs {
    /// Refuses before the run what would only fail after it.
    ///
    /// # Errors
    /// [`BenchError::System`] names the option.
    pub fn check(&self) -> Result<(), BenchError> {
        let system = BenchError::System;
        if let Some(path) = &self.report {
            let open = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(path);
            open.map_err(|error| system(format!("--report {}: {error}", path.display())))?;
        }
        let Some(pid) = self.pid else { return Ok(()) };
        if pid == std::process::id() {
            return Err(system(format!("--pid {pid}: that is this process")));
        }
        if process::usage(pid).is_none() {
            return Err(system(format!("--pid {pid}: no such process is visible")));
        }
        if process::listens(pid) == Some(false) {
            return Err(system(format!(
                "--pid {pid}: this process listens on no TCP port, so it is no broker"
            )));
        }
        Ok(())
    }

    /// Pins this process, as asked for, and has its timers go off when they are due.
    ///
    /// # Errors
    /// [`BenchError`] when that is not possible.
    pub fn prepare_process(&self) -> Result<(), BenchError> {
        // Without it the system lets every thread that waits for the moment of a send oversleep by
        // 50 us, which would count as the broker's. Threads inherit it from this one.
        nix::sys::prctl::set_timerslack(1)
            .map_err(|error| BenchError::System(format!("PR_SET_TIMERSLACK: {error}")))?;
        match &self.pin {
            Some(to) => pin::pin(to, self.pid).map(drop),
            None => Ok(()),
        }
    }

    /// The plan of a load that sends nothing, until it is done.
    pub fn plan(&self, connections: u16) -> Plan {
        let topics = if self.topics == 1 {
            vec![self.topic.clone()]
        } else {
            let name = |index| format!("{}_{index}", self.topic);
            (0..self.topics).map(name).collect()
        };
        Plan {
            target: match &self.broker {
                Some(address) => Target::Broker(address.clone()),
                None => Target::NameServer(self.name_server.clone()),
            },
            topics,
            queues: self.queues,
            connections: self.connections.unwrap_or(connections).into(),
            codec: match self.header {
                Header::Json => Codec::Json,
                Header::Rocketmq => Codec::Binary,
            },
            shape: Shape {
                sizes: Sizes::of(1),
                keys: 0,
                tags: 0,
                properties: 0,
                unique_key: false,
                batch: 1,
                compress: None,
                kind: Kind::Plain,
            },
            pace: Pace::Closed { in_flight: 1 },
            warm_up: Duration::ZERO,
            duration: LONGEST,
            count: None,
            timeout: Duration::from_secs(self.timeout.into()),
            seed: self.seed,
            read_back: Duration::ZERO,
            watch: Watch {
                pid: self.pid,
                says_written: None,
                interval: Duration::from_secs(self.interval.into()),
                progress: !self.quiet,
                hlog: self.hlog.clone(),
            },
        }
    }

    /// The broker's address.
    ///
    /// # Errors
    /// [`BenchError`] when the name server does not know it.
    pub fn address(&self, plan: &Plan) -> Result<String, BenchError> {
        let routes = route::find(&plan.target, &plan.topics[..1], plan.timeout)?;
        let address = routes.into_iter().next().map(|route| route.address);
        Ok(address.unwrap_or_default())
    }

    /// What can be seen of where the run takes place, before it begins.
    pub fn environment(&self, plan: &Plan, address: &str) -> Environment {
        let mut seen = Environment::look(Some((address, plan.timeout)), self.pid);
        for (name, value) in &self.note {
            seen.note(name, Some(value.clone()));
        }
        let command: Vec<String> = std::env::args().collect();
        seen.note("load", Some(command.join(" ")));
        seen
    }

    /// Prints what came of it, and fails when the broker did something wrong.
    ///
    /// # Errors
    /// [`BenchError::Failed`] then.
    pub fn tell(&self, report: &Report) -> Result<(), BenchError> {
        if self.json {
            bench::print(&format!("{}\n", report.json()?))?;
        } else {
            bench::print(&report.text())?;
        }
        report.verdict()
    }
}

/// Arguments of every load that sends.
#[derive(Debug, Clone, Args)]
pub struct SendingArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub send: SendArgs,
}

impl SendingArgs {
    /// The plan of a load that sends, over that many connections unless it was said how many.
    pub fn plan(&self, connections: u16) -> Plan {
        let mut plan = self.run.plan(connections);
        self.send.complete(&mut plan, self.run.warm_up);
        plan
    }
}

impl SendArgs {
    /// Adds what is sent, how fast and for how long to a plan.
    pub fn complete(&self, plan: &mut Plan, warm_up: u32) {
        plan.shape = Shape {
            sizes: self.size.clone(),
            keys: self.keys,
            tags: self.tags,
            properties: self.properties,
            unique_key: self.unique_key,
            batch: self.batch,
            compress: self.compress,
            kind: Kind::Plain,
        };
        plan.pace = if self.closed || self.in_flight.is_some() {
            Pace::Closed {
                in_flight: self.in_flight.unwrap_or(IN_FLIGHT).into(),
            }
        } else {
            Pace::Open {
                rate: self.rate.into(),
            }
        };
        plan.warm_up = Duration::from_secs(warm_up.into());
        plan.count = self.count;
        plan.duration = match self.count {
            Some(_) => LONGEST,
            None => Duration::from_secs(self.seconds.into()),
        };
    }
}
