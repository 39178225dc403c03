//! How much a pull may read.

use std::sync::OnceLock;

use saturnmq_storage::config::{PullLimits, memory_distance};

use crate::config::LiveConfig;

/// Most bytes of records in one response: it must fit a frame of 16 MiB.
const MAX_BODY: usize = 15 << 20;
/// Steps of a selector after which a pull ends, with or without messages: about a millisecond.
const MAX_FILTER_WORK: usize = 1 << 20;

/// Distance from the log's end, in bytes, up to which a record counts as in memory.
pub fn in_memory(live: &LiveConfig) -> u64 {
    static ONE_PERCENT: OnceLock<u64> = OnceLock::new();
    ONE_PERCENT
        .get_or_init(|| memory_distance(1))
        .saturating_mul(live.in_memory_percent)
}

/// The limits of a pull as they are configured now.
pub fn pull_limits(live: &LiveConfig) -> PullLimits {
    PullLimits {
        max_filter_bytes: live.max_filter_bytes,
        max_filter_work: MAX_FILTER_WORK,
        max_bytes_in_memory: live.transfer_bytes_in_memory,
        max_count_in_memory: live.transfer_count_in_memory,
        max_bytes_on_disk: live.transfer_bytes_on_disk,
        max_count_on_disk: live.transfer_count_on_disk,
        memory_distance: in_memory(live),
        max_bytes: MAX_BODY,
    }
}
