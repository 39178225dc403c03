//! The name server's key-value store: codes 100 to 102 and 219 (docs/protocol.md, "Request codes").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::headers;

headers! {
    /// Stores a value (100).
    PutKvConfig<'a> {
        namespace: &'a str = "namespace",
        key: &'a str = "key",
        value: &'a str = "value",
    }

    /// Asks for a value (101) or deletes it (102).
    KvKey<'a> {
        namespace: &'a str = "namespace",
        key: &'a str = "key",
    }

    /// The answer to 101.
    GetKvConfigResponse<'a> {
        value: Option<&'a str> = "value",
    }

    /// Asks for all of a namespace (219).
    GetKvList<'a> {
        namespace: &'a str = "namespace",
    }
}

/// A table of texts: body of the answers to 219, 103 and 28.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTable {
    /// Values by key.
    pub table: BTreeMap<String, String>,
}
