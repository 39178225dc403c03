//! What the members of topics and groups may be: one judgement for state files and for requests.

use std::borrow::Cow;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::topics::MOST_QUEUES;

/// What a member must be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A number of queues of one topic.
    Queues,
    /// A number of 32 bits.
    Int,
    /// A number of 64 bits.
    Long,
    /// `true` or `false`.
    Flag,
}

impl Expected {
    /// What a member of this kind takes, in words.
    fn limit(self) -> String {
        match self {
            Self::Queues => format!("0 to {MOST_QUEUES}"),
            Self::Int => format!("{} to {}", i32::MIN, i32::MAX),
            Self::Long => format!("{} to {}", i64::MIN, i64::MAX),
            Self::Flag => "true or false".to_owned(),
        }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Queues => value.as_u64().is_some_and(|n| n <= MOST_QUEUES as u64),
            Self::Int => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Self::Long => value.is_i64(),
            Self::Flag => value.is_boolean(),
        }
    }

    /// Judges the value of the member `field`.
    ///
    /// # Errors
    /// Names field, value and limit.
    pub fn check(self, field: &'static str, value: &Value) -> Result<(), WrongMember> {
        if self.accepts(value) {
            return Ok(());
        }
        // Enough to find it in the file.
        let value = value.to_string().chars().take(100).collect();
        Err(WrongMember {
            field,
            value,
            limit: self.limit(),
        })
    }
}

/// A member that cannot be what it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}={value} is not possible: it takes {limit}")]
pub struct WrongMember {
    field: &'static str,
    value: String,
    limit: String,
}

/// The members of the entry `name` of a state file that can be used, and a sentence for each that
/// cannot: its default takes its place. Absent members and `null` are no mistake.
pub fn sound_members<'a>(
    name: &str,
    value: &'a Value,
    expected: &[(&'static str, Expected)],
) -> (Cow<'a, Value>, Vec<String>) {
    let Some(members) = value.as_object() else {
        let wrong = format!("{name:?} is no object; the defaults are used for all of it");
        return (Cow::Owned(Value::Object(Map::new())), vec![wrong]);
    };
    let (mut sound, mut wrong) = (Cow::Borrowed(value), Vec::new());
    for &(field, expected) in expected {
        let Some(value) = members.get(field).filter(|value| !value.is_null()) else {
            continue;
        };
        if let Err(problem) = expected.check(field, value) {
            wrong.push(format!("{name:?}: {problem}; the default is used"));
            if let Value::Object(sound) = sound.to_mut() {
                sound.remove(field);
            }
        }
    }
    (sound, wrong)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_member_is_named_with_its_value_and_limit_and_left_out() {
        let expected = [
            ("queues", Expected::Queues),
            ("perm", Expected::Int),
            ("id", Expected::Long),
            ("on", Expected::Flag),
            ("absent", Expected::Int),
        ];
        let good = json!({"queues": 4, "perm": 6, "id": 1, "on": false, "absent": null, "x": "y"});
        let (sound, wrong) = sound_members("T", &good, &expected);
        assert_eq!((sound.as_ref(), wrong.len()), (&good, 0));
        let cases = [
            ("queues", json!(-4)),
            ("queues", json!(99_999_999_999_u64)),
            ("perm", json!("x")),
            ("perm", json!(99_999_999_999_u64)),
            ("id", json!(1.5)),
            ("on", json!(1)),
        ];
        for (field, value) in cases {
            let mut bad = good.clone();
            bad[field] = value.clone();
            let (sound, wrong) = sound_members("T", &bad, &expected);
            assert!(sound.get(field).is_none());
            let begin = format!("\"T\": {field}={value} is not possible: it takes ");
            assert!(
                wrong.len() == 1 && wrong[0].starts_with(&begin),
                "{wrong:?}"
            );
        }
        let number = json!(7);
        let (sound, wrong) = sound_members("T", &number, &expected);
        assert_eq!((sound.as_ref(), wrong.len()), (&json!({}), 1));
    }
}
