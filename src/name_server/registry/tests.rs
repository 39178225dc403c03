use super::*;

const ADDRESS: &str = "127.0.0.1:1";

fn queues(n: i32) -> TopicQueues {
    TopicQueues {
        read_queues: n,
        write_queues: n,
        perm: 6,
        sys_flag: 0,
    }
}

fn registration(broker: &str, address: &str, topics: &[(&str, i32)]) -> Registration {
    Registration {
        cluster: "C".into(),
        broker: broker.into(),
        id: 0,
        address: address.into(),
        ha_address: "127.0.0.1:2".into(),
        lease_ms: DEFAULT_LEASE_MS,
        acting_master: false,
        single_topic_first: false,
        version: Version {
            counter: 1,
            ..Version::default()
        },
        topics: topics
            .iter()
            .map(|(t, n)| ((*t).to_owned(), queues(*n)))
            .collect(),
    }
}

/// Broker `b` with topics T and U.
fn usual() -> Registration {
    registration("b", ADDRESS, &[("T", 4), ("U", 1)])
}

/// Empty tables with these limits.
fn limited(topics: usize, brokers: usize, routes: usize) -> Registry<u64> {
    Registry::new(Limits {
        topics,
        brokers,
        routes,
    })
}

/// Tables that hold [`usual`], which came on `connection`.
fn with_usual(connection: Option<u64>) -> Registry<u64> {
    let mut registry = Registry::new(Limits::default());
    registry.register(usual(), connection, 0).unwrap();
    registry
}

fn refusal(registry: &mut Registry<u64>, registration: Registration) -> String {
    let refused = registry.register(registration, Some(99), 0);
    refused.expect_err("it is too much").to_string()
}

#[test]
fn a_registered_topic_has_a_route_until_its_connection_closes() {
    let mut registry = with_usual(Some(7));
    let route = registry.route("T").unwrap();
    assert_eq!(route.queues, vec![("b".to_owned(), queues(4))]);
    assert_eq!(route.brokers[0].1.addresses[&0], ADDRESS);
    registry.connection_closed(7);
    assert_eq!(registry.route("T"), None);
    assert_eq!(registry.topics().count(), 0);
    assert_eq!(registry.clusters().count(), 0);
}

#[test]
fn nobody_takes_the_place_of_the_broker_of_this_process() {
    let mut registry = with_usual(None);
    let namesake = registration("b", "127.0.0.1:9", &[("T", 4), ("U", 8)]);
    let refused = registry.register(namesake, Some(9), 0).unwrap_err();
    assert!(refused.to_string().contains("brokerName b"), "{refused}");
    let neighbour = registration("other", ADDRESS, &[("T", 4), ("U", 8)]);
    registry.register(neighbour, Some(9), 0).unwrap_err();
    // Registered over the network as well, it does not depend on that connection.
    registry.register(usual(), Some(7), 0).unwrap();
    registry.connection_closed(7);
    registry.unregister("C", "b", ADDRESS);
    let route = registry.route("T").unwrap();
    assert_eq!(route.brokers[0].1.addresses[&0], ADDRESS);
}

#[test]
fn a_single_topic_before_the_full_table_is_refused() {
    let mut registry = limited(100, 100, 100);
    let single = registration("b", ADDRESS, &[("T", 4)]);
    let refused = Err(Refused::NotYetKnown);
    assert_eq!(registry.register(single.clone(), Some(1), 0), refused);
    let mut old = registration("old", "127.0.0.1:5", &[("T", 4)]);
    old.single_topic_first = true;
    registry.register(old, Some(5), 0).unwrap();
    registry.connection_closed(5);
    registry.register(usual(), Some(1), 0).unwrap();
    let mut later = registration("b", ADDRESS, &[("V", 2)]);
    later.version.counter = 2;
    registry.register(later, Some(1), 0).unwrap();
    assert!(registry.route("T").is_some() && registry.route("V").is_some());
}

#[test]
fn queue_counts_change_only_with_the_data_version() {
    let mut registry = with_usual(Some(1));
    registry.set_writable("b", false);
    registry.register(usual(), Some(1), 1).unwrap();
    assert_eq!(registry.route("T").unwrap().queues[0].1.perm, 4);
    let mut changed = usual();
    changed.version.counter = 2;
    registry.register(changed, Some(1), 2).unwrap();
    assert_eq!(registry.route("T").unwrap().queues[0].1.perm, 6);
}

#[test]
fn a_lease_that_runs_out_removes_the_broker_and_names_its_connection() {
    let mut registry = with_usual(Some(9));
    assert!(registry.expire(DEFAULT_LEASE_MS).is_empty());
    registry.touch("C", ADDRESS, 5_000);
    assert!(registry.expire(DEFAULT_LEASE_MS + 5_000).is_empty());
    assert_eq!(registry.expire(DEFAULT_LEASE_MS + 5_001), vec![9]);
    assert_eq!(registry.route("T"), None);
}

#[test]
fn the_broker_of_this_process_never_expires() {
    let mut registry = with_usual(None);
    assert!(registry.expire(i64::MAX).is_empty());
    assert!(registry.route("T").is_some());
}

#[test]
fn a_slave_learns_its_master_and_adds_no_queues() {
    let mut registry = with_usual(Some(1));
    let mut slave = registration("b", "127.0.0.1:9", &[("T", 4), ("W", 1)]);
    slave.id = 1;
    let answer = registry.register(slave, Some(2), 0).unwrap();
    assert_eq!(answer.master_address.as_deref(), Some(ADDRESS));
    assert_eq!(answer.ha_address.as_deref(), Some("127.0.0.1:2"));
    assert_eq!(registry.route("W"), None);
    assert_eq!(registry.route("T").unwrap().brokers[0].1.addresses.len(), 2);
}

#[test]
fn registrations_cannot_fill_the_memory_with_brokers_and_clusters() {
    let mut registry = limited(1000, 3, 1000);
    for n in 0..3 {
        let mut one = registration(&format!("b{n}"), &format!("127.0.0.1:{n}"), &[]);
        one.cluster = format!("C{n}");
        registry.register(one, Some(n), 0).unwrap();
    }
    let more = registration("b3", "127.0.0.1:3", &[("T", 1), ("U", 1)]);
    let text = refusal(&mut registry, more);
    assert!(
        text.contains("3 and") || text.contains("4 broker"),
        "{text}"
    );
    assert!(text.contains("nameServerMaxBrokers"), "{text}");
    assert_eq!(registry.route("T"), None, "nothing of it is taken");
    let mut known = registration("b2", "127.0.0.1:2", &[("T", 1)]);
    known.cluster = "C2".into();
    registry.register(known, Some(2), 0).expect("it is there");
}

#[test]
fn an_address_under_another_name_or_cluster_leaves_nothing_behind() {
    let mut registry = limited(1000, 10, 1000);
    for n in 0..10 {
        let one = registration(&format!("b{n}"), ADDRESS, &[("T", 1), ("U", 1)]);
        registry.register(one, Some(1), 0).unwrap();
    }
    assert_eq!(registry.brokers().count(), 1);
    assert_eq!(registry.route("T").unwrap().queues.len(), 1);
    // One name in several clusters, as long as an address says so.
    for n in 0..5 {
        let mut one = registration("b9", &format!("127.0.0.2:{n}"), &[]);
        (one.cluster, one.id) = (format!("D{n}"), n + 1);
        registry.register(one, Some(2), 0).unwrap();
    }
    assert_eq!(registry.clusters().count(), 6);
    registry.connection_closed(2);
    assert_eq!(registry.clusters().count(), 1);
    registry.connection_closed(1);
    assert_eq!(registry.clusters().count(), 0);
    assert_eq!(registry.topics().count(), 0);
}

#[test]
fn registrations_cannot_fill_the_memory_with_topics() {
    let mut registry = limited(3, 10, 4);
    registry.register(usual(), Some(1), 0).unwrap();
    let more = registration("c", "127.0.0.1:3", &[("V", 1), ("W", 1)]);
    let text = refusal(&mut registry, more);
    assert!(
        text.contains("4 topics") && text.contains("hold 3"),
        "{text}"
    );
    assert!(text.contains("nameServerMaxTopics"), "{text}");
    assert!(!registry.brokers().any(|(name, _)| name == "c"));
    let same = registration("c", "127.0.0.1:3", &[("T", 1), ("U", 1)]);
    registry.register(same, Some(3), 0).expect("no new topic");
    let third = registration("d", "127.0.0.1:4", &[("T", 1), ("U", 1)]);
    let text = refusal(&mut registry, third);
    assert!(text.contains("nameServerMaxRoutes"), "{text}");
    assert!(registry.add_topic("b", "V", queues(1)).is_err());
    registry
        .add_topic("b", "T", queues(9))
        .expect("it is there");
}

#[test]
fn the_topics_of_the_broker_of_this_process_have_routes_whatever_the_limits() {
    let mut registry = limited(1, 0, 1);
    registry.register(usual(), None, 0).unwrap();
    registry.set_topic("b", "V", queues(1));
    assert!(registry.route("U").is_some() && registry.route("V").is_some());
}

#[test]
fn names_have_a_longest_length() {
    let mut registry = with_usual(Some(1));
    let long = "n".repeat(1025);
    let mut named = usual();
    named.cluster = long.clone();
    assert!(refusal(&mut registry, named).contains("clusterName has 1025 bytes"));
    let topic = registration("b", ADDRESS, &[(&long, 1)]);
    assert!(refusal(&mut registry, topic).contains("topic has 1025 bytes"));
}

#[test]
fn whoever_unregisters_in_another_name_leaves_nothing_that_has_no_lease() {
    let mut registry = limited(1000, 2, 1000);
    for n in 0..100 {
        let name = format!("b{n}");
        registry
            .register(
                registration(&name, ADDRESS, &[("T", 1), ("U", 1)]),
                Some(1),
                0,
            )
            .expect("one broker");
        registry.unregister("C", "other", ADDRESS);
        registry.unregister("D", &name, ADDRESS);
        assert_eq!(registry.route("T").unwrap().queues[0].0, name);
    }
    assert_eq!(registry.brokers().count(), 1);
    registry.unregister("C", "b99", ADDRESS);
    assert_eq!(registry.brokers().count(), 0);
    assert_eq!(registry.route("T"), None);
    assert!(registry.expire(i64::MAX).is_empty());
}

/// What is kept besides the tables, counted anew from the tables.
fn check_counts(registry: &Registry<u64>) {
    let routes: usize = registry.topics.iter().map(|(_, held)| held.len()).sum();
    assert_eq!(registry.topics.routes(), routes);
    let mut by_broker = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (topic, holders) in registry.topics.iter() {
        assert!(!holders.is_empty(), "{topic}");
        for broker in holders.keys() {
            by_broker.entry(broker).or_default().insert(topic);
        }
    }
    for (broker, topics) in by_broker {
        assert!(registry.brokers.contains_key(broker), "{broker}");
        let held: BTreeSet<&str> = registry.topics.of_broker(broker).map(|t| &**t).collect();
        assert_eq!(held, topics, "{broker}");
    }
    for (cluster, names) in &registry.clusters {
        assert!(!names.is_empty(), "{cluster}");
        let lives = |name: &String| registry.live.has_member(cluster, name);
        assert!(names.iter().all(lives), "{cluster}: {names:?}");
    }
    for (name, entry) in &registry.brokers {
        assert!(!entry.addresses.is_empty(), "{name}");
        let held = registry.clusters.get(&entry.cluster);
        let member = held.is_some_and(|names| names.contains(name));
        let elsewhere = registry.live.clusters_of(name).next().is_some();
        assert!(member || elsewhere, "{name}");
    }
}

#[test]
fn counts_and_ways_back_are_those_of_the_tables_whatever_comes_and_goes() {
    for seed in 0..50_u64 {
        let mut registry = limited(12, 6, 20);
        let mut random = seed * 7_919 + 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for now in 0..400 {
            let broker = format!("b{}", next(4));
            let address = format!("10.0.0.{}:1", next(5));
            let cluster = format!("C{}", next(2));
            let topic = format!("T{}", next(15));
            match next(8) {
                0..=2 => {
                    let names: Vec<String> = (0..next(5)).map(|n| format!("T{n}")).collect();
                    let topics: Vec<_> = names.iter().map(|name| (name.as_str(), 4)).collect();
                    let mut sent = registration(&broker, &address, &topics);
                    sent.cluster = cluster;
                    sent.id = i64::try_from(next(2)).expect("small");
                    sent.single_topic_first = true;
                    sent.version.counter = now;
                    sent.lease_ms = 50;
                    let _refused = registry.register(sent, Some(next(4)), now);
                }
                3 => {
                    if registry.broker(&broker).is_some() {
                        let _refused = registry.add_topic(&broker, &topic, queues(2));
                    }
                }
                4 => registry.delete_topic(&topic, (next(2) == 0).then_some(cluster.as_str())),
                5 => registry.unregister(&cluster, &broker, &address),
                6 => registry.connection_closed(next(4)),
                _ => drop(registry.expire(now)),
            }
            check_counts(&registry);
        }
        for connection in 0..4 {
            registry.connection_closed(connection);
            assert!(!registry.has_connection(connection));
        }
        let left = (
            registry.live.len(),
            registry.brokers.len(),
            registry.clusters.len(),
        );
        assert_eq!(
            (left, registry.topics.routes()),
            ((0, 0, 0), 0),
            "seed {seed}"
        );
        assert_eq!(registry.topics.topics(), 0, "seed {seed}");
    }
}
