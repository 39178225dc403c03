//! Java's `String.hashCode`, which tag codes and index hashes are made of
//! (docs/format.md, Tag code).

/// Computes `String.hashCode` piece by piece: UTF-16 code units, wrapping 32-bit arithmetic.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct JavaHash(i32);

impl JavaHash {
    /// Adds the code units of `text`.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        let mut hash = self.0;
        for character in text.chars() {
            let mut units = [0u16; 2];
            for unit in character.encode_utf16(&mut units) {
                hash = hash.wrapping_mul(31).wrapping_add(i32::from(*unit));
            }
        }
        Self(hash)
    }

    /// Adds bytes that should be UTF-8; malformed parts count as U+FFFD, as Java decodes them.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self;
        for chunk in bytes.utf8_chunks() {
            hash = hash.text(chunk.valid());
            if !chunk.invalid().is_empty() {
                hash = hash.text("\u{fffd}");
            }
        }
        hash
    }

    /// The hash so far.
    pub fn finish(self) -> i32 {
        self.0
    }
}

/// `String.hashCode` of a whole string.
pub fn java_hash(text: &str) -> i32 {
    JavaHash::default().text(text).finish()
}

/// The tag code stored in consume queues for a tag text: the hash, sign-extended.
pub fn tags_code(tags: &[u8]) -> i64 {
    i64::from(JavaHash::default().bytes(tags).finish())
}

/// The hash an index file stores for `topic#key`: never negative, 0 for `i32::MIN`.
pub fn index_hash(topic: &str, key: &[u8]) -> i32 {
    let hash = JavaHash::default()
        .text(topic)
        .text("#")
        .bytes(key)
        .finish();
    hash.checked_abs().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        let cases: [(&str, i32, u64, i32); 12] = [
            ("", 0, 0, 0),
            ("a", 97, 0x61, 97),
            ("TagA", 2_598_919, 0x27_a807, 2_598_919),
            ("TagB", 2_598_920, 0x27_a808, 2_598_920),
            ("订单", 1_129_459, 0x11_3bf3, 1_129_459),
            ("标签A", 26_572_490, 0x195_76ca, 26_572_490),
            ("😀", 1_772_899, 0x1b_0d63, 1_772_899),
            ("Tag😀", 82_337_373, 0x4e8_5e5d, 82_337_373),
            ("zzzzzz", -685_785_664, 0xffff_ffff_d71f_bdc0, 685_785_664),
            ("polygenelubricants", i32::MIN, 0xffff_ffff_8000_0000, 0),
            ("GydZG_", i32::MIN, 0xffff_ffff_8000_0000, 0),
            ("DESIGNING WORKHOUSES", i32::MIN, 0xffff_ffff_8000_0000, 0),
        ];
        for (text, hash, code, index) in cases {
            assert_eq!(java_hash(text), hash, "{text}");
            assert_eq!(tags_code(text.as_bytes()), code as i64, "{text}");
            assert_eq!(java_hash(text).checked_abs().unwrap_or(0), index, "{text}");
        }
    }

    #[test]
    fn an_index_key_is_the_topic_a_hash_sign_and_the_key() {
        let unique = index_hash("TopicTest", b"AC11000100002A9F00000000000000A1");
        assert_eq!(unique, 1_797_237_359);
        assert_eq!(index_hash("TopicTest", b"order-1001"), 1_043_804_929);
        assert_eq!(index_hash("TopicTest", b"order-1002"), 1_043_804_930);
    }

    #[test]
    fn malformed_bytes_hash_like_the_replacement_character() {
        assert_eq!(tags_code(b"a\xffb"), tags_code("a\u{fffd}b".as_bytes()));
    }
}
