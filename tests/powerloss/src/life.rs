//! One store's life: load, a blow, a restart on what is left, a check; again and again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::broker::{self, Broker, Plan, last_lines};
use crate::check::check;
use crate::cut::Loss;
use crate::late_check;
use crate::ledger::{Gathered, Ledger};
use crate::load::Load;
use crate::mount::Mount;
use crate::plan::{self, Blow, Life};
use crate::power::Shared;
use crate::probe;

/// Longest wait for an armed cut.
const CUT_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait for an armed failure.
const FAULT_LIMIT: Duration = Duration::from_secs(3);
/// Starts that may be cut in a row.
const CUT_STARTS: u32 = 3;

/// What came of one blow.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The blow's name.
    pub name: &'static str,
    /// Messages acknowledged before it, in this run of the broker.
    pub acknowledged: usize,
    /// Of them, sent in batches.
    pub batched: u64,
    /// Messages that are to come later, and transactions.
    pub later: usize,
    /// Messages seen by the consumer.
    pub seen: usize,
    /// Changes that were not durable when the power went.
    pub pending: usize,
    /// Sends that were refused.
    pub refused: u64,
    /// Starts that were cut in their turn.
    pub cut_starts: u32,
    /// Acknowledged messages lost as the mode allows.
    pub lost: usize,
    /// What contradicts a promise.
    pub wrong: Vec<String>,
}

/// A store and what surrounds it.
pub struct Store<'a> {
    shared: Arc<Shared>,
    mount: Option<Mount>,
    mount_point: &'a Path,
    plan: Plan,
    life: Life,
    ledger: Ledger,
    positions: HashMap<(usize, i32), i64>,
    random: fastrand::Rng,
    round: u32,
    /// Broken promises are expected: nothing is shown of the broker's log.
    pub quiet: bool,
    /// Where the store is kept as a cut left it.
    pub keep: Option<PathBuf>,
}

impl<'a> Store<'a> {
    /// An empty store on a new disk.
    pub fn new(work: &'a Path, program: &Path, life: Life, seed: u64) -> Result<Store<'a>> {
        let shared = Arc::new(Shared::new(seed));
        {
            let mut power = shared.lock();
            power.disk.narrow = life.narrow;
            power.disk.loose = life.loose;
            power.unnamed = life.unnamed;
            power.sync_pause = life.sync_pause;
        }
        let mount_point = Box::leak(work.join("disk").into_boxed_path());
        std::fs::create_dir_all(&*mount_point)?;
        let mount = Mount::new(mount_point, &shared)?;
        let plan = Plan {
            program: program.to_owned(),
            store: mount_point.join("store"),
            log: work.join("broker.log"),
            settings: life.settings.clone(),
        };
        Ok(Store {
            shared,
            mount: Some(mount),
            mount_point,
            plan,
            life,
            ledger: Ledger::default(),
            positions: HashMap::new(),
            random: fastrand::Rng::with_seed(seed),
            round: 0,
            quiet: false,
            keep: None,
        })
    }

    /// The disk answers syncs of the log and does nothing, from now on.
    pub fn let_disk_lie(&self) {
        self.shared.lock().lies = true;
    }

    /// Runs the broker under load, deals the blow, and checks what a restart finds.
    pub fn live_through(&mut self, blow: &Blow) -> Result<Outcome> {
        let begin = broker::length(&self.plan.log);
        let mut outcome = Outcome {
            name: blow.name,
            ..Outcome::default()
        };
        let mut running = Broker::start(&self.plan)?;
        self.round += 1;
        let load = Load::start(running.port, self.round, self.positions.clone());
        std::thread::sleep(Duration::from_millis(self.random.u64(100..500)));
        if let Some(failure) = blow.failure {
            self.shared.arm_fault(failure.arm(&mut self.random));
            if let Some(path) = self.shared.wait_for_fault(FAULT_LIMIT) {
                // The load goes on for a moment on the failing disk.
                std::thread::sleep(Duration::from_millis(250));
                let wrong = probe::after_failure(running.port, &failure, &path);
                outcome.wrong.extend(wrong);
            }
        }
        if !blow.kill_only {
            self.shared.arm(plan::trigger(blow.loss, &mut self.random));
            // A disk that failed may see nothing more to cut at.
            let limit = if blow.failure.is_some() {
                CUT_LIMIT / 10
            } else {
                CUT_LIMIT
            };
            outcome.pending = self.shared.wait_for_cut(limit).pending;
        }
        if running.has_ended() {
            outcome.wrong.push("the broker ended by itself".to_owned());
        }
        running.kill();
        let gathered = load.end();
        self.note(&gathered, &mut outcome);
        outcome.wrong.extend(self.ledger.add(&gathered));
        self.after(blow, &mut outcome)?;
        let said = broker::said_since(&self.plan.log, begin)?;
        if let Some(panic) = said.lines().find(|line| line.contains("panicked")) {
            outcome.wrong.push(format!("the broker panicked: {panic}"));
        }
        if !outcome.wrong.is_empty() && !self.quiet {
            eprintln!("{}", last_lines(&said, 60));
        }
        Ok(outcome)
    }

    fn note(&mut self, gathered: &Gathered, outcome: &mut Outcome) {
        outcome.acknowledged = gathered.acknowledged.len();
        outcome.batched = gathered.batched;
        outcome.later = gathered.later.len();
        outcome.seen = gathered.seen.len();
        outcome.refused = gathered.refused.values().sum();
        for (place, _) in &gathered.seen {
            let position = self.positions.entry((place.0, place.1)).or_default();
            *position = (*position).max(place.2 + 1);
        }
    }

    /// Power again, a start on what is left (perhaps cut in its turn), and the check.
    fn after(&mut self, blow: &Blow, outcome: &mut Outcome) -> Result<()> {
        let running = loop {
            self.remount()?;
            let cut_it =
                !blow.kill_only && outcome.cut_starts < CUT_STARTS && self.random.u8(..4) == 0;
            if !cut_it {
                break Broker::start(&self.plan).context("after the cut")?;
            }
            let mut trigger = plan::trigger(Loss::Sectors, &mut self.random);
            trigger.loss = blow.loss;
            self.shared.arm(trigger);
            let started = Broker::start(&self.plan);
            let report = self.shared.wait_for_cut(Duration::ZERO);
            if let Ok(running) = started {
                running.kill();
            }
            outcome.cut_starts += u32::from(report.met);
        };
        let may_lose = self.life.asynchronous && !blow.kill_only;
        let found = check(
            running.port,
            &mut self.ledger,
            may_lose,
            self.random.u64(..),
        )?;
        outcome.lost = found.lost;
        outcome.wrong.extend(found.wrong);
        let late = late_check::check(running.port, &mut self.ledger.later)?;
        outcome.wrong.extend(late);
        for (queue, position) in &mut self.positions {
            *position = (*position).min(found.ends.get(queue).copied().unwrap_or(0));
        }
        running.kill();
        Ok(())
    }

    /// Waits for what is to come later, at the end of the life; what does not, as sentences. A store
    /// without syncs may have lost it.
    ///
    /// # Errors
    /// The broker cannot be started or asked.
    pub fn settle(&mut self) -> Result<Vec<String>> {
        if self.life.asynchronous {
            return Ok(Vec::new());
        }
        let running = Broker::start(&self.plan).context("at the end of its life")?;
        let missing = late_check::settle(running.port, &mut self.ledger.later)?;
        running.kill();
        Ok(missing)
    }

    fn remount(&mut self) -> Result<()> {
        if let Some(mount) = self.mount.take() {
            mount.end()?;
        }
        self.shared.restore();
        self.mount = Some(Mount::new(self.mount_point, &self.shared)?);
        if let Some(keep) = &self.keep {
            copy(&self.plan, keep).context("cannot keep the store")?;
        }
        Ok(())
    }
}

/// Copies the store and the log, in place of an earlier copy.
fn copy(plan: &Plan, to: &Path) -> Result<()> {
    let store = to.join("store");
    if store.exists() {
        std::fs::remove_dir_all(&store)?;
    }
    std::fs::create_dir_all(to)?;
    std::fs::copy(&plan.log, to.join("broker.log"))?;
    let copied = std::process::Command::new("cp")
        .args(["-a", "--sparse=always"])
        .arg(&plan.store)
        .arg(&store)
        .status()?;
    anyhow::ensure!(copied.success(), "cp: {copied}");
    Ok(())
}
