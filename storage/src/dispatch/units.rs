//! What the extension units of a record's queue entries say (docs/format.md, "Extension unit").

use std::fmt;
use std::sync::Arc;

use crate::config::StoreConfig;
use crate::consume_queue::UnitNote;
use crate::format::record::Record;

/// Finds the bits of a record: which selectors it passes.
pub trait BitsOfRecord: Send + Sync {
    /// Puts the record's bits into `out`, which is empty; leaves it so where they are not known.
    fn bits(&self, record: &Record<'_>, out: &mut Vec<u8>);
}

/// A shared [`BitsOfRecord`].
#[derive(Clone)]
pub struct UnitBits(pub Arc<dyn BitsOfRecord>);

impl fmt::Debug for UnitBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnitBits")
    }
}

impl PartialEq for UnitBits {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The note for the units of one record after the other.
pub(crate) struct Units {
    bits: Option<UnitBits>,
    note: UnitNote,
}

impl Units {
    /// `None` when entries get no units.
    pub(crate) fn of(config: &StoreConfig) -> Option<Units> {
        config.write_extensions.then(|| Units {
            bits: config.unit_bits.clone(),
            note: UnitNote::default(),
        })
    }

    /// The note for a record.
    pub(crate) fn note(&mut self, record: &Record<'_>) -> &UnitNote {
        self.note.store_timestamp = record.store_timestamp();
        self.note.bits.clear();
        if let Some(bits) = &self.bits {
            bits.0.bits(record, &mut self.note.bits);
        }
        &self.note
    }
}
