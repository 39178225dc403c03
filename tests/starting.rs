//! Starts of the real process on what a former run, or an operator, left.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::serve::{Running, directory, program, refusal};

#[test]
fn a_start_right_after_a_kill_gets_its_ports() {
    let dir = directory();
    // Nobody else takes a port of this address in between.
    let mut running = Running::start(dir.path(), &["--listen", "127.77.0.2:0"]);
    let listen = running.address("broker").to_string();
    for _ in 0..6 {
        assert_eq!(running.send("Orders", b"one").code, 0);
        running.signal(Signal::SIGKILL);
        running.wait();
        running = Running::start(dir.path(), &["--listen", &listen]);
    }
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn topics_with_messages_that_the_state_file_lost_are_named_at_the_start() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    assert_eq!(running.send("Orders", b"one").code, 0);
    assert_eq!(running.stop().code(), Some(0));
    fs::remove_dir_all(dir.path().join("config")).expect("remove");
    let running = Running::start(dir.path(), &[]);
    let line = running.wait_for_log("do not stand in topics.json");
    assert!(line.contains("Orders (1 queues)"), "{line}");
    assert!(line.contains("saturnmq admin topic create"), "{line}");
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn a_directory_in_place_of_a_state_file_does_not_hide_its_backup() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    for topic in ["First", "Second"] {
        assert_eq!(running.send(topic, b"one").code, 0);
    }
    assert_eq!(running.stop().code(), Some(0));
    let path = dir.path().join("config/topics.json");
    fs::remove_file(&path).expect("remove");
    fs::create_dir(&path).expect("directory");
    let running = Running::start(dir.path(), &[]);
    let line = running.wait_for_log("its .bak is used instead");
    assert!(line.contains("it is a directory"), "{line}");
}

/// A FIFO in the place of a file; opening it the usual way waits for ever.
fn put_fifo(path: &Path) {
    // It may not be there.
    let _ = fs::remove_file(path);
    mkfifo(path, Mode::S_IRWXU).expect("FIFO");
}

fn verify(dir: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
    let shape = ["--set", "maxHashSlotNum=1000", "--set", "maxIndexNum=4000"];
    command.arg("inspect").arg(dir).arg("--verify").args(shape);
    let output = command.output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_named_and_nobody_waits_for_it() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    assert_eq!(running.send("Orders", b"one").code, 0);
    assert_eq!(running.stop().code(), Some(0));
    for name in [
        "lock",
        "abort",
        "checkpoint",
        "saturnmq.resume",
        "saturnmq.resume.tmp",
        "saturnmq.removed",
        "timerwheel",
        "config/timercheck",
        "config/consumerOffset.json",
        "config/topicQueueMapping.json",
    ] {
        let path = dir.path().join(name);
        let before = fs::read(&path).ok();
        let backup = path.with_extension("json.bak");
        let held = fs::read(&backup).ok();
        // It may not be there.
        let _ = fs::remove_file(&backup);
        put_fifo(&path);
        let mut command = program(dir.path());
        command.args(["--set", "mappedFileSizeCommitLog=1048576"]);
        let sentence = refusal(command);
        let named = sentence.contains(path.to_str().expect("path"));
        assert!(named && sentence.contains("a FIFO"), "{sentence}");
        if name != "config/topicQueueMapping.json" {
            let found = verify(dir.path());
            assert!(found.contains(name) && found.contains("a FIFO"), "{found}");
        }
        fs::remove_file(&path).expect("remove");
        for (path, bytes) in [(path, before), (backup, held)] {
            if let Some(bytes) = bytes {
                fs::write(path, bytes).expect("write");
            }
        }
    }
    let conf = dir.path().join("broker.conf");
    put_fifo(&conf);
    let mut command = program(dir.path());
    command.arg("-c").arg(&conf);
    let sentence = refusal(command);
    assert!(
        sentence.contains("a FIFO, and must be a file"),
        "{sentence}"
    );
    let running = Running::start(dir.path(), &[]);
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn a_fifo_in_the_place_of_a_state_file_or_its_copies_hides_and_stops_nothing() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    for topic in ["First", "Second"] {
        assert_eq!(running.send(topic, b"one").code, 0);
    }
    assert_eq!(running.stop().code(), Some(0));
    let config = dir.path().join("config");
    for name in ["topics.json", "topics.json.tmp", "topics.json.bak.tmp"] {
        put_fifo(&config.join(name));
    }
    let running = Running::start(dir.path(), &[]);
    let line = running.wait_for_log("its .bak is used instead");
    assert!(line.contains("it is a FIFO"), "{line}");
    assert_eq!(running.send("Third", b"one").code, 0);
    assert_eq!(running.stop().code(), Some(0));
    let kept = fs::read_to_string(config.join("topics.json")).expect("text");
    assert!(kept.contains("First") && kept.contains("Third"), "{kept}");
    let backup = fs::read_to_string(config.join("topics.json.bak")).expect("text");
    assert!(backup.contains("First"), "{backup}");
}

#[test]
fn a_configuration_is_read_from_a_pipe() {
    let dir = directory();
    let serve = format!(
        "{} serve -c <(echo flushDiskType=NEVER) --data-dir {}",
        env!("CARGO_BIN_EXE_saturnmq"),
        dir.path().display()
    );
    let output = Command::new("bash")
        .arg("-c")
        .arg(serve)
        .output()
        .expect("bash");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("flushDiskType"), "{text}");
}

#[test]
fn directories_among_the_files_of_the_store_do_not_stop_a_start() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    assert_eq!(running.send("Orders", b"one").code, 0);
    assert_eq!(running.stop().code(), Some(0));
    for place in [
        "",
        "commitlog",
        "consumequeue",
        "index",
        "consumequeue/Orders/0",
    ] {
        fs::create_dir(dir.path().join(place).join("lost+found")).expect("directory");
    }
    let running = Running::start(dir.path(), &[]);
    running.wait_for_log("is left alone");
    assert_eq!(
        running.send("Orders", b"two").number("queueOffset"),
        Some(1)
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn a_log_that_lost_its_end_is_told_with_bytes_and_messages() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    for _ in 0..3 {
        assert_eq!(running.send("Orders", b"one").code, 0);
    }
    assert_eq!(running.stop().code(), Some(0));
    let log = dir.path().join("commitlog").join("0".repeat(20));
    let size = fs::metadata(&log).expect("log file").len();
    let file = fs::File::create(&log).expect("empty");
    file.set_len(size).expect("zeros");
    let running = Running::start(dir.path(), &[]);
    let line = running.wait_for_log("the log ends before where the last run had made it durable");
    assert!(
        line.contains("messages=3") && line.contains("log_end=0"),
        "{line}"
    );
    // Offsets go on where they were.
    assert_eq!(
        running.send("Orders", b"two").number("queueOffset"),
        Some(3)
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn a_store_where_a_file_is_in_the_way_is_refused_by_its_name() {
    let dir = directory();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    for root in [file.clone(), file.join("store")] {
        let sentence = refusal(program(&root));
        let wanted = format!("{} is no directory", file.display());
        assert!(sentence.contains(&wanted), "{sentence}");
        let mut check = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
        let output = check.arg("check").arg("--data-dir").arg(&root).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(file.to_str().expect("a path")), "{said}");
    }
}

#[test]
fn a_port_for_two_servers_is_refused_before_anybody_can_connect() {
    let dir = directory();
    for (pairs, keys) in [
        (
            ["listenPort=10911", "httpPort=10911"],
            "listenPort and httpPort",
        ),
        (
            ["listenPort=9878", "nameServerPort=9876"],
            "fastListenPort (listenPort - 2) and nameServerPort",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
        command.arg("serve").arg("--data-dir").arg(dir.path());
        command.args(["--set", pairs[0], "--set", pairs[1]]);
        command.stderr(Stdio::piped());
        let sentence = refusal(command);
        assert!(sentence.contains(keys), "{sentence}");
    }
}

#[test]
fn a_start_with_too_few_open_files_is_refused_with_the_limit() {
    let dir = directory();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "-"]);
    command.arg(env!("CARGO_BIN_EXE_saturnmq")).arg("serve");
    command.args(["--listen", "127.0.0.1:0", "--name-server-port", "0"]);
    command.arg("--data-dir").arg(dir.path());
    command.stderr(Stdio::piped());
    let sentence = refusal(command);
    assert!(sentence.contains("only 64 files may be open"), "{sentence}");
    assert!(sentence.contains("LimitNOFILE"), "{sentence}");
}

#[test]
fn a_malformed_port_is_told_though_an_option_goes_over_it() {
    let dir = directory();
    let mut command = program(dir.path());
    command.args(["--set", "listenPort=99999"]);
    let sentence = refusal(command);
    assert!(sentence.contains("listenPort"), "{sentence}");
    assert!(sentence.contains("99999"), "{sentence}");
}
