//! The items of request 315 (docs/behaviour.md, Statistics).

use saturnmq_net::messages::broker::BrokerStatsData;

use super::{Stats, Value};
use crate::traffic::Traffic;

impl Stats {
    /// An item of request 315 by name and key. `traffic` finds a topic's counters: an item exists
    /// from the first message on, its numbers from the next sample on.
    pub fn item<'a, F>(
        &self,
        name: &str,
        key: &str,
        cluster: &str,
        traffic: F,
    ) -> Option<BrokerStatsData>
    where
        F: FnOnce(&str) -> Option<std::sync::Arc<Traffic>> + 'a,
    {
        let value = if name.ends_with("_SIZE") {
            Value::Bytes
        } else {
            Value::Messages
        };
        match name {
            "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE" => {
                let counted = traffic(key)?.put_messages() > 0;
                let sampled = self.lock();
                let series = sampled.topics.get(key).map(|topic| &topic.puts);
                counted.then(|| series.map_or_else(Default::default, |s| s.data(value)))
            }
            "GROUP_GET_NUMS" | "GROUP_GET_SIZE" => {
                let (topic, group) = key.split_once('@')?;
                let counted = traffic(topic)?.known_group(group)?.messages() > 0;
                let sampled = self.lock();
                let series = sampled.topics.get(topic).and_then(|t| t.gets.get(group));
                counted.then(|| series.map_or_else(Default::default, |s| s.data(value)))
            }
            "SNDBCK_PUT_NUMS" => {
                let (topic, group) = key.split_once('@')?;
                let counted = traffic(topic)?.known_group(group)?.sent_back() > 0;
                let sampled = self.lock();
                let series = sampled.topics.get(topic).and_then(|t| t.backs.get(group));
                counted.then(|| series.map_or_else(Default::default, |s| s.data(value)))
            }
            // Apache counts whole milliseconds too, which a read of recent data does not take.
            "GROUP_GET_LATENCY" => {
                let (queue, rest) = key.split_once('@')?;
                let (topic, group) = rest.split_once('@')?;
                queue.parse::<u16>().ok()?;
                let counted = traffic(topic)?.known_group(group)?.messages() > 0;
                let sampled = self.lock();
                let series = sampled
                    .topics
                    .get(topic)
                    .and_then(|t| t.waits.get(&format!("{queue}@{group}")));
                counted.then(|| series.map_or_else(Default::default, |s| s.data(value)))
            }
            "BROKER_PUT_NUMS" if key == cluster => Some(self.lock().broker_puts.data(value)),
            "BROKER_GET_NUMS" if key == cluster => Some(self.lock().broker_gets.data(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::stats::Moment;

    #[test]
    fn the_latency_of_a_group_in_a_queue_is_the_time_of_its_slow_reads() {
        let after = |ms: i64| Moment {
            steady_ms: 1 + ms,
            wall_ms: 1_700_000_000_000 + ms,
        };
        let stats = Stats::new(1, after(0));
        let topic = Arc::new(Traffic::default());
        let group = topic.group("g");
        let item = |key: &str| {
            let found = |name: &str| (name == "T").then(|| Arc::clone(&topic));
            stats.item("GROUP_GET_LATENCY", key, "C", found)
        };
        assert!(item("2@T@g").is_none(), "before the first message");
        topic.get(&group, 1, 100);
        let none = item("2@T@g").expect("an item");
        assert_eq!((none.stats_minute.sum, none.stats_day.sum), (0, 0));
        group.read_slowly(2, 7);
        group.read_slowly(2, 5);
        group.read_slowly(3, 1);
        stats.tick(after(10_000), |sample| sample("T", &topic));
        let slow = item("2@T@g").expect("an item").stats_minute;
        assert_eq!((slow.sum, slow.avgpt), (12, 6.0));
        assert_eq!(item("3@T@g").expect("an item").stats_minute.sum, 1);
        for wrong in ["T@g", "2@T", "x@T@g", "2@Other@g", "2@T@other"] {
            assert!(item(wrong).is_none(), "{wrong}");
        }
    }
}
