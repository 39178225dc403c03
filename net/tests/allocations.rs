//! Serving frames allocates nothing once buffers have grown: one test, alone in its process.

mod harness;

use std::alloc::System;

use harness::{Server, exchange, numbered};
use saturnmq_net::limits::Limits;
use saturnmq_net::probe::Engine;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_frame_costs_no_allocation_in_the_steady_state() {
    for engine in ["uring", "uring-6.1", "uring-plain", "epoll"] {
        harness::on(engine, measure);
    }
}

fn measure(engine: Engine) {
    let name = engine.to_string();
    let server = Server::start(engine, Limits::default());
    let mut clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    // 200 frames, so that some straddle receive buffers.
    let request: Vec<u8> = (0..200)
        .flat_map(|number| numbered(b'e', number, 1000))
        .collect();
    let mut answer = vec![0; request.len()];
    let mut rounds = |count: u32| {
        for _ in 0..count {
            for client in &mut clients {
                exchange(client, &request, &mut answer);
            }
        }
    };
    rounds(50);
    let region = Region::new(ALLOCATOR);
    rounds(50);
    let change = region.change();
    assert_eq!(answer, request);
    // 40,000 frames: a few buffers may still grow, when a pass takes more than any before it.
    let allocations = change.allocations + change.reallocations;
    assert!(
        allocations < 40,
        "{allocations} allocations on {name}: {change:?}"
    );
    server.stop();
}
