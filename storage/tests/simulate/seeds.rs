//! Many seeds, single ones that found something, and faults that must be found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::run::{Counts, Outcome, Setting, play};
use crate::seeded::Fault;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

fn run_one(seed: u64, fault: Option<Fault>, traced: bool) -> Outcome {
    play(Setting {
        seed,
        fault,
        traced,
    })
}

/// Runs seeds from `from` on, at most `count`, on all processors, until one breaks a promise.
/// Returns the lowest of those that were seen to break one, and what all did together.
fn search(from: u64, count: u64, fault: Option<Fault>) -> (Option<(u64, String)>, Counts) {
    let next = AtomicU64::new(from);
    let found = AtomicBool::new(false);
    let results = Mutex::new((None::<(u64, String)>, Counts::default()));
    let keep_on = number("SATURNMQ_SIMULATE_KEEP_ON").is_some();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !found.load(Ordering::SeqCst) {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= from + count {
                        return;
                    }
                    let outcome = run_one(seed, fault, false);
                    let mut results = results.lock().expect("results");
                    results.1.add(&outcome.counts);
                    // What breaks without the fault too says nothing about the fault.
                    let without = |seed| run_one(seed, None, false).broken;
                    if let Some(why) = outcome.broken
                        && (fault.is_none() || without(seed).is_none())
                    {
                        if keep_on {
                            println!("seed {seed} broke: {why}");
                        } else {
                            found.store(true, Ordering::SeqCst);
                        }
                        if results.0.as_ref().is_none_or(|(before, _)| seed < *before) {
                            results.0 = Some((seed, why));
                        }
                    }
                }
            });
        }
    });
    results.into_inner().expect("results")
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.acknowledged += other.acknowledged;
        self.recoveries += other.recoveries;
        self.cuts += other.cuts;
        self.latched += other.latched;
        self.refused += other.refused;
        self.clean_stops += other.clean_stops;
        self.retained_files += other.retained_files;
    }
}

/// Plays a seed once more with a trace, and shows it.
fn report(seed: u64, fault: Option<Fault>) -> String {
    let outcome = run_one(seed, fault, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    let broken = outcome.broken.unwrap_or_else(|| "nothing".to_owned());
    format!("seed {seed} broke: {broken}\n(scripts/simulate --seed {seed} shows the run)")
}

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("SATURNMQ_SIMULATE_SEED") {
        let outcome = run_one(seed, None, true);
        for line in &outcome.trace {
            println!("{line}");
        }
        assert_eq!(outcome.broken, None, "seed {seed}");
        println!("seed {seed}: every promise was kept; {:?}", outcome.counts);
        return;
    }
    let from = number("SATURNMQ_SIMULATE_FROM").unwrap_or(0);
    let count = number("SATURNMQ_SIMULATE_SEEDS").unwrap_or(20);
    let (found, counts) = search(from, count, None);
    println!("{count} seeds from {from} on: {counts:?}");
    if let Some((seed, _)) = found {
        panic!("{}", report(seed, None));
    }
}

#[test]
fn one_seed_replays_one_run() {
    for seed in [3, 17] {
        let (first, second) = (run_one(seed, None, true), run_one(seed, None, true));
        assert_eq!(first.counts, second.counts, "seed {seed}");
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
    }
}

/// Faults, each of which must be found within this many seeds.
const SEEDS_PER_FAULT: u64 = 1000;

/// Schedules by hand find two: [`Fault::OffsetsFromQueues`] needs a queue whose records all expired
/// and whose files are lost then, which seeds seldom come to, and [`Fault::OffsetsAhead`] leaves a
/// gap, which a start between a kill and a power cut may leave as well under asynchronous flush.
const FAULTS: [Fault; 14] = [
    Fault::NoZeroing,
    Fault::EarlyDispatch,
    Fault::EarlyAnswer,
    Fault::SyncAgain,
    Fault::NoBlank,
    Fault::UnsyncedResume,
    Fault::ShortIsWhole,
    Fault::OutOfOrder,
    Fault::UnsyncedName,
    Fault::NoSyncOfFound,
    Fault::KeepEntries,
    Fault::KeepItems,
    Fault::LightOffsetsAgain,
    Fault::NoLightEntries,
];

/// Those that are found at once stand for all where nobody asked for all of them.
const FOUND_AT_ONCE: [Fault; 2] = [Fault::EarlyAnswer, Fault::NoBlank];

#[test]
fn every_seeded_fault_is_found() {
    let mut missed = Vec::new();
    let all = number("SATURNMQ_SIMULATE_FAULTS").is_some();
    let faults = if all { &FAULTS[..] } else { &FOUND_AT_ONCE };
    for &fault in faults {
        let (found, _) = search(0, SEEDS_PER_FAULT, Some(fault));
        match found {
            Some((seed, why)) => println!("{fault:?}: seed {seed}: {why}"),
            None => missed.push(fault),
        }
    }
    assert!(
        missed.is_empty(),
        "not found in {SEEDS_PER_FAULT} seeds: {missed:?}"
    );
}

/// A sync that failed takes any part of the page cache with it, and a kill shows that: the bound in
/// `abort` is void then. Believed, a hole in the log was taken for damage of something durable.
#[test]
fn a_kill_after_a_failed_sync_ends_the_log_before_what_it_lost() {
    for seed in [438, 1634] {
        assert_eq!(run_one(seed, None, false).broken, None, "seed {seed}");
    }
}

/// All records of a queue had expired, and a cut emptied the file that the next one had begun: the
/// queue showed offsets before its first record, blank entries, as its beginning.
#[test]
fn a_queue_whose_only_file_a_cut_emptied_begins_with_its_first_record() {
    assert_eq!(run_one(3_001_531, None, false).broken, None);
}
