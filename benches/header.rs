//! What does the header of a send cost to read and to write, in both forms?

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use saturnmq_net::codes::request;
use saturnmq_net::command::{Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{Codec, MAX_FRAME, Parsed, parse};
use saturnmq_net::messages::send::SendRequest;

const FORMS: [Codec; 2] = [Codec::Json, Codec::Binary];

const SEND: SendRequest<'_> = SendRequest {
    producer_group: "orders_producer",
    topic: "orders",
    default_topic: "TBW102",
    default_topic_queue_nums: 4,
    queue_id: 3,
    sys_flag: 0,
    born_timestamp: 1_700_000_000_000,
    flag: 0,
    properties: "UNIQ_KEY\u{1}7F00000177C94E0E2F2A9575FF750000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}A\u{2}",
    reconsume_times: 0,
    unit_mode: false,
    max_reconsume_times: None,
    batch: false,
    broker_name: None,
};

fn main() {
    divan::main();
}

fn write(form: Codec, out: &mut Vec<u8>) {
    out.clear();
    let code = request::SEND_MESSAGE_V2;
    let mut encoder = Encoder::request(out, form, code, 7, false);
    SEND.encode_fields(code, &mut encoder);
    encoder.body(&[b'x'; 64]);
}

#[divan::bench(args = FORMS)]
fn encode(bencher: Bencher<'_, '_>, form: Codec) {
    let mut out = Vec::with_capacity(4096);
    bencher
        .counter(ItemsCount::new(1_u64))
        .bench_local(|| write(black_box(form), &mut out));
}

#[divan::bench(args = FORMS)]
fn decode_fields(bencher: Bencher<'_, '_>, form: Codec) {
    let mut out = Vec::new();
    write(form, &mut out);
    let mut scratch = Scratch::default();
    bencher.counter(ItemsCount::new(1_u64)).bench_local(|| {
        let Ok(Parsed::Complete { frame, .. }) = parse(black_box(&out), MAX_FRAME) else {
            panic!("no frame");
        };
        let command = decode(frame, &mut scratch).expect("a header");
        let send = SendRequest::decode(command.code, &command.ext).expect("fields");
        assert_eq!(send.queue_id, 3);
    });
}
