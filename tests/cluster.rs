//! Two brokers on one machine: the second is registered with the name server of the first.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use saturnmq_net::client::{Client, OwnedCommand};
use saturnmq_net::codes::{request, response};
use saturnmq_net::fastjson;
use saturnmq_net::messages::route::TopicRouteData;
use serde_json::Value;

use crate::patience::soon;
use crate::serve::{Running, directory};

/// Longest wait for anything in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name server that is asked again and again, over new connections: it may restart.
struct Names(String);

impl Names {
    fn of(running: &Running) -> Self {
        Self(running.address("name server").to_string())
    }

    /// Permission of a topic's queues by broker name; empty without a route or a name server.
    fn permissions(&self, topic: &str) -> BTreeMap<String, i32> {
        let Ok(mut client) = Client::connect(&*self.0, PATIENCE) else {
            return BTreeMap::new();
        };
        let code = request::GET_ROUTEINFO_BY_TOPIC;
        let answer = ask(&mut client, code, &[("topic", topic)], b"");
        if answer.code == response::TOPIC_NOT_EXIST {
            return BTreeMap::new();
        }
        assert_eq!(answer.code, 0, "{answer:?}");
        let route: TopicRouteData = fastjson::from_slice(&answer.body).expect("a route");
        let queues = route.queue_datas.into_iter();
        queues.map(|data| (data.broker_name, data.perm)).collect()
    }

    fn await_permissions(&self, topic: &str, wanted: &[(&str, i32)]) {
        let wanted = wanted.iter().map(|(name, perm)| ((*name).into(), *perm));
        let wanted: BTreeMap<String, i32> = wanted.collect();
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.permissions(topic);
            if found == wanted {
                return;
            }
            assert!(Instant::now() < until, "{topic}: {found:?} not {wanted:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn admin(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_saturnmq"))
            .args(["admin", "--name-server", &self.0])
            .args(arguments)
            .output()
            .expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }
}

fn ask(client: &mut Client, code: i32, fields: &[(&str, &str)], body: &[u8]) -> OwnedCommand {
    let write = |out: &mut saturnmq_net::encode::Encoder<'_>| {
        for (name, value) in fields {
            out.field_str(name, value);
        }
    };
    let answer = client.invoke(code, write, body, PATIENCE);
    answer.expect("an answer")
}

fn ask_broker(running: &Running, code: i32, fields: &[(&str, &str)], body: &[u8]) {
    let mut client = Client::connect(running.address("broker"), PATIENCE).expect("connect");
    let answer = ask(&mut client, code, fields, body);
    assert_eq!(answer.code, 0, "{answer:?}");
}

fn first(dir: &Path) -> Running {
    Running::start(dir, &["--set", "brokerName=first"])
}

/// A broker that is registered with other name servers only.
fn registered_at(names: &Names, dir: &Path, name: &str) -> Running {
    registered_with(names, dir, name, &[])
}

fn registered_with(names: &Names, dir: &Path, name: &str, more: &[&str]) -> Running {
    let outer = format!("namesrvAddr={}", names.0);
    let name = format!("brokerName={name}");
    let off = ["--name-server-port", "off"];
    Running::start(
        dir,
        &[&off[..], &["--set", &outer, "--set", &name], more].concat(),
    )
}

#[test]
fn a_topic_on_two_brokers_is_filled_on_both_and_consumed_from_both() {
    let dirs = (directory(), directory());
    let one = first(dirs.0.path());
    let names = Names::of(&one);
    let two = registered_at(&names, dirs.1.path(), "second");
    names.await_permissions("TBW102", &[("first", 7), ("second", 7)]);
    names.admin(&["topic", "create", "Both", "--queues", "2"]);
    names.await_permissions("Both", &[("first", 6), ("second", 6)]);
    let mut sent = Vec::new();
    for (number, running) in [&one, &two, &two, &one].into_iter().enumerate() {
        let body = format!("message {number}");
        let fields = [
            ("a", "p"),
            ("b", "Both"),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", "1"),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", ""),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ];
        ask_broker(running, request::SEND_MESSAGE_V2, &fields, body.as_bytes());
        sent.push(body);
    }
    let consumed = names.admin(&["consume", "Both", "--from", "earliest", "--exit", "--json"]);
    let messages = consumed.lines().map(serde_json::from_str::<Value>);
    let mut bodies: Vec<_> = messages
        .map(|message| message.expect("JSON")["body"].as_str().map(str::to_owned))
        .collect::<Option<_>>()
        .expect("bodies");
    bodies.sort();
    assert_eq!(bodies, sent);
    names.admin(&["topic", "delete", "Both"]);
    assert!(names.permissions("Both").is_empty());
    assert_eq!(two.stop().code(), Some(0));
    assert_eq!(one.stop().code(), Some(0));
}

#[test]
fn changes_at_a_registered_broker_are_routed_soon_and_it_goes_with_its_end() {
    let dirs = (directory(), directory());
    let one = first(dirs.0.path());
    let names = Names::of(&one);
    let two = registered_at(&names, dirs.1.path(), "second");
    let topic = [
        ("topic", "Later"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "3"),
        ("writeQueueNums", "3"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    ask_broker(&two, request::UPDATE_AND_CREATE_TOPIC, &topic, b"");
    names.await_permissions("Later", &[("second", 6)]);
    for perm in [4, 6] {
        let text = format!("brokerPermission={perm}");
        let code = request::UPDATE_BROKER_CONFIG;
        ask_broker(&two, code, &[], text.as_bytes());
        names.await_permissions("Later", &[("second", perm)]);
    }
    assert_eq!(two.stop().code(), Some(0));
    assert!(names.permissions("Later").is_empty(), "it has unregistered");
    let mut two = registered_at(&names, dirs.1.path(), "second");
    names.await_permissions("Later", &[("second", 6)]);
    two.signal(Signal::SIGKILL);
    two.wait();
    names.await_permissions("Later", &[]);
    names.await_permissions("TBW102", &[("first", 7)]);
}

#[test]
fn a_name_server_that_restarts_soon_knows_its_brokers_again() {
    let dirs = (directory(), directory());
    // Nobody else takes a port of this address in between.
    let named = ["--set", "brokerName=first", "--listen", "127.77.0.1:0"];
    let mut one = Some(Running::start(dirs.0.path(), &named));
    let names = Names::of(one.as_ref().expect("it runs"));
    let seldom = ["--set", "registerNameServerPeriod=60000"];
    let two = registered_with(&names, dirs.1.path(), "second", &seldom);
    names.await_permissions("TBW102", &[("first", 7), ("second", 7)]);
    let port = names.0.rsplit(':').next().expect("a port");
    let again = [&named[..], &["--name-server-port", port]].concat();
    // Not the period of registrations, a minute.
    soon("to be known again", Duration::from_secs(10), || {
        let before = one.take().expect("it runs");
        assert_eq!(before.stop().code(), Some(0));
        one = Some(Running::start(dirs.0.path(), &again));
        let begun = Instant::now();
        names.await_permissions("TBW102", &[("first", 7), ("second", 7)]);
        begun.elapsed()
    });
    assert_eq!(two.stop().code(), Some(0));
    let one = one.expect("it runs");
    assert_eq!(one.stop().code(), Some(0));
}

#[test]
fn a_namesake_is_told_so_and_takes_no_place() {
    let dirs = (directory(), directory());
    let one = first(dirs.0.path());
    let names = Names::of(&one);
    let namesake = registered_at(&names, dirs.1.path(), "first");
    let said = namesake.wait_for_log("registering with name server");
    assert!(said.contains("brokerName first"), "{said}");
    names.await_permissions("TBW102", &[("first", 7)]);
    let own = one.address("broker").to_string();
    let mut client = Client::connect(&*names.0, PATIENCE).expect("connect");
    let answer = ask(&mut client, request::GET_BROKER_CLUSTER_INFO, &[], b"");
    let route = String::from_utf8(answer.body).expect("text");
    assert!(route.contains(&own), "{route}");
}
