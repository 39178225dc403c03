//! The embedded name server: brokers that register by hand, this process's own topics, and what
//! stays.

use saturnmq_net::fastjson;
use saturnmq_net::messages::register::{RegisterBrokerBody, body_crc32};
use saturnmq_net::messages::topic::TopicConfig;
use serde_json::{Value, json};

use super::*;

/// What a client of 5.0 or newer says it is.
const V5: i32 = 479;

/// A broker that a test plays.
struct Played<'a> {
    name: &'a str,
    address: &'a str,
    id: &'a str,
    lease_ms: &'a str,
}

const PLAYED: Played<'static> = Played {
    name: "played",
    address: "127.0.0.1:9",
    id: "0",
    lease_ms: "60000",
};

fn table(counter: i64, topics: &[(&str, i32)]) -> RegisterBrokerBody {
    let mut body = RegisterBrokerBody::default();
    let wrapper = &mut body.topic_config_serialize_wrapper;
    wrapper.data_version.counter = counter;
    for (topic, sys_flag) in topics {
        let config = TopicConfig {
            topic_name: (*topic).into(),
            topic_sys_flag: *sys_flag,
            ..TopicConfig::default()
        };
        wrapper
            .topic_config_table
            .insert((*topic).to_owned(), config);
    }
    body
}

impl Talk {
    /// A connection to the name server of a client of 5.0 or newer.
    fn to_name_server(running: &Running) -> Self {
        let mut talk = Self::to(running.address("name server"));
        talk.version = V5;
        talk
    }

    pub(super) fn make_topic(&mut self, topic: &str, queues: i32) {
        let queues = queues.to_string();
        let fields = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", &queues),
            ("writeQueueNums", &queues),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        let answer = self.ask(17, &fields, b"");
        assert_eq!(answer.code, 0, "{answer:?}");
    }

    fn register_bytes(&mut self, who: &Played<'_>, packed: &str, crc: i32, body: &[u8]) -> Arrived {
        let fields = [
            ("brokerName", who.name),
            ("brokerAddr", who.address),
            ("clusterName", "Elsewhere"),
            ("haServerAddr", "127.0.0.1:10"),
            ("brokerId", who.id),
            ("heartbeatTimeoutMillis", who.lease_ms),
            ("compressed", packed),
            ("bodyCrc32", &crc.to_string()),
        ];
        self.ask(103, &fields, body)
    }

    fn register(&mut self, who: &Played<'_>, body: &RegisterBrokerBody) -> Arrived {
        let body = serde_json::to_vec(body).expect("JSON");
        self.register_bytes(who, "false", body_crc32(&body), &body)
    }

    fn ask_json(&mut self, code: i32, fields: &[(&str, &str)]) -> Value {
        let answer = self.ask(code, fields, b"");
        assert_eq!(answer.code, 0, "{answer:?}");
        fastjson::parse(&answer.body).expect("JSON")
    }

    /// `None` without a route.
    fn route(&mut self, topic: &str) -> Option<Value> {
        let answer = self.ask(105, &[("topic", topic)], b"");
        assert!(matches!(answer.code, 0 | 17), "{answer:?}");
        (answer.code == 0).then(|| fastjson::parse(&answer.body).expect("JSON"))
    }

    fn wait_until_no_route(&mut self, topic: &str) {
        let until = Instant::now() + PATIENCE;
        while self.route(topic).is_some() {
            assert!(Instant::now() < until, "{topic} still has a route");
        }
    }
}

#[test]
fn brokers_register_with_a_plain_or_a_compressed_table_that_is_whole() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to_name_server(&running);
    let whole = table(1, &[("A", 0), ("B", 0)]);
    let plain = serde_json::to_vec(&whole).expect("JSON");
    let answer = talk.register_bytes(&PLAYED, "false", 1, &plain);
    assert_eq!((answer.code, &*answer.remark), (1, "crc32 not match"));
    let broken = &plain[..plain.len() - 9];
    let answer = talk.register_bytes(&PLAYED, "false", 0, broken);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert_eq!(talk.route("A"), None);
    let answer = talk.register(&PLAYED, &table(1, &[("A", 0)]));
    assert_eq!(
        (answer.code, &*answer.remark),
        (1, "register broker failed")
    );

    assert_eq!(talk.register(&PLAYED, &whole).code, 0);
    let route = talk.route("A").expect("a route");
    assert_eq!(
        route["brokerDatas"],
        json!([{"brokerAddrs": {"0": "127.0.0.1:9"}, "brokerName": "played",
                "cluster": "Elsewhere", "enableActingMaster": false}])
    );
    assert_eq!(route["queueDatas"][0]["writeQueueNums"], 16);
    // With the same version nothing is new; with the next one it is.
    let next = table(2, &[("A", 0), ("C", 0)]);
    let packed = next.encode_compressed(V5).expect("a body");
    let answer = talk.register_bytes(&PLAYED, "true", body_crc32(&packed), &packed);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(talk.route("C").is_some() && talk.route("B").is_some());

    let slave = Played {
        id: "1",
        address: "127.0.0.1:8",
        ..PLAYED
    };
    let answer = talk.register(&slave, &table(1, &[("A", 0), ("D", 0)]));
    assert_eq!(
        answer.ext.get("masterAddr").map(|a| &**a),
        Some("127.0.0.1:9")
    );
    assert_eq!(
        answer.ext.get("haServerAddr").map(|a| &**a),
        Some("127.0.0.1:10")
    );
    assert_eq!(talk.route("D"), None);
    let addresses = &talk.route("A").expect("a route")["brokerDatas"][0]["brokerAddrs"];
    assert_eq!(addresses, &json!({"0": "127.0.0.1:9", "1": "127.0.0.1:8"}));
}

#[test]
fn an_older_broker_may_begin_with_one_topic_and_a_one_way_request() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("name server"));
    let answer = talk.register(&PLAYED, &table(1, &[("A", 0)]));
    assert_eq!(answer.code, 0, "{answer:?}");
    let body = serde_json::to_vec(&table(2, &[("B", 0)])).expect("JSON");
    let (_, bytes) = talk.encode(
        103,
        &[
            ("brokerName", PLAYED.name),
            ("brokerAddr", PLAYED.address),
            ("clusterName", "Elsewhere"),
            ("haServerAddr", "127.0.0.1:10"),
            ("brokerId", "0"),
        ],
        &body,
    );
    talk.send_bytes(&with_flag(&bytes, 2));
    // What one connection asks is answered in order.
    assert!(talk.route("B").is_some() && talk.route("A").is_some());
}

/// A JSON frame with another `flag`, of the same width.
fn with_flag(frame: &[u8], flag: u8) -> Vec<u8> {
    let name = b"\"flag\":0";
    let at = frame.windows(name.len()).position(|w| w == name);
    let mut frame = frame.to_vec();
    frame[at.expect("a flag") + name.len() - 1] = b'0' + flag;
    frame
}

#[test]
fn a_broker_goes_when_its_connection_closes_its_lease_ends_or_it_says_so() {
    let (running, _dir) = broker(&[]);
    let mut asking = Talk::to_name_server(&running);
    let whole = table(1, &[("A", 0), ("B", 0)]);

    let mut talk = Talk::to_name_server(&running);
    assert_eq!(talk.register(&PLAYED, &whole).code, 0);
    assert!(asking.route("A").is_some());
    drop(talk);
    asking.wait_until_no_route("A");

    let mut talk = Talk::to_name_server(&running);
    assert_eq!(talk.register(&PLAYED, &whole).code, 0);
    let other = Played {
        address: "127.0.0.1:7",
        ..PLAYED
    };
    let leave = |who: &Played<'_>, talk: &mut Talk| {
        let fields = [
            ("brokerName", who.name),
            ("brokerAddr", who.address),
            ("clusterName", "Elsewhere"),
            ("brokerId", "0"),
        ];
        assert_eq!(talk.ask(104, &fields, b"").code, 0);
    };
    leave(&other, &mut talk);
    assert!(asking.route("A").is_some(), "another address has left");
    leave(&PLAYED, &mut talk);
    assert_eq!(asking.route("A"), None);
    let clusters = asking.ask_json(106, &[]);
    assert!(clusters["clusterAddrTable"].get("Elsewhere").is_none());

    let brief = Played {
        lease_ms: "1",
        ..PLAYED
    };
    assert_eq!(talk.register(&brief, &whole).code, 0);
    let heartbeat = [
        ("brokerName", "played"),
        ("brokerAddr", "127.0.0.1:9"),
        ("clusterName", "Elsewhere"),
        ("brokerId", "0"),
    ];
    assert_eq!(talk.ask(904, &heartbeat, b"").code, 0);
    assert!(talk.is_closed(), "the lease is over");
    asking.wait_until_no_route("A");
}

#[test]
fn a_registration_over_the_limits_is_refused_as_a_whole_and_names_the_limit() {
    let (running, _dir) = broker(&[
        "--set",
        "nameServerMaxTopics=3",
        "--set",
        "nameServerMaxBrokers=2",
    ]);
    let mut talk = Talk::to_name_server(&running);
    let answer = talk.register(
        &PLAYED,
        &table(1, &[("A", 0), ("B", 0), ("C", 0), ("D", 0)]),
    );
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("nameServerMaxTopics"), "{answer:?}");
    assert_eq!(talk.route("A"), None);
    // This process has one place and its own topics, whatever the limits.
    assert_eq!(talk.register(&PLAYED, &table(1, &[])).code, 0);
    let third = Played {
        name: "third",
        address: "127.0.0.1:8",
        ..PLAYED
    };
    let answer = talk.register(&third, &table(1, &[]));
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("nameServerMaxBrokers"), "{answer:?}");
    let route = json!({"queueDatas": [{"brokerName": "played", "readQueueNums": 1,
        "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}], "brokerDatas": []});
    let answer = talk.ask(217, &[("topic", "A")], route.to_string().as_bytes());
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("nameServerMaxTopics"), "{answer:?}");
}

#[test]
fn versions_and_members_of_a_registered_broker_can_be_asked_for() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to_name_server(&running);
    talk.register(&PLAYED, &table(7, &[("A", 0), ("B", 0)]));
    let who = [
        ("brokerName", "played"),
        ("brokerAddr", "127.0.0.1:9"),
        ("clusterName", "Elsewhere"),
        ("brokerId", "0"),
    ];
    for (counter, changed) in [(7, "false"), (8, "true")] {
        let asked = format!("{{\"counter\":{counter},\"timestamp\":0,\"stateVersion\":0}}");
        let answer = talk.ask(322, &who, asked.as_bytes());
        assert_eq!(answer.ext["changed"], changed, "{answer:?}");
        let held = fastjson::parse(&answer.body).expect("JSON");
        assert_eq!(held["counter"], 7, "{held}");
    }
    let members = talk.ask_json(901, &who[..3]);
    assert_eq!(
        members["brokerMemberGroup"]["brokerAddrs"],
        json!({"0": "127.0.0.1:9"})
    );
    let nobody = [("brokerName", "x"), ("clusterName", "y")];
    let members = talk.ask_json(901, &nobody);
    assert_eq!(members["brokerMemberGroup"]["brokerAddrs"], json!({}));
}

#[test]
fn topics_are_listed_by_cluster_and_unit_and_can_be_closed_added_and_forgotten() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to_name_server(&running);
    talk.register(
        &PLAYED,
        &table(1, &[("A", 0), ("U", 1), ("S", 2), ("US", 3)]),
    );
    let topics = |talk: &mut Talk, code: i32, fields: &[(&str, &str)]| {
        let list = talk.ask_json(code, fields)["topicList"].take();
        let mut names: Vec<String> = serde_json::from_value(list).expect("names");
        names.sort();
        names
    };
    let elsewhere = [("cluster", "Elsewhere")];
    assert_eq!(topics(&mut talk, 224, &elsewhere), ["A", "S", "U", "US"]);
    assert_eq!(topics(&mut talk, 311, &[]), ["U", "US"]);
    assert_eq!(topics(&mut talk, 312, &[]), ["S", "US"]);
    assert_eq!(topics(&mut talk, 313, &[]), ["S"]);
    let system = topics(&mut talk, 304, &[]);
    assert!(
        system.contains(&"Elsewhere".into()) && system.contains(&"DefaultCluster".into()),
        "{system:?}"
    );

    let perm = |talk: &mut Talk| talk.route("A").expect("a route")["queueDatas"][0]["perm"].clone();
    let played = [("brokerName", "played")];
    let answer = talk.ask(205, &played, b"");
    assert_eq!(answer.number("wipeTopicCount"), 4);
    assert_eq!(perm(&mut talk), 4);
    let answer = talk.ask(327, &played, b"");
    assert_eq!(answer.number("addTopicCount"), 4);
    assert_eq!(perm(&mut talk), 6);

    let route = json!({"brokerDatas": [], "queueDatas": [
        {"brokerName": "played", "perm": 6, "readQueueNums": 3, "writeQueueNums": 3},
        {"brokerName": "nobody", "perm": 6, "readQueueNums": 3, "writeQueueNums": 3}]});
    let answer = talk.ask(217, &[("topic", "N")], route.to_string().as_bytes());
    assert_eq!(answer.code, 0, "{answer:?}");
    let queues = talk.route("N").expect("a route")["queueDatas"].take();
    assert_eq!(queues.as_array().map(Vec::len), Some(1), "{queues}");
    let elsewhere = |cluster| [("topic", "A"), ("clusterName", cluster)];
    for cluster in ["NoSuchCluster", "DefaultCluster"] {
        assert_eq!(talk.ask(216, &elsewhere(cluster), b"").code, 0);
        assert!(talk.route("A").is_some(), "{cluster}");
    }
    assert_eq!(talk.ask(216, &elsewhere("Elsewhere"), b"").code, 0);
    assert_eq!(talk.route("A"), None);
    assert_eq!(talk.ask(216, &[("topic", "N")], b"").code, 0);
    assert_eq!(talk.route("N"), None);
}

#[test]
fn own_topics_have_a_route_when_they_are_made_and_none_when_they_are_deleted() {
    let (running, _dir) = broker(&[]);
    let mut names = Talk::to_name_server(&running);
    let mut talk = Talk::to(running.address("broker"));
    // Clients make their queues of a new topic from this one.
    let template = names.route("TBW102").expect("a route");
    let queues = &template["queueDatas"][0];
    assert_eq!(
        (&queues["perm"], &queues["readQueueNums"]),
        (&json!(7), &json!(8))
    );
    assert_eq!(
        template["brokerDatas"][0]["brokerAddrs"]["0"],
        running.address("broker").to_string()
    );
    talk.make_topic("Made", 3);
    assert!(names.route("Made").is_some());
    talk.make_topic("Made", 5);
    let route = names.route("Made").expect("a route");
    assert_eq!(route["queueDatas"][0]["readQueueNums"], 5);
    talk.send_message("Sent", 0, "", b"x");
    assert!(names.route("Sent").is_some());
    for topic in ["Made", "Sent"] {
        assert_eq!(talk.ask(215, &[("topic", topic)], b"").code, 0);
        assert_eq!(names.route(topic), None);
    }
}

#[test]
fn without_automatic_topics_there_is_no_template() {
    let (running, _dir) = broker(&["--set", "autoCreateTopicEnable=false"]);
    let mut names = Talk::to_name_server(&running);
    assert_eq!(names.route("TBW102"), None);
    assert!(names.route("SELF_TEST_TOPIC").is_some());
}

#[test]
fn nobody_can_take_the_place_of_the_broker_in_the_same_process() {
    let (running, _dir) = broker(&["--set", "brokerName=mine"]);
    let mut talk = Talk::to_name_server(&running);
    let whole = table(1, &[("A", 0), ("B", 0)]);
    let namesake = Played {
        name: "mine",
        ..PLAYED
    };
    let answer = talk.register(&namesake, &whole);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.remark.contains("brokerName mine"), "{answer:?}");
    let own = running.address("broker").to_string();
    let fields = [
        ("brokerName", "mine"),
        ("brokerAddr", &own),
        ("clusterName", "DefaultCluster"),
        ("brokerId", "0"),
    ];
    assert_eq!(talk.ask(104, &fields, b"").code, 0);
    let route = talk.route("TBW102").expect("a route");
    assert_eq!(route["brokerDatas"][0]["brokerAddrs"]["0"], own);
}

#[test]
fn keys_and_values_are_kept_over_a_restart() {
    let dir = directory();
    let running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to_name_server(&running);
    for (namespace, key, value) in [("N", "k", "v 值"), ("N", "gone", "1"), ("M", "k", "2")] {
        let fields = [("namespace", namespace), ("key", key), ("value", value)];
        assert_eq!(talk.ask(100, &fields, b"").code, 0);
    }
    let gone = [("namespace", "N"), ("key", "gone")];
    assert_eq!(talk.ask(102, &gone, b"").code, 0);
    assert_eq!(running.stop().code(), Some(0));

    let running = Running::start(dir.path(), &[]);
    let mut talk = Talk::to_name_server(&running);
    let answer = talk.ask(101, &[("namespace", "N"), ("key", "k")], b"");
    assert_eq!(answer.ext["value"], "v 值");
    assert_eq!(talk.ask(101, &gone, b"").code, 22);
    let table = talk.ask_json(219, &[("namespace", "N")]);
    assert_eq!(table, json!({"table": {"k": "v 值"}}));
    assert_eq!(talk.ask(219, &[("namespace", "X")], b"").code, 22);
}

/// Debug builds of the broker stop when a network core walks over a whole table.
#[test]
fn no_request_makes_a_network_core_walk_over_all_topics_groups_or_clients() {
    let (running, _dir) = broker(&[]);
    let mut server = Talk::to(running.address("name server"));
    let mut talk = Talk::to(running.address("broker"));
    (server.version, talk.version) = (V5, V5);
    talk.ask(310, &send_fields("T", "0", "", "false"), b"body");
    let fields = [
        ("topic", "T"),
        ("group", "g"),
        ("consumerGroup", "g"),
        ("producerGroup", "g"),
        ("groupName", "g"),
        ("cluster", "DefaultCluster"),
        ("clusterName", "DefaultCluster"),
        ("brokerName", "b"),
        ("brokerAddr", "127.0.0.1:9"),
        ("haServerAddr", "127.0.0.1:8"),
        ("brokerId", "0"),
        ("namespace", "n"),
        ("srcGroup", "g"),
        ("destGroup", "h"),
        ("offline", "true"),
        ("compareGroup", "g"),
        ("statsName", "TOPIC_PUT_NUMS"),
        ("statsKey", "T"),
    ];
    for code in [
        101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304, 311, 312, 313, 318, 319, 322,
        327, 901, 904,
    ] {
        server.ask(code, &fields, b"");
    }
    talk.ask(314, &fields[fields.len() - 6..], b"");
    for code in [
        21, 25, 26, 28, 29, 30, 31, 38, 43, 45, 60, 61, 200, 201, 202, 203, 204, 208, 222, 223,
        300, 303, 305, 306, 307, 308, 309, 314, 315, 316, 317, 321, 323, 328, 329, 343, 345, 351,
        352, 353,
    ] {
        talk.ask(code, &fields, b"");
    }
    talk.ask(25, &[], b"brokerPermission=4");
    assert_eq!(running.stop().code(), Some(0));
}
