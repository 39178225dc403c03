//! One load over more and more topics.

use super::plan::Plan;
use super::report::Report;
use super::{BenchError, counted, produce, route, shown_us, tell};

/// Runs the plan over one of its topics, then over ten times as many again and again, up to all.
/// The report is of the last, with the rate of each.
///
/// # Errors
/// [`BenchError`] when there is no route, a topic cannot be made or a connection fails.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let mut routes = plan.routes()?;
    route::create(&mut routes)?;
    let all = plan.topics.len();
    let mut details = Vec::new();
    let mut first = 0.0;
    let mut number = 1;
    loop {
        let step = Plan {
            topics: plan.topics[..number.min(all)].to_vec(),
            ..plan.clone()
        };
        let mut report = produce::run(&step)?;
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
        if step.topics.len() == all || report.interrupted || failed {
            "topics".clone_into(&mut report.load);
            report.details = details;
            return Ok(report);
        }
        number *= 10;
    }
}
