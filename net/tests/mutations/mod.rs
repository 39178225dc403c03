//! No bytes a peer can send make the decoders panic, loop or read beyond what was sent.

use crate::recorded::recorded;
use crate::typed;
use saturnmq_net::command::{Scratch, decode};
use saturnmq_net::encode::Encoder;
use saturnmq_net::fastjson;
use saturnmq_net::frame::{Codec, Frame, MAX_FRAME, Parsed, parse};
use saturnmq_net::messages::message_id;
use saturnmq_net::messages::register::RegisterBrokerBody;
use saturnmq_net::messages::topic::TopicConfig;

/// Xorshift: one seed, one run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Bytes that mean something to one of the readers.
const TELLING: &[u8] = b"\"'\\{}[]:,u0dDeE+-.\x00\x01\x02\x7f\x80\xc3\xff";

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len());
        let telling = TELLING[random.below(TELLING.len())];
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = telling,
            2 => bytes.insert(at, telling),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            4 => bytes.truncate(at),
            _ => {
                let end = (at + random.below(16)).min(bytes.len());
                let copied = bytes[at..end].to_vec();
                bytes.extend_from_slice(&copied);
            }
        }
    }
}

/// Everything that is done with a frame before a handler sees it.
fn digest(frame: Frame<'_>, scratch: &mut Scratch, out: &mut Vec<u8>) -> bool {
    let Ok(command) = decode(frame, scratch) else {
        return false;
    };
    out.clear();
    let mut encoder = Encoder::request(out, command.codec, command.code, 0, false);
    let request = typed::request_view(command.code, &command.ext, &mut encoder);
    let response = typed::response_view(command.code, &command.ext, &mut encoder);
    encoder.finish();
    for (_, value) in command.ext.iter() {
        message_id::parse(value);
    }
    let bodies = [
        typed::request_body(command.code),
        typed::response_body(command.code),
    ];
    let rewrites = bodies.into_iter().flatten();
    let read = rewrites
        .filter(|rewrite| rewrite(command.body).is_ok())
        .count();
    request.is_ok() && response.is_ok() && read < 3
}

#[test]
fn mutated_frames_never_panic_the_decoders() {
    let mut random = Random(0x5eed_0001);
    let (mut scratch, mut out) = (Scratch::default(), Vec::new());
    let frames = recorded();
    let mut complete = 0;
    for _ in 0..30_000 {
        let mut bytes = frames[random.below(frames.len())].bytes.clone();
        bytes.truncate(4096);
        mutate(&mut bytes, &mut random);
        if let Ok(Parsed::Complete { frame, consumed }) = parse(&bytes, MAX_FRAME) {
            assert!(consumed <= bytes.len());
            complete += 1;
            digest(frame, &mut scratch, &mut out);
        }
    }
    assert!(complete > 1_000, "{complete} frames were complete");
}

#[test]
fn mutated_headers_and_bodies_never_panic_the_decoders() {
    let mut random = Random(0x5eed_0002);
    let (mut scratch, mut out) = (Scratch::default(), Vec::new());
    let frames = recorded();
    let mut well = 0;
    for _ in 0..30_000 {
        let bytes = &frames[random.below(frames.len())].bytes;
        let Ok(Parsed::Complete { frame, .. }) = parse(bytes, MAX_FRAME) else {
            continue;
        };
        let (mut header, mut body) = (frame.header.to_vec(), frame.body.to_vec());
        body.truncate(2048);
        mutate(
            if random.below(2) == 0 {
                &mut header
            } else {
                &mut body
            },
            &mut random,
        );
        let codec = match random.below(8) {
            0 => Codec::Binary,
            _ => frame.codec,
        };
        let mutated = Frame {
            codec,
            header: &header,
            body: &body,
        };
        well += usize::from(digest(mutated, &mut scratch, &mut out));
    }
    assert!(well > 1_000, "{well} were read all the same");
}

#[test]
fn soups_of_json_words_never_panic_the_decoders() {
    const WORDS: [&str; 26] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "'",
        "\\",
        "\\u",
        "d83d",
        "\\udE80",
        "\\x4",
        "0",
        "-1",
        "1e999",
        "true",
        "null",
        "code",
        "\"extFields\":{",
        "\"remark\":",
        "flag",
        "\u{e9}",
        " ",
        "\n",
        "{\"a\":1}:",
    ];
    let mut random = Random(0x5eed_0003);
    let (mut scratch, mut out) = (Scratch::default(), Vec::new());
    for _ in 0..60_000 {
        let mut text = String::from("{");
        for _ in 0..random.below(40) {
            text.push_str(WORDS[random.below(WORDS.len())]);
        }
        let frame = Frame {
            codec: Codec::Json,
            header: text.as_bytes(),
            body: b"",
        };
        digest(frame, &mut scratch, &mut out);
        if let Ok(value) = fastjson::parse(text.as_bytes()) {
            assert_eq!(fastjson::parse(value.to_string().as_bytes()), Ok(value));
        }
    }
}

#[test]
fn damaged_compressed_registrations_never_panic() {
    let mut body = RegisterBrokerBody::default();
    for number in 0..20 {
        let topic_name = format!("topic-{number}");
        let topic = TopicConfig {
            topic_name: topic_name.clone(),
            ..TopicConfig::default()
        };
        body.topic_config_serialize_wrapper
            .topic_config_table
            .insert(topic_name, topic);
    }
    let mut random = Random(0x5eed_0004);
    let whole = body.encode_compressed(479).expect("a compressed body");
    assert_eq!(RegisterBrokerBody::decode(&whole, true), Ok(body));
    for _ in 0..5_000 {
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut random);
        drop(RegisterBrokerBody::decode(&bytes, true));
    }
}

#[test]
fn nesting_and_size_are_limited() {
    let deep = "[".repeat(1 << 20);
    assert!(matches!(
        fastjson::parse(deep.as_bytes()),
        Err(fastjson::BodyError::TooDeep { .. })
    ));
    let deep = "{\"a\":".repeat(1 << 18);
    assert!(matches!(
        fastjson::parse(deep.as_bytes()),
        Err(fastjson::BodyError::TooDeep { .. })
    ));
    let wide = format!("[{}]", "0,".repeat(3_000_000));
    let refused = fastjson::parse(wide.as_bytes());
    assert!(matches!(
        refused,
        Err(fastjson::BodyError::TooManyValues { .. })
    ));
}

/// A header as it was read, or why it was not.
fn told(frame: Frame<'_>, scratch: &mut Scratch) -> String {
    match decode(frame, scratch) {
        Ok(command) => {
            let fields: Vec<_> = command.ext.iter().collect();
            let numbers = (command.code, command.version, command.opaque, command.flag);
            let (language, remark) = (command.language, command.remark);
            format!("{numbers:?} {language:?} {remark:?} {fields:?}")
        }
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn what_was_read_before_changes_nothing_in_what_is_read_next() {
    let mut random = Random(0x5eed_0004);
    let (mut warm, fresh) = (Scratch::default(), Scratch::default);
    let frames = recorded();
    let mut at = 0;
    for round in 0..20_000 {
        // Neighbours are of one client: their shapes are learnt.
        at = match round % 64 {
            0 => random.below(frames.len()),
            _ => (at + random.below(3)) % frames.len(),
        };
        let Ok(Parsed::Complete { frame, .. }) = parse(&frames[at].bytes, MAX_FRAME) else {
            continue;
        };
        let mut header = frame.header.to_vec();
        for changed in [false, true, false] {
            if changed {
                mutate(&mut header, &mut random);
            }
            let frame = Frame {
                header: &header,
                body: b"",
                ..frame
            };
            assert_eq!(told(frame, &mut warm), told(frame, &mut fresh()));
        }
    }
}
