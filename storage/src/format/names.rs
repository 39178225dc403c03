//! Which topic names are legal (docs/format.md, Names).

use thiserror::Error;

/// The longest topic name a record of version 1 can hold, in bytes.
pub const TOPIC_MAX: usize = 127;
/// The longest name of a retry or dead-letter topic, in bytes.
pub const LONG_TOPIC_MAX: usize = 255;

/// Why a topic name is refused; the texts are those clients know from Apache RocketMQ.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum TopicNameError {
    /// Empty or only white space.
    #[error("The specified topic is blank.")]
    Blank,
    /// A character outside of `%|a-zA-Z0-9_-`.
    #[error("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")]
    IllegalCharacters,
    /// Longer than [`TOPIC_MAX`] bytes, or [`LONG_TOPIC_MAX`] for retry and dead-letter topics.
    #[error("The specified topic is longer than topic max length.")]
    TooLong,
}

/// Checks a topic name that a client sent.
pub fn check_topic(name: &str) -> Result<(), TopicNameError> {
    if name.trim().is_empty() {
        return Err(TopicNameError::Blank);
    }
    if !name.bytes().all(is_name_byte) {
        return Err(TopicNameError::IllegalCharacters);
    }
    let long = name.starts_with("%RETRY%") || name.starts_with("%DLQ%");
    if name.len() > if long { LONG_TOPIC_MAX } else { TOPIC_MAX } {
        return Err(TopicNameError::TooLong);
    }
    Ok(())
}

/// Whether a stored record may carry this topic: legal names, and those that a broker makes itself
/// without checking them (retry topics of pop consumers contain `+`, a host's name dots). Nothing
/// else is written, and recovery takes everything else for damage.
pub fn is_stored_topic(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONG_TOPIC_MAX
        && name
            .bytes()
            .all(|byte| is_name_byte(byte) || matches!(byte, b'+' | b'.'))
}

/// Whether `name` can stand as one directory name below `consumequeue/`.
pub fn is_directory_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONG_TOPIC_MAX
        && name != "."
        && name != ".."
        && !name.bytes().any(|byte| byte == b'/' || byte == 0)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_follow_apaches_rules() {
        assert_eq!(check_topic("Orders_1-a|b%c"), Ok(()));
        assert_eq!(check_topic(""), Err(TopicNameError::Blank));
        assert_eq!(check_topic("  "), Err(TopicNameError::Blank));
        for name in ["a.b", "a+b", "a@b", "a/b", "..", "订单", "a b"] {
            assert_eq!(
                check_topic(name),
                Err(TopicNameError::IllegalCharacters),
                "{name}"
            );
        }
        assert_eq!(check_topic(&"a".repeat(127)), Ok(()));
        assert_eq!(check_topic(&"a".repeat(128)), Err(TopicNameError::TooLong));
        assert_eq!(check_topic(&format!("%RETRY%{}", "g".repeat(248))), Ok(()));
        let long = format!("%RETRY%{}", "g".repeat(249));
        assert_eq!(check_topic(&long), Err(TopicNameError::TooLong));
    }

    #[test]
    fn no_name_leaves_its_directory() {
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert!(!is_directory_name(name), "{name:?}");
        }
        assert!(is_directory_name("%RETRY%g+T"));
    }
}
