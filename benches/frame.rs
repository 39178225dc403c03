//! What does it cost to split what a socket brought into frames?

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use saturnmq_net::encode::Encoder;
use saturnmq_net::frame::{Codec, MAX_FRAME, Parsed, parse};

/// Frames of one read.
const FRAMES: usize = 64;

fn main() {
    divan::main();
}

#[divan::bench(args = [0, 128, 1024, 16_384])]
fn split(bencher: Bencher<'_, '_>, body: usize) {
    let mut bytes = Vec::new();
    for opaque in 0..FRAMES as i32 {
        let mut encoder = Encoder::request(&mut bytes, Codec::Json, 310, opaque, false);
        encoder.field_str("b", "orders").field_i32("e", 3);
        encoder.body(&vec![b'x'; body]);
    }
    bencher
        .counter(ItemsCount::new(FRAMES))
        .counter(BytesCount::new(bytes.len()))
        .bench_local(|| {
            let (mut rest, mut found) = (black_box(&bytes[..]), 0);
            while let Ok(Parsed::Complete { consumed, .. }) = parse(rest, MAX_FRAME) {
                rest = &rest[consumed..];
                found += 1;
            }
            assert_eq!(found, FRAMES);
        });
}
