//! Which topic and group names are allowed, and which belong to the system.
//!
//! Names become directory names and JSON keys, so every name that comes from a client is checked
//! here before it is used for anything (docs/format.md, Names).

use thiserror::Error;

/// Longest topic name, in characters and bytes.
pub const TOPIC_MAX_LENGTH: usize = 127;
/// Longest `%RETRY%` or `%DLQ%` topic name that can hold messages: it becomes a directory name.
pub const RETRY_TOPIC_MAX_LENGTH: usize = 255;
/// Longest group name: what Apache's clients allow.
pub const GROUP_MAX_LENGTH: usize = 255;
/// Longest topic name in `topics.json`: the retry topic of the longest group. Tools ask for its
/// route though it never holds a message.
const LISTED_TOPIC_MAX_LENGTH: usize = RETRY_PREFIX.len() + GROUP_MAX_LENGTH;

/// Prefix of a group's retry topic.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of a group's dead letter topic.
pub const DLQ_PREFIX: &str = "%DLQ%";
/// Prefix of system groups.
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";
/// Prefix of system topics.
pub const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";

/// The template of automatically created topics.
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
/// Topic that holds delayed messages, one queue per level.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Topic of Apache's self test.
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
/// Topic of Apache's benchmark programs.
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
/// Topic for events about moved offsets.
pub const OFFSET_MOVED_EVENT: &str = "OFFSET_MOVED_EVENT";
/// Default topic of message traces.
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
/// Half messages of transactions.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Operations on half messages.
pub const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Half messages that were checked too often.
pub const TRANS_CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// Checkpoints of an old pop implementation.
pub const CHECKPOINT_TOPIC: &str = "CHECKPOINT_TOPIC";
/// Messages that wait in the timer wheel.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";

/// Pattern text quoted in remarks.
const PATTERN: &str = "^[%|a-zA-Z0-9_-]+$";

/// Groups that exist from the first start.
pub const BOOT_GROUPS: [&str; 8] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

/// The group whose consumer offsets are the progress of the transaction check.
pub const TRANSACTION_GROUP: &str = "CID_RMQ_SYS_TRANS";

const OTHER_SYSTEM_GROUPS: [&str; 6] = [
    "DEFAULT_CONSUMER",
    "DEFAULT_PRODUCER",
    "SCHEDULE_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "SELF_TEST_P_GROUP",
];

/// Topics that belong to the system by their name alone, whether they exist or not.
pub const SYSTEM_TOPICS: [&str; 11] = [
    AUTO_CREATE_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    CHECKPOINT_TOPIC,
    TRACE_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT,
    TIMER_TOPIC,
];

/// Why a name is refused; the text is the remark that Apache answers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Empty or only blanks.
    #[error("The specified topic is blank.")]
    TopicBlank,
    /// A character outside the pattern.
    #[error("The specified topic contains illegal characters, allowing only {PATTERN}")]
    TopicCharacters,
    /// Longer than its kind of topic may be.
    #[error("The specified topic is longer than topic max length.")]
    TopicTooLong,
    /// Empty or only blanks.
    #[error("The specified group is blank.")]
    GroupBlank,
    /// A character outside the pattern.
    #[error("The specified group: {0}, contains illegal characters, allowing only {PATTERN}")]
    GroupCharacters(String),
    /// Longer than [`GROUP_MAX_LENGTH`].
    #[error("The specified group: {0}, is longer than group max length: {GROUP_MAX_LENGTH}")]
    GroupTooLong(String),
}

fn legal(name: &str) -> bool {
    name.bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'_' | b'-'))
}

/// Remarks quote at most this much of a name that somebody else chose.
fn quoted(name: &str) -> String {
    name.chars().take(GROUP_MAX_LENGTH + 16).collect()
}

/// Checks a topic name that a client sent.
///
/// # Errors
/// [`NameError`] with Apache's remark.
pub fn check_topic(name: &str) -> Result<(), NameError> {
    if name.trim().is_empty() {
        return Err(NameError::TopicBlank);
    }
    if !legal(name) {
        return Err(NameError::TopicCharacters);
    }
    let longest = if is_retry_or_dlq(name) {
        RETRY_TOPIC_MAX_LENGTH
    } else {
        TOPIC_MAX_LENGTH
    };
    if name.len() > longest {
        return Err(NameError::TopicTooLong);
    }
    Ok(())
}

/// Checks a group name that a client sent.
///
/// # Errors
/// [`NameError`] with Apache's remark.
pub fn check_group(name: &str) -> Result<(), NameError> {
    if name.trim().is_empty() {
        return Err(NameError::GroupBlank);
    }
    if !legal(name) {
        return Err(NameError::GroupCharacters(quoted(name)));
    }
    if name.len() > GROUP_MAX_LENGTH {
        return Err(NameError::GroupTooLong(quoted(name)));
    }
    Ok(())
}

/// Checks the name of a group that a tool configures. Wider than [`check_group`]: Apache's brokers
/// take any name, tools then list it, and no stock client has such a group. Of what they take,
/// blank names and those with `/`, `@` (which keys of offsets are split at) or control
/// characters are refused.
///
/// # Errors
/// [`NameError`] with Apache's remark.
pub fn check_configured_group(name: &str) -> Result<(), NameError> {
    match check_group(name) {
        Err(NameError::GroupCharacters(_))
            if !name.contains(|c: char| matches!(c, '/' | '@') || c.is_control()) =>
        {
            match name.len() > GROUP_MAX_LENGTH {
                true => Err(NameError::GroupTooLong(quoted(name))),
                false => Ok(()),
            }
        }
        checked => checked,
    }
}

/// Whether a name may stand in `topics.json`. Wider than [`check_topic`]: brokers make pop retry
/// topics with `+` themselves, and the retry topics of the longest groups.
pub fn is_storable(topic: &str) -> bool {
    let longest = if is_retry_or_dlq(topic) {
        LISTED_TOPIC_MAX_LENGTH
    } else {
        RETRY_TOPIC_MAX_LENGTH
    };
    !topic.is_empty() && topic.len() <= longest && topic.split('+').all(legal)
}

/// Whether this is a group's retry or dead letter topic.
pub fn is_retry_or_dlq(topic: &str) -> bool {
    topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX)
}

/// The retry topic of a group.
pub fn retry_topic(group: &str) -> String {
    format!("{RETRY_PREFIX}{group}")
}

/// The dead letter topic of a group.
pub fn dlq_topic(group: &str) -> String {
    format!("{DLQ_PREFIX}{group}")
}

/// The reply topic of a cluster.
pub fn reply_topic(cluster: &str) -> String {
    format!("{cluster}_REPLY_TOPIC")
}

/// The topic of pop checkpoints of a cluster.
pub fn revive_topic(cluster: &str) -> String {
    format!("{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}")
}

/// The topic in which the brokers of one name keep their members.
pub fn sync_member_topic(broker: &str) -> String {
    format!("{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}")
}

/// Whether a topic belongs to the system: not to be created, changed or deleted by tools.
pub fn is_system_topic(topic: &str, cluster: &str, broker: &str) -> bool {
    SYSTEM_TOPICS.contains(&topic)
        || topic.starts_with(SYSTEM_TOPIC_PREFIX)
        || topic == cluster
        || topic == broker
        || topic
            .strip_suffix("_REPLY_TOPIC")
            .is_some_and(|rest| rest == cluster)
}

/// Whether clients may not send to a topic (code 16). Apache leaves out the timer and revive
/// topics, in which one client message would break the delivery of others.
pub fn is_closed_to_clients(topic: &str) -> bool {
    matches!(
        topic,
        SCHEDULE_TOPIC
            | HALF_TOPIC
            | OP_HALF_TOPIC
            | TRANS_CHECK_MAX_TIME_TOPIC
            | SELF_TEST_TOPIC
            | OFFSET_MOVED_EVENT
            | TIMER_TOPIC
    ) || topic.starts_with("rmq_sys_REVIVE_LOG_")
}

/// Whether a group belongs to the system.
pub fn is_system_group(group: &str) -> bool {
    group.starts_with(SYSTEM_GROUP_PREFIX)
        || BOOT_GROUPS.contains(&group)
        || OTHER_SYSTEM_GROUPS.contains(&group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_store_are_refused() {
        for name in ["../x", "a/b", "a.b", "a\0b", "a@b", "a+b", "ä", "a b", ".."] {
            assert_eq!(
                check_topic(name),
                Err(NameError::TopicCharacters),
                "{name:?}"
            );
            assert!(
                matches!(check_group(name), Err(NameError::GroupCharacters(_))),
                "{name:?}"
            );
        }
        assert_eq!(check_topic("  "), Err(NameError::TopicBlank));
        assert_eq!(check_group(""), Err(NameError::GroupBlank));
    }

    #[test]
    fn lengths_are_counted_per_kind_of_name() {
        assert_eq!(check_topic(&"t".repeat(127)), Ok(()));
        assert_eq!(check_topic(&"t".repeat(128)), Err(NameError::TopicTooLong));
        assert_eq!(check_topic(&retry_topic(&"g".repeat(248))), Ok(()));
        assert_eq!(
            check_topic(&retry_topic(&"g".repeat(249))),
            Err(NameError::TopicTooLong)
        );
        assert_eq!(check_group(&"g".repeat(255)), Ok(()));
        assert!(matches!(
            check_group(&"g".repeat(256)),
            Err(NameError::GroupTooLong(_))
        ));
        assert!(is_storable(&retry_topic(&"g".repeat(255))));
        assert!(!is_storable(&retry_topic(&"g".repeat(256))));
        assert!(!is_storable(&"t".repeat(256)));
    }

    #[test]
    fn tools_configure_groups_that_no_client_would_name() {
        for name in ["a b", "a.b", "ä", "g"] {
            assert_eq!(check_configured_group(name), Ok(()), "{name:?}");
        }
        for name in ["a@b", "../x", "a\n", "", "  "] {
            assert!(check_configured_group(name).is_err(), "{name:?}");
        }
        assert!(matches!(
            check_configured_group(&" g".repeat(128)),
            Err(NameError::GroupTooLong(_))
        ));
    }

    #[test]
    fn remarks_are_apaches() {
        assert_eq!(
            check_topic("a b").map_err(|e| e.to_string()),
            Err(
                "The specified topic contains illegal characters, allowing only \
                 ^[%|a-zA-Z0-9_-]+$"
                    .to_string()
            )
        );
        assert_eq!(
            check_group("a b").map_err(|e| e.to_string()),
            Err(
                "The specified group: a b, contains illegal characters, allowing only \
                 ^[%|a-zA-Z0-9_-]+$"
                    .to_string()
            )
        );
    }

    #[test]
    fn stored_names_may_hold_a_plus_and_nothing_more() {
        assert!(is_storable("%RETRY%g+T"));
        assert!(!is_storable("%RETRY%../x"));
        assert!(!is_storable(""));
    }

    #[test]
    fn system_names_are_known() {
        assert!(is_system_topic(
            "DefaultCluster_REPLY_TOPIC",
            "DefaultCluster",
            "b"
        ));
        assert!(is_system_topic("rmq_sys_anything", "c", "b"));
        assert!(is_system_topic("b", "c", "b"));
        assert!(!is_system_topic("Orders", "c", "b"));
        assert!(is_closed_to_clients("rmq_sys_REVIVE_LOG_c"));
        assert!(!is_closed_to_clients(BENCHMARK_TOPIC));
        assert!(is_system_group("CID_RMQ_SYS_X"));
        assert!(!is_system_group("workers"));
    }
}
