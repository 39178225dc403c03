//! Every load ends, whatever the broker does: with its time and one time-out, by Ctrl-C, and with
//! what it could not do counted as errors.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use saturnmq_net::codes::request;

use super::proxy::{Deed, proxy};
use super::{good, report, shown, spawn, under_way};
use crate::patience::{TooSlow, in_time};
use crate::serve::{Running, directory};

/// Longest wait for anything in these tests: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(100);

/// Every load that sends, at a rate and in a closed loop.
const SENDING: [&[&str]; 10] = [
    &["produce", "--rate", "100"],
    &["produce", "--closed", "--in-flight", "2"],
    &[
        "produce",
        "--closed",
        "--in-flight",
        "1",
        "--count",
        "100000000",
    ],
    &["topics", "--topics", "2", "--rate", "100"],
    &["connections", "--idle", "20", "--rate", "100"],
    &["catch-up", "--rate", "100"],
    &["end-to-end", "--rate", "100"],
    &["fan-out", "--rate", "100", "--groups", "2"],
    &["transaction", "--rate", "100"],
    &["delay", "--rate", "100"],
];

/// Its output once it has ended.
fn ended(mut child: Child) -> Output {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().expect("wait").is_none() {
        if Instant::now() > until {
            child.kill().expect("kill");
            panic!("it does not end: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("its output")
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("pid");
    kill(Pid::from_raw(pid), signal).expect("signal");
}

/// Loads that are under way when a signal comes to their broker: each must end, failed, with a
/// report of what it could not do.
fn expect_ends(what: Signal) {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker").to_string();
    let mut children = Vec::new();
    for (number, load) in SENDING.iter().enumerate() {
        let topic = format!("ends_{number}");
        let place = ["--broker", &broker, "--topic", &topic, "--timeout", "5"];
        let shape = ["--connections", "2", "--warm-up", "0"];
        let seconds: &[&str] = match load.contains(&"--count") {
            true => &[],
            false => &["--seconds", "600"],
        };
        children.push((load, spawn(&[load, &place[..], &shape, seconds].concat())));
    }
    let children: Vec<_> = children.into_iter().map(|(l, c)| (l, shown(c))).collect();
    running.signal(what);
    for (load, child) in children {
        let output = ended(child);
        assert_eq!(output.status.code(), Some(1), "{load:?}: {output:?}");
        let report = report(&output);
        assert_eq!(report["failed"], true, "{load:?}");
        if what == Signal::SIGSTOP {
            assert!(report["refused"].as_u64() >= Some(1), "{load:?}: {report}");
        }
    }
}

#[test]
fn every_load_ends_at_a_broker_that_stands_still() {
    expect_ends(Signal::SIGSTOP);
}

#[test]
fn every_load_ends_at_a_broker_that_is_killed() {
    expect_ends(Signal::SIGKILL);
}

#[test]
fn idle_connections_that_are_not_answered_cost_one_time_out_together() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let proxy = proxy(
        running.address("broker"),
        Deed::Mute(request::GET_MAX_OFFSET),
    );
    let address = proxy.address.to_string();
    let load = ["connections", "--idle", "200", "--count", "10"];
    let place = ["--broker", &address, "--timeout", "5", "--warm-up", "0"];
    let begun = Instant::now();
    let output = ended(spawn(&[&load[..], &place, &["--read-back", "0"]].concat()));
    assert_eq!(output.status.code(), Some(1));
    let faults = &report(&output)["faults"];
    assert_eq!(
        faults["idle connection without an answer in time"], 200,
        "{faults}"
    );
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn every_load_ends_at_a_broker_that_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    for place in ["--broker", "--name-server"] {
        let mut children: Vec<_> = SENDING
            .iter()
            .map(|load| spawn(&[load, &[place, &address, "--timeout", "1"][..]].concat()))
            .collect();
        children.push(spawn(&["drain", place, &address, "--timeout", "1"]));
        for child in children {
            let output = ended(child);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(output.stdout.is_empty(), "nothing was measured");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("within 1s"), "{said}");
        }
    }
}

#[test]
fn a_drain_ends_at_a_broker_that_keeps_its_messages() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker");
    let place = ["--broker", &broker.to_string()].map(str::to_owned);
    let place = place.each_ref().map(String::as_str);
    let short = ["--count", "100", "--warm-up", "0", "--connections", "1"];
    good(&ended(spawn(&[&["produce"], &place[..], &short].concat())));
    let proxy = proxy(broker, Deed::Mute(request::PULL_MESSAGE));
    let address = proxy.address.to_string();
    let output = ended(spawn(&["drain", "--broker", &address, "--timeout", "5"]));
    assert_eq!(output.status.code(), Some(1));
    let faults = &report(&output)["faults"];
    assert_eq!(
        faults["message in the topics and not read"], 100,
        "{faults}"
    );
}

#[test]
fn a_stall_of_the_broker_shows_in_every_load_that_has_a_rate() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker").to_string();
    let outputs = in_time(|times| {
        let (begun, seconds) = (Instant::now(), (4 * times).to_string());
        let mut children = Vec::new();
        for load in SENDING.iter().filter(|load| load.contains(&"--rate")) {
            let topic = format!("stall_{}_{times}", load[0]);
            let place = [
                "--broker",
                &broker,
                "--topic",
                &topic,
                "--seconds",
                &seconds,
            ];
            let shape = ["--connections", "2", "--warm-up", "0"];
            children.push((load, spawn(&[load, &place[..], &shape].concat())));
        }
        let children: Vec<_> = children.into_iter().map(|(l, c)| (l, shown(c))).collect();
        running.signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(500) * times);
        // Each began after it was started, so all of the stall lay within it.
        let is_early = begun.elapsed() < Duration::from_millis(3900) * times;
        running.signal(Signal::SIGCONT);
        let outputs: Vec<_> = children.into_iter().map(|(l, c)| (l, ended(c))).collect();
        if is_early { Ok(outputs) } else { Err(TooSlow) }
    });
    for (load, output) in outputs {
        // The store time of what came while the writer stood still may be that before, and the
        // delay counts from there: such a message is early, which is a fault.
        let report = match load[0] {
            "delay" => report(&output),
            _ => good(&output),
        };
        // The report is of the last step; what was before it is in the details.
        let (p99, max) = match load[0] {
            "topics" => (detail(&report, "1 topic, p99 us"), None),
            "catch-up" => (
                detail(&report, "alone p99 us"),
                Some(detail(&report, "alone max us")),
            ),
            _ => (
                number(&report["latency_us"][2]),
                Some(number(&report["latency_us"][5])),
            ),
        };
        // At least 50 of 400 were due while it stood still.
        assert!(p99 > 300_000.0, "{load:?}: {report}");
        assert!(max.is_none_or(|max| max > 400_000.0), "{load:?}: {report}");
    }
}

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().expect("a number")
}

fn detail(report: &serde_json::Value, name: &str) -> f64 {
    let details = report["details"].as_array().expect("details");
    let found = details.iter().find(|detail| detail[0] == name);
    number(&found.unwrap_or_else(|| panic!("no {name}: {report}"))[1])
}

#[test]
fn ctrl_c_before_anything_is_measured_ends_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    let child = spawn(&["produce", "--broker", &address, "--timeout", "600"]);
    // It waits for an answer from now on.
    let _stream = listener.accept().expect("a connection");
    signal(&child, Signal::SIGINT);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("interrupted before anything was measured"),
        "{said}"
    );
}

#[test]
fn ctrl_c_in_the_warm_up_ends_at_once() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker").to_string();
    let load = ["produce", "--broker", &broker, "--warm-up", "600"];
    let child = under_way(&load);
    signal(&child, Signal::SIGINT);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("interrupted before anything was measured"),
        "{said}"
    );
}

#[test]
fn ctrl_c_ends_every_load_with_the_result_so_far_and_twice_without_one() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker").to_string();
    let mut children = Vec::new();
    for (number, load) in SENDING.iter().enumerate() {
        let topic = format!("ctrl_c_{number}");
        let place = ["--broker", &broker, "--topic", &topic, "--timeout", "600"];
        let shape = ["--connections", "2", "--warm-up", "0"];
        children.push((load, spawn(&[load, &place[..], &shape].concat())));
    }
    let children: Vec<_> = children.into_iter().map(|(l, c)| (l, shown(c))).collect();
    for (_, child) in &children {
        signal(child, Signal::SIGINT);
    }
    for (load, child) in children {
        let report = good(&ended(child));
        assert_eq!(report["interrupted"], true, "{load:?}");
    }
    let load = ["produce", "--rate", "100", "--broker", &broker];
    let child = under_way(&[&load[..], &["--timeout", "600", "--warm-up", "0"]].concat());
    running.signal(Signal::SIGSTOP);
    signal(&child, Signal::SIGINT);
    let until = Instant::now() + PATIENCE;
    let mut child = child;
    // The answers that are on their way would be waited for.
    while child.try_wait().expect("wait").is_none() {
        assert!(Instant::now() < until, "it does not end");
        signal(&child, Signal::SIGINT);
        thread::sleep(Duration::from_millis(20));
    }
    running.signal(Signal::SIGCONT);
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(130));
}

#[test]
fn ctrl_c_ends_what_follows_a_run_with_its_result() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker");
    // While messages are read back.
    let silent = proxy(broker, Deed::Mute(request::PULL_MESSAGE));
    let address = silent.address.to_string();
    let place = ["--broker", &address, "--timeout", "600", "--warm-up", "0"];
    let child = spawn(&[&["produce", "--count", "50"], &place[..]].concat());
    await_muted(|| silent.muted());
    signal(&child, Signal::SIGINT);
    let report = good(&ended(child));
    let checked = report["checked"].as_str().expect("a text");
    assert!(checked.contains("loss is not judged"), "{checked}");
    // While idle connections are asked.
    let silent = proxy(broker, Deed::Mute(request::GET_MAX_OFFSET));
    let address = silent.address.to_string();
    let place = ["--broker", &address, "--timeout", "600", "--warm-up", "0"];
    let load = [
        "connections",
        "--idle",
        "5",
        "--count",
        "50",
        "--read-back",
        "0",
    ];
    let child = spawn(&[&load[..], &place].concat());
    await_muted(|| silent.muted());
    signal(&child, Signal::SIGINT);
    let report = good(&ended(child));
    assert_eq!(report["interrupted"], true);
    assert_eq!(detail(&report, "idle connections that answered"), 0.0);
}

fn await_muted(muted: impl Fn() -> u64) {
    let until = Instant::now() + PATIENCE;
    while muted() == 0 {
        assert!(Instant::now() < until, "it never came that far");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_run_whose_log_cannot_be_written_ends() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker").to_string();
    let log = dir.path().join("latencies.hlog");
    // Files of this process may have a kilobyte: the first intervals fit, then writing fails.
    let child = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "bash"])
        .args([env!("CARGO_BIN_EXE_saturnmq"), "bench", "end-to-end"])
        .args(["--rate", "500", "--seconds", "600", "--warm-up", "0"])
        .args(["--quiet", "--broker", &broker, "--hlog"])
        .arg(log)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash starts");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the interval log"), "{said}");
}
