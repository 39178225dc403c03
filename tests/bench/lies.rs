//! A broker that loses, doubles, damages, misplaces or reorders a message fails the run of every
//! load that could see it.

use std::net::SocketAddr;
use std::thread;

use saturnmq_net::codes::request;

use super::proxy::{Deed, SENDERS as CONNECTIONS, SENDS, proxy};
use super::{command, good, report};
use crate::serve::{Running, directory};

/// Loads that read back what they sent.
const SENDERS: [&[&str]; 4] = [
    &["produce"],
    &["topics", "--topics", "2"],
    &["connections", "--idle", "2"],
    &["catch-up"],
];
/// Loads whose consumers see what arrives.
const CONSUMERS: [&[&str]; 4] = [
    &["end-to-end", "--consumers", "2"],
    &["fan-out", "--consumers", "1", "--groups", "2"],
    &["transaction", "--consumers", "2"],
    &["delay", "--consumers", "2"],
];

const LOST: &str = "message acknowledged and not found in its queue";
const UNRECEIVED: &str = "message acknowledged and never received";
const ELSEWHERE: &str = "messages at other queue offsets than SEND_OK named";
const RECEIVED_ELSEWHERE: &str = "messages received at other queue offsets than SEND_OK named";

/// Runs a load at a broker that does that; the run's faults must have `fault`, if any.
fn expect(broker: SocketAddr, load: &[&str], deed: Deed, fault: Option<&str>) {
    let address = proxy(broker, deed).address.to_string();
    let topic = format!(
        "{}_{}",
        load[0],
        format!("{deed:?}").replace(['(', ')'], "_")
    );
    let (rate, connections) = (SENDS.to_string(), CONNECTIONS.to_string());
    let shape = ["--warm-up", "0", "--seconds", "1", "--rate", &rate];
    let place = ["--broker", &address, "--topic", &topic];
    let output = command(&[load, &shape, &place, &["--connections", &connections]].concat())
        .output()
        .expect("the binary starts");
    let Some(fault) = fault else {
        good(&output);
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{load:?}, {deed:?}: {fault}");
    let report = report(&output);
    let number = report["faults"][fault].as_u64();
    assert!(
        number >= Some(1),
        "{load:?}, {deed:?}: {}",
        report["faults"]
    );
    assert_eq!(report["failed"], true);
}

/// All of them at one broker, side by side.
fn expect_all(list: &[(&[&str], Deed, Option<&str>)]) {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker");
    thread::scope(|scope| {
        for (load, deed, fault) in list {
            scope.spawn(move || expect(broker, load, *deed, *fault));
        }
    });
}

#[test]
fn an_honest_broker_behind_the_same_proxy_fails_no_load() {
    let loads = SENDERS.iter().chain(&CONSUMERS);
    let list: Vec<_> = loads.map(|load| (*load, Deed::Honest, None)).collect();
    expect_all(&list);
}

#[test]
fn a_broker_that_drops_a_message_fails_every_load() {
    let senders = SENDERS.iter().map(|load| (*load, Deed::Drop, Some(LOST)));
    let consumers = CONSUMERS
        .iter()
        .map(|load| (*load, Deed::Drop, Some(UNRECEIVED)));
    expect_all(&senders.chain(consumers).collect::<Vec<_>>());
}

#[test]
fn a_broker_that_stores_a_message_twice_fails_every_load() {
    let twice =
        |load: &&'static [&'static str]| (*load, Deed::Double, Some("message stored twice"));
    let received =
        |load: &&'static [&'static str]| (*load, Deed::Double, Some("message received twice"));
    // A second half of a transaction is never committed: nobody sees it.
    let consumers = CONSUMERS.iter().filter(|load| load[0] != "transaction");
    let list = SENDERS.iter().map(twice).chain(consumers.map(received));
    expect_all(&list.collect::<Vec<_>>());
}

#[test]
fn the_last_message_coming_again_after_all_have_come_fails_every_load() {
    let twice =
        |load: &'static [&'static str]| (load, Deed::DoubleLast, Some("message stored twice"));
    let received =
        |load: &'static [&'static str]| (load, Deed::DoubleLast, Some("message received twice"));
    expect_all(&[
        twice(SENDERS[0]),
        twice(SENDERS[2]),
        received(CONSUMERS[0]),
        received(CONSUMERS[1]),
        received(CONSUMERS[3]),
    ]);
}

#[test]
fn a_message_that_is_in_a_topic_twice_fails_those_who_drain_it() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker");
    expect(
        broker,
        &["produce"],
        Deed::Double,
        Some("message stored twice"),
    );
    let place = ["--broker", &broker.to_string()].map(str::to_owned);
    let place = place.each_ref().map(String::as_str);
    // One reader has both, or two have one each.
    for load in [
        &["drain"][..],
        &["drain", "--connections", "1"],
        &["catch-up", "--seconds", "1"],
    ] {
        let output = command(&[load, &place, &["--topic", "produce_Double"]].concat()).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(1), "{load:?}");
        let faults = &report(&output)["faults"];
        assert_eq!(faults["message received twice"], 1, "{load:?}: {faults}");
    }
}

#[test]
fn a_rate_that_the_broker_does_not_keep_is_not_reported_as_its_own() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let (broker, pid) = (running.address("broker"), running.pid().to_string());
    let seen = |load: &'static [&'static str]| {
        let address = proxy(broker, Deed::Slow).address.to_string();
        let topic = format!("slow_{}", load[0]);
        let (rate, connections) = (SENDS.to_string(), CONNECTIONS.to_string());
        let shape = ["--warm-up", "0", "--seconds", "1", "--rate", &rate];
        let place = ["--broker", &address, "--topic", &topic, "--pid", &pid];
        let more = ["--connections", &connections, "--timeout", "300"];
        let output = command(&[load, &shape[..], &place, &more].concat()).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(1), "{load:?}");
        let report = report(&output);
        let of = |name: &str| report[name].as_f64().expect("a number");
        let times = if load[0] == "fan-out" { 2.0 } else { 1.0 };
        assert_eq!(report["rate_kept"], false, "{report}");
        assert_eq!(report["failed"], true, "{report}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("the rate was not kept"), "{said}");
        assert_eq!(of("messages"), SENDS as f64 * times, "all came: {report}");
        assert_eq!(of("due_per_second"), SENDS as f64 * times, "{report}");
        let kept = of("per_second") / of("due_per_second");
        assert!((0.0..0.2).contains(&kept), "{kept}: {report}");
        assert!(of("bytes_per_second") < of("bytes") * 0.2, "{report}");
        // Each byte was written once, whatever the rate that was asked for.
        let log = report["broker_log_per_byte"].as_f64();
        assert!(log.is_none_or(|log| log >= 1.0), "{report}");
        assert!(
            report["latency_us"][5].as_u64() > Some(1_000_000),
            "{report}"
        );
    };
    thread::scope(|scope| {
        for load in [
            SENDERS[0],
            SENDERS[2],
            CONSUMERS[0],
            CONSUMERS[1],
            CONSUMERS[2],
            CONSUMERS[3],
        ] {
            scope.spawn(|| seen(load));
        }
    });
}

#[test]
fn a_broker_that_damages_a_message_fails_every_load() {
    let loads = SENDERS.iter().chain(&CONSUMERS);
    let list: Vec<_> = loads
        .map(|load| (*load, Deed::Damage, Some("damaged body")))
        .collect();
    expect_all(&list);
}

#[test]
fn a_broker_whose_messages_are_not_where_it_said_fails_every_load_that_is_told() {
    let senders = SENDERS
        .iter()
        .map(|load| (*load, Deed::Misplace, Some(ELSEWHERE)));
    // Transactions and delayed messages are told no queue offset that they will have.
    let consumers = CONSUMERS[..2]
        .iter()
        .map(|load| (*load, Deed::Misplace, Some(RECEIVED_ELSEWHERE)));
    expect_all(&senders.chain(consumers).collect::<Vec<_>>());
}

#[test]
fn pulls_that_leave_out_repeat_or_swap_a_message_fail_every_load() {
    for (deed, fault) in [
        (Deed::LeaveOut, "gap in the queue offsets"),
        (Deed::Repeat, "message again or out of order"),
        (Deed::Swap, "message again or out of order"),
    ] {
        let loads = SENDERS.iter().chain(&CONSUMERS);
        let list: Vec<_> = loads.map(|load| (*load, deed, Some(fault))).collect();
        expect_all(&list);
    }
}

#[test]
fn pulls_that_leave_out_repeat_or_swap_a_message_fail_a_drain() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker").to_string();
    let produce = ["produce", "--broker", &broker, "--rate", "300"];
    let more = ["--seconds", "1", "--warm-up", "0"];
    good(
        &command(&[&produce[..], &more].concat())
            .output()
            .expect("a run"),
    );
    for (deed, fault) in [
        (Deed::Honest, None),
        (Deed::LeaveOut, Some("gap in the queue offsets")),
        (Deed::Repeat, Some("message again or out of order")),
        (Deed::Swap, Some("message again or out of order")),
    ] {
        let address = proxy(running.address("broker"), deed).address.to_string();
        let output = command(&["drain", "--broker", &address]).output();
        let output = output.expect("the binary starts");
        let Some(fault) = fault else {
            assert_eq!(good(&output)["messages"], 300);
            continue;
        };
        assert_eq!(output.status.code(), Some(1), "{fault}");
        assert!(report(&output)["faults"][fault].as_u64() >= Some(1));
    }
}

#[test]
fn messages_that_nobody_could_look_at_are_not_called_lost() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let broker = running.address("broker");
    let short = ["--warm-up", "0", "--seconds", "1", "--rate", "50"];
    for (load, lost, unseen) in [
        (
            "produce",
            LOST,
            "message acknowledged and not looked at: reading back failed",
        ),
        (
            "end-to-end",
            UNRECEIVED,
            "message acknowledged and not looked for: a consumer failed",
        ),
    ] {
        let proxy = proxy(broker, Deed::Mute(request::PULL_MESSAGE));
        let address = proxy.address.to_string();
        let place = ["--broker", &address, "--timeout", "3"];
        // Longer than a held pull may take.
        let long = ["--warm-up", "0", "--seconds", "15", "--rate", "50"];
        let times = if load == "produce" { short } else { long };
        let output = command(&[&[load][..], &times, &place].concat()).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(1), "{load}");
        let faults = &report(&output)["faults"];
        assert!(faults[unseen].as_u64() >= Some(40), "{load}: {faults}");
        assert!(faults[lost].is_null(), "{load}: {faults}");
    }
}
