//! What became of messages that were to come later.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use saturnmq_net::client::Client;
use saturnmq_net::codes::{request, response};
use saturnmq_net::messages::pull::{PULL_SUBSCRIPTION, PullRequest};
use saturnmq_net::messages::transaction::TRANSACTION_COMMIT;
use saturnmq_storage::format::record::Record;

use crate::later::{Fate, Kind, Later, LaterMessages, end, now_ms};
use crate::load::{ANSWER, GROUP, connect};
use crate::message;

/// Longest wait, beyond its time, for a message that must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How much the clock with which the broker stamps records may be behind, ms.
const COARSE_MS: i64 = 20;
/// Commits made again after each cut.
const AGAIN: usize = 16;

/// Times at which messages were stored where they are seen, by number.
type Seen = BTreeMap<u64, Vec<i64>>;

/// Commits some transactions once more, as clients do that heard no answer, and looks at what is
/// seen: nothing early, nothing that was not committed, nothing committed twice.
pub fn check(port: u16, told: &mut LaterMessages) -> Result<Vec<String>> {
    let mut client = connect(port)?;
    commit_again(&mut client, told)?;
    let mut wrong = Vec::new();
    for kind in Kind::ALL {
        let seen = read(&mut client, kind, &mut wrong)?;
        judge(kind, &seen, told, &mut wrong);
    }
    Ok(wrong)
}

/// Waits until everything that must come has come; what has not, as sentences.
pub fn settle(port: u16, told: &mut LaterMessages) -> Result<Vec<String>> {
    let mut client = connect(port)?;
    let mut wrong = Vec::new();
    for kind in Kind::ALL {
        let due = told.values().filter(|later| later.kind == kind);
        let last_ms = due.map(|later| later.due_ms).max().unwrap_or(0);
        let left = Duration::from_millis(u64::try_from(last_ms - now_ms()).unwrap_or(0));
        let until = Instant::now() + left + PATIENCE;
        loop {
            let mut bad = Vec::new();
            let seen = read(&mut client, kind, &mut bad)?;
            let missing = missing(kind, &seen, told);
            if missing.is_empty() || Instant::now() > until {
                judge(kind, &seen, told, &mut bad);
                wrong.extend(bad);
                wrong.extend(missing);
                break;
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(wrong)
}

fn commit_again(client: &mut Client, told: &mut LaterMessages) -> Result<()> {
    let committed = told.iter_mut().rev();
    let committed = committed.filter(|(_, later)| later.half.is_some());
    for (number, later) in committed.take(AGAIN) {
        let Some(half) = later.half else { continue };
        if end(client, *number, half, TRANSACTION_COMMIT)? {
            later.fate = Fate::ComesOnce;
        }
    }
    Ok(())
}

fn read(client: &mut Client, kind: Kind, wrong: &mut Vec<String>) -> Result<Seen> {
    let mut seen = Seen::new();
    let mut offset = 0;
    loop {
        let asked = PullRequest {
            consumer_group: GROUP,
            topic: kind.topic(),
            queue_offset: offset,
            max_msg_nums: 64,
            sys_flag: PULL_SUBSCRIPTION,
            commit_offset: Some(0),
            suspend_timeout_ms: Some(0),
            subscription: Some("*"),
            sub_version: Some(0),
            expression_type: Some("TAG"),
            ..PullRequest::default()
        };
        let code = request::PULL_MESSAGE;
        let answer = client.invoke(code, |fields| asked.encode_fields(fields), &[], ANSWER)?;
        match answer.code {
            response::SUCCESS => {}
            response::PULL_NOT_FOUND | response::TOPIC_NOT_EXIST => return Ok(seen),
            response::PULL_OFFSET_MOVED | response::PULL_RETRY_IMMEDIATELY => {
                let next = answer.number("nextBeginOffset").unwrap_or(offset);
                if next <= offset {
                    return Ok(seen);
                }
                offset = next;
                continue;
            }
            code => bail!("a pull of {}: {code} {:?}", kind.topic(), answer.remark),
        }
        let mut bytes = answer.body.as_slice();
        while !bytes.is_empty() {
            let record = Record::decode(bytes)?;
            bytes = bytes.get(record.size() as usize..).unwrap_or_default();
            match message::identify(record.body()) {
                Some(number) => seen
                    .entry(number)
                    .or_default()
                    .push(record.store_timestamp()),
                None => wrong.push(format!("{} holds what was never sent", kind.topic())),
            }
        }
        offset = answer.number("nextBeginOffset").unwrap_or(offset + 1);
    }
}

/// What is seen and should not be.
fn judge(kind: Kind, seen: &Seen, told: &LaterMessages, wrong: &mut Vec<String>) {
    for (number, stored) in seen {
        let Some(later) = told.get(number).filter(|later| later.kind == kind) else {
            // Sent, and the answer was lost.
            continue;
        };
        let times = stored.len();
        let what = format!("message {number:x} in {}", kind.topic());
        if later.fate == Fate::Never {
            wrong.push(format!("{what} was never committed and is seen"));
        }
        if kind == Kind::Bound && times > 1 {
            wrong.push(format!("{what} was committed {times} times"));
        }
        let first = stored.iter().min().copied().unwrap_or(i64::MAX);
        if first + COARSE_MS < later.due_ms {
            let early = later.due_ms - first;
            wrong.push(format!("{what} came {early} ms early"));
        }
    }
}

fn missing(kind: Kind, seen: &Seen, told: &LaterMessages) -> Vec<String> {
    let must_come = |later: &Later| matches!(later.fate, Fate::Comes | Fate::ComesOnce);
    let of_kind = told.iter().filter(|(_, later)| later.kind == kind);
    of_kind
        .filter(|(number, later)| must_come(later) && !seen.contains_key(*number))
        .map(|(number, later)| {
            let late = now_ms() - later.due_ms;
            let topic = kind.topic();
            format!("message {number:x} did not come to {topic}: {late} ms after its time")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: Kind, fate: Fate) -> LaterMessages {
        let later = Later {
            kind,
            due_ms: 1000,
            fate,
            half: None,
        };
        LaterMessages::from([(7, later)])
    }

    fn judged(kind: Kind, fate: Fate, stored: &[i64]) -> usize {
        let told = told(kind, fate);
        let mut seen = Seen::new();
        if !stored.is_empty() {
            seen.insert(7, stored.to_vec());
        }
        let mut wrong = missing(kind, &seen, &told);
        judge(kind, &seen, &told, &mut wrong);
        wrong.len()
    }

    #[test]
    fn early_lost_doubled_and_uncommitted_messages_are_noticed() {
        assert_eq!(judged(Kind::Delayed, Fate::Comes, &[1001]), 0);
        assert_eq!(judged(Kind::Delayed, Fate::Comes, &[900]), 1);
        assert_eq!(judged(Kind::Timed, Fate::Comes, &[]), 1);
        assert_eq!(judged(Kind::Bound, Fate::ComesOnce, &[1001]), 0);
        assert_eq!(judged(Kind::Bound, Fate::ComesOnce, &[1001, 1001]), 1);
        assert_eq!(judged(Kind::Bound, Fate::ComesOnce, &[]), 1);
        assert_eq!(judged(Kind::Bound, Fate::MayCome, &[]), 0);
        assert_eq!(judged(Kind::Bound, Fate::Never, &[1001]), 1);
        assert_eq!(judged(Kind::Bound, Fate::Never, &[]), 0);
    }
}
