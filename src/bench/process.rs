//! What a process on this host used: CPU time, memory, writes and context switches, from `/proc`.

use std::fs;

use serde::{Deserialize, Serialize};

/// What a process used up to one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system CPU time, in microseconds.
    pub cpu_us: u64,
    /// Its memory.
    pub memory: Memory,
    /// Bytes it caused to be written to storage; `None` where the kernel does not say.
    pub written: Option<u64>,
    /// Context switches of its present threads, voluntary and involuntary ones.
    pub switches: [u64; 2],
}

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous memory: what the process itself holds.
    pub anonymous: u64,
    /// Pages of mapped files.
    pub file: u64,
    /// The most there ever was of both together.
    pub peak: u64,
}

/// CPU time of the whole machine, in clock ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Busy, on all CPUs together.
    pub busy: u64,
    /// Busy or idle.
    pub all: u64,
}

/// Reads the usage of `pid`; `None` when the process is gone or not visible.
#[must_use]
pub fn usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    Some(Usage {
        cpu_us: micros(cpu_ticks(&stat)?),
        memory: memory(pid)?,
        written: field(&io, "write_bytes:"),
        switches: switches(pid),
    })
}

/// Reads the memory of `pid`; `None` when the process is gone or not visible.
#[must_use]
pub fn memory(pid: u32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Memory {
        anonymous: field(&status, "RssAnon:")? * 1024,
        file: field(&status, "RssFile:")? * 1024,
        peak: field(&status, "VmHWM:")? * 1024,
    })
}

/// Whether a process has a TCP socket that takes connections; `None` where that is not visible.
#[must_use]
pub fn listens(pid: u32) -> Option<bool> {
    let mut sockets = std::collections::BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let inode = target.to_str().and_then(|text| {
            let inode = text.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse::<u64>().ok()
        });
        sockets.extend(inode);
    }
    let mut tables = String::new();
    for table in ["tcp", "tcp6"] {
        tables.push_str(&fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok()?);
    }
    Some(listening(&tables).any(|inode| sockets.contains(&inode)))
}

/// The inodes of the sockets of a `/proc/net/tcp` that take connections: state 0A.
fn listening(tables: &str) -> impl Iterator<Item = u64> + '_ {
    tables.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let state = fields.nth(3)?;
        let inode = fields.nth(5)?.parse().ok()?;
        (state == "0A").then_some(inode)
    })
}

/// CPU time of the calling thread, in microseconds.
#[must_use]
pub fn own_thread_us() -> Option<u64> {
    let stat = fs::read_to_string("/proc/thread-self/stat").ok()?;
    cpu_ticks(&stat).map(micros)
}

/// CPU time of all CPUs since the machine started.
#[must_use]
pub fn machine() -> Option<Machine> {
    machine_of(&fs::read_to_string("/proc/stat").ok()?)
}

fn machine_of(stat: &str) -> Option<Machine> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    // user nice system idle iowait irq softirq steal; what follows is counted in user.
    let mut ticks = [0; 8];
    for (tick, text) in ticks.iter_mut().zip(line.split_ascii_whitespace().skip(1)) {
        *tick = text.parse().ok()?;
    }
    let all = ticks.iter().sum();
    let idle = ticks[3] + ticks[4];
    Some(Machine {
        busy: all - idle,
        all,
    })
}

/// Context switches of every thread: the process's own status counts only its first.
fn switches(pid: u32) -> [u64; 2] {
    let mut sum = [0; 2];
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return sum;
    };
    for thread in threads.flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let names = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
        for (sum, name) in sum.iter_mut().zip(names) {
            *sum += field(&status, name).unwrap_or(0);
        }
    }
    sum
}

fn micros(ticks: u64) -> u64 {
    ticks * 1_000_000 / ticks_per_second()
}

fn ticks_per_second() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
        .ok()
        .flatten()
        .and_then(|ticks| u64::try_from(ticks).ok())
        .filter(|ticks| *ticks > 0)
        .unwrap_or(100)
}

/// utime + stime of a `/proc/<pid>/stat` line. The command name may hold blanks and brackets, so
/// fields are counted from its closing bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some(150));
    }

    #[test]
    fn waiting_for_the_disk_is_idle_time() {
        let stat = "cpu  10 1 5 100 50 2 3 4 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let expected = Machine { busy: 25, all: 175 };
        assert_eq!(machine_of(stat), Some(expected));
    }

    #[test]
    fn a_process_that_listens_is_told_from_one_that_does_not() {
        let line = "0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 4711 1 0";
        assert_eq!(listening(line).collect::<Vec<_>>(), [4711]);
        let other = line.replace(" 0A ", " 01 ");
        assert_eq!(listening(&other).count(), 0);
        let _listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listens(std::process::id()), Some(true));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert_eq!(listens(child.id()), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(listens(child.id()), None);
    }

    #[test]
    fn the_usage_of_this_process_is_seen() {
        let usage = usage(std::process::id()).unwrap();
        let memory = usage.memory;
        assert!(memory.anonymous > 0 && memory.file > 0 && memory.peak > memory.file);
        assert!(usage.switches[0] > 0);
        assert!(own_thread_us().is_some());
        assert!(machine().unwrap().busy > 0);
    }
}
