//! What a command line gets wrong is said in a sentence, before anything is sent; help teaches by
//! example.

use std::process::Command;
use std::time::{Duration, Instant};

use super::{bench, command};
use crate::patience::{TooSlow, in_time};
use crate::serve::{Running, directory};

const LOADS: [&str; 10] = [
    "produce",
    "drain",
    "end-to-end",
    "fan-out",
    "topics",
    "connections",
    "catch-up",
    "transaction",
    "delay",
    "compare",
];

#[test]
fn a_mistake_is_refused_with_the_option_and_what_it_may_be() {
    for (wrong, why) in [
        (&["--rate", "0"][..], &["--rate", "from 1 to 10000000"][..]),
        (&["--rate", "-5"], &["--rate", "from 1 to 10000000"]),
        (&["--rate", "many"], &["--rate", "from 1 to 10000000"]),
        (&["--seconds", "-1"], &["--seconds", "1..=86400"]),
        (&["--connections", "0"], &["--connections", "1..=1024"]),
        (&["--in-flight", "0"], &["--in-flight", "1..=4096"]),
        (&["--timeout", "0"], &["--timeout", "1..=3600"]),
        (&["--size", "0"], &["--size", "between 1 and 4194304"]),
        (&["--batch", "-2"], &["--batch", "1..=1024"]),
        (&["--count", "0"], &["--count", "1.."]),
        (&["--compress", "rar"], &["--compress", "zlib, lz4 or zstd"]),
        (&["--find-knee", "5"], &["--find-knee", "us, ms or s"]),
        (&["--conections", "5"], &["--conections", "--connections"]),
        (&["--broker", "here"], &["--broker", "HOST:PORT"]),
    ] {
        let output = command(&[&["produce"], wrong].concat()).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            why.iter().all(|part| said.contains(part)),
            "{wrong:?}: {said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_target_that_names_nothing_is_refused() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let short = [
        "produce",
        "--rate",
        "100",
        "--seconds",
        "1",
        "--warm-up",
        "0",
    ];
    let report = super::good(&bench(&running, &short)).to_string();
    let path = dir.path().join("a.json");
    std::fs::write(&path, report).expect("a file");
    let path = path.to_str().expect("a path");
    let compared = |target| {
        let arguments = ["compare", path, path, "--target", target];
        command(&arguments).output().expect("the binary starts")
    };
    assert!(compared("messages/s>=1x").status.success());
    for wrong in ["mesages/s>=1x", "produce:messages/s>=1x"] {
        let output = compared(wrong);
        assert_eq!(output.status.code(), Some(1), "{wrong}");
        let said = String::from_utf8_lossy(&output.stderr);
        let (name, _) = wrong.split_once('>').expect("a target");
        assert!(
            said.contains(&format!("--target {name}: no such number")),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_a_broker_uses_is_told_as_the_kernel_counts_it() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let pid = running.pid();
    let load = [
        "produce",
        "--rate",
        "2000",
        "--seconds",
        "3",
        "--warm-up",
        "0",
    ];
    let more = ["--read-back", "0", "--pid", &pid.to_string()].map(str::to_owned);
    let more = more.each_ref().map(String::as_str);
    // What the start left to do is done meanwhile.
    super::good(&bench(&running, &[&load[..], &more].concat()));
    let (before, report, after) = in_time(|_| {
        let before = used(pid);
        let begun = Instant::now();
        let report = super::good(&bench(&running, &[&load[..], &more].concat()));
        let after = used(pid);
        // What it does without a load counts little then.
        match begun.elapsed() < Duration::from_secs(8) {
            true => Ok((before, report, after)),
            false => Err(TooSlow),
        }
    });
    let messages = report["messages"].as_f64().expect("a number");
    let all = |name: &str| report[name].as_f64().expect("a number") * messages;
    // The counted time is most of the time in between; CPU time comes in ticks of 10 ms.
    let (cpu, sleeps) = (all("broker_cpu_us"), all("broker_switches"));
    let (cpu_most, sleeps_most) = (after.0 - before.0, after.1 - before.1);
    assert!(
        cpu <= cpu_most + 20_000.0 && cpu >= 0.5 * cpu_most - 20_000.0,
        "{cpu} {cpu_most}"
    );
    assert!(
        sleeps <= sleeps_most && sleeps >= 0.5 * sleeps_most,
        "{sleeps} {sleeps_most}"
    );
}

/// CPU microseconds and voluntary context switches of all threads of a process.
fn used(pid: u32) -> (f64, f64) {
    let read = |path: String| std::fs::read_to_string(path).expect("a file of /proc");
    let stat = read(format!("/proc/{pid}/stat"));
    let (_, fields) = stat.rsplit_once(") ").expect("the name");
    let ticks: Vec<f64> = fields
        .split(' ')
        .filter_map(|field| field.parse().ok())
        .collect();
    let mut sleeps = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        let path = thread.expect("a thread").path().join("status");
        let status = read(path.display().to_string());
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps += line
            .and_then(|number| number.trim().parse::<f64>().ok())
            .unwrap_or(0.0);
    }
    // The first field, a letter, is left out: utime and stime are the 14th and 15th.
    ((ticks[10] + ticks[11]) * 10_000.0, sleeps)
}

#[test]
fn every_load_shows_an_example_of_its_own() {
    for load in LOADS {
        let output = Command::new(env!("CARGO_BIN_EXE_saturnmq"))
            .args(["bench", load, "--help"])
            .output()
            .expect("the binary starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let (_, examples) = text.split_once("\nExamples:\n").expect("examples");
        let example = format!("  saturnmq bench {load} ");
        assert!(examples.contains(&example), "{load}: {examples}");
    }
}

#[test]
fn what_a_broker_wrote_is_told_by_kind() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let pid = running.pid().to_string();
    let shape = [
        "produce",
        "--rate",
        "500",
        "--seconds",
        "2",
        "--warm-up",
        "0",
    ];
    let report = super::good(&bench(&running, &[&shape[..], &["--pid", &pid]].concat()));
    let number = |name: &str| {
        report[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    let (all, log) = (
        number("broker_written_per_byte"),
        number("broker_log_per_byte"),
    );
    let (zeros, rest) = (
        number("broker_zeros_per_byte"),
        number("broker_rest_per_byte"),
    );
    assert!(log >= 1.0, "each byte was written once: {report}");
    assert!(
        (log + zeros + rest - all).abs() < 0.01 || rest == 0.0,
        "{report}"
    );
    // Nobody asked for the process: what the broker says itself is told anyway.
    let report = super::good(&bench(&running, &shape));
    assert!(
        report["broker_log_per_byte"].as_f64() >= Some(1.0),
        "{report}"
    );
    assert!(report["broker_rest_per_byte"].is_null(), "{report}");
}
