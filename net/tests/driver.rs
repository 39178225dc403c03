//! The running driver, on each engine this host has: what peers and protocols may rely on.

mod harness;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use harness::{Server, body_of, frame, numbered, read_frame, until};
use saturnmq_net::limits::Limits;
use saturnmq_net::probe::Engine;

/// One at a time: tests that need thousands of descriptors.
static MANY_DESCRIPTORS: Mutex<()> = Mutex::new(());

harness::each_engine! {
    pipelined_frames_are_answered_in_order,
    frames_of_any_size_survive_straddling_buffers,
    a_frame_may_arrive_byte_by_byte,
    frames_of_four_mebibytes_are_echoed,
    garbage_closes_that_connection_only,
    a_tls_client_is_hung_up_on,
    a_half_closed_peer_gets_its_answers,
    two_thousand_idle_connections_do_not_disturb_a_busy_one,
    a_wake_is_never_lost,
    a_watched_descriptor_that_is_readable_ends_the_sleep,
    a_reset_during_a_send_ends_that_connection_only,
    a_stop_answers_what_is_in_flight,
    a_stop_answers_whoever_waits_for_answers_and_says_the_end_with_the_last,
    a_quiet_connection_is_closed_and_a_busy_one_is_not,
    connections_that_come_and_go_leave_nothing_behind,
    a_closed_connection_takes_no_answer_though_its_slot_is_used_again,
    a_refused_socket_is_closed,
    a_protocol_that_panics_ends_its_core_and_hangs_up,
    a_pass_enters_the_kernel_about_once,
    an_answer_leaves_with_the_call_that_waits_for_the_next_request,
    an_answer_that_a_full_socket_takes_in_part_arrives_whole,
}

fn pipelined_frames_are_answered_in_order(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    let mut sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let mut all = Vec::new();
        for number in 0..20_000u32 {
            all.extend_from_slice(&numbered(b'e', number, 20));
        }
        sender.write_all(&all).unwrap();
    });
    for number in 0..20_000u32 {
        assert_eq!(read_frame(&mut client).unwrap(), numbered(b'e', number, 20));
    }
    sending.join().unwrap();
    server.stop();
}

fn frames_of_any_size_survive_straddling_buffers(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    let mut sender = client.try_clone().unwrap();
    // A fixed pseudo-random sequence: sizes around those of the receive buffers.
    let size = |number: u32| (number.wrapping_mul(2_654_435_761) >> 8) as usize % 200_000;
    let sending = std::thread::spawn(move || {
        for number in 0..200 {
            sender
                .write_all(&numbered(b'e', number, size(number)))
                .unwrap();
        }
    });
    for number in 0..200 {
        let echoed = read_frame(&mut client).unwrap();
        assert!(
            echoed == numbered(b'e', number, size(number)),
            "frame {number} came back wrong"
        );
    }
    sending.join().unwrap();
    server.stop();
}

fn a_frame_may_arrive_byte_by_byte(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    let sent = numbered(b'e', 7, 300);
    for round in 0..2 {
        for byte in &sent {
            client.write_all(std::slice::from_ref(byte)).unwrap();
        }
        assert_eq!(read_frame(&mut client).unwrap(), sent, "round {round}");
    }
    server.stop();
}

fn frames_of_four_mebibytes_are_echoed(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    let mut sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for number in 0..8 {
            sender.write_all(&numbered(b'e', number, 4 << 20)).unwrap();
        }
    });
    for number in 0..8 {
        let echoed = read_frame(&mut client).unwrap();
        assert!(
            echoed == numbered(b'e', number, 4 << 20),
            "frame {number} came back wrong"
        );
    }
    sending.join().unwrap();
    server.stop();
}

fn garbage_closes_that_connection_only(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut good = server.connect();
    let faults: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 3, 0, 0, 0],
        &[0, 0, 0, 20, 9, 0, 0, 0, 0, 0],
    ];
    for fault in faults {
        let mut bad = server.connect();
        // An answer to what came before the fault is still sent.
        bad.write_all(&[&numbered(b'e', 1, 10), fault].concat())
            .unwrap();
        assert_eq!(read_frame(&mut bad).unwrap(), numbered(b'e', 1, 10));
        assert_eq!(harness::read_to_end(&mut bad), 0);
        good.write_all(&numbered(b'e', 2, 10)).unwrap();
        assert_eq!(read_frame(&mut good).unwrap(), numbered(b'e', 2, 10));
    }
    assert_eq!(
        server.handle.counters().bad_frames.load(Ordering::Relaxed),
        4
    );
    until("only the good connection is left", || {
        server.handle.connections() == 1
    });
    server.stop();
}

fn a_tls_client_is_hung_up_on(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    client
        .write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3])
        .unwrap();
    assert_eq!(harness::read_to_end(&mut client), 0);
    assert_eq!(
        server.handle.counters().bad_frames.load(Ordering::Relaxed),
        0
    );
    server.stop();
}

fn a_half_closed_peer_gets_its_answers(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    for number in 0..50 {
        client.write_all(&numbered(b'e', number, 1000)).unwrap();
    }
    client.write_all(&numbered(b'l', 50, 1000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    for number in 0..50 {
        assert_eq!(
            read_frame(&mut client).unwrap(),
            numbered(b'e', number, 1000)
        );
    }
    until("the late request is there", || server.late() == 1);
    server.answer_late();
    assert!(read_frame(&mut client).unwrap() == numbered(b'l', 50, 1000));
    assert_eq!(harness::read_to_end(&mut client), 0);
    until("it is gone", || server.handle.connections() == 0);
    assert_eq!(server.closed(), 1);
    server.stop();
}

fn two_thousand_idle_connections_do_not_disturb_a_busy_one(engine: Engine) {
    let _alone = MANY_DESCRIPTORS
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let connections = harness::raise_descriptors(2000);
    let server = Server::start(engine, Limits::default());
    let mut idle = Vec::new();
    for _ in 0..connections {
        idle.push(server.connect());
    }
    until("all are adopted", || server.opened() == connections);
    let mut busy = server.connect();
    for number in 0..2000 {
        busy.write_all(&numbered(b'e', number, 100)).unwrap();
        assert_eq!(read_frame(&mut busy).unwrap(), numbered(b'e', number, 100));
    }
    for (number, client) in idle.iter_mut().enumerate() {
        client.write_all(&numbered(b'e', number as u32, 8)).unwrap();
    }
    for (number, client) in idle.iter_mut().enumerate() {
        assert_eq!(
            read_frame(client).unwrap(),
            numbered(b'e', number as u32, 8)
        );
    }
    drop(idle);
    until("the idle ones are gone", || {
        server.handle.connections() == 1
    });
    server.stop();
}

fn is_over_or_interrupted(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
    )
}

fn a_wake_is_never_lost(engine: Engine) {
    // Nothing but wakes moves this core: its own timer is 5 s, the client gives up after 3 s in which
    // it could look for the answer. Time in which the machine stood still is one look.
    const LOOKS: usize = 300;
    let limits = Limits {
        idle: Duration::from_secs(3600),
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let mut client = server.connect();
    client
        .set_read_timeout(Some(Duration::from_millis(10)))
        .unwrap();
    client.write_all(&numbered(b'l', 0, 8)).unwrap();
    let conn = server.late_connection();
    server.answer_late();
    let next = |client: &mut TcpStream| {
        for _ in 0..LOOKS {
            // What is there stays there: frames of a few bytes arrive whole.
            match client.peek(&mut [0]) {
                Ok(_) => return read_frame(client).unwrap(),
                Err(error) => assert!(is_over_or_interrupted(&error), "{error}"),
            }
        }
        panic!("no answer in {LOOKS} looks");
    };
    assert_eq!(next(&mut client), numbered(b'l', 0, 8));
    for number in 0..5000 {
        server.push(conn, numbered(b'p', number, 8));
        if number % 3 == 0 {
            std::hint::spin_loop();
        } else if number % 7 == 0 {
            std::thread::yield_now();
        }
        assert_eq!(next(&mut client), numbered(b'p', number, 8), "{number}");
    }
    server.stop();
}

fn a_watched_descriptor_that_is_readable_ends_the_sleep(engine: Engine) {
    // Nothing else moves this core: it has no connection.
    let server = Server::start(engine, Limits::default());
    for signals in 1..=100 {
        server.signal();
        until("the signal was seen", || server.signals_seen() == signals);
    }
    server.stop();
}

fn a_reset_during_a_send_ends_that_connection_only(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut good = server.connect();
    for round in 0..20 {
        let mut bad = server.connect();
        for number in 0..2 {
            bad.write_all(&numbered(b'e', number, 3 << 20)).unwrap();
        }
        // Some of the answer has arrived: its send is under way.
        bad.read_exact(&mut [0; 4096]).unwrap();
        socket2::SockRef::from(&bad)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(bad);
        good.write_all(&numbered(b'e', round, 10)).unwrap();
        assert_eq!(read_frame(&mut good).unwrap(), numbered(b'e', round, 10));
    }
    until("the others are gone", || server.handle.connections() == 1);
    assert_eq!((server.opened(), server.closed()), (21, 20));
    server.stop();
}

fn a_stop_answers_what_is_in_flight(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut clients: Vec<_> = (0..10).map(|_| server.connect()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client
            .write_all(&numbered(b'l', index as u32, 100_000))
            .unwrap();
    }
    until("all are in flight", || server.late() == 10);
    server.handle.stop();
    // What arrives during the stop may be answered or not, and does not harm the answers.
    for client in &mut clients {
        client.write_all(&numbered(b'e', 99, 100)).unwrap();
    }
    assert!(
        !server.handle.has_ended(),
        "the core ended with requests in flight"
    );
    server.answer_late();
    for (index, client) in clients.iter_mut().enumerate() {
        let answers: Vec<_> = std::iter::from_fn(|| read_frame(client).ok()).collect();
        let late = numbered(b'l', index as u32, 100_000);
        assert!(
            answers.contains(&late),
            "client {index}: {} other answers",
            answers.len()
        );
        assert!(answers.len() <= 2);
    }
    drop(clients);
    let end = server.stop();
    assert_eq!(end.closed, 10);
}

fn a_stop_answers_whoever_waits_for_answers_and_says_the_end_with_the_last(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let asked = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = server.connect();
            let asked = &asked;
            scope.spawn(move || {
                for number in 0.. {
                    let sent = numbered(b'e', number, 1000);
                    client.write_all(&sent).unwrap();
                    let answer = read_frame(&mut client);
                    assert!(
                        answer.is_ok_and(|answer| answer == sent),
                        "no answer to {number}"
                    );
                    asked.fetch_add(1, Ordering::Relaxed);
                    // The end has come with the last answer: there is no moment between them.
                    client.set_nonblocking(true).unwrap();
                    match client.peek(&mut [0]) {
                        Ok(0) => return,
                        Ok(_) => panic!("bytes that were not asked for"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                    client.set_nonblocking(false).unwrap();
                }
            });
        }
        until("requests are answered", || {
            asked.load(Ordering::Relaxed) > 200
        });
        server.handle.stop();
    });
    server.stop();
}

fn a_quiet_connection_is_closed_and_a_busy_one_is_not(engine: Engine) {
    let limits = Limits {
        idle: Duration::from_secs(1),
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let mut quiet = server.connect();
    let mut busy = server.connect();
    let idle_closed = || server.handle.counters().idle_closed.load(Ordering::Relaxed);
    until("the quiet one is closed", || {
        busy.write_all(&numbered(b'e', 1, 10)).unwrap();
        assert_eq!(read_frame(&mut busy).unwrap(), numbered(b'e', 1, 10));
        idle_closed() > 0
    });
    assert_eq!(harness::read_to_end(&mut quiet), 0);
    busy.write_all(&numbered(b'e', 2, 10)).unwrap();
    assert_eq!(read_frame(&mut busy).unwrap(), numbered(b'e', 2, 10));
    assert_eq!(idle_closed(), 1);
    server.stop();
}

fn connections_that_come_and_go_leave_nothing_behind(engine: Engine) {
    let _alone = MANY_DESCRIPTORS
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let server = Server::start(engine, Limits::default());
    let address = server.address;
    let visitors: Vec<_> = (0..4u32)
        .map(|visitor| {
            std::thread::spawn(move || {
                for round in 0..150u32 {
                    visit(address, visitor * 1000 + round);
                }
            })
        })
        .collect();
    visitors
        .into_iter()
        .for_each(|visitor| visitor.join().unwrap());
    until("all came and went", || {
        server.closed() == 600 && server.opened() == 600
    });
    until("none is left", || server.handle.connections() == 0);
    let mut last = server.connect();
    last.write_all(&numbered(b'e', 1, 100)).unwrap();
    assert_eq!(read_frame(&mut last).unwrap(), numbered(b'e', 1, 100));
    server.stop();
}

/// One of the ways to use and to leave a connection, chosen by `number`.
fn visit(address: std::net::SocketAddr, number: u32) {
    let mut client = harness::connect(address);
    let size = (number.wrapping_mul(2_654_435_761) >> 12) as usize % 100_000;
    let sent = numbered(b'e', number, size);
    match number % 6 {
        0 => {}
        1 => {
            client.write_all(&sent).unwrap();
            assert!(read_frame(&mut client).unwrap() == sent);
        }
        2 => client.write_all(&sent[..sent.len() / 2]).unwrap(),
        3 => client.write_all(&sent).unwrap(),
        4 => {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(harness::read_to_end(&mut client), sent.len());
        }
        _ => {
            client.write_all(&sent).unwrap();
            socket2::SockRef::from(&client)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
    }
}

fn a_closed_connection_takes_no_answer_though_its_slot_is_used_again(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut first = server.connect();
    first.write_all(&numbered(b'l', 1, 10)).unwrap();
    let old = server.late_connection();
    drop(first);
    // The request in flight keeps it until it is answered.
    server.answer_late();
    until("it is gone", || server.handle.connections() == 0);
    let mut second = server.connect();
    server.push(old, numbered(b'p', 1, 10));
    second.write_all(&numbered(b'e', 2, 10)).unwrap();
    assert_eq!(read_frame(&mut second).unwrap(), numbered(b'e', 2, 10));
    until("the answer was refused", || server.unanswerable() == 1);
    server.stop();
}

fn a_refused_socket_is_closed(engine: Engine) {
    let limits = Limits {
        max_connections: 3,
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let _three: Vec<_> = (0..3).map(|_| server.connect()).collect();
    until("three are served", || server.opened() == 3);
    let mut fourth = server.connect();
    assert_eq!(harness::read_to_end(&mut fourth), 0);
    assert_eq!(server.handle.connections(), 3);
    server.stop();
}

fn a_protocol_that_panics_ends_its_core_and_hangs_up(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut busy = server.connect();
    // A send is in flight when it happens: this peer does not read its answer.
    let mut sender = busy.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&numbered(b'e', 1, 12 << 20)));
    busy.read_exact(&mut [0; 1000]).unwrap();
    let mut client = server.connect();
    client.write_all(&numbered(b'!', 1, 10)).unwrap();
    assert_eq!(harness::read_to_end(&mut client), 0);
    let handle = server.handle.clone();
    assert!(server.crash(), "the core did not panic");
    assert!(
        handle
            .adopt_message(busy.into(), "127.0.0.1:1".parse().unwrap(), 1)
            .is_err()
    );
    sending.join().unwrap().unwrap();
}

fn a_pass_enters_the_kernel_about_once(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut clients: Vec<_> = (0..16).map(|_| server.connect()).collect();
    for number in 0..500 {
        for client in &mut clients {
            client.write_all(&numbered(b'e', number, 100)).unwrap();
        }
        for client in &mut clients {
            assert_eq!(body_of(&read_frame(client).unwrap()).len(), 104);
        }
    }
    let counters = server.handle.counters();
    let passes = counters.passes.load(Ordering::Relaxed);
    let enters = counters.enters.load(Ordering::Relaxed);
    println!("{enters} system calls in {passes} passes");
    assert!(
        enters <= passes + passes / 20 + 5,
        "{enters} system calls in {passes} passes"
    );
    assert_eq!(frame(b'e', b"").len(), 9);
    server.stop();
}

fn an_answer_leaves_with_the_call_that_waits_for_the_next_request(engine: Engine) {
    let one_call = matches!(&engine, Engine::Uring(features) if features.quiet_sends);
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    let counters = server.handle.counters();
    let enters = (0..20)
        .map(|_| {
            let before = counters.enters.load(Ordering::Relaxed);
            for number in 0..100 {
                client.write_all(&numbered(b'e', number, 100)).unwrap();
                assert_eq!(
                    read_frame(&mut client).unwrap(),
                    numbered(b'e', number, 100)
                );
            }
            counters.enters.load(Ordering::Relaxed) - before
        })
        .min()
        .unwrap();
    // Others end the sleep in between as well, on a busy machine often: in the best stretch seldom.
    assert!(
        !one_call || enters < 110,
        "{enters} system calls for 100 requests"
    );
    server.stop();
}

fn an_answer_that_a_full_socket_takes_in_part_arrives_whole(engine: Engine) {
    let server = Server::start(engine, Limits::default());
    let mut client = server.connect();
    let counters = server.handle.counters();
    // One answer for each pass, until the sockets of both sides are full.
    let mut asked = 0;
    while counters.held.load(Ordering::Relaxed) == 0 {
        client.write_all(&numbered(b'e', asked, 30_000)).unwrap();
        asked += 1;
        until("the frame is taken, or nothing is read", || {
            counters.frames.load(Ordering::Relaxed) == u64::from(asked)
                || counters.held.load(Ordering::Relaxed) > 0
        });
    }
    for number in 0..asked {
        assert_eq!(
            read_frame(&mut client).unwrap(),
            numbered(b'e', number, 30_000)
        );
    }
    server.stop();
}
