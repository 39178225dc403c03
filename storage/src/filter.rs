//! Tag subscriptions: which queue entries a consumer wants (docs/behaviour.md, Filters).
//!
//! Only tag codes are compared here, and codes collide: clients compare the tags themselves.

use thiserror::Error;

use crate::format::hash::java_hash;

/// Longest tag expression, in bytes: what waits keeps its filter.
pub const MAX_EXPRESSION: usize = 32 * 1024;

/// A subscription expression that is not taken.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum TagExpressionError {
    /// It is bars alone.
    #[error("subString split error")]
    NoTag,
    /// It is longer than [`MAX_EXPRESSION`].
    #[error("the expression has {length} bytes, at most {MAX_EXPRESSION} are taken")]
    TooLong {
        /// Its bytes.
        length: usize,
    },
}

/// Which tag codes a subscription matches.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum TagFilter {
    /// Every message.
    #[default]
    All,
    /// Messages whose tag code is one of these, in ascending order.
    Codes(Box<[i32]>),
}

impl TagFilter {
    /// Reads an expression like `a || b`; nothing and `*` mean all messages.
    ///
    /// # Errors
    /// The expression is bars alone, or is longer than [`MAX_EXPRESSION`].
    pub fn parse(expression: Option<&str>) -> Result<Self, TagExpressionError> {
        match expression {
            None | Some("" | "*") => Ok(Self::All),
            Some(text) if text.len() > MAX_EXPRESSION => {
                Err(TagExpressionError::TooLong { length: text.len() })
            }
            // Java's `split` gives nothing. Blanks are a tag that is left out: none matches.
            Some(text) if text.split("||").all(str::is_empty) => Err(TagExpressionError::NoTag),
            Some(text) => Ok(Self::from_codes(tags(text).map(java_hash))),
        }
    }

    /// Matches exactly the given codes.
    pub fn from_codes(codes: impl IntoIterator<Item = i32>) -> Self {
        let mut codes: Vec<i32> = codes.into_iter().collect();
        codes.sort_unstable();
        codes.dedup();
        Self::Codes(codes.into_boxed_slice())
    }

    /// Whether an entry with this tag code is wanted. Messages without tags have code 0.
    pub fn matches(&self, tags_code: i64) -> bool {
        match self {
            Self::All => true,
            // Apache compares the low 32 bits.
            Self::Codes(codes) => codes.binary_search(&(tags_code as i32)).is_ok(),
        }
    }
}

/// The tags of an expression: what stands between `||`, without white space around it.
pub fn tags(expression: &str) -> impl Iterator<Item = &str> {
    // Java's `trim` removes everything up to the space character.
    expression
        .split("||")
        .map(|tag| tag.trim_matches(|c| c <= ' '))
        .filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::hash::tags_code;

    fn parse(expression: &str) -> TagFilter {
        TagFilter::parse(Some(expression)).unwrap()
    }

    #[test]
    fn nothing_and_a_star_mean_all() {
        assert_eq!(TagFilter::parse(None), Ok(TagFilter::All));
        assert_eq!((parse(""), parse("*")), (TagFilter::All, TagFilter::All));
        assert!(TagFilter::All.matches(0) && TagFilter::All.matches(i64::MIN));
    }

    #[test]
    fn tags_stand_between_double_bars() {
        let filter = parse(" TagA||TagB || || 订单");
        for tag in ["TagA", "TagB", "订单"] {
            assert!(filter.matches(tags_code(tag.as_bytes())), "{tag}");
        }
        for tag in ["TagC", "taga", " TagA", "*"] {
            assert!(!filter.matches(tags_code(tag.as_bytes())), "{tag}");
        }
        assert!(!filter.matches(0), "a message without tags");
        assert_eq!(
            parse("TagA || TagA"),
            TagFilter::Codes(Box::new([2_598_919]))
        );
        assert_eq!(tags("a | b || c").collect::<Vec<_>>(), ["a | b", "c"]);
    }

    #[test]
    fn bars_alone_are_an_error_and_blanks_match_nothing() {
        for text in ["||", "||||"] {
            let error = TagFilter::parse(Some(text)).unwrap_err();
            assert_eq!(error.to_string(), "subString split error");
        }
        for text in [" || ", " ", "\t", "|| ||"] {
            assert!(!parse(text).matches(0), "{text:?}");
            assert!(!parse(text).matches(tags_code(b" ")), "{text:?}");
        }
    }

    #[test]
    fn an_expression_over_the_limit_is_refused_and_the_longest_is_not() {
        let longest = "A||".repeat(MAX_EXPRESSION / 3) + "BB";
        assert_eq!(longest.len(), MAX_EXPRESSION);
        assert!(parse(&longest).matches(tags_code(b"BB")));
        let error = TagFilter::parse(Some(&(longest + "B"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the expression has 32769 bytes, at most 32768 are taken"
        );
    }

    #[test]
    fn only_the_low_half_of_a_tag_code_counts() {
        let filter = parse("zzzzzz");
        assert!(filter.matches(-685_785_664));
        assert!(filter.matches(i64::from((-685_785_664_i32).cast_unsigned())));
        assert!(!filter.matches(685_785_664));
    }
}
