//! What a power cut leaves of changes that no sync has made durable.

use crate::content::Content;
use crate::disk::{Change, What};

/// Bytes that reach the disk together or not at all.
pub const SECTOR: u64 = 512;

/// How changes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was not synced is left.
    All,
    /// Changes up to one of them are left, in the order they were made.
    Prefix,
    /// As [`Loss::Prefix`], and of the change after them some sectors.
    Torn,
    /// Of every change each sector is left with a chance of its own.
    Sectors,
    /// Everything is left.
    Nothing,
}

/// One cut's decision, the same for all files.
pub struct Horizon {
    loss: Loss,
    /// The last change that is left whole.
    last: u64,
    /// The change of which a part is left.
    torn: u64,
    /// Chance of a sector, in hundredths.
    chance: u8,
}

impl Horizon {
    /// Decides, with the numbers of all changes in order.
    pub fn choose(loss: Loss, sequences: &[u64], random: &mut fastrand::Rng) -> Horizon {
        let kept = random.usize(..=sequences.len());
        Horizon {
            loss,
            last: kept.checked_sub(1).map_or(0, |index| sequences[index]),
            torn: sequences.get(kept).copied().unwrap_or(u64::MAX),
            chance: random.u8(5..=95),
        }
    }

    /// How many changes of names are left, from the first.
    pub fn names(
        &self,
        sequences: impl ExactSizeIterator<Item = u64>,
        random: &mut fastrand::Rng,
    ) -> usize {
        match self.loss {
            Loss::All => 0,
            Loss::Nothing => sequences.len(),
            Loss::Sectors => random.usize(..=sequences.len()),
            Loss::Prefix | Loss::Torn => sequences.filter(|number| *number <= self.last).count(),
        }
    }

    /// Applies to a file what is left of its changes.
    pub fn settle(&self, durable: &mut Content, changes: &[Change], random: &mut fastrand::Rng) {
        match self.loss {
            Loss::All => {}
            Loss::Nothing => changes.iter().for_each(|change| change.apply(durable)),
            Loss::Prefix | Loss::Torn => {
                let whole = changes
                    .iter()
                    .take_while(|change| change.sequence <= self.last);
                whole.for_each(|change| change.apply(durable));
                let torn = |change: &&Change| change.sequence == self.torn;
                if self.loss == Loss::Torn
                    && let Some(torn) = changes.iter().find(torn)
                {
                    self.scatter(durable, std::slice::from_ref(torn), random);
                }
            }
            Loss::Sectors => self.scatter(durable, changes, random),
        }
    }

    /// Leaves sectors by chance. Sizes are metadata: those up to one of them are left, whatever
    /// becomes of the bytes.
    fn scatter(&self, durable: &mut Content, changes: &[Change], random: &mut fastrand::Rng) {
        let kept = random.usize(..=changes.len());
        for (index, change) in changes.iter().enumerate() {
            match &change.what {
                What::Write { offset, bytes } => {
                    for (at, sector) in sectors(*offset, bytes) {
                        if random.u8(..100) < self.chance {
                            durable.place(at, sector);
                        }
                    }
                    if index < kept {
                        durable.size = durable.size.max(offset + bytes.len() as u64);
                    }
                }
                _ if index < kept => change.apply(durable),
                _ => {}
            }
        }
        // What landed beyond the end is no part of the file.
        durable.resize(durable.size);
    }
}

/// A write cut at the borders of sectors.
fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let first = (SECTOR - offset % SECTOR).min(bytes.len() as u64) as usize;
    let (head, rest) = bytes.split_at(first);
    let mut at = offset;
    std::iter::once(head)
        .chain(rest.chunks(SECTOR as usize))
        .map(move |piece| {
            let here = at;
            at += piece.len() as u64;
            (here, piece)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_cut_at_sectors_of_the_file() {
        let pieces: Vec<_> = sectors(500, &[0; 1100])
            .map(|(at, piece)| (at, piece.len()))
            .collect();
        assert_eq!(pieces, [(500, 12), (512, 512), (1024, 512), (1536, 64)]);
    }
}
