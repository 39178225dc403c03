//! Start and stop of the real binary: what it prints, what it refuses, what it leaves behind.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use saturnmq_net::client::{Client, OwnedCommand};
use saturnmq_net::encode::Encoder;
use tempfile::TempDir;

use crate::patience::soon;

/// Longest wait for anything in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Small files, so that a store is made quickly.
const SMALL: [&str; 3] = [
    "mappedFileSizeCommitLog=1048576",
    "maxHashSlotNum=1000",
    "maxIndexNum=4000",
];

/// A running broker, killed when a test fails.
pub(crate) struct Running {
    child: Child,
    banner: Vec<String>,
    log: Receiver<String>,
}

/// `serve` with its store in `dir`; listens as Apache's configuration says.
fn bare(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saturnmq"));
    command.arg("serve").arg("--data-dir").arg(dir);
    command
        .env_remove("RUST_LOG")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `serve` on free loopback ports, with its store in `dir` and files of the usual size.
pub(crate) fn program(dir: &Path) -> Command {
    let mut command = bare(dir);
    command.args(["--listen", "127.0.0.1:0", "--name-server-port", "0"]);
    command.args(["--set", "httpPort=0"]);
    command
}

/// `serve` on free loopback ports unless `more` says which, with its store in `dir`.
pub(crate) fn serve(dir: &Path, more: &[&str]) -> Command {
    let mut command = bare(dir);
    for option in [["--listen", "127.0.0.1:0"], ["--name-server-port", "0"]] {
        if !more.contains(&option[0]) {
            command.args(option);
        }
    }
    for pair in SMALL.iter().chain(&["httpPort=0"]) {
        command.args(["--set", pair]);
    }
    command.args(more);
    command
}

/// Every file below a directory with a hash of its bytes.
pub(crate) fn contents(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let mut hasher = DefaultHasher::new();
            hasher.write(&fs::read(&path).expect("file"));
            found.insert(path, hasher.finish());
        }
    }
    found
}

fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

impl Running {
    pub(crate) fn start(dir: &Path, more: &[&str]) -> Self {
        Self::run(serve(dir, more))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let lines = lines_of(child.stdout.take().expect("stdout"));
        // Unless it goes elsewhere.
        let log = child.stderr.take().map(lines_of);
        let log = log.unwrap_or_else(|| std::sync::mpsc::channel().1);
        let mut running = Self {
            child,
            banner: Vec::new(),
            log,
        };
        loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => running.banner.push(line),
                Err(_) => {
                    let log: Vec<String> = running.log.try_iter().collect();
                    panic!("no banner: {:?}, log {log:?}", running.banner);
                }
            }
            if running
                .banner
                .last()
                .is_some_and(|line| line.starts_with("  ready"))
            {
                return running;
            }
        }
    }

    pub(crate) fn line(&self, name: &str) -> &str {
        let line = self
            .banner
            .iter()
            .find_map(|line| line.trim_start().strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {:?}", self.banner))
            .trim()
    }

    /// Whether the start-up report has a line with `part`.
    pub(crate) fn says(&self, part: &str) -> bool {
        self.banner.iter().any(|line| line.contains(part))
    }

    pub(crate) fn banner(&self) -> &[String] {
        &self.banner
    }

    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        let word = self
            .line(name)
            .split_whitespace()
            .next()
            .expect("an address");
        word.parse()
            .unwrap_or_else(|_| panic!("{word} is no address"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Memory of its own that it has now, in bytes.
    pub(crate) fn anonymous_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("its status");
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.and_then(|kib| kib.parse::<u64>().ok())
            .expect("RssAnon")
            << 10
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("pid");
        kill(Pid::from_raw(pid), signal).expect("signal");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Asks it to end until it does: one that comes right behind the first is the same wish.
    pub(crate) fn insist(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < until, "the process did not end");
            self.signal(Signal::SIGTERM);
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    pub(crate) fn wait_for_log(&self, part: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self
                .log
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("no {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// What it logged that nobody looked at, once it has ended.
    pub(crate) fn rest_of_log(&self) -> Vec<String> {
        self.log.iter().collect()
    }

    pub(crate) fn send(&self, topic: &str, body: &[u8]) -> OwnedCommand {
        let mut client = Client::connect(self.address("broker"), PATIENCE).expect("connect");
        client
            .invoke(10, send_fields(topic), body, PATIENCE)
            .expect("an answer")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Fields of a single send to queue 0.
fn send_fields(topic: &str) -> impl FnOnce(&mut Encoder<'_>) {
    let fields = [
        ("producerGroup", "p"),
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "0"),
        ("sysFlag", "0"),
        ("bornTimestamp", "1700000000000"),
        ("flag", "0"),
        ("properties", ""),
        ("reconsumeTimes", "0"),
        ("unitMode", "false"),
        ("batch", "false"),
    ];
    move |out| {
        for (name, value) in fields {
            out.field_str(name, value);
        }
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    panic!("the process did not end");
}

/// Runs a start that must fail; gives the last line of stderr.
pub(crate) fn refusal(mut command: Command) -> String {
    let mut child = command.spawn().expect("the binary starts");
    let status = wait(&mut child);
    let mut text = String::new();
    child
        .stderr
        .take()
        .expect("stderr")
        .read_to_string(&mut text)
        .expect("stderr");
    assert!(!status.success(), "it started: {text}");
    text.lines().last().unwrap_or_default().to_string()
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("temporary directory")
}

#[test]
fn a_start_says_what_runs_and_a_stop_leaves_a_clean_store() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    assert!(
        running.banner[0].starts_with("SaturnMQ "),
        "{:?}",
        running.banner
    );
    assert!(
        running
            .line("store")
            .contains(dir.path().to_str().expect("path"))
    );
    assert!(running.line("flush").starts_with("SYNC_FLUSH"));
    assert!(running.line("advertised").contains("127.0.0.1"));
    assert!(running.line("note").contains("--listen 0.0.0.0"));
    let fast = running.address("broker").port() - 2;
    let fast = format!(" and 127.0.0.1:{fast} ");
    assert!(
        running.line("broker").contains(&fast),
        "{:?}",
        running.banner
    );
    for name in ["broker", "name server"] {
        Client::connect(running.address(name), PATIENCE).expect("a port that is listened on");
    }
    assert!(dir.path().join("abort").exists());
    assert_eq!(running.stop().code(), Some(0));
    assert!(!dir.path().join("abort").exists());
    for left in [
        "checkpoint",
        "commitlog",
        "config/topics.json",
        "config/subscriptionGroup.json",
    ] {
        assert!(dir.path().join(left).exists(), "{left}");
    }
}

#[test]
fn sigint_stops_like_sigterm() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &[]);
    running.signal(Signal::SIGINT);
    assert_eq!(running.wait().code(), Some(0));
    assert!(!dir.path().join("abort").exists());
}

#[test]
fn a_message_and_its_topic_outlive_a_restart() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let answer = running.send("Orders", b"one");
    assert_eq!(
        (answer.code, answer.number("queueOffset")),
        (0, Some(0)),
        "{answer:?}"
    );
    let topics = fs::read_to_string(dir.path().join("config/topics.json")).expect("topics.json");
    assert!(
        topics.contains("\"Orders\""),
        "the topic is on disk before the send is answered"
    );
    assert_eq!(running.stop().code(), Some(0));
    let again = Running::start(dir.path(), &[]);
    let answer = again.send("Orders", b"two");
    assert_eq!(
        (answer.code, answer.number("queueOffset")),
        (0, Some(1)),
        "{answer:?}"
    );
    assert_eq!(again.stop().code(), Some(0));
}

#[test]
fn a_killed_broker_is_recovered_with_what_it_acknowledged() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &[]);
    for expected in 0..3 {
        assert_eq!(
            running.send("Orders", b"x").number("queueOffset"),
            Some(expected)
        );
    }
    running.signal(Signal::SIGKILL);
    assert!(!running.wait().success());
    assert!(dir.path().join("abort").exists());
    let again = Running::start(dir.path(), &[]);
    assert!(
        again.line("store").contains("unclean"),
        "{:?}",
        again.banner
    );
    assert_eq!(again.send("Orders", b"x").number("queueOffset"), Some(3));
    assert_eq!(again.stop().code(), Some(0));
}

#[test]
fn a_store_that_is_open_is_refused() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let sentence = refusal(serve(dir.path(), &[]));
    assert!(
        sentence.contains(dir.path().to_str().expect("path")),
        "{sentence}"
    );
    assert!(sentence.contains("in use"), "{sentence}");
    assert_eq!(
        running.stop().code(),
        Some(0),
        "the first one is not disturbed"
    );
}

#[test]
fn a_port_that_is_taken_is_named_with_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address").to_string();
    let dir = directory();
    let sentence = refusal(serve(dir.path(), &["--listen", &address]));
    assert!(
        sentence.contains(&address) && sentence.contains("listenPort"),
        "{sentence}"
    );
    let port = address.rsplit(':').next().expect("port");
    let sentence = refusal(serve(dir.path(), &["--name-server-port", port]));
    assert!(
        sentence.contains(&address) && sentence.contains("nameServerPort"),
        "{sentence}"
    );
    assert!(
        !dir.path().join("abort").exists(),
        "the store was not touched"
    );
}

#[test]
fn values_and_promises_that_cannot_be_kept_refuse_to_start() {
    let dir = directory();
    let conf = dir.path().join("broker.conf");
    for (text, parts) in [
        ("aclEnable=true\n", ["aclEnable=true", "broker.conf line 1"]),
        ("\nbrokerRole=SLAVE\n", ["brokerRole=SLAVE", "line 2"]),
        ("maxMessageSize=4M\n", ["maxMessageSize=4M", "whole number"]),
    ] {
        fs::write(&conf, text).expect("write");
        let path = conf.to_str().expect("path");
        let sentence = refusal(serve(&dir.path().join("store"), &["-c", path]));
        for part in parts {
            assert!(sentence.contains(part), "{part} in {sentence}");
        }
    }
    let sentence = refusal(serve(dir.path(), &["-c", "/nonexistent/broker.conf"]));
    assert!(sentence.contains("/nonexistent/broker.conf"), "{sentence}");
    let binary = refusal(serve(dir.path(), &["-c", env!("CARGO_BIN_EXE_saturnmq")]));
    assert!(binary.contains("saturnmq"), "{binary}");
    for (name, value) in [
        ("SATURNMQ_DISK", "foo"),
        ("SATURNMQ_IO", "foo"),
        ("RUST_LOG", "a=b=c"),
    ] {
        let mut command = serve(dir.path(), &[]);
        command.env(name, value);
        let sentence = refusal(command);
        assert!(
            sentence.contains(&format!("{name}=\"{value}\"")),
            "{sentence}"
        );
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = directory();
    let file = dir.path().join("file");
    fs::write(&file, "no directory").expect("write");
    let store = file.join("store");
    let sentence = refusal(serve(&store, &[]));
    assert!(
        sentence.contains(file.to_str().expect("path")),
        "{sentence}"
    );
}

#[test]
fn an_unknown_key_is_warned_about_by_name_with_the_nearest() {
    let dir = directory();
    let running = Running::start(dir.path(), &["--set", "flushDiskTpye=ASYNC_FLUSH"]);
    let line = running.wait_for_log("flushDiskTpye");
    assert!(
        line.contains("flushDiskType") && line.contains("WARN"),
        "{line}"
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn the_log_is_json_when_asked_for() {
    let dir = directory();
    let running = Running::start(
        dir.path(),
        &["--log-format", "json", "--set", "unknownKeyOfMine=1"],
    );
    let line = running.wait_for_log("unknownKeyOfMine");
    assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn ports_can_be_switched_off() {
    let dir = directory();
    let off = ["--name-server-port", "off", "--set", "fastListenPort=off"];
    let running = Running::start(dir.path(), &off);
    assert!(
        running.line("name server").starts_with("off"),
        "{:?}",
        running.banner
    );
    assert!(
        !running.line("broker").contains(" and "),
        "{:?}",
        running.banner
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn a_closed_terminal_stops_in_order() {
    let dir = directory();
    let program = program(dir.path());
    // Whoever runs the tests may ignore the signal, and that is inherited.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP")
        .arg(program.get_program());
    command.args(program.get_args());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut running = Running::run(command);
    running.signal(Signal::SIGHUP);
    assert!(running.wait().success());
    assert!(!dir.path().join("abort").exists());
}

#[test]
fn a_second_signal_ends_at_once() {
    // A name server that takes connections and never answers holds the stop up for a moment.
    let silent = TcpListener::bind("127.0.0.1:0").expect("bind");
    let outer = format!("namesrvAddr={}", silent.local_addr().expect("address"));
    let dir = directory();
    let mut running = Running::start(dir.path(), &["--set", &outer]);
    running.signal(Signal::SIGTERM);
    running.wait_for_log("stopping");
    assert_eq!(running.insist().code(), Some(1));
}

#[test]
fn a_signal_sent_to_the_process_and_its_group_is_one() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("bind");
    let outer = format!("namesrvAddr={}", silent.local_addr().expect("address"));
    let dir = directory();
    let mut running = Running::start(dir.path(), &["--set", &outer]);
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn health_is_told_over_http() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let address = running
        .line("http")
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let mut stream = std::net::TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer");
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"),
        "{answer}"
    );
    assert_eq!(running.stop().code(), Some(0));
}

#[test]
fn a_stop_answers_pulls_that_are_held_and_does_not_wait_for_them() {
    soon(
        "a stop",
        Duration::from_secs(8),
        stop_with_a_pull_that_is_held,
    );
}

/// Stops a broker that holds a pull for ten minutes; how long that took.
fn stop_with_a_pull_that_is_held() -> Duration {
    let dir = directory();
    let mut running = Running::start(dir.path(), &[]);
    assert_eq!(running.send("Orders", b"x").code, 0);
    let mut client = Client::connect(running.address("broker"), PATIENCE).expect("connect");
    let fields = [
        ("consumerGroup", "g"),
        ("topic", "Orders"),
        ("queueId", "0"),
        ("queueOffset", "1"),
        ("maxMsgNums", "32"),
        // Suspend, and a subscription in the request.
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "600000"),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ];
    let write = |out: &mut Encoder<'_>| {
        for (name, value) in fields {
            out.field_str(name, value);
        }
    };
    client.queue(11, false, write, b"").expect("pull");
    client.flush().expect("flush");
    // An answer to a later request shows that the pull was taken, and is held.
    let answer = running.send("Other", b"x");
    assert_eq!(answer.code, 0);
    let begun = Instant::now();
    running.signal(Signal::SIGTERM);
    // SERVICE_NOT_AVAILABLE: clients ask again after some seconds. One that is never answered does
    // not for half a minute, and PULL_NOT_FOUND is asked after at once, on the ending connection.
    let answer = client.receive(begun + PATIENCE).expect("an answer");
    assert_eq!(answer.map(|answer| answer.code), Some(14));
    assert_eq!(running.wait().code(), Some(0));
    begun.elapsed()
}

#[test]
fn every_send_that_was_answered_during_a_stop_is_kept() {
    let dir = directory();
    let mut running = Running::start(dir.path(), &[]);
    assert_eq!(running.send("Orders", b"first").code, 0);
    let (told, tell) = channel();
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (address, told) = (running.address("broker"), told.clone());
            thread::spawn(move || {
                let mut client = Client::connect(address, PATIENCE).expect("connect");
                let mut answered = 0;
                // Ends with the first failure: the broker closes the connection when it stops.
                while let Ok(answer) = client.invoke(10, send_fields("Orders"), b"x", PATIENCE) {
                    if answer.code != 0 {
                        break;
                    }
                    answered += 1;
                    let _ = told.send(());
                }
                answered
            })
        })
        .collect();
    for _ in 0..200 {
        tell.recv_timeout(PATIENCE).expect("sends are answered");
    }
    running.signal(Signal::SIGTERM);
    let answered: i64 = senders.into_iter().map(|s| s.join().expect("sender")).sum();
    assert_eq!(running.wait().code(), Some(0));
    let again = Running::start(dir.path(), &[]);
    assert!(
        !again.line("store").contains("unclean"),
        "{:?}",
        again.banner
    );
    let next = again
        .send("Orders", b"last")
        .number("queueOffset")
        .expect("offset");
    assert!(
        next > answered,
        "{answered} sends were answered, {next} are stored"
    );
    assert_eq!(again.stop().code(), Some(0));
}

#[test]
fn the_service_manager_hears_of_readiness_life_and_stop() {
    let dir = directory();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("bind");
    manager.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let hear = || {
        let mut buffer = [0; 512];
        let size = manager.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..size]).into_owned()
    };
    let mut command = serve(&dir.path().join("store"), &[]);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "20000");
    let mut running = Running::run(command);
    assert!(hear().starts_with("READY=1\nSTATUS=serving 127.0.0.1:"));
    assert_eq!(hear(), "WATCHDOG=1");
    running.signal(Signal::SIGTERM);
    let until = Instant::now() + PATIENCE;
    while hear() != "STOPPING=1" {
        assert!(Instant::now() < until, "no word of the stop");
    }
    assert_eq!(running.wait().code(), Some(0));
}
