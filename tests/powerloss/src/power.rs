//! The disk under a mount: when its power is cut, and how it fails before.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cut::Loss;
use crate::disk::Disk;

/// What the kernel asks for, as far as cuts and faults tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A write to a file.
    Write,
    /// A sync of a file or a directory.
    Sync,
    /// An allocation.
    Allocate,
    /// A name made, moved or removed.
    Naming,
    /// A read.
    Read,
}

/// How an operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// With this error number.
    Error(i32),
    /// A write takes only its first sectors.
    Short,
}

/// A disk failure to come.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What fails.
    pub operation: Operation,
    /// How.
    pub damage: Damage,
    /// Operations that go well before.
    pub after: u64,
    /// It fails from then on, not once.
    pub lasting: bool,
    /// Only below the log's directory.
    pub log_only: bool,
}

/// A cut to come.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    /// At which operation; `None`: any.
    pub operation: Option<Operation>,
    /// Operations of that kind before.
    pub after: u64,
    /// Before the operation has its effect, or after it, with no answer either way.
    pub before: bool,
    /// What is left.
    pub loss: Loss,
}

/// The disk and its fate.
pub struct Power {
    /// The tree.
    pub disk: Disk,
    /// Choices of the cut.
    pub random: fastrand::Rng,
    /// Answers are given.
    pub on: bool,
    /// Pause in every sync, while writes wait for it.
    pub sync_pause: Duration,
    /// Syncs of log files are answered and not done.
    pub lies: bool,
    /// Files may have no name (O_TMPFILE).
    pub unnamed: bool,
    /// Bytes the files may take in all.
    pub room: u64,
    trigger: Option<Trigger>,
    fault: Option<Fault>,
    /// Path of the file that the failure showed at first.
    failed: Option<String>,
    /// Changes that were not durable at the cut.
    pending: usize,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Go,
    /// It is done, and the power goes before its answer.
    GoAndCut,
    /// It fails.
    Fail(Damage),
}

/// The power as the mount and the driver share it.
pub struct Shared {
    power: Mutex<Power>,
    changed: Condvar,
}

impl Power {
    /// Gives a verdict on an operation, and cuts the power if it is time.
    pub fn judge(&mut self, operation: Operation, number: u64) -> Verdict {
        if !self.on {
            return Verdict::Fail(Damage::Error(libc::EIO));
        }
        if let Some(fault) = &mut self.fault
            && fault.operation == operation
            && (!fault.log_only || self.disk.path(number).contains("commitlog"))
        {
            if fault.after > 0 {
                fault.after -= 1;
            } else {
                let damage = fault.damage;
                if !fault.lasting {
                    self.fault = None;
                }
                let path = self.disk.path(number);
                self.failed.get_or_insert(path);
                return Verdict::Fail(damage);
            }
        }
        let Some(trigger) = &mut self.trigger else {
            return Verdict::Go;
        };
        let changes = operation != Operation::Read;
        if !trigger
            .operation
            .map_or(changes, |wanted| wanted == operation)
        {
            return Verdict::Go;
        }
        if trigger.after > 0 {
            trigger.after -= 1;
            return Verdict::Go;
        }
        let (before, loss) = (trigger.before, trigger.loss);
        if before {
            self.cut(loss);
            return Verdict::Fail(Damage::Error(libc::EIO));
        }
        Verdict::GoAndCut
    }

    /// Cuts at the trigger's wish.
    pub fn cut_now(&mut self) {
        let loss = self.trigger.map_or(Loss::All, |trigger| trigger.loss);
        self.cut(loss);
    }

    fn cut(&mut self, loss: Loss) {
        if self.on {
            self.on = false;
            self.pending = self.disk.cut(loss, &mut self.random);
        }
    }
}

/// What stood at a cut.
#[derive(Clone, Copy, Debug)]
pub struct CutReport {
    /// Changes that were not durable.
    pub pending: usize,
    /// Whether the armed cut came by itself.
    pub met: bool,
}

impl Shared {
    /// An empty disk with power.
    pub fn new(seed: u64) -> Shared {
        let power = Power {
            disk: Disk::new(),
            random: fastrand::Rng::with_seed(seed),
            on: true,
            sync_pause: Duration::ZERO,
            lies: false,
            unnamed: true,
            room: 8 << 30,
            trigger: None,
            fault: None,
            failed: None,
            pending: 0,
        };
        Shared {
            power: Mutex::new(power),
            changed: Condvar::new(),
        }
    }

    /// The power, for one operation.
    pub fn lock(&self) -> MutexGuard<'_, Power> {
        self.power.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for a cut or a fault.
    pub fn tell(&self) {
        self.changed.notify_all();
    }

    /// Arms a cut.
    pub fn arm(&self, trigger: Trigger) {
        self.lock().trigger = Some(trigger);
    }

    /// Arms a failure.
    pub fn arm_fault(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Waits until the disk has failed: the path it failed at; `None` when it did not in time.
    pub fn wait_for_fault(&self, limit: Duration) -> Option<String> {
        let waiting = |power: &mut Power| power.failed.is_none();
        match self.changed.wait_timeout_while(self.lock(), limit, waiting) {
            Ok((power, _)) => power.failed.clone(),
            Err(_) => None,
        }
    }

    /// Waits for the armed cut, or cuts after `limit`.
    pub fn wait_for_cut(&self, limit: Duration) -> CutReport {
        let waiting = |power: &mut Power| power.on;
        let mut power = match self.changed.wait_timeout_while(self.lock(), limit, waiting) {
            Ok((power, _)) => power,
            Err(poisoned) => poisoned.into_inner().0,
        };
        let met = !power.on;
        power.cut_now();
        CutReport {
            pending: power.pending,
            met,
        }
    }

    /// Power again, on what is left; no cut and no failure is armed.
    pub fn restore(&self) {
        let mut power = self.lock();
        power.on = true;
        power.trigger = None;
        power.fault = None;
        power.failed = None;
    }
}
