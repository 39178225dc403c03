//! The ext fields of a header (docs/protocol.md, "JSON header").
//!
//! Values are text whatever the sender wrote, in exactly the characters it sent (signatures cover
//! them); a null value counts as absent, and of duplicates the last one counts.

use thiserror::Error;

use super::lexer::Span;

/// Most ext fields a header may have; the largest known request has 20.
pub const MAX_FIELDS: usize = 512;

/// Longest part of a wrong value that an error repeats, in characters.
const SHOWN_VALUE: usize = 64;

/// One ext field, by the places of its name and value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) name: Span,
    /// `None`: null.
    pub(crate) value: Option<Span>,
}

impl Slot {
    /// The same field of a source in which it stands `by` bytes further on (modulo 2^32).
    #[inline]
    pub(crate) fn moved(self, by: usize) -> Self {
        Slot {
            name: self.name.moved(by),
            value: self.value.map(|value| value.moved(by)),
        }
    }
}

/// The ext fields of one command.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fields<'a> {
    slots: &'a [Slot],
    header: &'a str,
    text: &'a str,
}

/// Why a field cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldError {
    /// A mandatory field is absent or null.
    #[error("the field {field} is missing")]
    Missing {
        /// Name of the field on the wire.
        field: &'static str,
    },
    /// A number is expected and something else, or a number beyond the range, is there.
    #[error("the field {field} holds \"{value}\", which is not a number that fits {kind}")]
    NotANumber {
        /// Name of the field on the wire.
        field: &'static str,
        /// What it holds, shortened.
        value: String,
        /// The kind of number wanted: `i32` or `i64`.
        kind: &'static str,
    },
    /// The field's value is outside of what the request allows.
    #[error("the field {field} holds \"{value}\"; allowed: {allowed}")]
    NotAllowed {
        /// Name of the field on the wire.
        field: &'static str,
        /// What it holds, shortened.
        value: String,
        /// What is allowed, in words.
        allowed: &'static str,
    },
}

impl<'a> Fields<'a> {
    pub(crate) fn new(slots: &'a [Slot], header: &'a str, text: &'a str) -> Self {
        Fields {
            slots,
            header,
            text,
        }
    }

    /// The text of the field; `None` when absent or null. The last duplicate counts.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let slot = self
            .slots
            .iter()
            .rev()
            .find(|slot| self.text_of(slot.name) == name)?;
        slot.value.map(|value| self.text_of(value))
    }

    /// All fields in the order sent, without nulls and without those that a later one replaces.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let fields = *self;
        fields
            .slots
            .iter()
            .enumerate()
            .filter_map(move |(index, slot)| {
                let name = fields.text_of(slot.name);
                let later = fields.slots.get(index + 1..).unwrap_or_default();
                if later.iter().any(|other| fields.text_of(other.name) == name) {
                    return None;
                }
                Some((name, fields.text_of(slot.value?)))
            })
    }

    /// All fields in the order sent, replaced duplicates included, `None` for null: for readers
    /// that sort the values themselves in one walk.
    pub(crate) fn walk(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> + use<'a> {
        let fields = *self;
        fields.slots.iter().map(move |slot| {
            (
                fields.text_of(slot.name),
                slot.value.map(|value| fields.text_of(value)),
            )
        })
    }

    /// True when no field was sent.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The text of an optional field.
    pub fn str(&self, name: &'static str) -> Result<Option<&'a str>, FieldError> {
        Ok(self.get(name))
    }

    /// An optional 32-bit number.
    pub fn i32(&self, name: &'static str) -> Result<Option<i32>, FieldError> {
        self.get(name)
            .map(|value| parse_i32(name, value))
            .transpose()
    }

    /// An optional 64-bit number.
    pub fn i64(&self, name: &'static str) -> Result<Option<i64>, FieldError> {
        self.get(name)
            .map(|value| parse_i64(name, value))
            .transpose()
    }

    /// An optional truth value: `true` in any case is true, everything else false.
    pub fn bool(&self, name: &'static str) -> Result<Option<bool>, FieldError> {
        Ok(self.get(name).map(is_true))
    }

    /// The text of a mandatory field.
    pub fn required_str(&self, name: &'static str) -> Result<&'a str, FieldError> {
        self.get(name).ok_or(FieldError::Missing { field: name })
    }

    /// A mandatory 32-bit number.
    pub fn required_i32(&self, name: &'static str) -> Result<i32, FieldError> {
        parse_i32(name, self.required_str(name)?)
    }

    /// A mandatory 64-bit number.
    pub fn required_i64(&self, name: &'static str) -> Result<i64, FieldError> {
        parse_i64(name, self.required_str(name)?)
    }

    fn text_of(&self, span: Span) -> &'a str {
        span.text(self.header, self.text)
    }
}

/// Reads the value of the field `name` as a 32-bit number.
pub(crate) fn parse_i32(name: &'static str, value: &str) -> Result<i32, FieldError> {
    value.parse().map_err(|_| not_a_number(name, value, "i32"))
}

/// Reads the value of the field `name` as a 64-bit number.
pub(crate) fn parse_i64(name: &'static str, value: &str) -> Result<i64, FieldError> {
    value.parse().map_err(|_| not_a_number(name, value, "i64"))
}

/// What Java's `Boolean.parseBoolean` says.
pub(crate) fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

fn not_a_number(field: &'static str, value: &str, kind: &'static str) -> FieldError {
    FieldError::NotANumber {
        field,
        value: shown(value),
        kind,
    }
}

/// The first characters of a value that an error repeats.
pub(crate) fn shown(value: &str) -> String {
    value.chars().take(SHOWN_VALUE).collect()
}
