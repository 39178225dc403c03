//! What a SaturnMQ broker says that it wrote, by kind: the kernel tells only the sum.

use std::time::Duration;

use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};

use super::environment::json_text;

/// Longest wait for the broker's word; the run goes on meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes written since the broker's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// To the commit log for records, in whole blocks.
    pub log: u64,
    /// Zeros, to files of the commit log ahead of the records.
    pub zeros: u64,
}

impl Written {
    /// Asks the broker; `None` of one that does not say, as Apache's.
    pub fn ask(address: &str) -> Option<Self> {
        let mut client = Client::connect(address, PATIENCE).ok()?;
        let code = request::GET_BROKER_RUNTIME_INFO;
        let answer = client.invoke(code, |_| {}, &[], PATIENCE).ok()?;
        if answer.code != response::SUCCESS {
            return None;
        }
        Self::of(&String::from_utf8_lossy(&answer.body))
    }

    fn of(text: &str) -> Option<Self> {
        let number = |key| json_text(text, key)?.parse().ok();
        Some(Self {
            log: number("saturnmqLogBytesWritten")?,
            zeros: number("saturnmqLogBytesZeroed")?,
        })
    }

    /// What was written since an earlier moment; nothing by a broker that was started again.
    pub fn since(self, before: Self) -> Self {
        Self {
            log: self.log.saturating_sub(before.log),
            zeros: self.zeros.saturating_sub(before.zeros),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_says_nothing_of_it_is_told_from_one_that_does() {
        let text = r#"{"table":{"saturnmqLogBytesWritten":"8192","saturnmqLogBytesZeroed":"7"}}"#;
        let expected = Written {
            log: 8192,
            zeros: 7,
        };
        assert_eq!(Written::of(text), Some(expected));
        assert_eq!(Written::of(r#"{"table":{"putTps":"1"}}"#), None);
        assert_eq!(expected.since(Written { log: 92, zeros: 9 }).log, 8100);
    }
}
