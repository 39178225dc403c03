//! What a store is opened with, resolved: nothing below this module parses text or applies a
//! default.
//!
//! File sizes and index shapes must be those the directory was written with; they are recorded
//! nowhere but in the lengths of the files (docs/format.md, "Directory").

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dispatch::UnitBits;
use crate::format::consume_entry;

/// One consume-queue entry, in bytes.
const ENTRY_SIZE: u64 = consume_entry::ENTRY_SIZE as u64;

/// Whether an acknowledged message is durable or only written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// Every batch is on disk before its messages are acknowledged or dispatched.
    Sync,
    /// Batches are written, and synced together once per flush interval.
    Async,
}

/// How the commit log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEngine {
    /// Probe: io_uring where the kernel allows it, else blocking `pwritev2`.
    Auto,
    /// io_uring or refuse to open.
    Uring,
    /// Blocking `pwritev2` from the writer thread.
    Blocking,
}

/// When expired or surplus log files are deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct RetentionConfig {
    /// Local hours (0–23) in which expired files are deleted.
    pub delete_when: Vec<u8>,
    /// Age, by modification time, from which a file is expired.
    pub file_reserved: Duration,
    /// Use of the partition, in percent, over which expired files go at any hour.
    pub disk_max_used_percent: u8,
    /// Use of the partition, in percent, over which the oldest files go whatever their age.
    pub clean_forcibly_percent: u8,
    /// Use of the partition, in percent, over which appends are refused.
    pub warning_percent: u8,
    /// Whether `clean_forcibly_percent` is acted upon.
    pub clean_file_forcibly: bool,
    /// Most log files deleted in one round.
    pub delete_batch_max: usize,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        RetentionConfig {
            delete_when: vec![4],
            file_reserved: Duration::from_secs(72 * 3600),
            disk_max_used_percent: 75,
            clean_forcibly_percent: 85,
            warning_percent: 90,
            clean_file_forcibly: true,
            delete_batch_max: 10,
        }
    }
}

impl RetentionConfig {
    /// The ratios within Apache's bounds: 10–95, 30–85 and 35–90 percent.
    pub fn clamped(&self) -> RetentionConfig {
        RetentionConfig {
            disk_max_used_percent: self.disk_max_used_percent.clamp(10, 95),
            clean_forcibly_percent: self.clean_forcibly_percent.clamp(30, 85),
            warning_percent: self.warning_percent.clamp(35, 90),
            ..self.clone()
        }
    }
}

/// How much one pull may carry (docs/behaviour.md, "Reading a queue").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimits {
    /// Bytes of queue entries looked at per pull: 16 000 is 800 entries.
    pub max_filter_bytes: usize,
    /// Steps of a filter that looks into records ([`PullFilter::work`](crate::reader::PullFilter))
    /// after which a pull ends.
    pub max_filter_work: usize,
    /// Bytes of records per pull while they lie within `memory_distance` of the log's end.
    pub max_bytes_in_memory: usize,
    /// Records per pull while they lie within `memory_distance` of the log's end.
    pub max_count_in_memory: u32,
    /// Bytes of records per pull once they lie farther back.
    pub max_bytes_on_disk: usize,
    /// Records per pull once they lie farther back.
    pub max_count_on_disk: u32,
    /// Distance from the log's end, in bytes, up to which a record counts as in memory.
    pub memory_distance: u64,
    /// Bytes of records per pull whatever the other limits say.
    pub max_bytes: usize,
}

impl Default for PullLimits {
    fn default() -> Self {
        PullLimits {
            max_filter_bytes: 16_000,
            max_filter_work: 1 << 20,
            max_bytes_in_memory: 262_144,
            max_count_in_memory: 32,
            max_bytes_on_disk: 65_536,
            max_count_on_disk: 8,
            memory_distance: memory_distance(40),
            max_bytes: 128 << 20,
        }
    }
}

/// The given percentage of the machine's memory, in bytes; 4 GiB are assumed where it is unknown.
pub fn memory_distance(percent: u64) -> u64 {
    let total = nix::sys::sysinfo::sysinfo().map_or(4 << 30, |info| info.ram_total());
    (total / 100).saturating_mul(percent)
}

/// Everything a store needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `storePathCommitLog`; `root/commitlog` when `None`.
    pub commit_log_dir: Option<PathBuf>,
    /// `mappedFileSizeCommitLog`, in bytes.
    pub commit_log_file_size: u64,
    /// `mappedFileSizeConsumeQueue`, in bytes; rounded up to whole entries by
    /// [`StoreConfig::queue_file_size`].
    pub consume_queue_file_size: u64,
    /// `enableConsumeQueueExt`: whether queue entries get units in extension files. Those that are
    /// there are read in any case.
    pub write_extensions: bool,
    /// `mappedFileSizeConsumeQueueExt`, in bytes.
    pub extension_file_size: u64,
    /// What finds the bits of units; without it they have none.
    pub unit_bits: Option<UnitBits>,
    /// `maxHashSlotNum`.
    pub index_slots: u32,
    /// `maxIndexNum`; one less is usable.
    pub index_items: u32,
    /// `messageIndexEnable`.
    pub message_index: bool,
    /// `flushDiskType`.
    pub flush: FlushMode,
    /// `flushIntervalCommitLog`: how often the log is synced under [`FlushMode::Async`].
    pub flush_interval: Duration,
    /// Body limit of a message, in bytes (`maxMessageSize`); a record may be 64 KiB larger.
    pub max_message_size: usize,
    /// `checkCRCOnRecover`.
    pub check_crc_on_recover: bool,
    /// Delays of the levels 1, 2, …, in milliseconds (`messageDelayLevel`).
    pub delay_levels_ms: Vec<u64>,
    /// Size of the tail cache, in bytes; a power of two.
    pub tail_cache_bytes: usize,
    /// Size of one producer's append ring, in bytes; one largest record is added on top. Sixteen of
    /// the writer's batches: more would only grow what is resident.
    pub append_ring_bytes: usize,
    /// Records between the writer and the dispatcher.
    pub dispatch_queue_items: usize,
    /// Wake-ups held for one core before it is told to look at everything it parked.
    pub wake_queue_items: usize,
    /// Most mappings held by queues and index together; never more than three quarters of
    /// what the host allows a process.
    pub max_mappings: usize,
    /// Whether queues and index are made again from the log when the store is opened, whatever they
    /// look like.
    pub rebuild_queues: bool,
    /// Zeroing ahead of the tail and keeping a spare file, or, if false, plain sparse files
    /// (tests).
    pub prepare_files: bool,
    /// How the commit log is written.
    pub engine: DiskEngine,
    /// CPU the writer thread is pinned to.
    pub writer_cpu: Option<usize>,
    /// The writer is lent to whoever opens the store, if io_uring writes the log.
    pub lend_writer: bool,
    /// Log bytes between two resume points.
    pub resume_bytes: u64,
    /// Time between two resume points.
    pub resume_interval: Duration,
    /// Retention.
    pub retention: RetentionConfig,
}

impl StoreConfig {
    /// Apache's defaults, with synchronous flush, for a store at `root`.
    pub fn new(root: impl Into<PathBuf>) -> StoreConfig {
        StoreConfig {
            root: root.into(),
            commit_log_dir: None,
            commit_log_file_size: 1 << 30,
            consume_queue_file_size: 300_000 * ENTRY_SIZE,
            write_extensions: false,
            extension_file_size: 48 << 20,
            unit_bits: None,
            index_slots: 5_000_000,
            index_items: 20_000_000,
            message_index: true,
            flush: FlushMode::Sync,
            flush_interval: Duration::from_millis(500),
            max_message_size: 4 << 20,
            check_crc_on_recover: true,
            delay_levels_ms: default_delay_levels_ms(),
            tail_cache_bytes: 64 << 20,
            append_ring_bytes: 4 << 20,
            dispatch_queue_items: 1 << 16,
            wake_queue_items: 4096,
            max_mappings: 48_000,
            rebuild_queues: false,
            prepare_files: true,
            engine: DiskEngine::Auto,
            writer_cpu: None,
            lend_writer: false,
            resume_bytes: 256 << 20,
            resume_interval: Duration::from_secs(5),
            retention: RetentionConfig::default(),
        }
    }

    /// Where the commit-log files stand.
    pub fn commit_log_path(&self) -> PathBuf {
        self.commit_log_dir
            .clone()
            .unwrap_or_else(|| self.root.join("commitlog"))
    }

    /// Size of a consume-queue file, in bytes: the configured size rounded up to whole entries.
    pub fn queue_file_size(&self) -> u64 {
        self.consume_queue_file_size.div_ceil(ENTRY_SIZE).max(1) * ENTRY_SIZE
    }

    /// The largest record, in bytes: the body limit and 64 KiB for the rest, or what a file can
    /// hold.
    pub fn max_record_size(&self) -> usize {
        let by_file = usize::try_from(self.commit_log_file_size.saturating_sub(8));
        self.max_message_size
            .saturating_add(65_536)
            .min(by_file.unwrap_or(usize::MAX))
    }

    /// What contradicts itself in this configuration, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        let file = self.commit_log_file_size;
        if !(4096..=i32::MAX as u64).contains(&file) || !file.is_multiple_of(4096) {
            return Err(format!(
                "mappedFileSizeCommitLog={file} must be a multiple of 4096, at most 2147479552"
            ));
        }
        if self.index_slots == 0 || self.index_items < 2 {
            return Err("maxHashSlotNum must be at least 1 and maxIndexNum at least 2".into());
        }
        let index_file = 40 + 4 * u64::from(self.index_slots) + 20 * u64::from(self.index_items);
        if index_file > i32::MAX as u64 {
            return Err(format!(
                "maxHashSlotNum={} and maxIndexNum={} make index files of {index_file} bytes; at \
                 most 2147483647 are possible",
                self.index_slots, self.index_items
            ));
        }
        self.check_tail_cache()?;
        if self.delay_levels_ms.is_empty() {
            return Err("messageDelayLevel names no level".into());
        }
        if self.root == Path::new("") {
            return Err("storePathRootDir is empty".into());
        }
        Ok(())
    }

    /// The smallest tail cache for these records, in bytes: one being written, one gathering.
    pub fn tail_cache_min(&self) -> usize {
        2 * self.max_record_size() + (256 << 10)
    }

    fn check_tail_cache(&self) -> Result<(), String> {
        let bytes = self.tail_cache_bytes;
        if !bytes.is_power_of_two() || bytes < 1 << 20 {
            return Err(format!(
                "tailCacheBytes={bytes} must be a power of two of at least 1048576"
            ));
        }
        let least = self.tail_cache_min();
        if bytes < least {
            return Err(format!(
                "tailCacheBytes={bytes} is too small for maxMessageSize={}: it takes at least \
                 {least}, as a power of two",
                self.max_message_size
            ));
        }
        Ok(())
    }
}

/// `1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h`, in milliseconds.
pub fn default_delay_levels_ms() -> Vec<u64> {
    [
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
    ]
    .map(|seconds| seconds * 1000)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_file_holds_whole_entries() {
        let mut config = StoreConfig::new("/nowhere");
        config.consume_queue_file_size = 2001;
        assert_eq!(config.queue_file_size(), 2020);
        config.consume_queue_file_size = 2000;
        assert_eq!(config.queue_file_size(), 2000);
    }

    #[test]
    fn ratios_are_kept_within_apaches_bounds() {
        let wild = RetentionConfig {
            disk_max_used_percent: 99,
            clean_forcibly_percent: 99,
            warning_percent: 5,
            ..RetentionConfig::default()
        };
        let kept = wild.clamped();
        assert_eq!(
            (
                kept.disk_max_used_percent,
                kept.clean_forcibly_percent,
                kept.warning_percent
            ),
            (95, 85, 35)
        );
    }

    #[test]
    fn a_contradicting_configuration_is_refused_in_words() {
        let mut config = StoreConfig::new("/nowhere");
        assert_eq!(config.check(), Ok(()));
        config.commit_log_file_size = 1000;
        assert!(
            config
                .check()
                .is_err_and(|text| text.contains("mappedFileSizeCommitLog=1000"))
        );
    }
}
