//! `saturnmq bench`: load on any RocketMQ-protocol broker.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::bench::produce::{self, BenchError, Plan, Report};

const EXAMPLES: &str = "\
Examples:
  saturnmq bench produce --connections 16 --in-flight 8 --seconds 10
      1 KiB messages to the broker behind 127.0.0.1:9876
  saturnmq bench produce --size 4096 --topics 100 --json
      over 100 topics, for scripts
  saturnmq bench produce --broker-pid $(pidof saturnmq)
      with the broker's CPU time and memory";

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
    /// Send messages and measure until SEND_OK, with a fixed number in flight (closed loop).
    Produce(ProduceArgs),
}

/// Arguments of `bench produce`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProduceArgs {
    /// Name server.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9876")]
    pub name_server: String,
    /// Topic; created by the broker if it may. With --topics N: its name's beginning.
    #[arg(long, default_value = "saturnmq_bench")]
    pub topic: String,
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
    /// Sends in flight per connection.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub in_flight: u16,
    /// Body bytes of a message.
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
    /// Broker process on this host whose CPU time and memory are reported.
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the load and prints the report.
///
/// # Errors
/// [`BenchError`] as [`produce::run`].
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    let Load::Produce(args) = &args.load;
    let topics = if args.topics == 1 {
        vec![args.topic.clone()]
    } else {
        (0..args.topics)
            .map(|index| format!("{}_{index}", args.topic))
            .collect()
    };
    let report = produce::run(&Plan {
        name_server: args.name_server.clone(),
        topics,
        connections: usize::from(args.connections),
        in_flight: usize::from(args.in_flight),
        size: args.size as usize,
        warm_up: Duration::from_secs(args.warm_up.into()),
        duration: Duration::from_secs(args.seconds.into()),
        broker_pid: args.broker_pid,
    })?;
    if args.json {
        let text = serde_json::to_string(&report)
            .map_err(|error| BenchError::System(error.to_string()))?;
        println!("{text}");
    } else {
        print_report(args, &report);
    }
    Ok(())
}

fn print_report(args: &ProduceArgs, report: &Report) {
    println!(
        "closed loop: {} connections x {} in flight, {} bytes, {:.1} s",
        args.connections, args.in_flight, args.size, report.seconds
    );
    println!(
        "messages   {:>12.0}/s   ({} sent, {} refused)",
        report.per_second, report.messages, report.refused
    );
    let [p50, p90, p99, p999, p9999, max] = report.latency_us;
    println!("latency us p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}  p99.99 {p9999}  max {max}");
    if let Some(cpu) = report.broker_cpu_us {
        println!("broker     {cpu:.1} CPU us per message");
    }
    if let (Some(anonymous), Some(file)) = (report.broker_anonymous_bytes, report.broker_file_bytes)
    {
        println!(
            "memory     {:.1} MiB anonymous, {:.1} MiB of mapped files",
            anonymous as f64 / 1_048_576.0,
            file as f64 / 1_048_576.0
        );
    }
}
