//! Sends and pulls allocate nothing once buffers have grown: one test, alone in its process. The
//! whole broker runs in it, so writer and dispatcher are counted along with the network core.

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use saturnmq::config::{Config, Options, Resolved};
use saturnmq::groups::GroupConfig;
use saturnmq::topics::TopicConfig;
use saturnmq::wiring::{self, Wired};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::Codec;
use saturnmq_net::probe;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Frames sent in one go and then waited for.
const ROUND: usize = 32;

fn start(dir: &std::path::Path) -> Wired {
    let options = Options {
        data_dir: Some(dir.into()),
        listen: Some("127.0.0.1:0".into()),
        name_server_port: Some("0".into()),
        cores: Some(1),
        set: [
            "httpPort=0",
            "maxHashSlotNum=1000",
            "mappedFileSizeCommitLog=67108864",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Options::default()
    };
    let resolved: Resolved = Config::resolve(&options).expect("settings");
    let engine = probe::choose().expect("an engine");
    let wired = wiring::start(resolved, &engine, Instant::now()).expect("a broker");
    wired
        .broker
        .topics
        .create_if_absent(TopicConfig::new("T", 4, 6));
    wired.broker.groups.create_or_update(GroupConfig::new("g"));
    wired
        .broker
        .persist
        .flush(wired.broker.as_ref())
        .expect("state files");
    wired
}

/// A connection that was handed to the core without a control thread.
fn connect(wired: &Wired) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (socket, peer) = listener.accept().expect("accept");
    socket.set_nonblocking(true).expect("nonblocking");
    assert!(
        wired.cores[0]
            .handle
            .adopt(OwnedFd::from(socket), peer, 10911)
    );
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("timeout");
    client
}

fn request(code: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::request(&mut out, Codec::Json, code, 7, false);
    for (name, value) in fields {
        encoder.field_str(name, value);
    }
    encoder.body(body);
    out
}

fn send() -> Vec<u8> {
    let properties = "UNIQ_KEY\u{1}7F00000177C94E0E2F2A9575FF750000\u{2}WAIT\u{1}true\u{2}\
                      TAGS\u{1}A\u{2}";
    let fields = [
        ("a", "p"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    request(310, &fields, &[b'x'; 512])
}

fn pull(subscription: &str, offset: &str) -> Vec<u8> {
    let fields = [
        ("consumerGroup", "g"),
        ("topic", "T"),
        ("queueId", "1"),
        ("queueOffset", offset),
        // A round of answers stays below what a connection keeps as its buffer.
        ("maxMsgNums", "8"),
        ("sysFlag", "5"),
        ("commitOffset", "3"),
        ("suspendTimeoutMillis", "0"),
        ("subscription", subscription),
        ("subVersion", "0"),
    ];
    request(11, &fields, b"")
}

/// Sends `frames` and reads as many answers; the codes must be 0.
fn exchange(stream: &mut TcpStream, frames: &[u8], count: usize, buffer: &mut [u8]) {
    stream.write_all(frames).expect("write");
    for _ in 0..count {
        stream.read_exact(&mut buffer[..4]).expect("a length");
        let length = u32::from_be_bytes(buffer[..4].try_into().expect("4 bytes")) as usize;
        stream.read_exact(&mut buffer[..length]).expect("a frame");
        assert!(
            buffer[4..length].starts_with(b"{\"code\":0,"),
            "not answered with 0"
        );
    }
}

#[test]
fn sends_and_pulls_cost_no_allocation_in_the_steady_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let wired = start(dir.path());
    let mut stream = connect(&wired);
    let mut buffer = vec![0; 1 << 20];
    let sends = send().repeat(ROUND);
    let pulls = pull("*", "100").repeat(ROUND);
    for _ in 0..10 {
        exchange(&mut stream, &sends, ROUND, &mut buffer);
    }
    for _ in 0..100 {
        exchange(&mut stream, &sends, ROUND, &mut buffer);
        exchange(&mut stream, &pulls, ROUND, &mut buffer);
    }
    // A buffer grows when a pass takes more than any before it, which on a busy machine can be
    // late. A send or a pull that costs an allocation costs one in every stretch.
    let mut fewest = |frames: &[u8]| {
        (0..20)
            .map(|_| {
                let region = Region::new(ALLOCATOR);
                for _ in 0..20 {
                    exchange(&mut stream, frames, ROUND, &mut buffer);
                }
                let change = region.change();
                change.allocations + change.reallocations
            })
            .min()
    };
    for (what, frames) in [("sends", &sends), ("pulls", &pulls)] {
        let fewest = fewest(frames).expect("a stretch");
        // The threads beside the core allocate now and then: never as often as once in fifty sends.
        assert!(fewest < 13, "{fewest} allocations for 640 {what}");
    }
    wired.broker.services.stop();
    for core in &wired.cores {
        core.handle.stop();
    }
    for core in wired.cores {
        core.thread.join().expect("a core ends");
    }
    wired.services.join().expect("the services thread ends");
    wired.broker.store.close().expect("the store closes");
}
