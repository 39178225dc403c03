//! Binary headers (docs/protocol.md, "Binary header").
//!
//! ```text
//! code: i16 | language: u8 | version: i16 | opaque: i32 | flag: i32
//! remark length: i32 | remark | ext length: i32 | fields
//! field: name length: i16 | name | value length: i32 | value
//! ```

use super::fields::{MAX_FIELDS, Slot};
use super::lexer::Span;
use crate::command::{Head, Language, Scratch};
use crate::error::HeaderError;

/// Reads a header. Bytes behind the ext fields are ignored, as Apache does.
pub(crate) fn decode(bytes: &[u8], scratch: &mut Scratch) -> Result<Head, HeaderError> {
    if bytes.is_empty() {
        return Err(HeaderError::Empty);
    }
    let mut reader = Reader { bytes, at: 0 };
    let mut head = Head {
        code: i32::from(i16::from_be_bytes(reader.array("the code")?)),
        language: Language::from_byte(u8::from_be_bytes(reader.array("the language")?)),
        version: i32::from(i16::from_be_bytes(reader.array("the version")?)),
        opaque: i32::from_be_bytes(reader.array("the opaque")?),
        flag: i32::from_be_bytes(reader.array("the flag")?),
        remark: None,
    };
    let length = reader.length("the remark's length")?;
    head.remark = reader.text(length, "the remark", scratch)?;
    let length = reader.length("the ext length")?;
    let ext = reader.take(length, "the ext fields")?;
    decode_ext(Reader { bytes: ext, at: 0 }, scratch)?;
    Ok(head)
}

fn decode_ext(mut reader: Reader<'_>, scratch: &mut Scratch) -> Result<(), HeaderError> {
    while reader.at < reader.bytes.len() {
        if scratch.slots.len() == MAX_FIELDS {
            return Err(HeaderError::TooManyFields { limit: MAX_FIELDS });
        }
        let length = u16::from_be_bytes(reader.array("a field name's length")?);
        let name = reader.text(usize::from(length), "a field name", scratch)?;
        let length = reader.length("a field's length")?;
        let value = reader.text(length, "a field", scratch)?;
        if let Some(name) = name {
            scratch.slots.push(Slot { name, value });
        }
    }
    Ok(())
}

/// Reads from the front of bytes, never beyond their end.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn take(&mut self, length: usize, what: &'static str) -> Result<&'b [u8], HeaderError> {
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(HeaderError::Truncated { at: self.at, what })?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], HeaderError> {
        let at = self.at;
        self.take(N, what)?
            .try_into()
            .map_err(|_| HeaderError::Truncated { at, what })
    }

    /// A 32-bit length; a negative one reaches beyond any end.
    fn length(&mut self, what: &'static str) -> Result<usize, HeaderError> {
        let at = self.at;
        let length = i32::from_be_bytes(self.array(what)?);
        usize::try_from(length).map_err(|_| HeaderError::Truncated { at, what })
    }

    /// Text, copied into the scratch; no bytes mean no text.
    fn text(
        &mut self,
        length: usize,
        what: &'static str,
        scratch: &mut Scratch,
    ) -> Result<Option<Span>, HeaderError> {
        let bytes = self.take(length, what)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| HeaderError::NotUtf8)?;
        let start = scratch.text.len();
        scratch.text.push_str(text);
        Ok(Some(Span::in_buffer(start, scratch.text.len())))
    }
}
