//! What a consumer wants of a topic, and the filter made from it (docs/behaviour.md, Filters).

use std::sync::Arc;

use saturnmq_net::messages::heartbeat::SubscriptionData;
use saturnmq_storage::format::hash::java_hash;
use saturnmq_storage::reader::PullFilter;

use crate::names;

/// Matches every message.
pub const ALL: &str = "*";
/// The expression type of tag expressions; also meant when none is named.
pub const TAG: &str = "TAG";

/// Passes entries by the hash of their tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagFilter {
    /// Every message.
    All,
    /// Messages whose tags have one of these hashes, in ascending order.
    Codes(Arc<[i32]>),
}

impl TagFilter {
    /// A filter for these hashes.
    pub fn codes(mut codes: Vec<i32>) -> Self {
        codes.sort_unstable();
        codes.dedup();
        Self::Codes(codes.into())
    }
}

impl PullFilter for TagFilter {
    fn matches_code(&self, tags_code: i64) -> bool {
        match self {
            Self::All => true,
            Self::Codes(codes) => codes.binary_search(&(tags_code as i32)).is_ok(),
        }
    }
}

/// A consumer group's subscription to one topic.
#[derive(Debug)]
pub struct Subscription {
    /// Topic name.
    pub topic: Arc<str>,
    /// As the client sent it.
    pub data: SubscriptionData,
    /// What the pull path uses.
    pub filter: TagFilter,
}

impl Subscription {
    /// A subscription from a heartbeat. Its filter takes the hashes of the client (Go hashes other
    /// bytes than Java for tags outside ASCII) and those of its tags: a broker may filter too
    /// little, never too much.
    pub fn new(data: SubscriptionData) -> Self {
        let everything = data.class_filter_mode
            || !is_tag(&data.expression_type)
            || matches_all(&data.sub_string);
        let filter = if everything || data.topic.starts_with(names::RETRY_PREFIX) {
            TagFilter::All
        } else {
            let mut wanted = data.code_set.clone();
            wanted.extend(data.tags_set.iter().map(|tag| java_hash(tag)));
            if data.tags_set.is_empty() {
                wanted.extend(split(&data.sub_string).map(java_hash));
            }
            TagFilter::codes(wanted)
        };
        Self {
            topic: Arc::from(data.topic.as_str()),
            data,
            filter,
        }
    }

    /// What it takes in memory, roughly, in bytes.
    pub fn bytes(&self) -> usize {
        const EACH: usize = 64;
        let data = &self.data;
        let tags: usize = data.tags_set.iter().map(|tag| EACH + tag.len()).sum();
        let codes = match &self.filter {
            TagFilter::All => 0,
            TagFilter::Codes(codes) => 4 * codes.len(),
        };
        let text = 2 * self.topic.len() + data.sub_string.len() + data.expression_type.len();
        size_of::<Self>() + EACH + text + tags + codes + 8 * data.code_set.len()
    }

    /// Whether the expression is a tag expression.
    pub fn is_tag(&self) -> bool {
        is_tag(&self.data.expression_type)
    }
}

/// Whether an expression type names tag expressions.
pub fn is_tag(expression_type: &str) -> bool {
    expression_type.is_empty() || expression_type == TAG
}

/// The filter of a tag expression; `None` when it names no tag at all.
pub fn tag_filter(expression: &str) -> Option<TagFilter> {
    if matches_all(expression) {
        return Some(TagFilter::All);
    }
    let codes: Vec<i32> = split(expression).map(java_hash).collect();
    (!codes.is_empty()).then(|| TagFilter::codes(codes))
}

fn matches_all(expression: &str) -> bool {
    expression.is_empty() || expression == ALL
}

fn split(expression: &str) -> impl Iterator<Item = &str> {
    expression
        .split("||")
        .map(str::trim)
        .filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_without_any_tag_is_refused() {
        assert!(tag_filter("||").is_none());
        assert!(tag_filter(" || ").is_none());
        assert!(tag_filter("").is_some());
        assert!(tag_filter("*").is_some());
        assert!(tag_filter("A || ").is_some());
    }
}
