//! Limits of the host: each is an error that is told, and none ends the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::serve::{Running, directory, program};

#[test]
fn a_file_that_may_not_grow_so_far_is_an_error_and_no_signal() {
    let dir = directory();
    let broker = program(dir.path());
    // A log file has 1 GiB.
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -f 8192 && exec \"$@\"", "sh"])
        .arg(broker.get_program())
        .args(broker.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = Running::run(limited);
    let answer = running.send("Limited", b"no room");
    assert_eq!(answer.code, 14, "{answer:?}");
    assert!(
        answer.remark.is_some_and(|remark| remark.len() > 20),
        "no reason"
    );
    assert!(running.stop().success());
}

#[test]
fn a_log_that_nobody_reads_any_more_does_not_end_the_broker() {
    let dir = directory();
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let mut deaf = program(dir.path());
    deaf.stderr(writer);
    let running = Running::run(deaf);
    // Each closed connection of this kind is a line of the log.
    for _ in 0..3 {
        let mut stranger = TcpStream::connect(running.address("broker")).expect("connect");
        stranger
            .write_all(b"GET / HTTP/1.0\r\n\r\n")
            .expect("write");
        let mut rest = Vec::new();
        // Closed with unread bytes: a reset is an end, too.
        let _ = stranger.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    assert_eq!(running.send("Deaf", b"still there").code, 0);
    assert!(running.stop().success());
}

/// The two ends of a pipe that takes no more.
fn full_pipe() -> (io::PipeReader, OwnedFd) {
    let (read, write) = io::pipe().expect("pipe");
    let write = OwnedFd::from(write);
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
    let mut file = File::from(write);
    while file.write(b"\n").is_ok() {}
    let write = OwnedFd::from(file);
    fcntl(&write, FcntlArg::F_SETFL(OFlag::empty())).expect("a flag");
    (read, write)
}

#[test]
fn a_log_that_nobody_takes_stops_neither_sends_nor_the_stop() {
    let dir = directory();
    let (_reader, stderr) = full_pipe();
    let mut command = program(dir.path());
    command.stderr(stderr);
    let running = Running::run(command);
    let mut stranger = TcpStream::connect(running.address("broker")).expect("connect");
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("send");
    // A line about it is logged before the connection is closed.
    let _ = stranger.read_to_end(&mut Vec::new());
    let answer = running.send("Unread", b"goes on");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(running.stop().success());
}

#[test]
fn a_report_that_cannot_be_written_is_no_success() {
    let dir = directory();
    let store = dir.path().join("store");
    let running = Running::start(&store, &[]);
    assert_eq!(running.send("Report", b"one").code, 0);
    assert!(running.stop().success());
    for command in ["inspect", "check"] {
        let full = OpenOptions::new().write(true).open("/dev/full");
        let mut program = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
        program.arg(command);
        match command {
            "inspect" => program.arg(&store),
            _ => program.arg("--data-dir").arg(&store),
        };
        let told = program.stdout(full.expect("a full device")).output();
        let told = told.expect("the program runs");
        assert_eq!(told.status.code(), Some(2), "{command}");
        let problem = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(problem.contains("standard output"), "{command}: {problem}");
    }
}
