//! What `saturnmq inspect` shows of a store.

mod shown;
mod state;
mod summary;

use std::io::IsTerminal;
use std::ops::Range;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use saturnmq_storage::format::index_entry::IndexShape;
use saturnmq_storage::inspect::{self, Found, IndexFiles, QueueFiles, StoreView, Verified};
use saturnmq_storage::layout::Layout;
use serde_json::{Value, json};

use crate::config::{Config, Options, RawConfig};

/// Findings shown to people; JSON has all that were kept.
const FINDINGS_SHOWN: usize = 50;

/// Why an index file of another size than Apache's default says nothing.
const NO_SHAPE: &str = "its files do not tell their shape; give it with -c broker.conf or --set \
                        maxHashSlotNum=… --set maxIndexNum=…";

/// A look at a store.
#[derive(Debug, Clone)]
pub struct Look {
    /// The store's root.
    pub dir: PathBuf,
    /// broker.conf with the sizes of files.
    pub conf: Option<PathBuf>,
    /// Keys over it.
    pub set: Vec<String>,
    /// What to show.
    pub what: What,
    /// Most rows.
    pub limit: usize,
    /// JSON in place of text.
    pub json: bool,
}

/// What to show.
#[derive(Debug, Clone)]
pub enum What {
    /// What there is.
    Summary,
    /// Whether all of it is right.
    Verify,
    /// Records by log offset.
    Records(Range<u64>),
    /// One queue.
    Queue {
        /// Topic.
        topic: String,
        /// Queue id.
        queue_id: i32,
        /// First queue offset.
        from: Option<u64>,
    },
    /// Records with a key.
    Key {
        /// The key.
        key: String,
        /// Its topic.
        topic: String,
    },
}

/// Looks and prints; false if damage was found.
///
/// # Errors
/// A sentence that says why it is not possible to look.
pub fn run(look: &Look) -> Result<bool, String> {
    let view = open(look)?;
    let (value, text, sound) = match &look.what {
        What::Summary => {
            let value = summary::of(&view)?;
            let text = summary::text(&value, look.limit);
            (value, text, view.misfits.is_empty())
        }
        What::Verify => {
            let found = verify(&view)?;
            let sound = found.damage == 0;
            let text = verified_text(&found);
            (
                serde_json::to_value(&found).map_err(|e| e.to_string())?,
                text,
                sound,
            )
        }
        What::Records(range) => records(&view, range.clone(), look.limit)?,
        What::Queue {
            topic,
            queue_id,
            from,
        } => queue(&view, (topic, *queue_id), *from, look.limit)?,
        What::Key { key, topic } => keyed(&view, key, topic, look.limit)?,
    };
    let shown = if look.json {
        format!("{value}\n")
    } else {
        text
    };
    crate::bench::print(&shown).map_err(|error| error.to_string())?;
    let unseen = matches!(look.what, What::Verify) && view.shape.index.is_none();
    if unseen && sound {
        return Err(format!("the index was not looked at: {NO_SHAPE}"));
    }
    Ok(sound)
}

fn open(look: &Look) -> Result<StoreView, String> {
    if !look.dir.is_dir() {
        return Err(format!("{} is no directory", look.dir.display()));
    }
    let mut raw = match &look.conf {
        Some(path) => RawConfig::read_file(path).map_err(|e| e.to_string())?,
        None => RawConfig::default(),
    };
    for pair in &look.set {
        raw.set_pair(pair).map_err(|e| e.to_string())?;
    }
    let resolved = Config::resolve(&Options {
        conf: look.conf.clone(),
        data_dir: Some(look.dir.clone()),
        set: look.set.clone(),
        ..Options::default()
    });
    let store = resolved.map_err(|e| e.to_string())?.config.store;
    let given = |key: &str| raw.get(key).is_some();
    let index = (given("maxHashSlotNum") || given("maxIndexNum")).then_some(IndexShape {
        slots: store.index_slots,
        items: store.index_items,
    });
    let mut layout = Layout::new(&look.dir);
    if let Some(path) = &store.commit_log_dir {
        layout = layout.with_commit_log(path);
    }
    let log_file = given("mappedFileSizeCommitLog").then_some(store.commit_log_file_size);
    let queue_file = given("mappedFileSizeConsumeQueue").then(|| store.queue_file_size());
    StoreView::open(layout, log_file, queue_file, index).map_err(|e| e.to_string())
}

fn verify(view: &StoreView) -> Result<Verified, String> {
    let bytes = view.log_files.len() as u64 * view.shape.log_file;
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::new(bytes)
    } else {
        ProgressBar::hidden()
    };
    // The template is one of ours and cannot be wrong; the default would do too.
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    ) {
        bar.set_style(style);
    }
    let found = inspect::verify(view, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let mut found = found.map_err(|error| error.to_string())?;
    state::look(view.layout.root(), &mut found);
    Ok(found)
}

fn verified_text(found: &Verified) -> String {
    let mut text = format!(
        "log      {} to {}\nrecords  {}\nqueues   {} entries\n",
        found.log_begin, found.log_end, found.records, found.entries
    );
    match found.items {
        Some(items) => text.push_str(&format!("index    {items} items\n")),
        None => text.push_str("index    not looked at\n"),
    }
    for note in &found.notes {
        text.push_str(&format!("note     {note}\n"));
    }
    for finding in found.findings.iter().take(FINDINGS_SHOWN) {
        text.push_str(&format!("damage   {}\n", shown::finding(finding)));
    }
    let more = found.damage.saturating_sub(FINDINGS_SHOWN as u64);
    if more > 0 {
        text.push_str(&format!("damage   and {more} more; --json shows them\n"));
    }
    let verdict = match found.damage {
        0 => "sound".into(),
        1 => "damaged in one place".into(),
        places => format!("damaged in {places} places"),
    };
    text.push_str(&format!("verdict  {verdict}\n"));
    text
}

type Answer = (Value, String, bool);

fn records(view: &StoreView, range: Range<u64>, limit: usize) -> Result<Answer, String> {
    let mut rows = Vec::new();
    let mut sound = true;
    let walked = view.walk(range.start, |found| {
        match found {
            Found::Record {
                offset,
                record,
                problem,
            } if offset >= range.start => {
                if offset >= range.end {
                    return false;
                }
                sound &= problem.is_none();
                let mut row = shown::record(offset, &record);
                row["problem"] = json!(problem.map(|problem| problem.to_string()));
                rows.push(row);
            }
            Found::Damage {
                offset,
                path,
                error,
                len,
            } if offset + len > range.start => {
                if offset >= range.end {
                    return false;
                }
                sound = false;
                let file = path.display().to_string();
                rows.push(json!({
                    "offset": offset,
                    "size": len,
                    "file": file,
                    "problem": format!("no record: {error}"),
                }));
            }
            _ => {}
        }
        rows.len() < limit
    });
    walked.map_err(|error| error.to_string())?;
    let text = shown::records(&rows);
    Ok((json!({ "records": rows }), text, sound))
}

fn queue(
    view: &StoreView,
    (topic, queue_id): (&str, i32),
    from: Option<u64>,
    limit: usize,
) -> Result<Answer, String> {
    let words = |error: inspect::InspectError| error.to_string();
    let (mut files, misfits) = QueueFiles::open(view, topic, queue_id).map_err(words)?;
    if files.is_empty() {
        return Err(format!("there is no queue {topic}/{queue_id} on disk"));
    }
    let end = files.end().map_err(words)?;
    let begin = files.begin(end, view.log_begin()).map_err(words)?;
    let mut log = inspect::LogLook::new(view);
    let mut rows = Vec::new();
    let mut sound = misfits.is_empty();
    for at in (from.unwrap_or(begin).max(files.first())..end).take(limit) {
        let Some(entry) = files.entry(at).map_err(words)? else {
            break;
        };
        let record = log.record(entry.physical_offset).map_err(words)?;
        let mut row = match &record {
            Some(record) => shown::record(entry.physical_offset, record),
            None => json!({ "offset": entry.physical_offset, "size": entry.size }),
        };
        let problem = match &record {
            _ if entry.is_pre_blank() => Some("blank"),
            _ if entry.physical_offset < view.log_begin() => Some("expired"),
            None => Some("no record there"),
            Some(record) if record.check_body().is_err() => Some("its body is damaged"),
            Some(record) if !inspect::is_of(record, topic, queue_id, at) => {
                Some("a record of another place")
            }
            Some(_) => None,
        };
        sound &= matches!(problem, None | Some("blank" | "expired"));
        row["entry"] = json!(at);
        row["problem"] = json!(problem);
        rows.push(row);
    }
    let head = format!("{topic}/{queue_id}: queue offsets {begin} to {end}\n");
    let text = head + &shown::entries(&rows);
    let value = json!({
        "topic": topic,
        "queueId": queue_id,
        "minOffset": begin,
        "maxOffset": end,
        "entries": rows,
    });
    Ok((value, text, sound))
}

fn keyed(view: &StoreView, key: &str, topic: &str, limit: usize) -> Result<Answer, String> {
    let words = |error: inspect::InspectError| error.to_string();
    let Some((index, misfits)) = IndexFiles::open(view).map_err(words)? else {
        return Err(format!("the index cannot be read: {NO_SHAPE}"));
    };
    let mut log = inspect::LogLook::new(view);
    let mut rows = Vec::new();
    for offset in index
        .query(topic, key.as_bytes(), usize::MAX)
        .map_err(words)?
    {
        let Some(record) = log.record(offset).map_err(words)? else {
            continue;
        };
        let mut keys = record.properties().index_keys();
        if record.topic() == topic && keys.any(|found| found == key.as_bytes()) {
            rows.push(shown::record(offset, &record));
            if rows.len() == limit {
                break;
            }
        }
    }
    let text = shown::records(&rows);
    Ok((json!({ "records": rows }), text, misfits.is_empty()))
}
