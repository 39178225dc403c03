//! From the ports into the tail: which entries are taken, and when the log goes on in a new file.

use std::sync::atomic::Ordering;

use super::{
    BATCH_BYTES, BATCHES_IN_FLIGHT, LogFiles, NextFile, Now, QueueOffsets, Rolled, Staged, Writer,
    ZERO_AHEAD,
};
use crate::append::{Place, stage};
use crate::append_queue::{AppendFailure, Entry};
use crate::commit_log::BLANK_SIZE;
use crate::disk::{Disk, MAX_FILES};
use crate::seeded::{Fault, seeded};

/// What became of one entry.
enum Step {
    Taken,
    Rolling,
    Blocked,
}

impl<D, F, Q> Writer<D, F, Q>
where
    D: Disk,
    F: LogFiles<File = D::File>,
    Q: QueueOffsets,
{
    pub(super) fn stage_and_submit(&mut self, now: Now) -> Staged {
        if self.status.read_only().is_some() {
            return self.refuse_all();
        }
        loop {
            self.marks.stages();
            let staged = self.stage_entries(now);
            self.marks.stages();
            self.submit_batches(staged, now);
            match self.roll_if_submitted() {
                Ok(Rolled::Yes) => {}
                Ok(Rolled::No) => return staged,
                Ok(Rolled::Blocked) => return Staged::Blocked,
                Err(error) => {
                    self.latch(&format!("the next log file could not be opened: {error}"));
                    return self.refuse_all();
                }
            }
        }
    }

    fn refuse_all(&mut self) -> Staged {
        let why = self.latched();
        for port in 0..self.ports.len() {
            while let Some(entry) = self.ports[port].peek() {
                self.ports[port].take(&entry, |_, _| ());
                let why = why.clone().unwrap_or(AppendFailure::ShuttingDown);
                self.unanswered
                    .refused(port, entry, self.marks.appended(), why);
            }
        }
        Staged::Dry
    }

    /// Takes entries round-robin until the ports are dry, enough for all batches is staged, or
    /// something is in the way.
    fn stage_entries(&mut self, now: Now) -> Staged {
        if self.rolling_to.is_some() {
            return Staged::More;
        }
        if self.last_block_in_flight() {
            return if self.has_entries() {
                Staged::More
            } else {
                Staged::Dry
            };
        }
        let free = BATCHES_IN_FLIGHT
            .saturating_sub(self.in_flight.len())
            .max(1) as u64;
        let mut wall_ms = None;
        let mut dry_ports = 0;
        while dry_ports < self.ports.len() {
            if self.tail.end() - self.submitted >= free * BATCH_BYTES {
                return Staged::More;
            }
            let port = self.next_port;
            match self.ports[port].peek_seen() {
                None => {
                    dry_ports += 1;
                    if dry_ports == self.ports.len() && self.look() {
                        dry_ports = 0;
                        wall_ms = Some(self.wall_ms(now));
                    }
                }
                Some(entry) => {
                    dry_ports = 0;
                    let wall_ms = *wall_ms.get_or_insert_with(|| self.wall_ms(now));
                    match self.stage_entry(wall_ms, port, entry) {
                        Step::Taken => {}
                        Step::Rolling => return Staged::More,
                        Step::Blocked => return Staged::Blocked,
                    }
                }
            }
            self.next_port = (port + 1) % self.ports.len();
        }
        Staged::Dry
    }

    /// Sees what the ports have by now; whether that is anything.
    fn look(&mut self) -> bool {
        let mut any = false;
        for port in &mut self.ports {
            any |= port.look();
        }
        any
    }

    /// The time of the entries that were seen: no record is stored before it was sent, however long
    /// this turn takes. What comes due is counted from it.
    fn wall_ms(&self, now: Now) -> i64 {
        self.clock.map_or(now.wall_ms, |clock| clock())
    }

    /// Whether the block that the next record starts in is being written: its buffer must not
    /// change.
    fn last_block_in_flight(&self) -> bool {
        let end = self.tail.end();
        self.submitted == end
            && self.geometry.block_down(end) != end
            && self
                .in_flight
                .iter()
                .any(|write| !write.done && write.end == end)
    }

    fn stage_entry(&mut self, wall_ms: i64, port: usize, entry: Entry) -> Step {
        let at = self.tail.end();
        let len = u64::from(entry.len);
        assert!(
            self.geometry.can_hold(len),
            "a port took a record that no file can hold"
        );
        let Some(queue_offset) = self.queues.next(entry.slot) else {
            return self.refuse(port, entry, AppendFailure::QueueGone);
        };
        if let Err(why) = self.look_up_light(port, &entry) {
            return self.refuse(port, entry, why);
        }
        let len = len + self.light.added();
        let no_file = self
            .attached
            .back()
            .is_none_or(|file| file.base != self.geometry.base(at));
        if no_file || !self.geometry.fits(at, len) {
            return self.start_roll(port, entry, no_file);
        }
        if !self.reserve(at + len) {
            return Step::Blocked;
        }
        self.last_store_timestamp = self.last_store_timestamp.max(wall_ms);
        let place = Place {
            offset: at,
            queue_offset: if entry.assign_offset { queue_offset } else { 0 },
            store_timestamp: self.last_store_timestamp,
        };
        let port_end = &mut self.ports[port];
        let end = stage(
            &mut self.tail,
            port_end,
            &entry,
            place,
            self.light.addition(),
        );
        self.take_light(&entry);
        if entry.assign_offset {
            self.queues.advance(entry.slot, queue_offset, entry.records);
        }
        self.tail.publish(end);
        self.marks.advance_appended(end);
        self.metrics
            .records
            .fetch_add(entry.records.into(), Ordering::Relaxed);
        self.unanswered.staged(port, entry, place, end);
        self.want_next(end);
        Step::Taken
    }

    fn refuse(&mut self, port: usize, entry: Entry, why: AppendFailure) -> Step {
        self.ports[port].take(&entry, |_, _| ());
        self.unanswered
            .refused(port, entry, self.marks.appended(), why);
        Step::Taken
    }

    /// Asks for the next file when an eighth of the active one, at most 64 MiB, is left.
    fn want_next(&mut self, end: u64) {
        let file_end = self.geometry.file_end(end);
        if file_end - end <= (self.geometry.file_size / 8).min(ZERO_AHEAD) {
            self.files.want(file_end, false);
        }
    }

    /// Room in the tail up to the end of the block that holds `end`, without giving up a byte that
    /// is not written or not dispatched yet.
    pub(super) fn reserve(&mut self, end: u64) -> bool {
        let unwritten = self.geometry.block_down(self.marks.acknowledged());
        let floor = unwritten.min(self.marks.dispatched());
        self.tail.reserve(self.geometry.block_up(end), floor)
    }

    // ---- next file ----

    /// Fetches the next file and ends the present one with a blank record; `entry` stays in its
    /// port.
    fn start_roll(&mut self, port: usize, entry: Entry, no_file: bool) -> Step {
        let at = self.tail.end();
        let base = if no_file {
            self.geometry.base(at)
        } else {
            self.geometry.file_end(at)
        };
        let room = no_file || self.reserve(at + BLANK_SIZE);
        if !room || self.attached.len() + 1 >= MAX_FILES {
            return Step::Blocked;
        }
        match self.files.take(base) {
            NextFile::Ready(next) => {
                assert_eq!(next.base, base, "another file than the log goes on in");
                if !no_file {
                    let mut blank = self.geometry.blank(at);
                    if seeded(Fault::NoBlank) {
                        blank.fill(0);
                    }
                    self.tail.write(at, &blank);
                    self.tail.publish(at + BLANK_SIZE);
                    self.marks.advance_appended(base);
                }
                self.rolling_to = Some(next);
                Step::Rolling
            }
            NextFile::NotYet => {
                self.files.want(base, true);
                Step::Blocked
            }
            NextFile::NoSpace => self.refuse(port, entry, AppendFailure::NoSpace),
        }
    }
}
