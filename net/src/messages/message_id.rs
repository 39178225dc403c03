//! Offset message ids: the broker's address and a log offset in hexadecimal
//! (docs/format.md, "Offset message id").

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest id in characters: an IPv6 address, a port and an offset.
pub const MAX_LENGTH: usize = 56;

const HEXADECIMAL: &[u8; 16] = b"0123456789ABCDEF";

/// An id as text, without allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageId {
    text: [u8; MAX_LENGTH],
    length: usize,
}

impl MessageId {
    /// The id of the record at `offset` of the broker that is known as `host`.
    pub fn new(host: SocketAddr, offset: u64) -> Self {
        let mut id = MessageId {
            text: [0; MAX_LENGTH],
            length: 0,
        };
        match host.ip() {
            IpAddr::V4(ip) => id.push(&ip.octets()),
            IpAddr::V6(ip) => id.push(&ip.octets()),
        }
        id.push(&u32::from(host.port()).to_be_bytes());
        id.push(&offset.to_be_bytes());
        id
    }

    fn push(&mut self, bytes: &[u8]) {
        let rest = self.text.get_mut(self.length..).unwrap_or_default();
        for (pair, byte) in rest.chunks_exact_mut(2).zip(bytes) {
            let digits = [byte >> 4, byte & 15].map(|half| HEXADECIMAL[usize::from(half)]);
            pair.copy_from_slice(&digits);
            self.length += 2;
        }
    }

    /// The text, in upper case.
    pub fn as_str(&self) -> &str {
        let text = self.text.get(..self.length).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }
}

/// Reads an id: the host and the log offset. `None`: the text is no offset message id.
pub fn parse(text: &str) -> Option<(SocketAddr, u64)> {
    let mut bytes = [0; MAX_LENGTH / 2];
    if !matches!(text.len(), 32 | MAX_LENGTH) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = pair.iter().try_fold(0, |byte, digit| {
            Some(byte << 4 | char::from(*digit).to_digit(16)? as u8)
        })?;
    }
    let (ip, rest) = if text.len() == 32 {
        let (ip, rest) = bytes.split_first_chunk::<4>()?;
        (IpAddr::V4(Ipv4Addr::from(*ip)), rest)
    } else {
        let (ip, rest) = bytes.split_first_chunk::<16>()?;
        (IpAddr::V6(Ipv6Addr::from(*ip)), rest)
    };
    let (port, rest) = rest.split_first_chunk::<4>()?;
    let (offset, _) = rest.split_first_chunk::<8>()?;
    let port = u16::try_from(u32::from_be_bytes(*port)).ok()?;
    Some((SocketAddr::new(ip, port), u64::from_be_bytes(*offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_both_address_families_go_there_and_back() {
        let host: SocketAddr = "127.0.0.1:10911".parse().expect("an address");
        let id = MessageId::new(host, 4096);
        assert_eq!(id.as_str(), "7F00000100002A9F0000000000001000");
        assert_eq!(parse(&id.as_str().to_lowercase()), Some((host, 4096)));
        let host: SocketAddr = "[fe80::1]:1".parse().expect("an address");
        let id = MessageId::new(host, u64::MAX);
        assert_eq!(id.as_str().len(), 56);
        assert_eq!(parse(id.as_str()), Some((host, u64::MAX)));
    }

    #[test]
    fn other_texts_are_no_ids() {
        for text in [
            "",
            "7F",
            &"0".repeat(33),
            &"g".repeat(32),
            &"é".repeat(16),
            &"7".repeat(32),
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
