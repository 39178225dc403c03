//! One load over more and more topics.

use super::plan::Plan;
use super::report::Report;
use super::{BenchError, counted, interrupt, produce, route, shown_us, tell};

/// Runs the plan over one of its topics, then over ten times as many again and again, up to all.
/// The report is of the last, with the rate of each.
///
/// # Errors
/// [`BenchError`] when there is no route, a topic cannot be made or a connection fails.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let mut routes = plan.routes()?;
    route::create(&mut routes, plan.timeout)?;
    let all = plan.topics.len();
    let mut details = Vec::new();
    let mut first = 0.0;
    let mut number = 1;
    let mut so_far: Option<Report> = None;
    loop {
        let step = Plan {
            topics: plan.topics[..number.min(all)].to_vec(),
            ..plan.clone()
        };
        let mut report = match (produce::run(&step), so_far.take()) {
            (Ok(mut report), before) => {
                before.iter().for_each(|before| report.add_pace(before));
                report
            }
            // The steps before are what there is; none of them had a fault.
            (Err(error), Some(before)) => return Ok(ended(before, details, &error)),
            (Err(error), None) => return Err(error),
        };
        if number == 1 {
            first = report.per_second;
        }
        let topics = counted(step.topics.len() as u64, "topic");
        if plan.watch.progress {
            let p99 = shown_us(report.latency_us[2]);
            tell(&format!("{topics}: {:.0}/s, p99 {p99}", report.per_second));
        }
        details.push((format!("{topics}, messages/s"), report.per_second));
        let ratio = report.per_second / f64::max(first, 1e-9);
        details.push((format!("{topics}, times one"), ratio));
        details.push((format!("{topics}, p99 us"), report.latency_us[2] as f64));
        let failed = report.faults.total() > 0;
        report.interrupted |= interrupt::is_waiting();
        "topics".clone_into(&mut report.load);
        if step.topics.len() == all || report.interrupted || failed {
            report.details = details;
            return Ok(report);
        }
        so_far = Some(report);
        number *= 10;
    }
}

/// The report of the steps before one that could not begin.
fn ended(before: Report, details: Vec<(String, f64)>, why: &BenchError) -> Report {
    let mut report = Report { details, ..before };
    match why {
        BenchError::Interrupted => report.interrupted = true,
        why => report.faults.count(&why.to_string()),
    }
    report
}
