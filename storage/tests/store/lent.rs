//! A writer whose turns another thread takes.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use saturnmq_storage::config::{FlushMode, StoreConfig};
use saturnmq_storage::dispatch::Waker;
use saturnmq_storage::store::{LentWriter, Opened, Store, StoreState};

use crate::support::{Asleep, Sender, check_filled, fill, open, small_config};

/// A store that lends its writer; none where io_uring does not write it.
fn open_lending(config: &StoreConfig, waker: Arc<dyn Waker>) -> Option<(Opened, LentWriter)> {
    let mut config = config.clone();
    config.lend_writer = true;
    let mut opened = Store::open(config, 2, waker).expect("open");
    let writer = opened.writer.take();
    writer.map(|writer| (opened, writer))
}

/// A thread that takes a writer's turns, as a network core does; tells whether all is over.
struct Turner {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

impl Turner {
    fn start(mut writer: LentWriter) -> Turner {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                writer.turn();
                if !writer.is_due() {
                    sleep_on(&writer);
                }
            }
            writer.descriptor().is_none()
        });
        Turner { stop, thread }
    }

    fn stop(self) -> bool {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the turns do not panic")
    }
}

/// Sleeps until the next turn is due, and looks at the flag of the test now and then.
fn sleep_on(writer: &LentWriter) {
    let Some(descriptor) = writer.descriptor() else {
        std::thread::yield_now();
        return;
    };
    let left = writer
        .next_turn()
        .map(|at| at.saturating_duration_since(Instant::now()));
    let left = left.map_or(50, |left| left.as_millis().min(50)) as u16;
    let mut watched = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::from(left)).expect("poll");
}

#[test]
fn a_lent_writer_serves_all_ports_and_its_own_thread_goes_on_with_it() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = small_config(dir.path());
        config.flush = flush;
        let Some((mut opened, writer)) = open_lending(&config, Arc::new(Asleep)) else {
            return;
        };
        let mut second = Sender::new(opened.ports.remove(1));
        let mut first = Sender::new(opened.ports.remove(0));
        let turner = Turner::start(writer);
        // Over the end of the first log files.
        fill(&opened.store, &mut first, "Orders", 0..900);
        fill(&opened.store, &mut second, "Payments", 0..900);
        assert!(!turner.stop());
        // On its own thread from here on.
        fill(&opened.store, &mut first, "Orders", 900..1100);
        fill(&opened.store, &mut second, "Payments", 900..1000);
        opened.store.close().expect("close");
        let again = open(&config).expect("open again");
        assert!(again.report.clean);
        check_filled(&again.store, "Orders", 1100);
        check_filled(&again.store, "Payments", 1000);
        again.store.close().expect("close");
    }
}

#[test]
fn a_store_closes_in_order_while_its_writer_is_lent_out() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let Some((mut opened, writer)) = open_lending(&config, Arc::new(Asleep)) else {
        return;
    };
    let turner = Turner::start(writer);
    let mut sender = Sender::new(opened.ports.remove(0));
    fill(&opened.store, &mut sender, "Orders", 0..100);
    let queue = opened.store.queue_or_create("Orders", 0);
    sender.push(&queue, b"nobody waits for its answer", b"");
    opened.store.close().expect("close");
    assert!(!dir.path().join("abort").exists());
    assert!(sender.wait().end == opened.store.watermarks().durable());
    assert!(turner.stop());
}

#[test]
fn a_store_whose_lent_writer_was_never_turned_closes_in_order() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let Some((mut opened, writer)) = open_lending(&config, Arc::new(Asleep)) else {
        return;
    };
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Orders", 0);
    sender.push(&queue, b"pushed before anybody turned", b"");
    drop(writer);
    sender.wait();
    opened.store.close().expect("close");
    assert!(open(&config).expect("open again").report.clean);
}

/// Panics where a core would be woken.
struct Panics;

impl Waker for Panics {
    fn wake(&self, _core: usize) {
        panic!("the waker was told to panic");
    }
}

#[test]
fn a_lent_writer_that_panics_in_a_turn_leaves_the_log_read_only() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = small_config(dir.path());
    let Some((mut opened, mut writer)) = open_lending(&config, Arc::new(Panics)) else {
        return;
    };
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Orders", 0);
    sender.push(&queue, b"its answer wakes the core", b"");
    let deadline = Instant::now() + Duration::from_secs(20);
    while catch_unwind(AssertUnwindSafe(|| writer.turn())).is_ok() {
        assert!(Instant::now() < deadline, "no panic in 20 s");
    }
    drop(writer);
    while opened.store.state().is_writable() {
        assert!(Instant::now() < deadline, "writable after a panic");
        std::thread::yield_now();
    }
    let state = opened.store.state();
    assert!(matches!(state, StoreState::ReadOnly(_)), "{state:?}");
    opened.store.close().expect_err("a writer that panicked");
    assert!(dir.path().join("abort").exists());
}
