//! What the frame behind the one at hand will ask for, guessed from its bytes.
//!
//! A guess costs a search and a few fetches; a wrong one changes nothing.

use memchr::memmem;

/// Bytes of a header in which the topic is looked for.
const LOOKED_AT: usize = 512;

/// Finds the destination of a send in the bytes of a frame that was not decoded.
pub struct Destinations {
    json: [memmem::Finder<'static>; 2],
    binary: [memmem::Finder<'static>; 2],
}

impl Default for Destinations {
    fn default() -> Self {
        Self {
            json: [&b"\"b\":\""[..], b"\"e\":"].map(memmem::Finder::new),
            binary: [b"\0\x01b\0\0\0", b"\0\x01e\0\0\0"].map(memmem::Finder::new),
        }
    }
}

impl Destinations {
    /// Topic and queue id of the send (310, 320; docs/protocol.md, "Sending") whose frame these
    /// bytes begin with; the queue is the first one where it is not found.
    pub fn find<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let word = bytes.get(4..8)?;
        let word = u32::from_be_bytes(word.try_into().ok()?);
        let length = (word & 0x00ff_ffff) as usize;
        let header = &bytes[8..bytes.len().min(8 + length.min(LOOKED_AT))];
        match word >> 24 {
            0 => self.in_json(header),
            _ => self.in_binary(header),
        }
    }

    fn in_json<'a>(&self, header: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let [topic, queue_id] = &self.json;
        let rest = &header[topic.find(header)? + 5..];
        let topic = &rest[..memchr::memchr(b'"', rest)?];
        let queue_id = queue_id.find(&rest[topic.len()..]).map(|at| {
            let value = &rest[topic.len() + at + 4..];
            number(value.strip_prefix(b"\"").unwrap_or(value))
        });
        Some((topic, queue_id.unwrap_or(0)))
    }

    fn in_binary<'a>(&self, header: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let [topic, queue_id] = &self.binary;
        let rest = &header[topic.find(header)? + 6..];
        let (&length, rest) = rest.split_first()?;
        let topic = rest.get(..usize::from(length))?;
        let rest = &rest[topic.len()..];
        let queue_id = queue_id.find(rest).map(|at| {
            let value = rest.get(at + 7..).unwrap_or_default();
            number(value)
        });
        Some((topic, queue_id.unwrap_or(0)))
    }
}

/// The number that these bytes begin with, of three digits at most.
fn number(bytes: &[u8]) -> usize {
    let digits = bytes
        .iter()
        .take(3)
        .take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, byte| number * 10 + usize::from(byte - b'0'))
}

#[cfg(test)]
mod tests {
    use saturnmq_net::encode::Encoder;
    use saturnmq_net::frame::Codec;
    use saturnmq_net::messages::send::SendRequest;

    use super::*;

    #[test]
    fn the_destination_of_a_send_is_found_in_both_forms_of_headers() {
        let destinations = Destinations::default();
        let send = SendRequest {
            producer_group: "group",
            topic: "a-topic_%9",
            default_topic: "TBW102",
            queue_id: 12,
            properties: "b\u{1}\"e\":\"7\u{2}",
            ..SendRequest::default()
        };
        for codec in [Codec::Json, Codec::Binary] {
            let mut frame = Vec::new();
            let mut encoder = Encoder::request(&mut frame, codec, 310, 1, false);
            send.encode_fields(310, &mut encoder);
            encoder.finish();
            let found = destinations.find(&frame);
            assert_eq!(found, Some((&b"a-topic_%9"[..], 12)), "{codec:?}");
            // Of what is not whole or means something else nothing is found, or something else.
            for end in 0..frame.len() {
                let found = destinations.find(&frame[..end]);
                assert!(found.is_none_or(|(topic, _)| b"a-topic_%9".starts_with(topic)));
            }
            for at in 0..frame.len() {
                for with in [0, b'"', 0xff] {
                    let mut changed = frame.clone();
                    changed[at] = with;
                    destinations.find(&changed);
                }
            }
        }
    }
}
