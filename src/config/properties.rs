//! Java properties text: what `java.util.Properties.load` reads.
//!
//! A reader of our own: the text also comes over the network, and the library there is for it
//! panics on damaged bytes. Unlike Java, UTF-8 is read as UTF-8; what is not is read as Latin-1.

use std::borrow::Cow;

use super::raw::ConfigError;

/// Key, value, number of the line it starts on.
pub type Property = (String, String, usize);

/// Reads properties, later ones for the same key behind earlier ones.
///
/// # Errors
/// [`ConfigError::Syntax`] names `source_name` and the line of a broken `\u` escape, or
/// the place of a byte that no text holds.
pub fn parse_properties(bytes: &[u8], source_name: &str) -> Result<Vec<Property>, ConfigError> {
    // An editor's mark at the beginning of a file is no part of its first key.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if let Some(at) = bytes.iter().position(|byte| is_binary(*byte)) {
        return Err(ConfigError::Syntax {
            source_name: source_name.to_string(),
            problem: format!("byte {at} is {:#04x}, which no text holds", bytes[at]),
        });
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    };
    let mut found = Vec::new();
    for (line, number) in logical_lines(&text) {
        let (key, value) = split(&line);
        let unescape = |text: &str| {
            unescape(text).ok_or_else(|| ConfigError::Syntax {
                source_name: source_name.to_string(),
                problem: format!("line {number} has a \\u that is not followed by four hex digits"),
            })
        };
        found.push((unescape(key)?, unescape(value)?, number));
    }
    Ok(found)
}

/// Bytes of no text in any encoding that is read here.
fn is_binary(byte: u8) -> bool {
    byte == 0x7f || (byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0c'))
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0c')
}

/// Natural lines joined where one ends in an odd number of backslashes; no comments, no blank
/// lines. Line ends are `\n`, `\r` and `\r\n`.
fn logical_lines(text: &str) -> Vec<(String, usize)> {
    let text = text.replace("\r\n", "\n");
    let mut lines = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (index, natural) in text.split(['\n', '\r']).enumerate() {
        let natural = natural.trim_start_matches(is_blank);
        if open.is_none() && (natural.is_empty() || natural.starts_with(['#', '!'])) {
            continue;
        }
        let backslashes = natural.len() - natural.trim_end_matches('\\').len();
        let (mut line, number) = open.take().unwrap_or((String::new(), index + 1));
        if backslashes % 2 == 1 {
            line.push_str(&natural[..natural.len() - 1]);
            open = Some((line, number));
        } else {
            line.push_str(natural);
            lines.push((line, number));
        }
    }
    lines.extend(open);
    lines
}

/// Key and value of a logical line, escapes in place. The key ends at the first `=`, `:` or blank
/// that is not escaped; blanks around one separator belong to neither.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (matches!(c, '=' | ':') || is_blank(c));
        escaped = !escaped && c == '\\';
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(is_blank))
}

/// Resolves escapes; `None` for a broken `\u`. A half of a surrogate pair becomes U+FFFD.
fn unescape(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut pair = [0; 2];
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let plain = match c {
            '\\' => match rest.next() {
                Some('u') => {
                    let digits = rest.as_str().get(..4)?;
                    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                        return None;
                    }
                    units.push(u16::from_str_radix(digits, 16).ok()?);
                    rest = rest.as_str()[4..].chars();
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\x0c',
                Some(other) => other,
                None => break,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut pair));
    }
    let chars = char::decode_utf16(units);
    Some(
        chars
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<(String, String)> {
        let all = parse_properties(text, "test").expect("properties");
        all.into_iter()
            .map(|(key, value, _)| (key, value))
            .collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_string(), value.to_string())
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_key() {
        assert_eq!(read(b"\xef\xbb\xbfa=1\n"), [pair("a", "1")]);
    }

    #[test]
    fn separators_blanks_and_comments_are_javas() {
        let text = b"# no\n  ! no\na=1\nb : 2\nc\t3 \n d = \ne\nf==g\n\\:h\\ i=j\n";
        let expected = [
            pair("a", "1"),
            pair("b", "2"),
            pair("c", "3 "),
            pair("d", ""),
            pair("e", ""),
            pair("f", "=g"),
            pair(":h i", "j"),
        ];
        assert_eq!(read(text), expected);
    }

    #[test]
    fn lines_go_on_behind_an_odd_number_of_backslashes() {
        assert_eq!(
            read(b"a=1\\\n   2\nb=3\\\\\nc=4\\"),
            [pair("a", "12"), pair("b", "3\\"), pair("c", "4")]
        );
        assert_eq!(
            read(b"a=1\r\nb=2\rc=3"),
            [pair("a", "1"), pair("b", "2"), pair("c", "3")]
        );
        let lines = parse_properties(b"\n#\na=\\\n1\nb=2", "test").expect("properties");
        assert_eq!(lines.iter().map(|p| p.2).collect::<Vec<_>>(), [3, 5]);
    }

    #[test]
    fn escapes_are_resolved_and_broken_ones_named_by_line() {
        assert_eq!(
            read(b"a=\\u0041\\t\\q\\ud83d\\ude00"),
            [pair("a", "A\tq\u{1f600}")]
        );
        for text in ["a=1\nb=\\u12", "a=1\nb=\\u12x4", "a=1\nb=\\u\u{e4}\u{e4}"] {
            let error = parse_properties(text.as_bytes(), "x.conf").expect_err("broken");
            assert!(error.to_string().contains("x.conf") && error.to_string().contains("line 2"));
        }
    }

    #[test]
    fn bytes_that_are_no_utf8_are_latin1() {
        assert_eq!(read(b"a=\xe4"), [pair("a", "\u{e4}")]);
        assert_eq!(read("a=\u{e4}".as_bytes()), [pair("a", "\u{e4}")]);
    }

    #[test]
    fn no_text_breaks_the_reader() {
        // A linear congruential generator: the same texts in every run.
        let mut state = 1u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        let alphabet = b"\\\\u0041=:#! \t\r\n\xffk\x00\xe4\xc3\xa4Dd8";
        for _ in 0..50_000 {
            let text: Vec<u8> = (0..next() % 24)
                .map(|_| alphabet[next() % alphabet.len()])
                .collect();
            // Any outcome but a panic.
            let _ = parse_properties(&text, "random");
        }
    }
}
