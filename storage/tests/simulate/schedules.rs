//! Schedules by hand, one for each fault that a seed found: they stay when seeds play others.
//!
//! At a cut nothing survives that was not synced, and names that were not.

use std::rc::Rc;

use super::engine::Engine;
use super::message::{Place, Sent};
use super::oracle::{Broken, End, Expected};
use super::run::{Run, Setting, directory, remove_below};
use crate::config::FlushMode;
use crate::dispatch::Step;
use crate::medium::listen;
use crate::seeded::{Fault, seed_fault};

/// Plays a schedule on a store of small files.
fn scripted(flush: FlushMode, script: impl FnOnce(&mut Run)) {
    scripted_with(None, flush, script);
}

/// Plays a schedule with a seeded fault.
fn scripted_with(fault: Option<Fault>, flush: FlushMode, script: impl FnOnce(&mut Run)) {
    let dir = directory();
    let setting = Setting {
        seed: 1,
        fault,
        traced: false,
    };
    let mut run = Run::new(setting, &dir.path().join("store"));
    run.config.flush = flush;
    run.config.commit_log_file_size = 16_384;
    run.config.consume_queue_file_size = 200;
    run.config.flush_interval = std::time::Duration::from_millis(5);
    run.config.index_slots = 3;
    run.config.index_items = 40;
    run.config.append_ring_bytes = 100_000;
    run.config.dispatch_queue_items = 64;
    run.config.max_mappings = 100;
    run.config.resume_bytes = 1 << 40;
    run.state.borrow_mut().drops_all = true;
    listen(Some(Rc::clone(&run.state) as _));
    seed_fault(fault);
    script(&mut run);
    seed_fault(None);
    listen(None);
}

impl Run {
    /// A start that may be interrupted.
    fn try_open(&mut self, stop_after: Option<u64>) -> Option<Engine> {
        self.state.borrow_mut().stop_after = stop_after;
        let opened = Engine::open(&self.config, &self.state, self.disk);
        self.state.borrow_mut().stop_after = None;
        let stopped = self.state.borrow().stopped;
        self.state.borrow_mut().stopped = false;
        match opened {
            Ok(engine) if !stopped => Some(engine),
            Ok(_) => None,
            Err(error) => {
                assert!(stopped, "not opened: {error}");
                None
            }
        }
    }

    fn open_now(&mut self) -> Engine {
        self.try_open(None).expect("nobody stops this start")
    }

    /// Sends messages round all queues, until they are answered and dispatched.
    fn send(&mut self, engine: &mut Engine, count: u64, size: usize) {
        let places: Vec<_> = super::oracle::places().collect();
        self.send_to(engine, &places, count, size);
    }

    /// As [`Run::send`], round these queues.
    fn send_to(&mut self, engine: &mut Engine, places: &[Place], count: u64, size: usize) {
        self.send_with(engine, places, (count, size), true);
    }

    /// As [`Run::send_to`]; with `prepares` the preparer has its turns.
    fn send_with(
        &mut self,
        engine: &mut Engine,
        places: &[Place],
        (count, size): (u64, usize),
        prepares: bool,
    ) {
        for _ in 0..count {
            let sent = Sent {
                token: self.next_token,
                place: places[self.next_token as usize % places.len()],
                sys_flag: 0,
                bodies: vec![size],
                light: 0,
            };
            sent.push(&mut engine.ports[0], &engine.store).unwrap();
            self.next_token += 1;
            self.pushed[0].push_back(sent.token);
            self.oracle.sent.insert(sent.token, sent);
            while !self.pushed[0].is_empty() {
                self.turn(engine).unwrap();
                if prepares {
                    engine.work.turn(true);
                }
                // The writer waits for the dispatcher where that falls behind.
                engine.dispatcher.step();
            }
        }
        while engine.dispatcher.step() == Step::Dispatched {}
    }

    fn close_now(&mut self, mut engine: Engine) {
        assert!(self.close(&mut engine).unwrap());
    }

    fn kill(&mut self, mut engine: Engine) {
        if let Some(writer) = &mut engine.writer {
            writer.disk().stop();
        }
    }

    fn cut(&mut self) {
        self.state.borrow_mut().cut();
        crate::former_run::lose_page_cache();
    }

    /// The store holds what it must.
    fn check(&mut self, engine: &mut Engine, at_least: u64) {
        self.checked(engine, at_least).unwrap();
    }

    fn checked(&mut self, engine: &mut Engine, at_least: u64) -> Result<(), Broken> {
        let expected = Expected {
            end: End::PowerCut,
            at_least,
            durable: at_least,
        };
        let mut seed = crate::disk::faulty::Seed(7);
        self.oracle.check_recovered(engine, expected, &mut seed)
    }

    /// Removes what is in a directory of the store.
    fn lose(&mut self, directory: &str) {
        remove_below(&self.config.root.join(directory)).unwrap();
    }
}

#[test]
fn queues_that_a_killed_start_made_again_outlive_a_power_cut() {
    for lost in ["consumequeue", "index"] {
        for stop_after in 0..60 {
            scripted(FlushMode::Sync, |run| {
                let mut engine = run.open_now();
                run.send(&mut engine, 60, 300);
                let end = engine.store.watermarks().acknowledged();
                run.close_now(engine);
                run.lose(lost);
                if let Some(engine) = run.try_open(Some(stop_after)) {
                    run.kill(engine);
                }
                let mut engine = run.open_now();
                run.check(&mut engine, end);
                run.kill(engine);
                run.cut();
                let mut engine = run.open_now();
                run.check(&mut engine, end);
            });
        }
    }
}

#[test]
fn a_start_that_ends_between_two_log_files_it_removes_leaves_no_gap() {
    for stop_after in 0..60 {
        scripted(FlushMode::Sync, |run| {
            let mut engine = run.open_now();
            run.send(&mut engine, 40, 300);
            let end = engine.store.watermarks().acknowledged();
            let size = run.config.commit_log_file_size;
            let next = end - end % size + size;
            run.kill(engine);
            for base in [next, next + size, next + 2 * size] {
                let name = crate::layout::file_name(base);
                let path = run.config.commit_log_path().join(name);
                if !path.exists() {
                    let file = crate::medium::name(&path, || std::fs::File::create(&path));
                    file.and_then(|file| file.set_len(size)).unwrap();
                }
            }
            crate::medium::sync_directory(&run.config.commit_log_path()).unwrap();
            if let Some(engine) = run.try_open(Some(stop_after)) {
                run.kill(engine);
            }
            run.cut();
            let mut engine = run.open_now();
            run.check(&mut engine, end);
        });
    }
}

#[test]
fn a_lost_queue_that_the_newest_records_began_again_gets_its_older_entries_too() {
    scripted(FlushMode::Sync, |run| {
        let mut engine = run.open_now();
        run.send(&mut engine, 30, 300);
        run.close_now(engine);
        let mut engine = run.open_now();
        run.send(&mut engine, 30, 300);
        let end = engine.store.watermarks().acknowledged();
        run.kill(engine);
        run.lose("consumequeue/Harbour/1");
        for _ in 0..2 {
            let mut engine = run.open_now();
            run.check(&mut engine, end);
            run.kill(engine);
        }
    });
}

#[test]
fn index_items_that_recovery_cut_do_not_come_back_with_the_resume_point() {
    scripted(FlushMode::Async, |run| {
        // No sync of the log but at an orderly stop.
        run.config.flush_interval = std::time::Duration::from_secs(1_000_000);
        let mut engine = run.open_now();
        run.send(&mut engine, 12, 300);
        let end = engine.store.watermarks().acknowledged();
        run.close_now(engine);
        let mut engine = run.open_now();
        run.send(&mut engine, 12, 300);
        // The index is on the disk with records that the log can lose.
        engine.flusher.make(engine.flusher.made).unwrap();
        run.kill(engine);
        run.cut();
        let mut engine = run.open_now();
        run.check(&mut engine, end);
        run.send(&mut engine, 6, 300);
        let end = engine.store.watermarks().acknowledged();
        run.kill(engine);
        let mut engine = run.open_now();
        run.check(&mut engine, end);
    });
}

#[test]
fn what_async_flush_acknowledged_is_on_the_disk_once_the_interval_is_over() {
    scripted(FlushMode::Async, |run| {
        let interval = std::time::Duration::from_secs(3600);
        run.config.flush_interval = interval;
        let mut engine = run.open_now();
        run.send(&mut engine, 12, 300);
        let marks = std::sync::Arc::clone(engine.store.watermarks());
        let end = marks.acknowledged();
        assert!(marks.durable() < end);
        // The messages took no minute.
        let over = 1_700_000_060_000 + interval.as_millis() as i64;
        for _ in 0..1000 {
            engine.turn(over);
        }
        assert_eq!(marks.durable(), end);
        run.kill(engine);
        run.cut();
        let mut engine = run.open_now();
        run.check(&mut engine, end);
    });
}

#[test]
fn a_start_serves_while_its_next_log_file_is_not_made() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        scripted(flush, |run| {
            let mut engine = run.open_now();
            run.send(&mut engine, 40, 300);
            run.kill(engine);
            // Whatever the preparer does waits for the disk for ever.
            let mut engine = run.open_now();
            let places: Vec<_> = super::oracle::places().collect();
            run.send_with(&mut engine, &places, (4, 300), false);
            let end = engine.store.watermarks().acknowledged();
            for place in places {
                run.oracle.pull(&mut engine, place, 0).unwrap();
            }
            run.kill(engine);
            let mut engine = run.open_now();
            run.check(&mut engine, end);
        });
    }
}

/// All records of a queue expire, and then its files are lost: its next offset stays.
fn expired_and_lost(fault: Option<Fault>) -> Result<(), Broken> {
    let mut outcome = Ok(());
    scripted_with(fault, FlushMode::Sync, |run| {
        let mut engine = run.open_now();
        run.send(&mut engine, 24, 300);
        let last = super::oracle::places().last().expect("a place");
        run.send_to(&mut engine, &[last], 150, 300);
        // With it comes a resume point behind whole log files.
        run.close_now(engine);
        let mut engine = run.open_now();
        run.retain(&mut engine).unwrap();
        for _ in 0..50 {
            engine.work.turn(true);
        }
        assert!(engine.store.min_log_offset() > 0);
        let end = engine.store.watermarks().acknowledged();
        run.close_now(engine);
        run.lose("consumequeue");
        let mut engine = run.open_now();
        outcome = run.checked(&mut engine, end);
        run.kill(engine);
    });
    outcome
}

#[test]
fn next_offsets_outlive_expired_records_and_lost_queues() {
    assert_eq!(expired_and_lost(None), Ok(()));
}

#[test]
fn offsets_taken_from_queues_alone_are_found() {
    assert_ne!(expired_and_lost(Some(Fault::OffsetsFromQueues)), Ok(()));
}

/// Under asynchronous flush a resume point is made while records are not durable, and a power cut
/// takes those: whether a queue goes on without a gap.
fn cut_before_the_sync(fault: Option<Fault>) -> bool {
    let mut goes_on = true;
    scripted_with(fault, FlushMode::Async, |run| {
        // No sync of the log but of its first write, and at an orderly stop.
        run.config.flush_interval = std::time::Duration::from_secs(1_000_000);
        let mut engine = run.open_now();
        run.send(&mut engine, 12, 300);
        let end = engine.store.watermarks().acknowledged();
        run.close_now(engine);
        let mut engine = run.open_now();
        run.send(&mut engine, 12, 300);
        let sent = engine.store.watermarks().acknowledged();
        engine.flusher.make(engine.flusher.made).unwrap();
        run.kill(engine);
        run.cut();
        let mut engine = run.open_now();
        assert!(
            engine.report.log_end < sent,
            "the cut took what was not synced"
        );
        run.check(&mut engine, end);
        let gap = |queue: &crate::queue_table::Queue| queue.next_offset() > queue.max_offset();
        goes_on = !engine.store.queues().iter().any(|queue| gap(queue));
        run.kill(engine);
    });
    goes_on
}

#[test]
fn a_queue_goes_on_without_a_gap_where_a_power_cut_took_its_newest_messages() {
    assert!(cut_before_the_sync(None));
}

#[test]
fn offsets_of_records_that_are_not_durable_in_a_resume_point_are_found() {
    assert!(!cut_before_the_sync(Some(Fault::OffsetsAhead)));
}
