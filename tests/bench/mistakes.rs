//! What a command line gets wrong is said in a sentence, before anything is sent; help teaches by
//! example.

use std::process::Command;

use super::{bench, command};
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
