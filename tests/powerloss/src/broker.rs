//! The broker under test: the real program.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Longest start.
const START: Duration = Duration::from_secs(60);

/// What to start, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub program: PathBuf,
    /// Its store.
    pub store: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
    /// `KEY=VALUE` settings.
    pub settings: Vec<String>,
}

/// A running broker; dropped, it is killed.
pub struct Broker {
    child: Child,
    /// Port of the broker on 127.0.0.1.
    pub port: u16,
}

impl Broker {
    /// Starts it and waits until it is ready.
    pub fn start(plan: &Plan) -> Result<Broker> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&plan.log)
            .context("cannot open the broker's log")?;
        let begin = output.metadata()?.len();
        let mut command = Command::new(&plan.program);
        command
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--name-server-port",
                "0",
            ])
            .arg("--data-dir")
            .arg(&plan.store);
        for setting in &plan.settings {
            command.args(["--set", setting]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", plan.program.display()))?;
        let mut broker = Broker { child, port: 0 };
        let deadline = Instant::now() + START;
        loop {
            let said = said_since(&plan.log, begin)?;
            if let Some(port) = port_in(&said) {
                broker.port = port;
                return Ok(broker);
            }
            if broker.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("the broker did not start:\n{}", last_lines(&said, 30));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it as the power does, and waits until it is gone. False: it had ended before.
    pub fn kill(mut self) -> bool {
        let alive = !self.has_ended();
        self.end();
        alive
    }

    fn end(&mut self) {
        // It may have ended already; the wait below collects it either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a broker wrote to its log from that position on.
pub fn said_since(log: &Path, begin: u64) -> Result<String> {
    let bytes = fs::read(log).context("cannot read the broker's log")?;
    let from = usize::try_from(begin).unwrap_or(usize::MAX);
    Ok(String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned())
}

/// Bytes of a log that may not exist yet.
pub fn length(log: &Path) -> u64 {
    File::open(log)
        .and_then(|file| file.metadata())
        .map_or(0, |metadata| metadata.len())
}

/// The last lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn port_in(report: &str) -> Option<u16> {
    if !report.lines().any(|line| line.starts_with("  ready")) {
        return None;
    }
    let line = report.lines().find(|line| line.starts_with("  broker "))?;
    let address = line.split_ascii_whitespace().nth(1)?;
    address.rsplit(':').next()?.parse().ok()
}
