//! `saturnmq admin`: topics, groups and messages of any broker that speaks RocketMQ's protocol.

use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::admin::cluster::Cluster;
use crate::admin::consume::{self, From, Plan};
use crate::admin::messages::{self, NewMessage};
use crate::admin::topics::{self, NewTopic};
use crate::admin::{AdminError, Output, groups};
use crate::handler::topic::QUEUES_MAX;

const EXAMPLES: &str = "\
Examples:
  saturnmq admin topic create Orders --queues 8
  saturnmq admin send Orders --tag paid --key 4711 --body '{\"total\": 12}'
  saturnmq admin consume Orders --from earliest
  saturnmq admin group progress billing
  saturnmq admin query Orders --key 4711 --json
  saturnmq admin --name-server mq.example.org:9876 topic list";

const TOPIC_EXAMPLES: &str = "\
Examples:
  saturnmq admin topic create Orders --queues 8
  saturnmq admin topic create Audit --queues 1 --perm r
      nobody may send any more
  saturnmq admin topic list
  saturnmq admin topic status Orders
      messages by queue, and when the last one came
  saturnmq admin topic delete Orders";

const GROUP_EXAMPLES: &str = "\
Examples:
  saturnmq admin group list
  saturnmq admin group progress billing
      how far behind a group is in every queue
  saturnmq admin group progress billing --json | jq .lag";

const SEND_EXAMPLES: &str = "\
Examples:
  saturnmq admin send Orders --body hello
  echo hello | saturnmq admin send Orders --tag greeting --key k1 --key k2
      the body comes from stdin
  saturnmq admin send Orders --file order.json --property region=eu
  saturnmq admin send Orders --body later --delay-level 3
      delivered after 10 s with the default messageDelayLevel";

const CONSUME_EXAMPLES: &str = "\
Examples:
  saturnmq admin consume Orders
      what comes from now on, until Ctrl-C
  saturnmq admin consume Orders --from earliest --exit
      what is there, then end
  saturnmq admin consume Orders --from 1200 --queue 3 --count 1
  saturnmq admin consume Orders --tags 'paid || refunded' --json | jq -r .body";

const QUERY_EXAMPLES: &str = "\
Examples:
  saturnmq admin query Orders --key 4711
  saturnmq admin query Orders --id 7F00000100002A9F0000000000000400
      an id that a client or a broker gave the message";

/// Arguments of `admin`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub struct AdminArgs {
    /// Name server.
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9876",
        value_parser = host_and_port
    )]
    pub name_server: String,
    /// JSON instead of tables, for scripts.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Action {
    /// Create, list, inspect and delete topics.
    #[command(subcommand, after_help = TOPIC_EXAMPLES)]
    Topic(TopicAction),
    /// List consumer groups and see how far behind they are.
    #[command(subcommand, after_help = GROUP_EXAMPLES)]
    Group(GroupAction),
    /// Send one message.
    Send(SendArgs),
    /// Show the messages of a topic as they come; no group's progress is touched.
    Consume(ConsumeArgs),
    /// Find messages by key or id.
    Query(QueryArgs),
}

/// What to do with topics.
#[derive(Debug, Clone, Subcommand)]
pub enum TopicAction {
    /// Create a topic on every broker, or change what is named of it.
    Create {
        /// Topic.
        topic: String,
        /// Queues: consumers of one group share them. A new topic has 8.
        #[arg(
            long, value_name = "N", value_parser = queue_count(), allow_negative_numbers = true
        )]
        queues: Option<i32>,
        /// Who may use it: rw, r or w. A new topic has rw.
        #[arg(long, value_parser = permission)]
        perm: Option<i32>,
        /// All messages are meant to be in one order.
        #[arg(long)]
        order: bool,
        /// Attribute such as message.type=FIFO; may be given often.
        #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
        attribute: Vec<(String, String)>,
    },
    /// List topics.
    List {
        /// With those of the system, and the retry and dead letter topics of groups.
        #[arg(long)]
        system: bool,
    },
    /// Show which brokers have the topic.
    Route {
        /// Topic.
        topic: String,
    },
    /// Show where the topic's queues begin and end.
    Status {
        /// Topic.
        topic: String,
    },
    /// Delete a topic and the progress of its groups.
    Delete {
        /// Topic.
        topic: String,
    },
}

/// What to do with groups.
#[derive(Debug, Clone, Subcommand)]
pub enum GroupAction {
    /// List consumer groups.
    List {
        /// With those of the system.
        #[arg(long)]
        system: bool,
    },
    /// Show how far a group has come in every queue.
    Progress {
        /// Group.
        group: String,
    },
}

/// Arguments of `admin send`.
#[derive(Debug, Clone, Args)]
#[command(after_help = SEND_EXAMPLES)]
pub struct SendArgs {
    /// Topic; made by the broker if it may.
    pub topic: String,
    /// Body [stdin].
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub body: Option<String>,
    /// File with the body.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Tag.
    #[arg(long)]
    pub tag: Option<String>,
    /// Key to find the message by; may be given often.
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,
    /// Queue [any].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub queue: Option<i32>,
    /// Delay level, from 1; brokers take one above their highest for that.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub delay_level: Option<u32>,
    /// Further property; may be given often.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub property: Vec<(String, String)>,
}

/// Arguments of `admin consume`.
#[derive(Debug, Clone, Args)]
#[command(after_help = CONSUME_EXAMPLES)]
pub struct ConsumeArgs {
    /// Topic.
    pub topic: String,
    /// Where to begin: latest, earliest, or an offset of every queue.
    #[arg(long, default_value = "latest", value_name = "WHERE")]
    pub from: From,
    /// One queue [all].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub queue: Option<i32>,
    /// Tags, with || between them.
    #[arg(long, default_value = "*", value_name = "TAGS")]
    pub tags: String,
    /// End after so many messages.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End when everything that is there was shown.
    #[arg(long)]
    pub exit: bool,
}

/// Arguments of `admin query`.
#[derive(Debug, Clone, Args)]
#[command(after_help = QUERY_EXAMPLES)]
#[group(skip)]
pub struct QueryArgs {
    /// Topic.
    pub topic: String,
    /// Key.
    #[arg(long, required_unless_present = "id", conflicts_with = "id")]
    pub key: Option<String>,
    /// Id given by the client (UNIQ_KEY) or by the broker (offset id).
    #[arg(long)]
    pub id: Option<String>,
}

fn queue_count() -> clap::builder::RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(1..=i64::from(QUEUES_MAX))
}

fn permission(text: &str) -> Result<i32, String> {
    match text {
        "rw" | "wr" | "6" => Ok(6),
        "r" | "4" => Ok(4),
        "w" | "2" => Ok(2),
        _ => Err("it is one of rw, r and w".to_owned()),
    }
}

fn host_and_port(text: &str) -> Result<String, String> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(1..) => Ok(text.to_owned()),
        _ => Err("it has the form HOST:PORT, such as 127.0.0.1:9876".to_owned()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it has the form NAME=VALUE".to_owned()),
    }
}

/// Runs a command and prints its result.
///
/// # Errors
/// [`AdminError`], for `main` to print.
pub fn run(args: &AdminArgs) -> Result<(), AdminError> {
    let mut stdout = io::stdout().lock();
    let mut to = Output {
        json: args.json,
        out: &mut stdout,
    };
    let mut cluster = Cluster::connect(&args.name_server)?;
    match act(&args.action, &mut cluster, &mut to) {
        Err(error) if error.is_closed_output() => Ok(()),
        outcome => outcome,
    }
}

fn act(action: &Action, cluster: &mut Cluster, to: &mut Output<'_>) -> Result<(), AdminError> {
    match action {
        Action::Topic(action) => topic(action, cluster, to),
        Action::Group(GroupAction::List { system }) => groups::list(cluster, *system, to),
        Action::Group(GroupAction::Progress { group }) => groups::progress(cluster, group, to),
        Action::Send(args) => send(args, cluster, to),
        Action::Consume(args) => {
            let plan = Plan {
                topic: &args.topic,
                from: args.from,
                queue: args.queue,
                tags: &args.tags,
                count: args.count,
                exit: args.exit,
            };
            consume::run(cluster, &plan, to)
        }
        Action::Query(args) => match (&args.key, &args.id) {
            (Some(key), _) => messages::by_key(cluster, &args.topic, key, to),
            (None, Some(id)) => messages::by_id(cluster, &args.topic, id, to),
            (None, None) => Ok(()),
        },
    }
}

fn topic(
    action: &TopicAction,
    cluster: &mut Cluster,
    to: &mut Output<'_>,
) -> Result<(), AdminError> {
    match action {
        TopicAction::Create {
            topic,
            queues,
            perm,
            order,
            attribute,
        } => {
            let signed: Vec<_> = attribute
                .iter()
                .map(|(key, value)| format!("+{key}={value}"))
                .collect();
            let new = NewTopic {
                name: topic,
                queues: *queues,
                perm: *perm,
                order: *order,
                attributes: &signed.join(","),
            };
            topics::create(cluster, &new, to)
        }
        TopicAction::List { system } => topics::list(cluster, *system, to),
        TopicAction::Route { topic } => topics::route(cluster, topic, to),
        TopicAction::Status { topic } => topics::status(cluster, topic, to),
        TopicAction::Delete { topic } => topics::delete(cluster, topic, to),
    }
}

fn send(args: &SendArgs, cluster: &mut Cluster, to: &mut Output<'_>) -> Result<(), AdminError> {
    let body = match (&args.body, &args.file) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(path)) => std::fs::read(path).map_err(|error| {
            AdminError::Impossible(format!("cannot read {}: {error}", path.display()))
        })?,
        (None, None) => {
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| AdminError::Impossible(format!("cannot read stdin: {error}")))?;
            bytes
        }
    };
    let message = NewMessage {
        topic: &args.topic,
        body,
        tag: args.tag.as_deref(),
        keys: args.key.clone(),
        queue: args.queue,
        delay_level: args.delay_level,
        properties: args.property.clone(),
    };
    messages::send(cluster, &message, to)
}
