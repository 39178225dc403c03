//! The words of fastjson's dialect of JSON, without allocation (docs/protocol.md, "JSON dialect").
//!
//! Beyond JSON it has names without quotes, single quotes, more escapes and stray commas. The
//! lexer cuts words out of the text; strings with escapes are written unescaped into a text buffer
//! the caller owns. It never looks beyond the text and never panics.

use crate::error::HeaderError;

/// Deepest nesting that is followed.
pub(crate) const MAX_DEPTH: usize = 32;

/// A piece of text: in the source itself or in the buffer of unescaped text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    // A header is smaller than 16 MiB, and what stands unescaped is no longer than its escapes.
    start: u32,
    end: u32,
    unescaped: bool,
}

impl Span {
    /// A piece of the buffer of unescaped text.
    pub(crate) fn in_buffer(start: usize, end: usize) -> Self {
        Span {
            start: start as u32,
            end: end as u32,
            unescaped: true,
        }
    }

    /// A piece of the source.
    pub(crate) fn in_source(start: usize, end: usize) -> Self {
        Span {
            start: start as u32,
            end: end as u32,
            unescaped: false,
        }
    }

    /// The same piece of a source in which it stands `by` bytes further on (modulo 2^32).
    #[inline]
    pub(crate) fn moved(self, by: usize) -> Self {
        Span {
            start: self.start.wrapping_add(by as u32),
            end: self.end.wrapping_add(by as u32),
            ..self
        }
    }

    /// The text itself. Spans start and end at whole characters of the text they were made for.
    pub(crate) fn text<'a>(self, source: &'a str, buffer: &'a str) -> &'a str {
        let text = if self.unescaped { buffer } else { source };
        text.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

/// A value that is no object and no array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Text(Span),
    Number(Span),
    Bool(Span, bool),
    Null,
}

/// Reads words from the front of a text.
pub(crate) struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Lexer<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Lexer { text, at: 0 }
    }

    /// A lexer that has read up to `at`.
    pub(crate) fn at(text: &'t str, at: usize) -> Self {
        Lexer { text, at }
    }

    /// How far it has read.
    pub(crate) fn place(&self) -> usize {
        self.at
    }

    /// The error for the present position.
    pub(crate) fn expected(&self, expected: &'static str) -> HeaderError {
        HeaderError::Syntax {
            at: self.at,
            expected,
        }
    }

    /// The next byte that is not white space; it stays unread.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = self.byte()?;
            if !is_blank(byte) {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Reads `byte` if it comes next.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Reads `byte` or fails.
    pub(crate) fn require(&mut self, byte: u8, what: &'static str) -> Result<(), HeaderError> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(self.expected(what))
        }
    }

    /// Skips commas: fastjson does not mind how many there are.
    pub(crate) fn skip_commas(&mut self) {
        while self.take(b',') {}
    }

    /// A member's name and its colon.
    pub(crate) fn name(&mut self, buffer: &mut String) -> Result<Span, HeaderError> {
        let span = match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.string(quote, buffer)?,
            _ => self.word().ok_or_else(|| self.expected("a member name"))?,
        };
        self.require(b':', "a colon")?;
        Ok(span)
    }

    /// A member as most senders write it, `"name":"value"` without blanks; `None`, and nothing is
    /// read, if something else comes next.
    #[inline]
    pub(crate) fn plain_member(
        &mut self,
        buffer: &mut String,
    ) -> Result<Option<(Span, Span)>, HeaderError> {
        if self.byte() != Some(b'"') {
            return Ok(None);
        }
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let end = start + plain(bytes.get(start..).unwrap_or_default(), b'"');
        if bytes.get(end..end + 3) != Some(b"\":\"") {
            return Ok(None);
        }
        self.at = end + 2;
        let value = self.string(b'"', buffer)?;
        Ok(Some((Span::in_source(start, end), value)))
    }

    /// A string, number, truth value or null.
    pub(crate) fn scalar(&mut self, buffer: &mut String) -> Result<Scalar, HeaderError> {
        if let Some(quote @ (b'"' | b'\'')) = self.peek() {
            return self.string(quote, buffer).map(Scalar::Text);
        }
        let start = self.at;
        let word = self.word().ok_or_else(|| self.expected("a value"))?;
        match word.text(self.text, "") {
            "true" => Ok(Scalar::Bool(word, true)),
            "false" => Ok(Scalar::Bool(word, false)),
            "null" => Ok(Scalar::Null),
            text if is_number(text) => Ok(Scalar::Number(word)),
            _ => Err(HeaderError::Syntax {
                at: start,
                expected: "a value",
            }),
        }
    }

    /// Skips any value; `depth` is that of the value itself.
    pub(crate) fn skip(&mut self, depth: usize, buffer: &mut String) -> Result<Span, HeaderError> {
        if depth > MAX_DEPTH {
            return Err(HeaderError::TooDeep { limit: MAX_DEPTH });
        }
        let opening = self.peek();
        let start = self.at;
        match opening {
            Some(b'{') => self.skip_object(depth, buffer)?,
            Some(b'[') => self.skip_array(depth, buffer)?,
            _ => drop(self.scalar(buffer)?),
        }
        Ok(Span::in_source(start, self.at))
    }

    fn skip_object(&mut self, depth: usize, buffer: &mut String) -> Result<(), HeaderError> {
        self.require(b'{', "an object")?;
        loop {
            self.skip_commas();
            if self.take(b'}') {
                return Ok(());
            }
            let kept = buffer.len();
            if matches!(self.peek(), Some(b'{' | b'[')) {
                self.skip(depth + 1, buffer)?;
                self.require(b':', "a colon")?;
            } else {
                self.name(buffer)?;
            }
            self.skip(depth + 1, buffer)?;
            buffer.truncate(kept);
            self.end_of_member(b'}')?;
        }
    }

    fn skip_array(&mut self, depth: usize, buffer: &mut String) -> Result<(), HeaderError> {
        self.require(b'[', "an array")?;
        loop {
            self.skip_commas();
            if self.take(b']') {
                return Ok(());
            }
            let kept = buffer.len();
            self.skip(depth + 1, buffer)?;
            buffer.truncate(kept);
            self.end_of_member(b']')?;
        }
    }

    /// After a member there must be a comma or the end of its container; neither is read.
    pub(crate) fn end_of_member(&mut self, closing: u8) -> Result<(), HeaderError> {
        match self.peek() {
            Some(byte) if byte == b',' || byte == closing => Ok(()),
            _ => Err(self.expected("a comma or the end")),
        }
    }

    /// A run of characters without meaning for JSON.
    fn word(&mut self) -> Option<Span> {
        self.peek();
        let rest = self.text.as_bytes().get(self.at..)?;
        let length = rest.iter().take_while(|byte| !ends_word(**byte)).count();
        let span = Span::in_source(self.at, self.at + length);
        self.at += length;
        (length > 0).then_some(span)
    }

    /// A string in `quote`s, which come next.
    pub(crate) fn string(&mut self, quote: u8, buffer: &mut String) -> Result<Span, HeaderError> {
        self.at += 1;
        let start = self.at;
        self.at += self.plain(quote);
        if self.byte() == Some(quote) {
            self.at += 1;
            return Ok(Span::in_source(start, self.at - 1));
        }
        let begin = buffer.len();
        buffer.push_str(self.text.get(start..self.at).unwrap_or_default());
        loop {
            match self.byte() {
                Some(b'\\') => {
                    self.at += 1;
                    let unescaped = self.escape()?;
                    buffer.push(unescaped);
                }
                Some(_) => {
                    self.at += 1;
                    return Ok(Span::in_buffer(begin, buffer.len()));
                }
                None => return Err(self.expected("the end of a string")),
            }
            let from = self.at;
            self.at += self.plain(quote);
            buffer.push_str(self.text.get(from..self.at).unwrap_or_default());
        }
    }

    /// How many bytes from here are neither the quote nor a backslash.
    fn plain(&self, quote: u8) -> usize {
        plain(
            self.text.as_bytes().get(self.at..).unwrap_or_default(),
            quote,
        )
    }

    /// The character that an escape stands for; the backslash is read already.
    fn escape(&mut self) -> Result<char, HeaderError> {
        let Some(kind) = self.byte() else {
            return Err(self.expected("an escaped character"));
        };
        self.at += 1;
        Ok(match kind {
            b'"' | b'\'' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b't' => '\t',
            b'n' => '\n',
            b'v' => '\u{b}',
            b'f' | b'F' => '\u{c}',
            b'r' => '\r',
            b'0'..=b'7' => char::from(kind - b'0'),
            b'x' => char::from(self.hexadecimal(2)? as u8),
            b'u' => return self.unicode(),
            _ => {
                self.at -= 1;
                return Err(self.expected("a known escape"));
            }
        })
    }

    /// A UTF-16 unit or a pair of them; half a pair becomes the replacement character.
    fn unicode(&mut self) -> Result<char, HeaderError> {
        let first = self.hexadecimal(4)?;
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let behind = self.at;
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        if rest.starts_with(b"\\u") {
            self.at += 2;
            let second = self.hexadecimal(4)?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = behind;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u32, HeaderError> {
        // Most escapes are of the separators of properties, U+0001 and U+0002.
        let ahead = self.text.as_bytes().get(self.at..self.at + digits);
        if let Some(&[b'0', b'0', b'0', last @ b'0'..=b'9']) = ahead {
            self.at += digits;
            return Ok(u32::from(last - b'0'));
        }
        let mut value = 0;
        for _ in 0..digits {
            let digit = self.byte().and_then(|byte| char::from(byte).to_digit(16));
            value = value * 16 + digit.ok_or_else(|| self.expected("a hexadecimal digit"))?;
            self.at += 1;
        }
        Ok(value)
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// How many bytes at the front are neither the quote nor a backslash, looked at eight at a time.
#[inline]
fn plain(bytes: &[u8], quote: u8) -> usize {
    let (words, _) = bytes.as_chunks::<8>();
    let mut length = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let ends = zeros(word ^ (ONES * u64::from(quote)));
        let found = ends | zeros(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return length + found.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    let rest = bytes.get(length..).unwrap_or_default();
    let more = rest
        .iter()
        .take_while(|byte| **byte != quote && **byte != b'\\');
    length + more.count()
}

/// A one in every byte.
pub(crate) const ONES: u64 = u64::MAX / 255;

/// The high bit of the lowest zero byte, and perhaps of bytes above it.
#[inline]
pub(crate) fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

#[inline]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0c | 0x08)
}

fn ends_word(byte: u8) -> bool {
    is_blank(byte) || matches!(byte, b':' | b',' | b'{' | b'}' | b'[' | b']' | b'"' | b'\'')
}

/// Is this a decimal number: sign, digits, fraction, exponent?
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    if is_digits(text) {
        return true;
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let exponent = exponent.map(|digits| digits.strip_prefix(['-', '+']).unwrap_or(digits));
    is_digits(whole) && fraction.is_none_or(is_digits) && exponent.is_none_or(is_digits)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
