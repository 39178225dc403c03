//! Cutting a byte stream into frames (docs/protocol.md, "Frame").
//!
//! ```text
//! length: i32 | codec: u8, header length: u24 | header | body
//! ```
//!
//! `length` counts everything behind itself. Nothing is copied and nothing is remembered: the
//! caller offers what it has received so far and is told whether a frame is complete.

use crate::error::FrameError;

/// Largest frame in bytes that clients accept, the length word included.
pub const MAX_FRAME: usize = 16_777_216;

/// Bytes before the header: the length word and the codec word.
pub const PREFIX: usize = 8;

/// How the header of a frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// A JSON object.
    Json,
    /// The fixed layout that Apache calls `ROCKETMQ`.
    Binary,
}

impl Codec {
    /// The codec byte of the wire.
    pub fn byte(self) -> u8 {
        match self {
            Codec::Json => 0,
            Codec::Binary => 1,
        }
    }
}

/// One complete frame; the header is not looked into yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// How `header` is written.
    pub codec: Codec,
    /// The header's bytes.
    pub header: &'a [u8],
    /// The body; an absent body is an empty one.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Bytes of header and body.
    pub fn bytes(&self) -> usize {
        self.header.len() + self.body.len()
    }
}

/// What the received bytes amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// More bytes are needed.
    Incomplete {
        /// Size of the whole frame in bytes when its length word is there, else 4.
        wanted: usize,
    },
    /// A frame is complete.
    Complete {
        /// The frame.
        frame: Frame<'a>,
        /// Bytes it occupies, the length word included.
        consumed: usize,
    },
}

/// Looks for a frame at the start of `bytes`.
///
/// A frame that can never become valid is refused as soon as its first eight bytes show it, so
/// that nobody can make the receiver buffer what it would refuse anyway. `max_frame` counts the
/// length word.
pub fn parse(bytes: &[u8], max_frame: usize) -> Result<Parsed<'_>, FrameError> {
    let Some(length) = word(bytes, 0) else {
        return Ok(Parsed::Incomplete { wanted: 4 });
    };
    let length = length as i32;
    if length < 4 {
        return Err(FrameError::LengthTooSmall { length });
    }
    let total = length as usize + 4;
    if total > max_frame {
        return Err(FrameError::TooLarge {
            total,
            limit: max_frame,
        });
    }
    let Some(codec_word) = word(bytes, 4) else {
        return Ok(Parsed::Incomplete { wanted: total });
    };
    let codec = match (codec_word >> 24) as u8 {
        0 => Codec::Json,
        1 => Codec::Binary,
        codec => return Err(FrameError::UnknownCodec { codec }),
    };
    let header = (codec_word & 0x00ff_ffff) as usize;
    let room = total - PREFIX;
    if header > room {
        return Err(FrameError::HeaderTooLong { header, room });
    }
    let Some(content) = bytes.get(PREFIX..total) else {
        return Ok(Parsed::Incomplete { wanted: total });
    };
    let (header, body) = content.split_at(header);
    Ok(Parsed::Complete {
        frame: Frame {
            codec,
            header,
            body,
        },
        consumed: total,
    })
}

/// The big-endian word at `at`, if it is there.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: i32, codec_word: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&codec_word.to_be_bytes());
        bytes.extend_from_slice(content);
        bytes
    }

    #[test]
    fn every_prefix_of_a_frame_is_incomplete_and_knows_the_size() {
        let bytes = frame(4 + 5, 2, b"{}abc");
        for end in 0..bytes.len() {
            let wanted = if end < 4 { 4 } else { bytes.len() };
            assert_eq!(
                parse(&bytes[..end], MAX_FRAME),
                Ok(Parsed::Incomplete { wanted })
            );
        }
        let frame = Frame {
            codec: Codec::Json,
            header: b"{}",
            body: b"abc",
        };
        let complete = Ok(Parsed::Complete {
            frame,
            consumed: bytes.len(),
        });
        assert_eq!(parse(&bytes, MAX_FRAME), complete);
        let mut pipelined = bytes.clone();
        pipelined.extend_from_slice(&bytes[..6]);
        assert_eq!(parse(&pipelined, MAX_FRAME), complete);
    }

    #[test]
    fn impossible_lengths_are_refused_at_once() {
        for length in [0, 3, -1, i32::MIN] {
            let bytes = length.to_be_bytes();
            assert_eq!(
                parse(&bytes, MAX_FRAME),
                Err(FrameError::LengthTooSmall { length })
            );
        }
        let bytes = (MAX_FRAME as i32 - 3).to_be_bytes();
        let refused = FrameError::TooLarge {
            total: MAX_FRAME + 1,
            limit: MAX_FRAME,
        };
        assert_eq!(parse(&bytes, MAX_FRAME), Err(refused));
        let bytes = (MAX_FRAME as i32 - 4).to_be_bytes();
        assert_eq!(
            parse(&bytes, MAX_FRAME),
            Ok(Parsed::Incomplete { wanted: MAX_FRAME })
        );
    }

    #[test]
    fn unknown_codecs_and_overlong_headers_are_refused_before_the_body_arrives() {
        let bytes = frame(1000, 0x0200_0002, b"");
        assert_eq!(
            parse(&bytes, MAX_FRAME),
            Err(FrameError::UnknownCodec { codec: 2 })
        );
        let bytes = frame(1000, 997, b"");
        let refused = FrameError::HeaderTooLong {
            header: 997,
            room: 996,
        };
        assert_eq!(parse(&bytes, MAX_FRAME), Err(refused));
    }

    #[test]
    fn a_frame_with_neither_header_nor_body_is_a_frame() {
        let bytes = frame(4, 0x0100_0000, b"");
        let frame = Frame {
            codec: Codec::Binary,
            header: b"",
            body: b"",
        };
        assert_eq!(
            parse(&bytes, MAX_FRAME),
            Ok(Parsed::Complete { frame, consumed: 8 })
        );
    }
}
