//! What a process on this host used: CPU time and memory, from `/proc`.

use std::fs;

/// CPU time and anonymous memory of a process at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system CPU time, in microseconds.
    pub cpu_us: u64,
    /// Resident anonymous memory, in bytes: what the process itself holds, not mapped files.
    pub anonymous_bytes: u64,
    /// Resident pages of mapped files, in bytes.
    pub file_bytes: u64,
}

/// Reads the usage of `pid`; `None` when the process is gone or not visible.
#[must_use]
pub fn usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ticks = cpu_ticks(&stat)?;
    let per_second = ticks_per_second();
    Some(Usage {
        cpu_us: ticks * 1_000_000 / per_second,
        anonymous_bytes: status_bytes(&status, "RssAnon:")?,
        file_bytes: status_bytes(&status, "RssFile:")?,
    })
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

fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
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
    fn the_usage_of_this_process_is_seen() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.anonymous_bytes > 0 && usage.file_bytes > 0);
    }
}
