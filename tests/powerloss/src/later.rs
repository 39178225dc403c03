//! Messages that are to come later than they are acknowledged: delay levels, times, retries and
//! transactions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use saturnmq_net::client::{Client, ClientError, OwnedCommand};
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::send::{SendBack, SendRequest};
use saturnmq_net::messages::transaction::{
    EndTransaction, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK,
};

use crate::load::{ANSWER, REFUSED_PAUSE, connect};
use crate::message;

/// The group that gives messages back.
const AGAIN: &str = "power-again";
/// The group whose transactions they are.
const BOUND: &str = "power-bound";
/// The first delay level, ms.
const LEVEL_MS: i64 = 1000;
/// The first of the producers that [`message::number`] tells apart here.
const PRODUCER: u32 = 200;

/// How a message comes to be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// By a delay level.
    Delayed,
    /// For a time.
    Timed,
    /// Given back by a consumer.
    Again,
    /// By a transaction.
    Bound,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Delayed, Self::Timed, Self::Again, Self::Bound];

    /// Where such messages come to be seen, all in queue 0.
    pub fn topic(self) -> &'static str {
        match self {
            Self::Delayed => "LaterDelayed",
            Self::Timed => "LaterTimed",
            Self::Again => "%RETRY%power-again",
            Self::Bound => "LaterBound",
        }
    }
}

/// What must become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is seen, not before its time.
    Comes,
    /// It is seen exactly once.
    ComesOnce,
    /// It is seen once or not at all: the commit was not answered.
    MayCome,
    /// It is never seen.
    Never,
}

/// A message that is to come later.
#[derive(Clone, Copy, Debug)]
pub struct Later {
    /// How it comes to be late.
    pub kind: Kind,
    /// Not before this time, ms.
    pub due_ms: i64,
    /// What must become of it.
    pub fate: Fate,
    /// Queue offset and log offset of the half message.
    pub half: Option<(i64, i64)>,
}

/// By number.
pub type LaterMessages = BTreeMap<u64, Later>;

/// Milliseconds since the epoch, on the clock that the broker has too.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// Sends messages of every kind until `stop`, and ends transactions in every way.
pub fn produce(
    port: u16,
    round: u32,
    stop: &AtomicBool,
    told: &mut LaterMessages,
) -> Result<(), ClientError> {
    let mut client = connect(port)?;
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let number = |producer: u32| message::number(round, PRODUCER + producer, turn);
        let delayed = send_late(&mut client, number(0), Kind::Delayed, LEVEL_MS, told)?;
        let wait_ms = 200 + i64::from(turn % 16) * 100;
        send_late(&mut client, number(1), Kind::Timed, wait_ms, told)?;
        give_back(&mut client, number(2), told)?;
        for (producer, end) in [
            (3, Some(TRANSACTION_COMMIT)),
            (4, Some(TRANSACTION_ROLLBACK)),
            (5, None),
        ] {
            transact(&mut client, number(producer), end, told)?;
        }
        if !delayed {
            std::thread::sleep(REFUSED_PAUSE);
        }
    }
    Ok(())
}

fn send(
    client: &mut Client,
    (topic, group): (&str, &str),
    number: u64,
    more: &str,
) -> Result<OwnedCommand, ClientError> {
    let properties = format!(
        "KEYS\u{1}{0}\u{2}UNIQ_KEY\u{1}{0}\u{2}WAIT\u{1}true\u{2}{more}",
        message::key(number)
    );
    let send = SendRequest {
        producer_group: group,
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 1,
        born_timestamp: now_ms(),
        properties: &properties,
        sys_flag: if more.starts_with("TRAN_MSG") { 4 } else { 0 },
        ..SendRequest::default()
    };
    let code = request::SEND_MESSAGE_V2;
    client.invoke(
        code,
        |fields| send.encode_fields(code, fields),
        &message::body(number),
        ANSWER,
    )
}

/// Sends a message that comes after `wait_ms`; false if that is refused.
fn send_late(
    client: &mut Client,
    number: u64,
    kind: Kind,
    wait_ms: i64,
    told: &mut LaterMessages,
) -> Result<bool, ClientError> {
    let due_ms = now_ms() + wait_ms;
    let how = match kind {
        Kind::Timed => format!("TIMER_DELIVER_MS\u{1}{due_ms}\u{2}"),
        _ => "DELAY\u{1}1\u{2}".to_owned(),
    };
    let answer = send(client, (kind.topic(), BOUND), number, &how)?;
    let is_taken = answer.code == response::SUCCESS;
    if is_taken {
        let later = Later {
            kind,
            due_ms,
            fate: Fate::Comes,
            half: None,
        };
        told.insert(number, later);
    }
    Ok(is_taken)
}

/// Sends a message and gives it back as a consumer does that failed.
fn give_back(
    client: &mut Client,
    number: u64,
    told: &mut LaterMessages,
) -> Result<(), ClientError> {
    let answer = send(client, ("LaterAgain", BOUND), number, "")?;
    let Some((_, log_offset)) = place(&answer) else {
        return Ok(());
    };
    let due_ms = now_ms() + LEVEL_MS;
    let asked = SendBack {
        offset: log_offset,
        group: AGAIN,
        delay_level: 1,
        origin_topic: Some("LaterAgain"),
        ..SendBack::default()
    };
    let code = request::CONSUMER_SEND_MSG_BACK;
    let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
    if answer.code == response::SUCCESS {
        let later = Later {
            kind: Kind::Again,
            due_ms,
            fate: Fate::Comes,
            half: None,
        };
        told.insert(number, later);
    }
    Ok(())
}

fn transact(
    client: &mut Client,
    number: u64,
    end: Option<i32>,
    told: &mut LaterMessages,
) -> Result<(), ClientError> {
    let mut later = Later {
        kind: Kind::Bound,
        due_ms: now_ms(),
        fate: Fate::Never,
        half: None,
    };
    // Whatever is answered or not: what nobody commits is not seen.
    told.insert(number, later);
    let more = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{BOUND}\u{2}");
    let answer = send(client, (Kind::Bound.topic(), BOUND), number, &more)?;
    let (Some(half), Some(end)) = (place(&answer), end) else {
        return Ok(());
    };
    if end == TRANSACTION_COMMIT {
        later.fate = Fate::MayCome;
        later.half = Some(half);
        told.insert(number, later);
    }
    let ended = self::end(client, number, half, end)?;
    if ended && end == TRANSACTION_COMMIT {
        later.fate = Fate::ComesOnce;
        told.insert(number, later);
    }
    Ok(())
}

/// Ends a transaction; whether that is answered with success.
pub fn end(
    client: &mut Client,
    number: u64,
    (queue_offset, log_offset): (i64, i64),
    how: i32,
) -> Result<bool, ClientError> {
    let key = message::key(number);
    let asked = EndTransaction {
        topic: Some(Kind::Bound.topic()),
        producer_group: BOUND,
        tran_state_table_offset: queue_offset,
        commit_log_offset: log_offset,
        commit_or_rollback: how,
        msg_id: Some(&key),
        transaction_id: Some(&key),
        ..EndTransaction::default()
    };
    let code = request::END_TRANSACTION;
    let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
    Ok(answer.code == response::SUCCESS)
}

/// Queue offset and log offset that a send was answered; `None` if it was refused.
fn place(answer: &OwnedCommand) -> Option<(i64, i64)> {
    if answer.code != response::SUCCESS {
        return None;
    }
    let id = answer.get("msgId")?;
    let log_offset = i64::from_str_radix(id.get(16..32)?, 16).ok()?;
    Some((answer.number("queueOffset")?, log_offset))
}
