//! Log files that were renamed.

use crate::error::OpenError;
use crate::format::record::{Decoded, Record, decode};
use crate::layout::{LayoutError, file_name};
use crate::log_window::{LOOK_BYTES, LogWindow, WindowLimits};
use crate::recovery::record_bytes;

/// Where in a record its log offset stands (docs/format.md, Record).
const PLACE: std::ops::Range<usize> = 28..36;

/// Refuses log files of which a renaming is all that is wrong: their first records belong to the
/// beginning of a file that is missing or has the wrong name too. A copy under another name hides
/// what stood there before, which is damage like any other.
pub(super) fn check_names(window: &mut LogWindow, bases: &[u64]) -> Result<(), OpenError> {
    let mut claims = Vec::new();
    for base in bases {
        if let Some(belongs) = belongs_to(window, *base)? {
            claims.push((*base, belongs));
        }
    }
    window.forget();
    let wrong = |base: u64| claims.iter().any(|(named, _)| *named == base);
    for (base, belongs) in &claims {
        let path = window.path_of(*base);
        if wrong(*belongs) || bases.binary_search(belongs).is_err() {
            let belongs = file_name(*belongs);
            return Err(LayoutError::Misnamed { path, belongs }.into());
        }
        let original = window.path_of(*belongs);
        tracing::warn!(
            path = %path.display(),
            original = %original.display(),
            "a log file is a copy of another one; what belongs there is damaged"
        );
    }
    Ok(())
}

/// The base of the file that the first two records of a file belong to, if both say the same and
/// it is another one: a single place has no checksum.
fn belongs_to(window: &mut LogWindow, base: u64) -> Result<Option<u64>, OpenError> {
    let size = window.file_size();
    // As a rule one small look at each file is all.
    let head = window.bytes(base, PLACE.end, WindowLimits::QUIET, LOOK_BYTES)?;
    let place = head.and_then(|head| head.get(PLACE));
    if place.is_none_or(|place| place == base.to_be_bytes()) {
        return Ok(None);
    }
    let mut record_at = |at: u64| {
        let bytes = record_bytes(window, WindowLimits::QUIET, at, base + size)?;
        Ok::<_, OpenError>(match decode(bytes) {
            Ok(Decoded::Record(record)) if record.check_body().is_ok() => Some(place_of(&record)),
            _ => None,
        })
    };
    let Some((first, len)) = record_at(base)? else {
        return Ok(None);
    };
    if first == base || !first.is_multiple_of(size) || len >= size {
        return Ok(None);
    }
    let second = record_at(base + len)?;
    Ok((second.map(|(place, _)| place) == Some(first + len)).then_some(first))
}

/// The log offset that a record names, and its length.
fn place_of(record: &Record<'_>) -> (u64, u64) {
    let place = u64::try_from(record.physical_offset()).unwrap_or(u64::MAX);
    (place, u64::from(record.size()))
}
