//! Reads a quiet log ahead of a walk along it: in large pieces, on a thread of its own, past the
//! page cache. So the walk neither waits for the disk nor copies what it walks along.
//!
//! What must always hold: pieces follow one another without a gap. Where they end, for whatever
//! reason (the log's end, an error, a disk that cannot be read so), the walk reads by itself, and
//! an error is met where it is.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::{LogWindow, WindowLimits};
use crate::disk::aligned::AlignedMemory;
use crate::disk::probe::LARGEST_BLOCK;

/// Bytes of the log that are read at once.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// Room in front of them, for what a walk still holds of a record that goes on in them.
pub(super) const ROOM_BYTES: usize = 256 << 10;
/// Pieces under way besides the one that the walk holds.
const PIECES: usize = 2;
/// Reads one behind the other that make a walk: whoever looks at a single record asks for no more.
const READS_OF_A_WALK: usize = 4;

/// A piece of the log, behind [`ROOM_BYTES`] of memory.
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) len: usize,
    pub(super) memory: AlignedMemory,
}

impl Piece {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len as u64
    }
}

/// Whether a window is walked along, and what reads ahead of that walk.
#[derive(Default)]
pub(super) struct Walk {
    reads: usize,
    reading: Option<Reading>,
    /// Nothing can be read ahead any more.
    over: bool,
}

/// The thread that reads.
struct Reading {
    /// Never locked: a window can be looked at by many threads, and walked along by one.
    ready: Option<Mutex<Receiver<Piece>>>,
    used: Option<SyncSender<AlignedMemory>>,
    thread: Option<JoinHandle<()>>,
}

impl Walk {
    /// The next piece that ends behind `offset`, where a window that ended at `end` is to be filled
    /// in order; `None` if it is to be read otherwise.
    pub(super) fn piece(&mut self, window: LogWindow, end: u64, offset: u64) -> Option<Piece> {
        if self.over {
            return None;
        }
        if self.reading.is_none() {
            self.reads += 1;
            if self.reads < READS_OF_A_WALK {
                return None;
            }
            self.reading = Reading::begin(window, end);
        }
        loop {
            match self.reading.as_mut().and_then(Reading::next) {
                Some(piece) if piece.end() > offset => return Some(piece),
                Some(piece) => self.give_back(Some(piece.memory)),
                None => {
                    self.reading = None;
                    self.over = true;
                    return None;
                }
            }
        }
    }

    /// Memory that is not held any more; other memory takes its place where it is too small.
    pub(super) fn give_back(&mut self, memory: Option<AlignedMemory>) {
        let Some(reading) = &self.reading else { return };
        let fits = memory.filter(|memory| memory.len() == ROOM_BYTES + PIECE_BYTES);
        if let Some(memory) = fits.or_else(new_memory)
            && let Some(used) = &reading.used
        {
            // A reader that has ended needs none.
            let _ = used.try_send(memory);
        }
    }

    /// What comes next does not follow what came last.
    pub(super) fn leaves(&mut self) {
        self.reading = None;
        self.reads = 0;
    }
}

fn new_memory() -> Option<AlignedMemory> {
    AlignedMemory::new(ROOM_BYTES + PIECE_BYTES).ok()
}

impl Reading {
    /// Reads from the last place before `from` at which a read can begin; `None` without memory or
    /// a thread.
    fn begin(mut window: LogWindow, from: u64) -> Option<Reading> {
        let start = from - (from - window.base_of(from)) % LARGEST_BLOCK;
        let (used, unused) = sync_channel(PIECES + 1);
        for _ in 0..PIECES {
            used.try_send(new_memory()?).ok()?;
        }
        let (give, ready) = sync_channel(PIECES);
        let thread = Builder::new()
            .name("log-ahead".into())
            .spawn(move || read(&mut window, start, &unused, &give));
        Some(Reading {
            ready: Some(Mutex::new(ready)),
            used: Some(used),
            thread: Some(thread.ok()?),
        })
    }

    fn next(&mut self) -> Option<Piece> {
        let ready = self.ready.as_mut()?.get_mut();
        let ready = ready.unwrap_or_else(PoisonError::into_inner);
        ready.recv().ok()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.ready = None;
        self.used = None;
        if let Some(thread) = self.thread.take() {
            // It gives up with its next piece, and a panic of it has cost only speed.
            let _ = thread.join();
        }
    }
}

/// Reads piece after piece into memory that is not used, until one cannot be had.
fn read(
    window: &mut LogWindow,
    mut start: u64,
    unused: &Receiver<AlignedMemory>,
    give: &SyncSender<Piece>,
) {
    let limits = WindowLimits {
        end: u64::MAX,
        // All of it directly.
        active_base: 0,
    };
    while let Ok(mut memory) = unused.recv() {
        let target = &mut memory.as_mut_slice()[ROOM_BYTES..];
        let Ok(Some(len)) = window.read_into(start, target, limits) else {
            return;
        };
        let piece = Piece { start, len, memory };
        let next = piece.end();
        let goes_on = (next - window.base_of(start)).is_multiple_of(LARGEST_BLOCK)
            || next == window.base_of(start) + window.file_size();
        if give.send(piece).is_err() || !goes_on {
            return;
        }
        start = next;
    }
}
