//! Light queues: queues that a message enters besides its own one, because its properties name them
//! (docs/format.md, Light queues).

use super::message::{PROPERTIES_MAX, i16_field, i32_field};
use super::properties::{NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Properties, names};
use super::record::Record;

/// What the name of every light queue begins with.
pub const PREFIX: &str = "%LMQ%";
/// The only queue id that light queues have.
pub const QUEUE_ID: i32 = 0;
/// Stands between two names, and between two offsets.
pub const SPLITTER: char = ',';

/// Topics whose records enter no light queue, whatever they say: what is stored in them comes
/// again, in the topic that it is meant for, or was in the light queue before.
const WITHOUT: [&str; 4] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
];

/// Whether a queue of this topic is a light one.
pub fn is_light(topic: &str) -> bool {
    topic.starts_with(PREFIX)
}

/// Whether records of `topic` enter light queues.
pub fn enters_light_queues(topic: &str) -> bool {
    !topic.starts_with("%RETRY%") && !topic.starts_with("rmq_sys_") && !WITHOUT.contains(&topic)
}

/// The names in the value of `INNER_MULTI_DISPATCH`; as for Java, empty ones at the end are none.
pub fn names_in(list: &str) -> impl Iterator<Item = &str> {
    list.trim_end_matches(SPLITTER).split(SPLITTER)
}

/// The light queues that a record says it entered, and its offset in each.
pub fn places<'a>(properties: Properties<'a>) -> impl Iterator<Item = (&'a str, i64)> {
    let names = properties.get_str(names::INNER_MULTI_DISPATCH);
    let offsets = names.and_then(|_| properties.get_str(names::INNER_MULTI_QUEUE_OFFSET));
    let (names, offsets) = match (names, offsets) {
        (Some(names), Some(offsets)) => (names, offsets),
        _ => ("", ""),
    };
    names
        .split(SPLITTER)
        .zip(offsets.split(SPLITTER))
        .filter(|(name, _)| is_light(name))
        .filter_map(|(name, offset)| Some((name, offset.parse().ok()?)))
}

/// Whether a record is the one that stands at a queue offset, in its own queue or in a light one.
pub fn is_of(record: &Record<'_>, topic: &str, queue_id: i32, at: u64) -> bool {
    let own = record.topic() == topic
        && record.queue_id() == queue_id
        && u64::try_from(record.queue_offset()) == Ok(at);
    let entered = || {
        let mut places = places(record.properties());
        places.any(|(queue, offset)| queue == topic && u64::try_from(offset) == Ok(at))
    };
    own || queue_id == QUEUE_ID && is_light(topic) && entered()
}

/// Begins the property that holds the offsets, behind those of an encoded record.
pub fn begin_offsets(out: &mut Vec<u8>) {
    out.clear();
    out.push(PROPERTY_SEPARATOR);
    out.extend_from_slice(names::INNER_MULTI_QUEUE_OFFSET.as_bytes());
    out.push(NAME_VALUE_SEPARATOR);
}

/// Adds an offset to the property that [`begin_offsets`] began.
pub fn push_offset(out: &mut Vec<u8>, offset: i64) {
    if out.last() != Some(&NAME_VALUE_SEPARATOR) {
        out.push(SPLITTER as u8);
    }
    let mut digits = [0; 20];
    let (mut rest, mut at) = (offset.unsigned_abs(), digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The two length fields of an encoded record of `len` bytes whose property string, of `properties`
/// bytes, gets `added` bytes longer: each with its position. `None` where it may not be so long.
pub fn lengthened(len: usize, properties: usize, added: usize) -> Option<Lengths> {
    let longer = properties + added;
    let at = len.checked_sub(properties + 2)?;
    (longer <= PROPERTIES_MAX).then(|| Lengths {
        record: (0, i32_field(len + added)),
        properties: (at, i16_field(longer)),
    })
}

/// Length fields of a record: position and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of the record.
    pub record: (usize, [u8; 4]),
    /// Of its properties.
    pub properties: (usize, [u8; 2]),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places_of(names: &str, offsets: &str) -> Vec<(String, i64)> {
        let text =
            format!("INNER_MULTI_DISPATCH\u{1}{names}\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}{offsets}");
        let found = places(Properties::new(text.as_bytes()));
        found.map(|(name, at)| (name.to_owned(), at)).collect()
    }

    #[test]
    fn only_light_queues_with_an_offset_are_entered() {
        let entered = |list: &[(&str, i64)]| -> Vec<_> {
            list.iter().map(|(n, at)| ((*n).to_owned(), *at)).collect()
        };
        assert_eq!(
            places_of("%LMQ%a,Orders,%LMQ%b", "3,500,0"),
            entered(&[("%LMQ%a", 3), ("%LMQ%b", 0)])
        );
        assert_eq!(places_of("%LMQ%a,%LMQ%b", "3"), entered(&[("%LMQ%a", 3)]));
        assert_eq!(places_of("%LMQ%a,%LMQ%b", ",7"), entered(&[("%LMQ%b", 7)]));
        assert_eq!(places_of("", "1"), []);
        assert_eq!(
            places(Properties::new(b"INNER_MULTI_DISPATCH\x01%LMQ%a")).count(),
            0
        );
    }

    #[test]
    fn offsets_are_written_as_apache_joins_them() {
        let mut out = vec![7];
        begin_offsets(&mut out);
        for offset in [0, 10, i64::MAX] {
            push_offset(&mut out, offset);
        }
        assert_eq!(
            out,
            b"\x02INNER_MULTI_QUEUE_OFFSET\x010,10,9223372036854775807"
        );
    }

    #[test]
    fn empty_names_at_the_end_are_none() {
        let names = |list| names_in(list).collect::<Vec<_>>();
        assert_eq!(names("%LMQ%a,%LMQ%b,,"), ["%LMQ%a", "%LMQ%b"]);
        assert_eq!(names("%LMQ%a,,%LMQ%b"), ["%LMQ%a", "", "%LMQ%b"]);
    }

    #[test]
    fn what_comes_again_enters_no_light_queue_before() {
        for topic in ["Orders", "%DLQ%g", "%LMQ%a", "RMQ_SYS_TRACE_TOPIC"] {
            assert!(enters_light_queues(topic), "{topic}");
        }
        for topic in [
            "%RETRY%g",
            "rmq_sys_wheel_timer",
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
        ] {
            assert!(!enters_light_queues(topic), "{topic}");
        }
    }

    #[test]
    fn properties_never_outgrow_their_length() {
        assert_eq!(lengthened(191, 100, PROPERTIES_MAX - 99), None);
        let lengths = lengthened(191, 100, 10).expect("room");
        assert_eq!(lengths.record, (0, 201i32.to_be_bytes()));
        assert_eq!(lengths.properties, (89, 110i16.to_be_bytes()));
    }
}
