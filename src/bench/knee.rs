//! The highest rate that a broker holds: climbs until the p99 of an open loop breaks a bound, then
//! closes in on the place where it did.

use std::time::Duration;

use super::faults::Faults;
use super::plan::{Pace, Plan};
use super::report::Report;
use super::{BenchError, interrupt, shown_us, tell};

/// Rates that differ by less are one.
const CLOSE: f64 = 1.05;
/// Most runs of a search.
const MAX_STEPS: usize = 40;
/// Rates between which is searched.
const RATES: std::ops::Range<f64> = 1.0..10_000_000.0;

/// One rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Messages per second that were due.
    pub rate: f64,
    /// What their p99 was, in microseconds.
    pub p99_us: u64,
    /// Whether that is within the bound, without a fault.
    pub held: bool,
}

/// Searches from `first` messages per second on; the report is that of the highest rate that held.
///
/// # Errors
/// [`BenchError`] when a run cannot begin, or no rate holds.
pub fn find(
    plan: &Plan,
    first: f64,
    bound: Duration,
    mut load: impl FnMut(&Plan) -> Result<Report, BenchError>,
) -> Result<Report, BenchError> {
    let bound_us = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
    let mut steps = Vec::new();
    let mut reports = Vec::new();
    let (mut failed, mut interrupted) = (None, false);
    let mut faults = Faults::default();
    let mut next = Some(first);
    while let Some(rate) = next {
        let mut plan = plan.clone();
        plan.pace = Pace::Open { rate };
        let report = match load(&plan) {
            Ok(report) => report,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        let p99_us = report.latency_us[2];
        let held = report.verdict().is_ok() && report.messages > 0 && p99_us <= bound_us;
        if plan.watch.progress {
            let verdict = if held { "holds" } else { "does not hold" };
            tell(&format!("{rate:.0}/s {verdict}: p99 {}", shown_us(p99_us)));
        }
        steps.push(Step { rate, p99_us, held });
        interrupted = report.interrupted || interrupt::is_waiting();
        faults = report.faults.clone();
        reports.push(report);
        next = if interrupted { None } else { following(&steps) };
    }
    let Some(highest) = highest_held(&steps) else {
        return Err(failed.unwrap_or_else(|| none_held(bound, &steps, &faults)));
    };
    let mut report = reports.swap_remove(highest);
    report.interrupted |= interrupted;
    if let Some(error) = failed {
        cut_short(&mut report, error);
    }
    let step = |step: &Step| (format!("p99 us at {:.0}/s", step.rate), step.p99_us as f64);
    report.details.splice(0..0, steps.iter().map(step));
    let highest = steps[highest].rate;
    let held = (format!("held p99 {bound:?} at /s"), highest);
    report.details.insert(0, held);
    Ok(report)
}

/// A step could not begin: the best one before is what there is.
fn cut_short(best: &mut Report, why: BenchError) {
    match why {
        BenchError::Interrupted => best.interrupted = true,
        why => best.faults.count(&why.to_string()),
    }
}

/// Which step was of the highest rate that held below all that broke: what held above was luck.
fn highest_held(steps: &[Step]) -> Option<usize> {
    let broke = steps.iter().filter(|step| !step.held).map(|step| step.rate);
    let broke = broke.fold(f64::INFINITY, f64::min);
    let held = |(_, step): &(usize, &Step)| step.held && step.rate < broke;
    let steps = steps.iter().enumerate().filter(held);
    let highest = steps.max_by(|(_, a), (_, b)| a.rate.total_cmp(&b.rate));
    highest.map(|(index, _)| index)
}

fn none_held(bound: Duration, steps: &[Step], faults: &Faults) -> BenchError {
    let mut text = format!("no rate was found with a p99 within {bound:?}");
    if let Some(Step { rate, p99_us, .. }) = steps.last() {
        text.push_str(&format!("; at {rate:.0}/s it was {}", shown_us(*p99_us)));
    }
    for (kind, number) in faults.iter() {
        text.push_str(&format!("; {number} x {kind}"));
    }
    BenchError::System(text)
}

/// The rate to try next: twice or half of the last until both sides are known, then between them.
fn following(steps: &[Step]) -> Option<f64> {
    let rates = |held: bool| steps.iter().filter(move |s| s.held == held).map(|s| s.rate);
    let broke = rates(false).fold(f64::INFINITY, f64::min);
    let held = highest_held(steps).map_or(0.0, |index| steps[index].rate);
    let next = if broke == f64::INFINITY {
        held * 2.0
    } else if held == 0.0 {
        broke / 2.0
    } else if broke / held <= CLOSE {
        return None;
    } else {
        (held * broke).sqrt()
    };
    (steps.len() < MAX_STEPS && RATES.contains(&next)).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(first: f64, knee: f64) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut next = Some(first);
        while let Some(rate) = next {
            steps.push(Step {
                rate,
                p99_us: 0,
                held: rate <= knee,
            });
            next = following(&steps);
        }
        steps
    }

    #[test]
    fn the_search_closes_in_from_both_sides() {
        for (first, knee) in [(1000.0, 123_456.0), (1000.0, 77.0), (500.0, 500.0)] {
            let steps = searched(first, knee);
            let held = steps.iter().filter(|step| step.held).map(|step| step.rate);
            let best = held.fold(0.0, f64::max);
            assert!(
                best <= knee && best * CLOSE >= knee,
                "{first} {knee}: {steps:?}"
            );
            assert!(steps.len() < 20, "{} steps", steps.len());
        }
    }

    #[test]
    fn what_held_above_a_rate_that_broke_was_luck() {
        let step = |rate: f64, held| Step {
            rate,
            p99_us: 0,
            held,
        };
        let steps = [
            step(1000.0, true),
            step(4000.0, true),
            step(2000.0, false),
            step(1500.0, true),
        ];
        assert_eq!(highest_held(&steps), Some(3));
        assert_eq!(highest_held(&steps[1..3]), None);
    }

    #[test]
    fn a_search_ends_where_there_is_no_knee() {
        assert!(searched(1000.0, f64::INFINITY).len() < 20);
        assert!(searched(1000.0, 0.0).len() < 20);
    }
}
