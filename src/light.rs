//! Light queues: queues that a message enters besides the one of its topic, because its property
//! `INNER_MULTI_DISPATCH` names them (docs/behaviour.md, Light queues).

use saturnmq_storage::append_queue::LightQueues;
use saturnmq_storage::format::light::{self, enters_light_queues, names_in};
use saturnmq_storage::format::message::{MessageParts, PROPERTIES_MAX};
use saturnmq_storage::format::names::is_directory_name;
use saturnmq_storage::format::properties::{Properties, names};
use saturnmq_storage::store::Store;

pub use saturnmq_storage::format::light::{PREFIX, is_light};

/// The name of the property that holds the offsets, with what separates it and its value.
const OFFSETS_NAME: usize = names::INNER_MULTI_QUEUE_OFFSET.len() + 2;
/// Longest offset, with a comma.
const OFFSET: usize = 20;

/// What is configured of light queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LightConfig {
    /// `enableLmq`: topics and groups with such names exist without being made.
    pub enabled: bool,
    /// `enableMultiDispatch` as well: messages enter them.
    pub dispatch: bool,
    /// `maxLmqConsumeQueueNum`: with more queues than these none is made.
    pub most: usize,
}

/// Why a message does not enter the light queues that it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LightError {
    /// A name that is none.
    #[error(
        "the property INNER_MULTI_DISPATCH names \"{0}\": light queues have names that begin with \
         {PREFIX}, of at most 255 bytes, without / and control characters"
    )]
    Name(String),
    /// There are too many; Apache's text.
    #[error(
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq \
         consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
    )]
    Full,
    /// Their offsets may not fit.
    #[error(
        "the properties have {0} bytes and may come to more than {PROPERTIES_MAX} with the offsets \
         in {1} light queues"
    )]
    TooLong(usize, usize),
}

/// Checks every name in the value of `INNER_MULTI_DISPATCH`.
///
/// # Errors
/// The first one that no light queue can have.
pub fn check_names(list: &str) -> Result<(), LightError> {
    match names_in(list).find(|name| !is_name(name)) {
        None => Ok(()),
        Some(name) => Err(LightError::Name(name.chars().take(300).collect())),
    }
}

/// Checks that a property string of `len` bytes has room for the offsets of this list later.
///
/// # Errors
/// [`LightError::TooLong`].
pub fn check_room(list: &str, len: usize) -> Result<(), LightError> {
    let queues = names_in(list).count();
    match len + OFFSETS_NAME + OFFSET * queues > PROPERTIES_MAX {
        true => Err(LightError::TooLong(len, queues)),
        false => Ok(()),
    }
}

/// Whether a topic of this name can be a light queue. Removed topics stand in lines of a file
/// (docs/format.md, Removed topics).
pub fn is_name(name: &str) -> bool {
    is_light(name) && is_directory_name(name) && !name.chars().any(char::is_control)
}

/// Has a message enter the light queues in `list`, in that order. Those that are missing are made,
/// while there are no more than `most`.
///
/// # Errors
/// As [`check_names`], and [`LightError::Full`].
pub fn enter(
    store: &Store,
    list: &str,
    most: usize,
    light: &mut LightQueues,
) -> Result<(), LightError> {
    check_names(list)?;
    for name in names_in(list) {
        let queue = store.light_queue(name, most).ok_or(LightError::Full)?;
        light.enter(&queue);
    }
    Ok(())
}

/// The light queues of a message that was acknowledged before and is stored in its topic now:
/// no limit keeps it out. Names that are none are left out with all others.
pub fn enter_at_last(
    store: &Store,
    config: LightConfig,
    parts: &MessageParts<'_>,
    light: &mut LightQueues,
) {
    light.clear();
    if !config.dispatch || !enters_light_queues(parts.topic) {
        return;
    }
    let list = parts
        .properties
        .iter()
        .rev()
        .find_map(|piece| Properties::new(piece).get_str(names::INNER_MULTI_DISPATCH));
    let Some(list) = list.filter(|list| !list.trim().is_empty()) else {
        return;
    };
    let len = parts.properties.iter().map(|piece| piece.len()).sum();
    let entered = check_room(list, len).and_then(|()| enter(store, list, usize::MAX, light));
    if let Err(error) = entered {
        tracing::warn!(topic = parts.topic, %error, "a message enters no light queue");
        light.clear();
    }
}

/// The topic or group under whose name the traffic of light ones is counted: all together.
pub fn counted_as(name: &str) -> &str {
    if is_light(name) { light::PREFIX } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_refused_with_the_name() {
        assert_eq!(check_names("%LMQ%a,%LMQ%b+c,"), Ok(()));
        let long = format!("%LMQ%{}", "x".repeat(251));
        for name in ["Orders", "", "%LMQ%/../x", "%LMQ%a\nb", &long] {
            let error = check_names(&format!("%LMQ%a,{name},%LMQ%b"));
            assert_eq!(error, Err(LightError::Name(name.to_owned())));
        }
    }

    #[test]
    fn offsets_that_may_not_fit_later_are_refused_at_once() {
        let list = "%LMQ%a,%LMQ%b";
        let most = PROPERTIES_MAX - OFFSETS_NAME - 2 * OFFSET;
        assert_eq!(check_room(list, most), Ok(()));
        assert_eq!(
            check_room(list, most + 1),
            Err(LightError::TooLong(most + 1, 2))
        );
    }
}
