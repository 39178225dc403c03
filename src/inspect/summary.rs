//! What a store holds, without reading all of it.

use std::collections::BTreeMap;
use std::fmt::Write;

use saturnmq_storage::inspect::{IndexFiles, QueueFiles, StoreView};
use saturnmq_storage::layout::list_queues;
use serde_json::{Value, json};

use super::shown::{cell, finding, time};
use crate::admin::table::Table;

/// Topics, log, index and state of a store.
pub fn of(view: &StoreView) -> Result<Value, String> {
    let words = |error: saturnmq_storage::inspect::InspectError| error.to_string();
    let queues = view.layout.consume_queues();
    let mut topics: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut list = Vec::new();
    let mut log_end = view.log_begin();
    for (topic, queue_id) in list_queues(&queues).map_err(|e| e.to_string())? {
        let Ok((mut files, _)) = QueueFiles::open(view, &topic, queue_id) else {
            continue;
        };
        let end = files.end().map_err(words)?;
        let begin = files.begin(end, view.log_begin()).map_err(words)?;
        if end > begin
            && let Some(last) = files.entry(end - 1).map_err(words)?
            && !last.is_pre_blank()
        {
            log_end = log_end.max(last.end());
        }
        let of_topic = topics.entry(topic.clone()).or_default();
        of_topic.0 += 1;
        of_topic.1 += end - begin;
        of_topic.2 += end;
        list.push(json!({
            "topic": topic,
            "queueId": queue_id,
            "minOffset": begin,
            "maxOffset": end,
        }));
    }
    let topics: Vec<Value> = topics
        .into_iter()
        .map(|(topic, (queues, messages, ever))| {
            json!({"topic": topic, "queues": queues, "messages": messages, "everSent": ever})
        })
        .collect();
    Ok(json!({
        "store": view.layout.root().display().to_string(),
        "heldBy": view.held_by,
        "clean": view.clean,
        "log": {
            "begin": view.log_begin(),
            "queuedTo": log_end,
            "files": view.log_files.len(),
            "fileSize": view.shape.log_file,
        },
        "topics": topics,
        "queues": list,
        "index": index(view).map_err(words)?,
        "misfits": view.misfits,
    }))
}

fn index(view: &StoreView) -> Result<Value, saturnmq_storage::inspect::InspectError> {
    let Some((index, misfits)) = IndexFiles::open(view)? else {
        return Ok(Value::Null);
    };
    let files: Vec<Value> = index
        .files
        .iter()
        .map(|file| {
            json!({
                "file": file.path.display().to_string(),
                "keys": file.header.next_item.saturating_sub(1),
                "beginTimestamp": file.header.begin_timestamp,
                "endTimestamp": file.header.end_timestamp,
                "beginOffset": file.header.begin_offset,
                "endOffset": file.header.end_offset,
            })
        })
        .collect();
    Ok(json!({ "files": files, "misfits": misfits }))
}

/// The same for people.
pub fn text(value: &Value, limit: usize) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<8} {text}");
    };
    line("store", cell_long(&value["store"]));
    line("state", state(value));
    let log = &value["log"];
    line(
        "log",
        format!(
            "{} files of {} bytes from {}, queued to {}",
            log["files"], log["fileSize"], log["begin"], log["queuedTo"]
        ),
    );
    match value["index"]["files"].as_array() {
        Some(files) => {
            let keys: i64 = files.iter().filter_map(|file| file["keys"].as_i64()).sum();
            let begin = files
                .first()
                .map_or(Value::Null, |f| f["beginTimestamp"].clone());
            let end = files
                .last()
                .map_or(Value::Null, |f| f["endTimestamp"].clone());
            line(
                "index",
                format!(
                    "{} files, {keys} keys from {} to {}",
                    files.len(),
                    time(&begin),
                    time(&end)
                ),
            );
        }
        None => line(
            "index",
            "not read: give its shape with -c or --set maxHashSlotNum=… --set maxIndexNum=…".into(),
        ),
    }
    let misfits = [&value["misfits"], &value["index"]["misfits"]];
    for misfit in misfits.into_iter().filter_map(Value::as_array).flatten() {
        if let Ok(found) = serde_json::from_value(misfit.clone()) {
            line("damage", finding(&found));
        }
    }
    let rows = value["topics"].as_array().map_or(&[][..], Vec::as_slice);
    let mut table = Table::new(&["TOPIC", "QUEUES", "MESSAGES", "EVER SENT"]);
    for row in rows.iter().take(limit) {
        let names = ["topic", "queues", "messages", "everSent"];
        table.row(names.iter().map(|name| cell(&row[*name])).collect());
    }
    out.push('\n');
    out.push_str(&table.text());
    if rows.len() > limit {
        let _ = writeln!(out, "and {} more; --limit shows them", rows.len() - limit);
    }
    out
}

fn state(value: &Value) -> String {
    match (value["heldBy"].as_i64(), value["clean"].as_bool()) {
        (Some(pid), _) => format!("open in process {pid}; counts may have grown since"),
        (None, Some(true)) => "closed in order".into(),
        (None, _) => "not closed in order: the next start recovers it".into(),
    }
}

/// A path, whole.
fn cell_long(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
