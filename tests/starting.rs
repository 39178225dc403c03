//! Starts of the real process on what a former run, or an operator, left.

use std::fs;

use nix::sys::signal::Signal;

use crate::serve::{Running, directory};

#[test]
fn a_start_right_after_a_kill_gets_its_ports() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &[]);
    let port = running.address("broker").port().to_string();
    let listen = format!("127.0.0.1:{port}");
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
