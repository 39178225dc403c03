//! Many connections that do nothing, beside some that send.

use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};

use super::plan::Plan;
use super::report::Report;
use super::{ANSWER_TIMEOUT, BenchError, produce};

/// Descriptors that the rest of this process needs.
const SPARE: u64 = 1100;

/// Opens `idle` connections, runs the plan beside them, and asks something on each in the end: one
/// that does not answer is a fault.
///
/// # Errors
/// [`BenchError`] when a connection cannot be made.
pub fn run(plan: &Plan, idle: usize) -> Result<Report, BenchError> {
    allow(idle as u64 + SPARE)?;
    let routes = plan.routes()?;
    let address = &routes[0].address;
    let begun = Instant::now();
    let mut clients = Vec::with_capacity(idle);
    for _ in 0..idle {
        clients.push(plan.connect(address)?);
    }
    let opened = begun.elapsed().as_secs_f64();
    let mut report = produce::run(plan)?;
    "connections".clone_into(&mut report.load);
    let begun = Instant::now();
    let lost = clients.iter_mut().filter_map(|client| ask(client).err());
    let mut number = 0;
    for why in lost {
        report.faults.count(&why);
        number += 1;
    }
    let idle = idle as f64;
    report
        .options
        .push_str(&format!(", beside {idle} idle connections"));
    report.details = vec![
        (
            "connections opened per second".to_owned(),
            idle / opened.max(1e-9),
        ),
        ("idle connections lost".to_owned(), f64::from(number)),
        (
            "us per first request on each".to_owned(),
            begun.elapsed().as_secs_f64() * 1e6 / idle.max(1.0),
        ),
    ];
    Ok(report)
}

/// Asks the broker for a template topic's end; any answer shows that the connection lives.
fn ask(client: &mut Client) -> Result<(), String> {
    let fields = |fields: &mut saturnmq_net::encode::Encoder<'_>| {
        fields.field_str("topic", super::route::TEMPLATE);
        fields.field_i32("queueId", 0);
    };
    let answer = client.invoke(request::GET_MAX_OFFSET, fields, &[], ANSWER_TIMEOUT);
    let answer = answer.map_err(|error| match error {
        saturnmq_net::client::ClientError::Closed { .. } => {
            "idle connection closed by the broker".to_owned()
        }
        other => format!("idle connection: {other}"),
    })?;
    match answer.code {
        response::SYSTEM_BUSY => Err("idle connection: the broker is busy".to_owned()),
        _ => Ok(()),
    }
}

/// Lets this process have that many files open.
fn allow(files: u64) -> Result<(), BenchError> {
    let system = |error: nix::Error| BenchError::System(format!("open files: {error}"));
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(system)?;
    if soft >= files {
        return Ok(());
    }
    if hard < files {
        return Err(BenchError::System(format!(
            "{files} open files are needed and the limit is {hard}: raise it with ulimit -n"
        )));
    }
    setrlimit(Resource::RLIMIT_NOFILE, files, hard).map_err(system)
}
