//! Pulls that wait, and what is visible when.

use super::*;

#[test]
fn a_waiting_pull_is_answered_as_soon_as_a_message_is_there() {
    let (running, _dir) = broker(&[]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut producer = Talk::to(running.address("broker"));
    producer.send_message("T", 0, "", b"0");
    let mut late = Vec::new();
    for offset in 1..50 {
        // Longer than the test waits for an answer.
        let opaque = consumer.start_pull(&Pull {
            wait_ms: 600_000,
            ..Pull::of("T", offset)
        });
        let sent = producer.send_message("T", 0, "", b"now");
        let answer = consumer.answer(opaque);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert_eq!(records(&answer.body)[0].0, offset);
        late.push(answer.at.saturating_duration_since(sent.at));
    }
    // A machine that stands still delays one or two.
    late.sort_unstable();
    assert!(late[25] < Duration::from_millis(500), "{late:?}");
    assert!(late[44] < Duration::from_secs(2), "{late:?}");
}

#[test]
fn a_waiting_pull_is_answered_when_its_time_is_over() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"0");
    soon("a wait of 600 ms", Duration::from_secs(3), || {
        let begun = Instant::now();
        let answer = talk.pull(&Pull {
            wait_ms: 600,
            ..Pull::of("T", 1)
        });
        let waited = answer.at - begun;
        assert_eq!(
            (answer.code, answer.number("nextBeginOffset")),
            (19, 1),
            "{answer:?}"
        );
        assert_eq!(answer.remark, "OFFSET_OVERFLOW_ONE");
        assert!(waited >= Duration::from_millis(600), "{waited:?}");
        waited
    });
}

#[test]
fn messages_that_do_not_match_keep_a_pull_waiting() {
    let (running, _dir) = broker(&[]);
    // One connection: its requests are handled in order, so the pull waits before anything is sent
    // (once its group exists).
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "TAGS\u{1}B\u{2}", b"0");
    assert_eq!(talk.pull(&Pull::of("T", 1)).code, 19);
    let wanted = Pull {
        wait_ms: 15_000,
        tags: "A",
        ..Pull::of("T", 1)
    };
    let opaque = talk.start_pull(&wanted);
    for _ in 0..3 {
        talk.send_message("T", 0, "TAGS\u{1}B\u{2}", b"other");
    }
    talk.send_message("T", 0, "TAGS\u{1}A\u{2}", b"mine");
    let answer = talk.answer(opaque);
    assert_eq!(
        (answer.code, answer.number("nextBeginOffset")),
        (0, 5),
        "{answer:?}"
    );
    assert_eq!(records(&answer.body)[0].1, b"mine");

    let opaque = talk.start_pull(&Pull {
        offset: 5,
        wait_ms: 700,
        ..wanted
    });
    talk.send_message("T", 0, "TAGS\u{1}B\u{2}", b"other");
    let answer = talk.answer(opaque);
    assert_eq!(
        (answer.code, answer.number("nextBeginOffset")),
        (20, 6),
        "{answer:?}"
    );
}

#[test]
fn what_is_acknowledged_is_visible_at_once() {
    let (running, _dir) = broker(&[]);
    let mut producer = Talk::to(running.address("broker"));
    let mut consumer = Talk::to(running.address("broker"));
    for offset in 0..300 {
        producer.send_message("T", 0, "", b"x");
        let answer = match offset % 3 {
            0 => {
                let answer = consumer.ask(30, &[("topic", "T"), ("queueId", "0")], b"");
                assert_eq!(answer.number("offset"), offset + 1, "{answer:?}");
                continue;
            }
            _ => consumer.pull(&Pull::of("T", offset)),
        };
        assert_eq!(answer.code, 0, "offset {offset}: {answer:?}");
        assert_eq!(records(&answer.body)[0].0, offset);
    }
}

#[test]
fn pulls_of_many_queues_wait_at_the_same_time() {
    let (running, _dir) = broker(&["--set", "defaultTopicQueueNums=64"]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut producer = Talk::to(running.address("broker"));
    let fields = |queue: &'static str| {
        let mut fields = send_fields("W", queue, "", "false");
        fields[3] = ("d", "64");
        fields
    };
    assert_eq!(producer.ask(310, &fields("0"), b"first").code, 0);
    let pulls: Vec<_> = (0..64)
        .map(|queue| {
            let offset = i64::from(queue == 0);
            consumer.start_pull(&Pull {
                queue,
                wait_ms: 15_000,
                ..Pull::of("W", offset)
            })
        })
        .collect();
    for (queue, opaque) in pulls.into_iter().enumerate().rev() {
        producer.send_message("W", queue as i32, "", queue.to_string().as_bytes());
        let answer = consumer.answer(opaque);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert_eq!(records(&answer.body)[0].1, queue.to_string().as_bytes());
    }
}

#[test]
fn a_deleted_connection_leaves_the_others_waiting() {
    let (running, _dir) = broker(&[]);
    let mut producer = Talk::to(running.address("broker"));
    producer.send_message("T", 0, "", b"0");
    let mut gone = Talk::to(running.address("broker"));
    let mut stays = Talk::to(running.address("broker"));
    gone.start_pull(&Pull {
        wait_ms: 15_000,
        ..Pull::of("T", 1)
    });
    let opaque = stays.start_pull(&Pull {
        wait_ms: 15_000,
        ..Pull::of("T", 1)
    });
    drop(gone);
    producer.send_message("T", 0, "", b"1");
    let answer = stays.answer(opaque);
    assert_eq!(answer.code, 0, "{answer:?}");
}

#[test]
fn a_pull_right_behind_a_send_waits_for_the_next_message() {
    let (running, _dir) = broker(&[]);
    let mut producer = Talk::to(running.address("broker"));
    let mut consumer = Talk::to(running.address("broker"));
    // Often enough for some pulls to come while the dispatcher is still behind the send.
    for offset in 0..200 {
        producer.send_message("T", 0, "", b"first");
        let opaque = consumer.start_pull(&Pull {
            wait_ms: 15_000,
            ..Pull::of("T", 2 * offset + 1)
        });
        producer.send_message("T", 0, "", b"second");
        let answer = consumer.answer(opaque);
        assert_eq!(answer.code, 0, "{answer:?}");
    }
}

#[test]
fn a_pull_that_waits_for_a_deleted_topic_ends_with_its_absence() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"0");
    assert_eq!(talk.pull(&Pull::of("T", 1)).code, 19);
    // Answered when the topic goes, not when its time is over.
    let wait = Pull {
        wait_ms: 600_000,
        ..Pull::of("T", 1)
    };
    let opaque = talk.start_pull(&wait);
    assert_eq!(talk.ask(215, &[("topic", "T")], b"").code, 0);
    let answer = talk.answer(opaque);
    assert_eq!(answer.code, 17, "{answer:?}");
    talk.send_message("T", 0, "", b"again");
    let answer = talk.pull(&Pull::of("T", 0));
    assert_eq!(
        records(&answer.body)[0].1,
        b"again",
        "a new topic starts at 0"
    );
}

#[test]
fn an_offset_behind_an_acknowledged_message_is_never_told_to_step_back() {
    let (running, _dir) = broker(&[]);
    let mut producer = Talk::to(running.address("broker"));
    let mut consumer = Talk::to(running.address("broker"));
    for offset in 0..300 {
        producer.send_message("T", 0, "", b"x");
        let answer = consumer.pull(&Pull::of("T", offset + 1));
        assert_eq!(
            (answer.code, &*answer.remark),
            (19, "OFFSET_OVERFLOW_ONE"),
            "{answer:?}"
        );
    }
}

/// A broker that has nothing of what queue 0 of `Old` begins with in its tail, and answers pulls of
/// its first message with as many bytes as `first` and `second` allow.
fn with_old_messages(first: usize, second: usize) -> (Running, tempfile::TempDir, Talk) {
    let (running, dir) = broker(&["--set", "tailCacheBytes=4194304"]);
    let mut talk = Talk::to(running.address("broker"));
    for size in [first, second].into_iter().chain([60_000; 160]) {
        talk.send_message("Old", 0, "", &vec![b'x'; size]);
    }
    (running, dir, talk)
}

/// The answers to pulls of the oldest message, in the order in which they were given. Far more
/// than may be read at a time; nothing is received until all are asked.
fn answers_to_many(talk: &mut Talk) -> Vec<Arrived> {
    let mut pulls: Vec<i32> = (0..600)
        .map(|_| talk.start_pull(&Pull::of("Old", 0)))
        .collect();
    let until = Instant::now() + PATIENCE;
    let answers: Vec<Arrived> = (0..600)
        .map(|_| talk.frame(until).expect("an answer"))
        .collect();
    let mut answered: Vec<i32> = answers.iter().map(|answer| answer.opaque).collect();
    pulls.sort_unstable();
    answered.sort_unstable();
    assert_eq!(answered, pulls);
    answers
}

#[test]
fn pulls_of_old_messages_are_all_answered_however_many_one_connection_has() {
    // The second has no room beside the first: all answers together stay below the 4 MiB that one
    // connection may have unsent.
    let (_running, _dir, mut talk) = with_old_messages(6_000, 300_000);
    for answer in answers_to_many(&mut talk) {
        assert_eq!(answer.code, 0, "{answer:?}");
        let found = records(&answer.body);
        assert_eq!((found.len(), found[0].0), (1, 0));
        assert_eq!(found[0].1.len(), 6_000);
    }
}

#[test]
fn pulls_of_old_messages_are_asked_again_only_by_who_has_4_mib_unread() {
    let (_running, _dir, mut talk) = with_old_messages(60_000, 60_000);
    // What the kernel holds for a reader that reads nothing depends on the host and its load: how
    // many find messages, too.
    let mut unread = 0;
    for answer in answers_to_many(&mut talk) {
        unread += answer.body.len();
        match answer.code {
            0 => assert_eq!(records(&answer.body)[0].0, 0),
            code => {
                assert_eq!((code, answer.number("nextBeginOffset")), (20, 0));
                assert!(unread > 4 << 20, "{unread} bytes before it");
            }
        }
    }
}

#[test]
fn a_waiting_pull_takes_the_reset_of_its_group_at_once() {
    let (running, _dir) = broker(&[]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut tool = Talk::to(running.address("broker"));
    tool.send_message("T", 0, "", b"0");
    let at_end = Pull {
        wait_ms: 600_000,
        ..Pull::of("T", 1)
    };
    assert_eq!(consumer.pull(&Pull::of("T", 0)).code, 0, "makes the group");
    let opaque = consumer.start_pull(&at_end);
    // Answered only after the pull was handled: it waits by then.
    assert_eq!(
        consumer
            .ask(30, &[("topic", "T"), ("queueId", "0")], b"")
            .code,
        0
    );
    let fields = [
        ("topic", "T"),
        ("group", "g"),
        ("queueId", "0"),
        ("timestamp", "0"),
        ("offset", "0"),
        ("isForce", "true"),
    ];
    let reset = tool.ask(222, &fields, b"");
    assert_eq!(reset.code, 0, "{reset:?}");
    let answer = consumer.answer(opaque);
    assert_eq!(answer.code, 20, "to ask again: {answer:?}");
    let moved = consumer.pull(&at_end);
    assert_eq!(
        (moved.code, moved.number("nextBeginOffset")),
        (21, 0),
        "{moved:?}"
    );
}

/// A pull at the end of queue 0 of T, which has one message; it waits when this returns.
fn waiting_at_the_end(talk: &mut Talk) -> i32 {
    assert_eq!(talk.pull(&Pull::of("T", 0)).code, 0, "makes the group");
    let opaque = talk.start_pull(&Pull {
        wait_ms: 600_000,
        ..Pull::of("T", 1)
    });
    // Answered only after the pull was handled.
    let end = talk.ask(30, &[("topic", "T"), ("queueId", "0")], b"");
    assert_eq!(end.code, 0);
    opaque
}

fn topic_fields(perm: &str) -> [(&str, &str); 8] {
    [
        ("topic", "T"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "4"),
        ("writeQueueNums", "4"),
        ("perm", perm),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ]
}

#[test]
fn a_waiting_pull_gets_nothing_of_a_topic_that_may_not_be_read_any_more() {
    let (running, _dir) = broker(&[]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut tool = Talk::to(running.address("broker"));
    tool.send_message("T", 0, "", b"0");
    let opaque = waiting_at_the_end(&mut consumer);
    assert_eq!(tool.ask(17, &topic_fields("2"), b"").code, 0);
    tool.send_message("T", 0, "", b"1");
    assert_eq!(consumer.answer(opaque).code, 20, "to ask again");
    assert_eq!(consumer.pull(&Pull::of("T", 1)).code, 16);
    assert_eq!(tool.ask(17, &topic_fields("6"), b"").code, 0);
    let answer = consumer.pull(&Pull::of("T", 1));
    assert_eq!(records(&answer.body)[0].1, b"1");
}

#[test]
fn a_waiting_pull_outlasts_what_others_change_for_themselves() {
    let (running, _dir) = broker(&[]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut tool = Talk::to(running.address("broker"));
    tool.send_message("T", 0, "", b"0");
    tool.send_message("Other", 0, "", b"0");
    let opaque = waiting_at_the_end(&mut consumer);
    let mut fields = topic_fields("4");
    fields[0].1 = "Other";
    assert_eq!(tool.ask(17, &fields, b"").code, 0);
    let group = br#"{"groupName":"h","consumeEnable":false,"retryQueueNums":1}"#;
    assert_eq!(tool.ask(200, &[], group).code, 0);
    assert_eq!(tool.ask(25, &[], b"traceOn=false").code, 0);
    tool.send_message("T", 0, "", b"1");
    let answer = consumer.answer(opaque);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(records(&answer.body)[0].1, b"1");
    let opaque = consumer.start_pull(&Pull {
        wait_ms: 600_000,
        ..Pull::of("T", 2)
    });
    let end = consumer.ask(30, &[("topic", "T"), ("queueId", "0")], b"");
    assert_eq!(end.code, 0, "answered only after the pull was handled");
    assert_eq!(tool.ask(25, &[], b"brokerPermission=2").code, 0);
    tool.send_message("T", 0, "", b"2");
    assert_eq!(consumer.answer(opaque).code, 20, "to ask again");
    assert_eq!(consumer.pull(&Pull::of("T", 1)).code, 16);
}

#[test]
fn a_waiting_pull_gives_nothing_by_the_subscription_that_another_one_replaced() {
    use super::clients::heartbeat;
    let (running, _dir) = broker(&[]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut tool = Talk::to(running.address("broker"));
    tool.send_message("T", 0, "TAGS\u{1}A\u{2}", b"0");
    let subscribed = heartbeat("a", "g", &[("T", "A")], 1);
    assert_eq!(consumer.ask(34, &[], &subscribed).code, 0);
    let opaque = consumer.request(11, &waiting_fields(), b"");
    let end = consumer.ask(30, &[("topic", "T"), ("queueId", "0")], b"");
    assert_eq!(end.code, 0, "answered only after the pull was handled");
    let subscribed = heartbeat("a", "g", &[("T", "B")], 2);
    assert_eq!(consumer.ask(34, &[], &subscribed).code, 0);
    tool.send_message("T", 0, "TAGS\u{1}B\u{2}", b"wanted");
    let answer = consumer.answer(opaque);
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (20, 1));
    let opaque = consumer.request(11, &waiting_fields(), b"");
    let answer = consumer.answer(opaque);
    assert_eq!(records(&answer.body)[0].1, b"wanted");
}

/// A pull of offset 1 by the group's registered subscription, that may wait.
fn waiting_fields() -> [(&'static str, &'static str); 9] {
    [
        ("consumerGroup", "g"),
        ("topic", "T"),
        ("queueId", "0"),
        ("queueOffset", "1"),
        ("maxMsgNums", "32"),
        ("sysFlag", "2"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "600000"),
        ("subVersion", "0"),
    ]
}

#[test]
fn a_waiting_pull_gets_nothing_once_its_group_may_not_consume() {
    let (running, _dir) = broker(&[]);
    let mut consumer = Talk::to(running.address("broker"));
    let mut tool = Talk::to(running.address("broker"));
    tool.send_message("T", 0, "", b"0");
    let opaque = waiting_at_the_end(&mut consumer);
    let group = br#"{"groupName":"g","consumeEnable":false,"retryQueueNums":1}"#;
    assert_eq!(tool.ask(200, &[], group).code, 0);
    tool.send_message("T", 0, "", b"1");
    assert_eq!(consumer.answer(opaque).code, 20, "to ask again");
    assert_eq!(consumer.pull(&Pull::of("T", 1)).code, 16);
}

#[test]
fn a_pull_that_is_sent_to_another_offset_leaves_an_event_if_its_client_is_of_4_9() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"0");
    let mut newer = Talk::to(running.address("broker"));
    newer.version = 493;
    assert_eq!(newer.pull(&Pull::of("T", 70)).code, 21);
    assert_eq!(talk.pull(&Pull::of("T", 25)).code, 21);
    let event = talk.pull(&Pull {
        wait_ms: 15_000,
        ..Pull::of("OFFSET_MOVED_EVENT", 0)
    });
    let (offset, body, properties) = &records(&event.body)[0];
    assert_eq!(*offset, 0);
    let body: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(body["consumerGroup"], "g");
    assert_eq!(body["messageQueue"]["topic"], "T");
    assert_eq!(body["messageQueue"]["queueId"], 0);
    assert_eq!(
        (&body["offsetRequest"], &body["offsetNew"]),
        (&25.into(), &1.into())
    );
    assert!(properties.contains("TAGS\u{1}g"), "{properties:?}");
    assert!(properties.contains("KEYS\u{1}g"), "{properties:?}");
}

#[test]
fn a_reset_amid_a_burst_of_wakes_leaves_other_pulls_awake() {
    let (running, _dir) = broker(&["--cores", "1"]);
    let mut tool = Talk::to(running.address("broker"));
    for topic in ["T", "X", "Y"] {
        tool.make_topic(topic, 1);
        tool.send_message(topic, 0, "", b"0");
    }
    // So many that looking at them takes several passes.
    let mut crowd: Vec<Talk> = (0..4)
        .map(|_| Talk::to(running.address("broker")))
        .collect();
    for member in &mut crowd {
        for _ in 0..2_000 {
            member.start_pull(&Pull {
                wait_ms: 60_000,
                ..Pull::of("T", 1)
            });
        }
        // Answered in order: all of them wait now.
        assert_eq!(member.pull(&Pull::of("T", 0)).code, 0);
    }
    let reset = [
        ("topic", "Y"),
        ("group", "g"),
        ("timestamp", "-1"),
        ("isForce", "true"),
        ("queueId", "0"),
    ];
    let mut producer = Talk::to(running.address("broker"));
    let resets: Vec<i32> = (0..300).map(|_| tool.request(222, &reset, b"")).collect();
    producer.send_message("T", 0, "", b"1");
    for opaque in resets {
        assert_eq!(tool.answer(opaque).code, 0);
    }
    for offset in 1..4 {
        let waiting = tool.start_pull(&Pull {
            wait_ms: 30_000,
            ..Pull::of("X", offset)
        });
        producer.send_message("X", 0, "", b"wake");
        assert_eq!(
            tool.answer(waiting).code,
            0,
            "no message until its time was over"
        );
    }
}
