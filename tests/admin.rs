//! Administration of the real binary: the command line, the requests of tools, health and metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use saturnmq_net::client::{Client, OwnedCommand};
use saturnmq_net::codes::request;
use saturnmq_net::fastjson;
use saturnmq_net::messages::broker::BrokerStatsData;
use saturnmq_net::messages::kv::KvTable;
use saturnmq_net::messages::stats::{ConsumeStats, TopicStatsTable};
use serde_json::Value;

use crate::serve::{Running, directory};

/// Longest wait for anything in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `saturnmq admin` against a broker.
fn admin(running: &Running, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_saturnmq"))
        .arg("admin")
        .arg("--name-server")
        .arg(running.address("name server").to_string())
        .args(arguments)
        .output()
        .expect("the binary starts")
}

/// The same; it must succeed, and its output is text.
fn text(running: &Running, arguments: &[&str]) -> String {
    let output = admin(running, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// The same with `--json`; one value per line.
fn json(running: &Running, arguments: &[&str]) -> Vec<Value> {
    let mut with_json = arguments.to_vec();
    with_json.push("--json");
    text(running, &with_json)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// A command that must fail: its one sentence.
fn refused(running: &Running, arguments: &[&str]) -> String {
    let output = admin(running, arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

fn client(running: &Running) -> Client {
    Client::connect(running.address("broker"), PATIENCE).expect("connect")
}

fn ask(client: &mut Client, code: i32, fields: &[(&str, &str)], body: &[u8]) -> OwnedCommand {
    let write = |out: &mut saturnmq_net::encode::Encoder<'_>| {
        for (name, value) in fields {
            out.field_str(name, value);
        }
    };
    client
        .invoke(code, write, body, PATIENCE)
        .expect("an answer")
}

fn body<T: serde::de::DeserializeOwned>(answer: &OwnedCommand) -> T {
    assert_eq!(answer.code, 0, "{answer:?}");
    fastjson::from_slice(&answer.body).expect("a body")
}

/// One page over HTTP: status line and body.
pub(super) fn page(running: &Running, path: &str) -> (String, String) {
    let address = running.line("http").trim_start_matches("http://");
    let address = address.trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (
        head.lines().next().unwrap_or_default().to_owned(),
        body.to_owned(),
    )
}

#[test]
fn a_topic_is_made_filled_read_searched_and_deleted_from_the_command_line() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let made = text(&running, &["topic", "create", "Orders", "--queues", "3"]);
    assert!(made.contains("Orders with 3 queues"), "{made}");
    assert_eq!(text(&running, &["topic", "list"]), "Orders\n");
    assert!(text(&running, &["topic", "list", "--system"]).contains("TBW102"));
    let mut sent = Vec::new();
    for number in 0..4 {
        let (body, key) = (format!("body {number}"), format!("k{number}"));
        let tag = ["even", "odd"][number % 2];
        let arguments = [
            "send", "Orders", "--body", &body, "--key", &key, "--tag", tag, "--queue", "1",
        ];
        sent.extend(json(&running, &arguments));
    }
    assert_eq!(sent[3]["offset"], 3);
    let status = json(&running, &["topic", "status", "Orders"]);
    assert_eq!(status[0]["messages"], 4, "{status:?}");
    assert_eq!(status[0]["queues"].as_array().map(Vec::len), Some(3));

    let consumed = ["consume", "Orders", "--from", "earliest", "--exit"];
    let all = json(&running, &consumed);
    let bodies: Vec<_> = all.iter().filter_map(|m| m["body"].as_str()).collect();
    assert_eq!(bodies, ["body 0", "body 1", "body 2", "body 3"]);
    let odd = [
        "consume", "Orders", "--from", "earliest", "--exit", "--tags", "odd",
    ];
    assert_eq!(json(&running, &odd).len(), 2);
    let one = [
        "consume", "Orders", "--from", "2", "--count", "1", "--queue", "1",
    ];
    assert!(text(&running, &one).contains("tag=even keys=k2  body 2"));

    let found = json(&running, &["query", "Orders", "--key", "k2"]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["body"], "body 2");
    for id in [&sent[1]["id"], &sent[1]["offsetId"]] {
        let id = id.as_str().expect("an id");
        let found = json(&running, &["query", "Orders", "--id", id]);
        assert_eq!(found[0]["body"], "body 1", "{id}");
    }
    assert!(refused(&running, &["query", "Orders", "--key", "nope"]).contains("nope"));

    text(&running, &["topic", "delete", "Orders"]);
    assert!(refused(&running, &["topic", "status", "Orders"]).contains("no topic Orders"));
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn what_follows_a_topic_gets_what_comes_later() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    text(&running, &["topic", "create", "Orders"]);
    text(&running, &["send", "Orders", "--body", "before"]);
    let follower = Command::new(env!("CARGO_BIN_EXE_saturnmq"))
        .args(["admin", "consume", "Orders", "--count", "1", "--json"])
        .arg("--name-server")
        .arg(running.address("name server").to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // It follows once its pulls are held.
    let until = Instant::now() + PATIENCE;
    let parked = |line: &str| line.starts_with("saturnmq_pulls_parked") && line.ends_with(" 8.0");
    while !page(&running, "/metrics").1.lines().any(parked) {
        assert!(Instant::now() < until, "nobody follows");
        std::thread::sleep(Duration::from_millis(5));
    }
    text(&running, &["send", "Orders", "--body", "after"]);
    let output = follower.wait_with_output().expect("it ends");
    let seen: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(seen["body"], "after");
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn what_others_sent_takes_over_no_terminal_and_makes_no_lines_of_its_own() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let properties = "KEYS\u{1}k\u{1b}[2J\u{2}TAGS\u{1}\u{1b}[31mred\u{9b}m\nfaked\u{2}";
    let fields = [
        ("a", "p"),
        ("b", "Told"),
        ("c", "TBW102"),
        ("d", "1"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let sent = ask(
        &mut client(&running),
        310,
        &fields,
        b"\x1b]0;title\x07\nfaked",
    );
    assert_eq!(sent.code, 0, "{sent:?}");
    let id = sent.ext.iter().find(|(name, _)| name == "msgId");
    let (_, id) = id.expect("an id");
    for arguments in [
        vec!["consume", "Told", "--from", "earliest", "--exit"],
        vec!["query", "Told", "--id", id],
    ] {
        let shown = text(&running, &arguments);
        assert_eq!(shown.lines().count(), 1, "{shown:?}");
        assert!(
            shown.contains("red") && shown.contains("title"),
            "{shown:?}"
        );
        let line = shown.trim_end_matches('\n');
        assert!(!line.contains(char::is_control), "{shown:?}");
    }
    let said = refused(&running, &["topic", "status", "\u{1b}[2J"]);
    assert!(!said.trim_end().contains(char::is_control), "{said:?}");
}

#[test]
fn errors_are_one_sentence_and_an_exit_code() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let sentence = refused(&running, &["topic", "create", "bad.name"]);
    assert!(sentence.contains("illegal characters"), "{sentence}");
    let sentence = refused(&running, &["group", "progress", "nope"]);
    assert!(
        sentence.contains("no broker knows the group \"nope\""),
        "{sentence}"
    );
    let sentence = refused(&running, &["topic", "create", "TBW102"]);
    assert!(
        sentence.contains("conflict with system topic"),
        "{sentence}"
    );
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let nobody = free.local_addr().expect("address").to_string();
    drop(free);
    let sentence = refused(&running, &["--name-server", &nobody, "topic", "list"]);
    assert!(sentence.contains(&nobody), "{sentence}");
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn help_teaches_by_example() {
    for arguments in [
        &["admin", "--help"][..],
        &["admin", "topic", "--help"],
        &["admin", "group", "--help"],
        &["admin", "send", "--help"],
        &["admin", "consume", "--help"],
        &["admin", "query", "--help"],
        &["serve", "--help"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
        let output = command.args(arguments).output().expect("the binary starts");
        let help = String::from_utf8(output.stdout).expect("text");
        assert!(help.contains("Examples:\n"), "{arguments:?}: {help}");
        let example = format!("saturnmq {}", arguments[0]);
        assert!(help.contains(&example), "{arguments:?}: {help}");
    }
}

#[test]
fn a_groups_progress_is_told_and_can_be_moved() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let mut client = client(&running);
    text(&running, &["topic", "create", "Orders", "--queues", "1"]);
    for number in 0..5 {
        let body = number.to_string();
        text(&running, &["send", "Orders", "--body", &body]);
    }
    let group = br#"{"groupName":"billing","retryMaxTimes":3,"consumeEnable":true}"#;
    let code = request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP;
    assert_eq!(ask(&mut client, code, &[], group).code, 0);
    let config = std::fs::read_to_string(dir.path().join("config/subscriptionGroup.json"));
    assert!(
        config.expect("the file").contains("billing"),
        "it is durable"
    );
    let commit = [
        ("consumerGroup", "billing"),
        ("topic", "Orders"),
        ("queueId", "0"),
        ("commitOffset", "2"),
    ];
    let code = request::UPDATE_CONSUMER_OFFSET;
    assert_eq!(ask(&mut client, code, &commit, &[]).code, 0);

    let progress = json(&running, &["group", "progress", "billing"]);
    assert_eq!(progress[0]["lag"], 3, "{progress:?}");
    assert_eq!(progress[0]["queues"][0]["consumed"], 2);
    let groups = json(&running, &["group", "list"]);
    assert_eq!(groups[0][0]["group"], "billing");
    assert_eq!(groups[0][0]["retries"], 3);
    assert!(page(&running, "/metrics").1.contains(
        "saturnmq_consumer_lag_messages{group=\"billing\",topic=\"Orders\",queue=\"0\"} 3.0"
    ));

    let reset = [
        ("topic", "Orders"),
        ("group", "billing"),
        ("timestamp", "0"),
        ("isForce", "true"),
        ("queueId", "-1"),
        ("offset", "-1"),
    ];
    let code = request::INVOKE_BROKER_TO_RESET_OFFSET;
    let answer = ask(&mut client, code, &reset, &[]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let table = r#"{"offsetTable":{{"brokerName":""#;
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.starts_with(table) && said.ends_with("}:0}}"), "{said}");
    let asked = [("consumerGroup", "billing")];
    let answer = ask(&mut client, request::GET_CONSUME_STATS, &asked, &[]);
    let stats: ConsumeStats = body(&answer);
    assert_eq!(stats.offset_table.0[0].1.consumer_offset, 0);
    // A reset of a group or topic that does not exist is refused.
    let mut unknown = reset;
    unknown[1].1 = "nobody";
    assert_eq!(ask(&mut client, code, &unknown, &[]).code, 26);
    unknown[0].1 = "Nothing";
    assert_eq!(ask(&mut client, code, &unknown, &[]).code, 17);

    let by = [("groupName", "billing"), ("cleanOffset", "true")];
    assert_eq!(
        ask(&mut client, request::DELETE_SUBSCRIPTIONGROUP, &by, &[]).code,
        0
    );
    let answer = ask(&mut client, request::GET_CONSUME_STATS, &asked, &[]);
    let stats: ConsumeStats = body(&answer);
    assert!(stats.offset_table.0.is_empty());
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn topic_statistics_name_every_queue_with_its_times() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let mut client = client(&running);
    text(&running, &["topic", "create", "Orders", "--queues", "2"]);
    text(&running, &["send", "Orders", "--body", "x", "--queue", "1"]);
    let asked = [("topic", "Orders")];
    let answer = ask(&mut client, request::GET_TOPIC_STATS_INFO, &asked, &[]);
    let stats: TopicStatsTable = body(&answer);
    let rows: Vec<_> = stats
        .offset_table
        .0
        .iter()
        .map(|(queue, at)| (queue.queue_id, at.min_offset, at.max_offset))
        .collect();
    assert_eq!(rows, [(0, 0, 0), (1, 0, 1)]);
    let times: Vec<_> = stats
        .offset_table
        .0
        .iter()
        .map(|(_, at)| at.last_update_timestamp)
        .collect();
    assert!(times[0] == 0 && times[1] > 1_600_000_000_000, "{times:?}");
    let entries = [
        ("topic", "Orders"),
        ("queueId", "1"),
        ("index", "0"),
        ("count", "5"),
        ("consumerGroup", "nobody"),
    ];
    let answer = ask(&mut client, request::QUERY_CONSUME_QUEUE, &entries, &[]);
    let said: Value = body(&answer);
    assert_eq!(said["queueData"].as_array().map(Vec::len), Some(1));
    assert_eq!(said["filterData"], "nobody@Orders is not online!");
    assert_eq!(said["maxQueueIndex"], 1);
    assert_eq!(said["queueData"][0]["eval"], false);
    let absent = ask(
        &mut client,
        request::GET_TOPIC_STATS_INFO,
        &[("topic", "No")],
        &[],
    );
    assert_eq!(absent.code, 17);
    let item = [("statsName", "TOPIC_PUT_NUMS"), ("statsKey", "Orders")];
    let _: BrokerStatsData = body(&ask(
        &mut client,
        request::VIEW_BROKER_STATS_DATA,
        &item,
        &[],
    ));
    let item = [("statsName", "NOPE"), ("statsKey", "x")];
    let answer = ask(&mut client, request::VIEW_BROKER_STATS_DATA, &item, &[]);
    assert_eq!(
        answer.remark.as_deref(),
        Some("The stats <NOPE> <x> not exist")
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn the_configuration_changes_only_where_it_may_and_all_or_nothing() {
    let dir = directory();
    let running = Running::start(dir.path(), &["--set", "namesrvAddr="]);
    let mut client = client(&running);
    let code = request::UPDATE_BROKER_CONFIG;
    let mut update = |text: &str| ask(&mut client, code, &[], text.as_bytes());
    assert_eq!(update("traceOn=false\n").code, 0);
    let refusals = [
        ("brokerConfigPath=/x\n", 16),
        ("storePathRootDir=/x\n", 16),
        ("noSuchKey=1\n", 1),
        ("shortPollingTimeMills=abc\n", 1),
    ];
    for (text, code) in refusals {
        let answer = update(&format!("traceOn=true\n{text}"));
        assert_eq!(answer.code, code, "{text}: {answer:?}");
        let key = text.split('=').next().expect("a key");
        assert!(answer.remark.unwrap_or_default().contains(key), "{text}");
    }
    assert_eq!(update("brokerPermission=4\n").code, 0);
    let answer = ask(&mut client, request::GET_BROKER_CONFIG, &[], &[]);
    let config = String::from_utf8(answer.body.clone()).expect("text");
    assert!(
        config.contains("traceOn=false\n"),
        "nothing of a refused update stays"
    );
    assert!(config.contains("brokerPermission=4\n"));
    let version: Value =
        serde_json::from_str(answer.get("version").expect("version")).expect("JSON");
    assert!(version["counter"].is_i64(), "{version}");
    let route = json(&running, &["topic", "route", "BenchmarkTest"]);
    assert_eq!(
        route[0]["queueDatas"][0]["perm"], 4,
        "routes follow at once"
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn runtime_information_has_what_tools_read() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let mut client = client(&running);
    text(&running, &["send", "Orders", "--body", "x"]);
    let answer = ask(&mut client, request::GET_BROKER_RUNTIME_INFO, &[], &[]);
    let KvTable { table } = body(&answer);
    for key in [
        "brokerVersionDesc",
        "brokerVersion",
        "brokerActive",
        "bootTimestamp",
        "runtime",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "ackThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "ackThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "commitLogDiskRatio",
        "commitLogMinOffset",
        "commitLogMaxOffset",
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        "timerEnqueueTps",
        "timerDequeueTps",
        "msgPutTotalYesterdayMorning",
        "msgPutTotalTodayMorning",
        "msgGetTotalTodayNow",
        "putMessageDistributeTime",
        "dispatchBehindBytes",
        "remainHowManyDataToFlush",
        "commitLogDirCapacity",
    ] {
        assert!(table.contains_key(key), "{key} in {table:?}");
    }
    for key in [
        "putTps",
        "getTransferredTps",
        "getTransferedTps",
        "getTotalTps",
    ] {
        let numbers: Vec<f64> = table[key]
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        assert_eq!(numbers.len(), 3, "{key}");
    }
    assert_eq!(table["msgPutTotalTodayNow"], "1");
    let earliest: i64 = table["earliestMessageTimeStamp"].parse().expect("a number");
    assert!(earliest > 1_600_000_000_000, "{earliest}");
    assert_eq!(running.stop().code(), Some(0));
}

/// Messages in queues that were taken away would not be consumed any more.
#[test]
fn what_is_not_named_of_a_topic_that_is_changed_stays_as_it_is() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let create = ["topic", "create", "Wide"];
    let with = |options: &[&str]| text(&running, &[&create[..], options].concat());
    assert!(with(&["--queues", "16", "--order"]).contains("Wide with 16 queues"));
    assert!(with(&["--perm", "r"]).contains("Wide with 16 queues"));
    let topics = std::fs::read(dir.path().join("config/topics.json")).expect("topics.json");
    let topics: Value = fastjson::from_slice(&topics).expect("JSON");
    let wide = &topics["topicConfigTable"]["Wide"];
    let members = ["readQueueNums", "writeQueueNums", "perm", "order"].map(|name| &wide[name]);
    assert_eq!(
        members,
        [&Value::from(16), &16.into(), &4.into(), &true.into()]
    );
    with(&["--queues", "4"]);
    let status = text(&running, &["topic", "status", "Wide"]);
    assert_eq!(status.lines().count(), 1 + 4 + 1, "{status}");
    let topics = std::fs::read(dir.path().join("config/topics.json")).expect("topics.json");
    let topics: Value = fastjson::from_slice(&topics).expect("JSON");
    assert_eq!(topics["topicConfigTable"]["Wide"]["perm"], 4);
}

#[test]
fn health_readiness_and_metrics_are_told_over_http() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    text(&running, &["send", "Orders", "--body", "0123456789"]);
    text(
        &running,
        &["consume", "Orders", "--from", "earliest", "--count", "1"],
    );
    for path in ["/healthz", "/readyz"] {
        assert_eq!(
            page(&running, path),
            ("HTTP/1.1 200 OK".into(), "ok\n".into()),
            "{path}"
        );
    }
    assert!(page(&running, "/nothing").0.contains("404"));
    let (status, metrics) = page(&running, "/metrics");
    assert!(status.ends_with("200 OK"), "{status}");
    for line in [
        "saturnmq_messages_in_total{topic=\"Orders\"} 1\n",
        "saturnmq_messages_out_total{topic=\"Orders\",group=\"TOOLS_CONSUMER\"} 1\n",
        "saturnmq_dispatch_lag_bytes 0.0\n",
        "saturnmq_log_records_total 1\n",
        "saturnmq_log_write_duration_seconds_count 1\n",
        "saturnmq_log_batch_bytes_count 1\n",
        "saturnmq_log_written_bytes_total 4096\n",
        "saturnmq_log_zeroed_bytes_total ",
        "saturnmq_store_read_only{reason=\"log_write_failed\"} 0.0\n",
        "saturnmq_connections{core=\"0\"} ",
        "saturnmq_pulls_parked{core=\"0\"} ",
        "saturnmq_appends_in_flight{core=\"0\"} 0.0\n",
        "saturnmq_disk_used_ratio 0.",
        "saturnmq_build_info{version=",
    ] {
        assert!(metrics.contains(line), "{line:?} in {metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(running.stop().code(), Some(0));
}
