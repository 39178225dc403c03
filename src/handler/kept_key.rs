//! The unique key of a message that was sent, until the response repeats it.

/// Longest unique key that a response repeats without an allocation.
const KEY_INLINE: usize = 64;

/// A unique key kept until the response is written.
#[derive(Clone, Debug)]
pub(crate) enum KeptKey {
    /// There is none.
    None,
    /// A short one, and its length.
    Inline([u8; KEY_INLINE], u8),
    /// Any other.
    Long(Box<str>),
}

impl KeptKey {
    /// Keeps a key.
    pub(crate) fn keep(key: Option<&str>) -> Self {
        let Some(key) = key else { return Self::None };
        let mut inline = [0; KEY_INLINE];
        match inline.get_mut(..key.len()) {
            Some(place) => {
                place.copy_from_slice(key.as_bytes());
                Self::Inline(inline, key.len() as u8)
            }
            None => Self::Long(Box::from(key)),
        }
    }

    /// The key.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Inline(bytes, length) => {
                std::str::from_utf8(bytes.get(..usize::from(*length))?).ok()
            }
            Self::Long(key) => Some(key),
        }
    }
}
