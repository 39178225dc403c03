//! Which type reads the header and body of which code.

use saturnmq_net::encode::Encoder;
use saturnmq_net::fastjson::{self, BodyError};
use saturnmq_net::header::fields::{FieldError, Fields};
use saturnmq_net::messages::{
    broker, group, heartbeat, kv, lock, namesrv, offset, pop, pull, query, register, route, send,
    stats, topic, transaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Decodes the ext fields as the type of their code and writes them again.
macro_rules! views {
    ($code:expr, $ext:expr, $encoder:expr; $($($known:literal)|+ => $view:ty,)*) => {
        match $code {
            $($($known)|+ => <$view>::decode($ext)?.encode_fields($encoder),)*
            _ => return Ok(false),
        }
    };
}

/// `Ok(false)`: requests of that code have no fields.
pub fn request_view(
    code: i32,
    ext: &Fields<'_>,
    encoder: &mut Encoder<'_>,
) -> Result<bool, FieldError> {
    if matches!(code, 10 | 310 | 320 | 324 | 325) {
        send::SendRequest::decode(code, ext)?.encode_fields(code, encoder);
        return Ok(true);
    }
    views! { code, ext, encoder;
        11 | 361 => pull::PullRequest,
        12 => query::QueryMessage,
        14 => offset::QueryConsumerOffset,
        15 => offset::UpdateConsumerOffset,
        17 => topic::CreateTopic,
        21 => topic::GetAllTopicConfig,
        29 => offset::SearchOffset,
        30 => offset::MaxOffset,
        31 => offset::MinOffset,
        32 => offset::EarliestTime,
        33 => query::ViewMessage,
        35 => heartbeat::UnregisterClient,
        36 => send::SendBack,
        37 => transaction::EndTransaction,
        38 | 40 | 203 => heartbeat::ConsumerGroup,
        39 => transaction::CheckTransactionState,
        100 => kv::PutKvConfig,
        101 | 102 => kv::KvKey,
        103 => register::RegisterBroker,
        104 | 322 => register::BrokerIdentity,
        105 => namesrv::GetRoute,
        201 => group::GetAllGroups,
        202 | 215 | 217 | 300 | 351 => topic::TopicName,
        204 => heartbeat::ProducerGroup,
        205 | 327 => namesrv::BrokerName,
        207 => group::DeleteGroup,
        208 => stats::GetConsumeStats,
        216 => namesrv::DeleteTopicInNamesrv,
        219 => kv::GetKvList,
        220 | 222 => offset::ResetOffset,
        221 | 223 => offset::GetConsumerStatus,
        224 => namesrv::TopicsByCluster,
        303 | 345 | 353 => topic::TopicAndGroup,
        307 => heartbeat::ConsumerRunningInfo,
        308 => offset::QueryCorrectionOffset,
        309 => heartbeat::ConsumeMessageDirectly,
        314 => offset::CloneGroupOffset,
        315 => broker::ViewBrokerStats,
        317 => stats::GetBrokerConsumeStats,
        321 => query::QueryConsumeQueue,
        323 => transaction::ResumeCheckHalfMessage,
        326 => send::PushReply,
        343 | 352 => group::GroupName,
        901 => namesrv::GetBrokerMemberGroup,
        904 => namesrv::BrokerHeartbeat,
        200050 => pop::PopRequest,
        200051 => pop::AckMessage,
        200052 => pop::PeekMessage,
        200053 => pop::ChangeInvisibleTime,
        200054 => pop::Notification,
        200055 => pop::PollingInfo,
    }
    Ok(true)
}

/// `Ok(false)`: the answers to requests of that code have no fields.
pub fn response_view(
    request: i32,
    ext: &Fields<'_>,
    encoder: &mut Encoder<'_>,
) -> Result<bool, FieldError> {
    views! { request, ext, encoder;
        10 | 310 | 320 | 324 | 325 => send::SendResponse,
        11 | 361 => pull::PullResponse,
        12 => query::QueryMessageResponse,
        14 | 29 | 30 | 31 => offset::OffsetResponse,
        26 => broker::GetBrokerConfigResponse,
        32 => offset::TimestampResponse,
        34 => heartbeat::HeartbeatResponse,
        101 => kv::GetKvConfigResponse,
        103 => register::RegisterBrokerResponse,
        205 => namesrv::WipeWritePermResponse,
        322 => register::QueryDataVersionResponse,
        327 => namesrv::AddWritePermResponse,
        200050 => pop::PopResponse,
        200053 => pop::ChangeInvisibleTimeResponse,
        200054 => pop::NotificationResponse,
        200055 => pop::PollingInfoResponse,
    }
    Ok(true)
}

/// Reads a body and writes it again.
pub type Rewrite = fn(&[u8]) -> Result<Vec<u8>, BodyError>;

fn plain<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut out = Vec::new();
    fastjson::write(&mut out, &fastjson::from_slice::<T>(body)?)?;
    serde_json::from_slice::<Value>(&out).expect("strict JSON");
    Ok(out)
}

/// For bodies with object keys, which write themselves.
macro_rules! keyed {
    ($body:ty) => {
        |body| {
            let mut out = Vec::new();
            fastjson::from_slice::<$body>(body)?.write(&mut out)?;
            Ok(out)
        }
    };
}

/// For requests of that code, if they have a JSON body.
pub fn request_body(code: i32) -> Option<Rewrite> {
    Some(match code {
        18 => plain::<topic::TopicConfigList>,
        34 => plain::<heartbeat::HeartbeatData>,
        41 | 42 => plain::<lock::LockBatchRequest>,
        46 => plain::<heartbeat::CheckClientConfig>,
        103 => plain::<register::RegisterBrokerBody>,
        200 => plain::<group::SubscriptionGroupConfig>,
        217 => plain::<route::TopicRouteData>,
        220 => keyed!(offset::ResetOffsetBody),
        225 => plain::<group::SubscriptionGroupList>,
        322 => plain::<topic::DataVersion>,
        400 => plain::<group::QueryAssignment>,
        401 => plain::<group::SetRequestMode>,
        200151 => plain::<pop::BatchAckBody>,
        _ => return None,
    })
}

/// For good answers to requests of that code, if they have a JSON body.
pub fn response_body(request: i32) -> Option<Rewrite> {
    Some(match request {
        21 => plain::<topic::TopicConfigSerializeWrapper>,
        28 | 219 => plain::<kv::KvTable>,
        38 => plain::<heartbeat::ConsumerIdList>,
        41 => plain::<lock::LockBatchResponse>,
        105 => plain::<route::TopicRouteData>,
        106 => plain::<route::ClusterInfo>,
        201 => plain::<group::SubscriptionGroupWrapper>,
        202 => keyed!(stats::TopicStatsTable),
        203 => plain::<heartbeat::ConsumerConnection>,
        204 => plain::<heartbeat::ProducerConnection>,
        206 | 224 | 304 | 305 | 311 | 312 | 313 | 343 => plain::<route::TopicList>,
        208 => keyed!(stats::ConsumeStats),
        222 => keyed!(offset::ResetOffsetBody),
        221 | 223 => keyed!(offset::ConsumerStatusBody),
        300 => plain::<group::GroupList>,
        303 => plain::<stats::ConsumeTimeSpans>,
        308 => plain::<offset::CorrectionOffsets>,
        315 => plain::<broker::BrokerStatsData>,
        317 => keyed!(stats::ConsumeStatsList),
        321 => plain::<stats::QueryConsumeQueueResponse>,
        322 => plain::<topic::DataVersion>,
        328 => plain::<heartbeat::ProducerTable>,
        345 => plain::<group::GroupSubscription>,
        351 => plain::<topic::TopicConfig>,
        352 => plain::<group::SubscriptionGroupConfig>,
        353 => plain::<group::GroupForbidden>,
        400 => plain::<group::Assignments>,
        901 => plain::<route::GetBrokerMemberGroupResponse>,
        _ => return None,
    })
}
