//! Limits of the host: each is an error that is told, and none ends the process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

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
