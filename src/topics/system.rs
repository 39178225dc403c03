//! Topics that exist from the first start.

use super::{PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig};
use crate::names;

/// Names and queue counts of the topics that exist from the first start.
#[derive(Debug, Clone)]
pub struct SystemTopics {
    /// `brokerClusterName`.
    pub cluster: String,
    /// `brokerName`.
    pub broker: String,
    /// `autoCreateTopicEnable`.
    pub auto_create: bool,
    /// `defaultTopicQueueNums`.
    pub default_queues: i32,
    /// `clusterTopicEnable`.
    pub cluster_topic: bool,
    /// `brokerTopicEnable`.
    pub broker_topic: bool,
    /// `msgTraceTopicName`, if `traceTopicEnable`.
    pub trace_topic: Option<String>,
    /// Number of delay levels.
    pub delay_levels: i32,
    /// `reviveQueueNum`.
    pub revive_queues: i32,
    /// `timerWheelEnable`.
    pub timer: bool,
}

impl SystemTopics {
    pub(super) fn configs(&self) -> Vec<TopicConfig> {
        let rw = PERM_READ | PERM_WRITE;
        let inherit = |allowed: bool| {
            if allowed {
                PERM_INHERIT | rw
            } else {
                PERM_INHERIT
            }
        };
        let mut all = vec![TopicConfig::new(names::SELF_TEST_TOPIC, 1, rw)];
        if self.auto_create {
            let template = TopicConfig::new(names::AUTO_CREATE_TOPIC, self.default_queues, rw | 1);
            all.push(template);
        }
        all.push(TopicConfig::new(names::BENCHMARK_TOPIC, 1024, rw));
        all.push(TopicConfig::new(
            &self.cluster,
            16,
            inherit(self.cluster_topic),
        ));
        all.push(TopicConfig::new(
            &self.broker,
            1,
            inherit(self.broker_topic),
        ));
        all.push(TopicConfig::new(names::OFFSET_MOVED_EVENT, 1, rw));
        all.push(TopicConfig::new(
            names::SCHEDULE_TOPIC,
            self.delay_levels,
            rw,
        ));
        if let Some(trace) = &self.trace_topic {
            all.push(TopicConfig::new(trace, 1, rw));
        }
        all.push(TopicConfig::new(names::reply_topic(&self.cluster), 1, rw));
        let revive = names::revive_topic(&self.cluster);
        all.push(TopicConfig::new(revive, self.revive_queues, rw));
        let members = names::sync_member_topic(&self.broker);
        all.push(TopicConfig::new(members, 1, PERM_INHERIT));
        all.push(TopicConfig::new(names::HALF_TOPIC, 1, rw));
        all.push(TopicConfig::new(names::OP_HALF_TOPIC, 1, rw));
        if self.timer {
            all.push(TopicConfig::new(names::TIMER_TOPIC, 1, rw));
        }
        all
    }
}
