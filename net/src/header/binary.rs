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
    if !decode_text(ext, scratch) {
        decode_ext(Reader { bytes: ext, at: 0 }, scratch)?;
    }
    Ok(head)
}

/// Reads fields that are valid text together with their lengths, as most are: checked and copied
/// in one go. `false`, and nothing is read, for all others, wrong ones among them.
fn decode_text(ext: &[u8], scratch: &mut Scratch) -> bool {
    let Ok(text) = std::str::from_utf8(ext) else {
        return false;
    };
    let (before, slots) = (scratch.text.len(), scratch.slots.len());
    let span = |start: usize, length: usize| {
        let end = start.checked_add(length)?;
        let whole = text.is_char_boundary(start) && text.is_char_boundary(end);
        whole.then(|| Span::in_buffer(before + start, before + end))
    };
    let mut reader = Reader { bytes: ext, at: 0 };
    while reader.at < ext.len() {
        let field = reader.field(span);
        match field {
            Some(slot) if scratch.slots.len() < slots + MAX_FIELDS => scratch.slots.extend(slot),
            _ => {
                scratch.slots.truncate(slots);
                return false;
            }
        }
    }
    scratch.text.push_str(text);
    true
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

    /// A field whose texts `span` makes pieces of; `Some(None)`: one without a name.
    #[inline]
    fn field(&mut self, span: impl Fn(usize, usize) -> Option<Span>) -> Option<Option<Slot>> {
        let length = usize::from(u16::from_be_bytes(
            *self.bytes.get(self.at..)?.first_chunk()?,
        ));
        let start = self.at + 2;
        let name = span(start, length)?;
        let at = start + length;
        let value_length = i32::from_be_bytes(*self.bytes.get(at..)?.first_chunk()?);
        let (value_length, start) = (usize::try_from(value_length).ok()?, at + 4);
        let value = span(start, value_length)?;
        self.at = start + value_length;
        Some((length > 0).then_some(Slot {
            name,
            value: (value_length > 0).then_some(value),
        }))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = (name.len() as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&(value.len() as u32).to_be_bytes());
        bytes.extend_from_slice(value);
        bytes
    }

    fn told(scratch: &Scratch) -> Vec<(String, Option<String>)> {
        let of = |span: Span| span.text("", &scratch.text).to_owned();
        let slots = scratch.slots.iter();
        slots
            .map(|slot| (of(slot.name), slot.value.map(of)))
            .collect()
    }

    #[test]
    fn fields_read_in_one_go_are_those_read_one_by_one() {
        let mut state = 0x5eed_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let values: [&[u8]; 6] = [
            b"",
            b"1",
            "gr\u{fc}n".as_bytes(),
            &[b'x'; 130],
            b"\xc3",
            b"\xbc",
        ];
        let (mut quick, mut refused) = (0, 0);
        for _ in 0..30_000 {
            let mut ext = Vec::new();
            for _ in 0..random(5) {
                let kinds = values.len() - 2 * random(2);
                ext.extend(field(values[random(3)], values[random(kinds)]));
            }
            if !ext.is_empty() && random(4) == 0 {
                let at = random(ext.len());
                ext[at] = [0, 1, 2, 0x7f, 0x80, 0xc3, 0xff][random(7)];
            }
            let (mut text, mut single) = (Scratch::default(), Scratch::default());
            let one_by_one = decode_ext(Reader { bytes: &ext, at: 0 }, &mut single);
            if decode_text(&ext, &mut text) {
                quick += 1;
                assert_eq!(one_by_one, Ok(()));
                assert_eq!(told(&text), told(&single), "{ext:?}");
            } else {
                refused += 1;
                assert!(text.slots.is_empty() && text.text.is_empty());
            }
        }
        assert!(quick > 5_000 && refused > 5_000, "{quick} {refused}");
    }
}
