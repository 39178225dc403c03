//! Writing frames straight into a connection's out buffer (docs/protocol.md, "Writing frames").
//!
//! An [`Encoder`] appends; lengths are patched at the end and nothing is allocated beyond the
//! buffer's own growth. What it leaves behind is always a whole number of frames: an encoder that
//! is dropped unfinished takes its bytes back, and a response that no frame can carry becomes an
//! error response.

use crate::codes::response::SYSTEM_ERROR;
use crate::command::{FLAG_ONEWAY, FLAG_RESPONSE, ReplyTo};
use crate::frame::{Codec, MAX_FRAME, PREFIX};
use crate::header::lexer::{ONES, zeros};

mod late;

pub use late::LateResponse;

/// The release this side claims to be: the number of Apache RocketMQ 5.3.3.
pub const VERSION: i32 = 479;

/// The language this side claims to be written in: the one value every client understands.
const LANGUAGE: &str = "JAVA";

/// Longest remark in bytes; the rest is cut off.
const MAX_REMARK: usize = 16 * 1024;

/// Longest header that the 24 bits of its length can tell, in bytes.
const MAX_HEADER: usize = 0x00ff_ffff;

/// Writes one frame.
#[derive(Debug)]
#[must_use = "a frame that is not finished is taken back"]
pub struct Encoder<'o> {
    out: &'o mut Vec<u8>,
    /// Where the frame starts in `out`.
    start: usize,
    /// Where the number of ext bytes stands in a binary header.
    ext_length_at: usize,
    head: Head,
    remark: Option<&'o str>,
    fields: usize,
    /// The frame is not finished: dropping takes it back.
    open: bool,
}

/// The fixed part of the header.
#[derive(Debug, Clone, Copy)]
struct Head {
    codec: Codec,
    code: i32,
    opaque: i32,
    flag: i32,
}

impl<'o> Encoder<'o> {
    /// Starts the response to a request, in the request's codec.
    pub fn response(out: &'o mut Vec<u8>, to: ReplyTo, code: i32, remark: Option<&'o str>) -> Self {
        let head = Head {
            codec: to.codec,
            code,
            opaque: to.opaque,
            flag: FLAG_RESPONSE,
        };
        Encoder::start(out, head, remark)
    }

    /// Starts a request. Codes beyond 16 bits are always written as JSON: the binary header has no
    /// room for them.
    pub fn request(
        out: &'o mut Vec<u8>,
        codec: Codec,
        code: i32,
        opaque: i32,
        oneway: bool,
    ) -> Self {
        let fits = i16::try_from(code).is_ok();
        let codec = if fits { codec } else { Codec::Json };
        let flag = if oneway { FLAG_ONEWAY } else { 0 };
        Encoder::start(
            out,
            Head {
                codec,
                code,
                opaque,
                flag,
            },
            None,
        )
    }

    fn start(out: &'o mut Vec<u8>, head: Head, remark: Option<&'o str>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX]);
        let remark = remark.map(shortened);
        let mut encoder = Encoder {
            out,
            start,
            ext_length_at: 0,
            head,
            remark,
            fields: 0,
            open: true,
        };
        match head.codec {
            Codec::Json => {
                encoder.bytes(b"{\"code\":");
                encoder.number(i64::from(head.code));
            }
            Codec::Binary => encoder.binary_head(),
        }
        encoder
    }

    fn binary_head(&mut self) {
        let Head {
            code, opaque, flag, ..
        } = self.head;
        self.bytes(&(code as i16).to_be_bytes());
        self.bytes(&[0]);
        self.bytes(&(VERSION as i16).to_be_bytes());
        self.bytes(&opaque.to_be_bytes());
        self.bytes(&flag.to_be_bytes());
        let remark = self.remark.unwrap_or_default();
        self.bytes(&(remark.len() as u32).to_be_bytes());
        self.bytes(remark.as_bytes());
        self.ext_length_at = self.out.len();
        self.bytes(&[0; 4]);
    }

    /// Adds a text field.
    pub fn field_str(&mut self, key: &str, value: &str) -> &mut Self {
        if self.begin_field(key, value.len()) {
            match self.head.codec {
                Codec::Json => escape(self.out, value),
                Codec::Binary => self.bytes(value.as_bytes()),
            }
            self.end_field();
        }
        self
    }

    /// Adds a number.
    pub fn field_i32(&mut self, key: &str, value: i32) -> &mut Self {
        self.field_i64(key, i64::from(value))
    }

    /// Adds a number.
    pub fn field_i64(&mut self, key: &str, value: i64) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.field_plain(key, digits.format(value))
    }

    /// Adds text in which JSON escapes nothing.
    fn field_plain(&mut self, key: &str, value: &str) -> &mut Self {
        if self.begin_field(key, value.len()) {
            self.bytes(value.as_bytes());
            self.end_field();
        }
        self
    }

    /// Adds a truth value.
    pub fn field_bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.field_plain(key, if value { "true" } else { "false" })
    }

    /// Writes a field's name and what stands before its value; false: it cannot be carried.
    fn begin_field(&mut self, key: &str, length: usize) -> bool {
        match self.head.codec {
            Codec::Json => {
                let first = self.fields == 0;
                // The fields of sends have one letter: written at once, at a length known here.
                match key.as_bytes() {
                    &[letter @ b'a'..=b'z'] if !first => {
                        self.bytes(&[b',', b'"', letter, b'"', b':', b'"']);
                    }
                    _ => {
                        self.bytes(if first { b",\"extFields\":{\"" } else { b",\"" });
                        escape(self.out, key);
                        self.bytes(b"\":\"");
                    }
                }
            }
            Codec::Binary => {
                let (Ok(key_length), Ok(length)) =
                    (i16::try_from(key.len()), i32::try_from(length))
                else {
                    return false;
                };
                self.bytes(&key_length.to_be_bytes());
                self.bytes(key.as_bytes());
                self.bytes(&length.to_be_bytes());
            }
        }
        self.fields += 1;
        true
    }

    fn end_field(&mut self) {
        if self.head.codec == Codec::Json {
            self.out.push(b'"');
        }
    }

    /// Ends a frame without a body.
    pub fn finish(self) {
        self.begin_body().finish();
    }

    /// Ends the frame with a body.
    pub fn body(self, body: &[u8]) {
        let mut writer = self.begin_body();
        writer.bytes(body);
        writer.finish();
    }

    /// Ends the header; the body is then written piece by piece.
    pub fn begin_body(mut self) -> BodyWriter<'o> {
        match self.head.codec {
            Codec::Json => self.json_tail(),
            Codec::Binary => {
                let length = self.out.len() - self.ext_length_at - 4;
                patch(self.out, self.ext_length_at, length as u32);
            }
        }
        let header = self.out.len() - self.start - PREFIX;
        let codec = u32::from(self.head.codec.byte()) << 24;
        // A header beyond the limit is replaced when the frame ends: it is then too large as well.
        patch(
            self.out,
            self.start + 4,
            codec | (header.min(MAX_HEADER) as u32),
        );
        BodyWriter { encoder: self }
    }

    fn json_tail(&mut self) {
        if self.fields > 0 {
            self.bytes(b"}");
        }
        self.bytes(b",\"flag\":");
        self.number(i64::from(self.head.flag));
        self.bytes(b",\"language\":\"");
        self.bytes(LANGUAGE.as_bytes());
        self.bytes(b"\",\"opaque\":");
        self.number(i64::from(self.head.opaque));
        if let Some(remark) = self.remark {
            self.bytes(b",\"remark\":\"");
            escape(self.out, remark);
            self.bytes(b"\"");
        }
        self.bytes(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        self.number(i64::from(VERSION));
        self.bytes(b"}");
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn number(&mut self, value: i64) {
        self.bytes(itoa::Buffer::new().format(value).as_bytes());
    }
}

impl Drop for Encoder<'_> {
    fn drop(&mut self) {
        if self.open {
            self.out.truncate(self.start);
        }
    }
}

/// Writes the body of a frame whose header is complete.
#[derive(Debug)]
#[must_use = "a frame that is not finished is taken back"]
pub struct BodyWriter<'o> {
    encoder: Encoder<'o>,
}

impl BodyWriter<'_> {
    /// Appends to the body.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.encoder.bytes(bytes);
    }

    /// The buffer itself, to be appended to only.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.encoder.out
    }

    /// Ends the frame.
    ///
    /// A response larger than clients accept is replaced by an error response that says so. A
    /// request of that size is taken back: nothing is sent.
    pub fn finish(mut self) {
        let encoder = &mut self.encoder;
        let total = encoder.out.len().saturating_sub(encoder.start);
        if total <= MAX_FRAME {
            patch(encoder.out, encoder.start, (total - 4) as u32);
            encoder.open = false;
            return;
        }
        encoder.out.truncate(encoder.start);
        encoder.open = false;
        if encoder.head.flag & FLAG_RESPONSE != 0 {
            let head = Head {
                code: SYSTEM_ERROR,
                ..encoder.head
            };
            let remark = "the answer is larger than a frame of 16777216 bytes can carry";
            Encoder::start(encoder.out, head, Some(remark)).finish();
        }
    }
}

/// Answers that the answer cannot be carried.
fn too_large(out: &mut Vec<u8>, to: ReplyTo) {
    let remark = "the answer is larger than a frame of 16777216 bytes can carry";
    Encoder::response(out, to, SYSTEM_ERROR, Some(remark)).finish();
}

/// Overwrites the word at `at`, which is there.
fn patch(out: &mut [u8], at: usize, value: u32) {
    if let Some(word) = out.get_mut(at..at + 4) {
        word.copy_from_slice(&value.to_be_bytes());
    }
}

/// Cuts a remark to its largest length, at a character's boundary.
fn shortened(remark: &str) -> &str {
    if remark.len() <= MAX_REMARK {
        return remark;
    }
    let ends = MAX_REMARK - 3..=MAX_REMARK;
    ends.rev()
        .find_map(|end| remark.get(..end))
        .unwrap_or_default()
}

/// Appends text as the inside of a JSON string.
fn escape(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    loop {
        let (plain, more) = rest.split_at(unescaped(rest));
        out.extend_from_slice(plain);
        let [byte, behind @ ..] = more else {
            return;
        };
        escape_byte(out, *byte);
        rest = behind;
    }
}

/// How many bytes at the front stand for themselves in a JSON string, looked at eight at a time.
fn unescaped(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut length = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let controls = word.wrapping_sub(ONES * 0x20) & !word & (ONES << 7);
        let quotes = zeros(word ^ (ONES * u64::from(b'"')));
        let found = controls | quotes | zeros(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return length + found.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    let plain = |byte: &&u8| **byte >= 0x20 && !matches!(**byte, b'"' | b'\\');
    length + rest.iter().take_while(plain).count()
}

fn escape_byte(out: &mut Vec<u8>, byte: u8) {
    const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' => b'"',
        b'\\' => b'\\',
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        _ => {
            let [high, low] = [byte >> 4, byte & 15].map(|half| HEXADECIMAL[usize::from(half)]);
            return out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Scratch, decode};
    use crate::frame::{Parsed, parse};

    pub(super) fn to(codec: Codec) -> ReplyTo {
        ReplyTo {
            codec,
            opaque: -7,
            oneway: false,
            version: 409,
            code: 310,
        }
    }

    pub(super) fn read<'a>(bytes: &'a [u8], scratch: &'a mut Scratch) -> Command<'a> {
        match parse(bytes, MAX_FRAME) {
            Ok(Parsed::Complete { frame, consumed }) => {
                assert_eq!(consumed, bytes.len());
                decode(frame, scratch).expect("a header that can be read")
            }
            other => panic!("no frame: {other:?}"),
        }
    }

    #[test]
    fn every_byte_is_escaped_or_not_wherever_it_stands() {
        for byte in (0..0x80u8).map(char::from).chain(['\u{e9}', '\u{20ac}']) {
            for place in 0..20 {
                let text: String = (0..20)
                    .map(|at| if at == place { byte } else { 'x' })
                    .collect();
                let mut out = vec![b'"'];
                escape(&mut out, &text);
                out.push(b'"');
                let read: String = serde_json::from_slice(&out).expect("JSON");
                assert_eq!(read, text);
                let is_plain = byte >= ' ' && byte != '"' && byte != '\\';
                assert_eq!(out.len() == text.len() + 2, is_plain);
            }
        }
    }

    #[test]
    fn a_json_response_has_fastjsons_member_order_and_only_text_fields() {
        let mut out = b"before".to_vec();
        let mut encoder = Encoder::response(&mut out, to(Codec::Json), 0, Some("say \"hi\"\u{1}"));
        encoder
            .field_str("msgId", "7F")
            .field_i32("queueId", 3)
            .field_i64("queueOffset", -1);
        encoder.field_bool("TRACE_ON", true);
        encoder.body(b"body");
        let expected = concat!(
            r#"{"code":0,"extFields":{"msgId":"7F","queueId":"3","queueOffset":"-1","#,
            r#""TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":-7,"#,
            r#""remark":"say \"hi\"\u0001","serializeTypeCurrentRPC":"JSON","version":479}"#,
        );
        assert_eq!(&out[..6], b"before");
        assert_eq!(
            std::str::from_utf8(&out[14..14 + expected.len()]),
            Ok(expected)
        );
        assert_eq!(out[6..10], (4 + expected.len() as u32 + 4).to_be_bytes());
        assert_eq!(out[10..14], (expected.len() as u32).to_be_bytes());
        assert!(out.ends_with(b"body"));
    }

    #[test]
    fn without_fields_and_remark_both_members_are_left_out() {
        let mut out = Vec::new();
        Encoder::response(&mut out, to(Codec::Json), 0, None).finish();
        let text = String::from_utf8_lossy(&out);
        assert!(
            !text.contains("extFields") && !text.contains("remark"),
            "{text}"
        );
    }

    #[test]
    fn what_is_written_is_read_back_in_both_codecs() {
        for codec in [Codec::Json, Codec::Binary] {
            let mut out = Vec::new();
            let remark = "r\u{e4}mark \u{1F680} \\ \u{0}";
            let mut encoder = Encoder::response(&mut out, to(codec), 17, Some(remark));
            encoder
                .field_str("k", "a\u{1}b\u{2}")
                .field_i64("n", i64::MIN);
            encoder.body(b"xyz");
            let mut scratch = Scratch::default();
            let command = read(&out, &mut scratch);
            assert_eq!(
                (command.code, command.opaque, command.flag),
                (17, -7, FLAG_RESPONSE)
            );
            assert_eq!((command.version, command.codec), (VERSION, codec));
            assert_eq!(command.remark, Some(remark));
            assert_eq!(command.ext.get("k"), Some("a\u{1}b\u{2}"));
            assert_eq!(command.ext.i64("n"), Ok(Some(i64::MIN)));
            assert_eq!(command.body, b"xyz");
        }
    }

    #[test]
    fn codes_beyond_16_bits_are_written_as_json() {
        let mut out = Vec::new();
        Encoder::request(&mut out, Codec::Binary, 200_050, 1, true).finish();
        let mut scratch = Scratch::default();
        let command = read(&out, &mut scratch);
        assert_eq!((command.code, command.codec), (200_050, Codec::Json));
        assert!(command.is_oneway() && !command.is_response());
    }

    #[test]
    fn a_dropped_encoder_leaves_nothing_behind() {
        let mut out = b"kept".to_vec();
        drop(Encoder::response(&mut out, to(Codec::Json), 0, None));
        let mut writer = Encoder::response(&mut out, to(Codec::Binary), 0, None).begin_body();
        writer.bytes(b"body");
        drop(writer);
        assert_eq!(out, b"kept");
    }

    #[test]
    fn an_answer_too_large_for_a_frame_becomes_an_error_and_a_request_vanishes() {
        let mut out = Vec::new();
        let mut writer = Encoder::response(&mut out, to(Codec::Json), 0, None).begin_body();
        writer.buffer().resize(MAX_FRAME + 1, 0);
        writer.finish();
        let mut scratch = Scratch::default();
        assert_eq!(read(&out, &mut scratch).code, SYSTEM_ERROR);
        let mut out = Vec::new();
        Encoder::request(&mut out, Codec::Json, 10, 1, false).body(&vec![0; MAX_FRAME]);
        assert!(out.is_empty());
        let mut encoder = Encoder::response(&mut out, to(Codec::Json), 0, None);
        encoder.field_str("big", &"x".repeat(MAX_FRAME));
        encoder.finish();
        assert_eq!(read(&out, &mut Scratch::default()).code, SYSTEM_ERROR);
    }

    #[test]
    fn a_warm_codec_allocates_nothing() {
        let (mut out, mut scratch) = (Vec::new(), Scratch::default());
        let mut sizes = Vec::new();
        for _ in 0..3 {
            out.clear();
            let mut encoder = Encoder::request(&mut out, Codec::Json, 310, 1, false);
            for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                encoder.field_str(key, "TAGS\u{1}tag\u{2}");
            }
            encoder.body(&[0; 1000]);
            assert_eq!(
                read(&out, &mut scratch).ext.get("h"),
                Some("TAGS\u{1}tag\u{2}")
            );
            sizes.push((
                out.capacity(),
                scratch.text.capacity(),
                scratch.slots.capacity(),
            ));
        }
        assert_eq!(sizes[1], sizes[2]);
    }

    #[test]
    fn a_long_remark_is_cut_at_a_character() {
        let mut out = Vec::new();
        let remark = format!("x{}", "\u{1F680}".repeat(MAX_REMARK));
        Encoder::response(&mut out, to(Codec::Binary), 1, Some(&remark)).finish();
        let mut scratch = Scratch::default();
        let read = read(&out, &mut scratch).remark.map(str::len);
        assert!(read.is_some_and(|length| length <= MAX_REMARK && length > MAX_REMARK - 4));
    }
}
