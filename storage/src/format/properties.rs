//! The property string of a record: `name 0x01 value 0x02 …` (docs/format.md, Property string).
//!
//! A final 0x02 may be there or not; a piece counts only if name and value are both non-empty;
//! of several pieces with the same name the last one counts.

/// Ends a property.
pub const PROPERTY_SEPARATOR: u8 = 0x02;
/// Stands between a property's name and its value.
pub const NAME_VALUE_SEPARATOR: u8 = 0x01;

/// Property names that mean something to the store or the broker.
pub mod names {
    #![allow(missing_docs)]
    pub const TAGS: &str = "TAGS";
    pub const KEYS: &str = "KEYS";
    pub const UNIQUE_KEY: &str = "UNIQ_KEY";
    pub const DELAY: &str = "DELAY";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QUEUE_ID: &str = "REAL_QID";
    pub const WAIT: &str = "WAIT";
    pub const TRANSACTION_PREPARED: &str = "TRAN_MSG";
    pub const PRODUCER_GROUP: &str = "PGROUP";
    pub const TRANSACTION_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    pub const CHECK_IMMUNITY_TIME: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const CLUSTER: &str = "CLUSTER";
    pub const MSG_REGION: &str = "MSG_REGION";
    pub const TRACE_ON: &str = "TRACE_ON";
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    pub const INNER_MULTI_QUEUE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET";
    pub const INNER_NUM: &str = "INNER_NUM";
    pub const INNER_BASE: &str = "INNER_BASE";
    pub const CRC32: &str = "__CRC32#";
}

/// A borrowed property string.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// Views `bytes` as a property string; any bytes are acceptable.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes as they are stored.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Name and value of every property that counts, in stored order, duplicates included.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> {
        self.0
            .split(|byte| *byte == PROPERTY_SEPARATOR)
            .filter_map(|piece| {
                let at = piece
                    .iter()
                    .position(|byte| *byte == NAME_VALUE_SEPARATOR)?;
                let (name, value) = (&piece[..at], &piece[at + 1..]);
                (!name.is_empty() && !value.is_empty()).then_some((name, value))
            })
    }

    /// The value of `name`; the last one when there are several.
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        self.iter()
            .rev()
            .find(|(found, _)| *found == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// The value of `name` as text; `None` also when it is not UTF-8.
    pub fn get_str(self, name: &str) -> Option<&'a str> {
        self.get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The value of `name` as a decimal number, as Java's `parseInt`/`parseLong` read it.
    pub fn get_i64(self, name: &str) -> Option<i64> {
        self.get_str(name).and_then(|text| text.parse().ok())
    }

    /// The keys of a record: the non-empty pieces of `KEYS` between single spaces.
    pub fn keys(self) -> impl Iterator<Item = &'a [u8]> {
        let text = self.get(names::KEYS).unwrap_or_default();
        text.split(|byte| *byte == b' ')
            .filter(|key| !key.is_empty())
    }

    /// What a record is indexed under, in this order: its unique key, then each of its keys.
    pub fn index_keys(self) -> impl Iterator<Item = &'a [u8]> {
        self.get(names::UNIQUE_KEY).into_iter().chain(self.keys())
    }
}

/// Appends `name 0x01 value 0x02` to `out`.
pub fn push_property(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.push(NAME_VALUE_SEPARATOR);
    out.extend_from_slice(value);
    out.push(PROPERTY_SEPARATOR);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_counts_only_with_a_name_and_a_value() {
        let text = b"a\x01\x02b\x01c\x02\x01x\x02dd\x02e\x01f=g\x01h";
        let found: Vec<_> = Properties::new(text).iter().collect();
        assert_eq!(found, [(&b"b"[..], &b"c"[..]), (b"e", b"f=g\x01h")]);
    }

    #[test]
    fn the_last_duplicate_wins() {
        let text = b"UNIQ_KEY\x01first\x02UNIQ_KEY\x01second\x02UNIQ_KEY\x01\x02";
        assert_eq!(Properties::new(text).get_str("UNIQ_KEY"), Some("second"));
    }

    #[test]
    fn keys_split_at_single_spaces_and_empty_pieces_vanish() {
        let text = b"KEYS\x01 a  b \x02UNIQ_KEY\x01u";
        let keys: Vec<_> = Properties::new(text).index_keys().collect();
        assert_eq!(keys, [&b"u"[..], b"a", b"b"]);
        assert_eq!(Properties::new(b"").index_keys().count(), 0);
    }
}
