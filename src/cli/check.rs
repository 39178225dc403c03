//! `saturnmq check`: tells whether this host is fit for a broker (docs/operations.md, Checking a
//! host).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::check::{self, Report};
use crate::config::{Config, Options};
use crate::host::Verdict;

/// Stars of the fullest row of the histogram.
const STARS: u64 = 40;

const EXAMPLES: &str = "\
Examples:
  saturnmq check
      this host, and the directory that `saturnmq serve` would use
  saturnmq check --data-dir /var/lib/saturnmq
      another directory: writes to unnamed files in it for two seconds
  saturnmq check -c broker.conf
      what that configuration needs: its directories, ports and limits
  saturnmq check --json

Exit code: 0 fit, though perhaps limited; 1 a broker would not start or take messages; 2 cannot
check.";

/// Arguments of `check`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Directory of the store [./saturnmq-data, or ~/store with -c].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Apache's broker.conf.
    #[arg(short = 'c', long = "conf", value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// Sets a key of broker.conf; may be given often.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Checks, prints, and gives the exit code.
pub fn run(args: &CheckArgs) -> ExitCode {
    let resolved = Config::resolve(&Options {
        conf: args.conf.clone(),
        data_dir: args.data_dir.clone(),
        set: args.set.clone(),
        ..Options::default()
    });
    let report = resolved
        .map_err(|error| error.to_string())
        .and_then(|resolved| check::run(&resolved));
    let report = match report {
        Ok(report) => report,
        Err(problem) => {
            crate::bench::tell(&format!("saturnmq: {problem}"));
            return ExitCode::from(2);
        }
    };
    let text = if args.json {
        json(&report)
    } else {
        text(&report)
    };
    if let Err(problem) = crate::bench::print(&text) {
        crate::bench::tell(&format!("saturnmq: {problem}"));
        return ExitCode::from(2);
    }
    match report.verdict() {
        Verdict::Bad => ExitCode::from(1),
        _ => ExitCode::SUCCESS,
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Limited => "limited",
        Verdict::Bad => "BAD",
    }
}

fn json(report: &Report) -> String {
    let value = serde_json::json!({
        "verdict": report.verdict(),
        "directory": report.directory,
        "lines": report.lines,
        "syncHistogramUs": report.sync_histogram,
    });
    format!("{value}\n")
}

fn text(report: &Report) -> String {
    let mut out = format!("directory      {}\n", report.directory.display());
    for line in &report.lines {
        out.push_str(&format!(
            "{:<14} {:<8} {}\n",
            line.about,
            word(line.verdict),
            line.found
        ));
        if let Some(mend) = &line.mend {
            out.push_str(&format!("{:<23} lift it with: {mend}\n", ""));
        }
        if line.about == "sync" {
            out.push_str(&histogram(report));
        }
    }
    out.push_str(&format!("verdict        {}\n", word(report.verdict())));
    out
}

fn histogram(report: &Report) -> String {
    let rows = &report.sync_histogram;
    let most = rows.iter().map(|(.., count)| *count).max().unwrap_or(1);
    let mut out = String::new();
    for (from, to, count) in rows {
        let stars = "*".repeat((count * STARS).div_ceil(most) as usize);
        out.push_str(&format!(
            "{:<23} {from:>8} - {to:>8} us {count:>8} {stars}\n",
            ""
        ));
    }
    out
}
