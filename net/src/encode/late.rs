//! Responses whose header is known only when their body is there, as with pulls.

use super::{Encoder, patch, too_large};
use crate::command::ReplyTo;
use crate::frame::{Codec, MAX_FRAME, PREFIX};

/// Room left for a header and what stands before it, in bytes: that of a pull with the longest
/// numbers fits.
const LATE_ROOM: usize = 384;

/// Writes a response whose body is there before its code and fields are known: room for the header
/// is left, so that the body is written once, at its final place.
#[derive(Debug)]
#[must_use = "a frame that is not finished is taken back"]
pub struct LateResponse<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    to: ReplyTo,
    open: bool,
}

impl<'o> LateResponse<'o> {
    /// Starts the response to a request, in the request's codec.
    pub fn new(out: &'o mut Vec<u8>, to: ReplyTo) -> Self {
        let start = out.len();
        out.resize(start + LATE_ROOM, 0);
        LateResponse {
            out,
            start,
            to,
            open: true,
        }
    }

    /// The buffer, for the body to be appended to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Bytes of the body so far.
    pub fn body_length(&self) -> usize {
        self.out.len().saturating_sub(self.start + LATE_ROOM)
    }

    /// Takes back the body so far.
    pub fn clear_body(&mut self) {
        self.out.truncate(self.start + LATE_ROOM);
    }

    /// Ends the frame.
    pub fn finish(
        mut self,
        code: i32,
        remark: Option<&str>,
        fields: impl FnOnce(&mut Encoder<'_>),
    ) {
        self.open = false;
        let behind = self.out.len();
        let body = self.body_length();
        let mut encoder = Encoder::response(self.out, self.to, code, remark);
        fields(&mut encoder);
        encoder.finish();
        let header = self.out.len() - behind - PREFIX;
        let room = LATE_ROOM - PREFIX;
        if body + LATE_ROOM.max(PREFIX + header) > MAX_FRAME {
            self.out.truncate(self.start);
            too_large(self.out, self.to);
        } else if self.to.codec == Codec::Json && header <= room {
            self.fill_room(behind, header, body);
        } else {
            self.swap(behind, PREFIX + header, body);
        }
    }

    /// Puts the header that was written behind the body into the room before it; blanks behind a
    /// JSON object mean nothing to its reader.
    fn fill_room(&mut self, behind: usize, header: usize, body: usize) {
        let at = self.start + PREFIX;
        self.out
            .copy_within(behind + PREFIX..behind + PREFIX + header, at);
        self.out.truncate(behind);
        let room = LATE_ROOM - PREFIX;
        if let Some(rest) = self.out.get_mut(at + header..at + room) {
            rest.fill(b' ');
        }
        patch(self.out, self.start, (4 + room + body) as u32);
        patch(self.out, self.start + 4, room as u32);
    }

    /// Moves the body: the header does not fit, or its codec knows no blanks.
    fn swap(&mut self, behind: usize, head: usize, body: usize) {
        let from = self.start + LATE_ROOM;
        if let Some(both) = self.out.get_mut(from..behind + head) {
            both.rotate_right(head);
        }
        self.out.drain(self.start..from);
        patch(self.out, self.start, (head - 4 + body) as u32);
    }
}

impl Drop for LateResponse<'_> {
    fn drop(&mut self) {
        if self.open {
            self.out.truncate(self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::response::SYSTEM_ERROR;
    use crate::command::Scratch;
    use crate::encode::tests::{read, to};

    #[test]
    fn a_late_header_says_the_same_as_an_early_one() {
        for codec in [Codec::Json, Codec::Binary] {
            for long in [0, 1000] {
                let mut out = b"before".to_vec();
                let mut late = LateResponse::new(&mut out, to(codec));
                late.buffer().extend_from_slice(b"taken back");
                late.clear_body();
                late.buffer().extend_from_slice(b"the body");
                assert_eq!(late.body_length(), 8);
                late.finish(19, Some("FOUND"), |encoder| {
                    encoder
                        .field_i64("minOffset", 3)
                        .field_str("long", &"x".repeat(long));
                });
                assert!(out.starts_with(b"before"));
                let mut scratch = Scratch::default();
                let command = read(&out[6..], &mut scratch);
                assert_eq!((command.code, command.opaque), (19, -7));
                assert_eq!(
                    (command.remark, command.body),
                    (Some("FOUND"), &b"the body"[..])
                );
                assert_eq!(command.ext.i64("minOffset"), Ok(Some(3)));
                assert_eq!(command.ext.get("long").map_or(0, str::len), long);
            }
        }
    }

    #[test]
    fn a_late_response_can_be_dropped_or_be_too_large() {
        let mut out = b"kept".to_vec();
        LateResponse::new(&mut out, to(Codec::Json))
            .buffer()
            .push(1);
        assert_eq!(out, b"kept");
        out.clear();
        let mut late = LateResponse::new(&mut out, to(Codec::Json));
        late.buffer().resize(MAX_FRAME + 1, 0);
        late.finish(0, None, |_| {});
        assert_eq!(read(&out, &mut Scratch::default()).code, SYSTEM_ERROR);
    }
}
