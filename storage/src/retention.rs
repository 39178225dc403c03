//! Which log files may go, and when appends must be refused.
//!
//! This half only decides; [`Store::retention_round`](crate::store::Store::retention_round) acts.
//! What must always hold: the newest file never goes, nor one with records that are not dispatched
//! yet; files go oldest first, so the log stays one piece.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::statvfs::statvfs;

use crate::config::RetentionConfig;

/// Rounds that a manual request to delete expired files stays in force.
pub const MANUAL_ROUNDS: u32 = 20;

/// Use of the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUse {
    /// Partition of the commit log.
    pub log: DiskSpace,
    /// Partition of the consume queues.
    pub queues: DiskSpace,
    /// Whether they are one.
    pub shared: bool,
}

impl DiskUse {
    /// Asks the system.
    pub fn of(log: &Path, queues: &Path) -> io::Result<DiskUse> {
        let device = |path: &Path| std::fs::metadata(path).map(|details| details.dev());
        Ok(DiskUse {
            log: DiskSpace::of(log)?,
            queues: DiskSpace::of(queues)?,
            shared: device(log)? == device(queues)?,
        })
    }

    /// The fuller partition counts: both must have room for a message to be stored and found.
    pub fn percent(self) -> u8 {
        self.log.percent().max(self.queues.percent())
    }

    /// The same once `bytes` of the log are freed.
    fn after_freeing(self, bytes: u64) -> DiskUse {
        let of_queues = if self.shared { bytes } else { 0 };
        DiskUse {
            log: self.log.after_freeing(bytes),
            queues: self.queues.after_freeing(of_queues),
            ..self
        }
    }

    /// Log bytes to free until neither partition is fuller than `percent`; at least one, for this
    /// is asked when one is, and files of the queues go with those of the log.
    fn excess(self, percent: u8) -> u64 {
        let allowed = self.log.reachable() / 100 * u64::from(percent);
        self.log.used.saturating_sub(allowed).max(1)
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
        let reachable = self.reachable();
        if reachable == 0 {
            return 1.0;
        }
        self.used as f64 / reachable as f64
    }

    /// The same in percent, rounded up, as Apache reckons.
    pub fn percent(&self) -> u8 {
        let reachable = self.reachable();
        if reachable == 0 {
            return 100;
        }
        (u128::from(self.used) * 100)
            .div_ceil(u128::from(reachable))
            .min(100) as u8
    }

    fn reachable(&self) -> u64 {
        self.used + self.free
    }

    fn after_freeing(self, bytes: u64) -> DiskSpace {
        let freed = bytes.min(self.used);
        DiskSpace {
            used: self.used - freed,
            free: self.free + freed,
            ..self
        }
    }
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
    /// Log offset up to which everything is dispatched, and a resume point made.
    pub dispatched: u64,
    /// Use of the partitions; `None` if the system could not tell.
    pub disk: Option<DiskUse>,
    /// Bytes of deleted log files that are not free yet.
    pub freeing: u64,
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
    /// How many of them go although they are not expired: the disk is too full.
    pub forced: usize,
    /// New state of the disk-full flag; `None` leaves it as it is.
    pub disk_full: Option<bool>,
}

/// Decides one round.
pub fn plan(config: &RetentionConfig, input: &RoundInput<'_>) -> RoundPlan {
    let config = config.clamped();
    let disk_full = match input.disk.map(DiskUse::percent) {
        Some(percent) if percent > config.warning_percent => Some(true),
        Some(percent) if percent <= config.clean_forcibly_percent => Some(false),
        _ => None,
    };
    // What is being freed must not cost more files.
    let soon = input.disk.map(|disk| disk.after_freeing(input.freeing));
    let over = |limit: u8| soon.is_some_and(|disk| disk.percent() > limit);
    let in_time = config.delete_when.contains(&input.hour);
    // A partition that cannot be asked counts as full enough to delete what is expired.
    let any_hour = soon.is_none() || over(config.disk_max_used_percent) || input.manual;
    let too_many = match soon {
        Some(disk) if config.clean_file_forcibly && over(config.clean_forcibly_percent) => disk
            .excess(config.clean_forcibly_percent)
            .div_ceil(input.file_size),
        _ => 0,
    };
    let sealed = input.files.len().saturating_sub(1);
    let candidates = &input.files[..sealed.min(config.delete_batch_max)];
    let mut decided = RoundPlan {
        delete: 0,
        forced: 0,
        disk_full,
    };
    for file in candidates {
        let expired =
            (in_time || any_hour) && expired(file.modified, config.file_reserved, input.now);
        let surplus = (decided.delete as u64) < too_many;
        if file.base + input.file_size > input.dispatched || !(expired || surplus) {
            break;
        }
        decided.delete += 1;
        decided.forced += usize::from(!expired);
    }
    decided
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

    /// A disk of 10 000 bytes.
    fn space(percent: u8) -> DiskSpace {
        let used = u64::from(percent) * 100;
        DiskSpace {
            total: 10_000,
            free: 10_000 - used,
            used,
        }
    }

    fn input(files: &[LogFileAge], now: SystemTime, percent: u8, hour: u8) -> RoundInput<'_> {
        RoundInput {
            files,
            file_size: 100,
            dispatched: 10_000,
            disk: Some(DiskUse {
                log: space(percent),
                queues: space(10),
                shared: false,
            }),
            freeing: 0,
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
        let forced = plan(&config, &input(&files, now, 87, 5));
        assert_eq!((forced.delete, forced.forced), (2, 2));
        let lagging = RoundInput {
            dispatched: 150,
            ..input(&files, now, 87, 5)
        };
        assert_eq!(plan(&config, &lagging).delete, 1);
        let mild = RetentionConfig {
            clean_file_forcibly: false,
            ..config
        };
        assert_eq!(plan(&mild, &input(&files, now, 87, 5)).delete, 0);
    }

    #[test]
    fn no_more_files_go_before_their_time_than_the_disk_needs() {
        let now = SystemTime::now();
        let config = RetentionConfig::default();
        let young = files(&[1; 20], now);
        let counts = |percent, freeing| {
            let input = RoundInput {
                freeing,
                ..input(&young, now, percent, 5)
            };
            let plan = plan(&config, &input);
            (plan.delete, plan.forced)
        };
        // Files of 100 bytes are a percent each.
        assert_eq!(counts(85, 0), (0, 0));
        assert_eq!(counts(86, 0), (1, 1));
        assert_eq!(counts(89, 0), (4, 4));
        assert_eq!(counts(89, 300), (1, 1));
        assert_eq!(counts(89, 400), (0, 0));
        assert_eq!(counts(99, 0), (10, 10));
        let mixed = files(&[100, 100, 100, 1, 1, 1], now);
        let plan = plan(&config, &input(&mixed, now, 87, 5));
        assert_eq!((plan.delete, plan.forced), (3, 0));
    }

    #[test]
    fn full_queues_on_a_disk_of_their_own_take_one_file_a_round() {
        let now = SystemTime::now();
        let young = files(&[1; 20], now);
        let queues = DiskUse {
            log: space(10),
            queues: space(89),
            shared: false,
        };
        let full = RoundInput {
            disk: Some(queues),
            ..input(&young, now, 0, 5)
        };
        assert_eq!(plan(&RetentionConfig::default(), &full).delete, 1);
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
            log: space(10),
            queues: space(95),
            shared: false,
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
        assert!(used.percent() <= 100 && used.shared && used.log.total > 0);
    }
}
