//! `saturnmq bench`: load on any RocketMQ-protocol broker.

mod examples;
mod options;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::bench::compare::{Base, Wanted};
use crate::bench::end_to_end::Readers;
use crate::bench::environment::{Environment, SEND_QUEUE};
use crate::bench::message::Kind;
use crate::bench::payload::STAMP_BYTES;
use crate::bench::plan::{Pace, Plan};
use crate::bench::report::Report;
use crate::bench::written::Written;
use crate::bench::{
    self, BenchError, catch_up, compare, delay, drain, end_to_end, idle, interrupt, knee, page,
    produce, topics,
};
use options::{RunArgs, SendingArgs};

/// Arguments of `bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = examples::ALL)]
pub struct BenchArgs {
    /// What kind of load.
    #[command(subcommand)]
    pub load: Load,
}

/// Kinds of load.
#[derive(Debug, Clone, Subcommand)]
pub enum Load {
    /// Send messages and measure until SEND_OK.
    Produce(SearchArgs),
    /// Read what topics hold as fast as it comes.
    Drain(DrainArgs),
    /// Send and measure until a consumer that waits has the message.
    #[command(after_help = examples::END_TO_END)]
    EndToEnd(EndToEndArgs),
    /// The same with several consumer groups, each of which gets every message.
    #[command(after_help = examples::FAN_OUT)]
    FanOut(FanOutArgs),
    /// Send over 1, 10, 100 … topics, up to --topics; --closed finds the rate of each.
    #[command(after_help = examples::TOPICS)]
    Topics(ProduceArgs),
    /// Send beside many idle connections.
    #[command(after_help = examples::CONNECTIONS)]
    Connections(ConnectionsArgs),
    /// Send alone, then while readers drain what the topics hold.
    #[command(after_help = examples::CATCH_UP)]
    CatchUp(CatchUpArgs),
    /// Send transactions and measure until a consumer has what was committed.
    #[command(after_help = examples::TRANSACTION)]
    Transaction(TransactionArgs),
    /// Send delayed messages and measure how late they are delivered.
    #[command(after_help = examples::DELAY)]
    Delay(DelayArgs),
    /// Compare the reports in two or more files.
    #[command(after_help = examples::COMPARE)]
    Compare(CompareArgs),
}

/// Arguments of every load that only sends.
#[derive(Debug, Clone, Args)]
pub struct ProduceArgs {
    #[command(flatten)]
    sending: SendingArgs,
    /// Seconds in which the messages are read back and checked after the run; 0: only answers are
    /// checked.
    #[arg(
        long,
        value_name = "S", allow_negative_numbers = true,
        default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(0..=86_400)
    )]
    read_back: u32,
}

/// Arguments of `bench produce`.
#[derive(Debug, Clone, Args)]
#[command(after_help = examples::PRODUCE)]
pub struct SearchArgs {
    #[command(flatten)]
    load: ProduceArgs,
    #[command(flatten)]
    knee: KneeArgs,
}

/// Whether the highest rate is looked for.
#[derive(Debug, Clone, Args)]
pub struct KneeArgs {
    /// Look for the highest rate whose p99 is within this time, such as 10ms, from --rate on; each
    /// rate is held for the time of a run.
    #[arg(long, value_name = "TIME", value_parser = time)]
    find_knee: Option<Duration>,
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|error| format!("time \"{text}\": {error}"))?;
    match text.strip_prefix(digits) {
        Some("us") => Ok(Duration::from_micros(number)),
        Some("ms") => Ok(Duration::from_millis(number)),
        Some("s") => Ok(Duration::from_secs(number)),
        _ => Err(format!("time \"{text}\": its unit must be us, ms or s")),
    }
}

/// Arguments of `bench drain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = examples::DRAIN)]
pub struct DrainArgs {
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    read: PullArgs,
}

/// How messages are read.
#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// Most messages of one pull.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 32,
        value_parser = clap::value_parser!(i32).range(1..=1024)
    )]
    pull: i32,
}

/// Arguments of `bench end-to-end`.
#[derive(Debug, Clone, Args)]
pub struct EndToEndArgs {
    #[command(flatten)]
    sending: SendingArgs,
    #[command(flatten)]
    read: PullArgs,
    #[command(flatten)]
    knee: KneeArgs,
    /// Consuming connections of a group; queues are dealt to them in turn.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    consumers: u16,
}

/// Arguments of `bench fan-out`.
#[derive(Debug, Clone, Args)]
pub struct FanOutArgs {
    #[command(flatten)]
    load: EndToEndArgs,
    /// Consumer groups.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    groups: u16,
}

/// Arguments of `bench connections`.
#[derive(Debug, Clone, Args)]
pub struct ConnectionsArgs {
    #[command(flatten)]
    load: ProduceArgs,
    /// Idle connections.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=50_000)
    )]
    idle: u32,
}

/// Arguments of `bench catch-up`.
#[derive(Debug, Clone, Args)]
pub struct CatchUpArgs {
    #[command(flatten)]
    load: ProduceArgs,
    #[command(flatten)]
    read: PullArgs,
    /// Reading connections; queues are dealt to them in turn.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    readers: u16,
    /// Seconds after which reading is given up.
    #[arg(
        long,
        value_name = "S", allow_negative_numbers = true,
        default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..=86_400)
    )]
    longest: u32,
}

/// Arguments of `bench transaction`.
#[derive(Debug, Clone, Args)]
pub struct TransactionArgs {
    #[command(flatten)]
    load: EndToEndArgs,
    /// Messages of a hundred that are rolled back.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    rolled_back: u8,
}

/// Arguments of `bench delay`.
#[derive(Debug, Clone, Args)]
pub struct DelayArgs {
    #[command(flatten)]
    load: EndToEndArgs,
    /// Delay level of the broker.
    #[arg(
        long,
        value_name = "N", allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..)
    )]
    level: u8,
}

/// Arguments of `bench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Files with what --json printed, one or more runs each; ratios are to the first, run by run.
    #[arg(required = true, num_args = 1.., value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Ratios of the last file to the better of the others, in each number and run.
    #[arg(long)]
    best: bool,
    /// What a number of the last file should be: NAME>=NUMBER or NAME<=NUMBER; with an x behind the
    /// number, its ratio. Such as "messages/s>=18x".
    #[arg(long, value_name = "TARGET")]
    target: Vec<Wanted>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write an HTML page with plots.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs the load and prints the report.
///
/// # Errors
/// [`BenchError`] when nothing could be measured or the broker did something wrong.
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    match &args.load {
        Load::Produce(args) => measure(&args.load.sending.run, args.load.plan(), |plan| {
            args.knee.search(plan, produce::run)
        }),
        Load::Drain(args) => measure(&args.run, args.run.plan(4), |plan| {
            drain::run(plan, args.read.pull)
        }),
        Load::EndToEnd(args) => args.measure("end-to-end", Kind::Plain, 1),
        Load::FanOut(args) => args.load.measure("fan-out", Kind::Plain, args.groups),
        Load::Topics(args) => measure(&args.sending.run, args.plan(), topics::run),
        Load::Connections(args) => measure(&args.load.sending.run, args.load.plan(), |plan| {
            idle::run(plan, args.idle as usize)
        }),
        Load::CatchUp(args) => {
            let longest = Duration::from_secs(args.longest.into());
            measure(&args.load.sending.run, args.load.plan(), |plan| {
                catch_up::run(plan, args.readers.into(), args.read.pull, longest)
            })
        }
        Load::Transaction(args) => {
            let rolled_back = args.rolled_back;
            let kind = Kind::Transaction { rolled_back };
            args.load.measure("transaction", kind, 1)
        }
        Load::Delay(args) => {
            let kind = Kind::Delay { level: args.level };
            args.load.measure("delay", kind, 1)
        }
        Load::Compare(args) => compared(args),
    }
}

impl ProduceArgs {
    fn plan(&self) -> Plan {
        let mut plan = self.sending.plan(16);
        plan.read_back = Duration::from_secs(self.read_back.into());
        plan
    }
}

impl EndToEndArgs {
    fn measure(&self, load: &str, kind: Kind, groups: u16) -> Result<(), BenchError> {
        let run = &self.sending.run;
        let mut plan = self.sending.plan(4);
        plan.shape.kind = kind;
        check(&plan)?;
        let delay = match kind {
            Kind::Delay { level } => delay::of_level(&run.address(&plan)?, level, plan.timeout)?,
            _ => Duration::ZERO,
        };
        let readers = Readers {
            groups: groups.into(),
            consumers: self.consumers.into(),
            pull: self.read.pull,
            delay,
        };
        measure(run, plan, |plan| {
            let run = |plan: &Plan| end_to_end::run(load, plan, &readers);
            self.knee.search(plan, run)
        })
    }
}

impl KneeArgs {
    /// Runs a load once, or as often as the search for its knee takes.
    fn search(
        &self,
        plan: &Plan,
        mut load: impl FnMut(&Plan) -> Result<Report, BenchError>,
    ) -> Result<Report, BenchError> {
        match (self.find_knee, plan.pace) {
            (None, _) => load(plan),
            (Some(bound), Pace::Open { rate }) => knee::find(plan, rate, bound, load),
            (Some(_), Pace::Closed { .. }) => Err(BenchError::System(
                "--find-knee looks for a rate: --closed and --in-flight have none".to_owned(),
            )),
        }
    }
}

fn measure(
    args: &RunArgs,
    mut plan: Plan,
    run: impl FnOnce(&Plan) -> Result<Report, BenchError>,
) -> Result<(), BenchError> {
    args.check()?;
    interrupt::attend();
    args.prepare_process()?;
    let address = args.address(&plan)?;
    let environment = args.environment(&plan, &address);
    plan.watch.says_written = Written::ask(&address).map(|_| address);
    if plan.watch.says_written.is_none() {
        check_queue(&plan, &environment)?;
    }
    let mut report = run(&plan)?;
    report.environment = environment;
    report.failed = report.verdict().is_err();
    if let Some(path) = &args.report {
        write(path, &page::of_run(&report)?)?;
    }
    args.tell(&report)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text)
        .map_err(|error| BenchError::System(format!("{}: {error}", path.display())))
}

/// Refuses more sends in flight than Apache's queue of sends takes: it answers the others with an
/// error at once.
fn check_queue(plan: &Plan, environment: &Environment) -> Result<(), BenchError> {
    let capacity = environment.get(SEND_QUEUE).and_then(|n| n.parse().ok());
    let (Pace::Closed { in_flight }, Some(capacity)) = (plan.pace, capacity) else {
        return Ok(());
    };
    let all: usize = plan.connections * in_flight;
    if all <= capacity {
        return Ok(());
    }
    Err(BenchError::System(format!(
        "--connections {} times --in-flight {in_flight} are {all} sends at a time, and the broker \
         takes {capacity} ({SEND_QUEUE})",
        plan.connections
    )))
}

/// What loads with consumers cannot do.
fn check(plan: &Plan) -> Result<(), BenchError> {
    let (shape, no) = (&plan.shape, |text: String| Err(BenchError::System(text)));
    if (shape.sizes.smallest() as usize) < STAMP_BYTES {
        return no(format!(
            "--size {}: this load looks for each message, which needs {STAMP_BYTES} bytes",
            shape.sizes
        ));
    }
    if shape.batch > 1 && shape.kind != Kind::Plain {
        return no(format!(
            "--batch {}: transactions and delayed messages cannot be sent in batches",
            shape.batch
        ));
    }
    Ok(())
}

fn compared(args: &CompareArgs) -> Result<(), BenchError> {
    let files = compare::read_all(&args.files)?;
    let base = if args.best { Base::Best } else { Base::First };
    let rows = compare::rows(&files, base, &args.target)?;
    let table = compare::table(&files, &rows, base);
    if args.json {
        let text = serde_json::to_string(&rows);
        let text = text.map_err(|error| BenchError::System(error.to_string()))?;
        bench::print(&format!("{text}\n"))?;
    } else {
        bench::print(&compare::text(&table))?;
    }
    for doubt in compare::doubts(&files) {
        bench::tell(&format!("warning: {doubt}"));
    }
    match &args.report {
        Some(path) => write(path, &compare::page(&files, &table)?),
        None => Ok(()),
    }
}
