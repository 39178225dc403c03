//! What a consumer wants of a topic, and the filter made from it (docs/behaviour.md, Filters).

use std::collections::HashMap;
use std::sync::Arc;

use saturnmq_net::messages::heartbeat::SubscriptionData;
use saturnmq_storage::filter::{MAX_EXPRESSION, TagExpressionError, TagFilter, tags};
use saturnmq_storage::format::hash::java_hash;
use saturnmq_storage::format::properties::names as properties;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::reader::PullFilter;

use thiserror::Error;

use crate::filter::{SQL92, Selector, SelectorError};
use crate::names;

/// Matches every message.
pub const ALL: &str = "*";
/// The expression type of tag expressions; also meant when none is named.
pub const TAG: &str = "TAG";

/// Which messages of a topic a consumer wants.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Those with certain tags.
    Tags(TagFilter),
    /// Those whose properties fulfil an expression.
    Selected(Arc<Selector>),
    /// On a retry topic: those whose properties fulfil the expression for the topic they first
    /// came from.
    SelectedByOrigin(Arc<HashMap<String, Arc<Selector>>>),
}

impl Wanted {
    /// Every message.
    pub const ALL: Self = Self::Tags(TagFilter::All);

    /// What it takes in memory, roughly, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tags(TagFilter::Codes(codes)) => size_of_val::<[i32]>(codes),
            Self::Selected(selector) => selector.bytes(),
            Self::Tags(TagFilter::All) | Self::SelectedByOrigin(_) => 0,
        }
    }
}

impl PullFilter for Wanted {
    fn matches_code(&self, tags_code: i64) -> bool {
        match self {
            Self::Tags(tags) => tags.matches_code(tags_code),
            Self::Selected(_) | Self::SelectedByOrigin(_) => true,
        }
    }

    fn needs_unit(&self) -> bool {
        match self {
            Self::Tags(tags) => tags.needs_unit(),
            Self::Selected(_) | Self::SelectedByOrigin(_) => false,
        }
    }

    fn needs_record(&self) -> bool {
        !matches!(self, Self::Tags(_))
    }

    fn matches_record(&self, record: &Record<'_>, work: &mut usize) -> bool {
        let found = record.properties();
        match self {
            Self::Tags(_) => true,
            Self::Selected(selector) => selector.matches(found, work),
            Self::SelectedByOrigin(selectors) => found
                .get_str(properties::RETRY_TOPIC)
                .and_then(|origin| selectors.get(origin))
                .is_none_or(|selector| selector.matches(found, work)),
        }
    }
}

/// Most tags or tag codes of a subscription: an expression of [`MAX_EXPRESSION`] has no more.
const MAX_TAGS: usize = MAX_EXPRESSION / 3 + 1;

/// A subscription that is larger than is taken.
#[derive(Debug, Error)]
#[error(
    "the subscription of topic {topic} has {bytes} bytes and {tags} tags, at most {MAX_EXPRESSION} \
     bytes and {MAX_TAGS} tags are taken"
)]
pub struct TooLarge {
    topic: String,
    bytes: usize,
    tags: usize,
}

/// Checks the size of a subscription before anything is made of it.
///
/// # Errors
/// Says what it has and what is taken.
pub fn check_size(data: &SubscriptionData) -> Result<(), TooLarge> {
    let in_tags: usize = data.tags_set.iter().map(String::len).sum();
    let bytes = data.sub_string.len().max(in_tags);
    let tags = data.tags_set.len().max(data.code_set.len());
    if bytes <= MAX_EXPRESSION && tags <= MAX_TAGS {
        return Ok(());
    }
    let topic = data
        .topic
        .chars()
        .take(names::RETRY_TOPIC_MAX_LENGTH)
        .collect();
    Err(TooLarge { topic, bytes, tags })
}

/// A consumer group's subscription to one topic.
#[derive(Debug)]
pub struct Subscription {
    /// Topic name.
    pub topic: Arc<str>,
    /// As the client sent it.
    pub data: SubscriptionData,
    /// What the pull path uses; `None` when the expression cannot be compiled.
    pub filter: Option<Wanted>,
}

impl Subscription {
    /// Whether both are the same expression of tags, whatever their versions. Selectors are looked
    /// at again: those on a retry topic follow other subscriptions.
    pub fn selects_as(&self, other: &Self) -> bool {
        let tags = |one: &Self| matches!(one.filter, Some(Wanted::Tags(_)));
        tags(self) && tags(other) && self.data.sub_string == other.data.sub_string
    }

    /// A subscription from a heartbeat. Its filter takes the hashes of the client (Go hashes other
    /// bytes than Java for tags outside ASCII) and those of its tags: a broker may filter too
    /// little, never too much.
    pub fn new(data: SubscriptionData) -> Self {
        Self {
            topic: Arc::from(data.topic.as_str()),
            filter: Self::filter(&data),
            data,
        }
    }

    /// As [`Subscription::new`]. What is `known` of the topic is not compiled again: clients send
    /// all they want with every heartbeat.
    fn renewed(data: SubscriptionData, known: Option<&Subscription>) -> Self {
        match known.filter(|known| known.says(&data)) {
            Some(known) => Self {
                topic: Arc::clone(&known.topic),
                filter: known.filter.clone(),
                data,
            },
            None => Self::new(data),
        }
    }

    /// Whether `data` says the same, whatever its version, and the filter was made from that.
    fn says(&self, data: &SubscriptionData) -> bool {
        let known = &self.data;
        !matches!(self.filter, Some(Wanted::SelectedByOrigin(_)))
            && known.class_filter_mode == data.class_filter_mode
            && known.expression_type == data.expression_type
            && known.sub_string == data.sub_string
            && known.tags_set == data.tags_set
            && known.code_set == data.code_set
    }

    fn filter(data: &SubscriptionData) -> Option<Wanted> {
        if data.class_filter_mode {
            Some(Wanted::ALL)
        } else if data.expression_type == SQL92 {
            Selector::compile(&data.sub_string)
                .ok()
                .map(|selector| Wanted::Selected(Arc::new(selector)))
        } else if !is_tag(&data.expression_type) {
            None
        } else if matches_all(&data.sub_string) || data.topic.starts_with(names::RETRY_PREFIX) {
            Some(Wanted::ALL)
        } else {
            let mut wanted = data.code_set.clone();
            wanted.extend(data.tags_set.iter().map(|tag| java_hash(tag)));
            if data.tags_set.is_empty() {
                wanted.extend(tags(&data.sub_string).map(java_hash));
            }
            Some(Wanted::Tags(TagFilter::from_codes(wanted)))
        }
    }

    /// What it takes in memory, roughly, in bytes.
    pub fn bytes(&self) -> usize {
        const EACH: usize = 64;
        let data = &self.data;
        let tags: usize = data.tags_set.iter().map(|tag| EACH + tag.len()).sum();
        let filter = self.filter.as_ref();
        let codes = filter.map_or(0, Wanted::bytes);
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

/// The subscriptions of one heartbeat of a group of which `known` is known, by topic. With
/// `retries` (`filterSupportRetry`) a selector on the group's retry topic gives way to those of the
/// topics that messages first came from.
pub fn subscriptions(
    data: Vec<SubscriptionData>,
    known: &HashMap<Arc<str>, Arc<Subscription>>,
    retries: bool,
) -> Vec<Subscription> {
    let renewed = |data: SubscriptionData| {
        let known = known.get(data.topic.as_str()).map(Arc::as_ref);
        Subscription::renewed(data, known)
    };
    let mut all: Vec<Subscription> = data.into_iter().map(renewed).collect();
    let selected = |subscription: &Subscription| match &subscription.filter {
        Some(Wanted::Selected(selector)) => Some(Arc::clone(selector)),
        _ => None,
    };
    if retries {
        let by_origin = all
            .iter()
            .filter_map(|one| Some((one.data.topic.clone(), selected(one)?)))
            .collect();
        let by_origin = Arc::new(by_origin);
        for one in &mut all {
            if one.topic.starts_with(names::RETRY_PREFIX) && selected(one).is_some() {
                one.filter = Some(Wanted::SelectedByOrigin(Arc::clone(&by_origin)));
            }
        }
    }
    all
}

/// Makes the retry topics of a group's subscriptions follow the selectors of the others.
pub fn follow_selectors(all: &mut HashMap<Arc<str>, Arc<Subscription>>) {
    let follows = |one: &Subscription| matches!(one.filter, Some(Wanted::SelectedByOrigin(_)));
    if !all.values().any(|one| follows(one)) {
        return;
    }
    let by_origin: HashMap<String, Arc<Selector>> = all
        .values()
        .filter_map(|one| match &one.filter {
            Some(Wanted::Selected(selector)) => {
                Some((one.data.topic.clone(), Arc::clone(selector)))
            }
            _ => None,
        })
        .collect();
    let by_origin = Arc::new(by_origin);
    for one in all.values_mut().filter(|one| follows(one)) {
        *one = Arc::new(Subscription {
            topic: Arc::clone(&one.topic),
            data: one.data.clone(),
            filter: Some(Wanted::SelectedByOrigin(Arc::clone(&by_origin))),
        });
    }
}

/// The filter of an expression that came with a request.
///
/// # Errors
/// What cannot be compiled.
pub fn own_filter(kind: &str, expression: &str) -> Result<Wanted, ExpressionError> {
    if is_tag(kind) {
        Ok(Wanted::Tags(TagFilter::parse(Some(expression))?))
    } else if kind == SQL92 {
        Ok(Wanted::Selected(Arc::new(Selector::compile(expression)?)))
    } else {
        // A kind nobody knows filters nothing, as in Apache.
        Ok(Wanted::ALL)
    }
}

/// An expression that cannot be compiled.
#[derive(Debug, Error)]
pub enum ExpressionError {
    /// A tag expression.
    #[error(transparent)]
    Tags(#[from] TagExpressionError),
    /// An SQL92 expression.
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

fn matches_all(expression: &str) -> bool {
    expression.is_empty() || expression == ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_expression_fits_with_its_tags_and_codes() {
        let mut data = SubscriptionData {
            sub_string: "A||".repeat(MAX_EXPRESSION / 3) + "BB",
            ..SubscriptionData::default()
        };
        let tags = tags(&data.sub_string).count();
        data.code_set = (0..tags as i32).collect();
        assert!(check_size(&data).is_ok());
        data.code_set.push(0);
        assert!(check_size(&data).is_err(), "{tags} tags and one more");
        data.code_set.clear();
        data.sub_string.push('B');
        let error = check_size(&data).unwrap_err().to_string();
        assert!(error.contains("32769 bytes"), "{error}");
    }

    #[test]
    fn an_expression_that_is_sent_again_is_not_compiled_again() {
        let sent = |expression: &str, sub_version| {
            vec![SubscriptionData {
                topic: "T".into(),
                sub_string: expression.into(),
                expression_type: SQL92.into(),
                sub_version,
                ..SubscriptionData::default()
            }]
        };
        let selector = |one: &Subscription| match &one.filter {
            Some(Wanted::Selected(selector)) => Arc::clone(selector),
            other => panic!("{other:?}"),
        };
        let first = subscriptions(sent("a = 1", 1), &HashMap::new(), true).remove(0);
        let compiled = selector(&first);
        let known = HashMap::from([(Arc::clone(&first.topic), Arc::new(first))]);
        let again = subscriptions(sent("a = 1", 2), &known, true).remove(0);
        assert!(Arc::ptr_eq(&selector(&again), &compiled));
        let other = subscriptions(sent("a = 2", 1), &known, true).remove(0);
        assert_eq!(format!("{:?}", selector(&other)), "Selector((a = 2))");
    }

    #[test]
    fn bars_alone_are_refused() {
        for (expression, is_good) in [("||", false), (" || ", true), ("", true), ("*", true)] {
            assert_eq!(own_filter(TAG, expression).is_ok(), is_good, "{expression}");
        }
        assert!(own_filter("", "A || ").is_ok());
    }
}
