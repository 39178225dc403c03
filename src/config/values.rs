//! Checked values by key, with defaults filled in: what [`Config`](super::Config) and
//! [`LiveConfig`](super::LiveConfig) are read from, once.

use std::collections::BTreeMap;

use super::keys;
use super::raw::RawConfig;

/// What stands in place of a secret.
const MASK: &str = "******";

/// Every known key with a value of the right form.
#[derive(Debug, Clone)]
pub(super) struct Values {
    texts: BTreeMap<String, String>,
    message_size_at_start: i64,
}

impl Values {
    /// Defaults, and over them what was brought; the caller checked it.
    pub(super) fn new(raw: &RawConfig) -> Self {
        let mut texts: BTreeMap<String, String> = keys::all()
            .map(|k| (k.name.to_string(), k.default.to_string()))
            .collect();
        for (name, value) in raw.iter() {
            texts.insert(name.to_string(), value.trim().to_string());
        }
        let mut values = Self {
            texts,
            message_size_at_start: 0,
        };
        values.message_size_at_start = values.number("maxMessageSize");
        values
    }

    pub(super) fn text(&self, key: &str) -> &str {
        debug_assert!(keys::find(key).is_some(), "{key} is in the table");
        self.texts.get(key).map_or("", String::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        self.text(key).eq_ignore_ascii_case("true")
    }

    /// A number whose limits in the table fit `T`.
    pub(super) fn number<T: TryFrom<i64> + Default>(&self, key: &str) -> T {
        let number = self.text(key).parse::<i64>().ok();
        let fits = number.and_then(|n| T::try_from(n).ok());
        debug_assert!(fits.is_some(), "{key} was checked against the table");
        fits.unwrap_or_default()
    }

    /// `maxMessageSize` as the store was opened with it.
    pub(super) fn message_size_at_start(&self) -> i64 {
        self.message_size_at_start
    }

    pub(super) fn set(&mut self, key: &str, value: String) {
        self.texts.insert(key.to_string(), value);
    }

    pub(super) fn to_properties_text(&self) -> String {
        let mut out = String::new();
        let known = self
            .texts
            .iter()
            .filter(|(key, _)| keys::find(key).is_some());
        for (key, value) in known {
            let shown = if is_secret(key) && !value.is_empty() {
                MASK
            } else {
                value.as_str()
            };
            out.push_str(key);
            out.push('=');
            out.extend(shown.chars().filter(|c| !c.is_control()));
            out.push('\n');
        }
        out
    }
}

/// Keys that hold secrets.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    [
        "credential",
        "secret",
        "password",
        "accesskey",
        "token",
        "exporterheader",
    ]
    .iter()
    .any(|part| key.contains(part))
        || (key.contains("init") && key.contains("user"))
}
