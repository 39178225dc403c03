//! What the driver does when peers, requests or memory are too much: hold back, and lose nothing.

mod harness;

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use harness::{Server, numbered, read_frame, until};
use saturnmq_net::limits::Limits;
use saturnmq_net::probe::Engine;

harness::each_engine! {
    a_slow_reader_stops_being_read_and_loses_nothing,
    a_refused_frame_is_offered_again_in_order,
    too_many_requests_in_flight_stop_reading_until_they_are_answered,
    incomplete_frames_over_the_memory_all_complete_in_turn,
    a_peer_that_trickles_a_frame_does_not_hold_up_the_rest,
    frames_of_ordinary_size_are_read_however_many_unfinished_ones_are_held,
    unfinished_frames_have_had_their_time_all_at_once,
}

fn a_slow_reader_stops_being_read_and_loses_nothing(engine: Engine) {
    let limits = Limits {
        unsent_bytes: 256 * 1024,
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let mut client = server.connect();
    let mut sender = client.try_clone().unwrap();
    // Far more than the socket buffers of both sides and the cap take together.
    let frames = 20_000u32;
    let sending = std::thread::spawn(move || {
        for number in 0..frames {
            sender.write_all(&numbered(b'e', number, 2000)).unwrap();
        }
    });
    let counters = server.handle.counters();
    until("reading stopped", || {
        counters.held.load(Ordering::Relaxed) > 0
    });
    // Once held, frames are not taken any more.
    let mut before = counters.frames.load(Ordering::Relaxed);
    until("no further frame is taken", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = counters.frames.load(Ordering::Relaxed);
        std::mem::replace(&mut before, now) == now
    });
    assert!(
        before < u64::from(frames),
        "everything was taken from a peer that reads nothing"
    );
    for number in 0..frames {
        assert_eq!(
            read_frame(&mut client).unwrap(),
            numbered(b'e', number, 2000)
        );
    }
    sending.join().unwrap();
    server.stop();
}

fn a_refused_frame_is_offered_again_in_order(engine: Engine) {
    let limits = Limits {
        stalled_bytes: 8 * 1024,
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    let sending: Vec<_> = clients
        .iter()
        .map(|client| {
            let mut sender = client.try_clone().unwrap();
            std::thread::spawn(move || {
                for number in 0..300 {
                    sender.write_all(&numbered(b'r', number, 500)).unwrap();
                }
            })
        })
        .collect();
    for number in 0..300 {
        for client in &mut clients {
            assert_eq!(read_frame(client).unwrap(), numbered(b'r', number, 500));
        }
    }
    sending
        .into_iter()
        .for_each(|sender| sender.join().unwrap());
    assert!(
        server.refusals() > 1000,
        "the protocol refused {} frames",
        server.refusals()
    );
    server.stop();
}

fn too_many_requests_in_flight_stop_reading_until_they_are_answered(engine: Engine) {
    let limits = Limits {
        requests_in_flight: 10,
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let mut client = server.connect();
    let mut all = Vec::new();
    for number in 0..300 {
        all.extend_from_slice(&numbered(b'l', number, 100));
    }
    client.write_all(&all).unwrap();
    let mut answered = 0;
    while answered < 300 {
        until("requests arrive", || server.late() > 0);
        let late = server.answer_late();
        assert!(late <= 11, "{late} requests in flight");
        for _ in 0..late {
            assert_eq!(
                read_frame(&mut client).unwrap(),
                numbered(b'l', answered, 100)
            );
            answered += 1;
        }
    }
    server.stop();
}

fn incomplete_frames_over_the_memory_all_complete_in_turn(engine: Engine) {
    let limits = Limits {
        max_frame: 512 * 1024,
        reassembly_bytes: 1 << 20,
        // However late the second half of a frame comes.
        turn: Duration::from_secs(3600),
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let clients: Vec<_> = (0..16).map(|_| server.connect()).collect();
    let all: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(index, mut client)| {
            std::thread::spawn(move || {
                let sent = numbered(b'e', index as u32, 500_000);
                let (first, second) = sent.split_at(300_000);
                client.write_all(first).unwrap();
                std::thread::sleep(Duration::from_millis(300));
                client.write_all(second).unwrap();
                assert!(read_frame(&mut client).unwrap() == sent);
            })
        })
        .collect();
    all.into_iter().for_each(|client| client.join().unwrap());
    until("the memory is free again", || {
        server
            .handle
            .counters()
            .reassembly_bytes
            .load(Ordering::Relaxed)
            < 1 << 20
    });
    server.stop();
}

/// Sends frames over a new connection and reads them back, from the start as often as this side was
/// too slow and was closed for it; the connection, and how many were closed.
fn exchange_in_turn(
    server: &Server,
    frames: u32,
    size: usize,
    turn: Duration,
) -> (TcpStream, usize) {
    for closed in 0..20 {
        let mut client = server.connect();
        let begun = Instant::now();
        let is_served = (0..frames).all(|number| {
            let sent = numbered(b'e', number, size);
            let is_sent = client.write_all(&sent).is_ok();
            is_sent && read_frame(&mut client).is_ok_and(|answer| answer == sent)
        });
        if is_served {
            return (client, closed);
        }
        let took = begun.elapsed();
        assert!(took >= turn, "closed after {took:?}");
    }
    panic!("none was served");
}

fn a_peer_that_trickles_a_frame_does_not_hold_up_the_rest(engine: Engine) {
    let turn = Duration::from_millis(200);
    let limits = Limits {
        max_frame: 512 * 1024,
        reassembly_bytes: 512 * 1024,
        turn,
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let bytes_in = || server.handle.counters().bytes_in.load(Ordering::Relaxed);
    let mut silent: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for client in &mut silent {
        client
            .write_all(&numbered(b'e', 1, 500_000)[..200_000])
            .unwrap();
    }
    until("the memory is used up", || bytes_in() > 600_000);
    let (_honest, slow) = exchange_in_turn(&server, 3, 300_000, turn);
    until("a silent one was closed", || server.closed() > slow);
    server.stop();
}

/// Connections with an unfinished frame each that use up the memory for them.
fn unfinished(server: &Server, count: usize) -> Vec<TcpStream> {
    let mut silent: Vec<_> = (0..count).map(|_| server.connect()).collect();
    for client in &mut silent {
        // What is not read any more stays in the sockets' buffers.
        let part = &numbered(b'e', 1, 500_000)[..200_000];
        client.write_all(part).unwrap();
    }
    let bytes_in = || server.handle.counters().bytes_in.load(Ordering::Relaxed);
    until("the memory is used up", || bytes_in() > 600_000);
    silent
}

fn frames_of_ordinary_size_are_read_however_many_unfinished_ones_are_held(engine: Engine) {
    let limits = Limits {
        max_frame: 512 * 1024,
        reassembly_bytes: 512 * 1024,
        turn: Duration::from_secs(3600),
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let silent = unfinished(&server, 8);
    let bytes_in = || server.handle.counters().bytes_in.load(Ordering::Relaxed);
    let mut honest = server.connect();
    for number in 0..3 {
        let sent = numbered(b'e', number, 20_000);
        let (first, second) = sent.split_at(100);
        let before = bytes_in();
        honest.write_all(first).unwrap();
        until("the first piece is there", || bytes_in() > before);
        honest.write_all(second).unwrap();
        assert!(read_frame(&mut honest).unwrap() == sent);
    }
    drop(silent);
    server.stop();
}

fn unfinished_frames_have_had_their_time_all_at_once(engine: Engine) {
    // One after the other, they would take longer than the client waits.
    let turn = Duration::from_millis(1500);
    let limits = Limits {
        max_frame: 512 * 1024,
        reassembly_bytes: 512 * 1024,
        turn,
        ..Limits::default()
    };
    let server = Server::start(engine, limits);
    let silent = unfinished(&server, 48);
    exchange_in_turn(&server, 2, 400_000, turn);
    drop(silent);
    server.stop();
}
