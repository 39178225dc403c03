//! What is checked before a pull reads anything, in order (docs/behaviour.md, Reading a queue).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use saturnmq_net::driver::Outbox;
use saturnmq_net::header::fields::FieldError;
use saturnmq_net::messages::pull::{
    PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullRequest,
};
use saturnmq_storage::filter::TagExpressionError;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::{PullStatus, Pulled};

use crate::answer::{Answer, Reply, Request, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::clients::MessageModel;
use crate::config::LiveConfig;
use crate::core::Core;
use crate::groups::{FoundGroup, Group};
use crate::handler::group::FORBIDDEN_READ;
use crate::handler::pull::{self, Filter, Pull, SysFlags};
use crate::handler::{
    FILTER_DATA_NOT_EXIST, INVALID_PARAMETER, NO_PERMISSION, PULL_OFFSET_MOVED,
    SUBSCRIPTION_GROUP_NOT_EXIST, SUBSCRIPTION_NOT_EXIST, SUBSCRIPTION_NOT_LATEST,
    SUBSCRIPTION_PARSE_FAILED, TOPIC_NOT_EXIST, faq, faq_for,
};
use crate::light::{self, LightError};
use crate::subscription::{self, ExpressionError, Wanted};
use crate::topics::{PERM_READ, Topic};

/// Longest a client may let a pull wait; it times out long before that.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Why a pull is forbidden, as 5.x clients are told.
#[derive(Copy, Clone)]
enum Forbidden {
    Broker = 1,
    Group = 2,
    Topic = 3,
    Broadcasting = 4,
    Subscription = 5,
}

/// Handles a pull.
pub fn pull(core: &mut Core, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let pull = match PullRequest::decode(&request.command.ext) {
        Ok(pull) => pull,
        Err(error) => return error.into(),
    };
    let broker: &Broker = &core.broker;
    let live = broker.live.load();
    let checked = match check(broker, &live, request, &pull) {
        Ok(checked) => checked,
        Err(answer) => return answer,
    };
    if live.server_side_reset
        && let Some(offset) =
            broker
                .offsets
                .take_reset(pull.consumer_group, pull.topic, pull.queue_id)
    {
        return moved(&checked, offset, request, io);
    }
    if pull.sys_flag & PULL_COMMIT_OFFSET != 0 {
        let Some(offset) = pull.commit_offset else {
            let field = "commitOffset";
            return FieldError::Missing { field }.into();
        };
        broker
            .offsets
            .commit(pull.consumer_group, pull.topic, pull.queue_id, offset);
    }
    if core.leaving {
        return pull::stopping().into();
    }
    if request.command.is_oneway() {
        return Answer::Nothing;
    }
    let suspend = (pull.sys_flag & PULL_SUSPEND != 0).then(|| {
        let wanted = if live.long_polling {
            u64::try_from(pull.suspend_timeout_ms.unwrap_or(0)).unwrap_or(0)
        } else {
            live.short_polling_ms
        };
        Duration::from_millis(wanted).min(LONGEST_WAIT)
    });
    drop(live);
    pull::start(core, request.conn, checked, suspend, io);
    Answer::Nothing
}

fn check(
    broker: &Broker,
    live: &LiveConfig,
    request: &Request<'_>,
    pull: &PullRequest<'_>,
) -> Result<Pull, Answer> {
    // Before anything is looked at: what changes from now on is found to be new.
    let rules = broker.rules.load(Ordering::Acquire);
    if live.broker_permission & PERM_READ == 0 {
        let remark = format!(
            "the broker[{}] pulling message is forbidden",
            broker.store_host.ip()
        );
        return Err(forbidden(request, Forbidden::Broker, remark));
    }
    let group = find_group(broker, live, request, pull.consumer_group)?;
    if !group.config.consume_enable {
        let remark = format!("subscription group no permission, {}", pull.consumer_group);
        return Err(forbidden(request, Forbidden::Group, remark));
    }
    let Some(topic) = broker.topics.get(pull.topic) else {
        let remark = missing_topic_remark(pull.topic, request.command.version);
        return Err(Reply::error(TOPIC_NOT_EXIST, remark).into());
    };
    if !topic.is_readable() {
        let remark = format!("the topic[{}] pulling message is forbidden", pull.topic);
        return Err(forbidden(request, Forbidden::Topic, remark));
    }
    if pull.queue_id < 0 || pull.queue_id >= topic.config.read_queues {
        return Err(wrong_queue(request, pull, &topic));
    }
    let filter = if pull.sys_flag & PULL_SUBSCRIPTION != 0 {
        own_filter(live, pull)?
    } else {
        registered_filter(broker, live, request, pull, &group)?
    };
    if pull.max_msg_nums < 0 && !request.is_v5() {
        return Err(negative("maxMsgNums", pull.max_msg_nums).into());
    }
    let queue = queue(broker, &topic, pull.queue_id)?;
    let counted = match broker.config.light.enabled {
        true => light::counted_as(pull.consumer_group),
        false => pull.consumer_group,
    };
    let sys_flags = request.is_v5().then(|| SysFlags {
        topic: topic.config.sys_flag,
        group: group.config.sys_flag,
    });
    Ok(Pull {
        to: request.command.reply_to(),
        counted: topic.traffic.group(counted),
        topic,
        queue,
        offset: pull.queue_offset,
        scanned: pull.queue_offset,
        max_count: pull.max_msg_nums,
        filter,
        group,
        rules,
        sys_flags,
    })
}

/// Whether a pull that was checked before is as it was: nobody altered its topic, its group or the
/// group's subscription, and neither they nor the configuration forbid it.
pub fn still_passes(broker: &Broker, pull: &Pull) -> bool {
    let (topic, group) = (&pull.topic.config.name, &pull.group.config.name);
    let same_topic = broker.topics.get(topic);
    let same_group = broker.groups.get(group);
    let live = broker.live.load();
    same_topic.is_some_and(|now| Arc::ptr_eq(&now, &pull.topic))
        && same_group.is_some_and(|now| Arc::ptr_eq(&now, &pull.group))
        && live.broker_permission & PERM_READ != 0
        && (live.enable_property_filter || !pull.filter.is_selector())
        && broker.groups.forbidden(group, topic) & FORBIDDEN_READ == 0
        && pull.filter.subscription().is_none_or(|checked| {
            let registered = broker.clients.consumer(group);
            registered.is_some_and(|now| {
                now.with_view(|view| {
                    let now = view.subscriptions.get(&**topic);
                    now.is_some_and(|now| Arc::ptr_eq(now, checked) || now.selects_as(checked))
                })
            })
        })
}

/// The refusal of a count below 0.
pub fn negative(field: &str, count: i32) -> Reply {
    let remark = format!("the field {field} holds {count}, which must not be negative");
    Reply::error(SYSTEM_ERROR, remark)
}

fn queue(broker: &Broker, topic: &Topic, queue_id: i32) -> Result<Arc<Queue>, Answer> {
    broker
        .queue(topic, queue_id)
        .ok_or_else(|| Reply::error(SYSTEM_ERROR, LightError::Full.to_string()).into())
}

fn find_group(
    broker: &Broker,
    live: &LiveConfig,
    request: &Request<'_>,
    name: &str,
) -> Result<Arc<Group>, Answer> {
    match broker.groups.find_or_create(name, live) {
        FoundGroup::Found(group) => Ok(group),
        FoundGroup::Created(_, ticket) => Err(Answer::Rerun(ticket)),
        FoundGroup::Missing | FoundGroup::Illegal(_) => {
            let remark = format!(
                "subscription group [{name}] does not exist, {}",
                faq(request)
            );
            Err(Reply::error(SUBSCRIPTION_GROUP_NOT_EXIST, remark).into())
        }
    }
}

fn wrong_queue(request: &Request<'_>, pull: &PullRequest<'_>, topic: &Topic) -> Answer {
    let remark = format!(
        "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}] consumer:[/{}]",
        pull.queue_id, pull.topic, topic.config.read_queues, request.peer
    );
    let code = if request.is_v5() {
        INVALID_PARAMETER
    } else {
        SYSTEM_ERROR
    };
    Reply::error(code, remark).into()
}

/// The filter of an expression that came with the request.
fn own_filter(live: &LiveConfig, pull: &PullRequest<'_>) -> Result<Filter, Answer> {
    let kind = pull.expression_type.unwrap_or_default();
    let expression = pull.subscription.unwrap_or_default();
    let filter = subscription::own_filter(kind, expression).map_err(|error| {
        let mut remark = String::from("parse the consumer's subscription failed");
        // Of a tag expression without a tag Apache says no more.
        if !matches!(error, ExpressionError::Tags(TagExpressionError::NoTag)) {
            remark = format!("{remark}: {error}");
        }
        Reply::error(SUBSCRIPTION_PARSE_FAILED, remark)
    })?;
    if !subscription::is_tag(kind) && !live.enable_property_filter {
        return Err(unsupported(kind).into());
    }
    Ok(Filter::Own(filter))
}

/// What a subscription of a kind is answered while `enablePropertyFilter` is off.
pub fn unsupported(kind: &str) -> Reply {
    let remark = format!("The broker does not support consumer to filter message by {kind}");
    Reply::error(SYSTEM_ERROR, remark)
}

/// The filter that the group's heartbeats registered.
fn registered_filter(
    broker: &Broker,
    live: &LiveConfig,
    request: &Request<'_>,
    pull: &PullRequest<'_>,
    group: &Group,
) -> Result<Filter, Answer> {
    let Some(registered) = broker.clients.consumer(pull.consumer_group) else {
        let remark = format!("the consumer's group info not exist{}", faq(request));
        return Err(Reply::error(SUBSCRIPTION_NOT_EXIST, remark).into());
    };
    let (model, found) = registered.with_view(|view| {
        (
            view.message_model,
            view.subscriptions.get(pull.topic).map(Arc::clone),
        )
    });
    if model == MessageModel::Broadcasting && !group.config.consume_broadcast_enable {
        let remark = format!(
            "the consumer group[{}] can not consume by broadcast way",
            pull.consumer_group
        );
        return Err(forbidden(request, Forbidden::Broadcasting, remark));
    }
    if broker.groups.forbidden(pull.consumer_group, pull.topic) & FORBIDDEN_READ != 0 {
        let remark = format!(
            "the consumer group[{}] is forbidden for topic[{}]",
            pull.consumer_group, pull.topic
        );
        return Err(forbidden(request, Forbidden::Subscription, remark));
    }
    let Some(found) = found else {
        let remark = format!("the consumer's subscription not exist{}", faq(request));
        return Err(Reply::error(SUBSCRIPTION_NOT_EXIST, remark).into());
    };
    if found.data.sub_version < pull.sub_version.unwrap_or(0) {
        let remark = "the consumer's subscription not latest";
        return Err(Reply::error(SUBSCRIPTION_NOT_LATEST, remark).into());
    }
    if found.filter.is_none() {
        let remark = "The broker's consumer filter data is not exist!\
                      Your expression may be wrong!";
        return Err(Reply::error(FILTER_DATA_NOT_EXIST, remark).into());
    }
    if !found.is_tag() && !live.enable_property_filter {
        return Err(unsupported(&found.data.expression_type).into());
    }
    let hint = match found.filter {
        Some(Wanted::Selected(_)) => {
            let (filters, expression) = (&broker.filters, &found.data.sub_string);
            filters.hint(pull.consumer_group, pull.topic, expression)
        }
        _ => None,
    };
    Ok(match hint {
        Some(hint) => Filter::Hinted(found, hint),
        None => Filter::Shared(found),
    })
}

fn forbidden(request: &Request<'_>, why: Forbidden, remark: String) -> Answer {
    let reply = Reply::error(NO_PERMISSION, remark);
    if request.is_v5() {
        reply.field("forbiddenType", why as i32)
    } else {
        reply
    }
    .into()
}

/// The remark of code 17 on a pull.
pub fn missing_topic_remark(topic: &str, version: i32) -> String {
    format!(
        "topic[{topic}] not exist, apply first please! {}",
        faq_for(version)
    )
}

/// Tells the client of a reset that an administrator made.
fn moved(pull: &Pull, offset: i64, request: &Request<'_>, io: &mut Outbox) -> Answer {
    let pulled = pulled_none(pull, PullStatus::OffsetTooSmall, offset);
    if let Some(out) = io.buffer(request.conn)
        && !request.command.is_oneway()
    {
        pull::encode_status(out, pull, PULL_OFFSET_MOVED, "OFFSET_RESET", &pulled);
    }
    Answer::Sent
}

/// What a pull comes to that read nothing.
pub fn pulled_none(pull: &Pull, status: PullStatus, next_begin: i64) -> Pulled {
    Pulled {
        status,
        next_begin,
        min: pull.queue.min_offset(),
        max: pull.queue.max_offset(),
        count: 0,
        bytes: 0,
        damaged: 0,
        far_behind: false,
    }
}
