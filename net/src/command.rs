//! A frame's header, read: what is asked or answered, and with which fields.
//!
//! Reading borrows from the frame and from a [`Scratch`] that is used over and over: once that is
//! warm nothing is allocated.

use crate::error::HeaderError;
use crate::frame::{Codec, Frame};
use crate::header::fields::{Fields, Slot};
use crate::header::lexer::Span;
use crate::header::template::Templates;
use crate::header::{binary, json};

/// Flag bit of a response (docs/protocol.md, "Flag and opaque").
pub const FLAG_RESPONSE: i32 = 1;
/// Flag bit of a request that wants no response.
pub const FLAG_ONEWAY: i32 = 2;

/// A scratch that grew beyond this is shrunk before its next use, in bytes.
const SCRATCH_KEPT: usize = 1 << 20;

/// The implementation language a peer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it
pub enum Language {
    #[default]
    Java = 0,
    Cpp = 1,
    Dotnet = 2,
    Python = 3,
    Delphi = 4,
    Erlang = 5,
    Ruby = 6,
    Other = 7,
    Http = 8,
    Go = 9,
    Php = 10,
    Oms = 11,
    Rust = 12,
    NodeJs = 13,
    /// A name or number that is not known here.
    Unknown = 255,
}

/// Languages in the order of their numbers, by the names of the wire.
const LANGUAGES: [(Language, &str); 14] = [
    (Language::Java, "JAVA"),
    (Language::Cpp, "CPP"),
    (Language::Dotnet, "DOTNET"),
    (Language::Python, "PYTHON"),
    (Language::Delphi, "DELPHI"),
    (Language::Erlang, "ERLANG"),
    (Language::Ruby, "RUBY"),
    (Language::Other, "OTHER"),
    (Language::Http, "HTTP"),
    (Language::Go, "GO"),
    (Language::Php, "PHP"),
    (Language::Oms, "OMS"),
    (Language::Rust, "RUST"),
    (Language::NodeJs, "NODE_JS"),
];

impl Language {
    /// The language of that name, else `Unknown`.
    pub fn from_name(name: &str) -> Self {
        let found = LANGUAGES.iter().find(|(_, known)| *known == name);
        found.map_or(Language::Unknown, |(language, _)| *language)
    }

    /// The language of that number, else `Unknown`.
    pub fn from_byte(byte: u8) -> Self {
        LANGUAGES
            .get(usize::from(byte))
            .map_or(Language::Unknown, |(language, _)| *language)
    }

    /// The name on the wire; `OTHER` for an unknown one.
    pub fn name(self) -> &'static str {
        LANGUAGES
            .get(self as usize)
            .map_or("OTHER", |(_, name)| name)
    }
}

/// Memory for reading headers, reused from one to the next.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Text that does not stand in the header as such.
    pub(crate) text: String,
    pub(crate) slots: Vec<Slot>,
    /// Shapes of the JSON headers read before.
    templates: Templates,
}

impl Scratch {
    fn clear(&mut self) {
        self.text.clear();
        self.slots.clear();
        if self.text.capacity() > SCRATCH_KEPT {
            self.text.shrink_to(SCRATCH_KEPT);
        }
    }
}

/// The fixed part of a header.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) code: i32,
    pub(crate) language: Language,
    pub(crate) version: i32,
    pub(crate) opaque: i32,
    pub(crate) flag: i32,
    pub(crate) remark: Option<Span>,
}

/// A request or response, read from a frame.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    /// The request code, or the response code of a response.
    pub code: i32,
    /// The peer's language.
    pub language: Language,
    /// The peer's version: the number of an Apache RocketMQ release.
    pub version: i32,
    /// Number of the request; a response repeats it.
    pub opaque: i32,
    /// Flag bits.
    pub flag: i32,
    /// Text beside the code.
    pub remark: Option<&'a str>,
    /// The ext fields.
    pub ext: Fields<'a>,
    /// The body.
    pub body: &'a [u8],
    /// How the header was written.
    pub codec: Codec,
}

/// What an answer needs to know of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    /// The codec to answer in.
    pub codec: Codec,
    /// The request's number.
    pub opaque: i32,
    /// No answer is wanted.
    pub oneway: bool,
    /// The client's version.
    pub version: i32,
    /// The request's code.
    pub code: i32,
}

impl Command<'_> {
    /// Is this the answer to a request?
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Does the sender want no answer?
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    /// What an answer to this request needs to know.
    pub fn reply_to(&self) -> ReplyTo {
        ReplyTo {
            codec: self.codec,
            opaque: self.opaque,
            oneway: self.is_oneway(),
            version: self.version,
            code: self.code,
        }
    }
}

/// Reads the header of a frame.
///
/// JSON headers may be written in fastjson's dialect; absent members have defaults (code 0,
/// language Java, version, opaque and flag 0).
pub fn decode<'a>(frame: Frame<'a>, scratch: &'a mut Scratch) -> Result<Command<'a>, HeaderError> {
    scratch.clear();
    let (head, header) = match frame.codec {
        Codec::Json => {
            let header = std::str::from_utf8(frame.header).map_err(|_| HeaderError::NotUtf8)?;
            (read_json(header, scratch)?, header)
        }
        Codec::Binary => (binary::decode(frame.header, scratch)?, ""),
    };
    let scratch: &'a Scratch = scratch;
    Ok(Command {
        code: head.code,
        language: head.language,
        version: head.version,
        opaque: head.opaque,
        flag: head.flag,
        remark: head.remark.map(|span| span.text(header, &scratch.text)),
        ext: Fields::new(&scratch.slots, header, &scratch.text),
        body: frame.body,
        codec: frame.codec,
    })
}

/// Reads a JSON header: by its shape, if such a header came before, else word by word.
fn read_json(header: &str, scratch: &mut Scratch) -> Result<Head, HeaderError> {
    let Scratch {
        text,
        slots,
        templates,
    } = scratch;
    if let Some(head) = templates.read(header, text, slots) {
        return Ok(head);
    }
    let head = json::decode(header, scratch)?;
    scratch.templates.learn(header, &head);
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::fields::{FieldError, MAX_FIELDS};

    fn json<'a>(header: &'a str, scratch: &'a mut Scratch) -> Result<Command<'a>, HeaderError> {
        decode(
            Frame {
                codec: Codec::Json,
                header: header.as_bytes(),
                body: b"",
            },
            scratch,
        )
    }

    #[test]
    fn the_dialect_of_foreign_clients_is_read() {
        let header = concat!(
            "{ code:'310', \"language\":'CPP',,version : 333 , 'opaque':-5, flag:\"2\",",
            "\"remark\":\"\",\"extFields\":",
            "{'a':\"g\\u0001\\n\\ud83d\\ude80\\ud83d!\",b:3,c:true,d:null,",
            "\"e\":-1.50e3,f:{\"x\":[1,2]},a:\"last\",},\"unknown\":{\"y\":[{},[],'z']}}\n",
        );
        let mut scratch = Scratch::default();
        let command = json(header, &mut scratch).expect("a tolerant reader");
        assert_eq!(
            (command.code, command.version, command.opaque),
            (310, 333, -5)
        );
        assert_eq!(command.language, Language::Cpp);
        assert!(command.is_oneway() && !command.is_response());
        assert_eq!(command.remark, Some(""));
        let fields: Vec<_> = command.ext.iter().collect();
        let expected = [
            ("b", "3"),
            ("c", "true"),
            ("e", "-1.50e3"),
            ("f", "{\"x\":[1,2]}"),
            ("a", "last"),
        ];
        assert_eq!(fields, expected);
        assert_eq!(command.ext.get("d"), None);
    }

    #[test]
    fn escapes_become_the_characters_they_stand_for() {
        let header = r#"{"extFields":{"i":"A\u0001\x41\u0002\ud83d\ude80\ud83dz\udc00\/\'\0"}}"#;
        let mut scratch = Scratch::default();
        let command = json(header, &mut scratch).expect("valid escapes");
        let expected = "A\u{1}A\u{2}\u{1F680}\u{FFFD}z\u{FFFD}/'\0";
        assert_eq!(command.ext.get("i"), Some(expected));
    }

    #[test]
    fn text_of_every_length_ends_at_its_quote_with_and_without_escapes() {
        let mut scratch = Scratch::default();
        for length in 0..40 {
            let (name, value) = ("n".repeat(length), "\u{e9}!#[]".repeat(length));
            for escape in ["", "\\u0001", "\\u00e9", "\\\""] {
                let wanted = escape
                    .replace("\\u0001", "\u{1}")
                    .replace("\\u00e9", "\u{e9}")
                    .replace("\\\"", "\"");
                let header =
                    format!(r#"{{"extFields":{{"{name}":"{value}{escape}{value}","z":"1"}}}}"#);
                let command = json(&header, &mut scratch).expect("a header");
                let expected = format!("{value}{wanted}{value}");
                assert_eq!(command.ext.get(&name), Some(&*expected), "{header}");
                assert_eq!(command.ext.get("z"), Some("1"));
            }
        }
    }

    #[test]
    fn absent_members_have_defaults() {
        let mut scratch = Scratch::default();
        let command = json("{}", &mut scratch).expect("an empty header object");
        assert_eq!(
            (command.code, command.version, command.opaque, command.flag),
            (0, 0, 0, 0)
        );
        assert_eq!((command.language, command.remark), (Language::Java, None));
        assert!(command.ext.is_empty());
    }

    #[test]
    fn broken_json_is_an_error() {
        let deep = format!("{{\"x\":{}", "[".repeat(5000));
        let broken = [
            "",
            " ",
            "[]",
            "{",
            "{\"code\"}",
            "{\"code\":}",
            "{\"code\":1",
            "{\"code\":1}x",
            "{\"code\":99999999999}",
            "{\"code\":true}",
            "{\"code\":{}}",
            "{\"extFields\":[]}",
            "{\"remark\":{}}",
            "{\"a\":\"\\q\"}",
            "{\"a\":\"\\u12\"}",
            "{\"a\":\"x",
            "{\"a\":1 2}",
            "{\"extFields\":{\"a\":\"b\"",
            "{\"a\":1-2}",
            &deep,
        ];
        for header in broken {
            assert!(json(header, &mut Scratch::default()).is_err(), "{header}");
        }
        let frame = Frame {
            codec: Codec::Json,
            header: b"{\"a\":\"\xff\"}",
            body: b"",
        };
        assert_eq!(
            decode(frame, &mut Scratch::default()).err(),
            Some(HeaderError::NotUtf8)
        );
    }

    #[test]
    fn the_number_of_fields_is_limited() {
        let fields: Vec<_> = (0..=MAX_FIELDS).map(|n| format!("\"{n}\":1")).collect();
        let header = |count| format!("{{\"extFields\":{{{}}}}}", fields[..count].join(","));
        assert!(json(&header(MAX_FIELDS), &mut Scratch::default()).is_ok());
        let refused = Some(HeaderError::TooManyFields { limit: MAX_FIELDS });
        assert_eq!(
            json(&header(MAX_FIELDS + 1), &mut Scratch::default()).err(),
            refused
        );
    }

    #[test]
    fn wrong_fields_are_named_with_value_and_kind() {
        let header = r#"{"extFields":{"n":"12x","big":"2147483648","y":"TRUE","empty":""}}"#;
        let mut scratch = Scratch::default();
        let ext = json(header, &mut scratch).expect("a header").ext;
        assert_eq!(
            ext.required_i32("gone"),
            Err(FieldError::Missing { field: "gone" })
        );
        let text = ext.i32("n").expect_err("no number").to_string();
        assert_eq!(
            text,
            "the field n holds \"12x\", which is not a number that fits i32"
        );
        assert!(ext.i32("big").is_err() && ext.i32("empty").is_err());
        assert_eq!(ext.i64("big"), Ok(Some(2_147_483_648)));
        assert_eq!(
            (ext.bool("y"), ext.bool("n"), ext.bool("gone")),
            (Ok(Some(true)), Ok(Some(false)), Ok(None))
        );
    }

    #[test]
    fn the_example_of_the_binary_header_is_read() {
        let header = [
            0x00, 0x69, 0x00, 0x01, 0x99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c, 0, 5,
            b't', b'o', b'p', b'i', b'c', 0, 0, 0, 1, b'T',
        ];
        let mut scratch = Scratch::default();
        let frame = Frame {
            codec: Codec::Binary,
            header: &header,
            body: b"",
        };
        let command = decode(frame, &mut scratch).expect("the example");
        assert_eq!(
            (command.code, command.version, command.opaque),
            (105, 409, 1)
        );
        assert_eq!(command.ext.required_str("topic"), Ok("T"));
        for end in 0..header.len() {
            let frame = Frame {
                codec: Codec::Binary,
                header: &header[..end],
                body: b"",
            };
            assert!(decode(frame, &mut Scratch::default()).is_err(), "{end}");
        }
    }
}
