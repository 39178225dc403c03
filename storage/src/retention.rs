//! Which log files may go, and when appends must be refused.
//!
//! This half only decides; [`Store::retention_round`](crate::store::Store::retention_round) acts.
//! What must always hold: the newest file never goes, nor one with records that are not dispatched
//! yet; files go oldest first, so the log stays one piece.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::statvfs::statvfs;

use crate::config::RetentionConfig;

/// Rounds that a manual request to delete expired files stays in force.
pub const MANUAL_ROUNDS: u32 = 20;

/// Use of the two partitions, in whole percents rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUse {
    /// Partition of the commit log.
    pub log_percent: u8,
    /// Partition of the consume queues.
    pub queue_percent: u8,
}

impl DiskUse {
    /// Asks the system.
    pub fn of(log: &Path, queues: &Path) -> io::Result<DiskUse> {
        Ok(DiskUse {
            log_percent: percent_used(log)?,
            queue_percent: percent_used(queues)?,
        })
    }

    /// The fuller partition counts: both must have room for a message to be stored and found.
    fn highest(self) -> u8 {
        self.log_percent.max(self.queue_percent)
    }
}

/// Size of the file system that holds a path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Of the whole file system.
    pub total: u64,
    /// Still free for this user.
    pub free: u64,
    /// In use by anybody.
    pub used: u64,
}

impl DiskSpace {
    /// Asks the system.
    pub fn of(path: &Path) -> io::Result<DiskSpace> {
        let all = statvfs(path)?;
        let unit = all.fragment_size();
        Ok(DiskSpace {
            total: all.blocks() * unit,
            free: all.blocks_available() * unit,
            used: all.blocks().saturating_sub(all.blocks_free()) * unit,
        })
    }

    /// Used part of what this user can have, 0 to 1.
    pub fn used_ratio(&self) -> f64 {
        let reachable = self.used + self.free;
        if reachable == 0 {
            return 1.0;
        }
        self.used as f64 / reachable as f64
    }
}

/// Used part of the file system that holds `path`, in percent of what this user can have.
fn percent_used(path: &Path) -> io::Result<u8> {
    let all = statvfs(path)?;
    let used = all.blocks().saturating_sub(all.blocks_free());
    let reachable = used + all.blocks_available();
    if reachable == 0 {
        return Ok(100);
    }
    Ok((used * 100).div_ceil(reachable).min(100) as u8)
}

/// One sealed log file, as far as its age matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFileAge {
    /// Log offset of its first byte.
    pub base: u64,
    /// Last modification.
    pub modified: SystemTime,
}

/// What a round sees.
#[derive(Clone, Copy, Debug)]
pub struct RoundInput<'a> {
    /// All log files, oldest first, the active one included.
    pub files: &'a [LogFileAge],
    /// Size of a log file, in bytes.
    pub file_size: u64,
    /// Log offset up to which everything is dispatched.
    pub dispatched: u64,
    /// Use of the partitions; `None` if the system could not tell.
    pub disk: Option<DiskUse>,
    /// Now.
    pub now: SystemTime,
    /// Local hour, 0–23.
    pub hour: u8,
    /// Whether someone asked for expired files to be deleted now.
    pub manual: bool,
}

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundPlan {
    /// Files to delete, from the oldest on.
    pub delete: usize,
    /// Whether files go regardless of their age.
    pub forced: bool,
    /// New state of the disk-full flag; `None` leaves it as it is.
    pub disk_full: Option<bool>,
}

/// Decides one round.
pub fn plan(config: &RetentionConfig, input: &RoundInput<'_>) -> RoundPlan {
    let config = config.clamped();
    let used = input.disk.map(DiskUse::highest);
    let over = |limit: u8| used.is_some_and(|percent| percent > limit);
    let forced = config.clean_file_forcibly && over(config.clean_forcibly_percent);
    let in_time = config.delete_when.contains(&input.hour);
    // A partition that cannot be asked counts as full enough to delete what is expired.
    let any_hour = used.is_none() || over(config.disk_max_used_percent);
    let disk_full = match used {
        Some(percent) if percent > config.warning_percent => Some(true),
        Some(percent) if percent <= config.clean_forcibly_percent => Some(false),
        _ => None,
    };
    let mut delete = 0;
    if in_time || any_hour || forced || input.manual {
        let sealed = input
            .files
            .len()
            .saturating_sub(1)
            .min(config.delete_batch_max);
        let due = |file: &&LogFileAge| {
            file.base + input.file_size <= input.dispatched
                && (forced || expired(file.modified, config.file_reserved, input.now))
        };
        delete = input.files[..sealed].iter().take_while(due).count();
    }
    RoundPlan {
        delete,
        forced,
        disk_full,
    }
}

/// Whether a file is at least `reserved` old; one from the future is not.
fn expired(modified: SystemTime, reserved: Duration, now: SystemTime) -> bool {
    now.duration_since(modified)
        .is_ok_and(|age| age >= reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn files(ages_in_hours: &[u32], now: SystemTime) -> Vec<LogFileAge> {
        let aged = ages_in_hours.iter().enumerate();
        aged.map(|(index, hours)| LogFileAge {
            base: index as u64 * 100,
            modified: now - HOUR * *hours,
        })
        .collect()
    }

    fn input(files: &[LogFileAge], now: SystemTime, percent: u8, hour: u8) -> RoundInput<'_> {
        RoundInput {
            files,
            file_size: 100,
            dispatched: 10_000,
            disk: Some(DiskUse {
                log_percent: percent,
                queue_percent: 10,
            }),
            now,
            hour,
            manual: false,
        }
    }

    #[test]
    fn expired_files_go_in_the_hour_set_for_it_and_no_other() {
        let now = SystemTime::now();
        let files = files(&[100, 80, 10, 90, 0], now);
        let config = RetentionConfig::default();
        assert_eq!(plan(&config, &input(&files, now, 50, 4)).delete, 2);
        assert_eq!(plan(&config, &input(&files, now, 50, 5)).delete, 0);
        let manual = RoundInput {
            manual: true,
            ..input(&files, now, 50, 5)
        };
        assert_eq!(plan(&config, &manual).delete, 2);
        assert_eq!(plan(&config, &input(&files, now, 76, 5)).delete, 2);
    }

    #[test]
    fn a_filling_disk_takes_the_oldest_files_but_never_the_newest_or_undispatched_ones() {
        let now = SystemTime::now();
        let files = files(&[1, 1, 1], now);
        let config = RetentionConfig::default();
        let forced = plan(&config, &input(&files, now, 86, 5));
        assert_eq!((forced.delete, forced.forced), (2, true));
        let lagging = RoundInput {
            dispatched: 150,
            ..input(&files, now, 86, 5)
        };
        assert_eq!(plan(&config, &lagging).delete, 1);
        let mild = RetentionConfig {
            clean_file_forcibly: false,
            ..config
        };
        assert_eq!(plan(&mild, &input(&files, now, 86, 5)).delete, 0);
    }

    #[test]
    fn appends_are_refused_above_the_warning_level_until_there_is_room_again() {
        let now = SystemTime::now();
        let config = RetentionConfig::default();
        let flag = |percent| plan(&config, &input(&[], now, percent, 5)).disk_full;
        assert_eq!(
            (flag(91), flag(90), flag(86), flag(85)),
            (Some(true), None, None, Some(false))
        );
        let queues = DiskUse {
            log_percent: 10,
            queue_percent: 95,
        };
        let full = RoundInput {
            disk: Some(queues),
            ..input(&[], now, 0, 5)
        };
        assert_eq!(plan(&config, &full).disk_full, Some(true));
    }

    #[test]
    fn at_most_one_batch_goes_in_a_round() {
        let now = SystemTime::now();
        let files = files(&[100; 30], now);
        let config = RetentionConfig::default();
        assert_eq!(plan(&config, &input(&files, now, 50, 4)).delete, 10);
    }

    #[test]
    fn the_system_tells_how_full_a_partition_is() {
        let used = DiskUse::of(Path::new("/"), Path::new("/")).expect("statvfs");
        assert!(used.log_percent <= 100 && used.log_percent == used.queue_percent);
    }
}
