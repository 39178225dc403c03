//! What `saturnmq check` finds out about a host: everything a start asks, and what a start has no
//! time to try.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use saturnmq_net::probe::{self, Engine};
use saturnmq_storage::config::RetentionConfig;
use saturnmq_storage::disk::probe::DiskPlan;
use saturnmq_storage::retention::DiskSpace;
use saturnmq_storage::{format::checkpoint::Checkpoint, lock, regular, trial};
use serde::Serialize;

use crate::config::{Config, Resolved};
use crate::control::Sockets;
use crate::host::{self, Facts, Line, Verdict};

/// How long the latency of syncs is measured.
const MEASURE: Duration = Duration::from_secs(2);
/// A sync that takes longer at the 99th percentile holds up senders, in microseconds.
const SLOW_SYNC_US: u64 = 20_000;

/// Latencies above this count as this, in microseconds.
const LONGEST_US: u64 = 60_000_000;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The directory that was tried: the store's, or the nearest one above it.
    pub directory: PathBuf,
    /// Line by line.
    pub lines: Vec<Line>,
    /// Latencies of durable writes in microseconds: from, to (excluded), how many.
    pub sync_histogram: Vec<(u64, u64, u64)>,
}

impl Report {
    /// The worst of the verdicts.
    pub fn verdict(&self) -> Verdict {
        let verdicts = self.lines.iter().map(|line| line.verdict);
        verdicts
            .max_by_key(|verdict| *verdict as u8)
            .unwrap_or(Verdict::Good)
    }
}

/// Tries everything, for about two seconds.
///
/// # Errors
/// A sentence: the directory cannot be tried.
pub fn run(resolved: &Resolved) -> Result<Report, String> {
    let config = &resolved.config;
    let root = config.root();
    let log = config.store.commit_log_path();
    for path in [root, &log] {
        if let Some(file) = host::in_the_way(path) {
            let (path, file) = (path.display(), file.display());
            return Err(format!("{path} cannot be a directory: {file} is none"));
        }
    }
    let directory = host::existing(&log)
        .ok_or_else(|| format!("{} and nothing above it exists", log.display()))?;
    let told = resolved.remarks.sentences.iter();
    let mut lines: Vec<_> = told.map(|sentence| odd_key(sentence)).collect();
    lines.extend(Facts::gather(root).lines());
    lines.push(network()?);
    let mut sync_histogram = Vec::new();
    match trial::plan(&directory, config.store.commit_log_file_size) {
        Ok(plan) => {
            lines.push(disk(&plan));
            lines.push(space(&directory));
            let (line, histogram) = syncs(&directory, &plan);
            lines.push(line);
            sync_histogram = histogram;
        }
        Err(error) => lines.push(Line::mend(
            "disk",
            Verdict::Bad,
            error.to_string(),
            "make the directory writable for this user, or choose another one with --data-dir",
        )),
    }
    lines.push(room(&directory, config));
    lines.extend(clock(root));
    lines.push(ports(config));
    Ok(Report {
        directory,
        lines,
        sync_histogram,
    })
}

fn odd_key(sentence: &str) -> Line {
    let mend = "correct the line, or take it out";
    Line::mend("configuration", Verdict::Limited, sentence.to_owned(), mend)
}

fn network() -> Result<Line, String> {
    let engine = probe::choose().map_err(|error| error.to_string())?;
    let found = host::network(&engine);
    Ok(match &engine {
        Engine::Uring(_) => Line::good("network", found),
        Engine::Epoll(why) => {
            let mend = if why.contains("io_uring_disabled") {
                "sysctl -w kernel.io_uring_disabled=0"
            } else if why.contains("seccomp") {
                "podman run --security-opt seccomp=unconfined"
            } else if why.contains("SATURNMQ_IO") {
                "unset SATURNMQ_IO"
            } else {
                "a kernel from 6.12 on with io_uring"
            };
            Line::mend("network", Verdict::Limited, found, mend)
        }
    })
}

fn disk(plan: &DiskPlan) -> Line {
    let found = format!("the log is written by {}", plan.summary());
    if plan.notes.is_empty() {
        return Line::good("disk", found);
    }
    let found = format!("{found}: {}", plan.notes.join("; "));
    let mend = if plan.direct {
        "see the line on the network"
    } else {
        "--data-dir on ext4 or XFS, and mappedFileSizeCommitLog a multiple of the block size"
    };
    Line::mend("disk", Verdict::Limited, found, mend)
}

fn space(directory: &Path) -> Line {
    match trial::space(directory) {
        Ok(space) if space.allocates => {
            let how = if space.writes_zeroes {
                "without sending the zeros (write-zeroes)"
            } else {
                "by writing zeros"
            };
            Line::good(
                "log files",
                format!("allocated ahead by fallocate and zeroed {how}"),
            )
        }
        Ok(_) => Line::mend(
            "log files",
            Verdict::Limited,
            "this filesystem does not allocate ahead: a full disk shows only while writing".into(),
            "--data-dir on ext4 or XFS",
        ),
        Err(error) => Line::mend(
            "log files",
            Verdict::Bad,
            format!("no file can be made in {}: {error}", directory.display()),
            "give the directory to the broker's user, or make room",
        ),
    }
}

fn syncs(directory: &Path, plan: &DiskPlan) -> (Line, Vec<(u64, u64, u64)>) {
    let measured = trial::sync_latencies(directory, plan, MEASURE);
    let took = match measured {
        Ok(took) if !took.is_empty() => took,
        other => {
            let why = other
                .err()
                .map_or("nothing was written".into(), |error| error.to_string());
            let found = format!("a durable write fails: {why}");
            let mend = "look at the disk and the kernel log";
            return (Line::mend("sync", Verdict::Bad, found, mend), Vec::new());
        }
    };
    let mut buckets: Vec<(u64, u64, u64)> = Vec::new();
    // Fixed bounds, so that making it cannot fail.
    let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, LONGEST_US, 3) else {
        return (Line::good("sync", "not measured".into()), buckets);
    };
    for time in took {
        histogram.saturating_record(time.as_micros().try_into().unwrap_or(u64::MAX));
    }
    let mut from = 0;
    for to in (0..32).map(|power| 1_u64 << power) {
        let count = histogram.count_between(from, to - 1);
        if count > 0 && from < to {
            buckets.push((from, to, count));
        }
        from = to;
    }
    let at = |quantile| histogram.value_at_quantile(quantile);
    let p99 = at(0.99);
    let found = format!(
        "{} durable writes of {} bytes: p50 {} us, p99 {p99} us, p99.9 {} us, longest {} us",
        histogram.len(),
        plan.block.max(4096),
        at(0.5),
        at(0.999),
        histogram.max()
    );
    let line = if p99 > SLOW_SYNC_US {
        let mend = "a disk with protection against power loss, or flushDiskType=ASYNC_FLUSH";
        Line::mend("sync", Verdict::Limited, found, mend)
    } else {
        Line::good("sync", found)
    };
    (line, buckets)
}

/// Room on the disk, by the limits of retention.
fn room(directory: &Path, config: &Config) -> Line {
    let Ok(space) = DiskSpace::of(directory) else {
        let found = "the system does not tell how full the disk is".into();
        return Line::mend("room", Verdict::Limited, found, "look at the mount");
    };
    let retention: RetentionConfig = config.store.retention.clamped();
    let percent = space.percent();
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let found = format!("{:.1} GiB free, {percent} % used", gib(space.free));
    let mend = "make room, shorten fileReservedTime, or move the store with --data-dir";
    let file = config.store.commit_log_file_size;
    if percent > retention.warning_percent {
        let limit = retention.warning_percent;
        let found =
            format!("{found}: above {limit} % (diskSpaceWarningLevelRatio) sends are refused");
        Line::mend("room", Verdict::Bad, found, mend)
    } else if space.free < 2 * file {
        let found = format!("{found}: no room for two log files of {:.1} GiB", gib(file));
        Line::mend("room", Verdict::Bad, found, mend)
    } else if percent > retention.clean_forcibly_percent {
        let limit = retention.clean_forcibly_percent;
        let found = format!(
            "{found}: above {limit} % (diskSpaceCleanForciblyRatio) log files go before their time"
        );
        Line::mend("room", Verdict::Limited, found, mend)
    } else if percent > retention.disk_max_used_percent {
        let limit = retention.disk_max_used_percent;
        let found = format!(
            "{found}: above {limit} % (diskMaxUsedSpaceRatio) expired files go at any hour"
        );
        Line::mend("room", Verdict::Limited, found, mend)
    } else {
        Line::good("room", found)
    }
}

/// The clock's source, and whether it is behind what the store has seen.
fn clock(root: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if let Ok(source) = std::fs::read_to_string(source) {
        let source = source.trim();
        let fast = [
            "tsc",
            "kvm-clock",
            "arch_sys_counter",
            "hyperv_clocksource_tsc_page",
        ];
        lines.push(if fast.contains(&source) {
            Line::good("clock", format!("read without a system call ({source})"))
        } else {
            let found = format!("clock source {source}: each look at the time is a system call");
            let mend =
                "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource";
            Line::mend("clock", Verdict::Limited, found, mend)
        });
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_millis() as i64);
    let stored = regular::read(&root.join("checkpoint"));
    let newest = stored.map_or(0, |bytes| Checkpoint::decode(&bytes).log_timestamp);
    if newest > now + 1000 {
        let found = format!(
            "the clock is {} s behind the newest message",
            (newest - now) / 1000
        );
        let mend = "set the clock (chronyc makestep); delays and retention go by it";
        lines.push(Line::mend("clock", Verdict::Limited, found, mend));
    }
    lines
}

fn ports(config: &Config) -> Line {
    match Sockets::bind(config) {
        Ok(sockets) => {
            let ports = sockets.ports();
            let list = [
                Some(ports.broker),
                ports.fast,
                ports.name_server,
                ports.http,
            ];
            let list: Vec<_> = list.into_iter().flatten().map(|p| p.to_string()).collect();
            Line::good(
                "ports",
                format!("{} on {} are free", list.join(", "), config.bind),
            )
        }
        Err(error) => match lock::holder(config.root()) {
            Ok(Some(pid)) => Line::good(
                "ports",
                format!("taken by the broker that has this store open, process {pid}"),
            ),
            _ => Line::mend(
                "ports",
                Verdict::Bad,
                error.to_string(),
                "stop what listens there (ss -ltnp shows it), or set the key to another port",
            ),
        },
    }
}
