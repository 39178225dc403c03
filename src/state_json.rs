//! Writes JSON the way Apache's state files are written, byte for byte.
//!
//! Tab indentation, no blank after `:`, bean keys in the order they are given (Apache sorts them),
//! number-keyed maps without quotes on one line, their closing brace on the next
//! (docs/format.md, State files).

use std::fmt::Write;

/// A text under construction; one method call per member.
#[derive(Debug, Default)]
pub struct JsonWriter {
    out: String,
    /// One entry per open object: whether it has a member already.
    open: Vec<bool>,
}

impl JsonWriter {
    /// Starts a text with its outer object open.
    pub fn new() -> Self {
        Self {
            out: String::from("{"),
            open: vec![false],
        }
    }

    /// Closes the outer object and gives the text.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.end();
        }
        self.out
    }

    /// A text that goes on inside `depth` objects of the outer one, behind these members.
    pub fn within(depth: usize, members: String) -> Self {
        let mut open = vec![true; depth + 1];
        open[depth] = !members.is_empty();
        Self { out: members, open }
    }

    /// The members so far, for [`JsonWriter::within`] and [`JsonWriter::members`].
    pub fn unfinished(self) -> String {
        self.out
    }

    /// Members of the innermost object, which has none yet, as another writer wrote them.
    pub fn members(&mut self, members: &str) {
        if let Some(used) = self.open.last_mut() {
            *used |= !members.is_empty();
        }
        self.out.push_str(members);
    }

    fn line(&mut self) {
        const LINE: &str = "\n\t\t\t\t\t\t";
        match LINE.get(..=self.open.len()) {
            Some(line) => self.out.push_str(line),
            None => {
                self.out.push('\n');
                self.out.extend(std::iter::repeat_n('\t', self.open.len()));
            }
        }
    }

    fn key(&mut self, key: &str) {
        if let Some(used) = self.open.last_mut() {
            if *used {
                self.out.push(',');
            }
            *used = true;
        }
        self.line();
        self.quoted(key);
        self.out.push(':');
    }

    fn quoted(&mut self, text: &str) {
        let plain = |byte: &u8| matches!(byte, 0x20..0x7f) && !matches!(byte, b'"' | b'\\');
        self.out.push('"');
        if text.as_bytes().iter().all(plain) {
            self.out.push_str(text);
            self.out.push('"');
            return;
        }
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if u32::from(c) < 0x20
                    || matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}') =>
                {
                    // Writing into a String cannot fail.
                    let _ = write!(self.out, "\\u{:04X}", u32::from(c));
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    /// Opens an object member; [`JsonWriter::end`] closes it.
    pub fn object(&mut self, key: &str) {
        self.key(key);
        self.out.push('{');
        self.open.push(false);
    }

    /// Closes the innermost object.
    pub fn end(&mut self) {
        if let Some(used) = self.open.pop() {
            if used {
                self.line();
            }
            self.out.push('}');
        }
    }

    /// A string member.
    pub fn string(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quoted(value);
    }

    /// A number member.
    pub fn number(&mut self, key: &str, value: i64) {
        self.key(key);
        let _ = write!(self.out, "{value}");
    }

    /// A boolean member.
    pub fn boolean(&mut self, key: &str, value: bool) {
        self.key(key);
        self.out.push_str(if value { "true" } else { "false" });
    }

    /// A map with number keys: `{0:250,1:249` and the closing brace on its own line.
    pub fn numbers(&mut self, key: &str, entries: impl IntoIterator<Item = (i32, i64)>) {
        self.key(key);
        self.out.push('{');
        let mut any = false;
        for (number, value) in entries {
            if any {
                self.out.push(',');
            }
            any = true;
            let _ = write!(self.out, "{number}:{value}");
        }
        if any {
            self.line();
        }
        self.out.push('}');
    }

    /// A list of strings on one line.
    pub fn strings<'a>(&mut self, key: &str, values: impl IntoIterator<Item = &'a str>) {
        self.key(key);
        self.out.push('[');
        for (at, value) in values.into_iter().enumerate() {
            if at > 0 {
                self.out.push(',');
            }
            self.quoted(value);
        }
        self.out.push(']');
    }

    /// A list of numbers on one line.
    pub fn number_list(&mut self, key: &str, values: &[i32]) {
        self.key(key);
        self.out.push('[');
        for (at, value) in values.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let _ = write!(self.out, "{comma}{value}");
        }
        self.out.push(']');
    }

    /// A member kept as it was read: objects are indented, everything else stands on one line.
    pub fn value(&mut self, key: &str, value: &serde_json::Value) {
        match value {
            serde_json::Value::Object(members) => {
                self.object(key);
                for (name, member) in members {
                    self.value(name, member);
                }
                self.end();
            }
            serde_json::Value::String(text) => self.string(key, text),
            other => {
                self.key(key);
                let _ = write!(self.out, "{other}");
            }
        }
    }
}

/// Version of a state file's content: Apache's `DataVersion`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataVersion {
    /// Controller epoch; 5.x only, always 0 here.
    pub state_version: i64,
    /// Milliseconds since the epoch of the last change.
    pub timestamp: i64,
    /// Number of changes.
    pub counter: i64,
}

impl DataVersion {
    /// Counts one change made now.
    pub fn next(&mut self) {
        self.timestamp = now_ms();
        self.counter += 1;
    }

    /// Reads the `dataVersion` member of a state file; absent members are 0.
    pub fn read(value: Option<&serde_json::Value>) -> Self {
        let number = |name: &str| {
            value
                .and_then(|v| v.get(name))
                .and_then(serde_json::Value::as_i64)
                .unwrap_or(0)
        };
        Self {
            state_version: number("stateVersion"),
            timestamp: number("timestamp"),
            counter: number("counter"),
        }
    }

    /// Writes the `dataVersion` member in the shape of `generation`.
    pub fn write(&self, out: &mut JsonWriter, generation: Generation) {
        out.object("dataVersion");
        out.number("counter", self.counter);
        if generation == Generation::V5 {
            out.number("stateVersion", self.state_version);
        }
        out.number("timestamp", self.timestamp);
        out.end();
    }
}

/// Whose shape a state file has. A store that 4.9 wrote keeps 4.9's shape, so that it can go back;
/// new stores have 5.x's, which 4.9 reads as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// 4.9: no attributes, no state version.
    V4,
    /// 5.x.
    #[default]
    V5,
}

impl Generation {
    /// Tells the generation of a file from its `dataVersion` member.
    pub fn of(data_version: Option<&serde_json::Value>) -> Self {
        match data_version.and_then(|v| v.get("stateVersion")) {
            Some(_) => Self::V5,
            None => Self::V4,
        }
    }
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_apaches_byte_for_byte() {
        let mut out = JsonWriter::new();
        out.object("offsetTable");
        out.numbers("T@g", [(0, 250), (1, 249)]);
        out.numbers("U@g", []);
        out.end();
        assert_eq!(
            out.finish(),
            "{\n\t\"offsetTable\":{\n\t\t\"T@g\":{0:250,1:249\n\t\t},\n\t\t\"U@g\":{}\n\t}\n}"
        );
        let mut empty = JsonWriter::new();
        empty.object("offsetTable");
        assert_eq!(empty.finish(), "{\n\t\"offsetTable\":{}\n}");
    }

    #[test]
    fn strings_are_escaped() {
        let mut out = JsonWriter::new();
        out.string("k", "a\"b\\\n\u{1}ä");
        assert_eq!(out.finish(), "{\n\t\"k\":\"a\\\"b\\\\\\n\\u0001ä\"\n}");
    }
}
