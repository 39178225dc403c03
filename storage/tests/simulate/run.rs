//! One run: a few lives of one store, with a schedule drawn from a seed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use super::engine::{Disk, Engine, PORTS};
use super::medium::{State, Trouble};
use super::message::{AROUND_BODY, DISPATCHED, LIGHT, LIGHT_BYTES, Place, QUEUES, SENT_TO, Sent};
use super::oracle::{Broken, End, Expected, Oracle, require};
use crate::append_queue::{AppendFailure, Appended, PushError};
use crate::config::{FlushMode, StoreConfig};
use crate::disk::faulty::{Faults, Seed};
use crate::format::message::sys_flag;
use crate::layout::file_name;
use crate::medium::{self, listen};
use crate::seeded::{Fault, seed_fault};
use crate::writer::Turn;

/// Turns after which something that must end is taken for stuck.
const PATIENCE: usize = 20_000;

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub seed: u64,
    pub fault: Option<Fault>,
    /// Whether what happens is written down.
    pub traced: bool,
}

/// What a run came to.
pub struct Outcome {
    pub broken: Option<Broken>,
    pub trace: Vec<String>,
    /// Requests to the medium, acknowledged pushes and recoveries: the same for the same seed.
    pub counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: u64,
    pub acknowledged: u64,
    pub recoveries: u64,
    pub cuts: u64,
    pub latched: u64,
    pub refused: u64,
    pub clean_stops: u64,
    pub retained_files: u64,
}

/// A store through its lives.
pub struct Run {
    seed: Seed,
    pub config: StoreConfig,
    pub disk: Disk,
    pub state: Rc<RefCell<State>>,
    pub oracle: Oracle,
    clock: i64,
    pub next_token: u64,
    /// Tokens that were not answered yet, per port.
    pub pushed: Vec<VecDeque<u64>>,
    consumers: Vec<(Place, i64)>,
    counts: Counts,
    /// How often writes and syncs fail in this run's lives, in a thousand.
    trouble: u64,
    /// Draws light queues, in half of the runs: seeds that found something before there were such
    /// still play the same.
    light: Option<Seed>,
}

/// A directory for the files of one run, in memory where there is such a place.
pub fn directory() -> tempfile::TempDir {
    let place = std::path::Path::new("/dev/shm");
    let place = if place.is_dir() {
        place.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("saturnmq-simulate-")
        .tempdir_in(place)
        .expect("temporary directory")
}

/// Plays one run to its end, or to the first broken promise.
pub fn play(setting: Setting) -> Outcome {
    let dir = directory();
    let mut run = Run::new(setting, &dir.path().join("store"));
    let state = Rc::clone(&run.state);
    listen(Some(state.clone()));
    seed_fault(setting.fault);
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.play()));
    seed_fault(None);
    listen(None);
    let broken = match played {
        Ok(result) => result.err(),
        Err(panic) => Some(format!("panic: {}", text_of(panic.as_ref()))),
    };
    let mut trace = Vec::new();
    let mut counts = run.counts;
    if let Ok(mut state) = state.try_borrow_mut() {
        trace = state.trace.take().unwrap_or_default();
        counts.requests = state.requests;
    }
    if broken.is_some() {
        trace.push(run.oracle.describe());
    }
    Outcome {
        broken,
        trace,
        counts,
    }
}

/// Removes what is in a directory, as anybody could.
pub fn remove_below(directory: &std::path::Path) -> std::io::Result<()> {
    let entries = std::fs::read_dir(directory)?;
    let mut paths: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            remove_below(&path)?;
            medium::remove_directory(&path)?;
        } else {
            medium::remove_file(&path)?;
        }
    }
    medium::sync_directory(directory)
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "of an unknown kind".to_owned())
}

fn pick<T: Copy>(seed: &mut Seed, of: &[T]) -> T {
    of[seed.below(of.len() as u64) as usize]
}

fn configure(seed: &mut Seed, root: &std::path::Path) -> StoreConfig {
    let mut config = StoreConfig::new(root);
    config.commit_log_file_size = pick(seed, &[16_384, 65_536, 65_536, 131_072, 524_288]);
    config.consume_queue_file_size = 20 * pick(seed, &[3, 10, 50]);
    config.index_slots = pick(seed, &[3, 20]);
    config.index_items = pick(seed, &[8, 40, 200]);
    config.flush = pick(seed, &[FlushMode::Sync, FlushMode::Sync, FlushMode::Async]);
    config.flush_interval = Duration::from_millis(pick(seed, &[5, 50]));
    config.max_message_size = 64 << 10;
    config.tail_cache_bytes = 1 << 20;
    config.append_ring_bytes = pick(seed, &[4_000, 100_000]);
    config.dispatch_queue_items = pick(seed, &[3, 64]);
    config.wake_queue_items = 4;
    config.max_mappings = pick(seed, &[2, 100, 100, 100, 100]);
    config.prepare_files = seed.chance(3, 4);
    config.resume_bytes = pick(seed, &[2_000, 30_000, 200_000]);
    config.resume_interval = Duration::from_secs(1_000_000);
    config.retention.delete_when = Vec::new();
    config.retention.clean_file_forcibly = false;
    config.retention.delete_batch_max = 1 + seed.below(3) as usize;
    config
}

impl Run {
    pub fn new(setting: Setting, root: &std::path::Path) -> Run {
        std::fs::create_dir(root).expect("root");
        let mut seed = Seed(setting.seed);
        let config = configure(&mut seed, root);
        let sector = pick(&mut seed, &[512, 512, 4096]);
        let mut state = State::new(root, seed.draw(), sector, setting.traced);
        // By no draw: seeds that found something before there was this still play the same.
        state.loose = setting.seed % 5 == 4;
        let disk = Disk {
            block: 4096,
            direct: seed.chance(1, 2),
            faults: Faults::default(),
            seed: 0,
        };
        let light = (setting.seed % 2 == 1).then_some(Seed(!setting.seed));
        let mut consumers: Vec<_> = super::oracle::places().map(|place| (place, 0)).collect();
        if light.is_some() {
            consumers.extend(super::oracle::light_places().map(|place| (place, 0)));
        }
        let trouble = pick(&mut seed, &[0, 0, 0, 5, 30]);
        Run {
            seed,
            config,
            disk,
            state: Rc::new(RefCell::new(state)),
            oracle: Oracle::default(),
            clock: 1_700_000_000_000,
            next_token: 1,
            pushed: vec![VecDeque::new(); PORTS],
            consumers,
            counts: Counts::default(),
            trouble,
            light,
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        self.state.borrow_mut().note(text);
    }

    fn stopped(&self) -> bool {
        self.state.borrow().stopped
    }

    fn play(&mut self) -> Result<(), Broken> {
        self.note(|| format!("{:?} {:?}", self.config, self.disk));
        let mut expected = Expected {
            end: End::Closed,
            at_least: 0,
            durable: 0,
        };
        let lives = 2 + self.seed.below(4);
        for life in 0..lives {
            let mut engine = self.open(&mut expected)?;
            self.oracle
                .check_recovered(&mut engine, expected, &mut self.seed)?;
            expected = self.live(engine, life + 1 == lives)?;
        }
        self.state.borrow_mut().trouble.failed_syncs = 0;
        let mut engine = self.open(&mut expected)?;
        self.oracle
            .check_recovered(&mut engine, expected, &mut self.seed)
    }

    /// Opens the store; a few times the machine or the disk fails meanwhile.
    fn open(&mut self, expected: &mut Expected) -> Result<Engine, Broken> {
        for attempt in 0.. {
            let (failing, stopping) = (self.seed.chance(1, 12), self.seed.chance(1, 4));
            let last = attempt >= 3;
            {
                let mut state = self.state.borrow_mut();
                state.trouble.full = failing && !last && self.seed.chance(1, 2);
                state.trouble.failed_syncs = if failing && !last { 100 } else { 0 };
                state.stop_after = (stopping && !last).then(|| self.seed.below(40));
            }
            self.disk.faults = Faults::default();
            self.disk.seed = self.seed.draw();
            self.note(|| format!("life begins, attempt {attempt}"));
            let opened = Engine::open(&self.config, &self.state, self.disk);
            let stopped = self.stopped();
            {
                let mut state = self.state.borrow_mut();
                state.stop_after = None;
                state.trouble.failed_syncs = 0;
                state.trouble.full = false;
            }
            match opened {
                // It had no room for all entries, and ends before there is some.
                Ok(engine)
                    if !stopped && engine.dispatcher.late.is_some() && self.seed.chance(1, 2) =>
                {
                    self.note(|| format!("not all entries made: {:?}", engine.report));
                }
                Ok(mut engine) if !stopped => {
                    self.counts.recoveries += 1;
                    self.note(|| format!("recovered: {:?}", engine.report));
                    require!(engine.dispatcher.make_late_entries(), "no room for entries");
                    return Ok(engine);
                }
                Ok(engine) => drop(engine),
                Err(error) => {
                    self.note(|| format!("not opened: {error}"));
                    require!(stopped || (failing && !last), "not opened: {error}");
                    // A failed sync may have lost what was only written.
                    expected.at_least = expected.at_least.min(expected.durable);
                }
            }
            // The machine stopped, or only the process.
            if self.seed.chance(1, 2) || (stopped && self.seed.chance(1, 2)) {
                self.power_cut(expected);
            } else {
                self.note(|| "the process was killed".to_owned());
                self.state.borrow_mut().stopped = false;
            }
        }
        unreachable!("attempts do not end")
    }

    fn power_cut(&mut self, expected: &mut Expected) {
        self.counts.cuts += 1;
        self.state.borrow_mut().cut();
        crate::former_run::lose_page_cache();
        expected.end = End::PowerCut;
        expected.at_least = expected.at_least.min(expected.durable);
    }

    /// One life of the store; what the next one must find.
    fn live(&mut self, mut engine: Engine, last: bool) -> Result<Expected, Broken> {
        for (place, at) in &mut self.consumers {
            *at = self.oracle.stored.get(place).copied().unwrap_or(0);
        }
        self.begin_trouble(&mut engine);
        let steps = 20 + self.seed.below(if last { 60 } else { 160 });
        for _ in 0..steps {
            self.step(&mut engine)?;
            if self.stopped() {
                break;
            }
        }
        let latched = engine.status.read_only().is_some();
        self.counts.latched += u64::from(latched);
        let end = match self.seed.below(4) {
            0 if self.stopped() => End::Killed,
            _ if self.stopped() => End::PowerCut,
            0 => End::Closed,
            1 => End::Killed,
            _ => End::PowerCut,
        };
        self.end(engine, end)
    }

    fn begin_trouble(&mut self, engine: &mut Engine) {
        let kind = self.seed.below(4);
        let often = self.trouble;
        let faults = Faults {
            failed_writes: if kind == 0 { often } else { 0 },
            short_writes: if kind == 1 { often } else { 0 },
            failed_syncs: if kind == 2 { often * 5 } else { 0 },
        };
        let mut state = self.state.borrow_mut();
        state.trouble.failed_syncs = if kind == 3 { often } else { 0 };
        if self.seed.chance(1, 5) {
            state.stop_after = Some(self.seed.below(200));
        }
        if let Some(writer) = &mut engine.writer {
            writer.disk().set_faults(faults);
        }
    }

    fn step(&mut self, engine: &mut Engine) -> Result<(), Broken> {
        match self.seed.below(22) {
            0..=4 => self.push_some(engine),
            5..=10 => {
                self.turn(engine)?;
            }
            11..=13 => {
                engine.dispatcher.step();
            }
            14..=15 => engine.work.turn(self.seed.chance(1, 4)),
            16 => self.flush(engine),
            17..=18 => self.consume(engine)?,
            19 => self.look(engine)?,
            20 => {
                if self.seed.chance(1, 4) {
                    self.retain(engine)?;
                }
            }
            _ => self.world(),
        }
        Ok(())
    }

    fn world(&mut self) {
        let mut state = self.state.borrow_mut();
        match self.seed.below(6) {
            0 => state.trouble.full = self.seed.chance(1, 2),
            1 => state.trouble.full = false,
            _ => state.write_back(),
        }
    }

    fn push_some(&mut self, engine: &mut Engine) {
        let port = self.seed.below(PORTS as u64) as usize;
        for _ in 0..1 + self.seed.below(8) {
            let sent = self.draw_push(engine);
            match sent.push(&mut engine.ports[port], &engine.store) {
                Ok(()) => {
                    self.note(|| format!("push {sent:?}"));
                    self.next_token += 1;
                    self.pushed[port].push_back(sent.token);
                    self.oracle.sent.insert(sent.token, sent);
                }
                Err(PushError::Full | PushError::TooLarge { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A message, often of a size that ends at a border of a block or a file.
    fn draw_push(&mut self, engine: &Engine) -> Sent {
        let file_size = self.config.commit_log_file_size;
        let end = engine.store.watermarks().appended();
        let to_block = 4096 - end % 4096;
        let to_file = file_size - end % file_size;
        let around = |distance: u64, seed: &mut Seed| {
            (distance + seed.below(20)).saturating_sub(AROUND_BODY - 20 + seed.below(60))
        };
        let largest = (file_size - 8 - AROUND_BODY).min(60_000);
        let size = match self.seed.below(12) {
            0 => around(to_block, &mut self.seed),
            1 => around(to_file, &mut self.seed),
            2 => self.seed.below(largest),
            3 => self.seed.below(12_000.min(largest)),
            _ => self.seed.below(600),
        };
        let size = size.min(largest) as usize;
        let batch = self.seed.chance(1, 8);
        let count = if batch {
            2 + self.seed.below(5) as usize
        } else {
            1
        };
        let kinds = [sys_flag::PREPARED, sys_flag::ROLLBACK, sys_flag::COMMIT];
        let plain = batch || self.seed.chance(9, 10);
        let mut sent = Sent {
            token: self.next_token,
            place: (
                self.seed.below(SENT_TO as u64) as usize,
                self.seed.below(QUEUES as u64) as i32,
            ),
            sys_flag: if plain {
                0
            } else {
                pick(&mut self.seed, &kinds)
            },
            bodies: (0..count).map(|_| size / count).collect(),
            light: 0,
        };
        if let Some(seed) = &mut self.light
            && plain
            && !batch
            && sent.place.0 < DISPATCHED
            && seed.chance(2, 3)
        {
            sent.light = seed.below(1 << LIGHT) as u8;
            sent.bodies[0] = size.min((largest - LIGHT_BYTES) as usize);
        }
        sent
    }

    pub fn turn(&mut self, engine: &mut Engine) -> Result<Turn, Broken> {
        self.clock += self.seed.below(30) as i64 - 1;
        let turn = engine.turn(self.clock);
        self.collect(engine)?;
        Ok(turn)
    }

    fn collect(&mut self, engine: &mut Engine) -> Result<(), Broken> {
        // Nobody hears what a machine says that has stopped.
        if self.stopped() {
            return Ok(());
        }
        for port in 0..PORTS {
            while let Some(result) = engine.ports[port].pop() {
                let token = self.pushed[port].pop_front();
                require!(token == Some(result.token), "answers out of order");
                self.note(|| format!("answer {}: {:?}", result.token, result.outcome));
                match result.outcome {
                    Ok(appended) => {
                        self.counts.acknowledged += 1;
                        let written =
                            self.light_record(&self.oracle.sent[&result.token], &appended)?;
                        let bytes = self.oracle.acknowledged(result.token, &appended, written)?;
                        self.check_kept(&appended, &bytes)?;
                    }
                    Err(AppendFailure::NoSpace | AppendFailure::ReadOnly(_)) => {
                        self.counts.refused += 1;
                    }
                    Err(other) => return Err(format!("push {}: {other}", result.token)),
                }
            }
        }
        Ok(())
    }

    /// What stands in the log's file as a record that enters light queues; `None` of others.
    fn light_record(&self, sent: &Sent, shown: &Appended) -> Result<Option<Vec<u8>>, Broken> {
        if sent.light == 0 {
            return Ok(None);
        }
        let base = shown.physical_offset - shown.physical_offset % self.config.commit_log_file_size;
        let path = self.config.commit_log_path().join(file_name(base));
        let mut bytes = vec![0; (shown.end - shown.physical_offset) as usize];
        let read = std::fs::File::open(path)
            .and_then(|file| file.read_exact_at(&mut bytes, shown.physical_offset - base));
        require!(read.is_ok(), "what was shown is not in the file: {read:?}");
        Ok(Some(bytes))
    }

    /// Under synchronous flush what is acknowledged or seen is on the medium at that moment.
    fn check_kept(&self, appended: &Appended, bytes: &[u8]) -> Result<(), Broken> {
        if self.config.flush == FlushMode::Async {
            return Ok(());
        }
        let offset = appended.physical_offset;
        let base = offset - offset % self.config.commit_log_file_size;
        let path = self.config.commit_log_path().join(file_name(base));
        let kept = self
            .state
            .borrow_mut()
            .is_durable(&path, (offset - base) as usize, bytes);
        require!(
            kept,
            "what stands at {offset} was shown and is not on the medium"
        );
        Ok(())
    }

    fn flush(&mut self, engine: &mut Engine) {
        let wanted = self.seed.chance(1, 6);
        let made = if wanted {
            engine.flusher.make(engine.flusher.made)
        } else {
            engine.flusher.look()
        };
        self.note(|| format!("flusher: {made:?}"));
    }

    fn consume(&mut self, engine: &mut Engine) -> Result<(), Broken> {
        let index = self.seed.below(self.consumers.len() as u64) as usize;
        let (place, at) = self.consumers[index];
        let (next, records) = self.oracle.pull(engine, place, at)?;
        self.consumers[index].1 = next;
        let marks = engine.store.watermarks();
        for (offset, known) in &records {
            require!(
                known.end <= marks.acknowledged(),
                "{place:?} shows {offset} before it is acknowledged"
            );
            let sent = &self.oracle.sent[&known.name.0];
            let shown = Appended {
                physical_offset: *offset,
                queue_offset: known.queue_offset,
                store_timestamp: known.store_timestamp,
                end: known.end,
            };
            if !sent.is_queued() {
                return Err(format!("{place:?} shows {known:?}"));
            }
            if let Some(bytes) = self.light_record(sent, &shown)? {
                self.check_kept(&shown, &bytes)?;
            } else if sent.bodies.len() == 1 {
                self.check_kept(&shown, &sent.records(&shown).0)?;
            }
        }
        if !records.is_empty() {
            self.note(|| format!("{place:?} read from {at} to {next}"));
        }
        if self.seed.chance(1, 2) {
            self.oracle.stored.insert(place, next);
        }
        Ok(())
    }

    /// A look at one record somebody was told of, in the middle of things.
    fn look(&mut self, engine: &mut Engine) -> Result<(), Broken> {
        let marks = engine.store.watermarks();
        let (from, to) = (
            engine.store.min_log_offset().max(self.oracle.expired_to),
            marks.dispatched(),
        );
        if from >= to {
            return Ok(());
        }
        let at = from + self.seed.below(to - from);
        let found = self.oracle.known.range(at..to).next();
        if let Some((offset, known)) = found.map(|(offset, known)| (*offset, *known))
            && known.end <= to
        {
            self.oracle.look_up(engine, offset, known)?;
        }
        Ok(())
    }

    pub(super) fn retain(&mut self, engine: &mut Engine) -> Result<(), Broken> {
        let later = SystemTime::now() + Duration::from_secs(1_000_000);
        let report = engine.store.retention_round(later, true);
        self.note(|| format!("retention: {report:?}"));
        self.counts.retained_files += engine.store.min_log_offset()
            / self.config.commit_log_file_size
            - self.oracle.expired_to.min(engine.store.min_log_offset())
                / self.config.commit_log_file_size;
        self.oracle.expired_to = self.oracle.expired_to.max(engine.store.min_log_offset());
        let troubled = self.stopped() || self.state.borrow().trouble.full;
        require!(report.is_ok() || troubled, "retention failed: {report:?}");
        Ok(())
    }

    /// Ends a life.
    fn end(&mut self, mut engine: Engine, end: End) -> Result<Expected, Broken> {
        self.note(|| format!("life ends: {end:?}"));
        let misplaced = engine.store.misplaced_entries();
        require!(misplaced == 0, "{misplaced} misplaced entries");
        require!(engine.store.damaged_reads() == 0, "damaged reads");
        let mut end = end;
        if end == End::Closed && !self.close(&mut engine)? {
            end = if self.stopped() {
                End::PowerCut
            } else {
                End::Killed
            };
        }
        self.state.borrow_mut().stop_after = None;
        let marks = engine.store.watermarks();
        // A blank record and the zeros behind it need not survive without a record behind them, and
        // of a record that goes on behind the mark there may be a part.
        let last_record = |mark: u64| {
            let mut ends = self.oracle.known.range(..mark).rev();
            let whole = ends.find(|(_, known)| known.end <= mark);
            whole.map_or(0, |(_, known)| known.end)
        };
        // A failed sync may have lost what was only written.
        let lost = engine.status.read_only().is_some();
        let durable = last_record(marks.durable());
        let mut expected = Expected {
            end,
            at_least: if lost {
                durable
            } else {
                last_record(marks.acknowledged())
            },
            durable,
        };
        if let Some(writer) = &mut engine.writer {
            writer.disk().stop();
        }
        drop(engine);
        for pushed in &mut self.pushed {
            pushed.clear();
        }
        self.state.borrow_mut().stopped = false;
        if end == End::PowerCut {
            self.power_cut(&mut expected);
        } else if self
            .seed
            .chance(1, if self.oracle.expired_to > 0 { 2 } else { 8 })
        {
            // Of what expired only the resume point knows the offsets then.
            self.lose_entries();
        }
        Ok(expected)
    }

    /// Somebody removes the queues, or the index, or both, while no process runs.
    fn lose_entries(&mut self) {
        let which = 1 + self.seed.below(3);
        self.note(|| format!("queues and index are removed: {which:b}"));
        let (trouble, full) = {
            let mut state = self.state.borrow_mut();
            let before = state.trouble;
            state.trouble = Trouble::default();
            (before.failed_syncs, before.full)
        };
        for (bit, directory) in [(1, "consumequeue"), (2, "index")] {
            if which & bit != 0 {
                remove_below(&self.config.root.join(directory)).expect("removed");
            }
        }
        let mut state = self.state.borrow_mut();
        state.trouble.failed_syncs = trouble;
        state.trouble.full = full;
    }

    /// An orderly stop; false if it could not be one.
    pub fn close(&mut self, engine: &mut Engine) -> Result<bool, Broken> {
        if let Some(writer) = &mut engine.writer {
            writer.stop();
        }
        for _ in 0..PATIENCE {
            let turn = self.turn(engine)?;
            if self.stopped() {
                return Ok(false);
            }
            if turn == Turn::Finished {
                let waiting = self.pushed.iter().any(|pushed| !pushed.is_empty());
                require!(!waiting, "a push was never answered");
                let all = engine.end_writer();
                if engine.status.read_only().is_some() {
                    return Ok(false);
                }
                let finished = engine.store.finish(&mut engine.flusher, all);
                self.note(|| format!("closed: {finished:?}"));
                self.counts.clean_stops += u64::from(finished.is_ok());
                return Ok(finished.is_ok());
            }
            engine.dispatcher.step();
            engine.work.turn(true);
            if self.seed.chance(1, 8) {
                self.world();
            }
        }
        Err("the writer does not finish".to_owned())
    }
}
