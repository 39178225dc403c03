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
    // A buffer grows when a pass takes more than any before it, and the second buffer of a
    // connection is used first when a send is slow: on a busy machine that can be late. A frame
    // that costs an allocation costs one in every stretch.
    let fewest = (0..20)
        .map(|_| {
            let region = Region::new(ALLOCATOR);
            rounds(10);
            let change = region.change();
            change.allocations + change.reallocations
        })
        .min();
    assert_eq!(answer, request);
    assert_eq!(fewest, Some(0), "allocations for 8,000 frames on {name}");
    server.stop();
}
