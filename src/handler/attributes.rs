//! Attributes of topics and groups: `+key=value,-key` (docs/behaviour.md, Topics).

use std::collections::BTreeMap;

/// Attributes by key.
pub type Attributes = BTreeMap<String, String>;

/// Most attributes of one topic or group, and the longest key or value.
const MOST: usize = 64;
const LONGEST: usize = 1024;

/// What an attribute of a topic may be.
struct Rule {
    key: &'static str,
    values: &'static [&'static str],
    /// Values of Apache's for which this broker does not do what they promise.
    refused: &'static [&'static str],
    changeable: bool,
}

const TOPIC_RULES: [Rule; 3] = [
    Rule {
        key: "queue.type",
        values: &["SimpleCQ"],
        refused: &["BatchCQ"],
        changeable: false,
    },
    Rule {
        key: "cleanup.policy",
        values: &["DELETE"],
        refused: &["COMPACTION"],
        changeable: false,
    },
    Rule {
        key: "message.type",
        values: &[
            "UNSPECIFIED",
            "NORMAL",
            "FIFO",
            "DELAY",
            "TRANSACTION",
            "MIXED",
        ],
        refused: &[],
        changeable: true,
    },
];

/// Splits the text of request 17 into signed keys and values.
fn parse(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((key, value)) if key.starts_with('+') => Ok((key, value)),
            None if part.starts_with('-') => Ok((part, "")),
            Some(_) => Err(format!("add/alter attribute format is wrong: {part}")),
            None => Err(format!("delete attribute format is wrong: {part}")),
        })
        .collect()
}

/// The attributes of a topic after the change that request 17 wants. `known` is `None` for a new
/// topic, which only takes additions.
///
/// # Errors
/// The remark for code 1, naming the key.
pub fn alter_topic(known: Option<&Attributes>, text: &str) -> Result<Attributes, String> {
    let mut altered = known.cloned().unwrap_or_default();
    let mut seen: Vec<&str> = Vec::new();
    for (signed, value) in parse(text)? {
        let key = &signed[1..];
        if seen.contains(&signed) {
            return Err(format!("key duplication: {signed}"));
        } else if seen.iter().any(|other| &other[1..] == key) {
            return Err(format!("alter duplication key. key: {key}"));
        }
        seen.push(signed);
        let Some(rule) = TOPIC_RULES.iter().find(|rule| rule.key == key) else {
            return Err(format!("unsupported key: {key}"));
        };
        if signed.starts_with('-') {
            let Some(known) = known else {
                let remark = "only add attribute is supported while creating topic. key: ";
                return Err(format!("{remark}{key}"));
            };
            if !known.contains_key(key) {
                return Err(format!("attempt to delete a nonexistent key. key: {key}"));
            }
        }
        if known.is_some() && !rule.changeable {
            let remark = "attempt to update an unchangeable attribute. key: ";
            return Err(format!("{remark}{key}"));
        }
        if signed.starts_with('-') {
            altered.remove(key);
        } else if rule.values.contains(&value) {
            altered.insert(key.to_owned(), value.to_owned());
        } else if rule.refused.contains(&value) {
            return Err(format!("{key}={value} is not supported by this broker"));
        } else {
            return Err(format!(
                "value is not in set: {key} takes one of {}",
                rule.values.join(", ")
            ));
        }
    }
    Ok(altered)
}

/// The attributes of a group after the change that request 200 wants: keys with a sign alter those
/// known, keys without one are taken as they are.
///
/// # Errors
/// The remark for code 1: there would be too many, or too long ones.
pub fn alter_group(known: Option<&Attributes>, sent: &Attributes) -> Result<Attributes, String> {
    let mut altered = known.cloned().unwrap_or_default();
    for (signed, value) in sent {
        if let Some(key) = signed.strip_prefix('-') {
            altered.remove(key);
        } else {
            let key = signed.strip_prefix('+').unwrap_or(signed);
            if key.len() > LONGEST || value.len() > LONGEST {
                return Err(format!("an attribute is longer than {LONGEST} bytes"));
            }
            altered.insert(key.to_owned(), value.clone());
        }
    }
    if altered.len() > MOST {
        return Err(format!("a group takes at most {MOST} attributes"));
    }
    Ok(altered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(pairs: &[(&str, &str)]) -> Attributes {
        let own = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn a_new_topic_takes_additions_only() {
        let made = alter_topic(None, "+message.type=FIFO,+queue.type=SimpleCQ").expect("legal");
        assert_eq!(
            made,
            known(&[("message.type", "FIFO"), ("queue.type", "SimpleCQ")])
        );
        let remark = alter_topic(None, "-message.type").expect_err("refused");
        assert!(remark.contains("while creating topic"), "{remark}");
    }

    #[test]
    fn a_topic_that_exists_changes_what_may_change() {
        let old = known(&[("message.type", "FIFO"), ("queue.type", "SimpleCQ")]);
        let changed = alter_topic(Some(&old), "+message.type=NORMAL").expect("legal");
        assert_eq!(changed["message.type"], "NORMAL");
        let removed = alter_topic(Some(&old), "-message.type").expect("legal");
        assert!(!removed.contains_key("message.type"));
        assert_eq!(alter_topic(Some(&old), "").expect("no change"), old);
        for (text, part) in [
            ("+queue.type=BatchCQ", "unchangeable"),
            ("-cleanup.policy", "nonexistent"),
            ("+nope=1", "unsupported key: nope"),
            ("+message.type=SOME", "message.type takes one of"),
            ("message.type=FIFO", "format is wrong"),
            ("+message.type=FIFO,+message.type=FIFO", "key duplication"),
            ("+message.type=FIFO,-message.type", "alter duplication"),
        ] {
            let remark = alter_topic(Some(&old), text).expect_err(text);
            assert!(remark.contains(part), "{text}: {remark}");
        }
    }

    #[test]
    fn attributes_that_promise_what_is_not_kept_are_refused_by_name() {
        for text in ["queue.type=BatchCQ", "cleanup.policy=COMPACTION"] {
            let remark = alter_topic(None, &format!("+{text}")).expect_err(text);
            assert_eq!(remark, format!("{text} is not supported by this broker"));
        }
    }

    #[test]
    fn group_attributes_are_merged_by_sign() {
        let old = known(&[("a", "1"), ("b", "2")]);
        let sent = known(&[("+a", "9"), ("-b", ""), ("c", "3")]);
        let merged = alter_group(Some(&old), &sent).expect("legal");
        assert_eq!(merged, known(&[("a", "9"), ("c", "3")]));
    }
}
