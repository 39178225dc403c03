//! Messages for a time.

use std::time::Duration;

use saturnmq_storage::timer::TimerSettings;

use super::values::Values;

/// Settings of timers that are fixed for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerConfig {
    /// `timerWheelEnable`.
    pub enabled: bool,
    /// `timerPrecisionMs`, `timerRollWindowSlot`, `mappedFileSizeTimerLog`.
    pub settings: TimerSettings,
    /// `timerFlushIntervalMs`: period of the check points.
    pub flush_interval: Duration,
}

impl TimerConfig {
    pub(super) fn new(v: &Values) -> Self {
        Self {
            enabled: v.flag("timerWheelEnable"),
            settings: TimerSettings {
                precision_ms: v.number("timerPrecisionMs"),
                roll_window_slots: v.number("timerRollWindowSlot"),
                log_file_size: v.number("mappedFileSizeTimerLog"),
            },
            flush_interval: Duration::from_millis(v.number("timerFlushIntervalMs")),
        }
    }
}

/// Settings of timers that may change while the broker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveTimers {
    /// `timerMaxDelaySec`, in milliseconds.
    pub max_delay_ms: i64,
    /// `timerCongestNumEachSlot`: messages of one slot above which some are refused.
    pub slot_limit: i64,
    /// `timerStopEnqueue`.
    pub stop_enqueue: bool,
    /// `timerStopDequeue`.
    pub stop_dequeue: bool,
    /// `recallMessageEnable`.
    pub recall: bool,
    /// `allowRecallWhenBrokerNotWriteable`.
    pub recall_unwritable: bool,
}

impl LiveTimers {
    pub(super) fn new(v: &Values) -> Self {
        Self {
            max_delay_ms: v.number::<i64>("timerMaxDelaySec").saturating_mul(1000),
            slot_limit: v.number("timerCongestNumEachSlot"),
            stop_enqueue: v.flag("timerStopEnqueue"),
            stop_dequeue: v.flag("timerStopDequeue"),
            recall: v.flag("recallMessageEnable"),
            recall_unwritable: v.flag("allowRecallWhenBrokerNotWriteable"),
        }
    }
}
