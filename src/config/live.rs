//! The settings that may change while the broker runs, and request code 25 that changes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use saturnmq_storage::config::RetentionConfig;
use thiserror::Error;

use super::keys::{self, Change, Effect};
use super::properties::parse_properties;
use super::raw::{ConfigError, quoted};
use super::timers::LiveTimers;
use super::values::Values;

/// Why a configuration update was not applied; nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UpdateError {
    /// A path, a port, an address: never over the network (code 16).
    #[error("Can not update config in black list. ({0} can only be set in broker.conf)")]
    Forbidden(String),
    /// A key this broker obeys, but only at start (code 1).
    #[error("{0} only changes at a restart: set it in broker.conf and start the broker again")]
    Restart(String),
    /// No such key (code 1).
    #[error("unknown key {key}{meant}")]
    Unknown {
        /// What was sent.
        key: String,
        /// The nearest known key, as the end of the sentence.
        meant: String,
    },
    /// A value of the wrong form (code 1).
    #[error("{key}={value} is not possible: it takes {expected}")]
    Malformed {
        /// The key.
        key: String,
        /// What was sent.
        value: String,
        /// What it takes.
        expected: String,
    },
    /// The body is no properties text (code 1).
    #[error(transparent)]
    Syntax(#[from] ConfigError),
}

impl UpdateError {
    /// The response code: 16 NO_PERMISSION or 1 SYSTEM_ERROR.
    pub fn code(&self) -> i32 {
        if matches!(self, Self::Forbidden(_)) {
            16
        } else {
            1
        }
    }
}

/// Settings that may change while the broker runs.
#[derive(Debug, Clone)]
pub struct LiveConfig {
    values: Arc<Values>,
    /// `autoCreateTopicEnable`.
    pub auto_create_topic: bool,
    /// `autoCreateSubscriptionGroup`.
    pub auto_create_subscription_group: bool,
    /// `enableCreateSysGroup`.
    pub enable_create_sys_group: bool,
    /// `brokerPermission`: bits 4 reading, 2 writing.
    pub broker_permission: i32,
    /// `rejectPullConsumerEnable`.
    pub reject_pull_consumer: bool,
    /// `rejectTransactionMessage`.
    pub reject_transactions: bool,
    /// `transactionTimeOut`: age at which a producer is asked, in milliseconds.
    pub transaction_timeout_ms: i64,
    /// `transactionCheckMax`: questions before a half message is given up.
    pub transaction_check_max: i64,
    /// `transactionCheckInterval`.
    pub transaction_check_interval: Duration,
    /// `traceOn`.
    pub trace_on: bool,
    /// `regionId`.
    pub region_id: Arc<str>,
    /// `enablePropertyFilter`.
    pub enable_property_filter: bool,
    /// `filterSupportRetry`: an SQL92 selector on a retry topic gives way to the one of the topic
    /// that a message first came from.
    pub filter_support_retry: bool,
    /// `notifyConsumerIdsChangedEnable`.
    pub notify_consumer_ids_changed: bool,
    /// `channelExpiredTimeout`, in milliseconds.
    pub channel_expired_ms: u64,
    /// `validateSystemTopicWhenUpdateTopic`.
    pub validate_system_topic: bool,
    /// `enableMixedMessageType`.
    pub enable_mixed_message_type: bool,
    /// `clearRetryTopicWhenDeleteTopic`.
    pub clear_retry_topic: bool,
    /// `startAcceptSendRequestTimeStamp`: sends are refused before, milliseconds since the epoch.
    pub accept_sends_from_ms: i64,
    /// `longPollingEnable`.
    pub long_polling: bool,
    /// `shortPollingTimeMills`.
    pub short_polling_ms: u64,
    /// `maxTransferBytesOnMessageInMemory`.
    pub transfer_bytes_in_memory: usize,
    /// `maxTransferCountOnMessageInMemory`.
    pub transfer_count_in_memory: u32,
    /// `maxTransferBytesOnMessageInDisk`.
    pub transfer_bytes_on_disk: usize,
    /// `maxTransferCountOnMessageInDisk`.
    pub transfer_count_on_disk: u32,
    /// `accessMessageInMemoryMaxRatio`, in percent of the machine's memory.
    pub in_memory_percent: u64,
    /// `maxFilterMessageSize`: bytes of queue entries looked at per pull.
    pub max_filter_bytes: usize,
    /// `useServerSideResetOffset`.
    pub server_side_reset: bool,
    /// `storeReplyMessageEnable`.
    pub store_reply_message: bool,
    /// `maxMessageSize`, in bytes of body; never above the one the store was opened with.
    pub max_message_size: usize,
    /// `maxMsgsNumBatch`: records per answer of a query by key.
    pub max_query_messages: i32,
    /// `defaultQueryMaxNum`.
    pub default_query_messages: i32,
    /// `registerBrokerTimeoutMills`.
    pub register_timeout_ms: u64,
    /// Messages for a time.
    pub timers: LiveTimers,
    /// When files are deleted.
    pub retention: RetentionConfig,
}

/// When files are deleted.
pub(super) fn retention(v: &Values) -> RetentionConfig {
    let hours = v.text("deleteWhen").split(';');
    RetentionConfig {
        delete_when: hours.filter_map(|hour| hour.trim().parse().ok()).collect(),
        file_reserved: Duration::from_secs(v.number::<u64>("fileReservedTime") * 3600),
        disk_max_used_percent: v.number("diskMaxUsedSpaceRatio"),
        clean_forcibly_percent: v.number("diskSpaceCleanForciblyRatio"),
        warning_percent: v.number("diskSpaceWarningLevelRatio"),
        clean_file_forcibly: v.flag("cleanFileForciblyEnable"),
        delete_batch_max: v.number("deleteFileBatchMax"),
    }
}

impl LiveConfig {
    pub(super) fn new(values: Values) -> Self {
        let v = values;
        Self {
            auto_create_topic: v.flag("autoCreateTopicEnable"),
            auto_create_subscription_group: v.flag("autoCreateSubscriptionGroup"),
            enable_create_sys_group: v.flag("enableCreateSysGroup"),
            broker_permission: v.number("brokerPermission"),
            reject_pull_consumer: v.flag("rejectPullConsumerEnable"),
            reject_transactions: v.flag("rejectTransactionMessage"),
            transaction_timeout_ms: v.number("transactionTimeOut"),
            transaction_check_max: v.number("transactionCheckMax"),
            transaction_check_interval: Duration::from_millis(v.number("transactionCheckInterval")),
            trace_on: v.flag("traceOn"),
            region_id: v.text("regionId").into(),
            enable_property_filter: v.flag("enablePropertyFilter"),
            filter_support_retry: v.flag("filterSupportRetry"),
            notify_consumer_ids_changed: v.flag("notifyConsumerIdsChangedEnable"),
            channel_expired_ms: v.number("channelExpiredTimeout"),
            validate_system_topic: v.flag("validateSystemTopicWhenUpdateTopic"),
            enable_mixed_message_type: v.flag("enableMixedMessageType"),
            clear_retry_topic: v.flag("clearRetryTopicWhenDeleteTopic"),
            accept_sends_from_ms: v.number("startAcceptSendRequestTimeStamp"),
            long_polling: v.flag("longPollingEnable"),
            short_polling_ms: v.number("shortPollingTimeMills"),
            transfer_bytes_in_memory: v.number("maxTransferBytesOnMessageInMemory"),
            transfer_count_in_memory: v.number("maxTransferCountOnMessageInMemory"),
            transfer_bytes_on_disk: v.number("maxTransferBytesOnMessageInDisk"),
            transfer_count_on_disk: v.number("maxTransferCountOnMessageInDisk"),
            in_memory_percent: v.number("accessMessageInMemoryMaxRatio"),
            max_filter_bytes: v.number("maxFilterMessageSize"),
            server_side_reset: v.flag("useServerSideResetOffset"),
            store_reply_message: v.flag("storeReplyMessageEnable"),
            max_message_size: v.number::<usize>("maxMessageSize").min(keys::BODY_CARRIED),
            max_query_messages: v.number("maxMsgsNumBatch"),
            default_query_messages: v.number("defaultQueryMaxNum"),
            register_timeout_ms: v.number("registerBrokerTimeoutMills"),
            timers: LiveTimers::new(&v),
            retention: retention(&v),
            values: Arc::new(v),
        }
    }

    /// Applies an update (request code 25): everything or nothing.
    ///
    /// # Errors
    /// [`UpdateError`] names the first key that cannot be applied.
    pub fn apply(&self, properties_text: &str) -> Result<LiveConfig, UpdateError> {
        let pairs = parse_properties(properties_text.as_bytes(), "the request")?;
        let mut changes = BTreeMap::new();
        for (name, value, _) in pairs {
            let Some(key) = keys::find(&name) else {
                let meant = keys::nearest(&name)
                    .map_or_else(String::new, |k| format!("; the nearest known key is {k}"));
                return Err(UpdateError::Unknown {
                    key: quoted(&name),
                    meant,
                });
            };
            // A value that stays the same is no change: tools send back whole configurations.
            if self.values.text(key.name) == value.trim() {
                continue;
            }
            match key.change {
                Change::Never => return Err(UpdateError::Forbidden(name)),
                Change::Restart => return Err(UpdateError::Restart(name)),
                Change::Live => {}
            }
            if let Err(expected) = key.check(&value) {
                return Err(UpdateError::Malformed {
                    key: name,
                    value: quoted(&value),
                    expected,
                });
            }
            if key.name == "maxMessageSize" {
                self.check_message_size(&value)?;
            }
            if key.effect == Effect::Ignored {
                tracing::info!("{name}={value} is kept and has no effect here");
            }
            changes.insert(key.name, value.trim().to_string());
        }
        let mut values = (*self.values).clone();
        for (key, value) in changes {
            values.set(key, value);
        }
        Ok(Self::new(values))
    }

    /// The store's buffers are sized at start: a larger limit than then needs a restart.
    fn check_message_size(&self, value: &str) -> Result<(), UpdateError> {
        let at_start = self.values.message_size_at_start();
        match value.trim().parse::<i64>() {
            Ok(size) if size > at_start => Err(UpdateError::Restart(format!(
                "maxMessageSize above {at_start}"
            ))),
            _ => Ok(()),
        }
    }

    /// Every key with its present value, as properties text (request code 26); secrets are masked.
    pub fn to_properties_text(&self) -> String {
        self.values.to_properties_text()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Options};
    use super::*;

    fn live(set: &[&str]) -> LiveConfig {
        let set = set.iter().map(ToString::to_string).collect();
        Config::resolve(&Options {
            set,
            ..Options::default()
        })
        .expect("configuration")
        .live
    }

    #[test]
    fn safe_keys_change_at_once() {
        let changed = live(&[])
            .apply("autoCreateTopicEnable=false\nbrokerPermission=4\nmaxMessageSize=1000\n")
            .expect("applied");
        assert!(!changed.auto_create_topic);
        assert_eq!(
            (changed.broker_permission, changed.max_message_size),
            (4, 1000)
        );
        assert!(
            changed
                .to_properties_text()
                .contains("brokerPermission=4\n")
        );
    }

    #[test]
    fn nothing_is_applied_when_one_key_cannot_be() {
        let live = live(&[]);
        let refused = |text: &str| live.apply(text).expect_err("refused");
        let all = [
            ("storePathRootDir=/tmp/x", 16),
            ("listenPort=1", 16),
            ("rocketmqHome=/tmp/x", 16),
            ("configBlackList=x", 16),
            ("brokerConfigPath=/etc/passwd", 16),
            ("authenticationProvider=x", 16),
            ("metricsPromExporterPort=1", 16),
            ("aclEnable=true", 16),
            ("flushDiskType=ASYNC_FLUSH", 1),
            ("brokerPermision=4", 1),
            ("brokerPermission=5", 1),
            ("autoCreateTopicEnable=maybe", 1),
            ("maxMessageSize=99999999", 1),
        ];
        for (text, code) in all {
            let error = refused(&format!("traceOn=false\n{text}\n"));
            assert_eq!(error.code(), code, "{text}: {error}");
            let key = text.split('=').next().expect("key");
            assert!(error.to_string().contains(key), "{error}");
        }
        assert!(
            refused("brokerPermision=4")
                .to_string()
                .contains("brokerPermission")
        );
    }

    #[test]
    fn a_whole_configuration_may_be_sent_back() {
        let live = live(&["brokerName=b"]);
        assert!(live.apply(&live.to_properties_text()).is_ok());
    }

    #[test]
    fn the_properties_text_names_every_key_and_masks_secrets() {
        let text = live(&[
            "metricsGrpcExporterHeader=Authorization:abc",
            "brokerName=b",
        ])
        .to_properties_text();
        assert!(!text.contains("abc") && text.contains("metricsGrpcExporterHeader=******\n"));
        assert!(text.contains("brokerName=b\n") && text.contains("flushDiskType=SYNC_FLUSH\n"));
        let unnamed = keys::all()
            .filter(|k| !text.contains(&format!("{}=", k.name)))
            .count();
        assert_eq!(unnamed, 0);
    }
}
