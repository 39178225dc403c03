//! Handles by which a producer recalls a message for a time (docs/protocol.md, Recall handle).

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};

const VERSION: &str = "v1";

/// What a handle says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The topic of the message.
    pub topic: String,
    /// The broker that has it.
    pub broker: String,
    /// A time in its slot, ms.
    pub time_ms: i64,
    /// Its unique key.
    pub key: String,
}

impl Handle {
    /// The text of a handle.
    pub fn encode(topic: &str, broker: &str, time_ms: i64, key: &str) -> String {
        URL_SAFE.encode(format!("{VERSION} {topic} {broker} {time_ms} {key}"))
    }

    /// Reads a handle; `None` if it is none. A time that is no number is 0.
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let mut parts = text.split(' ');
        if parts.next()? != VERSION {
            return None;
        }
        let topic = parts.next()?.to_owned();
        let broker = parts.next()?.to_owned();
        let time_ms = parts.next()?.parse().unwrap_or(0);
        let key = parts.next()?.to_owned();
        Some(Self {
            topic,
            broker,
            time_ms,
            key,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_apaches() {
        let text = Handle::encode("TopicTest", "broker-a", 1_700_000_000_001, "KEY0");
        assert_eq!(
            text,
            "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgS0VZMA=="
        );
        let handle = Handle::decode(&text).unwrap();
        assert_eq!(handle, Handle::decode(text.trim_end_matches('=')).unwrap());
        assert_eq!(handle.time_ms, 1_700_000_000_001);
        assert_eq!(
            (handle.broker.as_str(), handle.key.as_str()),
            ("broker-a", "KEY0")
        );
    }

    #[test]
    fn what_is_no_handle_is_told() {
        for text in ["", "!!!", "djI=", "djEgYQ==", "////"] {
            assert_eq!(Handle::decode(text), None, "{text}");
        }
    }
}
