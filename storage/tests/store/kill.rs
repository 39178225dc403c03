//! A real SIGKILL in the middle of appending: whatever was acknowledged is there afterwards, whole
//! and in order.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use saturnmq_storage::config::{FlushMode, StoreConfig};

use crate::support::{Sender, body_of, open, read_all, small_config};

/// Tells a copy of this test program to be the process that is killed: the store's directory.
const ROOT: &str = "SATURNMQ_TEST_KILL_ROOT";
const MODE: &str = "SATURNMQ_TEST_KILL_ASYNC";

fn config(root: &Path, flush: FlushMode) -> StoreConfig {
    let mut config = small_config(root);
    config.flush = flush;
    config.resume_interval = Duration::from_millis(50);
    config
}

/// Appends without end and says what was acknowledged; does nothing unless told to by its parent.
#[test]
fn appends_until_it_is_killed() {
    let Ok(root) = std::env::var(ROOT) else {
        return;
    };
    let flush = if std::env::var(MODE).is_ok() {
        FlushMode::Async
    } else {
        FlushMode::Sync
    };
    let mut opened = open(&config(Path::new(&root), flush)).expect("open");
    let mut sender = Sender::new(opened.ports.remove(0));
    let queue = opened.store.queue_or_create("Killed", 0);
    let mut number = queue.next_offset() as u32;
    let mut out = std::io::stdout();
    let deadline = Instant::now() + Duration::from_secs(120);
    while Instant::now() < deadline {
        let burst = 1 + number % 23;
        for _ in 0..burst {
            sender.push(
                &queue,
                body_of("Killed", number).as_bytes(),
                b"UNIQ_KEY\x01u",
            );
            number += 1;
        }
        for _ in 0..burst {
            let appended = sender.wait();
            writeln!(out, "acknowledged {}", appended.queue_offset).expect("write");
        }
        out.flush().expect("flush");
    }
}

/// Runs the appending process, kills it after `after` acknowledgements and returns the last one
/// read.
fn kill_after(root: &Path, flush: FlushMode, after: usize) -> i64 {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "kill::appends_until_it_is_killed", "--nocapture"]);
    command
        .env(ROOT, root)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if flush == FlushMode::Async {
        command.env(MODE, "1");
    }
    let mut child = command.spawn().expect("start");
    let lines = BufReader::new(child.stdout.take().expect("output")).lines();
    let (mut last, mut count) = (-1, 0);
    for line in lines.map_while(Result::ok) {
        // The first line may stand behind the test's own name.
        let Some((_, offset)) = line.split_once("acknowledged ") else {
            continue;
        };
        last = offset.trim().parse().unwrap_or(last);
        count += 1;
        if count == after {
            child.kill().expect("kill");
        }
    }
    child.wait().expect("end");
    assert!(
        count >= after,
        "the process ended by itself after {count} messages"
    );
    last
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill() {
    for flush in [FlushMode::Sync, FlushMode::Async] {
        let dir = tempfile::tempdir().expect("temporary directory");
        for round in 0..4 {
            let last = kill_after(dir.path(), flush, 40 + round * 211);
            let opened = open(&config(dir.path(), flush)).expect("open");
            let queue = opened.store.queue("Killed", 0).expect("queue");
            assert!(
                queue.max_offset() > last,
                "{flush:?}: {last} was acknowledged"
            );
            let mut reader = opened.store.reader().expect("reader");
            let (messages, damaged) = read_all(&mut reader, &queue);
            assert_eq!((messages.len() as i64, damaged), (queue.max_offset(), 0));
            for (place, message) in messages.iter().enumerate() {
                assert_eq!(message.queue_offset, place as i64);
                assert_eq!(message.body, body_of("Killed", place as u32).into_bytes());
            }
            assert!(!opened.report.clean);
            // Every other time what was recovered is dropped again without being closed.
            if round % 2 == 0 {
                opened.store.close().expect("close");
                std::fs::write(dir.path().join("abort"), b"").expect("abort");
            }
        }
    }
}
