//! The command line: one binary, one subcommand per use.

pub mod admin;
pub mod bench;
pub mod check;
pub mod inspect;
pub mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  saturnmq serve
      a broker and its name server on this host
  saturnmq admin send Hello --body hi
  saturnmq admin consume Hello --from earliest --exit
  saturnmq bench produce --rate 20000
  saturnmq check
  saturnmq inspect saturnmq-data --verify";

/// A RocketMQ-compatible message broker for one Linux host.
#[derive(Debug, Parser)]
#[command(
    name = "saturnmq",
    version,
    about,
    propagate_version = true,
    after_help = EXAMPLES
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the broker with its name server.
    Serve(serve::ServeArgs),
    /// Manage topics, groups and messages of a running broker.
    Admin(admin::AdminArgs),
    /// Put load on a broker and measure it.
    Bench(bench::BenchArgs),
    /// Tell whether this host is fit for a broker, and how to mend what is not.
    Check(check::CheckArgs),
    /// Look at a store on disk: what it holds, and whether it is damaged.
    Inspect(inspect::InspectArgs),
}

/// Parses the command line, runs it, and gives the exit code. Errors are one sentence on stderr.
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => {
            let outcome = serve::run(&args);
            let problem = outcome.as_ref().err().map(shown);
            crate::log::end_with(problem.as_deref());
            match outcome {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Command::Admin(args) => finish(admin::run(&args)),
        Command::Bench(args) => finish(bench::run(&args)),
        Command::Check(args) => check::run(&args),
        Command::Inspect(args) => inspect::run(&args),
    }
}

fn finish<E: std::fmt::Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::bench::tell(&shown(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error as it is shown: it may hold what a server said.
fn shown(error: &impl std::fmt::Display) -> String {
    let text = crate::admin::printable(&error.to_string());
    format!("saturnmq: {text}")
}
