//! The loop over a transport made of scripts: every order of events, none of the waiting.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::*;
use crate::driver::{Room, Verdict};
use crate::frame::Frame;
use crate::probe::Engine;

const LINES: usize = 8;
const FRAMES: u32 = 200;

/// Small numbers from a seed (xorshift), so that a failing run can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Takes numbered frames, refusing some and finishing some later; fails on any disorder.
struct Checker {
    dice: Dice,
    expected: Vec<u32>,
    in_flight: VecDeque<ConnectionId>,
    closed: usize,
    most_in_flight: usize,
}

impl Protocol for Checker {
    fn opened(&mut self, conn: ConnectionId, _: SocketAddr, _: u16) {
        assert_eq!(conn.index(), self.expected.len());
        self.expected.push(0);
    }

    fn closed(&mut self, _: ConnectionId) {
        self.closed += 1;
    }

    fn frame(&mut self, conn: ConnectionId, frame: Frame<'_>, io: &mut Outbox) -> Verdict {
        let number = u32::from_be_bytes(frame.body[..4].try_into().unwrap());
        let expected = &mut self.expected[conn.index()];
        assert_eq!(number, *expected, "lost, repeated or out of order");
        assert!(
            frame.body[4..].iter().all(|&byte| byte == number as u8),
            "bytes mixed up"
        );
        match self.dice.roll(4) {
            0 => return Verdict::Retry,
            1 => {
                io.request_started(conn);
                self.in_flight.push_back(conn);
                self.most_in_flight = self.most_in_flight.max(self.in_flight.len());
            }
            _ => io
                .buffer(conn)
                .unwrap()
                .extend_from_slice(&number.to_be_bytes()),
        }
        *expected += 1;
        Verdict::Done
    }

    fn pass(&mut self, _: Instant, io: &mut Outbox) {
        for _ in 0..self.dice.roll(4) {
            if let Some(conn) = self.in_flight.pop_front() {
                io.request_finished(conn);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn has_work(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn end_of_pass(&mut self) {}

    fn idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    fn leaving(&mut self, _: &mut Outbox) {}
}

#[derive(Default)]
struct Line {
    id: Option<ConnectionId>,
    incoming: VecDeque<u8>,
    sending: Vec<u8>,
    reading: bool,
    cancelled: bool,
}

/// Delivers pieces of prepared streams, late sends and late cancellations, as the dice fall.
struct Script {
    dice: Dice,
    lines: Vec<Line>,
}

impl Transport for Script {
    fn open(&mut self, id: ConnectionId, _: &Connection) -> io::Result<()> {
        self.lines[id.index()].id = Some(id);
        Ok(())
    }

    fn read(&mut self, id: ConnectionId, connection: &mut Connection) {
        assert_eq!(connection.reading, Reading::Idle);
        connection.reading = Reading::Armed;
        let line = &mut self.lines[id.index()];
        assert!(!line.reading, "read twice");
        line.reading = true;
    }

    fn pause(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.reading = Reading::Stopping;
        self.lines[id.index()].cancelled = true;
    }

    fn send(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
        _awaited: bool,
    ) -> io::Result<Sending> {
        assert_eq!(connection.sending, 0, "two sends at once");
        let buffer = connection.take_out();
        assert!(!buffer.is_empty());
        self.lines[id.index()].sending = buffer;
        Ok(Sending::Pending)
    }

    fn shut(&mut self, id: ConnectionId, connection: &mut Connection) {
        connection.reading = Reading::Idle;
        connection.sending = 0;
        self.lines[id.index()] = Line::default();
    }

    fn turn<P: Protocol>(&mut self, core: &mut Core<P>, _: Wait) -> io::Result<()> {
        core.woke();
        for line in &mut self.lines {
            let Some(id) = line.id else { continue };
            let size = self.dice.roll(3000) as usize;
            if self.dice.roll(2) == 0 && line.reading && !line.incoming.is_empty() {
                let size = size.min(line.incoming.len());
                let piece: Vec<u8> = line.incoming.drain(..size).collect();
                core.received(id, &piece);
            }
            if self.dice.roll(2) == 0 && line.cancelled {
                (line.reading, line.cancelled) = (false, false);
                core.reading_stopped(id);
            }
            if self.dice.roll(3) == 0 && !line.sending.is_empty() {
                core.sent(id, std::mem::take(&mut line.sending));
            }
        }
        Ok(())
    }
}

fn stream(dice: &mut Dice) -> VecDeque<u8> {
    let mut bytes = VecDeque::new();
    for number in 0..FRAMES {
        let size = dice.roll(2500) as usize;
        bytes.extend((4 + 1 + 4 + size as u32).to_be_bytes());
        bytes.extend(1u32.to_be_bytes());
        bytes.push_back(b'h');
        bytes.extend(number.to_be_bytes());
        bytes.extend(std::iter::repeat_n(number as u8, size));
    }
    bytes
}

fn tight_limits(dice: &mut Dice) -> Limits {
    Limits {
        max_frame: 4096,
        reassembly_bytes: 8192 + dice.roll(8192) as usize,
        unsent_bytes: 1 + dice.roll(200) as usize,
        unsent_total_bytes: 1 + dice.roll(400) as usize,
        unsent_when_short: 1 + dice.roll(100) as usize,
        requests_in_flight: 1 + dice.roll(5) as u32,
        stalled_bytes: 1 + dice.roll(4000) as usize,
        turn: Duration::from_secs(3600),
        slice: Duration::from_secs(3600 * dice.roll(2)),
        idle: Duration::from_secs(3600),
        ..Limits::default()
    }
}

fn start(dice: &mut Dice, seed: u64) -> (Core<Checker>, Script) {
    let (push, inbox) = crossbeam_channel::bounded(LINES);
    let mut transport = Script {
        dice: Dice(seed + 1),
        lines: Vec::new(),
    };
    for _ in 0..LINES {
        transport.lines.push(Line {
            incoming: stream(dice),
            ..Line::default()
        });
        let socket: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        push.send(Newcomer {
            socket,
            peer,
            local_port: 1,
        })
        .unwrap();
    }
    let checker = Checker {
        dice: Dice(seed + 2),
        expected: Vec::new(),
        in_flight: VecDeque::new(),
        closed: 0,
        most_in_flight: 0,
    };
    let settings = CoreSettings {
        limits: tight_limits(dice),
        ..CoreSettings::new(0, None, Engine::Epoll(String::new()))
    };
    let shared = Arc::new(Shared::new(0, inbox).unwrap());
    shared.connections.store(LINES, Ordering::Relaxed);
    (Core::new(checker, settings, shared), transport)
}

fn run_script(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut core, mut transport) = start(&mut dice, seed);
    for _ in 0..100_000 {
        transport.turn(&mut core, Wait::No).unwrap();
        core.pass(&mut transport);
        let done = core.protocol.expected == [FRAMES; LINES];
        if done && core.is_drained() {
            break;
        }
    }
    assert_eq!(
        core.protocol.expected, [FRAMES; LINES],
        "seed {seed}: frames were not taken"
    );
    let most = LINES * (core.limits.requests_in_flight as usize + 1);
    assert!(
        core.protocol.most_in_flight <= most,
        "seed {seed}: too many requests in flight"
    );
    assert_eq!(
        core.reassembly,
        unread_capacity(&core),
        "seed {seed}: memory miscounted"
    );
    stop(core, transport, seed);
}

fn unread_capacity(core: &Core<Checker>) -> usize {
    let ids = (0..core.io.slot_count()).filter_map(|index| core.io.at(index));
    ids.filter_map(|id| core.io.get(id))
        .map(|connection| connection.unread.capacity())
        .sum()
}

fn stop(mut core: Core<Checker>, mut transport: Script, seed: u64) {
    core.shared.stopping.store(true, Ordering::SeqCst);
    let end = Instant::now() + Duration::from_secs(10);
    while !matches!(core.stop, Stop::Done) {
        assert!(Instant::now() < end, "seed {seed}: the stop does not end");
        transport.turn(&mut core, Wait::No).unwrap();
        core.pass(&mut transport);
        if matches!(core.stop, Stop::Lingering(_)) {
            transport
                .lines
                .iter()
                .filter_map(|line| line.id)
                .for_each(|id| core.ended(id));
        }
    }
    assert_eq!(core.protocol.closed, LINES, "seed {seed}");
    assert_eq!(core.io.unsent_total, 0, "seed {seed}");
    assert_eq!(core.reassembly, 0, "seed {seed}");
    assert!(core.io.is_empty());
}

#[test]
fn frames_are_taken_once_and_in_order_whatever_the_order_of_events() {
    for seed in 1..=40 {
        run_script(seed);
    }
}

/// Counts the frames of each connection.
struct Counter(Vec<u32>);

impl Protocol for Counter {
    fn opened(&mut self, _: ConnectionId, _: SocketAddr, _: u16) {
        self.0.push(0);
    }

    fn closed(&mut self, _: ConnectionId) {}

    fn frame(&mut self, conn: ConnectionId, _: Frame<'_>, _: &mut Outbox) -> Verdict {
        self.0[conn.index()] += 1;
        Verdict::Done
    }

    fn pass(&mut self, _: Instant, _: &mut Outbox) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn has_work(&self) -> bool {
        false
    }

    fn end_of_pass(&mut self) {}

    fn idle(&self) -> bool {
        true
    }

    fn leaving(&mut self, _: &mut Outbox) {}
}

#[test]
fn requests_of_one_connection_take_no_more_than_its_slice_of_a_pass() {
    let limits = Limits {
        // Any request takes longer.
        slice: Duration::ZERO,
        ..Limits::default()
    };
    let (mut core, mut transport, ids) = counting(limits, 2);
    let (dear, other) = (ids[0], ids[1]);
    let frame: &[u8] = &[0, 0, 0, 5, 0, 0, 0, 1, b'h'];
    for pass in 1..=100 {
        core.woke();
        core.received(dear, &frame.repeat(50));
        core.received(other, frame);
        core.pass(&mut transport);
        assert_eq!(core.protocol.0, [pass, pass], "frames taken by pass {pass}");
        assert_eq!(core.plan_wait(), Wait::No, "the rest waits for an event");
    }
}

/// A core with `count` connections, and its transport.
fn counting(limits: Limits, count: usize) -> (Core<Counter>, Script, Vec<ConnectionId>) {
    let (push, inbox) = crossbeam_channel::bounded(count);
    for _ in 0..count {
        push.send(Newcomer {
            socket: std::fs::File::open("/dev/null").unwrap().into(),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            local_port: 1,
        })
        .unwrap();
    }
    let settings = CoreSettings {
        limits,
        ..CoreSettings::new(0, None, Engine::Epoll(String::new()))
    };
    let mut transport = Script {
        dice: Dice(1),
        lines: (0..count).map(|_| Line::default()).collect(),
    };
    let shared = Arc::new(Shared::new(0, inbox).unwrap());
    shared.connections.store(count, Ordering::Relaxed);
    let mut core = Core::new(Counter(Vec::new()), settings, shared);
    core.pass(&mut transport);
    let ids = (0..count).map(|index| core.io.at(index).unwrap()).collect();
    (core, transport, ids)
}

#[test]
fn what_others_push_to_a_peer_that_does_not_read_is_bounded() {
    let limits = Limits {
        unsent_most: 10_000,
        ..Limits::default()
    };
    let (mut core, mut transport, ids) = counting(limits, 2);
    for _ in 0..30 {
        if let Some(out) = core.io.buffer(ids[0]) {
            out.extend_from_slice(&[0; 1000]);
        }
        core.woke();
        core.pass(&mut transport);
    }
    assert!(core.io.get(ids[0]).is_none(), "it is closed");
    assert!(core.io.get(ids[1]).is_some());
    assert_eq!(core.io.unsent_total, 0);
}

#[test]
fn answers_that_nobody_reads_do_not_fill_the_memory() {
    let limits = Limits {
        unsent_total_bytes: 10_000,
        unread: Duration::ZERO,
        ..Limits::default()
    };
    let (mut core, mut transport, ids) = counting(limits, 30);
    let mut written = 0;
    for id in &ids {
        if core.io.room(*id, usize::MAX) == Room::Enough {
            core.io.buffer(*id).unwrap().extend_from_slice(&[0; 1000]);
            core.io.wrote(1000);
            written += 1;
        }
    }
    assert_eq!(written, 21, "twice the total, and one");
    core.woke();
    core.pass(&mut transport);
    assert_eq!(core.io.unsent_total, 21_000);
    assert_eq!(core.io.room(ids[0], usize::MAX), Room::None);
    core.next_sweep = core.now;
    core.woke();
    core.pass(&mut transport);
    assert!(core.io.unsent_total <= 5000, "{}", core.io.unsent_total);
    assert_eq!(core.io.room(ids[29], 0), Room::Enough);
}
