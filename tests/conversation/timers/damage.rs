//! Damaged timer files and missing topics: what stands in the timer topic comes, once, in time.

use std::os::unix::fs::FileExt;

use super::*;
use crate::admin::page;

const LOG: &str = "timerlog/00000000000000000000";

/// A broker with `count` messages that wait, and when they are due.
fn waiting(count: usize, more: &[&str]) -> (Running, tempfile::TempDir, Vec<i64>) {
    let (running, dir) = broker(&[&QUICK, more].concat());
    let mut talk = Talk::to(running.address("broker"));
    let begin = now_ms() + 3000;
    let mut deliver = Vec::new();
    for n in 0..count {
        let time = begin + n as i64 % 7 * 100;
        talk.timed("T", &format!("k{n}"), "TIMER_DELIVER_MS", time);
        deliver.push(time);
    }
    // All are entered and noted.
    talk.version = 479;
    let until = Instant::now() + PATIENCE;
    loop {
        let check = talk.ask(60, &[], b"").body;
        if check[16..24] == (count as i64).to_be_bytes() {
            return (running, dir, deliver);
        }
        assert!(Instant::now() < until, "{check:?}");
        talk.held("T", 0);
    }
}

/// Each comes once and in time.
fn all_come(running: &Running, deliver: &[i64]) {
    let mut talk = Talk::to(running.address("broker"));
    talk.until_seen("T", deliver.len());
    let mut found = settled(&mut talk, deliver.len());
    found.pop();
    is_each_once_and_not_early(&found, deliver);
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_damaged_timer_wheel_hides_no_message() {
    for len in [None, Some(0), Some(100)] {
        let (running, dir, deliver) = waiting(100, &[]);
        assert!(running.stop().success());
        let wheel = dir.path().join("timerwheel");
        match len {
            None => std::fs::write(&wheel, vec![b'x'; 38_707_200]).unwrap(),
            Some(len) => {
                let file = std::fs::OpenOptions::new().write(true).open(&wheel);
                file.unwrap().set_len(len).unwrap();
            }
        }
        let running = Running::start(dir.path(), &QUICK);
        all_come(&running, &deliver);
    }
}

#[test]
fn a_damaged_page_of_the_timer_log_loses_no_message() {
    let (running, dir, deliver) = waiting(200, &[]);
    assert!(running.stop().success());
    overwrite(&dir.path().join(LOG), 4096, &[0; 4096]);
    let running = Running::start(dir.path(), &QUICK);
    all_come(&running, &deliver);
    // The next start has nothing to mend, and delivers nothing again.
    assert!(running.stop().success());
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    settled(&mut talk, deliver.len() + 1);
}

#[test]
fn a_page_of_the_timer_log_that_is_damaged_while_the_broker_runs_loses_no_message() {
    let (running, dir, deliver) = waiting(200, &[]);
    overwrite(&dir.path().join(LOG), 4096, &[0xff; 4096]);
    all_come(&running, &deliver);
    drop(dir);
}

#[test]
fn a_timer_log_with_files_of_another_size_goes_on() {
    let (running, dir, deliver) = waiting(200, &["--set", "mappedFileSizeTimerLog=4096"]);
    assert!(running.stop().success());
    assert!(dir.path().join("timerlog/00000000000000008192").exists());
    let running = Running::start(dir.path(), &QUICK);
    all_come(&running, &deliver);
}

#[test]
fn a_message_is_delivered_into_a_topic_that_an_older_topics_json_lacks() {
    let levels = ["--set", "messageDelayLevel=3s"];
    let (running, dir, deliver) = waiting(2, &levels);
    let mut talk = Talk::to(running.address("broker"));
    let delayed = send_fields("D", "1", "UNIQ_KEY\u{1}d\u{2}DELAY\u{1}1\u{2}", "false");
    assert_eq!(talk.ask(310, &delayed, b"d").code, 0);
    assert!(running.stop().success());
    let path = dir.path().join("config/topics.json");
    let mut topics: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let table = topics["topicConfigTable"].as_object_mut().unwrap();
    for topic in ["T", "D"] {
        table.remove(topic).expect("a topic");
    }
    std::fs::write(&path, topics.to_string()).unwrap();
    let running = Running::start(dir.path(), &[&QUICK[..], &levels].concat());
    all_come(&running, &deliver);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(keys(&talk.until_seen("D", 1)), ["d"]);
}

#[test]
fn a_topic_with_batch_queues_takes_no_timer_message_and_holds_up_no_other() {
    let (running, dir, _) = waiting(1, &[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.timed("U", "other", "TIMER_DELAY_MS", 3500);
    assert!(running.stop().success());
    let path = dir.path().join("config/topics.json");
    let mut topics: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    topics["topicConfigTable"]["T"]["attributes"] = serde_json::json!({"queue.type": "BatchCQ"});
    std::fs::write(&path, topics.to_string()).unwrap();
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(keys(&talk.until_seen("U", 1)), ["other"]);
    assert_eq!(talk.seen("T", 1).len(), 0);
}

#[test]
fn a_recall_counts_where_it_and_its_message_go_around_the_wheel() {
    let more = [
        "--set",
        "timerRollWindowSlot=6",
        "--set",
        "recallMessageEnable=true",
    ];
    in_time(|times| {
        let (running, _dir) = broker(&[&QUICK[..], &more].concat());
        let mut talk = Talk::to(running.address("broker"));
        talk.version = 479;
        let deliver = now_ms() + 3000 * i64::from(times);
        let recalled = talk.timed("T", "recalled", "TIMER_DELIVER_MS", deliver);
        talk.timed("T", "other", "TIMER_DELIVER_MS", deliver);
        let handle = recalled.ext.get("recallHandle").ok_or(TooSlow)?;
        let answer = talk.ask(370, &[("topic", "T"), ("recallHandle", handle)], b"");
        if now_ms() >= deliver {
            return Err(TooSlow);
        }
        assert_eq!(answer.code, 0, "{answer:?}");
        talk.until_seen("T", 1);
        let found = settled(&mut talk, 1);
        assert_eq!(keys(&found[..1]), ["other"]);
        assert!(found[0].number("TIMER_ROLL_TIMES") >= 1);
        Ok(())
    });
}

#[test]
fn timers_that_stand_still_are_told_to_whoever_asks_whether_the_broker_is_ready() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.timed("T", "first", "TIMER_DELAY_MS", 200);
    talk.until_seen("T", 1);
    let check = dir.path().join("config/timercheck");
    let until = Instant::now() + PATIENCE;
    // It may be written once more in between.
    while let Err(error) = std::fs::remove_file(&check).and_then(|()| std::fs::create_dir(&check)) {
        assert!(Instant::now() < until, "{error}");
    }
    talk.timed("T", "second", "TIMER_DELAY_MS", 200);
    let ready = |wanted: &str| {
        let until = Instant::now() + 3 * PATIENCE;
        loop {
            let (status, text) = page(&running, "/readyz");
            if status.contains(wanted) {
                return text;
            }
            assert!(Instant::now() < until, "{status}: {text}");
            std::thread::yield_now();
        }
    };
    let text = ready("503");
    assert!(
        text.contains("messages for a time are not delivered"),
        "{text}"
    );
    assert!(text.contains("timercheck"), "{text}");
    let gauge = "saturnmq_timers_standing_still 1.0\n";
    assert!(page(&running, "/metrics").1.contains(gauge));
    std::fs::remove_dir(&check).expect("it is empty");
    assert_eq!(ready("200"), "ok\n");
    assert_eq!(keys(&talk.until_seen("T", 2)), ["first", "second"]);
    assert_eq!(running.stop().code(), Some(0));
}
