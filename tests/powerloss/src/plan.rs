//! Which cuts and failures are tried, in which order.

use std::time::Duration;

use crate::cut::Loss;
use crate::power::{Damage, Fault, Operation, Trigger};

/// Cuts that one store lives through.
pub const LIFE: u32 = 5;

/// What happens to a disk once.
#[derive(Clone, Copy, Debug)]
pub struct Blow {
    /// Its name in reports.
    pub name: &'static str,
    /// What is left at the cut.
    pub loss: Loss,
    /// How the disk fails before, if it does.
    pub failure: Option<Failure>,
    /// The process is killed and the disk keeps its power.
    pub kill_only: bool,
}

/// A failure of the disk without its count.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    operation: Operation,
    damage: Damage,
    lasting: bool,
    log_only: bool,
    /// Most operations that go well before.
    within: u64,
}

const fn cut(loss: Loss, name: &'static str) -> Blow {
    Blow {
        name,
        loss,
        failure: None,
        kill_only: false,
    }
}

const fn failing(
    name: &'static str,
    loss: Loss,
    (operation, damage): (Operation, Damage),
    lasting: bool,
    log_only: bool,
    within: u64,
) -> Blow {
    Blow {
        name,
        loss,
        failure: Some(Failure {
            operation,
            damage,
            lasting,
            log_only,
            within,
        }),
        kill_only: false,
    }
}

const EIO: Damage = Damage::Error(libc::EIO);
const ENOSPC: Damage = Damage::Error(libc::ENOSPC);

/// All blows, dealt in turn. Twenty of them see every kind at least once.
pub const BLOWS: [Blow; 20] = {
    use Operation::{Allocate, Naming, Read, Sync, Write};
    [
        cut(Loss::All, "drop-all"),
        cut(Loss::Sectors, "random"),
        failing(
            "EIO from a sync on",
            Loss::Sectors,
            (Sync, EIO),
            true,
            true,
            60,
        ),
        cut(Loss::Torn, "torn"),
        cut(Loss::Prefix, "prefix"),
        failing(
            "EIO from one write",
            Loss::All,
            (Write, EIO),
            false,
            true,
            60,
        ),
        cut(Loss::Sectors, "random"),
        failing(
            "ENOSPC from an allocation on",
            Loss::All,
            (Allocate, ENOSPC),
            true,
            true,
            1,
        ),
        cut(Loss::All, "drop-all"),
        failing(
            "a short write",
            Loss::Torn,
            (Write, Damage::Short),
            false,
            true,
            60,
        ),
        cut(Loss::Torn, "torn"),
        failing("EIO from one sync", Loss::All, (Sync, EIO), false, true, 60),
        cut(Loss::Prefix, "prefix"),
        failing(
            "ENOSPC from a write on",
            Loss::Sectors,
            (Write, ENOSPC),
            true,
            false,
            60,
        ),
        cut(Loss::All, "drop-all"),
        failing(
            "EIO from any sync on",
            Loss::Prefix,
            (Sync, EIO),
            true,
            false,
            60,
        ),
        Blow {
            kill_only: true,
            ..cut(Loss::Nothing, "kill -9")
        },
        failing(
            "EIO from a new name on",
            Loss::Sectors,
            (Naming, EIO),
            true,
            false,
            2,
        ),
        cut(Loss::Sectors, "random"),
        failing("EIO from a read on", Loss::All, (Read, EIO), true, false, 4),
    ]
};

impl Failure {
    /// The failure with a count of its own.
    pub fn arm(&self, random: &mut fastrand::Rng) -> Fault {
        Fault {
            operation: self.operation,
            damage: self.damage,
            after: random.u64(..=self.within),
            lasting: self.lasting,
            log_only: self.log_only,
        }
    }

    /// Whether, from such a failure at a file of that path, no send may be acknowledged.
    pub fn must_refuse(&self, path: &str) -> bool {
        let named = path.contains("/commitlog/") || path.starts_with("commitlog/");
        // Of a short write the kernel makes the rest through the page cache: nobody sees it.
        let felt = self.damage != Damage::Short;
        // A file without a name holds nothing yet: another is prepared, and sends go on with it.
        let passes = !self.lasting && path.ends_with("(unnamed)");
        named && felt && !passes && matches!(self.operation, Operation::Write | Operation::Sync)
    }

    /// Whether messages can still be read from such a disk.
    pub fn reads_go_on(&self) -> bool {
        self.operation != Operation::Read
    }
}

/// A cut to come, at an operation of a kind that matters.
pub fn trigger(loss: Loss, random: &mut fastrand::Rng) -> Trigger {
    let kinds = [
        Some(Operation::Write),
        Some(Operation::Sync),
        Some(Operation::Sync),
        Some(Operation::Naming),
        Some(Operation::Allocate),
        None,
    ];
    let operation = kinds[random.usize(..kinds.len())];
    let within = match operation {
        Some(Operation::Naming | Operation::Allocate) => 4,
        _ => 80,
    };
    Trigger {
        operation,
        after: random.u64(..=within),
        before: random.bool(),
        loss,
    }
}

/// How one store is written, the same for all cuts of its life.
#[derive(Clone, Debug)]
pub struct Life {
    /// ASYNC_FLUSH.
    pub asynchronous: bool,
    /// Syncs cover no more than they must.
    pub narrow: bool,
    /// Sizes are durable with their file's sync only.
    pub loose: bool,
    /// Files may have no name.
    pub unnamed: bool,
    /// Pause in each sync.
    pub sync_pause: Duration,
    /// Settings of the broker.
    pub settings: Vec<String>,
}

/// The life of the store with that number.
pub fn life(number: u32, random: &mut fastrand::Rng) -> Life {
    let asynchronous = number % 4 > 1;
    let log_file = [1, 4, 16][random.usize(..3)] << 20;
    let mut settings: Vec<String> = [
        "httpPort=0",
        "maxHashSlotNum=1000",
        "maxIndexNum=4000",
        "diskMaxUsedSpaceRatio=95",
        "flushConsumerOffsetInterval=200",
        "timerPrecisionMs=100",
        "maxTransferCountOnMessageInDisk=64",
        "maxTransferBytesOnMessageInDisk=1048576",
    ]
    .map(str::to_owned)
    .to_vec();
    settings.push(format!("mappedFileSizeCommitLog={log_file}"));
    // 300 or 3,000 entries.
    let queue_file = if random.bool() { 6000 } else { 60_000 };
    settings.push(format!("mappedFileSizeConsumeQueue={queue_file}"));
    let mode = if asynchronous {
        "ASYNC_FLUSH"
    } else {
        "SYNC_FLUSH"
    };
    settings.push(format!("flushDiskType={mode}"));
    Life {
        asynchronous,
        narrow: !asynchronous && number % 2 == 1,
        loose: number % 3 == 2,
        unnamed: number % 4 != 1,
        sync_pause: Duration::from_micros([0, 200, 1500][random.usize(..3)]),
        settings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_can_hold_records_must_end_the_writing_when_it_fails_once() {
        let failures = BLOWS.iter().filter_map(|blow| blow.failure);
        for failure in failures.filter(|failure| failure.operation == Operation::Sync) {
            assert!(failure.must_refuse("store/commitlog/00000000000000000000"));
            let unnamed = failure.must_refuse("store/commitlog/(unnamed)");
            assert_eq!(unnamed, failure.lasting);
            assert!(!failure.must_refuse("store/consumequeue/T/0/00000000000000000000"));
        }
    }
}
