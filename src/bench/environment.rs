//! Where a run took place: without it no number can be compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use serde::{Deserialize, Serialize};

use super::now_ms;

/// Keys of the broker's configuration that decide how fast it can be.
const KEYS: [&str; 10] = [
    "flushDiskType",
    "brokerRole",
    "transientStorePoolEnable",
    "warmMapedFileEnable",
    "mappedFileSizeCommitLog",
    "flushIntervalCommitLog",
    "useReentrantLockWhenPutMessage",
    "sendMessageThreadPoolNums",
    SEND_QUEUE,
    "storePathRootDir",
];

/// Sends that wait in Apache's broker at most.
pub const SEND_QUEUE: &str = "sendThreadPoolQueueCapacity";

/// Longest value that is kept, in characters.
const MAX_VALUE: usize = 400;

/// Facts by name, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment(pub Vec<(String, String)>);

impl Environment {
    /// What can be seen of this machine, of the broker at an address and, when its process is on
    /// this machine, of its disk. What cannot be seen is left out, and so is what the broker does
    /// not say within the time.
    pub fn look(broker: Option<(&str, Duration)>, pid: Option<u32>) -> Self {
        let mut seen = Self::default();
        seen.note("measured at", Some(utc(now_ms())));
        seen.note("saturnmq bench", Some(env!("CARGO_PKG_VERSION").to_owned()));
        let read = |path: &str| fs::read_to_string(path).ok();
        seen.note("kernel", read("/proc/sys/kernel/osrelease"));
        seen.note("CPU", read("/proc/cpuinfo").and_then(|text| cpu(&text)));
        let threads = std::thread::available_parallelism();
        seen.note("CPUs", threads.ok().map(|number| number.to_string()));
        seen.note(
            "memory",
            read("/proc/meminfo").and_then(|text| memory(&text)),
        );
        seen.note("load average before", read("/proc/loadavg"));
        if let Some((address, timeout)) = broker {
            seen.note("broker", Some(address.to_owned()));
            seen.ask(address, timeout);
        }
        if let Some(pid) = pid {
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok();
            let command = command.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
            seen.note("broker's command", command);
            if let Some(store) = store_of(pid) {
                seen.disk(&store);
            }
        }
        seen
    }

    /// A fact by its name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let fact = self.0.iter().find(|(known, _)| known == name);
        fact.map(|(_, value)| value.as_str())
    }

    /// Adds a fact, unless it is unknown or empty.
    pub fn note(&mut self, name: &str, value: Option<String>) {
        let Some(value) = value else { return };
        let value: String = value.trim().chars().take(MAX_VALUE).collect();
        if !value.is_empty() {
            self.0.push((name.to_owned(), value));
        }
    }

    /// What the broker says of itself.
    fn ask(&mut self, address: &str, timeout: Duration) {
        let Ok(mut client) = Client::connect(address, timeout) else {
            return;
        };
        let limit = Instant::now() + timeout;
        let mut body_of = |code| {
            let left = limit.saturating_duration_since(Instant::now());
            let answer = client.invoke(code, |_| {}, &[], left).ok()?;
            (answer.code == response::SUCCESS)
                .then(|| String::from_utf8_lossy(&answer.body).into_owned())
        };
        if let Some(text) = body_of(request::GET_BROKER_RUNTIME_INFO) {
            self.note("broker's version", json_text(&text, "brokerVersionDesc"));
        }
        let Some(text) = body_of(request::GET_BROKER_CONFIG) else {
            return;
        };
        for key in KEYS {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let value = line.and_then(|rest| rest.trim_start().strip_prefix('='));
            self.note(key, value.map(str::to_owned));
        }
    }

    fn disk(&mut self, store: &Path) {
        self.note("store", Some(store.display().to_string()));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let Some((device, system)) = mount_of(&mounts, store) else {
            return;
        };
        self.note("filesystem", Some(system));
        let device = fs::canonicalize(&device).unwrap_or_else(|_| PathBuf::from(&device));
        let Some(name) = device.file_name().and_then(|name| name.to_str()) else {
            return;
        };
        let of = |what: &str| fs::read_to_string(format!("/sys/class/block/{name}/{what}")).ok();
        let bytes = of("size").and_then(|text| text.trim().parse::<u64>().ok());
        let size = bytes.map(|sectors| format!(", {:.0} GiB", sectors as f64 / 2_097_152.0));
        let text = format!("{}{}", device.display(), size.unwrap_or_default());
        self.note("disk", Some(text));
        self.note("disk model", of("device/model"));
        self.note("disk scheduler", of("queue/scheduler"));
        self.note("disk write cache", of("queue/write_cache"));
    }
}

/// The text of a key of the map in an answer that says how the broker fares.
pub fn json_text(text: &str, key: &str) -> Option<String> {
    let value: serde_json::Value = saturnmq_net::fastjson::from_slice(text.as_bytes()).ok()?;
    Some(value["table"][key].as_str()?.to_owned())
}

fn cpu(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: f64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(format!("{:.1} GiB", kib / 1_048_576.0))
}

/// The directory of a broker's store, from the commit-log file that its process has open.
fn store_of(pid: u32) -> Option<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    open.flatten().find_map(|entry| {
        let path = fs::read_link(entry.path()).ok()?;
        let folder = path.parent()?;
        (folder.file_name()? == "commitlog").then(|| folder.parent().map(Path::to_owned))?
    })
}

/// Device and kind of the filesystem that holds a path.
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    let parts = mounts.lines().filter_map(|line| {
        let mut parts = line.split(' ');
        let (device, point) = (parts.next()?, parts.next()?);
        let (kind, options) = (parts.next()?, parts.next()?);
        path.starts_with(point)
            .then(|| (point, device.to_owned(), format!("{kind} ({options})")))
    });
    // The later of two at the same place hides the earlier.
    let (_, device, kind) = parts.max_by_key(|(point, ..)| point.len())?;
    Some((device, kind))
}

fn utc(ms: i64) -> String {
    chrono::DateTime::from_timestamp_millis(ms)
        .map(|time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_the_innermost_mount() {
        let mounts = "/dev/vda / ext4 rw 0 0\nnone /proc proc rw 0 0\n/dev/vdb /data xfs rw,x 0 0";
        let (device, kind) = mount_of(mounts, Path::new("/data/store")).unwrap();
        assert_eq!((&*device, &*kind), ("/dev/vdb", "xfs (rw,x)"));
        assert_eq!(
            mount_of(mounts, Path::new("/database")).unwrap().0,
            "/dev/vda"
        );
    }

    #[test]
    fn this_machine_is_described() {
        let seen = Environment::look(None, Some(std::process::id()));
        for name in ["kernel", "CPUs", "memory", "broker's command"] {
            assert!(seen.0.iter().any(|(known, _)| known == name), "{name}");
        }
    }
}
