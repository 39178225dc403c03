//! Shapes of JSON headers that came before: most requests of a client differ in a few values only.
//!
//! A template holds one header and says which of its values vary. A header that equals it between
//! those values is read by comparing a few long stretches; only the values that vary are looked at.
//! Whatever differs in any other way is left to [`super::json`], which reads the same from every
//! header that a template takes: the two are in the same place of the same grammar at each byte.
//!
//! ```text
//! {"code":310,"extFields":{"a":"g","b":"T","e":"<varies>","i":"<varies>"},"opaque":<varies>}
//! ```

use super::fields::Slot;
use super::lexer::{Lexer, Span};
use crate::command::Head;

/// Shapes kept at a time.
const KEPT: usize = 6;
/// Longest header that is learnt, in bytes.
const LONGEST: usize = 4096;
/// Most values of a header that is learnt.
const MOST_VALUES: usize = 40;
/// Longest pause between two lessons, in headers that nothing kept could read.
const LONGEST_PAUSE: u32 = 4096;
/// So many headers of a new shape show that it was worth the lesson.
const PROOF: u32 = 8;
/// Most digits of a number that is read here: it cannot be beyond an `i32`.
const MOST_DIGITS: usize = 9;

/// What was learnt from the headers read so far.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    kept: Vec<Template>,
    /// The values of the header at hand, while it is learnt.
    values: Vec<Value>,
    /// Headers to pass by before the next lesson: those that never fit must not cost twice.
    pause: u32,
    next_pause: u32,
}

impl Templates {
    /// Reads a header of a shape that is known; `None`, and nothing is written, for all others.
    #[inline]
    pub(crate) fn read(
        &mut self,
        header: &str,
        text: &mut String,
        slots: &mut Vec<Slot>,
    ) -> Option<Head> {
        for template in &mut self.kept {
            if let Some(head) = template.read(header, text, slots) {
                if template.hits < PROOF {
                    self.next_pause /= 2;
                    self.pause = self.pause.min(self.next_pause);
                }
                template.hits = template.hits.saturating_add(1);
                return Some(head);
            }
            text.clear();
            slots.clear();
        }
        None
    }

    /// Learns from a header that no template could read; `head` is what the decoder read.
    pub(crate) fn learn(&mut self, header: &str, head: &Head) {
        if self.pause > 0 {
            self.pause -= 1;
            return;
        }
        self.next_pause = (self.next_pause * 2 + 1).min(LONGEST_PAUSE);
        self.pause = self.next_pause;
        if header.len() > LONGEST || head.remark.is_some() {
            return;
        }
        self.values.clear();
        if walk(header, &mut self.values).is_none() {
            return;
        }
        let same = |kept: &Template| kept.has_shape(header.as_bytes(), &self.values);
        let known = self.kept.iter().position(same);
        let place = known.unwrap_or_else(|| self.room());
        if known.is_some() {
            self.kept[place].compare(header.as_bytes(), &mut self.values);
        }
        self.kept[place].become_one_of(header, &self.values, *head);
    }

    /// The place for a new shape: a free one, or that of the shape that came least.
    fn room(&mut self) -> usize {
        if self.kept.len() < KEPT {
            self.kept.push(Template::default());
            return self.kept.len() - 1;
        }
        let least = self
            .kept
            .iter()
            .enumerate()
            .min_by_key(|(_, kept)| kept.hits);
        let place = least.map_or(0, |(place, _)| place);
        for kept in &mut self.kept {
            kept.hits /= 2;
        }
        self.kept[place].hits = 0;
        place
    }
}

/// The place of one value: of an ext field, or of the opaque.
#[derive(Debug, Clone, Copy)]
struct Value {
    start: usize,
    end: usize,
    /// The name of an ext field; `None`: the opaque.
    name: Option<(usize, usize)>,
    varies: bool,
}

/// One header, and which of its values vary.
#[derive(Debug, Default)]
struct Template {
    source: Vec<u8>,
    head: Head,
    values: Vec<Value>,
    /// The ext fields, as they lie in the source.
    slots: Vec<Slot>,
    varying: Vec<Varying>,
    /// Where the constant end of the source begins.
    tail: usize,
    /// Headers read by it, halved now and then.
    hits: u32,
}

/// A value that varies, and what stands before it.
#[derive(Debug)]
struct Varying {
    /// From here the source is constant up to the value.
    from: usize,
    start: usize,
    /// Ext fields before it.
    slots: usize,
    is_opaque: bool,
}

impl Template {
    /// Whether headers differ in nothing but values.
    fn has_shape(&self, header: &[u8], values: &[Value]) -> bool {
        let mut ends = (0, 0);
        self.values.len() == values.len()
            && self.values.iter().zip(values).all(|(mine, its)| {
                let same = self.source.get(ends.0..mine.start) == header.get(ends.1..its.start);
                ends = (mine.end, its.end);
                same
            })
            && self.source.get(ends.0..) == header.get(ends.1..)
    }

    /// Marks the values that differ, and those known to vary.
    fn compare(&self, header: &[u8], values: &mut [Value]) {
        for (mine, its) in self.values.iter().zip(values) {
            let differ = self.source.get(mine.start..mine.end) != header.get(its.start..its.end);
            its.varies |= mine.varies || differ;
        }
    }

    /// Takes over a header; memory is kept from one to the next.
    fn become_one_of(&mut self, header: &str, values: &[Value], head: Head) {
        self.source.clear();
        self.source.extend_from_slice(header.as_bytes());
        self.head = head;
        self.values.clear();
        self.values.extend_from_slice(values);
        self.slots.clear();
        self.varying.clear();
        let mut from = 0;
        for value in values {
            debug_assert!(from <= value.start && value.start <= value.end);
            if value.varies {
                self.varying.push(Varying {
                    from,
                    start: value.start,
                    slots: self.slots.len(),
                    is_opaque: value.name.is_none(),
                });
                from = value.end;
            }
            if let Some((start, end)) = value.name {
                self.slots.push(Slot {
                    name: Span::in_source(start, end),
                    value: Some(Span::in_source(value.start, value.end)),
                });
            }
        }
        self.tail = from;
    }

    #[inline]
    fn read(&self, header: &str, text: &mut String, slots: &mut Vec<Slot>) -> Option<Head> {
        let bytes = header.as_bytes();
        let (mut head, mut at, mut taken) = (self.head, 0, 0);
        for varying in &self.varying {
            let stretch = self.source.get(varying.from..varying.start)?;
            if !bytes.get(at..)?.starts_with(stretch) {
                return None;
            }
            let by = at.wrapping_sub(varying.from);
            let constant = self.slots.get(taken..varying.slots)?;
            slots.extend(constant.iter().map(|slot| slot.moved(by)));
            taken = varying.slots;
            at += stretch.len();
            if varying.is_opaque {
                let (opaque, length) = number(bytes.get(at..)?)?;
                head.opaque = opaque;
                at += length;
            } else {
                // Back to the opening quote, and up to the closing one.
                let mut lexer = Lexer::at(header, at - 1);
                let value = lexer.string(b'"', text).ok()?;
                at = lexer.place() - 1;
                let name = self.slots.get(taken)?.name.moved(by);
                slots.push(Slot {
                    name,
                    value: Some(value),
                });
                taken += 1;
            }
        }
        if bytes.get(at..) != self.source.get(self.tail..) {
            return None;
        }
        let by = at.wrapping_sub(self.tail);
        let rest = self.slots.get(taken..)?;
        slots.extend(rest.iter().map(|slot| slot.moved(by)));
        Some(head)
    }
}

/// A number without sign at the front, and how many digits it has.
#[inline]
fn number(bytes: &[u8]) -> Option<(i32, usize)> {
    let (mut value, mut length) = (0, 0);
    while let Some(digit @ b'0'..=b'9') = bytes.get(length) {
        if length == MOST_DIGITS {
            return None;
        }
        value = value * 10 + i32::from(digit - b'0');
        length += 1;
    }
    (length > 0).then_some((value, length))
}

/// Finds the values of a header that is written without blanks and holds no nested values, one
/// opaque and at most one ext object; `None` for any other.
fn walk(header: &str, values: &mut Vec<Value>) -> Option<()> {
    let mut walker = Walker { header, at: 0 };
    let (mut opaques, mut exts) = (0, 0);
    walker.take(b'{')?;
    loop {
        let name = walker.string()?;
        walker.take(b':')?;
        match header.get(name.0..name.1)? {
            "extFields" => {
                exts += 1;
                walker.ext(values)?;
            }
            "opaque" => {
                opaques += 1;
                let start = walker.at;
                let (_, length) = number(header.as_bytes().get(start..)?)?;
                walker.at += length;
                values.push(Value {
                    start,
                    end: walker.at,
                    name: None,
                    varies: true,
                });
            }
            _ => walker.constant()?,
        }
        if walker.ends()? {
            break;
        }
    }
    let whole = walker.at == header.len() && opaques == 1 && exts <= 1;
    whole.then_some(())
}

struct Walker<'h> {
    header: &'h str,
    at: usize,
}

impl Walker<'_> {
    fn byte(&self) -> Option<u8> {
        self.header.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        let there = self.byte() == Some(byte);
        self.at += usize::from(there);
        there.then_some(())
    }

    /// After a member: whether its object ends, or goes on behind a comma.
    fn ends(&mut self) -> Option<bool> {
        let byte = self.byte()?;
        self.at += 1;
        match byte {
            b'}' => Some(true),
            b',' => Some(false),
            _ => None,
        }
    }

    /// A string without escapes: its place between the quotes.
    fn string(&mut self) -> Option<(usize, usize)> {
        let (start, end) = self.any_string()?;
        let plain = !self.header.get(start..end)?.contains('\\');
        plain.then_some((start, end))
    }

    /// A string, perhaps with escapes that the lexer has found to be right.
    fn any_string(&mut self) -> Option<(usize, usize)> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match self.byte()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some((start, self.at - 1))
    }

    /// A value that is the same in all headers of the shape.
    fn constant(&mut self) -> Option<()> {
        if self.byte()? == b'"' {
            return self.string().map(drop);
        }
        let start = self.at;
        while let Some(b'-' | b'0'..=b'9' | b'a'..=b'z') = self.byte() {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn ext(&mut self, values: &mut Vec<Value>) -> Option<()> {
        self.take(b'{')?;
        loop {
            let name = self.string()?;
            self.take(b':')?;
            let (start, end) = self.any_string()?;
            if values.len() >= MOST_VALUES {
                return None;
            }
            values.push(Value {
                start,
                end,
                name: Some(name),
                // Escapes are for the lexer.
                varies: self.header.get(start..end)?.contains('\\'),
            });
            if self.ends()? {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Scratch;
    use crate::header::json;

    /// A send as Java clients write it, a pull in another order, an answer.
    const HEADERS: [&str; 3] = [
        concat!(
            r#"{"code":310,"extFields":{"a":"g","b":"T","c":"TBW102","d":"4","e":"1","f":"0","#,
            r#""g":"1700000000000","h":"0","i":"UNIQ_KEY\u00017F00\u0002WAIT\u0001true","j":"0","#,
            r#""k":"false","m":"false"},"flag":0,"language":"JAVA","opaque":77,"#,
            r#""serializeTypeCurrentRPC":"JSON","version":399}"#,
        ),
        concat!(
            r#"{"code":11,"flag":0,"language":"GO","opaque":123456789,"version":431,"#,
            r#""extFields":{"topic":"T","queueId":"0","queueOffset":"100","subscription":"*"},"#,
            r#""remark":null}"#,
        ),
        r#"{"code":0,"extFields":{"queueId":"3","queueOffset":"9"},"flag":1,"opaque":5}"#,
    ];

    type Read = (i32, i32, i32, i32, Vec<(String, Option<String>)>);

    fn told(head: &Head, header: &str, text: &str, slots: &[Slot]) -> Read {
        let of = |span: Span| span.text(header, text).to_owned();
        let fields = slots.iter().map(|slot| (of(slot.name), slot.value.map(of)));
        let Head {
            code,
            version,
            opaque,
            flag,
            ..
        } = *head;
        (code, version, opaque, flag, fields.collect())
    }

    /// Reads a header both ways and lets it be learnt; whether a template read it.
    fn read(templates: &mut Templates, header: &str) -> bool {
        let (mut text, mut slots) = (String::new(), Vec::new());
        let quick = templates.read(header, &mut text, &mut slots);
        let mut scratch = Scratch::default();
        let full = json::decode(header, &mut scratch);
        let Some(head) = quick else {
            assert!(slots.is_empty() && text.is_empty());
            if let Ok(head) = full {
                templates.learn(header, &head);
            }
            return false;
        };
        let full = full.expect("a template takes what the decoder takes");
        let wanted = told(&full, header, &scratch.text, &scratch.slots);
        assert_eq!(told(&head, header, &text, &slots), wanted, "{header}");
        assert_eq!((head.language, head.remark), (full.language, full.remark));
        true
    }

    #[test]
    fn the_third_header_of_a_shape_is_read_by_what_the_first_two_taught() {
        for header in HEADERS {
            let mut templates = Templates::default();
            assert!(!read(&mut templates, header));
            assert!(read(&mut templates, header));
            for (old, new) in [("\"T\"", "\"Topic\""), ("\":\"0\"", "\":\"12\"")] {
                let other = header.replacen(old, new, 1);
                // The first lesson says when the next one may be.
                let unread = (0..3).filter(|_| !read(&mut templates, &other)).count();
                assert!(unread < 3, "{other}");
                assert!(read(&mut templates, header), "{header}");
            }
        }
    }

    #[test]
    fn a_template_reads_what_the_decoder_reads_and_nothing_else() {
        const TELLING: &[u8] = b"\"'\\{}[]:,u0123dDeE+-. \x01\x7f";
        let mut state = 0x5eed_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut templates, mut taken) = (Templates::default(), [0, 0]);
        for round in 0..60_000 {
            let mut header = HEADERS[random(HEADERS.len())].to_owned();
            let changes = if round % 4 == 0 { 0 } else { 1 + random(3) };
            for _ in 0..changes {
                if header.len() < 2 {
                    break;
                }
                let at = random(header.len());
                let telling = char::from(TELLING[random(TELLING.len())]);
                match random(4) {
                    0 => header.insert(at, telling),
                    1 => drop(header.remove(at)),
                    2 => header.truncate(at),
                    _ => {
                        header.remove(at);
                        header.insert(at, telling);
                    }
                }
            }
            taken[usize::from(changes > 0)] += usize::from(read(&mut templates, &header));
        }
        assert!(
            taken[0] > 10_000,
            "{taken:?} headers were read by templates"
        );
        assert!(taken[1] > 1_000, "{taken:?} changed ones were");
    }

    #[test]
    fn headers_that_cannot_be_learnt_are_looked_at_ever_more_rarely() {
        let mut templates = Templates::default();
        let header = r#"{ "code":1,"opaque":1}"#;
        for _ in 0..100_000 {
            assert!(!read(&mut templates, header));
        }
        assert_eq!(templates.next_pause, LONGEST_PAUSE);
        assert!(templates.kept.is_empty());
    }

    #[test]
    fn two_opaques_or_numbers_beyond_nine_digits_are_left_to_the_decoder() {
        for header in [
            r#"{"code":1,"opaque":1,"opaque":2}"#,
            r#"{"code":1,"opaque":2147483647}"#,
            r#"{"code":1,"opaque":"1"}"#,
            r#"{"code":1,"opaque":1,"remark":"x"}"#,
        ] {
            let mut templates = Templates::default();
            assert!((0..5).all(|_| !read(&mut templates, header)), "{header}");
        }
    }
}
