//! The writer's turns on another thread: where there is one network core, it takes them itself, so
//! that a send wakes neither the writer nor, for its answer, the core.
//!
//! What must always hold: one thread at a time has the writer; a thread that gives it up leaves
//! nothing in flight, because the kernel may end with a thread what it had asked for; a writer that
//! panicked in a turn is never turned again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::thread::{AFTER_FAILED_WAIT, Wake, turn_until_finished};
use super::{Now, QueueOffsets, Turn, Writer};
use crate::append_queue::Doorbell;
use crate::disk::uring::UringDisk;
use crate::preparer::PreparedFiles;

/// Turns in a row before whoever takes them looks after its other work.
const TURNS_IN_A_ROW: usize = 4;

/// A writer that goes from thread to thread.
pub(super) trait Turns: Send {
    /// One turn, and the start of what it asked the disk for. After an error of that the log is
    /// read-only, and there is nothing that a turn at once would change.
    fn turn(&mut self, stopping: bool) -> io::Result<Turn>;
    /// Whether an entry waits in some port.
    fn has_entries(&self) -> bool;
    /// Waits until nothing is in flight.
    fn settle(&mut self);
    /// Turns until all is over, sleeping on the disk.
    fn turn_until_finished(&mut self);
}

/// A writer, what wakes it and what it wakes.
struct Turning<Q> {
    writer: Writer<UringDisk, PreparedFiles, Q>,
    wake: Wake,
    bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
    started: Instant,
}

impl<Q: QueueOffsets + Send> Turns for Turning<Q> {
    fn turn(&mut self, stopping: bool) -> io::Result<Turn> {
        if stopping {
            self.writer.stop();
        }
        let turn = self.writer.turn(Now::read(self.started), &mut *self.wake);
        if let Err(error) = self.writer.disk().before_sleep() {
            self.writer
                .latch(&format!("starting a write failed: {error}"));
            // Of an end that came to pass nothing is left to start.
            return match turn {
                Turn::Finished => Ok(turn),
                _ => Err(error),
            };
        }
        Ok(turn)
    }

    fn has_entries(&self) -> bool {
        self.writer.has_entries()
    }

    fn settle(&mut self) {
        if let Err(error) = self.writer.settle(Now::read(self.started)) {
            let why = format!("waiting for the disk failed: {error}");
            self.writer.latch(&why);
        }
    }

    fn turn_until_finished(&mut self) {
        let (bell, stop) = (&*self.bell, &*self.stop);
        let wake = &mut *self.wake;
        turn_until_finished(&mut self.writer, (bell, stop), self.started, wake);
    }
}

/// The writer, lent to the thread that holds this: nothing is written unless it takes the turns.
/// Dropping it gives the writer back to its own thread.
pub struct LentWriter {
    /// None once it was given back.
    writer: Option<Box<dyn Turns>>,
    back: mpsc::SyncSender<Box<dyn Turns>>,
    bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
    descriptor: OwnedFd,
    next: Next,
}

/// When the next turn is due, besides when the descriptor says so: what the last one said.
#[derive(Default)]
struct Next {
    at: Option<Instant>,
    /// At once.
    busy: bool,
    /// When entries come.
    welcome: bool,
    /// It has been told to stop.
    stopping: bool,
}

/// Lends out a writer; the receiver gets it back.
pub(super) fn lend<Q: QueueOffsets + Send + 'static>(
    mut writer: Writer<UringDisk, PreparedFiles, Q>,
    wake: Wake,
    bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
) -> io::Result<(LentWriter, mpsc::Receiver<Box<dyn Turns>>)> {
    let descriptor = writer.disk().descriptor()?;
    let turning = Turning {
        writer,
        wake,
        bell: Arc::clone(&bell),
        stop: Arc::clone(&stop),
        started: Instant::now(),
    };
    let (back, returned) = mpsc::sync_channel(1);
    let next = Next {
        busy: true,
        ..Next::default()
    };
    let lent = LentWriter {
        writer: Some(Box::new(turning)),
        back,
        bell,
        stop,
        descriptor,
        next,
    };
    Ok((lent, returned))
}

impl LentWriter {
    /// Readable when a turn is due; none once all is over.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.writer.as_ref().map(|_| self.descriptor.as_fd())
    }

    /// Takes the turns that are due.
    pub fn turn(&mut self) {
        self.bell.get_up();
        // Not there while it turns: a panic takes it along.
        let Some(mut writer) = self.writer.take() else {
            return;
        };
        let stopping = self.stop.load(Ordering::SeqCst);
        self.next = Next {
            stopping,
            ..Next::default()
        };
        let after = |pause: Option<Duration>| pause.map(|pause| Instant::now() + pause);
        for turn in 1..=TURNS_IN_A_ROW {
            match writer.turn(stopping) {
                Ok(Turn::Busy) => self.next.busy = turn == TURNS_IN_A_ROW,
                Ok(Turn::WaitForDisk(pause)) => {
                    self.next.at = after(pause);
                    break;
                }
                Ok(Turn::WaitForWork(pause)) => {
                    self.next.at = after(pause);
                    self.next.welcome = true;
                    break;
                }
                Err(_) => {
                    // Whoever pushes meanwhile is answered with the next turn.
                    self.next.at = after(Some(AFTER_FAILED_WAIT));
                    break;
                }
                Ok(Turn::Finished) => {
                    // Its own thread sees to the end.
                    let _ = self.back.send(writer);
                    return;
                }
            }
        }
        self.writer = Some(writer);
    }

    /// Takes the turns that are due since the last ones because entries came.
    pub fn turn_for_entries(&mut self) {
        if self.next.welcome && self.has_entries() {
            self.turn();
        }
    }

    /// Asked before a sleep: whether a turn is due at once. If not, the sleep is to end with the
    /// descriptor or at [`LentWriter::next_turn`].
    pub fn is_due(&self) -> bool {
        if self.next.welcome {
            self.bell.lie_down();
        }
        self.next.busy
            || (self.next.welcome && self.has_entries())
            || self.stop.load(Ordering::SeqCst) != self.next.stopping
    }

    /// When a turn is due by itself.
    pub fn next_turn(&self) -> Option<Instant> {
        self.next.at
    }

    fn has_entries(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|writer| writer.has_entries())
    }
}

impl Drop for LentWriter {
    fn drop(&mut self) {
        self.bell.get_up();
        if let Some(mut writer) = self.writer.take() {
            writer.settle();
            // Its thread waits for it.
            let _ = self.back.send(writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose disk starts nothing any more.
    struct Failing;

    impl Turns for Failing {
        fn turn(&mut self, _stopping: bool) -> io::Result<Turn> {
            Err(io::ErrorKind::OutOfMemory.into())
        }

        fn has_entries(&self) -> bool {
            true
        }

        fn settle(&mut self) {}

        fn turn_until_finished(&mut self) {}
    }

    #[test]
    fn a_disk_that_starts_nothing_does_not_keep_its_thread_busy() {
        let bell = Arc::new(Doorbell::new().expect("eventfd"));
        let descriptor = bell.as_fd().try_clone_to_owned().expect("descriptor");
        let (back, returned) = mpsc::sync_channel(1);
        let mut lent = LentWriter {
            writer: Some(Box::new(Failing)),
            back,
            bell,
            stop: Arc::default(),
            descriptor,
            next: Next::default(),
        };
        for _ in 0..3 {
            lent.turn();
            assert!(!lent.is_due(), "the next turn is due at once");
            assert!(lent.next_turn().is_some(), "no turn answers who pushes");
        }
        lent.stop.store(true, Ordering::SeqCst);
        assert!(lent.is_due(), "a stop waits for nothing");
        drop(lent);
        assert!(returned.recv().is_ok(), "its own thread ends it");
    }
}
