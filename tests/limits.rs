//! Limits of the host: each is an error that is told, and none ends the process.

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
