//! JSON headers as all known clients write them (docs/protocol.md, "JSON header").

use super::fields::{MAX_FIELDS, Slot};
use super::lexer::{Lexer, Scalar, Span};
use crate::command::{Head, Language, Scratch};
use crate::error::HeaderError;

/// A member of the header object that means something here.
enum Member {
    Code,
    Language,
    Version,
    Opaque,
    Flag,
    Remark,
    Ext,
    Other,
}

/// Reads a header object. Absent members keep their defaults.
pub(crate) fn decode(text: &str, scratch: &mut Scratch) -> Result<Head, HeaderError> {
    let mut lexer = Lexer::new(text);
    let mut head = Head::default();
    if lexer.peek().is_none() {
        return Err(HeaderError::Empty);
    }
    lexer.require(b'{', "an object")?;
    loop {
        lexer.skip_commas();
        if lexer.take(b'}') {
            break;
        }
        let kept = scratch.text.len();
        let name = lexer.name(&mut scratch.text)?;
        let member = member(name.text(text, &scratch.text));
        scratch.text.truncate(kept);
        read_member(&mut lexer, text, member, &mut head, scratch)?;
        lexer.end_of_member(b'}')?;
    }
    match lexer.peek() {
        None => Ok(head),
        Some(_) => Err(lexer.expected("nothing behind the header object")),
    }
}

fn member(name: &str) -> Member {
    match name {
        "code" => Member::Code,
        "language" => Member::Language,
        "version" => Member::Version,
        "opaque" => Member::Opaque,
        "flag" => Member::Flag,
        "remark" => Member::Remark,
        "extFields" => Member::Ext,
        _ => Member::Other,
    }
}

fn read_member(
    lexer: &mut Lexer<'_>,
    text: &str,
    member: Member,
    head: &mut Head,
    scratch: &mut Scratch,
) -> Result<(), HeaderError> {
    match member {
        Member::Code => number(lexer, text, "code", &mut head.code, scratch),
        Member::Version => number(lexer, text, "version", &mut head.version, scratch),
        Member::Opaque => number(lexer, text, "opaque", &mut head.opaque, scratch),
        Member::Flag => number(lexer, text, "flag", &mut head.flag, scratch),
        Member::Language => language(lexer, text, head, scratch),
        Member::Remark => {
            if is_nested(lexer) {
                return Err(HeaderError::NotText { member: "remark" });
            }
            head.remark = text_of(lexer.scalar(&mut scratch.text)?);
            Ok(())
        }
        Member::Ext => ext(lexer, scratch),
        Member::Other => skip(lexer, scratch).map(drop),
    }
}

/// A number, quoted or not; null keeps the default.
fn number(
    lexer: &mut Lexer<'_>,
    text: &str,
    member: &'static str,
    into: &mut i32,
    scratch: &mut Scratch,
) -> Result<(), HeaderError> {
    let wrong = HeaderError::NotANumber { member };
    if is_nested(lexer) {
        return Err(wrong);
    }
    let span = match lexer.scalar(&mut scratch.text)? {
        Scalar::Text(span) | Scalar::Number(span) => span,
        Scalar::Null => return Ok(()),
        Scalar::Bool(..) => return Err(wrong),
    };
    *into = span
        .text(text, &scratch.text)
        .trim()
        .parse()
        .map_err(|_| wrong)?;
    Ok(())
}

/// A language by name or by number; an unknown one is no error.
fn language(
    lexer: &mut Lexer<'_>,
    text: &str,
    head: &mut Head,
    scratch: &mut Scratch,
) -> Result<(), HeaderError> {
    head.language = match lexer.scalar(&mut scratch.text)? {
        Scalar::Text(span) => Language::from_name(span.text(text, &scratch.text)),
        Scalar::Number(span) => {
            let number = span.text(text, &scratch.text).parse::<u8>();
            number.map_or(Language::Unknown, Language::from_byte)
        }
        Scalar::Bool(..) | Scalar::Null => Language::Unknown,
    };
    Ok(())
}

/// The ext object; null is an empty one.
fn ext(lexer: &mut Lexer<'_>, scratch: &mut Scratch) -> Result<(), HeaderError> {
    if lexer.peek() != Some(b'{') {
        return match lexer.scalar(&mut scratch.text) {
            Ok(Scalar::Null) => Ok(()),
            _ => Err(HeaderError::ExtNotAnObject),
        };
    }
    lexer.take(b'{');
    loop {
        lexer.skip_commas();
        if lexer.take(b'}') {
            return Ok(());
        }
        if scratch.slots.len() == MAX_FIELDS {
            return Err(HeaderError::TooManyFields { limit: MAX_FIELDS });
        }
        let (name, value) = match lexer.plain_member(&mut scratch.text)? {
            Some((name, value)) => (name, Some(value)),
            None => {
                let name = lexer.name(&mut scratch.text)?;
                (name, ext_value(lexer, scratch)?)
            }
        };
        scratch.slots.push(Slot { name, value });
        lexer.end_of_member(b'}')?;
    }
}

/// A value in the sender's own characters; nested values are kept as their JSON text.
fn ext_value(lexer: &mut Lexer<'_>, scratch: &mut Scratch) -> Result<Option<Span>, HeaderError> {
    if is_nested(lexer) {
        return skip(lexer, scratch).map(Some);
    }
    lexer.scalar(&mut scratch.text).map(text_of)
}

/// Does an object or an array come next?
fn is_nested(lexer: &mut Lexer<'_>) -> bool {
    matches!(lexer.peek(), Some(b'{' | b'['))
}

/// The characters of a value; null has none.
fn text_of(scalar: Scalar) -> Option<Span> {
    match scalar {
        Scalar::Text(span) | Scalar::Number(span) | Scalar::Bool(span, _) => Some(span),
        Scalar::Null => None,
    }
}

fn skip(lexer: &mut Lexer<'_>, scratch: &mut Scratch) -> Result<Span, HeaderError> {
    let kept = scratch.text.len();
    let span = lexer.skip(1, &mut scratch.text)?;
    scratch.text.truncate(kept);
    Ok(span)
}
