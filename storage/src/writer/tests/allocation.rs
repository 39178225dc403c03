//! In steady state neither a producer nor the writer allocates.

use std::sync::Arc;
use std::time::Duration;

use super::model::TestQueues;
use crate::append_queue::{AppendPort, Doorbell, PortLimits, port};
use crate::commit_log::{Geometry, LogStatus};
use crate::config::FlushMode;
use crate::disk::Disk;
use crate::disk::uring::UringDisk;
use crate::dispatch::{DispatchReceiver, channel};
use crate::format::message::MessageParts;
use crate::preparer::{FirstFile, PreparedFiles, Preparer, Work, first_file};
use crate::segments::Segments;
use crate::tail::tail;
use crate::watermarks::Watermarks;
use crate::writer::{LogFile, Now, Writer, WriterParts};

const FILE_SIZE: u64 = 64 << 20;
const TURN_MS: i64 = 1_700_000_000_000;

struct Rig {
    writer: Writer<UringDisk, PreparedFiles, TestQueues>,
    port: AppendPort,
    receiver: DispatchReceiver,
    marks: Arc<Watermarks>,
    _preparer: Preparer,
    _dir: tempfile::TempDir,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir_in(".").expect("directory");
    let segments = Segments {
        dir: dir.path().to_path_buf(),
        file_size: FILE_SIZE,
        direct: true,
        prepare: true,
    };
    let marks = Arc::new(Watermarks::new(FlushMode::Sync, 0));
    let bell = Arc::new(Doorbell::new().expect("eventfd"));
    let status = Arc::new(LogStatus::default());
    let first = first_file(&segments, 0).expect("first file");
    let (work, files) = Work::new(
        segments,
        FirstFile {
            base: FILE_SIZE,
            goes_on_at: None,
        },
        Arc::clone(&marks),
        Arc::clone(&status),
        Arc::clone(&bell),
        Arc::default(),
    )
    .expect("work");
    let preparer = Preparer::start(work).expect("preparer");
    let (tail_writer, _) = tail(4 << 20, 0).expect("tail");
    let limits = PortLimits {
        ring_bytes: 1 << 20,
        in_flight: 1000,
        record_bytes: 100_000,
    };
    let (port, end) = port(limits, Arc::clone(&bell));
    let (disk, _) = UringDisk::new(Arc::clone(tail_writer.shared()), bell).expect("io_uring");
    let (dispatcher, receiver) = channel(10_000);
    let parts = WriterParts {
        geometry: Geometry::new(FILE_SIZE, 4096),
        flush_interval: Duration::from_millis(500),
        disk,
        files,
        queues: TestQueues::new(),
        ports: vec![end],
        unanswered_capacity: limits.in_flight,
        tail: tail_writer,
        marks: Arc::clone(&marks),
        status,
        dispatcher,
        metrics: Arc::default(),
        last_store_timestamp: 0,
    };
    let active = LogFile {
        file: first.file,
        base: 0,
        zeroed_to: FILE_SIZE,
    };
    let writer = Writer::new(parts, Some(active)).expect("writer");
    Rig {
        writer,
        port,
        receiver,
        marks,
        _preparer: preparer,
        _dir: dir,
    }
}

/// Sends, in turns that began at [`TURN_MS`]; when the first message was stored, ms.
fn send(rig: &mut Rig, messages: u64) -> i64 {
    let host = "127.0.0.1:10911".parse().expect("address");
    let body = [7; 1000];
    let parts = MessageParts {
        topic: "harbour",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: &[b"TAGS\x01a\x02"],
    };
    let (mut sent, mut answered, mut first_ms) = (0, 0, i64::MAX);
    for turn in 0..1_000_000 {
        while sent < messages && rig.port.push_to_slots(sent, 0, &parts, &[]).is_ok() {
            sent += 1;
        }
        rig.port.submit();
        let now = Now {
            wall_ms: TURN_MS,
            monotonic: Duration::from_millis(turn),
        };
        rig.writer.turn(now, &mut |_| ());
        while let Some(result) = rig.port.pop() {
            let stored = result.outcome.map(|appended| appended.store_timestamp);
            first_ms = first_ms.min(stored.unwrap_or(0));
            answered += 1;
        }
        while let Some(item) = rig.receiver.pop() {
            rig.marks
                .advance_dispatched(item.physical_offset + u64::from(item.size));
        }
        if answered == messages {
            return first_ms;
        }
        let waited = rig.writer.disk().wait(Some(Duration::from_millis(1)));
        waited.expect("wait");
    }
    panic!("{answered} of {messages} answers");
}

#[test]
fn steady_state_allocates_nothing() {
    let mut rig = rig();
    send(&mut rig, 3000);
    let counted = allocation_counter::measure(|| {
        assert_eq!(send(&mut rig, 20_000), TURN_MS);
    });
    assert_eq!(
        counted.count_total, 0,
        "allocations while sending 20,000 messages"
    );
}

#[test]
fn no_message_is_stored_before_it_was_sent_however_long_a_turn_takes() {
    let mut rig = rig();
    rig.writer = rig.writer.with_clock(|| TURN_MS + 5);
    assert_eq!(send(&mut rig, 100), TURN_MS + 5);
}
