//! `saturnmq bench`: load on any RocketMQ-protocol broker.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::bench::produce::{self, Pace};
use crate::bench::{BenchError, Cost, Faults, drain, end_to_end};

const EXAMPLES: &str = "\
Examples:
  saturnmq bench produce --connections 16 --in-flight 8 --seconds 10
      1 KiB messages to the broker behind 127.0.0.1:9876, as fast as it answers (closed loop)
  saturnmq bench produce --rate 20000
      20,000 messages a second whatever the broker does (open loop)
  saturnmq bench produce --size 4096 --topics 100 --json
      over 100 topics, for scripts
  saturnmq bench drain --topic saturnmq_bench --broker-pid $(pidof saturnmq)
      what the topic holds, with the broker's CPU time and memory
  saturnmq bench end-to-end --topic saturnmq_bench --rate 1000
      from the moment a message is due to its receipt by a waiting consumer

Exits with 0 when the broker did everything right, with 1 otherwise.";

/// Arguments of `bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// What kind of load.
    #[command(subcommand)]
    pub load: Load,
}

/// Kinds of load.
#[derive(Debug, Clone, Subcommand)]
pub enum Load {
    /// Send messages and measure until SEND_OK.
    Produce(ProduceArgs),
    /// Read what a topic holds as fast as it comes.
    Drain(DrainArgs),
    /// Send at a fixed rate and measure until a consumer that waits has the message.
    EndToEnd(EndToEndArgs),
}

/// Which broker, and how to report.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    /// Name server.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9876")]
    pub name_server: String,
    /// Topic; created by the broker if it may. With --topics N: its name's beginning.
    #[arg(long, default_value = "saturnmq_bench")]
    pub topic: String,
    /// Broker process on this host whose CPU time and memory are reported.
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How large and how long.
#[derive(Debug, Clone, Args)]
pub struct LengthArgs {
    /// Body bytes of a message; from 32 on every message is checked.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=4_194_304)
    )]
    pub size: u32,
    /// Seconds that are counted.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=3600)
    )]
    pub seconds: u32,
    /// Seconds before that.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(0..=3600)
    )]
    pub warm_up: u32,
}

/// Arguments of `bench produce`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProduceArgs {
    /// Which broker.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How large and how long.
    #[command(flatten)]
    pub length: LengthArgs,
    /// Number of topics.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub topics: u32,
    /// Connections.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub connections: u16,
    /// Closed loop: sends in flight per connection.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        conflicts_with = "rate",
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub in_flight: u16,
    /// Open loop: messages per second, of all connections together.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub rate: Option<u32>,
}

/// Arguments of `bench drain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct DrainArgs {
    /// Which broker.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Connections.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub connections: u16,
    /// Most messages of one pull.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(i32).range(1..=1024)
    )]
    pub batch: i32,
}

/// Arguments of `bench end-to-end`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct EndToEndArgs {
    /// Which broker; the topic must exist.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How large and how long.
    #[command(flatten)]
    pub length: LengthArgs,
    /// Messages per second, of all producers together.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub rate: u32,
    /// Producing connections.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub producers: u16,
    /// Consuming connections; queues are dealt to them in turn.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub consumers: u16,
}

/// Runs the load and prints the report.
///
/// # Errors
/// [`BenchError`] when nothing could be measured or the broker did something wrong.
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    match &args.load {
        Load::Produce(args) => produce(args),
        Load::Drain(args) => drain(args),
        Load::EndToEnd(args) => end_to_end(args),
    }
}

fn json(report: &impl Serialize) -> Result<(), BenchError> {
    let text =
        serde_json::to_string(report).map_err(|error| BenchError::System(error.to_string()))?;
    println!("{text}");
    Ok(())
}

fn produce(args: &ProduceArgs) -> Result<(), BenchError> {
    let target = &args.target;
    let topics = if args.topics == 1 {
        vec![target.topic.clone()]
    } else {
        (0..args.topics)
            .map(|index| format!("{}_{index}", target.topic))
            .collect()
    };
    let pace = match args.rate {
        Some(rate) => Pace::Open {
            rate: f64::from(rate),
        },
        None => Pace::Closed {
            in_flight: usize::from(args.in_flight),
        },
    };
    let report = produce::run(&produce::Plan {
        name_server: target.name_server.clone(),
        topics,
        connections: usize::from(args.connections),
        pace,
        size: args.length.size as usize,
        warm_up: Duration::from_secs(args.length.warm_up.into()),
        duration: Duration::from_secs(args.length.seconds.into()),
        broker_pid: target.broker_pid,
    })?;
    if target.json {
        json(&report)?;
        return report.faults.verdict();
    }
    let (connections, size) = (args.connections, args.length.size);
    match args.rate {
        Some(rate) => print!("open loop: {rate}/s over {connections} connections"),
        None => print!(
            "closed loop: {connections} connections x {}",
            args.in_flight
        ),
    }
    println!(", {size} bytes, {:.1} s", report.seconds);
    println!(
        "messages   {:>12.0}/s   ({} sent, {} refused)",
        report.per_second, report.messages, report.refused
    );
    print_latency(report.latency_us);
    print_rest(&report.cost, &report.faults);
    report.faults.verdict()
}

fn drain(args: &DrainArgs) -> Result<(), BenchError> {
    let target = &args.target;
    let report = drain::run(&drain::Plan {
        name_server: target.name_server.clone(),
        topic: target.topic.clone(),
        connections: usize::from(args.connections),
        batch: args.batch,
        broker_pid: target.broker_pid,
    })?;
    if target.json {
        json(&report)?;
        return report.faults.verdict();
    }
    println!(
        "drain: {} connections, {} messages a pull, {:.1} s",
        args.connections, args.batch, report.seconds
    );
    println!(
        "messages   {:>12.0}/s   ({} read, {:.1} MiB)",
        report.per_second,
        report.messages,
        report.bytes as f64 / 1_048_576.0
    );
    print_rest(&report.cost, &report.faults);
    report.faults.verdict()
}

fn end_to_end(args: &EndToEndArgs) -> Result<(), BenchError> {
    let target = &args.target;
    let report = end_to_end::run(&end_to_end::Plan {
        name_server: target.name_server.clone(),
        topic: target.topic.clone(),
        producers: usize::from(args.producers),
        consumers: usize::from(args.consumers),
        rate: f64::from(args.rate),
        size: args.length.size as usize,
        warm_up: Duration::from_secs(args.length.warm_up.into()),
        duration: Duration::from_secs(args.length.seconds.into()),
        broker_pid: target.broker_pid,
    })?;
    if target.json {
        json(&report)?;
        return report.faults.verdict();
    }
    println!(
        "end to end: {}/s, {} producers, {} consumers, {} bytes, {:.1} s",
        args.rate, args.producers, args.consumers, args.length.size, report.seconds
    );
    println!(
        "messages   {:>12.0}/s   ({} received)",
        report.per_second, report.messages
    );
    print_latency(report.latency_us);
    print_rest(&report.cost, &report.faults);
    report.faults.verdict()
}

fn print_latency([p50, p90, p99, p999, p9999, max]: [u64; 6]) {
    println!("latency us p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}  p99.99 {p9999}  max {max}");
}

fn print_rest(cost: &Cost, faults: &Faults) {
    if let Some(cpu) = cost.broker_cpu_us {
        println!("broker     {cpu:.1} CPU us per message");
    }
    if let Some(cpu) = cost.client_cpu_us {
        println!("client     {cpu:.1} CPU us per message");
    }
    if let (Some(anonymous), Some(file)) = (cost.broker_anonymous_bytes, cost.broker_file_bytes) {
        println!(
            "memory     {:.1} MiB anonymous, {:.1} MiB of mapped files",
            anonymous as f64 / 1_048_576.0,
            file as f64 / 1_048_576.0
        );
    }
    for (kind, number) in faults.iter() {
        println!("fault      {number} x {kind}");
    }
}
