//! What this host allows: limits that cost speed, each with the command that lifts it.

use std::fs;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

/// Open files wanted: connections, log files and queue files together.
const FILES_WANTED: u64 = 65_536;
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

/// A limit of this host that costs speed or capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// What is limited and what that costs.
    pub what: String,
    /// The command that lifts it.
    pub lift: String,
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
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// Open files allowed.
    pub files: u64,
    /// Locked memory allowed, in bytes; `None` without limit.
    pub locked: Option<u64>,
    /// `vm.max_map_count`.
    pub mappings: u64,
    /// Kernel version.
    pub kernel: Option<(u32, u32)>,
}

impl Facts {
    /// Asks the host; raises the limit of open files on the way.
    pub fn gather() -> Self {
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
        }
    }

    /// The limits worth naming.
    pub fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut add = |what: String, lift: &str| {
            limits.push(Limit {
                what,
                lift: lift.into(),
            })
        };
        if self.files < FILES_WANTED {
            add(
                format!(
                    "open files are limited to {}: each connection takes one",
                    self.files
                ),
                "ulimit -n 1048576 (systemd: LimitNOFILE=1048576)",
            );
        }
        if let Some(locked) = self.locked.filter(|n| *n < LOCKED_WANTED) {
            add(
                format!(
                    "locked memory is limited to {} KiB: ring buffers may not be registered",
                    locked >> 10
                ),
                "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)",
            );
        }
        if self.mappings < MAPPINGS_WANTED {
            add(
                format!(
                    "vm.max_map_count is {}: queues are mapped and unmapped in turn",
                    self.mappings
                ),
                "sysctl -w vm.max_map_count=262144",
            );
        }
        if let Some((major, minor)) = self.kernel.filter(|v| *v < (6, 12)) {
            add(
                format!("kernel {major}.{minor}: receive buffers are not shared incrementally"),
                "a kernel from 6.12 on",
            );
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn every_limit_names_what_lifts_it() {
        let poor = Facts {
            files: 1024,
            locked: Some(64 << 10),
            mappings: 1000,
            kernel: Some((5, 15)),
        };
        let limits = poor.limits();
        assert_eq!(limits.len(), 4);
        assert!(limits.iter().all(|l| !l.lift.is_empty()));
        let rich = Facts {
            files: 1 << 20,
            locked: None,
            mappings: 262_144,
            kernel: Some((6, 18)),
        };
        assert_eq!(rich.limits(), vec![]);
    }
}
