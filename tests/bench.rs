//! The load generator against the real binary: what it reports is what happened, and what a broker
//! does wrong fails the run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

use saturnmq_net::client::Client;
use saturnmq_net::codes::request;
use saturnmq_net::command::{Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{MAX_FRAME, Parsed, parse};
use saturnmq_storage::format::record::Record;
use serde_json::Value;

use crate::serve::{Running, directory};

fn bench(running: &Running, arguments: &[&str]) -> Output {
    bench_at(running.address("name server"), arguments)
}

fn bench_at(name_server: SocketAddr, arguments: &[&str]) -> Output {
    let (load, rest) = arguments.split_first().expect("a load");
    Command::new(env!("CARGO_BIN_EXE_saturnmq"))
        .args(["bench", load, "--json", "--name-server"])
        .arg(name_server.to_string())
        .args(rest)
        .output()
        .expect("the binary starts")
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("a JSON report")
}

/// The report of a run without faults.
fn good(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report = report(output);
    assert_eq!(report["faults"], serde_json::json!({}));
    report
}

#[test]
fn what_was_sent_at_a_rate_is_drained_and_arrives_at_waiting_consumers() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let short = ["--seconds", "1", "--warm-up", "0"];
    let produce = ["produce", "--rate", "500", "--connections", "3"];
    let sent = good(&bench(&running, &[&produce[..], &short].concat()));
    assert_eq!(
        sent["messages"], 500,
        "each due send is counted once: {sent}"
    );
    let drained = good(&bench(&running, &["drain"]));
    assert_eq!(drained["messages"], 500);
    let arrived = good(&bench(
        &running,
        &[&["end-to-end", "--rate", "500"][..], &short].concat(),
    ));
    assert_eq!(arrived["messages"], 500);
    let drained = good(&bench(
        &running,
        &["drain", "--connections", "1", "--batch", "7"],
    ));
    assert_eq!(drained["messages"], 1000);
}

#[test]
fn a_refused_send_fails_the_run_and_is_named() {
    let dir = directory();
    let running = Running::start(dir.path(), &["--set", "maxMessageSize=2000"]);
    let arguments = [
        "produce",
        "--rate",
        "50",
        "--size",
        "4000",
        "--seconds",
        "1",
    ];
    let output = bench(&running, &arguments);
    assert!(!output.status.success());
    let faults = report(&output)["faults"].to_string();
    assert!(faults.contains("code 13"), "{faults}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the run has failed") && said.contains("code 13"),
        "{said}"
    );
}

/// The first two records of a queue, as a broker keeps them.
fn two_records() -> [Vec<u8>; 2] {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let arguments = [
        "produce",
        "--rate",
        "50",
        "--connections",
        "1",
        "--seconds",
        "1",
    ];
    good(&bench(&running, &arguments));
    let patience = Duration::from_secs(10);
    let mut client = Client::connect(running.address("broker"), patience).expect("connect");
    let fields = |out: &mut Encoder<'_>| {
        for (name, value) in [("consumerGroup", "bench_test"), ("topic", "saturnmq_bench")] {
            out.field_str(name, value);
        }
        for (name, value) in [("queueOffset", 0), ("maxMsgNums", 2), ("sysFlag", 4)] {
            out.field_i64(name, value);
        }
        out.field_i32("queueId", 1).field_i32("commitOffset", 0);
        out.field_str("subscription", "*")
            .field_i32("suspendTimeoutMillis", 0);
    };
    let answer = client
        .invoke(request::PULL_MESSAGE, fields, &[], patience)
        .expect("an answer");
    assert_eq!(answer.code, 0, "{answer:?}");
    let first = Record::decode(&answer.body).expect("a record").size() as usize;
    let (first, second) = answer.body.split_at(first);
    [first.to_vec(), second.to_vec()]
}

/// A broker with one queue of two messages, whose pulls bring these bytes.
fn wrong_broker(body: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let body = body.clone();
            std::thread::spawn(move || serve_wrongly(stream, address, &body));
        }
    });
    address
}

fn serve_wrongly(mut stream: TcpStream, address: SocketAddr, pulled: &[u8]) {
    let route = format!(
        r#"{{"brokerDatas":[{{"brokerAddrs":{{0:"{address}"}},"brokerName":"b","cluster":"c"}}],
        "queueDatas":[{{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1,
        "topicSysFlag":0}}]}}"#
    );
    let (mut received, mut scratch) = (Vec::new(), Scratch::default());
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        received.extend_from_slice(&chunk[..count]);
        let mut out = Vec::new();
        while let Ok(Parsed::Complete { frame, consumed }) = parse(&received, MAX_FRAME) {
            let command = decode(frame, &mut scratch).expect("a header");
            let mut answer = Encoder::response(&mut out, command.reply_to(), 0, None);
            match command.code {
                request::GET_ROUTEINFO_BY_TOPIC => answer.body(route.as_bytes()),
                request::GET_MAX_OFFSET => {
                    answer.field_i64("offset", 2);
                    answer.finish();
                }
                _ => answer.body(pulled),
            }
            received.drain(..consumed);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

#[test]
fn doubled_missing_and_damaged_messages_fail_the_run() {
    let [first, second] = two_records();
    let mut damaged = second.clone();
    let body = Record::decode(&second).expect("a record").body();
    let at = body.as_ptr().addr() - second.as_ptr().addr();
    damaged[at + 100] ^= 1;
    for (pulled, fault) in [
        (
            [&first[..], &first, &second].concat(),
            "again or out of order",
        ),
        (second.clone(), "gap in the queue offsets"),
        ([first.clone(), damaged].concat(), "damaged body"),
    ] {
        let output = bench_at(wrong_broker(pulled), &["drain", "--connections", "1"]);
        assert!(!output.status.success(), "{fault}");
        let faults = report(&output)["faults"].to_string();
        assert!(faults.contains(fault), "{faults}");
    }
    let output = bench_at(wrong_broker([first, second].concat()), &["drain"]);
    assert_eq!(good(&output)["messages"], 2);
}
