//! The broker's message id: store host and log offset in hexadecimal
//! (docs/format.md, Offset message id).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An offset message id: 32 hex digits with an IPv4 host, 56 with an IPv6 host.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct MessageId {
    text: [u8; 56],
    len: usize,
}

impl MessageId {
    /// The id of the record at log offset `physical_offset`, stored by `store_host`.
    pub fn new(store_host: SocketAddr, physical_offset: u64) -> Self {
        let mut id = Self {
            text: [0; 56],
            len: 0,
        };
        match store_host.ip().to_canonical() {
            IpAddr::V4(ip) => id.hex(&ip.octets()),
            IpAddr::V6(ip) => id.hex(&ip.octets()),
        }
        id.hex(&u32::from(store_host.port()).to_be_bytes());
        id.hex(&physical_offset.to_be_bytes());
        id
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        // Only hex digits are ever written, so the fallback is never taken.
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }

    /// Host and log offset of an id; `None` when `text` is not one.
    pub fn parse(text: &str) -> Option<(SocketAddr, u64)> {
        let mut bytes = [0u8; 28];
        let len = text.len() / 2;
        if !text.is_ascii() || !matches!(text.len(), 32 | 56) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let high = char::from(digits[0]).to_digit(16)?;
            let low = char::from(digits[1]).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
        }
        let ip: IpAddr = if len == 16 {
            Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..4]).ok()?).into()
        } else {
            Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..16]).ok()?).into()
        };
        let port = super::i32_at(&bytes, len - 12)?;
        let offset = super::i64_at(&bytes, len - 8)?;
        let host = SocketAddr::new(ip, u16::try_from(port).ok()?);
        Some((host, u64::try_from(offset).ok()?))
    }

    fn hex(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        for byte in bytes {
            self.text[self.len] = DIGITS[usize::from(byte >> 4)];
            self.text[self.len + 1] = DIGITS[usize::from(byte & 15)];
            self.len += 2;
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_apache_and_parse_back() {
        let cases = [
            ("10.0.0.5:10911", 1000, "0A00000500002A9F00000000000003E8"),
            (
                "[2001:db8::1]:10911",
                0,
                "20010DB800000000000000000000000100002A9F0000000000000000",
            ),
        ];
        for (host, offset, text) in cases {
            let host: SocketAddr = host.parse().unwrap();
            assert_eq!(MessageId::new(host, offset).as_str(), text);
            assert_eq!(MessageId::parse(text), Some((host, offset)));
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "0A",
            "0A00000500002A9F00000000000003EG",
            "ä".repeat(16).as_str(),
        ] {
            assert_eq!(MessageId::parse(text), None, "{text}");
        }
        assert_eq!(MessageId::parse("0A000005FFFFFFFF00000000000003E8"), None);
    }
}
