//! Draining a backlog: what a topic holds, read as fast as the broker gives it.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use saturnmq_net::client::Client;
use serde::Serialize;

use super::puller::{Puller, Queue, end_of};
use super::{ANSWER_TIMEOUT, BenchError, Cost, Faults, Moment, route};

/// What to drain.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name server, `host:port`.
    pub name_server: String,
    /// The topic.
    pub topic: String,
    /// Connections; queues are dealt to them in turn.
    pub connections: usize,
    /// Most messages of one pull.
    pub batch: i32,
    /// Broker process on this host whose CPU time and memory are reported.
    pub broker_pid: Option<u32>,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Messages read.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Seconds that took.
    pub seconds: f64,
    /// Messages per second.
    pub per_second: f64,
    /// What it cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// What was wrong.
    pub faults: Faults,
}

#[derive(Default)]
struct Tally {
    messages: u64,
    bytes: u64,
    faults: Faults,
}

/// Drains the topic.
///
/// # Errors
/// [`BenchError`] when there is no route, a connection fails or an answer does not come.
pub fn run(plan: &Plan) -> Result<Report, BenchError> {
    let routes = route::find(&plan.name_server, std::slice::from_ref(&plan.topic))?;
    let mut shares: Vec<Vec<Queue>> = vec![Vec::new(); plan.connections];
    let mut client = Client::connect(routes[0].address.as_str(), ANSWER_TIMEOUT)?;
    for id in 0..routes[0].queues {
        let end = end_of(&mut client, &plan.topic, id)?;
        let share = id as usize % plan.connections;
        shares[share].push(Queue::new(&plan.topic, id, 0, end));
    }
    let barrier = Barrier::new(plan.connections + 1);
    thread::scope(|scope| {
        let address = routes[0].address.as_str();
        let readers: Vec<_> = shares
            .into_iter()
            .map(|queues| {
                let barrier = &barrier;
                scope.spawn(move || drain(address, queues, plan.batch, barrier))
            })
            .collect();
        barrier.wait();
        let (before, started) = (Moment::now(plan.broker_pid), Instant::now());
        let mut all = Tally::default();
        for reader in readers {
            let tally = reader
                .join()
                .map_err(|_| BenchError::System("a reader thread panicked".to_owned()))??;
            all.messages += tally.messages;
            all.bytes += tally.bytes;
            all.faults.add(&tally.faults);
        }
        let seconds = started.elapsed().as_secs_f64();
        let after = Moment::now(plan.broker_pid);
        Ok(Report {
            messages: all.messages,
            bytes: all.bytes,
            seconds,
            per_second: all.messages as f64 / seconds,
            cost: before.cost_until(&after, all.messages),
            faults: all.faults,
        })
    })
}

fn drain(
    address: &str,
    queues: Vec<Queue>,
    batch: i32,
    barrier: &Barrier,
) -> Result<Tally, BenchError> {
    let connected = Client::connect(address, ANSWER_TIMEOUT);
    barrier.wait();
    let mut puller = Puller::new(connected?, queues, batch, Duration::ZERO);
    let mut tally = Tally::default();
    while !puller.is_done() {
        puller.ask()?;
        let (messages, bytes) = (&mut tally.messages, &mut tally.bytes);
        let came = puller.answer(Instant::now() + ANSWER_TIMEOUT, |record, _| {
            *messages += 1;
            *bytes += u64::from(record.size());
        })?;
        if !came {
            let text = format!("no answer to a pull within {ANSWER_TIMEOUT:?}");
            return Err(BenchError::System(text));
        }
    }
    tally.faults = puller.faults;
    Ok(tally)
}
