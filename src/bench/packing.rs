//! Bodies that are compressed by the sender, as Apache's clients do it: `sysFlag` says how, and
//! whoever reads the message unpacks it.

use std::io::{Read, Write};
use std::str::FromStr;

use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use saturnmq_net::messages::send::SYS_FLAG_COMPRESSED;

use super::message::MAX_BODY;

/// Where `sysFlag` has the method.
const METHOD_SHIFT: i32 = 8;
const METHOD_MASK: i32 = 7;
/// The level that Apache's clients use for zlib and zstd.
const LEVEL: u8 = 5;

/// A method, by its number in `sysFlag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// LZ4 frames.
    Lz4 = 1,
    /// zstd frames.
    Zstd = 2,
    /// zlib streams: the only method of clients before 5.0, which give no number.
    Zlib = 3,
}

const METHODS: [(&str, Method); 3] = [
    ("zlib", Method::Zlib),
    ("lz4", Method::Lz4),
    ("zstd", Method::Zstd),
];

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = METHODS.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, method)| *method)
            .ok_or_else(|| "must be zlib, lz4 or zstd".to_owned())
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = METHODS.iter().find(|(_, method)| method == self);
        f.write_str(known.map_or("", |(name, _)| name))
    }
}

impl Method {
    /// The bits of `sysFlag` that say so.
    pub fn sys_flag(self) -> i32 {
        SYS_FLAG_COMPRESSED | (self as i32) << METHOD_SHIFT
    }

    /// How a message is compressed, from its `sysFlag`; `None`: it is not.
    pub fn of(sys_flag: i32) -> Option<Self> {
        if sys_flag & SYS_FLAG_COMPRESSED == 0 {
            return None;
        }
        Some(match sys_flag >> METHOD_SHIFT & METHOD_MASK {
            1 => Self::Lz4,
            2 => Self::Zstd,
            _ => Self::Zlib,
        })
    }

    /// Compresses a body into `to`.
    ///
    /// # Errors
    /// The library's.
    pub fn pack(self, body: &[u8], to: &mut Vec<u8>) -> std::io::Result<()> {
        to.clear();
        match self {
            Self::Zlib => {
                let level = flate2::Compression::new(LEVEL.into());
                let mut encoder = ZlibEncoder::new(to, level);
                encoder.write_all(body)?;
                encoder.finish().map(drop)
            }
            Self::Lz4 => {
                let mut encoder = FrameEncoder::new(to);
                encoder.write_all(body)?;
                encoder.finish().map(drop).map_err(std::io::Error::other)
            }
            Self::Zstd => zstd::stream::copy_encode(body, to, LEVEL.into()),
        }
    }

    /// Unpacks a body into `to`.
    ///
    /// # Errors
    /// The library's; a body that becomes larger than any that is sent is cut off.
    pub fn unpack(self, body: &[u8], to: &mut Vec<u8>) -> std::io::Result<()> {
        to.clear();
        let most = u64::from(MAX_BODY) + 1;
        match self {
            Self::Zlib => ZlibDecoder::new(body).take(most).read_to_end(to),
            Self::Lz4 => FrameDecoder::new(body).take(most).read_to_end(to),
            Self::Zstd => zstd::stream::Decoder::new(body)?.take(most).read_to_end(to),
        }
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_unpacked_and_damage_is_an_error() {
        let body = b"a body that is long enough, long enough, long enough".repeat(50);
        for (name, method) in METHODS {
            assert_eq!(name.parse(), Ok(method));
            assert_eq!(method.to_string(), name);
            assert_eq!(Method::of(method.sys_flag()), Some(method));
            let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
            method.pack(&body, &mut packed).unwrap();
            assert!(packed.len() < body.len() / 2);
            method.unpack(&packed, &mut unpacked).unwrap();
            assert_eq!(unpacked, body);
            assert!(method.unpack(&packed[2..], &mut unpacked).is_err());
        }
        assert_eq!(Method::of(SYS_FLAG_COMPRESSED), Some(Method::Zlib));
        assert_eq!(Method::of(2 << METHOD_SHIFT), None);
        assert!("snappy".parse::<Method>().is_err());
    }
}
