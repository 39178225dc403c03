//! `saturnmq inspect`: looks at a store's directory, read only, and says what is in it and what is
//! wrong with it (docs/operations.md, Inspecting a store).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::inspect::{self, Look};

const EXAMPLES: &str = "\
Examples:
  saturnmq inspect saturnmq-data
      what the store holds: log, topics, index, who has it open
  saturnmq inspect ~/store --verify
      every record, queue entry and index item, against each other; exit code 1 if damaged
  saturnmq inspect ~/store --verify -c broker.conf
      the same with the file sizes of an Apache broker.conf
  saturnmq inspect ~/store --records 1073741824
      records from that log offset on
  saturnmq inspect ~/store --records 0..4096 --json
  saturnmq inspect ~/store --queue Orders/3 --from 1200
      entries of one queue from queue offset 1200 on, with their records
  saturnmq inspect ~/store --key order-77 --topic Orders
      records with that key or unique key

Exit code: 0 sound, 1 damage found, 2 cannot look. Nothing is written or locked, so that a running
broker may have the store open.";

/// Arguments of `inspect`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// The store: the directory of storePathRootDir.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Check everything: checksums, lengths, names, queue offsets, queue and index entries.
    #[arg(long, conflicts_with_all = ["records", "queue", "key"])]
    pub verify: bool,
    /// Show the records at these log offsets.
    #[arg(
        long, value_name = "FROM[..TO]", conflicts_with_all = ["queue", "key"],
        allow_hyphen_values = true
    )]
    pub records: Option<String>,
    /// Show one queue.
    #[arg(long, value_name = "TOPIC/QUEUE", conflicts_with = "key")]
    pub queue: Option<String>,
    /// First queue offset shown of --queue [the smallest one].
    #[arg(
        long,
        value_name = "OFFSET",
        requires = "queue",
        allow_negative_numbers = true
    )]
    pub from: Option<u64>,
    /// Show the records with this key or unique key.
    #[arg(long, requires = "topic")]
    pub key: Option<String>,
    /// The topic of --key.
    #[arg(long, requires = "key")]
    pub topic: Option<String>,
    /// Most rows shown.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        allow_negative_numbers = true
    )]
    pub limit: usize,
    /// broker.conf with the sizes of files [those of the files there].
    #[arg(short = 'c', long = "conf", value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// Sets a key of broker.conf; may be given often.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Looks, prints, and gives the exit code.
pub fn run(args: &InspectArgs) -> ExitCode {
    match look(args).and_then(|look| inspect::run(&look)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(problem) => {
            crate::bench::tell(&format!("saturnmq: {problem}"));
            ExitCode::from(2)
        }
    }
}

fn look(args: &InspectArgs) -> Result<Look, String> {
    let what = if args.verify {
        inspect::What::Verify
    } else if let Some(range) = &args.records {
        inspect::What::Records(offsets(range)?)
    } else if let Some(queue) = &args.queue {
        let (topic, queue_id) = queue
            .rsplit_once('/')
            .and_then(|(topic, id)| Some((topic.to_owned(), id.parse().ok()?)))
            .ok_or_else(|| format!("--queue {queue} is not of the form TOPIC/QUEUE: Orders/0"))?;
        inspect::What::Queue {
            topic,
            queue_id,
            from: args.from,
        }
    } else if let (Some(key), Some(topic)) = (&args.key, &args.topic) {
        inspect::What::Key {
            key: key.clone(),
            topic: topic.clone(),
        }
    } else {
        inspect::What::Summary
    };
    Ok(Look {
        dir: args.dir.clone(),
        conf: args.conf.clone(),
        set: args.set.clone(),
        what,
        limit: args.limit,
        json: args.json,
    })
}

fn offsets(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, ""));
    let number = |part: &str, default| match part {
        "" => Ok(default),
        part => part.parse(),
    };
    let wrong = |_| format!("--records {text} is not of the form FROM or FROM..TO, in log offsets");
    Ok(number(from, 0).map_err(wrong)?..number(to, u64::MAX).map_err(wrong)?)
}
