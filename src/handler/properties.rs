//! A message's property string: `key 0x01 value 0x02` pairs, as clients send them and as they are
//! stored (docs/protocol.md, Properties).
//!
//! Reading follows Apache: pieces without a name, a value or a separator do not count, and of
//! duplicates the later one does. Writing puts the properties of the broker behind the client's,
//! without a final 0x02, as Apache 4.9 stores them.

/// Between a name and its value.
pub const NAME_END: u8 = 1;
/// Between two properties.
pub const PAIR_END: u8 = 2;

/// Tag of a message.
pub const TAGS: &str = "TAGS";
/// Business keys of a message.
pub const KEYS: &str = "KEYS";
/// Whether the producer waits for the flush.
pub const WAIT: &str = "WAIT";
/// Delay level.
pub const DELAY: &str = "DELAY";
/// Region of the broker that took the message.
pub const MSG_REGION: &str = "MSG_REGION";
/// Whether the message is traced.
pub const TRACE_ON: &str = "TRACE_ON";
/// Name of the cluster that stored the message.
pub const CLUSTER: &str = "CLUSTER";
/// Unique key made by the client.
pub const UNIQ_KEY: &str = "UNIQ_KEY";
/// Marks a half message.
pub const TRAN_MSG: &str = "TRAN_MSG";
/// Id of a transaction: the unique key of its half message.
pub const TRANSACTION_ID: &str = "__transactionId__";
/// Producer group of a transaction.
pub const PGROUP: &str = "PGROUP";
/// How often the producer was asked about a half message.
pub const CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
/// Queue offset of the half message that a copy made while it was immune stands for.
pub const PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
/// Seconds before the producer is first asked about a half message.
pub const CHECK_IMMUNITY: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
/// Topic that a redirected message is meant for.
pub const REAL_TOPIC: &str = "REAL_TOPIC";
/// Queue that a redirected message is meant for.
pub const REAL_QID: &str = "REAL_QID";
/// Topic that a retried message came from.
pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
/// Offset message id of the first copy of a retried message.
pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
/// Pop check point of a message that was popped before.
pub const POP_CK: &str = "POP_CK";
/// Properties that ask for a delivery at a time instead of a level.
pub const TIMERS: [&str; 3] = ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

/// Seconds after which a message is due.
pub const TIMER_DELAY_SEC: &str = TIMERS[0];
/// Milliseconds after which a message is due.
pub const TIMER_DELAY_MS: &str = TIMERS[1];
/// When a message is due, ms.
pub const TIMER_DELIVER_MS: &str = TIMERS[2];
/// When a message in the timer topic is due, ms, rounded down.
pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
/// When a message was entered into the timer wheel, ms.
pub const TIMER_ENQUEUE_MS: &str = "TIMER_ENQUEUE_MS";
/// When a message left the timer wheel, ms.
pub const TIMER_DEQUEUE_MS: &str = "TIMER_DEQUEUE_MS";
/// How often a message was entered into the timer wheel again.
pub const TIMER_ROLL_TIMES: &str = "TIMER_ROLL_TIMES";
/// Topic and unique key, with a `+` between, of a message that is not to be delivered.
pub const TIMER_DELETES: &str = "TIMER_DEL_UNIQKEY";

/// What the names of properties about light queues begin with.
const INNER: &[u8] = b"INNER_MULTI_";

/// Above this many pieces duplicates are found by sorting instead of by comparing each with each.
const COMPARE_ALL: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u32,
    split: u32,
    end: u32,
    kept: bool,
}

/// The pieces of one property string; reused from message to message.
#[derive(Debug, Default)]
pub struct PropertyScan {
    pieces: Vec<Piece>,
    order: Vec<u32>,
    /// Whether there is a property about light queues.
    inner: bool,
}

impl PropertyScan {
    /// Splits `text`; what an earlier call found is forgotten.
    pub fn read(&mut self, text: &str) {
        self.pieces.clear();
        self.inner = false;
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let end = find(bytes, start, PAIR_END).unwrap_or(bytes.len());
            let split = find(&bytes[..end], start, NAME_END);
            if let Some(split) = split
                && split > start
                && split + 1 < end
            {
                self.inner |= bytes[start..split].starts_with(INNER);
                self.pieces.push(Piece {
                    start: start as u32,
                    split: split as u32,
                    end: end as u32,
                    kept: true,
                });
            }
            start = end + 1;
        }
        self.drop_earlier_duplicates(bytes);
    }

    /// The value of a property of `text`, which [`PropertyScan::read`] was given.
    pub fn get<'t>(&self, text: &'t str, name: &str) -> Option<&'t str> {
        self.pieces
            .iter()
            .find(|piece| piece.kept && piece.name(text.as_bytes()) == name.as_bytes())
            .and_then(|piece| text.get(piece.split as usize + 1..piece.end as usize))
    }

    /// Whether there is `INNER_MULTI_DISPATCH` or `INNER_MULTI_QUEUE_OFFSET`.
    pub fn has_inner(&self) -> bool {
        self.inner
    }

    /// Leaves a property out of what [`PropertyScan::write`] writes.
    pub fn remove(&mut self, text: &str, name: &str) {
        for piece in &mut self.pieces {
            if piece.kept && piece.name(text.as_bytes()) == name.as_bytes() {
                piece.kept = false;
            }
        }
    }

    /// All properties that count, in the order sent.
    pub fn iter<'s, 't: 's>(
        &'s self,
        text: &'t str,
    ) -> impl Iterator<Item = (&'t str, &'t str)> + 's {
        self.pieces
            .iter()
            .filter(|piece| piece.kept)
            .filter_map(|piece| {
                Some((
                    text.get(piece.start as usize..piece.split as usize)?,
                    text.get(piece.split as usize + 1..piece.end as usize)?,
                ))
            })
    }

    /// Appends the properties that are left to `out`, without a final separator.
    pub fn write(&self, text: &str, out: &mut Vec<u8>) {
        let bytes = text.as_bytes();
        for piece in self.pieces.iter().filter(|piece| piece.kept) {
            if !out.is_empty() {
                out.push(PAIR_END);
            }
            out.extend_from_slice(&bytes[piece.start as usize..piece.end as usize]);
        }
    }

    fn drop_earlier_duplicates(&mut self, bytes: &[u8]) {
        let count = self.pieces.len();
        if count <= COMPARE_ALL {
            for later in 1..count {
                let name = self.pieces[later].name(bytes);
                let (earlier, _) = self.pieces.split_at_mut(later);
                for piece in earlier.iter_mut().filter(|piece| piece.kept) {
                    if piece.name(bytes) == name {
                        piece.kept = false;
                    }
                }
            }
            return;
        }
        let pieces = &mut self.pieces;
        self.order.clear();
        self.order.extend(0..count as u32);
        self.order.sort_unstable_by(|&a, &b| {
            let names = (
                pieces[a as usize].name(bytes),
                pieces[b as usize].name(bytes),
            );
            names.0.cmp(names.1).then(a.cmp(&b))
        });
        for pair in self.order.windows(2) {
            let (earlier, later) = (pair[0] as usize, pair[1] as usize);
            if pieces[earlier].name(bytes) == pieces[later].name(bytes) {
                pieces[earlier].kept = false;
            }
        }
    }
}

impl Piece {
    fn name<'t>(&self, bytes: &'t [u8]) -> &'t [u8] {
        &bytes[self.start as usize..self.split as usize]
    }
}

fn find(bytes: &[u8], from: usize, wanted: u8) -> Option<usize> {
    bytes
        .get(from..)?
        .iter()
        .position(|&byte| byte == wanted)
        .map(|at| from + at)
}

/// Appends a property to a property string without a final separator.
pub fn append(out: &mut Vec<u8>, name: &str, value: &str) {
    if !out.is_empty() {
        out.push(PAIR_END);
    }
    out.extend_from_slice(name.as_bytes());
    out.push(NAME_END);
    out.extend_from_slice(value.as_bytes());
}

/// Appends a property with a number that is not negative.
pub fn append_number(out: &mut Vec<u8>, name: &str, number: i32) {
    let mut digits = [0; 10];
    let mut rest = number.unsigned_abs();
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    // Only ASCII digits were written.
    append(out, name, std::str::from_utf8(&digits[at..]).unwrap_or("0"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str, without: &[&str]) -> String {
        let mut scan = PropertyScan::default();
        scan.read(text);
        for name in without {
            scan.remove(text, name);
        }
        let mut out = Vec::new();
        scan.write(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pieces_that_are_no_properties_do_not_count_and_the_later_duplicate_does() {
        let sent = "a\u{1}\u{2}b\u{1}c\u{2}\u{1}x\u{2}dd\u{2}b\u{1}second\u{2}e\u{1}f=g\u{1}h";
        assert_eq!(stored(sent, &[]), "b\u{1}second\u{2}e\u{1}f=g\u{1}h");
    }

    #[test]
    fn a_missing_final_separator_changes_nothing() {
        assert_eq!(
            stored("TAGS\u{1}A\u{2}KEYS\u{1}k", &[]),
            "TAGS\u{1}A\u{2}KEYS\u{1}k"
        );
        assert_eq!(
            stored("TAGS\u{1}A\u{2}KEYS\u{1}k\u{2}", &[]),
            "TAGS\u{1}A\u{2}KEYS\u{1}k"
        );
    }

    #[test]
    fn a_removed_property_leaves_no_trace() {
        let sent = "UNIQ_KEY\u{1}K\u{2}WAIT\u{1}true\u{2}TAGS\u{1}A\u{2}";
        assert_eq!(stored(sent, &[WAIT]), "UNIQ_KEY\u{1}K\u{2}TAGS\u{1}A");
        assert_eq!(stored(sent, &[UNIQ_KEY, WAIT, TAGS]), "");
    }

    #[test]
    fn duplicates_among_thousands_are_found() {
        let mut sent = String::new();
        for round in 0..2 {
            for number in 0..500 {
                sent.push_str(&format!("k{number}\u{1}{round}\u{2}"));
            }
        }
        let mut scan = PropertyScan::default();
        scan.read(&sent);
        assert_eq!(scan.iter(&sent).count(), 500);
        assert!(scan.iter(&sent).all(|(_, value)| value == "1"));
    }

    #[test]
    fn values_are_found_by_name() {
        let sent = "TAGS\u{1}A\u{2}TAGS\u{1}B\u{2}";
        let mut scan = PropertyScan::default();
        scan.read(sent);
        assert_eq!(scan.get(sent, TAGS), Some("B"));
        assert_eq!(scan.get(sent, KEYS), None);
    }

    #[test]
    fn a_property_is_appended_behind_a_separator() {
        let mut out = Vec::new();
        append(&mut out, CLUSTER, "c");
        append(&mut out, REAL_QID, "1");
        append_number(&mut out, DELAY, i32::MAX);
        append_number(&mut out, "ZERO", 0);
        let expected = b"CLUSTER\x01c\x02REAL_QID\x011\x02DELAY\x012147483647\x02ZERO\x010";
        assert_eq!(out, expected);
    }
}
