//! `inspect` and `check` as a user runs them: what they print and how they exit.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::serve::{Running, directory};

/// The shape of index files that `Running` starts brokers with.
const SHAPE: [&str; 4] = ["--set", "maxHashSlotNum=1000", "--set", "maxIndexNum=4000"];

fn tool(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_saturnmq"))
        .args(arguments)
        .env_remove("SATURNMQ_IO")
        .env_remove("SATURNMQ_DISK")
        .output()
        .expect("the binary runs")
}

fn exit(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn inspect(dir: &Path, more: &[&str]) -> Output {
    let dir = dir.to_str().expect("path");
    tool(&[&["inspect", dir], more, &SHAPE].concat())
}

#[test]
fn inspect_shows_a_store_and_tells_damage_by_file_offset_and_exit_code() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let name_server = running.address("name server").to_string();
    let send = [
        "admin",
        "send",
        "Orders",
        "--name-server",
        &name_server,
        "--key",
        "k-1",
        "--body",
        "hello",
    ];
    let sent = tool(&send);
    assert_eq!(exit(&sent), 0, "{}", stderr(&sent));
    let live = inspect(dir.path(), &["--verify"]);
    assert_eq!(exit(&live), 0, "{}{}", stdout(&live), stderr(&live));
    let summary = json(&inspect(dir.path(), &["--json"]));
    assert!(summary["heldBy"].as_i64().is_some_and(|pid| pid > 0));
    assert_eq!(running.stop().code(), Some(0));
    let summary = json(&inspect(dir.path(), &["--json"]));
    assert!(summary["heldBy"].is_null() && summary["clean"] == true);
    let keyed = inspect(dir.path(), &["--key", "k-1", "--topic", "Orders", "--json"]);
    let record = &json(&keyed)["records"][0];
    assert_eq!(record["topic"], "Orders");
    let queue = format!("Orders/{}", record["queueId"]);
    let shown = stdout(&inspect(dir.path(), &["--queue", &queue]));
    assert!(
        shown.contains("queue offsets 0 to 1") && shown.contains("k-1"),
        "{shown}"
    );
    let offset = record["offset"].as_u64().expect("an offset");
    let log = dir.path().join("commitlog/00000000000000000000");
    let file = File::options().write(true).open(&log).expect("open");
    file.write_all_at(b"HELLO", offset + 88).expect("write");
    let damaged = inspect(dir.path(), &["--verify"]);
    assert_eq!(exit(&damaged), 1);
    let place = format!("{} at {offset}: the body's checksum", log.display());
    assert!(stdout(&damaged).contains(&place), "{}", stdout(&damaged));
    let found = json(&inspect(dir.path(), &["--verify", "--json"]));
    assert_eq!(found["damage"], 1);
    assert_eq!(found["findings"][0]["offset"], offset);
    let records = inspect(dir.path(), &["--records", "0"]);
    assert_eq!(exit(&records), 1);
}

#[test]
fn inspect_says_why_it_cannot_look() {
    let dir = directory();
    for (arguments, part) in [
        (
            vec!["inspect", "/nonexistent"],
            "/nonexistent is no directory",
        ),
        (
            vec!["inspect", dir.path().to_str().expect("path")],
            "holds no message store",
        ),
        (vec!["inspect", "/tmp", "--records", "x"], "--records x"),
        (vec!["inspect", "/tmp", "--records", "-1"], "--records -1"),
        (vec!["inspect", "/tmp", "--queue", "Orders"], "TOPIC/QUEUE"),
    ] {
        let output = tool(&arguments);
        assert_eq!(exit(&output), 2, "{arguments:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
    }
}

#[test]
fn check_has_a_verdict_for_each_line_and_a_mend_for_what_is_limited() {
    let dir = directory();
    let root = dir.path().join("store");
    let root = root.to_str().expect("path");
    let ports = [
        "listenPort=0",
        "nameServerPort=0",
        "httpPort=0",
        "bindAddress=127.0.0.1",
        "lisenPort=10911",
    ];
    let mut arguments = vec!["check", "--json", "--data-dir", root];
    for pair in ports {
        arguments.extend(["--set", pair]);
    }
    let output = tool(&arguments);
    let report = json(&output);
    let lines = report["lines"].as_array().expect("lines");
    for about in [
        "configuration",
        "kernel",
        "network",
        "disk",
        "log files",
        "sync",
        "room",
        "ports",
        "open files",
    ] {
        assert!(
            lines.iter().any(|line| line["about"] == about),
            "{about}: {report}"
        );
    }
    for line in lines {
        assert_eq!(line["verdict"] == "good", line["mend"].is_null(), "{line}");
    }
    let counts = report["syncHistogramUs"].as_array().expect("a histogram");
    assert!(
        counts
            .iter()
            .any(|row| row[2].as_u64().is_some_and(|count| count > 0))
    );
    let bad = lines.iter().any(|line| line["verdict"] == "bad");
    assert_eq!(exit(&output), i32::from(bad), "{report}");
    assert_eq!(
        fs::read_dir(dir.path()).expect("list").count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn check_and_the_start_say_the_same_of_this_host() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let root = dir.path().to_str().expect("path");
    let listen = running.address("broker").port().to_string();
    let set = format!("listenPort={listen}");
    let output = tool(&[
        "check",
        "--json",
        "--data-dir",
        root,
        "--set",
        &set,
        "--set",
        "nameServerPort=off",
    ]);
    let report = json(&output);
    let lines = report["lines"].as_array().expect("lines");
    let of = |about: &str| {
        let line = lines.iter().find(|line| line["about"] == about);
        line.and_then(|line| line["found"].as_str())
            .unwrap_or_default()
    };
    assert!(running.line("network").ends_with(of("network")), "{report}");
    assert!(of("disk").contains(running.line("disk")), "{report}");
    assert!(
        of("ports").contains("the broker that has this store open"),
        "{report}"
    );
    let host = [
        "kernel",
        "filesystem",
        "open files",
        "locked memory",
        "mappings",
    ];
    for line in lines {
        let about = line["about"].as_str().expect("a word");
        if line["verdict"] == "limited" && host.contains(&about) {
            let found = line["found"].as_str().expect("found");
            let banner = running.banner().join("\n");
            assert!(banner.contains(found), "{found} in {banner}");
        }
    }
}

#[test]
fn a_damaged_bit_that_hides_a_message_from_a_filter_is_told_by_inspect() {
    let dir = directory();
    let stores = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/stores");
    let packed = File::open(stores.join("sql-ext-clean-4.9.7.tar.zst")).expect("store");
    let mut archive = tar::Archive::new(zstd::Decoder::new(packed).expect("zstd"));
    archive.unpack(dir.path()).expect("unpack");
    let store = dir.path().join("store");
    let shape = ["--set", "maxHashSlotNum=100", "--set", "maxIndexNum=400"];
    let verify = || {
        let store = store.to_str().expect("path");
        let arguments = [&["inspect", store, "--verify"][..], &shape[..]].concat();
        tool(&arguments)
    };
    let sound = verify();
    assert_eq!(exit(&sound), 0, "{}{}", stdout(&sound), stderr(&sound));
    let path = store.join("consumequeue_ext/GSql/0/00000000000000000000");
    let whole = fs::read(&path).expect("read");
    // The first unit whose record passes a filter: 14 bytes of bits behind a head of 20.
    let sizes = |at: &usize| {
        let size = i16::from_be_bytes([whole[*at], whole[*at + 1]]);
        usize::try_from(size)
            .ok()
            .filter(|size| *size > 0)
            .map(|size| at + size)
    };
    let mut units = std::iter::successors(Some(0), sizes);
    let has_bits = |at: &usize| whole[at + 19] == 14 && whole[at + 20..at + 34] != [0; 14];
    let unit = units.find(has_bits).expect("a unit with bits");
    let mut told = 0;
    for at in [unit + 9, unit + 17]
        .into_iter()
        .chain(unit + 20..unit + 34)
    {
        for bit in (0..8).filter(|bit| whole[at] >> bit & 1 == 1) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            fs::write(&path, changed).expect("write");
            let found = verify();
            assert_eq!(
                exit(&found),
                1,
                "bit {bit} of byte {at}: {}",
                stdout(&found)
            );
            told += i32::from(stdout(&found).contains("it passes"));
        }
    }
    assert_eq!(told, 3);
}
