//! The table of request codes: the only place that says which handler serves which code.

pub(crate) mod ahead;
pub mod attributes;
pub mod client;
pub mod config;
pub mod connections;
pub mod consumer_status;
pub mod durably;
pub mod group;
pub mod group_offsets;
pub mod heartbeat;
pub mod housekeeping;
pub(crate) mod kept_key;
pub mod lists;
pub mod lock;
pub mod name_server;
pub mod offset;
pub mod properties;
pub mod pull;
pub mod pull_checks;
pub mod query;
pub mod recall;
pub mod relay;
pub mod reply;
pub mod reset;
pub mod runtime;
pub mod send;
pub mod send_checks;
pub mod send_light;
pub mod send_properties;
pub mod sendback;
pub mod stats;
pub mod topic;
pub mod transaction;

use std::sync::atomic::Ordering;

use saturnmq_net::codes::request;
use saturnmq_net::driver::Outbox;

use crate::answer::{Answer, REQUEST_CODE_NOT_SUPPORTED, Reply, Request, V5_0_0};
use crate::broker::Broker;
use crate::core::Core;
use crate::timer::question::{self, Question};

/// MESSAGE_ILLEGAL.
pub const MESSAGE_ILLEGAL: i32 = 13;
/// SERVICE_NOT_AVAILABLE.
pub const SERVICE_NOT_AVAILABLE: i32 = 14;
/// NO_PERMISSION.
pub const NO_PERMISSION: i32 = 16;
/// TOPIC_NOT_EXIST.
pub const TOPIC_NOT_EXIST: i32 = 17;
/// PULL_NOT_FOUND.
pub const PULL_NOT_FOUND: i32 = 19;
/// PULL_RETRY_IMMEDIATELY.
pub const PULL_RETRY_IMMEDIATELY: i32 = 20;
/// PULL_OFFSET_MOVED.
pub const PULL_OFFSET_MOVED: i32 = 21;
/// QUERY_NOT_FOUND.
pub const QUERY_NOT_FOUND: i32 = 22;
/// FILTER_DATA_NOT_EXIST.
pub const FILTER_DATA_NOT_EXIST: i32 = 27;
/// SUBSCRIPTION_PARSE_FAILED.
pub const SUBSCRIPTION_PARSE_FAILED: i32 = 23;
/// SUBSCRIPTION_NOT_EXIST.
pub const SUBSCRIPTION_NOT_EXIST: i32 = 24;
/// SUBSCRIPTION_NOT_LATEST.
pub const SUBSCRIPTION_NOT_LATEST: i32 = 25;
/// SUBSCRIPTION_GROUP_NOT_EXIST.
pub const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
/// INVALID_PARAMETER.
pub const INVALID_PARAMETER: i32 = 29;

/// First version whose clients take 220 and 221.
pub const V3_0_7: i32 = 28;
/// Last version whose clients do not understand [`GO_AWAY`].
const V5_3_1: i32 = 475;
/// GO_AWAY.
const GO_AWAY: i32 = 1500;
/// First version whose `maxReconsumeTimes` is honoured.
pub const V3_4_9: i32 = 121;

/// The pointer to the answers to common questions that ends some remarks; Apache moved the page.
pub fn faq(request: &Request<'_>) -> &'static str {
    faq_for(request.command.version)
}

/// The same for a client version.
pub fn faq_for(version: i32) -> &'static str {
    if version >= V5_0_0 {
        "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    } else {
        "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
    }
}

/// Whether an answer of the services thread without what was acknowledged before would be wrong;
/// numbers and housekeeping may be a moment behind.
pub fn needs_newest(code: i32) -> bool {
    matches!(
        code,
        request::QUERY_MESSAGE
            | request::VIEW_MESSAGE_BY_ID
            | request::SEARCH_OFFSET_BY_TIMESTAMP
            | request::GET_EARLIEST_MSG_STORETIME
            | request::CONSUMER_SEND_MSG_BACK
            | request::END_TRANSACTION
            | request::INVOKE_BROKER_TO_RESET_OFFSET
            | request::CONSUME_MESSAGE_DIRECTLY
            | request::RESUME_CHECK_HALF_MESSAGE
            | request::QUERY_CONSUME_QUEUE
            | request::RECALL_MESSAGE
    )
}

/// Handles one request.
pub fn dispatch(core: &mut Core, request: &Request<'_>, io: &mut Outbox) -> Answer {
    if core.broker.leaving.load(Ordering::Relaxed) && request.command.version > V5_3_1 {
        return Reply::error(GO_AWAY, "please go away").into();
    }
    let name_server = core.broker.ports.name_server == Some(request.local_port);
    if name_server {
        name_server_request(core, request)
    } else {
        broker_request(core, request, io)
    }
}

fn broker_request(core: &mut Core, request: &Request<'_>, io: &mut Outbox) -> Answer {
    match request.command.code {
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
            send::send(core, request, io)
        }
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => pull_checks::pull(core, request, io),
        request::QUERY_MESSAGE => query::by_key(&core.broker, request),
        request::VIEW_MESSAGE_BY_ID => query::by_id(&core.broker, request),
        request::QUERY_CONSUMER_OFFSET => offset::query(&core.broker, request),
        request::UPDATE_CONSUMER_OFFSET => offset::update(&core.broker, request),
        request::SEARCH_OFFSET_BY_TIMESTAMP => offset::by_time(&core.broker, request),
        request::GET_MAX_OFFSET => offset::max(core, request, io),
        request::GET_MIN_OFFSET => offset::min(&core.broker, request),
        request::GET_EARLIEST_MSG_STORETIME => offset::earliest(&core.broker, request),
        request::HEART_BEAT => heartbeat::heartbeat(&core.broker, request, io),
        request::UNREGISTER_CLIENT => client::unregister(&core.broker, request, io),
        request::GET_CONSUMER_LIST_BY_GROUP => client::consumer_list(&core.broker, request),
        request::CHECK_CLIENT_CONFIG => client::check_config(&core.broker, request),
        request::LOCK_BATCH_MQ => lock::lock(&core.broker, request),
        request::UNLOCK_BATCH_MQ => lock::unlock(&core.broker, request),
        request::CONSUMER_SEND_MSG_BACK => sendback::send_back(&core.broker, request),
        request::SEND_REPLY_MESSAGE | request::SEND_REPLY_MESSAGE_V2 => {
            reply::reply(&core.broker, request)
        }
        request::END_TRANSACTION => transaction::end(core, request, io),
        _ => admin_request(&core.broker, request),
    }
}

/// Requests of administrators' tools; none of them is hot.
fn admin_request(broker: &Broker, request: &Request<'_>) -> Answer {
    match request.command.code {
        request::UPDATE_AND_CREATE_TOPIC => topic::create(broker, request),
        request::DELETE_TOPIC_IN_BROKER => topic::delete(broker, request),
        request::GET_ALL_TOPIC_CONFIG => topic::all(broker, request),
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => group::create(broker, request),
        request::DELETE_SUBSCRIPTIONGROUP => group::delete(broker, request),
        request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => group::all(broker, request),
        request::UPDATE_BROKER_CONFIG => config::update(request),
        request::GET_BROKER_CONFIG => config::get(broker, request),
        request::GET_BROKER_RUNTIME_INFO => runtime::info(broker, request),
        request::GET_TOPIC_STATS_INFO => stats::topic_stats(broker, request),
        request::GET_CONSUME_STATS => stats::consume_stats(broker, request),
        request::GET_BROKER_CONSUME_STATS => stats::broker_consume_stats(broker, request),
        request::QUERY_CONSUME_TIME_SPAN => stats::time_span(broker, request),
        request::QUERY_TOPIC_CONSUME_BY_WHO => stats::groups_of_topic(request),
        request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => stats::system_topics(),
        request::VIEW_BROKER_STATS_DATA => stats::item(broker, request),
        request::GET_ALL_CONSUMER_OFFSET => stats::consumer_offsets(broker, request),
        request::GET_ALL_DELAY_OFFSET => stats::delay_offsets(broker, request),
        request::QUERY_CONSUME_QUEUE => query::queue_entries(broker, request),
        request::GET_CONSUMER_CONNECTION_LIST => connections::consumers(broker, request),
        request::GET_PRODUCER_CONNECTION_LIST => connections::producers(broker, request),
        request::GET_ALL_PRODUCER_INFO => connections::all_producers(),
        request::INVOKE_BROKER_TO_RESET_OFFSET => reset::reset(broker, request),
        request::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => consumer_status::status(broker, request),
        request::CLONE_GROUP_OFFSET => group_offsets::clone(request),
        request::QUERY_CORRECTION_OFFSET => group_offsets::correction(request),
        request::GET_CONSUMER_RUNNING_INFO => relay::running_info(broker, request),
        request::CONSUME_MESSAGE_DIRECTLY => relay::consume_directly(broker, request),
        request::RESUME_CHECK_HALF_MESSAGE => transaction::resume(broker, request),
        request::CLEAN_EXPIRED_CONSUMEQUEUE => housekeeping::clean_queues(),
        request::DELETE_EXPIRED_COMMITLOG => housekeeping::delete_log(),
        request::CLEAN_UNUSED_TOPIC => housekeeping::clean_topics(),
        _ if request.is_v5() => newer_admin_request(broker, request),
        code => unknown(code),
    }
}

/// What a 4.9 broker does not know.
fn newer_admin_request(broker: &Broker, request: &Request<'_>) -> Answer {
    match request.command.code {
        request::UPDATE_AND_CREATE_TOPIC_LIST => lists::create_topics(request),
        request::GET_TOPIC_CONFIG => topic::get(broker, request),
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => lists::create_groups(request),
        request::GET_SUBSCRIPTIONGROUP_CONFIG => group::get(broker, request),
        request::UPDATE_AND_GET_GROUP_FORBIDDEN => group::forbidden(broker, request),
        request::QUERY_TOPICS_BY_CONSUMER => stats::topics_of_consumer(request),
        request::QUERY_SUBSCRIPTION_BY_CONSUMER => stats::subscription(broker, request),
        request::GET_TIMER_CHECK_POINT => question::ask(broker, Question::CheckPoint),
        request::GET_TIMER_METRICS => question::ask(broker, Question::Numbers),
        request::RECALL_MESSAGE => recall::recall(broker, request),
        request::GET_BROKER_HA_STATUS => runtime::ha_status(broker),
        code => unknown(code),
    }
}

fn name_server_request(core: &mut Core, request: &Request<'_>) -> Answer {
    name_server::handle(&core.broker, request).unwrap_or_else(|| unknown(request.command.code))
}

fn unknown(code: i32) -> Answer {
    let remark = format!(" request type {code} not supported");
    Reply::error(REQUEST_CODE_NOT_SUPPORTED, remark).into()
}
