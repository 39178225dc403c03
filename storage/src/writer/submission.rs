//! What the writer asks of the disk: batches, zeros ahead of them, syncs; and the files it asks it
//! for.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    Attached, BATCH_BYTES, BATCHES_IN_FLIGHT, IN_FLIGHT_BYTES, InFlight, LogFile, LogFiles, Now,
    QueueOffsets, Rolled, Staged, Syncing, Writer, ZERO_AHEAD, Zeroing,
};
use crate::config::FlushMode;
use crate::disk::{Disk, Request, Source, ZERO_BYTES};
use crate::seeded::{Fault, seeded};

impl<D, F, Q> Writer<D, F, Q>
where
    D: Disk,
    F: LogFiles<File = D::File>,
    Q: QueueOffsets,
{
    /// Hands staged bytes to the disk: one batch, or several whole ones under backlog. While more
    /// is queued a batch ends with its last whole block; the rest starts the next one.
    pub(super) fn submit_batches(&mut self, staged: Staged, now: Now) {
        let rolling = self.rolling_to.is_some();
        loop {
            let (from, end) = (self.geometry.block_down(self.submitted), self.tail.end());
            let batch_end = if end > from + BATCH_BYTES {
                from + BATCH_BYTES
            } else if staged == Staged::More && !rolling {
                self.geometry.block_down(end)
            } else {
                end
            };
            let whole = rolling || batch_end - from >= BATCH_BYTES;
            let in_turn =
                self.in_flight.is_empty() || (whole && self.in_flight.len() < BATCHES_IN_FLIGHT);
            if batch_end <= self.submitted || !in_turn || self.meets_zeroing(from, batch_end) {
                return;
            }
            self.submit_batch(from, batch_end, now);
        }
    }

    /// Whether a write of these bytes would meet zeros that are under way.
    fn meets_zeroing(&self, from: u64, end: u64) -> bool {
        let Some(zeroing) = &self.zeroing else {
            return false;
        };
        let end = self.geometry.block_up(end);
        self.attached
            .iter()
            .any(|file| file.base == zeroing.base && from < file.zeroing_to && file.zeroed_to < end)
    }

    fn submit_batch(&mut self, from: u64, batch_end: u64, now: Now) {
        let block_end = self.geometry.block_up(batch_end);
        let busy = self
            .in_flight
            .iter()
            .any(|write| !write.done && write.end > from);
        assert!(!busy, "two writes to one block in flight");
        if block_end > batch_end {
            self.tail.zero(batch_end, (block_end - batch_end) as usize);
        }
        let Some(active) = self.attached.back_mut() else {
            return;
        };
        assert_eq!(
            active.base,
            self.geometry.base(from),
            "a batch outside the active file"
        );
        let (slot, base) = (active.slot, active.base);
        let written = self.marks.written().max(base);
        assert!(
            block_end <= written + IN_FLIGHT_BYTES,
            "more in flight than recovery reckons with"
        );
        active.zeroed_to = active.zeroed_to.max(block_end);
        active.zeroing_to = active.zeroing_to.max(active.zeroed_to);
        // The rest of a file behind its blank record is zeros and counts as written with it.
        let last = batch_end == self.tail.end();
        let mark = if last {
            self.marks.appended()
        } else {
            batch_end
        };
        let mut offset = from;
        for (position, len) in self.tail.pieces(from, (block_end - from) as usize) {
            if len == 0 {
                continue;
            }
            let piece_end = offset + len as u64;
            let ticket = self.ticket();
            let request = Request::Write {
                file: slot,
                offset: offset - base,
                len,
                source: Source::Tail(position),
                durable: self.marks.flush_mode() == FlushMode::Sync,
            };
            self.disk.submit(ticket, request);
            let end = if piece_end >= batch_end {
                mark
            } else {
                piece_end
            };
            self.in_flight.push_back(InFlight {
                ticket,
                len,
                end,
                done: false,
                since: now.monotonic,
            });
            offset = piece_end;
        }
        self.metrics.batch_bytes.add(batch_end - self.submitted);
        let written = &self.metrics.log_bytes;
        written.fetch_add(block_end - from, Ordering::Relaxed);
        self.submitted = batch_end;
        if seeded(Fault::EarlyAnswer) {
            self.written_to(mark);
        }
    }

    /// Goes on in the next file once everything of the present one is handed to the disk.
    pub(super) fn roll_if_submitted(&mut self) -> io::Result<Rolled> {
        let end = self.tail.end();
        let Some(base) = self.rolling_to.as_ref().map(|next| next.base) else {
            return Ok(Rolled::No);
        };
        if self.submitted != end {
            return Ok(Rolled::No);
        }
        if base > end && !self.reserve(base) {
            return Ok(Rolled::Blocked);
        }
        let Some(next) = self.rolling_to.take() else {
            return Ok(Rolled::No);
        };
        if base <= end {
            // The file that the log ends in could not be opened before.
            self.attach(next)?;
            return Ok(Rolled::Yes);
        }
        // The blank record's own block is being written and is zero behind it already.
        let from = self.geometry.block_up(end).min(base);
        self.tail.zero(from, (base - from) as usize);
        self.tail.publish(base);
        self.submitted = base;
        self.attach(next)?;
        Ok(Rolled::Yes)
    }

    pub(super) fn attach(&mut self, next: LogFile<D::File>) -> io::Result<()> {
        let slot = self.disk.attach(next.file)?;
        let written = self.geometry.block_up(self.tail.end());
        let zeroed_to = (next.base + next.zeroed_to).max(written);
        self.attached.push_back(Attached {
            slot,
            base: next.base,
            zeroed_to,
            zeroing_to: zeroed_to,
            filling: false,
        });
        Ok(())
    }

    /// Keeps a stretch of zeros ahead of the tail in a file that is not zeroed whole. They are put
    /// down in bursts: the first durable write after a piece of zeros writes the file's map too.
    pub(super) fn zero_ahead(&mut self) {
        let end = self.geometry.block_up(self.tail.end());
        let Some(active) = self.attached.back_mut() else {
            return;
        };
        let file_end = active.base + self.geometry.file_size;
        let wanted = file_end.min(end + ZERO_AHEAD);
        let ahead = active.zeroed_to.saturating_sub(end);
        active.filling = active.zeroed_to < wanted && (active.filling || ahead < ZERO_AHEAD / 2);
        let idle = self.zeroing.is_none() && !self.stopping && self.status.read_only().is_none();
        // Where the tail has caught up, the records themselves are the first to write the blocks.
        if !idle || active.zeroed_to < end || !active.filling {
            return;
        }
        let len = (file_end - active.zeroed_to).min(ZERO_BYTES as u64) as usize;
        let (slot, base, from) = (active.slot, active.base, active.zeroed_to);
        active.zeroing_to = from + len as u64;
        let ticket = self.ticket();
        let request = Request::Write {
            file: slot,
            offset: from - base,
            len,
            source: Source::Zeros,
            durable: false,
        };
        self.disk.submit(ticket, request);
        let zeroed = &self.metrics.zero_bytes;
        zeroed.fetch_add(len as u64, Ordering::Relaxed);
        self.zeroing = Some(Zeroing { ticket, base, len });
    }

    /// Zeros arrived: returns how many bytes they were to be.
    pub(super) fn zeroed(&mut self, ticket: u64) -> usize {
        let zeroing = self.zeroing.take_if(|zeroing| zeroing.ticket == ticket);
        // Every other request is a write or a sync and was looked up before.
        let zeroing = zeroing.expect("a completion belongs to a request");
        if let Some(file) = self
            .attached
            .iter_mut()
            .find(|file| file.base == zeroing.base)
        {
            file.zeroed_to = file.zeroed_to.max(file.zeroing_to);
        }
        zeroing.len
    }

    /// Under asynchronous flush: syncs what is written once per interval, and a finished file at
    /// once.
    pub(super) fn sync_if_due(&mut self, now: Now) {
        let (written, durable) = (self.marks.written(), self.marks.durable());
        let blocked = self.syncing.is_some() || self.status.read_only().is_some();
        if written == durable || blocked {
            return;
        }
        let file_size = self.geometry.file_size;
        let holds = |file: &&Attached| (file.base..file.base + file_size).contains(&durable);
        let Some(file) = self.attached.iter().find(holds) else {
            return;
        };
        let (slot, file_end) = (file.slot, file.base + file_size);
        let due = now.monotonic.saturating_sub(self.last_sync) >= self.flush_interval;
        if !due && !self.stopping && written < file_end {
            return;
        }
        let (ticket, upto) = (self.ticket(), written.min(file_end));
        self.disk.submit(ticket, Request::Sync { file: slot });
        self.syncing = Some(Syncing {
            ticket,
            upto,
            since: now.monotonic,
        });
        self.last_sync = now.monotonic;
    }

    /// How long until the next sync is due, if there will be one.
    pub(super) fn until_sync(&self, now: Now) -> Option<Duration> {
        let pending = self.marks.flush_mode() == FlushMode::Async
            && self.marks.durable() < self.marks.written()
            && self.syncing.is_none()
            && self.status.read_only().is_none();
        let elapsed = now.monotonic.saturating_sub(self.last_sync);
        pending.then(|| self.flush_interval.saturating_sub(elapsed))
    }

    /// Lets go of files whose last byte is durable.
    pub(super) fn release_files(&mut self) {
        let durable = self.marks.durable();
        while self.attached.len() > 1
            && let Some(oldest) = self.attached.front()
            && oldest.base + self.geometry.file_size <= durable
            && self
                .zeroing
                .as_ref()
                .is_none_or(|zeroing| zeroing.base != oldest.base)
        {
            let slot = oldest.slot;
            self.attached.pop_front();
            self.disk.detach(slot);
        }
    }
}
