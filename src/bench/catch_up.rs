//! Readers that drain what topics hold, while producers keep their rate: what the one costs the
//! other.

use std::thread;
use std::time::Duration;

use super::drain;
use super::faults::Faults;
use super::monitor::Monitor;
use super::plan::{Plan, Run};
use super::produce::{self, Tallies, are_done};
use super::read_back;
use super::recorder::Measured;
use super::report::Report;
use super::route;
use super::{BenchError, plan::Watch};

/// Measures the producers alone for the plan's time, then beside that many readers until the
/// backlog is read. The report is of the producers beside the readers.
///
/// # Errors
/// [`BenchError`] when there is no route, no backlog, or a connection cannot be made.
pub fn run(
    plan: &Plan,
    readers: usize,
    pull: i32,
    longest: Duration,
) -> Result<Report, BenchError> {
    let quiet = Plan {
        watch: Watch {
            hlog: None,
            ..plan.watch.clone()
        },
        ..plan.clone()
    };
    let alone = produce::run(&quiet)?;
    if alone.interrupted || alone.faults.total() > 0 {
        let load = "catch-up: alone".to_owned();
        return Ok(Report { load, ..alone });
    }
    let plan = Plan {
        duration: longest,
        count: None,
        ..plan.clone()
    };
    let mut report = match beside(&plan, readers, pull) {
        Err(BenchError::Interrupted) => {
            let load = "catch-up: alone".to_owned();
            let interrupted = true;
            return Ok(Report {
                load,
                interrupted,
                ..alone
            });
        }
        beside => beside?,
    };
    let before = alone.latency_us;
    let now = report.latency_us;
    if report.messages == 0 {
        let text = "no message was due while the backlog was read: it was too small for this rate";
        report.warnings.push(text.to_owned());
        report.add_pace(&alone);
        return Ok(report);
    }
    for (name, index) in [("p50", 0), ("p99", 2), ("p99.9", 3), ("max", 5)] {
        let ratio = now[index] as f64 / before[index].max(1) as f64;
        report
            .details
            .push((format!("alone {name} us"), before[index] as f64));
        report
            .details
            .push((format!("{name}, times that alone"), ratio));
    }
    let ratio = report.per_second / alone.per_second.max(1e-9);
    report
        .details
        .push(("rate, times that alone".to_owned(), ratio));
    report.faults.add(&alone.faults);
    report.add_pace(&alone);
    Ok(report)
}

fn beside(plan: &Plan, readers: usize, pull: i32) -> Result<Report, BenchError> {
    let routes = plan.routes()?;
    let shares = drain::backlog(plan, &routes, readers)?;
    if shares.iter().flatten().all(|queue| queue.is_done()) {
        let text = "catch-up: the topics hold nothing to read; produce a backlog first";
        return Err(BenchError::System(text.to_owned()));
    }
    let address = route::one_broker(&routes)?;
    let before = read_back::Start::now(plan, &routes)?;
    let run = Run::soon(plan, plan.connections, readers);
    let mut monitor = Monitor::new(&run)?;
    thread::scope(|scope| {
        let run = &run;
        let readers: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(worker, queues)| {
                scope.spawn(move || drain::read(run, address, queues, pull, &run.beside, worker))
            })
            .collect();
        let producers = produce::start(scope, run, &routes, &run.series);
        monitor.watch(|| are_done(&readers))?;
        let cut_by_user = monitor.is_interrupted();
        run.cut();
        monitor.close();
        monitor.await_rest(|| are_done(&producers) && are_done(&readers))?;
        let (mut total, mut faults) = (Measured::new()?, Faults::default());
        let (mut busiest, mut last) = (0.0_f64, run.begin);
        let mut seen = drain::Seen::default();
        for reader in readers {
            let tally = reader
                .join()
                .map_err(|_| BenchError::System("a reader thread panicked".to_owned()))??;
            total.add(&tally.total)?;
            faults.add(&tally.faults);
            seen.add(&tally, &mut faults);
            busiest = busiest.max(tally.busy);
            last = last.max(tally.last);
        }
        let sent = Tallies::join(producers, run)?;
        let observed = monitor.finish(run.end())?;
        let seconds = last
            .saturating_duration_since(run.counted_from)
            .as_secs_f64()
            .max(1e-9);
        let mut report = Report::new("catch-up", plan, &observed, &sent.total);
        report.details = vec![
            ("read in all".to_owned(), total.messages as f64),
            (
                "read per second".to_owned(),
                total.messages as f64 / seconds,
            ),
            (
                "read MiB/s".to_owned(),
                total.bytes as f64 / seconds / 1_048_576.0,
            ),
        ];
        report.interrupted = cut_by_user;
        report.faults = sent.faults.clone();
        report.faults.add(&faults);
        report.judge_client(busiest.max(sent.busiest));
        report.judge_pace(run, 1.0, sent.last);
        if let Some(before) = before {
            before.check(run.id, &sent, &mut monitor, &mut report)?;
        }
        Ok(report)
    })
}
