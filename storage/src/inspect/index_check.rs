//! Index items against records, both ways, and the chains of items.

use std::collections::HashSet;

use super::verify::{Findings, Tally};
use super::{IndexFiles, InspectError, StoreView};
use crate::format::hash::index_hash;
use crate::format::index_entry::{IndexItem, IndexShape};
use crate::format::record::Record;

/// Items out of the log's order, and keys without an item, that are remembered: more are counted.
const REMEMBERED: usize = 1_000_000;

/// An item with where it stands.
#[derive(Clone, Copy)]
struct Placed {
    file: usize,
    number: u32,
    item: IndexItem,
}

impl Placed {
    fn offset(&self) -> u64 {
        u64::try_from(self.item.physical_offset).unwrap_or(u64::MAX)
    }
}

/// The items of all files, read along with the log.
pub(super) struct IndexCheck<'v> {
    view: &'v StoreView,
    files: IndexFiles,
    file: usize,
    number: u32,
    held: Vec<IndexItem>,
    held_from: u32,
    /// Items whose record did not come along with them.
    strays: Vec<Placed>,
    missing: HashSet<(u64, i32)>,
    forgotten: u64,
    hashes: Vec<i32>,
    unmatched: Vec<i32>,
}

impl<'v> IndexCheck<'v> {
    pub fn new(view: &'v StoreView, files: IndexFiles) -> Self {
        IndexCheck {
            view,
            files,
            file: 0,
            number: 1,
            held: Vec::new(),
            held_from: 0,
            strays: Vec::new(),
            missing: HashSet::new(),
            forgotten: 0,
            hashes: Vec::new(),
            unmatched: Vec::new(),
        }
    }

    /// The next item, without taking it.
    fn peek(&mut self) -> Result<Option<Placed>, InspectError> {
        loop {
            let Some(file) = self.files.files.get(self.file) else {
                return Ok(None);
            };
            let index = self.number.wrapping_sub(self.held_from) as usize;
            if let Some(item) = self.held.get(index) {
                return Ok(Some(Placed {
                    file: self.file,
                    number: self.number,
                    item: *item,
                }));
            }
            self.held = self.files.items(file, self.number)?;
            self.held_from = self.number;
            if self.held.is_empty() {
                self.file += 1;
                self.number = 1;
            }
        }
    }

    /// One whole record that stands where it says.
    pub fn record(
        &mut self,
        record: &Record<'_>,
        offset: u64,
        findings: &mut Findings,
        tally: &mut Tally,
    ) -> Result<(), InspectError> {
        self.hashes.clear();
        if record.is_indexed() {
            let keys = record.properties().index_keys();
            let hashes = keys.map(|key| index_hash(record.topic(), key));
            self.hashes.extend(hashes);
        }
        self.unmatched.clone_from(&self.hashes);
        while let Some(placed) = self.peek()? {
            if placed.offset() > offset {
                break;
            }
            self.number += 1;
            tally.items += 1;
            if placed.offset() < offset {
                self.stray(placed);
            } else if let Some(at) = self.unmatched.iter().position(|h| *h == placed.item.hash) {
                self.unmatched.swap_remove(at);
            } else if !self.hashes.contains(&placed.item.hash) {
                self.report(&placed, "has a hash of none of its record's keys", findings);
            }
        }
        for hash in std::mem::take(&mut self.unmatched) {
            if self.missing.len() < REMEMBERED {
                self.missing.insert((offset, hash));
            } else {
                self.forgotten += 1;
            }
        }
        Ok(())
    }

    fn stray(&mut self, placed: Placed) {
        if placed.offset() < self.view.log_begin() {
            return;
        }
        if self.strays.len() < REMEMBERED {
            self.strays.push(placed);
        } else {
            self.forgotten += 1;
        }
    }

    fn report(&self, placed: &Placed, why: &str, findings: &mut Findings) {
        let path = &self.files.files[placed.file].path;
        let position = self.files.shape.item_position(placed.number);
        let (number, offset) = (placed.number, placed.item.physical_offset);
        let text = format!("item {number} for the record at log offset {offset} {why}");
        findings.at_file(path, position, text);
    }

    /// Items and keys that found no partner, and the chains of each file.
    pub fn finish(
        mut self,
        log: (u64, u64),
        findings: &mut Findings,
        tally: &mut Tally,
    ) -> Result<(), InspectError> {
        while let Some(placed) = self.peek()? {
            self.number += 1;
            tally.items += 1;
            self.stray(placed);
        }
        self.look_up_strays(log, findings, tally)?;
        self.report_missing(findings, tally);
        for file in 0..self.files.files.len() {
            self.check_chains(file, findings)?;
        }
        if self.forgotten > 0 {
            let count = self.forgotten;
            tally
                .notes
                .push(format!("{count} more index items were not looked up"));
        }
        Ok(())
    }

    fn look_up_strays(
        &mut self,
        (log_begin, log_end): (u64, u64),
        findings: &mut Findings,
        tally: &mut Tally,
    ) -> Result<(), InspectError> {
        let mut log = tally.log(self.view);
        let mut behind_log = 0_u64;
        for placed in std::mem::take(&mut self.strays) {
            let (offset, hash) = (placed.offset(), placed.item.hash);
            let known = self.missing.remove(&(offset, hash));
            if known || tally.is_damaged(offset) || offset < log_begin {
                continue;
            }
            if offset >= log_end && !self.view.is_settled() {
                behind_log += 1;
                continue;
            }
            let has_key = |record: &Record<'_>| {
                let mut keys = record.properties().index_keys();
                keys.any(|key| index_hash(record.topic(), key) == hash)
            };
            match log.record(offset)? {
                Some(record) if has_key(&record) => {}
                Some(_) => {
                    self.report(&placed, "has a hash of none of its record's keys", findings);
                }
                None => self.report(&placed, "names no record", findings),
            }
        }
        if behind_log > 0 && !self.view.is_live() {
            tally.notes.push(format!(
                "{behind_log} index items name records behind the log's end: the next start cuts \
                 them"
            ));
        }
        Ok(())
    }

    fn report_missing(&mut self, findings: &mut Findings, tally: &mut Tally) {
        if self.files.files.is_empty() {
            if !self.missing.is_empty() {
                tally
                    .notes
                    .push("there is no index; a start makes one unless it is off".into());
            }
            return;
        }
        let keys = self.missing.drain();
        let (mut missing, young): (Vec<_>, Vec<_>) =
            keys.partition(|(offset, _)| self.view.is_settled_at(*offset));
        if !young.is_empty() {
            let count = young.len();
            tally
                .notes
                .push(format!("{count} keys are not in the index yet"));
        }
        missing.sort_unstable();
        missing.dedup_by_key(|(offset, _)| *offset);
        for (offset, _) in missing {
            findings.at_log(
                self.view,
                offset,
                "a key of this record is not in the index".into(),
            );
        }
    }

    /// Every item must be reached from its slot: what a slot names, and what each item names before
    /// it, are the items of that slot in falling order.
    fn check_chains(&self, file: usize, findings: &mut Findings) -> Result<(), InspectError> {
        let shape: IndexShape = self.files.shape;
        let view = &self.files.files[file];
        let mut last = vec![0_i32; shape.slots as usize];
        let mut number = 1;
        loop {
            let items = self.files.items(view, number)?;
            if items.is_empty() {
                break;
            }
            for item in items {
                let slot = &mut last[shape.slot_of(item.hash) as usize];
                if item.previous != *slot {
                    let text = format!(
                        "item {number} names item {} before it, which should be {slot}",
                        item.previous
                    );
                    findings.at_file(&view.path, shape.item_position(number), text);
                }
                *slot = number as i32;
                number += 1;
            }
        }
        for (slot, (found, expected)) in self.files.slots(view)?.iter().zip(last).enumerate() {
            // A running broker, or a crash, may have filled a slot before the header.
            let young = !self.view.is_settled() && *found >= view.header.next_item;
            if *found != expected && !young {
                let text = format!("slot {slot} names item {found}, which should be {expected}");
                findings.at_file(&view.path, shape.slot_position(slot as u32), text);
            }
        }
        Ok(())
    }
}
