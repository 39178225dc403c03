//! Many connections that do nothing, beside some that send.

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use saturnmq_net::client::{Client, ClientError};
use saturnmq_net::codes::{request, response};

use super::plan::Plan;
use super::report::Report;
use super::{BenchError, interrupt, produce};

/// Descriptors that the rest of this process needs.
const SPARE: u64 = 1100;

/// Longest wait for an answer before it is looked whether somebody wants the result.
const LOOK: Duration = Duration::from_millis(100);

/// Opens `idle` connections, runs the plan beside them, and asks something on each in the end: one
/// that does not answer within the plan's time-out is a fault.
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
    let asked: Vec<_> = clients.iter_mut().map(ask).collect();
    let limit = Instant::now() + plan.timeout;
    let (mut lost, mut answered) = (0, 0);
    for (client, asked) in clients.iter_mut().zip(asked) {
        match asked.and_then(|opaque| await_answer(client, opaque, limit)) {
            Ok(()) => answered += 1,
            Err(Lost::NotAsked) => break,
            Err(Lost::Because(why)) => {
                report.faults.count(&why);
                lost += 1;
            }
        }
    }
    report.interrupted |= interrupt::take();
    let idle = idle as f64;
    report
        .options
        .push_str(&format!(", beside {idle} idle connections"));
    report.details = vec![
        (
            "connections opened per second".to_owned(),
            idle / opened.max(1e-9),
        ),
        ("idle connections lost".to_owned(), f64::from(lost)),
        (
            "idle connections that answered".to_owned(),
            f64::from(answered),
        ),
        (
            "ms until they had answered".to_owned(),
            begun.elapsed().as_secs_f64() * 1e3,
        ),
    ];
    Ok(report)
}

/// Why nothing came of a question on an idle connection.
enum Lost {
    /// Ctrl-C came first.
    NotAsked,
    /// For this reason, which is a fault.
    Because(String),
}

impl From<ClientError> for Lost {
    fn from(error: ClientError) -> Self {
        Self::Because(match error {
            ClientError::Closed { .. } => "idle connection closed by the broker".to_owned(),
            other => format!("idle connection: {other}"),
        })
    }
}

/// Asks the broker for a template topic's end; any answer shows that the connection lives. All are
/// asked before the first answer is waited for: a broker that gives none costs one time-out.
fn ask(client: &mut Client) -> Result<i32, Lost> {
    let fields = |fields: &mut saturnmq_net::encode::Encoder<'_>| {
        fields.field_str("topic", super::route::TEMPLATE);
        fields.field_i32("queueId", 0);
    };
    let opaque = client.queue(request::GET_MAX_OFFSET, false, fields, &[])?;
    client.flush()?;
    Ok(opaque)
}

fn await_answer(client: &mut Client, opaque: i32, limit: Instant) -> Result<(), Lost> {
    loop {
        let now = Instant::now();
        if let Some(answer) = client.receive(limit.min(now + LOOK))? {
            match (answer.opaque == opaque, answer.code) {
                (true, response::SYSTEM_BUSY) => {
                    let why = "idle connection: the broker is busy";
                    return Err(Lost::Because(why.to_owned()));
                }
                (true, _) => return Ok(()),
                (false, _) => {}
            }
        } else if interrupt::is_waiting() {
            return Err(Lost::NotAsked);
        } else if now >= limit {
            let why = "idle connection without an answer in time";
            return Err(Lost::Because(why.to_owned()));
        }
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
