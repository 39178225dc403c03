//! Messages for a time: accepted, kept over stops and kills, delivered once and not early.

use std::path::Path;

use nix::sys::signal::Signal;
use saturnmq_storage::format::record::Record;

use super::*;

mod damage;

const WHEEL: &str = "rmq_sys_wheel_timer";
/// Short slots.
const QUICK: [&str; 2] = ["--set", "timerPrecisionMs=100"];

fn now_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock");
    since.as_millis() as i64
}

/// A message as a pull shows it.
#[derive(Clone, Debug)]
struct Seen {
    body: String,
    properties: BTreeMap<String, String>,
    stored_ms: i64,
    queue_id: i32,
}

impl Seen {
    fn number(&self, name: &str) -> i64 {
        self.properties[name].parse().expect("a number")
    }
}

impl Talk {
    fn try_timed(&mut self, topic: &str, key: &str, property: &str, value: i64) -> Arrived {
        let properties =
            format!("UNIQ_KEY\u{1}{key}\u{2}WAIT\u{1}true\u{2}{property}\u{1}{value}\u{2}");
        let fields = send_fields(topic, "1", &properties, "false");
        self.ask(310, &fields, key.as_bytes())
    }

    fn timed(&mut self, topic: &str, key: &str, property: &str, value: i64) -> Arrived {
        let answer = self.try_timed(topic, key, property, value);
        assert_eq!(answer.code, 0, "{answer:?}");
        answer
    }

    fn seen(&mut self, topic: &str, queue: i32) -> Vec<Seen> {
        let mut found: Vec<Seen> = Vec::new();
        loop {
            let pull = Pull {
                queue,
                ..Pull::of(topic, found.len() as i64)
            };
            let answer = self.pull(&pull);
            if answer.code != 0 {
                return found;
            }
            let mut rest = answer.body.as_slice();
            while let Some(size) = rest.first_chunk::<4>() {
                let size = u32::from_be_bytes(*size) as usize;
                let record = Record::decode(&rest[..size]).expect("a record");
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let properties = record.properties().iter();
                found.push(Seen {
                    body: text(record.body()),
                    properties: properties.map(|(k, v)| (text(k), text(v))).collect(),
                    stored_ms: record.store_timestamp(),
                    queue_id: record.queue_id(),
                });
                rest = &rest[size..];
            }
        }
    }

    /// Waits until queue 1 of a topic has so many messages.
    fn until_seen(&mut self, topic: &str, count: usize) -> Vec<Seen> {
        let until = Instant::now() + 3 * PATIENCE;
        loop {
            let found = self.seen(topic, 1);
            if found.len() >= count {
                return found;
            }
            assert!(Instant::now() < until, "{count} in {topic}: {found:?}");
            self.held(topic, found.len());
        }
    }

    /// Waits in a held pull for one more message than there are.
    fn held(&mut self, topic: &str, count: usize) {
        let pull = Pull {
            queue: 1,
            wait_ms: 500,
            ..Pull::of(topic, count as i64)
        };
        self.pull(&pull);
    }
}

fn killed(mut running: Running, dir: &Path, more: &[&str]) -> Running {
    running.signal(Signal::SIGKILL);
    running.wait();
    drop(running);
    Running::start(dir, more)
}

/// Whether something was done before the time at which it would have been too late.
fn before(deliver_ms: i64) -> Result<(), TooSlow> {
    match now_ms() < deliver_ms {
        true => Ok(()),
        false => Err(TooSlow),
    }
}

fn keys(found: &[Seen]) -> Vec<&str> {
    found.iter().map(|seen| seen.body.as_str()).collect()
}

#[test]
fn a_message_comes_at_its_time_with_what_apache_leaves_in_it() {
    in_time(one_message_that_waits);
}

fn one_message_that_waits(times: u32) -> Result<(), TooSlow> {
    let times = i64::from(times);
    let (running, _dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let deliver = now_ms() + 1250 * times;
    let answer = talk.timed("T", "k", "TIMER_DELIVER_MS", deliver);
    assert_eq!(
        (&*answer.ext["queueId"], &*answer.ext["queueOffset"]),
        ("1", "0")
    );
    // "v1 T " and more.
    assert!(
        answer.ext["recallHandle"].starts_with("djEgVC"),
        "{answer:?}"
    );
    let waiting = talk.seen(WHEEL, 0);
    let early = talk.seen("T", 1);
    before(deliver)?;
    assert_eq!(keys(&waiting), ["k"]);
    assert_eq!(early.len(), 0);
    let out = (deliver - 1).div_euclid(100) * 100;
    assert_eq!(waiting[0].number("TIMER_OUT_MS"), out);
    for (name, value) in [("REAL_TOPIC", "T"), ("REAL_QID", "1"), ("WAIT", "true")] {
        assert_eq!(waiting[0].properties[name], value);
    }
    let found = talk.until_seen("T", 1);
    assert!(found[0].stored_ms >= deliver, "early");
    assert_eq!(found[0].queue_id, 1);
    let entered = found[0].number("TIMER_ENQUEUE_MS");
    assert_eq!(entered % 100, 0);
    if entered >= deliver {
        return Err(TooSlow);
    }
    assert!(found[0].number("TIMER_DEQUEUE_MS") >= deliver);
    let mut rest = found[0].properties.clone();
    rest.remove("TIMER_ENQUEUE_MS");
    rest.remove("TIMER_DEQUEUE_MS");
    assert_eq!(rest, waiting[0].properties);
    Ok(())
}

#[test]
fn each_property_is_understood_and_what_is_late_comes_at_once() {
    in_time(each_property);
}

fn each_property(times: u32) -> Result<(), TooSlow> {
    let times = i64::from(times);
    let (running, _dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.timed("T", "late", "TIMER_DELIVER_MS", now_ms() - 5);
    talk.timed("T", "never", "TIMER_DELAY_SEC", -1);
    assert_eq!(keys(&talk.seen("T", 1)), ["late", "never"]);
    assert_eq!(talk.seen(WHEEL, 0).len(), 0);
    let sent = now_ms();
    talk.timed("T", "second", "TIMER_DELAY_SEC", times);
    talk.timed("T", "first", "TIMER_DELAY_MS", 300);
    before(sent + 700 * times)?;
    let found = talk.until_seen("T", 4);
    assert_eq!(keys(&found), ["late", "never", "first", "second"]);
    assert!(found[2].stored_ms >= sent + 300 && found[3].stored_ms >= sent + 1000 * times);
    Ok(())
}

#[test]
fn what_cannot_be_kept_is_refused_as_apache_does() {
    let (running, dir) = broker(&["--set", "timerMaxDelaySec=100"]);
    let mut talk = Talk::to(running.address("broker"));
    for (property, value) in [("TIMER_DELAY_SEC", 101), ("TIMER_DELAY_MS", 100_001)] {
        let answer = talk.try_timed("T", "k", property, value);
        assert_eq!(answer.code, 13, "{answer:?}");
        assert!(answer.remark.contains("max delay 100000ms"), "{answer:?}");
    }
    let text = "TIMER_DELAY_SEC\u{1}soon\u{2}";
    let answer = talk.ask(310, &send_fields("T", "0", text, "false"), b"");
    assert_eq!(answer.code, 13, "{answer:?}");
    let past = "TIMER_DELIVER_MS\u{1}5\u{2}TIMER_DEL_UNIQKEY\u{1}T+k\u{2}";
    let answer = talk.ask(310, &send_fields("T", "0", past, "false"), b"");
    assert_eq!(answer.code, 13, "{answer:?}");
    let half = "TIMER_DELAY_SEC\u{1}5\u{2}TRAN_MSG\u{1}true\u{2}PGROUP\u{1}g\u{2}";
    let answer = talk.ask(310, &send_fields("T", "0", half, "false"), b"");
    assert_eq!(answer.code, 13, "{answer:?}");
    assert!(answer.remark.contains("TIMER_DELAY_SEC"), "{answer:?}");
    talk.timed("T", "k", "TIMER_DELAY_SEC", 99);
    assert!(running.stop().success());
    let running = Running::start(dir.path(), &["--set", "timerWheelEnable=false"]);
    let mut talk = Talk::to(running.address("broker"));
    let answer = talk.try_timed("T", "k", "TIMER_DELAY_SEC", 5);
    let remark = "accurate timer message is not enabled, timerWheelEnable is false";
    assert_eq!((answer.code, &*answer.remark), (1, remark));
}

#[test]
fn messages_that_wait_outlive_a_stop_and_come_once() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let mut deliver = Vec::new();
    for n in 0..60 {
        let time = now_ms() + 300 + n * 50;
        talk.timed("T", &format!("k{n}"), "TIMER_DELIVER_MS", time);
        deliver.push(time);
    }
    talk.until_seen("T", 5);
    assert!(running.stop().success());
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let found = talk.until_seen("T", 60);
    is_each_once_and_not_early(&found, &deliver);
    assert!(running.stop().success());
}

#[test]
fn messages_that_wait_outlive_kills_and_come_once() {
    let (mut running, dir) = broker(&QUICK);
    let mut deliver = Vec::new();
    for round in 0..4 {
        let mut talk = Talk::to(running.address("broker"));
        for n in 0..40 {
            let time = now_ms() + 200 + n * 50;
            let key = format!("k{}", deliver.len());
            talk.timed("T", &key, "TIMER_DELIVER_MS", time);
            deliver.push(time);
        }
        talk.until_seen("T", round * 40 + 10);
        running = killed(running, dir.path(), &QUICK);
    }
    let mut talk = Talk::to(running.address("broker"));
    let found = talk.until_seen("T", deliver.len());
    is_each_once_and_not_early(&found, &deliver);
}

fn is_each_once_and_not_early(found: &[Seen], deliver: &[i64]) {
    let mut sorted: Vec<&str> = keys(found);
    sorted.sort_unstable();
    let mut expected: Vec<String> = (0..deliver.len()).map(|n| format!("k{n}")).collect();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    for seen in found {
        let n: usize = seen.body[1..].parse().expect("a number");
        assert!(seen.stored_ms >= deliver[n], "early: {seen:?}");
    }
}

#[test]
fn far_messages_are_entered_again_and_come_at_their_time() {
    let roll = [QUICK[0], QUICK[1], "--set", "timerRollWindowSlot=6"];
    let (running, dir) = broker(&roll);
    let mut talk = Talk::to(running.address("broker"));
    let deliver = now_ms() + 4000;
    talk.timed("T", "k0", "TIMER_DELIVER_MS", deliver);
    let until = Instant::now() + 3 * PATIENCE;
    while talk.seen(WHEEL, 0).len() < 2 {
        assert!(Instant::now() < until, "not rolled");
        talk.held("T", 0);
    }
    let running = killed(running, dir.path(), &roll);
    let mut talk = Talk::to(running.address("broker"));
    let found = talk.until_seen("T", 1);
    is_each_once_and_not_early(&found, &[deliver]);
    let rolled = found[0].number("TIMER_ROLL_TIMES");
    assert_eq!(talk.seen(WHEEL, 0).len() as i64, rolled + 1);
    assert!(rolled >= 1, "{rolled}");
}

#[test]
fn a_recalled_message_never_comes_and_others_do() {
    in_time(one_recalled_message);
}

fn one_recalled_message(times: u32) -> Result<(), TooSlow> {
    let times = i64::from(times);
    let more = [QUICK[0], QUICK[1], "--set", "recallMessageEnable=true"];
    let (running, _dir) = broker(&more);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = 479;
    let deliver = now_ms() + 1500 * times;
    let recalled = talk.timed("T", "recalled", "TIMER_DELIVER_MS", deliver);
    talk.timed("T", "other", "TIMER_DELIVER_MS", deliver);
    let handle = recalled.ext["recallHandle"].as_str();
    let recall = |talk: &mut Talk, topic, handle| {
        let fields = [("topic", topic), ("recallHandle", handle)];
        talk.ask(370, &fields, b"")
    };
    for (topic, handle, code) in [("T", "!", 604), ("U", handle, 17)] {
        assert_eq!(recall(&mut talk, topic, handle).code, code);
    }
    let answer = recall(&mut talk, "T", handle);
    talk.timed("T", "last", "TIMER_DELIVER_MS", deliver + 100);
    before(deliver - 200)?;
    assert_eq!((answer.code, &*answer.ext["msgId"]), (0, "recalled"));
    assert_eq!(keys(&talk.until_seen("T", 2)), ["other", "last"]);
    let answer = talk.ask(25, &[], b"recallMessageEnable=false\n");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(recall(&mut talk, "T", handle).code, 16);
    Ok(())
}

#[test]
fn a_crowded_slot_refuses_and_others_do_not() {
    let more = [QUICK[0], QUICK[1], "--set", "timerCongestNumEachSlot=2"];
    let (running, _dir) = broker(&more);
    let mut talk = Talk::to(running.address("broker"));
    let deliver = now_ms() + 20_000;
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = talk.try_timed("T", "k", "TIMER_DELIVER_MS", deliver);
        if answer.code == 1 {
            assert!(
                answer
                    .remark
                    .contains("under flow control, max num limit is 4"),
                "{answer:?}"
            );
            break;
        }
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(Instant::now() < until, "never refused");
    }
    talk.timed("T", "k", "TIMER_DELIVER_MS", deliver + 100);
}

#[test]
fn a_recall_counts_for_a_message_that_is_entered_late() {
    in_time(one_recall_before_it_is_entered);
}

fn one_recall_before_it_is_entered(times: u32) -> Result<(), TooSlow> {
    let times = i64::from(times);
    let options = [QUICK[0], QUICK[1], "--set", "recallMessageEnable=true"];
    let stopped = [&options[..], &["--set", "timerStopEnqueue=true"]].concat();
    let (running, _dir) = broker(&stopped);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = 479;
    let deliver = now_ms() + 1000 * times;
    let recalled = talk.timed("T", "recalled", "TIMER_DELIVER_MS", deliver);
    talk.timed("T", "other", "TIMER_DELIVER_MS", deliver);
    let handle = recalled.ext["recallHandle"].as_str();
    let answer = talk.ask(370, &[("topic", "T"), ("recallHandle", handle)], b"");
    before(deliver)?;
    assert_eq!(answer.code, 0, "{answer:?}");
    while now_ms() < deliver + 200 {
        talk.held("T", 0);
    }
    assert_eq!(talk.ask(25, &[], b"timerStopEnqueue=false\n").code, 0);
    talk.timed("T", "last", "TIMER_DELAY_MS", 200);
    assert_eq!(keys(&talk.until_seen("T", 2)), ["other", "last"]);
    Ok(())
}

#[test]
fn what_waits_is_told_to_newer_clients() {
    let (running, _dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    assert_eq!(talk.ask(60, &[], b"").code, 3);
    talk.version = 479;
    assert_eq!(talk.ask(60, &[], b"").body, [0; 56], "nothing ever waited");
    for (topic, key) in [("T", "a"), ("T", "b"), ("U", "c")] {
        talk.timed(topic, key, "TIMER_DELAY_SEC", 3600);
    }
    let until = Instant::now() + PATIENCE;
    let told = loop {
        let answer = talk.ask(61, &[], b"");
        let told: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        if told["timingCount"]["U"]["count"] == 1 {
            break told;
        }
        assert!(Instant::now() < until, "{told}");
    };
    assert_eq!(told["timingCount"]["T"]["count"], 2);
    let number = |body: &[u8], at: usize| {
        i64::from_be_bytes(body[at..at + 8].try_into().expect("eight bytes"))
    };
    loop {
        let check = talk.ask(60, &[], b"").body;
        if number(&check, 16) == 3 {
            assert_eq!(number(&check, 8), 3 * 52);
            assert!(number(&check, 0) > 0);
            break;
        }
        assert!(Instant::now() < until, "{check:?}");
    }
}

/// Waits long enough for what should not be there to show.
fn settled(talk: &mut Talk, count: usize) -> Vec<Seen> {
    let key = format!("settled{}", now_ms());
    talk.timed("T", &key, "TIMER_DELAY_MS", 1000);
    let found = talk.until_seen("T", count + 1);
    assert_eq!(keys(&found).pop(), Some(&*key));
    found
}

#[test]
fn a_clock_that_was_put_back_over_a_restart_loses_no_message() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.timed("T", "first", "TIMER_DELAY_MS", 200);
    talk.until_seen("T", 1);
    assert!(running.stop().success());
    // As a run leaves it whose clock was three seconds ahead of what it is now.
    let check = dir.path().join("config/timercheck");
    let mut bytes = std::fs::read(&check).unwrap();
    bytes[..8].copy_from_slice(&((now_ms() + 3000) / 100 * 100).to_be_bytes());
    std::fs::write(&check, bytes).unwrap();
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.timed("T", "k", "TIMER_DELAY_MS", 500);
    let found = settled(&mut talk, 2);
    assert_eq!(keys(&found[..2]), ["first", "k"]);
}

#[test]
fn a_clock_that_was_put_back_before_a_stop_delivers_nothing_twice() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    for key in ["a", "b", "c"] {
        talk.timed("T", key, "TIMER_DELAY_MS", 200);
    }
    talk.until_seen("T", 3);
    assert!(running.stop().success());
    // As a run leaves it whose clock was put back by ten seconds after that: the time of its check
    // point is still that of the last slot that was delivered.
    let check = dir.path().join("config/timercheck");
    let mut bytes = std::fs::read(&check).unwrap();
    bytes[..8].copy_from_slice(&((now_ms() - 10_000) / 100 * 100).to_be_bytes());
    std::fs::write(&check, bytes).unwrap();
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let found = settled(&mut talk, 3);
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn a_damaged_entry_of_the_timer_topic_costs_no_message() {
    let stopped = [QUICK[0], QUICK[1], "--set", "timerStopEnqueue=true"];
    let (running, dir) = broker(&stopped);
    let mut talk = Talk::to(running.address("broker"));
    for key in ["a", "b", "c"] {
        talk.timed("T", key, "TIMER_DELAY_MS", 3000);
    }
    assert!(running.stop().success());
    let wheel = dir.path().join("consumequeue").join(WHEEL).join("0");
    let wheel = wheel.join(format!("{:020}", 0));
    let mut bytes = std::fs::read(&wheel).unwrap();
    bytes[20 + 7] ^= 1;
    std::fs::write(&wheel, bytes).unwrap();
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let found = talk.until_seen("T", 3);
    let mut found = keys(&found);
    found.sort_unstable();
    assert_eq!(found, ["a", "b", "c"]);
}

#[test]
fn a_stop_while_lost_timers_are_entered_again_delivers_nothing_twice() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let count = 1000;
    for n in 0..count {
        talk.timed("T", &format!("k{n}"), "TIMER_DELAY_MS", 300);
    }
    talk.until_seen("T", count);
    assert!(running.stop().success());
    std::fs::remove_dir_all(dir.path().join("timerlog")).unwrap();
    let running = Running::start(dir.path(), &QUICK);
    assert!(running.stop().success());
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    settled(&mut talk, count);
}

#[test]
fn a_coarser_precision_loses_no_message() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let begin = now_ms() / 1000 * 1000 + 3000;
    let deliver: Vec<i64> = (0..20).map(|n| begin + n * 100).collect();
    for (n, time) in deliver.iter().enumerate() {
        talk.timed("T", &format!("k{n}"), "TIMER_DELIVER_MS", *time);
    }
    assert!(running.stop().success());
    let running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to(running.address("broker"));
    is_each_once_and_not_early(&talk.until_seen("T", 20), &deliver);
}

#[test]
fn starts_that_are_killed_at_once_deliver_nothing_twice() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let mut deliver = Vec::new();
    for n in 0..1200 {
        let time = now_ms() + 12_000;
        talk.timed("T", &format!("k{n}"), "TIMER_DELIVER_MS", time);
        deliver.push(time);
    }
    let mut running = killed(running, dir.path(), &QUICK);
    for _ in 0..3 {
        running = killed(running, dir.path(), &QUICK);
    }
    let mut talk = Talk::to(running.address("broker"));
    talk.until_seen("T", deliver.len());
    let mut found = settled(&mut talk, deliver.len());
    found.pop();
    is_each_once_and_not_early(&found, &deliver);
}

#[test]
fn a_recall_that_was_not_entered_counts_after_a_restart_behind_its_time() {
    in_time(one_recall_that_is_stored_only);
}

fn one_recall_that_is_stored_only(times: u32) -> Result<(), TooSlow> {
    let times = i64::from(times);
    let options = [QUICK[0], QUICK[1], "--set", "recallMessageEnable=true"];
    let (running, dir) = broker(&options);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = 479;
    let deliver = now_ms() + 2500 * times;
    let recalled = talk.timed("T", "recalled", "TIMER_DELIVER_MS", deliver);
    talk.timed("T", "other", "TIMER_DELIVER_MS", deliver);
    assert!(running.stop().success());
    // The messages are in the wheel; what recalls one is stored only.
    let stopped = [&options[..], &["--set", "timerStopEnqueue=true"]].concat();
    let mut running = Running::start(dir.path(), &stopped);
    let mut talk = Talk::to(running.address("broker"));
    talk.version = 479;
    let handle = recalled.ext["recallHandle"].as_str();
    let answer = talk.ask(370, &[("topic", "T"), ("recallHandle", handle)], b"");
    before(deliver)?;
    assert_eq!(answer.code, 0, "{answer:?}");
    running.signal(Signal::SIGKILL);
    running.wait();
    drop(running);
    while now_ms() < deliver + 200 {
        std::thread::yield_now();
    }
    let running = Running::start(dir.path(), &options);
    let mut talk = Talk::to(running.address("broker"));
    let found = settled(&mut talk, 1);
    assert_eq!(keys(&found[..1]), ["other"]);
    Ok(())
}

#[test]
fn a_read_time_that_cannot_be_hides_no_message() {
    let (running, dir) = broker(&QUICK);
    let mut talk = Talk::to(running.address("broker"));
    talk.timed("T", "first", "TIMER_DELAY_MS", 200);
    talk.until_seen("T", 1);
    let deliver = now_ms() + 1500;
    talk.timed("T", "k", "TIMER_DELIVER_MS", deliver);
    assert!(running.stop().success());
    let check = dir.path().join("config/timercheck");
    let mut bytes = std::fs::read(&check).unwrap();
    bytes[..8].copy_from_slice(&i64::MAX.to_be_bytes());
    std::fs::write(&check, bytes).unwrap();
    while now_ms() < deliver + 200 {
        std::thread::yield_now();
    }
    let running = Running::start(dir.path(), &QUICK);
    let mut talk = Talk::to(running.address("broker"));
    let found = settled(&mut talk, 2);
    assert_eq!(keys(&found[..2]), ["first", "k"]);
}
