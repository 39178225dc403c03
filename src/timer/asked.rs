//! What a send asks of the timers (docs/behaviour.md, Messages for a time).

use crate::answer::{Answer, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::handler::properties::{
    self, PropertyScan, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELETES, TIMER_DELIVER_MS,
    TIMER_OUT_MS,
};
use crate::handler::{MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE, send_checks};

/// The time for which a message must wait, ms, rounded down; `None` if it is due.
///
/// # Errors
/// The refusal of what cannot be kept.
pub fn asked(
    broker: &Broker,
    scan: &PropertyScan,
    text: &str,
    random: u64,
) -> Result<Option<i64>, Answer> {
    let has = |name| scan.get(text, name).is_some();
    if !properties::TIMERS.iter().any(|name| has(name)) || has(TIMER_OUT_MS) {
        return Ok(None);
    }
    let timers = &broker.config.timers;
    if !timers.enabled {
        let remark = "accurate timer message is not enabled, timerWheelEnable is false";
        return Err(send_checks::refused(broker, SYSTEM_ERROR, remark));
    }
    if let Some(why) = broker.timers.refusal() {
        let remark = send_checks::unavailable(&why);
        return Err(send_checks::refused(broker, SERVICE_NOT_AVAILABLE, remark));
    }
    let live = broker.live.load().timers;
    let now = now_ms();
    let deliver = deliver_ms(scan, text, now);
    let late = deliver.is_some_and(|time| time <= now);
    if late && !has(TIMER_DELETES) {
        return Ok(None);
    }
    let Some(deliver) = deliver.filter(|time| !late && time - now <= live.max_delay_ms) else {
        let remark = format!(
            "timer message illegal, the delay time should not be bigger than the max delay {}ms; \
             or if set del msg, the delay time should be bigger than the current time",
            live.max_delay_ms
        );
        return Err(send_checks::refused(broker, MESSAGE_ILLEGAL, remark));
    };
    let precision = timers.settings.precision_ms;
    // The slot before: it is over at the time that was asked for, or less than a precision later.
    let out = match timers.settings.round(deliver) {
        whole if whole == deliver => whole - precision,
        rounded => rounded,
    };
    let limit = live.slot_limit;
    if is_congested(
        broker.timers.in_slot(out.div_euclid(precision)),
        limit,
        random,
    ) {
        let twice = limit * 2;
        let remark = format!(
            "timer message is under flow control, max num limit is {twice} or the current value \
             is greater than {limit} and less than {twice}, trigger random flow control"
        );
        return Err(send_checks::refused(broker, SYSTEM_ERROR, remark));
    }
    Ok(Some(out))
}

/// When the message is to be delivered; `None` if its property is no time.
fn deliver_ms(scan: &PropertyScan, text: &str, now: i64) -> Option<i64> {
    let number = |value: &str| value.parse::<i64>().ok();
    if let Some(seconds) = scan.get(text, TIMER_DELAY_SEC) {
        return now.checked_add(number(seconds)?.checked_mul(1000)?);
    }
    if let Some(ms) = scan.get(text, TIMER_DELAY_MS) {
        return now.checked_add(number(ms)?);
    }
    // A time before the epoch is as late as the epoch.
    number(scan.get(text, TIMER_DELIVER_MS)?).map(|time| time.max(0))
}

/// From the limit on ever more messages are refused, from twice the limit on all.
fn is_congested(count: i64, limit: i64, random: u64) -> bool {
    let over = count.saturating_sub(limit);
    over > 0 && (random % limit.max(1).cast_unsigned()) < over.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_begin_at_the_limit_and_grow_to_all_at_twice_the_limit() {
        assert!((0..1000).all(|random| !is_congested(10, 10, random)));
        assert!((0..1000).all(|random| is_congested(20, 10, random)));
        let refused = |count| (0..1000).filter(|r| is_congested(count, 10, *r)).count();
        assert_eq!((refused(11), refused(15)), (100, 500));
        assert!(!is_congested(i64::from(i32::MAX), i64::from(i32::MAX), 0));
        assert!(is_congested(1, 0, 5));
    }

    #[test]
    fn the_properties_have_apaches_precedence() {
        let due = |text: &str| {
            let mut scan = PropertyScan::default();
            scan.read(text);
            deliver_ms(&scan, text, 1000)
        };
        assert_eq!(due("TIMER_DELIVER_MS\u{1}5000"), Some(5000));
        assert_eq!(
            due("TIMER_DELIVER_MS\u{1}5000\u{2}TIMER_DELAY_MS\u{1}7"),
            Some(1007)
        );
        assert_eq!(
            due("TIMER_DELAY_MS\u{1}7\u{2}TIMER_DELAY_SEC\u{1}2"),
            Some(3000)
        );
        assert_eq!(due("TIMER_DELAY_SEC\u{1}-2"), Some(-1000));
        for text in ["soon", "1.5", "99999999999999999999", "9223372036854775807"] {
            assert_eq!(due(&format!("TIMER_DELAY_SEC\u{1}{text}")), None, "{text}");
        }
    }
}
