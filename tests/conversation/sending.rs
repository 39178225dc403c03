//! Sends: pipelining, batches, garbage.

use super::*;

#[test]
fn pipelined_sends_are_all_answered_with_offsets_in_order() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"first");
    let mut bytes = Vec::new();
    let mut opaques = Vec::new();
    for number in 0..500 {
        let body = format!("m{number}");
        let fields = send_fields("T", "0", "TAGS\u{1}A\u{2}", "false");
        let (opaque, frame) = talk.encode(310, &fields, body.as_bytes());
        bytes.extend_from_slice(&frame);
        opaques.push(opaque);
    }
    talk.send_bytes(&bytes);
    for (offset, opaque) in (1..).zip(opaques) {
        let answer = talk.answer(opaque);
        assert_eq!(
            (answer.code, answer.number("queueOffset")),
            (0, offset),
            "{answer:?}"
        );
    }
    let mut offset = 0;
    while offset < 501 {
        let answer = talk.pull(&Pull::of("T", offset));
        assert_eq!(answer.code, 0, "{answer:?}");
        for (at, body, properties) in records(&answer.body) {
            assert_eq!(at, offset);
            if at > 0 {
                assert_eq!(body, format!("m{}", at - 1).as_bytes());
                assert_eq!(properties, "TAGS\u{1}A\u{2}CLUSTER\u{1}DefaultCluster");
            }
            offset += 1;
        }
        assert_eq!(answer.number("nextBeginOffset"), offset);
    }
}

#[test]
fn a_send_split_at_every_byte_is_one_send() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"first");
    let (opaque, frame) = talk.encode(310, &send_fields("T", "0", "", "false"), b"split");
    for byte in &frame {
        talk.send_bytes(std::slice::from_ref(byte));
    }
    assert_eq!(talk.answer(opaque).number("queueOffset"), 1);
}

#[test]
fn a_batch_is_stored_message_by_message_with_an_id_for_each() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    let mut body = Vec::new();
    for text in ["one", "two", "three"] {
        let total = 4 * 5 + text.len() + 2;
        body.extend_from_slice(&(total as u32).to_be_bytes());
        body.extend_from_slice(&[0; 12]);
        body.extend_from_slice(&(text.len() as u32).to_be_bytes());
        body.extend_from_slice(text.as_bytes());
        body.extend_from_slice(&[0; 2]);
    }
    let fields = send_fields("B", "2", "WAIT\u{1}true\u{2}", "true");
    let answer = talk.ask(310, &fields, &body);
    assert_eq!(answer.code, 0, "{answer:?}");
    let ids: Vec<&str> = answer.ext["msgId"].split(',').collect();
    assert_eq!(ids.len(), 3);
    let answer = talk.pull(&Pull {
        queue: 2,
        ..Pull::of("B", 0)
    });
    let bodies: Vec<_> = records(&answer.body).into_iter().map(|r| r.1).collect();
    assert_eq!(bodies, [&b"one"[..], b"two", b"three"]);
    let answer = talk.ask(33, &[("offset", &offset_of(ids[2]).to_string())], b"");
    assert_eq!(
        records(&answer.body)[0].1,
        b"three",
        "the third id names the third message"
    );
}

fn offset_of(id: &str) -> u64 {
    saturnmq_storage::format::message_id::MessageId::parse(id)
        .expect("an id")
        .1
}

#[test]
fn garbage_closes_its_own_connection_only() {
    let (running, _dir) = broker(&[]);
    let mut good = Talk::to(running.address("broker"));
    let garbage: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0, 0, 0, 0],
        &[0, 0, 0, 3, 1, 2, 3],
        &[0xff, 0xff, 0xff, 0xff, 0, 0],
        &[0, 0, 0, 12, 2, 0, 0, 2, b'{', b'}', 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 8, 0, 0, 0, 4, b'{', b'x', b'x', b'}'],
        &[0, 0, 0, 8, 0, 0, 1, 0, b'{', b'}', b'}', b'}'],
    ];
    for bytes in garbage {
        let mut bad = Talk::to(running.address("broker"));
        bad.send_bytes(bytes);
        assert!(bad.is_closed(), "{bytes:?}");
        good.send_message("T", 0, "", b"still served");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let (running, _dir) = broker(&[]);
    let mut talk = Talk::to(running.address("broker"));
    for (properties, word) in [
        (
            "TRAN_MSG\u{1}true\u{2}TIMER_DELAY_SEC\u{1}9\u{2}",
            "TIMER_DELAY_SEC",
        ),
        ("TRAN_MSG\u{1}true\u{2}DELAY\u{1}1\u{2}", "TRAN_MSG"),
    ] {
        let answer = talk.ask(310, &send_fields("T", "0", properties, "false"), b"x");
        assert_eq!(answer.code, 13, "{answer:?}");
        assert!(answer.remark.contains(word), "{answer:?}");
        assert!(answer.ext.contains_key("TRACE_ON"), "{answer:?}");
    }
    let answer = talk.ask(9999, &[], b"");
    assert_eq!(
        (answer.code, &*answer.remark),
        (3, " request type 9999 not supported")
    );
}

#[test]
fn an_ordered_message_at_its_limit_is_dead_for_older_clients() {
    let (running, _dir) = broker(&[]);
    for (version, group, dead) in [(399, "old", 1), (479, "new", 0)] {
        let mut talk = Talk::to(running.address("broker"));
        talk.version = version;
        let retry = format!("%RETRY%{group}");
        let fields = [
            ("producerGroup", "p"),
            ("topic", &*retry),
            ("defaultTopic", "TBW102"),
            ("defaultTopicQueueNums", "4"),
            ("queueId", "0"),
            ("sysFlag", "0"),
            ("bornTimestamp", "1"),
            ("flag", "0"),
            ("reconsumeTimes", "2"),
            ("maxReconsumeTimes", "2"),
        ];
        assert_eq!(talk.ask(10, &fields, b"x").code, 0);
        let end = |talk: &mut Talk, topic: &str| {
            let fields = [("topic", topic), ("queueId", "0")];
            talk.ask(30, &fields, b"").number("offset")
        };
        assert_eq!(end(&mut talk, &format!("%DLQ%{group}")), dead, "{group}");
        assert_eq!(end(&mut talk, &retry), 1 - dead, "{group}");
    }
}

/// What a client sends to have a message of its group `g` again, with these bits in `sysFlag`.
fn retry<'a>(
    sys_flag: &'a str,
    properties: &'a str,
    reconsumed: &'a str,
) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        ("producerGroup", "p"),
        ("topic", "%RETRY%g"),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "0"),
        ("sysFlag", sys_flag),
        ("bornTimestamp", "1"),
        ("flag", "0"),
        ("properties", properties),
    ];
    fields.extend([("reconsumeTimes", reconsumed), ("maxReconsumeTimes", "2")]);
    fields
}

#[test]
fn a_message_that_is_acknowledged_can_be_pulled_whatever_its_transaction_bits_are() {
    let (running, _dir) = broker(&["--set", "messageDelayLevel=1s 1s"]);
    let mut talk = Talk::to(running.address("broker"));
    talk.send_message("T", 0, "", b"0");
    let (mut topic, mut accepted) = (Vec::new(), 1);
    for bits in ["4", "12", "8"] {
        for properties in ["", "DELAY\u{1}1\u{2}", "TRAN_MSG\u{1}no\u{2}"] {
            let mut fields = send_fields("T", "0", properties, "false");
            fields[5].1 = bits;
            let answer = talk.ask(310, &fields, b"x");
            topic.push(answer.code);
            accepted += i64::from(answer.code == 0);
            if answer.code != 0 {
                assert!(answer.remark.contains("sysFlag"), "{answer:?}");
            }
        }
    }
    assert_eq!(topic, [13, 13, 13, 13, 13, 13, 0, 0, 0]);
    let last = Pull {
        wait_ms: 15_000,
        ..Pull::of("T", accepted - 1)
    };
    assert_eq!(talk.pull(&last).code, 0, "the delayed one comes, too");
    // As clients before 4.6.1 send what was a half message: again, and when it is dead.
    let properties = "TRAN_MSG\u{1}true\u{2}DELAY\u{1}1\u{2}";
    for (offset, bits) in [(0, "4"), (1, "12")] {
        assert_eq!(
            talk.ask(10, &retry(bits, properties, "1"), b"again").code,
            0
        );
        let again = talk.pull(&Pull {
            group: "g",
            wait_ms: 15_000,
            ..Pull::of("%RETRY%g", offset)
        });
        assert_eq!(again.code, 0, "{again:?}");
        assert_eq!(records(&again.body)[0].1, b"again");
    }
    assert_eq!(talk.ask(10, &retry("4", properties, "3"), b"dead").code, 0);
    let end = talk.ask(30, &[("topic", "%DLQ%g"), ("queueId", "0")], b"");
    assert_eq!(end.number("offset"), 1);
}

#[test]
fn whatever_is_taken_can_be_pulled_however_large_messages_may_be() {
    let keys = [
        "maxMessageSize=16777216",
        "mappedFileSizeCommitLog=67108864",
    ];
    let (running, _dir) = broker(&["--set", keys[0], "--set", keys[1]]);
    let line = running.wait_for_log("maxMessageSize=16777216");
    assert!(line.contains("counts as 16646144"), "{line}");
    let mut talk = Talk::to(running.address("broker"));
    let properties = format!("a\u{1}{}\u{2}", "x".repeat(32_000));
    let fields = send_fields("T", "0", &properties, "false");
    let mut body = vec![b'b'; 16_646_144];
    let answer = talk.ask(310, &fields, &body);
    assert_eq!(answer.code, 0, "{answer:?}");
    let pulled = talk.pull(&Pull::of("T", 0));
    assert_eq!(pulled.code, 0, "{}", pulled.remark);
    assert_eq!(records(&pulled.body)[0].1, body);
    body.push(b'b');
    let refused = talk.ask(310, &fields, &body);
    assert_eq!(refused.code, 13, "{refused:?}");
    let remark = refused.remark;
    assert!(remark.contains("limit 16646144B"), "{remark}");
}
