//! The load generator against the real binary: what it reports is what happened, and what a broker
//! does wrong fails the run.

mod ends;
mod lies;
mod mistakes;
mod proxy;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use saturnmq_net::client::Client;
use saturnmq_net::codes::request;
use saturnmq_net::command::{Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{MAX_FRAME, Parsed, parse};
use saturnmq_storage::format::record::Record;
use serde_json::Value;

use crate::patience::{TooSlow, in_time};
use crate::serve::{Running, directory};

fn bench(running: &Running, arguments: &[&str]) -> Output {
    bench_at(running.address("name server"), arguments)
}

fn bench_at(name_server: SocketAddr, arguments: &[&str]) -> Output {
    let (load, rest) = arguments.split_first().expect("a load");
    command(&[&[*load, "--name-server", &name_server.to_string()], rest].concat())
        .output()
        .expect("the binary starts")
}

/// `bench` with a JSON report.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
    command.args(["bench", arguments[0], "--json"]);
    command.args(&arguments[1..]);
    command
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("a JSON report")
}

/// The report of a run without faults. Whether this machine is fast enough for its rate is not
/// what tests are about.
fn good(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    let report = report(output);
    assert_eq!(report["faults"], serde_json::json!({}), "{said}");
    let failed = report["rate_kept"] == false;
    assert_eq!(output.status.success(), !failed, "{said}");
    assert_eq!(report["failed"], failed, "{said}");
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
        &["drain", "--connections", "1", "--pull", "7"],
    ));
    assert_eq!(drained["messages"], 1000);
}

#[test]
fn loops_are_open_unless_a_closed_one_is_asked_for() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let short = ["--seconds", "1", "--warm-up", "0", "--connections", "2"];
    let options = |more: &[&str]| {
        let report = good(&bench(&running, &[&["produce"][..], &short, more].concat()));
        report["options"].as_str().expect("options").to_owned()
    };
    assert!(options(&[]).starts_with("open loop: 1000/s over 2 connections"));
    assert!(options(&["--closed"]).starts_with("closed loop: 2 connections x 8"));
    assert!(options(&["--in-flight", "3"]).starts_with("closed loop: 2 connections x 3"));
    for (wrong, why) in [
        (&["--closed", "--rate", "5"][..], "cannot be used with"),
        (&["--rate", "max"], "--closed sends as fast as the broker"),
        (&["--closed", "--find-knee", "1ms"], "--find-knee looks for"),
    ] {
        let output = bench(&running, &[&["produce"], wrong].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
}

#[test]
fn what_would_only_fail_after_a_run_is_refused_before_it() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let mut idle = Command::new("sleep").arg("60").spawn().expect("sleep");
    let idle_pid = idle.id().to_string();
    for (wrong, why) in [
        (
            &["--report", "/no/such/page.html"][..],
            "--report /no/such/page.html",
        ),
        (&["--pid", "4194999"], "no such process"),
        (&["--pid", &idle_pid], "it is no broker"),
    ] {
        let output = bench(&running, &[&["produce"], wrong].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
        assert!(output.stdout.is_empty());
    }
    idle.kill().expect("kill");
    idle.wait().expect("its end");
    let output = command(&["produce", "--name-server", "nope"]).output();
    let output = output.expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("must be HOST:PORT"), "{said}");
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let name_server = running.address("name server").to_string();
    let arguments = ["produce", "--name-server", &name_server, "--seconds", "1"];
    let more = ["--warm-up", "0", "--closed"];
    let mut child = command(&[&arguments[..], &more].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop((child.stdout.take(), child.stderr.take()));
    let status = child.wait().expect("its end");
    assert!(status.success(), "{status}");
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
    let patience = Duration::from_secs(60);
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
                request::GET_MAX_OFFSET | request::GET_MIN_OFFSET => {
                    let end = i64::from(command.code == request::GET_MAX_OFFSET) * 2;
                    answer.field_i64("offset", end);
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

/// A load in the background, which has shown its first interval.
fn under_way(arguments: &[&str]) -> Child {
    shown(spawn(arguments))
}

fn spawn(arguments: &[&str]) -> Child {
    command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

/// Waits for the first interval that a load shows.
fn shown(mut child: Child) -> Child {
    let mut line = String::new();
    let stderr = child.stderr.as_mut().expect("stderr");
    // One byte at a time: what follows the line stays in the pipe.
    BufReader::with_capacity(1, stderr)
        .read_line(&mut line)
        .expect("a line");
    assert!(line.contains("/s  p50"), "{line}");
    child
}

#[test]
fn a_stall_of_the_broker_counts_for_every_message_that_it_delays() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let name_server = running.address("name server").to_string();
    let arguments = ["produce", "--name-server", &name_server, "--rate", "1000"];
    let more = ["--warm-up", "0", "--connections", "2"];
    let report = in_time(|times| {
        let seconds = (3 * times).to_string();
        let more = [&more[..], &["--seconds", &seconds]].concat();
        let begun = Instant::now();
        let child = under_way(&[&arguments[..], &more].concat());
        running.signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(500) * times);
        // The load began after it was started, so all of the stall lay within it.
        let is_early = begun.elapsed() < Duration::from_millis(2900) * times;
        running.signal(Signal::SIGCONT);
        let report = good(&child.wait_with_output().expect("its end"));
        assert_eq!(report["messages"], 3000 * times, "{report}");
        if is_early { Ok(report) } else { Err(TooSlow) }
    });
    // At least 500 of 3000 were due while it stood still; they waited 250 ms each on average.
    let latency = |index: usize| report["latency_us"][index].as_u64().expect("a number");
    let [p90, p99, max] = [1, 2, 5].map(latency);
    assert!(p90 > 100_000 && p99 > 350_000 && max > 450_000, "{report}");
}

#[test]
fn ctrl_c_ends_a_run_with_the_result_so_far() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let name_server = running.address("name server").to_string();
    let log = dir.path().join("latencies.hlog");
    let log = log.to_str().expect("a path");
    let pid = running.pid().to_string();
    let arguments = ["produce", "--name-server", &name_server, "--rate", "200"];
    let more = ["--warm-up", "0", "--seconds", "600", "--hlog", log, "--pid"];
    let child = under_way(&[&arguments[..], &more, &[&pid]].concat());
    let bench = i32::try_from(child.id()).expect("pid");
    kill(Pid::from_raw(bench), Signal::SIGINT).expect("signal");
    let report = good(&child.wait_with_output().expect("its end"));
    assert_eq!(report["interrupted"], true);
    let seconds = report["seconds"].as_f64().expect("seconds");
    assert!((1.0..60.0).contains(&seconds), "{report}");
    for cost in [
        "broker_cpu_us",
        "broker_anonymous_bytes",
        "broker_file_bytes",
        "broker_peak_bytes",
        "broker_switches",
        "client_cpu_us",
    ] {
        assert!(
            report[cost].as_f64().is_some_and(|n| n > 0.0),
            "{cost}: {report}"
        );
    }
    let written = report["broker_written_per_byte"].as_f64();
    assert!(written.is_some_and(|n| n >= 1.0), "{report}");
    // Every message is in one line of the log.
    let text = std::fs::read(log).expect("the log");
    let mut logged = 0;
    for entry in IntervalLogIterator::new(&text) {
        if let LogEntry::Interval(interval) = entry.expect("an entry") {
            let bytes = base64::Engine::decode(
                &base64::engine::general_purpose::STANDARD,
                interval.encoded_histogram(),
            );
            let bytes = bytes.expect("base 64");
            let histogram: Histogram<u64> = Deserializer::new()
                .deserialize(&mut &bytes[..])
                .expect("a histogram");
            logged += histogram.len();
        }
    }
    let messages = report["messages"].as_u64().expect("a number");
    assert!(
        logged >= messages && messages >= 200,
        "{logged} of {report}"
    );
}

#[test]
fn messages_of_every_shape_are_sent_and_arrive() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let shape = [
        "--size",
        "40-3000*3,20000",
        "--keys",
        "9",
        "--tags",
        "3",
        "--properties",
        "2",
        "--unique-key",
        "--count",
        "1000",
        "--warm-up",
        "0",
        "--batch",
        "4",
    ];
    let broker = running.address("broker").to_string();
    for header in ["json", "rocketmq"] {
        let more = ["--header", header, "--topic", header];
        let sent = good(&bench(
            &running,
            &[
                &["produce", "--topics", "3", "--queues", "2"],
                &shape[..],
                &more,
            ]
            .concat(),
        ));
        assert_eq!(sent["messages"], 1000);
        let target = ["drain", "--broker", &broker, "--topics", "3"];
        let drained = command(&[&target[..], &more].concat()).output();
        let drained = good(&drained.expect("the binary starts"));
        assert_eq!(drained["messages"], 1000);
        assert!(drained["bytes"].as_u64() > sent["bytes"].as_u64());
        let rate = ["end-to-end", "--rate", "4000", "--consumers", "2"];
        let arrived = good(&bench(&running, &[&rate[..], &shape, &more].concat()));
        assert_eq!(arrived["messages"], 1000);
    }
}

#[test]
fn compressed_messages_are_sent_and_arrive_as_they_were() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let shape = ["--size", "9000", "--count", "100", "--rate", "1000"];
    for method in ["zlib", "lz4", "zstd"] {
        let more = ["--warm-up", "0", "--topic", method, "--compress", method];
        for load in ["produce", "end-to-end", "transaction"] {
            let report = good(&bench(&running, &[&[load][..], &shape, &more].concat()));
            assert_eq!(report["messages"], 100, "{load} {method}");
            let options = report["options"].as_str().expect("options");
            assert!(options.contains(&format!("{method} compressed")));
        }
        let report = good(&bench(&running, &["drain", "--topic", method]));
        assert_eq!(report["messages"], 300);
    }
    for wrong in [
        &["--compress", "snappy"][..],
        &["--compress", "lz4", "--batch", "2"],
    ] {
        let output = bench(&running, &[&["produce"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn every_other_load_runs_and_reports() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let short = ["--seconds", "1", "--warm-up", "0", "--connections", "2"];
    let with = |load: &[&str]| good(&bench(&running, &[load, &short[..]].concat()));
    let page = dir.path().join("report.html");
    let page = page.to_str().expect("a path");

    let fan_out = with(&["fan-out", "--rate", "300", "--groups", "3"]);
    assert_eq!(fan_out["messages"], 900, "each group gets all: {fan_out}");
    let topics = with(&["topics", "--topics", "12", "--queues", "2", "--rate", "200"]);
    assert_eq!(topics["messages"], 200, "{topics}");
    assert_eq!(topics["details"].as_array().expect("details").len(), 9);
    let connections = with(&["connections", "--idle", "50", "--rate", "100"]);
    assert_eq!(connections["messages"], 100);
    let catch_up = with(&["catch-up", "--rate", "200", "--report", page]);
    let read = &catch_up["details"][0];
    assert!(
        read[0] == "read in all" && read[1].as_f64() >= Some(600.0),
        "{catch_up}"
    );
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    let transaction = with(&["transaction", "--rate", "100", "--rolled-back", "20"]);
    assert_eq!(transaction["messages"], 80, "{transaction}");
    let delay = with(&["delay", "--rate", "100"]);
    assert_eq!(delay["messages"], 100, "{delay}");
    let hopeless = ["produce", "--find-knee", "1us", "--rate", "2"];
    let output = bench(&running, &[&hopeless[..], &short].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no rate was found"),
        "{said}"
    );
}

#[test]
fn reports_are_compared_run_by_run() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let mut text = String::new();
    for _ in 0..2 {
        let arguments = [
            "produce",
            "--rate",
            "100",
            "--seconds",
            "1",
            "--warm-up",
            "0",
        ];
        text.push_str(&good(&bench(&running, &arguments)).to_string());
        text.push('\n');
    }
    let files = ["a.json", "b.json", "page.html"].map(|name| dir.path().join(name));
    let [a, b, page] = files.each_ref().map(|path| path.to_str().expect("a path"));
    std::fs::write(a, &text).expect("a file");
    std::fs::write(b, &text).expect("a file");
    let output = command(&["compare", a, b, "--report", page]).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    let rows: Value = serde_json::from_slice(&output.stdout).expect("rows");
    assert_eq!(rows[0]["name"], "messages/s");
    assert_eq!(rows[0]["ratios"][0]["median"], 1.0);
    assert!(
        std::fs::read_to_string(page)
            .expect("the page")
            .contains("b / a")
    );
    std::fs::write(b, "{}").expect("a file");
    let output = command(&["compare", a, b]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("b.json"),
        "{said}"
    );
}
