//! Records and findings as text and as JSON.

use saturnmq_storage::format::properties::names;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::inspect::Finding;
use serde_json::{Map, Value, json};

use crate::admin::table::Table;

/// Characters of a cell.
const CELL: usize = 40;

/// Everything about a record but its body.
pub fn record(offset: u64, record: &Record<'_>) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let properties = record.properties().iter();
    let properties: Map<String, Value> = properties
        .map(|(name, value)| (text(name), json!(text(value))))
        .collect();
    json!({
        "offset": offset,
        "size": record.size(),
        "topic": record.topic(),
        "queueId": record.queue_id(),
        "queueOffset": record.queue_offset(),
        "storeTimestamp": record.store_timestamp(),
        "bornTimestamp": record.born_timestamp(),
        "bornHost": record.born_host().to_string(),
        "storeHost": record.store_host().to_string(),
        "sysFlag": record.sys_flag(),
        "flag": record.flag(),
        "reconsumeTimes": record.reconsume_times(),
        "bodySize": record.body().len(),
        "bodyCRC": record.body_crc(),
        "messageId": record.message_id().as_str(),
        "properties": properties,
    })
}

/// A table of records.
pub fn records(rows: &[Value]) -> String {
    let mut table = Table::new(&[
        "OFFSET", "SIZE", "TOPIC", "QUEUE", "AT", "STORED", "BODY", "TAGS", "KEYS", "PROBLEM",
    ]);
    for row in rows {
        let mut cells = cells(row, &["offset", "size"]);
        cells.extend(cells_of_record(row));
        table.row(cells);
    }
    table.text()
}

/// A table of queue entries with their records.
pub fn entries(rows: &[Value]) -> String {
    let mut table = Table::new(&[
        "AT", "OFFSET", "SIZE", "STORED", "BODY", "TAGS", "KEYS", "PROBLEM",
    ]);
    for row in rows {
        let mut cells = cells(row, &["entry", "offset", "size"]);
        cells.extend(cells_of_record(row).split_off(3));
        table.row(cells);
    }
    table.text()
}

fn cells_of_record(row: &Value) -> Vec<String> {
    let mut list = cells(row, &["topic", "queueId", "queueOffset"]);
    list.push(time(&row["storeTimestamp"]));
    list.push(cell(&row["bodySize"]));
    for name in [names::TAGS, names::KEYS] {
        list.push(cell(&row["properties"][name]));
    }
    list.push(match row["problem"].as_str() {
        Some(problem) => problem.to_owned(),
        None => "-".into(),
    });
    list
}

fn cells(row: &Value, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| cell(&row[*name])).collect()
}

/// A value in a cell: short, and nothing that moves a cursor.
pub fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut short: String = text
        .chars()
        .map(|c| if c.is_control() { '.' } else { c })
        .take(CELL)
        .collect();
    if text.chars().nth(CELL).is_some() {
        short.push('…');
    }
    short
}

/// Milliseconds since the epoch as local time.
pub fn time(value: &Value) -> String {
    let at = value.as_i64().filter(|ms| *ms > 0);
    let at = at.and_then(chrono::DateTime::from_timestamp_millis);
    at.map_or("-".into(), |at| {
        let local = at.with_timezone(&chrono::Local);
        local.naive_local().to_string()
    })
}

/// File, place and what is wrong, on one line.
pub fn finding(finding: &Finding) -> String {
    let place = finding
        .offset
        .map_or_else(String::new, |offset| format!(" at {offset}"));
    let problem: String = finding
        .problem
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    format!("{}{place}: {problem}", finding.file.display())
}
