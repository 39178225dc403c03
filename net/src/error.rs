//! Errors of the codec: what is wrong with the bytes of a peer.
//!
//! A [`FrameError`] or [`HeaderError`] means that the stream can no longer be trusted (the
//! connection is closed); a [`crate::header::fields::FieldError`] is answered.

use thiserror::Error;

/// Why bytes cannot be the beginning of a frame (docs/protocol.md, "Frame").
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length word is negative or too small to hold the codec word.
    #[error("frame length {length} is below the smallest possible, 4")]
    LengthTooSmall {
        /// The length word as sent.
        length: i32,
    },
    /// The frame is larger than the receiver allows.
    #[error("frame of {total} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Size of the whole frame in bytes, the length word included.
        total: usize,
        /// The limit in bytes, the length word included.
        limit: usize,
    },
    /// The codec byte is neither JSON (0) nor binary (1).
    #[error("unknown header codec {codec}; 0 (JSON) and 1 (binary) exist")]
    UnknownCodec {
        /// The codec byte as sent.
        codec: u8,
    },
    /// The header would reach beyond the end of the frame.
    #[error("header of {header} bytes does not fit into a frame with room for {room}")]
    HeaderTooLong {
        /// Header length in bytes as sent.
        header: usize,
        /// Bytes of the frame behind the codec word.
        room: usize,
    },
}

/// Why a header cannot be read (docs/protocol.md, "JSON header" and "Binary header").
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The frame has no header at all.
    #[error("the header is empty")]
    Empty,
    /// Text in the header is not UTF-8.
    #[error("the header is not UTF-8 text")]
    NotUtf8,
    /// The JSON text is broken.
    #[error("broken JSON header at byte {at}: expected {expected}")]
    Syntax {
        /// Offset in the header, in bytes.
        at: usize,
        /// What would have been right.
        expected: &'static str,
    },
    /// Values are nested deeper than the reader follows.
    #[error("header values are nested deeper than {limit} levels")]
    TooDeep {
        /// The limit in levels.
        limit: usize,
    },
    /// More ext fields than any request has.
    #[error("header has more than {limit} ext fields")]
    TooManyFields {
        /// The limit in fields.
        limit: usize,
    },
    /// A member of the header does not hold a 32-bit number.
    #[error("header member {member} is not a 32-bit number")]
    NotANumber {
        /// Name of the member.
        member: &'static str,
    },
    /// A member of the header holds something else than text.
    #[error("header member {member} is not text")]
    NotText {
        /// Name of the member.
        member: &'static str,
    },
    /// `extFields` is not an object.
    #[error("header member extFields is not an object")]
    ExtNotAnObject,
    /// A length inside a binary header reaches beyond its end.
    #[error("binary header ends at byte {at} inside {what}")]
    Truncated {
        /// Offset in the header, in bytes.
        at: usize,
        /// What was being read.
        what: &'static str,
    },
}
