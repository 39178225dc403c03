//! The log on stderr, written by a thread of its own: whoever logs never waits for the terminal,
//! the pipe or the disk behind it, and none of them can end the broker (docs/operations.md,
//! "Configuration keys").

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Most lines that wait to be written.
const LINES_MAX: usize = 4096;
/// Most bytes of theirs: clients' words are in some.
const BYTES_MAX: usize = 4 << 20;
/// How long a process that ends waits for its last lines to be written.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The log of this process, once there is one.
static LOG: OnceLock<Lines> = OnceLock::new();

/// Lines on their way to a stream.
#[derive(Debug)]
struct Lines {
    sender: SyncSender<Vec<u8>>,
    state: &'static Waiting,
}

/// What the writing thread shares with those that log.
#[derive(Debug)]
struct Waiting {
    /// Bytes that wait.
    bytes: AtomicUsize,
    /// Lines that were lost: too many waited, or they could not be written.
    lost: AtomicU64,
    /// Lines that wait or are being written.
    left: Mutex<usize>,
    none_left: Condvar,
}

impl Waiting {
    const fn new() -> Waiting {
        Waiting {
            bytes: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            left: Mutex::new(0),
            none_left: Condvar::new(),
        }
    }

    /// Counts a line as done with; its bytes make room at once.
    fn done(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left -= 1;
        if *left == 0 {
            self.none_left.notify_all();
        }
    }
}

impl Lines {
    fn start(out: File, state: &'static Waiting) -> io::Result<Lines> {
        let (sender, receiver) = sync_channel(LINES_MAX);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(out, &receiver, state))?;
        Ok(Lines { sender, state })
    }

    /// Takes a line, or counts it as lost. Never waits for the stream.
    fn put(&self, line: &[u8]) {
        let before = self.state.bytes.fetch_add(line.len(), Ordering::Relaxed);
        *self
            .state
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += 1;
        let fits = before.saturating_add(line.len()) <= BYTES_MAX;
        if !fits || self.sender.try_send(line.to_vec()).is_err() {
            self.state.lost.fetch_add(1, Ordering::Relaxed);
            self.state.done(line.len());
        }
    }

    /// Waits until all lines are written, at most [`LAST_WAIT`].
    fn finish(&self) {
        let left = self.state.left.lock();
        let left = left.unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .state
            .none_left
            .wait_timeout_while(left, LAST_WAIT, |left| *left > 0);
        drop(waited);
    }
}

/// Writes lines until nobody logs any more. Not through `io::stderr`: its lock would be held while
/// the stream stands.
fn write_all(mut out: File, lines: &Receiver<Vec<u8>>, state: &Waiting) {
    let mut told = 0;
    for line in lines {
        let written = out.write_all(&line).is_ok();
        let lost = state.lost.load(Ordering::Relaxed) + u64::from(!written);
        if !written {
            state.lost.fetch_add(1, Ordering::Relaxed);
        } else if lost > told {
            tracing::warn!(lost, "lines of the log were lost: stderr did not take them");
            told = lost;
        }
        state.done(line.len());
    }
}

/// Where the log's lines go: one call of `write` is one line.
#[derive(Clone, Copy, Debug)]
pub struct LineWriter(&'static Lines);

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The writer of this process's log; the first call starts the thread behind it.
///
/// # Errors
/// There is no stderr, or no thread can be started.
pub fn writer() -> io::Result<LineWriter> {
    static STATE: Waiting = Waiting::new();
    if let Some(lines) = LOG.get() {
        return Ok(LineWriter(lines));
    }
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let lines = Lines::start(out, &STATE)?;
    Ok(LineWriter(LOG.get_or_init(|| lines)))
}

/// Lines that were lost so far: too many waited, or stderr did not take them.
pub fn lost() -> u64 {
    LOG.get()
        .map_or(0, |lines| lines.state.lost.load(Ordering::Relaxed))
}

/// The last line on stderr of a process that ends, behind those of the log. Waits for them at most
/// a second.
pub fn end_with(line: Option<&str>) {
    match (LOG.get(), line) {
        (Some(lines), line) => {
            if let Some(line) = line {
                lines.put(format!("{line}\n").as_bytes());
            }
            lines.finish();
        }
        (None, Some(line)) => crate::bench::tell(line),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    fn started() -> (Lines, io::PipeReader) {
        let (read, write) = io::pipe().expect("pipe");
        let state = Box::leak(Box::new(Waiting::new()));
        let lines = Lines::start(File::from(OwnedFd::from(write)), state).expect("a thread");
        (lines, read)
    }

    #[test]
    fn lines_are_written_whole_and_in_order() {
        let (lines, mut read) = started();
        for number in 0..100 {
            lines.put(format!("line {number}\n").as_bytes());
        }
        lines.finish();
        drop(lines);
        let mut text = String::new();
        read.read_to_string(&mut text).expect("lines");
        let expected: String = (0..100).map(|number| format!("line {number}\n")).collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_neither_wait_nor_pile_up() {
        let (lines, mut read) = started();
        let line = vec![b'x'; 1 << 16];
        for _ in 0..1000 {
            lines.put(&line);
        }
        let kept = lines.state.bytes.load(Ordering::Relaxed);
        assert!(kept <= BYTES_MAX, "{kept}");
        let lost = lines.state.lost.load(Ordering::Relaxed);
        let state = lines.state;
        drop(lines);
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).expect("lines");
        assert_eq!(bytes.len() / line.len() + lost as usize, 1000);
        assert_eq!(state.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_that_is_gone_costs_the_lines_and_nothing_else() {
        let (lines, read) = started();
        drop(read);
        lines.put(b"nobody reads this\n");
        lines.finish();
        assert_eq!(lines.state.lost.load(Ordering::Relaxed), 1);
    }
}
