//! Keeps the load generator on some CPUs.

use std::collections::BTreeSet;
use std::fs;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::BenchError;

/// CPUs to run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// Those on which no thread of the broker's process may run.
    Apart,
    /// These.
    To(BTreeSet<usize>),
}

impl std::str::FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "apart" {
            return Ok(Self::Apart);
        }
        cpus(text).map(Self::To)
    }
}

/// The CPUs of a list such as `0,2-3`.
fn cpus(list: &str) -> Result<BTreeSet<usize>, String> {
    let number = |text: &str| {
        let number = text.trim().parse::<usize>();
        let number = number.map_err(|error| format!("CPU \"{text}\": {error}"))?;
        if number < CpuSet::count() {
            Ok(number)
        } else {
            Err(format!("CPU {number}: at most {}", CpuSet::count() - 1))
        }
    };
    let mut found = BTreeSet::new();
    for part in list.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        found.extend(number(low)?..=number(high)?);
    }
    if found.is_empty() {
        return Err(format!("CPUs \"{list}\": none"));
    }
    Ok(found)
}

fn allowed(status: &str) -> Option<BTreeSet<usize>> {
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"))?;
    cpus(line.split_once(':')?.1.trim()).ok()
}

/// CPUs on which some thread of a process may run.
fn used_by(pid: u32) -> Result<BTreeSet<usize>, BenchError> {
    let gone = |error: std::io::Error| BenchError::System(format!("process {pid}: {error}"));
    let mut used = BTreeSet::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)? {
        let path = thread.map_err(gone)?.path().join("status");
        // A thread may end meanwhile.
        let status = fs::read_to_string(path).unwrap_or_default();
        used.extend(allowed(&status).unwrap_or_default());
    }
    Ok(used)
}

/// Pins this thread, and with it those that it will make. Returns the CPUs.
///
/// # Errors
/// [`BenchError::System`] when no CPU is left beside the broker, or the system refuses.
pub fn pin(pin: &Pin, broker: Option<u32>) -> Result<BTreeSet<usize>, BenchError> {
    let system = BenchError::System;
    let cpus = match (pin, broker) {
        (Pin::To(cpus), _) => cpus.clone(),
        (Pin::Apart, None) => {
            return Err(system(
                "--pin apart: from which broker? --pid says".to_owned(),
            ));
        }
        (Pin::Apart, Some(pid)) => {
            let status = fs::read_to_string("/proc/thread-self/status");
            let status = status.map_err(|error| system(error.to_string()))?;
            let used = used_by(pid)?;
            let mine = allowed(&status).unwrap_or_default();
            let apart: BTreeSet<usize> = mine.difference(&used).copied().collect();
            if apart.is_empty() {
                return Err(system(format!(
                    "--pin apart: process {pid} may run on every CPU that this one may; start it \
                     with taskset, or name CPUs"
                )));
            }
            apart
        }
    };
    let mut set = CpuSet::new();
    let refused = |error: nix::Error| system(format!("--pin {cpus:?}: {error}"));
    for cpu in &cpus {
        set.set(*cpu).map_err(refused)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(refused)?;
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_and_wrong_ones_named() {
        let text = "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0,2-3\n";
        assert_eq!(allowed(text), Some([0, 2, 3].into()));
        assert_eq!("apart".parse(), Ok(Pin::Apart));
        for text in ["", "x", "3-1", "1,,2", "99999999"] {
            assert!(text.parse::<Pin>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_broker_that_may_run_everywhere_leaves_no_place() {
        let own = std::process::id();
        let said = pin(&Pin::Apart, Some(own)).unwrap_err().to_string();
        assert!(said.contains("taskset"), "{said}");
        assert!(pin(&Pin::Apart, None).is_err());
    }
}
