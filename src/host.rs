//! What this host allows: limits that cost speed, each with the command that lifts it.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use saturnmq_net::probe::Engine;
use saturnmq_storage::trial::{self, Filesystem};
use serde::Serialize;

/// Open files wanted: connections, log files and queue files together.
const FILES_WANTED: u64 = 65_536;
/// Descriptors that connections leave to the store and its state files, at most.
const FILES_KEPT: u64 = 256;
/// Open files below which a broker does not start: a store alone takes some tens, and then no
/// client would be served.
pub const FILES_NEEDED: u64 = 128;
/// Locked memory wanted for registered buffers, in bytes.
const LOCKED_WANTED: u64 = 128 << 20;
/// Mappings wanted for queue and index files.
const MAPPINGS_WANTED: u64 = 65_530;

/// CPUs this process may run on, in order; at least one.
pub fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let all: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .collect();
    if all.is_empty() { vec![0] } else { all }
}

/// Raises the soft limit of open files to the hard one, and gives what it is then.
pub fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return hard;
    }
    soft
}

/// Connections get descriptors below this number. The kernel gives the lowest one that is free, so
/// the rest, a quarter of a low limit, stay for files: however many clients come, what was
/// acknowledged can be dispatched and read.
pub fn descriptors_for_connections() -> u64 {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    limit - (limit / 4).min(FILES_KEPT)
}

/// How much something about the host matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It costs speed, capacity or a promise.
    Limited,
    /// A broker does not start, or does not take messages.
    Bad,
}

/// One thing about the host: what the banner says of limits and `check` of everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What it is about, in a word.
    pub about: &'static str,
    /// How much it matters.
    pub verdict: Verdict,
    /// What was found, and what that costs.
    pub found: String,
    /// The command that lifts it, or what else to do.
    pub mend: Option<String>,
}

impl Line {
    /// Something that is as it should be.
    pub fn good(about: &'static str, found: String) -> Line {
        Line {
            about,
            verdict: Verdict::Good,
            found,
            mend: None,
        }
    }

    /// Something that is not.
    pub fn mend(about: &'static str, verdict: Verdict, found: String, mend: &str) -> Line {
        Line {
            about,
            verdict,
            found,
            mend: Some(mend.into()),
        }
    }
}

/// Kernel release as (major, minor), if it can be told.
pub fn kernel() -> Option<(u32, u32)> {
    parse_kernel(nix::sys::utsname::uname().ok()?.release().to_str()?)
}

fn parse_kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What was found out about the host, as far as it matters.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Open files allowed.
    pub files: u64,
    /// Locked memory allowed, in bytes; `None` without limit.
    pub locked: Option<u64>,
    /// `vm.max_map_count`.
    pub mappings: u64,
    /// Kernel version.
    pub kernel: Option<(u32, u32)>,
    /// Filesystem of the store; `None` if the system does not tell.
    pub filesystem: Option<Filesystem>,
}

impl Facts {
    /// Asks the host about itself and the filesystem of the store at `root`, which need not exist
    /// yet; raises the limit of open files on the way.
    pub fn gather(root: &Path) -> Self {
        let locked = getrlimit(Resource::RLIMIT_MEMLOCK).map(|(soft, _)| soft);
        // With CAP_IPC_LOCK the limit does not count.
        let unlimited = nix::unistd::geteuid().is_root();
        let mappings = fs::read_to_string("/proc/sys/vm/max_map_count");
        Self {
            files: raise_open_files(),
            locked: locked
                .ok()
                .filter(|n| *n != nix::libc::RLIM_INFINITY && !unlimited),
            mappings: mappings
                .ok()
                .and_then(|t| t.trim().parse().ok())
                .unwrap_or(MAPPINGS_WANTED),
            kernel: kernel(),
            filesystem: existing(root).and_then(|path| trial::filesystem(&path).ok()),
        }
    }

    /// Everything about them, good or not.
    pub fn lines(&self) -> Vec<Line> {
        [
            self.kernel_line(),
            self.filesystem_line(),
            self.files_line(),
            self.locked_line(),
            self.mappings_line(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn kernel_line(&self) -> Option<Line> {
        let (major, minor) = self.kernel?;
        let found = format!("kernel {major}.{minor}");
        Some(if (major, minor) < (6, 12) {
            Line::mend(
                "kernel",
                Verdict::Limited,
                format!("{found}: receive buffers are not shared incrementally"),
                "a kernel from 6.12 on",
            )
        } else {
            Line::good("kernel", found)
        })
    }

    fn filesystem_line(&self) -> Option<Line> {
        let Filesystem {
            kind,
            source,
            journal,
        } = self.filesystem.as_ref()?;
        let found = format!("the store is on {kind} ({source})");
        let limited = |why: &str, mend: &str| {
            let found = format!("{found}{why}");
            Line::mend("filesystem", Verdict::Limited, found, mend)
        };
        Some(match (kind.as_str(), journal) {
            ("ext4" | "xfs", Some(true)) => Line::good("filesystem", found),
            ("ext4", Some(false)) => limited(
                " without a journal: after a power cut names of new files may be missing",
                "tune2fs -O has_journal on the unmounted device",
            ),
            ("tmpfs" | "ramfs", _) => limited(
                ", in memory: nothing survives a restart of the host",
                "--data-dir on ext4 or XFS",
            ),
            _ => limited(
                ", for which nothing is promised after a power cut",
                "--data-dir on ext4 with a journal, or XFS",
            ),
        })
    }

    fn files_line(&self) -> Option<Line> {
        let files = self.files;
        let mend = "ulimit -n 1048576 (systemd: LimitNOFILE=1048576)";
        Some(if files < FILES_NEEDED {
            let found = format!("open files are limited to {files}: a broker needs {FILES_NEEDED}");
            Line::mend("open files", Verdict::Bad, found, mend)
        } else if files < FILES_WANTED {
            let found = format!("open files are limited to {files}: each connection takes one");
            Line::mend("open files", Verdict::Limited, found, mend)
        } else {
            Line::good("open files", format!("{files} open files"))
        })
    }

    fn locked_line(&self) -> Option<Line> {
        let Some(locked) = self.locked else {
            return Some(Line::good("locked memory", "no limit".into()));
        };
        let kib = locked >> 10;
        Some(if locked < LOCKED_WANTED {
            Line::mend(
                "locked memory",
                Verdict::Limited,
                format!(
                    "locked memory is limited to {kib} KiB: ring buffers may not be registered"
                ),
                "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)",
            )
        } else {
            Line::good("locked memory", format!("{kib} KiB"))
        })
    }

    fn mappings_line(&self) -> Option<Line> {
        let mappings = self.mappings;
        Some(if mappings < MAPPINGS_WANTED {
            Line::mend(
                "mappings",
                Verdict::Limited,
                format!("vm.max_map_count is {mappings}: queues are mapped and unmapped in turn"),
                "sysctl -w vm.max_map_count=262144",
            )
        } else {
            Line::good("mappings", format!("vm.max_map_count is {mappings}"))
        })
    }

    /// What is worth naming at a start.
    pub fn limits(&self) -> Vec<Line> {
        let mut lines = self.lines();
        lines.retain(|line| line.verdict != Verdict::Good);
        lines
    }
}

/// The path, or the nearest directory above it that exists.
pub fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors()
        .find(|path| path.is_dir())
        .map(Path::to_path_buf)
}

/// What stands in the way of a directory at `path`: itself or something above it that is there and
/// is no directory.
pub fn in_the_way(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors()
        .find(|path| path.exists())
        .filter(|path| !path.is_dir())
        .map(Path::to_path_buf)
}

/// The network engine, with the features of io_uring that are in use.
pub fn network(engine: &Engine) -> String {
    let Engine::Uring(features) = engine else {
        return engine.to_string();
    };
    let in_use = [
        (features.defer_taskrun, "deferred completions"),
        (
            features.coop_taskrun && !features.defer_taskrun,
            "cooperative completions",
        ),
        (features.multishot, "multishot receive"),
        (features.incremental, "incremental buffers"),
        (features.no_iowait, "quiet waits"),
        (features.quiet_sends, "quiet sends"),
    ];
    let in_use: Vec<&str> = in_use
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    if in_use.is_empty() {
        return "plain io_uring".into();
    }
    format!("io_uring with {}", in_use.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stands_in_the_way_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(in_the_way(&file).as_ref(), Some(&file));
        assert_eq!(in_the_way(&file.join("a/b")).as_ref(), Some(&file));
        assert_eq!(in_the_way(dir.path()), None);
        assert_eq!(in_the_way(&dir.path().join("a/b")), None);
    }

    #[test]
    fn few_open_files_are_bad_and_not_only_limited() {
        let facts = |files| Facts {
            files,
            locked: None,
            mappings: MAPPINGS_WANTED,
            kernel: None,
            filesystem: None,
        };
        let verdict = |files| facts(files).files_line().unwrap().verdict;
        assert_eq!(verdict(FILES_NEEDED - 1), Verdict::Bad);
        assert_eq!(verdict(FILES_NEEDED), Verdict::Limited);
        assert_eq!(verdict(FILES_WANTED), Verdict::Good);
    }

    #[test]
    fn there_is_a_cpu() {
        assert!(!cpus().is_empty());
    }

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(parse_kernel("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_kernel("5.15.0-91-generic"), Some((5, 15)));
        assert_eq!(parse_kernel("strange"), None);
    }

    fn filesystem(kind: &str, journal: Option<bool>) -> Option<Filesystem> {
        Some(Filesystem {
            kind: kind.into(),
            source: "/dev/x".into(),
            journal,
        })
    }

    #[test]
    fn every_limit_names_what_lifts_it() {
        let poor = Facts {
            files: 1024,
            locked: Some(64 << 10),
            mappings: 1000,
            kernel: Some((5, 15)),
            filesystem: filesystem("ext4", Some(false)),
        };
        let limits = poor.limits();
        assert_eq!(limits.len(), 5);
        assert!(limits.iter().all(|line| line.mend.is_some()));
        let rich = Facts {
            files: 1 << 20,
            locked: None,
            mappings: 262_144,
            kernel: Some((6, 18)),
            filesystem: filesystem("xfs", Some(true)),
        };
        assert_eq!(rich.limits(), vec![]);
        assert_eq!(rich.lines().len(), 5);
    }
}
