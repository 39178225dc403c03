//! Makes the tail's memory present off the writer's thread.
//!
//! 64 MiB of huge pages take 10 ms where they are free, and half a second of compaction where the
//! page cache has filled the host: no start and no write waits for that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::tail::Tail;

/// Made present in one go: while it lasts, no thread of the process can map or unmap.
const STEP: usize = 2 << 20;

/// A thread that touches every page of a tail, from where the log goes on.
pub(super) struct Presence {
    done: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Presence {
    pub(super) fn begin(tail: Arc<Tail>) -> io::Result<Presence> {
        let (done, stop) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let thread = std::thread::Builder::new()
            .name("tail-memory".into())
            .spawn({
                let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
                move || {
                    touch(&tail, &stop);
                    done.store(true, Ordering::SeqCst);
                }
            })?;
        Ok(Presence {
            done,
            stop,
            thread: Some(thread),
        })
    }

    /// Whether all is there that could be made present.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

fn touch(tail: &Tail, stop: &AtomicBool) {
    let memory = tail.memory();
    let size = memory.len();
    let begin = (tail.end() % tail.size()) as usize / STEP * STEP;
    for step in 0..size.div_ceil(STEP) {
        let at = (begin + step * STEP) % size.next_multiple_of(STEP);
        let len = STEP.min(size - at);
        // Refused by kernels before 5.14: then registering makes it present.
        if stop.load(Ordering::SeqCst) || memory.populate(at, len).is_err() {
            return;
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // A panic was printed by the panic hook, and cost nothing but speed.
            let _ = thread.join();
        }
    }
}
