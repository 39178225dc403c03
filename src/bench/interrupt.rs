//! Ctrl-C, and the polite request to end: the first one ends what is measured, with the result so
//! far. The process ends at once where nothing has been measured yet, and where the one before has
//! not been seen.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use super::{BenchError, tell};

/// Exit code of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// A request came and was not taken.
static WAITING: AtomicBool = AtomicBool::new(false);
/// There is a result so far, or will be.
static MEASURING: AtomicBool = AtomicBool::new(false);

/// Takes the requests over from now on; called before any other thread is made, for those inherit
/// that they are not ended. Where the system refuses, a request ends the process as usual.
pub fn attend() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        if set.thread_block().is_err() {
            return;
        }
        let wait = move || {
            while set.wait().is_ok() {
                came();
            }
        };
        let thread = thread::Builder::new().name("interrupt".to_owned());
        if thread.spawn(wait).is_err() {
            let _ = set.thread_unblock();
        }
    });
}

fn came() {
    if !MEASURING.load(Ordering::SeqCst) {
        tell("saturnmq: interrupted before anything was measured");
        std::process::exit(INTERRUPTED);
    }
    if WAITING.swap(true, Ordering::SeqCst) {
        tell("saturnmq: interrupted twice: there is no result");
        std::process::exit(INTERRUPTED);
    }
}

/// From now on a request waits until it is taken.
pub fn begin_measuring() {
    MEASURING.store(true, Ordering::SeqCst);
}

/// Whether a request waits.
pub fn is_waiting() -> bool {
    WAITING.load(Ordering::SeqCst)
}

/// Whether a request waited; the next one does so again.
pub fn take() -> bool {
    WAITING.swap(false, Ordering::SeqCst)
}

/// Ends the preparation of a further step when a request waits.
///
/// # Errors
/// [`BenchError::Interrupted`] then.
pub fn check() -> Result<(), BenchError> {
    if is_waiting() {
        return Err(BenchError::Interrupted);
    }
    Ok(())
}

/// A second request while the first is honoured: there is no result.
pub fn give_up() -> ! {
    std::process::exit(INTERRUPTED)
}
