//! Cuts the power of a broker's disk under load and checks what clients were told.
//!
//! The disk is a FUSE filesystem in this process: it keeps what was not synced in memory and
//! forgets any part of it when the power is cut. The broker is the real program.

mod broker;
mod check;
mod content;
mod cut;
mod disk;
mod filesystem;
mod late_check;
mod later;
mod ledger;
mod life;
mod load;
mod message;
mod mount;
mod plan;
mod power;
mod probe;
mod selftest;
mod table;
mod unnamed;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use life::{Outcome, Store};
use plan::{BLOWS, LIFE};

/// Cuts the power of a broker's disk under load and checks what was acknowledged.
#[derive(Parser)]
struct Options {
    /// Cuts in all.
    #[arg(default_value_t = 20)]
    cuts: u32,
    /// The broker.
    #[arg(long, default_value_os_t = default_broker())]
    broker: PathBuf,
    /// Chooses the moments and what is lost; the same number tries the same again.
    #[arg(long)]
    seed: Option<u64>,
    /// Where the disk is mounted and logs are kept; a directory of its own is made below.
    #[arg(long, default_value = "/tmp")]
    work: PathBuf,
    /// Deals only blows whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Keeps, in this directory, the store as the last cut left it and the broker's log.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Ends at the first thing that is wrong.
    #[arg(long)]
    stop: bool,
    /// Writes a page of a file through a mapping, for the disk's own test.
    #[arg(long, hide = true)]
    map: Option<PathBuf>,
    /// And syncs it.
    #[arg(long, hide = true)]
    msync: bool,
}

fn default_broker() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Path::new(&target).join("release/saturnmq")
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("powerloss: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    if let Some(path) = &options.map {
        selftest::store_through_mapping(path, options.msync)?;
        return Ok(true);
    }
    let broker = std::path::absolute(&options.broker)?;
    ensure!(broker.exists(), "there is no {}", broker.display());
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{} cuts, seed {seed}", options.cuts);
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    let blows: Vec<_> = BLOWS.iter().filter(|blow| wanted(blow.name)).collect();
    ensure!(!blows.is_empty(), "no blow has such a name");
    let work = tempfile::Builder::new()
        .prefix("powerloss-")
        .tempdir_in(&options.work)
        .context("cannot make a directory to mount on")?;
    let found = selftest::run(work.path()).context("the disk's own test")?;
    println!("{found}");
    notices_lies(&work.path().join("lies"), options, &broker, seed)?;
    let started = Instant::now();
    let mut outcomes = Vec::new();
    for number in 0..options.cuts.div_ceil(LIFE) {
        if options.stop
            && outcomes
                .iter()
                .any(|outcome: &Outcome| !outcome.wrong.is_empty())
        {
            break;
        }
        let first = number * LIFE;
        let count = LIFE.min(options.cuts - first);
        let dealt = (first..first + count).map(|index| blows[index as usize % blows.len()]);
        let work = tempfile::Builder::new()
            .prefix("powerloss-")
            .tempdir_in(&options.work)
            .context("cannot make a directory to mount on")?;
        let lived = live(
            work.path(),
            options,
            &broker,
            number,
            seed,
            dealt,
            &mut outcomes,
        )
        .with_context(|| format!("in the life of store {number}"));
        if let Err(error) = lived {
            let wrong = vec![format!("{error:#}")];
            outcomes.push(Outcome {
                name: "a life that ended early",
                wrong,
                ..Outcome::default()
            });
        }
    }
    Ok(table::report(&outcomes, started.elapsed()))
}

/// A test of the test: on a disk that answers syncs of the log and makes nothing durable, what
/// was acknowledged is lost, and that must be noticed.
fn notices_lies(work: &Path, options: &Options, broker: &Path, seed: u64) -> Result<()> {
    if options.only.is_some() {
        return Ok(());
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut store = Store::new(work, broker, plan::life(0, &mut random), seed)?;
    store.quiet = true;
    store.let_disk_lie();
    let outcome = store.live_through(&BLOWS[0])?;
    ensure!(
        !outcome.wrong.is_empty(),
        "a disk that lied about syncs was not noticed"
    );
    println!(
        "a disk that lies about syncs is noticed: {} messages missed",
        outcome.wrong.len()
    );
    Ok(())
}

fn live<'b>(
    work: &Path,
    options: &Options,
    broker: &Path,
    number: u32,
    seed: u64,
    blows: impl Iterator<Item = &'b plan::Blow>,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let seed = seed.wrapping_add(u64::from(number) << 32);
    let mut random = fastrand::Rng::with_seed(seed);
    let life = plan::life(number, &mut random);
    let mut store = Store::new(work, broker, life, seed)?;
    store.keep = options.keep.clone();
    for blow in blows {
        let outcome = store.live_through(blow)?;
        table::line(outcomes.len() + 1, &outcome);
        let wrong = !outcome.wrong.is_empty();
        outcomes.push(outcome);
        if wrong && options.stop {
            return Ok(());
        }
    }
    let missing = store.settle()?;
    if let Some(last) = outcomes.last_mut() {
        last.wrong.extend(missing);
    }
    Ok(())
}
